"""The base of `Task` and `AsyncTask`: properties, and one generator behind each method."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..backends import HeadFields, StreamKey
from ..errors import Expired, HoldfastError, LeaseLost, NoTask, NotFound, SchemaMismatch, TaskEnded
from ..log import operations as ops
from ..log.codec import Undecodable, decode, decode_as, encode_as
from ..log.ids import check_id, stream_key
from ..log.leases import RENEWALS_PER_LEASE, new_owner
from ..log.log import Log
from ..log.operations import Operation
from ..log.operations.stream_ops import new_append_context
from ..log.validation import check_int
from .agents import children
from .agents.declare import Remember, find_agent, registered_agents
from .agents.run import child_step
from .control import lifecycle
from .control.inbox import report_child_ended
from .ending import RunFacts, decide_ending
from .plan import check_plan, merge_plan
from .run import sigterm
from .run.claim import (
    TASK_TTL,
    Claim,
    OpenOptions,
    check_open_options,
    check_text,
    declared_type,
    redact_options,
    wait_for_claim,
)
from .run.effects import CallFunction, RunOperation, TaskGen, WaitForSteps
from .run.frames import Frame, current_frame, frame
from .run.session import Session
from .state import events as ev
from .state import load
from .state.fold import plan_item_name, plan_step_paths
from .state.view import PlanItem, Status, TaskView
from .steps.declare import UNRESOLVED, Step, is_async, to_step
from .steps.fingerprints import fingerprint
from .steps.run import await_gen, error_text, find_failed_steps, retry_delay, run_step_gen
from .steps.usage import Usage

if TYPE_CHECKING:
    from ..conversations.tokens import Counter
    from ..memory.model import MemoryItem
    from ..memory.trust import Trust
    from ..memory.vectors.calls import EmbedGen as Waits
    from .resume_context.context import ResumeContext

MAX_REPORTED: Final = 100
"""Orphaned steps, and drifts, that the end of a run records at most."""
FIRST_PLAN: Final = "plan"
MAX_CRASHES: Final = 5

logger = logging.getLogger("holdfast")


class TaskBase:
    """A task's key, the options it is opened with, and the session once it is entered."""

    def __init__(
        self, log: Log, key: StreamKey, options: OpenOptions, input: object, asynchronous: bool
    ) -> None:
        self._input_type = declared_type(input)
        self._log, self._key = log, key
        self._options = redact_options(log, options, self._input_type)
        self._asynchronous = asynchronous
        self._session: Session | None = None
        self._outer_frame: Frame | None = None
        self._handles_sigterm = False
        self._warned = False
        self._max_attempts = 0
        """How many runs in a row may fail before an operator must act; 0 if no worker runs it."""
        self._max_crashes = MAX_CRASHES
        """After how many crashes in a row the task is stuck."""
        self._remember: Remember | None = None
        """What the task saves to memory, if the agent that runs it declares it."""
        self._inline = False
        """Whether the parent task runs it, and so sees how it ends."""

    @property
    def id(self) -> str:
        return self._key.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._key.id!r}>"

    # -- entering and leaving ----------------------------------------------------------------------

    def _enter_gen(self) -> TaskGen[None]:
        if self._session is not None and self._session.is_active():
            raise RuntimeError("this task object is already entered; open the task again instead")
        outer = current_frame()
        if outer is not None and outer.session.key == self._key and outer.session.log is self._log:
            raise RuntimeError(
                f"{self._key} is already open in this call stack; opening it again would deadlock"
            )
        owner = new_owner()
        try:
            claim: Claim = yield from wait_for_claim(self._key, self._options, owner)
        except (Exception, GeneratorExit):
            raise
        except BaseException:  # interrupted, maybe after the claim was stored: release it
            stamp = new_append_context()
            yield RunOperation(lambda: lifecycle.release_claim(self._key, owner, stamp))
            raise
        self._session = Session(
            self._log,
            claim.state,
            claim.incarnation,
            owner,
            self._options.lease,
            claim.now,
            self._asynchronous,
        )
        self._session.head_before, self._session.waits_before = claim.before, claim.waited
        self._resumed = claim.state.runs > 1

    def _enter_frame(self) -> None:
        """Make the running code run inside the task, and start to renew its lease."""
        session = self._require_session()
        self._outer_frame = frame.get()
        session.set_block_caller()
        frame.set(Frame(self, session, session.branch))  # type: ignore[arg-type]  # a Task or an AsyncTask
        if not session.was_ended:
            self._log.heartbeat.add(
                session.owner, min(1.0, session.lease / RENEWALS_PER_LEASE), self._beat
            )
            self._handles_sigterm = sigterm.install()
        if (
            self._inline
            and self._outer_frame is not None
            and not self._outer_frame.inside_guarded_step()
        ):
            self._outer_frame.session.add_child(session)

    def _beat(self) -> None:
        session = self._require_session()
        try:
            session.beat()
            self._warned = False
        except LeaseLost:
            logger.warning(
                "lost the lease on %s; its work in this process stops at the next write", self._key
            )
        except TaskEnded as ended:
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

    def _leave_gen(self, error: BaseException | None) -> TaskGen[None]:
        session = self._require_session()
        # Steps that still run must end before another process can own the lease.
        if session.is_active():
            yield WaitForSteps(session)
        self._log.heartbeat.remove(session.owner)
        if session.closed_error is None:
            name, event, fields = self._end_run(session, error)
            try:
                if isinstance(event, ev.Failed) and event.retry_at is None:
                    yield from self._notify_parent_gen("failed")
                    if self._max_attempts:  # otherwise the caller sees why it failed
                        yield from self._remember_failure_gen(
                            event.type, event.message, author="tool"
                        )
                yield RunOperation(
                    lambda: session.put([(name, event)], new_append_context(), fields=fields)
                )
            except HoldfastError as problem:
                if error is None:
                    raise
                logger.warning(
                    "could not record how %s ended (%s)", self._key, type(problem).__name__
                )

    def _check_not_in_step(self) -> None:
        """Raise `RuntimeError` inside a step of this task: leaving would wait for that step."""
        inside = current_frame()
        if inside is not None and inside.session is self._session and inside.run is not None:
            raise RuntimeError(
                f"{self._key} cannot be left from inside one of its own steps: it would deadlock"
            )

    def _end_run(
        self, session: Session, error: BaseException | None
    ) -> tuple[str, ev.TaskEvent, Callable[[], HeadFields]]:
        """Return the event that ends the run, its type, and how to make the head's fields."""
        drift, failures = _drift_rows(session), session.state.failures + 1
        ending = decide_ending(
            RunFacts(
                str(self._key),
                error,
                session.now(),
                session.head_before,
                has_agent=session.state.agent is not None,
                by_worker=self._max_attempts > 0,
                retry_at=session.now() + retry_delay(failures)
                if failures < self._max_attempts
                else None,
                suspended=session.branch.suspended is not None,
                stopping=bool(session.stop_reason),
                untouched=session.untouched,
                ran_steps=bool(session.matching.requested),
            )
        )
        if ending.outcome == "suspended":
            suspended = ev.TaskSuspended(list(session.waiting_for), list(session.waiting_children))
            return ev.SUSPENDED, suspended, session.waiting_head_fields
        if ending.outcome == "restored":
            session.restore_waits()
            return ev.SUSPENDED, session.waits_before, session.waiting_head_fields
        event: ev.TaskEvent
        if ending.outcome == "failed" and error is not None:
            message = error_text(error) if isinstance(error, Exception) else ""
            event = ev.Failed(
                type(error).__name__,
                self._log.redaction.redact_error(message),
                find_failed_steps(error, str(self._key)),
                drift=drift,
                retry_at=ending.due_at,
            )
        elif ending.outcome == "stopped":
            event = ev.Released(drift=drift, why="stopped")
            return ev.RELEASED, event, lambda: session.head_fields("pending", due_at=session.now())
        elif ending.outcome == "viewed":
            event = ev.Released(unchanged=True)
        elif error is not None:
            event = ev.Released(drift=drift, why=type(error).__name__)
        else:
            event = ev.Released(session.matching.orphaned()[:MAX_REPORTED], drift)
        name = ev.FAILED if ending.outcome == "failed" else ev.RELEASED
        return name, event, lambda: session.head_fields(ending.status, due_at=ending.due_at)

    def _exit_frame(self) -> None:
        """Take the running code out of the task, and stop renewing the lease."""
        found, outer = frame.get(), self._outer_frame
        # Blocks may be left in another order than they were entered.
        while outer is not None and isinstance(outer.session.closed_error, NoTask):
            outer = outer.task._outer_frame
        if found is not None and found.session is self._session:
            frame.set(outer)
        session = self._require_session()
        if self._inline and self._outer_frame is not None:
            self._outer_frame.session.remove_child(session)
        self._log.heartbeat.remove(session.owner)
        if self._handles_sigterm:
            self._handles_sigterm = False
            sigterm.uninstall()
        with session.lock:
            session.closed_error = NoTask(
                f"the block of {self._key} was left; open it again to continue"
            )

    def _require_session(self) -> Session:
        if self._session is None:
            raise NoTask(
                "the task is not entered; use `with store.task(id) as task:`, or `async with`"
            )
        return self._session

    # -- properties --------------------------------------------------------------------------------

    @property
    def goal(self) -> str | None:
        """The goal of the task."""
        return self._require_session().state.goal

    @property
    def input(self) -> Any:
        """The input of the task, of the type it was opened with; plain JSON values by default."""
        try:
            return decode_as(self._require_session().state.input, self._input_type)
        except Undecodable as error:
            raise SchemaMismatch(str(self._key), version=1, type="input", what=str(error)) from None

    @property
    def agent(self) -> str | None:
        """The name of the agent that runs the task."""
        return self._require_session().state.agent

    @property
    def status(self) -> Status:
        """`running` inside the task's block, or how the task ended."""
        return self._require_session().state.status

    @property
    def resumed(self) -> bool:
        """Whether an earlier run started the task."""
        return self._require_session() is not None and self._resumed

    @property
    def cancelled(self) -> bool:
        """Whether the task was cancelled, as far as this process knows.

        It notices a cancellation by another process within a third of the lease.
        """
        return self._require_session().state.status == "cancelled"

    @property
    def usage(self) -> Usage:
        """What the model calls of the task's steps have used so far, in all runs."""
        return self._require_session().state.usage

    @property
    def plan(self) -> list[PlanItem]:
        """All items of the plan, finished or not."""
        return deepcopy(self._require_session().state.plan)

    @property
    def result(self) -> Any:
        """The result as plain JSON values; None until the task is finished."""
        return decode(self._require_session().state.result)

    @property
    def in_doubt(self) -> list[str]:
        """The paths of the steps whose outcome is unknown."""
        session = self._require_session()
        with session.lock:
            return [
                path
                for path, step in session.state.steps.items()
                if step.in_doubt(None) and path not in session.running
            ]

    def remaining(self) -> Iterator[Any]:
        """Iterate over the items of the plan that are not finished.

        Items that `replan` adds during the loop are included.

        Returns:
            An iterator of items as they are in the plan: names, or dicts with a `name`.

        Raises:
            NoTask: The task is not entered.

        Example:
            >>> for item in task.remaining():
            ...     task.step(item, execute, item)
        """
        session = self._require_session()
        state, given = session.state, set[str]()
        places: dict[str, int] = {}
        left: list[str] = []
        while True:
            with session.lock:
                if state.plan_paths is not places:  # at first, and after a replan
                    places = state.plan_paths
                    left = list(reversed(places))
                item = None
                while left and item is None:
                    path = left.pop()
                    step = state.steps.get(path)
                    done = step is not None and step.state == "completed"
                    if done and (
                        session.replaying is None or not session.replaying.is_unrequested(path)
                    ):
                        session.matching.requested.add(path)  # the loop requested it: not orphaned
                    elif path not in given:
                        given.add(path)
                        item = deepcopy(state.plan[places[path]])
            if item is None:
                return
            yield item

    def _results_gen(self) -> Operation[dict[str, Any]]:
        session = self._require_session()
        return load.load_results(
            session.state, None if session.replaying is None else session.replaying.replayed
        )

    # -- steps -------------------------------------------------------------------------------------

    def _scope(self) -> str:
        """Return the path of the step of this task that the running code is in, or ""."""
        inside = current_frame()
        return inside.path if inside is not None and inside.session is self._session else ""

    def _step_gen(
        self, name: object, fn: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]
    ) -> TaskGen[Any]:
        session = self._session or self._require_session()
        if type(name) is not str or name not in session.valid_names:
            if not isinstance(name, str) and not ev.is_plan_item(name):
                raise TypeError(
                    f"a step's name must be text or an item of the plan, got {type(name).__name__}"
                )
            session.valid_names.add(check_id(plan_item_name(name), "a step's name"))  # type: ignore[arg-type]  # it is an item
        declared = fn if type(fn) is Step else to_step(fn)
        return self._call_gen(declared, current_frame(), name, args, kwargs)  # type: ignore[arg-type]  # the same

    def _call_gen(
        self,
        declared: Step[Any, Any],
        inside: Frame | None,
        item: PlanItem,
        args: Any,
        kwargs: Mapping[str, Any],
    ) -> TaskGen[Any]:
        session = self._session or self._require_session()
        scope, branch = "", session.branch
        if inside is not None:
            if inside.in_check and not declared.mode:
                return self._evaluate_gen(declared.fn, (*declared.instance, *args), kwargs)
            if inside.session is session:
                scope, branch = inside.path, inside.branch
        if declared.is_async and not self._asynchronous:
            raise TypeError(
                f"step {declared.name!r} is async and this task is not; "
                "open it with `async with store.aio.task(…)`"
            )
        return run_step_gen(session, self, branch, declared, scope, item, args, kwargs)  # type: ignore[arg-type]  # a Task or an AsyncTask

    def _reply_gen(
        self, chat: object, fn: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]
    ) -> TaskGen[Any]:
        from .steps.reply import reply_step

        declared = reply_step(self, chat, fn)
        return self._call_gen(
            declared, current_frame(), declared.name, (declared.conversation, *args), kwargs
        )

    # -- children ----------------------------------------------------------------------------------

    def _child_gen(
        self,
        given: str | Callable[..., Any],
        id: str,
        goal: str | None,
        input: object,
        returns: Any,
    ) -> TaskGen[Any]:
        """Return the result of a child task."""
        agent = find_agent(given)
        if registered_agents.get(agent.name) is not agent:
            raise TypeError(
                "the agent of a child must be registered, so that a worker can resume it: "
                f"@holdfast.agent({agent.name!r})"
            )
        key = self._child_key(id)
        subject = self._require_session().state.subject
        options = check_open_options(
            goal, input, agent.name, agent.lease, 0.0, False, TASK_TTL, False, subject=subject
        )
        returns = agent.returns if returns is UNRESOLVED else returns
        declared = child_step(self, agent, options, key.id, returns)
        return self._call_gen(declared, current_frame(), agent.name, (goal, input), {})

    # -- the plan ----------------------------------------------------------------------------------

    def _plan_gen(
        self, given: Any, args: Any, kwargs: Mapping[str, Any], again: bool
    ) -> TaskGen[list[PlanItem]]:
        session = self._require_session()
        session.check_active()
        if session.needs_catch_up:
            yield RunOperation(session.catch_up)
        plan_id = FIRST_PLAN
        if again:
            arguments = (args, kwargs) if callable(given) else ((given,), {})
            digest = fingerprint(session.salt, *arguments)
            number = session.take_number(self._scope(), ("replan", digest))
            plan_id = f"{digest}/{number}"
        if session.replaying is not None:
            return deepcopy(session.replaying.plan(plan_id, given, check_plan))
        if plan_id in session.state.plans:
            return deepcopy(session.state.plans[plan_id])
        session.check_writable()
        try:
            items = check_plan(
                self._log.redaction.redact_value(
                    check_plan((yield from self._evaluate_gen(given, args, kwargs)))
                )
            )
            if again:
                with session.lock:
                    state = session.state
                    old = {path: state.plan[place] for path, place in state.plan_paths.items()}
                    steps = {
                        path: step.state == "completed" or step.in_doubt(None)
                        for path, step in state.steps.items()
                    }
                items, paths = merge_plan(old, steps, items)
            planned = ev.Planned(
                plan_id, items, paths if again and paths != plan_step_paths(items) else []
            )
            yield RunOperation(lambda: session.put([(ev.PLANNED, planned)], new_append_context()))
        except BaseException:
            if again:
                session.release_number(self._scope(), ("replan", digest), number)
            raise
        return deepcopy(items)

    def _evaluate_gen(self, given: Any, args: Any, kwargs: Mapping[str, Any]) -> TaskGen[Any]:
        """Return the given value, or what the given function returns."""
        if not callable(given):
            if args or kwargs:
                raise TypeError("arguments must go with a function; a value takes none")
            return given
        awaits = is_async(given)
        if awaits and not self._asynchronous:
            raise TypeError(
                "an async function cannot run in a synchronous task; "
                "open it with `async with store.aio.task(…)`"
            )
        value = yield CallFunction(given, args, kwargs, None, awaits)
        if hasattr(value, "__await__"):
            value = yield from await_gen(self._require_session(), value, None)
        return value

    # -- notes -------------------------------------------------------------------------------------

    def _note_gen(self, name: str, text: str, why: str | None) -> TaskGen[None]:
        session = self._require_session()
        check_text(text, "what")
        if why is not None:
            check_text(why, "why")
        session.check_active()
        scope = self._scope()
        digest = fingerprint(session.salt, (name, scope, text, why), {})
        if session.needs_catch_up:
            yield RunOperation(session.catch_up)
        number = session.take_number(scope, (name, digest))
        note_id = f"{digest}/{number}"
        if session.replaying is not None:
            session.replaying.note(name, note_id)
        if note_id not in session.state.noted:
            noted = ev.Noted(note_id, text, why, scope)
            try:
                yield RunOperation(lambda: session.put([(name, noted)], new_append_context()))
            except BaseException:
                session.release_number(scope, (name, digest), number)
                raise

    def _remember_gen(self, text: str, **options: Any) -> TaskGen[str]:
        from . import memory

        return memory.remember(self, text, options)

    # -- ending ------------------------------------------------------------------------------------

    def _finish_gen(
        self,
        given: Any,
        args: Any,
        kwargs: Mapping[str, Any],
        returned: Any = UNRESOLVED,
        remember: Remember | None = None,
    ) -> TaskGen[Any]:
        """Finish the task. `returned` is the type of `given` if an agent returned it."""
        from . import memory

        session = self._require_session()
        memory.check_remember_option(self, remember)
        if returned is UNRESOLVED:
            declared = to_step(given).returns if callable(given) else declared_type(given)
        else:
            declared = declared_type(given) if returned is Any else returned
        if session.replaying is not None:
            is_value = returned is not UNRESOLVED or not callable(given)
            session.replaying.finish(
                self._log.redaction.redact_json(encode_as(given, declared)) if is_value else None
            )
        elif not session.was_ended:
            session.check_active(ends=True)
            value = (
                given
                if returned is not UNRESOLVED
                else (yield from self._evaluate_gen(given, args, kwargs))
            )
            raw = self._log.redaction.redact_json(encode_as(value, declared), declared)
            yield from memory.save_ending(self, remember, result=raw)
            state = session.state
            orphaned = session.matching.orphaned()[:MAX_REPORTED]
            finished = ev.Finished(orphaned, _drift_rows(session), msgspec.Raw(raw))
            expires = None if state.ttl is None else session.now() + state.ttl
            reports = state.parent is not None and not self._inline
            fields = session.head_fields(
                "finished", due_at=session.now() if reports else None, expires_at=expires
            )
            yield RunOperation(
                lambda: session.put(
                    [(ev.FINISHED, finished)], new_append_context(), fields=lambda: fields
                )
            )
            self._close_session(session, "finished")
            if reports:
                yield from children.report_end(self._key)
            undone = sum(path not in session.matching.requested for path in state.plan_paths)
            if undone:
                logger.warning(
                    "%s finished, but %d items of its plan were never run with task.step(item, …)",
                    self._key,
                    undone,
                )
        elif session.state.status != "finished":
            session.check_writable()
        try:
            return decode_as(session.state.result, declared)
        except Undecodable as error:
            raise SchemaMismatch(
                str(self._key),
                version=session.state.version,
                type="the task's result",
                what=str(error),
            ) from None

    def _fail_gen(self, reason: str) -> TaskGen[None]:
        session = self._require_session()
        session.check_active()
        reason = self._log.redaction.redact_text(check_text(reason, "reason"))
        failed = ev.Failed("fail", reason)
        if session.replaying is not None:
            session.replaying.fail(reason)
            return
        session.check_writable()
        yield from self._notify_parent_gen("failed")
        yield from self._remember_failure_gen("", reason, author="model")
        yield RunOperation(
            lambda: session.put(
                [(ev.FAILED, failed)],
                new_append_context(),
                fields=lambda: session.head_fields("failed"),
            )
        )
        self._close_session(session, "failed")

    def _remember_failure_gen(self, type: str, message: str, *, author: str) -> TaskGen[None]:
        """Save a failure to memory. If that fails, log it: recording the failure matters more.

        `author` is the source of the message. The message of an exception may quote a server's
        response, so its author is "tool".
        """
        from . import memory

        try:
            yield from memory.save_ending(self, None, failure=(type, message), author=author)
        except LeaseLost:
            raise
        except Exception as problem:
            logger.warning(
                "could not save the failure of %s to memory (%s)",
                self._key,
                problem.__class__.__name__,
            )

    def _notify_parent_gen(self, status: str) -> TaskGen[None]:
        """Report to a waiting parent that no worker will resume this task by itself.

        The report comes before the end is recorded: a crash in between must not lose it. A parent
        that looks too early finds the task leased, and looks again later.
        """
        session = self._require_session()
        parent, stamp = session.state.parent, new_append_context()
        if parent is not None and not self._inline:
            above = self._key._replace(id=parent.id)
            yield RunOperation(
                lambda: report_child_ended(above, parent.incarnation, self._key.id, status, stamp)
            )

    def _mark_stuck_gen(self) -> TaskGen[None]:
        """End automatic runs: the processes that ran the task died, one after the other."""
        session = self._require_session()
        stuck = ev.MarkedStuck(session.state.crashes)
        yield from self._notify_parent_gen("stuck")
        yield from self._remember_failure_gen(
            "", f"its process died {stuck.crashes} times in a row", author="system"
        )
        yield RunOperation(
            lambda: session.put(
                [(ev.STUCK, stuck)],
                new_append_context(),
                fields=lambda: session.head_fields("stuck"),
            )
        )
        self._close_session(session, "stuck")

    def _cancel_gen(self, reason: str | None) -> TaskGen[None]:
        if reason is not None:
            reason = self._log.redaction.redact_text(check_text(reason, "reason"))
        yield from children.cancel_with_children(self._log, self._key, reason)
        session = self._session
        if session is not None and session.is_active() and not session.was_ended:
            session.state.status = "cancelled"
            self._close_session(session, "cancelled")

    def _close_deleted(self) -> None:
        """Close the session of a deleted task, whose lease is gone."""
        session = self._session
        if session is not None and session.is_active():
            self._close_session(session, "deleted")

    def _close_session(self, session: Session, status: str) -> None:
        self._log.heartbeat.remove(session.owner)
        with session.lock:
            session.closed_error = session.closed_error or TaskEnded(str(self._key), status=status)

    # -- views -------------------------------------------------------------------------------------

    def _version_gen(self) -> Operation[int]:
        session = self._session
        if session is not None and session.replaying is not None:
            return session.state.version
        head = yield from ops.head(self._key)
        return head.version if head else 0

    def _view_gen(self, version: int | None = None) -> Operation[TaskView]:
        if version is not None:
            return (yield from self._view_at_gen(version))
        session = self._session
        if session is None or not session.is_active():
            view = yield from load.load_view(self._key)
            if view is None:
                raise load.task_not_found(self._key)
            return view
        fields = (
            HeadFields(owner=session.owner)
            if session.run is not None and session.closed_error is None
            else HeadFields()
        )
        orphaned = None if session.was_ended else session.matching.orphaned()
        drift = None if session.was_ended else list(session.drift)
        return (yield from load.build_view(session.state, fields, session.run, orphaned, drift))

    def _relevant_memories_gen(
        self, view: TaskView, most: int, trust: Trust | None
    ) -> Waits[list[MemoryItem]]:
        """Return the memories of the task's agent that fit the goal."""
        from . import memory

        return memory.recall_relevant(self, view, check_int(most, "memories"), trust)

    def _render_context(
        self,
        view: TaskView,
        memories: Sequence[MemoryItem],
        max_tokens: int,
        notes: Sequence[str],
        counter: Counter | None,
    ) -> ResumeContext:
        """Render the resume context, and note the memories in it: repeating one is not news."""
        from .resume_context.context import build_resume_context

        context = build_resume_context(
            view, max_tokens, notes=notes, counter=counter, memories=memories
        )
        session = self._session
        if context.memories and session is not None and session.is_active():
            session.note_recalled(list(context.memories), list(context.memories.values()))
        return context

    def _view_at_gen(self, version: int) -> Operation[TaskView]:
        head = yield from ops.head(self._key)
        if head is None or not 1 <= check_int(version, "version") <= head.version:
            versions = f"it has versions 1 to {head.version}" if head else "it doesn't exist"
            raise NotFound(f"version {version} of {self._key} not found: {versions}")
        if load.is_expired(head):
            raise Expired(str(self._key), at=head.fields.expires_at or 0.0)
        state = yield from load.load_task(self._key, version)
        return (
            yield from load.build_view(state, HeadFields(), state.runs if state.owner else None)
        )

    def _child_key(self, id: str) -> StreamKey:
        child = stream_key(self._key.tenant, ev.KIND, id)
        if child == self._key:
            raise ValueError(f"id must differ from the task's own id, got {id!r}")
        return child

    def _fork_options(self) -> OpenOptions:
        """Return the options a fork is opened with: goal, input and the like are stored."""
        return msgspec.structs.replace(
            self._options,
            goal=None,
            input=None,
            agent=None,
            budget=None,
            steal=False,
            restart=False,
        )


def _drift_rows(session: Session) -> list[list[str]]:
    """Return the session's drifts as an event stores them."""
    return [
        [each.step, each.what, each.recorded, each.now] for each in session.drift[:MAX_REPORTED]
    ]
