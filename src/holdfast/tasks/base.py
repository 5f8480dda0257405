"""What a task and its async twin share: the arguments checked, what is known, and the script behind each method."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..backends import HeadFields, StreamKey
from ..errors import (
    BudgetExceeded,
    Expired,
    HoldfastError,
    LeaseLost,
    NeedsHuman,
    NoTask,
    NotFound,
    OutcomeUnknown,
    SchemaMismatch,
    StepInDoubt,
    StorageFull,
    Suspended,
    TaskEnded,
    Unavailable,
)
from ..log import operations as ops
from ..log.codec import Undecodable, decode, decode_as, encode, encode_as
from ..log.events import Event
from ..log.ids import checked_id, stream_key
from ..log.leases import RENEWALS, new_owner
from ..log.log import Log
from ..log.operations import Operation
from ..log.stream_ops import new_append_context
from ..log.validation import whole_number
from .agents import children as family
from .agents.declare import Remember, find, registered
from .agents.run import child_step
from .control import lifecycle
from .control.inbox import child_ended
from .run import sigterm, waits
from .run.claim import (
    TASK_TTL,
    Claim,
    OpenOptions,
    as_wanted,
    declared_type,
    encode_text,
    enter,
    redacted,
)
from .run.effects import CallFunction, RunOperation, Script, WaitForSteps
from .run.frames import Frame, current_frame, frame
from .run.session import Session
from .state import events as ev
from .state import load
from .state.fold import name_of, paths_of
from .state.view import PlanItem, Status, TaskView
from .steps.declare import UNRESOLVED, Step, as_step, is_async
from .steps.identity import fingerprint, numbered
from .steps.run import awaited, failed_steps, pause, run_step
from .steps.usage import Usage

if TYPE_CHECKING:
    from ..conversations.tokens import Counter
    from ..memory.model import MemoryItem
    from ..memory.trust import Trust
    from ..memory.vectors.calls import Script as Waits
    from .resume_context.context import ResumeContext

REPORTED: Final = 100
"""So many orphaned steps and drifts are recorded when a run ends."""
FIRST_PLAN: Final = "plan"
CRASHES: Final = 5
OTHERS_SECONDS: Final = 10.0
"""A run that ended because another task waits, or because the engine was away, is tried again after this time."""

_AWAY: Final = Unavailable | OutcomeUnknown | StorageFull
"""What says something about the engine, and nothing about the agent."""

logger = logging.getLogger("holdfast")


class TaskBase:
    """A task's key, how it is to be opened, and the session once it is."""

    def __init__(
        self, log: Log, key: StreamKey, wanted: OpenOptions, given: object, asynchronous: bool
    ) -> None:
        self._input_type = declared_type(given)
        self._log, self._key, self._wanted = log, key, redacted(log, wanted, self._input_type)
        self._asynchronous = asynchronous
        self._session: Session | None = None
        self._outside: Frame | None = None
        self._guarded = False
        self._warned = False
        self._attempts = 0
        """How many runs in a row may fail before it is left to people; 0 if no worker runs it."""
        self._crashes = CRASHES
        """After how many deaths of its process in a row it is parked."""
        self._remember: Remember | None = None
        """What it leaves to its agent's memory, if the agent that runs says so."""
        self._inline = False
        """It is run by its parent, who will see how it ends."""

    @property
    def id(self) -> str:
        return self._key.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._key.id!r}>"

    # -- entering and leaving ----------------------------------------------------------------------

    def _entering(self) -> Script[None]:
        if self._session is not None and self._session.is_here():
            raise RuntimeError("this task is entered already")
        outside = current_frame()
        if (
            outside is not None
            and outside.session.key == self._key
            and outside.session.log is self._log
        ):
            raise RuntimeError(
                f"this code runs inside {self._key} already; it would wait for itself"
            )
        owner = new_owner()
        try:
            claim: Claim = yield from enter(self._key, self._wanted, owner)
        except (Exception, GeneratorExit):
            raise
        except BaseException:  # cut off, perhaps after it was claimed: nobody would give it back
            stamp = new_append_context()
            yield RunOperation(lambda: lifecycle.give_up(self._key, owner, stamp))
            raise
        self._session = Session(
            self._log,
            claim.state,
            claim.incarnation,
            owner,
            self._wanted.lease,
            claim.now,
            self._asynchronous,
        )
        self._session.before, self._session.waited = claim.before, claim.waited
        self._resumed = claim.state.runs > 1

    def _inside(self) -> None:
        """From now on the running code is inside the task, and its lease is renewed."""
        session = self._held()
        self._outside = frame.get()
        session.entered_here()
        frame.set(Frame(self, session, session.branch))  # type: ignore[arg-type]  # a Task or an AsyncTask
        if not session.opened_ended:
            self._log.heartbeat.keep(session.owner, min(1.0, session.lease / RENEWALS), self._beat)
            self._guarded = sigterm.entered()
        if self._inline and self._outside is not None and not self._outside.is_delicate():
            self._outside.session.has_child(session)

    def _beat(self) -> None:
        session = self._held()
        try:
            session.beat()
            self._warned = False
        except LeaseLost:
            logger.warning(
                "the hold on %s was lost; its work in this process ends with the next write",
                self._key,
            )
        except TaskEnded as ended:
            if ended.status == "cancelled":
                logger.info(
                    "%s was cancelled; its work in this process ends with the next write", self._key
                )
        except NoTask:
            pass  # it was left a moment ago
        except HoldfastError as error:
            if not self._warned:  # once, not every second while the engine is away
                logger.warning(
                    "the lease on %s could not be renewed (%s)", self._key, type(error).__name__
                )
            self._warned = True

    def _leaving(self, error: BaseException | None) -> Script[None]:
        session = self._held()
        # What still runs must not go on beside the next holder.
        if session.is_here():
            yield WaitForSteps(session)
        self._log.heartbeat.release(session.owner)
        if session.over is None:
            name, event, fields = self._ending(session, error)
            try:
                if isinstance(event, ev.Failed) and event.retry_at is None:
                    yield from self._telling("failed")
                    if self._attempts:  # else whoever started it sees why it failed
                        yield from self._leaving_a_lesson(event.type, event.message, author="tool")
                yield RunOperation(
                    lambda: session.put([(name, event)], new_append_context(), fields=fields)
                )
            except HoldfastError as problem:
                if error is None:
                    raise
                logger.warning(
                    "how %s ended could not be recorded (%s)", self._key, type(problem).__name__
                )

    def _refuse_inside(self) -> None:
        """Leaving waits for what still runs: inside a step of its own it would wait for itself."""
        inside = current_frame()
        if inside is not None and inside.session is self._session and inside.run is not None:
            raise RuntimeError(
                f"{self._key} cannot be left inside one of its own steps; it would wait for itself"
            )

    def _ending(
        self, session: Session, error: BaseException | None
    ) -> tuple[str, ev.TaskEvent, Callable[[], HeadFields]]:
        drift = [
            [entry.step, entry.what, entry.recorded, entry.now]
            for entry in session.drift[:REPORTED]
        ]
        # In a worker's hands whatever ends a run has to count, or it would be tried again for ever.
        if error is not None and _is_failure(error, BaseException if self._attempts else Exception):
            again = self._retry_at(session)
            if (
                again is None
                and not self._attempts
                and session.before.owner is None
                and session.state.agent is not None
            ):
                again = session.before.due_at  # a worker was to look at it, and still is
            if isinstance(error, NeedsHuman | BudgetExceeded):
                again = None
            failed = ev.Failed(
                type(error).__name__,
                self._log.redaction.message(_message(error)),
                failed_steps(error, str(self._key)),
                drift=drift,
                retry_at=again,
            )
            status = "failed" if again is None else "retrying"
            return ev.FAILED, failed, lambda: session.fields(status, due_at=again)
        # Also if it was swallowed; but that another task waits, which was opened inside this one, says nothing of this one.
        if session.branch.suspended is not None or (
            isinstance(error, Suspended) and error.task == str(self._key)
        ):
            if session.stopping:
                return (
                    ev.LEFT,
                    ev.Left(drift=drift, why="stopped"),
                    lambda: session.fields("pending", due_at=session.now()),
                )
            suspended = ev.TaskSuspended(list(session.waiting), list(session.children))
            return ev.SUSPENDED, suspended, session.fields_of_waiting
        before = session.before
        # Somebody had a look at it.
        if session.untouched and before.owner is None and not isinstance(error, StepInDoubt):
            if before.status == "suspended":
                session.wait_as_before()
                return ev.SUSPENDED, session.waited, session.fields_of_waiting
            if (
                before.status in ("retrying", "failed", "stuck")
                and session.state.agent is not None
                and not session.matching.asked
            ):
                status, due = before.status, before.due_at
                return ev.LEFT, ev.Left(looked=True), lambda: session.fields(status, due_at=due)
        # What a worker was to look at stays so; but a step that is in doubt waits for somebody who knows.
        due = before.due_at
        if before.owner is not None:  # whoever held it was killed, and would have gone on
            due = None if session.state.agent is None else session.now()
        # Another task waits, inside this one; or the engine was away: to be looked at again.
        if isinstance(error, Suspended | _AWAY):
            due = session.now() + OTHERS_SECONDS if self._attempts else due
        elif isinstance(error, StepInDoubt):
            due = None
        if error is None:
            return (
                ev.LEFT,
                ev.Left(session.matching.orphaned()[:REPORTED], drift),
                lambda: session.fields("pending", due_at=due),
            )
        left = ev.Left(drift=drift, why=type(error).__name__)
        return ev.LEFT, left, lambda: session.fields("pending", due_at=due)

    def _retry_at(self, session: Session) -> float | None:
        """When a worker is to try again, after this run has failed: None if that was tried often enough, or nobody does."""
        failures = session.state.failures + 1
        if failures >= self._attempts:
            return None
        return session.now() + pause(failures)

    def _outside_again(self) -> None:
        """The block is left, however that went."""
        found, outside = frame.get(), self._outside
        while outside is not None and isinstance(
            outside.session.over, NoTask
        ):  # blocks may be left in another order
            outside = outside.task._outside
        if found is not None and found.session is self._session:
            frame.set(outside)
        session = self._held()
        if self._inline and self._outside is not None:
            self._outside.session.had_child(session)
        self._log.heartbeat.release(session.owner)
        if self._guarded:
            self._guarded = False
            sigterm.left()
        with session.lock:
            session.over = NoTask(f"the block of {self._key} was left; open it again to go on")

    def _held(self) -> Session:
        if self._session is None:
            raise NoTask(
                "enter the task first: `with store.task(id) as task:` (`async with` for an async one)"
            )
        return self._session

    # -- what is known -----------------------------------------------------------------------------

    @property
    def goal(self) -> str | None:
        """What the task is to reach."""
        return self._held().state.goal

    @property
    def input(self) -> Any:
        """What the task works on: of the type it was opened with, else plain JSON values."""
        try:
            return decode_as(self._held().state.input, self._input_type)
        except Undecodable as error:
            raise SchemaMismatch(str(self._key), version=1, type="input", what=str(error)) from None

    @property
    def agent(self) -> str | None:
        """The name of the agent whose task it is."""
        return self._held().state.agent

    @property
    def status(self) -> Status:
        """`running` inside its block, or how it has ended."""
        return self._held().state.status

    @property
    def resumed(self) -> bool:
        """Whether an earlier run has started it."""
        return self._held() is not None and self._resumed

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled, as far as this process knows (within a third of the lease)."""
        return self._held().state.status == "cancelled"

    @property
    def usage(self) -> Usage:
        """What the model calls of its steps have used so far, in all runs."""
        return self._held().state.usage

    @property
    def plan(self) -> list[PlanItem]:
        """All items of the plan, done or not."""
        return deepcopy(self._held().state.plan)

    @property
    def result(self) -> Any:
        """The result as plain JSON values; None before it has finished."""
        return decode(self._held().state.result)

    @property
    def in_doubt(self) -> list[str]:
        """The paths of the steps whose outcome is unknown."""
        session = self._held()
        with session.lock:
            return [
                path
                for path, step in session.state.steps.items()
                if step.in_doubt(None) and path not in session.running
            ]

    def remaining(self) -> Iterator[Any]:
        """The items of the plan that are not finished, one by one.

        Sees the items that `replan` adds meanwhile.

        He items of the plan that are not finished, one by one, also those that `replan` adds
        meanwhile.

        Returns:
            An iterator of items as they are in the plan: names, or dicts with a `name`.

        Raises:
            NoTask: The task is not entered.

        Example:
            >>> for item in task.remaining():
            ...     task.step(item, execute, item)
        """
        session = self._held()
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
                    if done and (session.replaying is None or not session.replaying.is_left(path)):
                        session.matching.asked.add(path)  # it was asked for, and is done
                    elif path not in given:
                        given.add(path)
                        item = deepcopy(state.plan[places[path]])
            if item is None:
                return
            yield item

    def _results(self) -> Operation[dict[str, Any]]:
        session = self._held()
        return load.results_of(
            session.state, None if session.replaying is None else session.replaying.given
        )

    # -- steps -------------------------------------------------------------------------------------

    def _scope(self) -> str:
        """The path of the step of this task that the running code is in; "" if in none."""
        inside = current_frame()
        return inside.path if inside is not None and inside.session is self._session else ""

    def _stepping(
        self, name: object, fn: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]
    ) -> Script[Any]:
        session = self._session or self._held()
        if type(name) is not str or name not in session.names:
            if not isinstance(name, str) and not ev.is_plan_item(name):
                raise TypeError(
                    f"a step's name must be text or an item of the plan, got {type(name).__name__}"
                )
            session.names.add(checked_id(name_of(name), "a step's name"))  # type: ignore[arg-type]  # it is an item
        declared = fn if type(fn) is Step else as_step(fn)
        return self._calling(declared, current_frame(), name, args, kwargs)  # type: ignore[arg-type]  # the same

    def _calling(
        self,
        declared: Step[Any, Any],
        inside: Frame | None,
        item: PlanItem,
        args: Any,
        kwargs: Mapping[str, Any],
    ) -> Script[Any]:
        session = self._session or self._held()
        scope, branch = "", session.branch
        if inside is not None:
            if inside.asking and not declared.mode:
                return self._value(declared.fn, (*declared.owner, *args), kwargs)
            if inside.session is session:
                scope, branch = inside.path, inside.branch
        if declared.is_async and not self._asynchronous:
            raise TypeError(
                f"{declared.name!r} is async and this task is not; open it with `async with store.aio.task(…)`"
            )
        return run_step(session, self, branch, declared, scope, item, args, kwargs)  # type: ignore[arg-type]  # a Task or an AsyncTask

    def _replying(
        self, chat: object, fn: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]
    ) -> Script[Any]:
        from .steps.reply import reply_step

        declared = reply_step(self, chat, fn)
        return self._calling(declared, current_frame(), declared.name, (declared.to, *args), kwargs)

    # -- waiting, children -------------------------------------------------------------------------

    def _asking(
        self,
        name: str,
        question: str,
        payload: object,
        returns: Any,
        timeout: float | timedelta | None,
    ) -> Script[Any]:
        return waits.ask(self._held(), name, question, payload, returns, timeout)

    def _waiting_for(
        self, name: str, returns: Any, timeout: float | timedelta | None
    ) -> Script[Any]:
        return waits.wait_for(self._held(), name, returns, timeout)

    def _sleeping(
        self, until: float | datetime | None, length: float | timedelta | None
    ) -> Script[None]:
        return waits.sleep(self._held(), until, length)

    def _having(
        self,
        given: str | Callable[..., Any],
        id: str,
        goal: str | None,
        input: object,
        returns: Any,
    ) -> Script[Any]:
        """The result of a child."""
        agent = find(given)
        if registered.get(agent.name) is not agent:
            raise TypeError(
                f"a child may have to wait, and whoever goes on with it has to find its agent: @holdfast.agent({agent.name!r})"
            )
        key = self._child(id)
        about = self._held().state.subject
        wanted = as_wanted(
            goal, input, agent.name, agent.lease, 0.0, False, TASK_TTL, False, subject=about
        )
        returns = agent.returns if returns is UNRESOLVED else returns
        declared = child_step(self, agent, wanted, key.id, returns)
        return self._calling(declared, current_frame(), agent.name, (goal, input), {})

    # -- the plan ----------------------------------------------------------------------------------

    def _planning(
        self, given: Any, args: Any, kwargs: Mapping[str, Any], again: bool
    ) -> Script[list[PlanItem]]:
        session = self._held()
        session.check_here()
        if session.unsure:
            yield RunOperation(session.catch_up)
        plan_id = FIRST_PLAN
        if again:
            asked = (args, kwargs) if callable(given) else ((given,), {})
            said = fingerprint(session.salt, *asked)
            number = session.count(self._scope(), ("replan", said))
            plan_id = f"{said}/{number}"
        if session.replaying is not None:
            return deepcopy(session.replaying.plan(plan_id, given, as_plan))
        if plan_id in session.state.plans:
            return deepcopy(session.state.plans[plan_id])
        session.check()
        try:
            items = as_plan(
                self._log.redaction.value(as_plan((yield from self._value(given, args, kwargs))))
            )
            if again:
                items, paths = self._merged(session, items)
            planned = ev.Planned(
                plan_id, items, paths if again and paths != paths_of(items) else []
            )
            yield RunOperation(lambda: session.put([(ev.PLANNED, planned)], new_append_context()))
        except BaseException:
            if again:
                session.uncount(self._scope(), ("replan", said), number)
            raise
        return deepcopy(items)

    def _merged(self, session: Session, items: list[PlanItem]) -> tuple[list[PlanItem], list[str]]:
        """A new plan, and the steps its items are. What is finished or in doubt stays: where it is in the new list, else before it."""
        with session.lock:
            state = session.state
            old = {path: state.plan[place] for path, place in state.plan_paths.items()}
            steps = dict(state.steps)
        stays = {
            path: item
            for path, item in old.items()
            if (step := steps.get(path)) is not None
            and (step.state == "completed" or step.in_doubt(None))
        }
        paths: list[str] = [""] * len(items)
        for known in (stays, old):  # an item is known by what it says
            for place, item in enumerate(items):
                if not paths[place]:
                    paths[place] = next(
                        (path for path in known if known[path] == item and path not in paths), ""
                    )
        names, before = list(map(name_of, items)), list(map(name_of, old.values()))
        for place, name in enumerate(names):  # or by its name, if it is the only one
            if not paths[place] and names.count(name) == before.count(name) == 1:
                paths[place] = next(path for path, item in old.items() if name_of(item) == name)
        for place, name in enumerate(names):
            number = 1
            while not paths[place]:
                path = numbered("", name, number)
                number += 1
                if path not in paths and path not in stays and path not in steps:
                    paths[place] = path
        kept = [path for path in stays if path not in paths]
        return [*(old[path] for path in kept), *items], [*kept, *paths]

    def _value(self, given: Any, args: Any, kwargs: Mapping[str, Any]) -> Script[Any]:
        """A value, or what a function gives, called where the program is."""
        if not callable(given):
            if args or kwargs:
                raise TypeError("arguments must go with a function; a plain value takes none")
            return given
        awaits = is_async(given)
        if awaits and not self._asynchronous:
            raise TypeError(
                "an async function cannot run in a plain task; open it with `async with store.aio.task(…)`"
            )
        value = yield CallFunction(given, args, kwargs, None, awaits)
        if hasattr(value, "__await__"):
            value = yield from awaited(self._held(), value, None)
        return value

    # -- notes -------------------------------------------------------------------------------------

    def _noting(self, name: str, text: str, why: str | None) -> Script[None]:
        session = self._held()
        encode_text(text, "what was decided" if name == ev.DECIDED else "what was discovered")
        if why is not None:
            encode_text(why, "why")
        session.check_here()
        scope = self._scope()
        said = fingerprint(session.salt, (name, scope, text, why), {})
        if session.unsure:
            yield RunOperation(session.catch_up)
        number = session.count(scope, (name, said))
        note_id = f"{said}/{number}"
        if session.replaying is not None:
            session.replaying.note(name, note_id)
        if note_id not in session.state.noted:
            noted = ev.Noted(note_id, text, why, scope)
            try:
                yield RunOperation(lambda: session.put([(name, noted)], new_append_context()))
            except BaseException:
                session.uncount(scope, (name, said), number)
                raise

    def _remembering(self, text: str, **options: Any) -> Script[str]:
        from . import memory

        return memory.remember(self, text, options)

    # -- ending ------------------------------------------------------------------------------------

    def _finishing(
        self,
        given: Any,
        args: Any,
        kwargs: Mapping[str, Any],
        returned: Any = UNRESOLVED,
        remember: Remember | None = None,
    ) -> Script[Any]:
        """`returned`: the type of `given`, if it is what an agent has returned."""
        from . import memory

        session = self._held()
        memory.check(self, remember)
        if returned is UNRESOLVED:
            declared = as_step(given).returns if callable(given) else declared_type(given)
        else:
            declared = declared_type(given) if returned is Any else returned
        if session.replaying is not None:
            is_value = returned is not UNRESOLVED or not callable(given)
            session.replaying.finish(
                self._log.redaction.encoded(encode_as(given, declared)) if is_value else None
            )
        elif not session.opened_ended:
            session.check_here(ends=True)
            value = (
                given
                if returned is not UNRESOLVED
                else (yield from self._value(given, args, kwargs))
            )
            raw = self._log.redaction.encoded(encode_as(value, declared), declared)
            yield from memory.leave(self, remember, result=raw)
            state = session.state
            drift = [
                [entry.step, entry.what, entry.recorded, entry.now]
                for entry in session.drift[:REPORTED]
            ]
            finished = ev.Finished(session.matching.orphaned()[:REPORTED], drift, msgspec.Raw(raw))
            expires = None if state.ttl is None else session.now() + state.ttl
            tells = state.parent is not None and not self._inline
            fields = session.fields(
                "finished", due_at=session.now() if tells else None, expires_at=expires
            )
            yield RunOperation(
                lambda: session.put(
                    [(ev.FINISHED, finished)], new_append_context(), fields=lambda: fields
                )
            )
            self._ended(session, "finished")
            if tells:
                yield from family.report(self._key)
            undone = sum(path not in session.matching.asked for path in state.plan_paths)
            if undone:
                logger.warning(
                    "%s is finished, and of its plan %d items were not asked for: task.step(item, fn, …) does one",
                    self._key,
                    undone,
                )
        elif session.state.status != "finished":
            session.check()
        try:
            return decode_as(session.state.result, declared)
        except Undecodable as error:
            raise SchemaMismatch(
                str(self._key),
                version=session.state.version,
                type="the task's result",
                what=str(error),
            ) from None

    def _failing(self, reason: str) -> Script[None]:
        session = self._held()
        session.check_here()
        reason = self._log.redaction.text(encode_text(reason, "reason"))
        failed = ev.Failed("fail", reason)
        if session.replaying is not None:
            session.replaying.fail(reason)
            return
        session.check()
        yield from self._telling("failed")
        yield from self._leaving_a_lesson("", reason, author="model")
        yield RunOperation(
            lambda: session.put(
                [(ev.FAILED, failed)], new_append_context(), fields=lambda: session.fields("failed")
            )
        )
        self._ended(session, "failed")

    def _leaving_a_lesson(self, type: str, message: str, *, author: str) -> Script[None]:
        """What went wrong is remembered, if that can be: that it is recorded matters more.

        `author`: who says so. An exception may quote what a server has answered, so it is a tool that says it.
        """
        from . import memory

        try:
            yield from memory.leave(self, None, failure=(type, message), author=author)
        except LeaseLost:
            raise
        except Exception as problem:
            logger.warning(
                "why %s failed could not be remembered (%s)", self._key, problem.__class__.__name__
            )

    def _telling(self, status: str) -> Script[None]:
        """Tell a parent that waits for it that nobody will go on with this by himself. Before it is so: afterwards nobody might.

        A parent that comes too early finds somebody at work on it, and comes again.
        """
        session = self._held()
        parent, stamp = session.state.parent, new_append_context()
        if parent is not None and not self._inline:
            above = self._key._replace(id=parent.id)
            yield RunOperation(
                lambda: child_ended(above, parent.incarnation, self._key.id, status, stamp)
            )

    def _parking(self) -> Script[None]:
        """No more by itself: the processes that tried have died, one after the other."""
        session = self._held()
        parked = ev.Parked(session.state.crashes)
        yield from self._telling("stuck")
        yield from self._leaving_a_lesson(
            "", f"its process died {parked.crashes} times in a row", author="system"
        )
        yield RunOperation(
            lambda: session.put(
                [(ev.PARKED, parked)], new_append_context(), fields=lambda: session.fields("stuck")
            )
        )
        self._ended(session, "stuck")

    def _cancelling(self, reason: str | None) -> Script[None]:
        if reason is not None:
            reason = self._log.redaction.text(encode_text(reason, "reason"))
        yield from family.cancel(self._log, self._key, reason)
        session = self._session
        if session is not None and session.is_here() and not session.opened_ended:
            session.state.status = "cancelled"
            self._ended(session, "cancelled")

    def _deleted(self) -> None:
        """The task was deleted: inside its block there is nothing to give back."""
        session = self._session
        if session is not None and session.is_here():
            self._ended(session, "deleted")

    def _ended(self, session: Session, status: str) -> None:
        self._log.heartbeat.release(session.owner)
        with session.lock:
            session.over = session.over or TaskEnded(str(self._key), status=status)

    # -- looking -----------------------------------------------------------------------------------

    def _version(self) -> Operation[int]:
        session = self._session
        if session is not None and session.replaying is not None:
            return session.state.version
        head = yield from ops.head(self._key)
        return head.version if head else 0

    def _viewing(self, version: int | None = None) -> Operation[TaskView]:
        if version is not None:
            return (yield from self._at(version))
        session = self._session
        if session is None or not session.is_here():
            view = yield from load.get_view(self._key)
            if view is None:
                raise load.missing(self._key)
            return view
        fields = (
            HeadFields(owner=session.owner)
            if session.run is not None and session.over is None
            else HeadFields()
        )
        orphaned = None if session.opened_ended else session.matching.orphaned()
        drift = None if session.opened_ended else list(session.drift)
        return (yield from load.view_of(session.state, fields, session.run, orphaned, drift))

    def _relevant(self, view: TaskView, most: int, trust: Trust | None) -> Waits[list[MemoryItem]]:
        """What its agent's memory has to say about the goal."""
        from . import memory

        return memory.relevant_to(self, view, whole_number(most, "memories"), trust)

    def _briefed(
        self,
        view: TaskView,
        memories: Sequence[MemoryItem],
        max_tokens: int,
        notes: Sequence[str],
        counter: Counter | None,
    ) -> ResumeContext:
        """The briefing. What it tells from memory is noted: repeated, it is nothing new."""
        from .resume_context.context import brief

        context = brief(view, max_tokens, notes=notes, counter=counter, memories=memories)
        session = self._session
        if context.memories and session is not None and session.is_here():
            session.recall(list(context.memories), list(context.memories.values()))
        return context

    def _at(self, version: int) -> Operation[TaskView]:
        head = yield from ops.head(self._key)
        if head is None or not 1 <= whole_number(version, "version") <= head.version:
            raise NotFound(f"there is no version {version} of {self._key}")
        if load.is_expired(head):
            raise Expired(str(self._key), at=head.fields.expires_at or 0.0)
        state = yield from load.load(self._key, version)
        return (yield from load.view_of(state, HeadFields(), state.runs if state.owner else None))

    def _history(self) -> Operation[list[Event]]:
        return load.history(self._key)

    def _child(self, id: str) -> StreamKey:
        child = stream_key(self._key.tenant, ev.KIND, id)
        if child == self._key:
            raise ValueError(f"id must not be the task's own, got {id!r}")
        return child

    def _as_child(self) -> OpenOptions:
        """How a fork is opened: as it is stored."""
        return msgspec.structs.replace(
            self._wanted, goal=None, input=None, agent=None, budget=None, steal=False, restart=False
        )


def as_plan(value: object) -> list[PlanItem]:
    """A plan, checked: names, or dicts with a name, that can be stored."""
    if not isinstance(value, list | tuple) or not all(map(ev.is_plan_item, value)):
        raise TypeError("a plan must be a list of names, or of dicts with a 'name'")
    for item in value:
        checked_id(name_of(item), "a plan item's name")
    items: list[PlanItem] = decode(encode(list(value)))
    return items


def _message(error: BaseException) -> str:
    from .steps.run import _text

    return _text(error) if isinstance(error, Exception) else ""


def _is_failure(error: BaseException, kind: type[BaseException] = Exception) -> bool:
    """Whether an exception of that kind that leaves the block is a failure of the task. A group is one if any part of it is."""
    parts: Sequence[BaseException] | None = getattr(error, "exceptions", None)
    if isinstance(parts, tuple) and parts:
        return any(_is_failure(part, kind) for part in parts)
    return isinstance(error, kind) and not isinstance(
        error, LeaseLost | StepInDoubt | Suspended | _AWAY
    )
