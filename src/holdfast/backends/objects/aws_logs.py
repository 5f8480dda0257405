"""Amazon's client keeps still while it works for us: at the level DEBUG it logs what it sends and gets, which is content and keys."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_LOGGERS: Final = tuple(logging.getLogger(f"botocore.{name}") for name in ("endpoint", "parsers"))
"""Those that log bodies. What others say is of headers and of the client itself."""
_here = threading.local()


@contextmanager
def bodies_unsaid() -> Iterator[None]:
    """While this lasts, nothing that the client sends or gets in this thread is logged. What it does for others is as before."""
    for logger in _LOGGERS:
        if _is_said not in logger.filters:  # a program may have set up its logs anew
            logger.addFilter(_is_said)
    before = getattr(_here, "unsaid", False)
    _here.unsaid = True
    try:
        yield
    finally:
        _here.unsaid = before


def _is_said(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG or not getattr(_here, "unsaid", False)
