"""A running step: its idempotency key, its progress, and the usage it reports."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from datetime import datetime
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ...backends import clock
from ...log import operations as ops
from ...log.codec import decode, encode
from ...log.context import origin
from ...log.events import new_append_context
from ..run.frames import in_event_loop
from ..state import events as ev
from .usage import Meter, Usage

if TYPE_CHECKING:
    import asyncio

    from ...log.drivers import EffectGen
    from ..run.session import Session
    from ..run.writer import Change
    from .declare import Step
    from .model_input import ModelInputRecorder
    from .run import StepCall

PROGRESS_SECONDS: Final = 60.0
"""The minimum time between two writes of a step's progress."""


class PendingSave(Awaitable[None]):
    """The result of `save`. In an async function, await it to be sure that progress is stored."""

    def __init__(self, writing: Awaitable[None] | None = None) -> None:
        self._writing = writing

    def __await__(self) -> Generator[Any, None, None]:
        if self._writing is not None:
            yield from self._writing.__await__()


class StepRun:
    """The step that is running, as returned by `holdfast.current_step()`."""

    __slots__ = (
        "_call",
        "_cursor",
        "_saved_at",
        "_session",
        "_since",
        "abandoned",
        "attempt",
        "fingerprint",
        "generator",
        "is_awaited",
        "is_reported",
        "line",
        "meter",
        "mode",
        "model_input",
        "name",
        "origin",
        "outer",
        "parallel",
        "path",
        "scope",
        "unsaved",
        "worker",
    )  # fmt: skip

    def __init__(self, session: Session, call: StepCall) -> None:
        self._session, self._call = session, call
        self.path, self.scope, self.name, self.attempt = call.path, call.scope, call.name, 1
        self.fingerprint, self.origin = call.fingerprint, origin()
        self.mode = call.declared.mode
        """ "once" or "check" if it must not run twice; otherwise empty."""
        record = call.record
        cursor = None if record is None or not call.applies_to(record) else record.cursor
        self._cursor = None if cursor is None else bytes(cursor)
        self._since = clock.time()
        self._saved_at = clock.monotonic()
        self.unsaved: ev.StepEvent | None = None
        """Progress that is not written yet."""
        self.abandoned = False
        """Whether its last attempt ran too long, and its thread was abandoned."""
        self.is_reported = False
        """Whether a warning was logged that it runs longer than expected."""
        self.parallel = False
        """Whether another step with its name was running, or another thread called it."""
        self.outer: StepRun | None = None
        """The step it runs in. Kept, because code that the step started may outlive the step."""
        self.is_awaited = False
        """Whether an async function is running."""
        self.line: tuple[int, object] | None = None
        """The thread and asyncio task that run the function."""
        self.worker: asyncio.Task[Any] | None = None
        """The asyncio task it runs in, in an async task."""
        self.meter: Meter | None = None
        """Its usage that is not written yet."""
        self.model_input: ModelInputRecorder | None = None
        self.generator: EffectGen[Any] | None = None
        """What runs it."""

    def has_ended(self) -> bool:
        """Return whether nothing runs it any more, also if it is still registered."""
        return isinstance(self.generator, GeneratorType) and self.generator.gi_frame is None

    def __repr__(self) -> str:
        return f"<StepRun {self.path!r}>"

    @property
    def idempotency_key(self) -> str:
        """A key that is the same across retries and resumes of this step. No other step has it."""
        return self._session.idempotency_key(self.identity())

    @property
    def started_at(self) -> datetime:
        """When it was started; in a check, when the attempt in doubt was started."""
        record = self._call.record
        if self._call.check_first and record is not None:
            return clock.to_datetime(record.started_at)
        return clock.to_datetime(self._since)

    @property
    def since(self) -> float:
        """When it was started, in Unix seconds."""
        return self._since

    @property
    def expect(self) -> float | None:
        """How many seconds it is expected to run."""
        return self._call.declared.expect

    def seconds_overdue(self) -> float:
        """Return for how long it runs beyond what is expected; negative if it does not."""
        return -1.0 if self.expect is None else clock.time() - self._since - self.expect

    def last_progress(self) -> tuple[float | None, float | None]:
        """Return the last `done` and `total` that were saved, written or not."""
        known = self.unsaved or self._session.state.steps.get(self.path)
        return (None, None) if known is None else (known.done, known.total)

    @property
    def declared(self) -> Step[Any, Any]:
        """The step as declared."""
        return self._call.declared

    def identity(self) -> tuple[str, ...]:
        """Return the identities of the enclosing steps and of this one, outermost first."""
        own = self._call.identity()
        return own if self.outer is None else (*self.outer.identity(), *own)

    @property
    def cursor(self) -> Any:
        """The last cursor passed to `save`, in this run or an earlier one; None without one."""
        return None if self._cursor is None else decode(self._cursor)

    def save(
        self,
        cursor: object,
        *,
        done: float | None = None,
        total: float | None = None,
        flush: bool = False,
    ) -> PendingSave:
        """Save the progress of the step.

        If the step has to run again, it gets the `cursor` (plain JSON values) back. Saving is
        cheap: progress is stored at most every 60 seconds, when the task's block is left, and on
        SIGTERM. With `flush=True` it is stored immediately. In an async function, await the result
        to be sure that progress is stored.
        """
        self._session.check_writable()
        self._cursor = self._session.log.redaction.redact_json(encode(cursor))
        self.unsaved = self.event(cursor=msgspec.Raw(self._cursor), done=done, total=total)
        change = self.unsaved_change(after=0.0 if flush else PROGRESS_SECONDS)
        if change is None:
            return PendingSave()
        operation = self._session.put([change], new_append_context())
        if not (self.is_awaited and in_event_loop()):
            ops.run(self._session.log, operation)
            self.mark_saved(change)
            return PendingSave()
        import asyncio

        async def write() -> None:
            await ops.run_async(self._session.log, operation)
            self.mark_saved(change)

        return PendingSave(asyncio.ensure_future(write()))

    def use(
        self,
        *,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cost: float | None = None,
        model: str | None = None,
    ) -> None:
        """Add the usage of a model call.

        It is stored with the result or the failure. In a step of kind "model" it replaces the usage
        in the returned value. In other steps, each `use` is one call.
        """
        self._session.check_writable()
        with self._session.lock:
            if self.meter is None:
                options = self._call.declared.options
                self.meter = Meter(options.price, options.kind == "model")
            self.meter.use(input_tokens, output_tokens, cost, model)

    def set_usage(self, used: Usage) -> None:
        """Set the total usage of a child."""
        if used != Usage():
            self.meter = Meter(None, False)
            self.meter.used = used

    def unwritten_usage(self) -> Usage:
        """Return the usage that is not written yet."""
        return Usage() if self.meter is None else self.meter.used

    def end_event(self, event: ev.StepEvent) -> ev.StepEvent:
        """Move this run's usage and model input into the event, and return the event."""
        meter, self.meter = self.meter, None
        if meter is None:
            return event
        used = None if meter.used == Usage() else meter.used
        seen = () if self.model_input is None else tuple(self.model_input.parts())
        return msgspec.structs.replace(
            event, usage=used, model_input=seen, model=event.model or meter.model
        )

    def take_usage_event(self) -> Change | None:
        """Take the usage of an interrupted step as an event to write; None if there is none."""
        used, self.meter = self.unwritten_usage(), None
        if used == Usage():
            return None
        return ev.STEP_USED, ev.StepEvent(self.path, attempt=self.attempt, usage=used)

    def event(self, **facts: Any) -> ev.StepEvent:
        """Return an event of this step. It also describes the start, unless that is stored."""
        session = self._session
        known = session.state.steps.get(self.path)
        if known is None or known.run != session.state.runs or known.state != "started":
            return self.start_event(**facts)
        return ev.StepEvent(self.path, attempt=self.attempt, **facts)

    def start_event(self, **facts: Any) -> ev.StepEvent:
        """Return an event that describes how the step was started."""
        call = self._call
        options = call.declared.options
        return ev.StepEvent(
            self.path,
            args=call.fingerprint,
            nth=call.nth,
            parallel=self.parallel,
            mode=call.declared.mode,
            kind=options.kind,
            code=call.declared.code,
            function=call.declared.function if call.declared.mode else "",
            mapped=call.declared.mapped,
            model=call.model,
            attempt=self.attempt,
            since=self._since,
            expect=call.declared.expect,
            **facts,
        )

    def unsaved_change(self, *, after: float) -> Change | None:
        """Return the progress to write, if the last write was at least `after` seconds ago."""
        if self.unsaved is None or clock.monotonic() - self._saved_at < after:
            return None
        return ev.STEP_PROGRESSED, self.unsaved

    def mark_saved(self, change: Change) -> None:
        """Note that this progress is written."""
        self._saved_at = clock.monotonic()
        if self.unsaved is change[1]:  # else there is newer progress
            self.unsaved = None
