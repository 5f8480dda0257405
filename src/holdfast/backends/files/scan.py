"""Find frames in a stream's file: the last one, the one with a version, and their neighbors.

The only newline of a frame is its last byte, and a frame starts with its length and versions. So a
file needs no index: the last frame follows the second to last newline, and a version is found by
bisection.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .frame import (
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    AppendFrame,
    BadFrame,
    decode_frame,
    parse_header,
    parse_length,
)

_WALK_BYTES = 8 * 1024  # below this distance, walking is cheaper than bisecting
_SECTOR = 512
_NULS = re.compile(rb"\0+")


class FileSpan(NamedTuple):
    """The bytes of an open file up to `end`. `read(size, offset)` may return fewer than `size`."""

    read: Callable[[int, int], bytes]
    end: int

    def get(self, start: int, stop: int) -> bytes:
        """Return the bytes from `start` to `stop`, fewer only at the end of the file."""
        stop = min(stop, self.end)
        data = self.read(stop - start, start) if stop > start else b""
        while data and len(data) < stop - start:
            more = self.read(stop - start - len(data), start + len(data))
            if not more:
                break
            data += more
        return data


class FramePosition(NamedTuple):
    """A verified frame and its position in the file."""

    frame: AppendFrame
    start: int
    stop: int


def read_frame(span: FileSpan, start: int) -> FramePosition:
    """Return the verified frame that starts at `start`; raise `BadFrame` if it is not valid."""
    length = parse_length(span.get(start, start + HEADER_BYTES))
    if length is None:
        raise BadFrame("no frame starts here")
    if length > span.end - start:
        raise BadFrame("it is shorter than declared")
    if length > MAX_FRAME_BYTES:
        raise BadFrame("it is longer than any frame")
    return FramePosition(decode_frame(span.get(start, start + length)), start, start + length)


def find_last_frame(span: FileSpan) -> FramePosition | None:
    """Return the last valid frame. Invalid bytes may follow it; the caller judges them."""
    stop = find_newline_before(span, span.end) + 1
    while stop:
        start = find_newline_before(span, stop - 1) + 1
        try:
            return _read_line(span, start, stop)
        except BadFrame:
            stop = start
    return None


def read_version_before(span: FileSpan, place: FramePosition) -> int | None:
    """Return the last version before a frame, 0 at the start of the file.

    Return None if the line before it is damaged.
    """
    if not place.start:
        return 0
    start = find_newline_before(span, place.start - 1) + 1
    found = parse_header(span.get(start, min(place.start, start + HEADER_BYTES)))
    if found is not None and found[2] + 1 == place.frame.first:
        return found[2]
    try:  # the header is not verified
        return _read_line(span, start, place.start).frame.last
    except BadFrame:
        return None


def is_torn(span: FileSpan, start: int) -> bool:
    """Return whether the bytes from `start` on are an interrupted write that was not acknowledged.

    An acknowledged frame is complete: it has its declared length and ends with a newline, and a
    flipped bit does not change both. So a single line is torn if it ends early, or if whole sectors
    of it were never written and read as zeros. Anything else is damage, and stays as it is.
    """
    if span.end - start > MAX_FRAME_BYTES:
        return False
    newline = find_newline_from(span, start)
    if newline not in (-1, span.end - 1):
        return False
    if newline == -1:
        length = parse_length(span.get(start, start + HEADER_BYTES))
        if length is None or length > span.end - start:
            return True
    return _has_lost_sector(span, start)


def find_version(span: FileSpan, version: int) -> FramePosition | None:
    """Return the verified frame with `version`; None if there is no valid one."""
    start = _bisect(span, version)
    while start < span.end:
        found = parse_header(span.get(start, start + HEADER_BYTES))
        if found is None or found[1] > version:
            break
        if found[1] <= version <= found[2] and found[1]:
            try:
                return read_frame(span, start)
            except BadFrame:
                break
        start += found[0]
    # Bisection trusts unverified headers. If it fails, check every frame.
    return next(
        (
            place
            for place in iter_valid_frames(span)
            if place.frame.first <= version <= place.frame.last
        ),
        None,
    )


def read_tombstone(span: FileSpan) -> AppendFrame | None:
    """Return the first frame if it is a tombstone."""
    found = parse_header(span.get(0, HEADER_BYTES))
    return read_frame(span, 0).frame if found is not None and found[1] == 0 else None


def read_forward(span: FileSpan, start: int) -> Iterator[FramePosition]:
    """Yield verified frames from `start` on; raise `BadFrame` at the first invalid one."""
    while start < span.end:
        place = read_frame(span, start)
        yield place
        start = place.stop


def read_backward(span: FileSpan, stop: int) -> Iterator[FramePosition]:
    """Yield verified frames before `stop`, newest first; raise `BadFrame` at an invalid one."""
    while stop:
        place = _read_line(span, find_newline_before(span, stop - 1) + 1, stop)
        yield place
        stop = place.start


def iter_valid_frames(span: FileSpan) -> Iterator[FramePosition]:
    """Yield all valid frames with versions, and skip anything between them."""
    start = 0
    while start < span.end:
        try:
            place = read_frame(span, start)
        except BadFrame:
            newline = find_newline_from(span, start)
            if newline == -1:
                return
            start = newline + 1
            continue
        if place.frame.first:
            yield place
        start = place.stop


def find_newline_before(span: FileSpan, stop: int) -> int:
    """Return the offset of the last newline before `stop`, -1 if there is none."""
    block = 4096
    while stop > 0:
        start = max(0, stop - block)
        found = span.get(start, stop).rfind(b"\n")
        if found != -1:
            return start + found
        stop, block = start, min(block * 4, 1 << 20)
    return -1


def find_newline_from(span: FileSpan, start: int) -> int:
    """Return the offset of the first newline from `start` on, -1 if there is none."""
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


def _read_line(span: FileSpan, start: int, stop: int) -> FramePosition:
    # Check the header first, so that a long run of garbage is not read.
    if parse_length(span.get(start, min(stop, start + HEADER_BYTES))) != stop - start:
        raise BadFrame("its length is not the declared one")
    if stop - start > MAX_FRAME_BYTES:
        raise BadFrame("it is longer than any frame")
    return FramePosition(decode_frame(span.get(start, stop)), start, stop)


def _bisect(span: FileSpan, version: int) -> int:
    """Return the start of a frame at or shortly before the one with `version`, going by headers."""
    low, high = 0, span.end
    while high - low > _WALK_BYTES:
        middle = (low + high) // 2
        newline = find_newline_from(span._replace(end=high), middle)
        start = newline + 1
        found = parse_header(span.get(start, start + HEADER_BYTES)) if 0 < start < high else None
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
