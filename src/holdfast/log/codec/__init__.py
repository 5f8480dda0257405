"""The one codec: JSON, closed. Values become bytes and come back exactly, or are refused before anything is written.

Without a declared type a value must be JSON-native: None, bool, int of 64 bits, finite float, str, list, dict with
str keys, each by its exact type. With a declared type it is encoded, decoded again and compared; only what comes back as it
went in is stored. Nothing is ever imported, evaluated or constructed because stored bytes say so.
"""

from __future__ import annotations

import re
from itertools import accumulate
from math import isfinite
from typing import Any

import msgspec

from ...errors import DataProblem, NotSerializable, TooLarge
from .types import Coder, Misfit, coder, with_sorted_sets, write_json
from .walk import (
    NOT_FINITE,
    SourcedList,
    children,
    difference,
    encoding_problem,
    path_text,
    refuse_not_native,
    walk,
)

MAX_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 100
MAX_STORED = 2 * MAX_BYTES + 1024 * 1024
"""What is stored as one piece has at most so many bytes: one or two values and what we say of them. More is not read into memory."""

_write = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder().decode
_ONLY_FLOATS = {float}


class Undecodable(DataProblem):
    """Stored bytes are not a value, or not one of the declared type. `what` says why and holds no content."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


def encode(value: object, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> bytes:
    """The bytes of a JSON-native value. `NotSerializable` or `TooLarge` says what stands in the way, and where."""
    if _is_native(value, max_bytes, max_depth):
        try:
            raw = _write(value)
        except (
            UnicodeEncodeError
        ):  # a lone surrogate; found again below, because this error holds the text
            pass
        else:
            if len(raw) <= max_bytes:
                return raw
            raise TooLarge(f"{len(raw)} bytes as JSON, over the limit of {max_bytes}")
    refuse_not_native(value, max_bytes=max_bytes, max_depth=max_depth)
    raise TooLarge(f"more than {max_bytes} bytes as JSON, which is the limit")


def _is_native(value: object, room: int, max_depth: int) -> bool:
    """Whether `value` may be encoded as it is. False asks for a second look that finds the place and the reason.

    The hot path of every append, hence the repeated branches: a call for each item would cost more than encoding it.
    `room` is counted down by what the JSON takes at least, so shared or circular parts come to an end.
    """
    found: list[Any] = [value] if type(value) is dict or type(value) is list else [(value,)]
    level_end = 1
    for seen, part in enumerate(found, 1):  # grows while it is walked, level by level
        room -= 2 * len(part)
        if room < 0:
            return False
        if type(part) is dict:
            for key, item in part.items():
                if type(key) is not str:
                    return False
                kind = type(item)
                if kind is str:
                    room -= len(item)
                elif kind is dict or kind is list:
                    found.append(item)
                elif kind is int:
                    if not -0x8000_0000_0000_0000 <= item <= 0xFFFF_FFFF_FFFF_FFFF:
                        return False
                elif kind is float:
                    if not isfinite(item):
                        return False
                elif kind is SourcedList:
                    found.append(item)
                elif item is not None and kind is not bool:
                    return False
        elif len(part) > 16 and set(map(type, part)) == _ONLY_FLOATS:  # an embedding
            if not isfinite(sum(part)) and not all(map(isfinite, part)):
                return False
        else:
            for item in part:
                kind = type(item)
                if kind is str:
                    room -= len(item)
                elif kind is dict or kind is list:
                    found.append(item)
                elif kind is int:
                    if not -0x8000_0000_0000_0000 <= item <= 0xFFFF_FFFF_FFFF_FFFF:
                        return False
                elif kind is float:
                    if not isfinite(item):
                        return False
                elif kind is SourcedList:
                    found.append(item)
                elif item is not None and kind is not bool:
                    return False
        if seen == level_end < len(found):
            level_end = len(found)
            max_depth -= 1
            if max_depth <= 0:
                return False
    return room >= 0


def _is_deeper(value: Any, max_depth: int) -> bool:
    """Whether dicts and lists in `value` are nested in more than `max_depth` levels. It must be finite."""
    level: list[Any] = [value] if type(value) is dict or type(value) is list else []
    for _ in range(max_depth):
        below = []
        for part in level:
            for item in part.values() if type(part) is dict else part:
                if type(item) is dict or type(item) is list:
                    below.append(
                        item
                    )  # not a comprehension: before 3.12 that is one more call for each level
        if not below:
            return False
        level = below
    return bool(level)


def encode_as(
    value: object, declared: Any, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH
) -> bytes:
    """The bytes of a value of the `declared` type, after making sure that it comes back from them as it went in."""
    if declared is Any or declared is object:
        return encode(value, max_bytes=max_bytes, max_depth=max_depth)
    return _encode_declared(value, declared, max_bytes, max_depth)[0]


def there_and_back(value: object, declared: Any) -> tuple[bytes, Any]:
    """`encode_as`, and the value that `decode_as` makes of the bytes, without decoding them twice."""
    if declared is Any or declared is object:
        raw = encode(value)
        return raw, decode(raw)
    return _encode_declared(value, declared, MAX_BYTES, MAX_DEPTH)


def _encode_declared(
    value: object, declared: Any, max_bytes: int, max_depth: int
) -> tuple[bytes, object]:
    """The bytes of a value, and what comes back from them, which is the same."""
    kept = coder(declared)
    native = _is_native(value, max_bytes, max_depth)
    if not native:
        # The limits come first, because msgspec would encode a value that contains itself until memory is full.
        for labels, part in walk(value, max_bytes=max_bytes, max_depth=max_depth):
            if isinstance(part, float) and not isfinite(part):
                raise NotSerializable(path_text(labels), NOT_FINITE)
    raw = _write_declared(value, sort=kept.has_sets)
    if len(raw) > max_bytes:
        raise TooLarge(f"{len(raw)} bytes as JSON, over the limit of {max_bytes}")
    if not native and _is_deep(raw, max_depth):
        raise TooLarge(f"$: nested deeper than {max_depth} levels as JSON")
    return raw, _refuse_if_changed(value, raw, kept, native)


def _write_declared(value: object, *, sort: bool) -> bytes:
    try:
        return write_json(with_sorted_sets(value) if sort else value)
    except (MemoryError, RecursionError):
        raise
    except (
        Exception
    ):  # also from a serializer of the user's own model; its text may quote the value
        path, problem = encoding_problem(value, write_json)
    raise NotSerializable(path, problem)


def _refuse_if_changed(value: object, raw: bytes, kept: Coder, native: bool) -> object:
    """What comes back from the bytes of a value, if that is the same."""
    try:
        back = kept.decode(raw)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:
        path, what, got = _reason(error)
        path, problem = _exact_path(value, path, got), f"does not fit the declared type: {what}"
    else:
        # Two JSON-native values with the same bytes are the same, and that is quickly seen.
        if native and kept.is_exact:
            return back
        if (
            native
            and (kept.is_native or _is_native(back, MAX_BYTES, MAX_DEPTH))
            and _write(back) == raw
        ):
            return back
        changed = difference(value, back)
        if changed is None:
            return back
        path, problem = changed
    raise NotSerializable(path, problem)


def check_declared(declared: Any) -> None:
    """TypeError if values of the `declared` type can never be stored. To be called where a type is declared."""
    if declared is not Any and declared is not object:
        coder(declared)


def decode(raw: bytes, *, max_depth: int = MAX_DEPTH) -> Any:
    """The value in `raw`, JSON-native; `Undecodable` whatever else the bytes are."""
    try:
        value = _read(raw)
    except RecursionError:
        if _nesting(raw) <= max_depth:
            raise  # not the data: the caller is at the end of its stack
        what = f"nested deeper than {max_depth} levels"
    except ValueError as error:
        _, what, _ = _reason(error)
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
    """The value of the `declared` type in `raw`; `Undecodable` if the bytes are not one."""
    if declared is Any or declared is object:
        return decode(raw, max_depth=max_depth)
    kept = coder(declared)
    if _is_deep(raw, max_depth):
        raise Undecodable(f"nested deeper than {max_depth} levels")
    try:
        return kept.decode(raw)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # from msgspec, or from the user's own class
        path, what, _ = _reason(error)
    raise Undecodable(f"does not fit the declared type at {path}: {what}")


def _is_deep(raw: bytes, max_depth: int) -> bool:
    """Whether `raw` is nested in more than `max_depth` levels, before the declared type makes objects of it."""
    if raw.count(b"[") + raw.count(b"{") <= max_depth:
        return False
    try:
        return _is_deeper(_read(raw), max_depth)
    except RecursionError:
        return _nesting(raw) > max_depth
    except ValueError:  # not JSON, as the decoder of the declared type will say
        return False


_BRACKETS = b"[]{}"
_STEPS = bytes.maketrans(_BRACKETS, b"\x01\xff\x01\xff")  # as signed bytes: one up, one down
_OTHERS = bytes(set(range(256)) - set(_BRACKETS))


def _nesting(raw: bytes) -> int:
    """How deep the brackets outside of strings are nested. Slow, but needs no stack."""
    outside = re.sub(rb'"[^"]*"', b"", raw.replace(rb"\\", b"").replace(rb"\"", b""))
    steps = outside.translate(_STEPS, delete=_OTHERS)
    return max(accumulate(memoryview(steps).cast("b")), default=0)


_AT = re.compile(r" - at (?:`key` in )?`(\$[^`]*)`$")
_GOT = re.compile(r", got `(\w+)`$")


def _reason(error: Exception) -> tuple[str, str, str | None]:
    """Where decoding failed, why, and the kind of JSON found there if that is the reason. Never with content."""
    if isinstance(error, msgspec.ValidationError):
        text = str(error)
        at = _AT.search(text)
        path = at[1] if at else "$"
        if isinstance(error.__cause__, Misfit):
            return path, str(error.__cause__), None
        if (
            error.__cause__ is not None
        ):  # raised by the user's class, in words that may quote the data
            return path, f"refused with {type(error.__cause__).__name__}", None
        text = text[: at.start()] if at else text
        if text.startswith(("Expected `", "Object missing required field `")):
            got = _GOT.search(text)
            return path, text[0].lower() + text[1:], got[1] if got else None
        return (
            path,
            re.split("['`]", text)[0].strip().lower(),
            None,
        )  # "Invalid enum value 'secret'"
    if isinstance(error, UnicodeDecodeError):
        return "$", "not valid UTF-8", None
    if isinstance(error, msgspec.DecodeError):
        at = re.search(r"\(byte \d+\)$", str(error))
        return "$", f"not valid JSON {at[0]}" if at else "not valid JSON (cut short)", None
    return "$", f"refused with {type(error).__name__}", None


def _exact_path(value: object, path: str, got: str | None) -> str:
    """msgspec's path with `[...]`, its word for some key of a dict, replaced by the first place that has the kind `got`."""
    if "[...]" not in path or got is None:
        return path
    places: list[tuple[list[object], object]] = [([], value)]
    for name, index in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", path):
        wanted: object = name or (index if index == "..." else int(index))
        places = [
            ([*labels, label], part)
            for labels, owner in places
            for label, part in children(owner) or ()
            if wanted == "..." or label == wanted
        ]
    return next((path_text(labels) for labels, part in places if _json_kind(part) == got), path)


def _json_kind(value: object) -> str:
    raw = write_json(value)
    kinds = {b'"': "str", b"{": "object", b"[": "array", b"t": "bool", b"f": "bool", b"n": "null"}
    return kinds.get(raw[:1], "int" if raw.lstrip(b"-").isdigit() else "float")
