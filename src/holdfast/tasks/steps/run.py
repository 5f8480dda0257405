"""Run a step: return the recorded result, resolve a doubt, or run the function and record it."""

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
from ...log.codec import Undecodable, decode_as, encode_and_decode, encode_as
from ...log.codec.walk import NEVER_STORED
from ...log.events import INLINE_BYTES
from ...log.operations import Operation
from ...log.operations.stream_ops import new_append_context
from ..run.effects import CallFunction, RunOnce, RunOperation, Sleep, TaskGen, WaitForSteps
from ..run.frames import Branch, Frame
from ..run.session import Change, Session
from ..state import events as ev
from ..state.fold import StepRecord, plan_item_name
from ..state.load import load_result
from ..state.view import Drift, PlanItem
from .declare import KEY_PARAMETER, Step, is_async, to_key
from .fingerprints import fingerprint
from .paths import parse_path
from .progress import StepRun
from .usage import Meter

if TYPE_CHECKING:
    from ..task import AsyncTask, Task

TASK_ERRORS: Final = (LeaseLost, StepInDoubt, ReplayMismatch, TaskEnded)
"""Errors about the task, not about the step they are raised in."""

MAX_MESSAGE_CHARACTERS: Final = 4000
_numbers = count()


class StepCall:
    """One call of a step: its step, scope and arguments, and the recorded step it matches."""

    __slots__ = (
        "args",
        "by_identity",
        "check_first",
        "declared",
        "fingerprint",
        "injects_key",
        "item",
        "key",
        "kwargs",
        "model",
        "name",
        "nth",
        "path",
        "record",
        "returns",
        "same_args",
        "scope",
        "session",
        "version",
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
        self.name = item if type(item) is str else plan_item_name(item)
        self.args, self.kwargs = (*declared.instance, *args) if declared.instance else args, kwargs
        arguments = declared.bind_arguments(self.args, kwargs)
        self.injects_key = declared.takes_key and KEY_PARAMETER not in arguments
        if KEY_PARAMETER in arguments and declared.takes_key:
            arguments = {name: value for name, value in arguments.items() if name != KEY_PARAMETER}
        self.fingerprint = fingerprint(session.salt, declared.bound_values, arguments)
        self.model: str | None = None
        if declared.is_model and isinstance(
            model := arguments.get("model", declared.default_model), str
        ):
            self.model = model
        self.key = declared.key
        if self.key is None and declared.options.key is not None:
            self.key = to_key(declared.options.key(*self.args, **self.kwargs))
        self.check_first = False  # it is in doubt: its check is called before it runs
        self.returns = declared.returns  # resolved before the work, so that it fails early
        self._match()

    def identity(self) -> tuple[str, ...]:
        """Return what distinguishes this step from all others in its scope, in every run."""
        if self.key is not None:
            return (self.name, "key", self.key)
        if self.by_identity:
            return (self.name, "item", self.path)
        origin = self.record.origin if self.record is not None else self.fingerprint
        return (self.name, "arguments", origin, str(self.nth))

    def _match(self) -> None:
        session = self.session
        with session.lock:
            matching = session.matching
            self.by_identity = True
            if self.key is not None:
                self.path = matching.match_key(self.scope, self.name, self.key)
            elif (
                session.state.plan_paths
                and not self.scope
                and (item := matching.match_item(self.name, self.item)) is not None
            ):
                self.path = item
            else:
                self.path = matching.match_args(self.scope, self.name, self.fingerprint)
                self.by_identity = False
            if self.path in session.running:
                matching.release(self.scope, self.name, self.fingerprint, self.path)
                raise RuntimeError(
                    f"step {self.path!r} is already running; calls with the same key are one step:"
                    " await the first call"
                )
            self.record: StepRecord | None = session.state.steps.get(self.path)
            if self.record is None:
                self.version, self.nth, self.same_args = 0, matching.numbers.get(self.path, 0), True
            else:
                self.version, self.nth = self.record.version, self.record.nth
                self.same_args = self.record.args == self.fingerprint

    def release(self) -> None:
        """Let the next call with these arguments be this step again: this one had no outcome."""
        with self.session.lock:
            self.session.matching.release(self.scope, self.name, self.fingerprint, self.path)
        self.session.reset_used_scope(self.path)

    def applies_to(self, record: StepRecord) -> bool:
        """Whether the progress or failure of a recorded step concerns this call.

        With other arguments it does not.
        """
        return self.by_identity or record.args == self.fingerprint

    def record_drift(self, what: str, recorded: str, now: str) -> None:
        """Report that the step has changed since it was recorded."""
        self.session.drift.append(Drift(self.path, what, recorded, now))  # type: ignore[arg-type]

    def raise_mismatch(self) -> NoReturn:
        """Raise that the step was recorded with other arguments."""
        raise ReplayMismatch(
            str(self.session.key),
            step=self.path,
            what="other arguments",
            hint="was a prompt or an argument edited since? Restore it, give each call its own"
            " key=, pass a conversation itself instead of its messages, or set"
            " @holdfast.step(drift='keep') or drift='rerun'",
        )

    def failure(self, record: StepRecord | ev.StepEvent) -> StepFailed:
        """Return the exception for a step that has failed."""
        is_child = self.declared.options.kind == "child"
        error = (ChildFailed if is_child else StepFailed)(
            str(self.session.key),
            step=self.path,
            type=record.error or "",
            message=record.message,
            causes=tuple(record.causes),
        )
        if isinstance(error, ChildFailed):
            error.child = parse_path(self.path).key or ""
        return error

    def in_doubt(self, why: str) -> StepInDoubt:
        """Return the exception for a step whose outcome is unknown."""
        return StepInDoubt(str(self.session.key), step=self.path, why=why)


class _StepCompletedElsewhere(Exception):
    """Another thread or an operator has completed this step in the meantime."""


def run_step_gen(
    session: Session,
    task: Task | AsyncTask,
    branch: Branch,
    declared: Step[Any, Any],
    scope: str,
    item: PlanItem,
    args: Any,
    kwargs: Mapping[str, Any],
) -> TaskGen[Any]:
    """Return the result of a step: the recorded one, or that of running it."""
    session.check_active()
    while True:
        if session.is_stale():
            yield RunOperation(session.catch_up)
        call = StepCall(session, declared, scope, item, args, kwargs)
        try:
            if session.replaying is not None:
                return (yield from session.replaying.step_gen(call))
            if call.record is not None and not _needs_run(call, call.record):
                return (yield from recorded_result_gen(call, call.record))
            if session.was_ended:
                session.check_writable()
            execution = StepExecution if declared.conversation is None else _reply_execution()
            return (yield from execution(call, task, branch).run_gen())
        except _StepCompletedElsewhere:
            call.release()
            continue
        except BaseException:
            call.release()
            raise


def _reply_execution() -> type[StepExecution]:
    from .reply import ReplyExecution  # imported late: most applications start without a model

    return ReplyExecution


def _needs_run(call: StepCall, record: StepRecord) -> bool:
    """Return whether a recorded step has to run; raise its error if it failed or is in doubt."""
    if record.state == "completed":
        return not call.same_args and _apply_drift(call, record)
    if record.in_doubt(None):  # started in any run: it is not running now
        call.session.check_writable()
        if record.args != call.fingerprint:
            call.raise_mismatch()
        if call.declared.options.check is None:
            raise call.in_doubt("was started, and its outcome is not recorded")
        call.check_first = True
    elif record.state == "failed" and call.applies_to(record):
        raise call.failure(record)
    return True


def _apply_drift(call: StepCall, record: StepRecord) -> bool:
    """Report that a finished step is called with other arguments; return whether to rerun it."""
    policy = call.declared.options.drift
    if policy == "refuse" and not call.by_identity:
        call.raise_mismatch()
    if record.model is not None and call.model is not None and record.model != call.model:
        call.record_drift("model", record.model, call.model)
    else:
        call.record_drift("arguments", record.args, call.fingerprint)
    return policy == "rerun"


def recorded_result_gen(call: StepCall, record: StepRecord) -> TaskGen[Any]:
    """Return the recorded result of a step, and report drift of its code or model."""
    declared = call.declared
    python, _, digest = declared.code.partition(":")
    recorded_python, _, recorded_digest = record.code.partition(":")
    if python and python == recorded_python and digest != recorded_digest:
        call.record_drift("code", record.code, declared.code)
    if call.same_args and record.model and call.model and record.model != call.model:
        # The default model has changed.
        call.record_drift("model", record.model, call.model)
    raw = bytes(record.result or b"null")
    if record.blob is not None or record.reply is not None:
        raw = yield RunOperation(lambda: load_result(call.session.state, record))
    try:
        return decode_as(raw, call.returns)
    except Undecodable as error:
        raise SchemaMismatch(
            str(call.session.key), version=record.version, type=f"step {call.path}", what=str(error)
        ) from None


class StepExecution:
    """A step that is running."""

    __slots__ = ("call", "frame", "options", "run", "session", "task")

    def __init__(self, call: StepCall, task: Task | AsyncTask, branch: Branch) -> None:
        self.call, self.session, self.options = call, call.session, call.declared.options
        self.run = StepRun(call.session, call)
        self.task, self.frame = task, Frame(task, call.session, branch, call.path, self.run)

    def run_gen(self) -> TaskGen[Any]:
        """Run the step, record its outcome, and return its result."""
        session, call, run = self.session, self.call, self.run
        if call.declared.is_model and not call.check_first:
            self._check_budget()
        if not session.begin_step(run, call):
            raise _StepCompletedElsewhere
        try:
            if call.check_first:
                if (found := (yield from self._check_gen())) is not None:
                    return found[0]
                if call.declared.is_model:
                    self._check_budget()
            if call.declared.eager:
                if self.options.kind == "child":
                    self._check_budget()
                started: Change = (ev.STEP_STARTED, run.start_event())
                yield RunOperation(
                    lambda: session.put(
                        [started], new_append_context(), unless=self._check_not_resolved
                    )
                )
            run.is_awaited = call.declared.is_async
            while True:
                if call.declared.is_model:
                    yield from self._start_attempt_gen()
                kwargs = call.kwargs
                if call.injects_key:
                    kwargs = {**kwargs, KEY_PARAMETER: run.idempotency_key}
                try:
                    if call.declared.streams:
                        raw, result = yield from self._stream_gen(
                            call.declared.fn(*call.args, **kwargs)
                        )
                        break
                    value = yield CallFunction(
                        call.declared.fn,
                        call.args,
                        kwargs,
                        self.frame,
                        run.is_awaited,
                        self.options.timeout,
                    )
                    if hasattr(value, "__await__"):  # a lambda that calls an async function, say
                        run.is_awaited = True
                        value = yield from await_gen(session, value, self.frame)
                    if session.suspending:
                        session.check_interrupted(call.path, self.frame.branch)
                    if run.meter is not None and call.declared.is_model:
                        run.meter.count_result(value)
                    raw, result = self.encode_result(value, call.returns)
                    break
                except TASK_ERRORS:
                    raise
                except Exception as error:
                    if session.suspending:
                        session.check_interrupted(call.path, self.frame.branch)
                    found = yield from self._retry_gen(error)
                    if found is not None:
                        return found[0]
            if call.declared.conversation is not None:
                yield from self._append_reply_gen()
            yield RunOnce(self._record_completed(raw, "ran"))
            return result
        finally:
            session.end_step(run)
            # If it was interrupted, these are written when the block is left.
            if (unsaved := run.unsaved_change(after=0.0)) is not None:
                session.put_later(run.path + "\0progress", unsaved)
            if run.meter is not None and (used := run.take_usage_event()) is not None:
                session.put_later(f"{run.path}\0used{next(_numbers)}", used)  # there may be several

    def _check_budget(self) -> None:
        """Raise `BudgetExceeded` if the task's budget is used up."""
        if (exceeded := self._exceeded()) is not None:
            raise exceeded

    def _exceeded(self) -> BudgetExceeded | None:
        state = self.session.state
        if state.budget is None:
            return None
        return state.budget.exceeded(
            str(state.key),
            state.usage + self.session.unwritten_usage() + self.run.unwritten_usage(),
        )

    def _start_attempt_gen(self) -> TaskGen[None]:
        """Start an attempt of a model step: record its input and count its usage."""
        run = self.run
        if run.meter is None:
            run.meter = Meter(self.options.price, is_model=True)
        else:
            run.meter.start_attempt()
        if run.model_input is None:
            from .model_input import ModelInputRecorder  # imported late, like replies

            run.model_input = ModelInputRecorder(self.session)
        yield from run.model_input.start_gen((*self.call.args, *self.call.kwargs.values()))

    def _stream_gen(self, source: Any) -> TaskGen[tuple[bytes, Any]]:
        """Return the result of a generator function: the list of its chunks."""
        from .streaming import stream_chunks_gen

        raw, chunks, last = yield from stream_chunks_gen(self, source)
        if self.run.meter is not None and self.call.declared.is_model:
            self.run.meter.count_result(last)
        return raw, chunks

    def _append_reply_gen(self) -> TaskGen[None]:
        """Append a reply to its conversation, before the result is recorded. A hook for replies."""
        yield from ()

    def _check_not_resolved(self) -> None:
        """Raise if an operator resolved the step as done while its check ran."""
        known = self.session.state.steps.get(self.call.path)
        if known is not None and known.state == "completed" and known.version != self.call.version:
            raise _StepCompletedElsewhere

    def _retry_gen(self, error: Exception) -> TaskGen[list[Any] | None]:
        """Prepare another attempt, or record the failure and raise it.

        Returns a list with the result if the check finds that the step was done after all.
        """
        call, run = self.call, self.run
        if isinstance(error, BudgetExceeded) and error.task is not None:  # about the task
            raise error
        # Inner steps that still run must not overlap with the next attempt or with the caller.
        yield WaitForSteps(self.session, call.path)
        if not self._can_retry(error):
            yield from self._fail_gen(error)
        causes = self._causes(error)
        failed = run.event(
            error=type(error).__name__,
            message=self._redact_message(error),
            causes=causes,
            again=True,
        )
        if causes:  # inner steps that are retried too: other processes must know
            yield RunOperation(
                lambda: self.session.put([(ev.STEP_FAILED, failed)], new_append_context())
            )
        else:
            self.session.put_later(call.path, (ev.STEP_FAILED, failed))
        yield Sleep(retry_delay(run.attempt))
        run.attempt += 1
        self.session.reset_scope(call.path)
        found = None
        if self.options.check is not None and not isinstance(error, NotDone):
            found = yield from self._check_gen()
        run.is_awaited = call.declared.is_async
        return found

    def encode_result(self, value: object, declared: Any) -> tuple[bytes, Any]:
        """Return a result encoded, and as it is read back: all runs must see the same value."""
        log = self.session.log
        try:
            if log.redactor is None:
                return encode_and_decode(value, declared)
            raw = log.redaction.redact_json(encode_as(value, declared), declared)
            return raw, decode_as(raw, declared)
        except NotSerializable as error:
            if declared is not Any or NEVER_STORED in error.problem:
                raise
            advice = "annotate the function's result (-> Receipt), or return plain values"
            raise NotSerializable(error.path, f"{error.problem}; {advice}") from None

    def _check_gen(self) -> TaskGen[list[Any] | None]:
        """Call the check. Return None if the step was not done, or else record the result."""
        call, check = self.call, self.options.check
        assert check is not None
        awaits = self.run.is_awaited = is_async(check)
        frame = Frame(
            self.task, self.session, self.frame.branch, call.path, self.run, in_check=True
        )
        try:
            found = yield CallFunction(check, call.args, call.kwargs, frame, awaits)
            if hasattr(found, "__await__"):
                found = yield from await_gen(self.session, found, frame)
        except TASK_ERRORS:
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
            # `return to in sent` is a common mistake; as a result, its False would mean "done".
            raise call.in_doubt(
                f"is in doubt, and its check returned {found}; it must return the step's result,"
                " or None if the step was not done"
            )
        try:
            stored = self.encode_result(None if nothing else found, returns)
        except DataProblem as error:
            raise call.in_doubt(
                f"is in doubt, and its check's result can't be stored ({error})"
            ) from None
        raw, result = stored
        yield RunOnce(self._record_completed(raw, "checked"))
        return [result]

    def _record_completed(self, raw: bytes, how: str) -> Operation[AppendResult]:
        """Return the operation that records the result."""
        run = self.run
        run.discard_unsaved()
        if len(raw) > INLINE_BYTES:
            return self.session.put(
                [(ev.STEP_COMPLETED, run.end_event(run.event(how=how)))],
                new_append_context(),
                large=raw,
            )
        completed = run.event(how=how, result=msgspec.Raw(raw))
        if run.meter is not None:
            completed = run.end_event(completed)
        return self.session.put([(ev.STEP_COMPLETED, completed)], new_append_context())

    def _fail_gen(self, error: Exception) -> TaskGen[NoReturn]:
        """Record that the step has failed, and raise the failure."""
        call = self.call
        doubt = bool(self.options.mode) and not isinstance(error, NotDone)
        causes = self._causes(error)
        failed = self.run.event(
            error=type(error).__name__,
            message=self._redact_message(error),
            causes=causes,
            doubt=doubt,
        )
        changes: list[Change] = [(ev.STEP_FAILED, self.run.end_event(failed))]
        unsaved = self.run.unsaved_change(after=0.0)
        if unsaved is not None:
            changes.insert(0, unsaved)
        yield RunOperation(lambda: self.session.put(changes, new_append_context()))
        self.run.discard_unsaved()
        if doubt and self.options.check is None:
            raise call.in_doubt(
                f"ended with {failed.error}, which does not show whether it was done"
            ) from error
        raise call.failure(failed) from error

    def _redact_message(self, error: Exception) -> str:
        return self.session.log.redaction.redact_error(error_text(error))

    def _causes(self, error: Exception) -> list[str]:
        """Return the inner steps whose failures caused this error."""
        inside = self.call.path + "/"
        return [
            path
            for path in find_failed_steps(error, str(self.session.key))
            if path.startswith(inside)
        ]

    def _can_retry(self, error: Exception) -> bool:
        if self.run.attempt >= self.options.max_attempts or (
            self.call.declared.is_model and self._exceeded() is not None
        ):
            return False
        if isinstance(error, NotDone):
            return True
        return self.options.mode != "once" and isinstance(error, self.options.retry_on)


def await_gen(session: Session, value: Any, frame: Frame | None) -> TaskGen[Any]:
    """Return the value of an awaitable in an async task; raise TypeError in a synchronous one."""
    if not session.asynchronous:
        if inspect.iscoroutine(value):
            value.close()
        raise TypeError(
            "an async function can't run in a synchronous task; open the task with"
            " `async with store.aio.task(…)`"
        )
    return (yield CallFunction(lambda: value, (), {}, frame, True))


def find_failed_steps(error: BaseException, task: str) -> list[str]:
    """Return the steps whose failures an exception is or comes from, however it was wrapped.

    With parallel steps there may be several.
    """
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
        # Also causes that `from None` hides.
        left += [found.__context__, found.__cause__, *getattr(found, "exceptions", ())]
    return list(paths)


def error_text(error: Exception) -> str:
    """Return the message of an exception, shortened and valid as UTF-8."""
    try:
        text = str(error)
    except Exception:  # its own __str__ fails
        return ""
    return text[:MAX_MESSAGE_CHARACTERS].encode(errors="replace").decode()


def retry_delay(attempt: int) -> float:
    """Return the seconds until the next attempt: about 1, 2, 4, … up to 60, with jitter."""
    return min(2.0 ** min(attempt - 1, 6) + random.random(), 60.0)  # noqa: S311  jitter, not a secret
