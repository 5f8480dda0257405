"""The fenced writer of a lease owner: its view of the task stays exact, or nothing is written.

A write is stored only if the writer has seen all events of the stream. Otherwise it reads the new
events first: a claim by another owner ends the session, and all other events are folded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from ...backends import AppendResult, BillsRequests, HeadFields, StreamKey, clock
from ...backends.clock import CLOCK_RESOLUTION_SECONDS
from ...errors import Conflict, HoldfastError, LeaseLost, OutcomeUnknown, TaskEnded, Unavailable
from ...log import operations as ops
from ...log import telemetry
from ...log.context import Origin, origin
from ...log.events import (
    INLINE_BYTES,
    AppendContext,
    Blob,
    NewEvent,
    encode_envelopes,
    new_append_context,
)
from ...log.leases import RENEWALS_PER_LEASE, SETTLE_PAUSE, process
from ...log.log import Log
from ...log.operations import Operation
from ...log.operations.blobs import put_blob
from ..redaction import redact_event
from ..state import events as ev
from ..state.fold import TaskState
from ..state.load import encode_label, load_event, load_task
from ..steps.usage import Usage
from .activity import describe_step, record_refused_write, report_overdue
from .frames import TaskBlock
from .reports import SessionLost, TaskWritten

if TYPE_CHECKING:
    from ..steps.progress import StepRun

LAZY_SECONDS: Final = 1.0
"""The start of an ordinary step is written with the next append, or after this time."""

FIRST_RETRY_PAUSE: Final = 0.05
MAX_CONFLICTS: Final = 1000

T = TypeVar("T")

Change = tuple[str, ev.TaskEvent]
"""An event to write: its type and its data."""
Unwritten = dict[str, "tuple[Change | StepRun, float, Origin]"]
"""Changes to write later, by step path, since when, and the origin of the block they belong to.
A `StepRun` stands for its start event."""


class LeaseClock:
    """The lease of a session, and the database's clock by which it ends."""

    def __init__(self, log: Log, owner: str, seconds: float, now: float, asked_at: float) -> None:
        """`now` is the database's time, requested at `asked_at` by the monotonic clock."""
        self.owner, self.seconds = owner, seconds
        self.renew_seconds = seconds / RENEWALS_PER_LEASE
        # Two processes may differ as much where the clock has whole seconds.
        self._resolution = (
            CLOCK_RESOLUTION_SECONDS if isinstance(log.backend, BillsRequests) else 0.0
        )
        self.set_clock(now, asked_at)
        self.renewed_at = clock.monotonic()

    def now(self) -> float:
        """Return the database's time, or an earlier one: a time that has come here has come."""
        return self._offset + clock.monotonic()

    def latest_now(self) -> float:
        """Return the database's time, or a later one: what ends this much later is never early."""
        return self._latest_offset + clock.monotonic()

    def set_clock(self, now: float, asked_at: float) -> None:
        """Set the clock to the database's time `now`, read at some time since `asked_at`."""
        self._offset = now - clock.monotonic()
        self._latest_offset = now - asked_at + self._resolution

    def needs_renewal(self, now: float) -> bool:
        """Return whether the lease is to be renewed at `now`, by the monotonic clock."""
        return now - self.renewed_at >= self.renew_seconds

    def note_held(self) -> None:
        """Note that the lease is still owned here, and that a renewal is due."""
        self.renewed_at = max(self.renewed_at, clock.monotonic() - self.seconds / 2)


class PendingChanges:
    """Changes that are written with the next append or heartbeat. Thread-safe."""

    def __init__(self, lock: threading.RLock) -> None:
        self.lock = lock
        self.changes: Unwritten = {}

    def put(self, path: str, change: Change | StepRun) -> None:
        """Write a change, or the start of a step, with the next append or heartbeat."""
        with self.lock:
            self.changes[path] = (change, clock.monotonic(), origin())

    def take(self, changes: Sequence[Change], pending: Unwritten, covered: Unwritten) -> None:
        """Move the changes to `pending`; to `covered` the starts that `changes` end."""
        with self.lock:
            pending.update(self.changes)
            self.changes = {}
        for _, event in changes:
            if (
                isinstance(event, ev.StepEvent)
                and event.since is not None
                and event.step in pending
            ):
                covered[event.step] = pending[event.step]
                del pending[event.step]

    def restore(self, pending: Unwritten, covered: Unwritten) -> None:
        """Put back what was taken and not written. Requires the lock."""
        self.changes = {**pending, **covered, **self.changes}

    def usage(self) -> Usage:
        """Return the usage of interrupted steps that is not written yet."""
        with self.lock:
            changes = [change for change, *_ in self.changes.values() if isinstance(change, tuple)]
        used = [
            event.usage
            for _, event in changes
            if isinstance(event, ev.StepEvent) and event.usage is not None
        ]
        return sum(used, Usage())

    def find_due(self, now: float) -> tuple[bool, set[Origin]]:
        """Return whether a change is to be written by now, and the origins of all of them."""
        with self.lock:
            found = list(self.changes.values())
        return (
            any(now - since >= LAZY_SECONDS for _, since, _ in found),
            {origin for *_, origin in found},
        )


class FencedWriter:
    """Appends the changes of a session, and follows the events of other writers. Thread-safe."""

    def __init__(
        self,
        log: Log,
        state: TaskState,
        incarnation: bytes,
        block: TaskBlock,
        lease: LeaseClock,
        pending: PendingChanges,
        running: Mapping[str, StepRun],
    ) -> None:
        self._log, self._state, self._incarnation = log, state, incarnation
        self._key: StreamKey = state.key
        self._block, self._lease, self.pending = block, lease, pending
        self._lock, self._running = pending.lock, running
        self.seen_version = state.version
        self.needs_catch_up = False
        """A write was interrupted before its response: read the stream before any decision."""
        self.untouched = True
        """Whether this session has written nothing except heartbeats."""
        self._folded_early: set[int] = set()  # versions after `seen_version` already folded
        self._is_torn = False  # an event was folded in part: load the state again
        self._retries_spent = False  # the retry deadline passed; later writes are tried once

    # -- writing -----------------------------------------------------------------------------------

    def put(
        self,
        changes: Sequence[Change],
        stamp: AppendContext,
        fields: Callable[[], HeadFields] | None = None,
        large: bytes | None = None,
        unless: Callable[[], None] | None = None,
    ) -> Operation[AppendResult]:
        """Append changes, together with pending ones; see `Session.put`."""
        try:
            return (yield from self._put(changes, stamp, fields, large, unless))
        except Unavailable as error:
            yield from self._pause_before_retry(error, FIRST_RETRY_PAUSE)
        return (
            yield from self.retry_unavailable(
                lambda: self._put(changes, stamp, fields, large, unless), FIRST_RETRY_PAUSE * 2
            )
        )

    def retry_unavailable(
        self, make: Callable[[], Operation[T]], pause: float = FIRST_RETRY_PAUSE
    ) -> Operation[T]:
        """Run an operation, and retry it until the deadline while the database is unreachable.

        Step results are expensive, so a short outage should not lose them.
        """
        while True:
            try:
                return (yield from make())
            except Unavailable as error:
                yield from self._pause_before_retry(error, pause)
            pause = min(pause * 2, 1.0)

    def _pause_before_retry(self, error: Unavailable, pause: float) -> Operation[None]:
        """Wait before a retry. Raise the error if the deadline comes first."""
        if self._retries_spent:
            raise error
        if pause == FIRST_RETRY_PAUSE:
            self._log.write_failures.note_failure(
                f"the database is unreachable; retrying a write of {self._key}"
            )
        try:
            yield from ops.pause(pause)
        except Unavailable:
            self._retries_spent = True
            raise error from None

    def give_up_retries(self) -> None:
        """Try each later write only once while the database is unreachable."""
        self._retries_spent = True

    def _put(
        self,
        changes: Sequence[Change],
        stamp: AppendContext,
        fields: Callable[[], HeadFields] | None = None,
        large: bytes | None = None,
        unless: Callable[[], None] | None = None,
        origins: Sequence[Origin] | None = None,
        renews: bool = False,
    ) -> Operation[AppendResult]:
        """Append changes. `origins` are those of the changes, unless all have that of `stamp`.

        With `renews`, renew the lease and the task's label too.
        """
        owner = self._incarnation.hex()
        if large is not None:
            blob = yield from put_blob(self._key, owner, large, stamp)
            name, last = changes[-1]
            changes = [*changes[:-1], (name, msgspec.structs.replace(last, blob=blob))]
        pending: Unwritten = {}
        covered: Unwritten = {}
        try:
            self.pending.take(changes, pending, covered)
            written = self._add_pending(changes, pending)
            events: list[NewEvent] = []
            blobs: dict[bytes, Blob] = {}
            for name, change in written:
                data = ev.encode_data(change)
                events.append(NewEvent(name, data))
                if len(data) > INLINE_BYTES:
                    blobs[data] = yield from put_blob(self._key, owner, data, stamp)
            if pending or origins is not None:
                own = origins or [(stamp.correlation, stamp.by)] * len(changes)
                others = [origin for *_, origin in pending.values()]
                bodies = _encode_with_origins(events, [*others, *own], stamp, blobs)
            else:
                bodies = encode_envelopes(events, stamp, blobs)
            answer = yield from self._append_fenced(bodies, stamp, fields, unless, renews)
            pending, covered = {}, {}  # they are stored: after an interrupt, don't restore them
            self._fold_written(written, answer.first, stamp.at)
        except BaseException as error:
            with self._lock:
                self.pending.restore(pending, covered)
                if not isinstance(error, HoldfastError) or isinstance(error, OutcomeUnknown):
                    self.needs_catch_up = True
            raise
        self._retries_spent = False
        return answer

    def _fold_written(self, written: Sequence[Change], first: int, at: float) -> None:
        """Apply stored changes to the state, and report them."""
        with self._lock:
            for version, (name, change) in enumerate(written, first):
                self._fold(version, at, name, change)
                if self.untouched and name not in (ev.RENEWED, ev.RECALLED):
                    self.untouched = False
        if telemetry.listeners:
            telemetry.emit(TaskWritten(self._state, self._incarnation, written, at))

    def _add_pending(self, changes: Sequence[Change], pending: Unwritten) -> Sequence[Change]:
        """Return pending changes and these, redacted."""
        written = [*map(_as_change, pending.values()), *changes] if pending else changes
        redactor = self._log.redactor
        if redactor is None:
            return written
        return [(name, redact_event(redactor, change)) for name, change in written]

    def _append_fenced(
        self,
        bodies: Sequence[bytes],
        stamp: AppendContext,
        fields: Callable[[], HeadFields] | None,
        unless: Callable[[], None] | None,
        renews: bool,
    ) -> Operation[AppendResult]:
        """Append records after all events that this session has seen; renew the lease if due."""
        block, lease = self._block, self._lease
        for _ in range(MAX_CONFLICTS):
            if (
                block.closed_error is not None
                or block.has_abandoned
                or block.forks != process.forks
            ):
                block.check_writable()
            if self.needs_catch_up:
                yield from self.catch_up()
            with self._lock:  # before the checks below: an end that is folded later must conflict
                seen, owner = self.seen_version, self._state.owner
            if owner != lease.owner:  # this run has ended, but its block is not closed yet
                raise block.closed_error or block.left_error()
            if unless is not None:
                unless()
            began = clock.monotonic()
            renewal = None
            if fields is not None:
                renewal = fields()
            elif renews or began - lease.renewed_at >= lease.renew_seconds:  # to save work
                renewal = self.head_fields("running")
            is_end = fields is not None  # exclusive: nothing of this process may come after it
            request = ops.AppendRecords(
                self._key, bodies, stamp, None, None, seen, renewal, self._incarnation, is_end
            )
            try:
                answer: AppendResult = yield request
            except Conflict:
                yield from self.catch_up()
                continue
            if renewal is not None:
                with self._lock:
                    lease.renewed_at = began
                    if answer.now:
                        lease.set_clock(answer.now, began)
            return answer
        raise Conflict(str(self._key), expected=self.seen_version, actual=self._state.version)

    def head_fields(
        self, status: str, *, due_at: float | None = None, expires_at: float | None = None
    ) -> HeadFields:
        """Return the head's fields for a status. `due_at` is when a worker should run the task."""
        state, lease, running = self._state, self._lease, status == "running"
        doubt = any(step.in_doubt(None) for step in state.steps.values()) if not running else False
        later = status == "pending" and due_at is not None and due_at > lease.now()
        step = describe_step(list(self._running.values())) if running else None
        label = encode_label(state, doubt, later=later, step=step)
        due = lease.now() + lease.seconds if running else due_at
        return HeadFields(status, label, lease.owner if running else None, due, expires_at)

    def beat(self, runs: Sequence[StepRun], after: float) -> None:
        """Write pending changes, a renewal or progress that was last saved `after` seconds ago."""
        now = clock.monotonic()
        lazy, pending_origins = self.pending.find_due(now)
        overdue = report_overdue(self._key, runs)
        saved = [
            (run, change) for run in runs if (change := run.unsaved_change(after=after)) is not None
        ]
        changes = [change for _, change in saved]
        origins = [run.origin for run, _ in saved]
        stamp = new_append_context()
        due = overdue or self._lease.needs_renewal(now)
        if due and not lazy and not changes:
            changes.append((ev.RENEWED, ev.Renewed(self._lease.owner)))
            origins.append((stamp.correlation, stamp.by))
        if lazy or changes:
            if len(shared := pending_origins.union(origins)) == 1:  # the log names it too
                stamp = AppendContext(stamp.id, stamp.at, *shared.pop())
            # Without retries: the next beat comes soon.
            renews = lazy or overdue  # so that listings show the step
            ops.run(self._log, self._put(changes, stamp, origins=origins, renews=renews))
            for run, change in saved:
                run.mark_saved(change)

    # -- following ---------------------------------------------------------------------------------

    def _fold(self, version: int, at: float, name: str, event: ev.TaskEvent) -> None:
        """Apply a stored event to the state, once. Requires the lock."""
        if version <= self.seen_version or version in self._folded_early:
            return
        try:
            self._state.apply(self._key, version, at, name, event)
        except BaseException:
            self._is_torn = True
            raise
        if version > self.seen_version + 1:
            self._folded_early.add(version)
            return
        self.seen_version = version
        while self._folded_early and self.seen_version + 1 in self._folded_early:
            self.seen_version += 1
            self._folded_early.remove(self.seen_version)

    def catch_up(self) -> Operation[None]:
        """Read events of other writers, and own events whose response was lost."""
        key, state, block = self._key, self._state, self._block
        head = yield from ops.head(key)
        if head is None or head.incarnation != self._incarnation:
            raise self._close(LeaseLost(str(key), owner=None))
        while self._log.is_settling(key):  # an append whose caller was interrupted
            yield from ops.pause(SETTLE_PAUSE)
        if self._is_torn:
            yield from self._load_state()
        after = self.seen_version
        while page := (yield from ops.read(key, after=after)):
            for stored in page:
                name, event = yield from load_event(key, stored)
                if isinstance(event, ev.Claimed) and event.owner != self._lease.owner:
                    why = self._close(lost := LeaseLost(str(key), owner=head.fields.owner))
                    if why is lost:  # otherwise another thread has recorded it
                        me, steps = self._lease.owner, list(self._running)
                        yield from record_refused_write(key, self._incarnation, me, steps)
                    raise why
                with self._lock:
                    self._fold(stored.version, stored.envelope.at, name, event)
            after = page[-1].version
        self.needs_catch_up = False
        self._lease.note_held()
        if block.closed_error is None and state.ended:
            raise self._close(TaskEnded(str(key), status=state.status))
        if block.closed_error is None and state.owner is None:
            raise self._close(block.timeout_error or block.left_error())

    def _close(self, error: HoldfastError) -> HoldfastError:
        """Refuse all later writes, and report it. Return why: the first error counts."""
        with self._lock:
            is_first, error = self._block.closed_error is None, self._block.close(error)
        if is_first and telemetry.listeners:
            telemetry.emit(SessionLost(self._state, self._incarnation, error))
        return error

    def _load_state(self) -> Operation[None]:
        """Load the state again, because an interrupt came while an event was folded."""
        loaded = yield from load_task(self._key, self.seen_version)
        with self._lock:
            vars(self._state).update(vars(loaded))
            self._folded_early, self._is_torn = set(), False


def _as_change(pending: tuple[Change | StepRun, float, Origin]) -> Change:
    change = pending[0]
    return change if isinstance(change, tuple) else (ev.STEP_STARTED, change.start_event())


def _encode_with_origins(
    events: Sequence[NewEvent],
    origins: Sequence[Origin],
    stamp: AppendContext,
    blobs: Mapping[bytes, Blob],
) -> list[bytes]:
    """Return the record bodies for events of one append that belong to different blocks."""
    bodies: list[bytes] = []
    for place, (event, block) in enumerate(zip(events, origins, strict=True)):
        own = AppendContext(stamp.id + place, stamp.at, *block)
        bodies += encode_envelopes([event], own, blobs)
    return bodies
