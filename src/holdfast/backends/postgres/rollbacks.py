"""Repeat a transaction that the server rolled back.

Only serialization failures and deadlocks are repeated here: the server guarantees that nothing was
stored. If the answer to a COMMIT is lost, the outcome is unknown; `errors.py` turns it into
`OutcomeUnknown`, and `log/appender.py` sends the append again with the same id.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from .errors import psycopg

MAX_ATTEMPTS: Final = 5
_ROLLED_BACK: Final = {"40001", "40P01"}
"""The SQLSTATEs of serialization failure and deadlock."""

T = TypeVar("T")


def retry_rolled_back(work: Callable[[], T]) -> T:
    """Call `work`, and call it again after a rollback by the server. Raise its last error."""
    for attempt in range(1, MAX_ATTEMPTS):
        try:
            return work()
        except psycopg.Error as error:
            if error.sqlstate not in _ROLLED_BACK:
                raise
        time.sleep(random.uniform(0.001, 0.01) * attempt)  # noqa: S311  jitter, not a secret
    return work()
