"""`holdfast notifications`, and the options of `holdfast worker` for hooks and logs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from helpers.receiver import Receiver
from helpers.run_cli import plain_terminal
from helpers.run_cli import run as call
from holdfast import notify

APP = """
import holdfast

@holdfast.agent("failing", max_attempts=1)
def failing(task):
    message = "message-canary"
    raise ValueError(message)
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, no_agents: None) -> None:
    plain_terminal(monkeypatch)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


def make_dead_letter(url: str) -> str:
    """Return the id of a notification that nobody got."""

    @holdfast.agent("failing", max_attempts=1)
    def failing(task: holdfast.Task) -> None:
        raise ValueError("message-canary")

    def refuse(_told: notify.Notification) -> None:
        raise OSError("message-canary")

    with holdfast.open(url) as store:
        store.submit("failing", "t")
        store.run_due()
        notify.deliver_due(store, [notify.Callback(refuse, name="pager", give_up_after=0)])
        [dead] = store.notifications()
        return dead.id


def test_dead_letters_are_listed_and_delivered_again(tmp_path: Path) -> None:
    url = str(tmp_path / "agents.db")
    dead = make_dead_letter(url)
    listed = call("notifications", url)
    assert listed.output.startswith(f"{dead}  dead  failed  t  pager  1 attempt since ")
    assert listed.output.rstrip().endswith("OSError")
    as_json = json.loads(call("notifications", url, "--status", "dead", "--json").output)
    assert (as_json["id"], as_json["hook"], as_json["next_at"]) == (dead, "pager", None)
    assert call("notifications", url, "--status", "retrying").output == ""
    assert call("notifications", url, "--task", "other").output == ""
    retried = call("notifications", url, "--retry", "--id", dead)
    assert retried.output == "1 notification to deliver again\n"
    assert "retrying" in call("notifications", url).output
    told: list[str] = []
    with holdfast.open(url) as store:
        notify.deliver_due(
            store, [notify.Callback(lambda each: told.append(each.id), name="pager")]
        )
    assert told == [dead]
    assert call("notifications", url).output == ""


def test_options_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    url = str(tmp_path / "agents.db")
    holdfast.open(url).close()
    assert call("notifications", url, "--id", "x").exit_code == 2
    assert call("notifications", url, "--retry", "--status", "dead").exit_code == 2
    app = tmp_path / "app.py"
    app.write_text(APP)
    refused = call("worker", url, str(app), "--notify-webhook", "ftp://host/canary")
    assert refused.exit_code == 2


@pytest.mark.slow
def test_a_worker_tells_a_webhook_and_logs_json(tmp_path: Path, receiver: Receiver) -> None:
    url, app, out = str(tmp_path / "agents.db"), tmp_path / "shop_app.py", tmp_path / "out"
    app.write_text(APP)
    with holdfast.open(url) as store:
        store.submit("failing", "t", goal="goal-canary")
    command = ["holdfast.cli", "worker", url, str(app), "--notify-webhook", receiver.url]
    command += ["--notify-command", f"cat > {out}", "--log-format", "json"]
    worker = subprocess.Popen(
        [sys.executable, "-m", *command],
        env={**os.environ, "HOLDFAST_WEBHOOK_SECRET": "secret-canary"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        [got] = receiver.wait_for(1)
    finally:
        worker.send_signal(signal.SIGTERM)
        _, logged = worker.communicate(timeout=30)
    assert notify.verify_webhook(got.headers, got.body, "secret-canary").task == "t"
    assert json.loads(out.read_text())["id"] == got.data["id"]
    lines = [json.loads(line) for line in logged.splitlines() if line.startswith("{")]
    assert {"event", "stream", "kind", "milliseconds"} <= lines[0].keys()
    assert "canary" not in logged
