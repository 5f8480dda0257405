"""A chat on the OpenAI SDK that is killed with -9 at every boundary: the model always sees what was
acknowledged, once, in order."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import holdfast
from helpers.model_server import ModelServer

from .judge import run_program
from .openai_program import STREAMED_TURNS, TOOL_TURNS, TURNS, question

TOOL_RUNS = [n for turn in TOOL_TURNS for n in (turn, -turn)]


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_chat_killed_at_every_boundary_shows_the_model_exactly_what_was_acknowledged(
    api: str, tmp_path: Path
) -> None:
    with ModelServer() as server:
        verdict = run_program(
            "openai_program", server, tmp_path / "agents.db", tmp_path / "notes", api
        )

    # In a tool turn the calls are one append, in both dialects, and so is each of the two results.
    kinds = Counter(" ".join(point.split(" ")[:2]) for point in verdict.points)
    assert kinds == {
        "after version": 2 * TURNS + 3 * len(TOOL_TURNS),
        "in tool": len(TOOL_RUNS),
        "the call": TURNS + len(TOOL_TURNS),
        "the stream": len(STREAMED_TURNS),
        "a long": 1,
    }
    assert len(verdict.points) == len(set(verdict.points))

    with holdfast.open(tmp_path / "agents.db") as store:
        chat = store.conversation("chat")
        assert chat.messages() == verdict.acknowledged
        assert [message for message in chat.messages() if message.get("role") == "user"] == [
            question(turn) for turn in range(1, TURNS + 1)
        ]
        assert chat.validate() == []
        assert chat.pending() is None
        assert chat.drafts() == []
    assert [
        turn
        for turn in range(1, TURNS + 1)
        if not any(note["turn"] == turn for note in verdict.of("answer"))
    ] == []

    # Each was killed inside once and then ran to its end: what had a result was never run again.
    assert Counter(note["n"] for note in verdict.of("tool")) == dict.fromkeys(TOOL_RUNS, 2)

    # Of the long answer, what had been streamed when it was killed could be read in the next life.
    assert [note["drafts"] for note in verdict.of("born") if note["drafts"]] == [1]
