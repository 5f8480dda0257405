"""The session of a lease owner: its view of the task, and its fenced writes.

A write is stored only if the stream has nothing that this session has not seen. Otherwise the
session reads the new events first: a claim by another owner ends it, everything else is folded.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import msgspec

from ...backends import AppendResult, HeadFields, StreamKey, clock
from ...errors import (
    Conflict,
    HoldfastError,
    LeaseLost,
    NoTask,
    OutcomeUnknown,
    Suspended,
    TaskEnded,
    Unavailable,
)
from ...log import operations as ops
from ...log.events import INLINE_BYTES, AppendContext, Blob, NewEvent, encode_envelopes
from ...log.leases import RENEWALS_PER_LEASE, process
from ...log.log import Log
from ...log.operations import Operation
from ...log.operations.blobs import put_blob
from ...log.operations.stream_ops import new_append_context
from ..redaction import redact_event
from ..state import events as ev
from ..state.fold import TaskState
from ..state.load import encode_label, load_event
from ..state.view import Drift
from ..steps.matching import StepMatcher
from ..steps.progress import PROGRESS_SECONDS
from ..steps.usage import Usage
from .frames import Branch, current_frame

if TYPE_CHECKING:
    import asyncio

    from ..replay.recording import ReplayState
    from ..steps.progress import StepRun
    from ..steps.run import StepCall
    from .effects import Emit, TaskGen

LAZY_SECONDS: Final = 1.0
"""The start of an ordinary step is written with the next append, or after this time."""

RETRY_DEADLINE: Final = 30.0
"""How long a write is retried while the database is unreachable (seconds of pauses)."""
FIRST_RETRY_PAUSE: Final = 0.05
MAX_CONFLICTS: Final = 1000

T = TypeVar("T")

logger = logging.getLogger("holdfast")

Change = tuple[str, ev.TaskEvent]
"""An event to write: its type and its data."""
PendingChanges = dict[str, "tuple[Change | StepRun, float]"]
"""Changes to write later, by step path, and since when. A `StepRun` stands for its start event."""


class Session:
    """The state of one lease owner, from its claim to the end of its block. Thread-safe."""

    def __init__(
        self,
        log: Log,
        state: TaskState,
        incarnation: bytes,
        owner: str,
        lease: float,
        now: float,
        asynchronous: bool,
    ) -> None:
        self.log, self.state, self.incarnation = log, state, incarnation
        self.key: StreamKey = state.key
        self.owner, self.lease, self._renew_seconds = owner, lease, lease / RENEWALS_PER_LEASE
        # Reentrant: the garbage collector may end a streaming step at any point.
        self.lock = threading.RLock()
        self.matching = StepMatcher(state)
        self.running: dict[str, StepRun] = {}
        self._running_counts: dict[tuple[str, str], int] = {}  # running steps by scope and name
        # The thread and asyncio task that run the steps of a scope. If others run steps of the
        # scope too, the order of its steps is random.
        self._callers: dict[str, tuple[int, object]] = {}
        # Called when no step runs inside a scope any more.
        self._idle_callbacks: list[tuple[str, Callable[[], object]]] = []
        self._paused_streams: dict[str, Emit] = {}  # steps that stream, between two chunks
        self._is_leaving = False
        self._released_numbers: dict[str, dict[object, list[int]]] = {}
        self.closed_error: HoldfastError | None = None
        """Why this session can't write any more."""
        self.asynchronous = asynchronous
        self.was_ended = state.ended
        self.run = None if state.ended else state.runs
        self.salt = state.salt.encode()[:64]
        self.incarnation_hex = incarnation.hex()
        self.drift: list[Drift] = []
        self.valid_names: set[str] = set()
        """Step names that were checked before."""
        self._next_numbers: dict[str, dict[object, int]] = {}
        if state.ended:
            self.closed_error = TaskEnded(str(self.key), status=state.status)
        self.seen_version = state.version
        self.needs_catch_up = False
        """A write was interrupted before its response: read the stream before any decision."""
        self.head_before, self.waits_before = HeadFields(), ev.TaskSuspended()
        """The task's head before the claim, and the waits it was suspended on."""
        self.untouched = True
        """Whether this session has written nothing except heartbeats."""
        self.branch = Branch()
        self.waiting_for: dict[str, None] = {}
        """Ids of the waits that this run waits for."""
        self.waiting_children: dict[str, None] = {}
        """Ids of the children that this run waits for."""
        self._questions: dict[str, str] = {}  # wait ids of this run's questions, by name
        self._recheck_at: float | None = None  # when to check a child that another process runs
        self.recalled: dict[str, None] = {}
        """Texts of memories that this run gave to the model."""
        self._interrupted: set[str] = set()  # steps that had to wait in the middle
        self._taken_signals: set[tuple[str, int]] = set()  # signals that a wait is receiving now
        self.suspending = False
        """Whether some branch waits, or the run stops at its next step."""
        self.stop_reason = ""
        """Why the run stops at its next step; "" if it doesn't."""
        self._child_sessions: set[Session] = set()  # of children that run inside this run
        self._forks = process.forks
        self._folded_early: set[int] = set()  # versions after `seen_version` already folded
        self._pending: PendingChanges = {}
        self._retries_spent = False  # the retry deadline passed; later writes are tried once
        self._offset = now - clock.monotonic()
        self.renewed_at = clock.monotonic()

    replaying: ReplayState | None = None
    """Set while code is replayed against the record: nothing is called or written then."""

    # -- checks ----------------------------------------------------------------------------------

    def is_active(self) -> bool:
        """Return whether this process is inside the task's block (a forked child is not)."""
        return self._forks == process.forks and not isinstance(self.closed_error, NoTask)

    def check_writable(self, what: str = "write", asked: str = "to write") -> None:
        """Raise if this session can't write any more. A replay reports the write as new work."""
        if self.replaying is not None:
            self.replaying.require_recorded("", what, asked)
        if self._forks != process.forks:
            raise LeaseLost(str(self.key), owner=self.owner)  # the parent process has the lease
        if self.closed_error is not None:
            raise self.closed_error

    def is_stale(self) -> bool:
        """Return whether the lease may be lost, so that the stream must be read first."""
        return self.needs_catch_up or (
            self.run is not None and clock.monotonic() - self.renewed_at > self.lease
        )

    def check_active(self, *, ends: bool = False) -> None:
        """Raise if the running code may not continue. The record of an ended task can be read.

        With `ends` the code only wants to finish the task, which a stopping run may still do.
        """
        if not self.was_ended and (self.closed_error is not None or self._forks != process.forks):
            self.check_writable()
        if self.suspending:
            self.check_suspended(ends)

    def check_suspended(self, ends: bool) -> None:
        """Raise `Suspended` in a branch that waits, and in a run that stops and isn't done."""
        if self.replaying is not None:
            self.replaying.check()
            return
        inside = current_frame()
        if inside is not None and inside.inside_guarded_step():
            return
        branch = inside.branch if inside is not None and inside.session is self else self.branch
        if branch.is_suspended():
            self._mark_interrupted()
            branch.check()
        if self.stop_reason and not ends:
            self.suspend(branch, self.stop_reason)

    def suspend(self, branch: Branch, why: str = "") -> NoReturn:
        """Suspend a branch: raise `Suspended`, now and whenever it calls the task again."""
        with self.lock:
            self.suspending = True
            events = [self.state.waits.all[wait].event for wait in self.waiting_for]
            waits = [repr(event.name) if event.name else "a time" for event in events]
            waits += [f"child {child!r}" for child in self.waiting_children]
            branch.suspended = Suspended(str(self.key), waits=() if why else tuple(waits), why=why)
            self._mark_interrupted()
        raise branch.suspended

    def _mark_interrupted(self) -> None:
        """Mark all enclosing steps as interrupted.

        What they return after swallowing `Suspended` must not be recorded.
        """
        inside = current_frame()
        step = inside.run if inside is not None and inside.session is self else None
        while step is not None:
            self._interrupted.add(step.path)
            step = step.outer

    def check_interrupted(self, path: str, branch: Branch) -> None:
        """Raise `Suspended` again for a step that swallowed it."""
        if path in self._interrupted:
            branch.check()

    def reserve_question(self, name: str, wait: str) -> None:
        """Raise if this run has another open question of that name: an answer could hit it."""
        with self.lock:
            other = self._questions.setdefault(name, wait)
            if other != wait and not self.state.waits.is_satisfied(other):
                raise RuntimeError(
                    f"{self.key} already has an open question {name!r} with another text or "
                    "payload, maybe from another item of a map; give each question its own name"
                )
            self._questions[name] = wait

    def wait_for_child(self, child: str, until: float | None) -> None:
        """Make the run wait for a child. If another process runs it, check again at `until`."""
        with self.lock:
            self.waiting_children[child] = None
            if until is not None:
                self._recheck_at = min(until, self._recheck_at or until)

    def restore_waits(self) -> None:
        """Make the run wait for what the task waited for before it."""
        with self.lock:
            self.waiting_for.update(dict.fromkeys(self.waits_before.waits))
            self.waiting_children.update(dict.fromkeys(self.waits_before.children))
            self._recheck_at = self.head_before.due_at

    def stop(self, why: str) -> None:
        """End the run at its next step, as if it had to wait. Children inside it stop too."""
        with self.lock:
            self.stop_reason, self.suspending = why, True
            child_sessions = list(self._child_sessions)
        for session in child_sessions:
            session.stop(why)

    def add_child(self, session: Session) -> None:
        """Register a child that runs inside this run, to stop with it."""
        with self.lock:
            self._child_sessions.add(session)
        if self.stop_reason:
            session.stop(self.stop_reason)

    def remove_child(self, session: Session) -> None:
        with self.lock:
            self._child_sessions.discard(session)

    def idempotency_key(self, identity: tuple[str, ...]) -> str:
        """Return a key for the external service that a step calls.

        It depends on the step's identity, not on its path: parallel steps are numbered in the order
        they start, which may differ after a crash. So steps without a key count by their arguments.
        """
        digest = sha256()
        for part in (self.key.tenant, self.key.id, self.incarnation_hex, *identity):
            raw = part.encode()
            digest.update(len(raw).to_bytes(8, "big") + raw)
        return digest.hexdigest()

    def step_identity(self, path: str) -> tuple[str, ...]:
        """Return the identity of a running step, from the outermost step inwards."""
        run = self.running.get(path)
        return () if run is None else run.identity()

    def begin_step(self, run: StepRun, call: StepCall) -> bool:
        """Register a step as running. Return False if another call with its key ran it since."""
        with self.lock:
            if self._is_leaving and call.scope not in self.running:
                raise NoTask(f"the block of {self.key} is being left; open it again to continue")
            known = self.state.steps.get(run.path)
            if run.path in self.running or (0 if known is None else known.version) != call.version:
                return False
            self.running[run.path] = run
            busy = self._running_counts.get((call.scope, call.name), 0)
            self._running_counts[call.scope, call.name] = busy + 1
            if self.asynchronous:
                run.worker = _current_worker()
            here = (threading.get_ident(), run.worker)
            run.parallel = busy > 0 or self._callers.setdefault(call.scope, here) != here
            if not call.declared.eager:
                self._pending[run.path] = (run, clock.monotonic())
            if call.scope:
                run.outer = self.running.get(call.scope)
        return True

    def set_block_caller(self) -> None:
        """Note that this thread and asyncio task run the block's own steps."""
        self._callers[""] = (
            threading.get_ident(),
            _current_worker() if self.asynchronous else None,
        )

    def end_step(self, run: StepRun) -> None:
        """Unregister a step, and call what waits for its scope to be idle."""
        with self.lock:
            self.running.pop(run.path, None)
            self._running_counts[run.scope, run.name] -= 1
            self._callers.pop(run.path, None)
            if self._idle_callbacks:
                for waiter in [
                    waiter for waiter in self._idle_callbacks if not self._steps_inside(waiter[0])
                ]:
                    self._idle_callbacks.remove(waiter)
                    waiter[1]()

    def pause_stream(self, emit: Emit, generator: TaskGen[Any]) -> None:
        """Pause a streaming step until its consumer requests the next chunk."""
        emit.generator = generator
        with self.lock:
            self._paused_streams[emit.path] = emit

    def resume_stream(self, emit: Emit) -> bool:
        """Resume a paused step. Return False if `take_paused_streams` took it meanwhile."""
        with self.lock:
            if self._paused_streams.get(emit.path) is not emit:
                return False
            del self._paused_streams[emit.path]
            return True

    def take_paused_streams(self, scope: str) -> list[Emit]:
        """Take the paused steps inside a scope, to end them: their consumers may never return."""
        with self.lock:
            return [
                self._paused_streams.pop(run.path)
                for run in self._steps_inside(scope)
                if run.path in self._paused_streams
            ]

    def _steps_inside(self, scope: str) -> list[StepRun]:
        """Return the steps that run inside a scope. Requires the lock."""
        if not scope:
            return list(self.running.values())
        return [run for path, run in self.running.items() if path.startswith(scope + "/")]

    def call_when_idle(self, scope: str, callback: Callable[[], object]) -> list[asyncio.Task[Any]]:
        """Call `callback` when no step runs inside a scope any more, maybe at once.

        Return the asyncio tasks in which steps still run.
        """
        with self.lock:
            if not scope:
                self._is_leaving = True
            running = self._steps_inside(scope)
            if running:
                self._idle_callbacks.append((scope, callback))
            else:
                callback()
            return [run.worker for run in running if run.worker is not None]

    def wait_until_idle(self, scope: str) -> None:
        """Block until no step runs inside a scope any more."""
        idle = threading.Event()
        self.call_when_idle(scope, idle.set)
        if not idle.is_set():
            logger.info("steps of %s still run in other threads; waiting for them", self.key)
            idle.wait()

    # -- numbers of repeated calls ---------------------------------------------------------------

    def take_number(self, scope: str, what: object) -> int:
        """Return how many times this run did `what` in this scope before, and count this time."""
        with self.lock:
            if free := self._released_numbers.get(scope, {}).get(what):
                return free.pop()
            numbers = self._next_numbers.setdefault(scope, {})
            number = numbers.get(what, 0)
            numbers[what] = number + 1
        return number

    def release_number(self, scope: str, what: object, number: int) -> None:
        """Give a number back after the call failed: the next `take_number` returns it again."""
        with self.lock:
            self._released_numbers.setdefault(scope, {}).setdefault(what, []).append(number)

    def peek_number(self, scope: str, what: object) -> int:
        """Return the number that `take_number` would return next, without counting."""
        return self._next_numbers.get(scope, {}).get(what, 0)

    @contextmanager
    def take_signal(self, name: str) -> Iterator[int | None]:
        """Reserve the next signal of a name inside a `with` block, and yield its number or None."""
        with self.lock:
            numbers = self.state.waits.signals.get(name, ())
            free = [number for number in numbers if (name, number) not in self._taken_signals]
            taken = (name, min(free)) if free else None
            if taken is not None:
                self._taken_signals.add(taken)
        try:
            yield None if taken is None else taken[1]
        finally:
            if taken is not None:
                with self.lock:
                    self._taken_signals.discard(taken)

    def reset_used_scope(self, path: str) -> None:
        """Reset the scope of a step that recorded nothing, if code inside it used the task."""
        if path in self.matching.scopes or path in self._next_numbers:
            self.reset_scope(path)

    def reset_scope(self, path: str) -> None:
        """Forget the calls inside a step before it is tried again: they get the same numbers."""
        with self.lock:
            self.matching.reset_scope(path, self.running)
            for scope in [
                scope
                for scope in self._next_numbers
                if scope == path or scope.startswith(path + "/")
            ]:
                del self._next_numbers[scope]
                self._released_numbers.pop(scope, None)

    def now(self) -> float:
        """Return the database's time."""
        return self._offset + clock.monotonic()

    # -- writing ---------------------------------------------------------------------------------

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
        retried while the database is unreachable; if another process takes over meanwhile,
        `LeaseLost` is raised.
        """
        return self.retry_unavailable(lambda: self._put(changes, stamp, fields, large, unless))

    def retry_unavailable(self, make: Callable[[], Operation[T]]) -> Operation[T]:
        """Run an operation, and retry it for `RETRY_DEADLINE` while the database is unreachable.

        Results of steps were expensive: they should not be lost to a short outage.
        """
        paused, pause = 0.0, FIRST_RETRY_PAUSE
        while True:
            try:
                return (yield from make())
            except Unavailable:
                if self._retries_spent or paused >= RETRY_DEADLINE:
                    self._retries_spent = True
                    raise
            if not paused:
                logger.warning("the database is unreachable; retrying the write of %s", self.key)
            yield from ops.pause(pause)
            paused, pause = paused + pause, min(pause * 2, 1.0)

    def _put(
        self,
        changes: Sequence[Change],
        stamp: AppendContext,
        fields: Callable[[], HeadFields] | None = None,
        large: bytes | None = None,
        unless: Callable[[], None] | None = None,
    ) -> Operation[AppendResult]:
        if large is not None:
            blob = yield from put_blob(self.key, self.incarnation_hex, large, stamp)
            name, last = changes[-1]
            changes = [*changes[:-1], (name, msgspec.structs.replace(last, blob=blob))]
        pending, covered = self._take_pending(changes)
        try:
            written = [*map(_as_change, pending.values()), *changes] if pending else changes
            if self.log.redactor is not None:
                written = [
                    (name, redact_event(self.log.redactor, change)) for name, change in written
                ]
            events: list[NewEvent] = []
            blobs: dict[bytes, Blob] = {}
            for name, change in written:
                data = ev.encode_data(change)
                events.append(NewEvent(name, data))
                if len(data) > INLINE_BYTES:
                    blobs[data] = yield from put_blob(self.key, self.incarnation_hex, data, stamp)
            bodies = encode_envelopes(events, stamp, blobs)
            for _ in range(MAX_CONFLICTS):
                if self.closed_error is not None or self._forks != process.forks:
                    self.check_writable()
                if self.needs_catch_up:
                    yield from self.catch_up()
                if unless is not None:
                    unless()
                began = clock.monotonic()
                renewal = None
                if fields is not None:
                    renewal = fields()
                elif began - self.renewed_at >= self._renew_seconds:  # not with each: it costs
                    renewal = self.head_fields("running")
                # An end is exclusive: this process must not append anything after it.
                request = ops.AppendRecords(
                    self.key,
                    bodies,
                    stamp,
                    None,
                    None,
                    self.seen_version,
                    renewal,
                    self.incarnation,
                    fields is not None,
                )
                try:
                    answer: AppendResult = yield request
                    break
                except Conflict:
                    yield from self.catch_up()
            else:
                raise Conflict(str(self.key), expected=self.seen_version, actual=self.state.version)
        except BaseException as error:
            with self.lock:
                self._pending = {**pending, **covered, **self._pending}
                if not isinstance(error, HoldfastError) or isinstance(error, OutcomeUnknown):
                    self.needs_catch_up = True
            raise
        self._retries_spent = False
        with self.lock:
            if renewal is not None:
                self.renewed_at = began
                if answer.now:
                    self._offset = answer.now - clock.monotonic()
            for version, (name, change) in enumerate(written, answer.first):
                self._fold(version, stamp.at, name, change)
                if self.untouched and name not in (ev.RENEWED, ev.RECALLED):
                    self.untouched = False
        return answer

    def _fold(self, version: int, at: float, name: str, event: ev.TaskEvent) -> None:
        """Apply a stored event to the state, once. Requires the lock."""
        if version <= self.seen_version or version in self._folded_early:
            return
        self.state.apply(self.key, version, at, name, event)
        if version > self.seen_version + 1:
            self._folded_early.add(version)
            return
        self.seen_version = version
        while self._folded_early and self.seen_version + 1 in self._folded_early:
            self.seen_version += 1
            self._folded_early.remove(self.seen_version)

    def catch_up(self) -> Operation[None]:
        """Read events of other writers, and own ones whose response was lost."""
        head = yield from ops.head(self.key)
        if head is None or head.incarnation != self.incarnation:
            raise self._close(LeaseLost(str(self.key), owner=None))
        after = self.seen_version
        while page := (yield from ops.read(self.key, after=after)):
            for stored in page:
                name, event = yield from load_event(self.key, stored)
                if isinstance(event, ev.Claimed) and event.owner != self.owner:
                    raise self._close(LeaseLost(str(self.key), owner=head.fields.owner))
                with self.lock:
                    self._fold(stored.version, stored.envelope.at, name, event)
            after = page[-1].version
        self.needs_catch_up = False
        # The lease is still owned here, and a renewal is due.
        self.renewed_at = max(self.renewed_at, clock.monotonic() - self.lease / 2)
        if self.state.owner is None and not self.state.ended and self.closed_error is None:
            left = f"the block of {self.key} was left; open it again to continue"
            raise self._close(NoTask(left))
        if self.state.ended and self.closed_error is None:
            raise self._close(TaskEnded(str(self.key), status=self.state.status))

    def _close(self, error: HoldfastError) -> HoldfastError:
        with self.lock:
            self.closed_error = self.closed_error or error
        return self.closed_error

    # -- pending changes -------------------------------------------------------------------------

    def put_later(self, path: str, change: Change | StepRun) -> None:
        """Write a change, or the start of a step, with the next append or heartbeat."""
        with self.lock:
            self._pending[path] = (change, clock.monotonic())

    def note_recalled(self, ids: Sequence[str], texts: Sequence[str]) -> None:
        """Record memories that the model gets, before anything it derives from them is stored."""
        with self.lock:
            known = {**self.state.recalled, **self.recalled}
            new = [place for place, text in enumerate(texts) if text not in known]
            if (
                not new
                or self.run is None
                or self.closed_error is not None
                or self.replaying is not None
            ):
                return
            self.recalled.update(dict.fromkeys(texts))
            event = ev.Recalled([ids[place] for place in new], [texts[place] for place in new])
        self.put_later(f"\0recalled{len(self.recalled)}", (ev.RECALLED, event))

    def unwritten_usage(self) -> Usage:
        """Return the usage of interrupted steps that is not written yet."""
        with self.lock:
            changes = [change for change, _ in self._pending.values() if isinstance(change, tuple)]
        used = [
            event.usage
            for _, event in changes
            if isinstance(event, ev.StepEvent) and event.usage is not None
        ]
        return sum(used, Usage())

    def _take_pending(self, changes: Sequence[Change]) -> tuple[PendingChanges, PendingChanges]:
        """Take the pending changes to write, and the start events of steps that `changes` end."""
        with self.lock:
            pending, self._pending = self._pending, {}
        covered: PendingChanges = {}
        for _, event in changes:
            if (
                isinstance(event, ev.StepEvent)
                and event.since is not None
                and event.step in pending
            ):
                covered[event.step] = pending.pop(event.step)
        return pending, covered

    # -- the lease -------------------------------------------------------------------------------

    def head_fields(
        self, status: str, *, due_at: float | None = None, expires_at: float | None = None
    ) -> HeadFields:
        """Return the head's fields for a status. `due_at` is when a worker should run the task."""
        state, running = self.state, status == "running"
        doubt = any(step.in_doubt(None) for step in state.steps.values()) if not running else False
        label = encode_label(state, doubt)
        due = self.now() + self.lease if running else due_at
        return HeadFields(status, label, self.owner if running else None, due, expires_at)

    def waiting_head_fields(self) -> HeadFields:
        """Return the head's fields of a waiting task: due at its first timeout.

        If a wait is over already, the task is pending and due now.
        """
        waits, now = self.state.waits, self.now()
        if waits.is_ready(self.waiting_for, self.waiting_children):
            return self.head_fields("pending", due_at=now)
        times = [
            time
            for time in (waits.wakes_at(self.waiting_for), self._recheck_at)
            if time is not None
        ]
        # Not in the past: workers look for tasks that became due since their last look.
        return self.head_fields("suspended", due_at=max(min(times), now) if times else None)

    def save_progress(self) -> None:
        """Write the progress of the running steps now."""
        self.beat(after=0.0)

    def beat(self, after: float = PROGRESS_SECONDS) -> None:
        """Write progress, pending changes or a renewal, if due. Called about every second."""
        now = clock.monotonic()
        changes: list[Change] = []
        with self.lock:
            if self.closed_error is not None:
                return
            lazy = any(now - since >= LAZY_SECONDS for _, since in self._pending.values())
            runs = list(self.running.values())
        saved = [
            (run, change) for run in runs if (change := run.unsaved_change(after=after)) is not None
        ]
        changes += [change for _, change in saved]
        if now - self.renewed_at >= self._renew_seconds and not lazy and not changes:
            changes.append((ev.RENEWED, ev.Renewed(self.owner)))
        if lazy or changes:
            # Without retries: the next beat comes soon.
            ops.run(self.log, self._put(changes, new_append_context()))
            for run, change in saved:
                run.mark_saved(change)


def _as_change(pending: tuple[Change | StepRun, float]) -> Change:
    change, _ = pending
    return change if isinstance(change, tuple) else (ev.STEP_STARTED, change.start_event())


def _current_worker() -> asyncio.Task[Any] | None:
    """Return the asyncio task that runs this code; None in a thread without a loop."""
    import asyncio

    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
