"""Step paths: the name of a step within its task, unambiguous and readable.

    collect            a step called at the top level
    search#2           the second of that name in its scope, for steps without a key
    pay[order-7]       a step with a key
    collect/search#2   called from inside another step

The characters that have a meaning here (% / # [ ]) are percent-encoded where they are part of a name or a key.
"""

from __future__ import annotations

import functools
import re
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from hashlib import blake2b
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec

_ESCAPES = str.maketrans({character: f"%{ord(character):02X}" for character in "%/#[]"})


class StepPath(NamedTuple):
    """A path taken apart. `number` counts the steps of a name without a key, from 1."""

    scope: str
    name: str
    key: str | None
    number: int


def keyed(scope: str, name: str, key: str) -> str:
    return f"{_inside(scope)}{name.translate(_ESCAPES)}[{key.translate(_ESCAPES)}]"


def numbered(scope: str, name: str, number: int = 1) -> str:
    return nth(_inside(scope) + name.translate(_ESCAPES), number)


def nth(path: str, number: int) -> str:
    """The n-th of the steps of which this is the path of the first."""
    return path if number == 1 else f"{path}#{number}"


def _inside(scope: str) -> str:
    return scope + "/" if scope else ""


_PART = r"[^/#\[\]]+(?:#[1-9][0-9]{0,8}|\[[^/#\[\]]+\])?"
_PATH = re.compile(f"{_PART}(?:/{_PART})*", re.DOTALL)


def is_path(text: str) -> bool:
    """Whether a text is a path at all: whoever can write to the store can write anything."""
    return _PATH.fullmatch(text) is not None


def place_of(path: str) -> StepPath:
    """What a path says."""
    scope, _, last = path.rpartition("/")
    if last.endswith("]"):
        name, _, key = last[:-1].partition("[")
        return StepPath(scope, unquote(name), unquote(key), 1)
    name, _, number = last.partition("#")
    return StepPath(scope, unquote(name), None, int(number or 1))


# Fingerprints: whether a step is asked for with the arguments, and by the code, that it was recorded with.


_fast = msgspec.msgpack.Encoder(order="deterministic", decimal_format="string")


def fingerprint(salt: bytes, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
    """A digest of arguments: equal for equal ones, in every process."""
    try:
        raw = _encoder.encode((args, kwargs))
    except Exception:  # something that msgspec cannot write; or a user's own hook that fails
        raw = _fast.encode(_plain((list(args), dict(kwargs)), 0, set()))
    return blake2b(raw, digest_size=12, key=salt).hexdigest()


def _hook(value: object) -> object:
    """What msgspec does not know: values of well-known shapes by value, the rest by type."""
    fingerprinted = getattr(type(value), "__holdfast_fingerprint__", None)
    if fingerprinted is not None:
        return fingerprinted(value)
    dump = getattr(type(value), "model_dump", None)  # Pydantic
    if dump is not None:
        return dump(
            value
        )  # not mode="json": that writes sets as lists, in the order of this process
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, complex):
        return [value.real, value.imag]
    if hasattr(value, "__fspath__"):
        return value.__fspath__()
    item = getattr(value, "item", None)
    if (
        item is not None
        and type(value).__module__ == "numpy"
        and getattr(value, "shape", None) == ()
    ):
        return item()
    if isinstance(value, str):
        return [_type_of(value), str.__str__(value)]
    if isinstance(value, int):
        return [_type_of(value), int(value)]
    if isinstance(value, functools.partial):
        return ["partial", value.func, value.args, value.keywords]
    if isinstance(value, type | FunctionType | BuiltinFunctionType | MethodType):
        return ["named", getattr(value, "__module__", ""), value.__qualname__]
    if isinstance(value, Mapping):
        return [_type_of(value), dict(value)]
    if isinstance(value, Sequence | deque):
        return [_type_of(value), list(value)]
    if type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        array: Any = value
        return [str(array.dtype), list(array.shape), array.tobytes()]
    if type(value).__module__ in (
        "fractions",
        "pydantic.networks",
        "pydantic_core._pydantic_core",
        "ipaddress",
    ):
        return [_type_of(value), str(value)]
    return _type_of(value)


# Not JSON: there an infinite number is null, and bytes are text.
_encoder = msgspec.msgpack.Encoder(order="deterministic", decimal_format="string", enc_hook=_hook)


def _type_of(value: object) -> str:
    kind = type(value)
    return f"<{kind.__module__}.{kind.__qualname__}>"


def _plain(value: object, depth: int, above: set[int]) -> object:
    """The slow way: every part that cannot be encoded is replaced by its type, and only that part."""
    if id(value) in above or depth > 50:
        return _type_of(value)
    above = above | {id(value)}
    if isinstance(value, Mapping):
        pairs = [
            [_plain(key, depth + 1, above), _plain(item, depth + 1, above)]
            for key, item in value.items()
        ]
        return sorted(pairs, key=lambda pair: _fast.encode(pair[0]))
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1, above) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((_plain(item, depth + 1, above) for item in value), key=_fast.encode)
    if isinstance(value, Enum):
        return [_type_of(value), value.name]
    if is_dataclass(value) and not isinstance(value, type):
        named = {field.name: getattr(value, field.name, None) for field in fields(value)}
        return [_type_of(value), _plain(named, depth + 1, above)]
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value) if -(1 << 63) <= value < 1 << 63 else hex(value)
    if isinstance(value, str):
        return value.encode(errors="surrogatepass")
    try:
        _encoder.encode(value)
    except Exception:
        return _type_of(value)
    return msgspec.to_builtins(value, enc_hook=_hook, order="deterministic")


def code_digest(fn: Callable[..., Any]) -> str:
    """A digest of a function's code; "" if it has none (a builtin, a class). Comparable within one version of Python."""
    while hasattr(fn, "__wrapped__"):
        fn = fn.__wrapped__
    code = getattr(fn, "__code__", None) or getattr(getattr(fn, "__func__", None), "__code__", None)
    if not isinstance(code, CodeType):
        return ""
    known = _digests.get(code)
    if known is None:
        digest = blake2b(digest_size=6)
        _add(digest.update, code)
        if len(_digests) > 10_000:
            _digests.clear()
        known = _digests[code] = f"{sys.version_info[0]}.{sys.version_info[1]}:{digest.hexdigest()}"
    return known


_digests: dict[CodeType, str] = {}


def _add(update: Callable[[bytes], None], code: CodeType) -> None:
    update(code.co_code)
    update(repr((code.co_names, code.co_varnames)).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _add(update, constant)
        elif isinstance(constant, frozenset):
            update(repr(sorted(map(repr, constant))).encode())
        else:
            update(repr(constant).encode(errors="surrogatepass"))
