"""Structured logs: one JSON object per line, without content."""

from __future__ import annotations

import json
import logging
from typing import IO, Any

from ..log.telemetry import FACTS, logger


class JsonFormatter(logging.Formatter):
    """Formats a log record as one line of JSON.

    It has the time, the level, the message and the facts of a persistence event: `event`, `tenant`,
    `kind`, `stream`, `first` and `version` (the versions that were appended), `bytes`,
    `milliseconds`, `by`, `duplicate` and `correlation`. Facts that do not apply are left out. An
    exception is given by its type only: its message may have content.
    """

    def format(self, record: logging.LogRecord) -> str:
        facts: dict[str, Any] = {
            "time": self.format_time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in ("correlation", *FACTS):
            if (value := getattr(record, name, None)) is not None:
                facts[name] = round(value, 3) if name == "milliseconds" else value
        if record.exc_info and record.exc_info[0] is not None:
            facts["error"] = record.exc_info[0].__name__
        return json.dumps(facts, default=str)

    @staticmethod
    def format_time(record: logging.LogRecord) -> str:
        from datetime import datetime, timezone

        at = datetime.fromtimestamp(record.created, timezone.utc)
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def json_logs(stream: IO[str] | None = None, *, level: int | str = logging.INFO) -> logging.Handler:
    """Write what Holdfast logs as JSON, one object per line.

    Args:
        stream: Where to write; standard error by default.
        level: The lowest level to write. Below `INFO` there are details of repeated failures.

    Returns:
        The handler. `logging.getLogger("holdfast").removeHandler(handler)` ends it.

    Example:
        >>> holdfast.telemetry.json_logs(sys.stdout)
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    handler.setLevel(level)
    logger.addHandler(handler)
    if logger.getEffectiveLevel() > handler.level or logger.level == logging.NOTSET:
        logger.setLevel(handler.level)
    return handler
