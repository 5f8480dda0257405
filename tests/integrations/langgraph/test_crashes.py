"""Graphs in processes that are killed with -9: after every call of the saver, and inside nodes."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

import holdfast
from helpers.programs import program
from helpers.stored.notes import read_notes
from helpers.stores import KEY, KEY_VARIABLE
from holdfast.integrations.langgraph import HoldfastSaver

from .crash_program import NODES, TURNS
from .graphs import thread


@pytest.mark.slow
@pytest.mark.parametrize("way", ["plain", "async"])
def test_a_graph_killed_at_every_boundary_repeats_no_finished_node_and_loses_nothing(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "async":  # one of them on an encrypted store
        monkeypatch.setenv(KEY_VARIABLE, KEY)
    place, notes = tmp_path / "agents.db", tmp_path / "notes"
    command = program("integrations.langgraph.crash_program", place, notes, way, warnings="error")
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr

    found = list(read_notes(notes))
    nodes = [f"{turn}.{number}" for turn in range(1, TURNS + 1) for number in range(NODES)]
    # Each was killed once inside, and ran once from start to end.
    assert Counter(note["node"] for note in found if note["what"] == "start") == dict.fromkeys(
        nodes, 2
    )
    assert [note["node"] for note in found if note["what"] == "end"] == nodes
    kills = Counter(note["point"].split(" ")[0] for note in found if note["what"] == "kill")
    assert kills["inside"] == TURNS * NODES
    # After each node at least one more: its writes and the next checkpoint are saved together.
    assert kills["after"] >= TURNS * NODES
    expected = [
        one
        for turn in range(1, TURNS + 1)
        for one in [f"said {turn}", *(f"{turn}.{number}" for number in range(NODES))]
    ]
    assert [note["log"] for note in found if note["what"] == "finished"] == [expected]
    with holdfast.open(place, key=KEY if way == "async" else None) as store:
        saved = HoldfastSaver(store).get_tuple(thread())
        assert saved is not None and saved.checkpoint["channel_values"]["log"] == expected
        assert store.verify().ok
