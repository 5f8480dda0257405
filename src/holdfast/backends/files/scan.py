"""Finding frames in a stream's file: the last one, the one with a version, and those next to it.

A frame holds no newline but its last byte, and begins with its length and versions. So a file
needs no index: the last frame is behind the last newline but one, and a version is found by
bisection.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .frame import (
    HEADER_BYTES,
    MAX_BYTES,
    AppendFrame,
    BadFrame,
    declared_length,
    decode_frame,
    header,
)

_NEAR = 8 * 1024  # below this distance walking is cheaper than bisecting
_SECTOR = 512
_NULS = re.compile(rb"\0+")


class FileSpan(NamedTuple):
    """The bytes of an open file up to `end`. `read(size, offset)` may return less than asked for."""

    read: Callable[[int, int], bytes]
    end: int

    def get(self, start: int, stop: int) -> bytes:
        """The bytes from `start` to `stop`, fewer only at the end of the file."""
        stop = min(stop, self.end)
        data = self.read(stop - start, start) if stop > start else b""
        while data and len(data) < stop - start:
            more = self.read(stop - start - len(data), start + len(data))
            if not more:
                break
            data += more
        return data


class FramePosition(NamedTuple):
    """A verified frame and where it is."""

    frame: AppendFrame
    start: int
    stop: int


def frame_at(span: FileSpan, start: int) -> FramePosition:
    """The frame that begins at `start`, verified, or `BadFrame`."""
    length = declared_length(span.get(start, start + HEADER_BYTES))
    if length is None:
        raise BadFrame("no frame begins here")
    if length > span.end - start:
        raise BadFrame("it is shorter than it declares")
    if length > MAX_BYTES:
        raise BadFrame("it is longer than any frame")
    return FramePosition(decode_frame(span.get(start, start + length)), start, start + length)


def last_frame(span: FileSpan) -> FramePosition | None:
    """The last valid frame. Bad bytes may follow it; they are the caller's to judge."""
    stop = newline_before(span, span.end) + 1
    while stop:
        start = newline_before(span, stop - 1) + 1
        try:
            return _line(span, start, stop)
        except BadFrame:
            stop = start
    return None


def is_torn(span: FileSpan, start: int) -> bool:
    """Whether the bytes from `start` on can only be a write that was cut off: one that was never acknowledged.

    An acknowledged frame is complete: it has its declared length and ends with its newline, and a flipped
    bit does not change both. So a single line is torn if it ends early, or if whole sectors of it were
    never written and read as zeros. Anything else is damage, and stays as it is.
    """
    if span.end - start > MAX_BYTES:
        return False
    newline = newline_from(span, start)
    if newline not in (-1, span.end - 1):
        return False
    if newline == -1:
        length = declared_length(span.get(start, start + HEADER_BYTES))
        if length is None or length > span.end - start:
            return True
    return _has_lost_sector(span, start)


def locate(span: FileSpan, version: int) -> FramePosition | None:
    """The frame that holds `version`, verified; None if there is no valid one."""
    start = _bisect(span, version)
    while start < span.end:
        found = header(span.get(start, start + HEADER_BYTES))
        if found is None or found[1] > version:
            break
        if found[1] <= version <= found[2] and found[1]:
            try:
                return frame_at(span, start)
            except BadFrame:
                break
        start += found[0]
    # Bisection trusts headers that nobody has verified. If it fails, look at every frame.
    return next(
        (place for place in valid_frames(span) if place.frame.first <= version <= place.frame.last),
        None,
    )


def origin(span: FileSpan) -> AppendFrame | None:
    """The first line, if it stands for what was deleted."""
    found = header(span.get(0, HEADER_BYTES))
    return frame_at(span, 0).frame if found is not None and found[1] == 0 else None


def forward(span: FileSpan, start: int) -> Iterator[FramePosition]:
    """Verified frames from `start` on. Raises `BadFrame` at the first one that is not."""
    while start < span.end:
        place = frame_at(span, start)
        yield place
        start = place.stop


def backward(span: FileSpan, stop: int) -> Iterator[FramePosition]:
    """Verified frames before `stop`, newest first. Raises `BadFrame` at the first one that is not."""
    while stop:
        place = _line(span, newline_before(span, stop - 1) + 1, stop)
        yield place
        stop = place.start


def valid_frames(span: FileSpan) -> Iterator[FramePosition]:
    """Every frame with versions that verifies, skipping whatever is between them."""
    start = 0
    while start < span.end:
        try:
            place = frame_at(span, start)
        except BadFrame:
            newline = newline_from(span, start)
            if newline == -1:
                return
            start = newline + 1
            continue
        if place.frame.first:
            yield place
        start = place.stop


def newline_before(span: FileSpan, stop: int) -> int:
    """Where the last newline before `stop` is, -1 if there is none."""
    block = 4096
    while stop > 0:
        start = max(0, stop - block)
        found = span.get(start, stop).rfind(b"\n")
        if found != -1:
            return start + found
        stop, block = start, min(block * 4, 1 << 20)
    return -1


def newline_from(span: FileSpan, start: int) -> int:
    """Where the first newline from `start` on is, -1 if there is none."""
    block = 4096
    while start < span.end:
        data = span.get(start, start + block)
        found = data.find(b"\n")
        if found != -1:
            return start + found
        if not data:
            break
        start, block = start + len(data), min(block * 4, 1 << 20)
    return -1


def _line(span: FileSpan, start: int, stop: int) -> FramePosition:
    # The header comes first: a long run of garbage is not read to find out that it is none.
    if declared_length(span.get(start, min(stop, start + HEADER_BYTES))) != stop - start:
        raise BadFrame("its length is not the one it declares")
    if stop - start > MAX_BYTES:
        raise BadFrame("it is longer than any frame")
    return FramePosition(decode_frame(span.get(start, stop)), start, stop)


def _bisect(span: FileSpan, version: int) -> int:
    """The start of a frame at or not far before the one that holds `version`, if headers are right."""
    low, high = 0, span.end
    while high - low > _NEAR:
        middle = (low + high) // 2
        newline = newline_from(span._replace(end=high), middle)
        start = newline + 1
        found = header(span.get(start, start + HEADER_BYTES)) if 0 < start < high else None
        if found is not None and found[1] <= version:
            low = start
        else:
            high = middle
    return low


def _has_lost_sector(span: FileSpan, start: int) -> bool:
    data = span.get(start, span.end)
    for run in _NULS.finditer(data):
        first, end = start + run.start(), start + run.end()
        begins = first == start or first % _SECTOR == 0
        if (begins and end % _SECTOR == 0) or (end == span.end and (begins or end - first > 1)):
            return True
    return False
