"""Persistence events: what was stored, where, and how long it took. They never contain content.

They go to `logging` (logger `holdfast`, level INFO), to `listeners` and, if the application uses
OpenTelemetry, to the current span as events. All of it happens in the caller's context, after the
append.

All of Holdfast logs to the one logger `holdfast`. A filter on it gives every record, warnings
included, the attributes of a persistence event, so that a format may name any of them.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from ..backends import AppendResult, StreamKey
from .context import origin

if TYPE_CHECKING:
    from . import operations as ops

TRACING = "opentelemetry.trace"

logger = logging.getLogger("holdfast")

FACTS: Final = (
    "event",
    "tenant",
    "kind",
    "stream",
    "first",
    "version",
    "bytes",
    "milliseconds",
    "by",
    "duplicate",
)
"""The attributes of a log record beside `correlation`. They are None where they do not apply."""


class StoreEvent(msgspec.Struct, frozen=True):
    """Something that happened in this process. `listeners` are called with it."""


class Appended(StoreEvent, frozen=True):
    """Records were appended, or were found to be stored already."""

    request: ops.AppendRecords
    answer: AppendResult
    seconds: float


class AppendConflicted(StoreEvent, frozen=True):
    """An append was refused, because another writer was faster."""

    stream: StreamKey


listeners: Final[list[Callable[[StoreEvent], object]]] = []
"""Called with every event, in the thread or event loop where it happened. They must not block."""


def emit(event: StoreEvent) -> None:
    """Call the listeners. Test `listeners` before you build an event."""
    for listener in tuple(listeners):
        try:
            listener(event)
        except Exception as error:  # what happened must not seem to have failed
            _warn_unreported(error)


def _complete_record(record: logging.LogRecord) -> bool:
    """Give a log record the attributes that it lacks. Return True, as a filter."""
    facts = record.__dict__
    if "correlation" not in facts:
        facts["correlation"] = origin()[0]
    for name in FACTS:
        facts.setdefault(name, None)
    return True


logger.addFilter(_complete_record)


def report_append(request: ops.AppendRecords, answer: AppendResult, seconds: float) -> None:
    """Report a stored append."""
    if listeners:
        emit(Appended(request, answer, seconds))
        if TRACING not in sys.modules and not logger.isEnabledFor(logging.INFO):
            return
    facts = {
        "first": answer.first,
        "version": answer.last,
        "bytes": sum(map(len, request.bodies)),
        "milliseconds": seconds * 1000,
        "correlation": request.stamp.correlation,
        "by": request.stamp.by,
        "duplicate": answer.duplicate,
    }
    text = (
        f"appended {request.stream} version {answer.first}-{answer.last}, {facts['bytes']} bytes, "
        f"{seconds * 1000:.2f} ms, correlation {request.stamp.correlation}"
    )
    _report("appended", request.stream, text, facts)


def report_deletion(request: ops.Delete) -> None:
    """Report a deleted stream."""
    version, correlation = request.expected.version, origin()[0]
    text = f"deleted {request.stream} at version {version}, correlation {correlation}"
    _report("deleted", request.stream, text, {"version": version, "correlation": correlation})


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
        if tracing := sys.modules.get(TRACING):
            attributes = {
                f"holdfast.{name}": value for name, value in facts.items() if value is not None
            }
            tracing.get_current_span().add_event(f"holdfast.{event}", attributes)
    except Exception as error:
        # For example from the application's logging filter: a stored append must not seem failed.
        _warn_unreported(error)


def _warn_unreported(error: Exception) -> None:
    warnings.warn(
        f"a persistence event could not be reported ({type(error).__name__})",
        RuntimeWarning,
        stacklevel=3,
    )
