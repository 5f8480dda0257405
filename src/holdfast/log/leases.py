"""Leases: their owners, the thread that renews them, and the blocks that own them.

A lease is two fields of a stream's head: its owner and its end. It is taken, renewed and released
by ordinary appends at an exact version, so a write of a former lease owner always conflicts.

A block releases its lease even if its `with` statement is interrupted. An interrupt (Ctrl-C, or a
signal handler that raises) may come at any point, even before the first instruction of `__exit__`.
No code of the block runs then. So each `with` statement keeps a guard alive, to which nothing else
refers: looking up `__exit__` creates it, and leaving the statement in any way drops it. Python then
puts the guard's `GuardRef` into the heartbeat's queue. That happens in C, so nothing can interrupt
it. If the block still owns the lease, the heartbeat releases it.
"""

from __future__ import annotations

import logging
import math
import os
import platform
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from functools import lru_cache, partial
from heapq import heapify, heappop, heappush, heapreplace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakSet, ref

from ..backends import clock, deadline
from .ids import format_ids, new_id

if TYPE_CHECKING:
    from .log import Log

F = TypeVar("F", bound=Callable[..., Any])

logger = logging.getLogger("holdfast")


class _Process:
    """Counts forks, to detect without a system call that this is another process."""

    __slots__ = ("forks",)

    def __init__(self) -> None:
        self.forks = 0

    def count_fork(self) -> None:
        self.forks += 1


process: Final = _Process()
if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=process.count_fork)

RENEWALS_PER_LEASE: Final = 3
"""A lease is renewed after one third of its length."""
IDLE_SECONDS: Final = 5.0
"""How long the thread that renews leases stays when there are none."""
MAX_STALE_BEATS: Final = 1000
"""How many entries of leases that are gone the heap may have."""
SETTLE_PAUSE: Final = 0.002
"""How often to check, in seconds, whether an append whose caller was interrupted is stored."""

crashed_owners: Final[set[str]] = set()
"""Lease owners in this process that count as dead, because `holdfast.testing` crashed them."""


def new_owner() -> str:
    """Return a new owner name. It lets processes on this machine check whether the owner runs."""
    return f"{_own_prefix(process.forks)}/{format_ids(new_id(), 1)[0]}"


def is_own(owner: str) -> bool:
    """Return whether this process made the owner name."""
    return owner.rpartition("/")[0] == _own_prefix(process.forks)


def is_dead(owner: str) -> bool:
    """Return whether the owner is certainly dead: a process of this boot that no longer runs."""
    if owner in crashed_owners:
        return True
    if is_own(owner):
        return False
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
def _own_prefix(forks: int) -> str:
    """Return the start of this process's owner names. `forks` tells it from its parent."""
    return "/".join((_host(), _boot(), str(os.getpid()), _stat(os.getpid())[1]))


@lru_cache(1)
def _host() -> str:
    return platform.node().replace("/", "-")


@lru_cache(1)
def _boot() -> str:
    """Return the kernel's boot id and the PID namespace; empty if the system does not have them."""
    try:
        namespace = "".join(filter(str.isdigit, os.readlink("/proc/self/ns/pid")))
        return f"{_read_text('/proc/sys/kernel/random/boot_id').strip()}-{namespace}"
    except OSError:
        return ""


def _stat(pid: int) -> tuple[str, str]:
    """Return state and start time (in ticks) of a process; empty if the system has neither."""
    try:
        facts = _read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
        return facts[0], facts[19]
    except (OSError, IndexError):
        return "", ""


def _read_text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


# -- renewing ------------------------------------------------------------------------------------


class BlockGuard:
    """Exists as long as a `with` statement."""

    __slots__ = ("__weakref__",)


class GuardRef(ref[Any]):
    """A reference to the guard of a block. A call returns None once the statement was left."""

    __slots__ = ("owner",)
    owner: str
    """The owner of the block's lease."""


def is_open() -> bool:
    """Return True. Used instead of a `GuardRef` for a block that has not been left."""
    return True


def is_left() -> None:
    """Return None. Used instead of a `GuardRef` for a block that was left."""


class WithStatement:
    """The `with` statement of a block. `guard()` returns None once it was left, in any way."""

    __slots__ = ("guard",)

    def __init__(self, guard: Callable[[], object] = is_open) -> None:
        self.guard = guard

    def close(self) -> None:
        """Note that the block was left, so that its guard does not wake the heartbeat."""
        self.guard = is_left


class _Beat:
    """A function that renews or releases a lease, how often it runs, and when next.

    It runs in the context of the block, so its events and log lines have the same correlation id
    and actor.
    """

    __slots__ = ("_context", "_lock", "call", "due", "every", "statement")

    def __init__(self, every: float, call: Callable[[], object], statement: WithStatement) -> None:
        self.every, self.call, self.statement = every, call, statement
        self.due: float | None = None
        self._context, self._lock = copy_context(), threading.Lock()
        self._context.run(deadline.current.set, None)  # each beat has its own deadline

    def run(self) -> None:
        with self._lock:
            self._context.run(self.call)


class Heartbeat:
    """Renews all leases of a store in one thread, which runs while there are any and a bit longer.

    If a `with` statement was left and its lease was not released, the lease's beat runs at once and
    releases it. An interrupt may hit the callers of these methods anywhere, so they use no
    `Condition`: its methods are Python code, and would leave it locked.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._beats: dict[str, _Beat] = {}
        self._due: list[tuple[float, str]] = []
        self._thread: threading.Thread | None = None
        self._wakes_at = 0.0
        """When the thread looks for due beats next, by `clock.monotonic`."""
        self.inbox: SimpleQueue[GuardRef | threading.Event | None] = SimpleQueue()
        """Wakes the thread. It gets guards that died, and events to set when no beat is due."""
        heartbeats.add(self)

    def register(
        self, owner: str, every: float, beat: Callable[[], object], statement: WithStatement
    ) -> None:
        """Register a lease that a block is about to take.

        `beat` renews it, or releases it once the block's statement was left.
        """
        self._beats[owner] = _Beat(every, beat, statement)
        if not self.inbox.empty():
            with self._lock:
                if self._thread is None:
                    self._read_inbox()

    def watch(self, guard: object) -> GuardRef:
        """Return a reference to a guard that wakes the thread when the guard has died."""
        watched = GuardRef(guard, self.inbox.put)
        watched.owner = ""
        return watched

    def is_registered(self, owner: str) -> bool:
        return owner in self._beats

    def start(self, owner: str) -> None:
        """Renew a lease that was taken: call its beat every `every` seconds until `remove`."""
        with self._lock:
            beat = self._beats.get(owner)
            if beat is None:
                return
            beat.due = clock.monotonic() + beat.every
            heappush(self._due, (beat.due, owner))
            if len(self._due) > MAX_STALE_BEATS + 2 * len(self._beats):
                self._due = [entry for entry in self._due if self._is_next(*entry)]
                heapify(self._due)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="holdfast-leases", daemon=True
                )
                self._wakes_at = beat.due
                self._thread.start()
            elif beat.due < self._wakes_at:
                self.inbox.put(None)

    def remove(self, owner: str) -> None:
        self._beats.pop(owner, None)

    def find_abandoned(self, owner: str) -> Callable[[], object] | None:
        """Return a function that releases a lease, if its block was left and still owns it.

        If the lease is this process's own and no longer registered, it was released a moment ago.
        """
        beat = self._beats.get(owner)
        if beat is None:
            return _do_nothing if is_own(owner) else None
        return None if beat.statement.guard() is not None else beat.run

    def stop(self) -> None:
        """Release abandoned leases, remove all, and wait for the thread to end."""
        for owner in list(self._beats):
            if (release := self.find_abandoned(owner)) is not None:
                _call_beat(release)
        with self._lock:
            self._beats.clear()
            thread, self._thread = self._thread, None
        self.inbox.put(None)
        # A thread whose start was interrupted never ran, and cannot be joined.
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join()

    def next_due(self) -> float | None:
        """Return when the next beat is due, by `clock.monotonic`.

        Return None if there is none, or if the heartbeat's own thread calls this.
        """
        with self._lock:
            if self._thread is threading.current_thread():
                return None
            return min((due for due, owner in self._due if self._is_next(due, owner)), default=None)

    def wake(self) -> None:
        """Make the thread read the clock again."""
        self.inbox.put(None)

    def postpone(self, seconds: float) -> None:
        """Move every beat to a later time."""
        with self._lock:
            for beat in list(self._beats.values()):
                if beat.due is not None:
                    beat.due += seconds
            self._due = [(due + seconds, owner) for due, owner in self._due]

    def run_due(self) -> None:
        """Return when all due beats are done. A manual clock calls this: it wakes no thread."""
        done = threading.Event()
        with self._lock:
            if self._thread is None:
                return
            self.inbox.put(done)
        done.wait()

    def _is_next(self, due: float, owner: str) -> bool:
        """Return whether an entry of the heap is the next beat of its lease."""
        beat = self._beats.get(owner)
        return beat is not None and beat.due == due

    def _run(self) -> None:
        waiting: list[threading.Event] = []
        ends_at: float | None = None
        while True:
            with self._lock:
                if self._thread is not threading.current_thread():
                    break
                now = clock.monotonic()
                beat, pause = self._take_due()
                if self._beats:
                    ends_at = None
                elif ends_at is None:
                    ends_at, pause = now + IDLE_SECONDS, IDLE_SECONDS
                elif now < ends_at:
                    pause = ends_at - now
                else:
                    self._thread = None
                    waiting += self._read_inbox()
                    break
                self._wakes_at = math.inf if pause is None else now + pause
            if beat is not None:
                _call_beat(beat.run)
                continue
            for event in waiting:
                event.set()
            waiting.clear()
            message = clock.wait_for_message(self.inbox, pause)
            if isinstance(message, threading.Event):
                waiting.append(message)
            elif message is not None:
                with self._lock:
                    self._hasten(message.owner)
        for event in waiting:
            event.set()

    def _read_inbox(self) -> list[threading.Event]:
        """Read all messages if no thread runs. Return the events to set. Requires the lock."""
        events: list[threading.Event] = []
        while not self.inbox.empty():
            message = self.inbox.get()
            if isinstance(message, threading.Event):
                events.append(message)
            elif message is not None:
                self._hasten(message.owner)
        return events

    def _take_due(self) -> tuple[_Beat | None, float | None]:
        """Return a beat that is due, or else the seconds until one is. Requires the lock."""
        while self._due:
            due, owner = self._due[0]
            if self._is_next(due, owner):
                now = clock.monotonic()
                if due > now:
                    return None, due - now
                beat = self._beats[owner]
                beat.due = now + beat.every
                heapreplace(self._due, (beat.due, owner))
                return beat, None
            heappop(self._due)
        return None, None

    def _hasten(self, owner: str) -> None:
        """Make the next beat of an abandoned lease due now. Requires the lock."""
        beat = self._beats.get(owner)
        if beat is not None:
            beat.due = clock.monotonic()
            heappush(self._due, (beat.due, owner))


def _do_nothing() -> None:
    pass


def _call_beat(beat: Callable[[], object]) -> None:
    try:
        beat()
    except Exception as error:  # the other leases must still be renewed
        logger.warning("a lease could not be renewed (%s)", type(error).__name__)


heartbeats: Final[WeakSet[Heartbeat]] = WeakSet()
"""All heartbeats, for a manual clock."""


# -- blocks --------------------------------------------------------------------------------------


class LeaseBlock(ABC):
    """Base of objects that own a lease inside their `with` statement."""

    _log: Log
    _guard: GuardRef | None = None
    """The guard of the statement that looked up `__exit__` last."""
    _own_guard: BlockGuard | None = None
    """The guard of a block without a `with` statement, whose `__enter__` was called directly."""

    def _new_guard(self) -> BlockGuard:
        guard = BlockGuard()
        self._guard = self._log.heartbeat.watch(guard)
        return guard

    def _new_statement(self, owner: str) -> WithStatement:
        """Return the statement that enters this block now.

        No caller keeps the guard itself: a traceback would keep it alive.
        """
        if self._guard is None or self._guard() is None:
            self._own_guard = self._new_guard()
        guard, self._guard = self._guard, None
        assert guard is not None
        guard.owner = owner
        return WithStatement(guard)

    @abstractmethod
    def _get_statement(self) -> WithStatement | None:
        """Return the statement that leaves this block now."""


class _GuardedExit:
    """The descriptor of a guarded `__exit__`. Each lookup on a block creates a new guard."""

    def __init__(self, leave: Callable[..., Any]) -> None:
        self._leave = leave

    def __get__(self, block: LeaseBlock | None, kind: type | None = None) -> Callable[..., Any]:
        if block is None:
            return self._leave
        bound: Any = self._bind(block)
        bound.guard = block._new_guard()  # not an argument, which a traceback would keep alive
        return bound  # type: ignore[no-any-return]  # as callable as a bound method

    def _bind(self, block: LeaseBlock) -> Callable[..., Any]:
        return partial(self._leave, block)


class _GuardedAexit(_GuardedExit):
    """The descriptor of a guarded `__aexit__`."""

    def _bind(self, block: LeaseBlock) -> Callable[..., Any]:
        return partial(self._start_leaving, block)

    def _start_leaving(self, block: LeaseBlock, *error: Any) -> Coroutine[Any, Any, Any]:
        # The statement drops this method and awaits the coroutine, which is the guard from now on.
        leaving: Coroutine[Any, Any, Any] = self._leave(block, *error)
        statement = block._get_statement()
        if statement is not None and isinstance(statement.guard, GuardRef):
            guard = block._log.heartbeat.watch(leaving)
            guard.owner = statement.guard.owner
            statement.guard = guard  # last: an interrupt before this finds the former guard dead
        return leaving


def guard_exit(leave: F) -> F:
    """Make the `__exit__` of a `LeaseBlock` keep its guard."""
    return _GuardedExit(leave)  # type: ignore[return-value]  # instances see a bound method


def guard_aexit(leave: F) -> F:
    """Make the `__aexit__` of a `LeaseBlock` keep its guard."""
    return _GuardedAexit(leave)  # type: ignore[return-value]  # the same
