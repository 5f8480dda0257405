"""Teams and agents of AutoGen killed with -9 at every boundary: each model call shows exactly what
was stored, once, in order."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from helpers.model_server import ModelServer, Reply
from helpers.programs import program
from helpers.stored.notes import read_notes

from .autogen_program import CHOOSE, TASKS, TURNS_PER_TASK, task_of
from .autogen_world import Message, as_seen, seen_by
from .process_runs import REHEARSAL


class Chooser(ModelServer):
    """Also chooses the next speaker, when asked for one: the first or the second that is offered,
    in turn."""

    def _take(self, path: str, body: Message) -> Any:
        number, reply, hold = super()._take(path, body)
        first = body["messages"][0]["content"]
        if first.startswith(CHOOSE[:10]):
            names = re.findall(r"'(\w+)'", first.partition("]")[0])
            reply = Reply(names[len(first) % 2])
        return number, reply, hold


def check_request(shown: list[Message], thread: list[Message]) -> None:
    prompt, rest = str(shown[0]["content"]), as_seen(shown[1:])
    if prompt.startswith(CHOOSE[:10]):
        chat = [message for message in thread if message["type"].endswith("Message")]
        history = "\n".join(f"{said['source']}: {said['content']}\n\n" for said in chat)
        assert prompt.partition(" after:\n")[2].rstrip() == history.rstrip()
        assert rest == []
        return
    name = prompt.removeprefix("You are ").removesuffix(".")
    expected = seen_by(name, thread)
    assert rest[: len(expected)] == expected
    # In the middle of a turn the speaker also has its calls and their results.
    assert {seen[0] for seen in rest[len(expected) :]} <= {"calls", "result"}


@pytest.mark.parametrize("kind", TASKS)
def test_a_program_killed_at_every_boundary_goes_on_as_if_it_had_not_been(
    kind: str, tmp_path: Path
) -> None:
    place, notes_file = tmp_path / "agents.db", tmp_path / "notes"
    with Chooser() as server:
        command = program(
            "integrations.autogen_program",
            server.base_url,
            place,
            notes_file,
            kind,
            warnings="error",
        )
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    notes = list(read_notes(notes_file))
    turns = TASKS[kind] * TURNS_PER_TASK[kind]

    # Each request shows what was stored last. The server saw these requests, except those cut off
    # on their way.
    thread: list[Message] = []
    sent = []
    for note in notes:
        if note["what"] == "saved":
            assert (
                note["thread"][: len(thread)] == thread
            )  # nothing that was stored is ever taken back
            thread = note["thread"]
        elif note["what"] == "request":
            check_request(note["shown"], thread)
            sent.append(note["shown"])
        elif note["what"] == "said":
            assert note["id"] in [message["id"] for message in thread]  # before it was handed over
    waiting = iter(sent)
    for request in server.requests:
        if request["body"]["model"] != REHEARSAL:
            assert any(shown == request["body"]["messages"] for shown in waiting)

    # All tasks were given once, in order, and each had its turns.
    chat = [message for message in thread if message["type"].endswith("Message")]
    contents = [
        getattr(task, "content", task)
        for task in (task_of(kind, number) for number in range(TASKS[kind]))
    ]
    assert [message["content"] for message in chat if message["source"] == "user"] == contents
    assert len(chat) == len(contents) + turns
    if kind in ("round robin", "one task"):
        speakers = [message["source"] for message in chat if message["source"] != "user"]
        assert speakers == (["writer", "critic"] * turns)[:turns]

    # The last process of the program had the whole of every run, the same as was stored.
    last = max(at for at, note in enumerate(notes) if note["what"] == "born")
    results = [note for note in notes[last:] if note["what"] == "result"]
    assert [note["task"] for note in results] == list(range(TASKS[kind]))
    assert [said for note in results for said in note["said"]] == [
        message["id"] for message in thread
    ]
    if kind != "agent":
        assert {note["stop_reason"] for note in results} == {
            f"Maximum number of messages {TURNS_PER_TASK[kind] + 1} reached, "
            f"current message count: {TURNS_PER_TASK[kind] + 1}"
        }

    check_kills(kind, notes, thread)


def check_kills(kind: str, notes: list[Message], thread: list[Message]) -> None:
    """It was really killed everywhere, once."""
    points = [note["point"] for note in notes if note["what"] == "kill"]
    assert len(points) == len(set(points))
    kinds = Counter(" ".join(point.split(" ")[:2]) for point in points)
    tasks, turns = TASKS[kind], TASKS[kind] * TURNS_PER_TASK[kind]
    calls = [message for message in thread if message["type"] == "ToolCallRequestEvent"]
    tools = Counter(note["n"] for note in notes if note["what"] == "tool")
    if kind == "agent":
        # A task is stored before the agent has it, then the results of its tools, then its answer.
        assert kinds["after version"] == 2 * tasks + len(calls)
        assert kinds["the call"] == turns + len(calls)
        assert kinds["the stream"] == turns
        assert kinds["in tool"] == len(calls) == len(range(0, tasks, 4))
        assert set(tools.values()) == {2}  # killed in it once: what has a result does not run again
    else:
        assert kinds["after version"] == tasks + turns
        choices = {"selector": turns}.get(kind, 0)
        more = (
            0 if kind == "swarm" else len(calls)
        )  # after a tool the model is asked once more, after a handoff it is not
        assert kinds["the call"] == turns + more + choices
        assert kinds["in tool"] == more
        assert set(tools.values()) <= {
            3
        }  # killed in it, and after it: a turn that was cut off begins anew
    if kind == "one task":
        assert kinds["writer said"] + kinds["critic said"] + kinds["user said"] == turns + 1
