"""The commands that show what happens while it happens: follow and watch tasks, run one in the
foreground, and list the workers."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import holdfast
from helpers.run_cli import plain_terminal, run
from helpers.tasks.running_workers import wait_until
from holdfast.cli.live.watch import format_table
from holdfast.testing import fake_clock

PATIENCE_SECONDS = 30.0

APP = """
import holdfast

__version__ = "shop 7.1"

@holdfast.step(once=True)
def pay(amount):
    raise ConnectionError("the line is dead")

@holdfast.agent("claims")
def claims(task):
    task.step("read", str.upper, task.input["text"])
    if task.input.get("ask"):
        task.ask("payout", "May it be paid?")
    if task.input.get("fail"):
        raise ValueError("no policy")
    if task.input.get("pay"):
        pay(3)
    return {"sum": 3}

@holdfast.agent("async")
async def asynchronous(task):
    return await task.step("read", len, "four")
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_terminal(monkeypatch)


@pytest.fixture
def url(tmp_path: Path) -> str:
    path = str(tmp_path / "agents.db")
    holdfast.open(path).close()
    return path


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "live_shop.py"
    path.write_text(APP)
    return path


class Command:
    """A command in a process of its own, whose lines are read as it prints them."""

    def __init__(self, *arguments: object, stdout: int = subprocess.PIPE) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli", *map(str, arguments)],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.heard: list[str] = []
        self._watchdog = threading.Timer(PATIENCE_SECONDS, self.process.kill)
        self._watchdog.start()

    def hear(self, words: str) -> str:
        """Read up to and including the line with these words, and return it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.heard.append(line.rstrip("\n"))
            if words in line:
                return line
        raise AssertionError(f"it never said {words!r}, but {self.heard}")

    def rest(self) -> int:
        """Wait for its end, and return the exit code."""
        out, err = self.process.communicate(timeout=PATIENCE_SECONDS)
        self._watchdog.cancel()
        assert "Traceback" not in err
        self.heard += (out or "").splitlines()
        return self.process.returncode

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.rest()


@contextmanager
def command(*arguments: object, stdout: int = subprocess.PIPE) -> Iterator[Command]:
    started = Command(*arguments, stdout=stdout)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.communicate()
        started._watchdog.cancel()


# -- what a task is doing --------------------------------------------------------------------------


def test_a_running_step_is_shown_with_its_progress_and_what_was_expected(url: str) -> None:
    shown: list[str] = []

    @holdfast.step(expect=5)
    def read() -> None:
        holdfast.current_step().save("c", done=3, total=10, flush=True)
        clock.advance(12)
        shown.extend(run(*command).output for command in (("tasks", url), ("task", url, "t")))
        shown.extend(
            run(*command, "--json").output for command in (("tasks", url), ("task", url, "t"))
        )

    with fake_clock() as clock, holdfast.open(url) as store:
        with store.task("t", goal="Read it", timeout=3600) as task:
            task.step("read", read)
    listed, text, *documents = shown
    assert re.fullmatch(
        r"running   \* -             t  Read it"
        r"  \(read for \d+ s, 3 of 10, overdue: expected 5 s\)\n",
        listed,
    )
    assert re.search(r"^running: read for \d+ s, 3 of 10, overdue: expected 5 s$", text, re.M)
    assert re.search(r"^timeout: fails at \d{4}-", text, re.M)
    for facts in map(json.loads, documents):
        step = facts["step"]
        assert (facts["overdue"], step["path"], step["done"], step["total"]) == (
            True,
            "read",
            3,
            10,
        )
    [step] = json.loads(documents[1])["steps"]
    assert (step["status"], step["overdue"], step["expect"]) == ("running", True, 5.0)


def test_a_cancelled_task_that_does_not_end_says_what_still_runs(url: str) -> None:
    shown: list[str] = []

    def hang() -> None:
        store.task("t").cancel("it hangs")
        clock.advance(60)
        shown.extend(run(*command).output for command in (("tasks", url), ("task", url, "t")))

    with fake_clock() as clock, holdfast.open(url) as store:
        with pytest.raises(holdfast.errors.TaskEnded), store.task("t") as task:
            task.step("hang", hang)
    assert (
        f"cancelled * -             t  (cancelled, but still running in process {os.getpid()}"
        in (shown[0])
    )
    assert f"not ended: hang still running in process {os.getpid()}" in shown[1]
    assert "not ended" not in run("task", url, "t").output


def test_the_table_of_watched_tasks_shows_how_far_they_are(url: str) -> None:
    table: list[str] = []

    def read() -> None:
        holdfast.current_step().save("c", done=3, total=10, flush=True)
        clock.advance(12)
        table.extend(format_table(list(store.tasks())))

    with fake_clock() as clock, holdfast.open(url) as store:
        store.submit("claims", "u", goal="Wait \x1b[2J")
        with store.task("t", goal="Read it") as task:
            task.step("read", read)
    assert [line.split("  ")[0] for line in table] == ["STATUS", "running", "pending"]
    assert re.search(r"  t +read  \d+ s +###\.{7} 3 of 10  Read it$", table[1])
    assert table[2].endswith("Wait \\u001b[2J")
    goals = zip(table, ("GOAL", "Read", "Wait"), strict=True)
    assert len({line.index(word) for line, word in goals}) == 1


# -- following and watching ------------------------------------------------------------------------


def test_a_followed_task_is_printed_as_it_goes_on_until_it_has_ended(url: str) -> None:
    with holdfast.open(url) as store, store.task("t") as task:
        task.step("first", int)
        with command("task", url, "t", "--follow") as follower:
            follower.hear("step.completed")
            task.step("second", int)
            follower.hear('"second"')
            task.finish("done")
            assert follower.rest() == 0
        assert "task.finished" in follower.heard[-1]
        versions = [int(line.split()[0]) for line in follower.heard]
        assert versions == list(range(1, len(versions) + 1))
        again = run("task", url, "t", "--follow", "--after", "3", "--json")
    assert [json.loads(line)["version"] for line in again.output.splitlines()] == versions[3:]
    assert again.exit_code == 0


def test_following_ends_with_ctrl_c(url: str) -> None:
    with holdfast.open(url) as store:
        store.submit("claims", "t")
        with command("task", url, "t", "--follow") as follower:
            follower.hear("task.queued")
            assert follower.interrupt() == 130


def test_watching_prints_a_line_whenever_a_task_changes(url: str) -> None:
    with holdfast.open(url) as store:
        store.submit("claims", "t")
        with store.task("done") as task:
            task.finish()
        with command("tasks", url, "--watch", "--interval", "0.1s") as watcher:
            assert watcher.hear("t") == "pending     claims        t\n"
            with store.task("t") as task:
                watcher.hear("running")
                task.finish()
            watcher.hear("finished")
            store.submit("claims", "u")
            watcher.hear("u")
            assert watcher.interrupt() == 130
    assert watcher.heard == [
        "pending     claims        t",
        "running     claims        t",
        "finished    claims        t",
        "pending     claims        u",
    ]


def test_watching_on_a_terminal_draws_the_list_anew(url: str) -> None:
    with holdfast.open(url) as store:
        store.submit("claims", "t")
    ours, theirs = pty.openpty()
    try:
        with command("watch", url, "--interval", "0.1s", stdout=theirs) as watcher:
            seen = b""
            while seen.count(b"\x1b[2J") < 2:
                seen += os.read(ours, 10_000)
            assert watcher.interrupt() == 130
    finally:
        os.close(ours)
        os.close(theirs)
    assert seen.count(b"1 tasks") + seen.count(b"1 task\r") >= 1
    assert b"pending  claims  t" in seen


# -- running one task ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "code", "last"),
    [
        ({"text": "a"}, 0, r'finished  result: \{"sum":3\}'),
        ({"text": "a", "ask": 1}, 3, "suspended"),
        ({"text": "a", "fail": 1}, 1, "failed  ValueError: no policy"),
        ({"text": "a", "pay": 1}, 4, "released"),
    ],
)
def test_one_task_runs_in_the_foreground(
    url: str, program: Path, given: dict[str, object], code: int, last: str
) -> None:
    result = subprocess.run(
        [
            *(sys.executable, "-m", "holdfast.cli", "run", url, program, "claims", "c-1"),
            *("--input", json.dumps(given), "--goal", "Settle it"),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    lines = result.stdout.splitlines()
    assert result.returncode == code, result
    assert any(re.search(r"step  read  completed  \d\.\d s", line) for line in lines), lines
    assert re.search(rf"\d\d:\d\d:\d\d  {last}", lines[-1]), lines
    assert ("no policy" in result.stderr) == (code == 1)
    assert ("does not show whether it was done" in result.stderr) == (code == 4)
    with holdfast.open(url) as store:
        view = store.get_task("c-1")
        assert view is not None
        assert (view.agent, view.goal) == ("claims", "Settle it")


def test_a_task_that_was_left_is_resumed_and_only_news_are_printed(url: str, program: Path) -> None:
    arguments = [sys.executable, "-m", "holdfast.cli", "run", url, program, "claims", "c-1"]
    first = subprocess.run(
        [*arguments, "--input", '{"text": "a", "ask": 1}'], check=False, capture_output=True
    )
    assert first.returncode == 3
    with holdfast.open(url) as store:
        store.answer("c-1", "payout", True)
    second = subprocess.run(
        arguments, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    assert "step  read" not in second.stdout
    assert "finished" in second.stdout


def test_an_async_agent_runs_too(url: str, program: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "run", url, program, "async", "a-1"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    assert "result: 4" in done.stdout


def test_an_agent_that_the_program_does_not_have_is_an_error(
    url: str, program: Path, no_agents: None
) -> None:
    result = run("run", url, program, "nobody", "t")
    assert result.exit_code == 1
    assert "has no agent 'nobody'; its agents: async, claims" in result.output
    sys.modules.pop(program.stem)


# -- workers ---------------------------------------------------------------------------------------


def test_workers_are_listed_with_what_they_run(url: str, program: Path) -> None:
    assert run("workers", url).output == ""
    with command("worker", url, program, "--concurrency", "2") as worker:
        wait_until(lambda: bool(run("workers", url).output))
        [line] = run("workers", url).output.splitlines()
        facts = json.loads(run("workers", url, "--json").output)
        assert worker.process.pid == facts["pid"]
        worker.process.send_signal(signal.SIGTERM)
        assert worker.rest() == 0
    assert re.fullmatch(
        rf"working   \S+:{facts['pid']}  0 of 2  async,claims  code shop 7.1"
        r"  up \d+ s  seen \d+ s ago",
        line,
    )
    assert (facts["status"], facts["code_version"]) == ("working", "shop 7.1")
    assert facts["version"] == holdfast.__version__
    assert run("workers", url).output == ""


def test_a_killed_worker_is_shown_as_lost(url: str, program: Path) -> None:
    with command("worker", url, program, "--code-version", "v2") as worker:
        wait_until(lambda: bool(run("workers", url).output))
        worker.process.kill()
        worker.process.wait()
        output = run("workers", url).output
    assert output.startswith("lost ")
    assert "code v2" in output


def test_a_worker_may_stay_unregistered(url: str, program: Path) -> None:
    with command("worker", url, program, "--no-register") as worker:
        worker.hear("waiting for tasks of")
        assert run("workers", url).output == ""
        worker.process.send_signal(signal.SIGTERM)
        assert worker.rest() == 0
