"""A warning about a lasting problem: logged when it starts, once a minute, and when it ends.

While a disk is full or a server is unreachable, every write fails. A warning for each would hide
everything else; they are logged at level DEBUG.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from ..backends import clock

SUMMARY_SECONDS: Final = 60.0
"""The minimum time between two lines about the same problem."""
QUIET_SECONDS: Final = 5.0
"""A problem is over when something succeeds this long after the last failure."""

logger = logging.getLogger("holdfast")


class RepeatedWarning:
    """Logs a problem that repeats. `end_text` is logged when it is over. Thread-safe."""

    def __init__(self, end_text: str) -> None:
        self._end_text = end_text
        self._lock = threading.Lock()
        self.active = False
        """Whether the problem lasts. Check it before `note_success`, to keep each success cheap."""
        self._count = 0
        self._since = self._last = self._logged = 0.0

    def note_failure(self, text: str) -> None:
        """Count a failure. Log it if it is the first, or if the last line is a minute old."""
        now = clock.monotonic()
        with self._lock:
            if self.active:
                self._count += 1
            else:
                self.active, self._count, self._since, self._logged = True, 1, now, now
            self._last, level = now, logging.WARNING
            if self._count > 1 and now - self._logged < SUMMARY_SECONDS:
                level = logging.DEBUG
            elif self._count > 1:
                self._logged = now
                text = f"{text}; {self._count:,} failures in {now - self._since:.0f} s"
        _log(level, text)

    def note_success(self) -> None:
        """Log the end of the problem, unless something failed a moment ago."""
        now = clock.monotonic()
        with self._lock:
            if not self.active or now - self._last < QUIET_SECONDS:
                return
            self.active = False
            count, seconds = self._count, self._last - self._since
        failures = "1 failure" if count == 1 else f"{count:,} failures in {seconds:.0f} s"
        _log(logging.WARNING, f"{self._end_text}, after {failures}")


def _log(level: int, text: str) -> None:
    # No correlation id: the line is about all callers, not the one whose call failed.
    logger.log(level, "%s", text, extra={"correlation": None})
