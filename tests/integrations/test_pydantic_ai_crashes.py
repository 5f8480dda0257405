"""Durable runs of PydanticAI in processes that are killed with -9 at every boundary."""

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
from .pydantic_ai_program import WAYS


@pytest.mark.slow
def test_runs_killed_at_every_boundary_repeat_no_finished_request_and_lose_nothing(
    tmp_path: Path,
) -> None:
    place, file = tmp_path / "agents.db", tmp_path / "notes"
    with ModelServer() as server:
        command = program(
            "integrations.pydantic_ai_program", server.base_url, place, file, warnings="error"
        )
        ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
        assert ended.returncode == 0, ended.stderr
        made = [request for request in server.requests if request["body"]["model"] != REHEARSAL]
    notes = list(read_notes(file))
    # Each of the four requests is made once in a process that dies meanwhile, and once more.
    assert len(made) == 8
    assert find_repeated_calls(notes) == []

    kills = Counter(
        note["point"].partition(" of ")[0].partition(":")[0]
        for note in notes
        if note["what"] == "kill"
    )
    assert kills["the call"] == 4
    assert kills["after step.started"] >= 2  # of the `once` tools, and of steps that take long
    # Two requests and two tools. Tools that end together are stored by one append.
    assert kills["after step.completed"] >= 2 * 2
    effects = Counter(note["effect"] for note in notes if note["what"] == "effect")
    for way in WAYS:
        assert kills[f"before {way}"] == kills[f"after {way}"] == 2
        assert effects[f"{way}: pay 7"] == 1
        assert effects[f"{way}: tally 1"] >= 1
    answers = {note["way"]: note["text"] for note in notes if note["what"] == "answer"}
    assert answers == dict.fromkeys(WAYS, "tool said: tallied 1; paid 7")
    with holdfast.open(place) as store:
        for way in WAYS:
            view = store.get_task(way)
            assert view is not None and view.status == "finished"
        assert store.verify().ok
