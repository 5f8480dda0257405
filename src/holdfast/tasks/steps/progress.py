"""A running step: its idempotency key, its progress, and the usage it reports."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ...backends import clock
from ...log import operations as ops
from ...log.codec import decode, encode
from ...log.operations.stream_ops import new_append_context
from ..run.frames import in_event_loop
from ..state import events as ev
from .usage import Meter, Usage

if TYPE_CHECKING:
    import asyncio

    from ..run.session import Change, Session
    from .model_input import ModelInputRecorder
    from .run import StepCall

PROGRESS_SECONDS: Final = 60.0
"""The minimum time between two writes of a step's progress."""


class PendingSave(Awaitable[None]):
    """The result of `save`. In an async function, await it to be sure that it is stored."""

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
        "_unsaved",
        "attempt",
        "fingerprint",
        "is_awaited",
        "meter",
        "model_input",
        "name",
        "outer",
        "parallel",
        "path",
        "scope",
        "worker",
    )  # fmt: skip

    def __init__(self, session: Session, call: StepCall) -> None:
        self._session, self._call = session, call
        self.path, self.scope, self.name, self.attempt = call.path, call.scope, call.name, 1
        self.fingerprint = call.fingerprint
        record = call.record
        cursor = None if record is None or not call.applies_to(record) else record.cursor
        self._cursor = None if cursor is None else bytes(cursor)
        self._since = clock.time()
        self._saved_at = clock.monotonic()
        self._unsaved: ev.StepEvent | None = None
        self.parallel = False
        """Whether another step of its name is running."""
        self.outer: StepRun | None = None
        """The step it runs in. Kept: code that a step started may outlive it and use its key."""
        self.is_awaited = False
        """Whether an async function is running."""
        self.worker: asyncio.Task[Any] | None = None
        """The asyncio task it runs in, in an async task."""
        self.meter: Meter | None = None
        """Its usage, until that is written."""
        self.model_input: ModelInputRecorder | None = None

    def __repr__(self) -> str:
        return f"<StepRun {self.path!r}>"

    @property
    def idempotency_key(self) -> str:
        """The same across retries and resumes of this step; no other step has it."""
        return self._session.idempotency_key(self.identity())

    @property
    def mode(self) -> str:
        """ "once" or "check" if it must not be done twice, else empty."""
        return self._call.declared.mode

    def identity(self) -> tuple[str, ...]:
        """Return the identities of the enclosing steps and of this one, outermost first."""
        own = self._call.identity()
        return own if self.outer is None else (*self.outer.identity(), *own)

    @property
    def cursor(self) -> Any:
        """The cursor last given to `save`, also in an earlier run; None if there is none."""
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

        If the step has to run again, it gets the `cursor` (plain JSON values) back. This is cheap:
        the progress is stored at most every 60 seconds, when the task's block is left, and on
        SIGTERM; with `flush=True` immediately. In an async function, await it to be sure that it
        is stored.
        """
        self._session.check_writable()
        self._cursor = self._session.log.redaction.redact_json(encode(cursor))
        self._unsaved = self.event(cursor=msgspec.Raw(self._cursor), done=done, total=total)
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
        """Return the event with the usage and model input taken out of this run."""
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
        """Return an event of this step that describes its start, unless that is stored."""
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
            model=call.model,
            attempt=self.attempt,
            since=self._since,
            **facts,
        )

    def unsaved_change(self, *, after: float) -> Change | None:
        """Return the progress to write, if the last write is `after` seconds ago."""
        if self._unsaved is None or clock.monotonic() - self._saved_at < after:
            return None
        return ev.STEP_PROGRESSED, self._unsaved

    def mark_saved(self, change: Change) -> None:
        """Note that this progress is written."""
        self._saved_at = clock.monotonic()
        if self._unsaved is change[1]:  # else there is newer progress
            self._unsaved = None

    def discard_unsaved(self) -> None:
        """Discard unsaved progress: the step has ended."""
        self._unsaved = None
