"""The commands around workers: `holdfast worker` as a process, and those that give tasks what they
wait for."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

import holdfast
from helpers.run_cli import plain_terminal
from helpers.run_cli import run as call
from helpers.servers import postgres, url_on
from holdfast.tasks.agents.declare import registered_agents

PATIENCE_SECONDS = 30.0

APP = """
import time, holdfast
from helpers import answer

@holdfast.agent("claims")
def claims(task):
    if task.ask("payout", "May it be paid?", {"sum": task.input}, returns=bool):
        task.run_child("part", f"{task.id}-part")
    return task.wait_for("paid")

@holdfast.agent("part")
def part(task):
    return task.step("answer", answer)

TEXT = "nobody's business"

@holdfast.agent("failing", max_attempts=1)
def failing(task):
    raise ValueError(TEXT)

@holdfast.agent("slow")
def slow(task):
    task.step("first", wait_for_file, task.input)
    task.step("second", str)

def wait_for_file(path):
    from pathlib import Path
    Path(path + ".began").touch()
    while not Path(path).exists():
        time.sleep(0.01)
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
    """A program, with a module beside it, in a folder that is not the current one."""
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "helpers.py").write_text("def answer():\n    return 42\n")
    (folder / "shop_app.py").write_text(APP)
    return folder / "shop_app.py"


class Process:
    """`holdfast worker` as it is started by whoever starts services."""

    def __init__(
        self, *arguments: object, cwd: Path | None = None, terminal: int | None = None
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli", "worker", *map(str, arguments)],
            stdout=subprocess.PIPE if terminal is None else terminal,
            stderr=subprocess.PIPE if terminal is None else terminal,
            text=True,
            cwd=cwd,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self.said: list[str] = []

    def hear(self, words: str) -> str:
        """What it says up to and including the line with these words, which is returned."""
        assert self.process.stdout is not None
        watchdog = threading.Timer(PATIENCE_SECONDS, self.process.kill)
        watchdog.start()
        try:
            for line in self.process.stdout:
                self.said.append(line)
                if words in line:
                    return line
        finally:
            watchdog.cancel()
        raise AssertionError(f"it never said {words!r}, but {self.said}")

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        self.process.send_signal(number)
        return self.rest()

    def rest(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=PATIENCE_SECONDS)
        return self.process.returncode, out, err


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    """Starts workers, that are gone when the test is over."""
    started: list[Process] = []

    def begin(*arguments: object, **options: object) -> Process:
        started.append(Process(*arguments, "--poll", "0.05", **options))  # type: ignore[arg-type]
        return started[-1]

    yield begin
    for worker in started:
        worker.process.kill()
        worker.process.communicate()


# -- the worker ------------------------------------------------------------------------------------


def test_a_task_goes_from_its_submission_to_its_end(
    url: str, program: Path, start: Callable[..., Process]
) -> None:
    worker = start(url, program)
    said = worker.hear("waiting for tasks").split("  ")[1]
    assert said == "waiting for tasks of claims, failing, part, slow\n"
    assert (
        call("submit", url, "claims", "c1", "--input", "41", "--goal", "Settle it").output
        == "submitted c1\n"
    )
    assert worker.hear("c1  running")
    assert worker.hear("c1  suspended").endswith("  waits for the answer to 'payout'\n")
    assert call("questions", url).output == 'c1  payout  May it be paid?  {"sum":41}\n'
    assert call("answer", url, "c1", "payout", "true", "--by", "ann").exit_code == 0
    assert worker.hear("c1  suspended").endswith("  waits for signal 'paid'\n")
    assert (
        call("signal", url, "c1", "paid", "--payload", '"in full"').output
        == "sent signal paid to c1\n"
    )
    assert " s" in worker.hear("c1  finished")
    code, out, err = worker.end()
    assert (code, out.split("  ")[1]) == (0, "stopped\n")
    assert err == "holdfast: stopping; tasks stop at their next step. Repeat to exit at once.\n"
    shown = json.loads(call("task", url, "c1", "--json").output)
    assert (shown["status"], shown["goal"], shown["children"]) == (
        "finished",
        "Settle it",
        {"c1-part": "completed"},
    )


def test_the_store_comes_first_or_from_the_environment(
    url: str, program: Path, monkeypatch: pytest.MonkeyPatch, start: Callable[..., Process]
) -> None:
    missing = call("worker", program)
    assert missing.exit_code == 2
    assert "holdfast worker agents.db app.py" in missing.stderr
    monkeypatch.setenv("HOLDFAST_URL", url)
    worker = start(program)
    worker.hear("waiting for tasks")
    assert worker.end()[0] == 0


def test_a_failure_is_told_by_its_type_and_place_and_not_by_its_text(
    url: str, program: Path, start: Callable[..., Process]
) -> None:
    worker = start(url, program)
    call("submit", url, "failing", "f")
    assert worker.hear("f  failed").rstrip().endswith("ValueError")
    worker.hear("raise ValueError(TEXT)")
    assert worker.hear("holdfast task").strip() == f"holdfast task {url} f"
    assert worker.hear("holdfast retry").strip() == f"holdfast retry {url} f"
    code, out, err = worker.end(signal.SIGINT)
    assert code == 0
    assert "business" not in "".join([*worker.said, out, err])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_a_step_end_and_the_task_stays_for_the_next_worker(
    url: str, program: Path, tmp_path: Path, start: Callable[..., Process], number: int
) -> None:
    worker, gate = start(url, program), tmp_path / "gate"
    call("submit", url, "slow", "s", "--input", json.dumps(str(gate)))
    worker.hear("s  running")
    wait_for(gate.with_name("gate.began"))
    worker.process.send_signal(number)
    assert worker.process.stderr is not None
    assert "stopping" in worker.process.stderr.readline()
    gate.touch()
    code, out, _ = worker.rest()
    assert code == 0
    assert "s  pending" in out
    with holdfast.open(url) as store:
        view = store.get_task("s")
        assert view is not None
        assert (view.status, view.owner, [step.path for step in view.steps]) == (
            "pending",
            None,
            ["first"],
        )
    start(url, program).hear("s  finished")


def test_a_step_longer_than_the_grace_does_not_keep_the_worker(
    url: str, program: Path, tmp_path: Path, start: Callable[..., Process]
) -> None:
    worker = start(url, program, "--grace", "0")
    call("submit", url, "slow", "s", "--input", json.dumps(str(tmp_path / "never")))
    wait_for(tmp_path / "never.began")
    code, out, err = worker.end()
    assert code == 0
    assert "stopped in the middle of long steps: s\n" in out
    assert "'s' is in a long step" in err
    with holdfast.open(url) as store:
        view = store.get_task("s")
        assert view is not None and view.abandoned


def test_a_second_signal_ends_a_worker_at_once(
    url: str, program: Path, tmp_path: Path, start: Callable[..., Process]
) -> None:
    worker = start(url, program)
    call("submit", url, "slow", "s", "--input", json.dumps(str(tmp_path / "never")))
    wait_for(tmp_path / "never.began")
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.stderr is not None
    assert "stopping" in worker.process.stderr.readline()
    assert worker.end()[0] == 128 + signal.SIGTERM


@pytest.fixture
def admin() -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with psycopg.connect(postgres(), autocommit=True) as connection:
        yield connection


@pytest.fixture
def reader(
    tmp_path: Path, admin: psycopg.Connection[tuple[object, ...]]
) -> Iterator[tuple[str, str, str]]:
    """A store in PostgreSQL: its URL, that of a role that may only look at it, and the name of the
    role and of the schema."""
    url = url_on("postgres", tmp_path)
    name = url.rpartition("schema=")[2]
    holdfast.open(url).close()
    admin.execute(f"CREATE ROLE {name} LOGIN")
    admin.execute(f"GRANT USAGE ON SCHEMA {name} TO {name}")
    admin.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {name} TO {name}")
    yield url, url.replace("postgresql://postgres:@", f"postgresql://{name}:@"), name
    admin.execute(f"DROP OWNED BY {name}")
    admin.execute(f"DROP ROLE {name}")


def test_a_worker_that_may_only_look_ends_at_once_and_says_what_it_lacks(
    program: Path, reader: tuple[str, str, str], start: Callable[..., Process]
) -> None:
    _, theirs, name = reader
    code, out, err = start(theirs, program).rest()
    assert code == 1 and out.endswith("stopped\n")
    assert f"INSERT on table {name}.records" in err and "`holdfast schema` prints the GRANTs" in err
    assert err.startswith("holdfast: postgresql://") and err.count("\n") == 1


def test_a_worker_that_may_not_write_any_more_ends_with_the_error_whatever_still_runs(
    program: Path,
    reader: tuple[str, str, str],
    tmp_path: Path,
    admin: psycopg.Connection[tuple[object, ...]],
    start: Callable[..., Process],
) -> None:
    url, theirs, name = reader
    admin.execute(f"GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {name} TO {name}")
    admin.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {name} TO {name}")
    worker = start(theirs, program, "--grace", "1")
    call("submit", url, "slow", "s", "--input", json.dumps(str(tmp_path / "never")))
    wait_for(tmp_path / "never.began")
    admin.execute(f"REVOKE INSERT ON {name}.records FROM {name}")
    call("submit", url, "failing", "f")
    code, out, err = worker.rest()
    assert code == 1
    assert re.search(r"f  pending  [0-9.]+ s  AccessDenied\n", out)
    assert "stopped in the middle of long steps: s\n" in out
    assert f"lacks INSERT on table {name}.records;" in err.splitlines()[-1]


def test_a_program_may_be_named_as_a_module(
    url: str, program: Path, start: Callable[..., Process]
) -> None:
    worker = start(url, "shop_app", cwd=program.parent)
    worker.hear("waiting for tasks")
    assert worker.end()[0] == 0


def test_on_a_terminal_a_line_says_how_it_stands(
    url: str, program: Path, start: Callable[..., Process]
) -> None:
    ours, theirs = pty.openpty()
    worker = start(url, program, terminal=theirs)
    os.close(theirs)
    try:
        call("submit", url, "failing", "f")
        said = b""
        while b"1 failed" not in said:
            said += os.read(ours, 10_000)
        assert b"of 16" in said
        worker.process.send_signal(signal.SIGTERM)
        while b"stopped" not in said:
            said += os.read(ours, 10_000)
        assert worker.process.wait(PATIENCE_SECONDS) == 0
    finally:
        worker.process.kill()
        os.close(ours)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("missing.py", None, "there is no file"),
        ("missing", None, "there is no module missing here"),
        ("empty_app.py", "import holdfast\n", "has no agents"),
        ("broken_app.py", "1 / 0\n", "could not be imported"),
        ("torn_app.py", "def (\n", "could not be imported"),
        ("needy_app.py", "import a_module_that_is_not_there\n", "could not be imported"),
        ("json.py", "import holdfast\n", "has the same name as the loaded module"),
    ],
)
def test_a_program_that_cannot_be_used_is_a_clear_error(
    url: str, tmp_path: Path, start: Callable[..., Process], name: str, text: str | None, says: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    code, out, err = start(url, name, cwd=tmp_path).rest()
    assert (code, out) == (1, "")
    assert says in err.splitlines()[-1]
    assert ("Traceback" in err) == ("could not be imported" in says)


def test_a_store_that_cannot_be_opened_is_a_clear_error(
    program: Path, tmp_path: Path, start: Callable[..., Process]
) -> None:
    code, out, err = start(tmp_path / "no folder" / "agents.db", program).rest()
    assert (code, out, len(err.splitlines())) == (1, "", 1)


def test_whoever_gives_or_takes_work_may_make_the_store_and_says_so(
    program: Path, tmp_path: Path, start: Callable[..., Process]
) -> None:
    worker = start("agents.db", program, cwd=tmp_path)
    assert worker.hear("created") == "created agents.db\n"
    worker.hear("waiting for tasks")
    assert worker.end()[0] == 0
    for url in (str(tmp_path / "other.db"), f"file://{tmp_path}/others"):
        path = url.removeprefix("file://")
        refused = call("retry", url, "c")
        assert (refused.exit_code, refused.stderr) == (
            1,
            f"holdfast: there is no store at {path}; check the path\n",
        )
        assert call("submit", url, "claims", "c").output == f"created {url}\nsubmitted c\n"
        assert call("submit", url, "claims", "c").output == "submitted c again\n"
    assert "exists only inside its own process" in call("submit", "memory://", "claims", "c").stderr


def test_a_program_without_agents_makes_no_store(
    tmp_path: Path, start: Callable[..., Process]
) -> None:
    (tmp_path / "empty_app.py").write_text("import holdfast\n")
    assert start("agents.db", "empty_app.py", cwd=tmp_path).rest()[0] == 1
    assert not (tmp_path / "agents.db").exists()


def wait_for(path: Path) -> None:
    """Until somebody has made a file."""
    done = threading.Event()
    for _ in range(int(PATIENCE_SECONDS * 100)):
        if path.exists():
            return
        done.wait(0.01)
    raise AssertionError(f"nobody made {path.name}")


# -- what is said to tasks -------------------------------------------------------------------------


@pytest.fixture
def asking(url: str) -> Iterator[str]:
    """A store with a task that asks and has a parent, which waits."""

    @holdfast.agent("asking child")
    def child(task: holdfast.Task) -> object:
        return task.ask("payout", "May \x1b[31mit\x1b[0m be paid?", {"sum": 41}, returns=bool)

    def parent(task: holdfast.Task) -> object:
        return task.run_child(child, "c")

    with holdfast.open(url) as store, pytest.raises(holdfast.Suspended):
        store.run(parent, "p")
    yield url
    del registered_agents["asking child"]


def test_a_task_is_submitted_once_and_then_again(url: str) -> None:
    assert call("submit", url, "claims", "c", "--input", "[1]").output == "submitted c\n"
    assert call("submit", url, "claims", "c").output == "submitted c again\n"
    with holdfast.open(url) as store:
        view = store.get_task("c")
        assert view is not None
        assert (view.agent, view.input, view.status) == ("claims", [1], "pending")
        assert view.due_at is not None
        store.task("c").cancel()
    assert call("submit", url, "claims", "c").output == "c is already cancelled\n"


def test_a_task_cannot_be_submitted_with_another_input(url: str) -> None:
    call("submit", url, "claims", "c", "--input", "1")
    result = call("submit", url, "claims", "c", "--input", "2")
    assert result.exit_code == 1
    assert "another input" in result.stderr


def test_open_questions_are_listed_for_people_and_for_programs(asking: str) -> None:
    assert (
        call("questions", asking).output
        == 'c  payout  May \\u001b[31mit\\u001b[0m be paid?  {"sum":41}\n'
    )
    [line] = call("questions", asking, "--json").output.splitlines()
    facts = json.loads(line)
    assert (facts["task"], facts["name"], facts["payload"], facts["status"]) == (
        "c",
        "payout",
        {"sum": 41},
        "open",
    )
    assert facts["schema"] == {"type": "boolean"}
    with holdfast.open(asking) as store:
        store.answer("c", "payout", True, question=facts["id"])
    assert call("questions", asking).output == ""


def test_an_answer_shows_what_was_asked_and_is_recorded_with_who_gave_it(asking: str) -> None:
    said = call("answer", asking, "c", "payout", "true", "--by", "ann").output
    assert said == (
        'question: May \\u001b[31mit\\u001b[0m be paid?\nabout: {"sum":41}\nanswered payout of c: '
        "true\n"
    )
    with holdfast.open(asking) as store:
        view = store.get_task("c")
        assert view is not None
        assert (view.questions[0].answer, view.questions[0].by, view.status) == (
            True,
            "ann",
            "pending",
        )


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (
            ["answer", "URL", "c", "payout", '"yes"'],
            1,
            'be boolean; the expected JSON Schema is {"type":"boolean"}',
        ),
        (["answer", "URL", "c", "payout", "yes"], 2, "not JSON"),
        (["answer", "URL", "c", "other", "true"], 1, "open questions: 'payout'"),
        (
            ["answer", "URL", "nowhere", "payout", "true"],
            1,
            "there is no task 'nowhere'; check the id: store.tasks()",
        ),
        (["answer", "URL", "true"], 2, "missing NAME and JSON, as in: holdfast answer"),
        (["signal", "URL", "nowhere", "paid"], 1, "there is no task 'nowhere'"),
        (["signal", "URL", "c", "paid", "--payload", "x"], 2, "not JSON"),
        (["submit", "claims", "x"], 2, "missing the store (URL, --store or HOLDFAST_URL)"),
        (["submit", "URL", "claims", "x", "--input", "x"], 2, "not JSON"),
        (
            ["submit", "URL", "claims", "x", "--budget", "token=9"],
            2,
            "a budget must have tokens=…, cost=… or calls=…",
        ),
        (
            ["submit", "URL", "claims", "x", "--budget", "calls=9", "--budget", "calls=8"],
            2,
            "each at most once",
        ),
        (
            ["submit", "URL", "claims", "x", "--budget", "calls=many"],
            2,
            "calls must be a number, got 'many'",
        ),
        (
            ["submit", "URL", "claims", "x", "--budget", "tokens=0"],
            2,
            "tokens must be an integer >= 1, got 0",
        ),
        (["retry", "URL", "c", "--budget", "cost"], 2, "cost must be a number, got"),
        (["retry", "URL", "nowhere"], 1, "has no task 'nowhere'"),
        (["retry", "URL", "done"], 1, "there is nothing to retry"),
        (["retry", "URL", "plain"], 1, "has no agent, so workers can't run it"),
    ],
)
def test_what_cannot_be_said_is_refused(
    asking: str, arguments: list[str], code: int, says: str
) -> None:
    with holdfast.open(asking) as store:
        store.run(lambda task: 1, "done")
        with store.task("plain"):
            pass
        before = store.get_task("c")
    result = call(*(asking if argument == "URL" else argument for argument in arguments))
    assert result.exit_code == code
    assert says in " ".join(result.stderr.replace("│", " ").split()) or says in result.stderr
    with holdfast.open(asking) as store:
        assert store.get_task("c") == before


def test_a_signal_with_an_id_is_told_once(asking: str) -> None:
    assert call("signal", asking, "c", "paid", "--id", "7").output == "sent signal paid to c\n"
    assert call("signal", asking, "c", "paid", "--id", "7").output == (
        "ignored a duplicate of signal paid to c\n"
    )


def test_what_was_given_up_is_tried_again(url: str) -> None:
    def failing(task: holdfast.Task) -> None:
        raise ValueError

    with holdfast.open(url) as store:
        with pytest.raises(ValueError):
            store.run(failing, "f")
        assert call("retry", url, "f").output == "submitted f again\n"
        [info] = store.tasks()
        assert (info.status, info.due_at is not None) == ("pending", True)
        with store.task("f"):
            assert "is being run by process" in call("retry", url, "f").stderr


def test_all_that_were_given_up_are_tried_again_at_once(url: str) -> None:
    def failing(task: holdfast.Task) -> None:
        raise ValueError

    with holdfast.open(url) as store:
        for name in ("f1", "f2", "f3"):
            with pytest.raises(ValueError):
                store.run(failing, name)
        with pytest.raises(ValueError), store.task("plain"):
            raise ValueError
        store.run(lambda task: None, "done")
        result = call("retry", url, "--status", "failed", "--budget", "calls=9", "--yes")
        assert result.stdout.splitlines() == [
            "submitted f1 again",
            "submitted f2 again",
            "submitted f3 again",
            "submitted 3 tasks again",
        ]
        assert "skipped 1 task without an agent" in result.stderr
        assert {info.id: info.status for info in store.tasks()} == {
            **dict.fromkeys(("f1", "f2", "f3"), "pending"),
            "plain": "failed",
            "done": "finished",
        }
        view = store.get_task("f2")
        assert view is not None and view.budget == holdfast.Budget(calls=9)
    assert call("retry", url, "--status", "stuck").output == "submitted 0 tasks again\n"


@pytest.mark.parametrize(
    "arguments", [["t", "--status", "failed"], ["--status", "running"], ["--status", "finished"]]
)
def test_only_what_was_given_up_is_tried_again_by_its_status(
    url: str, arguments: list[str]
) -> None:
    assert call("retry", url, *arguments).exit_code == 2


def test_a_budget_is_given_with_a_task_and_another_when_it_is_tried_again(url: str) -> None:
    def budget() -> holdfast.Budget | None:
        view = store.get_task("c")
        assert view is not None
        return view.budget

    with holdfast.open(url) as store:
        call("submit", url, "claims", "c", "--budget", "tokens=100,cost=2.5", "--budget", "calls=4")
        assert budget() == holdfast.Budget(tokens=100, cost=2.5, calls=4)
        call("retry", url, "c")
        assert budget() == holdfast.Budget(tokens=100, cost=2.5, calls=4)
        assert call("retry", url, "c", "--budget", "calls=9").exit_code == 0
        assert budget() == holdfast.Budget(calls=9)
        with store.task("c"):
            refused = call("submit", url, "claims", "c", "--budget", "calls=10")
            assert (refused.exit_code, "the budget of task 'c' is unchanged" in refused.stderr) == (
                1,
                True,
            )
        kill = (
            "import os, sys, holdfast\nwith holdfast.open(sys.argv[1]).task('c'): "
            "os.kill(os.getpid(), 9)"
        )
        subprocess.run([sys.executable, "-c", kill, url], check=False)
        refused = call("retry", url, "c", "--budget", "calls=10")
        assert (refused.exit_code, "the budget of task 'c' is unchanged" in refused.stderr) == (
            1,
            True,
        )
        assert budget() == holdfast.Budget(calls=9)


def test_a_task_is_shown_with_what_it_waits_for_and_its_family(asking: str) -> None:
    parent, child = call("task", asking, "p").output, call("task", asking, "c").output
    assert "child: c (waiting)\nwaits for child 'c'\n" in parent
    assert "  waiting                  1  asking child[c]\n" in parent
    assert "run again" not in parent
    assert "child of p\nwaits for the answer to 'payout'\n" in child
    assert 'question payout: May \\u001b[31mit\\u001b[0m be paid? {"sum":41} (open)\n' in child
    call("answer", asking, "c", "payout", "false", "--by", "bob")
    child = call("task", asking, "c").output
    assert "(false, by bob)\n" in child
    assert re.search(
        r"^due since \S+ \S+ UTC, for a worker that has agent 'asking child'$", child, re.MULTILINE
    )
    facts = json.loads(call("task", asking, "c", "--json").output)
    assert (facts["parent"], facts["waits_for"], facts["questions"][0]["by"]) == ("p", [], "bob")


def test_a_task_that_is_due_later_says_when_and_ids_are_shown_as_they_are_written(url: str) -> None:
    @holdfast.agent("sleeping child")
    def child(task: holdfast.Task) -> None:
        task.sleep(3600)

    with holdfast.open(url) as store, pytest.raises(holdfast.Suspended):
        store.run(lambda task: task.run_child(child, "p/letter"), "p")
    del registered_agents["sleeping child"]
    assert "  sleeping child[p/letter]\n" in call("task", url, "p").output
    assert (
        " UTC, for a worker that has agent 'sleeping child'\n"
        in call("task", url, "p/letter").output
    )
    assert "due at " in call("task", url, "p/letter").output
    assert json.loads(call("task", url, "p", "--json").output)["children"] == {
        "p/letter": "waiting"
    }


def test_the_store_may_be_named_by_the_environment(
    asking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", asking)
    assert call("submit", "claims", "x").output == "submitted x\n"
    assert call("retry", "x").output == "submitted x again\n"
    assert call("signal", "c", "paid").output == "sent signal paid to c\n"
    assert call("answer", "c", "payout", "true").exit_code == 0
    assert call("questions").output == ""
