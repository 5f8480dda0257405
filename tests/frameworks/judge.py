"""Runs a program that is killed many times, and compares what the model was shown with what had been acknowledged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from crash.notes import read_notes

from .lives import REHEARSAL
from .model_server import ModelServer
from .model_wire import messages_of

TESTS = Path(__file__).parents[1]


class Verdict(NamedTuple):
    """What the notes say."""

    points: list[str]
    acknowledged: list[dict[str, Any]]
    notes: list[dict[str, Any]]

    def of(self, what: str) -> list[dict[str, Any]]:
        return [note for note in self.notes if note["what"] == what]


def run_program(
    module: str, server: ModelServer, place: Path, notes: Path, *args: str, exactly: bool = True
) -> Verdict:
    """Let the program live until it ends.

    Every request must have shown the model what was acknowledged until then, and that alone, unless `exactly` is False.
    """
    start = f"import sys; sys.path.append({str(TESTS)!r}); from frameworks.{module} import main; main()"
    command = [sys.executable, "-W", "error", "-c", start, server.base_url, str(place), str(notes), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = list(read_notes(notes))
    shown = [messages_of(request["body"]) for request in server.requests if request["body"]["model"] != REHEARSAL]
    acknowledged: list[dict[str, Any]] = []
    requests = 0
    for note in found:
        if note["what"] == "ack":
            acknowledged += note["messages"]
        elif note["what"] == "request":
            assert not exactly or shown[requests] == acknowledged, f"request {requests}"
            requests += 1
    assert requests == len(shown)
    return Verdict([note["point"] for note in found if note["what"] == "kill"], acknowledged, found)
