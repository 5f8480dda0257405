"""The crash matrix finds what a crash would do to an agent, and passes agents to which it does
nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import testing_agents as agents

from helpers.run_cli import run
from holdfast import testing
from holdfast.errors import NotSerializable
from holdfast.testing.judge import Evidence, judge

AGENTS = Path(agents.__file__)
BEFORE_IT_IS_RECORDED = "before step.completed pay"


def test_it_finds_an_effect_that_happens_twice_and_says_what_to_do() -> None:
    report = testing.crash_matrix(agents.double_charge)
    assert not report.ok
    [violation] = report.violations
    assert (violation.point, violation.step, violation.mode) == (BEFORE_IT_IS_RECORDED, "pay", "")
    assert (violation.effect, violation.times, violation.expected) == ("charged order 7", 2, 1)
    assert (
        report.kills == len(report.points) == 10
    )  # two for each write: tenant, claim, two steps, and the end
    text = str(report)
    assert "'charged order 7' happened 2 times, expected 1" in text
    assert (
        "pay is an ordinary step, which may run again; "
        "pass holdfast.idempotency_key() to the service, or declare check=" in text
    )


@pytest.mark.parametrize("store", ["sqlite", "files"])
def test_it_passes_the_corrected_one(store: Literal["sqlite", "files"]) -> None:
    report = testing.crash_matrix(f"{AGENTS}:single_charge", store=store)
    assert report.ok, report
    assert report.kills == len(report.points) == 10


def test_of_two_async_agents_too_it_finds_the_wrong_one() -> None:
    report = testing.crash_matrix(agents.double_charge_async, points=[BEFORE_IT_IS_RECORDED])
    assert [violation.effect for violation in report.violations] == ["charged order 7"]


def test_a_check_that_looks_is_passed_and_one_that_is_wrong_is_found() -> None:
    assert (
        report := testing.crash_matrix(
            agents.checked, points=[BEFORE_IT_IS_RECORDED, "after step.started pay"]
        )
    ).ok, report
    [twice] = testing.crash_matrix(agents.checked_badly, points=[BEFORE_IT_IS_RECORDED]).violations
    assert (twice.mode, twice.times) == ("check", 2)
    assert "its check missed an effect" in twice.advice
    [never] = testing.crash_matrix(
        agents.checked_gullibly, points=["after step.started pay"]
    ).violations
    assert (never.mode, never.times, never.expected) == ("check", 0, 1)


@pytest.mark.parametrize("agent", [agents.told_once, agents.announced_once])
def test_a_once_step_may_be_in_doubt_and_is_never_run_twice(agent: Any) -> None:
    points = ["after step.started tell", "before step.completed tell", "after step.completed tell"]
    report = testing.crash_matrix(agent, points=points)
    assert report.ok, report
    assert report.in_doubt == [(points[0], "tell"), (points[1], "tell")]
    assert "in doubt at 2 points" in str(report)


@pytest.mark.parametrize(
    ("agent", "point", "what"),
    [
        (
            agents.outside_of_steps,
            "after step.completed close",
            "'mailed' happened 2 times, expected 1",
        ),
        (
            agents.result_of_its_own,
            "after step.completed look up",
            "its result differs from a run without a crash",
        ),
        (agents.other_arguments, "after step.completed pay", "ReplayMismatch"),
    ],
)
def test_it_finds_programs_that_are_not_repeatable(agent: Any, point: str, what: str) -> None:
    [violation] = testing.crash_matrix(agent, points=[point]).violations
    assert what in violation.what


def test_what_the_agent_waits_for_is_given_and_time_is_skipped() -> None:
    report = testing.crash_matrix(
        agents.waits,
        answers={"payout": True},
        signals={"confirmed": "yes"},
        points=["after task.asked payout", "before task.finished"],
    )
    assert report.ok, report
    with pytest.raises(
        testing.MatrixError, match=r"waits for 'payout'; pass answers={.* --answer payout="
    ):
        testing.crash_matrix(agents.waits)
    with pytest.raises(
        testing.MatrixError, match=r"TimeoutError.*in vain for 'payout'; pass answers="
    ):
        testing.crash_matrix(agents.waits_a_while)


def test_an_agent_gets_its_input_as_it_declares_it() -> None:
    report = testing.crash_matrix(agents.claims, input=agents.Claim(7), points=1)
    assert report.ok, report
    assert (report.agent, len(report.points)) == ("claims", 1)


@pytest.mark.parametrize(
    ("agent", "problem"),
    [
        (agents.fails, "without any crash, .*ValueError: as always"),
        (agents.draws_lots, "two runs without a crash differ"),
    ],
)
def test_an_agent_that_cannot_be_compared_with_itself_is_an_error(agent: Any, problem: str) -> None:
    with pytest.raises(testing.MatrixError, match=problem):
        testing.crash_matrix(agent)


def test_a_point_that_is_not_come_to_is_no_success(tmp_path: Path) -> None:
    points = ["after task.claimed", "before step.completed rare"]
    report = testing.crash_matrix(
        agents.changes_its_mind, input=str(tmp_path / "runs"), points=points
    )
    assert (report.ok, report.kills, report.missed) == (False, 1, points[1:])
    assert (
        "not tested, because the agent did not reach it again: before step.completed rare"
        in str(report)
    )


def test_an_agent_that_hangs_when_it_is_resumed_is_found() -> None:
    report = testing.crash_matrix(agents.hangs, points=["before step.completed look up"], timeout=5)
    assert ["no end after 5 s" in violation.what for violation in report.violations] == [True]


def test_of_an_agent_whose_result_varies_the_effects_are_compared() -> None:
    assert testing.crash_matrix(agents.draws_lots, effects_only=True).ok
    report = testing.crash_matrix(agents.draws_lots_and_charges, effects_only=True)
    assert {violation.effect for violation in report.violations} == {"charged order 7"}


def test_progress_is_told_for_each_point() -> None:
    told: list[tuple[int, int]] = []
    report = testing.crash_matrix(
        agents.single_charge, points=4, progress=lambda done, of: told.append((done, of))
    )
    assert report.ok and told == [(1, 4), (2, 4), (3, 4), (4, 4)]


# -- the import ------------------------------------------------------------------------------------

APP = """
from pathlib import Path
import threading
import holdfast
from holdfast import testing

with open({log!r}, "a") as log:
    log.write("imported\\n")
{more}

def agent(task):
    task.step("charge", lambda: testing.effect("charged", key=holdfast.idempotency_key()))
    return [task.step(name, str, name) for name in {names}]
"""


def imports(tmp_path: Path, more: str = "", names: str = "['a', 'b']") -> int:
    """How often the matrix imports such an app."""
    log, app = tmp_path / "log", tmp_path / "app.py"
    app.write_text(APP.format(log=str(log), more=more, names=names))
    report = testing.crash_matrix(f"{app}:agent", points=4)
    assert report.ok and report.kills == 4, str(report)
    return len(log.read_text().splitlines())


def test_an_application_is_imported_twice_and_not_by_each_process(tmp_path: Path) -> None:
    assert imports(tmp_path) == 2


@pytest.mark.parametrize(
    "more",
    [
        "threading.Thread(target=threading.Event().wait, daemon=True).start()",
        "import socket; socket = socket.socket()",
        "Path('state').write_text('x')",
        "testing.effect('told', key='once')",
    ],
)
def test_an_import_that_a_fork_could_not_share_is_done_by_each_process(
    tmp_path: Path, more: str
) -> None:
    assert imports(tmp_path, more) >= 2 + 2 * 4


def test_an_order_that_another_process_would_not_repeat_is_found(tmp_path: Path) -> None:
    with pytest.raises(testing.MatrixError, match="two runs without a crash differ"):
        imports(tmp_path, names="{'apple', 'banana', 'cherry', 'damson', 'elder'}")


def entered(step: str, mode: str = "", what: str = "entered") -> dict[str, Any]:
    return {"what": what, "task": "matrix", "step": step, "mode": mode}


FINISHED = {"what": "completed", "steps": [["matrix", "pay"]]}


@pytest.mark.parametrize(
    ("notes", "what"),
    [
        ([entered("pay"), entered("pay")], None),
        ([entered("pay"), FINISHED, entered("send")], None),
        ([entered("pay"), FINISHED, entered("pay")], "ran again after it had finished"),
        ([entered("pay", "once")], None),
        ([entered("pay", "once"), entered("pay", "once")], "its function ran 2 times"),
        (
            [entered("pay", "check"), entered("pay", "check", "asked"), entered("pay", "check")],
            None,
        ),
        (
            [entered("pay", "check"), entered("pay", "check")],
            "2 times without calling its check first",
        ),
    ],
)
def test_the_judge_knows_how_often_a_function_may_be_entered(
    notes: list[dict[str, Any]], what: str | None
) -> None:
    expected = Evidence("finished", None, [entered("pay", notes[0]["mode"])], {}, [])
    found = [
        violation.what
        for violation in judge("here", Evidence("finished", None, notes, {}, []), expected)
    ]
    assert len(found) == (what is not None)
    assert not found or found[0].endswith(what or "")


def test_points_that_do_not_exist_are_refused() -> None:
    with pytest.raises(
        testing.MatrixError, match="no point is called 'before lunch'; there are: before tenant"
    ):
        testing.crash_matrix(agents.single_charge, points=["before lunch"])


def test_what_another_process_cannot_find_or_get_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="at the top level of a module"):
        testing.crash_matrix(lambda task: None)
    with pytest.raises(ValueError, match=r"path/app\.py:claims"):
        testing.crash_matrix("claims")
    with pytest.raises(ValueError, match="no file"):
        testing.crash_matrix("nowhere.py:claims")
    with pytest.raises(ValueError, match="survive a kill"):
        testing.crash_matrix(agents.single_charge, store="memory")  # type: ignore[arg-type]
    with pytest.raises(NotSerializable):
        testing.crash_matrix(agents.single_charge, answers={"payout": object()})


def test_outside_of_the_matrix_an_effect_is_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with testing.temporary_store("memory") as store, store.task("t") as task:
        assert task.step("pay", agents.charge_with_key, 7) == "receipt 7"
    assert not list(tmp_path.iterdir())


def test_the_command_prints_the_report_and_its_exit_code_is_the_verdict() -> None:
    good = run("crashtest", f"{AGENTS}:matrix-claims", "--input", '{"order": 7}', "--points", "1")
    assert (good.exit_code, good.stdout) == (
        0,
        "crash matrix of matrix-claims on sqlite: killed at 1 of 1 point, 0 violations\n",
    )
    assert good.stderr == "running the agent twice without a kill\nkilled at 1 of 1 points\n"
    bad = run("crashtest", f"{AGENTS}:double_charge", "--points", "5")
    assert bad.exit_code == 1
    assert "'charged order 7' happened 2 times, expected 1" in bad.stdout
    assert bad.stdout.splitlines()[0].endswith(" points, 1 violation")
    varied = run("crashtest", f"{AGENTS}:draws_lots", "--points", "3")
    assert varied.exit_code == 1
    assert varied.stderr.endswith("or compare effects only (--effects-only)\n")
    assert run("crashtest", f"{AGENTS}:draws_lots", "--effects-only").exit_code == 0
    failed = run("crashtest", f"{AGENTS}:waits", "--answer", "payout=true")
    assert failed.exit_code == 1
    assert "waits for 'confirmed'" in failed.stderr
    typo = run("crashtest", f"{AGENTS}:clams")
    assert typo.exit_code == 1
    assert "no agent 'clams' is registered in this process" in typo.stderr
    assert "Traceback" not in typo.stderr
