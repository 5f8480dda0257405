"""The session of a lease owner, from its claim to the end of its block, and its running steps.

Its parts have one job each: `block` (is the code still inside, may it write), `writer` (fenced
writes, and the events of other writers), `steps` (those that run now), `counters` (numbers of
repeated calls), `suspension` (what the run waits for), and `matching` (which recorded step a call
is).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ...backends import AppendResult, HeadFields, StreamKey, clock
from ...errors import NoTask, TaskTimeout
from ...log.drivers import Effect, EffectGen
from ...log.events import AppendContext
from ...log.leases import process
from ...log.log import Log
from ...log.operations import Operation
from ..state import events as ev
from ..state.fold import TaskState
from ..steps.matching import StepMatcher
from ..steps.progress import PROGRESS_SECONDS
from .counters import CallCounters
from .frames import Line, TaskBlock, get_worker
from .suspension import Suspension
from .timed_calls import is_abandoned
from .writer import Change, FencedWriter, LeaseClock, PendingChanges

if TYPE_CHECKING:
    import asyncio

    from ..replay.recording import ReplayState
    from ..steps.progress import StepRun
    from ..steps.run import StepCall
    from ..steps.streaming import Emit

IDLE_CHECK_SECONDS: Final = 1.0
"""How often to check for steps that an interrupt kept from saying that they ended."""

T = TypeVar("T")

logger = logging.getLogger("holdfast")


class ActiveSteps:
    """The running steps, by path. Thread-safe: the session's lock guards them."""

    def __init__(
        self,
        block: TaskBlock,
        state: TaskState,
        pending: PendingChanges,
        lease: LeaseClock,
        running: dict[str, StepRun],
    ) -> None:
        self._block, self._state, self._pending, self._lease = block, state, pending, lease
        self._lock = pending.lock
        self.running = running
        self._counts: dict[tuple[str, str], int] = {}  # running steps by scope and name
        # Called when all steps inside a scope have ended.
        self._idle_callbacks: list[tuple[str, Callable[[], object]]] = []
        self._paused: dict[str, Emit] = {}  # steps that stream, between two chunks
        self._is_leaving = False
        self.last_ended: dict[str, float] = {}
        """When the `once` and `check` functions of this run ended."""

    def begin(self, run: StepRun, call: StepCall) -> bool:
        """Register a step as running. Return False if another call with its key has run it."""
        with self._lock:
            scope = call.scope
            if self._is_leaving and scope not in self.running:
                raise NoTask(
                    f"the block of {self._block.key} is being left; open it again to continue"
                )
            known = self._state.steps.get(run.path)
            if run.path in self.running or (0 if known is None else known.version) != call.version:
                return False
            busy = self._counts.get((scope, call.name), 0)
            # No call between these two: an interrupt could come there.
            self.running[run.path] = run
            self._counts[scope, call.name] = busy + 1
            if self._block.asynchronous:
                run.worker = get_worker()
            run.line = (threading.get_ident(), run.worker)
            if scope:
                run.outer = self.running.get(scope)
            # Steps that the scope's own thread or asyncio task doesn't run have a random order.
            run.parallel = busy > 0 or run.line != (
                self._line_of(scope) if scope else self._block.line
            )
            if not call.declared.eager:
                self._pending.changes[run.path] = (run, clock.monotonic(), run.origin)
        return True

    def _line_of(self, scope: str) -> Line | None:
        """Return the thread and asyncio task that run the code of a scope."""
        if not scope:
            return self._block.line
        run = self.running.get(scope)
        return None if run is None else run.line

    def is_in_order(self, scope: str) -> bool:
        """Whether the calling code is in the thread and asyncio task that run the scope's code.

        If so, all that this run has requested in the scope was requested in the program's order.
        """
        return self._line_of(scope) == self._block.get_line()

    def find_identity(self, path: str) -> tuple[str, ...]:
        """Return the identity of a running step, from the outermost step inwards."""
        run = self.running.get(path)
        return () if run is None else run.identity()

    def end(self, run: StepRun) -> None:
        """Unregister a step, and call the callbacks of scopes that are now idle."""
        with self._lock:
            if self.running.get(run.path) is run:
                del self.running[run.path]
                self._counts[run.scope, run.name] -= 1
                if run.mode:
                    self.last_ended[run.path] = self._lease.now()
            if self._paused:
                self._paused.pop(run.path, None)
            if self._idle_callbacks:
                self._call_idle_callbacks()

    def abandon(self, scope: str) -> list[StepRun]:
        """Forget the steps inside a step whose thread is abandoned, and return them."""
        with self._lock:
            inside = self._find_inside(scope)
            for run in inside:
                del self.running[run.path]
                self._counts[run.scope, run.name] -= 1
            self._call_idle_callbacks()
        return inside

    # -- waiting for them --------------------------------------------------------------------------

    def _find_inside(self, scope: str) -> list[StepRun]:
        """Return the steps that run inside a scope. Requires the lock."""
        ended = [run for run in self.running.values() if run.has_ended()]
        for run in ended:  # an interrupt kept it from unregistering
            del self.running[run.path]
            self._counts[run.scope, run.name] -= 1
        if not scope:
            return list(self.running.values())
        return [run for path, run in self.running.items() if path.startswith(scope + "/")]

    def is_busy(self) -> bool:
        """Return whether steps run, apart from paused ones."""
        with self._lock:
            return any(run.path not in self._paused for run in self._find_inside(""))

    def call_when_idle(self, scope: str, callback: Callable[[], object]) -> list[asyncio.Task[Any]]:
        """Call `callback` when all steps inside a scope have ended, which may be at once.

        Return the asyncio tasks in which steps still run.
        """
        with self._lock:
            if not scope:
                self._is_leaving = True
            running = self._find_inside(scope)
            if running:
                self._idle_callbacks.append((scope, callback))
            else:
                callback()
            return [run.worker for run in running if run.worker is not None]

    def _call_idle_callbacks(self) -> None:
        """Call what waits for a scope in which no step runs any more. Requires the lock."""
        for waiter in [
            waiter for waiter in self._idle_callbacks if not self._find_inside(waiter[0])
        ]:
            self._idle_callbacks.remove(waiter)
            waiter[1]()

    def wait_until_idle(self, scope: str) -> None:
        """Block until all steps inside a scope have ended."""
        idle = threading.Event()
        self.call_when_idle(scope, idle.set)
        if not idle.is_set():
            logger.info("steps of %s still run in other threads; waiting for them", self._block.key)
        while not idle.wait(IDLE_CHECK_SECONDS):
            with self._lock:
                self._call_idle_callbacks()

    # -- streaming steps ---------------------------------------------------------------------------

    def pause(self, emit: Emit, generator: EffectGen[Any]) -> None:
        """Pause a streaming step until its consumer requests the next chunk."""
        emit.generator = generator
        with self._lock:
            self._paused[emit.path] = emit

    def resume(self, emit: Emit) -> bool:
        """Resume a paused step. Return False if `take_paused` has taken it."""
        with self._lock:
            if self._paused.get(emit.path) is not emit or emit.is_taken:
                return False
            del self._paused[emit.path]
            return True

    def take_paused(self, scope: str) -> list[Emit]:
        """Take the paused steps inside a scope, to end them. Their consumers may never return."""
        with self._lock:
            taken = [
                self._paused[run.path]
                for run in self._find_inside(scope)
                if run.path in self._paused
            ]
            for emit in taken:  # kept until they end: if this is interrupted, they are taken again
                emit.is_taken = True
            return taken


class Session:
    """The state of one lease owner, and what its code may do. Thread-safe."""

    def __init__(
        self,
        log: Log,
        state: TaskState,
        incarnation: bytes,
        owner: str,
        lease: float,
        now: float,
        asked_at: float,
        asynchronous: bool,
    ) -> None:
        """`now` is the database's time, requested at `asked_at` by the monotonic clock."""
        self.log, self.state, self.incarnation = log, state, incarnation
        self.key: StreamKey = state.key
        # Reentrant: the garbage collector may end a streaming step at any point.
        self.lock = threading.RLock()
        pending, running = PendingChanges(self.lock), dict[str, "StepRun"]()
        self.block = TaskBlock(self.key, owner, self.lock, asynchronous)
        self.lease = LeaseClock(log, owner, lease, now, asked_at)
        self.writer = FencedWriter(
            log, state, incarnation, self.block, self.lease, pending, running
        )
        self.steps = ActiveSteps(self.block, state, pending, self.lease, running)
        self.counters = CallCounters(state, self.lock)
        self.suspension = Suspension(state, self.lock)
        self.matching = StepMatcher(state)
        self.was_ended = state.ended
        self.salt = state.salt.encode()[:64]
        self.recalled: dict[str, None] = {}
        """Texts of memories that this run gave to the model."""
        if state.ended:
            self.block.end(state.status)

    replaying: ReplayState | None = None
    """Set while code is replayed against the record: nothing is called or written then."""

    @property
    def run(self) -> int | None:
        """The number of this run; None if it only reads the record."""
        return None if self.was_ended else self.state.runs

    @property
    def incarnation_hex(self) -> str:
        return self.incarnation.hex()

    # -- checks ------------------------------------------------------------------------------------

    def is_active(self) -> bool:
        """Return whether this process is inside the task's block (a forked child is not)."""
        return self.block.is_active()

    def check_writable(self, what: str = "write", asked: str = "to write") -> None:
        """Raise if this session can't write any more. A replay reports the write as new work."""
        if self.replaying is not None:
            self.replaying.require_recorded("", what, asked)
        self.block.check_writable()

    def is_stale(self) -> bool:
        """Return True if the lease may be lost, so that the stream must be read first."""
        lease = self.lease
        return self.writer.needs_catch_up or (
            clock.monotonic() - lease.renewed_at > lease.seconds and not self.was_ended
        )

    def check_active(self, *, ends: bool = False) -> None:
        """Raise if the running code must not continue. It may still read an ended task's record.

        With `ends`, the code only wants to finish the task, which a stopping run may still do.
        """
        block = self.block
        if not self.was_ended and (
            block.closed_error is not None or block.has_abandoned or block.forks != process.forks
        ):
            self.check_writable()
        if self.state.timeout is not None and not ends:
            self.check_deadline()
        if self.suspension.is_pending:
            if self.replaying is not None:
                self.replaying.check()
            else:
                self.suspension.check(ends)

    def is_past_deadline(self) -> bool:
        """Return whether the time limit of the task is over, and it has not ended."""
        deadline = self.state.deadline
        return (
            deadline is not None
            and not self.was_ended
            and self.replaying is None
            and self.now() >= deadline
        )

    def check_deadline(self) -> None:
        """Raise `TaskTimeout` if the time limit of the task is over."""
        if self.is_past_deadline():
            raise TaskTimeout(str(self.key), timeout=self.state.timeout or 0.0)

    def limit_timeout(self, timeout: float | None) -> float | None:
        """Return a step's timeout, shortened to what is left of the task's time limit."""
        if self.state.deadline is None:
            return timeout
        left = max(self.state.deadline - self.now(), 0.001)
        return left if timeout is None else min(timeout, left)

    def stop(self, why: str) -> None:
        """End the run at its next step, as if it had to wait. Children inside it stop too."""
        self.suspension.stop(why)

    # -- steps -------------------------------------------------------------------------------------

    def idempotency_key(self, identity: tuple[str, ...]) -> str:
        """Return a key for the external service that a step calls.

        It depends on the step's identity, not on its path: parallel steps are numbered in the order
        they start, which may differ after a crash. Without a key, the arguments are the identity.
        """
        digest = sha256()
        for part in (self.key.tenant, self.key.id, self.incarnation_hex, *identity):
            raw = part.encode()
            digest.update(len(raw).to_bytes(8, "big") + raw)
        return digest.hexdigest()

    def abandon_steps(self, scope: str) -> list[StepRun]:
        """Forget the steps that run inside a step whose thread is abandoned."""
        self.block.has_abandoned = True
        return self.steps.abandon(scope)

    def reset_used_scope(self, path: str) -> None:
        """Reset the scope of a step that recorded nothing, if code inside it used the task."""
        if path in self.matching.scopes or self.counters.has_scope(path):
            self.reset_scope(path)

    def reset_scope(self, path: str) -> None:
        """Forget the calls inside a step before a retry, so that they get the same numbers."""
        with self.lock:
            self.matching.reset_scope(path, self.steps.running)
            self.counters.reset_scope(path)

    # -- writing -----------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the database's time, or an earlier one: a time that has come here has come."""
        return self.lease.now()

    def put(
        self,
        changes: Sequence[Change],
        stamp: AppendContext,
        *,
        fields: Callable[[], HeadFields] | None = None,
        large: bytes | None = None,
        unless: Callable[[], None] | None = None,
    ) -> Operation[AppendResult]:
        """Append changes, together with pending ones. `large` is the blob of the last change.

        `unless` is called when all events of other writers are known, and may raise. The append is
        retried while the database is unreachable. If another process takes over in the meantime,
        it raises `LeaseLost`.
        """
        return self.writer.put(changes, stamp, fields, large, unless)

    def retry_unavailable(self, make: Callable[[], Operation[T]]) -> Operation[T]:
        """Run an operation, and retry it until the deadline while the database is unreachable."""
        return self.writer.retry_unavailable(make)

    def catch_up(self) -> Operation[None]:
        """Read events of other writers, and own events whose response was lost."""
        return self.writer.catch_up()

    def put_later(self, path: str, change: Change | StepRun) -> None:
        """Write a change, or the start of a step, with the next append or heartbeat."""
        if not (self.block.has_abandoned and is_abandoned()):
            self.writer.pending.put(path, change)

    def note_recalled(self, ids: Sequence[str], texts: Sequence[str]) -> None:
        """Record memories that the model gets, before anything it derives from them is stored."""
        with self.lock:
            known = {**self.state.recalled, **self.recalled}
            new = [place for place, text in enumerate(texts) if text not in known]
            if (
                not new
                or self.was_ended
                or self.block.closed_error is not None
                or self.replaying is not None
            ):
                return
            self.recalled.update(dict.fromkeys(texts))
            event = ev.Recalled([ids[place] for place in new], [texts[place] for place in new])
        self.put_later(f"\0recalled{len(self.recalled)}", (ev.RECALLED, event))

    def head_fields(
        self, status: str, *, due_at: float | None = None, expires_at: float | None = None
    ) -> HeadFields:
        """Return the head's fields for a status. `due_at` is when a worker should run the task."""
        return self.writer.head_fields(status, due_at=due_at, expires_at=expires_at)

    def waiting_head_fields(self) -> HeadFields:
        """Return the head's fields for a waiting task."""
        status, due_at = self.suspension.find_due(self.now())
        return self.head_fields(status, due_at=due_at)

    def save_progress(self) -> None:
        """Write the progress of the running steps now."""
        self.beat(after=0.0)

    def beat(self, after: float = PROGRESS_SECONDS) -> None:
        """Write progress, pending changes or a renewal, if due. Called about every second."""
        with self.lock:
            if self.block.closed_error is not None:
                return
            runs = list(self.steps.running.values())
        self.writer.beat(runs, after)


class WaitForSteps(Effect):
    """Wait until all steps inside a scope have ended.

    Async steps are cancelled. Synchronous steps run in threads, and can't be.
    """

    __slots__ = ("scope", "session")

    outlives_cancellation = True

    def __init__(self, session: Session, scope: str = "") -> None:
        self.session, self.scope = session, scope

    def perform(self, log: Log) -> None:
        for paused in self.session.steps.take_paused(self.scope):
            paused.close_generator()
        self.session.steps.wait_until_idle(self.scope)

    async def perform_async(self, log: Log) -> None:
        import asyncio

        for paused in self.session.steps.take_paused(self.scope):
            await paused.close_source(log)
            paused.close_generator()
        loop = asyncio.get_running_loop()
        idle = loop.create_future()

        def set_idle() -> None:
            if not idle.done():
                idle.set_result(None)

        for worker in self.session.steps.call_when_idle(
            self.scope, lambda: loop.call_soon_threadsafe(set_idle)
        ):
            if worker is not asyncio.current_task():
                worker.get_loop().call_soon_threadsafe(worker.cancel)
        await idle
