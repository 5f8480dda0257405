"""Where a stream stands, as told by the last valid frame of its file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from ...errors import CorruptRecord
from ..interface import Head, HeadFields, StreamKey
from .index import FileIndexRow
from .scan import FileSpan, FramePosition, is_torn, last_frame


class FileStamp(NamedTuple):
    """How a file looks from outside. If that has not changed, neither has what is in it."""

    inode: int
    size: int
    changed: int


class Damage(NamedTuple):
    """What is wrong, from which version on, and where."""

    version: int | None
    what: str
    place: str

    def error(self, stream: StreamKey) -> CorruptRecord:
        return CorruptRecord(str(stream), version=self.version, what=self.what, place=self.place)


class FileState(NamedTuple):
    """Version 0: the stream does not exist. Its frames go up to `end`, the last of them begins at `start`.

    If something is wrong with the end of the file, `damage` says what: it is raised by whoever needs
    the head; what is before it can still be read.
    """

    mark: FileStamp | None = None
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
    def torn(self) -> bool:
        """Whether bytes follow that never became a frame."""
        return self.mark is not None and self.damage is None and self.end < self.mark.size

    def head(self, stream: StreamKey, now: float) -> Head | None:
        if self.damage is not None:
            raise self.damage.error(stream)
        if not self.version:
            return None
        return Head(stream, self.incarnation, self.fields, now, self.version, self.hash)

    def row(self, stream: StreamKey, *, dirty: bool = False, synced: bool = True) -> FileIndexRow:
        inode = self.mark.inode if self.mark else 0
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


def mark_of(file: int) -> FileStamp:
    found = os.fstat(file)
    return FileStamp(found.st_ino, found.st_size, found.st_ctime_ns)


def state_at(place: FramePosition | None, mark: FileStamp) -> FileState:
    """The state after a frame."""
    if place is None:
        return FileState(mark)
    frame = place.frame
    if not frame.first:
        return FileState(mark, place.start, place.stop, deleted=frame.deleted)
    newest = (frame.last, frame.hash, frame.incarnation, frame.fields, frame.ids)
    return FileState(mark, place.start, place.stop, *newest)


def examine(
    stream: StreamKey, span: FileSpan, mark: FileStamp, *, acknowledged: int, file: str
) -> FileState:
    """The state that a file tells, and what is wrong with its end. `acknowledged` is how much must be there."""
    last = last_frame(span)
    state = state_at(last, mark)
    if last and last.frame.stream != stream:
        state, what = FileState(mark), "the file holds another stream"
    elif state.end < acknowledged:
        what = "a frame that was acknowledged is not valid"
    elif state.end < span.end and not is_torn(span, state.end):
        what = "a frame is not valid"
    else:
        return state
    place = f"file {file}, byte offset {state.end}"
    return state._replace(end=span.end, damage=Damage(state.version + 1, what, place))
