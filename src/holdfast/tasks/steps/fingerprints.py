"""Fingerprints of arguments and code: whether a step is called as it was recorded."""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from hashlib import blake2b
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

import msgspec

_plain_encoder = msgspec.msgpack.Encoder(order="deterministic", decimal_format="string")


def fingerprint(salt: bytes, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
    """Return a digest of arguments, the same in every process for equal arguments."""
    try:
        raw = _encoder.encode((args, kwargs))
    except Exception:  # msgspec cannot encode something, or a user's hook fails
        raw = _plain_encoder.encode(_to_encodable((list(args), dict(kwargs)), 0, set()))
    return blake2b(raw, digest_size=12, key=salt).hexdigest()


def _encode_unknown(value: object) -> object:
    """Encode a type unknown to msgspec: well-known types by value, others by their type name."""
    fingerprinted = getattr(type(value), "__holdfast_fingerprint__", None)
    if fingerprinted is not None:
        return fingerprinted(value)
    dump = getattr(type(value), "model_dump", None)  # Pydantic
    if dump is not None:
        # Not mode="json": that writes sets as lists, in the order of this process.
        return dump(value)
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


# Not JSON: it writes an infinite number as null, and bytes as text.
_encoder = msgspec.msgpack.Encoder(
    order="deterministic", decimal_format="string", enc_hook=_encode_unknown
)


def _type_of(value: object) -> str:
    kind = type(value)
    return f"<{kind.__module__}.{kind.__qualname__}>"


def _to_encodable(value: object, depth: int, above: set[int]) -> object:
    """Replace each part that cannot be encoded by its type name. Slow: only used on failure."""
    if id(value) in above or depth > 50:
        return _type_of(value)
    above = above | {id(value)}
    if isinstance(value, Mapping):
        pairs = [
            [_to_encodable(key, depth + 1, above), _to_encodable(item, depth + 1, above)]
            for key, item in value.items()
        ]
        return sorted(pairs, key=lambda pair: _plain_encoder.encode(pair[0]))
    if isinstance(value, list | tuple):
        return [_to_encodable(item, depth + 1, above) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(
            (_to_encodable(item, depth + 1, above) for item in value), key=_plain_encoder.encode
        )
    if isinstance(value, Enum):
        return [_type_of(value), value.name]
    if is_dataclass(value) and not isinstance(value, type):
        named = {field.name: getattr(value, field.name, None) for field in fields(value)}
        return [_type_of(value), _to_encodable(named, depth + 1, above)]
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value) if -(1 << 63) <= value < 1 << 63 else hex(value)
    if isinstance(value, str):
        return value.encode(errors="surrogatepass")
    try:
        _encoder.encode(value)
    except Exception:
        return _type_of(value)
    return msgspec.to_builtins(value, enc_hook=_encode_unknown, order="deterministic")


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
