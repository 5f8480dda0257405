"""Declared types: which ones can be stored, and hooks for those that msgspec does not support.

Reading never takes a type from data: hooks get only classes from the declared annotation.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

import msgspec
from msgspec import inspect

from .walk import MarkedText, field_names, is_pydantic_model

_PATH_NAMES: Final = (
    "PurePath",
    "PurePosixPath",
    "PureWindowsPath",
    "Path",
    "PosixPath",
    "WindowsPath",
)
_KEYS = (
    inspect.AnyType,  # a bare `dict`: the comparison after encoding refuses keys that are not text
    inspect.StrType,
    inspect.IntType,
    inspect.FloatType,
    inspect.EnumType,
    inspect.LiteralType,
    inspect.DateTimeType,
    inspect.DateType,
    inspect.TimeType,
    inspect.TimeDeltaType,
    inspect.UUIDType,
    inspect.DecimalType,
    inspect.BytesType,
)


class Coder(NamedTuple):
    """The decoder of a declared type, and facts about its values."""

    decode: Callable[[bytes], object]
    has_sets: bool
    is_native: bool
    """Whether all decoded values are JSON-native, including keys."""
    is_exact: bool
    """Whether values are native and have no numbers, which could come back as another type."""


class Misfit(ValueError):
    """Stored data does not fit a class that msgspec does not support. The message has no data."""


build_lock: Final = threading.RLock()
"""Held while a decoder is created. msgspec exposes an incomplete struct to other threads, and
decoding with it crashes."""


def _is_path(kind: object) -> bool:
    """Return whether a type is a class of pathlib, which is imported only by those who use it."""
    pathlib = sys.modules.get("pathlib")
    return pathlib is not None and any(kind is getattr(pathlib, name) for name in _PATH_NAMES)


def coder(declared: Any) -> Coder:
    """Return the coder of a type. Raise `TypeError` if its values cannot be stored."""
    try:
        hash(declared)
    except TypeError:  # for example Annotated[int, ["a list"]]
        return _build(declared)
    return _build_cached(declared)


def _build(declared: Any) -> Coder:
    problem: str | None = None
    try:
        with build_lock:
            info = inspect.type_info(declared)
            decoder = msgspec.json.Decoder(declared, dec_hook=_read)
    except Exception as error:  # evaluating annotations may raise anything
        problem = f"{error}"
    if problem is not None:
        raise TypeError(f"values declared as {_annotation(declared)} cannot be stored: {problem}")
    kinds = _collect_kinds(info, declared)
    numbers = {inspect.IntType, inspect.FloatType}  # in a dict they may be keys
    return Coder(
        decoder.decode,
        has_sets=bool(kinds & {inspect.SetType, inspect.FrozenSetType}),
        is_native=kinds <= (_NATIVE if inspect.DictType in kinds else _NATIVE | numbers),
        is_exact=kinds <= _NATIVE,
    )


_NATIVE = {
    inspect.AnyType,
    inspect.BoolType,
    inspect.DictType,
    inspect.ListType,
    inspect.NoneType,
    inspect.StrType,
    inspect.UnionType,
}


# Bounded, because classes created at run time would otherwise stay alive forever.
_build_cached = functools.lru_cache(maxsize=512)(_build)


def _collect_kinds(info: inspect.Type, declared: Any) -> set[type]:
    """Return the kinds of all types inside a type. Raise `TypeError` if one cannot be stored."""
    seen: dict[int, inspect.Type | inspect.Field] = {}
    waiting: list[Any] = [info]
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting.extend(node)
        elif isinstance(node, (inspect.Type, inspect.Field)) and id(node) not in seen:
            seen[id(node)] = node
            problem = _explain_unsupported(node)
            if problem is not None:
                raise TypeError(
                    f"values declared as {_annotation(declared)} cannot be stored: {problem}"
                )
            waiting.extend(
                getattr(node, name)
                for name in node.__struct_fields__
                if name not in ("default", "values")
            )
    return {type(node) for node in seen.values()}


def _explain_unsupported(node: inspect.Type | inspect.Field) -> str | None:
    if isinstance(node, inspect.CustomType) and not _is_supported_class(node.cls):
        return (
            f"{_annotation(node.cls)} has no JSON form; use a dataclass, a Pydantic or msgspec "
            "model, or plain types"
        )
    if isinstance(node, (inspect.RawType, inspect.ExtType)):
        return "msgspec.Raw and msgspec.msgpack.Ext are encoded without validation"
    if isinstance(node, inspect.DictType):
        keys = (
            node.key_type.types
            if isinstance(node.key_type, inspect.UnionType)
            else (node.key_type,)
        )
        if not all(isinstance(key, _KEYS) for key in keys):
            return (
                "the keys of a dict must be text, numbers, dates, UUIDs, enums, decimals or bytes"
            )
    return None


def _annotation(declared: Any) -> str:
    if isinstance(declared, type) and not hasattr(declared, "__args__"):
        return (
            declared.__qualname__
            if declared.__module__ == "builtins"
            else f"{declared.__module__}.{declared.__qualname__}"
        )
    return repr(declared)[:200]


def _is_supported_class(kind: type) -> bool:
    return (
        kind in (object, msgspec.UnsetType)
        or _is_path(kind)
        or is_pydantic_model(kind)
        or _is_numpy_number(kind)
    )


@functools.lru_cache(maxsize=128)
def _is_numpy_number(kind: type) -> bool:
    """Return whether `kind` is a numpy bool, integer or float of up to 64 bits, without numpy."""
    if kind.__module__ != "numpy":
        return False
    try:
        zero = kind(0)
        return zero.dtype.kind in "biuf" and zero.dtype.itemsize <= 8 and zero.shape == ()
    except Exception:  # abstract kinds like numpy.floating
        return False


def _write(value: Any) -> object:
    """Return the JSON form of a value that msgspec does not support."""
    kind: Any = type(value)
    if _is_path(kind) or kind is MarkedText:
        return str(value)
    if is_pydantic_model(kind):
        # No warnings: they quote values. The comparison finds what they would report.
        text = value.model_dump_json(round_trip=True, by_alias=True, warnings=False)
        return _sort_pydantic_sets(value, text)
    if _is_numpy_number(kind):
        return value.item()
    raise TypeError(f"{kind.__qualname__} cannot be written")


def _sort_pydantic_sets(model: Any, text: str) -> object:
    """Return the JSON form of a Pydantic model with sorted sets, which Pydantic does not sort."""
    if "[" not in text:
        return msgspec.Raw(text.encode())
    try:
        plain = model.model_dump(round_trip=True, by_alias=True, warnings=False)
    except Exception:  # a set of models has no plain form, so its order stays
        return msgspec.Raw(text.encode())
    return _sort_sets_in(plain, msgspec.json.decode(text))


def _sort_sets_in(plain: Any, form: Any) -> Any:
    """Return the JSON form of a value with the sets of its plain form sorted."""
    if isinstance(plain, (set, frozenset)) and isinstance(form, list):
        return sorted(form, key=write_json)
    if isinstance(plain, dict) and isinstance(form, dict) and len(plain) == len(form):
        return {
            key: _sort_sets_in(part, form[key])
            for key, part in zip(form, plain.values(), strict=True)
        }
    if isinstance(plain, (list, tuple)) and isinstance(form, list) and len(plain) == len(form):
        return [_sort_sets_in(*parts) for parts in zip(plain, form, strict=True)]
    return form


def _read(kind: Any, data: Any) -> object:
    """Return the value of a declared class that msgspec does not support, from its JSON form."""
    if kind is object:
        return data
    if _is_path(kind):
        if type(data) is str:
            return kind(data)
        raise Misfit(f"expected text for {kind.__qualname__}")
    if is_pydantic_model(kind):
        return _read_pydantic(kind, data)
    return _read_numpy(kind, data)


def _read_numpy(kind: Any, data: object) -> object:
    if type(data) in (bool, int, float):
        with contextlib.suppress(Exception):  # OverflowError, or a warning raised as an error
            number = kind(data)
            if type(number.item()) is type(data) and number.item() == data:
                return cast(object, number)
    raise Misfit(f"expected a number that fits numpy.{kind.__qualname__}")


def _read_pydantic(kind: Any, data: object) -> object:
    where = ""
    try:
        # From JSON, not from Python objects: strict models accept a date as text only in JSON.
        return kind.model_validate_json(msgspec.json.encode(data))
    except ValueError as error:  # pydantic.ValidationError is one; its text quotes the input
        if hasattr(error, "errors"):
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            field = ".".join(map(str, first["loc"]))[:100]
            where = f" ({field or kind.__qualname__}: {first['type']})"
    raise Misfit(f"does not validate as {kind.__qualname__}{where}")


write_json = msgspec.json.Encoder(enc_hook=_write).encode


def sort_sets(value: Any) -> Any:
    """Return `value` with each set as a sorted list, so that equal values give equal bytes.

    The order of a set of strings differs between Python processes.
    """
    if isinstance(value, (set, frozenset)):
        return sorted(map(sort_sets, value), key=write_json)
    if isinstance(value, (list, tuple)):
        return list(map(sort_sets, value))
    if type(value) is dict:
        return {key: sort_sets(item) for key, item in value.items()}
    if is_pydantic_model(type(value)):
        return value
    changed = {}
    for name in field_names(value) or ():
        before = getattr(value, name, msgspec.UNSET)
        after = sort_sets(before)
        if after is not before:
            changed[name] = after
    if not changed:
        return value
    clone = copy.copy(value)
    put = msgspec.structs.force_setattr if isinstance(value, msgspec.Struct) else object.__setattr__
    for name, after in changed.items():
        put(clone, name, after)
    return clone
