"""A check waits until the attempt in doubt cannot be under way any more; plain and async."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from datetime import timedelta
from typing import Any

import pytest

import holdfast
from helpers.sync_and_async import Ways, view
from helpers.tasks.held_tasks import held
from helpers.tasks.step_functions import Stop, never
from holdfast import StepFailed, Store, Task, testing
from holdfast.errors import LeaseLost, NotDone, Suspended
from holdfast.testing import FakeClock


class MailService:
    """A service that shows a mail some time after it took it."""

    def __init__(self, clock: FakeClock, latency: float) -> None:
        self.clock, self.latency = clock, latency
        self.taken: list[float] = []
        self.checked: list[float] = []

    def send(self, to: str) -> str:
        self.taken.append(self.clock.now())
        return "sent"

    def find(self, to: str) -> str | None:
        now = self.clock.now()
        self.checked.append(now)
        return "sent" if any(at + self.latency <= now for at in self.taken) else None

    def step(self, **options: Any) -> Any:
        def send(to: str) -> str:
            return self.send(to)

        def find(to: str) -> str | None:
            return self.find(to)

        return holdfast.step(send, check=find, **options)


@pytest.fixture
def mail(clock: FakeClock) -> MailService:
    return MailService(clock, latency=2.5)


def kill_during(ways: Ways, step: Any, **options: Any) -> None:
    """Kill the run after the mail was taken and before that is recorded."""
    with testing.crash(during="send"):
        ways.resume(lambda task: task.step("send", step, "ann"), **options)


def send_again(ways: Ways, step: Any, **options: Any) -> Any:
    return ways.resume(lambda task: task.step("send", step, "ann"), **options)


# -- in the foreground -----------------------------------------------------------------------------


@pytest.mark.every_engine
def test_a_mail_that_was_under_way_at_a_kill_is_not_sent_twice(
    ways: Ways, mail: MailService, caplog: pytest.LogCaptureFixture
) -> None:
    step = mail.step()
    kill_during(ways, step)
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert send_again(ways, step) == "sent"
    assert len(mail.taken) == 1
    assert mail.checked[0] - mail.taken[0] == pytest.approx(30, abs=1)
    assert "waiting 30 s before the check of step 'send'" in caplog.text
    assert view(ways).steps[0].how == "checked"


@pytest.mark.parametrize("given", [4.0, timedelta(seconds=4)])
def test_check_after_says_how_long(ways: Ways, mail: MailService, given: Any) -> None:
    step = mail.step(check_after=given)
    kill_during(ways, step)
    assert send_again(ways, step) == "sent"
    assert (len(mail.taken), len(mail.checked)) == (1, 1)
    assert mail.checked[0] - mail.taken[0] == pytest.approx(4, abs=1)


def test_with_check_after_0_the_check_is_called_at_once(ways: Ways, mail: MailService) -> None:
    mail.latency = 0.0
    step = mail.step(check_after=0)
    kill_during(ways, step)
    assert send_again(ways, step) == "sent"
    assert mail.checked == mail.taken


def test_it_counts_from_the_end_of_the_dead_owners_lease(
    ways: Ways, mail: MailService, clock: FakeClock
) -> None:
    step = mail.step()
    kill_during(ways, step, lease=10)
    clock.jump(25)  # its lease ended 15 seconds ago
    assert send_again(ways, step) == "sent"
    assert mail.checked[0] - mail.taken[0] == pytest.approx(40, abs=1)


def test_a_task_that_was_dead_for_long_does_not_wait(
    ways: Ways, mail: MailService, clock: FakeClock
) -> None:
    step = mail.step()
    kill_during(ways, step, lease=10)
    clock.jump(3600)
    before = clock.now()
    assert send_again(ways, step) == "sent"
    assert mail.checked == [before]


def test_a_later_run_does_not_start_the_wait_again(
    ways: Ways, mail: MailService, clock: FakeClock
) -> None:
    step = mail.step()
    kill_during(ways, step)

    async def idle(task: Any) -> None:
        clock.advance(20)

    ways.resume(idle)
    assert send_again(ways, step) == "sent"
    assert mail.checked[0] - mail.taken[0] == pytest.approx(30, abs=1)


def test_it_counts_from_the_takeover_when_the_lease_was_stolen(
    store: Store, mail: MailService, clock: FakeClock
) -> None:
    def send_slowly(to: str) -> str:
        """While its request is under way, another part of the program takes the task."""
        mail.send(to)
        clock.advance(1)
        contextvars.Context().run(take_over)
        return "sent"

    def take_over() -> None:
        with store.task("t", steal=True) as other:
            assert other.step("send", mail.step(), "ann") == "sent"

    owner = held(store, lease=600)
    with pytest.raises(LeaseLost):
        owner.step("send", holdfast.step(send_slowly, check=never), "ann")
    assert len(mail.taken) == 1
    assert mail.checked[0] - mail.taken[0] == pytest.approx(31, abs=1)


def test_the_parents_attempt_may_be_under_way_in_a_fork(
    store: Store, mail: MailService, clock: FakeClock
) -> None:
    def send_slowly(to: str) -> str:
        clock.advance(29)
        mail.send(to)
        with store.task("t").fork("f") as fork:
            assert fork.step("send", mail.step(), to) == "sent"
        return "sent"

    with store.task("t") as task:
        task.step("send", holdfast.step(send_slowly, check=never), "ann")
    assert len(mail.taken) == 1


def test_an_operator_can_resolve_the_step_while_its_check_is_waited_for(
    ways: Ways, mail: MailService, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = mail.step()
    kill_during(ways, step)
    jump, resolved = clock.advance, list[int]()

    def advance(seconds: Any) -> None:
        jump(seconds)
        if not resolved:
            resolved.append(1)
            ways.store.resolve("t", "send", result="by hand")

    monkeypatch.setattr(clock, "advance", advance)
    assert send_again(ways, step) == "by hand"
    assert (len(mail.taken), mail.checked) == (1, [])


def test_a_clock_that_was_wrong_makes_no_wait_longer_than_declared(
    ways: Ways, mail: MailService, clock: FakeClock
) -> None:
    def send(to: str) -> str:
        mail.send(to)
        raise TimeoutError

    step = holdfast.step(send, check=mail.find, check_after=5)
    with testing.fake_clock(clock.now() + 3600), pytest.raises(StepFailed):
        send_again(ways, step)  # on a machine that is an hour ahead
    before = clock.now()
    assert send_again(ways, step) == "sent"
    assert mail.checked[0] - before == pytest.approx(5, abs=1)


def test_a_once_step_is_in_doubt_at_once(ways: Ways, mail: MailService, clock: FakeClock) -> None:
    step = holdfast.step(mail.send, once=True)
    kill_during(ways, step)
    before = clock.now()
    with pytest.raises(holdfast.StepInDoubt):
        send_again(ways, step)
    assert clock.now() - before < 1


# -- attempts that ended in their process ----------------------------------------------------------


@pytest.mark.parametrize("end", [ValueError("no"), Stop(), KeyboardInterrupt()])
@pytest.mark.parametrize("check_after", [None, 5.0])
def test_an_attempt_that_ended_here_is_waited_for_only_if_it_is_declared(
    ways: Ways, mail: MailService, end: BaseException, check_after: float | None
) -> None:
    def send(to: str) -> str:
        mail.send(to)
        raise end

    async def send_later(to: str) -> str:
        return send(to)

    fn = send_later if ways.asynchronous else send
    mail.latency = 0.0
    step = holdfast.step(fn, check=mail.find, check_after=check_after)
    with pytest.raises((StepFailed, Stop, KeyboardInterrupt)):
        send_again(ways, step)
    assert send_again(ways, step) == "sent"
    assert mail.checked[0] - mail.taken[0] == pytest.approx(check_after or 0.0, abs=1)


@pytest.mark.usefixtures("no_pause")
def test_a_check_between_two_attempts_waits_as_declared(ways: Ways, mail: MailService) -> None:
    def send(to: str) -> str:
        mail.send(to)
        raise TimeoutError

    step = holdfast.step(send, check=mail.find, check_after=4, max_attempts=3)
    assert send_again(ways, step) == "sent"
    assert (len(mail.taken), len(mail.checked)) == (1, 1)
    assert mail.checked[0] - mail.taken[0] == pytest.approx(4, abs=1)


@pytest.mark.usefixtures("no_pause")
def test_after_not_done_nothing_is_waited_for(ways: Ways, clock: FakeClock) -> None:
    attempts: list[int] = []

    def send(to: str) -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise NotDone
        return "sent"

    before = clock.now()
    step = holdfast.step(send, check=never, check_after=4, max_attempts=3)
    assert send_again(ways, step) == "sent"
    assert clock.now() - before < 1


def test_in_the_same_block_it_counts_from_the_end_of_the_attempt(
    ways: Ways, mail: MailService, clock: FakeClock
) -> None:
    def send(to: str) -> str:
        mail.send(to)
        raise TimeoutError

    step = holdfast.step(send, check=mail.find, check_after=4, key=lambda to: to)

    async def work(task: Any) -> Any:
        with pytest.raises(StepFailed):
            await task.step("send", step, "ann")
        clock.advance(1)
        return await task.step("send", step, "ann")

    assert ways.resume(work) == "sent"
    assert mail.checked[0] - mail.taken[0] == pytest.approx(4, abs=1)


# -- under a worker --------------------------------------------------------------------------------


def make_agent(ways: Ways, step: Any, name: str = "mailer") -> None:
    if ways.asynchronous:

        @holdfast.agent(name)
        async def send_async(task: holdfast.AsyncTask) -> Any:
            return await task.step("send", step, "ann")

    else:

        @holdfast.agent(name)
        def send(task: Task) -> Any:
            return task.step("send", step, "ann")


def test_under_a_worker_the_task_is_suspended_until_its_check_may_be_called(
    ways: Ways, mail: MailService, clock: FakeClock
) -> None:
    make_agent(ways, mail.step())
    store = ways.store
    store.submit("mailer", "t")
    with testing.crash(during="send"):
        store.run_due()
    before = clock.now()
    [ran] = store.run_due()
    assert clock.now() - before < 5, "the worker was not blocked"
    assert (ran.status, ran.waits_for) == ("suspended", ("the check of step 'send'",))
    seen = view(ways)
    assert (seen.status, seen.owner, seen.in_doubt) == ("suspended", None, ["send"])
    assert seen.waits_for == ["the check of step 'send'"]
    assert seen.due_at is not None
    assert seen.due_at.timestamp() - mail.taken[0] == pytest.approx(30, abs=2)
    assert store.run_due() == []
    clock.advance(20)
    assert store.run_due() == []
    clock.advance(12)
    [ran] = store.run_due()
    assert ran.status == "finished"
    assert (len(mail.taken), len(mail.checked)) == (1, 1)


def test_a_task_that_waits_for_its_check_can_be_resolved_and_is_due_then(
    ways: Ways, mail: MailService
) -> None:
    make_agent(ways, mail.step())
    ways.store.submit("mailer", "t")
    with testing.crash(during="send"):
        ways.store.run_due()
    ways.store.run_due()
    ways.store.resolve("t", "send", result="by hand")
    [ran] = ways.store.run_due()
    assert ran.status == "finished"
    assert view(ways).result == "by hand"
    assert mail.checked == []


def test_a_replay_ends_where_the_task_waits_for_its_check(ways: Ways, mail: MailService) -> None:
    make_agent(ways, mail.step())
    ways.store.submit("mailer", "t")
    with testing.crash(during="send"):
        ways.store.run_due()
    ways.store.run_due()
    if ways.asynchronous:
        replayed = asyncio.run(ways.store.aio.replay("mailer", "t"))
    else:
        replayed = ways.store.replay("mailer", "t")
    assert (replayed.ended, replayed.divergence) == ("suspended", None)


def test_entering_a_task_that_waits_for_its_check_leaves_it_waiting(
    ways: Ways, mail: MailService, clock: FakeClock
) -> None:
    make_agent(ways, mail.step())
    ways.store.submit("mailer", "t")
    with testing.crash(during="send"):
        ways.store.run_due()
    ways.store.run_due()
    before = view(ways)

    async def look(task: Any) -> Any:
        return task.in_doubt

    assert ways.resume(look) == ["send"]
    after = view(ways)
    assert (after.status, after.waits_for, after.due_at) == (
        before.status,
        before.waits_for,
        before.due_at,
    )
    clock.advance(31)
    assert [ran.status for ran in ways.store.run_due()] == ["finished"]


def test_a_child_that_waits_for_its_check_suspends_its_parent_too(
    ways: Ways, mail: MailService, clock: FakeClock
) -> None:
    make_agent(ways, mail.step())
    if ways.asynchronous:

        @holdfast.agent("parent")
        async def parent_async(task: holdfast.AsyncTask) -> Any:
            return await task.run_child("mailer", "child")

    else:

        @holdfast.agent("parent")
        def parent(task: Task) -> Any:
            return task.run_child("mailer", "child")

    ways.store.submit("parent", "p")
    with testing.crash(during="send"):
        ways.store.run_due()
    before = clock.now()
    ways.store.run_due()
    assert clock.now() - before < 5
    assert (view(ways, "p").status, view(ways, "child").status) == ("suspended", "suspended")
    clock.advance(31)
    ways.store.run_due()
    assert view(ways, "p").result == "sent"
    assert len(mail.taken) == 1


def test_one_item_of_a_map_waits_and_the_others_run(
    store: Store, mail: MailService, clock: FakeClock
) -> None:
    ran: list[str] = []
    send = mail.step()

    def work(to: str) -> str:
        if to == "ann":
            return str(send(to))
        ran.append(to)
        return "other"

    @holdfast.agent("mapper")
    def mapper(task: Task) -> Any:
        return task.map("each", work, ["ann", "bob"], concurrency=1)

    store.submit("mapper", "t")
    with testing.crash(during="send"):
        store.run_due()
    assert ran == []
    [first] = store.run_due()
    assert (first.status, ran) == ("suspended", ["bob"])
    clock.advance(31)
    [second] = store.run_due()
    seen = store.get_task("t")
    assert seen is not None
    assert (second.status, seen.result, ran) == ("finished", ["sent", "other"], ["bob"])
    assert len(mail.taken) == 1


def test_inside_a_step_that_must_not_run_twice_it_waits_here(
    ways: Ways, mail: MailService, clock: FakeClock
) -> None:
    step = mail.step()

    def outer() -> str:
        return str(step("ann"))

    outer_step = holdfast.step(outer, check=lambda: None, check_after=0)

    @holdfast.agent("outer")
    def agent(task: Task) -> Any:
        return task.step("outer", outer_step)

    ways.store.submit("outer", "t")
    with testing.crash(during="send"):
        ways.store.run_due()
    [ran] = ways.store.run_due()
    assert ran.status == "finished"
    assert (len(mail.taken), len(mail.checked)) == (1, 1)


# -- the options -----------------------------------------------------------------------------------


def test_a_check_knows_when_the_attempt_in_doubt_was_started(
    ways: Ways, mail: MailService, clock: FakeClock
) -> None:
    started: list[float] = []

    def send(to: str) -> str:
        started.append(holdfast.current_step().started_at.timestamp())
        clock.advance(3)
        return mail.send(to)

    def find(to: str) -> str | None:
        started.append(holdfast.current_step().started_at.timestamp())
        return None

    step = holdfast.step(send, check=find)
    kill_during(ways, step)
    sent = mail.taken[0]
    assert send_again(ways, step) == "sent"
    assert started[0] == started[1] == pytest.approx(sent - 3, abs=1)
    assert started[2] == pytest.approx(sent + 30, abs=2)


@pytest.mark.parametrize("wrong", [-1, "5", float("nan"), True])
def test_check_after_must_be_a_time(wrong: Any) -> None:
    with pytest.raises(ValueError, match="check_after must be seconds"):
        holdfast.step(never, check=never, check_after=wrong)


def test_check_after_needs_a_check() -> None:
    for options in ({}, {"once": True}):
        with pytest.raises(TypeError, match="check_after"):
            holdfast.step(never, check_after=5, **options)  # type: ignore[call-overload]


def test_suspended_says_what_it_waits_for(store: Store, mail: MailService) -> None:
    seen: list[str] = []
    step = mail.step()

    @holdfast.agent("mailer")
    def mailer(task: Task) -> Any:
        try:
            return task.step("send", step, "ann")
        except Suspended as suspended:
            seen.append(str(suspended))
            raise

    store.submit("mailer", "t")
    with testing.crash(during="send"):
        store.run_due()
    store.run_due()
    assert seen == ["task 't' waits for the check of step 'send'"]
