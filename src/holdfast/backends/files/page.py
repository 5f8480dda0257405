"""Read one page of records from a stream's file, in either direction, and verify each frame."""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import CorruptRecord
from ..interface import PAGE_BYTES, Record, StreamKey
from .frame import AppendFrame, BadFrame
from .scan import (
    FileSpan,
    FramePosition,
    find_version,
    iter_valid_frames,
    read_backward,
    read_forward,
)
from .state import FileState


class Pager:
    """Reads the settled bytes of a stream. Damage ends a page early; the next page raises."""

    def __init__(self, stream: StreamKey, span: FileSpan, state: FileState, file: str) -> None:
        self._stream, self._span, self._state, self._file = stream, span, state, file

    def read_page(self, after: int, limit: int | None, reverse: bool) -> list[Record]:
        page: list[Record] = []
        size = 0
        try:
            for record in self._backward(after) if reverse else self._forward(after):
                size += len(record.body)
                if (page and size > PAGE_BYTES) or (limit is not None and len(page) >= limit):
                    break
                page.append(record)
        except CorruptRecord:
            if not page:
                raise
        return page

    def _forward(self, after: int) -> Iterator[Record]:
        state = self._state
        version = after + 1
        if version > state.version and state.damage is None:
            return
        start = first = self._find(version).start
        try:
            for place in read_forward(self._span, start):
                self._check(place.frame, place.start == first or place.frame.first == version)
                for record in _records(place.frame):
                    if record.version == version:
                        yield record
                        version += 1
                start = place.stop
        except BadFrame as error:
            raise self._damage_error(version, start, str(error)) from None

    def _backward(self, after: int) -> Iterator[Record]:
        version = after - 1 if after else self._state.version
        if self._state.damage is None:
            version = min(version, self._state.version)
        elif not after:
            raise self._state.damage.error(self._stream)
        if version <= 0:
            return
        stop = last = self._find(version).stop
        try:
            for place in read_backward(self._span, stop):
                if not place.frame.first:
                    break
                self._check(place.frame, place.stop == last or place.frame.last == version)
                for record in reversed(_records(place.frame)):
                    if record.version == version:
                        yield record
                        version -= 1
                stop = place.start
            if version > 0:
                raise BadFrame("frames are missing before it")
        except BadFrame as error:
            raise self._damage_error(version, stop, str(error)) from None

    def _find(self, version: int) -> FramePosition:
        place = find_version(self._span, version)
        if place is not None:
            return place
        if self._state.damage is not None and version > self._state.version:
            raise self._state.damage.error(self._stream)
        before = [
            place.stop for place in iter_valid_frames(self._span) if place.frame.last < version
        ]
        raise self._damage_error(version, before[-1] if before else 0, "no valid frame has it")

    def _check(self, frame: AppendFrame, follows: bool) -> None:
        if frame.stream != self._stream or frame.incarnation != self._state.incarnation:
            raise BadFrame("the frame is of another stream, or of another incarnation of it")
        if not follows:
            raise BadFrame("versions are not contiguous")

    def _damage_error(self, version: int | None, offset: int, what: str) -> CorruptRecord:
        place = f"file {self._file}, byte offset {offset}"
        return CorruptRecord(str(self._stream), version=version, what=what, place=place)


def _records(frame: AppendFrame) -> list[Record]:
    return [
        Record(version, stored.id, digest, body)
        for stored in frame.appends
        for version, (digest, body) in enumerate(stored.records, stored.first)
    ]
