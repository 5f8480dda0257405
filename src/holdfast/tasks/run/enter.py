"""Enter and leave a task's block: claim it, renew its lease, and give the lease back."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Final

from ...backends import StreamKey
from ...errors import HoldfastError, LeaseLost, NoTask, OutcomeUnknown, TaskEnded
from ...log import operations as ops
from ...log import telemetry
from ...log.drivers import EffectGen, NewDeadline, Sleep, drive
from ...log.events import new_append_context
from ...log.leases import RENEWALS_PER_LEASE, SETTLE_PAUSE, LeaseBlock, WithStatement, new_owner
from ...log.log import Log
from ..agents.declare import Agent
from ..control import lifecycle
from ..finish import end_run_gen, time_out_gen
from . import frames, sigterm
from .activity import record_lingering, report_lingering
from .claim import OpenOptions, declared_type, redact_options, wait_for_claim
from .frames import Frame, current_frame, frame
from .reports import RunStarted
from .session import Session, WaitForSteps

MAX_CRASHES: Final = 5

logger = logging.getLogger("holdfast")


class BlockEntry:
    """One entry of a task's block. The owner is recorded here before it takes the lease."""

    __slots__ = ("error", "is_leaving", "owner", "session", "statement")

    def __init__(self, owner: str, statement: WithStatement) -> None:
        self.owner, self.statement = owner, statement
        self.session: Session | None = None
        """The session, once the task is claimed."""
        self.is_leaving = False
        self.error: BaseException | None = None
        """The exception that left the block."""


class EnterableTask(LeaseBlock):
    """A task's key, the options it is opened with, and the session once it is entered."""

    def __init__(
        self, log: Log, key: StreamKey, options: OpenOptions, input: object, asynchronous: bool
    ) -> None:
        self._input_type = declared_type(input)
        self._log, self._key = log, key
        self._options = redact_options(log, options, self._input_type)
        self._asynchronous = asynchronous
        self._session: Session | None = None
        self._entry: BlockEntry | None = None
        self._warned = False
        self._max_attempts = 0
        """After this many failed runs in a row an operator must act; 0 if no worker runs it."""
        self._max_crashes = MAX_CRASHES
        """The task is stuck after this many crashes in a row."""
        self._agent: Agent[Any, Any] | None = None
        """The agent that runs the task, if any."""
        self._inline = False
        """Whether the parent task is running this one, and so sees how it ends."""
        self._interrupted = False

    def _note_interrupt(self) -> None:
        """Note that a signal ends the run, before an async one is cancelled for it."""
        self._interrupted = True

    def _is_run_by_worker(self) -> bool:
        """Return whether a worker runs the task, or a parent that a worker runs."""
        outer = (
            self._session.block.outer_frame if self._inline and self._session is not None else None
        )
        return self._max_attempts > 0 or (outer is not None and outer.task._is_run_by_worker())

    def _require_session(self) -> Session:
        if self._session is None:
            raise NoTask(
                "the task is not entered; use `with store.task(id) as task:`, or `async with`"
            )
        return self._session

    def _new_entry(self) -> BlockEntry:
        """Return a new entry of the block. Raise if the block is entered already."""
        if self._session is not None and self._session.is_active():
            raise RuntimeError("this task object is already entered; open the task again instead")
        outer = current_frame()
        if outer is not None and outer.session.key == self._key and outer.session.log is self._log:
            raise RuntimeError(
                f"{self._key} is already open in this call stack; opening it again would deadlock"
            )
        owner = new_owner()
        entry = BlockEntry(owner, self._new_statement(owner))
        self._log.heartbeat.register(
            owner,
            min(1.0, self._options.lease / RENEWALS_PER_LEASE),
            partial(self._beat, entry),
            entry.statement,
        )
        return entry

    def _enter_gen(self, entry: BlockEntry) -> EffectGen[None]:
        """Claim the task, and create the session."""
        heartbeat = self._log.heartbeat
        try:
            claim = yield from wait_for_claim(
                self._key, self._options, entry.owner, heartbeat.find_abandoned
            )
            if not claim.state.ended:
                yield from self._call_claim_hooks(claim.incarnation)
        except Exception as error:
            if not isinstance(error, OutcomeUnknown):  # else the claim may be stored
                self._close_block(entry)
            raise
        session = Session(
            self._log,
            claim.state,
            claim.incarnation,
            entry.owner,
            self._options.lease,
            claim.now,
            claim.asked_at,
            self._asynchronous,
        )
        session.block.statement = entry.statement
        session.suspension.head_before, session.suspension.waits_before = claim.before, claim.waited
        self._resumed = claim.state.runs > 1
        self._session, self._entry, entry.session = session, entry, session
        if telemetry.listeners and not session.was_ended:
            telemetry.emit(RunStarted(session.state, session.incarnation))

    def _call_claim_hooks(self, incarnation: bytes) -> EffectGen[None]:
        """Tell the notifiers. Their failure must not keep the task from running."""
        for hook in tuple(self._log.claim_hooks):  # a worker that stops removes its own
            try:
                yield from ops.settle(partial(hook, self._key, incarnation))
            except HoldfastError as error:
                logger.warning(
                    "could not mark %s for notifications (%s)", self._key, type(error).__name__
                )
                yield NewDeadline()

    def _begin_block(self, entry: BlockEntry) -> None:
        """Make the running code run inside the task, and start to renew its lease."""
        self._enter_frame()
        session = self._require_session()
        if session.was_ended:
            self._log.heartbeat.remove(session.lease.owner)
        else:
            self._log.heartbeat.start(session.lease.owner)
            sigterm.install(session.lease.owner, entry.statement)

    def _enter_frame(self) -> None:
        session = self._require_session()
        outer = frame.get()
        session.block.enter(outer)
        inside = Frame(self, session, session.suspension.branch)  # type: ignore[arg-type]  # a Task or an AsyncTask
        frame.set(inside)
        if frames.tracer is not None:
            session.block.outside = frames.tracer.enter(inside)
        if self._inline and outer is not None and not outer.inside_guarded_step():
            outer.session.suspension.add_child(session)

    def _beat(self, entry: BlockEntry) -> None:
        """Renew the lease, or release it if the block was left without doing so."""
        session, abandoned = entry.session, entry.statement.guard() is None
        try:
            if abandoned and (session is None or not session.steps.is_busy()):
                self._release_abandoned(entry)
            elif session is not None:
                self._beat_session(session)
            self._warned = False
        except LeaseLost:
            if abandoned:
                self._close_block(entry)
            logger.warning(
                "lost the lease on %s; its work in this process stops at the next write", self._key
            )
        except TaskEnded as ended:
            if abandoned:
                self._close_block(entry)
            if ended.status == "cancelled":
                logger.info(
                    "%s was cancelled; its work in this process stops at the next write", self._key
                )
        except NoTask:
            pass  # the block was left a moment ago
        except HoldfastError as error:
            if not self._warned:  # once, not every second while the database is unreachable
                logger.warning(
                    "could not renew the lease on %s (%s)", self._key, type(error).__name__
                )
            self._warned = True

    def _beat_session(self, session: Session) -> None:
        """Renew the lease of a session; end the task if its time limit is over."""
        if session.block.closed_error is not None:
            report_lingering(session)
        elif session.is_past_deadline():
            drive(self._log, time_out_gen(self, session))  # type: ignore[arg-type]  # a Task or an AsyncTask
        else:
            session.beat()

    def _release_abandoned(self, entry: BlockEntry) -> None:
        """Release the lease of a block that was left without doing so, from any thread."""
        if self._owns_lease(entry):
            drive(self._log, self._release_gen(entry))

    def _owns_lease(self, entry: BlockEntry) -> bool:
        """Return whether the lease may still have to be released."""
        return self._log.heartbeat.is_registered(entry.owner)

    def _must_release(self, entry: BlockEntry) -> bool:
        """Return whether an interrupted block must release its lease now.

        If it cannot, or is interrupted again, the heartbeat does it once the guard has died.
        """
        self._log.heartbeat.start(entry.owner)
        return self._owns_lease(entry) and (
            entry.session is None or not entry.session.steps.is_busy()
        )

    def _log_release_failure(self, error: HoldfastError) -> None:
        logger.warning("could not release the lease on %s (%s)", self._key, type(error).__name__)

    def _release_gen(self, entry: BlockEntry) -> EffectGen[None]:
        """Release the lease of a block that was interrupted while it was entered or left."""
        while self._log.is_settling(self._key):  # the claim may be on its way
            yield Sleep(SETTLE_PAUSE)
        if entry.session is not None:
            if not entry.is_leaving:
                entry.error = KeyboardInterrupt()
            entry.session.writer.give_up_retries()  # the heartbeat tries again
            yield from self._leave_gen(entry)
            return
        stamp = new_append_context()
        yield from ops.settle(lambda: lifecycle.release_claim(self._key, entry.owner, stamp))
        self._close_block(entry)

    def _end_block(self, error: BaseException | None) -> BlockEntry:
        """Note how the block is left. Raise inside a step: leaving would wait for that step."""
        session = self._require_session()
        inside = current_frame()
        if inside is not None and inside.session is session and inside.run is not None:
            raise RuntimeError(
                f"{self._key} cannot be left from inside one of its own steps: it would deadlock"
            )
        assert self._entry is not None
        self._entry.error, self._entry.is_leaving = error, True
        return self._entry

    def _get_statement(self) -> WithStatement | None:
        return None if self._entry is None else self._entry.statement

    def _leave_gen(self, entry: BlockEntry) -> EffectGen[None]:
        """Record how the run ended, release the lease, and close the session."""
        session = entry.session
        if session is None or not session.block.is_open():
            if session is not None and session.block.is_forked():
                session.check_writable()  # raises: the parent process has the lease
            return
        try:
            # Steps that still run must end before another process can own the lease.
            yield WaitForSteps(session)
            # Without an owner the run has ended: an interrupt came right after that was recorded.
            if session.block.closed_error is None and session.state.owner is not None:
                yield from end_run_gen(self, session, entry.error)  # type: ignore[arg-type]  # a Task or an AsyncTask
        except NoTask:
            pass  # it was recorded, but not known here
        except TaskEnded as ended:
            if ended.status != "finished":  # only this run can have finished it
                raise
        if session.block.lingers:
            facts = self._key, session.incarnation, session.lease.owner, list[str]()
            stamp = new_append_context()
            yield from ops.settle(lambda: record_lingering(*facts, stamp))
        self._close_block(entry)

    def _handle_leave_error(self, entry: BlockEntry, problem: Exception) -> None:
        """Close the block although its end could not be recorded. The lease expires."""
        self._close_block(entry)
        if entry.error is None or not isinstance(problem, HoldfastError):
            raise problem
        logger.warning("could not record how %s ended (%s)", self._key, type(problem).__name__)

    def _close_block(self, entry: BlockEntry) -> None:
        """Stop renewing the lease, and refuse all later calls."""
        self._log.heartbeat.remove(entry.owner)
        entry.statement.close()
        if entry.session is not None:
            entry.session.block.leave()

    def _exit_frame(self) -> None:
        """Take the running code out of the task."""
        session = self._session
        if session is None:
            return
        found, outer = frame.get(), session.block.outer_frame
        # Blocks may not be left in the reverse order of entering them.
        while outer is not None and outer.session.block.was_left():
            outer = outer.session.block.outer_frame
        if found is not None and found.session is session:
            frame.set(outer)
        session.block.frame_left = True
        if session.block.outside is not None and frames.tracer is not None:
            frames.tracer.leave(session.block.outside)
        if self._inline and session.block.outer_frame is not None:
            session.block.outer_frame.session.suspension.remove_child(session)
        sigterm.uninstall(session.lease.owner)
        self._own_guard = None

    def _close_session(self, session: Session, status: str) -> None:
        self._log.heartbeat.remove(session.lease.owner)
        session.block.end(status)

    def _close_deleted(self) -> None:
        """Close the session of a deleted task, whose lease is gone."""
        session = self._session
        if session is not None and session.is_active():
            self._close_session(session, "deleted")
