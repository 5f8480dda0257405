"""How the values of channels become JSON and come back, and which parts of them changed.

LangGraph's serializer turns a value into a tag and bytes; here they become `typed`: the bytes in
base64, with their tag unless it is `msgpack`. A list or dict is stored as its items, so that the
next version of a list of messages needs only the messages that are new:

    {"list": [[0, 998], "kaR0eXBl…", "kaR0eXBl…"]}

keeps 998 items of the version before it and adds two.
"""

from __future__ import annotations

from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
import ormsgpack
from langgraph.checkpoint.serde import _msgpack
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from ...errors import CorruptRecord, NotSerializable
from ...log.events import Blob
from ...redact import Redactor
from .messages import (
    MessageForm,
    are_same,
    load_messages,
    may_be_message,
    pack_message,
    read_text_message,
    take_apart,
)

LARGE_CHARACTERS: Final = 32 * 1024
"""A typed value over this size has an event of its own, so that equal ones are stored once."""
MIN_SPLIT_BYTES: Final = 1024
"""A dict is stored as its items from this size on."""

Typed = str | list[str]
Span = tuple[int, int]
Key = tuple[Any, ...]
"""What two values have in common that are stored as the same bytes, and only they."""


class LargeValue:
    """A typed value in an event of its own. `typed` is None until its blob is read."""

    __slots__ = ("blob", "typed")

    def __init__(self, typed: Typed | None, blob: Blob | None = None) -> None:
        self.typed, self.blob = typed, blob


class Item:
    """A stored value, or an item of a stored list or dict.

    `form` is what the value is compared by: the parts of a message, which also make new messages
    of it; or else the tag and bytes.
    """

    __slots__ = ("form", "large", "typed")

    def __init__(self, typed: Typed | None, large: LargeValue | None = None) -> None:
        self.typed, self.large = typed, large
        self.form: MessageForm | Key | None = None

    @property
    def size(self) -> int:
        """How many characters are stored. Those of a value in a blob are about its bytes."""
        typed = self.typed if self.large is None else self.large.typed
        if typed is not None:
            return len(typed) if isinstance(typed, str) else len(typed[1])
        return self.large.blob.size if self.large is not None and self.large.blob else 0

    def get_typed(self) -> Typed:
        typed = self.typed if self.large is None else self.large.typed
        if typed is None:
            raise AssertionError("the large value is read before it is used")
        return typed


class ChannelValue:
    """A stored value of a channel: one item, or a list or dict of them.

    `parts` are spans of the items of `base`, and new items. `items` caches the result; only the
    newest of a chain of values keeps it.
    """

    __slots__ = ("base", "items", "kind", "parts")

    def __init__(
        self, kind: str, parts: Sequence[Span | Item], base: ChannelValue | None = None
    ) -> None:
        self.kind, self.parts, self.base = kind, parts, base
        self.items: list[Item] | None = None

    def load_items(self) -> list[Item]:
        """Return the items, computed from the base values if need be."""
        items = self.items  # read once: another thread may take them for a newer value
        if items is not None:
            return items
        chain: list[ChannelValue] = [self]
        while (base := chain[-1].base) is not None:
            items = base.items
            if items is not None:
                base.items = None  # `self` is newer
                break
            chain.append(base)
        built = list(items or ())
        for value in reversed(chain):
            built = value._apply(built)
        self.items = built
        return built

    def _apply(self, items: list[Item]) -> list[Item]:
        """Return the items of this value, given those of its base, which may be changed."""
        if self.parts and self.parts[0] == (0, len(items)):
            new, rest = items, self.parts[1:]  # the usual case: items were added at the end
            items = list(items) if any(not isinstance(part, Item) for part in rest) else items
        else:
            new, rest = [], self.parts
        for part in rest:
            if isinstance(part, Item):
                new.append(part)
            else:
                new += items[part[0] : part[1]]
        return new


class ValueCodec:
    """Converts values with a serializer. A redactor gets each value before it is stored."""

    def __init__(self, serde: SerializerProtocol, redactor: Redactor | None = None) -> None:
        self._serde, self._redactor = serde, redactor
        # Encryption gives other bytes each time, so values are compared without it.
        self._plain = serde.serde if isinstance(serde, EncryptedSerializer) else serde
        self._knows_messages = type(self._plain) is JsonPlusSerializer
        self._allowed = _get_allowed_types(self._plain)
        if redactor is not None and not isinstance(serde, JsonPlusSerializer):
            raise TypeError(
                "a store with redaction needs a JsonPlusSerializer as serde: the values of "
                f"{type(serde).__name__} can't be redacted"
            )

    # -- storing ---------------------------------------------------------------------------------

    def build(
        self, value: Any, base: ChannelValue | None = None, channel: str = ""
    ) -> ChannelValue:
        """Return the value to store. Items that `base` has are not stored again."""
        kind, parts = _split(value)
        if kind == "dict" and (base is None or base.kind != "dict"):
            item = self._build_item(value, channel)
            if len(item.get_typed()) < MIN_SPLIT_BYTES:
                return _make_value("value", [item], [item])
        if kind == "value":
            item = self._build_item(value, channel)
            return _make_value(kind, [item], [item])
        build_part = self._part_builder(value, kind, parts, channel)
        if base is None or base.kind != kind:
            items = [build_part(at) for at in range(len(parts))]
            return _make_value(kind, items, items)
        known = base.load_items()
        same = self._count_same(known, parts)
        spans: list[Span] = [(0, same)] if same else []
        if same < len(known):
            keys = [self._get_key(part) for part in parts[same:]]
            spans += _find_spans([self._key_of(item) for item in known], keys)
        else:  # the usual case: items were added at the end
            spans += [(-1, at) for at in range(len(parts) - same)]
        return _build_value(base, spans, lambda at: build_part(same + at))

    def _count_same(self, known: Sequence[Item], parts: Sequence[Any]) -> int:
        """Return how many values are the same as the stored ones, from the start on."""
        count, step = 0, min(len(known), len(parts))
        while step and count < len(known):
            end = count + step
            forms = [item.form or self._form_of(item) for item in known[count:end]]
            if are_same(forms, parts[count:end]):
                count = end
            step //= 2
        for item, value in zip(known[count:], parts[count:], strict=False):
            if self._get_key(value) != self._key_of(item):
                break
            count += 1
        return count

    def _part_builder(
        self, value: Any, kind: str, parts: Sequence[Any], channel: str
    ) -> Callable[[int], Item]:
        """Return a function that builds the n-th item of a list or dict.

        The redactor needs to see a dict whole, because it goes by names, and so a list whose items
        may be names and their values.
        """
        whole: list[Item] = []

        def build_part(at: int) -> Item:
            if not whole:
                _, data = _decode(self._build_item(value, channel).get_typed())
                plain = ormsgpack.unpackb(data, ext_hook=ormsgpack.Ext, option=_ANY_KEYS)
                found = map(list, plain.items()) if kind == "dict" else plain
                whole.extend(
                    Item(_encode("msgpack", ormsgpack.packb(part, option=_ANY_KEYS)))
                    for part in found
                )
            return whole[at]

        if self._redactor is not None and (kind == "dict" or any(map(_may_be_name, parts))):
            return build_part
        return lambda at: self._build_item(parts[at], channel)

    def _build_item(self, value: Any, channel: str = "") -> Item:
        tag, data = self._serde.dumps_typed(value)
        data = redact_typed(tag, data, self._redactor, channel)
        if self._allowed is not None and self._plain is self._serde and tag == "msgpack":
            self._check_types(data)
        return Item(_encode(tag, data))

    def _get_key(self, value: Any) -> Key:
        message = pack_message(value) if self._knows_messages else None
        if message is not None:
            return message
        tag, data = self._plain.dumps_typed(value)
        return tag, bytes(data)

    def _key_of(self, item: Item) -> Key:
        form = self._form_of(item)
        return form.get_key() if isinstance(form, MessageForm) else form

    def _form_of(self, item: Item) -> MessageForm | Key:
        """Return the form of a stored item. That of a message is computed from the stored bytes."""
        if item.form is None:
            typed = _decode(item.get_typed())
            if self._plain is self._serde and not (self._knows_messages and may_be_message(*typed)):
                item.form = typed
            else:
                item.form = self._read_text_message(typed)
            if item.form is None:
                value = self._serde.loads_typed(typed)
                item.form = self._take_apart(value) or self._get_key(value)
        return item.form

    def _take_apart(self, value: Any) -> MessageForm | None:
        return take_apart(value) if self._knows_messages else None

    def _read_text_message(self, typed: tuple[str, bytes]) -> MessageForm | None:
        if self._knows_messages and self._plain is self._serde and may_be_message(*typed):
            return read_text_message(typed[1])
        return None

    # -- loading ---------------------------------------------------------------------------------

    def load(self, value: ChannelValue) -> Any:
        """Return the value. Nothing in it is shared with an earlier call."""
        loaded = self._load_items(value.load_items())
        if value.kind == "value":
            return loaded[0]
        return loaded if value.kind == "list" else dict(loaded)

    def _load_items(self, items: Sequence[Item]) -> list[Any]:
        for item in items:
            if item.form is None:
                item.form = self._read_text_message(_decode(item.get_typed()))
        forms = [item.form for item in items]
        messages = iter(load_messages([form for form in forms if isinstance(form, MessageForm)]))
        return [
            next(messages) if isinstance(form, MessageForm) else self._load_item(item)
            for item, form in zip(items, forms, strict=True)
        ]

    def _load_item(self, item: Item) -> Any:
        value = self._serde.loads_typed(_decode(item.get_typed()))
        item.form = self._take_apart(value) or item.form
        return value

    def load_typed(self, typed: Typed) -> Any:
        return self._serde.loads_typed(_decode(typed))

    def dump_typed(self, value: Any) -> Typed:
        return self._build_item(value).get_typed()

    def redact_json(self, value: Any) -> Any:
        """Return a JSON value, redacted."""
        return value if self._redactor is None else self._redactor.value(value)

    # -- checks ----------------------------------------------------------------------------------

    def _check_types(self, data: bytes) -> None:
        """Raise if a class would come back as a dict, because the serializer does not know it."""
        for module, name in _list_types(data):
            known = (module, name)
            if known not in _msgpack.SAFE_MSGPACK_TYPES and known not in (self._allowed or ()):
                raise NotSerializable(
                    "the state",
                    f"it has an object of the class {module}.{name}, which would not be "
                    f"loaded again; allow it: HoldfastSaver(store, types=[{name}]). "
                    "Nothing was stored",
                )


def _make_value(kind: str, parts: Sequence[Span | Item], items: list[Item]) -> ChannelValue:
    value = ChannelValue(kind, parts)
    value.items = items
    return value


def rebase_value(value: ChannelValue, base: ChannelValue | None) -> ChannelValue:
    """Return the same value with another base, or none. Items of the base are not stored again."""
    items = value.load_items()
    if base is None or base.kind != value.kind or value.kind == "value":
        return _make_value(value.kind, items, items)
    spans = _find_spans([id(item) for item in base.load_items()], [id(item) for item in items])
    return _build_value(base, spans, items.__getitem__)


def count_characters(values: Iterable[ChannelValue]) -> int:
    """Return how many characters it takes to store these values as a whole."""
    return sum(item.size for value in values for item in value.load_items())


def rebuild_value(kind: str, items: list[Item], base: ChannelValue | None) -> ChannelValue:
    """Return a value from serialized items. Those that the base has are not stored again."""
    if base is None or base.kind != kind or kind == "value":
        known = base.load_items() if base is not None and base.kind == kind else []
        if base is not None and [one.typed for one in known] == [one.typed for one in items]:
            return base
        return _make_value(kind, items, items)
    old, new = base.load_items(), [str(item.typed) for item in items]
    spans = _find_spans([str(item.typed) for item in old], new)
    if spans == [(0, len(old))]:
        return base
    return _build_value(base, spans, items.__getitem__)


def _split(value: Any) -> tuple[str, list[Any]]:
    """Return how a value is stored, and its items if it is stored as those."""
    if type(value) is list and value and not isinstance(value[0], int | float):
        return "list", value
    if type(value) is dict and len(value) > 1:
        return "dict", [list(pair) for pair in value.items()]
    return "value", []


def _find_spans(known: Sequence[Any], wanted: Sequence[Any]) -> list[Span]:
    """Return the spans of `known` that make up `wanted`; (-1, n) is the n-th one, which is new.

    >>> _find_spans("abc", "abcd")
    [(0, 3), (-1, 3)]
    >>> _find_spans("abcd", "cdxa")
    [(2, 4), (-1, 2), (0, 1)]
    """
    places = {form: at for at, form in reversed(list(enumerate(known)))}
    spans: list[Span] = []
    for at, form in enumerate(wanted):
        if spans and spans[-1][0] >= 0:
            start, stop = spans[-1]
            if stop < len(known) and known[stop] == form:
                spans[-1] = (start, stop + 1)
                continue
        place = places.get(form)
        spans.append((-1, at) if place is None else (place, place + 1))
    return spans


def _build_value(
    base: ChannelValue, spans: Sequence[Span], build: Callable[[int], Item]
) -> ChannelValue:
    """Return a value made of spans of a base and new items."""
    known = base.load_items()
    parts: list[Span | Item] = []
    items: list[Item] = []
    for span in spans:
        if span[0] < 0:
            item = build(span[1])
            parts.append(item)
            items.append(item)
        else:
            parts.append(span)
            items += known[span[0] : span[1]]
    value = _make_value(base.kind, parts, items)
    if any(span[0] >= 0 for span in spans):
        value.base, base.items = base, None  # the new value has the items now
    return value


# -- bytes -----------------------------------------------------------------------------------------


def _encode(tag: str, data: bytes) -> Typed:
    text = b64encode(data).decode()
    return text if tag == "msgpack" else [tag, text]


def encode_typed(tag: str, data: bytes) -> Typed:
    """Return the tag and bytes of a serializer as they are stored."""
    return _encode(tag, data)


def _decode(typed: Typed) -> tuple[str, bytes]:
    if isinstance(typed, str):
        return "msgpack", a2b_base64(typed)
    return typed[0], a2b_base64(typed[1])


def decode_value(
    stream: str, spec: dict[str, Any], large: Callable[[int], LargeValue], base: ChannelValue | None
) -> ChannelValue:
    """Return a value from its stored form. `large` gives the value N events back."""
    try:
        [(kind, stored)] = spec.items()
        if kind == "value":
            return ChannelValue(kind, [_decode_item(stored, large)])
        if kind not in ("list", "dict"):
            raise ValueError
        parts: list[Span | Item] = []
        for part in stored:
            if type(part) is str:
                parts.append(Item(part))
            elif type(part) is list and type(part[0]) is int:
                if base is None:
                    raise ValueError
                parts.append((part[0], part[1]))
            else:
                parts.append(_decode_item(part, large))
    except (ValueError, TypeError, KeyError, IndexError):
        raise CorruptRecord(stream, what="a value of a channel is not in a known form") from None
    return ChannelValue(kind, parts, base)


def _decode_item(stored: Any, large: Callable[[int], LargeValue]) -> Item:
    if isinstance(stored, dict):
        return Item(None, large(stored["back"]))
    if isinstance(stored, str) or (len(stored) == 2 and all(isinstance(x, str) for x in stored)):
        return Item(stored)
    raise ValueError


def encode_value(value: ChannelValue, add_large: Callable[[Item], Any]) -> dict[str, Any]:
    """Return the stored form of a value. `add_large` returns the reference to a large item."""
    stored = [
        list(part) if not isinstance(part, Item) else _encode_item(part, add_large)
        for part in value.parts
    ]
    return {value.kind: stored[0] if value.kind == "value" else stored}


def _encode_item(item: Item, add_large: Callable[[Item], Any]) -> Any:
    return item.get_typed() if item.size <= LARGE_CHARACTERS else add_large(item)


def list_unread(values: Iterable[ChannelValue]) -> list[LargeValue]:
    """Return the large values that must be read before these values can be loaded."""
    return [
        item.large
        for value in values
        for item in value.load_items()
        if item.large is not None and item.large.typed is None
    ]


def _get_allowed_types(serde: SerializerProtocol) -> frozenset[tuple[str, ...]] | None:
    """Return the classes that a strict serializer loads, besides the safe ones; None: all."""
    allowed = getattr(serde, "_allowed_msgpack_modules", True)
    if isinstance(serde, JsonPlusSerializer) and allowed is not True:
        return frozenset(allowed or ())
    return None


_ANY_KEYS: Final = ormsgpack.OPT_NON_STR_KEYS
_TYPE_CODES: Final = (0, 1, 2, 4, 5)
"""The extension codes whose data starts with the names of a module and a class in it."""
_METHOD_CODE: Final = 3
_PLACE: Final = "\0"
"""The prefix of the text that replaces a key while a value is redacted."""
_NUMPY_CODE: Final = 6


def _list_types(data: bytes) -> set[tuple[str, str]]:
    """Return the classes named in msgpack data. Nothing is imported or called."""
    found: set[tuple[str, str]] = set()

    def look(code: int, inner: bytes) -> None:
        content = ormsgpack.unpackb(inner, ext_hook=look, option=ormsgpack.OPT_NON_STR_KEYS)
        if code in _TYPE_CODES:
            found.add((content[0], content[1]))

    ormsgpack.unpackb(data, ext_hook=look, option=ormsgpack.OPT_NON_STR_KEYS)
    return found


def _may_be_name(part: Any) -> bool:
    """Return whether an item of a list may say what it, or the next one, is the value of."""
    return isinstance(part, list) or (isinstance(part, str) and part.startswith("--"))


def redact_typed(tag: str, data: bytes, redactor: Redactor | None, channel: str = "") -> bytes:
    """Return the bytes of a serializer, redacted. Nothing is imported or called for that."""
    if redactor is None or tag in ("null", "bytes", "bytearray"):
        return data
    # LangGraph's own channels have the names of nodes in theirs.
    name = "" if channel.startswith(("__", "branch:", "join:")) else channel
    if tag == "json":
        whole = redactor.json(msgspec.json.encode({name: msgspec.Raw(data)}))
        [raw] = msgspec.json.decode(whole, type=dict[str, msgspec.Raw]).values()
        return bytes(raw)
    if tag != "msgpack":
        raise NotSerializable(
            "the state", f"it is stored as {tag!r}, which can't be redacted. Nothing was stored"
        )
    option = _ANY_KEYS

    def visit(code: int, inner: bytes) -> ormsgpack.Ext:
        content = ormsgpack.unpackb(inner, ext_hook=visit, option=option)
        if code == _NUMPY_CODE:
            return ormsgpack.Ext(code, inner)
        if code in (*_TYPE_CODES, _METHOD_CODE):
            # The names of the module, class and method stay as they are.
            content = [*content[:2], _redact_parts(content[2], redactor), *content[3:]]
        else:
            content = _redact_parts(content, redactor)
        return ormsgpack.Ext(code, ormsgpack.packb(content, option=option))

    value = ormsgpack.unpackb(data, ext_hook=visit, option=option)
    [new] = _redact_parts({name: value}, redactor).values()
    return ormsgpack.packb(new, option=option)


def _redact_parts(value: Any, redactor: Redactor) -> Any:
    """Redact a value whose dicts may have other keys than texts."""
    if not _has_other_keys(value):
        return redactor.value(value)
    keys: list[Any] = []
    return _restore_keys(redactor.value(_replace_keys(value, keys)), keys)


def _replace_keys(value: Any, keys: list[Any]) -> Any:
    """Return a value with texts in place of other keys, which are added to `keys`."""
    if isinstance(value, list):
        return [_replace_keys(part, keys) for part in value]
    if not isinstance(value, dict):
        return value
    new = {}
    for key, part in value.items():
        name = key
        if not isinstance(key, str) or key.startswith(_PLACE):
            name = f"{_PLACE}{len(keys)}"
            keys.append(key)
        new[name] = _replace_keys(part, keys)
    return new


def _restore_keys(value: Any, keys: Sequence[Any]) -> Any:
    if isinstance(value, list):
        return [_restore_keys(part, keys) for part in value]
    if not isinstance(value, dict):
        return value
    return {
        keys[int(name[1:])] if name.startswith(_PLACE) else name: _restore_keys(part, keys)
        for name, part in value.items()
    }


def _has_other_keys(value: Any) -> bool:
    if isinstance(value, dict):
        return not all(isinstance(key, str) for key in value) or any(
            map(_has_other_keys, value.values())
        )
    return isinstance(value, list) and any(map(_has_other_keys, value))
