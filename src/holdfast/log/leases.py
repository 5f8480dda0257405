"""Leases: who holds a stream, whether that process is still alive, and the thread that renews what this one holds.

A lease is two fields of a stream's head: its owner and the time at which it ends. It is taken, renewed and given back
by ordinary appends at an exact version, so a former holder's write meets a conflict and never slips in.
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
from .ids import id_texts, new_id

logger = logging.getLogger("holdfast")


class _Process:
    """Which process this is, without asking the kernel: forks are counted."""

    __slots__ = ("forks",)

    def __init__(self) -> None:
        self.forks = 0

    def forked(self) -> None:
        self.forks += 1


process: Final = _Process()
os.register_at_fork(after_in_child=process.forked)

RENEWALS: Final = 3
"""A lease is renewed when a third of it is over."""

crashed: Final[set[str]] = set()
"""Holders of this process that count as dead: `holdfast.testing` has let them die."""


def new_owner() -> str:
    """A name for one holder, from which others on this machine can tell whether its process is alive."""
    return "/".join(
        (_host(), _boot(), str(os.getpid()), _stat(os.getpid())[1], id_texts(new_id(), 1)[0])
    )


def is_dead(owner: str) -> bool:
    """Whether the holder surely is gone: a process of this machine, since its last start, that no longer runs."""
    if owner in crashed:
        return True
    parts = owner.split("/")
    if (
        len(parts) != 5
        or (parts[0], parts[1]) != (_host(), _boot())
        or not parts[1]
        or not re.fullmatch("[0-9]{1,10}", parts[2])
    ):
        return False
    number = int(parts[2])
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    state, started = _stat(number)
    # A zombie does nothing any more: it was killed, and its parent has not asked for it yet.
    return state in ("Z", "X") or bool(started and parts[3] and started != parts[3])


@lru_cache(1)
def _host() -> str:
    return os.uname().nodename.replace("/", "-")


@lru_cache(1)
def _boot() -> str:
    """What the kernel calls the time since it started, with the process namespace; empty where it does not say."""
    try:
        space = os.readlink("/proc/self/ns/pid")
        return (
            _text("/proc/sys/kernel/random/boot_id").strip()
            + "-"
            + "".join(filter(str.isdigit, space))
        )
    except OSError:
        return ""


def _stat(process: int) -> tuple[str, str]:
    """In what state a process is, and when it was started, in the kernel's count; empty where it does not say."""
    try:
        facts = _text(f"/proc/{process}/stat").rpartition(")")[2].split()
        return facts[0], facts[19]
    except (OSError, IndexError):
        return "", ""


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


class Heartbeat:
    """One thread for all leases that a store holds; it lives as long as there are any."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._beats: dict[str, tuple[float, Callable[[], object]]] = {}
        self._due: list[tuple[float, str]] = []
        self._thread: threading.Thread | None = None
        self._beating = False
        heartbeats.add(self)

    def keep(self, owner: str, every: float, beat: Callable[[], object]) -> None:
        """Call `beat` every so many seconds until `release`."""
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

    def release(self, owner: str) -> None:
        with self._changed:
            self._beats.pop(owner, None)
            if not self._beats:
                self._changed.notify()

    def stop(self) -> None:
        """Renew nothing any more."""
        with self._changed:
            self._beats.clear()
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def next_due(self) -> float | None:
        """When the next beat is due, by `_clock.monotonic`; None if there is none to wait for, or this is the thread of the beats."""
        with self._changed:
            if self._thread is threading.current_thread():
                return None
            return min((due for due, owner in self._due if owner in self._beats), default=None)

    def wake(self) -> None:
        """Let the thread look at the clock again."""
        with self._changed:
            self._changed.notify_all()

    def postpone(self, seconds: float) -> None:
        """Let every beat be due so much later."""
        with self._changed:
            self._due = [(due + seconds, owner) for due, owner in self._due]

    def settle(self) -> None:
        """Return when all beats that are due are done. For a clock that is moved by hand: it wakes nobody by itself."""
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
                    clock.wait(self._changed, wait)
                    continue
                heappop(self._due)
                if owner not in self._beats:
                    continue
                every, beat = self._beats[owner]
                heappush(self._due, (clock.monotonic() + every, owner))
                self._beating = True
            try:
                beat()
            except Exception as error:  # whatever it is, the other leases must go on being renewed
                logger.warning("a lease could not be renewed (%s)", type(error).__name__)


heartbeats: Final[WeakSet[Heartbeat]] = WeakSet()
"""All that there are, for a clock that is moved by hand."""
