"""Running a step: what is recorded is given back, what is in doubt is settled, the rest is run and recorded."""

from __future__ import annotations

import inspect
import random
from collections.abc import Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from ...backends import AppendResult
from ...errors import (
    BudgetExceeded,
    ChildFailed,
    DataProblem,
    LeaseLost,
    NotDone,
    NotSerializable,
    ReplayMismatch,
    SchemaMismatch,
    StepFailed,
    StepInDoubt,
    TaskEnded,
)
from ...log.codec import Undecodable, decode_as, encode_as, there_and_back
from ...log.codec.walk import NEVER_STORED
from ...log.events import INLINE_BYTES
from ...log.operations import Operation
from ...log.stream_ops import new_append_context
from ..run.effects import CallFunction, RunOnce, RunOperation, Script, Sleep, WaitForSteps
from ..run.frames import Branch, Frame
from ..run.session import Change, Session
from ..state import events as ev
from ..state.fold import StepRecord as Record
from ..state.fold import name_of
from ..state.load import result_bytes
from ..state.view import Drift, PlanItem
from .declare import KEY_PARAMETER, Step, as_key, is_async
from .identity import fingerprint, place_of
from .progress import StepRun
from .usage import Meter

if TYPE_CHECKING:
    from ..task import AsyncTask, Task

PASSING: Final = (LeaseLost, StepInDoubt, ReplayMismatch, TaskEnded)
"""Raised inside a step, these say something about the task, not about the step."""

MESSAGE_CHARACTERS: Final = 4000
_numbers = count()


class StepCall:
    """One call of a step: what is asked for, where, and with which arguments."""

    __slots__ = (
        "args", "ask_first", "by_identity", "declared", "fingerprint", "gives_key", "item", "key", "kwargs", "model",
        "name", "nth", "path", "record", "returns", "same", "scope", "session", "version",
    )  # fmt: skip

    def __init__(
        self,
        session: Session,
        declared: Step[Any, Any],
        scope: str,
        item: PlanItem,
        args: Any,
        kwargs: Mapping[str, Any],
    ) -> None:
        self.session, self.declared, self.scope, self.item = session, declared, scope, item
        self.name = item if type(item) is str else name_of(item)
        self.args, self.kwargs = (*declared.owner, *args) if declared.owner else args, kwargs
        arguments = declared.bound(self.args, kwargs)
        self.gives_key = declared.takes_key and KEY_PARAMETER not in arguments
        if KEY_PARAMETER in arguments and declared.takes_key:
            arguments = {name: value for name, value in arguments.items() if name != KEY_PARAMETER}
        self.fingerprint = fingerprint(session.salt, declared.around, arguments)
        self.model: str | None = None
        if declared.is_model and isinstance(
            model := arguments.get("model", declared.default_model), str
        ):
            self.model = model
        self.key = declared.key
        if self.key is None and declared.options.key is not None:
            self.key = as_key(declared.options.key(*self.args, **self.kwargs))
        self.ask_first = False  # it is in doubt: its check is asked before it is run
        self.returns = declared.returns  # resolved here: not after the work is done
        self._find()

    def identity(self) -> tuple[str, ...]:
        """What tells this step from any other in its scope, in every run."""
        if self.key is not None:
            return (self.name, "key", self.key)
        if self.by_identity:
            return (self.name, "item", self.path)
        origin = self.record.origin if self.record is not None else self.fingerprint
        return (self.name, "arguments", origin, str(self.nth))

    def _find(self) -> None:
        session = self.session
        with session.lock:
            matching = session.matching
            self.by_identity = True
            if self.key is not None:
                self.path = matching.by_key(self.scope, self.name, self.key)
            elif (
                session.state.plan_paths
                and not self.scope
                and (item := matching.item(self.name, self.item)) is not None
            ):
                self.path = item
            else:
                self.path = matching.by_args(self.scope, self.name, self.fingerprint)
                self.by_identity = False
            if self.path in session.running:
                matching.give_back(self.scope, self.name, self.fingerprint, self.path)
                raise RuntimeError(
                    f"step {self.path!r} is running already; two calls with one key are one step: await the first"
                )
            record = session.state.steps.get(self.path)
            self.record: Record | None = record
            if record is None:
                self.version, self.nth, self.same = 0, matching.numbers.get(self.path, 0), True
            else:
                self.version, self.nth, self.same = (
                    record.version,
                    record.nth,
                    record.args == self.fingerprint,
                )

    def give_back(self) -> None:
        """This call gave nothing: the next one with these arguments is this step again."""
        with self.session.lock:
            self.session.matching.give_back(self.scope, self.name, self.fingerprint, self.path)
        self.session.ask_again(self.path)

    def is_about(self, record: Record) -> bool:
        """Whether how far an unfinished step had got, or why it failed, says anything of this call. With other arguments it does not."""
        return self.by_identity or record.args == self.fingerprint

    def drifted(self, what: str, recorded: str, now: str) -> None:
        self.session.drift.append(Drift(self.path, what, recorded, now))  # type: ignore[arg-type]

    def refuse(self) -> NoReturn:
        raise ReplayMismatch(
            str(self.session.key),
            step=self.path,
            what="other arguments",
            hint="was a prompt or an argument edited since? Ask for it with the same ones, give calls a key= of their own, pass a "
            "conversation itself instead of its messages, or decorate the function with @holdfast.step(drift='keep') or 'rerun'",
        )

    def failure(self, record: Record | ev.StepEvent) -> StepFailed:
        """The exception for a step that has failed."""
        is_child = self.declared.options.kind == "child"
        error = (ChildFailed if is_child else StepFailed)(
            str(self.session.key),
            step=self.path,
            type=record.error or "",
            message=record.message,
            causes=tuple(record.causes),
        )
        if isinstance(error, ChildFailed):
            error.child = place_of(self.path).key or ""
        return error

    def in_doubt(self, why: str) -> StepInDoubt:
        return StepInDoubt(str(self.session.key), step=self.path, why=why)


class _RanElsewhere(Exception):
    """Another thread has run this very step meanwhile."""


def run_step(
    session: Session,
    task: Task | AsyncTask,
    branch: Branch,
    declared: Step[Any, Any],
    scope: str,
    item: PlanItem,
    args: Any,
    kwargs: Mapping[str, Any],
) -> Script[Any]:
    """The result of a step: the recorded one, or that of running it."""
    session.check_here()
    while True:
        if session.is_stale():
            yield RunOperation(session.catch_up)
        call = StepCall(session, declared, scope, item, args, kwargs)
        try:
            if session.replaying is not None:
                return (yield from session.replaying.step(call))
            if call.record is not None and not _is_to_run(call, call.record):
                return (yield from _recorded(call, call.record))
            if session.opened_ended:
                session.check()
            running = StepExecution if declared.to is None else _replying()
            return (yield from running(call, task, branch).script())
        except _RanElsewhere:
            call.give_back()
            continue
        except BaseException:
            call.give_back()
            raise


def _replying() -> type[StepExecution]:
    from .reply import ReplyExecution  # not with the package: most programs begin without a model

    return ReplyExecution


def _is_to_run(call: StepCall, record: Record) -> bool:
    """Whether a step that is recorded has to run: False if its result is there. Raises what else is known of it."""
    if record.state == "completed":
        return not call.same and _must_rerun(call, record)
    if record.in_doubt(None):  # begun in whatever run: it is not running now
        call.session.check()
        if record.args != call.fingerprint:
            call.refuse()
        if call.declared.options.check is None:
            raise call.in_doubt("was started, and its outcome is not recorded")
        call.ask_first = True
    elif record.state == "failed" and call.is_about(record):
        raise call.failure(record)
    return True


def _must_rerun(call: StepCall, record: Record) -> bool:
    """What to do with a finished step that is asked for with other arguments."""
    policy = call.declared.options.drift
    if policy == "refuse" and not call.by_identity:
        call.refuse()
    if record.model is not None and call.model is not None and record.model != call.model:
        call.drifted("model", record.model, call.model)
    else:
        call.drifted("arguments", record.args, call.fingerprint)
    return policy == "rerun"


def _recorded(call: StepCall, record: Record) -> Script[Any]:
    declared = call.declared
    before, _, digest = declared.code.partition(":")
    recorded_before, _, recorded_digest = record.code.partition(":")
    if before and before == recorded_before and digest != recorded_digest:
        call.drifted("code", record.code, declared.code)
    if (
        call.same and record.model and call.model and record.model != call.model
    ):  # the default has changed
        call.drifted("model", record.model, call.model)
    raw = bytes(record.result or b"null")
    if record.blob is not None or record.reply is not None:
        raw = yield RunOperation(lambda: result_bytes(call.session.state, record))
    try:
        return decode_as(raw, call.returns)
    except Undecodable as error:
        raise SchemaMismatch(
            str(call.session.key), version=record.version, type=f"step {call.path}", what=str(error)
        ) from None


class StepExecution:
    """A step while it is run."""

    __slots__ = ("call", "frame", "options", "run", "session", "task")

    def __init__(self, call: StepCall, task: Task | AsyncTask, branch: Branch) -> None:
        self.call, self.session, self.options = call, call.session, call.declared.options
        self.run = StepRun(call.session, call)
        self.task, self.frame = task, Frame(task, call.session, branch, call.path, self.run)

    def script(self) -> Script[Any]:
        session, call, run = self.session, self.call, self.run
        if call.declared.is_model and not call.ask_first:
            self._afford()
        if not session.begin(run, call):
            raise _RanElsewhere
        try:
            if call.ask_first:
                if (found := (yield from self._ask())) is not None:
                    return found[0]
                if call.declared.is_model:
                    self._afford()
            if call.declared.eager:
                if self.options.kind == "child":
                    self._afford()
                started: Change = (ev.STEP_STARTED, run.told())
                yield RunOperation(
                    lambda: session.put([started], new_append_context(), unless=self._was_settled)
                )
            run.awaited = call.declared.is_async
            while True:
                if call.declared.is_model:
                    yield from self._watch()
                kwargs = (
                    {**call.kwargs, KEY_PARAMETER: run.idempotency_key}
                    if call.gives_key
                    else call.kwargs
                )
                try:
                    if call.declared.streams:
                        raw, result = yield from self._streamed(
                            call.declared.fn(*call.args, **kwargs)
                        )
                        break
                    value = yield CallFunction(
                        call.declared.fn,
                        call.args,
                        kwargs,
                        self.frame,
                        run.awaited,
                        self.options.timeout,
                    )
                    if hasattr(value, "__await__"):  # a lambda that calls an async function, say
                        run.awaited = True
                        value = yield from awaited(session, value, self.frame)
                    if session.suspending:
                        session.check_cut(call.path, self.frame.branch)
                    if run.meter is not None and call.declared.is_model:
                        run.meter.returned(value)
                    raw, result = self.stored(value, call.returns)
                    break
                except PASSING:
                    raise
                except Exception as error:
                    if session.suspending:
                        session.check_cut(call.path, self.frame.branch)
                    found = yield from self._again(error)
                    if found is not None:
                        return found[0]
            if call.declared.to is not None:
                yield from self.say()
            yield RunOnce(self._completing(raw, "ran"))
            return result
        finally:
            session.end(run)
            if (
                unsaved := run.unsaved(after=0.0)
            ) is not None:  # cut off: written when the block is left
                session.put_later(run.path + "\0progress", unsaved)
            if run.meter is not None and (used := run.cut_off()) is not None:
                session.put_later(f"{run.path}\0used{next(_numbers)}", used)  # there may be several

    def _afford(self) -> None:
        """`BudgetExceeded` if the task's budget is used up."""
        if (exceeded := self._exceeded()) is not None:
            raise exceeded

    def _exceeded(self) -> BudgetExceeded | None:
        state = self.session.state
        if state.budget is None:
            return None
        return state.budget.exceeded(
            str(state.key), state.usage + self.session.unwritten_usage() + self.run.used()
        )

    def _watch(self) -> Script[None]:
        """An attempt to call a model begins: note what it sees and what it uses."""
        run = self.run
        if run.meter is None:
            run.meter = Meter(self.options.price, is_model=True)
        else:
            run.meter.begin()
        if run.model_input is None:
            from .model_input import (
                ModelInputRecorder,  # not with the package: most programs begin without a model
            )

            run.model_input = ModelInputRecorder(self.session)
        yield from run.model_input.look((*self.call.args, *self.call.kwargs.values()))

    def _streamed(self, source: Any) -> Script[tuple[bytes, Any]]:
        """The result of a generator function: the list of its chunks."""
        from .streaming import pass_on

        raw, chunks, last = yield from pass_on(self, source)
        if self.run.meter is not None and self.call.declared.is_model:
            self.run.meter.returned(last)
        return raw, chunks

    def say(self) -> Script[None]:
        """What comes before the result is recorded: nothing. A reply is appended to its conversation."""
        yield from ()

    def _was_settled(self) -> None:
        """Somebody said that it was done while its check was asked: then it is not run."""
        known = self.session.state.steps.get(self.call.path)
        if known is not None and known.state == "completed" and known.version != self.call.version:
            raise _RanElsewhere

    def _again(self, error: Exception) -> Script[list[Any] | None]:
        """Prepare another attempt, or raise that it has failed. What the check finds done, if it is asked before."""
        call, run = self.call, self.run
        if (
            isinstance(error, BudgetExceeded) and error.task is not None
        ):  # it says something about the task
            raise error
        # What still runs inside it must not go on beside the next attempt, or beside whoever hears that it has failed.
        yield WaitForSteps(self.session, call.path)
        if not self._may_try_again(error):
            yield from self._failed(error)
        causes = self._causes(error)
        failed = run.event(
            error=type(error).__name__, message=self._said_by(error), causes=causes, again=True
        )
        if causes:  # steps inside it, that are to be tried again too: everybody has to know
            yield RunOperation(
                lambda: self.session.put([(ev.STEP_FAILED, failed)], new_append_context())
            )
        else:
            self.session.put_later(call.path, (ev.STEP_FAILED, failed))
        yield Sleep(pause(run.attempt))
        run.attempt += 1
        self.session.begin_again(call.path)
        found = None
        if self.options.check is not None and not isinstance(error, NotDone):
            found = yield from self._ask()
        run.awaited = call.declared.is_async
        return found

    def stored(self, value: object, declared: Any) -> tuple[bytes, Any]:
        """A result as it is stored, and as it comes back: the first run sees what all later ones will see."""
        log = self.session.log
        try:
            if log.redactor is None:
                return there_and_back(value, declared)
            raw = log.redaction.encoded(encode_as(value, declared), declared)
            return raw, decode_as(raw, declared)
        except NotSerializable as error:
            if declared is not Any or NEVER_STORED in error.problem:
                raise
            advice = "annotate what the function returns (-> Receipt), or return plain values"
            raise NotSerializable(error.path, f"{error.problem}; {advice}") from None

    def _ask(self) -> Script[list[Any] | None]:
        """What the check says: None for not done, else the result, stored."""
        call, check = self.call, self.options.check
        assert check is not None
        awaits = self.run.awaited = is_async(check)
        frame = Frame(self.task, self.session, self.frame.branch, call.path, self.run, asking=True)
        try:
            found = yield CallFunction(check, call.args, call.kwargs, frame, awaits)
            if hasattr(found, "__await__"):
                found = yield from awaited(self.session, found, frame)
        except PASSING:
            raise
        except Exception as error:
            raise call.in_doubt(
                f"is in doubt, and its check failed with {type(error).__name__}"
            ) from error
        if found is None:
            return None
        returns = call.returns
        nothing = returns in (None, type(None))
        if type(found) is bool and returns is not bool and not (found and nothing):
            # "to in sent" is what anybody writes first; taken for a result, its False would mean: done.
            raise call.in_doubt(
                f"is in doubt, and its check answered {found}, where it has to return the step's result, or None if it was not done"
            )
        try:
            stored = self.stored(None if nothing else found, returns)
        except DataProblem as error:
            raise call.in_doubt(
                f"is in doubt, and what its check returned cannot be the step's result ({error})"
            ) from None
        raw, result = stored
        yield RunOnce(self._completing(raw, "checked"))
        return [result]

    def _completing(self, raw: bytes, how: str) -> Operation[AppendResult]:
        """The operation that records the result."""
        run = self.run
        run.forget()
        if len(raw) > INLINE_BYTES:
            return self.session.put(
                [(ev.STEP_COMPLETED, run.end(run.event(how=how)))], new_append_context(), large=raw
            )
        completed = run.event(how=how, result=msgspec.Raw(raw))
        if run.meter is not None:
            completed = run.end(completed)
        return self.session.put([(ev.STEP_COMPLETED, completed)], new_append_context())

    def _failed(self, error: Exception) -> Script[NoReturn]:
        """Record that the step has failed, and raise it."""
        call = self.call
        doubt = bool(self.options.mode) and not isinstance(error, NotDone)
        causes = self._causes(error)
        failed = self.run.event(
            error=type(error).__name__, message=self._said_by(error), causes=causes, doubt=doubt
        )
        changes: list[Change] = [(ev.STEP_FAILED, self.run.end(failed))]
        unsaved = self.run.unsaved(after=0.0)
        if unsaved is not None:
            changes.insert(0, unsaved)
        yield RunOperation(lambda: self.session.put(changes, new_append_context()))
        self.run.forget()
        if doubt and self.options.check is None:
            raise call.in_doubt(
                f"ended with {failed.error}, which does not say whether it was done"
            ) from error
        raise call.failure(failed) from error

    def _said_by(self, error: Exception) -> str:
        return self.session.log.redaction.message(_text(error))

    def _causes(self, error: Exception) -> list[str]:
        """The steps inside this one whose failure it was."""
        inside = self.call.path + "/"
        return [
            path for path in failed_steps(error, str(self.session.key)) if path.startswith(inside)
        ]

    def _may_try_again(self, error: Exception) -> bool:
        if self.run.attempt >= self.options.max_attempts or (
            self.call.declared.is_model and self._exceeded() is not None
        ):
            return False
        if isinstance(error, NotDone):
            return True
        return self.options.mode != "once" and isinstance(error, self.options.retry_on)


def awaited(session: Session, value: Any, frame: Frame | None) -> Script[Any]:
    """What an awaitable gives, in an async task; a TypeError in another."""
    if not session.asynchronous:
        if inspect.iscoroutine(value):
            value.close()
        raise TypeError(
            "an async function cannot run in a plain task; open the task with `async with store.aio.task(…)`"
        )
    return (yield CallFunction(lambda: value, (), {}, frame, True))


def failed_steps(error: BaseException, task: str) -> list[str]:
    """The steps whose failure an exception is, or comes from, however it was wrapped; in parallel there may be several."""
    paths: dict[str, None] = {}
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        found = left.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, StepFailed) and found.task == task:
            paths.update(dict.fromkeys((found.step, *found.causes)))
        # Also what `from None` hides from the reader.
        left += [found.__context__, found.__cause__, *getattr(found, "exceptions", ())]
    return list(paths)


def _text(error: Exception) -> str:
    """An exception's message, short enough, and storable."""
    try:
        text = str(error)
    except Exception:  # its own __str__ fails
        return ""
    return text[:MESSAGE_CHARACTERS].encode(errors="replace").decode()


def pause(attempt: int) -> float:
    """Seconds to wait before the next attempt: about 1, 2, 4, … up to 60, with jitter."""
    return min(2.0 ** min(attempt - 1, 6) + random.random(), 60.0)  # noqa: S311  jitter, not a secret
