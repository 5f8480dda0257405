"""Read a whole file: verify all frames and their order, and collect the append ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..interface import StreamKey
from .frame import AppendFrame, BadFrame
from .scan import FileSpan, FramePosition, is_torn, read_frame
from .state import FileStamp, FileState, state_after


class FileDigest(NamedTuple):
    """All frames of a file, up to the first damage.

    `damage` is the offset of the first line that is neither a frame in its place nor a torn tail,
    and what is wrong with it.
    """

    stamp: FileStamp
    last: FramePosition | None = None
    ids: Sequence[tuple[bytes, int, int]] = ()
    damage: tuple[int, str] | None = None

    @property
    def stream(self) -> StreamKey | None:
        return None if self.last is None else self.last.frame.stream

    @property
    def state(self) -> FileState:
        return state_after(self.last, self.stamp)


def digest_file(span: FileSpan, stamp: FileStamp) -> FileDigest:
    """Read and verify all frames of a file."""
    start, last, ids = 0, None, list[tuple[bytes, int, int]]()
    while start < span.end:
        try:
            place = read_frame(span, start)
            _check_order(None if last is None else last.frame, place.frame)
            ids += [
                (append.id, append.first, append.last)
                for append in place.frame.appends
                if append.indexed
            ]
            if place.frame.ids != len(ids):
                raise BadFrame("its number of append ids is wrong")
        except BadFrame as error:
            torn = is_torn(span, start)
            return FileDigest(stamp, last, ids, None if torn else (start, str(error)))
        last, start = place, place.stop
    return FileDigest(stamp, last, ids)


def _check_order(before: AppendFrame | None, frame: AppendFrame) -> None:
    if before is None:
        if frame.first > 1:
            raise BadFrame("the lines before it are missing")
        return
    if frame.stream != before.stream:
        raise BadFrame("it does not belong to the stream of the line before it")
    if frame.first != before.last + 1:
        raise BadFrame("it does not follow the line before it")
    if before.first and frame.incarnation != before.incarnation:
        raise BadFrame("it does not belong to the incarnation of the line before it")
