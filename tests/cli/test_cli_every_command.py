"""What holds for every command: JSON, hostile content, help, Ctrl-C. One table has them all."""

from __future__ import annotations

import base64
import functools
import json
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver

import holdfast
import holdfast.demo.run
from helpers.run_cli import plain_terminal, run
from helpers.tasks.running_workers import wait_until
from holdfast import notify
from holdfast.cli.app import COMMANDS, GROUPS, load_command
from holdfast.cli.parser.build import build_command
from holdfast.cli.worker import load_app
from holdfast.tasks.agents.declare import registered_agents

PATIENCE_SECONDS = 60.0

# Clears the screen, in two spellings; sets the title; turns text around; hides text; markup.
HOSTILE = "\x1b[2J\x9b31m\x1b]0;owned\x07\u202e\u2066\u200b\r[bold red]"

APP = f"""
import holdfast

HOSTILE = {HOSTILE!r}

@holdfast.step(once=True)
def pay(amount):
    raise ConnectionError(HOSTILE)

@holdfast.agent("claims", max_attempts=1)
def claims(task):
    task.decide(HOSTILE, why=HOSTILE)
    task.attach("a.txt", HOSTILE.encode())
    task.step("read", lambda text: text + HOSTILE, HOSTILE)
    return {{HOSTILE: HOSTILE}}

@holdfast.agent("failing", max_attempts=1)
def failing(task):
    task.step("look", lambda: {{}}[HOSTILE])

@holdfast.agent("paying", max_attempts=1)
def paying(task):
    pay(3)

@holdfast.agent("asking")
def asking(task):
    return task.ask("payout", HOSTILE, {{HOSTILE: HOSTILE}})

@holdfast.agent("plain")
def plain(task):
    return task.step("read", len, "four")
"""

KEY = base64.b64encode(bytes(range(32))).decode()

TABLE: dict[str, list[list[str]]] = {
    "anchor": [["URL"], ["URL", "--to", "DIR/anchor"]],
    "answer": [["URL", "asking-1", "payout", '"yes"']],
    "artifact": [["URL", "claims-1", "a.txt"], ["URL", "claims-1", "a.txt", "--output", "DIR/a"]],
    "audit": [
        ["URL", "failing-1", "--content"],
        ["URL", "asking-1", "--content", "--format", "csv"],
    ],
    "backup": [["URL", "DIR/backup.db"]],
    "cancel": [
        ["URL", "asking-1", "--reason", HOSTILE],
        ["URL", "--status", "suspended", "--dry-run"],
        ["URL", "--status", "suspended", "--yes"],
    ],
    "consolidate": [["URL", "buyer"], ["URL", "buyer", "--apply"]],
    "conversations": [["URL"]],
    "copy": [["URL", "DIR/copy.db"]],
    "crashtest": [["APP:plain", "--points", "1"]],
    "decrypt": [["ENCRYPTED", "DIR/plain.db", "--key", f"base64:{KEY}"]],
    "demo": [["--kills", "1", "--seed", "7"]],
    "encrypt": [["URL", "DIR/new.db", "--to", f"base64:{KEY}"]],
    "erase": [["ENCRYPTED", "--subject", "person-7", "--yes", "--key", f"base64:{KEY}"]],
    "forget": [["URL", "buyer", "--tag", "people", "--yes"], ["URL", "buyer", "ID"]],
    "health": [["URL"]],
    "key": [["DIR/master.key"]],
    "mcp": [["URL", "--http", "--port", "0"]],
    "memories": [["URL"], ["URL", "buyer"]],
    "messages": [["URL", "chat-1"]],
    "migrate": [["URL", "DIR/langgraph.db"]],
    "notifications": [["URL"], ["URL", "--retry"]],
    "questions": [["URL"]],
    "read": [["URL", "orders-7"]],
    "about": [["URL", "buyer", "Ann"]],
    "entities": [["URL", "buyer"]],
    "recall": [["URL", "buyer", "who signs the orders?"]],
    "reindex": [["URL", "buyer"]],
    "rekey": [["ENCRYPTED", "--key", f"base64:{KEY}", "--to", f"base64:{KEY[::-1][1:]}="]],
    "remember": [["URL", "buyer", HOSTILE]],
    "repair": [["URL"]],
    "replay": [["URL", "APP", "claims-1"]],
    "resolve": [["URL", "paying-1", "pay", "--retry"]],
    "retry": [["URL", "failing-1"], ["URL", "--status", "failed", "--yes"]],
    "run": [["URL", "APP", "claims", "run-1", "--goal", HOSTILE]],
    "schema": [["URL"], ["postgresql://host/agents"]],
    "serve": [["URL", "--port", "0"]],
    "signal": [["URL", "asking-1", "paid", "--payload", json.dumps(HOSTILE)]],
    "streams": [["URL"], ["URL", "--kind", "task"]],
    "submit": [["URL", "claims", "new-1", "--goal", HOSTILE, "--input", json.dumps(HOSTILE)]],
    "sweep": [["URL"]],
    "task": [
        ["URL", "failing-1"],
        ["URL", "paying-1"],
        ["URL", "asking-1"],
        ["URL", "claims-1", "--history"],
        ["URL", "claims-1", "--context"],
        ["URL", "claims-1", "--follow"],
    ],
    "tasks": [["URL"]],
    "verify": [["URL"]],
    "watch": [["URL"]],
    "worker": [["URL", "APP", "--poll", "0.05s"]],
    "workers": [["URL"]],
}
"""Arguments for every command. URL, ENCRYPTED, DIR and ID are replaced."""

RUNS_UNTIL_STOPPED = {"mcp", "serve", "watch", "worker"}
OPEN_NO_STORE = {"crashtest", "demo", "key", "schema"}


def every_command() -> dict[str, str]:
    """Return where each command's function is, by the name of the function."""
    inside = [path for group in GROUPS.values() for path in group.commands.values()]
    return {path.rpartition(".")[2]: path for path in (*COMMANDS.values(), *inside)}


CASES = [(name, case) for name, cases in TABLE.items() for case in cases]
ENDING = [(name, case) for name, case in CASES if name not in RUNS_UNTIL_STOPPED]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, no_agents: None) -> None:
    plain_terminal(monkeypatch)
    monkeypatch.delenv("HOLDFAST_KEY", raising=False)
    quick = functools.partial(holdfast.demo.run.run_demo, think=0)
    monkeypatch.setattr(holdfast.demo.run, "run_demo", quick)


@pytest.fixture
def fill(tmp_path: Path) -> Callable[[list[str]], list[str]]:
    """Make the stores that the commands need, full of hostile content; replace the placeholders."""
    program = tmp_path / f"hostile_{uuid.uuid4().hex}.py"
    program.write_text(APP)
    load_app(str(program))  # the agents, for `run_due`
    del sys.modules[program.stem]
    url, encrypted = str(tmp_path / "agents.db"), str(tmp_path / "encrypted.db")
    with holdfast.open(url) as store:
        for name in ("claims", "failing", "paying", "asking"):
            store.submit(name, f"{name}-1", goal=HOSTILE)
        store.run_due()
        store.stream("orders-7").append((HOSTILE, {HOSTILE: HOSTILE}))
        store.conversation("chat-1").append({"role": HOSTILE, "content": HOSTILE})
        memory = store.memory("buyer").remember(
            f"Ann signs the orders {HOSTILE}", tags=[HOSTILE, "people"], source=HOSTILE
        )

        def refuse(_: notify.Notification) -> None:
            raise OSError(HOSTILE)

        notify.deliver_due(store, [notify.Callback(refuse, name="pager", give_up_after=0)])
    with SqliteSaver.from_conn_string(str(tmp_path / "langgraph.db")) as saver:
        config = {"configurable": {"thread_id": HOSTILE, "checkpoint_ns": ""}}
        saver.put(config, empty_checkpoint(), {}, {})
    with holdfast.open(encrypted, key=base64.b64decode(KEY)) as store:
        store.conversation("chat-1", subject="person-7").append({"role": "user", "content": "hi"})
    registered_agents.clear()
    names = {"URL": url, "ENCRYPTED": encrypted, "APP": str(program), "ID": memory}

    def replace(arguments: list[str]) -> list[str]:
        placed = [names.get(each, each).replace("APP:", f"{program}:") for each in arguments]
        return [each.replace("DIR/", f"{tmp_path}/") for each in placed]

    return replace


@pytest.fixture
def registered_worker(fill: Callable[[list[str]], list[str]]) -> Iterator[None]:
    """A worker that runs while the test does, and says hostile things about itself."""
    holdfast.agent("idle")(lambda task: None)
    with holdfast.open(fill(["URL"])[0]) as store:
        worker = holdfast.Worker(store, register=True, code_version=HOSTILE)
        thread = threading.Thread(target=worker.run)
        thread.start()
        wait_until(lambda: bool(list(store.workers())))
        yield
        worker.stop()
        thread.join()


def check_is_inert(text: str) -> None:
    """Check that nothing in the text can change a terminal."""
    for line in text.split("\n"):
        assert line.isprintable(), repr(line)


# -- JSON ------------------------------------------------------------------------------------------


def test_the_table_has_every_command_and_every_command_has_json() -> None:
    assert set(TABLE) == set(every_command())
    for name, path in every_command().items():
        params = build_command(load_command(path), name).params
        assert "--json" in [option for each in params for option in each.opts], name


@pytest.mark.parametrize(("name", "case"), ENDING)
def test_json_is_all_that_a_command_prints_on_standard_output(
    name: str,
    case: list[str],
    fill: Callable[[list[str]], list[str]],
    request: pytest.FixtureRequest,
) -> None:
    if name == "workers":
        request.getfixturevalue("registered_worker")
    done = run(name, *fill(case), "--json")
    assert done.exit_code == 0, done.output
    check_is_inert(done.stdout)
    check_is_inert(done.stderr)
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    assert printed
    for each in printed:
        assert isinstance(each, dict)
        if name != "messages":  # messages are printed exactly as they are stored
            check_field_names(each, is_anchor=each.get("format") == "holdfast anchor 1")


def check_field_names(fields: dict[str, Any], *, is_anchor: bool = False) -> None:
    """Check that fields have the names, and times the form, that they have in other commands."""
    for name, value in fields.items():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name), name
        assert name not in OTHER_NAMES, f"{name} is called {OTHER_NAMES[name]} elsewhere"
        if isinstance(value, str) and re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", value):
            assert re.fullmatch(r".*at|since|until|deadline|oldest|newest|.*_until", name), name
            assert value.endswith("+00:00"), f"{name}: {value}"
        if name == "at" and not is_anchor:  # an anchor is a file format of its own
            assert isinstance(value, str)


OTHER_NAMES = {
    "task_id": "task",
    "agent_name": "agent",
    "stream_id": "stream",
    "time": "at",
    "timestamp": "at",
    "created": "created_at",
    "updated": "updated_at",
    "started": "started_at",
    "expires": "expires_at",
    "success": "ok",
    "exception": "error",
    "file": "path",
    "user": "by",
    "actor": "by",
    "state": "status",
}
"""Names that no command uses for a field, and the ones that all use."""


# -- hostile content -------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "case"), [each for each in ENDING if each[0] != "demo"])
def test_stored_text_cannot_change_the_terminal(
    name: str,
    case: list[str],
    fill: Callable[[list[str]], list[str]],
    request: pytest.FixtureRequest,
) -> None:
    if name == "workers":
        request.getfixturevalue("registered_worker")
    done = run(name, *fill(case))
    assert done.exit_code == 0, done.output
    if name == "artifact" and "--output" not in case:
        return  # the content of a file, as it is; the command refuses a terminal
    check_is_inert(done.stdout.replace("\r\n", "\n"))
    check_is_inert(done.stderr)


# -- commands that run until they are stopped ------------------------------------------------------


def interrupt(process: subprocess.Popen[str], *, again: bool) -> tuple[str, str]:
    """Send Ctrl-C, and return what the process prints until it ends.

    Python loses an interrupt that comes while it closes a generator. With `again`, send another.
    """
    process.send_signal(signal.SIGINT)
    while again:
        try:
            return process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
    return process.communicate(timeout=PATIENCE_SECONDS)


@pytest.mark.parametrize("options", [[], ["--json"]])
@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name, case in CASES if name in RUNS_UNTIL_STOPPED]
)
def test_a_command_that_runs_until_ctrl_c_ends_without_a_traceback(
    name: str, case: list[str], options: list[str], fill: Callable[[list[str]], list[str]]
) -> None:
    arguments = fill(case)
    with holdfast.open(fill(["URL"])[0]) as store:
        store.submit("failing", "failing-2", goal=HOSTILE)
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", name, *arguments, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        watchdog = threading.Timer(PATIENCE_SECONDS, process.kill)
        watchdog.start()
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        while name == "worker" and '"failed"' not in lines[-1] and "  failed  " not in lines[-1]:
            lines.append(process.stdout.readline())
            assert lines[-1], lines
        out, errors = interrupt(process, again=name == "watch")
        watchdog.cancel()
    printed = "".join(lines) + out
    assert process.returncode == (130 if name == "watch" else 0), errors
    assert "Traceback" not in errors + ("" if name == "worker" else printed)
    check_is_inert(printed + errors)
    if options:
        for line in printed.splitlines():
            check_field_names(json.loads(line))


@pytest.mark.parametrize("name", [name for name in TABLE if name not in OPEN_NO_STORE])
def test_ctrl_c_is_one_line_and_exit_code_130(
    name: str, fill: Callable[[list[str]], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = fill(TABLE[name][0])

    def press_ctrl_c(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for function in ("open", "copy", "backup", "encrypt", "decrypt"):
        monkeypatch.setattr(holdfast, function, press_ctrl_c)
    done = run(name, *arguments)
    assert done.exit_code == 130
    assert done.stderr.startswith("holdfast: ") and done.stderr.count("\n") == 1


def test_ctrl_c_at_a_confirmation_changes_nothing(fill: Callable[[list[str]], list[str]]) -> None:
    [url] = fill(["URL"])
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "cancel", url, "--status", "suspended"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        watchdog = threading.Timer(PATIENCE_SECONDS, process.kill)
        watchdog.start()
        assert process.stderr is not None
        heard = b""
        while b"cancel 1 task?" not in heard:
            heard += process.stderr.read(1)
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
        watchdog.cancel()
    assert process.returncode == 1 and b"nothing was changed" in errors
    with holdfast.open(url) as store:
        view = store.get_task("asking-1")
    assert view is not None and view.status == "suspended"
