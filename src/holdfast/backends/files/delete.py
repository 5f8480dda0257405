"""Delete a stream: write a tombstone beside the old file, and replace the file with it."""

from __future__ import annotations

import os
from contextlib import suppress

from ...errors import OutcomeUnknown
from ..interface import StreamKey
from .disk import write_all
from .frame import AppendFrame, BadFrame, encode_frame
from .index import FileIndexRow
from .names import TEMPORARY, folder_of, path_of
from .scan import FileSpan, find_last_frame, iter_valid_frames, read_tombstone
from .state import read_stamp, state_after
from .streams import FileStreams

_MAX_TOMBSTONES = 1000
"""How many deleted incarnations of a stream are remembered; older ones could come back."""


def delete_stream(streams: FileStreams, stream: StreamKey, incarnation: bytes) -> None:
    """Replace the file with a tombstone: one line with the incarnations that must not come back."""
    with streams.open_settled(stream) as (span, _):
        former = [*_read_deleted(stream, span).deleted, incarnation][-_MAX_TOMBSTONES:]
    _replace_file(streams, stream, encode_frame(AppendFrame(stream, 0, 0, deleted=former)))
    with suppress(OSError):
        streams.tree.delete_torn(stream)


def discard_stream(streams: FileStreams, stream: StreamKey, row: FileIndexRow | None) -> None:
    """Replace a damaged file with a tombstone of all incarnations that can still be found."""
    former: dict[bytes, None] = {}
    with streams.tree.open_stream(stream) as file:
        if file is None:
            os.close(streams.tree.create(stream))
        span = streams.tree.span(file, 0 if file is None else read_stamp(file).size)
        former.update(dict.fromkeys(_read_deleted(stream, span).deleted))
        former.update((place.frame.incarnation, None) for place in iter_valid_frames(span))
    if row is not None and row.incarnation:
        former[row.incarnation] = None
    tombstone = AppendFrame(stream, 0, 0, deleted=[*former][-_MAX_TOMBSTONES:])
    _replace_file(streams, stream, encode_frame(tombstone))
    with suppress(OSError):
        streams.tree.delete_torn(stream)


def _read_deleted(stream: StreamKey, span: FileSpan) -> AppendFrame:
    """Return the tombstone in the first line, or an empty one."""
    with suppress(BadFrame):
        return read_tombstone(span) or AppendFrame(stream, 0, 0)
    return AppendFrame(stream, 0, 0)


def _replace_file(streams: FileStreams, stream: StreamKey, content: bytes) -> None:
    """Replace a stream's file atomically."""
    tree, path = streams.tree, path_of(stream)
    streams.catalog.use(lambda index: index.mark_dirty([stream]))
    streams.remember(stream, None)
    _write_file(streams, path + TEMPORARY, content)
    try:
        tree.disk.rename(tree.top, path + TEMPORARY, path)
        tree.sync_names(folder_of(stream))
    except OSError as error:
        tree.forget()
        raise OutcomeUnknown(f"{stream} may have been deleted; read it again") from error
    with suppress(OSError), tree.open_stream(stream) as file:
        if file is not None:
            stamp = read_stamp(file)
            state = state_after(find_last_frame(tree.span(file, stamp.size)), stamp)
            streams.remember(stream, state)
            streams.update_index([(state.to_row(stream, synced=tree.durable), ())])


def _write_file(streams: FileStreams, path: str, content: bytes) -> None:
    tree = streams.tree
    with suppress(FileNotFoundError):
        tree.disk.unlink(tree.top, path)
    try:
        file = tree.disk.open(tree.top, path, create=True)
        try:
            write_all(tree.disk, file, content, 0)
            tree.sync(file)
        finally:
            os.close(file)
    except BaseException:
        with suppress(OSError):
            tree.disk.unlink(tree.top, path)
        raise
