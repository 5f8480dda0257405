"""Persistence events: what was stored, where, how long it took and for whom. Never content.

They go to `logging` (logger `holdfast`, level INFO), and as events on the current span to OpenTelemetry, if the
program uses it. Both happen in the caller's thread and context, after the append is done.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import _operations as ops
    from .backends import Appended

logger = logging.getLogger("holdfast")


def appended(request: ops.Append, answer: Appended, seconds: float) -> None:
    """Report an append that is stored."""
    # A program that uses OpenTelemetry has imported it. We never do: most programs have no use for it.
    tracing = sys.modules.get("opentelemetry.trace")
    logging_it = logger.isEnabledFor(logging.INFO)
    if not logging_it and tracing is None:
        return
    facts = {
        "event": "appended",
        "tenant": request.stream.tenant,
        "kind": request.stream.kind,
        "stream": request.stream.id,
        "version": answer.last,
        "bytes": sum(map(len, request.bodies)),
        "milliseconds": seconds * 1000,
        "correlation": request.stamp.correlation,
        "duplicate": answer.duplicate,
    }
    if logging_it:
        logger.info(
            "appended %s version %d-%d, %d bytes, %.2f ms, correlation %s",
            request.stream,
            answer.first,
            answer.last,
            facts["bytes"],
            facts["milliseconds"],
            request.stamp.correlation,
            extra=facts,
        )
    if tracing is not None:
        attributes = {f"holdfast.{name}": value for name, value in facts.items() if value is not None}
        tracing.get_current_span().add_event("holdfast.appended", attributes)
