"""Deleting a stream: a tombstone is written beside the old file, and takes its place."""

from __future__ import annotations

import os
from contextlib import suppress

from ...errors import OutcomeUnknown
from ..interface import StreamKey
from .disk import write_all
from .frame import AppendFrame, BadFrame, encode_frame
from .names import TEMPORARY, folder_of, path_of
from .scan import FileSpan, last_frame, origin
from .state import mark_of, state_at
from .streams import FileStreams

_FORMER_LIVES = (
    1000  # so many incarnations of a stream that is deleted again and again are refused for ever
)


def delete_stream(streams: FileStreams, stream: StreamKey, incarnation: bytes) -> None:
    """Leave a tombstone: one line that names the incarnations which must not come back."""
    with streams.look(stream) as (span, _):
        former = [*_origin(stream, span).deleted, incarnation][-_FORMER_LIVES:]
    _replace(streams, stream, encode_frame(AppendFrame(stream, 0, 0, deleted=former)))
    with suppress(OSError):
        streams.tree.drop_aside(stream)


def _origin(stream: StreamKey, span: FileSpan) -> AppendFrame:
    """The first line if it stands for what was deleted, or one that says: nothing was."""
    with suppress(BadFrame):
        return origin(span) or AppendFrame(stream, 0, 0)
    return AppendFrame(stream, 0, 0)


def _replace(streams: FileStreams, stream: StreamKey, content: bytes) -> None:
    """Put a new line in the place of a stream's file: all of it, or nothing."""
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


def _write(streams: FileStreams, path: str, content: bytes) -> None:
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
