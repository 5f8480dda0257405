"""The commands about tasks: what a person sees, and what settles a doubt."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from helpers.run_cli import run


@holdfast.step(once=True)
def launch(rocket: str) -> str:
    raise ConnectionError("the line is dead")


@pytest.fixture
def url(tmp_path: Path) -> str:
    path = str(tmp_path / "agents.db")
    with holdfast.open(path) as store:
        with store.task("a-report", goal="Write the report", agent="writer") as task:
            task.make_plan(["collect", "write"])
            task.step("collect", len, "four")
        with pytest.raises(holdfast.StepInDoubt), store.task("b-mission", goal="Fly \x1b[31mhigh"):
            launch("R7")
        with store.task("c-done") as task:
            task.finish({"pages": 3})
    return path


def test_tasks_are_listed_with_status_doubt_agent_and_goal(url: str) -> None:
    assert run("tasks", url).output.splitlines() == [
        "pending     writer        a-report  Write the report",
        "pending   ? -             b-mission  Fly \\u001b[31mhigh",
        "finished    -             c-done",
    ]


def test_a_task_whose_process_was_killed_is_marked_and_says_so(url: str) -> None:
    program = (
        "import os, sys, holdfast\n"
        "with holdfast.open(sys.argv[1]) as store, store.task('d-killed'):\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", program, url], check=False)
    assert run("tasks", url, "--status", "running").output == "running   ! -             d-killed\n"
    assert (
        "(dead: the next process that opens the task takes it over)"
        in run("task", url, "d-killed").output
    )


def test_tasks_may_be_listed_by_status_and_as_json(url: str) -> None:
    [line] = run("tasks", url, "--status", "finished", "--json").output.splitlines()
    facts = json.loads(line)
    assert (facts["id"], facts["status"], facts["in_doubt"], facts["owner"]) == (
        "c-done",
        "finished",
        False,
        None,
    )
    assert facts["expires_at"] is not None


def test_a_task_that_is_tried_again_is_retrying_and_says_when(url: str) -> None:
    @holdfast.agent("failing", max_attempts=2)
    def failing(task: holdfast.Task) -> None:
        raise ValueError

    with holdfast.open(url) as store:
        store.submit("failing", "f")
        store.run_due()
        [info] = store.tasks(status="retrying")
    assert run("tasks", url, "--status", "failed").output == ""
    [line] = run("tasks", url, "--status", "retrying", "--json").output.splitlines()
    facts = json.loads(line)
    assert (facts["id"], facts["status"]) == ("f", "retrying")
    assert info.due_at is not None
    assert facts["due_at"] == info.due_at.isoformat()


def test_a_status_that_there_is_not_is_refused_with_those_there_are(url: str) -> None:
    result = run("tasks", url, "--status", "done")
    assert result.exit_code == 1
    assert "finished" in result.stderr


def test_a_task_is_shown_with_what_a_resume_would_do(url: str) -> None:
    shown = run("task", url, "a-report").output
    title, goal, agent, *_ = shown.splitlines()
    assert title.startswith("task a-report, ")
    assert (goal, agent) == ("goal: Write the report", "agent: writer")
    steps = shown.partition("\nsteps:\n")[2]
    assert "collect" in steps
    assert "write" in steps


def test_a_task_is_shown_as_json_with_status_and_doubt(url: str) -> None:
    facts = json.loads(run("task", url, "b-mission", "--json").output)
    assert (facts["id"], facts["status"], facts["in_doubt"]) == ("b-mission", "pending", True)
    assert [step["path"] for step in facts["steps"] if step["in_doubt"]] == ["launch"]


def test_what_lists_and_the_task_itself_show_has_the_same_names_and_values(url: str) -> None:
    listed = [json.loads(line) for line in run("tasks", url, "--json").output.splitlines()]
    assert [facts["id"] for facts in listed] == ["a-report", "b-mission", "c-done"]
    for facts in listed:
        shown = json.loads(run("task", url, facts["id"], "--json").output)
        assert {name: shown[name] for name in facts} == facts
        assert not {"task_id", "agent_id"} & set(shown)


def test_a_task_is_shown_as_json_with_all_that_came_of_it(url: str) -> None:
    @holdfast.step(kind="model")
    def ask() -> dict[str, object]:
        return {"usage": {"input_tokens": 30, "output_tokens": 5}}

    with holdfast.open(url) as store:
        with store.task("d-model", budget=holdfast.Budget(tokens=9000, calls=2)) as task:
            ask()
            task.finish("said")
        with pytest.raises(ValueError), store.task("e-failed"):
            raise ValueError("no money")
    facts = json.loads(run("task", url, "d-model", "--json").output)
    assert (facts["status"], facts["result"], facts["error"]) == ("finished", "said", None)
    [step] = facts["steps"]
    assert step["ended_at"] >= step["started_at"]
    shown = {name: step[name] for name in ("path", "status", "kind", "in_doubt", "overdue")}
    assert shown == {
        "path": "ask",
        "status": "completed",
        "kind": "model",
        "in_doubt": False,
        "overdue": False,
    }
    assert facts["usage"] == {"calls": 1, "input_tokens": 30, "output_tokens": 5, "cost": 0.0}
    assert facts["budget"] == {"tokens": 9000, "cost": None, "calls": 2}
    assert (
        "\nused: 1 calls, 35 tokens\nbudget: 2 calls, 9,000 tokens\n"
        in run("task", url, "d-model").output
    )
    failed = json.loads(run("task", url, "e-failed", "--json").output)
    assert (failed["error"]["type"], failed["error"]["message"], failed["budget"]) == (
        "ValueError",
        "no money",
        None,
    )
    assert failed["error"]["frames"][0]["source"] == 'raise ValueError("no money")'
    assert "used" not in run("task", url, "e-failed").output


def test_a_doubt_is_shown_with_the_command_that_settles_it(url: str) -> None:
    shown = run("task", url, "b-mission").output
    assert f"  holdfast resolve {url} b-mission launch --result JSON  # it was done\n" in shown
    assert f"  holdfast resolve {url} b-mission launch --retry  # it was not done\n" in shown
    assert "store.resolve" not in shown


KILLED_STEP = """
import os, sys
import holdfast

def find(to):
    return None

@holdfast.step(**({"once": True} if sys.argv[2] == "once" else {"check": find}))
def mail(to):
    os.kill(os.getpid(), 9)

with holdfast.open(sys.argv[1]) as store, store.task("killed"):
    mail("bob")
"""


@pytest.mark.parametrize("mode", ["once", "check"])
def test_a_step_that_was_killed_says_who_decides_before_the_next_run(url: str, mode: str) -> None:
    process = subprocess.run([sys.executable, "-c", KILLED_STEP, url, mode], check=False)
    assert process.returncode == -signal.SIGKILL
    shown = run("task", url, "killed").output
    assert "task killed, running\n" in shown
    by_check = "\noutcome unknown, its check decides: mail\n  to: " in shown
    assert (by_check, "in doubt" in shown) == ((False, True) if mode == "once" else (True, False))
    commands = [line for line in shown.splitlines() if line.startswith("  holdfast resolve ")]
    if mode == "check":
        assert commands == []
        return
    assert commands == [
        f"  holdfast resolve {url} killed mail --result JSON  # it was done",
        f"  holdfast resolve {url} killed mail --retry  # it was not done",
    ]
    assert run("resolve", url, "killed", "mail", "--retry").exit_code == 0
    shown = run("task", url, "killed").output
    assert "in doubt" not in shown and "holdfast resolve" not in shown


def test_the_history_of_a_task_is_printed_one_event_per_line(url: str) -> None:
    lines = [
        json.loads(line)
        for line in run("task", url, "a-report", "--history", "--json").output.splitlines()
    ]
    assert [line["type"] for line in lines] == [
        "task.created",
        "task.claimed",
        "task.planned",
        "step.completed",
        "task.released",
    ]


def test_the_resume_context_is_what_the_library_says(url: str) -> None:
    with holdfast.open(url) as store:
        view = store.get_task("a-report")
        assert view is not None
        assert run("task", url, "a-report", "--context").output == f"{view.resume_context()}\n"


def test_the_context_has_what_is_recalled_and_leaves_the_task_to_whoever_has_it(url: str) -> None:
    with holdfast.open(url) as store:
        store.memory("buyer").remember("Laptops need an approval by Ann")
        with store.task("laptops", goal="Order laptops", agent="buyer") as task:
            before = task.view().version
            told = run("task", url, "laptops", "--context").output
            assert "Laptops need an approval by Ann" in told
            assert told == f"{task.resume_context()}\n"
            assert task.view().version == before
            task.finish("ordered")


def test_no_command_about_a_task_moves_the_cursor(url: str) -> None:
    for option in ([], ["--context"], ["--history"], ["--json"]):
        assert "\x1b" not in run("task", url, "b-mission", *option).output


@pytest.mark.parametrize("command", ["task", "cancel"])
def test_a_task_that_is_not_there_is_one_line_and_exit_code_1(url: str, command: str) -> None:
    result = run(command, url, "nowhere")
    assert result.exit_code == 1
    assert "nowhere" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_doubt_is_settled_by_a_result(url: str) -> None:
    assert run("resolve", url, "b-mission", "launch", "--result", '"it flew"').exit_code == 0
    with holdfast.open(url) as store, store.task("b-mission"):
        assert launch("R7") == "it flew"


def test_a_doubt_is_settled_by_a_retry(url: str) -> None:
    assert run("resolve", url, "b-mission", "launch", "--retry").exit_code == 0
    with holdfast.open(url) as store:
        view = store.get_task("b-mission")
        assert view is not None
        assert view.in_doubt == []
        with pytest.raises(holdfast.StepInDoubt), store.task("b-mission"):
            launch("R7")  # run again, and in doubt again


def test_a_doubt_is_settled_in_the_store_that_the_environment_names(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", url)
    assert (
        run("resolve", "b-mission", "launch", "--retry").output == "resolved launch of b-mission\n"
    )


@pytest.mark.parametrize("options", [[], ["--retry", "--result", "1"], ["--result", "not json"]])
def test_a_doubt_is_settled_in_one_way_and_with_json(url: str, options: list[str]) -> None:
    assert run("resolve", url, "b-mission", "launch", *options).exit_code == 2


def test_a_second_operator_is_refused_and_sees_who_was_first(url: str) -> None:
    first = ("resolve", url, "b-mission", "launch", "--result", '"it flew"')
    assert run(*first, "--by", "ann").exit_code == 0
    second = run("resolve", url, "b-mission", "launch", "--retry", "--by", "bob")
    assert (second.exit_code, second.output) == (1, second.stderr)
    assert "already resolved by 'ann' at 2" in second.stderr
    assert "--override" in second.stderr
    assert (
        run("resolve", url, "b-mission", "launch", "--retry", "--override", "--by", "bob").exit_code
        == 0
    )
    with holdfast.open(url) as store:
        with pytest.raises(holdfast.StepInDoubt), store.task("b-mission"):
            launch("R7")
        store.resolve("b-mission", "launch", result="it flew")
        with store.task("b-mission"):
            launch("R7")
    late = run("resolve", url, "b-mission", "launch", "--retry", "--override")
    assert late.exit_code == 1
    assert "too late" in late.stderr


def test_the_login_user_resolves_unless_another_is_named(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "eve")
    run("resolve", url, "b-mission", "launch", "--retry")
    assert "by 'eve'" in run("resolve", url, "b-mission", "launch", "--retry").stderr


def test_a_result_of_another_type_is_one_line_and_exit_code_1(url: str) -> None:
    result = run("resolve", url, "b-mission", "launch", "--result", "5")
    assert result.exit_code == 1
    assert "the result must be string" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_step_that_is_not_in_doubt_cannot_be_settled(url: str) -> None:
    result = run("resolve", url, "a-report", "collect", "--retry")
    assert result.exit_code == 1
    assert "steps to resolve: none" in result.stderr


def test_cancelling_is_recorded_with_its_reason_and_person_and_shown(url: str) -> None:
    assert "cancelled" not in run("task", url, "a-report").output
    assert json.loads(run("task", url, "a-report", "--json").output)["cancellation"] is None
    assert (
        run("cancel", url, "a-report", "--reason", "no longer needed", "--by", "ann").exit_code == 0
    )
    with holdfast.open(url) as store:
        assert [info.status for info in store.tasks() if info.id == "a-report"] == ["cancelled"]
        assert store.task("a-report").history()[-1].data == {
            "reason": "no longer needed",
            "by": "ann",
        }
    assert " UTC by ann: no longer needed\n" in run("task", url, "a-report").output
    facts = json.loads(run("task", url, "a-report", "--json").output)["cancellation"]
    assert (facts["reason"], facts["by"]) == ("no longer needed", "ann")
    [line] = [
        line for line in run("audit", url, "a-report").output.splitlines() if "cancelled" in line
    ]
    assert "ann" in line
    assert run("cancel", url, "b-mission", env={"LOGNAME": "eve"}).exit_code == 0
    assert json.loads(run("task", url, "b-mission", "--json").output)["cancellation"]["by"] == "eve"
