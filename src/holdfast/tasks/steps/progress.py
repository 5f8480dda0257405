"""A step that is running: its key for the outside world, and how far it has got."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ...backends import clock
from ...log import operations as ops
from ...log.codec import decode, encode
from ...log.stream_ops import new_append_context
from ..run.frames import in_event_loop
from ..state import events as ev
from .usage import Meter, Usage

if TYPE_CHECKING:
    import asyncio

    from ..run.session import Change, Session
    from .model_input import ModelInputRecorder
    from .run import StepCall

PROGRESS_SECONDS: Final = 60.0
"""A step's progress is written at most this often."""


class Saved(Awaitable[None]):
    """What `save` returns. In an async function it can be awaited, to know that it is stored."""

    def __init__(self, writing: Awaitable[None] | None = None) -> None:
        self._writing = writing

    def __await__(self) -> Generator[Any, None, None]:
        if self._writing is not None:
            yield from self._writing.__await__()


class StepRun:
    """The step that is running now, as `holdfast.current_step()` gives it."""

    __slots__ = (
        "_call", "_cursor", "_saved_at", "_session", "_since", "_unsaved", "attempt", "awaited", "beside",
        "fingerprint", "meter", "model_input", "name", "outer", "path", "scope", "worker",
    )  # fmt: skip

    def __init__(self, session: Session, call: StepCall) -> None:
        self._session, self._call = session, call
        self.path, self.scope, self.name, self.attempt = call.path, call.scope, call.name, 1
        self.fingerprint = call.fingerprint
        kept = (
            call.record.cursor if call.record is not None and call.is_about(call.record) else None
        )
        self._since = clock.time()
        self.beside = False  # whether another of its name runs
        self.outer: StepRun | None = (
            None  # kept: what a step began may go on after its end, and ask for its key
        )
        self.awaited = False  # whether it is an async function that runs
        self.worker: asyncio.Task[Any] | None = None  # in which it runs, in an async task
        self._cursor = None if kept is None else bytes(kept)
        self._unsaved: ev.StepEvent | None = None
        self._saved_at = clock.monotonic()
        self.meter: Meter | None = None  # what it has used, as long as that is not written
        self.model_input: ModelInputRecorder | None = None  # what its model sees

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
        """What this step is, from the outermost inwards."""
        own = self._call.identity()
        return own if self.outer is None else (*self.outer.identity(), *own)

    @property
    def cursor(self) -> Any:
        """What was last given to `save`, also by an earlier run; None at first."""
        return None if self._cursor is None else decode(self._cursor)

    def save(
        self,
        cursor: object,
        *,
        done: float | None = None,
        total: float | None = None,
        flush: bool = False,
    ) -> Saved:
        """Save how far the step has got.

        `cursor` (plain JSON values) is given back if the step has to run again. Costs next to
        nothing: it is stored at most every 60 seconds, when the task's block is left, and on
        SIGTERM; with `flush=True` now. In an async function, await it to know that it is stored.
        """
        self._session.check()
        self._cursor = self._session.log.redaction.encoded(encode(cursor))
        self._unsaved = self.event(cursor=msgspec.Raw(self._cursor), done=done, total=total)
        change = self.unsaved(after=0.0 if flush else PROGRESS_SECONDS)
        if change is None:
            return Saved()
        operation = self._session.put([change], new_append_context())
        if not (self.awaited and in_event_loop()):
            ops.run(self._session.log, operation)
            self.was_saved(change)
            return Saved()
        import asyncio

        async def write() -> None:
            await ops.run_async(self._session.log, operation)
            self.was_saved(change)

        return Saved(asyncio.ensure_future(write()))

    def use(
        self,
        *,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cost: float | None = None,
        model: str | None = None,
    ) -> None:
        """Count what a model call has used; it adds up.

        Stored with the result, or with the failure. In a step of kind "model" it counts instead of
        what the returned value says. In another, each `use` is one call.
        """
        self._session.check()
        with self._session.lock:
            if self.meter is None:
                options = self._call.declared.options
                self.meter = Meter(options.price, options.kind == "model")
            self.meter.use(input_tokens, output_tokens, cost, model)

    def count(self, used: Usage) -> None:
        """What a child has used, in all."""
        if used != Usage():
            self.meter = Meter(None, False)
            self.meter.used = used

    def used(self) -> Usage:
        """What is not written yet of what it has used."""
        return Usage() if self.meter is None else self.meter.used

    def end(self, event: ev.StepEvent) -> ev.StepEvent:
        """How the step ended, with what it used and what its model saw. To be written: it is told once."""
        meter, self.meter = self.meter, None
        if meter is None:
            return event
        used = None if meter.used == Usage() else meter.used
        seen = () if self.model_input is None else tuple(self.model_input.parts())
        return msgspec.structs.replace(
            event, usage=used, model_input=seen, model=event.model or meter.model
        )

    def cut_off(self) -> Change | None:
        """What it has used, if it did not come to an end."""
        used, self.meter = self.used(), None
        return (
            None
            if used == Usage()
            else (ev.STEP_USED, ev.StepEvent(self.path, attempt=self.attempt, usage=used))
        )

    def event(self, **facts: Any) -> ev.StepEvent:
        """An event of this step, with its start if that is not known to be stored."""
        session = self._session
        known = session.state.steps.get(self.path)
        if known is None or known.run != session.state.runs or known.state != "started":
            return self.told(**facts)
        return ev.StepEvent(self.path, attempt=self.attempt, **facts)

    def told(self, **facts: Any) -> ev.StepEvent:
        """An event that tells how the step was started."""
        call = self._call
        options = call.declared.options
        return ev.StepEvent(
            self.path,
            args=call.fingerprint,
            nth=call.nth,
            beside=self.beside,
            mode=call.declared.mode,
            kind=options.kind,
            code=call.declared.code,
            model=call.model,
            attempt=self.attempt,
            since=self._since,
            **facts,
        )

    def unsaved(self, *, after: float) -> Change | None:
        """What is to be written, if the last time is `after` seconds ago."""
        if self._unsaved is None or clock.monotonic() - self._saved_at < after:
            return None
        return ev.STEP_PROGRESSED, self._unsaved

    def was_saved(self, change: Change) -> None:
        self._saved_at = clock.monotonic()
        if self._unsaved is change[1]:  # else there is something newer by now
            self._unsaved = None

    def forget(self) -> None:
        """There is nothing more to save: the step has ended."""
        self._unsaved = None
