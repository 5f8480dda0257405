"""A chat on the SDK of OpenAI or Anthropic that is killed with -9 at every boundary: the model
always sees what was acknowledged, once, in order."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import holdfast
from helpers.messages_wire import blocks_of
from helpers.model_server import ModelServer

from .judge import run_program
from .openai_program import STREAMED_TURNS, TOOL_TURNS, TURNS, question

TOOL_RUNS = [n for turn in TOOL_TURNS for n in (turn, -turn)]


def in_blocks(messages: list[dict[str, Any]]) -> Any:
    """Results of parallel calls are stored one by one, and sent to Anthropic as one turn."""
    return [(message["role"], block) for message in messages for block in blocks_of(message)]


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_a_chat_killed_at_every_boundary_shows_the_model_exactly_what_was_acknowledged(
    api: str, tmp_path: Path
) -> None:
    with ModelServer() as server:
        verdict = run_program(
            "openai_program",
            server,
            tmp_path / "agents.db",
            tmp_path / "notes",
            api,
            form=in_blocks if api == "messages" else list,
        )

    # In a tool turn the calls are one append, in each dialect, and so is each of the two results.
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
        assert [
            message
            for message in chat.messages()
            if message.get("role") == "user" and isinstance(message["content"], str)
        ] == [question(turn) for turn in range(1, TURNS + 1)]
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

    # The part of the long answer that was streamed before the kill could be read in the next run.
    assert [note["drafts"] for note in verdict.of("born") if note["drafts"]] == [1]
