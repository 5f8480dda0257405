"""The writers' lock: one thread of one process at a time may change the files of a root."""

from __future__ import annotations

import errno
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from io import FileIO

from ...errors import Unavailable
from .. import deadline
from .disk import READ_ONLY

try:
    import fcntl
except ImportError:  # Windows, where `holdfast.open` refuses stores on disk
    pass

LOCK_FILE = "lock"


class WriterLock:
    """A flock on a file that is never renamed or deleted, and a lock for the local threads.

    Use both: `with lock.threads, lock.hold(): ...`. They are reentrant.

    Each caller opens the file again, and closing it releases the flock. That is one call of a C
    function, which no interrupt can split: a lock that Python code releases would stay locked if
    Ctrl-C came right before. A fork takes `threads` first, so that no child inherits the file and
    keeps it locked.
    """

    def __init__(self, open: Callable[[], int]) -> None:
        self._open = open
        self.threads = threading.RLock()
        self._last: tuple[int, weakref.ref[FileIO]] | None = None
        """The thread that locked it last, and its file. A closed file was unlocked."""

    def hold(self, *, reading: bool = False) -> AbstractContextManager[object]:
        """Lock it, until the end of the returned context. The caller holds `threads`.

        Raise `Unavailable` if another process keeps it until the deadline. For `reading`, a lock
        that cannot be created on a read-only disk is not needed: every writer would have created
        it.
        """
        if self._is_mine():
            return nullcontext()
        try:
            file = FileIO(self._open())
        except OSError as error:
            if reading and error.errno in READ_ONLY:
                return nullcontext()
            raise
        try:
            _lock(file)
            self._last = threading.get_ident(), weakref.ref(file)
            return file
        except BaseException:
            file.close()  # the traceback refers to it, perhaps for long
            raise

    def _is_mine(self) -> bool:
        last = self._last
        if last is None or last[0] != threading.get_ident():
            return False
        file = last[1]()
        return file is not None and not file.closed

    def forget(self) -> None:
        """Start over in a forked child."""
        self.threads, self._last = threading.RLock(), None


def _lock(file: FileIO) -> None:
    until, pause = time.monotonic() + deadline.remaining(), 0.0002
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EINTR):
                raise
        # A blocking flock would wait forever for a process that was stopped with the lock.
        if time.monotonic() > until:
            raise Unavailable(
                "another process keeps the store locked; nothing was written. Retry later"
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 0.01)
