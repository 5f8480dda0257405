"""Arrays as PostgreSQL takes them in: one value for a statement that stores many things at once."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import ClassVar, Final


class Array(bytes):
    """An array in the server's own binary form. Its type does not depend on the values, so that one plan serves all batches."""

    element: ClassVar[int]
    array: ClassVar[int]

    @classmethod
    def of(cls, elements: Iterable[bytes | None]) -> Array:
        count, nulls, parts = 0, 0, [b""]
        for element in elements:
            count += 1
            if element is None:
                nulls = 1
                parts.append(b"\xff\xff\xff\xff")
            else:
                parts.append(_INT(len(element)))
                parts.append(element)
        parts[0] = _HEADER(1, nulls, cls.element, count, 1)
        return cls(b"".join(parts))


class Bytes(Array):
    element, array = 17, 1001


class Text(Array):
    element, array = 25, 1009


class Numbers(Array):
    element, array = 20, 1016


class Times(Array):
    element, array = 701, 1022


class Flags(Array):
    element, array = 16, 1000


_INT: Final = struct.Struct("!i").pack
_LONG: Final = struct.Struct("!q").pack
_DOUBLE: Final = struct.Struct("!d").pack
_HEADER: Final = struct.Struct("!iiIii").pack


KINDS: Final = (Bytes, Text, Numbers, Times, Flags)


def bytes_(values: Iterable[bytes | None]) -> Array:
    return Bytes.of(values)


def text(values: Iterable[str | None]) -> Array:
    return Text.of(None if value is None else value.encode() for value in values)


def flags(values: Iterable[bool]) -> Array:
    return Flags.of(b"\1" if value else b"\0" for value in values)


def numbers(values: Iterable[int]) -> Array:
    return Numbers.of(_LONG(value) for value in values)


def times(values: Iterable[float | None]) -> Array:
    return Times.of(None if value is None else _DOUBLE(value) for value in values)
