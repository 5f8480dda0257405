"""Encode arrays in PostgreSQL's binary format, for statements that store many rows at once."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final

_LENGTH: Final = struct.Struct("!i").pack
_HEADER: Final = struct.Struct("!iiIii").pack
_NULL: Final = b"\xff\xff\xff\xff"


class BinaryArray(bytes):
    """An encoded array. Its type does not depend on the values, so that one plan fits all batches.

    `element` and `array` are the type numbers of the server.
    """

    element: ClassVar[int]
    array: ClassVar[int]
    pack: ClassVar[Callable[[Any], bytes]]

    @classmethod
    def encode(cls, values: Iterable[Any]) -> BinaryArray:
        count, has_null, parts = 0, 0, [b""]
        for value in values:
            count += 1
            if value is None:
                has_null = 1
                parts.append(_NULL)
            else:
                element = cls.pack(value)
                parts += _LENGTH(len(element)), element
        parts[0] = _HEADER(1, has_null, cls.element, count, 1)
        return cls(b"".join(parts))


class ByteaArray(BinaryArray):
    element, array, pack = 17, 1001, bytes


class TextArray(BinaryArray):
    element, array, pack = 25, 1009, str.encode


class BigintArray(BinaryArray):
    element, array, pack = 20, 1016, struct.Struct("!q").pack


class FloatArray(BinaryArray):
    element, array, pack = 701, 1022, struct.Struct("!d").pack


class BoolArray(BinaryArray):
    element, array, pack = 16, 1000, struct.Struct("!?").pack


ARRAY_TYPES: Final = (ByteaArray, TextArray, BigintArray, FloatArray, BoolArray)

bytea_array: Final[Callable[[Iterable[bytes | None]], BinaryArray]] = ByteaArray.encode
text_array: Final[Callable[[Iterable[str | None]], BinaryArray]] = TextArray.encode
bigint_array: Final[Callable[[Iterable[int]], BinaryArray]] = BigintArray.encode
float_array: Final[Callable[[Iterable[float | None]], BinaryArray]] = FloatArray.encode
bool_array: Final[Callable[[Iterable[bool]], BinaryArray]] = BoolArray.encode
