"""Append a batch: decide about each member, write one frame per stream, and sync them all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from ...errors import CorruptRecord, HoldfastError, OutcomeUnknown, TooLarge
from ..interface import Append, AppendResult, StreamKey, VersionMismatch
from .disk import translate_os_error, write_all
from .frame import MAX_FRAME_BYTES, AppendFrame, BadFrame, StoredAppend, encode_frame
from .index import IncompleteIds
from .names import folder_of, path_of
from .scan import FileSpan, find_version, read_forward
from .state import FileState, read_stamp
from .streams import FileStreams

_MAX_OPEN_FILES = 64


class AppendDraft:
    """The appends of a batch to one stream. `state` is the state of the file plus `accepted`."""

    def __init__(self, streams: FileStreams, stream: StreamKey) -> None:
        self.streams, self.stream = streams, stream
        self.before = self.state = streams.settle(stream, write=True)
        if self.state.damage is not None:
            raise self.state.damage.error(stream)
        self.accepted: list[StoredAppend] = []

    def answer(self, append: Append, now: float) -> AppendResult | VersionMismatch:
        """Accept an append, or return why it cannot be stored."""
        known = self._find(append)
        if known:
            return AppendResult(*known, duplicate=True, now=now)
        state = self.state
        if state.version:
            expected = (append.expected, append.expected_hash, append.incarnation)
            if expected != (state.version, state.hash, state.incarnation):
                return VersionMismatch(state.head(self.stream, now))
        elif append.expected != 0 or append.incarnation in state.deleted:
            return VersionMismatch(None)
        stored = StoredAppend(append.id, append.expected + 1, append.records)
        self.accepted.append(stored)
        self.state = state._replace(
            version=stored.last,
            hash=append.records[-1][0],
            incarnation=append.incarnation,
            fields=state.fields if append.fields is None else append.fields,
            ids=state.ids + append.indexed,
        )
        return AppendResult(stored.first, stored.last, now=now)

    def _find(self, append: Append) -> tuple[int, int] | None:
        """Return the versions under which this append is stored already, None if it is not."""
        version = append.expected + 1
        for stored in self.accepted:
            if stored.id == append.id and (append.indexed or stored.first == version):
                return stored.first, stored.last
        if append.indexed and self.before.ids:
            with self.streams.open_settled(self.stream) as (span, _):
                known = find_append_id(
                    self.streams, self.stream, span, self.before, append.id, repair=True
                )
            if known:
                return known
        if version > self.before.version or append.incarnation != self.before.incarnation:
            return None
        with self.streams.open_settled(self.stream) as (span, _):
            appends = _read_appends(self.streams, self.stream, span, version)
        for stored in appends:
            if stored.first <= version <= stored.last and stored.id == append.id:
                return version, stored.last
        return None

    def encode(self) -> bytes:
        """Encode the frame with the accepted appends."""
        first, state = self.accepted[0].first, self.state
        return encode_frame(
            AppendFrame(
                self.stream,
                first,
                state.version,
                state.incarnation,
                self.accepted,
                state.fields,
                state.ids,
            )
        )

    def new_ids(self) -> list[tuple[bytes, int, int]]:
        return [
            (stored.id, stored.first, stored.last) for stored in self.accepted if stored.indexed
        ]


def find_append_id(
    streams: FileStreams,
    stream: StreamKey,
    span: FileSpan,
    state: FileState,
    append_id: bytes,
    *,
    repair: bool = False,
) -> tuple[int, int] | None:
    """Return the first and last version of an indexed append, None if it is not stored.

    If the index lacks ids, read the whole stream. With `repair`, for which the caller holds the
    writers' lock, complete the index.
    """
    if not state.ids:
        return None
    with suppress(IncompleteIds):
        known = streams.catalog.use(lambda index: index.find_id(stream, append_id, state.ids))
        if known is None or _is_stored(streams, stream, span, state, append_id, *known):
            return known
    with _report_damage(streams, stream):
        ids = _all_ids(span)
    if repair:
        streams.catalog.use(lambda index: index.replace_ids(stream, ids))
    return next(((first, last) for known, first, last in ids if known == append_id), None)


def _is_stored(
    streams: FileStreams,
    stream: StreamKey,
    span: FileSpan,
    state: FileState,
    append_id: bytes,
    first: int,
    last: int,
) -> bool:
    """Return whether the append is stored under these versions, as the index claims."""
    return 0 < first <= state.version and any(
        (stored.id, stored.first, stored.last) == (append_id, first, last)
        for stored in _read_appends(streams, stream, span, first)
    )


def _read_appends(
    streams: FileStreams, stream: StreamKey, span: FileSpan, version: int
) -> Sequence[StoredAppend]:
    """Return the appends of the frame that has this version."""
    with _report_damage(streams, stream):
        place = find_version(span, version)
        if place is not None:
            return place.frame.appends
        raise BadFrame(f"version {version} is not in any valid frame")


@contextmanager
def _report_damage(streams: FileStreams, stream: StreamKey) -> Iterator[None]:
    """Raise `CorruptRecord` for a damaged frame: the id may be in it."""
    try:
        yield
    except BadFrame as error:
        place = f"file {streams.tree.full_path(stream)}"
        raise CorruptRecord(str(stream), what=str(error), place=place) from None


def _all_ids(span: FileSpan) -> list[tuple[bytes, int, int]]:
    ids: list[tuple[bytes, int, int]] = []
    for place in read_forward(span, 0):
        ids.extend(
            (stored.id, stored.first, stored.last)
            for stored in place.frame.appends
            if stored.indexed
        )
    return ids


def store_drafts(streams: FileStreams, drafts: Sequence[AppendDraft]) -> None:
    """Write and sync all drafts.

    Raise `OutcomeUnknown` if some of them may be stored; any other error means that none is.
    """
    lines = [draft.encode() for draft in drafts]
    if max(map(len, lines)) > MAX_FRAME_BYTES:
        raise TooLarge(
            f"a batch for one stream must have at most {MAX_FRAME_BYTES} bytes in its file, "
            f"got {max(map(len, lines))}; nothing was written. Append less at once"
        )
    # From here on the index rows of these streams are not trusted, until the outcome is stored.
    streams.catalog.use(lambda index: index.mark_dirty([draft.stream for draft in drafts]))
    for start in range(0, len(drafts), _MAX_OPEN_FILES):
        stop = start + _MAX_OPEN_FILES
        try:
            _store_drafts(streams, drafts[start:stop], lines[start:stop])
        except HoldfastError as error:
            if start:
                raise OutcomeUnknown(
                    "part of the batch is stored, the rest is not; repeat it with the same ids"
                ) from error
            raise


def _store_drafts(
    streams: FileStreams, drafts: Sequence[AppendDraft], lines: Sequence[bytes]
) -> None:
    tree, files = streams.tree, list[int]()
    try:
        try:
            for draft, line in zip(drafts, lines, strict=True):
                streams.remember(draft.stream, None)
                files.append(_open(streams, draft))
                write_all(tree.disk, files[-1], line, draft.before.end)
        except OSError as error:
            _undo(streams, drafts, files)
            raise translate_os_error(error, "the append could not be written") from error
        try:
            for draft, file in zip(drafts, files, strict=True):
                tree.sync(file)
                if draft.before.end == 0:
                    tree.sync_names(folder_of(draft.stream))
        except OSError as error:
            tree.forget()
            raise OutcomeUnknown(
                "the append was written but could not be synced; repeat it with the same id"
            ) from error
        _update_states(streams, drafts, lines, files)
    finally:
        for file in files:
            os.close(file)


def _open(streams: FileStreams, draft: AppendDraft) -> int:
    if draft.before.stamp is None:
        return streams.tree.create(draft.stream)
    return streams.tree.disk.open(streams.tree.top, path_of(draft.stream), write=True)


def _undo(streams: FileStreams, drafts: Sequence[AppendDraft], files: Sequence[int]) -> None:
    """Truncate the written bytes, and sync: they may be on disk already, and must not come back."""
    try:
        for draft, file in zip(drafts, files, strict=False):
            streams.tree.disk.truncate(file, draft.before.end)
            streams.tree.sync(file)
    except OSError as error:
        raise OutcomeUnknown(
            "the append failed and could not be undone; repeat it with the same id"
        ) from error


def _update_states(
    streams: FileStreams,
    drafts: Sequence[AppendDraft],
    lines: Sequence[bytes],
    files: Sequence[int],
) -> None:
    changes = []
    for draft, line, file in zip(drafts, lines, files, strict=True):
        start = draft.before.end
        state: FileState = draft.state._replace(
            stamp=read_stamp(file), start=start, end=start + len(line), deleted=()
        )
        streams.remember(draft.stream, state)
        changes.append((state.to_row(draft.stream, synced=streams.tree.durable), draft.new_ids()))
    streams.update_index(changes)
