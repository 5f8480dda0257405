"""Leases: lease owners, whether their process is still alive, and the thread that renews leases.

A lease is two fields of a stream's head: its owner and its end. It is taken, renewed and released
by ordinary appends at an exact version, so a write of a former lease owner always conflicts.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable
from functools import lru_cache
from heapq import heappop, heappush
from typing import Final
from weakref import WeakSet

from ..backends import clock
from .ids import format_ids, new_id

logger = logging.getLogger("holdfast")


class _Process:
    """Counts forks, to detect without a system call that this is another process."""

    __slots__ = ("forks",)

    def __init__(self) -> None:
        self.forks = 0

    def count_fork(self) -> None:
        self.forks += 1


process: Final = _Process()
os.register_at_fork(after_in_child=process.count_fork)

RENEWALS_PER_LEASE: Final = 3
"""A lease is renewed after one third of its length."""

crashed_owners: Final[set[str]] = set()
"""Lease owners in this process that count as dead, because `holdfast.testing` crashed them."""


def new_owner() -> str:
    """Return a new owner name. Processes on this machine can tell from it whether it is alive."""
    return "/".join(
        (_host(), _boot(), str(os.getpid()), _stat(os.getpid())[1], format_ids(new_id(), 1)[0])
    )


def is_dead(owner: str) -> bool:
    """Return whether the owner is certainly dead: a process of this boot that no longer runs."""
    if owner in crashed_owners:
        return True
    parts = owner.split("/")
    if (
        len(parts) != 5
        or (parts[0], parts[1]) != (_host(), _boot())
        or not parts[1]
        or not re.fullmatch("[0-9]{1,10}", parts[2])
    ):
        return False
    pid = int(parts[2])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    state, started = _stat(pid)
    # A zombie is dead: its parent has not collected its exit status yet.
    return state in ("Z", "X") or bool(started and parts[3] and started != parts[3])


@lru_cache(1)
def _host() -> str:
    return os.uname().nodename.replace("/", "-")


@lru_cache(1)
def _boot() -> str:
    """Return the kernel's boot id and the PID namespace; empty if the system does not have them."""
    try:
        namespace = "".join(filter(str.isdigit, os.readlink("/proc/self/ns/pid")))
        return f"{_read_text('/proc/sys/kernel/random/boot_id').strip()}-{namespace}"
    except OSError:
        return ""


def _stat(pid: int) -> tuple[str, str]:
    """Return state and start time (in ticks) of a process; empty if the system does not say."""
    try:
        facts = _read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
        return facts[0], facts[19]
    except (OSError, IndexError):
        return "", ""


def _read_text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


class Heartbeat:
    """Renews all leases of a store in one thread, which runs while there are any."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._beats: dict[str, tuple[float, Callable[[], object]]] = {}
        self._due: list[tuple[float, str]] = []
        self._thread: threading.Thread | None = None
        self._beating = False
        heartbeats.add(self)

    def add(self, owner: str, every: float, beat: Callable[[], object]) -> None:
        """Call `beat` every `every` seconds until `remove`."""
        with self._changed:
            self._beats[owner] = (every, beat)
            heappush(self._due, (clock.monotonic() + every, owner))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="holdfast-leases", daemon=True
                )
                self._thread.start()
            elif self._due[0][1] == owner:
                self._changed.notify()

    def remove(self, owner: str) -> None:
        with self._changed:
            self._beats.pop(owner, None)
            if not self._beats:
                self._changed.notify()

    def stop(self) -> None:
        """Remove all leases and wait for the thread to end."""
        with self._changed:
            self._beats.clear()
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def next_due(self) -> float | None:
        """Return when the next beat is due, by `clock.monotonic`.

        Return None if there is none, or if the heartbeat's own thread calls this.
        """
        with self._changed:
            if self._thread is threading.current_thread():
                return None
            return min((due for due, owner in self._due if owner in self._beats), default=None)

    def wake(self) -> None:
        """Make the thread read the clock again."""
        with self._changed:
            self._changed.notify_all()

    def postpone(self, seconds: float) -> None:
        """Move every beat to a later time."""
        with self._changed:
            self._due = [(due + seconds, owner) for due, owner in self._due]

    def run_due(self) -> None:
        """Return when all due beats are done. A manual clock calls this: it wakes no thread."""
        with self._changed:
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._beating and not self._is_due())

    def _is_due(self) -> bool:
        now = clock.monotonic()
        return any(due <= now and owner in self._beats for due, owner in self._due)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._beating:
                    self._beating = False
                    self._changed.notify_all()
                if not self._beats:
                    self._due.clear()
                    self._thread = None
                    return
                due, owner = self._due[0]
                wait = due - clock.monotonic()
                if owner in self._beats and wait > 0:
                    clock.wait_for_notify(self._changed, wait)
                    continue
                heappop(self._due)
                if owner not in self._beats:
                    continue
                every, beat = self._beats[owner]
                heappush(self._due, (clock.monotonic() + every, owner))
                self._beating = True
            try:
                beat()
            except Exception as error:  # the other leases must still be renewed
                logger.warning("a lease could not be renewed (%s)", type(error).__name__)


heartbeats: Final[WeakSet[Heartbeat]] = WeakSet()
"""All heartbeats, for a manual clock."""
