"""Streams made certain: nothing is shown, or built upon, that a crash could still take away.

A file is *settled* if all of it was acknowledged, or has been verified and synced since. The index
says up to where that is. A file that holds more was left so by a kill, a failed sync or a lost
index, and is settled under the writers' lock before it is shown or appended to.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import apsw

from ...errors import OutcomeUnknown, ReadOnly, StorageFull
from ..interface import StreamKey
from .catalog import Catalog
from .disk import translated, write_all
from .index import Change, FileIndexRow
from .lock import WriterLock
from .names import folder_of
from .scan import FileSpan, last_frame
from .state import Damage, FileState, examine, mark_of, state_at
from .tree import Tree, log

_REMEMBERED = 4096


class FileStreams:
    """The states of all streams, found in memory, by the index, or by a look at the file."""

    def __init__(self, tree: Tree, lock: WriterLock, catalog: Catalog) -> None:
        self.tree, self.lock, self.catalog = tree, lock, catalog
        self.forget()

    def forget(self) -> None:
        """Forget everything that is only remembered."""
        self._states: dict[StreamKey, FileState] = {}
        self._states_lock = threading.Lock()

    @contextmanager
    def look(self, stream: StreamKey) -> Iterator[tuple[FileSpan, FileState]]:
        """The settled bytes of a stream and its state, for reading. A rewrite does not disturb who looks."""
        with self.tree.opened(stream) as file:
            state = self._known(stream, file)
            if state is not None:
                yield self.tree.span(file, state.end), state
                return
        with self._settled(stream) as (span, state):
            yield span, state

    @contextmanager
    def _settled(self, stream: StreamKey) -> Iterator[tuple[FileSpan, FileState]]:
        with ExitStack() as stack:
            with self.lock.held():
                state = self.settle(stream)
                file = stack.enter_context(self.tree.opened(stream))
            yield self.tree.span(file, state.end), state

    def _known(self, stream: StreamKey, file: int | None) -> FileState | None:
        """The state, if it can be told without the lock."""
        if file is None:
            row = self._row(stream)
            # No file and no row: it was never stored. With a row, it is being made now, or its file was lost.
            return FileState() if row is None or not (row.version or row.dirty) else None
        mark = mark_of(file)
        state = self._states.get(stream)
        if state is not None and state.mark == mark:
            return state
        row = self._row(stream)
        if (
            row is None
            or row.dirty
            or (row.inode, row.size) != mark[:2]
            or (self.tree.durable and not row.synced)
        ):
            return None
        span, place = self.tree.span(file, mark.size), self.tree.place(stream)
        state = examine(stream, span, mark, acknowledged=row.size, file=place)
        self.remember(stream, state)
        return state

    def settle(self, stream: StreamKey, *, write: bool = False) -> FileState:
        """Make sure of a stream; the lock is held. To `write`, a torn tail is cut off: readers never repair."""
        with self.tree.opened(stream, write=True) as file:
            if file is None:
                return self._missing(stream)
            mark = mark_of(file)
            state = self._states.get(stream)
            if state is None or state.mark != mark or (write and state.torn):
                row = self._row(stream)
                least = row.size if row and row.inode == mark.inode else 0
                span, place = self.tree.span(file, mark.size), self.tree.place(stream)
                state = examine(stream, span, mark, acknowledged=least, file=place)
                if state.damage is None and write and state.torn:
                    state = self._cut(stream, file, state)
                if state.damage is not None or self._make_certain(
                    stream, file, row, state, write=write
                ):
                    state = state._replace(mark=mark_of(file))
                    self.remember(stream, state)
            return state

    def _missing(self, stream: StreamKey) -> FileState:
        row = self._row(stream)
        if row is None or not row.version:
            return FileState()
        place = f"file {self.tree.place(stream)}"
        return FileState(damage=Damage(None, "its file is gone", place))

    def _cut(self, stream: StreamKey, file: int, state: FileState) -> FileState:
        """Cut a torn tail off, after it was put aside."""
        assert state.mark is not None
        data = self.tree.span(file, state.mark.size).get(state.end, state.mark.size)
        aside = self.tree.put_aside(stream, data, state.end)
        self.tree.disk.truncate(file, state.end)
        self.tree.sync(file)
        told = (stream, len(data), state.end, aside)
        log.warning(
            "%s: cut %d bytes of an unfinished write at byte %d of its file, kept in %s", *told
        )
        return state._replace(mark=mark_of(file))

    def _make_certain(
        self,
        stream: StreamKey,
        file: int,
        row: FileIndexRow | None,
        state: FileState,
        *,
        write: bool,
    ) -> bool:
        """Sync what was perhaps not acknowledged, and tell the index. False if a reader has to do without."""
        try:
            if self.tree.durable and not _is_synced(row, state):
                self._sync(stream, file, row, state)
        except OSError as error:
            if write:
                # What the caller is about to append may be the very thing we failed to make certain of.
                raise OutcomeUnknown(
                    f"{stream} could not be synced; repeat the append with its id"
                ) from error
            if isinstance(translated(error, ""), ReadOnly | StorageFull):
                return False
            raise
        if not state.torn:
            self.note([(state.row(stream, synced=self.tree.durable), ())])
        return True

    def _sync(
        self, stream: StreamKey, file: int, row: FileIndexRow | None, state: FileState
    ) -> None:
        if row is not None and row.dirty:
            # After a failed sync the system may take pages for clean that are not on the disk: another
            # sync would do nothing and succeed. So the last frame, the only one in doubt, is written again.
            data = self.tree.span(file, state.end).get(state.start, state.end)
            write_all(self.tree.disk, file, data, state.start)
        self.tree.disk.fsync(file)
        self.tree.sync_names(folder_of(stream))

    def peek(self, stream: StreamKey) -> FileState:
        """What the last valid frame says, settled or not: for listings, which may be early but must not wait."""
        with self.tree.opened(stream) as file:
            if file is None:
                return FileState()
            mark = mark_of(file)
            return state_at(last_frame(self.tree.span(file, mark.size)), mark)

    def note(self, changes: Sequence[Change]) -> None:
        """Tell the index. If it cannot be told, its rows stay dirty, and the files will be looked at again."""
        with suppress(OSError, apsw.Error):
            self.catalog.use(lambda index: index.put(changes))

    def remember(self, stream: StreamKey, state: FileState | None) -> None:
        """Keep a state in memory; None forgets the one that is kept."""
        with self._states_lock:
            self._states.pop(stream, None)
            if state is not None and state.mark is not None:
                self._states[stream] = state
            while len(self._states) > _REMEMBERED:
                del self._states[next(iter(self._states))]

    def _row(self, stream: StreamKey) -> FileIndexRow | None:
        with suppress(OSError, apsw.Error):
            return self.catalog.use(lambda index: index.get(stream))
        return None


def _is_synced(row: FileIndexRow | None, state: FileState) -> bool:
    inode = state.mark.inode if state.mark else 0
    return row is not None and row.synced and (row.inode, row.size) == (inode, state.end)
