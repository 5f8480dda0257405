"""Runs a program that is killed many times, and compares what the model was shown with what had
been acknowledged."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from helpers.model_server import ModelServer
from helpers.model_wire import messages_of
from helpers.programs import program
from helpers.stored.notes import read_notes

from .process_runs import REHEARSAL


class Verdict(NamedTuple):
    """What the notes say."""

    points: list[str]
    acknowledged: list[dict[str, Any]]
    notes: list[dict[str, Any]]

    def of(self, what: str) -> list[dict[str, Any]]:
        return [note for note in self.notes if note["what"] == what]


def run_program(
    module: str,
    server: ModelServer,
    place: Path,
    notes: Path,
    *args: str,
    exactly: bool = True,
    form: Callable[[list[dict[str, Any]]], Any] = list,
) -> Verdict:
    """Let the program live until it ends.

    Every request must have shown the model what was acknowledged until then, and that alone, unless
    `exactly` is False. Both are compared in a `form`, for a program that sends another one than it
    stores.
    """
    command = program(
        f"integrations.{module}", server.base_url, place, notes, *args, warnings="error"
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = list(read_notes(notes))
    shown = [
        messages_of(request["body"])
        for request in server.requests
        if request["body"]["model"] != REHEARSAL
    ]
    acknowledged: list[dict[str, Any]] = []
    requests = 0
    for note in found:
        if note["what"] == "ack":
            acknowledged += note["messages"]
        elif note["what"] == "request":
            same = form(shown[requests]) == form(acknowledged)
            assert not exactly or same, f"request {requests}"
            requests += 1
    assert requests == len(shown)
    return Verdict([note["point"] for note in found if note["what"] == "kill"], acknowledged, found)


def call_of(step: str) -> str | None:
    """Return the name of a recorded model call as the requests have it; None for other steps."""
    task, _, path = step.partition(": ")
    name, bracket, key = path.rstrip("]").partition("[")
    return f"{task}: {name} {key[-1]}" if bracket and name in ("clerk", "helper") else None


def find_repeated_calls(notes: list[dict[str, Any]]) -> list[str]:
    """Return the model calls that were made after their response was recorded."""
    recorded: set[str | None] = set()
    repeated = []
    for note in notes:
        if note["what"] == "recorded":
            recorded.add(call_of(note["call"]))
        elif note["what"] == "request" and note["call"] in recorded:
            repeated.append(note["call"])
    return repeated
