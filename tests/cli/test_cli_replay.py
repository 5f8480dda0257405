"""`holdfast replay`, as a shell sees it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

APP = """
import holdfast

@holdfast.agent("claims")
{define} claims(task):
    {wait}task.step("look", print, "LIVE")
    {wait}task.step("pay", print, {what!r})
    return "done"
"""


def program(place: Path, what: str, *, asynchronous: bool = False) -> str:
    path = place / "claims_app.py"
    path.write_text(
        APP.format(
            define="async def" if asynchronous else "def",
            wait="await " if asynchronous else "",
            what=what,
        )
    )
    return str(path)


@pytest.fixture
def url(tmp_path: Path) -> str:
    path = str(tmp_path / "agents.db")
    with holdfast.open(path) as store:
        with store.task("claim-7", agent="claims") as task:
            task.step("look", print, "LIVE")
            task.step("pay", print, "LIVE 7")
            task.finish("done")
        with store.task("nobody's") as task:
            task.step("look", print, "LIVE")
    return path


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "replay", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])
def test_a_program_that_agrees_is_exit_code_0_and_calls_nothing(
    url: str, tmp_path: Path, asynchronous: bool
) -> None:
    done = call(url, "claim-7", program(tmp_path, "LIVE 7", asynchronous=asynchronous))
    assert done.stdout.splitlines() == [
        "replay of task 'claim-7' (version 5): finished",
        "  replayed: look, pay",
    ]
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_that_departs_is_exit_code_1(url: str, tmp_path: Path) -> None:
    done = call(url, "claim-7", program(tmp_path, "LIVE 8"))
    assert done.returncode == 1
    assert "  diverges in: arguments (pay)" in done.stdout.splitlines()
    assert "LIVE" not in done.stdout
    told = json.loads(call(url, "claim-7", program(tmp_path, "LIVE 8"), "--json").stdout)
    assert (told["ok"], told["ended"], told["steps"]) == (False, "diverged", ["look"])
    assert (told["divergence"]["what"], told["divergence"]["step"]) == ("arguments", "pay")


def test_up_to_a_version(url: str, tmp_path: Path) -> None:
    done = call(url, "claim-7", program(tmp_path, "LIVE 8"), "--version", "3")
    assert done.stdout.splitlines() == [
        "replay of task 'claim-7' (version 3): recording ended",
        "  replayed: look",
    ]
    assert done.returncode == 0


def test_the_agent_can_be_named_and_has_to_be_if_the_task_does_not_say(
    url: str, tmp_path: Path
) -> None:
    app = program(tmp_path, "LIVE 7")
    assert call(url, "nobody's", app, "--agent", "claims").returncode == 0
    done = call(url, "nobody's", app)
    assert done.returncode == 1
    assert "--agent" in done.stderr


def test_what_is_not_there_is_one_line(url: str, tmp_path: Path) -> None:
    app = program(tmp_path, "LIVE 7")
    for arguments in (
        [url, "nowhere", app],
        [url, "claim-7", "nowhere.py"],
        [url, "claim-7", app, "--agent", "other"],
    ):
        done = call(*arguments)
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 1
    assert call(url).returncode == 2
