"""Steps that must not run twice, in programs that have changed: refused if they may be recorded
under another name, and found if that is declared; unchanged programs are never refused; plain and
async."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast
from helpers.example_counts import examples
from helpers.sync_and_async import Ways, view
from helpers.tasks.step_functions import Counting, Stop, never, paths
from holdfast import NotDone, StepFailed, StepInDoubt
from holdfast.errors import ReplayMismatch

GUARDS: list[dict[str, Any]] = [{"once": True}, {"check": lambda *args: None}]


def refused(ways: Ways, work: Any, recorded: str, id: str = "t") -> ReplayMismatch:
    """See that the work is refused, because a recorded step may be meant."""
    with pytest.raises(ReplayMismatch) as caught:
        ways.resume(work, id)
    assert (caught.value.what, caught.value.recorded) == ("another name", recorded)
    assert view(ways, id).status == "failed"
    return caught.value


# -- renamed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("guard", GUARDS, ids=["once", "check"])
def test_a_renamed_step_is_refused_before_it_runs_again(ways: Ways, guard: Any) -> None:
    fn = Counting("paid")
    pay = holdfast.step(lambda amount: fn(amount), **guard)
    ways.resume(lambda task: task.step("pay", pay, 120))
    error = refused(ways, lambda task: task.step("pay the claimant", pay, 120), "pay")
    for words in ("'pay'", "'pay the claimant'", "renamed_from='pay'", "renamed_from=()"):
        assert words in str(error)
    assert fn.calls == [120]
    assert paths(ways) == ["pay"]
    assert ways.resume(lambda task: task.step("pay", pay, 120)) == "paid", "nothing is lost"


def test_a_renamed_function_is_refused_before_it_runs_again(ways: Ways) -> None:
    @holdfast.step(once=True)
    def pay(amount: int) -> str:
        return f"paid {amount}"

    @holdfast.step(once=True)
    def pay_claimant(amount: int) -> str:
        raise AssertionError

    ways.resume(lambda task: task.step(pay.name, pay, 120))
    refused(ways, lambda task: task.step(pay_claimant.name, pay_claimant, 120), "pay")

    @holdfast.step(once=True, renamed_from="pay")
    def pay_the_claimant(amount: int) -> str:
        raise AssertionError

    for _ in range(2):
        assert (
            ways.resume(lambda task: task.step("pay_the_claimant", pay_the_claimant, 120))
            == "paid 120"
        )
    assert paths(ways) == ["pay"]


@pytest.mark.parametrize("guard", GUARDS, ids=["once", "check"])
def test_a_renamed_step_in_doubt_is_refused_too(ways: Ways, guard: Any) -> None:
    def cut(amount: int) -> Any:
        raise ValueError("did it?")

    with pytest.raises((StepInDoubt, StepFailed)):
        ways.resume(lambda task: task.step("pay", holdfast.step(cut, **guard), 120))
    charge = holdfast.step(lambda amount: never(), **guard)
    refused(ways, lambda task: task.step("charge", charge, 120), "pay")


def test_one_whose_result_is_lost_is_refused_too(ways: Ways) -> None:
    pay = holdfast.step(Counting(object()), once=True)
    with pytest.raises(StepFailed):
        ways.resume(lambda task: task.step("pay", pay))
    refused(ways, lambda task: task.step("charge", pay), "pay")


def test_one_that_was_certainly_not_done_may_run_under_another_name(ways: Ways) -> None:
    fn = Counting(NotDone("no"), "paid", "paid again")
    pay = holdfast.step(fn, once=True)
    with pytest.raises(StepFailed):
        ways.resume(lambda task: task.step("pay", pay, 120))
    assert ways.resume(lambda task: task.step("charge", pay, 120)) == "paid"


def test_an_ordinary_step_may_have_another_name(ways: Ways) -> None:
    fn = Counting()
    ways.resume(lambda task: task.step("look", fn, 1))
    assert ways.resume(lambda task: task.step("look up", fn, 1)) == 2
    pay = holdfast.step(fn, once=True)
    assert ways.resume(lambda task: task.step("pay", pay, 1)) == 3


def test_a_step_inside_a_renamed_one_is_refused(ways: Ways) -> None:
    fn = Counting(Stop(), "paid")

    @holdfast.step(once=True)
    def pay(amount: int) -> Any:
        return "paid"

    def handle() -> Any:
        return [pay(120), fn()]

    with pytest.raises(Stop):
        ways.resume(lambda task: task.step("handle", handle))
    before = paths(ways)
    error = refused(ways, lambda task: task.step("process", handle), "handle/pay")
    assert "renamed_from='handle'" in str(error)
    assert set(paths(ways)) - set(before) <= {"process"}
    process = holdfast.step(handle, renamed_from="handle")
    assert ways.resume(lambda task: task.step("process", process)) == ["paid", "paid"]
    assert "process/pay" not in paths(ways)


def test_a_renamed_step_inside_another_one_is_refused(ways: Ways) -> None:
    @holdfast.step(once=True)
    def pay() -> str:
        return "paid"

    @holdfast.step(once=True)
    def charge() -> str:
        raise AssertionError

    end = Counting(Stop(), "done")

    def work(step: Any) -> Any:
        return lambda task: task.step("handle", lambda: [step(), end()])

    with pytest.raises(Stop):
        ways.resume(work(pay))
    refused(ways, work(charge), "handle/pay")
    assert ways.resume(work(pay)) == ["paid", "done"]


def test_a_renamed_map_is_refused_and_no_item_runs_again(ways: Ways) -> None:
    fn = Counting()
    pay = holdfast.step(lambda order: fn(order), once=True)
    assert len(ways.resume(lambda task: task.map("pay", pay, [1, 2, 3]))) == 3
    with pytest.raises(ReplayMismatch):
        ways.resume(lambda task: task.map("pay claims", pay, [1, 2, 3]))
    assert sorted(fn.calls) == [1, 2, 3]
    renamed = pay.using(renamed_from="pay")
    assert sorted(ways.resume(lambda task: task.map("pay claims", renamed, [3, 2, 1]))) == [1, 2, 3]
    assert sorted(fn.calls) == [1, 2, 3]


def test_a_renamed_map_with_keys_is_refused(ways: Ways) -> None:
    pay = holdfast.step(lambda order: order["id"], once=True)
    orders = [{"id": "a"}, {"id": "b"}]

    def work(name: str, fn: Any, new: Any) -> Any:
        items = [{**order, **new} for order in orders]
        return lambda task: task.map(name, fn, items, key=lambda order: order["id"])

    ways.resume(work("pay", pay, {}))
    with pytest.raises(ReplayMismatch):
        ways.resume(work("charge", pay, {"more": 1}))
    renamed = pay.using(renamed_from=["pay"])
    assert ways.resume(work("charge", renamed, {"more": 1})) == ["a", "b"]
    assert sorted(paths(ways)) == ["pay[a]", "pay[b]"]


def test_a_step_that_got_a_key_or_lost_it_is_refused(ways: Ways) -> None:
    pay = holdfast.step(lambda amount: "paid", once=True)
    ways.resume(lambda task: task.step("pay", pay, 120), "got")
    ways.resume(lambda task: task.step("pay", pay.using(key="k"), 120), "lost")
    error = refused(ways, lambda task: task.step("pay", pay.using(key="k"), 120), "pay", "got")
    assert "key" in str(error)
    refused(ways, lambda task: task.step("pay", pay, 120), "pay[k]", "lost")


RELEASE = """
import sys
import holdfast

@holdfast.step(once=True)
def pay(order):
    print("paid", order)
    return "receipt"

@holdfast.step(once=True)
def mail(order):
    print("mailed", order)

def agent(store):
    with store.task("t") as task:
        pay("7")
        if "crash" in sys.argv:
            sys.exit()
        mail("7")
"""
MAIN = """
import holdfast, release
with holdfast.open(holdfast_url) as store:
    try:
        release.agent(store)
    except holdfast.errors.ReplayMismatch as error:
        print("refused", error.step, error.recorded)
"""


@pytest.mark.slow
def test_a_function_that_is_gone_is_recognized_in_the_next_release(tmp_path: Path) -> None:
    def run(release: str, *arguments: str) -> str:
        (tmp_path / "release.py").write_text(release)
        url = str(tmp_path / "agents.db")
        (tmp_path / "main.py").write_text(MAIN.replace("holdfast_url", repr(url)))
        done = subprocess.run(
            [sys.executable, str(tmp_path / "main.py"), *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    assert run(RELEASE, "crash") == "paid 7\n"
    # Another name and another type of argument in one release.
    charge = RELEASE.replace("def pay(order)", "def charge(order)").replace(
        'pay("7")', 'charge({"order": "7"})'
    )
    assert run(charge, "crash") == "refused charge pay\n"
    declared = charge.replace(
        "@holdfast.step(once=True)\ndef charge",
        '@holdfast.step(once=True, renamed_from="pay", drift="keep")\ndef charge',
    )
    assert run(declared, "crash") == ""
    assert run(RELEASE) == "mailed 7\n", "an unchanged function is not gone"


# -- declared --------------------------------------------------------------------------------------


def test_a_renamed_step_keeps_its_place_among_equal_ones_and_its_idempotency_key(
    ways: Ways,
) -> None:
    keys: list[str] = []

    def send(x: int) -> int:
        keys.append(holdfast.idempotency_key())
        return len(keys)

    async def work(task: Any, name: str, fn: Any, times: int) -> list[Any]:
        return [await task.step(name, fn, 5) for _ in range(times)]

    old, new = holdfast.step(send), holdfast.step(send, renamed_from="old")
    assert ways.resume(lambda task: work(task, "old", old, 2)) == [1, 2]
    for _ in range(2):
        assert ways.resume(lambda task: work(task, "new", new, 3)) == [1, 2, 3]
    assert paths(ways) == ["old", "old#2", "new"]
    assert len(set(keys)) == 3

    failing = Counting(ValueError("no"), "sent")

    def fail(x: int) -> Any:
        keys.append(holdfast.idempotency_key())
        return failing(x)

    with pytest.raises(StepFailed):
        ways.resume(lambda task: task.step("old", fail, 1), "u")
    ways.resume(lambda task: task.step("new", holdfast.step(fail, renamed_from="old"), 1), "u")
    assert keys[-1] == keys[-2]


def test_other_arguments_of_a_renamed_step_are_refused_as_ever(ways: Ways) -> None:
    ways.resume(lambda task: task.step("old", holdfast.step(lambda x: x, once=True), 1))
    new = holdfast.step(never, once=True, renamed_from="old")
    with pytest.raises(ReplayMismatch) as caught:
        ways.resume(lambda task: task.step("new", new, 2))
    assert (caught.value.step, caught.value.what) == ("old", "other arguments")


def test_a_renamed_step_may_be_an_item_of_the_plan(ways: Ways) -> None:
    fn = Counting("done")

    async def work(task: Any, name: str, step: Any) -> Any:
        await task.make_plan(["collect", "write"])
        return await task.step(name, step, 1)

    ways.resume(lambda task: work(task, "collect", holdfast.step(fn, once=True)))
    gather = holdfast.step(never, once=True, renamed_from=["find", "collect"])
    assert ways.resume(lambda task: work(task, "gather", gather)) == "done"


def test_a_step_that_is_declared_to_be_another_runs(ways: Ways) -> None:
    fn = Counting()
    ways.resume(lambda task: task.step("left", holdfast.step(fn, once=True)))
    other = holdfast.step(fn, once=True)
    refused(ways, lambda task: task.step("right", other), "left")
    assert ways.resume(lambda task: task.step("right", other.using(renamed_from=()))) == 2
    assert ways.resume(lambda task: task.step("right", other)) == 2, "it is recorded now"


@pytest.mark.parametrize("wrong", [7, b"pay", [7], {"pay"}, "", [""]])
def test_what_cannot_be_an_earlier_name(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        holdfast.step(never, renamed_from=wrong)
    with pytest.raises((TypeError, ValueError)):
        holdfast.step(never).using(renamed_from=wrong)


# -- unchanged programs that request other things than before --------------------------------------


def pay_step(fn: Any) -> Any:
    def pay(*args: Any) -> Any:
        return fn(*args)

    return holdfast.step(pay, once=True)


def test_a_loop_over_what_is_left_to_pay_is_not_refused(ways: Ways) -> None:
    left, fn = [1, 2, 3], Counting()
    pay = pay_step(fn)

    async def work(task: Any, crash_after: int) -> None:
        for number, order in enumerate(list(left)):
            await task.step(f"pay {order}", pay, order)
            left.remove(order)
            if number == crash_after:
                raise Stop

    with pytest.raises(Stop):
        ways.resume(lambda task: work(task, 0))
    ways.resume(lambda task: work(task, 9))
    assert fn.calls == [1, 2, 3]


def test_steps_in_another_order_are_not_refused(ways: Ways) -> None:
    def reserve(room: str) -> None: ...

    def pay(amount: int) -> None: ...

    async def work(task: Any, pay_first: bool, crash: bool) -> None:
        todo = [("reserve", reserve, "R1"), ("pay", pay, 120)]
        for name, fn, arg in reversed(todo) if pay_first else todo:
            await task.step(name, holdfast.step(fn, once=True), arg)  # type: ignore[operator]
            if crash:
                raise Stop

    with pytest.raises(Stop):
        ways.resume(lambda task: work(task, False, True))
    ways.resume(lambda task: work(task, True, False))
    assert sorted(paths(ways)) == ["pay", "reserve"]


def test_a_program_that_skips_what_is_in_the_results_is_not_refused(ways: Ways) -> None:
    fn = Counting()
    pay = pay_step(fn)

    async def work(task: Any, crash: bool) -> None:
        for name in ("a", "b", "c"):
            if name not in await task.results():
                await task.step(name, pay)
                if crash:
                    raise Stop

    for crash in (True, True, False):
        if crash:
            with pytest.raises(Stop):
                ways.resume(lambda task: work(task, True))
        else:
            ways.resume(lambda task: work(task, False))
    assert len(fn.calls) == 3


@pytest.mark.parametrize("look", ["resume_context", "view", "resumed"])
def test_a_program_that_looks_at_the_record_may_skip_steps(ways: Ways, look: str) -> None:
    @holdfast.step(once=True)
    def order(number: int) -> None: ...

    @holdfast.step(once=True)
    def ship(number: int) -> None: ...

    async def work(task: Any, *, done: bool) -> None:
        known = task.resumed if look == "resumed" else str(await getattr(task, look)())
        if not done:  # in a real program, `known` says so
            await task.step("order", order, 7)
            raise Stop
        assert known
        await task.step("ship", ship, 7)

    with pytest.raises(Stop):
        ways.resume(lambda task: work(task, done=False))
    ways.resume(lambda task: work(task, done=True))


def test_a_program_that_knows_which_items_of_the_plan_are_done_is_not_refused(ways: Ways) -> None:
    done, execute = list[str](), pay_step(Counting())

    async def work(task: Any, crash: bool) -> None:
        await task.make_plan(["a", "b", "c"])
        for item in task.plan:
            if item not in done:
                await task.step(item, execute)
                done.append(item)
                if crash:
                    raise Stop
        await task.step("close", execute)

    for crash in (True, True, False):
        try:
            ways.resume(lambda task, crash=crash: work(task, crash))
        except Stop:
            pass
    assert done == ["a", "b", "c"]


def test_a_step_that_another_thread_asks_for_earlier_this_time_is_not_refused(ways: Ways) -> None:
    pay = pay_step(Counting())

    async def work(task: Any, other_first: bool) -> None:
        if other_first:
            if ways.asynchronous:
                await asyncio.create_task(task.step("b", pay, 1))
            else:
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(holdfast.bind(task.plain.step), "b", pay, 1).result()
        await task.step("a", pay, 1)
        if not other_first:  # the other thread had not begun yet
            raise Stop

    with pytest.raises(Stop):
        ways.resume(lambda task: work(task, False))
    ways.resume(lambda task: work(task, True))


def test_a_plan_that_changed_may_skip_finished_items(ways: Ways) -> None:
    fn = Counting()
    execute = pay_step(fn)

    async def work(task: Any, crash: bool) -> None:
        await task.make_plan(["a", "b", "c"])
        for item in task.remaining():
            await task.step(item, execute)
            if crash:
                await task.replan(["d"])
                raise Stop

    with pytest.raises(Stop):
        ways.resume(lambda task: work(task, True))
    ways.resume(lambda task: work(task, False))
    assert len(fn.calls) == 2


def test_a_fallback_for_a_step_in_doubt_is_not_refused(ways: Ways) -> None:
    calls: list[str] = []

    async def cut(order: int) -> None:
        calls.append("pay")
        raise Stop

    def plain(order: int) -> None:
        calls.append("pay")
        raise Stop

    pay = holdfast.step(cut if ways.asynchronous else plain, once=True)
    notify = holdfast.step(lambda order: calls.append("notify"), once=True)

    async def work(task: Any) -> None:
        try:
            await task.step("pay", pay, 7)
        except StepInDoubt:
            await task.step("notify", notify, 7)

    with pytest.raises(Stop):
        ways.resume(work)
    for _ in range(2):
        ways.resume(work)
    assert calls == ["pay", "notify"]


def test_steps_inside_a_failed_and_caught_step_do_not_count(ways: Ways) -> None:
    fn = Counting()
    pay = pay_step(fn)
    pay.fn.__name__ = "pay"

    def handle() -> None:
        pay(1)
        raise ValueError("no")

    async def work(task: Any, crash: bool) -> None:
        with pytest.raises(StepFailed):
            await task.step("handle", handle)
        if crash:
            raise Stop
        await task.step("pay otherwise", pay, 1)

    with pytest.raises(Stop):
        ways.resume(lambda task: work(task, True))
    ways.resume(lambda task: work(task, False))
    assert fn.calls == [1, 1]


# -- any unchanged program -------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    name: str
    fn: int
    arg: int | None
    inside: tuple[Act, ...] = ()


@dataclass(frozen=True)
class Mapped:
    name: str
    fn: int
    args: tuple[int, ...]


@dataclass(frozen=True)
class Parallel:
    calls: tuple[Call, ...]


Act = Call | Mapped | Parallel


class Cut(BaseException):
    """The process is gone."""


class World:
    """Runs a program until it is cut off, and counts what it does."""

    def __init__(self) -> None:
        self.left = 0
        self.effects: list[str] = []

    def point(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Cut

    def function(self, number: int) -> Callable[..., Any]:
        def first(*args: int) -> int:
            return self._effect()

        def second(*args: int) -> int:
            return self._effect()

        return (first, second)[number]

    def _effect(self) -> int:
        self.point()
        self.effects.append(holdfast.current_step().path)
        self.point()
        return 1

    def step(self, call: Call | Mapped) -> Any:
        return holdfast.step(self.function(call.fn), once=True)

    # -- plain -------------------------------------------------------------------------------------

    def run(self, task: Any, acts: Sequence[Act]) -> None:
        for act in acts:
            try:
                self._run(task, act)
            except StepInDoubt:
                pass

    def _run(self, task: Any, act: Act) -> None:
        self.point()
        if isinstance(act, Mapped):
            task.map(act.name, self.step(act), act.args, concurrency=2)
        elif isinstance(act, Parallel):
            with ThreadPoolExecutor(len(act.calls)) as pool:
                run = holdfast.bind(lambda call: self._run(task, call))
                found = [pool.submit(run, call) for call in act.calls]
                errors = [error for each in found if (error := each.exception()) is not None]
            for kind in (Cut, BaseException):
                for error in errors:
                    if isinstance(error, kind):
                        raise error
        elif act.inside:
            task.step(act.name, lambda: self.run(task, act.inside))
        else:
            task.step(act.name, self.step(act), *[] if act.arg is None else [act.arg])

    # -- async -------------------------------------------------------------------------------------

    async def run_async(self, task: Any, acts: Sequence[Act]) -> None:
        for act in acts:
            try:
                await self._run_async(task, act)
            except StepInDoubt:
                pass

    async def _run_async(self, task: Any, act: Act) -> None:
        self.point()
        if isinstance(act, Mapped):
            await task.map(act.name, self.async_step(act), act.args, concurrency=2)
        elif isinstance(act, Parallel):
            found = await asyncio.gather(
                *[self._run_async(task, call) for call in act.calls], return_exceptions=True
            )
            for kind in (Cut, BaseException):
                for error in found:
                    if isinstance(error, kind):
                        raise error
        elif act.inside:

            async def inside() -> None:
                await self.run_async(task, act.inside)

            await task.step(act.name, inside)
        else:
            await task.step(act.name, self.async_step(act), *[] if act.arg is None else [act.arg])

    def async_step(self, call: Call | Mapped) -> Any:
        async def first(*args: int) -> int:
            await asyncio.sleep(0)
            return self._effect()

        async def second(*args: int) -> int:
            return self._effect()

        return holdfast.step((first, second)[call.fn], once=True, timeout=(None, 60)[call.fn])


names = st.sampled_from("ab")
numbers = st.integers(0, 1)
calls = st.builds(Call, names, numbers, st.none() | numbers)
flat = (
    calls
    | st.builds(Mapped, names, numbers, st.lists(numbers, min_size=1, max_size=3).map(tuple))
    | st.builds(Parallel, st.lists(calls, min_size=2, max_size=3).map(tuple))
)
acts = flat | st.builds(
    Call, names, numbers, st.none(), st.lists(flat, min_size=1, max_size=3).map(tuple)
)


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [False, True])
@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
@given(
    program=st.lists(acts, min_size=2, max_size=5), cuts=st.lists(st.integers(1, 12), max_size=4)
)
def test_an_unchanged_program_is_never_refused(
    program: list[Act], cuts: list[int], asynchronous: bool
) -> None:
    world = World()

    async def run(store: holdfast.Store) -> None:
        async with store.aio.task("t") as task:
            await world.run_async(task, program)

    with holdfast.open("memory://") as store:
        for left in (*cuts, 0):
            world.left = left
            try:
                if asynchronous:
                    asyncio.run(run(store))
                else:
                    with store.task("t") as task:
                        world.run(task, program)
            except Cut:
                pass
    assert len(world.effects) == len(set(world.effects))
