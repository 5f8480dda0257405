"""Counters and histograms of what this process does, for Prometheus and for OpenTelemetry."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ..errors import LeaseLost
from ..log import telemetry
from ..tasks.run.reports import RunStarted, SessionLost, StepReused, TaskWritten
from ..tasks.state import events as ev

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

    from .._store import Store
    from ..tasks.state.fold import TaskState
    from ..tasks.steps.usage import Usage

Labels = tuple[tuple[str, str], ...]
"""The labels of a time series, in the order of their names."""
Gauge = tuple[str, str, dict[Labels, float]]
"""A name, a description, and the values of the time series."""

BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The upper limits of the buckets of an append's seconds."""
LONG_BUCKETS: Final = (0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0)
"""Those of a step's or a run's seconds."""

COUNTERS: Final = {
    "appends": "Appends, by the kind of stream.",
    "append_bytes": "Bytes appended, before encryption.",
    "append_duplicates": "Repeated appends that were stored already.",
    "conflicts": "Appends that were refused because another writer was faster.",
    "runs": "Runs of tasks that ended, by agent and outcome.",
    "resumes": "Runs that continued the work of an earlier run.",
    "runs_killed": "Runs whose process was killed, found by the next run.",
    "steps": "Steps that ended, by kind and outcome.",
    "steps_in_doubt": "Steps whose outcome is unknown.",
    "leases_lost": "Runs whose task was taken over by another process.",
    "model_calls": "Calls of models.",
    "input_tokens": "Tokens that models were given.",
    "output_tokens": "Tokens that models returned.",
    "cost": "The cost of model calls, in your currency.",
    "steps_not_repeated": "Steps of earlier runs that did not run again.",
    "seconds_not_repeated": "How long those steps had taken, in seconds.",
    "tokens_not_repeated": "The tokens that those steps had used.",
    "cost_not_repeated": "The cost of those steps, in your currency.",
}
HISTOGRAMS: Final = {
    "append_seconds": ("How long appends took, in seconds.", BUCKETS),
    "step_seconds": ("How long steps took, in seconds.", LONG_BUCKETS),
    "run_seconds": ("How long runs took, in seconds.", LONG_BUCKETS),
}

_RUN_ENDS: Final = {
    ev.SUSPENDED: "suspended",
    ev.RELEASED: "released",
    ev.FAILED: "failed",
    ev.STUCK: "stuck",
    ev.FINISHED: "finished",
}


class Histogram:
    """The values of one time series: how many are in each bucket, and their sum."""

    def __init__(self, limits: tuple[float, ...]) -> None:
        self.limits, self.counts, self.sum = limits, [0] * (len(limits) + 1), 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.limits, value)] += 1
        self.sum += value


class Metrics:
    """The metrics of this process. `start_metrics` makes them."""

    def __init__(
        self, meter_provider: MeterProvider | None = None, store: Store | None = None
    ) -> None:
        self._lock = threading.Lock()
        self.counters: dict[str, dict[Labels, float]] = {name: {} for name in COUNTERS}
        self.histograms: dict[str, dict[Labels, Histogram]] = {name: {} for name in HISTOGRAMS}
        self._instruments: dict[str, Any] = {}
        if meter_provider is not None:
            self._make_instruments(meter_provider, store)

    def stop(self) -> None:
        """Count no more."""
        if self.handle in telemetry.listeners:
            telemetry.listeners.remove(self.handle)
        if _current and _current[0] is self:
            _current.clear()

    def copy(self) -> tuple[dict[str, dict[Labels, float]], dict[str, dict[Labels, Histogram]]]:
        """Return a copy of all counters and histograms, as they are now."""
        with self._lock:
            counters = {name: dict(series) for name, series in self.counters.items()}
            histograms: dict[str, dict[Labels, Histogram]] = {name: {} for name in HISTOGRAMS}
            for name, series in self.histograms.items():
                for labels, found in series.items():
                    copied = histograms[name][labels] = Histogram(found.limits)
                    copied.counts, copied.sum = list(found.counts), found.sum
        return counters, histograms

    def _make_instruments(self, provider: MeterProvider, store: Store | None) -> None:
        from .. import __version__

        meter = provider.get_meter("holdfast", __version__)
        for name, text in COUNTERS.items():
            self._instruments[name] = meter.create_counter(f"holdfast.{name}", description=text)
        for name, (text, limits) in HISTOGRAMS.items():
            self._instruments[name] = meter.create_histogram(
                f"holdfast.{name.removesuffix('_seconds')}.duration",
                unit="s",
                description=text,
                explicit_bucket_boundaries_advisory=limits,
            )
        self._instruments["gen_ai tokens"] = meter.create_histogram(
            "gen_ai.client.token.usage", unit="{token}", description="Tokens of model calls."
        )
        self._instruments["gen_ai seconds"] = meter.create_histogram(
            "gen_ai.client.operation.duration", unit="s", description="Duration of model calls."
        )
        if store is not None:
            _observe_store(meter, store)

    # -- events ----------------------------------------------------------------------------------

    def handle(self, event: telemetry.StoreEvent) -> None:
        """Count an event."""
        if isinstance(event, telemetry.Appended):
            self._count_append(event)
        elif isinstance(event, TaskWritten):
            self._count_changes(event)
        elif isinstance(event, telemetry.AppendConflicted):
            self._add("conflicts", 1, kind=event.stream.kind)
        elif isinstance(event, RunStarted):
            self._count_start(event.state)
        elif isinstance(event, StepReused):
            self._count_reuse(event)
        elif isinstance(event, SessionLost) and isinstance(event.error, LeaseLost):
            self._add("leases_lost", 1, agent=event.state.agent or "")

    def _count_append(self, event: telemetry.Appended) -> None:
        kind = event.request.stream.kind
        if event.answer.duplicate:
            self._add("append_duplicates", 1, kind=kind)
            return
        self._add("appends", 1, kind=kind)
        self._add("append_bytes", sum(map(len, event.request.bodies)), kind=kind)
        self._observe("append_seconds", event.seconds, kind=kind)

    def _count_start(self, state: TaskState) -> None:
        agent = state.agent or ""
        if state.runs > 1:
            self._add("resumes", 1, agent=agent)
            end = state.run_ends.get(state.runs - 1)
            if end is not None and not end.released:
                self._add("runs_killed", 1, agent=agent)

    def _count_changes(self, written: TaskWritten) -> None:
        state = written.state
        agent = state.agent or ""
        for name, event in written.changes:
            if name == ev.STEP_USED and event.usage is not None:
                self._count_usage(event.usage, event.model, None)
            elif name == ev.STEP_COMPLETED or (name == ev.STEP_FAILED and not event.again):
                step = state.steps[event.step]
                outcome = event.how if name == ev.STEP_COMPLETED else "failed"
                if name == ev.STEP_FAILED and event.doubt:
                    outcome = "doubt"
                    self._add("steps_in_doubt", 1, agent=agent)
                seconds = max(written.at - step.started_at, 0.0)
                self._add("steps", 1, kind=step.kind, outcome=outcome)
                self._observe("step_seconds", seconds, kind=step.kind)
                if event.usage is not None:
                    is_model = step.kind == "model"
                    self._count_usage(event.usage, step.model, seconds if is_model else None)
            elif name in _RUN_ENDS:
                if name == ev.RELEASED and event.why == "StepInDoubt":
                    # Not those that failed: they were counted when they did.
                    doubts = [step for step in state.steps.values() if step.in_doubt(None)]
                    started = [step for step in doubts if step.state == "started"]
                    self._add("steps_in_doubt", len(started), agent=agent)
                self._add("runs", 1, agent=agent, outcome=_RUN_ENDS[name])
                began = state.run_starts.get(state.runs)
                if began is not None:
                    self._observe("run_seconds", max(written.at - began, 0.0), agent=agent)

    def _count_usage(self, usage: Usage, model: str | None, seconds: float | None) -> None:
        labels = {"model": model or ""}
        self._add("model_calls", usage.calls, **labels)
        self._add("input_tokens", usage.input_tokens, **labels)
        self._add("output_tokens", usage.output_tokens, **labels)
        self._add("cost", usage.cost, **labels)
        if self._instruments:
            facts = {"gen_ai.operation.name": "chat", "gen_ai.request.model": model or ""}
            tokens = self._instruments["gen_ai tokens"]
            tokens.record(usage.input_tokens, {**facts, "gen_ai.token.type": "input"})
            tokens.record(usage.output_tokens, {**facts, "gen_ai.token.type": "output"})
            if seconds is not None:
                self._instruments["gen_ai seconds"].record(seconds, facts)

    def _count_reuse(self, event: StepReused) -> None:
        step, state = event.step, event.state
        if step.run == state.runs or step.ended_at is None or step.how == "resolved":
            return
        agent = state.agent or ""
        self._add("steps_not_repeated", 1, agent=agent)
        self._add("seconds_not_repeated", max(step.ended_at - step.started_at, 0.0), agent=agent)
        if step.usage is not None:
            self._add("tokens_not_repeated", step.usage.tokens, agent=agent)
            self._add("cost_not_repeated", step.usage.cost, agent=agent)

    def _add(self, name: str, amount: float, **labels: str) -> None:
        key = _to_labels(labels)
        with self._lock:
            series = self.counters[name]
            series[key] = series.get(key, 0) + amount
        if self._instruments:
            self._instruments[name].add(amount, labels)

    def _observe(self, name: str, value: float, **labels: str) -> None:
        key = _to_labels(labels)
        with self._lock:
            series = self.histograms[name]
            if key not in series:
                series[key] = Histogram(HISTOGRAMS[name][1])
            series[key].observe(value)
        if self._instruments:
            self._instruments[name].record(value, labels)


def _to_labels(labels: Mapping[str, str]) -> Labels:
    return tuple(sorted(labels.items()))


_current: Final[list[Metrics]] = []


def current_metrics() -> Metrics | None:
    """Return the metrics of this process, if they were started."""
    return _current[0] if _current else None


def _observe_store(meter: Any, store: Store) -> None:
    """Let a meter read the counts of a store's tasks."""
    from opentelemetry.metrics import CallbackOptions, Observation

    from .prometheus import read_gauges

    def observe(name: str, _options: CallbackOptions) -> list[Any]:
        [series] = [series for found, _, series in read_gauges(store) if found == name]
        return [Observation(value, dict(labels)) for labels, value in series.items()]

    for name, text, _ in read_gauges(store):
        dotted = name.replace("holdfast_", "holdfast.")
        meter.create_observable_gauge(dotted, [partial(observe, name)], description=text)


def start_metrics(
    meter_provider: MeterProvider | None = None, *, store: Store | None = None
) -> Metrics:
    """Count what this process does: appends, runs, steps, tokens, and the work not repeated.

    `prometheus_text` shows the counts. Call it once, when the program starts.

    Args:
        meter_provider: A provider of OpenTelemetry that gets the counts too, such as
            `opentelemetry.metrics.get_meter_provider()`. It needs the extra `otel`.
        store: A store whose tasks the provider counts too, by status, each time it collects.

    Returns:
        The metrics; their `stop()` ends it.

    Raises:
        RuntimeError: Metrics are already running.

    Example:
        >>> holdfast.telemetry.start_metrics()
    """
    if _current:
        raise RuntimeError("metrics are already running; stop them first")
    metrics = Metrics(meter_provider, store)
    _current.append(metrics)
    telemetry.listeners.append(metrics.handle)
    return metrics
