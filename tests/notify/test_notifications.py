"""What hooks are told, and what they are not: questions, failures, doubt, stuck tasks, budgets."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast
from helpers.receiver import Receiver
from helpers.run_cli import paste, plain_terminal, run
from helpers.sync_and_async import Ways
from helpers.tasks.needy_agents import SECRETS, register_needy_agents, submit_needy
from helpers.tasks.running_workers import wait_until, working
from helpers.tasks.worker_tasks import outcomes
from holdfast import Store, Task, notify, testing
from holdfast.notify.notifier import Notifier
from holdfast.tasks.run.enter import MAX_CRASHES

NEEDS = ("question", "failed", "doubt", "budget")


def tell(store: Store, **options: Any) -> list[notify.Notification]:
    """What a new hook is told now."""
    told: list[notify.Notification] = []
    notify.deliver_due(store, [notify.Callback(told.append, name="test", **options)])
    return told


@pytest.mark.every_engine
def test_each_need_is_told_once(store: Store) -> None:
    register_needy_agents()
    for need in (*NEEDS, "nothing"):
        submit_needy(store, need)
    store.run_due()
    status = {"question": "suspended", "failed": "failed", "doubt": "pending", "budget": "failed"}
    assert {(told.task, told.kind, told.status) for told in tell(store)} == {
        (need, need, status[need]) for need in NEEDS
    }
    assert tell(store) == []
    store.answer("question", "payout", "yes")
    store.run_due()
    assert tell(store) == []


@pytest.mark.every_engine
@pytest.mark.long("dynamodb", "s3")
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_worker_tells_a_webhook(store: Store, receiver: Receiver, asynchronous: bool) -> None:
    register_needy_agents(asynchronous=asynchronous)
    with working(store, notify=[notify.Webhook(receiver.url)]):
        for need in ("question", "failed", "doubt", "nothing"):
            submit_needy(store, need)
        received = receiver.wait_for(3)
    assert sorted(receiver.told) == [(need, need) for need in ("doubt", "failed", "question")]
    by_kind = {each.data["kind"]: each.data for each in received}
    # The worker may send it before the agent, which has just asked, is suspended.
    assert by_kind["question"].pop("status") in ("running", "suspended")
    assert by_kind["question"] == {
        "id": by_kind["question"]["id"],
        "kind": "question",
        "tenant": "default",
        "task": "question",
        "agent": "needy",
        "question": "payout",
        "at": by_kind["question"]["at"],
        "command": "holdfast answer question payout JSON",
    }
    assert by_kind["failed"]["error"] == "BankError"
    assert by_kind["failed"]["command"] == "holdfast retry failed"
    assert by_kind["doubt"]["step"] == "pay"
    assert by_kind["doubt"]["command"] == "holdfast resolve doubt pay --retry"


NAMES = ("-dash", "--help", "a\nb", "it's", "sp ace", "ünï", "a/b", "--retry", "-n")


@pytest.mark.parametrize("tenant", ["default", "-t"])
def test_the_pasted_command_of_a_notification_acts_on_exactly_that_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tenant: str
) -> None:
    plain_terminal(monkeypatch)
    monkeypatch.setenv("HOLDFAST_URL", str(tmp_path / "agents.db"))

    @holdfast.step(once=True)
    def pay() -> None:
        raise OSError("the line is dead")

    @holdfast.agent("odd", max_attempts=1)
    def odd(task: Task) -> Any:
        if task.input == "failed":
            raise OSError("no")
        return task.ask(task.id, "Go?") if task.input == "question" else task.step(task.id, pay)

    for kind in ("question", "failed", "doubt"):
        for name in NAMES:
            with holdfast.open(str(tmp_path / "agents.db"), tenant=tenant) as store:
                store.submit(odd, name, input=kind)
                store.run_due()
                [told] = tell(store)
                *words, last = paste(told.command)
                command = [*words, "1" if kind == "question" else last]
                result = run(*command)
                assert (told.kind, result.exit_code) == (kind, 0), (command, result.output)
                [task] = store.tasks()
                assert (task.id, task.status, task.in_doubt) == (name, "pending", False)
                store.task(name).delete()


def test_content_is_told_only_to_who_asks(
    store: Store, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="holdfast")
    register_needy_agents()
    for need in NEEDS:
        submit_needy(store, need)
    store.run_due()
    with_content = notify.Webhook(receiver.url, content=True, name="with content")
    notify.deliver_due(store, [notify.Webhook(receiver.url + "/token-canary"), with_content])
    plain = [each for each in receiver.all if each.path == "/hook/token-canary"]
    assert len(plain) == len(NEEDS)
    for secret in (*SECRETS, "token-canary"):
        assert secret not in caplog.text
        assert not any(secret.encode() in each.body for each in plain)
    full = {each.data["kind"]: each.data for each in receiver.all if each.path == "/hook"}
    assert full["question"]["content"] == {"goal": "goal-canary", "question": "question-canary"}
    assert full["failed"]["content"] == {"goal": "goal-canary", "message": "message-canary"}


def test_a_stuck_task_is_told(store: Store) -> None:
    @holdfast.agent("fatal")
    def fatal(task: Task) -> None:
        task.step("die", int, "1")

    store.submit("fatal", "t")
    for _ in range(MAX_CRASHES):
        with testing.crash(before="die"):
            store.run_due()
    assert outcomes(store) == [("t", "stuck")]
    assert [(told.kind, told.task, told.status) for told in tell(store)] == [
        ("stuck", "t", "stuck")
    ]


def test_runs_that_are_retried_are_told_on_request(store: Store) -> None:
    @holdfast.agent("flaky", max_attempts=3)
    def flaky(task: Task) -> None:
        raise OSError("no")

    store.submit("flaky", "t")
    store.run_due()
    assert tell(store) == []
    told: list[notify.Notification] = []
    hook = notify.Callback(told.append, name="other", kinds=["retrying"])
    notify.deliver_due(store, [hook])
    assert [(each.kind, each.status) for each in told] == [("retrying", "retrying")]


def test_a_doubt_is_told_once_for_each_attempt(store: Store) -> None:
    register_needy_agents()
    submit_needy(store, "doubt")
    store.run_due()
    [first] = tell(store)
    submit_needy(store, "doubt")
    store.run_due()
    assert tell(store) == []  # it is the same doubt
    store.resolve("doubt", "pay", retry=True)
    store.run_due()
    [second] = tell(store)
    assert (first.kind, second.kind) == ("doubt", "doubt")
    assert first.id != second.id


def test_a_question_of_a_child_is_told(store: Store, receiver: Receiver) -> None:
    register_needy_agents()

    @holdfast.agent("parent")
    def parent(task: Task) -> object:
        return task.run_child("needy", "child", input={"need": "question"})

    with working(store, notify=[notify.Webhook(receiver.url)]):
        store.submit("parent", "t")
        receiver.wait_for(1)
    assert receiver.told == [("child", "question")]


def test_a_hook_is_not_told_what_happened_before_it_existed(
    store: Store, clock: testing.FakeClock
) -> None:
    register_needy_agents()
    submit_needy(store, "failed", "old")
    store.run_due()
    clock.advance(60)
    assert tell(store) == []
    submit_needy(store, "failed", "new")
    store.run_due()
    assert [told.task for told in tell(store)] == ["new"]


def test_a_new_task_with_the_same_id_is_told_again(store: Store) -> None:
    register_needy_agents()
    submit_needy(store, "failed")
    store.run_due()
    [first] = tell(store)
    store.task("failed").delete(reason="test")
    assert [entry.id for entry in store.streams(kind="notification")] == []
    submit_needy(store, "failed")
    store.run_due()
    [second] = tell(store)
    assert first.id != second.id


def test_the_block_of_a_task_that_fails_outside_of_a_worker_is_found(store: Store) -> None:
    with pytest.raises(ZeroDivisionError), store.task("script"):
        _ = 1 / 0
    assert [(told.kind, told.task, told.agent) for told in tell(store)] == [
        ("failed", "script", None)
    ]


def test_two_workers_do_not_repeat_each_other(store: Store, receiver: Receiver) -> None:
    register_needy_agents()
    hooks = [notify.Webhook(receiver.url)]
    with working(store, notify=hooks), working(store, notify=hooks):
        for number in range(20):
            submit_needy(store, "question" if number % 2 else "failed", f"t{number}")
        receiver.wait_for(20)
    assert len(receiver.all) == 20


def test_without_hooks_nothing_is_stored(store: Store) -> None:
    register_needy_agents()
    with working(store) as worker:
        submit_needy(store, "failed")
        worker.reports.wait_for("failed", "failed")
    assert list(store.streams(kind="notification")) == []


def test_a_hook_that_hangs_does_not_hold_up_the_others(store: Store) -> None:
    register_needy_agents()
    released, told = threading.Event(), []

    def hang(_told: notify.Notification) -> None:
        released.wait()

    submit_needy(store, "failed")
    store.run_due()
    hooks = [notify.Callback(hang, timeout=0.05), notify.Callback(told.append, name="fine")]
    try:
        assert notify.deliver_due(store, hooks) == 1
    finally:
        released.set()
    assert [each.task for each in told] == ["failed"]
    [left] = store.notifications()
    assert (left.status, left.error) == ("retrying", "no answer within 0.05 s")


def test_an_async_function_is_a_hook(store: Store) -> None:
    register_needy_agents()
    submit_needy(store, "failed")
    store.run_due()
    told: list[str] = []

    async def hook(each: notify.Notification) -> None:
        told.append(each.task)

    assert notify.deliver_due(store, [hook]) == 1
    assert told == ["failed"]


def test_a_command_gets_the_notification(store: Store, tmp_path: Any) -> None:
    register_needy_agents()
    submit_needy(store, "failed")
    store.run_due()
    out = tmp_path / "out"
    command = f'cat > {out}; echo "$HOLDFAST_NOTIFICATION_KIND" >> {out}'
    hooks = [notify.Command(command), notify.Command("exit 3"), notify.Command(["false"])]
    assert notify.deliver_due(store, hooks) == 1
    body, kind = out.read_text().rsplit("}", 1)
    assert json.loads(body + "}")["task"] == "failed"
    assert kind.strip() == "failed"
    assert sorted(left.error for left in store.notifications()) == ["exit code 1", "exit code 3"]


def test_a_command_that_hangs_is_killed(store: Store, tmp_path: Any) -> None:
    register_needy_agents()
    submit_needy(store, "failed")
    store.run_due()
    pid = tmp_path / "pid"
    hook = notify.Command(f"echo $$ > {pid}; sleep 1000", timeout=0.5)
    assert notify.deliver_due(store, [hook]) == 0
    wait_until(lambda: not _is_alive(int(pid.read_text())))


def _is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may end before the read
        return False


def test_what_was_not_received_is_listed_in_async_code_too(ways: Ways) -> None:
    register_needy_agents()
    submit_needy(ways.store, "failed")
    ways.store.run_due()

    def refuse(_told: notify.Notification) -> None:
        raise OSError("message-canary")

    notify.deliver_due(ways.store, [notify.Callback(refuse, name="down", give_up_after=0)])

    async def program() -> list[Any]:
        if not ways.asynchronous:
            listed = list(ways.store.notifications(status="dead"))
            return [listed, ways.store.redeliver(), list(ways.store.notifications())]
        aio = ways.store.aio
        listed = [each async for each in aio.notifications(status="dead")]
        return [listed, await aio.redeliver(), [each async for each in aio.notifications()]]

    [dead], count, [again] = ways.run(program())
    assert (dead.task, dead.hook, dead.attempts, dead.error) == ("failed", "down", 1, "OSError")
    assert count == 1
    assert (again.id, again.status) == (dead.id, "retrying")
    told = tell(ways.store)  # another hook: that one gets it as usual
    assert [each.id for each in told] == [dead.id]
    got: list[str] = []
    notify.deliver_due(ways.store, [notify.Callback(lambda each: got.append(each.id), name="down")])
    assert got == [dead.id]
    assert list(ways.store.notifications()) == []


def test_an_erased_task_does_not_hold_up_the_others(tmp_path: Any) -> None:
    register_needy_agents()
    key = "passphrase:correct horse battery staple"
    with holdfast.open(str(tmp_path / "agents.db"), key=key) as store:
        assert tell(store) == []
        for name in ("a", "b"):
            submit_needy(store, "failed", name)
        store.run_due()
        store.erase(store.task("a"))
        assert [told.task for told in tell(store)] == ["b"]
        submit_needy(store, "failed", "c")
        store.run_due()
        assert [told.task for told in tell(store)] == ["c"]


def test_a_copied_store_continues_where_the_first_one_was(store: Store, tmp_path: Any) -> None:
    register_needy_agents()

    def refuse(_told: notify.Notification) -> None:
        raise OSError

    for name in ("a", "b"):
        submit_needy(store, "failed", name)
        store.run_due()
        if name == "a":
            assert [told.task for told in tell(store)] == ["a"]
    notify.deliver_due(store, [notify.Callback(refuse, name="test", give_up_after=0)])
    [dead] = store.notifications()
    holdfast.copy(store, str(tmp_path / "copy.db"))
    with holdfast.open(str(tmp_path / "copy.db")) as copied:
        assert list(copied.notifications()) == [dead]
        assert tell(copied) == []
        copied.redeliver()
        assert [told.task for told in tell(copied)] == ["b"]
        assert copied.verify().ok


def test_a_question_is_sent_while_the_run_continues(store: Store, clock: testing.FakeClock) -> None:
    told: list[str] = []
    notifier = Notifier(
        store._log, store.tenant, [notify.Callback(lambda each: told.append(each.kind))]
    )
    store._log.claim_hooks.append(notifier._mark_claimed)
    found: list[list[str]] = []

    def ask_or_look(item: str) -> None:
        if item == "ask":
            task.ask("q", "?")
        task.step("look", str)
        notifier.deliver_due()
        clock.advance(31)
        notifier.deliver_due()
        found.append(list(told))

    with pytest.raises(holdfast.Suspended), store.task("t") as task:
        task.map("items", ask_or_look, ["ask", "look"], concurrency=1)
    assert found == [["question"]]
    notifier.deliver_due()
    assert told == ["question"]
