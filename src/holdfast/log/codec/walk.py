"""Walk through values: find why one cannot be stored, and where two of them differ.

Paths look like `$.items[3].price` or `$["odd key"]`. Messages may contain keys and types, never
values: a prompt or a password must not get into a log through an error.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import functools
import math
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from ...errors import NotSerializable, TooLarge
from .read_only import ReadOnlyDict, ReadOnlyList

INT_MIN, INT_MAX = -(2**63), 2**64 - 1
NOT_FINITE = "a float that is nan or infinite has no JSON form: use None or text instead"
NEVER_STORED = "is a secret, and secrets are never stored: leave it out, or store a reference to it"
_ANY_ELEMENT = ...  # the label of a set's element, which has no index
_ABSENT = object()
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
_CONTENT = re.compile(r"@|[0-9](?:[^0-9]*[0-9]){3}")
"""Matches a key that may be personal data or a secret instead of a field name."""


def is_dataclass(value: object) -> bool:
    """Return whether it is a dataclass, or an instance of one; `dataclasses` is slow to import."""
    return hasattr(value if isinstance(value, type) else type(value), "__dataclass_fields__")


class SourcedList(list[Any]):
    """A list with the source that its items were read from. It is stored and copied as a list."""

    __slots__ = ("source",)

    def __init__(self, items: Iterable[Any], source: Any) -> None:
        super().__init__(items)
        self.source = source

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return list, (list(self),)


class MarkedText(str):
    """A text that differs from run to run by design, and a mark that does not.

    It is stored as text. A fingerprint of arguments contains the mark, and not the text.
    """

    __slots__ = ("mark",)
    mark: str

    def __new__(cls, text: str, mark: str) -> MarkedText:
        marked = super().__new__(cls, text)
        marked.mark = mark
        return marked

    def __holdfast_fingerprint__(self) -> str:
        return self.mark

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return MarkedText, (str.__str__(self), self.mark)


STORED_AS: dict[type[Any], type[Any]] = {
    SourcedList: list,
    ReadOnlyList: list,
    ReadOnlyDict: dict,
    MarkedText: str,
}
"""Types that are stored as their plain base type, and come back as that."""


def format_path(labels: Sequence[object]) -> str:
    """Format a path from `labels` (keys, indexes, field names), shortening long keys and paths.

    Errors and logs use it, so a key that may be content, such as an e-mail address, is hidden.
    """
    text = "$" + "".join(map(_segment, labels))
    return text if len(text) <= 240 else f"{text[:140]}…{text[-90:]}"


def _segment(label: object) -> str:
    if label is _ANY_ELEMENT:
        return "[*]"
    if type(label) is int and abs(label) < 10**18:
        return f"[{label}]"
    if type(label) is not str:
        return f"[<{type_name(label)}>]"
    if _CONTENT.search(label):
        return "[…]"
    if _IDENTIFIER.fullmatch(label):
        return f".{label}"
    import json

    if len(label) <= 40:
        return f"[{json.dumps(label)}]"  # escapes control characters and lone surrogates
    return f'[{json.dumps(label[:39])[:-1]}…"]'


def type_name(value: object) -> str:
    """Return the type of `value` as a user would write it."""
    kind = type(value)
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    return f"{module}{kind.__qualname__}"[-100:]


def field_names(value: object) -> tuple[str, ...] | None:
    """Return the fields of a dataclass, msgspec, attrs or Pydantic object; None for others."""
    kind: Any = type(value)
    names = _class_fields(kind)
    extra = getattr(value, "__pydantic_extra__", None) if names is not None else None
    return (*names, *extra) if names is not None and extra else names


@functools.lru_cache(maxsize=512)
def _class_fields(kind: Any) -> tuple[str, ...] | None:
    if issubclass(kind, msgspec.Struct):
        return tuple(kind.__struct_fields__)
    if is_dataclass(kind):
        from dataclasses import fields

        return tuple(field.name for field in fields(kind))
    if hasattr(kind, "__attrs_attrs__"):
        return tuple(field.name for field in kind.__attrs_attrs__)
    return tuple(kind.model_fields) if is_pydantic_model(kind) else None


def is_secret(value: object) -> bool:
    """Return whether a value is a secret: Pydantic's SecretStr, SecretBytes and similar types."""
    return callable(getattr(type(value), "get_secret_value", None))


def secret_problem(value: object) -> str:
    return f"{type_name(value)} {NEVER_STORED}"


def is_pydantic_model(kind: type) -> bool:
    """Return whether `kind` is a Pydantic model, without importing Pydantic."""
    return hasattr(kind, "__pydantic_validator__") and hasattr(kind, "model_validate_json")


def children(value: object) -> Iterator[tuple[object, object]] | None:
    """Return the labelled parts of a container or of an object with fields; None for others."""
    if isinstance(value, dict):
        return iter(value.items())
    if isinstance(value, (list, tuple)):
        return iter(enumerate(value))
    if isinstance(value, (set, frozenset)):
        return ((_ANY_ELEMENT, item) for item in value)
    names = field_names(value)
    return None if names is None else ((name, getattr(value, name, _ABSENT)) for name in names)


def walk(value: object, *, max_bytes: int, max_depth: int) -> Iterator[tuple[list[object], object]]:
    """Yield every part of `value` with its labels, parents first. The list of labels is reused.

    Raise `TooLarge` if it is too deep or certainly too big. Both limits are needed for values that
    contain themselves or share parts: a hundred lists that each contain the one before twice have
    2**100 elements.
    """
    labels: list[object] = []
    size = 0
    open_parts: list[Iterator[tuple[object, object]]] = [iter([(None, value)])]
    while open_parts:
        step = next(open_parts[-1], None)
        if step is None:
            open_parts.pop()
            continue
        label, part = step
        labels[len(open_parts) - 2 :] = [label] if len(open_parts) > 1 else []
        yield labels, part
        size += len(part) if isinstance(part, (str, bytes)) else 1
        if size > max_bytes:
            raise TooLarge(
                f"more than {max_bytes} bytes as JSON, over the limit; "
                f"at least {size} up to {format_path(labels)}"
            )
        inside = children(part)
        if inside is not None:
            if len(open_parts) > max_depth:
                raise TooLarge(
                    f"{format_path(labels)}: nested deeper than {max_depth} levels, or it contains "
                    "itself"
                )
            open_parts.append(inside)


def tuples_to_lists(value: Any, max_depth: int) -> Any:
    """Return a value with each plain tuple in its lists and dicts as a list; itself if it has none.

    Parts that are shared stay shared, and a part that contains itself still does.
    """
    done: dict[int, Any] = {}
    found = False

    def convert(part: Any, depth: int) -> Any:
        nonlocal found
        if id(part) in done:
            return done[id(part)]
        new: Any = part
        if type(part) in (list, tuple) and depth < max_depth:
            found = found or type(part) is tuple
            new = done[id(part)] = []
            new += [convert(item, depth + 1) for item in part]
        elif type(part) is dict and depth < max_depth:
            new = done[id(part)] = {}
            new.update((key, convert(item, depth + 1)) for key, item in part.items())
        return new

    converted = convert(value, 0)
    return converted if found else value


def refuse_not_native(value: object, *, max_bytes: int, max_depth: int) -> bool:
    """Raise `NotSerializable` for the first part of `value` that is not JSON-native.

    Return whether it has parts of the types in `STORED_AS`.
    """
    found = False
    for labels, part in walk(value, max_bytes=max_bytes, max_depth=max_depth):
        problem = _native_problem(part)
        if problem is not None:
            raise NotSerializable(format_path(labels), problem)
        found = found or type(part) in STORED_AS
    return found


def _native_problem(part: object) -> str | None:
    kind = STORED_AS.get(type(part), type(part))
    if kind is dict:
        return next(filter(None, map(_key_problem, part)), None)  # type: ignore[call-overload]
    if kind is str:
        return _text_problem(part, "text")
    if kind is int:
        inside = INT_MIN <= part <= INT_MAX  # type: ignore[operator]
        return (
            None
            if inside
            else "an integer beyond 64 bits: store it with str(), or declare the type int"
        )
    if kind is float:
        finite = math.isfinite(part)  # type: ignore[arg-type]
        return None if finite else NOT_FINITE
    if kind is list or kind is bool or part is None:
        return None
    if is_secret(part):
        return secret_problem(part)
    return (
        f"{type_name(part)} is not JSON-native: declare its type, or convert it{_conversion(part)}"
    )


def _key_problem(key: object) -> str | None:
    if type(key) is str:
        return _text_problem(key, "a key")
    return (
        f"a key of type {type_name(key)}, but JSON keys are text: use str() on it, or declare the "
        "type of the dict"
    )


def _text_problem(text: object, what: str) -> str | None:
    try:
        str.encode(text)  # type: ignore[arg-type]
    except UnicodeEncodeError:
        return (
            f"{what} with a lone surrogate is not valid Unicode: clean it with "
            ".encode('utf-8', 'replace').decode()"
        )
    return None


_CONVERSIONS: list[tuple[type | tuple[type, ...], str]] = [
    (enum.Enum, " with .value"),
    ((tuple, set, frozenset), " with list()"),
    ((datetime.date, datetime.time), " with .isoformat()"),
    (datetime.timedelta, " with .total_seconds()"),
    ((decimal.Decimal, uuid.UUID), " with str()"),
    ((bytes, bytearray, memoryview), " to text, for example base64"),
    (msgspec.Struct, " with msgspec.to_builtins()"),
    *((kind, f" with {kind.__name__}()") for kind in (str, int, float, list, dict)),
]


def _conversion(value: object) -> str:
    kind = type(value)
    if kind.__module__ == "numpy":
        return " with .tolist()" if hasattr(value, "__len__") else " with .item()"
    if is_pydantic_model(kind):
        return ' with .model_dump(mode="json")'
    if is_dataclass(kind):
        return " with dataclasses.asdict()"
    if _is_path(value):
        return " with str()"
    return next((how for base, how in _CONVERSIONS if isinstance(value, base)), "")


def _is_path(value: object) -> bool:
    import pathlib

    return isinstance(value, pathlib.PurePath)


def find_encoding_problem(value: object, encode: Callable[[object], bytes]) -> tuple[str, str]:
    """Return path and reason of the smallest part of `value` for which `encode` fails."""
    labels: list[object] = []
    while True:
        # A Pydantic model is encoded as a whole: a part may fail alone that the model can encode.
        inside = None if is_pydantic_model(type(value)) else children(value)
        failing = next((step for step in inside or () if not _encodes(step[1], encode)), None)
        if failing is None:
            break
        labels.append(failing[0])
        value = failing[1]
    if isinstance(value, dict) and (problem := _find_key_problem(value, encode)):
        return format_path(labels), problem
    if (isinstance(value, str) or _is_path(value)) and (
        problem := _text_problem(str(value), type_name(value))
    ):
        return format_path(labels), problem
    if is_secret(value):
        return format_path(labels), secret_problem(value)
    return (
        format_path(labels),
        f"{type_name(value)} cannot be stored: declare a type that can, or convert it"
        f"{_conversion(value)}",
    )


def _find_key_problem(value: dict[object, object], encode: Callable[[object], bytes]) -> str | None:
    """Return why a key cannot be stored; None if all can."""
    for key in value:
        if not _encodes({key: None}, encode):
            problem = _text_problem(key, "a key") if isinstance(key, str) else None
            return problem or f"a key of type {type_name(key)} cannot be a JSON key"
    return None


def _encodes(value: object, encode: Callable[[object], bytes]) -> bool:
    if value is _ABSENT or value is msgspec.UNSET:  # not encoded, so never the reason
        return True
    try:
        encode(value)
    except Exception:
        return False
    return True


_Link = tuple[Any, object]  # (the link above or None, label)


def find_difference(went_in: object, came_out: object) -> tuple[str, str] | None:
    """Return path and reason of the first difference of two values; None if they are equal.

    Equal means equal and of exactly the same type at every level, with dicts in the same order.
    An int may come back as an equal float; datetimes are compared by local time and offset.
    """
    stack: list[tuple[_Link | None, object, object]] = [(None, went_in, came_out)]
    while stack:
        place, before, after = stack.pop()
        result = _compare(before, after)
        if isinstance(result, str):
            return format_path(_labels(place)), result
        stack.extend(((place, label), one, other) for label, one, other in reversed(result))
    return None


def _labels(place: _Link | None) -> list[object]:
    labels: list[object] = []
    while place is not None:
        place, label = place
        labels.append(label)
    return labels[::-1]


_Pairs = list[tuple[object, object, object]]  # (label, before, after)
_CHANGED = "would come back as another value"
_NATIVE = (str, int, float, bool, list, dict)
_ATOMS = frozenset(
    {str, int, bool, type(None), bytes, uuid.UUID, datetime.date, datetime.timedelta}
)


def _compare(before: Any, after: Any) -> str | _Pairs:
    """Return why two values differ by themselves, or the pairs of their parts still to compare."""
    kind: type[Any] = STORED_AS.get(type(before), type(before))
    if kind is not type(after):
        if kind is int and type(after) is float and before == after:
            return []
        if after is _ABSENT:
            return "would be lost: the declared type has no place for it"
        if is_secret(before):
            return secret_problem(before)
        converted = (
            _conversion(before)
            if type(after) in _NATIVE and kind not in _NATIVE
            else f" to {type_name(after)}"
        )
        return (
            f"{type_name(before)} would come back as {type_name(after)}: declare its type, or "
            f"convert it{converted}"
        )
    if kind in _ATOMS:
        return [] if before == after else f"{type_name(before)} {_CHANGED}"
    if isinstance(before, dict):
        return _compare_dicts(before, after)
    if isinstance(before, (list, tuple)):
        if len(before) != len(after):
            return f"{type_name(before)} would change its length"
        return [(index, *pair) for index, pair in enumerate(zip(before, after, strict=True))]
    if isinstance(before, (set, frozenset)):
        twins = {item: item for item in after}
        if len(twins) != len(before) or any(item not in twins for item in before):
            return f"{type_name(before)} {_CHANGED}"
        return [(_ANY_ELEMENT, item, twins[item]) for item in before]
    names = field_names(before)
    if names is not None:
        return [
            (name, getattr(before, name, _ABSENT), getattr(after, name, _ABSENT)) for name in names
        ]
    if is_secret(before):
        return secret_problem(before)
    if _equal(before, after):
        return []
    is_time = isinstance(before, (datetime.datetime, datetime.time))
    hint = ": offsets with seconds are not kept, use UTC" if is_time else ""
    return f"{type_name(before)} {_CHANGED}{hint}"


def _compare_dicts(before: dict[Any, Any], after: dict[Any, Any]) -> str | _Pairs:
    if len(before) > len(after):  # an unknown field of a TypedDict, or two keys equal as text
        lost = [(key, item, _ABSENT) for key, item in before.items() if key not in after]
        return lost[:1] or "a key would be lost"
    for key, other in zip(before, after, strict=False):
        if not _is_same_text(key, other) and find_difference(key, other) is not None:
            if type(key) is type(other):
                return "a key would come back changed or in another place"
            return (
                f"a key of type {type_name(key)} would come back as {type_name(other)}: declare "
                "the type of the dict"
            )
    if len(before) < len(after):
        return "keys would be added"
    return [
        (key, item, other)
        for (key, item), other in zip(before.items(), after.values(), strict=True)
        if not _is_same_text(item, other)
    ]


def _is_same_text(before: object, after: object) -> bool:
    """Return whether both are equal texts, as most keys and values are: a fast path."""
    return type(before) is str and type(after) is str and before == after


def _equal(before: Any, after: Any) -> bool:
    """Return whether two values of one type, without parts, are exactly equal."""
    if isinstance(before, float):  # also numpy.float64; -0.0 and 0.0 differ
        return bool(before == after) and math.copysign(1.0, before) == math.copysign(1.0, after)
    if isinstance(before, (datetime.datetime, datetime.time)):
        return bool(
            (before.tzinfo is None) is (after.tzinfo is None)
            and before.replace(tzinfo=None) == after.replace(tzinfo=None)
            and before.utcoffset() == after.utcoffset()
        )
    if isinstance(before, decimal.Decimal):  # 1.0 and 1.00 differ
        return bool(before.as_tuple() == after.as_tuple())
    try:
        return bool(before == after)
    except Exception:  # an __eq__ that fails does not confirm equality
        return False
