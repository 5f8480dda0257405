"""Telemetry: traces and metrics for OpenTelemetry, metrics for Prometheus, and JSON logs.

    telemetry.start_tracing()           # spans of tasks, runs, steps and model calls
    telemetry.start_metrics()           # counters and histograms
    telemetry.prometheus_text(store)    # both kinds of metrics as text, without OpenTelemetry
    telemetry.json_logs()               # one JSON object per line

None of it has content: no goals, arguments, results, questions or error messages.
"""

from __future__ import annotations

from .json_logs import JsonFormatter, json_logs
from .metrics import Metrics, start_metrics
from .prometheus import prometheus_text
from .tracing import Tracing, start_tracing, task_trace_id

__all__ = [
    "JsonFormatter",
    "Metrics",
    "Tracing",
    "json_logs",
    "prometheus_text",
    "start_metrics",
    "start_tracing",
    "task_trace_id",
]
