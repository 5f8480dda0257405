"""Chats of classic AutoGen survive their processes; run in an environment of each of the three
packages.

`make test` makes the environments and says which is which in HOLDFAST_FRAMEWORK; without it this
file is not collected.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import holdfast
from helpers.doc_pages import run_page
from helpers.model_server import ModelServer
from helpers.paths import TESTS
from helpers.programs import program
from holdfast.integrations.autogen_classic import persisted

from .classic_plays import PLAYS, Cast, Cut, cut, silent, spoken, without_call_ids
from .classic_program import TOOL_TURNS, TURNS
from .judge import Verdict, read_notes, run_program

PACKAGES = {
    "classic-autogen": ("autogen", "0.14."),
    "classic-ag2": ("ag2", "0.14."),
    "classic-agentchat": ("autogen-agentchat", "0.2."),
}


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def test_this_environment_has_the_package_it_is_named_for() -> None:
    package, begins = PACKAGES[os.environ["HOLDFAST_FRAMEWORK"]]
    assert version(package).startswith(begins)


def test_twenty_turns_killed_at_every_boundary_show_the_model_each_acknowledged_message_once(
    tmp_path: Path,
) -> None:
    _, killed = both(tmp_path, "two")
    assert len(killed.acknowledged) == 1 + 2 * TURNS + len(TOOL_TURNS)
    # After each message that somebody was to answer, during each model call, and in each tool.
    assert (
        len(killed.points)
        == len(set(killed.points))
        == (2 * TURNS - 1) + TURNS + 2 * len(TOOL_TURNS)
    )
    # A tool is run again only if it had not answered: killed in the first of two, then in the
    # second, then done.
    assert Counter(note["n"] for note in killed.of("tool")) == {
        **dict.fromkeys(TOOL_TURNS, 3),
        **dict.fromkeys((-turn for turn in TOOL_TURNS), 2),
    }


def test_one_exchange_after_another_in_async_code_killed_at_every_boundary(tmp_path: Path) -> None:
    _, killed = both(tmp_path, "questions")
    assert "after 24 messages" in killed.points
    assert len(killed.points) == len(set(killed.points)) == 18 + 12 + 2 + 6


def test_a_group_killed_at_every_boundary_shows_each_speaker_what_was_said_once_and_in_order(
    tmp_path: Path,
) -> None:
    _, killed = both(tmp_path, "group", judged=False)
    assert len(killed.points) == len(set(killed.points)) == 11 + 9


def test_the_page_about_classic_autogen_runs_and_prints_what_it_says(
    server: ModelServer, tmp_path: Path
) -> None:
    model = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "none"}
    printed, promised = run_page(
        "docs/howto/autogen-classic.md", tmp_path, warnings="default", **model
    )
    rest = iter(printed)  # the framework prints as well, in between
    assert [line for line in promised if line not in rest] == []
    assert len(promised) > 6


def test_the_example_goes_on_after_a_kill(server: ModelServer, tmp_path: Path) -> None:
    held = server.hold()
    first = example(server, tmp_path)
    print("what are dice?", file=first.stdin, flush=True)
    held.wait()
    first.kill()
    first.communicate()
    held.release()
    second = example(server, tmp_path)
    printed, _ = second.communicate('call roll {"sides": 1}\n')
    assert second.returncode == 0
    ours = [line for line in printed.splitlines() if line.startswith(("(", "seen", "tool"))]
    assert ours == [
        "(resuming after 1 messages)",
        "seen 2 messages; last: what are dice?",
        "tool said: 1",
    ]
    assert [len(shown) for shown in server.shown()] == [2, 2, 4, 6]


def example(server: ModelServer, place: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, TESTS.parent / "examples" / "autogen_classic_chat.py", place / "chat.db"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "none"},
    )


def both(place: Path, chat: str, *, judged: bool = True) -> tuple[Verdict, Verdict]:
    """The chat left alone, and killed many times: the model was shown the same, except twice what
    it did not get to answer."""
    run = run_program if judged else run_unjudged
    found = []
    for how in ("calm", "killed"):
        with ModelServer() as server:
            verdict = run("classic_program", server, place / f"{how}.db", place / how, chat, how)
            found.append((verdict, server.shown()[how == "killed" :]))  # a rehearsal comes first
    (calm, alone), (killed, shown) = found
    assert without_call_ids(
        [new for old, new in pairwise([None, *shown]) if old != new]
    ) == without_call_ids(alone)
    assert without_call_ids(killed.of("end")) == without_call_ids(calm.of("end"))
    return calm, killed


def run_unjudged(module: str, server: ModelServer, place: Path, notes: Path, *args: str) -> Verdict:
    """As `run_program`, for several speakers: each has a view of its own, and there is no one list
    of what was acknowledged."""
    command = program(
        f"integrations.{module}", server.base_url, place, notes, *args, warnings="error"
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = list(read_notes(notes))
    return Verdict([note["point"] for note in found if note["what"] == "kill"], [], found)


@pytest.mark.parametrize("play", PLAYS, ids=lambda play: play.__name__)
def test_a_chat_that_is_cut_off_anywhere_ends_like_one_that_is_not(
    play: Callable[[], Cast],
) -> None:
    with holdfast.open("memory://") as store:
        whole = play()
        spoken.clear()
        with persisted(store, "whole", *whole.persisted):
            whole.begin()
        asked = spoken[:]
        number = 0
        while True:
            number += 1
            first, second = play(), play()
            cut(first, number)
            spoken.clear()
            try:
                with persisted(store, f"cut {number}", *first.persisted):
                    first.begin()
                break  # there is no message of that number
            except Cut:
                pass
            with persisted(store, f"cut {number}", *second.persisted) as chat:
                assert chat.pending
                second.begin()
                assert chat.pending is None
            assert second.memory() == whole.memory(), number
            # Nobody was asked twice; but that somebody had nothing to say is known only from what
            # came after it.
            unknown = ["assistant"] if (play, number) == (silent, 4) else []
            assert sorted(spoken) == sorted(asked + unknown), number
            assert stored(store, f"cut {number}") == stored(store, "whole")
            third = play()
            with persisted(store, f"cut {number}", *third.persisted) as chat:
                assert chat.pending is None
                assert third.memory() == whole.memory(), number
        assert number > 1


def stored(store: holdfast.Store, id: str) -> list[Any]:
    return [
        (entry.message, {**entry.meta, "opens": "opens" in entry.meta})
        for entry in store.conversation(id).entries()
    ]
