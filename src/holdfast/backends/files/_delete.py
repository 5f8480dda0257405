"""Deleting a stream, or its first records: the file is written anew beside the old one, and takes its place."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress

from ...errors import CorruptRecord, OutcomeUnknown
from .._seam import StreamKey
from ._disk import write_all
from ._frame import BadFrame, Frame, Stored, encode_frame
from ._names import TEMPORARY, folder_of, path_of
from ._scan import Span, forward, last_frame, origin
from ._state import mark_of, state_at
from ._streams import Streams

_FORMER_LIVES = 1000  # so many incarnations of a stream that is deleted again and again are refused for ever
_BLOCK = 1 << 20


def delete_stream(streams: Streams, stream: StreamKey, incarnation: bytes) -> None:
    """Leave a tombstone: one line that names the incarnations which must not come back."""
    with streams.look(stream) as (span, _):
        former = [*_origin(stream, span).deleted, incarnation][-_FORMER_LIVES:]
    _replace(streams, stream, [encode_frame(Frame(stream, 0, 0, deleted=former))])
    with suppress(OSError):
        streams.tree.drop_aside(stream)


def delete_prefix(streams: Streams, stream: StreamKey, upto: int) -> None:
    """Write the file anew without the records up to `upto`. Their indexed append ids are kept."""
    with streams.look(stream) as (span, state):
        if upto > _origin(stream, span).last:
            try:
                start, lines = _trim(stream, span, upto)
            except BadFrame as error:
                raise CorruptRecord(str(stream), what=str(error), place=f"file {streams.tree.place(stream)}") from None
            _replace(streams, stream, _chained(lines, span._replace(end=state.end), start))


def _origin(stream: StreamKey, span: Span) -> Frame:
    """The first line if it stands for what was deleted, or one that says: nothing was."""
    with suppress(BadFrame):
        return origin(span) or Frame(stream, 0, 0)
    return Frame(stream, 0, 0)


def _trim(stream: StreamKey, span: Span, upto: int) -> tuple[int, list[bytes]]:
    """The lines that replace all before the returned offset."""
    former = _origin(stream, span)
    kept, deleted, incarnation = list(former.kept), former.deleted, b""
    rest: list[bytes] = []
    stop = 0
    for place in forward(span, 0):
        frame = place.frame
        if frame.first > upto:
            break
        stop, incarnation = place.stop, frame.incarnation or incarnation
        kept += [(a.id, a.first, a.last) for a in frame.appends if a.indexed and a.first <= upto]
        if frame.last > upto:
            appends = [_after(append, upto) for append in frame.appends if append.last > upto]
            rest.append(encode_frame(_with(frame, upto + 1, appends)))
    first = Frame(stream, 0, upto, incarnation, ids=len(kept), deleted=deleted, kept=kept)
    return stop, [encode_frame(first), *rest]


def _after(append: Stored, upto: int) -> Stored:
    gone = upto + 1 - append.first
    if gone <= 0:
        return append
    # No longer indexed here: its id, with all versions it had, is kept in the first line.
    return Stored(append.id, upto + 1, append.records[gone:])


def _with(frame: Frame, first: int, appends: list[Stored]) -> Frame:
    return Frame(frame.stream, first, frame.last, frame.incarnation, appends, frame.fields, frame.ids)


def _chained(lines: Iterable[bytes], span: Span, start: int) -> Iterator[bytes]:
    yield from lines
    while start < span.end:
        block = span.get(start, start + _BLOCK)
        if not block:
            return
        yield block
        start += len(block)


def _replace(streams: Streams, stream: StreamKey, content: Iterable[bytes]) -> None:
    """Put new content in the place of a stream's file: all of it, or nothing."""
    tree, path = streams.tree, path_of(stream)
    streams.catalog.use(lambda index: index.mark([stream]))
    streams.remember(stream, None)
    _write(streams, path + TEMPORARY, content)
    try:
        tree.disk.rename(tree.top, path + TEMPORARY, path)
        tree.sync_names(folder_of(stream))
    except OSError as error:
        tree.forget()
        raise OutcomeUnknown(f"{stream} was perhaps deleted: look at it again") from error
    with suppress(OSError), tree.opened(stream) as file:
        if file is not None:
            mark = mark_of(file)
            state = state_at(last_frame(tree.span(file, mark.size)), mark)
            streams.remember(stream, state)
            streams.note([(state.row(stream, synced=tree.durable), ())])


def _write(streams: Streams, path: str, content: Iterable[bytes]) -> None:
    tree = streams.tree
    with suppress(FileNotFoundError):
        tree.disk.unlink(tree.top, path)
    try:
        file = tree.disk.open(tree.top, path, create=True)
        try:
            offset = 0
            for data in content:
                write_all(tree.disk, file, data, offset)
                offset += len(data)
            tree.sync(file)
        finally:
            os.close(file)
    except BaseException:
        with suppress(OSError):
            tree.disk.unlink(tree.top, path)
        raise
