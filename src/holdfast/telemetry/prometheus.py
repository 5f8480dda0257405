"""Metrics as text for Prometheus: what this process did, and counts of the store's tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from ..errors import DataProblem
from ..log import operations as ops
from ..log.operations import Operation
from ..notify import queue as queues
from ..tasks.state.events import KIND as TASK_KIND
from ..tasks.state.load import is_due, task_info
from ..tasks.state.view import ENDED, STATUSES
from .metrics import COUNTERS, HISTOGRAMS, Gauge, Histogram, Labels, current_metrics

if TYPE_CHECKING:
    from .._store import Store

MAX_COUNTED: Final = 10_000
"""Counting stops here: a scrape must not take long."""


def prometheus_text(store: Store) -> str:
    """Return metrics in the text format of Prometheus, for an HTTP handler to serve.

    The counters and histograms are those of this process, once `start_metrics` was called. The
    gauges are about all open tasks of the store's tenant; counting stops at 10,000 of each status.

    Args:
        store: The store whose tasks to count.

    Returns:
        The text, with content type `text/plain; version=0.0.4`.

    Example:
        >>> holdfast.telemetry.prometheus_text(store)
    """
    lines: list[str] = []
    for name, text, series in read_gauges(store):
        lines += _format_family(name, "gauge", text, _format_series(name, series))
    metrics = current_metrics()
    if metrics is not None:
        counters, histograms = metrics.copy()
        for name, text in COUNTERS.items():
            full = f"holdfast_{name}_total"
            lines += _format_family(full, "counter", text, _format_series(full, counters[name]))
        for name, (text, _) in HISTOGRAMS.items():
            full = f"holdfast_{name}"
            lines += _format_family(
                full, "histogram", text, _format_histograms(full, histograms[name])
            )
    return "\n".join(lines) + "\n"


def read_gauges(store: Store) -> list[Gauge]:
    """Return the current counts of a store's tasks."""
    return ops.run(store._log, _read_gauges(store.tenant))


def _read_gauges(tenant: str) -> Operation[list[Gauge]]:
    counts: dict[Labels, float] = {}
    doubts = 0
    waiting = oldest = 0.0
    for status in STATUSES:
        if status in ENDED:
            continue
        count, after = 0, ""
        while count < MAX_COUNTED and (
            page := (yield from ops.heads(tenant, TASK_KIND, status=status, after=after))
        ):
            count, after = count + len(page), page[-1].stream.id
            for head in page:
                try:
                    doubts += task_info(head).in_doubt
                    due = is_due(head)  # also if the process that ran it is dead
                except DataProblem:  # a damaged head must not hide the others
                    continue
                if due:
                    waiting += 1
                    oldest = max(oldest, head.now - (head.fields.due_at or head.now))
        counts[(("status", status),)] = count
    letters: dict[Labels, float] = {}
    for kind in (queues.RETRYING, queues.DEAD):
        count, after = 0, ""
        while count < MAX_COUNTED and (
            page := (yield from ops.heads(tenant, queues.KIND, status=kind, after=after))
        ):
            count, after = count + len(page), page[-1].stream.id
        letters[(("status", kind),)] = count
    return [
        ("holdfast_tasks", "Open tasks, by status.", counts),
        ("holdfast_tasks_due", "Tasks that wait for a worker.", {(): waiting}),
        ("holdfast_oldest_due_seconds", "How long the first of them waits.", {(): oldest}),
        ("holdfast_tasks_in_doubt", "Open tasks with a step in doubt.", {(): doubts}),
        (
            "holdfast_tasks_with_undelivered_notifications",
            "Tasks with notifications that a hook has not received.",
            letters,
        ),
    ]


def _format_family(name: str, kind: str, text: str, lines: Iterable[str]) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    yield from lines


def _format_series(name: str, series: dict[Labels, float]) -> Iterator[str]:
    for labels, value in sorted(series.items()):
        yield f"{name}{_format_labels(labels)} {value:.17g}"


def _format_histograms(name: str, series: dict[Labels, Histogram]) -> Iterator[str]:
    for labels, found in sorted(series.items(), key=lambda item: item[0]):
        total = 0
        for limit, count in zip((*found.limits, float("inf")), found.counts, strict=True):
            total += count
            bound = "+Inf" if limit == float("inf") else f"{limit:g}"
            yield f"{name}_bucket{_format_labels((*labels, ('le', bound)))} {total}"
        yield f"{name}_sum{_format_labels(labels)} {found.sum:.17g}"
        yield f"{name}_count{_format_labels(labels)} {total}"


def _format_labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
