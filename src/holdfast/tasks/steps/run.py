"""Run a step: return its recorded result, or run its function and record the result.

The phases of a step, each a function: match the call to a recorded step (`StepCall`), use the
record (`use_record_gen`), resolve a doubt (`doubt`), start it (`start_gen`), attempt it until it
succeeds or fails (`attempt_gen`, `failures`), and record the result (`record_completed`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

import msgspec

from ...backends import AppendResult
from ...errors import (
    ChildFailed,
    DataProblem,
    LeaseLost,
    NotSerializable,
    ReplayMismatch,
    SchemaMismatch,
    StepFailed,
    StepInDoubt,
    TaskEnded,
)
from ...log import telemetry
from ...log.codec import MAX_DEPTH, Undecodable, decode_as, encode_and_decode, encode_as
from ...log.codec.walk import NEVER_STORED, tuples_to_lists
from ...log.drivers import EffectGen
from ...log.events import INLINE_BYTES, new_append_context
from ...log.ids import check_id
from ...log.log import Log
from ...log.operations import Operation
from ..run.frames import Branch, CallFunction, Frame, current_frame
from ..run.reports import StepReused
from ..run.session import Session, WaitForSteps
from ..run.timed_calls import is_abandoned
from ..state import events as ev
from ..state.fold import StepRecord, plan_item_name
from ..state.load import load_result
from ..state.view import Drift, PlanItem
from .declare import KEY_PARAMETER, Step, to_key
from .doubt import NOT_DONE, Found, RecordChanged, await_gen, call_check_gen, wait_for_check_gen
from .failures import check_budget, fail_gen, retry_gen
from .identity import find_in_scope, fingerprint, fingerprint_by_field, parse_path
from .progress import StepRun
from .renames import GuardedStep, find_renamed, is_function_gone
from .usage import Meter

if TYPE_CHECKING:
    from ..base import TaskBase
    from .reply import ReplyMessage

TASK_ERRORS: Final = (LeaseLost, StepInDoubt, ReplayMismatch, TaskEnded)
"""Errors about the task, not about the step they are raised in."""

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
        self.session, self.declared, self.scope = session, declared, scope
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
        self.returns = declared.returns  # resolved before any work, to fail early
        self._match(item, arguments)

    def identity(self) -> tuple[str, ...]:
        """Return what distinguishes this step from all others in its scope, in every run."""
        if self.key is not None:
            return (self.name, "key", self.key)
        if self.by_identity:
            return (self.name, "item", self.path)
        origin = self.record.origin if self.record is not None else self.fingerprint
        return (self.name, "arguments", origin, str(self.nth))

    def _match(self, item: PlanItem, arguments: Mapping[str, Any]) -> None:
        session, declared = self.session, self.declared
        with session.lock:
            matching = session.matching
            self.path, self.name, self.fingerprint, self.by_identity = matching.match_step(
                self.scope,
                item if type(item) is str else plan_item_name(item),
                item,
                self.key,
                self.fingerprint,
                declared.renamed_from,
                lambda: fingerprint_by_field(session.salt, declared.bound_values, arguments),
            )
            if self.path in session.steps.running:
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

    def check_not_renamed(self) -> None:
        """Raise if this step, which has no record, may be a recorded step under another name."""
        session, declared = self.session, self.declared
        matching = session.matching
        if not matching.guarded or self.path in session.state.plan_paths:
            return
        with session.lock:
            top = matching.find_new_ancestor(self.path)
            around = session.steps.running.get(top)
            if around is None:
                ordered = declared.mapped or session.steps.is_in_order(self.scope)
            else:
                declared = around.declared
                ordered = not around.scope and (declared.mapped or not around.parallel)
            if declared.renamed_from is not None or self.declared.renamed_from is not None:
                return
            found = find_renamed(
                GuardedStep(
                    self.path,
                    self.name,
                    self.key,
                    self.fingerprint,
                    self.declared.function,
                    ordered,
                ),
                matching.find_unrequested(top),
                consulted=matching.consulted,
                is_gone=is_function_gone,
            )
        if found is not None:
            self._raise_renamed(found, top)

    def _raise_renamed(self, found: GuardedStep, top: str) -> NoReturn:
        scope, new_name, _, _ = parse_path(top)
        before = find_in_scope(found.path, scope) or found.path
        old_name = parse_path(before).name
        if (before == found.path) != (top == self.path):
            hint = "call it inside the same steps as before"
        elif new_name == old_name:
            hint = "call it with the key that it had before, or without a key if it had none"
        else:
            hint = (
                f"if {top!r} is {before!r}, declare renamed_from={old_name!r} for it"
                " (in @holdfast.step, or step.using)"
            )
        raise ReplayMismatch(
            str(self.session.key),
            step=self.path,
            what="another name",
            hint=f"{hint}; if it is a different step, declare renamed_from=()",
            recorded=found.path,
        )

    def release(self) -> None:
        """Let the next call with these arguments match this step: this call had no outcome."""
        if self.session.block.has_abandoned and is_abandoned():
            return  # another attempt may have matched it by now
        with self.session.lock:
            self.session.matching.release(self.scope, self.name, self.fingerprint, self.path)
        self.session.reset_used_scope(self.path)

    def applies_to(self, record: StepRecord) -> bool:
        """Whether the progress or failure of a recorded step concerns this call.

        It does not if the arguments differ.
        """
        return self.by_identity or record.args == self.fingerprint

    def record_drift(self, what: str, recorded: str, now: str) -> None:
        """Report that the step has changed since it was recorded."""
        self.session.matching.drift.append(Drift(self.path, what, recorded, now))  # type: ignore[arg-type]

    def record_argument_drift(self, record: StepRecord) -> None:
        """Report that a finished step is called with other arguments."""
        if record.model is not None and self.model is not None and record.model != self.model:
            self.record_drift("model", record.model, self.model)
        else:
            self.record_drift("arguments", record.args, self.fingerprint)

    def raise_mismatch(self) -> NoReturn:
        """Raise `ReplayMismatch`, because the step was recorded with other arguments."""
        raise ReplayMismatch(
            str(self.session.key),
            step=self.path,
            what="other arguments",
            hint="if a prompt or an argument was edited, restore it, or give each call its own"
            " key=; if an argument is text built from a conversation or a resume context, pass"
            " that object itself; or set"
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
            final=record.final,
        )
        if isinstance(error, ChildFailed):
            error.child = parse_path(self.path).key or ""
        return error

    def in_doubt(self, why: str) -> StepInDoubt:
        """Return the exception for a step whose outcome is unknown."""
        return StepInDoubt(str(self.session.key), step=self.path, why=why)


class UnstorableResult(Exception):
    """The function has run, but its result cannot be stored. `problem` tells why."""

    def __init__(self, problem: Exception) -> None:
        super().__init__(str(problem))
        self.problem = problem


# -- requesting a step -----------------------------------------------------------------------------


def request_step_gen(
    task: TaskBase, name: object, declared: Step[Any, Any], args: Any, kwargs: Mapping[str, Any]
) -> EffectGen[Any]:
    """Return the result of a step with this name; see `call_step_gen`."""
    if type(name) is str:
        _check_name(name)
    elif isinstance(name, str) or ev.is_plan_item(name):
        _check_name(plan_item_name(name))  # type: ignore[arg-type]  # it is an item
    else:
        raise TypeError(
            f"a step's name must be text or an item of the plan, got {type(name).__name__}"
        )
    return call_step_gen(task, declared, current_frame(), name, args, kwargs)  # type: ignore[arg-type]  # the same


@lru_cache(1024)
def _check_name(name: str) -> None:
    check_id(name, "a step's name")


def call_step_gen(
    task: TaskBase,
    declared: Step[Any, Any],
    inside: Frame | None,
    item: PlanItem,
    args: Any,
    kwargs: Mapping[str, Any],
) -> EffectGen[Any]:
    """Return the result of a step that code in the frame `inside` calls."""
    session = task._session or task._require_session()
    scope, branch, requests = "", session.suspension.branch, None
    if inside is not None:
        if inside.in_check and not declared.mode:
            return task._evaluate_gen(declared.fn, (*declared.instance, *args), kwargs)
        if inside.session is session:
            scope, branch, requests = inside.path, inside.branch, inside.requests
    if declared.is_async and not task._asynchronous:
        raise TypeError(
            f"step {declared.name!r} is async and this task is not; "
            "open it with `async with store.aio.task(…)`"
        )
    return run_step_gen(session, task, branch, declared, scope, item, args, kwargs, requests)


def run_step_gen(
    session: Session,
    task: TaskBase,
    branch: Branch,
    declared: Step[Any, Any],
    scope: str,
    item: PlanItem,
    args: Any,
    kwargs: Mapping[str, Any],
    requests: dict[str, None] | None = None,
) -> EffectGen[Any]:
    """Return the result of a step: the recorded one if there is one, otherwise run the step.

    If `requests` is given, the step's path is added to it.
    """
    session.check_active()
    caught_up, waited = False, 0
    while True:
        if session.is_stale():
            yield from session.catch_up()
        call = StepCall(session, declared, scope, item, args, kwargs)
        if requests is not None:
            requests[call.path] = None
        try:
            if session.replaying is not None:
                return (yield from session.replaying.step_gen(call))
            if call.record is not None:
                found = yield from use_record_gen(call, call.record, caught_up)
                if call.check_first and call.version != waited:
                    yield from wait_for_check_gen(call, task, branch)
                if found is not None:
                    return found.value
            if session.was_ended:
                session.check_writable()
            return (yield from _prepare_run(call, task, branch))
        except RecordChanged as changed:
            caught_up, waited = caught_up or changed.caught_up, changed.waited or waited
            call.release()
        except BaseException:
            call.release()
            raise


def _prepare_run(call: StepCall, task: TaskBase, branch: Branch) -> EffectGen[Any]:
    """Return the generator that runs a step."""
    if call.record is None and call.declared.mode:
        call.check_not_renamed()
    run = StepRun(call.session, call)
    frame = Frame(task, call.session, branch, call.path, run)  # type: ignore[arg-type]  # a Task or an AsyncTask
    if call.declared.conversation is None:
        run.generator = execute_gen(call, run, frame)
    else:
        from .reply import reply_gen  # imported late: many applications don't need it

        run.generator = reply_gen(call, run, frame)
    return run.generator


# -- recorded steps --------------------------------------------------------------------------------


def use_record_gen(call: StepCall, record: StepRecord, caught_up: bool) -> EffectGen[Found | None]:
    """Return the recorded result of a step; None if the step has to run.

    Raise its error if it failed or is in doubt. From now on, the result can't be overridden.
    """
    session, options = call.session, call.declared.options
    doubt = record.in_doubt(None)
    if doubt and not caught_up and not session.was_ended:  # an operator may have resolved it since
        yield from session.catch_up()
        raise RecordChanged(caught_up=True)
    how = decide_recorded(
        record,
        same_args=call.same_args,
        by_identity=call.by_identity,
        drift=options.drift,
        has_check=options.check is not None,
    )
    if doubt:
        session.check_writable()
    if how == "mismatch":
        call.raise_mismatch()
    if _is_over(record) and not call.same_args:
        call.record_argument_drift(record)
    if how == "failed":
        raise call.failure(record)
    if how == "in doubt":
        raise call.in_doubt("was started, and its outcome is not recorded")
    call.check_first = how == "check"
    if how != "use":
        return None
    if telemetry.listeners:
        _report_reuse(session, record)
    result = yield from recorded_result_gen(call, record)
    resolution = record.resolution
    if resolution is not None and not resolution.used and not session.was_ended:

        def check_unchanged() -> None:
            if session.state.steps[call.path].resolution is not resolution:
                raise RecordChanged

        accepted = (ev.STEP_ACCEPTED, ev.StepEvent(call.path))
        yield from session.put([accepted], new_append_context(), unless=check_unchanged)
    return Found(result)


def _report_reuse(session: Session, record: StepRecord) -> None:
    if not session.was_ended:  # else nothing runs, and nothing would have been repeated
        telemetry.emit(StepReused(session.state, session.incarnation, record))


def decide_recorded(
    record: StepRecord, *, same_args: bool, by_identity: bool, drift: str, has_check: bool
) -> Literal["use", "run", "check", "failed", "mismatch", "in doubt"]:
    """Return what a call of a recorded step leads to.

    `same_args`: the call has the recorded arguments. `by_identity`: it was matched by a key or as
    an item of the plan, so its arguments may differ.

    | the record          | arguments               | outcome                           |
    |---------------------|-------------------------|-----------------------------------|
    | completed           | same                    | use                               |
    | completed or final  | others, drift="refuse"  | mismatch, unless by identity      |
    | completed or final  | others, drift="rerun"   | run                               |
    | completed           | others, otherwise       | use                               |
    | failed, final       | otherwise               | failed                            |
    | in doubt            | others                  | mismatch                          |
    | in doubt            | same                    | check, or in doubt without one    |
    | failed              | same, or by identity    | failed                            |
    | failed              | others                  | run                               |
    | started, retrying   | any                     | run                               |
    """
    if _is_over(record):
        if not same_args:
            if drift == "refuse" and not by_identity:
                return "mismatch"
            if drift == "rerun":
                return "run"
        return "failed" if record.final else "use"
    if record.in_doubt(None):  # started in any run: it is not running now
        if not same_args:
            return "mismatch"
        return "check" if has_check else "in doubt"
    if record.state == "failed" and (same_args or by_identity):
        return "failed"
    return "run"


def _is_over(record: StepRecord) -> bool:
    """Whether the step has ended permanently: it completed, or its failure is final."""
    return record.state == "completed" or record.final


def recorded_result_gen(call: StepCall, record: StepRecord) -> EffectGen[Any]:
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
        raw = yield from load_result(call.session.state, record)
    try:
        return decode_as(raw, call.returns)
    except Undecodable as error:
        raise SchemaMismatch(
            str(call.session.key), version=record.version, type=f"step {call.path}", what=str(error)
        ) from None


# -- running a step --------------------------------------------------------------------------------


def execute_gen(
    call: StepCall, run: StepRun, frame: Frame, reply: ReplyMessage | None = None
) -> EffectGen[Any]:
    """Run a step, record its outcome, and return its result."""
    session, declared = call.session, call.declared
    if declared.is_model and not call.check_first:
        check_budget(call, run)
    try:
        if not session.steps.begin(run, call):
            raise RecordChanged
        if call.check_first:
            if reply is not None:  # an interrupted run has already appended the message
                yield from record_completed(call, run, b"", "checked", reply)
                return reply.message
            if (found := (yield from call_check_gen(call, run, frame))) is not None:
                return found.value
            if declared.is_model:
                check_budget(call, run)
        if declared.eager:
            yield from start_gen(call, run)
        run.is_awaited = declared.is_async
        outcome = yield from attempt_gen(call, run, frame, reply)
        if isinstance(outcome, Found):
            return outcome.value
        raw, result = outcome
        if reply is not None:
            yield from reply.append_gen()
        yield from record_completed(call, run, raw, "ran", reply)
        return result
    finally:
        session.steps.end(run)
        # If it was interrupted, these are written when the block is left.
        if run.unsaved is not None:
            session.put_later(run.path + "\0progress", (ev.STEP_PROGRESSED, run.unsaved))
        if run.meter is not None and (used := run.take_usage_event()) is not None:
            session.put_later(f"{run.path}\0used{next(_numbers)}", used)  # there may be several


def start_gen(call: StepCall, run: StepRun) -> EffectGen[None]:
    """Record the start of a step that must not run unnoticed."""
    session, declared = call.session, call.declared
    if declared.options.kind == "child":
        check_budget(call, run)

    def check_not_resolved() -> None:
        """Raise if an operator resolved the step as done while its check ran."""
        known = session.state.steps.get(call.path)
        if known is not None and known.state == "completed" and known.version != call.version:
            raise RecordChanged

    facts = _describe_guarded(call, run) if declared.mode else {}
    started = (ev.STEP_STARTED, run.start_event(**facts))
    yield from session.put([started], new_append_context(), unless=check_not_resolved)


def _describe_guarded(call: StepCall, run: StepRun) -> dict[str, Any]:
    """Return what an operator has to know of a step if it is ever in doubt."""
    from .arguments import encode_arguments  # imported late, like replies

    declared = call.declared
    facts: dict[str, Any] = {
        "schema": declared.result_schema,
        "idempotency_key": run.idempotency_key,
        "check": NOT_DONE if call.check_first else "",
    }
    if declared.options.store_arguments:
        raw, cut = encode_arguments(declared, call.args, call.kwargs, call.session.log.redaction)
        facts |= {"arguments": msgspec.Raw(raw), "cut": cut}
    return facts


def attempt_gen(
    call: StepCall, run: StepRun, frame: Frame, reply: ReplyMessage | None = None
) -> EffectGen[tuple[bytes, Any] | Found]:
    """Call the function until an attempt succeeds. Raise if the step fails.

    Return the result, encoded and as it will be read back; or `Found`, if the check finds that a
    failed attempt was done after all.
    """
    session, declared = call.session, call.declared
    while True:
        if declared.is_model:
            yield from _start_attempt_gen(call, run)
        kwargs = call.kwargs
        if call.injects_key:
            kwargs = {**kwargs, KEY_PARAMETER: run.idempotency_key}
        try:
            if declared.streams:
                from .streaming import stream_chunks_gen  # imported late, like replies

                return (yield from stream_chunks_gen(call, run, frame, kwargs))
            value = yield from _call_function_gen(call, run, frame, kwargs)
            if session.suspension.is_pending:
                session.suspension.check_interrupted(call.path, frame.branch)
            if run.meter is not None and declared.is_model:
                run.meter.count_result(value)
            if reply is not None:
                return reply.encode(value)
            return encode_returned(session.log, value, call.returns)
        except TASK_ERRORS:
            raise
        except UnstorableResult as error:  # the next attempt would only repeat the effect
            yield WaitForSteps(session, call.path)
            yield from fail_gen(call, run, error.problem, unstorable=True)
        except Exception as error:
            if session.suspension.is_pending:
                session.suspension.check_interrupted(call.path, frame.branch)
            found = yield from retry_gen(call, run, frame, error)
            if found is not None:
                return found


def _call_function_gen(
    call: StepCall, run: StepRun, frame: Frame, kwargs: Mapping[str, Any]
) -> EffectGen[Any]:
    """Call the step's function, for at most its timeout and what is left of the task's."""
    session, declared = call.session, call.declared
    timeout = declared.options.timeout
    if session.state.timeout is not None and (run.is_awaited or timeout):
        timeout = session.limit_timeout(timeout)
    value = yield CallFunction(declared.fn, call.args, kwargs, frame, run.is_awaited, timeout)
    if hasattr(value, "__await__"):  # a lambda that calls an async function, say
        run.is_awaited = True
        value = yield from await_gen(session, value, frame, timeout)
    return value


def _start_attempt_gen(call: StepCall, run: StepRun) -> EffectGen[None]:
    """Start an attempt of a model step: record its input and count its usage."""
    if run.meter is None:
        run.meter = Meter(call.declared.options.price, is_model=True)
    else:
        run.meter.start_attempt()
    if run.model_input is None:
        from .model_input import ModelInputRecorder  # imported late, like replies

        run.model_input = ModelInputRecorder(call.session)
    yield from run.model_input.start_gen((*call.args, *call.kwargs.values()))


def record_completed(
    call: StepCall, run: StepRun, raw: bytes, how: str, reply: ReplyMessage | None = None
) -> Operation[AppendResult]:
    """Return the operation that records the result, which is `raw`, or the message of a reply."""
    run.unsaved = None
    large = None
    if reply is not None:
        completed = run.event(how=how, reply=reply.place)
    elif len(raw) > INLINE_BYTES:
        completed, large = run.event(how=how), raw
    else:
        completed = run.event(how=how, result=msgspec.Raw(raw))
    if run.meter is not None:
        completed = run.end_event(completed)
    return call.session.put([(ev.STEP_COMPLETED, completed)], new_append_context(), large=large)


def encode_returned(log: Log, value: object, declared: Any) -> tuple[bytes, Any]:
    """Encode what the function returned, or one of its chunks, as `encode_result` does.

    If it can't be stored, raises `UnstorableResult`: the function has run, so this is no ordinary
    failure.
    """
    try:
        return encode_result(log, value, declared)
    except (DataProblem, TypeError, ValueError) as error:
        raise UnstorableResult(error) from error


def encode_result(log: Log, value: object, declared: Any) -> tuple[bytes, Any]:
    """Return a result encoded, and as it will be read back: all runs must see the same value.

    Without a declared type, a tuple is stored and returned as a list.
    """
    try:
        if log.redactor is None:
            return encode_and_decode(value, declared)
        raw = log.redaction.redact_json(encode_as(value, declared), declared)
        return raw, decode_as(raw, declared)
    except NotSerializable as error:
        if declared not in (Any, object) or NEVER_STORED in error.problem:
            raise
        path, problem = error.path, error.problem
    if (converted := tuples_to_lists(value, MAX_DEPTH)) is not value:
        return encode_result(log, converted, declared)
    advice = "annotate the function's result (-> Receipt), or return plain values"
    raise NotSerializable(path, f"{problem}; {advice}")
