"""Durable runs of the Agents SDK in processes that are killed with -9 at every boundary."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

import holdfast
from helpers.model_server import ModelServer
from helpers.programs import program
from helpers.stored.notes import read_notes

from .judge import find_repeated_calls
from .process_runs import REHEARSAL
from .runner_program import WAYS


def test_the_judge_finds_a_repeated_call() -> None:
    call = {"what": "request", "call": "run: clerk 1"}
    recorded = {"what": "recorded", "call": "run: clerk[1]"}
    assert find_repeated_calls([call, call, recorded]) == []
    assert find_repeated_calls([call, recorded, call]) == ["run: clerk 1"]


@pytest.mark.slow
def test_runs_killed_at_every_boundary_repeat_no_finished_call_and_lose_nothing(
    tmp_path: Path,
) -> None:
    place, file = tmp_path / "agents.db", tmp_path / "notes"
    with ModelServer() as server:
        command = program(
            "integrations.runner_program", server.base_url, place, file, warnings="error"
        )
        ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
        assert ended.returncode == 0, ended.stderr
        made = [request for request in server.requests if request["body"]["model"] != REHEARSAL]
    notes = list(read_notes(file))
    requests = [note for note in notes if note["what"] == "request"]
    # A call that was about to be made when another tool died was noted, and not made.
    assert 12 < len(made) <= len(requests)
    assert find_repeated_calls(notes) == []

    kills = Counter(
        note["point"].partition(" of ")[0].partition(":")[0]
        for note in notes
        if note["what"] == "kill"
    )
    # Four model calls in each run; the answer of the streamed one is also cut in the middle.
    assert kills["the call"] == 12
    assert kills["the stream"] == 1
    assert kills["after step.started"] >= 3  # of the `once` tools, and of steps that take long
    # Steps that end together are stored by one append.
    assert kills["after step.completed"] >= 3 * 6
    for way in WAYS:
        assert kills[f"before {way}"] == kills[f"after {way}"] == 3

    effects = Counter(note["effect"] for note in notes if note["what"] == "effect")
    for way in WAYS:
        assert effects[f"{way}: pay 7"] == 1
        # Killed after its effect and before that was recorded, a plain tool runs again.
        assert effects[f"{way}: tally 1"] >= 1 and effects[f"{way}: count 2"] >= 1
    answers = {note["way"]: note["text"] for note in notes if note["what"] == "answer"}
    said = "tool said: tallied 1; paid 7; tool said: counted 2"
    assert answers == dict.fromkeys(WAYS, said)
    with holdfast.open(place) as store:
        for way in WAYS:
            chat = store.conversation(f"chat {way}")
            kinds = [message.get("type", message.get("role")) for message in chat.messages()]
            assert kinds == [
                "user",
                *["function_call"] * 3,
                *["function_call_output"] * 3,
                "message",
            ]
            view = store.get_task(way)
            assert view is not None and (view.status, view.result) == ("finished", said)
        assert store.verify().ok
