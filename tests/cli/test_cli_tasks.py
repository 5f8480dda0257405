"""The commands about tasks: what a person sees, and what settles a doubt."""

from __future__ import annotations

import json
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
    assert "goal: Write the report\nagent: writer\n" in shown
    assert "collect" in shown
    assert "write" in shown


def test_a_task_is_shown_as_json_with_status_and_doubt(url: str) -> None:
    facts = json.loads(run("task", url, "b-mission", "--json").output)
    assert (facts["task_id"], facts["status"], facts["in_doubt"]) == (
        "b-mission",
        "pending",
        ["launch"],
    )


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
    assert facts["steps"] == [{"path": "ask", "status": "completed", "kind": "model"}]
    assert facts["usage"] == {"calls": 1, "input_tokens": 30, "output_tokens": 5, "cost": 0.0}
    assert facts["budget"] == {"tokens": 9000, "cost": None, "calls": 2}
    assert (
        "\nused: 1 calls, 35 tokens\nbudget: 2 calls, 9,000 tokens\n"
        in run("task", url, "d-model").output
    )
    failed = json.loads(run("task", url, "e-failed", "--json").output)
    assert (failed["error"], failed["budget"]) == (
        {"type": "ValueError", "message": "no money"},
        None,
    )
    assert "used" not in run("task", url, "e-failed").output


def test_a_doubt_is_shown_with_the_command_that_settles_it(url: str) -> None:
    shown = run("task", url, "b-mission").output
    assert "holdfast resolve URL TASK STEP --result JSON, or --retry if it was not done." in shown
    assert "store.resolve" not in shown


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
        "task.left",
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


def test_a_step_that_is_not_in_doubt_cannot_be_settled(url: str) -> None:
    result = run("resolve", url, "a-report", "collect", "--retry")
    assert result.exit_code == 1
    assert "steps to resolve: none" in result.stderr


def test_cancelling_is_recorded_with_its_reason(url: str) -> None:
    assert run("cancel", url, "a-report", "--reason", "no longer needed").exit_code == 0
    with holdfast.open(url) as store:
        assert [info.status for info in store.tasks() if info.id == "a-report"] == ["cancelled"]
        assert store.task("a-report").history()[-1].data == {"reason": "no longer needed"}
