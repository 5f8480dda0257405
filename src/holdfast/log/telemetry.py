"""Persistence events: what was stored, where, how long it took and for whom. Never content.

They go to `logging` (logger `holdfast`, level INFO), and as events on the current span to OpenTelemetry, if the
program uses it. Both happen in the caller's thread and context, after the append is done.
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


def wanted() -> bool:
    """Whether anybody listens."""
    return _TRACING in sys.modules or logger.isEnabledFor(logging.INFO)


def appended(request: ops.AppendRecords, answer: AppendResult, seconds: float) -> None:
    """Report an append that is stored."""
    facts = {
        "version": answer.last,
        "bytes": sum(map(len, request.bodies)),
        "milliseconds": seconds * 1000,
        "correlation": request.stamp.correlation,
        "duplicate": answer.duplicate,
    }
    text = "appended {stream} version {first}-{version}, {bytes} bytes, {milliseconds:.2f} ms, correlation {correlation}"
    _report(
        "appended",
        request.stream,
        text.format(**{**facts, "stream": request.stream, "first": answer.first}),
        facts,
    )


def deleted(request: ops.Delete) -> None:
    """Report a stream that is deleted."""
    version = request.expected.version
    _report(
        "deleted",
        request.stream,
        f"deleted {request.stream} at version {version}",
        {"version": version},
    )


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
        # A program that uses OpenTelemetry has imported it. We never do: most programs have no use for it.
        if tracing := sys.modules.get(_TRACING):
            attributes = {
                f"holdfast.{name}": value for name, value in facts.items() if value is not None
            }
            tracing.get_current_span().add_event(f"holdfast.{event}", attributes)
    except (
        Exception
    ) as error:  # a filter of the program's own, say: it must not make a stored append look failed
        warnings.warn(
            f"a persistence event could not be reported ({type(error).__name__})",
            RuntimeWarning,
            stacklevel=2,
        )
