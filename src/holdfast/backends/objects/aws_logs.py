"""Suppress botocore's DEBUG log records that contain request and response bodies or keys."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_LOGGERS: Final = tuple(logging.getLogger(f"botocore.{name}") for name in ("endpoint", "parsers"))
"""The loggers that log bodies. Other botocore loggers log only headers and internals."""
_here = threading.local()


@contextmanager
def hide_bodies() -> Iterator[None]:
    """Keep botocore from logging bodies in this thread. Other threads still log."""
    for logger in _LOGGERS:
        if _may_log not in logger.filters:  # the application may have reconfigured logging
            logger.addFilter(_may_log)
    before = getattr(_here, "hidden", False)
    _here.hidden = True
    try:
        yield
    finally:
        _here.hidden = before


def _may_log(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG or not getattr(_here, "hidden", False)
