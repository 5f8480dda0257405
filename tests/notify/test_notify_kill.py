"""A worker that is killed with -9 at any instant loses no notification."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

import holdfast
from helpers.receiver import Receiver
from helpers.tasks.running_workers import wait_until
from holdfast import Store, Task, notify
from holdfast.errors import AlreadyAnswered, HoldfastError, NotFound

KILLS = int(os.environ.get("HOLDFAST_TASK_KILLS", "30")) // 2
TASKS = {"dynamodb": 6, "s3": 6}
"""24 on the other engines, where a request does not take as long."""
PATIENCE_SECONDS = 240.0
LONGEST_LIFE_SECONDS = 1.2


class Workers:
    """A worker in a process that is killed after a random time, and the next one."""

    def __init__(self, url: str, webhook: str) -> None:
        program = Path(__file__).parent / "killed_worker.py"
        self._command = [sys.executable, str(program), url, webhook]
        self.kills = 0

    def start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stderr=subprocess.DEVNULL)

    def run_and_kill(self, chance: random.Random) -> None:
        worker = self.start()
        try:
            # The life of a process, not a pause of the test: it is killed wherever it is then.
            worker.wait(0.2 + chance.uniform(0, LONGEST_LIFE_SECONDS))
            raise AssertionError("the worker ended by itself")
        except subprocess.TimeoutExpired:
            worker.send_signal(signal.SIGKILL)
            worker.wait()
            self.kills += 1


def answer_questions(store: Store, stop: threading.Event) -> None:
    """Answer each question as soon as it is there, as an eager person would."""
    while not stop.wait(0.02):
        for info in list(store.tasks(status="suspended")):
            for name in ("first", "second"):
                try:
                    store.answer(info.id, name, "yes")
                except (AlreadyAnswered, NotFound, HoldfastError):
                    pass


@pytest.mark.slow
@pytest.mark.every_engine
@pytest.mark.long("files", "redis", "dynamodb", "s3", "sqlite-encrypted")
def test_no_notification_is_lost(durable_url: str, receiver: Receiver) -> None:
    chance = random.Random(7)
    tasks = TASKS.get(durable_url.partition(":")[0], 24)
    workers, stop = Workers(durable_url, receiver.url), threading.Event()
    with holdfast.open(durable_url, durability="process") as store:
        for number in range(tasks):
            store.submit("asking", f"t{number}")
        person = threading.Thread(target=answer_questions, args=(store, stop))
        person.start()
        last = None
        try:
            for _ in range(KILLS):
                workers.run_and_kill(chance)
            last = workers.start()
            receiver.wait_for(3 * tasks, PATIENCE_SECONDS)
        finally:
            stop.set()
            person.join()
            if last is not None:
                last.kill()
                last.wait()
    different = {each.data["id"]: each.data for each in receiver.all}
    told = Counter(
        (each["task"], each["kind"], each.get("question")) for each in different.values()
    )
    needs = [("question", "first"), ("question", "second"), ("failed", None)]
    assert told == Counter((f"t{number}", *need) for number in range(tasks) for need in needs)
    for number in range(tasks):  # in order, apart from repeats
        mine = [each.data for each in receiver.all if each.data["task"] == f"t{number}"]
        first = list({each["id"]: (each["kind"], each.get("question")) for each in mine}.values())
        assert first == needs
    repeats = len(receiver.all) - len(different)
    print(f"{workers.kills} kills, {len(different)} notifications, {repeats} repeats")


@pytest.mark.every_engine
def test_what_a_killed_worker_did_not_come_to_is_told_although_the_task_has_ended(
    durable_url: str, receiver: Receiver
) -> None:
    @holdfast.agent("asking")
    def finish(task: Task) -> None:
        task.step("prepare", str, 1)
        task.ask("first", "?")

    receiver.answers.clear()
    with holdfast.open(durable_url, durability="process") as store:
        store.submit("asking", "blocks the notifier")
        worker = Workers(durable_url, receiver.url).start()
        try:
            receiver.wait_for_attempts(1)
            store.submit("asking", "comes too late")
            wait_until(lambda: is_suspended(store, "comes too late"))
        finally:
            worker.kill()
            worker.wait()
        for name in ("blocks the notifier", "comes too late"):
            store.answer(name, "first", "yes")
        # By a process without hooks. A finished task needs no attention, so nobody looks at it.
        assert [(ran.status, ran.error) for ran in store.run_due()] == [("finished", None)] * 2
        told: list[str] = []
        hook = notify.Callback(lambda each: told.append(each.task), name="hook")
        assert notify.deliver_due(store, [hook]) == 2
        assert sorted(told) == ["blocks the notifier", "comes too late"]


def is_suspended(store: Store, id: str) -> bool:
    view = store.get_task(id)
    return view is not None and view.status == "suspended"
