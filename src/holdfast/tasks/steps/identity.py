"""What identifies a step: its path, the fingerprint of its arguments, and that of its code.

A path is the name of a step within its task, unambiguous and readable:

    collect            a step called at the top level
    search#2           the second step with that name in its scope, if it has no key
    pay[order-7]       a step with a key
    collect/search#2   called from inside another step

The special characters (% / # [ ]) are percent-encoded where they are part of a name or a key.

Fingerprints show whether a step is called as it was recorded. Equal data has the same fingerprint,
whatever type holds it, so that types can be added to the code of unfinished tasks. Arguments are
reduced to one canonical form:

    None, booleans, text, bytes        themselves; also subclasses of str, int and float
    numbers                            3 and 3.0 are the same; True is not 1
    dict, dataclass, attrs, msgspec,   the fields by the names under which the library writes them,
    Pydantic, any other mapping        in any order
    list, tuple, any other sequence    the list of the items; so a named tuple is its tuple
    set                                the sorted list of the items
    enum                               its value
    Decimal, UUID, date, path, URL     its text
    numpy number or array              the number; the type, shape and bytes
    function, class                    its module and name
    conversation, resume context       its id; the task's id (`__holdfast_fingerprint__`)
    anything else                      the name of its type
"""

from __future__ import annotations

import functools
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from enum import Enum
from hashlib import blake2b
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from ...log.codec.walk import is_dataclass, is_pydantic_model

_ESCAPES = str.maketrans({character: f"%{ord(character):02X}" for character in "%/#[]"})


class StepPath(NamedTuple):
    """A parsed path. `number` counts the steps with the same name and no key, from 1."""

    scope: str
    name: str
    key: str | None
    number: int


def keyed_path(scope: str, name: str, key: str) -> str:
    """Return the path of a step with a key."""
    return f"{numbered_path(scope, name)}[{key.translate(_ESCAPES)}]"


def numbered_path(scope: str, name: str, number: int = 1) -> str:
    """Return the path of the n-th step with a name and no key."""
    escaped = name.translate(_ESCAPES)
    path = f"{scope}/{escaped}" if scope else escaped
    return path if number == 1 else nth_path(path, number)


def nth_path(path: str, number: int) -> str:
    """Return the path of the n-th step, given the path of the first."""
    return path if number == 1 else f"{path}#{number}"


_PART = r"[^/#\[\]]+(?:#[1-9][0-9]{0,8}|\[[^/#\[\]]+\])?"
_PATH = re.compile(f"{_PART}(?:/{_PART})*", re.DOTALL)


def is_path(text: str) -> bool:
    """Whether a text is a valid path. A stored path may be invalid."""
    return _PATH.fullmatch(text) is not None


def parse_path(path: str) -> StepPath:
    """Parse a path."""
    scope, _, last = path.rpartition("/")
    if last.endswith("]"):
        name, _, key = last[:-1].partition("[")
        return StepPath(scope, _unescape(name), _unescape(key), 1)
    name, _, number = last.partition("#")
    return StepPath(scope, _unescape(name), None, int(number) if number else 1)


def _unescape(text: str) -> str:
    if "%" not in text:
        return text
    from urllib.parse import unquote

    return unquote(text)


def find_in_scope(path: str, scope: str) -> str | None:
    """Return the step in `scope` that is the given step or contains it; None if there is none."""
    while path:
        above = parse_path(path).scope
        if above == scope:
            return path
        path = above
    return None


# -- fingerprints of arguments and code ------------------------------------------------------------

_MAX_DEPTH = 50
_MAX_WHOLE_FLOAT = 2.0**53
_FLOAT = b"\xcb"
"""The byte before a float in msgpack."""

# Not JSON, which writes an infinite number as null, and bytes as text. Sorted, so that the fields
# of a dataclass are in the same order as the keys of a dict.
_plain_encoder = msgspec.msgpack.Encoder(order="sorted", decimal_format="string")


def fingerprint(salt: bytes, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
    """Return a digest of arguments, the same in every process for equal arguments."""
    try:
        raw = _encoder.encode((args, kwargs))
    except Exception:  # msgspec cannot encode something, or a user's hook fails
        raw = _plain_encoder.encode(_to_canonical([list(args), dict(kwargs)], 0, frozenset()))
    if _FLOAT in raw:
        raw = _unify_numbers(raw)
    return blake2b(raw, digest_size=12, key=salt).hexdigest()


def fingerprint_by_field(
    salt: bytes, args: Sequence[object], kwargs: Mapping[str, object]
) -> str | None:
    """Return the digest with named tuples as dicts; None if there are no named tuples.

    A named tuple may have replaced a dict. This is slow, and needed only if no recorded step has
    the digest of the arguments.
    """
    found: list[object] = []
    named = _name_fields([list(args), dict(kwargs)], found, 0)
    return fingerprint(salt, *named) if found else None


def _name_fields(value: Any, found: list[object], depth: int) -> Any:
    if depth > _MAX_DEPTH:
        return value
    if isinstance(value, tuple) and hasattr(type(value), "_asdict"):
        found.append(value)
        value = value._asdict()  # type: ignore[attr-defined]  # a named tuple
    if isinstance(value, dict):
        return {key: _name_fields(item, found, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_name_fields(item, found, depth + 1) for item in value]
    return value


_SCALARS: Final[tuple[tuple[tuple[type, ...], Callable[[Any], object]], ...]] = (
    ((int,), int),
    ((float,), float),
    ((bytes,), bytes),
    ((date, time), lambda value: value.isoformat()),
    ((Decimal, UUID), str),
    ((complex,), lambda value: ["<complex>", value.real, value.imag]),
)
"""The canonical forms of scalars and of their subclasses, in the order in which they are tried."""


def encode_unknown(value: object) -> object:
    """Return the canonical form of a value of a type unknown to msgspec."""
    kind: Any = type(value)
    fingerprinted = getattr(kind, "__holdfast_fingerprint__", None)
    if fingerprinted is not None:
        return fingerprinted(value)
    if is_pydantic_model(kind):
        # Not mode="json": that writes sets as lists, in the order of this process.
        return kind.model_dump(value, by_alias=True, round_trip=True, warnings=False)
    if isinstance(value, str):
        return str.__str__(value)
    if hasattr(value, "__fspath__"):
        return value.__fspath__()
    if kind.__module__ == "numpy" and hasattr(value, "tobytes"):
        array: Any = value
        return (
            array.item()
            if array.shape == ()
            else [str(array.dtype), list(array.shape), array.tobytes()]
        )
    for kinds, encode_scalar in _SCALARS:
        if isinstance(value, kinds):
            return encode_scalar(value)
    if isinstance(value, functools.partial):
        return ["<partial>", value.func, value.args, value.keywords]
    if isinstance(value, type | FunctionType | BuiltinFunctionType | MethodType):
        return ["<named>", getattr(value, "__module__", ""), value.__qualname__]
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, range):  # maybe of a billion numbers
        return ["<range>", value.start, value.stop, value.step]
    if isinstance(value, Sequence | deque):
        return list(value)
    if kind.__module__ in (
        "fractions",
        "pydantic.networks",
        "pydantic_core._pydantic_core",
        "ipaddress",
    ):
        return str(value)
    return _type_of(value)


_encoder = msgspec.msgpack.Encoder(order="sorted", decimal_format="string", enc_hook=encode_unknown)


def _type_of(value: object) -> str:
    kind = type(value)
    return f"<{kind.__module__}.{kind.__qualname__}>"


def _to_canonical(value: object, depth: int, above: frozenset[int]) -> object:
    """Return the canonical form of a value with parts that msgspec cannot encode. Slow.

    msgspec encodes the parts that it can, so that their form does not depend on the other parts.
    """
    if id(value) in above or depth > _MAX_DEPTH:
        return _type_of(value)
    try:
        return msgspec.Raw(_encoder.encode(value))
    except Exception:
        inside = functools.partial(_to_canonical, depth=depth + 1, above=above | {id(value)})
    if isinstance(value, Enum):
        return inside(value.value)
    if (named := _fields_of(value)) is not None:
        return {name: inside(item) for name, item in named.items()}
    if isinstance(value, Mapping):
        return _map_to_canonical(value.items(), inside)
    if isinstance(value, list | tuple):
        return [inside(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(map(inside, value), key=_plain_encoder.encode)
    if type(value) is int:
        return f"<int {value:x}>"
    if type(value) is str:
        return ["<str>", value.encode(errors="surrogatepass")]
    try:
        return inside(encode_unknown(value))
    except Exception:  # a user's hook fails
        return _type_of(value)


def _map_to_canonical(
    items: Iterable[tuple[object, object]], inside: Callable[[object], object]
) -> object:
    pairs = [(inside(key), inside(item)) for key, item in items]
    names = {_plain_encoder.encode(key): item for key, item in pairs}
    texts = [_as_text(raw) for raw in names]
    if None not in texts and len(texts) == len(pairs):
        return dict(zip(texts, names.values(), strict=True))
    return [[msgspec.Raw(raw), item] for raw, item in sorted(names.items())]


def _as_text(raw: bytes) -> str | None:
    found = msgspec.msgpack.decode(raw)
    return found if isinstance(found, str) else None


def _fields_of(value: Any) -> dict[str, object] | None:
    """Return the fields of a dataclass, attrs or msgspec object as msgspec would name them."""
    kind: Any = type(value)
    if isinstance(value, msgspec.Struct):
        config = kind.__struct_config__
        found = zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True)
        tag = {} if config.tag is None else {config.tag_field: config.tag}
        values = {name: getattr(value, field, msgspec.UNSET) for name, field in found}
        return {**tag, **{name: item for name, item in values.items() if item is not msgspec.UNSET}}
    if is_dataclass(value) and not isinstance(value, type):
        from dataclasses import fields

        return {field.name: getattr(value, field.name, None) for field in fields(value)}
    if hasattr(kind, "__attrs_attrs__"):
        return {field.name: getattr(value, field.name, None) for field in kind.__attrs_attrs__}
    return None


def _unify_numbers(raw: bytes) -> bytes:
    """Return the encoding with whole numbers as integers: a typed field may turn 3 into 3.0."""
    try:
        return _plain_encoder.encode(_with_integers(msgspec.msgpack.decode(raw)))
    except Exception:  # keys that cannot be decoded, or nested too deeply
        return raw


def _with_integers(value: Any) -> Any:
    if type(value) is float:
        is_whole = value.is_integer() and abs(value) <= _MAX_WHOLE_FLOAT
        return int(value) if is_whole else value
    if type(value) is list:
        return list(map(_with_integers, value))
    if type(value) is dict:
        return {key: _with_integers(item) for key, item in value.items()}
    return value


def code_digest(fn: Callable[..., Any]) -> str:
    """Return a digest of a function's code, comparable within one version of Python.

    It is "" for a callable without code (a builtin, a class).
    """
    while hasattr(fn, "__wrapped__"):
        fn = fn.__wrapped__
    code = getattr(fn, "__code__", None) or getattr(getattr(fn, "__func__", None), "__code__", None)
    if not isinstance(code, CodeType):
        return ""
    found = _digests.get(code)
    if found is None:
        digest = blake2b(digest_size=6)
        _hash_code(digest.update, code)
        if len(_digests) > 10_000:
            _digests.clear()
        found = _digests[code] = f"{sys.version_info[0]}.{sys.version_info[1]}:{digest.hexdigest()}"
    return found


_digests: dict[CodeType, str] = {}


def _hash_code(update: Callable[[bytes], None], code: CodeType) -> None:
    update(code.co_code)
    update(repr((code.co_names, code.co_varnames)).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _hash_code(update, constant)
        elif isinstance(constant, frozenset):
            update(repr(sorted(map(repr, constant))).encode())
        else:
            update(repr(constant).encode(errors="surrogatepass"))
