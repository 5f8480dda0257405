"""Persistence events: what was stored, where, and how long it took. They never contain content.

They go to `logging` (logger `holdfast`, level INFO) and, if the application uses OpenTelemetry, to
the current span as events. Both happen in the caller's thread and context, after the append.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..backends import AppendResult, StreamKey
    from . import operations as ops

_TRACING = "opentelemetry.trace"

logger = logging.getLogger("holdfast")


def is_enabled() -> bool:
    """Return whether logging or tracing would use an event."""
    return _TRACING in sys.modules or logger.isEnabledFor(logging.INFO)


def report_append(request: ops.AppendRecords, answer: AppendResult, seconds: float) -> None:
    """Report a stored append."""
    facts = {
        "version": answer.last,
        "bytes": sum(map(len, request.bodies)),
        "milliseconds": seconds * 1000,
        "correlation": request.stamp.correlation,
        "duplicate": answer.duplicate,
    }
    text = (
        f"appended {request.stream} version {answer.first}-{answer.last}, {facts['bytes']} bytes, "
        f"{seconds * 1000:.2f} ms, correlation {request.stamp.correlation}"
    )
    _report("appended", request.stream, text, facts)


def report_deletion(request: ops.Delete) -> None:
    """Report a deleted stream."""
    version = request.expected.version
    text = f"deleted {request.stream} at version {version}"
    _report("deleted", request.stream, text, {"version": version})


def _report(event: str, stream: StreamKey, text: str, about: Mapping[str, object]) -> None:
    facts: dict[str, object] = {
        "event": event,
        "tenant": stream.tenant,
        "kind": stream.kind,
        "stream": stream.id,
        **about,
    }
    try:
        logger.info("%s", text, extra=facts)
        # Use OpenTelemetry only if the application has imported it.
        if tracing := sys.modules.get(_TRACING):
            attributes = {
                f"holdfast.{name}": value for name, value in facts.items() if value is not None
            }
            tracing.get_current_span().add_event(f"holdfast.{event}", attributes)
    except Exception as error:
        # For example from the application's logging filter: a stored append must not seem failed.
        warnings.warn(
            f"a persistence event could not be reported ({type(error).__name__})",
            RuntimeWarning,
            stacklevel=2,
        )
