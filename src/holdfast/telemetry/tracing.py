"""Spans of tasks, runs, steps and model calls: one trace for each task, whatever happens to it.

The ids of a task's trace and of its spans are derived from the task, so every process knows them. A
run or step whose process was killed has no end; the next process that claims the task exports its
span, with the id that the spans inside it name as their parent. So the trace is connected, however
often the task was killed.

A span is exported when its end is stored. Nothing is kept open: there is nothing to lose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from ..backends import StreamKey, clock
from ..errors import MissingExtra, TaskEnded
from ..log import telemetry
from ..tasks.run import frames
from ..tasks.run.frames import Frame
from ..tasks.run.reports import RunEvent, RunStarted, SessionLost, TaskWritten
from ..tasks.state import events as ev
from ..tasks.state.fold import StepRecord, TaskState
from ..tasks.steps.usage import Usage

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import SpanContext, TracerProvider

_RUN_ENDS: Final = {
    ev.SUSPENDED: "suspended",
    ev.RELEASED: "released",
    ev.FAILED: "failed",
    ev.STUCK: "stuck",
    ev.FINISHED: "finished",
}
_FAILED: Final = frozenset({"failed", "stuck", "killed", "doubt", "interrupted"})
"""The outcomes that make the status of a span an error."""


def task_trace_id(tenant: str, task: str, incarnation: str) -> int:
    """Return the id of a task's trace. `store.audit` shows the incarnation of a task."""
    return _derive_id(16, tenant, task, incarnation, "trace")


def start_tracing(tracer_provider: TracerProvider | None = None) -> Tracing:
    """Export a span for each task, run, step and model call of this process.

    The spans of a task are one trace, even across restarts and processes. While a step runs, its
    span is the current one, so the spans of other libraries are inside it. Call it once, when the
    program starts and OpenTelemetry is set up. It needs the extra `otel`.

    Args:
        tracer_provider: The provider, by default the global one.

    Returns:
        An object whose `stop()` ends it.

    Raises:
        MissingExtra: OpenTelemetry is not installed.
        RuntimeError: Tracing is already running.

    Example:
        >>> holdfast.telemetry.start_tracing()
    """
    if frames.tracer is not None:
        raise RuntimeError("tracing is already running; stop it first")
    tracing = Tracing(tracer_provider)
    frames.tracer = tracing
    telemetry.listeners.append(tracing.handle)
    return tracing


class Tracing:
    """Exports spans. `start_tracing` makes one."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        try:
            from opentelemetry import context, trace
        except ImportError:
            raise MissingExtra("tracing", "otel") from None
        from .. import __version__

        self._trace, self._context = trace, context
        self._tracer = trace.get_tracer("holdfast", __version__, provider)
        self._ids = _ChosenIds(getattr(self._tracer, "id_generator", None))
        if self._ids.usual is not None:
            # The tracer is ours alone. Without the SDK, its ids cannot be chosen.
            self._tracer.id_generator = self._ids  # type: ignore[attr-defined]
        self._sampler = getattr(self._tracer, "sampler", None)

    def stop(self) -> None:
        """Export no more spans."""
        frames.tracer = None
        if self.handle in telemetry.listeners:
            telemetry.listeners.remove(self.handle)

    # -- the current span ------------------------------------------------------------------------

    def enter(self, inside: Frame) -> Context:
        """Make the span of a run or of a step the current one. Return the context before."""
        before = self._context.get_current()
        session = inside.session
        if session.run is not None and session.replaying is None:
            spans = _TaskSpans(self, session.state, session.incarnation)
            parent = spans.step_context(inside.path, session.run)
            span = self._trace.NonRecordingSpan(parent)
            self._context.attach(self._trace.set_span_in_context(span))
        return before

    def leave(self, outside: Context) -> None:
        """Restore a context."""
        self._context.attach(outside)

    # -- events ----------------------------------------------------------------------------------

    def handle(self, event: telemetry.StoreEvent) -> None:
        """Export the spans that an event has ended."""
        if not isinstance(event, RunEvent):
            return
        spans = _TaskSpans(self, event.state, event.incarnation)
        if isinstance(event, TaskWritten):
            spans.export_ended(event.changes, event.at)
        elif isinstance(event, RunStarted):
            spans.export_killed_run()
        elif isinstance(event, SessionLost):
            spans.export_lost_run(event.error)

    def export(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        start: float,
        end: float,
        attributes: dict[str, Any],
        *,
        kind: str = "INTERNAL",
        links: Sequence[SpanContext] = (),
        outcome: str = "",
    ) -> None:
        """Export a span that has ended, with the ids of `context`."""
        trace = self._trace
        above = trace.NonRecordingSpan(parent) if parent is not None else trace.INVALID_SPAN
        with self._ids.use(context):
            span = self._tracer.start_span(
                name,
                context=trace.set_span_in_context(above, self._context.Context()),
                kind=trace.SpanKind[kind],
                attributes={key: value for key, value in attributes.items() if value is not None},
                links=[trace.Link(other) for other in links],
                start_time=int(start * 1e9),
            )
        if outcome in _FAILED:
            span.set_status(trace.Status(trace.StatusCode.ERROR, outcome))
        span.end(int(max(start, end) * 1e9))

    def make_context(self, trace_id: int, span_id: int) -> SpanContext:
        """Return the context of a span that another process may export. All agree on sampling."""
        sampled = True
        if self._sampler is not None:
            decision = self._sampler.should_sample(None, trace_id, "task").decision
            sampled = decision.is_sampled()
        flags = self._trace.TraceFlags(
            self._trace.TraceFlags.SAMPLED if sampled else self._trace.TraceFlags.DEFAULT
        )
        return self._trace.SpanContext(trace_id, span_id, is_remote=True, trace_flags=flags)


class _TaskSpans:
    """The spans of one task."""

    def __init__(self, tracing: Tracing, state: TaskState, incarnation: bytes) -> None:
        self._tracing, self._state = tracing, state
        self._key: StreamKey = state.key
        self._incarnation = incarnation.hex()
        self._trace_id = task_trace_id(self._key.tenant, self._key.id, self._incarnation)

    def task_context(self) -> SpanContext:
        return self._make("task")

    def run_context(self, run: int) -> SpanContext:
        return self._make("run", str(run))

    def step_context(self, path: str, run: int) -> SpanContext:
        """Return the context of a step in a run; of the run itself if the path is empty."""
        return self._make("step", str(run), path) if path else self.run_context(run)

    def _make(self, *parts: str) -> SpanContext:
        span_id = _derive_id(8, self._key.tenant, self._key.id, self._incarnation, *parts)
        return self._tracing.make_context(self._trace_id, span_id)

    def export_ended(self, changes: Sequence[tuple[str, Any]], at: float) -> None:
        """Export the spans of the steps and of the run that some events have ended."""
        run = self._state.runs
        for name, event in changes:
            if name == ev.STEP_COMPLETED:
                step = self._state.steps[event.step]
                self._export_step(step, run, at, "completed", event.usage)
            elif name == ev.STEP_FAILED and not event.again:
                outcome = "doubt" if event.doubt else "failed"
                self._export_step(self._state.steps[event.step], run, at, outcome, event.usage)
            elif name in _RUN_ENDS:
                outcome = _RUN_ENDS[name]
                self._export_run(run, at, outcome, getattr(event, "type", None))
                if outcome == "finished":
                    self._export_task(at, outcome)

    def export_killed_run(self) -> None:
        """Export the span of the run before this one if its process did not end it."""
        run = self._state.runs - 1
        end = self._state.run_ends.get(run)
        if end is not None and not end.released and run in self._state.run_starts:
            self._export_run(run, end.at, "killed")

    def export_lost_run(self, error: Exception) -> None:
        """Export the span of a run whose task was cancelled.

        If another process took it over, that process exports the span of this run.
        """
        if isinstance(error, TaskEnded) and error.status == "cancelled":
            now = clock.time()
            self._export_run(self._state.runs, now, "cancelled")
            self._export_task(now, "cancelled")

    def _export_task(self, at: float, outcome: str) -> None:
        links = []
        if (parent := self._state.parent) is not None:
            above = (self._key.tenant, parent.id, parent.incarnation)
            links.append(
                self._tracing.make_context(task_trace_id(*above), _derive_id(8, *above, "task"))
            )
        self._tracing.export(
            f"task {self._state.agent or ''}".strip(),
            self.task_context(),
            None,
            self._state.created_at,
            at,
            {**self._facts("invoke_workflow"), "holdfast.task.runs": self._state.runs}
            | {"holdfast.outcome": outcome},
            links=links,
            outcome=outcome,
        )

    def _export_run(self, run: int, at: float, outcome: str, error: str | None = None) -> None:
        start = self._state.run_starts.get(run)
        if start is None:
            return
        for step in self._list_open_steps(run):
            # A killed process may have been inside it, or the run has to wait in the middle of it.
            reason = "interrupted" if outcome == "killed" else outcome
            self._export_step(step, run, at, reason)
        self._tracing.export(
            f"invoke_agent {self._state.agent or self._key.id}",
            self.run_context(run),
            self.task_context(),
            start,
            at,
            {
                **self._facts("invoke_agent"),
                "holdfast.run": run,
                "holdfast.outcome": outcome,
                "error.type": error,
            },
            links=[self.run_context(run - 1)] if run - 1 in self._state.run_starts else [],
            outcome=outcome,
        )

    def _list_open_steps(self, run: int) -> Iterator[StepRecord]:
        for step in self._state.steps.values():
            if step.state == "started" and step.run == run:
                yield step

    def _export_step(
        self, step: StepRecord, run: int, at: float, outcome: str, usage: Usage | None = None
    ) -> None:
        scope, name, _, _ = step.parsed_path
        facts: dict[str, Any] = {
            "holdfast.run": run,
            "holdfast.step.path": step.path,
            "holdfast.step.kind": step.kind,
            "holdfast.step.mode": step.mode or None,
            "holdfast.step.attempts": step.attempts,
            "holdfast.outcome": outcome,
            "error.type": step.error if outcome in ("failed", "doubt") else None,
        }
        if step.kind == "model":
            operation, title = "chat", f"chat {step.model or name}"
            facts["gen_ai.request.model"] = step.model
        elif step.kind == "child":
            operation, title = "invoke_agent", f"invoke_agent {name}"
        else:
            operation, title = "execute_tool", f"execute_tool {name}"
            facts["gen_ai.tool.name"] = name
        if usage is not None:
            facts["gen_ai.usage.input_tokens"] = usage.input_tokens
            facts["gen_ai.usage.output_tokens"] = usage.output_tokens
            facts["holdfast.cost"] = usage.cost
        self._tracing.export(
            title,
            self.step_context(step.path, run),
            self.step_context(scope, run),
            step.started_at,
            at,
            {**self._facts(operation), **facts},
            kind="CLIENT" if step.kind == "model" else "INTERNAL",
            outcome=outcome,
        )

    def _facts(self, operation: str) -> dict[str, Any]:
        return {
            "gen_ai.operation.name": operation,
            "gen_ai.agent.name": self._state.agent,
            "holdfast.tenant": self._key.tenant,
            "holdfast.task.id": self._key.id,
        }


class _ChosenIds:
    """An id generator for one tracer: it returns the ids of the span that is being exported."""

    def __init__(self, usual: Any) -> None:
        from contextvars import ContextVar

        self.usual = usual
        self._chosen: ContextVar[SpanContext | None] = ContextVar("holdfast_span", default=None)

    def use(self, chosen: SpanContext) -> Any:
        from contextlib import contextmanager

        @contextmanager
        def choose() -> Iterator[None]:
            token = self._chosen.set(chosen)
            try:
                yield
            finally:
                self._chosen.reset(token)

        return choose()

    def generate_span_id(self) -> int:
        chosen = self._chosen.get()
        return self.usual.generate_span_id() if chosen is None else chosen.span_id

    def generate_trace_id(self) -> int:
        chosen = self._chosen.get()
        return self.usual.generate_trace_id() if chosen is None else chosen.trace_id

    def is_trace_id_random(self) -> bool:
        """A derived id is as good as a random one for sampling."""
        return True


def _derive_id(size: int, *parts: str) -> int:
    """Return an id of `size` bytes. Every process derives the same one."""
    digest = sha256(b"holdfast trace")
    for part in parts:
        raw = part.encode()
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return int.from_bytes(digest.digest()[:size], "big") or 1
