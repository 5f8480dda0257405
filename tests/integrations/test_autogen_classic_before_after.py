"""The AutoGen programs of `examples/before_and_after`, killed with -9 while the model answers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.model_server import ModelServer
from helpers.paths import ROOT

PROGRAMS = ROOT / "examples" / "before_and_after"


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def started(which: str, server: ModelServer, place: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(PROGRAMS / f"autogen_chat_{which}.py"), str(place / "chat")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "none"},
    )


@pytest.mark.parametrize("which", ["before", "after"])
def test_a_chat_that_is_killed_while_the_model_answers(
    which: str, server: ModelServer, tmp_path: Path
) -> None:
    first = started(which, server, tmp_path)
    print("first", file=first.stdin, flush=True)
    assert first.stdout is not None
    while "last: first" not in first.stdout.readline():
        pass  # the framework prints as well
    hold = server.hold()
    print("second", file=first.stdin, flush=True)
    hold.wait()
    first.kill()
    first.communicate()
    hold.release()
    second = started(which, server, tmp_path)
    printed, _ = second.communicate("third\n", timeout=60)
    assert second.returncode == 0
    answers = [line.partition("last: ")[2] for line in printed.splitlines() if "last: " in line]
    if which == "before":
        assert answers == ["third"], "the second question is lost"
    else:
        assert answers == ["second", "third"]
