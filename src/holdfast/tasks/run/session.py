"""A holder's hold on a task: what it knows of it, and how it writes.

Every write is fenced: it is stored only if nothing was appended that this holder has not seen. If something was, the
holder reads it first: a claim by somebody else ends the hold for good, everything else is taken note of.
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
from ...log.blobs import incarnation_hex, put_blob
from ...log.events import INLINE_BYTES, AppendContext, Blob, NewEvent, encode_envelopes
from ...log.leases import RENEWALS, process
from ...log.log import Log
from ...log.operations import Operation
from ...log.stream_ops import new_append_context
from ..redaction import without_secrets
from ..state import events as ev
from ..state.fold import TaskState
from ..state.load import label_of, opened
from ..state.view import Drift
from ..steps.matching import Matching
from ..steps.progress import PROGRESS_SECONDS
from ..steps.usage import Usage
from .frames import Branch, current_frame

if TYPE_CHECKING:
    import asyncio

    from ..replay.recording import ReplayState
    from ..steps.progress import StepRun
    from ..steps.run import StepCall
    from .effects import Emit, Script

LAZY_SECONDS: Final = 1.0
"""The start of an ordinary step is written with the next append, or after this time."""

PATIENCE: Final = 30.0
"""How long a task waits for an engine that cannot be reached, before its caller hears of it (seconds)."""
FIRST_PAUSE: Final = 0.05

TRIES: Final = 1000

T = TypeVar("T")

logger = logging.getLogger("holdfast")

Change = tuple[str, ev.TaskEvent]
"""An event to write: its type and what it holds."""
Waiting = dict[str, "tuple[Change | StepRun, float]"]
"""What is to be written later, by step, and since when. The start of a step is told by its run."""


class Session:
    """What one holder knows, from its claim to the end of its block. Used by all threads that work on the task."""

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
        self.owner, self.lease, self._third = owner, lease, lease / RENEWALS
        self.lock = (
            threading.RLock()
        )  # a step that streams may be ended by the garbage collector, at any point
        self.matching = Matching(state)
        self.running: dict[str, StepRun] = {}
        self._busy: dict[tuple[str, str], int] = {}  # how many steps of a name run in a scope
        # Where the steps of a scope are asked for. Elsewhere too: then their order is a matter of chance.
        self._places: dict[str, tuple[int, object]] = {}
        self._waiters: list[
            tuple[str, Callable[[], object]]
        ] = []  # who waits until no step runs inside a scope
        self._paused: dict[str, Emit] = {}  # steps that stream, between two chunks
        self._leaving = False
        self._uncounted: dict[str, dict[object, list[int]]] = {}  # numbers of what came to nothing
        self.over: HoldfastError | None = None
        """Why this holder can write no more."""
        self.asynchronous = asynchronous
        self.opened_ended = state.ended
        self.run = None if state.ended else state.runs
        self.salt = state.salt.encode()[:64]
        self.incarnation_hex = incarnation_hex(incarnation)
        self.drift: list[Drift] = []
        self.names: set[str] = set()
        """Names of steps that are known to be good."""
        self._counts: dict[str, dict[object, int]] = {}
        if state.ended:
            self.over = TaskEnded(str(self.key), status=state.status)
        self.seen = state.version
        self.unsure = False
        """A write was cut off before its answer came: look at the stream before deciding anything."""
        self.before, self.waited = HeadFields(), ev.TaskSuspended()
        """How the task stood before it was claimed, and what it waited for."""
        self.untouched = True
        """Whether this holder has written nothing but that it is alive."""
        self.branch = Branch()
        self.waiting: dict[str, None] = {}
        """What this run waits for: ids of waits."""
        self.children: dict[str, None] = {}
        """Children that this run waits for."""
        self._asking: dict[str, str] = {}  # the questions of this run, by name
        self._look_at: float | None = None  # when to look after a child that somebody else runs
        self.recalled: dict[str, None] = {}
        """Texts of memories that the model was told in this run."""
        self._cut: set[str] = set()  # steps that had to wait in the middle
        self._taking: set[tuple[str, int]] = set()  # signals that a wait of this run is taking
        self.suspending = False
        """Some line of work waits, or the run is to stop at its next step."""
        self.stopping = ""
        """Why the run is to stop, if so."""
        self._below: set[Session] = set()  # of children that run inside this run
        self._forks = process.forks
        self._early: set[int] = set()  # versions after `seen` that are folded already
        self._later: Waiting = {}
        self._in_vain = False  # the engine was waited for, and did not come back
        self._offset = now - clock.monotonic()
        self.renewed_at = clock.monotonic()

    # -- asking ----------------------------------------------------------------------------------

    def is_here(self) -> bool:
        """Whether this is the process that holds it, and still inside the block."""
        return self._forks == process.forks and not isinstance(self.over, NoTask)

    replaying: ReplayState | None = None
    """Set while a program is run against what is recorded: nothing is done or written then."""

    def check(self, what: str = "write", asked: str = "to write") -> None:
        """Raise why this holder can write no more, if so. A replay tells what would have been written."""
        if self.replaying is not None:
            self.replaying.new("", what, asked)
        if self._forks != process.forks:
            raise LeaseLost(str(self.key), owner=self.owner)  # a fork: the parent holds it
        if self.over is not None:
            raise self.over

    def is_stale(self) -> bool:
        """Whether it must be asked if this is still the holder: the lease was not renewed in time, by our own clock."""
        return self.unsure or (
            self.run is not None and clock.monotonic() - self.renewed_at > self.lease
        )

    def check_here(self, *, ends: bool = False) -> None:
        """`check`, but for a task that had ended: what it did before is there to be read. `ends`: it is done, and may say so."""
        if not self.opened_ended and (self.over is not None or self._forks != process.forks):
            self.check()
        if self.suspending:
            self.check_waiting(ends)

    def check_waiting(self, ends: bool) -> None:
        """Raise `Suspended` again where the work waits, and if it is to stop and is not done."""
        if self.replaying is not None:
            self.replaying.check()
            return
        inside = current_frame()
        if inside is not None and inside.is_delicate():
            return
        branch = inside.branch if inside is not None and inside.session is self else self.branch
        if branch.is_suspended():
            self._cut_off()
            branch.check()
        if self.stopping and not ends:
            self.suspend(branch, self.stopping)

    def suspend(self, branch: Branch, why: str = "") -> NoReturn:
        """This line of work can do nothing more now."""
        with self.lock:
            self.suspending = True
            named = [self.state.waits.all[wait].event for wait in self.waiting]
            waits = [repr(event.name) if event.name else "a time" for event in named]
            waits += [f"child {child!r}" for child in self.children]
            branch.suspended = Suspended(str(self.key), waits=() if why else tuple(waits), why=why)
            self._cut_off()
        raise branch.suspended

    def _cut_off(self) -> None:
        """The steps that the running code is in did not get what they asked for: whatever they make of that, it is no outcome."""
        inside = current_frame()
        step = inside.run if inside is not None and inside.session is self else None
        while step is not None:
            self._cut.add(step.path)
            step = step.outer

    def check_cut(self, path: str, branch: Branch) -> None:
        """Raise `Suspended` again for a step that has swallowed it."""
        if path in self._cut:
            branch.check()

    def ask_alone(self, name: str, wait: str) -> None:
        """Two questions of one name cannot be open at once: whoever answers means one, and might hit the other."""
        with self.lock:
            other = self._asking.setdefault(name, wait)
            if other != wait and not self.state.waits.is_over(other):
                raise RuntimeError(
                    f"{self.key} asks {name!r} about something else already, in another item of a map, say; "
                    "give each question a name of its own"
                )
            self._asking[name] = wait

    def wait_for_child(self, child: str, until: float | None) -> None:
        """The run waits for a child; if somebody else runs it, it is looked at again when that one's lease is over."""
        with self.lock:
            self.children[child] = None
            if until is not None:
                self._look_at = min(until, self._look_at or until)

    def wait_as_before(self) -> None:
        """The run waits for what the task waited for before it."""
        with self.lock:
            self.waiting.update(dict.fromkeys(self.waited.waits))
            self.children.update(dict.fromkeys(self.waited.children))
            self._look_at = self.before.due_at

    def stop(self, why: str) -> None:
        """Let the run end at its next step, as if it had to wait."""
        with self.lock:
            self.stopping, self.suspending = why, True
            below = list(self._below)
        for session in below:
            session.stop(why)

    def has_child(self, session: Session) -> None:
        """A child runs inside this run: they stop together."""
        with self.lock:
            self._below.add(session)
        if self.stopping:
            session.stop(self.stopping)

    def had_child(self, session: Session) -> None:
        with self.lock:
            self._below.discard(session)

    def idempotency_key(self, identity: tuple[str, ...]) -> str:
        """A key for the other side of a step's effect, made from what the step is, not from when it was asked for.

        A path may have a number in it, which parallel steps get in the order in which they come; after a crash that may be
        another one. So steps without a key go into it with their arguments.
        """
        digest = sha256()
        for part in (self.key.tenant, self.key.id, self.incarnation_hex, *identity):
            raw = part.encode()
            digest.update(len(raw).to_bytes(8, "big") + raw)
        return digest.hexdigest()

    def identity(self, path: str) -> tuple[str, ...]:
        """What a running step is, from the outermost inwards."""
        run = self.running.get(path)
        return () if run is None else run.identity()

    def begin(self, run: StepRun, call: StepCall) -> bool:
        """A step runs. False if it was run since the call was made: two calls with one key are one step."""
        with self.lock:
            if self._leaving and call.scope not in self.running:
                raise NoTask(f"the block of {self.key} is being left; open it again to go on")
            known = self.state.steps.get(run.path)
            if run.path in self.running or (0 if known is None else known.version) != call.version:
                return False
            self.running[run.path] = run
            busy = self._busy.get((call.scope, call.name), 0)
            self._busy[call.scope, call.name] = busy + 1
            if self.asynchronous:
                run.worker = _current_worker()
            here = (threading.get_ident(), run.worker)
            run.beside = busy > 0 or self._places.setdefault(call.scope, here) != here
            if not call.declared.eager:
                self._later[run.path] = (run, clock.monotonic())  # an ordinary start can wait
            if call.scope:
                run.outer = self.running.get(call.scope)
        return True

    def entered_here(self) -> None:
        """The block's own steps are asked for here."""
        self._places[""] = (threading.get_ident(), _current_worker() if self.asynchronous else None)

    def end(self, run: StepRun) -> None:
        """A step runs no longer."""
        with self.lock:
            self.running.pop(run.path, None)
            self._busy[run.scope, run.name] -= 1
            self._places.pop(run.path, None)
            if self._waiters:
                for waiter in [waiter for waiter in self._waiters if not self._inside(waiter[0])]:
                    self._waiters.remove(waiter)
                    waiter[1]()

    def pause(self, emit: Emit, script: Script[Any]) -> None:
        """A step that streams waits until its next chunk is asked for."""
        emit.script = script
        with self.lock:
            self._paused[emit.path] = emit

    def go_on(self, emit: Emit) -> bool:
        """The next chunk is asked for, or no other will be. False if the step was given up meanwhile."""
        with self.lock:
            if self._paused.get(emit.path) is not emit:
                return False
            del self._paused[emit.path]
            return True

    def give_up(self, scope: str) -> list[Emit]:
        """The paused steps inside a scope, to be ended: nobody can wait until somebody asks for their next chunk."""
        with self.lock:
            return [
                self._paused.pop(run.path)
                for run in self._inside(scope)
                if run.path in self._paused
            ]

    def _inside(self, scope: str) -> list[StepRun]:
        """The steps that run inside a scope. Called with the lock held."""
        if not scope:
            return list(self.running.values())
        return [run for path, run in self.running.items() if path.startswith(scope + "/")]

    def tell_when_quiet(self, scope: str, tell: Callable[[], object]) -> list[asyncio.Task[Any]]:
        """Call `tell` when no step runs inside a scope any more, perhaps now. The asyncio tasks in which some still run."""
        with self.lock:
            if not scope:
                self._leaving = True
            still = self._inside(scope)
            if still:
                self._waiters.append((scope, tell))
            else:
                tell()
            return [run.worker for run in still if run.worker is not None]

    def wait_until_quiet(self, scope: str) -> None:
        """Return when no step runs inside a scope any more."""
        quiet = threading.Event()
        self.tell_when_quiet(scope, quiet.set)
        if not quiet.is_set():
            logger.info("steps of %s still run in other threads; waiting for them", self.key)
            quiet.wait()

    def count(self, scope: str, what: object) -> int:
        """How often this run has come to this, before."""
        with self.lock:
            if free := self._uncounted.get(scope, {}).get(what):
                return free.pop()
            counts = self._counts.setdefault(scope, {})
            found = counts.get(what, 0)
            counts[what] = found + 1
        return found

    def uncount(self, scope: str, what: object, number: int) -> None:
        """What was counted came to nothing: the next time is this time again."""
        with self.lock:
            self._uncounted.setdefault(scope, {}).setdefault(what, []).append(number)

    def counted(self, scope: str, what: object) -> int:
        """How often this run has come to this, without counting."""
        return self._counts.get(scope, {}).get(what, 0)

    @contextmanager
    def taking_signal(self, name: str) -> Iterator[int | None]:
        """The number of the next signal of a name, for the wait that takes it inside the block; None if there is none."""
        with self.lock:
            left = [
                each
                for each in self.state.waits.signals.get(name, ())
                if (name, each) not in self._taking
            ]
            taken = (name, min(left)) if left else None
            if taken is not None:
                self._taking.add(taken)
        try:
            yield None if taken is None else taken[1]
        finally:
            if taken is not None:
                with self.lock:
                    self._taking.discard(taken)

    def ask_again(self, path: str) -> None:
        """A step gave nothing: if it is called again, what it asks for inside is what it asked for before."""
        if path in self.matching.scopes or path in self._counts:
            self.begin_again(path)

    def begin_again(self, path: str) -> None:
        """A step is tried again in this run: what it asks for and says inside is what it did before."""
        with self.lock:
            self.matching.begin_again(path, self.running)
            for scope in [
                scope for scope in self._counts if scope == path or scope.startswith(path + "/")
            ]:
                del self._counts[scope]
                self._uncounted.pop(scope, None)

    def now(self) -> float:
        """The engine's time."""
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
        """Append changes, together with what has been waiting. `large` is the result of the last of them, kept apart.

        `unless` is called when everything that others have appended is known, and may raise. If the lease ends while the engine
        is waited for and somebody takes over, that is noticed.
        """
        return self.patiently(lambda: self._put(changes, stamp, fields, large, unless))

    def patiently(self, make: Callable[[], Operation[T]]) -> Operation[T]:
        """Do what an operation does. What a task has to tell was paid for: an engine that cannot be reached is waited for."""
        paused, pause = 0.0, FIRST_PAUSE
        while True:
            try:
                return (yield from make())
            except Unavailable:
                if self._in_vain or paused >= PATIENCE:
                    self._in_vain = (
                        True  # what comes next, that the run has failed for example, is tried once
                    )
                    raise
            if not paused:
                logger.warning("the engine cannot be reached; %s goes on when it can", self.key)
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
        waiting, told = self._take_waiting(changes)
        try:
            everything = [*map(_change, waiting.values()), *changes] if waiting else changes
            if self.log.redactor is not None:
                everything = [
                    (name, without_secrets(self.log.redactor, change))
                    for name, change in everything
                ]
            events: list[NewEvent] = []
            blobs: dict[bytes, Blob] = {}
            for name, change in everything:
                data = ev.encoded(change)
                events.append(NewEvent(name, data))
                if len(data) > INLINE_BYTES:
                    blobs[data] = yield from put_blob(self.key, self.incarnation_hex, data, stamp)
            bodies = encode_envelopes(events, stamp, blobs)
            for _ in range(TRIES):
                if self.over is not None or self._forks != process.forks:
                    self.check()
                if self.unsure:
                    yield from self.catch_up()
                if unless is not None:
                    unless()
                began = clock.monotonic()
                renewal = None
                if fields is not None:
                    renewal = fields()
                elif (
                    began - self.renewed_at >= self._third
                ):  # not with each: it costs more than none
                    renewal = self.fields("running")
                # An end is exclusive: nothing of this process may slip in behind it.
                request = ops.AppendRecords(
                    self.key,
                    bodies,
                    stamp,
                    None,
                    None,
                    self.seen,
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
                raise Conflict(str(self.key), expected=self.seen, actual=self.state.version)
        except BaseException as error:
            with self.lock:
                self._later = {**waiting, **told, **self._later}
                if not isinstance(error, HoldfastError) or isinstance(error, OutcomeUnknown):
                    self.unsure = True
            raise
        self._in_vain = False
        with self.lock:
            if renewal is not None:
                self.renewed_at = began
                if answer.now:
                    self._offset = answer.now - clock.monotonic()
            for version, (name, change) in enumerate(everything, answer.first):
                self._fold(version, stamp.at, name, change)
                if self.untouched and name not in (ev.RENEWED, ev.RECALLED):
                    self.untouched = False
        return answer

    def _fold(self, version: int, at: float, name: str, event: ev.TaskEvent) -> None:
        """Take note of a stored event, once. Called with the lock held."""
        if version <= self.seen or version in self._early:
            return
        self.state.apply(self.key, version, at, name, event)
        if version > self.seen + 1:
            self._early.add(version)
            return
        self.seen = version
        while self._early and self.seen + 1 in self._early:
            self.seen += 1
            self._early.remove(self.seen)

    def catch_up(self) -> Operation[None]:
        """Read what others have appended, and what this holder has without hearing of it."""
        head = yield from ops.head(self.key)
        if head is None or head.incarnation != self.incarnation:
            raise self._end(LeaseLost(str(self.key), owner=None))
        after = self.seen
        while page := (yield from ops.read(self.key, after=after)):
            for stored in page:
                name, event = yield from opened(self.key, stored)
                if isinstance(event, ev.Claimed) and event.owner != self.owner:
                    raise self._end(LeaseLost(str(self.key), owner=head.fields.owner))
                with self.lock:
                    self._fold(stored.version, stored.envelope.at, name, event)
            after = page[-1].version
        self.unsure = False
        self.renewed_at = max(
            self.renewed_at, clock.monotonic() - self.lease / 2
        )  # it is ours; a renewal is due
        if self.state.owner is None and not self.state.ended and self.over is None:
            raise self._end(NoTask(f"the block of {self.key} was left; open it again to go on"))
        if self.state.ended and self.over is None:
            raise self._end(TaskEnded(str(self.key), status=self.state.status))

    def _end(self, error: HoldfastError) -> HoldfastError:
        with self.lock:
            self.over = self.over or error
        return self.over

    # -- what can wait ---------------------------------------------------------------------------

    def put_later(self, path: str, change: Change | StepRun) -> None:
        """Write a change, or the start of a step, with the next append, or soon."""
        with self.lock:
            self._later[path] = (change, clock.monotonic())

    def recall(self, ids: Sequence[str], texts: Sequence[str]) -> None:
        """The model is told these memories. Written with the next append: what it makes of them cannot be stored before."""
        with self.lock:
            known = {**self.state.recalled, **self.recalled}
            new = [place for place, text in enumerate(texts) if text not in known]
            if not new or self.run is None or self.over is not None or self.replaying is not None:
                return
            self.recalled.update(dict.fromkeys(texts))
            told = ev.Recalled([ids[place] for place in new], [texts[place] for place in new])
        self.put_later(f"\0recalled{len(self.recalled)}", (ev.RECALLED, told))

    def unwritten_usage(self) -> Usage:
        """What steps that were cut off have used, and is not written yet."""
        with self.lock:
            changes = [change for change, _ in self._later.values() if isinstance(change, tuple)]
        used = [
            event.usage
            for _, event in changes
            if isinstance(event, ev.StepEvent) and event.usage is not None
        ]
        return sum(used, Usage())

    def _take_waiting(self, changes: Sequence[Change]) -> tuple[Waiting, Waiting]:
        """What has been waiting, but for the starts of steps of which these changes tell all."""
        with self.lock:
            waiting, self._later = self._later, {}
        told: Waiting = {}
        for _, event in changes:
            if (
                isinstance(event, ev.StepEvent)
                and event.since is not None
                and event.step in waiting
            ):
                told[event.step] = waiting.pop(event.step)
        return waiting, told

    # -- the lease -------------------------------------------------------------------------------

    def fields(
        self, status: str, *, due_at: float | None = None, expires_at: float | None = None
    ) -> HeadFields:
        """The head's fields for a status. `due_at`: when a worker is to look at it."""
        state, running = self.state, status == "running"
        doubt = any(step.in_doubt(None) for step in state.steps.values()) if not running else False
        label = label_of(state, doubt)
        due = self.now() + self.lease if running else due_at
        return HeadFields(status, label, self.owner if running else None, due, expires_at)

    def fields_of_waiting(self) -> HeadFields:
        """The head's fields while the task waits: due when one of the times comes, or now if it need not wait any more."""
        waits, now = self.state.waits, self.now()
        if waits.is_ready(self.waiting, self.children):
            return self.fields("pending", due_at=now)
        times = [time for time in (waits.wakes_at(self.waiting), self._look_at) if time is not None]
        # Not in the past: workers look for what has become due lately.
        return self.fields("suspended", due_at=max(min(times), now) if times else None)

    def save_progress(self) -> None:
        """Write how far the steps that run have got, now."""
        self.beat(after=0.0)

    def beat(self, after: float = PROGRESS_SECONDS) -> None:
        """Called about every second by the store's heartbeat thread: write what is due."""
        now = clock.monotonic()
        changes: list[Change] = []
        with self.lock:
            if self.over is not None:
                return
            lazy = any(now - since >= LAZY_SECONDS for _, since in self._later.values())
            runs = list(self.running.values())
        saved = [(run, change) for run in runs if (change := run.unsaved(after=after)) is not None]
        changes += [change for _, change in saved]
        if now - self.renewed_at >= self._third and not lazy and not changes:
            changes.append((ev.RENEWED, ev.Renewed(self.owner)))
        if lazy or changes:
            ops.run(
                self.log, self._put(changes, new_append_context())
            )  # once: the next beat is soon
            for run, change in saved:
                run.was_saved(change)


def _change(waiting: tuple[Change | StepRun, float]) -> Change:
    change, _ = waiting
    return change if isinstance(change, tuple) else (ev.STEP_STARTED, change.told())


def _current_worker() -> asyncio.Task[Any] | None:
    """The asyncio task that runs this; None in a thread without a loop."""
    import asyncio

    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
