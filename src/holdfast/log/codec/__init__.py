"""The codec: values become JSON and come back exactly, or are refused before anything is written.

Without a declared type a value must be JSON-native: None, bool, int of 64 bits, finite float, str,
list, dict with str keys, each of exactly that type. With a declared type, the value is encoded,
decoded again and compared; it is stored only if it comes back as it went in. Stored bytes never
cause an import, an evaluation, or an object of a type that the caller did not declare.
"""

from __future__ import annotations

import re
from itertools import accumulate
from math import isfinite
from typing import Any

import msgspec

from ...errors import DataProblem, NotSerializable, TooLarge
from .types import Coder, Misfit, coder, sort_sets, write_json
from .walk import (
    NOT_FINITE,
    MarkedText,
    SourcedList,
    children,
    find_difference,
    find_encoding_problem,
    format_path,
    refuse_not_native,
    walk,
)

MAX_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 100
SHORT_TEXT = 16 * 1024
MAX_STORED_BYTES = 2 * MAX_BYTES + 1024 * 1024
"""The size limit of an event: one or two values and metadata. More is never read into memory."""

_write = msgspec.json.Encoder(enc_hook=str.__str__).encode
"""Of the native values only a `MarkedText` needs the hook."""
_read = msgspec.json.Decoder().decode
_ONLY_FLOATS = {float}


class Undecodable(DataProblem):
    """Stored bytes are not a value of the declared type. `what` is the reason, without content."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


def encode(value: object, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> bytes:
    """Encode a JSON-native value. Raise `NotSerializable` or `TooLarge` with reason and path."""
    if _is_native(value, max_bytes, max_depth):
        try:
            raw = _write(value)
        except UnicodeEncodeError:  # a lone surrogate; located below: this error has the text
            pass
        else:
            if len(raw) <= max_bytes:
                return raw
            raise TooLarge(f"{len(raw)} bytes as JSON, over the limit of {max_bytes}")
    if refuse_not_native(value, max_bytes=max_bytes, max_depth=max_depth):
        raw = _write(value)
        if len(raw) <= max_bytes:
            return raw
    raise TooLarge(f"more than {max_bytes} bytes as JSON, over the limit")


def encode_short_texts(value: dict[Any, Any]) -> bytes | None:
    """Encode a dict whose keys and values are texts, together at most `SHORT_TEXT` characters.

    Return None for anything else: `encode` decides what becomes of it. Most messages are such
    dicts, and for them this takes a third of the time.
    """
    room = SHORT_TEXT
    for key, item in value.items():
        if type(key) is not str or type(item) is not str:
            return None
        room -= len(key) + len(item)
    if room < 0:
        return None
    try:
        return _write(value)
    except UnicodeEncodeError:  # a lone surrogate: `encode` says where
        return None


def _is_native(value: object, room: int, max_depth: int) -> bool:
    """Return whether `value` can be encoded as it is. If not, `refuse_not_native` finds the reason.

    Every append runs this, hence one long loop: a call per item would cost more than encoding it.
    `room` decreases by the minimum JSON size, which ends shared or circular parts.
    """
    found: list[Any] = [value] if type(value) is dict or type(value) is list else [(value,)]
    level_end = 1
    for seen, part in enumerate(found, 1):  # grows during the walk, level by level
        room -= 2 * len(part)
        if room < 0:
            return False
        if type(part) is dict:
            for key in part:
                if type(key) is not str:
                    return False
            part = part.values()
        elif len(part) > 16 and set(map(type, part)) == _ONLY_FLOATS:  # an embedding
            if not isfinite(sum(part)) and not all(map(isfinite, part)):
                return False
            part = ()
        for item in part:
            kind = type(item)
            if kind is str or kind is MarkedText:
                room -= len(item)
            elif kind is dict or kind is list or kind is SourcedList:
                found.append(item)
            elif not (
                (kind is int and -0x8000_0000_0000_0000 <= item <= 0xFFFF_FFFF_FFFF_FFFF)
                or (kind is float and isfinite(item))
                or item is None
                or kind is bool
            ):
                return False
        if seen == level_end < len(found):
            level_end = len(found)
            max_depth -= 1
            if max_depth <= 0:
                return False
    return room >= 0


def _is_deeper(value: Any, max_depth: int) -> bool:
    """Return whether a finite `value` is nested in more than `max_depth` levels."""
    level: list[Any] = [value] if type(value) is dict or type(value) is list else []
    for _ in range(max_depth):
        below = []
        for part in level:
            for item in part.values() if type(part) is dict else part:
                # Not a comprehension: before 3.12 that is one more call per level.
                if type(item) is dict or type(item) is list:
                    below.append(item)
        if not below:
            return False
        level = below
    return bool(level)


def encode_as(
    value: object, declared: Any, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH
) -> bytes:
    """Encode a value of the `declared` type, and check that it comes back as it went in."""
    if declared is Any or declared is object:
        return encode(value, max_bytes=max_bytes, max_depth=max_depth)
    return _encode_declared(value, declared, max_bytes, max_depth)[0]


def encode_and_decode(value: object, declared: Any) -> tuple[bytes, Any]:
    """Return the bytes of `encode_as` and the value that `decode_as` would make of them."""
    if declared is Any or declared is object:
        raw = encode(value)
        return raw, _read(raw)  # not `decode`: `encode` has checked the depth
    return _encode_declared(value, declared, MAX_BYTES, MAX_DEPTH)


def _encode_declared(
    value: object, declared: Any, max_bytes: int, max_depth: int
) -> tuple[bytes, object]:
    """Return the bytes of a value, and the equal value decoded from them."""
    kept = coder(declared)
    native = _is_native(value, max_bytes, max_depth)
    if not native:
        # Check the limits first: msgspec would encode a value that contains itself until memory
        # is full.
        for labels, part in walk(value, max_bytes=max_bytes, max_depth=max_depth):
            if isinstance(part, float) and not isfinite(part):
                raise NotSerializable(format_path(labels), NOT_FINITE)
    raw = _write_declared(value, sort=kept.has_sets)
    if len(raw) > max_bytes:
        raise TooLarge(f"{len(raw)} bytes as JSON, over the limit of {max_bytes}")
    if not native and _is_raw_deeper(raw, max_depth):
        raise TooLarge(f"$: nested deeper than {max_depth} levels as JSON")
    return raw, _refuse_if_changed(value, raw, kept, native)


def _write_declared(value: object, *, sort: bool) -> bytes:
    try:
        return write_json(sort_sets(value) if sort else value)
    except (MemoryError, RecursionError):
        raise
    except Exception:  # also from the user's own serializer, whose message may quote the value
        path, problem = find_encoding_problem(value, write_json)
    raise NotSerializable(path, problem)


def _refuse_if_changed(value: object, raw: bytes, kept: Coder, native: bool) -> object:
    """Decode the bytes of a value. Raise `NotSerializable` if the result differs from the value."""
    try:
        back = kept.decode(raw)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:
        path, what, got = _explain(error)
        path, problem = _exact_path(value, path, got), f"does not fit the declared type: {what}"
    else:
        # Two JSON-native values with the same bytes are equal, which is fast to check.
        if native and kept.is_exact:
            return back
        if (
            native
            and (kept.is_native or _is_native(back, MAX_BYTES, MAX_DEPTH))
            and _write(back) == raw
        ):
            return back
        changed = find_difference(value, back)
        if changed is None:
            return back
        path, problem = changed
    raise NotSerializable(path, problem)


def check_declared(declared: Any) -> None:
    """Raise `TypeError` if values of a type can never be stored. Call it when one is declared."""
    if declared is not Any and declared is not object:
        coder(declared)


def decode(raw: bytes, *, max_depth: int = MAX_DEPTH) -> Any:
    """Decode a JSON-native value. Raise `Undecodable` for any other bytes."""
    try:
        value = _read(raw)
    except RecursionError:
        if _measure_depth(raw) <= max_depth:
            raise  # not because of the data: the caller's stack is full
        what = f"nested deeper than {max_depth} levels"
    except ValueError as error:
        _, what, _ = _explain(error)
    else:
        if type(value) is dict:
            for item in value.values():
                if type(item) is dict or type(item) is list:
                    break
            else:  # flat, like most messages
                return value
        if _is_deeper(value, max_depth):
            raise Undecodable(f"nested deeper than {max_depth} levels")
        return value
    raise Undecodable(what)


def decode_as(raw: bytes, declared: Any, *, max_depth: int = MAX_DEPTH) -> Any:
    """Decode a value of the `declared` type. Raise `Undecodable` if the bytes are not one."""
    if declared is Any or declared is object:
        return decode(raw, max_depth=max_depth)
    kept = coder(declared)
    if _is_raw_deeper(raw, max_depth):
        raise Undecodable(f"nested deeper than {max_depth} levels")
    try:
        return kept.decode(raw)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # from msgspec, or from the user's own class
        path, what, _ = _explain(error)
    raise Undecodable(f"does not fit the declared type at {path}: {what}")


def _is_raw_deeper(raw: bytes, max_depth: int) -> bool:
    """Return whether `raw` is nested in more than `max_depth` levels, without creating objects."""
    if raw.count(b"[") + raw.count(b"{") <= max_depth:
        return False
    try:
        return _is_deeper(_read(raw), max_depth)
    except RecursionError:
        return _measure_depth(raw) > max_depth
    except ValueError:  # not JSON; the decoder of the declared type reports it
        return False


_BRACKETS = b"[]{}"
_STEPS = bytes.maketrans(_BRACKETS, b"\x01\xff\x01\xff")  # as signed bytes: one up, one down
_OTHERS = bytes(set(range(256)) - set(_BRACKETS))


def _measure_depth(raw: bytes) -> int:
    """Return the nesting depth of the brackets outside of strings. Slow, but needs no stack."""
    outside = re.sub(rb'"[^"]*"', b"", raw.replace(rb"\\", b"").replace(rb"\"", b""))
    steps = outside.translate(_STEPS, delete=_OTHERS)
    return max(accumulate(memoryview(steps).cast("b")), default=0)


_AT = re.compile(r" - at (?:`key` in )?`(\$[^`]*)`$")
_GOT = re.compile(r", got `(\w+)`$")


def _explain(error: Exception) -> tuple[str, str, str | None]:
    """Return the path, the reason and, for a wrong JSON kind, the kind found. Never content."""
    if isinstance(error, msgspec.ValidationError):
        text = str(error)
        at = _AT.search(text)
        path = at[1] if at else "$"
        if isinstance(error.__cause__, Misfit):
            return path, str(error.__cause__), None
        if error.__cause__ is not None:  # from the user's class; its message may quote the data
            return path, f"refused with {type(error.__cause__).__name__}", None
        text = text[: at.start()] if at else text
        if text.startswith(("Expected `", "Object missing required field `")):
            got = _GOT.search(text)
            return path, text[0].lower() + text[1:], got[1] if got else None
        reason = re.split("['`]", text)[0]  # "Invalid enum value 'secret'"
        return path, reason.strip().lower(), None
    if isinstance(error, UnicodeDecodeError):
        return "$", "not valid UTF-8", None
    if isinstance(error, msgspec.DecodeError):
        at = re.search(r"\(byte \d+\)$", str(error))
        return "$", f"not valid JSON {at[0]}" if at else "not valid JSON (cut short)", None
    return "$", f"refused with {type(error).__name__}", None


def _exact_path(value: object, path: str, got: str | None) -> str:
    """Return msgspec's path, with `[...]` (any key of a dict) as the first key that matches."""
    if "[...]" not in path or got is None:
        return path
    found: list[tuple[list[object], object]] = [([], value)]
    for name, index in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", path):
        wanted: object = name or (index if index == "..." else int(index))
        found = [
            ([*labels, label], part)
            for labels, owner in found
            for label, part in children(owner) or ()
            if wanted == "..." or label == wanted
        ]
    return next((format_path(labels) for labels, part in found if _json_kind(part) == got), path)


def _json_kind(value: object) -> str:
    raw = write_json(value)
    kinds = {b'"': "str", b"{": "object", b"[": "array", b"t": "bool", b"f": "bool", b"n": "null"}
    return kinds.get(raw[:1], "int" if raw.lstrip(b"-").isdigit() else "float")
