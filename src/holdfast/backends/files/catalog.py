"""Access to the index: opens it when needed, rebuilds it if it is not valid, or does without it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

import apsw

from .disk import Disk
from .index import FileIndex, FileIndexRow, Identity, boot_id
from .lock import WriterLock

INDEX_FILE = "index.db"
T = TypeVar("T")

# The errors of SQLite for a file that is not, or no longer, a valid index.
BROKEN = (apsw.CorruptError, apsw.NotADBError, apsw.SQLError, apsw.MismatchError)


class Catalog:
    """Lets one thread at a time use the index. `scan(locked)` yields the rows of all files."""

    def __init__(
        self,
        root: str,
        top: int,
        disk: Disk,
        lock: WriterLock,
        scan: Callable[[bool], Iterable[FileIndexRow]],
    ) -> None:
        self._path = os.path.join(root, INDEX_FILE)
        self._top, self._disk, self._lock, self._scan = top, disk, lock, scan
        self._index: FileIndex | None = None
        self._mutex = threading.Lock()

    def use(self, action: Callable[[FileIndex], T]) -> T:
        """Call `action` with a valid index; raise `OSError` or `apsw.Error` if that fails."""
        try:
            return self._use_current(action)
        except BROKEN:
            with self._lock.threads, self._lock.hold(), self._mutex:
                self._create()
            return self._use_current(action)

    def _use_current(self, action: Callable[[FileIndex], T]) -> T:
        while True:
            with self._mutex:
                if self._index is not None and self._is_current(self._index):
                    try:
                        return action(self._index)
                    except UnicodeDecodeError as error:  # a damaged value has the type text
                        raise apsw.CorruptError("a value of the index is not valid") from error
            # The writers' lock first, then the mutex: an append takes them in this order too.
            with self._lock.threads, self._lock.hold(), self._mutex:
                if self._index is None or not self._is_current(self._index):
                    self._open()

    def read(self, action: Callable[[FileIndex], T]) -> T:
        """Call `action`, which only reads. On a full or read-only disk, use an index in memory."""
        try:
            return self.use(action)
        except (OSError, apsw.Error):
            index = FileIndex(":memory:")
            try:
                index.fill(self._identity(), self._scan(False))
                return action(index)
            finally:
                index.close()

    def examine(self, action: Callable[[FileIndex], T]) -> T:
        """Call `action`, which only reads; raise `apsw.Error` if the index is not valid."""
        return self._use_current(action)

    def rebuild(self, keep: Iterable[FileIndexRow]) -> None:
        """Replace the index with a new one. The rows in `keep` stay, whatever the files contain."""
        with self._lock.threads, self._lock.hold():
            with self._mutex:
                self._create()
            self.use(lambda index: index.put([(row, ()) for row in keep]))

    def size(self) -> int:
        """Return the size of the index on disk in bytes."""
        total = 0
        for suffix in ("", "-wal"):
            with suppress(OSError):
                total += os.stat(self._path + suffix, follow_symlinks=False).st_size
        return total

    def close(self) -> None:
        with self._mutex:
            self._close()

    def before_fork(self) -> None:
        """Lock the index and close it: SQLite's state must not exist in two processes."""
        self._mutex.acquire()
        self._close()

    def after_fork(self, child: bool) -> None:
        if child:
            self._mutex = threading.Lock()
        else:
            self._mutex.release()

    def _is_current(self, index: FileIndex) -> bool:
        """Return whether the open index is the one that other processes see, and not deleted."""
        try:
            return os.stat(self._path, follow_symlinks=False).st_ino == index.inode
        except FileNotFoundError:
            return False

    def _open(self) -> None:
        self._close()
        # Holdfast never removes the log: an index without it was tampered with and lacks rows.
        if (
            not os.path.islink(self._path)
            and os.path.isfile(self._path)
            and os.path.isfile(self._path + "-wal")
        ):
            with suppress(*BROKEN):
                self._index = FileIndex(self._path)
                if self._identity().boot and self._index.identity() == self._identity():
                    return
        self._create()

    def _create(self) -> None:
        self._close()
        # Remove the index first: without its log it would look complete but lack rows.
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                self._disk.unlink(self._top, INDEX_FILE + suffix)
        # SQLite would create it readable for all; the log gets the permissions of the database.
        os.close(self._disk.open(self._top, INDEX_FILE, create=True))
        index = FileIndex(self._path)
        try:
            index.fill(self._identity(), self._scan(True))
        except BaseException:
            index.close()
            raise
        self._index = index

    def _close(self) -> None:
        if self._index is not None:
            self._index.close()
            self._index = None

    def _identity(self) -> Identity:
        root = os.fstat(self._top)
        return Identity(boot_id(), root.st_dev, root.st_ino)
