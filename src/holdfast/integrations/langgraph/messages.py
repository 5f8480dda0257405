"""The messages of LangChain in parts: to compare and load many of them at once.

A thread has a thousand messages that have not changed for each one that is new, and LangGraph
loads and saves all of them in each turn. So a stored message is taken apart once: its parts are
compared with those of other messages, and make new messages without validating them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

import ormsgpack
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.serde.jsonplus import EXT_PYDANTIC_V2
from pydantic import BaseModel

_FIELDS: Final[dict[type[BaseMessage], frozenset[str]]] = {
    kind: frozenset(kind.model_fields)
    for kind in (AIMessage, ChatMessage, FunctionMessage, HumanMessage, SystemMessage, ToolMessage)
}
"""The classes of ordinary messages, and the names of their fields."""
_BY_NAME: Final = {(kind.__module__, kind.__name__): kind for kind in _FIELDS}
_EXACT: Final = (
    ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
"""Options with which msgpack refuses every value that would come back as another type."""

# What an object of pydantic consists of.
_set_fields: Final = BaseModel.__dict__["__dict__"].__set__
_set_names: Final = BaseModel.__dict__["__pydantic_fields_set__"].__set__
_set_extra: Final = BaseModel.__dict__["__pydantic_extra__"].__set__
_set_private: Final = BaseModel.__dict__["__pydantic_private__"].__set__
_get_extra: Final = attrgetter("__pydantic_extra__")

MessageKey = tuple[type[BaseMessage], bytes]
"""The class of a message, and its fields and extra as msgpack."""


class MessageForm(NamedTuple):
    """A message in parts. Its dicts and lists are its own, and never change."""

    kind: type[BaseMessage]
    fields: dict[str, Any]
    containers: bytes
    """The fields that are dicts and lists, as msgpack: each loaded message gets its own."""
    extra: dict[str, Any]
    packed: bytes
    """Fields and extra as msgpack, unless all are texts: 1 equals True, but is not the same."""

    def get_key(self) -> MessageKey:
        return self.kind, self.packed or ormsgpack.packb([self.fields, self.extra])


def pack_message(value: Any) -> MessageKey | None:
    """Return the key of an ordinary message that has only plain data; None for anything else."""
    kind = type(value)
    if (
        kind not in _FIELDS
        or value.__pydantic_private__ is not None
        or value.__dict__.keys() != _FIELDS[kind]
    ):
        return None
    try:
        parts = [value.__dict__, value.__pydantic_extra__ or {}]
        return kind, ormsgpack.packb(parts, option=_EXACT)
    except TypeError:
        return None  # a field is not plain data


def take_apart(value: Any) -> MessageForm | None:
    """Return the parts of an ordinary message that has only plain data; None for anything else."""
    key = pack_message(value)
    if key is None:
        return None
    fields, extra = ormsgpack.unpackb(key[1])
    return _make_form(key[0], fields, extra, key[1])


def may_be_message(tag: str, data: bytes) -> bool:
    """Return whether the tag and bytes of the serializer can be those of a message."""
    return tag == "msgpack" and b"langchain_core.messages" in data[:100]


def read_text_message(data: bytes) -> MessageForm | None:
    """Return the parts of a message that has only texts, from the bytes of the serializer.

    Return None for anything else. The serializer would validate the message, which takes long and
    changes no text, no None and no empty container: if one is not valid, it loads the message as
    it is.
    """
    try:
        code, inner = ormsgpack.unpackb(data, ext_hook=lambda *ext: ext)
        module, name, fields, _ = ormsgpack.unpackb(inner)
    except (TypeError, ValueError):
        return None  # it has more than plain data
    kind = _BY_NAME.get((module, name))
    if code != EXT_PYDANTIC_V2 or kind is None or type(fields) is not dict:
        return None
    if fields.keys() != _FIELDS[kind] or type(fields["content"]) is not str:
        return None
    form = _make_form(kind, fields, {})
    return None if form.packed else form


def _make_form(
    kind: type[BaseMessage], fields: dict[str, Any], extra: dict[str, Any], packed: bytes = b""
) -> MessageForm:
    containers = {}
    only_texts = not extra
    for name, part in fields.items():
        if part is None or type(part) is str:
            continue
        if type(part) is dict or type(part) is list:
            containers[name] = part
        only_texts = only_texts and part in ({}, [])
    if only_texts:
        packed = b""
    elif not packed:
        packed = ormsgpack.packb([fields, extra])
    return MessageForm(kind, fields, ormsgpack.packb(containers), extra, packed)


def are_same(forms: Sequence[Any], values: Sequence[Any]) -> bool:
    """Return whether values are the messages with these forms. Not if a form is another tuple.

    Texts that are the same object are not read.
    """
    if [form[0] for form in forms] != list(map(type, values)):
        return False
    others = [at for at, form in enumerate(forms) if form.packed]
    if others:
        packed = b"".join([forms[at].packed for at in others])
        if not _are_packed_as(packed, [values[at] for at in others]):
            return False
        texts = [at for at, form in enumerate(forms) if not form.packed]
        forms, values = [forms[at] for at in texts], [values[at] for at in texts]
    if any(map(_get_extra, values)):
        return False
    try:
        return [value.__dict__ for value in values] == [form.fields for form in forms]
    except Exception:  # a changed message may have anything in it, also what refuses `==`
        return False


def _are_packed_as(packed: bytes, messages: Sequence[BaseMessage]) -> bool:
    """Return whether these bytes are those of the messages, one after the other."""
    parts = [[message.__dict__, message.__pydantic_extra__] for message in messages]
    try:
        found = ormsgpack.packb(parts, option=_EXACT)
    except TypeError:
        return False  # a field is not plain data
    start = len(ormsgpack.packb([None] * len(parts))) - len(parts)
    return found[start:] == packed


def load_messages(forms: Sequence[MessageForm]) -> list[BaseMessage]:
    """Make messages of their parts.

    They share one set of names per class, and their containers are unpacked in one go: each call
    and each object less counts a thousand times.
    """
    if not forms:
        return []
    count = len(forms)
    header = ormsgpack.packb([None] * count)[:-count]
    all_containers = ormsgpack.unpackb(header + b"".join([form.containers for form in forms]))
    names_of = {kind: set(names) for kind, names in _FIELDS.items()}
    new, loaded = object.__new__, []
    for (kind, fields, _, extra, _), containers in zip(forms, all_containers, strict=True):
        message = new(kind)
        _set_fields(message, fields | containers)
        _set_private(message, None)
        if extra:
            _set_names(message, {*names_of[kind], *extra})
            _set_extra(message, ormsgpack.unpackb(ormsgpack.packb(extra)))
        else:
            _set_names(message, names_of[kind])
            _set_extra(message, {})
        loaded.append(message)
    return loaded
