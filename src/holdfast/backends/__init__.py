"""Storage engines. `Backend` is the seam; each engine has a file of its own."""

from ._seam import (
    Append,
    Appended,
    Backend,
    Conflict,
    Cursor,
    Description,
    Durability,
    Fields,
    Head,
    Record,
    StreamKey,
)

__all__ = [
    "Append",
    "Appended",
    "Backend",
    "Conflict",
    "Cursor",
    "Description",
    "Durability",
    "Fields",
    "Head",
    "Record",
    "StreamKey",
]
