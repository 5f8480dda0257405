"""Durable tools of LangGraph and of MCP in processes that are killed with -9 at every boundary."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

import holdfast
from helpers.model_server import ModelServer
from helpers.programs import program
from helpers.stored.notes import read_notes

from .process_runs import REHEARSAL
from .step_kills import PAID
from .tools_program import SAID, WAYS


@pytest.mark.slow
@pytest.mark.parametrize("framework", WAYS)
def test_tools_killed_at_every_boundary_repeat_nothing_finished_and_lose_nothing(
    tmp_path: Path, framework: str
) -> None:
    place, file = tmp_path / "agents.db", tmp_path / "notes"
    with ModelServer() as server:
        command = program(
            "integrations.tools_program", server.base_url, place, file, framework, warnings="error"
        )
        ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert ended.returncode == 0, ended.stderr
        made = [request for request in server.requests if request["body"]["model"] != REHEARSAL]
    notes, ways = list(read_notes(file)), WAYS[framework]
    # Each model call is made once in a process that dies meanwhile, and once more.
    assert len(made) == 2 * len(ways)
    steps = [
        note["way"] if note["what"] == "request" else note["call"].rpartition(": ")[2]
        for note in notes
        if note["what"] in ("request", "recorded")
    ]
    # What was recorded was neither asked nor done again. The operator recorded the payments.
    assert steps == [step for way in ways for step in (way, way, "ask", "tally")]

    points = [note["point"] for note in notes if note["what"] == "kill"]
    effects = Counter(note["effect"] for note in notes if note["what"] == "effect")
    for way in ways:
        for moment in ("before", "after"):
            assert {f"{moment} {way}: tally 1", f"{moment} {way}: pay {PAID}"} <= {*points}
        assert f"the call of {way}" in points
        assert effects[f"{way}: pay {PAID}"] == 1
        # Killed after its effect and before that was recorded, a plain tool runs again.
        assert effects[f"{way}: tally 1"] == 2
    assert len([point for point in points if point.startswith("after step.completed")]) >= 2
    answers = {note["way"]: note["text"] for note in notes if note["what"] == "answer"}
    assert answers == {way: SAID.format(way=way) for way in ways}
    with holdfast.open(place) as store:
        assert {task.status for task in store.tasks()} == {"finished"}
        assert store.verify().ok
