"""Storage engines. `Backend` is the seam; each engine has a file of its own."""

from ._seam import (
    Append,
    Appended,
    Backend,
    Conflict,
    Costly,
    Cursor,
    Damaged,
    Description,
    Durability,
    Fields,
    Head,
    Peeking,
    Record,
    Scrubbing,
    StreamKey,
    Watching,
)

__all__ = [
    "Append",
    "Appended",
    "Backend",
    "Conflict",
    "Costly",
    "Cursor",
    "Damaged",
    "Description",
    "Durability",
    "Fields",
    "Head",
    "Peeking",
    "Record",
    "Scrubbing",
    "StreamKey",
    "Watching",
]
