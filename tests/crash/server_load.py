"""The writers of `workload.py`, on a server that is killed under them: they go on by themselves.

`main` (arguments: URL NOTES SEED PROCESSES SECONDS) forks that many processes. A line `doubt PID`
on standard output tells that a commit ended without an answer; the store then settles it by itself.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import time

from helpers.stored.notes import Notes, Plan
from holdfast.backends import AppendResult
from holdfast.errors import OutcomeUnknown, Unavailable

from .workload import Process, say

PAUSE_SECONDS = 0.05
"""After a refusal: nobody tells a client when the server is back."""


class PatientNotes(Notes):
    """Notes of writers that do not run hot while the server is away."""

    def refused(self, key: str, error: BaseException) -> None:
        super().refused(key, error)
        time.sleep(PAUSE_SECONDS)


class Survivor(Process):
    """A process whose server may be away whenever it asks."""

    def look_back(self, step: Plan, answer: AppendResult, chance: random.Random) -> None:
        try:
            super().look_back(step, answer, chance)
        except (Unavailable, OutcomeUnknown):
            pass


class Doubts(logging.Handler):
    """Tells when the store settles appends whose answer was lost."""

    def emit(self, record: logging.LogRecord) -> None:
        if "a write failed (OutcomeUnknown" in record.getMessage():
            say(f"doubt {os.getpid()}")


def main() -> None:
    url, notes, seed, processes, seconds = sys.argv[1:]
    for number in range(int(processes)):
        if os.fork() == 0:
            signal.alarm(int(seconds))
            logging.getLogger("holdfast").addHandler(Doubts())
            logging.getLogger("holdfast").setLevel(logging.DEBUG)  # each, not only the first
            Survivor(url, PatientNotes(notes), f"{seed}/{number}", 0, []).live()
            os._exit(1)
    for _ in range(int(processes)):
        os.wait()
