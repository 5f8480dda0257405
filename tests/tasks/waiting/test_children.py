"""Children: tasks of their own with a parent, that are resumed, waited for and cancelled with it;
on every backend, plain and async."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

import holdfast
from helpers.sync_and_async import AwaitedTask, Ways, view
from holdfast import NotFound, StepFailed, Store, Suspended
from holdfast.backends import Append, AppendResult, VersionMismatch
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import ChildFailed, Expired, ReplayMismatch, TaskEnded, Unavailable
from holdfast.testing import fake_clock

SECONDS = 20
"""Longer than anything here takes; whoever waits so long waits for what does not come."""


@pytest.fixture
def clock() -> Iterator[Any]:
    with fake_clock() as clock:
        yield clock


def agent(ways: Ways, name: str, work: Any, **options: Any) -> Any:
    """Register work, which awaits what its task does, as an agent of the kind of these tasks."""
    return holdfast.agent(name, **options)(as_agent(ways, work))


def as_agent(ways: Ways, work: Any) -> Callable[[Any], Any]:
    if ways.asynchronous:

        async def later(task: Any) -> Any:
            return await work(task)

        return later

    def now(task: Any) -> Any:
        return ways.run(work(AwaitedTask(task)))

    return now


def run(ways: Ways, agent: str, task: str, **options: Any) -> Any:
    if ways.asynchronous:
        return asyncio.run(ways.store.aio.run(agent, task, **options))
    return ways.store.run(agent, task, **options)


def statuses(ways: Ways, *ids: str) -> list[str]:
    return [view(ways, each).status for each in ids]


def ran(found: Sequence[Any]) -> list[tuple[str, str]]:
    return [(each.id, each.status) for each in found]


async def answered(task: Any) -> Any:
    """A child that has to ask."""
    found = await task.ask("q", "Which?")
    return f"{task.id}: {found}"


def having(*ids: str, agent: str = "kid") -> Any:
    async def work(task: Any) -> Any:
        return [await task.run_child(agent, each) for each in ids]

    return work


# -- results ---------------------------------------------------------------------------------------


@dataclass
class Report:
    words: int
    text: str = ""


def test_a_child_is_a_task_of_its_own_with_a_typed_result(ways: Ways) -> None:
    calls: list[Any] = []

    if ways.asynchronous:

        @holdfast.agent("writer", input=Report)
        async def later(task: Any) -> list[Report]:
            calls.append(task.input)
            return [Report(await task.step("count", len, task.input.text))]

    else:

        @holdfast.agent("writer", input=Report)
        def now(task: Any) -> list[Report]:
            calls.append(task.input)
            return [Report(task.step("count", len, task.input.text))]

    async def work(task: Any) -> Any:
        return await task.run_child("writer", "w1", goal="Write", input=Report(0, "abc"))

    for _ in range(2):
        assert ways.resume(work) == [Report(3)]
    assert calls == [Report(0, "abc")]
    seen = view(ways, "w1")
    assert (seen.status, seen.parent, seen.agent, seen.goal) == ("finished", "t", "writer", "Write")
    assert seen.result == [{"words": 3, "text": ""}]
    assert seen.due_at is None
    (step,) = view(ways).steps
    assert (step.path, step.kind, step.status) == ("writer[w1]", "child", "completed")


def test_the_type_of_the_result_can_be_told_where_the_child_is_asked_for(ways: Ways) -> None:
    async def kid(task: Any) -> Any:
        return {"words": 7}

    agent(ways, "kid", kid)

    async def work(task: Any) -> Any:
        return await task.run_child("kid", "k", returns=Report)

    assert ways.resume(work) == Report(7)


def test_the_same_child_twice_is_one_child(ways: Ways) -> None:
    calls: list[str] = []

    async def kid(task: Any) -> Any:
        calls.append(task.id)
        return len(calls)

    agent(ways, "kid", kid)
    assert ways.resume(having("a", "b", "a")) == [1, 2, 1]
    assert calls == ["a", "b"]


def test_a_function_that_no_worker_could_find_is_refused(ways: Ways) -> None:
    async def kid(task: Any) -> Any:
        return task.id

    fn = as_agent(ways, kid)
    with pytest.raises(TypeError, match=r"@holdfast\.agent"):
        ways.resume(having("a", agent=fn))  # type: ignore[arg-type]  # it takes both
    assert ways.store.get_task("a") is None


def test_an_agent_that_is_not_known_is_said_before_anything_is_written(ways: Ways) -> None:
    with pytest.raises(NotFound, match="no agent 'kid'"):
        ways.resume(having("a"))
    assert ways.store.get_task("a") is None
    assert view(ways).steps == []


def test_children_of_both_kinds_in_an_async_task(url: str) -> None:
    @holdfast.agent("plain")
    def plain(task: Any) -> str:
        assert isinstance(task, holdfast.Task)
        return str(task.step("a", str, threading.current_thread() is threading.main_thread()))

    @holdfast.agent("later")
    async def later(task: Any) -> str:
        assert isinstance(task, holdfast.AsyncTask)
        return str(await task.step("a", str, 1))

    async def program(store: Any) -> Any:
        async with store.task("t") as task:
            return await asyncio.gather(task.run_child("plain", "p"), task.run_child("later", "l"))

    with holdfast.open(url) as store:
        assert asyncio.run(program(store.aio)) == ["False", "1"]
        with store.task("u") as task, pytest.raises(TypeError, match="async"):
            task.run_child("later", "m")


def test_children_in_a_map_run_at_once(ways: Ways) -> None:
    meet = threading.Barrier(3)

    async def kid(task: Any) -> Any:
        return await task.step("meet", lambda: meet.wait(SECONDS) >= 0)

    agent(ways, "kid", kid)

    async def each(task: Any, id: str) -> Any:
        return await task.run_child("kid", id)

    def item(id: str) -> Any:
        task: Any = holdfast.current_task()
        return ways.run(each(AwaitedTask(task), id))

    async def item_later(id: str) -> Any:
        return await each(holdfast.current_task(), id)

    async def work(task: Any) -> Any:
        return await task.map(
            "each", item_later if ways.asynchronous else item, ["a", "b", "c"], key=str
        )

    assert ways.resume(work) == [True, True, True]
    assert statuses(ways, "a", "b", "c") == ["finished"] * 3
    assert ways.resume(work) == [True, True, True]


# -- what does not fit -----------------------------------------------------------------------------


def test_one_id_is_one_child(ways: Ways) -> None:
    agent(ways, "kid", answered)
    agent(ways, "other", answered)

    def child(input: Any, name: str = "kid") -> Any:
        async def work(task: Any) -> Any:
            return await task.run_child(name, "k", input=input)

        return work

    with pytest.raises(Suspended):
        ways.resume(child(1))
    with pytest.raises(ReplayMismatch, match="another input"):
        ways.resume(child(2))
    with pytest.raises(ReplayMismatch, match="another parent"):
        ways.resume(child(1), "stranger")
    with pytest.raises(ReplayMismatch, match="another agent"):
        ways.resume(child(1, "other"))
    with pytest.raises(ValueError, match="must differ from"):
        ways.resume(having("t"))
    ways.store.answer("k", "q", "yes")
    assert ways.resume(child(1)) == "k: yes"


def test_a_task_without_a_parent_is_nobodys_child(ways: Ways) -> None:
    async def kid(task: Any) -> Any:
        return 1

    agent(ways, "kid", kid)
    run(ways, "kid", "k")
    with pytest.raises(ReplayMismatch, match="another parent"):
        ways.resume(having("k"))


# -- failures --------------------------------------------------------------------------------------


def failing(times: int) -> tuple[Any, list[str]]:
    """A child whose second step fails so many times, and what it has done."""
    done: list[str] = []

    def second() -> str:
        done.append("second")
        if done.count("second") <= times:
            raise ValueError("no")
        return "ok"

    async def kid(task: Any) -> Any:
        await task.step("first", done.append, "first")
        return await task.step("second", second)

    return kid, done


def test_a_failed_child_is_tried_again_where_it_was_with_its_parent(ways: Ways) -> None:
    kid, done = failing(1)
    agent(ways, "kid", kid)
    with pytest.raises(ChildFailed, match="StepFailed") as caught:
        ways.resume(having("k"))
    assert (caught.value.child, caught.value.step, caught.value.type) == (
        "k",
        "kid[k]",
        "StepFailed",
    )
    assert isinstance(caught.value, StepFailed)
    assert statuses(ways, "t", "k") == ["failed", "failed"]
    assert ways.resume(having("k")) == ["ok"]
    assert done == ["first", "second", "second"]


def test_the_failure_of_a_child_that_was_caught_is_the_same_again(ways: Ways) -> None:
    kid, done = failing(1)
    agent(ways, "kid", kid)

    async def work(task: Any) -> Any:
        try:
            return await task.run_child("kid", "k")
        except ChildFailed as error:
            return await task.step("after", str, error.type)

    assert ways.resume(work) == ways.resume(work) == "StepFailed"
    assert done == ["first", "second"]
    assert view(ways, "k").status == "failed"


def test_a_child_that_gives_up_has_failed(ways: Ways) -> None:
    async def kid(task: Any) -> Any:
        await task.fail("there is no such claim")

    agent(ways, "kid", kid)
    with pytest.raises(ChildFailed, match="GaveUp: there is no such claim"):
        ways.resume(having("k"))


def test_a_cancelled_child_has_failed(ways: Ways) -> None:
    agent(ways, "kid", answered)
    with pytest.raises(Suspended):
        ways.resume(having("k"))
    ways.store.task("k").cancel()
    assert view(ways).status == "pending"  # it has something to go on with
    with pytest.raises(ChildFailed, match="cancelled"):
        ways.resume(having("k"))


def test_a_child_that_is_cancelled_while_it_runs_has_failed(ways: Ways) -> None:
    async def kid(task: Any) -> Any:
        ways.store.task(task.id).cancel()
        await task.step("next", str, 1)

    agent(ways, "kid", kid)
    with pytest.raises(ChildFailed, match="cancelled"):
        ways.resume(having("k"))
    assert statuses(ways, "t", "k") == ["failed", "cancelled"]


def test_a_child_that_ended_and_goes_on_all_the_same_is_not_taken_for_cancelled(ways: Ways) -> None:
    async def kid(task: Any) -> Any:
        await task.finish("done")
        await task.step("next", str, 1)

    agent(ways, "kid", kid)
    with pytest.raises(TaskEnded, match="finished"):
        ways.resume(having("k"))
    assert ways.resume(having("k")) == ["done"]


@pytest.mark.parametrize("how", ["raises", "gives up"])
def test_a_parent_hears_of_a_child_that_fails_for_good_by_itself(ways: Ways, how: str) -> None:
    async def kid(task: Any) -> Any:
        await task.ask("q", "Which?")
        if how == "gives up":
            return await task.fail("no")
        raise ValueError("no")

    async def parent(task: Any) -> Any:
        try:
            return await task.run_child("kid", "k")
        except ChildFailed as error:
            return error.message

    agent(ways, "kid", kid, max_attempts=1)
    agent(ways, "parent", parent)
    with pytest.raises(Suspended):
        run(ways, "parent", "t")
    ways.store.answer("k", "q", 1)
    assert ran(ways.store.run_due()) == [("k", "failed"), ("t", "finished")]
    assert view(ways).result == "no"


def test_a_parent_that_was_told_of_an_earlier_failure_waits_for_what_its_child_waits_for_now(
    ways: Ways,
) -> None:
    runs: list[int] = []

    async def kid(task: Any) -> Any:
        await task.ask("first", "Which?")
        runs.append(1)
        if len(runs) == 1:
            raise ValueError("no")
        return await task.ask("second", "Which?")

    agent(ways, "kid", kid, max_attempts=1)
    agent(ways, "parent", having("k"))
    with pytest.raises(Suspended):
        run(ways, "parent", "t")
    ways.store.answer("k", "first", 1)
    assert ran(ways.store.run_due(limit=5)) == [("k", "failed"), ("t", "suspended")]
    assert view(ways).due_at is None
    ways.store.answer("k", "second", 2)
    assert ran(ways.store.run_due()) == [("k", "finished"), ("t", "finished")]


# -- waiting ---------------------------------------------------------------------------------------


@pytest.mark.every_engine
def test_while_a_child_waits_its_parent_waits_and_a_worker_goes_on_with_both(ways: Ways) -> None:
    agent(ways, "kid", answered)
    agent(ways, "parent", having("k"))
    with pytest.raises(Suspended) as caught:
        run(ways, "parent", "t")
    assert caught.value.waits == ("child 'k'",)
    assert statuses(ways, "t", "k") == ["suspended", "suspended"]
    assert [view(ways, each).owner for each in ("t", "k")] == [None, None]
    assert [view(ways, each).due_at for each in ("t", "k")] == [None, None]
    assert view(ways).waits_for == ["child 'k'"]
    assert ways.store.run_due() == []
    ways.store.answer("k", "q", "yes")
    assert ran(ways.store.run_due()) == [("k", "finished"), ("t", "finished")]
    assert view(ways).result == ["k: yes"]
    assert view(ways, "k").due_at is None
    assert ways.store.run_due() == []


def test_a_child_that_waits_is_shown_as_such_until_its_parent_runs_again_or_ends(
    ways: Ways,
) -> None:
    agent(ways, "kid", answered)
    agent(ways, "parent", having("k"))
    with pytest.raises(Suspended):
        run(ways, "parent", "t")
    assert view(ways).children == {"k": "waiting"}
    ways.store.task("t").fork("f")
    assert view(ways, "f").children == {"k": "interrupted"}  # it is the other's
    ways.store.answer("k", "q", "yes")
    assert ran(ways.store.run_due(limit=1)) == [("k", "finished")]
    assert view(ways).status == "pending"
    assert view(ways).children == {"k": "waiting"}
    with pytest.raises(KeyboardInterrupt), ways.store.task("t"):
        raise KeyboardInterrupt
    assert view(ways).children == {"k": "interrupted"}


def test_a_child_that_waited_does_so_no_more_when_its_parent_is_cancelled(ways: Ways) -> None:
    agent(ways, "kid", answered)
    with pytest.raises(Suspended):
        ways.resume(having("k"))
    assert view(ways).children == {"k": "waiting"}
    ways.store.task("t").cancel()
    assert view(ways).children == {"k": "interrupted"}


def test_a_grandchild_that_waits_is_waited_for_by_all_above_it(ways: Ways) -> None:
    async def middle(task: Any) -> Any:
        return [task.id, await task.run_child("kid", "leaf")]

    agent(ways, "kid", answered)
    agent(ways, "middle", middle)
    agent(ways, "parent", having("m", agent="middle"))
    with pytest.raises(Suspended):
        run(ways, "parent", "t")
    assert statuses(ways, "t", "m", "leaf") == ["suspended"] * 3
    assert [view(ways, each).parent for each in ("t", "m", "leaf")] == [None, "t", "m"]
    ways.store.answer("leaf", "q", "yes")
    assert ran(ways.store.run_due()) == [("leaf", "finished"), ("m", "finished"), ("t", "finished")]
    assert view(ways).result == [["m", "leaf: yes"]]


def test_a_parent_resumed_by_hand_goes_on_with_its_child_itself(ways: Ways) -> None:
    agent(ways, "kid", answered)
    with pytest.raises(Suspended):
        ways.resume(having("k"))
    ways.store.answer("k", "q", "yes")
    assert ways.resume(having("k")) == ["k: yes"]
    assert statuses(ways, "t", "k") == ["pending", "finished"]


def test_a_child_that_sleeps_is_due_when_it_is_time_and_its_parent_after_it(
    ways: Ways, clock: Any
) -> None:
    async def kid(task: Any) -> Any:
        await task.sleep(60)
        return "awake"

    agent(ways, "kid", kid)
    agent(ways, "parent", having("k"))
    with pytest.raises(Suspended):
        run(ways, "parent", "t")
    assert view(ways).due_at is None
    assert ways.store.run_due() == []
    clock.advance(61)
    assert ran(ways.store.run_due()) == [("k", "finished"), ("t", "finished")]


def test_a_child_in_doubt_is_waited_for_until_somebody_settles_it(ways: Ways) -> None:
    def pay() -> None:
        raise ConnectionError

    async def kid(task: Any) -> Any:
        return await task.step("pay", holdfast.step(pay, once=True, returns=str))

    agent(ways, "kid", kid)
    agent(ways, "parent", having("k"))
    with pytest.raises(Suspended):
        run(ways, "parent", "t")
    assert view(ways).waits_for == ["child 'k'"]
    assert view(ways, "k").in_doubt == ["pay"]
    assert ways.store.run_due() == []
    ways.store.resolve("k", "pay", result="paid")
    assert ran(ways.store.run_due()) == [("k", "finished"), ("t", "finished")]
    assert view(ways).result == ["paid"]


def test_a_child_that_somebody_else_runs_is_waited_for(ways: Ways, clock: Any) -> None:
    """Until that one's lease is over, or it says that the child has ended."""
    agent(ways, "kid", answered)
    agent(ways, "parent", having("k"))
    with pytest.raises(Suspended):
        run(ways, "parent", "t")
    with ways.store.task("k") as elsewhere:
        thread = threading.Thread(
            target=lambda: found.append(caught_in(lambda: run(ways, "parent", "t")))
        )
        found: list[BaseException] = []
        thread.start()
        thread.join()
        assert isinstance(found[0], Suspended)
        seen = view(ways)
        assert (seen.status, seen.waits_for) == ("suspended", ["child 'k'"])
        assert seen.due_at == view(ways, "k").lease_until
        elsewhere.finish("by somebody else")
    assert view(ways).status == "pending"
    assert ran(ways.store.run_due()) == [("t", "finished")]
    assert view(ways).result == ["by somebody else"]


def caught_in(call: Callable[[], Any]) -> BaseException:
    with pytest.raises(BaseException) as caught:
        call()
    return caught.value


def test_a_child_whose_hold_is_lost_is_waited_for(ways: Ways) -> None:
    def steal() -> None:
        with ways.store.task("k", steal=True) as elsewhere:
            elsewhere.finish("stolen")

    async def kid(task: Any) -> Any:
        thief = threading.Thread(target=steal)
        thief.start()
        thief.join()
        return await task.step("next", str, 1)

    agent(ways, "kid", kid)
    agent(ways, "parent", having("k"))
    with pytest.raises(Suspended):
        run(ways, "parent", "t")
    assert view(ways).status == "pending"  # it was told before it could wait
    assert ran(ways.store.run_due()) == [("t", "finished")]
    assert view(ways).result == ["stolen"]


def test_several_children_that_wait_are_all_begun_in_a_map(store: Store) -> None:
    holdfast.agent("kid")(lambda task: task.ask("q", "Which?"))

    @holdfast.agent("parent")
    def parent(task: Any) -> Any:
        return task.map("each", lambda each: task.run_child("kid", each), ["a", "b"], key=str)

    with pytest.raises(Suspended) as caught:
        store.run("parent", "t")
    assert sorted(caught.value.waits) == ["child 'a'", "child 'b'"]
    ways = Ways(store, asynchronous=False)
    store.answer("b", "q", 2)
    assert ran(store.run_due()) == [("b", "finished"), ("t", "suspended")]
    assert view(ways).waits_for == ["child 'a'"]
    store.answer("a", "q", 1)
    assert ran(store.run_due()) == [("a", "finished"), ("t", "finished")]
    assert view(ways).result == [1, 2]


def test_a_child_that_swallows_its_wait_is_not_finished(ways: Ways) -> None:
    async def kid(task: Any) -> Any:
        try:
            return await task.ask("q", "Which?")
        except BaseException:
            return "wrong"

    agent(ways, "kid", kid)
    with pytest.raises(Suspended):
        ways.resume(having("k"))
    assert statuses(ways, "t", "k") == ["suspended", "suspended"]


# -- processes that die ----------------------------------------------------------------------------

PROGRAM = """
import os, signal, sys, time, holdfast

@holdfast.agent("kid")
def kid(task):
    if task.input == "ask":
        return task.ask("q", "Which?")
    task.step("work", lambda what: None, "again")
    if task.input == "die in the child":
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"

@holdfast.agent("parent")
def parent(task):
    return task.run_child("kid", "k", input=task.input)

what = sys.argv[2]
if what == "die before the parent knows":
    from holdfast.tasks.run.session import Session
    put = Session.put
    def dying(self, changes, stamp, **options):
        answer = yield from put(self, changes, stamp, **options)
        if any(name == "task.finished" for name, _ in changes) and self.key.id == "k":
            os.kill(os.getpid(), signal.SIGKILL)
        return answer
    Session.put = dying
store = holdfast.open(sys.argv[1], key=os.environ.get('HOLDFAST_KEY'))
if len(sys.argv) > 3:
    while not store.run_due():  # an engine whose clock has whole seconds may be behind
        time.sleep(0.05)
else:
    store.run("parent", "t", input=sys.argv[2])
"""


def die(url: str, what: str, *more: str) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", PROGRAM, url, what, *more], timeout=60, check=False
    )
    assert killed.returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("what", ["die in the child", "die before the parent knows"])
def test_a_parent_that_was_killed_with_its_child_goes_on_with_it(
    durable_url: str, what: str
) -> None:
    die(durable_url, what)
    worked: list[str] = []

    @holdfast.agent("kid")
    def kid(task: Any) -> Any:
        task.step("work", lambda what: worked.append(what), "again")
        return "done"

    holdfast.agent("parent")(lambda task: task.run_child("kid", "k", input=task.input))
    with holdfast.open(durable_url) as store:
        ways = Ways(store, asynchronous=False)
        assert statuses(ways, "t", "k") == [
            "running",
            "running" if what == "die in the child" else "finished",
        ]
        done = dict(ran(store.run_due()))
        assert done["t"] == "finished"
        assert statuses(ways, "t", "k") == ["finished", "finished"]
        assert view(ways).result == "done"
        assert worked == []  # as recorded by the process that died, and given back


def test_a_child_that_ended_by_itself_and_could_not_tell_is_told_of_by_a_worker(
    durable_url: str,
) -> None:
    holdfast.agent("kid")(lambda task: task.ask("q", "Which?"))
    holdfast.agent("parent")(lambda task: task.run_child("kid", "k", input=task.input))
    with holdfast.open(durable_url) as store:
        ways = Ways(store, asynchronous=False)
        with pytest.raises(Suspended):
            store.run("parent", "t", input="ask")
        store.answer("k", "q", 7)
    die(durable_url, "die before the parent knows", "run_due")
    with holdfast.open(durable_url) as store:
        ways = Ways(store, asynchronous=False)
        assert statuses(ways, "t", "k") == ["suspended", "finished"]
        assert view(ways, "k").due_at is not None
        assert ran(store.run_due()) == [("t", "finished")]
        assert view(ways).result == 7
        assert view(ways, "k").due_at is None


# -- cancelling ------------------------------------------------------------------------------------


def family(ways: Ways) -> None:
    """A task with two children, of which one has a child that waits."""

    async def middle(task: Any) -> Any:
        return await task.run_child("kid", "leaf")

    async def quick(task: Any) -> Any:
        return 1

    async def parent(task: Any) -> Any:
        return [await task.run_child("quick", "done"), await task.run_child("middle", "m")]

    agent(ways, "kid", answered)
    agent(ways, "quick", quick)
    agent(ways, "middle", middle)
    agent(ways, "parent", parent)
    with pytest.raises(Suspended):
        run(ways, "parent", "t")


def test_cancelling_reaches_children_and_theirs_but_not_what_has_ended(ways: Ways) -> None:
    family(ways)
    ways.store.task("t").cancel("not needed")
    assert statuses(ways, "t", "m", "leaf", "done") == ["cancelled"] * 3 + ["finished"]
    with pytest.raises(TaskEnded):
        ways.store.answer("leaf", "q", 1)
    assert ways.store.run_due() == []
    assert [info.due_at for info in ways.store.tasks()] == [None] * 4


def test_cancelling_reaches_a_child_that_had_failed(ways: Ways) -> None:
    kid, _ = failing(1)
    agent(ways, "kid", kid)
    with pytest.raises(ChildFailed):
        ways.resume(having("k"))
    ways.store.task("t").cancel()
    assert statuses(ways, "t", "k") == ["cancelled", "cancelled"]


def test_cancelling_a_child_leaves_its_parent(ways: Ways) -> None:
    family(ways)
    ways.store.task("m").cancel()
    assert statuses(ways, "t", "m", "leaf") == ["pending", "cancelled", "cancelled"]
    assert ran(ways.store.run_due()) == [("t", "retrying")]


class Refusing(MemoryBackend):
    """Refuses to append to a stream, as if whoever does it were cut off there."""

    stream = ""

    def append(self, appends: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        if any(append.stream.id == self.stream for append in appends):
            raise Unavailable("not now")
        return super().append(appends)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_cancelling_again_finishes_what_was_cut_off(asynchronous: bool) -> None:
    backend = Refusing()
    with holdfast.open(backend) as store:
        ways = Ways(store, asynchronous=asynchronous)
        family(ways)
        for stream in ("m", "leaf"):
            backend.stream = stream
            with pytest.raises(Unavailable):
                store.task("t").cancel()
        assert statuses(ways, "t", "m", "leaf") == ["cancelled", "cancelled", "suspended"]
        backend.stream = ""
        store.task("t").cancel()
        assert statuses(ways, "t", "m", "leaf") == ["cancelled"] * 3


def test_a_child_that_runs_hears_that_its_parent_was_cancelled(ways: Ways, clock: Any) -> None:
    heard: list[bool] = []

    async def kid(task: Any) -> Any:
        heard.append(task.cancelled)
        ways.store.task("t").cancel()
        clock.advance(20)  # the heartbeat learns of it
        heard.append(task.cancelled)
        with pytest.raises(TaskEnded):
            await task.step("next", str, 1)
        return "no longer of any use"

    agent(ways, "kid", kid)
    with pytest.raises(TaskEnded):
        ways.resume(having("k"))
    assert heard == [False, True]
    assert statuses(ways, "t", "k") == ["cancelled", "cancelled"]


def test_a_child_of_the_same_name_of_another_incarnation_is_not_cancelled(ways: Ways) -> None:
    agent(ways, "kid", answered)
    with pytest.raises(Suspended):
        ways.resume(having("k"))
    ways.store.task("t").delete()
    with pytest.raises(ReplayMismatch, match="another parent"):  # another incarnation of it
        ways.resume(having("k"))
    ways.store.task("t").cancel()
    assert statuses(ways, "t", "k") == ["cancelled", "suspended"]


def test_a_parent_that_is_gone_need_not_know(ways: Ways) -> None:
    agent(ways, "kid", answered)
    agent(ways, "parent", having("k"))
    with pytest.raises(Suspended):
        run(ways, "parent", "t")
    ways.store.task("t").delete()
    ways.store.answer("k", "q", 1)
    assert ran(ways.store.run_due()) == [("k", "finished")]
    assert ways.store.get_task("t") is None
    assert view(ways, "k").due_at is None


def test_a_child_that_has_expired_is_a_failure(ways: Ways, clock: Any) -> None:
    agent(ways, "kid", answered)
    with pytest.raises(Suspended):
        ways.resume(having("k"))
    ways.store.task("k").cancel()
    clock.advance(8 * 24 * 3600)
    with pytest.raises(ChildFailed, match=Expired.__name__):
        ways.resume(having("k"))
