"""The background thread that checkpoints the write-ahead log."""

from __future__ import annotations

import threading
from collections.abc import Callable

import apsw

from ...errors import HoldfastError
from .connection import close

RESTART_MILLISECONDS = 100
"""How long a checkpoint waits for the write lock to restart the write-ahead log."""


class Checkpointer:
    """Copies the WAL into the database in its own thread, which starts when first needed."""

    def __init__(self, connect: Callable[[], apsw.Connection]) -> None:
        self._connect = connect
        self._wake = threading.Event()
        self._working = threading.Lock()
        self._connection: apsw.Connection | None = None
        self._thread: threading.Thread | None = None
        self._stopping = False

    def wake(self) -> None:
        if not self._wake.is_set():
            self._wake.set()
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="holdfast-checkpoint", daemon=True)
                thread.start()
                self._thread = thread

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def pause(self) -> None:
        """Finish the current checkpoint, close the connection, and wait for `resume`."""
        self._working.acquire()
        self._close()

    def resume(self) -> None:
        self._working.release()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            with self._working:
                if self._stopping:
                    self._close()
                    return
                try:
                    self._checkpoint()
                except (apsw.Error, HoldfastError):
                    # The WAL still has everything; a later commit wakes this thread again.
                    self._close()

    def _checkpoint(self) -> None:
        if self._connection is None:
            self._connection = self._connect()
            self._connection.set_busy_timeout(RESTART_MILLISECONDS)
        # First copy the bulk while other connections write. Then take the write lock for a moment
        # and copy the rest: only a WAL that was copied to its end can restart instead of growing.
        self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            close(connection)
