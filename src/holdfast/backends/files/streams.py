"""The settled state of streams: readers and writers never use data that a crash could still undo.

A file is *settled* if all of it was acknowledged, or was verified and synced later. The index
records how far it is settled. A kill, a failed sync or a lost index leaves a file with more bytes;
it is settled under the writers' lock before it is read or appended to.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import apsw

from ...errors import OutcomeUnknown, ReadOnly, StorageFull
from ..interface import CacheSize, StreamKey
from .catalog import Catalog
from .disk import translate_os_error, write_all
from .index import Change, FileIndexRow
from .lock import WriterLock
from .names import folder_of
from .scan import FileSpan, find_last_frame
from .state import Damage, FileState, examine_file, read_stamp, state_after
from .tree import Tree, log

_MAX_CACHED_STATES = 4096


class FileStreams:
    """Finds the states of streams: in memory, with the index, or by reading the file."""

    def __init__(self, tree: Tree, lock: WriterLock, catalog: Catalog) -> None:
        self.tree, self.lock, self.catalog = tree, lock, catalog
        self.forget()

    def forget(self) -> None:
        """Drop all cached states."""
        self._states: dict[StreamKey, FileState] = {}
        self._states_lock = threading.Lock()

    @contextmanager
    def open_settled(self, stream: StreamKey) -> Iterator[tuple[FileSpan, FileState]]:
        """Open the settled bytes of a stream for reading, with its state.

        The reader keeps the old file if another process replaces it.
        """
        with self.tree.open_stream(stream) as file:
            state = self._find_settled(stream, file)
            if state is not None:
                yield self.tree.span(file, state.end), state
                return
        with self._settle_and_open(stream) as (span, state):
            yield span, state

    @contextmanager
    def _settle_and_open(self, stream: StreamKey) -> Iterator[tuple[FileSpan, FileState]]:
        with ExitStack() as stack:
            with self.lock.threads, self.lock.hold(reading=True):
                state = self.settle(stream)
                file = stack.enter_context(self.tree.open_stream(stream))
            yield self.tree.span(file, state.end), state

    def _find_settled(self, stream: StreamKey, file: int | None) -> FileState | None:
        """Return the state if it is settled; None if it must be settled under the lock."""
        if file is None:
            row = self._read_row(stream)
            # Without a row it was never stored. With one, the file is being created, or lost.
            return FileState() if row is None or not (row.version or row.dirty) else None
        stamp = read_stamp(file)
        state = self._states.get(stream)
        if state is not None and state.stamp == stamp:
            return state
        row = self._read_row(stream)
        if (
            row is None
            or row.dirty
            or (row.inode, row.size) != stamp[:2]
            or (self.tree.durable and not row.synced)
        ):
            return None
        span, place = self.tree.span(file, stamp.size), self.tree.full_path(stream)
        state = examine_file(stream, span, stamp, acknowledged=row.size, file=place)
        self.remember(stream, state)
        return state

    def settle(self, stream: StreamKey, *, write: bool = False) -> FileState:
        """Settle a stream; the caller holds the lock. To `write`, truncate a torn tail."""
        with self.tree.open_stream(stream, write=True) as file:
            if file is None:
                return self._state_without_file(stream)
            stamp = read_stamp(file)
            state = self._states.get(stream)
            if state is None or state.stamp != stamp or (write and state.has_torn_tail):
                row = self._read_row(stream)
                least = row.size if row and row.inode == stamp.inode else 0
                span, place = self.tree.span(file, stamp.size), self.tree.full_path(stream)
                state = examine_file(stream, span, stamp, acknowledged=least, file=place)
                if state.damage is None and write and state.has_torn_tail:
                    state = self._cut_torn_tail(stream, file, state)
                if state.damage is not None or self._ensure_synced(
                    stream, file, row, state, write=write
                ):
                    state = state._replace(stamp=read_stamp(file))
                    self.remember(stream, state)
            return state

    def _state_without_file(self, stream: StreamKey) -> FileState:
        row = self._read_row(stream)
        if row is None or not row.version:
            return FileState()
        place = f"file {self.tree.full_path(stream)}"
        return FileState(damage=Damage(None, "its file is missing", place))

    def _cut_torn_tail(self, stream: StreamKey, file: int, state: FileState) -> FileState:
        """Save a torn tail to a side file, then truncate it."""
        assert state.stamp is not None
        data = self.tree.span(file, state.stamp.size).get(state.end, state.stamp.size)
        side_file = self.tree.save_torn(stream, data, state.end)
        self.tree.disk.truncate(file, state.end)
        self.tree.sync(file)
        log.warning(
            "%s: truncated %d bytes of an unfinished write at byte %d of its file, kept in %s",
            *(stream, len(data), state.end, side_file),
        )
        return state._replace(stamp=read_stamp(file))

    def _ensure_synced(
        self,
        stream: StreamKey,
        file: int,
        row: FileIndexRow | None,
        state: FileState,
        *,
        write: bool,
    ) -> bool:
        """Sync bytes that may not have been acknowledged, and update the index.

        Return False if the disk is read-only or full, and only a reader needs it.
        """
        try:
            if self.tree.durable and not _is_synced(row, state):
                self._sync(stream, file, row, state)
        except OSError as error:
            if write:
                # The frame that could not be synced may be the caller's own append.
                raise OutcomeUnknown(
                    f"{stream} could not be synced; repeat the append with the same id"
                ) from error
            if isinstance(translate_os_error(error, ""), ReadOnly | StorageFull):
                return False
            raise
        if not state.has_torn_tail:
            self.update_index([(state.to_row(stream, synced=self.tree.durable), ())])
        return True

    def _sync(
        self, stream: StreamKey, file: int, row: FileIndexRow | None, state: FileState
    ) -> None:
        if row is not None and row.dirty:
            # After a failed sync, the system may treat pages as clean that are not on disk: another
            # sync would succeed and do nothing. So rewrite the last frame, the only one in doubt.
            data = self.tree.span(file, state.end).get(state.start, state.end)
            write_all(self.tree.disk, file, data, state.start)
        self.tree.disk.fsync(file)
        self.tree.sync_names(folder_of(stream))

    def peek(self, stream: StreamKey) -> FileState:
        """Return the state of the last valid frame, settled or not: listings do not wait."""
        with self.tree.open_stream(stream) as file:
            if file is None:
                return FileState()
            stamp = read_stamp(file)
            return state_after(find_last_frame(self.tree.span(file, stamp.size)), stamp)

    def cache_size(self) -> CacheSize:
        return CacheSize(len(self._states), _MAX_CACHED_STATES)

    def update_index(self, changes: Sequence[Change]) -> None:
        """Store rows in the index. If that fails, they stay dirty, and the files are read again."""
        with suppress(OSError, apsw.Error):
            self.catalog.use(lambda index: index.put(changes))

    def remember(self, stream: StreamKey, state: FileState | None) -> None:
        """Cache a state; None drops the cached one."""
        with self._states_lock:
            self._states.pop(stream, None)
            if state is not None and state.stamp is not None:
                self._states[stream] = state
            while len(self._states) > _MAX_CACHED_STATES:
                del self._states[next(iter(self._states))]

    def _read_row(self, stream: StreamKey) -> FileIndexRow | None:
        with suppress(OSError, apsw.Error):
            return self.catalog.use(lambda index: index.get(stream))
        return None


def _is_synced(row: FileIndexRow | None, state: FileState) -> bool:
    inode = state.stamp.inode if state.stamp else 0
    return row is not None and row.synced and (row.inode, row.size) == (inode, state.end)
