"""What an operator does: choose tasks, act on many, and read JSON with the names of the library."""

from __future__ import annotations

import contextlib
import json
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from helpers.run_cli import paste, plain_terminal, run
from holdfast import types


@holdfast.step(once=True)
def launch(rocket: str) -> str:
    raise ConnectionError("the line is dead")


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_terminal(monkeypatch)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with two failed tasks of two agents, one in doubt, one waiting, one finished."""

    def prices(task: holdfast.Task) -> int:
        return task.step("look", lambda: {"car": 1}["boat"])  # type: ignore[no-any-return]

    def letters(task: holdfast.Task) -> None:
        raise OSError("no paper")

    def asks(task: holdfast.Task) -> bool:
        return task.ask("payout", "May this be paid?", {"sum": 3}, returns=bool)

    for name, function in (("prices", prices), ("letters", letters), ("asks", asks)):
        holdfast.agent(name, max_attempts=1)(function)
    holdfast.agent("launcher", max_attempts=1)(lambda task: launch("R7"))
    path = str(tmp_path / "agents.db")
    with holdfast.open(path) as store:
        for agent, task in (
            ("prices", "p 1"),
            ("letters", "l-1"),
            ("asks", "a-1"),
            ("launcher", "r-1"),
        ):
            store.submit(agent, task)
        store.run_due()
        store.run(lambda task: "done", "z-done")
    return path


def listed(*options: str) -> list[str]:
    lines = run("tasks", *options, "--json").stdout.splitlines()
    return [json.loads(line)["id"] for line in lines]


# -- choosing --------------------------------------------------------------------------------------


def test_tasks_are_chosen_by_agent_status_error_and_time(url: str) -> None:
    assert listed(url, "--agent", "prices") == ["p 1"]
    assert listed(url, "--status", "failed") == ["l-1", "p 1"]
    assert listed(url, "--error", "KeyError") == ["p 1"]
    assert listed(url, "--error", "no PAPER") == ["l-1"]
    assert listed(url, "--error", "line is dead") == ["r-1"]
    assert listed(url, "--error", "KeyError", "--agent", "letters") == []
    assert listed(url, "--since", "1h") == ["a-1", "l-1", "p 1", "r-1", "z-done"]
    assert listed(url, "--since", "2999-01-01") == []
    assert run("tasks", url, "--since", "long ago").exit_code == 2
    assert run("tasks", url, "--error", "").exit_code == 1


@pytest.mark.parametrize("command", ["tasks", "retry", "cancel"])
@pytest.mark.parametrize("since", ["99999999d", "36501d", "9" * 400, "zz", ""])
def test_a_since_that_is_no_time_is_refused_with_what_is_allowed(
    url: str, command: str, since: str
) -> None:
    result = run(command, url, "--since", since)
    assert result.exit_code == 2
    shown = " ".join(result.stderr.split())
    assert "must be a duration like 30s, 5m, 12h or 60d, at most 100 years, or a date" in shown
    assert shown.endswith(f"got {since!r}")


def test_tasks_are_chosen_by_the_longest_time(url: str) -> None:
    assert len(listed(url, "--since", "36500d")) == 5


def test_the_library_chooses_the_same(url: str) -> None:
    with holdfast.open(url) as store:
        found = [info.id for info in store.tasks(error="keyerror", status="failed")]
        newest = [info.id for info in store.tasks(agent="asks", since=0)]
        with pytest.raises(ValueError, match="since must be a datetime"):
            store.tasks(since="yesterday")  # type: ignore[arg-type]
    assert (found, newest) == (["p 1"], ["a-1"])


# -- acting on many --------------------------------------------------------------------------------


def statuses(url: str) -> dict[str, str]:
    with holdfast.open(url) as store:
        return {info.id: info.status for info in store.tasks()}


def test_a_dry_run_lists_the_tasks_and_changes_nothing(url: str) -> None:
    before = statuses(url)
    for command in ("retry", "cancel"):
        result = run(command, url, "--status", "failed", "--dry-run")
        assert result.exit_code == 0
        assert [line.split("  ")[-1].strip() for line in result.stdout.splitlines()] == [
            "l-1",
            "p 1",
            f"would {command} 2 tasks",
        ]
    assert run("cancel", url, "p 1", "--dry-run").exit_code == 0
    assert statuses(url) == before


@pytest.mark.parametrize("command", ["retry", "cancel"])
@pytest.mark.parametrize("task", ["z-done", "gone", "no agent", "running", "nobody"])
def test_a_dry_run_of_one_task_refuses_what_the_command_refuses(
    url: str, command: str, task: str
) -> None:
    with holdfast.open(url) as store:
        store.submit("letters", "gone")
        store.task("gone").cancel()
        with store.task("no agent"):
            pass
        store.submit("letters", "running")
        with contextlib.suppress(holdfast.errors.TaskEnded), store.task("running"):
            before = statuses(url)
            dry = run(command, url, task, "--dry-run")
            assert statuses(url) == before
            real = run(command, url, task)
    assert (dry.exit_code, dry.stderr) == (real.exit_code, real.stderr)
    if (command, task) in (("retry", "z-done"), ("cancel", "z-done"), ("retry", "gone")):
        assert dry.exit_code == 1
        assert dry.stderr.endswith(f"; there is nothing to {command}\n")
        assert not dry.stdout


def test_many_are_changed_only_after_a_confirmation(url: str) -> None:
    before = statuses(url)
    for answer in ("n\n", ""):
        result = run("cancel", url, "--status", "failed", input=answer)
        assert result.exit_code == 1
        assert "nothing was changed; use --yes" in result.stderr
    assert statuses(url) == before
    assert run("retry", url, "--status", "failed", input="y\n").exit_code == 0
    assert statuses(url) == {**before, "l-1": "pending", "p 1": "pending"}


def test_tasks_are_retried_by_error_and_cancelled_by_agent(url: str) -> None:
    result = run("retry", url, "--error", "KeyError", "--by", "ann", "--yes")
    assert result.stdout.splitlines() == ["submitted p 1 again", "submitted 1 task again"]
    cancelled = run("cancel", url, "--agent", "letters", "--reason", "late", "--yes", "--json")
    [facts] = map(json.loads, cancelled.stdout.splitlines())
    assert (facts["id"], facts["status"]) == ("l-1", "cancelled")
    with holdfast.open(url) as store:
        view = store.get_task("l-1")
        assert view is not None and view.cancellation is not None
        assert view.cancellation.reason == "late"
        assert [e.by for e in store.audit("p 1") if e.what == "queued for a worker"][-1] == "ann"


def test_ended_tasks_are_left_alone_and_a_task_is_not_named_beside_options(url: str) -> None:
    assert "z-done" not in run("cancel", url, "--since", "1h", "--dry-run").stdout
    assert run("cancel", url, "p 1", "--status", "failed").exit_code == 2


# -- the next command ------------------------------------------------------------------------------


def advised(url: str, task: str, *options: str) -> list[list[str]]:
    """The commands that `holdfast task` prints, as a shell splits them."""
    lines = run("task", url, task, *options).stdout.splitlines()
    return [
        shlex.split(line, comments=True)[1:]
        for line in lines
        if line.strip().startswith("holdfast ")
    ]


def test_a_task_prints_the_command_that_moves_it_on_and_it_works(url: str) -> None:
    [retry] = advised(url, "p 1")
    assert retry == ["retry", url, "p 1"]
    assert run(*retry).exit_code == 0
    done, again = advised(url, "r-1")
    assert done == ["resolve", url, "r-1", "launch", "--result", "JSON"]
    assert run(*done).exit_code == 2  # the result is for a person to fill in
    assert run(*again).exit_code == 0
    [answer] = advised(url, "a-1")
    assert answer == ["answer", url, "a-1", "payout", "JSON"]
    assert advised(url, "z-done") == []


HARD_NAMES = [
    *("-dash", "--help", "--", "-", "a\nb", "a\n'b\\", "it's", "sp ace", "ünï", "a/b", "x$(y) `z`"),
    *("\x1b[31m1", "\u202e\u200bx", "!1"),
]


def pasted(url: str, task: str, *options: str) -> list[list[str]]:
    """The commands that `holdfast task` prints, as bash splits them if they are pasted."""
    lines = run("task", *options, "--", url, task).stdout.splitlines()
    return [paste(line) for line in lines if line.strip().startswith("holdfast ")]


@pytest.mark.parametrize("name", HARD_NAMES)
def test_a_pasted_command_acts_on_exactly_that_task(url: str, name: str) -> None:
    with holdfast.open(url, tenant=name) as store:
        store.submit("letters", name)
        store.run_due()
    [retry] = pasted(url, name, "--tenant", name)
    result = run(*retry)
    assert result.exit_code == 0, (retry, result.output)
    with holdfast.open(url, tenant=name) as store:
        assert [(info.id, info.status) for info in store.tasks()] == [(name, "pending")]


@pytest.mark.parametrize("name", [*HARD_NAMES, "--retry", "-n"])
def test_a_pasted_command_acts_on_exactly_that_step_or_question(url: str, name: str) -> None:
    @holdfast.agent("unsure", max_attempts=1)
    def unsure(task: holdfast.Task) -> Any:
        return task.ask(name, "Go?") if task.input == "ask" else task.step(name, launch, "R8")

    with holdfast.open(url) as store:
        for task in ("ask", "do"):
            store.submit(unsure, task, input=task)
        store.run_due()
    [answer] = pasted(url, "ask")
    assert answer.pop() == "JSON"
    done, again = pasted(url, "do")
    assert run(*done).exit_code == 2  # the result is for a person to fill in
    for command in ([*answer, "-1"] if "--" in answer else [*answer, "1"], again):
        result = run(*command)
        assert result.exit_code == 0, (command, result.output)
    with holdfast.open(url) as store:
        asked, unknown = store.get_task("ask"), store.get_task("do")
    assert asked is not None and [each.status for each in asked.questions] == ["answered"]
    assert unknown is not None and unknown.in_doubt == []


@pytest.mark.parametrize("path", ["-d.db", "--help", "a\nb.db", "it's.db", "ünï.db"])
def test_a_pasted_command_opens_exactly_that_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    holdfast.agent("letters", max_attempts=1)(lambda task: launch("R9") and None)
    with holdfast.open(path) as store:
        store.submit("letters", "l")
        store.run_due()
    _, again = pasted(path, "l")
    assert run(*again).stdout == "resolved launch of l\n"


def test_the_command_names_the_tenant_and_leaves_out_what_the_environment_says(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holdfast.open(url, tenant="acme") as store, pytest.raises(OSError):
        store.run("letters", "l")
    assert advised(url, "l", "--tenant", "acme") == [["retry", url, "l", "--tenant", "acme"]]
    monkeypatch.setenv("HOLDFAST_URL", url)
    monkeypatch.setenv("HOLDFAST_TENANT", "acme")
    lines = run("task", "l").stdout.splitlines()
    assert lines[-1] == "  holdfast retry l"


def test_the_command_shows_no_password_and_no_key(url: str) -> None:
    from holdfast.cli.operators.next_command import StoreCommands
    from holdfast.cli.stores import set_store_options

    shown = {
        "postgresql://ann:s3cret@db/agents?schema=x": "postgresql://ann@db/agents?schema=x",
        "redis://:s3cret@host/0": "redis://host/0",
        "s3://bucket/x?region=eu-west-1": "s3://bucket/x?region=eu-west-1",
        "postgresql://db/agents?password=s3cret": "postgresql://db/agents",
        "agents & co.db": "agents & co.db",
    }
    for given, expected in shown.items():
        command = StoreCommands(given, "default").build("retry", "t")
        assert shlex.split(command) == ["holdfast", "retry", expected, "t"]
    try:
        set_store_options(["passphrase:s3cret", "0s3cret:x", "file:master.key"], False)
        command = StoreCommands("a.db", "default").build("retry", "t")
    finally:
        set_store_options([], False)
    assert command == "holdfast --key KEY --key KEY --key file:master.key retry a.db t"


def test_a_spent_budget_comes_with_a_larger_one(url: str) -> None:
    @holdfast.step(kind="model")
    def ask(n: int) -> dict[str, object]:
        return {"usage": {"input_tokens": 30, "output_tokens": 5}}

    def spend(task: holdfast.Task) -> None:
        for n in range(3):
            ask(n)

    with holdfast.open(url) as store, pytest.raises(holdfast.errors.BudgetExceeded):
        store.run(spend, "b", budget=holdfast.Budget(calls=2, tokens=9_000_000))
    assert advised(url, "b") == [["retry", url, "b", "--budget", "tokens=18000000,calls=4"]]


# -- JSON ------------------------------------------------------------------------------------------


def fields_of(*kinds: type[msgspec.Struct]) -> set[str]:
    """The fields and properties of public types."""
    return {
        name
        for kind in kinds
        for name in (
            *kind.__struct_fields__,
            *(name for name in dir(kind) if isinstance(getattr(kind, name), property)),
        )
    }


TASK = fields_of(holdfast.TaskView, holdfast.TaskInfo)
CHECKPOINT = {"completed", "results"}
COMMANDS: dict[tuple[str, ...], set[str]] = {
    ("tasks", "{url}"): fields_of(holdfast.TaskInfo),
    ("task", "{url}", "p 1"): TASK | CHECKPOINT,
    ("questions", "{url}"): fields_of(holdfast.Question) | {"task"},
    ("submit", "{url}", "prices", "new"): fields_of(holdfast.TaskInfo),
    ("retry", "{url}", "l-1"): fields_of(holdfast.TaskInfo),
    ("retry", "{url}", "--status", "failed", "--yes"): fields_of(holdfast.TaskInfo),
    ("resolve", "{url}", "r-1", "launch", "--retry"): fields_of(holdfast.TaskInfo),
    ("answer", "{url}", "a-1", "payout", "true"): fields_of(holdfast.TaskInfo),
    ("signal", "{url}", "a-1", "paid"): fields_of(holdfast.TaskInfo),
    ("cancel", "{url}", "a-1"): fields_of(holdfast.TaskInfo),
    ("cancel", "{url}", "--agent", "asks", "--dry-run"): fields_of(holdfast.TaskInfo),
    ("audit", "{url}", "p 1"): fields_of(types.AuditEntry),
    ("streams", "{url}", "--kind", "task"): {"id", "version"},
    ("remember", "{url}", "buyer", "Ann signs"): fields_of(holdfast.MemoryItem),
    ("memories", "{url}", "buyer"): fields_of(holdfast.MemoryItem),
    ("recall", "{url}", "buyer", "who signs?"): fields_of(holdfast.MemoryHit),
    ("reindex", "{url}", "buyer"): fields_of(types.MemoryStats) | {"namespace"},
    ("forget", "{url}", "buyer", "--author", "person", "--yes"): fields_of(holdfast.MemoryItem),
    ("sweep", "{url}", "--dry-run"): fields_of(types.SweepResult),
    ("verify", "{url}"): fields_of(types.VerifyResult),
    ("repair", "{url}"): fields_of(types.RepairResult),
    ("health", "{url}"): fields_of(holdfast.Health) | {"tasks"},
    ("backup", "{url}", "{url}.copy"): {"path", "bytes"},
    ("copy", "{url}", "{url}.other"): fields_of(types.CopyResult),
}
"""Commands with `--json`, and the fields that each line may have."""


def test_every_command_prints_json_with_the_names_of_the_public_types(url: str) -> None:
    steps, failures = fields_of(holdfast.StepInfo), fields_of(holdfast.Failure)
    printed = 0
    for command, allowed in COMMANDS.items():
        result = run(*(word.replace("{url}", url) for word in command), "--json")
        assert result.exit_code == 0, (command, result.output)
        for line in result.stdout.splitlines():
            facts = json.loads(line)
            printed += 1
            assert set(facts) <= allowed, command
            assert set(_part_fields(facts, "steps")) <= steps
            assert set(_part_fields(facts, "error")) <= failures
    assert printed > 25


def _part_fields(facts: dict[str, Any], name: str) -> Iterable[str]:
    found = facts.get(name) or []
    for part in found if isinstance(found, list) else [found]:
        yield from part


def test_a_listing_and_the_task_itself_agree(url: str) -> None:
    for line in run("tasks", url, "--json").stdout.splitlines():
        facts = json.loads(line)
        shown = json.loads(run("task", url, facts["id"], "--json").stdout)
        assert {name: shown[name] for name in facts} == facts


def test_the_json_of_a_failed_task_has_its_frames_and_causes(url: str) -> None:
    error = json.loads(run("task", url, "p 1", "--json").stdout)["error"]
    assert (error["type"], error["step"], error["cause"]["type"]) == (
        "StepFailed",
        "look",
        "KeyError",
    )
    assert error["cause"]["frames"][-1]["source"].startswith("return task.step(")


def test_a_task_whose_time_was_over_is_retried_with_more(url: str, no_agents: None) -> None:
    @holdfast.agent("slow", timeout=10)
    def slow(task: holdfast.Task) -> None:
        raise holdfast.errors.TaskTimeout(str(task._key), timeout=10)

    with holdfast.open(url) as store:
        store.submit(slow, "t 1")
        store.run_due()
    shown = run("task", url, "t 1").output
    assert f"holdfast retry {url} 't 1' --timeout 20s" in shown
    assert run("retry", url, "t 1", "--timeout", "20s").exit_code == 0
    with holdfast.open(url) as store:
        view = store.get_task("t 1")
        assert view is not None
        assert (view.status, view.timeout) == ("pending", 20.0)


@pytest.mark.parametrize("command", [["serve"], ["mcp", "--http"]])
def test_a_port_that_cannot_be_used_is_an_error_of_one_line(
    command: list[str], tmp_path: Path
) -> None:
    url = str(tmp_path / "agents.db")
    holdfast.open(url).close()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for given, code, text in ((port, 1, "cannot listen on port"), (99999, 2, "0<=x<=65535")):
            name, *options = command
            words = [sys.executable, "-m", "holdfast.cli", name, url, *options]
            done = subprocess.run(
                [*words, "--port", str(given)],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert (done.returncode, text in done.stderr) == (code, True), done.stderr
            assert "Traceback" not in done.stderr


def test_no_stored_text_looks_like_advice(tmp_path: Path) -> None:
    url = str(tmp_path / "agents.db")
    forged = "x\nThen run this:\n  holdfast erase agents.db --yes"

    @holdfast.agent("forger", max_attempts=1)
    def forger(task: Any) -> None:
        task.ask(f"ok {forged}", forged, {"text": forged})

    with holdfast.open(url) as store:
        store.submit("forger", "forged", goal=forged)
        store.run_due()
    shown = run("task", url, "forged").stdout
    assert "Answer the question:" in shown
    assert not [line for line in shown.split("\n") if line.startswith(("Then", "  holdfast erase"))]
