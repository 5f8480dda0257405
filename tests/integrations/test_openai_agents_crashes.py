"""Sessions of the Agents SDK in processes that are killed with -9: between items, during calls, and
while an approval is awaited."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import holdfast
from helpers.model_server import ModelServer

from .judge import run_program
from .openai_program import TOOL_TURNS, TURNS, question


def test_a_session_killed_at_every_boundary_shows_the_model_exactly_what_was_acknowledged(
    tmp_path: Path,
) -> None:
    with ModelServer() as server:
        verdict = run_program("agents_program", server, tmp_path / "agents.db", tmp_path / "notes")

    # The SDK stores a turn's calls and results together, so a tool turn is three appends: question,
    # tools, answer.
    kinds = Counter(point.split(" ")[0] for point in verdict.points)
    assert kinds == {
        "after": 2 * TURNS + len(TOOL_TURNS),
        "in": 2 * len(TOOL_TURNS),
        "the": TURNS + len(TOOL_TURNS),
    }
    with holdfast.open(tmp_path / "agents.db") as store:
        chat = store.conversation("chat")
        assert chat.messages() == verdict.acknowledged
        assert [message for message in chat.messages() if message.get("role") == "user"] == [
            question(turn) for turn in range(1, TURNS + 1)
        ]
        assert chat.validate() == []
        assert chat.pending() is None


def test_a_run_killed_while_it_waits_for_an_approval_goes_on_when_it_has_it_and_the_tool_runs_once(
    tmp_path: Path,
) -> None:
    points = ["while it waited", "during the last call", "before the run was seen to be over"]
    with ModelServer() as server:
        verdict = run_program(
            "approvals_program",
            server,
            tmp_path / "agents.db",
            tmp_path / "notes",
            ",".join(points),
        )
    assert verdict.points == points
    assert len(verdict.of("tool")) == 1
    assert len(verdict.of("request")) == 3
    with holdfast.open(tmp_path / "agents.db") as store:
        chat = store.conversation("payments")
        assert chat.messages() == verdict.acknowledged
        assert [message.get("type") for message in chat.messages()] == [
            None,
            "function_call",
            "function_call_output",
            "message",
        ]
        assert chat.validate() == []
        assert chat.pending() is None


def test_a_run_killed_before_it_could_be_saved_is_asked_for_again_and_the_tool_runs_once(
    tmp_path: Path,
) -> None:
    with ModelServer() as server:
        arguments = (
            "approvals_program",
            server,
            tmp_path / "agents.db",
            tmp_path / "notes",
            "before the run was saved",
        )
        verdict = run_program(*arguments, exactly=False)
        shown = server.shown()
    assert verdict.points == ["before the run was saved"]
    assert len(verdict.of("tool")) == 1
    # The call that nobody can go on with stays in the session; the SDK does not show it to the
    # model.
    assert shown[0] == shown[1] == verdict.acknowledged[:1]
    assert [item.get("call_id") for item in verdict.acknowledged] == [
        None,
        "call_1_0",
        "call_2_0",
        "call_2_0",
        None,
    ]
    assert shown[2] == [verdict.acknowledged[0], *verdict.acknowledged[2:4]]
