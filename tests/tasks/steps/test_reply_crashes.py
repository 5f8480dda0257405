"""Replies that a crash or an error interrupts: asked and appended once; sync and async."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast
from helpers.stores import ON_MEMORY
from helpers.sync_and_async import Ways, view
from helpers.tasks.replies import Model, chatting, messages, plainly, said, user
from holdfast import Budget, Store
from holdfast.backends.faulty import FaultyBackend
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import BudgetExceeded
from holdfast.log.log import Log
from holdfast.testing import crash


@pytest.fixture
def model() -> Model:
    return Model()


def test_cut_off_after_the_message_the_model_is_not_asked_again(ways: Ways, model: Model) -> None:
    ask = plainly(model.ask)
    with crash(during="ask"):
        ways.resume(chatting(ways, ask))
    assert messages(ways) == [user("q0"), said("answer 1")]
    for n in range(50):  # others go on meanwhile; it is found all the same
        ways.store.conversation("c").append(user(f"other {n}"))
    assert ways.resume(chatting(ways, ask)) == [said("answer 1"), said("answer 2")]
    assert (model.asked, view(ways).steps[0].how, view(ways).steps[1].how) == (2, "checked", "ran")
    assert [m for m in messages(ways) if m["role"] == "assistant"] == [
        said("answer 1"),
        said("answer 2"),
    ]


@ON_MEMORY
def test_a_message_that_is_there_needs_no_budget(ways: Ways, model: Model) -> None:
    ask = plainly(model.ask)

    async def work(task: Any) -> Any:
        await task.step("spend", holdfast.step(lambda: 1, kind="model"))
        return await task.reply("c", ask)

    async def more(task: Any) -> None:
        await work(task)
        await task.reply("d", ask)

    with crash(during="ask"):
        ways.resume(work, budget=Budget(calls=2))
    assert ways.resume(work, budget=Budget(calls=1)) == said("answer 1")
    with pytest.raises(BudgetExceeded):
        ways.resume(more)
    assert model.asked == 1


@ON_MEMORY
def test_a_task_that_was_cancelled_meanwhile_says_nothing_more(ways: Ways) -> None:
    def plain(chat: Any) -> dict[str, Any]:
        ask_to_end: Any = holdfast.current_task()
        ask_to_end.cancel()
        return said("too late")

    async def awaited(chat: Any) -> dict[str, Any]:
        ask_to_end: Any = holdfast.current_task()
        await ask_to_end.cancel()
        return said("too late")

    with pytest.raises(holdfast.errors.TaskEnded):
        ways.resume(lambda task: task.reply("c", awaited if ways.asynchronous else plain))
    assert messages(ways) == []


@pytest.mark.every_engine
def test_who_was_away_for_longer_than_the_lease_looks_before_it_says_anything(
    durable_url: str,
) -> None:
    with holdfast.open(durable_url) as store, holdfast.open(durable_url) as other:

        def ask(chat: Any) -> dict[str, Any]:
            with other.task("t", steal=True):
                pass
            task._require_session().lease.renewed_at -= 1000  # as if it had been suspended for long
            return said("too late")

        with pytest.raises(holdfast.errors.LeaseLost), store.task("t") as task:
            task.reply("c", ask)
        assert store.conversation("c").messages() == []


class Counting(MemoryBackend):
    """Counts the records that are read: what a look costs."""

    read_records = 0

    def read(self, *args: Any, **options: Any) -> Any:
        found = super().read(*args, **options)
        self.read_records += len(found)
        return found


def test_what_a_reply_reads_does_not_grow_with_the_conversation() -> None:
    costs = []
    for length in (10, 2000):
        backend = Counting()
        with Store(Log(backend), "default") as store:
            store.conversation("c").append(*(user(f"q{n}") for n in range(length)))
            with store.task("t") as task:
                task.reply("c", lambda chat: said("warm"))
                backend.read_records = 0
                task.reply("c", lambda chat: said("a"))
            costs.append(backend.read_records)
    assert costs[0] == costs[1] < 20


def test_who_comes_second_takes_the_message_of_who_came_first(url: str) -> None:
    """Two runs of one task, of which one has lost it and does not know: both have asked, and one
    message counts."""
    with holdfast.open(url) as store:
        late = threading.Event()
        ready = threading.Event()
        outcome: list[BaseException] = []

        def slow(chat: Any) -> dict[str, Any]:
            ready.set()
            assert late.wait(20)
            return said("of the one who lost the task")

        def loser() -> None:
            try:
                with store.task("t") as task:
                    task.reply("c", holdfast.step(slow, key=lambda chat: "k"))
            except holdfast.errors.LeaseLost as error:
                outcome.append(error)

        def ask(chat: Any) -> dict[str, Any]:
            late.set()
            thread.join(20)
            return said("of the one who has it")

        named = holdfast.step(ask, key=lambda chat: "k")
        named.fn.__name__ = "slow"
        thread = threading.Thread(target=loser)
        thread.start()
        assert ready.wait(20)
        with store.task("t", steal=True) as task:
            given = task.reply("c", named)
        assert len(outcome) == 1
        assert store.conversation("c").messages() == [given]
        with store.task("t") as task:
            assert task.reply("c", named) == given


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("times", [1, 1000], ids=["once", "on and on"])
@pytest.mark.parametrize(
    "fault", ["lost_answer", "lost_request", "late", "driver_error_stored", "unavailable"]
)
def test_whatever_becomes_of_the_append_there_is_one_message_and_the_step_has_it(
    fault: Any, times: int
) -> None:
    backend = FaultyBackend(MemoryBackend(), seed=1)
    asked: list[int] = []

    with Store(Log(backend, timeout=0.05), "default") as store:

        @holdfast.step(key=lambda chat: "k")
        def ask(chat: Any) -> dict[str, Any]:
            asked.append(1)
            if len(asked) == 1:
                backend.next(*[fault] * times)
            return said(f"answer {len(asked)}")

        with store.task("t") as task:
            try:
                task.reply("c", ask)
            except holdfast.HoldfastError:
                pass
            assert backend.injected[fault]
            backend._requested.clear()
            given = task.reply("c", ask)
            backend.deliver()
            assert task.results() == {"ask[k]": given}
        assert store.conversation("c").messages() == [given]
        with store.task("t") as task:
            assert task.reply("c", ask) == given
        assert len(asked) <= 2


PROGRAM = """
import asyncio, os, signal, sys
import holdfast
from holdfast.tasks.state import events as ev
from holdfast.tasks.run.session import Session

url, notes, way, kill = sys.argv[1:]

def die():
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()

put = Session.put
def mortal(session, changes, *args, **options):
    if any(name == ev.STEP_COMPLETED for name, _ in changes):
        die()
    return put(session, changes, *args, **options)
if kill == "after the message":
    Session.put = mortal

def answer():
    with open(notes, "a") as file:
        file.write("asked\\n")
    return {"role": "assistant", "content": "answer"}

def ask(chat):
    message = answer()
    if kill == "before the message":
        die()
    return message

async def ask_async(chat):
    return ask(chat)

if way == "plain":
    with holdfast.open(url, key=os.environ.get("HOLDFAST_KEY")) as store, store.task("t") as task:
        chat = task.conversation("c")
        chat.append({"role": "user", "content": "q"})
        task.finish(task.reply(chat, ask))
else:
    async def main():
        opened = holdfast.aopen(url, key=os.environ.get("HOLDFAST_KEY"))
        async with opened as store, store.task("t") as task:
            chat = task.conversation("c")
            await chat.append({"role": "user", "content": "q"})
            await task.finish(await task.reply(chat, ask_async))
    asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["plain", "async"])
@pytest.mark.parametrize(
    ("kill", "asked", "how"),
    [("after the message", 1, "checked"), ("before the message", 2, "ran")],
)
def test_killed_around_the_message_there_is_one(
    durable_url: str, tmp_path: Path, way: str, kill: str, asked: int, how: str
) -> None:
    notes = tmp_path / "notes"

    def live(kill: str) -> int:
        command = [sys.executable, "-c", PROGRAM, durable_url, str(notes), way, kill]
        return subprocess.run(command, check=False, timeout=60, capture_output=True).returncode

    assert live(kill) == -signal.SIGKILL
    with holdfast.open(durable_url) as store:
        between = store.conversation("c").messages()
    assert between == ([user("q"), said("answer")] if asked == 1 else [user("q")])
    assert live("") == 0
    assert notes.read_text().split() == ["asked"] * asked
    with holdfast.open(durable_url) as store:
        assert store.conversation("c").messages() == [user("q"), said("answer")]
        found = store.get_task("t")
        assert found is not None
        assert (found.status, found.result, found.steps[0].how) == ("finished", said("answer"), how)
