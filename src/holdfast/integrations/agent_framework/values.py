"""Python values of a workflow as JSON and back, without pickle.

A stored value names its type. The name is looked up among the types that this program knows: those
of the framework that it has imported, and those that it passes. Names are never imported.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import functools
import math
import operator
import sys
import types
import typing
import uuid
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Any, Final, get_args, get_origin

from ...errors import CorruptRecord, NotSerializable

try:
    from agent_framework import WorkflowEvent
    from pydantic import BaseModel
except ImportError as error:
    raise ImportError(
        "holdfast.integrations.agent_framework needs the Microsoft Agent Framework 1.23 or newer: "
        "pip install -U agent-framework-core"
    ) from error

TAG: Final = "$"
FRAMEWORK: Final = ("agent_framework", "agent_framework_orchestrations")
MAX_INT: Final = 2**63

SEQUENCES: Final[dict[str, type[Any]]] = {
    each.__name__: each for each in (tuple, set, frozenset, deque)
}
MAPPINGS: Final[dict[str, type[Any]]] = {
    each.__name__: each for each in (dict, OrderedDict, Counter)
}
TEXTS: Final[dict[str, tuple[type[Any], Callable[[Any], str], Callable[[str], Any]]]] = {
    "int": (int, str, int),
    "float": (float, str, float),
    "datetime": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "time": (datetime.time, datetime.time.isoformat, datetime.time.fromisoformat),
    "UUID": (uuid.UUID, str, uuid.UUID),
    "Decimal": (decimal.Decimal, str, decimal.Decimal),
    "bytes": (bytes, lambda value: base64.b64encode(value).decode(), base64.b64decode),
}
TEXT_NAMES: Final = {kind: name for name, (kind, _, _) in TEXTS.items()}
PLAIN_TYPES: Final[dict[str, type[Any]]] = {
    each.__name__: each
    for each in (
        str,
        int,
        float,
        bool,
        list,
        dict,
        tuple,
        set,
        frozenset,
        bytes,
        type(None),
        object,
    )
}


class KnownTypesCodec:
    """Encodes values for a store, and decodes them to the same types."""

    def __init__(self, own: Iterable[type[Any]]) -> None:
        self._own: dict[str, type[Any]] = {}
        for each in own:
            if not isinstance(each, type):
                raise TypeError(f"types must be classes, got {type(each).__name__}")
            if self._own.setdefault(each.__qualname__, each) is not each:
                raise ValueError(f"types must have distinct names, got {each.__qualname__!r} twice")
        self._framework: dict[str, type[Any]] = {}

    # -- encoding ----------------------------------------------------------------------------------

    def encode(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind in (str, bool):
            return value
        if kind is int and -MAX_INT <= value < MAX_INT:
            return value
        if kind is float and math.isfinite(value):
            return value
        if kind is list:
            return [self.encode(item) for item in value]
        if kind is dict and all(type(key) is str for key in value) and TAG not in value:
            return {key: self.encode(item) for key, item in value.items()}
        if MAPPINGS.get(kind.__name__) is kind:
            pairs = [[self.encode(key), self.encode(item)] for key, item in value.items()]
            return {TAG: kind.__name__, "items": pairs}
        if SEQUENCES.get(kind.__name__) is kind:
            return {TAG: kind.__name__, "items": [self.encode(item) for item in value]}
        if kind in TEXT_NAMES:
            name = TEXT_NAMES[kind]
            return {TAG: name, "text": TEXTS[name][1](value)}
        if kind is datetime.timedelta:
            return {TAG: "timedelta", "parts": [value.days, value.seconds, value.microseconds]}
        if isinstance(value, type) or get_origin(value) is not None:
            return {TAG: "type", "type": self._encode_type(value)}
        if kind is WorkflowEvent:
            return self._encode_event(value)
        return self._encode_object(value, kind)

    def _encode_event(self, event: WorkflowEvent[Any]) -> Any:
        if event.type != "request_info":
            raise NotSerializable("the checkpoint", f"an event of type {event.type!r}")
        return {
            TAG: "request",
            "id": event.request_id,
            "executor": event.source_executor_id,
            "data": self.encode(event.data),
            "response": self._encode_type(event.response_type),
        }

    def _encode_object(self, value: Any, kind: type[Any]) -> Any:
        name = self._name_of(kind)
        if isinstance(value, enum.Enum):
            return {TAG: "object", "type": name, "member": value.name}
        if isinstance(value, BaseModel):
            return {TAG: "object", "type": name, "model": value.model_dump(mode="json")}
        if callable(getattr(kind, "to_dict", None)) and callable(getattr(kind, "from_dict", None)):
            return {TAG: "object", "type": name, "dict": self.encode(dict(value.to_dict()))}
        if dataclasses.is_dataclass(value):
            fields = {
                field.name: self.encode(getattr(value, field.name))
                for field in dataclasses.fields(value)
            }
            return {TAG: "object", "type": name, "fields": fields}
        raise NotSerializable(
            "the checkpoint",
            f"{kind.__qualname__} is not a dataclass, an enum or a pydantic model, and has no "
            "to_dict and from_dict",
        )

    def _encode_type(self, kind: Any) -> Any:
        origin = get_origin(kind)
        if origin is not None:
            name = "Union" if origin in (typing.Union, types.UnionType) else self._type_name(origin)
            return [name, *[self._encode_type(argument) for argument in get_args(kind)]]
        return "Any" if kind is Any else self._type_name(kind)

    def _type_name(self, kind: type[Any]) -> str:
        if PLAIN_TYPES.get(kind.__name__) is kind:
            return kind.__name__
        return self._name_of(kind)

    def _name_of(self, kind: type[Any]) -> str:
        if self._own.get(kind.__qualname__) is kind:
            return f"own:{kind.__qualname__}"
        name = f"{kind.__module__}:{kind.__qualname__}"
        if self._find_framework_type(name) is kind:
            return name
        raise NotSerializable(
            "the checkpoint",
            f"it has a {kind.__qualname__}; pass types=[{kind.__qualname__}] to "
            "HoldfastCheckpointStorage, in each program that reads the checkpoint",
        )

    # -- decoding ----------------------------------------------------------------------------------

    def decode(self, stored: Any) -> Any:
        if isinstance(stored, list):
            return [self.decode(item) for item in stored]
        if not isinstance(stored, dict):
            return stored
        if TAG not in stored:
            return {key: self.decode(item) for key, item in stored.items()}
        tag = stored[TAG]
        if tag in MAPPINGS:
            pairs = [(self.decode(key), self.decode(item)) for key, item in stored["items"]]
            return MAPPINGS[tag](dict(pairs))
        if tag in SEQUENCES:
            return SEQUENCES[tag](self.decode(item) for item in stored["items"])
        if tag in TEXTS:
            return TEXTS[tag][2](stored["text"])
        if tag == "timedelta":
            days, seconds, microseconds = stored["parts"]
            return datetime.timedelta(days, seconds, microseconds)
        if tag == "type":
            return self._decode_type(stored["type"])
        if tag == "request":
            return WorkflowEvent.request_info(
                request_id=stored["id"],
                source_executor_id=stored["executor"],
                request_data=self.decode(stored["data"]),
                response_type=self._decode_type(stored["response"]),
            )
        if tag == "object":
            return self._decode_object(stored)
        raise CorruptRecord("the checkpoint", what=f"unknown kind of value {tag!r}")

    def _decode_object(self, stored: dict[str, Any]) -> Any:
        kind: Any = self._type_named(stored["type"])
        if "member" in stored:
            return kind[stored["member"]]
        if "model" in stored:
            return kind.model_validate(stored["model"])
        if "dict" in stored:
            return kind.from_dict(self.decode(stored["dict"]))
        values = self.decode(stored["fields"])
        known = {field.name: field.init for field in dataclasses.fields(kind)}
        made = kind(**{name: value for name, value in values.items() if known.get(name)})
        for name, value in values.items():
            if known.get(name) is False:
                object.__setattr__(made, name, value)
        return made

    def _decode_type(self, stored: Any) -> Any:
        if isinstance(stored, str):
            return Any if stored == "Any" else self._type_named(stored)
        name, *arguments = stored
        decoded = tuple(self._decode_type(argument) for argument in arguments)
        if name == "Union":
            return functools.reduce(operator.or_, decoded)
        return types.GenericAlias(self._type_named(name), decoded)

    def _type_named(self, name: str) -> type[Any]:
        if name in PLAIN_TYPES:
            return PLAIN_TYPES[name]
        own = name.startswith("own:")
        found = self._own.get(name[4:]) if own else self._find_framework_type(name)
        if found is None:
            raise NotSerializable(
                "the checkpoint",
                f"it has a {name.partition(':')[2]}, which is not in types="
                if own
                else f"it has a {name}, from a module that this program has not imported",
            )
        return found

    def _find_framework_type(self, name: str) -> type[Any] | None:
        """Return a class of the framework by its name, among modules that are imported already."""
        if name not in self._framework:
            for module_name, module in list(sys.modules.items()):
                if module_name.partition(".")[0] in FRAMEWORK:
                    for each in list(vars(module).values()):
                        if isinstance(each, type) and each.__module__ == module_name:
                            self._framework[f"{module_name}:{each.__qualname__}"] = each
        return self._framework.get(name)
