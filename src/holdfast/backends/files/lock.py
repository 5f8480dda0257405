"""The writers' lock: one thread of one process at a time may change the files of a root."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...errors import Unavailable

LOCK_FILE = "lock"
_LOCK_TIMEOUT = 30.0


class WriterLock:
    """A flock on a file that is never renamed or deleted, and a lock for the local threads.

    fcntl locks would be lost when any handle of the file is closed. A flock belongs to the open
    file, which a forked child shares: `forget` drops it there without unlocking the parent's. The
    lock is reentrant.
    """

    def __init__(self, open: Callable[[], int]) -> None:
        self._open = open
        self._threads = threading.RLock()
        self._file: int | None = None
        self._depth = 0

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock. Raise `Unavailable` if another process keeps it for half a minute."""
        with self._threads:  # not acquire() and try: an interrupt in between would leave it locked
            if self._depth == 0:
                self._lock()
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0 and self._file is not None:
                    fcntl.flock(self._file, fcntl.LOCK_UN)

    def _lock(self) -> None:
        if self._file is None:
            self._file = self._open()
        deadline, pause = time.monotonic() + _LOCK_TIMEOUT, 0.0002
        while True:
            try:
                return fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EINTR):
                    raise
            # A blocking flock would wait forever for a process that was stopped with the lock.
            if time.monotonic() > deadline:
                raise Unavailable(
                    "another process keeps the store locked; nothing was written. Retry later"
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 0.01)

    def forget(self) -> None:
        """Start over in a forked child. The parent keeps its lock."""
        self._threads, self._depth = threading.RLock(), 0
        self.close()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
