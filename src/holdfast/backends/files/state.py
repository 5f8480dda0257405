"""The state of a stream, derived from the last valid frame of its file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from ...errors import CorruptRecord
from ..interface import Head, HeadFields, StreamKey
from .index import FileIndexRow
from .scan import FileSpan, FramePosition, find_last_frame, is_torn, read_version_before


class FileStamp(NamedTuple):
    """The metadata of a file. If it has not changed, neither has the content."""

    inode: int
    size: int
    changed: int


class Damage(NamedTuple):
    """Damage to a file: the first damaged version, what is wrong, and where."""

    version: int | None
    what: str
    place: str

    def error(self, stream: StreamKey) -> CorruptRecord:
        return CorruptRecord(str(stream), version=self.version, what=self.what, place=self.place)


class FileState(NamedTuple):
    """The state of a file. At version 0, the stream does not exist.

    The frames end at `end`; the last of them starts at `start`. If the end of the file is damaged,
    `damage` describes it. Callers that need the head raise it; records before it can still be read.
    """

    stamp: FileStamp | None = None
    start: int = 0
    end: int = 0
    version: int = 0
    hash: bytes = b""
    incarnation: bytes = b""
    fields: HeadFields = HeadFields()
    ids: int = 0
    deleted: Sequence[bytes] = ()
    damage: Damage | None = None

    @property
    def has_torn_tail(self) -> bool:
        """Whether the file ends with bytes that never became a frame."""
        return self.stamp is not None and self.damage is None and self.end < self.stamp.size

    def head(self, stream: StreamKey, now: float) -> Head | None:
        if self.damage is not None:
            raise self.damage.error(stream)
        if not self.version:
            return None
        return Head(stream, self.incarnation, self.fields, now, self.version, self.hash)

    def to_row(
        self, stream: StreamKey, *, dirty: bool = False, synced: bool = True
    ) -> FileIndexRow:
        inode = self.stamp.inode if self.stamp else 0
        known = (
            stream,
            inode,
            self.end,
            self.version,
            self.hash,
            self.incarnation,
            self.fields,
            self.ids,
        )
        return FileIndexRow(*known, dirty=dirty, synced=synced)


def read_stamp(file: int) -> FileStamp:
    found = os.fstat(file)
    return FileStamp(found.st_ino, found.st_size, found.st_ctime_ns)


def state_after(place: FramePosition | None, stamp: FileStamp) -> FileState:
    """Return the state after a frame."""
    if place is None:
        return FileState(stamp)
    frame = place.frame
    if not frame.first:
        return FileState(stamp, place.start, place.stop, deleted=frame.deleted)
    newest = (frame.last, frame.hash, frame.incarnation, frame.fields, frame.ids)
    return FileState(stamp, place.start, place.stop, *newest)


def examine_file(
    stream: StreamKey, span: FileSpan, stamp: FileStamp, *, acknowledged: int, file: str
) -> FileState:
    """Return the state of a file, with any damage at its end.

    `acknowledged` is the number of bytes that must be valid.
    """
    last = find_last_frame(span)
    state = state_after(last, stamp)
    version, offset = state.version + 1, state.end
    if last and last.frame.stream != stream:
        state, what, version, offset = FileState(stamp), "the file contains another stream", 1, 0
    elif last and (before := _find_misplaced(span, last)) is not None:
        # A torn tail has no whole frames behind it.
        what, version, offset = "its frames are not in order", before + 1, last.start
    elif state.end < acknowledged:
        what = "an acknowledged frame is not valid"
    elif state.end < span.end and not is_torn(span, state.end):
        what = "a frame is not valid"
    else:
        return state
    place = f"file {file}, byte offset {offset}"
    return state._replace(end=span.end, damage=Damage(version, what, place))


def _find_misplaced(span: FileSpan, last: FramePosition) -> int | None:
    """Return the newest version before the last frame, if that frame doesn't follow it, or None."""
    before = read_version_before(span, last)
    if not last.frame.first:
        follows = last.start == 0
    else:
        follows = before is None or before + 1 == last.frame.first
    return None if follows else min(before or 0, max(last.frame.first - 1, 0))
