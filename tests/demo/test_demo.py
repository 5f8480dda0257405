"""The demo: it shows what it says, on every engine, and fails when something was done twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import holdfast
from helpers.run_cli import run
from holdfast.demo.agent_runs import choose_moments, rehearse
from holdfast.demo.claim import PAY, RECEIPTS, KillMoment
from holdfast.demo.run import run_demo
from holdfast.demo.verdict import count_from_zero, find_problems
from holdfast.demo.world import MODEL_CALLS, World

EFFECTS = ["payments to the customer", "emails to the customer", "emails to the repair shop"]


def in_a_process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Python with these arguments, without a terminal."""
    outside = {
        name: value
        for name, value in os.environ.items()
        if name not in ("FORCE_COLOR", "COLUMNS", "TERM")
    }
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env={**outside, **environment},
        check=False,
    )


def counts(output: str) -> dict[str, list[int]]:
    """The rows of the table of counts: undisturbed, killed, from zero."""
    return {
        what: [int(number) for number in line.removeprefix(what).split()]
        for line in map(str.strip, output.splitlines())
        for what in (*EFFECTS, MODEL_CALLS)
        if line.startswith(f"{what}  ")
    }


@pytest.fixture(scope="module")
def moments() -> dict[KillMoment, Counter[str]]:
    return rehearse().moments


def test_the_demo_shows_that_everything_happened_once(tmp_path: Path) -> None:
    done = in_a_process("-m", "holdfast.cli", "demo", "--seed", "7", TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "Killed 5 times: every effect happened exactly once" in " ".join(done.stdout.split())
    assert done.stdout.count("kill -9 ") == 5
    table = counts(done.stdout)
    assert [table[effect][:2] for effect in EFFECTS] == [[1, 1]] * 3
    undisturbed, paid, computed = table[MODEL_CALLS]
    # Two of the kills strike while the model is asked: those two answers are paid for again, and no
    # other.
    assert (paid, paid < computed) == (undisturbed + 2, True)
    assert "You are resuming task" in done.stdout and "def settle(task" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_without_a_terminal_the_output_is_plain_and_fits_80_columns(tmp_path: Path) -> None:
    program = "from holdfast.demo.run import run_demo; exit(not run_demo(kills=25, think=0).ok)"
    # The folder of the store and that of the program are shown whole, however long they are.
    done = in_a_process("-c", program, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout
    assert [
        line for line in done.stdout.splitlines() if len(line) > 80 and os.sep not in line
    ] == []
    assert (
        "1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6\n" in done.stdout
    )  # the runs, by their last digit


def test_signs_that_the_output_cannot_show_are_no_reason_to_fail(tmp_path: Path) -> None:
    program = "from holdfast.demo.run import run_demo; exit(not run_demo(kills=1, think=0).ok)"
    done = in_a_process("-c", program, TMPDIR=str(tmp_path), PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stdout + done.stderr


def test_killed_at_every_moment_there_is_on_files(
    tmp_path: Path, moments: dict[KillMoment, Counter[str]]
) -> None:
    url = f"file://{tmp_path / 'agents'}"
    call = f"run_demo(url={url!r}, kills={len(moments)}, seed=1, think=0)"
    program = f"from holdfast.demo.run import run_demo; raise SystemExit(not {call}.ok)"
    done = in_a_process("-c", program)
    assert done.returncode == 0, done.stdout + done.stderr
    with holdfast.open(url) as store:
        [info] = store.tasks()
        task = store.get_task(info.id)
    assert task is not None and (task.status, task.runs) == ("finished", len(moments) + 1)
    assert task.result["amount"] == 2100
    assert f"holdfast task URL {info.id}" in done.stdout
    lost = sum(moment.kind in ("asked", "reading") for moment in moments)
    undisturbed, paid, _ = counts(done.stdout)[MODEL_CALLS]
    assert paid == undisturbed + lost


def test_a_service_that_did_it_twice_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Asked whether it has paid, the bank denies it: so the agent pays again.
    monkeypatch.setattr(World, "on_find", lambda self, service, key: None)
    assert not run_demo(url=str(tmp_path / "agents.db"), kills=1, think=0).ok
    output = capsys.readouterr().out
    assert counts(output)["payments to the customer"] == [1, 2, 2]
    assert "payments to the customer: 2, not 1" in output
    assert "exactly once" not in output


def test_an_agent_that_fails_by_itself_is_a_failure_of_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: World, service: str, **rest: Any) -> str:
        raise RuntimeError("out of order")

    monkeypatch.setattr(World, "on_do", refuse)
    assert not run_demo(url=str(tmp_path / "agents.db"), kills=1, think=0).ok
    assert "run 1 ended with exit code 1" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("url", "says"),
    [("memory://", "lost when the agent"), ("mongodb://host/db", "a store URL must be")],
)
def test_a_store_that_cannot_be_used_is_one_line_and_exit_code_1(url: str, says: str) -> None:
    result = run("demo", "--url", url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert says in result.stderr and result.stderr.count("\n") == 1


AS_ASKED: dict[str, Any] = {
    "undisturbed": {"payments": 1, MODEL_CALLS: 17},
    "counted": {"payments": 1, MODEL_CALLS: 19},
    "expected": {"amount": 7},
    "result": {"amount": 7},
    "planned_kills": 5,
    "actual_kills": 5,
}


def test_more_calls_of_the_model_are_no_problem() -> None:
    assert find_problems(**AS_ASKED) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"counted": {"payments": 2}}, "payments: 2, not 1"),
        ({"counted": {}}, "payments: 0, not 1"),
        ({"counted": {"payments": 1, "mails": 1}}, "mails: 1, not 0"),
        ({"undisturbed": {"payments": 2}, "counted": {"payments": 2}}, "payments: 2, not 2"),
        ({"result": {"amount": 8}}, "the result differs from that of the undisturbed run"),
        ({"result": None}, "the result differs from that of the undisturbed run"),
        ({"actual_kills": 4}, "the agent was killed 4 times, not 5"),
    ],
)
def test_what_must_not_be_is_a_problem(change: dict[str, Any], problem: str) -> None:
    assert find_problems(**{**AS_ASKED, **change}) == [problem]


def test_five_kills_are_of_every_kind_and_in_the_order_of_the_work(
    moments: dict[KillMoment, Counter[str]],
) -> None:
    order = list(moments)
    seen = set()
    for seed in range(50):
        chosen = choose_moments(order, 5, seed)
        assert chosen == choose_moments(order, 5, seed)
        assert chosen == sorted(set(chosen), key=order.index) and len(chosen) == 5
        assert {moment.kind for moment in chosen} == {"effect", "reading", "asked", "between"}
        assert ("effect", PAY) in {(moment.kind, moment.step) for moment in chosen}
        seen.update(chosen)
    assert seen == set(order)


def test_every_moment_can_be_chosen_and_none_twice(moments: dict[KillMoment, Counter[str]]) -> None:
    assert len(moments) >= 25  # as many kills as the command takes
    assert choose_moments(list(moments), len(moments), 3) == list(moments)


def test_from_zero_each_run_does_again_what_was_done_by_its_end(
    moments: dict[KillMoment, Counter[str]],
) -> None:
    total = Counter({MODEL_CALLS: 17, "payments to the customer": 1})
    fourth = next(
        moment
        for moment in moments
        if moment.step == RECEIPTS and "receipt 4 " in moment.description
    )
    paid = next(moment for moment in moments if (moment.kind, moment.step) == ("effect", PAY))
    # The plan, the claim and four receipts; then these with all twelve and the comparison; then
    # everything.
    computed = count_from_zero(moments, total, [fourth, paid])
    assert computed == Counter({MODEL_CALLS: 6 + 15 + 17, "payments to the customer": 0 + 1 + 1})
    assert total[MODEL_CALLS] == 17


@pytest.mark.slow
def test_the_dashboard_shows_the_kills_until_it_is_interrupted(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast.cli", "demo", "--serve", "--kills", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        try:
            address = demo.stdout.readline().removeprefix("dashboard: ").strip()
            shown = next(line for line in demo.stdout if line.startswith("The dashboard is at"))
            assert shown.split()[4] == address.partition("task?")[0]
            timeline = address.replace("task?", "api/v1/task/timeline?")
            with urllib.request.urlopen(timeline, timeout=30) as answer:
                runs = json.load(answer)["timeline"]["runs"]
            assert [run["how"] for run in runs] == ["killed", "killed", "finished"]
        finally:
            demo.send_signal(signal.SIGINT)
    assert demo.returncode == 0
