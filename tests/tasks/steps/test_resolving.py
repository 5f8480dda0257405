"""Operators resolve steps in doubt: the first one counts, who and when is recorded; plain and
async."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import holdfast
from helpers.sync_and_async import Ways, view
from helpers.tasks.step_functions import ORDER, Counting, Order, Stop, fail
from holdfast import NotFound, StepFailed, StepInDoubt, Store
from holdfast.backends import Record, StreamKey
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import AlreadyResolved, InvalidId, SchemaMismatch
from holdfast.testing import fake_clock


@holdfast.step(once=True)
def pay(amount: int) -> str:
    raise ConnectionError("did it arrive?")


def leave_in_doubt(ways: Ways, id: str = "t") -> None:
    with pytest.raises(StepInDoubt):
        ways.resume(lambda task: task.step("pay", pay, 1), id)


def resolutions(store: Store, id: str = "t") -> list[Any]:
    return [
        (event.data.get("by"), event.data.get("again", False), event.data.get("override", False))
        for event in store.task(id).history()
        if event.type == "step.resolved"
    ]


RESOLVED: Any = [{"result": "paid"}, {"retry": True}]


# -- the first one counts --------------------------------------------------------------------------


@pytest.mark.parametrize("second", RESOLVED, ids=["result", "retry"])
@pytest.mark.parametrize("first", RESOLVED, ids=["result", "retry"])
def test_a_resolved_step_stays_resolved(ways: Ways, first: Any, second: Any) -> None:
    leave_in_doubt(ways)
    before = datetime.now(timezone.utc)
    ways.store.resolve("t", "pay", **first, by="ann")
    for _ in range(2):
        with pytest.raises(AlreadyResolved, match=r"'pay'.*'ann'.*override") as caught:
            ways.store.resolve("t", "pay", **second, by="bob")
    error = caught.value
    assert (error.task, error.step, error.by, error.used) == ("task 't'", "pay", "ann", False)
    assert error.how == next(iter(first))
    assert before <= error.at <= datetime.now(timezone.utc)
    assert vars(pickle.loads(pickle.dumps(error))) == vars(error)
    assert resolutions(ways.store) == [("ann", "retry" in first, False)]


@pytest.mark.every_engine
def test_a_step_that_was_resolved_and_used_never_runs_again(ways: Ways) -> None:
    calls: list[str] = []

    @holdfast.step(once=True)
    def charge() -> str:
        calls.append("charge")
        raise TimeoutError

    @holdfast.agent("shop")
    def shop(task: holdfast.Task) -> str:
        paid = task.step("pay", charge)
        task.step("send", calls.append, paid)
        raise NotImplementedError("the rest")

    store = ways.store
    store.submit("shop", "t")
    store.run_due()
    store.resolve("t", "pay", result="paid")
    store.run_due()
    for override in (False, True):
        with pytest.raises(AlreadyResolved, match=r"too late|override") as caught:
            store.resolve("t", "pay", retry=True, override=override)
        assert caught.value.used
    store.submit("shop", "t")
    store.run_due()
    assert calls == ["charge", "paid"]


@pytest.mark.every_engine
def test_of_many_operators_at_once_one_counts(ways: Ways) -> None:
    leave_in_doubt(ways)
    start = threading.Barrier(8)

    def resolve(number: int) -> int | None:
        start.wait()
        options: Any = {"retry": True} if number % 2 else {"result": f"receipt {number}"}
        try:
            ways.store.resolve("t", "pay", **options, by=f"p{number}")
        except AlreadyResolved as error:
            assert error.by != f"p{number}"
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        won = [number for number in pool.map(resolve, range(8)) if number is not None]
    assert len(won) == 1
    assert resolutions(ways.store) == [(f"p{won[0]}", won[0] % 2 == 1, False)]


class Interrupted(MemoryBackend):
    """A backend that lets something happen while a task is read."""

    meanwhile: Callable[[], None] | None = None

    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        found = super().read(stream, after=after, limit=limit, reverse=reverse)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return found


def test_the_append_decides_between_two_operators_not_what_they_read_before() -> None:
    backend = Interrupted()
    with holdfast.open(backend) as store:
        leave_in_doubt(Ways(store, asynchronous=False))
        backend.meanwhile = lambda: store.resolve("t", "pay", result="paid", by="ann")
        with pytest.raises(AlreadyResolved) as caught:
            store.resolve("t", "pay", retry=True, by="bob")
        assert caught.value.by == "ann"
        assert resolutions(store) == [("ann", False, False)]


def test_a_new_doubt_after_a_retry_is_resolved_again(ways: Ways) -> None:
    leave_in_doubt(ways)
    ways.store.resolve("t", "pay", retry=True)
    leave_in_doubt(ways)
    ways.store.resolve("t", "pay", result="paid")
    assert ways.resume(lambda task: task.step("pay", pay, 1)) == "paid"


def test_a_step_that_ran_after_its_resolution_is_not_resolved_again(ways: Ways) -> None:
    leave_in_doubt(ways)
    ways.store.resolve("t", "pay", retry=True, by="ann")
    paid = holdfast.step(lambda amount: "paid", once=True)
    assert ways.resume(lambda task: task.step("pay", paid, 1)) == "paid"
    for options in RESOLVED:
        with pytest.raises(AlreadyResolved, match="ann") as caught:
            ways.store.resolve("t", "pay", **options, override=True)
        assert caught.value.used


def test_a_retry_of_a_failed_step_is_ordered_once(ways: Ways) -> None:
    async def work(task: Any) -> None:
        with pytest.raises(StepFailed):
            await task.step("fetch", fail)
        await task.decide("without it")

    ways.resume(work)
    ways.store.resolve("t", "fetch", retry=True, by="ann")
    with pytest.raises(AlreadyResolved, match="ann"):
        ways.store.resolve("t", "fetch", retry=True)
    with pytest.raises(NotFound, match="no such step is in doubt"):
        ways.store.resolve("t", "fetch", result=1, override=True)
    ways.resume(work)
    ways.store.resolve("t", "fetch", retry=True)


def test_a_retry_after_another_attempt_failed_overrides_nothing(ways: Ways) -> None:
    async def work(task: Any) -> None:
        with pytest.raises(StepFailed):
            await task.step("fetch", fail)
        await task.decide("without it")

    for by in ("ann", "bob"):
        ways.resume(work)
        ways.store.resolve("t", "fetch", retry=True, by=by)
    assert resolutions(ways.store) == [("ann", True, False), ("bob", True, False)]


def test_a_retry_of_what_could_not_be_stored_can_be_overridden_by_a_result(ways: Ways) -> None:
    step = holdfast.step(lambda: object(), once=True)
    with pytest.raises(StepFailed):
        ways.resume(lambda task: task.step("fetch", step))
    ways.store.resolve("t", "fetch", retry=True)
    ways.store.resolve("t", "fetch", result="by hand", override=True)
    assert ways.resume(lambda task: task.step("fetch", step)) == "by hand"


def test_a_path_is_taken_before_a_name(ways: Ways) -> None:
    async def work(task: Any) -> None:
        for amount in (1, 2):
            try:
                await task.step("pay", pay, amount)
            except StepInDoubt:
                pass

    ways.resume(work)
    assert view(ways).in_doubt == ["pay", "pay#2"]
    ways.store.resolve("t", "pay", result="paid")
    with pytest.raises(AlreadyResolved) as caught:
        ways.store.resolve("t", "pay", retry=True)  # not the other one
    assert caught.value.step == "pay"
    assert view(ways).in_doubt == ["pay#2"]


# -- overriding ------------------------------------------------------------------------------------


def test_a_mistake_can_be_overridden_before_the_task_continues(ways: Ways) -> None:
    leave_in_doubt(ways)
    ways.store.resolve("t", "pay", retry=True, by="ann")
    ways.store.resolve("t", "pay", result="paid", by="bob", override=True)
    ways.store.resolve("t", "pay", result="paid twice", by="eve", override=True)
    assert resolutions(ways.store) == [
        ("ann", True, False),
        ("bob", False, True),
        ("eve", False, True),
    ]
    assert ways.resume(lambda task: task.step("pay", pay, 1)) == "paid twice"


def test_a_result_can_be_overridden_by_a_retry_before_the_task_continues(ways: Ways) -> None:
    leave_in_doubt(ways)
    ways.store.resolve("t", "pay", result="paid")
    ways.store.resolve("t", "pay", retry=True, override=True)
    fn = Counting("done")
    again = holdfast.step(fn, once=True)
    assert ways.resume(lambda task: task.step("pay", again, 1)) == "done"
    assert fn.calls == [1]


def test_entering_and_leaving_alone_does_not_make_it_too_late(ways: Ways) -> None:
    leave_in_doubt(ways)
    ways.store.resolve("t", "pay", result="paid")

    async def look(task: Any) -> Any:
        return task.in_doubt

    assert ways.resume(look) == []
    ways.store.resolve("t", "pay", result="paid later", override=True)
    assert ways.resume(lambda task: task.step("pay", pay, 1)) == "paid later"


async def use(task: Any) -> Any:
    return await task.step("pay", pay, 1)


async def go_past(task: Any) -> None:
    await task.step("after", lambda: 1)


async def note(task: Any) -> None:
    await task.decide("it was paid")


@pytest.mark.parametrize("continued", [use, go_past, note])
@pytest.mark.parametrize("second", RESOLVED, ids=["result", "retry"])
def test_when_the_task_has_continued_it_is_too_late(
    ways: Ways, continued: Any, second: Any
) -> None:
    leave_in_doubt(ways)
    ways.store.resolve("t", "pay", result="paid", by="ann")
    ways.resume(continued)
    with pytest.raises(AlreadyResolved, match="too late") as caught:
        ways.store.resolve("t", "pay", **second, override=True)
    assert caught.value.used
    assert ways.resume(lambda task: task.step("pay", pay, 1)) == "paid"


def test_after_a_fork_it_is_too_late(ways: Ways) -> None:
    leave_in_doubt(ways)
    ways.store.resolve("t", "pay", result="paid")
    ways.store.task("t").fork("f")
    with pytest.raises(AlreadyResolved, match="too late"):
        ways.store.resolve("t", "pay", retry=True, override=True)


def test_using_a_resolution_is_recorded_once(ways: Ways) -> None:
    leave_in_doubt(ways)
    ways.store.resolve("t", "pay", result="paid")
    for _ in range(3):
        assert ways.resume(use) == "paid"
    accepted = [e for e in ways.store.task("t").history() if e.type == "step.accepted"]
    assert [event.data for event in accepted] == [{"step": "pay"}]
    ways.resume(lambda task: task.finish("done"))
    assert ways.resume(use) == "paid", "a finished task is only read"


def test_of_an_override_and_a_run_that_uses_the_result_one_comes_first(ways: Ways) -> None:
    """The run has read the record and not yet said that it uses it."""
    leave_in_doubt(ways)
    ways.store.resolve("t", "pay", result="paid")

    overridden: list[str] = []

    def override() -> None:
        if not overridden:
            overridden.append("now")
            ways.store.resolve("t", "pay", result="really paid", override=True)

    async def work(task: Any) -> Any:
        session = (task.plain if hasattr(task, "plain") else task)._session
        put = session.put

        def put_late(*args: Any, **options: Any) -> Any:
            override()
            return put(*args, **options)

        session.put = put_late
        return await task.step("pay", pay, 1)

    assert ways.resume(work) == "really paid"
    with pytest.raises(AlreadyResolved, match="too late"):
        ways.store.resolve("t", "pay", retry=True, override=True)


# -- who, and when ---------------------------------------------------------------------------------


def test_who_resolved_it_is_recorded_and_shown(ways: Ways) -> None:
    leave_in_doubt(ways, "given")
    leave_in_doubt(ways, "actor")
    leave_in_doubt(ways, "unknown")
    ways.store.resolve("given", "pay", retry=True, by="ann")
    with holdfast.correlate("case-1", actor="bob"):
        ways.store.resolve("actor", "pay", retry=True)
        ways.resume(go_past, "given")
    ways.store.resolve("unknown", "pay", retry=True)
    for task_id, by in (("given", "ann"), ("actor", "bob"), ("unknown", None)):
        assert resolutions(ways.store, task_id) == [(by, True, False)]
        with pytest.raises(AlreadyResolved) as caught:
            ways.store.resolve(task_id, "pay", retry=True)
        assert caught.value.by == by
        assert f"resolved by {by!r} at" in str(caught.value) or by is None
    with pytest.raises(InvalidId):
        ways.store.resolve("t", "pay", retry=True, by="")


def test_an_audit_names_who_resolved_and_overrode(store: Store) -> None:
    leave_in_doubt(Ways(store, asynchronous=False))
    store.resolve("t", "pay", retry=True, by="ann")
    store.resolve("t", "pay", result="paid", by="bob", override=True)
    Ways(store, asynchronous=False).resume(use)
    found = [
        (entry.what, entry.by, entry.details.get("override"))
        for entry in store.audit("t")
        if "resol" in entry.what or "retry" in entry.what
    ]
    assert found == [
        ("step retry ordered by an operator", "ann", None),
        ("step resolved by an operator", "bob", True),
        ("operator's resolution used", None, None),
    ]


# -- the type of the result ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "good", "bad"),
    [
        (str, "paid", 5),
        (int, 5, "paid"),
        (bool, True, 1),
        (list[int], [1], ["1"]),
        (None, None, "sent"),
        (Order, ORDER, {"number": "7"}),
        (str | None, None, 5),
        (date, date(2026, 1, 31), "2020-13-01"),
        (datetime, datetime(2026, 1, 31, 12, tzinfo=timezone.utc), "tomorrow"),
        (time, time(9, 30), "noon"),
        (timedelta, timedelta(hours=26), "a day"),
        (UUID, UUID(int=7), "seven"),
        (Decimal, Decimal("12.50"), "12,50"),
        (bytes, b"\xff\x00", "no base64!"),
    ],
)
def test_a_result_of_another_type_than_declared_is_refused_before_anything_is_written(
    ways: Ways, declared: Any, good: Any, bad: Any
) -> None:
    step = holdfast.step(lambda: fail(), once=True, returns=declared)
    with pytest.raises(StepInDoubt):
        ways.resume(lambda task: task.step("pay", step))
    version = view(ways).version
    with pytest.raises(TypeError, match="the result") as caught:
        ways.store.resolve("t", "pay", result=bad)
    assert repr(bad) not in str(caught.value)
    assert view(ways).version == version
    ways.store.resolve("t", "pay", result=good)
    found = ways.resume(lambda task: task.step("pay", step))
    assert (found, type(found)) == (good, type(good))


def test_the_type_is_known_of_a_step_that_was_cut_off_and_of_one_with_a_check(ways: Ways) -> None:
    async def cut() -> int:
        raise Stop

    def cut_plain() -> int:
        raise Stop

    fn = cut if ways.asynchronous else cut_plain
    with pytest.raises(Stop):
        ways.resume(lambda task: task.step("pay", holdfast.step(fn, check=lambda: fail())))
    with pytest.raises(TypeError, match="must be integer"):
        ways.store.resolve("t", "pay", result="seven")


def test_a_resolution_that_does_not_fit_the_new_type_can_be_overridden(ways: Ways) -> None:
    leave_in_doubt(ways)
    ways.store.resolve("t", "pay", result="seven")
    as_number = holdfast.step(pay, once=True, returns=int)
    with pytest.raises(SchemaMismatch):
        ways.resume(lambda task: task.step("pay", as_number, 1))
    ways.store.resolve("t", "pay", result="7", override=True)
    assert ways.resume(lambda task: task.step("pay", pay, 1)) == "7"


# -- while the task is entered in this process -----------------------------------------------------


def test_an_open_block_sees_that_its_step_was_resolved(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        with pytest.raises(StepInDoubt):
            await task.step("pay", pay, 1)
        ways.store.resolve("t", "pay", result="by a person")
        with pytest.raises(AlreadyResolved):
            ways.store.resolve("t", "pay", result="by another")
        paid = await task.step("pay", pay, 1)
        assert task.in_doubt == []
        return paid

    assert ways.resume(work) == "by a person"
    assert len(resolutions(ways.store)) == 1


def test_an_open_block_sees_that_its_step_must_run_again(ways: Ways) -> None:
    fn = Counting(ValueError("no"), "done")
    step = holdfast.step(fn, once=True)

    async def work(task: Any) -> Any:
        with pytest.raises(StepInDoubt):
            await task.step("pay", step, 1)
        ways.store.resolve("t", "pay", retry=True)
        return await task.step("pay", step, 1)

    assert ways.resume(work) == "done"
    assert fn.calls == [1, 1]


def test_an_open_block_that_resumed_a_doubt_sees_a_resolution_by_another_store(
    tmp_path: Path,
) -> None:
    path = tmp_path / "agents.db"
    with holdfast.open(path) as store, holdfast.open(path) as other:
        leave_in_doubt(Ways(store, asynchronous=False))
        with store.task("t") as task:
            with pytest.raises(StepInDoubt):
                task.step("pay", pay, 1)
            other.resolve("t", "pay", result="paid")
            assert task.step("pay", pay, 1) == "paid"


def test_times_of_resolutions_are_those_of_the_clock(store: Store) -> None:
    with fake_clock(1_800_000_000.0):
        leave_in_doubt(Ways(store, asynchronous=False))
        store.resolve("t", "pay", retry=True)
        with pytest.raises(AlreadyResolved, match="2027-01-15 08:00:00 UTC"):
            store.resolve("t", "pay", retry=True)
