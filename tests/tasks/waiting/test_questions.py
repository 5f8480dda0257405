"""Questions of tasks: asked, answered, and what happens when nobody answers; plain and async."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal, Optional
from uuid import UUID

import msgspec
import pytest

import holdfast
from helpers.stores import ON_MEMORY
from helpers.sync_and_async import Ways, view
from helpers.tasks.waiting_tasks import Colour, Order, approve, waits
from holdfast import NotFound, Suspended
from holdfast.backends import Append, AppendResult, VersionMismatch
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import AlreadyAnswered, Expired, InvalidId, NotSerializable, TaskEnded
from holdfast.log.drivers import Ended, drive, run_to
from holdfast.log.operations import AppendRecords
from holdfast.tasks.run.waits import ask


def kinds(ways: Ways, id: str = "t") -> list[str]:
    return [event.type for event in ways.store.task(id).history()]


# -- asking and answering --------------------------------------------------------------------------


@pytest.mark.every_engine
def test_a_question_suspends_until_it_is_answered(ways: Ways) -> None:
    error = waits(ways, approve)
    assert error.waits == ("'payout'",)
    seen = view(ways)
    assert seen.waits_for == ["the answer to 'payout'"]
    assert seen.due_at is None
    (ask,) = seen.questions
    assert (ask.name, ask.text, ask.payload, ask.status) == (
        "payout",
        "Approve the payout?",
        {"sum": 41},
        "open",
    )
    assert ask.schema == {"type": "boolean"}
    ways.store.answer("t", "payout", True, by="ann", question=ask.id)
    seen = view(ways)
    assert seen.status == "pending"
    assert seen.due_at is not None
    assert seen.waits_for == []
    (ask,) = seen.questions
    assert (ask.status, ask.answer, ask.by) == ("answered", True, "ann")
    assert ways.resume(approve) is True
    assert ways.resume(approve) is True  # and again
    assert kinds(ways).count("task.asked") == 1


def test_opened_again_without_an_answer_it_waits_again_and_asks_once(ways: Ways) -> None:
    waits(ways, approve)
    waits(ways, approve)
    assert kinds(ways).count("task.asked") == 1
    assert kinds(ways).count("task.suspended") == 2


@dataclass
class Line:
    text: str
    amount: Decimal
    note: str | None = None


class Verdict(msgspec.Struct):
    ok: bool
    reasons: list[str] = []


LINE = Line("a", Decimal("1.10"))
NOON = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)


@ON_MEMORY
@pytest.mark.parametrize(
    ("returns", "good", "bad"),
    [
        (bool, True, [1, "yes", None, "true"]),
        (int, 3, [True, 3.5, "3", None]),
        (float, 3.5, [True, "3"]),
        (str, "x", [1, None, ["x"]]),
        (None, None, [0, False, ""]),
        (Literal["yes", "no"], "no", ["maybe", True, None]),
        (Literal[1, 2], 1, [3, True, 1.0, "1"]),
        (Colour, Colour.BLUE, ["green", None, 1]),
        (Line, LINE, [{"text": "a"}, {"text": 1, "amount": "1"}, "a", None, [LINE.text]]),
        (
            Verdict,
            Verdict(True, ["a"]),
            [{"reasons": []}, {"ok": "yes"}, {"ok": True, "reasons": [1]}],
        ),
        (
            Order,
            Order(number=1, colour=Colour.BLUE),
            [{}, {"number": "x"}, {"number": 1, "colour": "green"}],
        ),
        (list[int], [1, 2], [[1, "2"], {}, 1, [True]]),
        (list[Colour], [Colour.RED], [["red", "green"], "red"]),
        (dict[str, int], {"a": 1}, [{"a": "1"}, [1]]),
        (tuple[int, str], (1, "a"), [[1], ["a", 1], [1, "a", 2]]),
        (Optional[int], None, ["1", True]),  # noqa: UP045  as many write it
        (int | str, "a", [None, True, [1]]),
        (list[Line], [LINE], [[{"text": "a"}], [1]]),
        (date, date(2026, 1, 31), ["2020-13-01", "tomorrow", "", "2026-01-31T12:00:00Z", 1]),
        (datetime, NOON, ["tomorrow", "2026-01-31", "2026-01-31T25:00:00Z", 1]),
        (datetime, datetime(2026, 1, 31, 12), ["noon"]),
        (time, time(9, 30), ["half past nine", "noon", "25:00:00"]),
        (timedelta, timedelta(days=1, hours=2), ["a day", "26:00:00", "P", 5]),
        (UUID, UUID(int=7), ["seven", "7"]),
        (Decimal, Decimal("12.50"), ["much", "12,50", ""]),
        (bytes, b"\xff\x00", ["no base64!", "abc"]),
        (date | None, None, ["someday", 1]),
        (Line, LINE, [{"text": "a", "amount": "much"}]),
    ],
)
def test_an_answer_is_of_the_type_that_was_asked_for_or_refused(
    ways: Ways, returns: Any, good: Any, bad: list[Any]
) -> None:
    async def work(task: Any) -> Any:
        return await task.ask("q", "What?", returns=returns)

    waits(ways, work)
    before = view(ways).version
    for wrong in bad:
        with pytest.raises(TypeError) as caught:
            ways.store.answer("t", "q", wrong)
        if isinstance(wrong, str) and len(wrong) > 2:
            assert repr(wrong) not in str(caught.value)
    assert view(ways).version == before
    ways.store.answer(
        "t", "q", msgspec.to_builtins(good) if isinstance(good, list | tuple | dict) else good
    )
    for _ in range(2):
        found = ways.resume(work)
        assert (found, type(found)) == (good, type(good))


@ON_MEMORY
def test_durations_of_years_are_accepted_as_pydantic_writes_them(ways: Ways) -> None:
    pydantic = pytest.importorskip("pydantic")
    leave = pydantic.create_model("Leave", length=(timedelta, ...))

    waits(ways, asking("A", returns=leave))
    with pytest.raises(TypeError, match="must be an ISO 8601 duration"):
        ways.store.answer("t", "q", {"length": "a year"})
    years = leave(length=timedelta(days=3000, hours=1))
    ways.store.answer("t", "q", years.model_dump(mode="json"))
    assert ways.resume(asking("A", returns=leave)) == years


@ON_MEMORY
def test_a_signal_that_is_no_date_is_refused_by_a_task_that_waits_for_one(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        return await task.wait_for("s", returns=datetime)

    waits(ways, work)
    before = view(ways).version
    with pytest.raises(TypeError, match="must be a date and time") as caught:
        ways.store.signal("t", "s", "tomorrow")
    assert "tomorrow" not in str(caught.value)
    assert view(ways).version == before
    ways.store.signal("t", "s", NOON)
    assert ways.resume(work) == NOON


def test_what_cannot_be_stored_is_neither_asked_nor_answered(ways: Ways) -> None:
    async def bad_payload(task: Any) -> Any:
        return await task.ask("q", "What?", object())

    async def bad_name(task: Any) -> Any:
        return await task.ask("", "What?")

    async def bad_question(task: Any) -> Any:
        return await task.ask("q", 7)

    async def bad_timeout(task: Any) -> Any:
        return await task.ask("q", "What?", timeout=-1)

    for work, error in (
        (bad_payload, NotSerializable),
        (bad_name, InvalidId),
        (bad_question, TypeError),
        (bad_timeout, ValueError),
    ):
        with pytest.raises(error):
            ways.resume(work)
    assert view(ways).questions == []
    waits(ways, approve)
    with pytest.raises(NotSerializable):
        ways.store.answer("t", "payout", object())
    with pytest.raises(InvalidId):
        ways.store.answer("t", "payout", True, by="")


def test_the_first_answer_counts(ways: Ways) -> None:
    waits(ways, approve)
    ways.store.answer("t", "payout", False, by="ann")
    with pytest.raises(AlreadyAnswered, match="ann") as caught:
        ways.store.answer("t", "payout", True, by="bob")
    assert (caught.value.question, caught.value.by) == ("payout", "ann")
    assert ways.resume(approve) is False
    with pytest.raises(AlreadyAnswered):
        ways.store.answer("t", "payout", True)


@pytest.mark.every_engine
def test_of_many_answers_at_once_one_counts(ways: Ways) -> None:
    waits(ways, approve)
    start = threading.Barrier(8)

    def answer(number: int) -> int | None:
        start.wait()
        try:
            ways.store.answer("t", "payout", number % 2 == 0, by=f"p{number}")
        except AlreadyAnswered:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        won = [number for number in pool.map(answer, range(8)) if number is not None]
    assert len(won) == 1
    assert ways.resume(approve) is (won[0] % 2 == 0)


def asking(payload: Any, *, returns: Any = Any, name: str = "q") -> Any:
    async def work(task: Any) -> Any:
        return await task.ask(name, "Which?", payload, returns=returns)

    return work


def test_another_payload_is_another_question_and_replaces_the_first(ways: Ways) -> None:
    waits(ways, asking("A"))
    (old,) = view(ways).questions
    waits(ways, asking("B"))
    (new,) = view(ways).questions
    assert (new.payload, new.id != old.id) == ("B", True)
    with pytest.raises(NotFound, match="has changed; read it again"):
        ways.store.answer("t", "q", "to A", question=old.id)
    ways.store.answer("t", "q", "to B", question=new.id)
    assert ways.resume(asking("B")) == "to B"
    waits(ways, asking("A"))  # what was said of B says nothing of A


def test_a_question_asked_back_and_forth_is_answered_for_what_it_is_about(ways: Ways) -> None:
    waits(ways, asking("A"))
    waits(ways, asking("B"))
    waits(ways, asking("A"))
    (ask,) = view(ways).questions
    assert ask.payload == "A"
    ways.store.answer("t", "q", 1, question=ask.id)
    assert ways.resume(asking("A")) == 1
    waits(ways, asking("B"))
    ways.store.answer("t", "q", 2)
    assert ways.resume(asking("B")) == 2
    assert ways.resume(asking("A")) == 1


@ON_MEMORY
def test_the_order_of_keys_says_nothing_about_a_payload(ways: Ways) -> None:
    waits(ways, asking({"a": 1, "b": {"c": 2, "d": 3}}))
    ways.store.answer("t", "q", "yes")
    assert ways.resume(asking({"b": {"d": 3, "c": 2}, "a": 1})) == "yes"


@ON_MEMORY
def test_another_question_about_the_same_is_another(ways: Ways) -> None:
    async def other(task: Any) -> Any:
        return await task.ask("payout", "Refuse the payout?", {"sum": 41}, returns=bool)

    waits(ways, approve)
    ways.store.answer("t", "payout", True)
    waits(ways, other)


@ON_MEMORY
def test_the_same_question_twice_has_one_answer(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        return [await approve(task), await approve(task)]

    waits(ways, work)
    ways.store.answer("t", "payout", True)
    assert ways.resume(work) == [True, True]


@ON_MEMORY
def test_a_question_whose_type_has_changed_is_asked_with_the_new_one(
    ways: Ways, clock: Any
) -> None:
    waits(ways, asking("A", returns=bool))
    waits(ways, asking("A", returns=int))
    with pytest.raises(TypeError):
        ways.store.answer("t", "q", True)
    ways.store.answer("t", "q", 7)
    assert ways.resume(asking("A", returns=int)) == 7
    waits(ways, asking("A", returns=str))  # what was answered is of no use any more
    ways.store.answer("t", "q", "x")
    assert ways.resume(asking("A", returns=str)) == "x"


@ON_MEMORY
def test_an_answer_of_another_type_than_could_be_told_is_asked_for_again(
    ways: Ways, caplog: pytest.LogCaptureFixture
) -> None:
    waits(ways, asking("A"))
    ways.store.answer("t", "q", "secret")
    waits(ways, asking("A", returns=list[Order]))
    assert "asking again" in caplog.text
    assert "secret" not in caplog.text
    ways.store.answer("t", "q", [{"number": 1}])
    assert ways.resume(asking("A", returns=list[Order])) == [Order(number=1)]


def test_large_questions_answers_and_signals(ways: Ways) -> None:
    big = "x" * 200_000

    async def work(task: Any) -> Any:
        return [await task.ask("q", "What?", {"text": big}), await task.wait_for("s")]

    waits(ways, work)
    assert view(ways).questions[0].payload == {"text": big}
    ways.store.answer("t", "q", big)
    waits(ways, work)
    ways.store.signal("t", "s", big)
    assert ways.resume(work) == [big, big]


def test_who_cannot_be_answered(ways: Ways, clock: Any) -> None:
    store = ways.store
    with pytest.raises(NotFound, match="there is no task"):
        store.answer("t", "payout", True)
    with pytest.raises(NotFound, match="there is no task"):
        store.signal("t", "s")
    waits(ways, approve)
    with pytest.raises(NotFound, match="'payout'"):  # what it does ask
        store.answer("t", "other", True)
    with pytest.raises(NotFound, match=r"'payout' .*the given question id.*asked again since"):
        store.answer("t", "payout", True, question="made up")
    with pytest.raises(NotFound, match="no open question 'other'; open questions: 'payout'"):
        store.answer("t", "other", True, question=view(ways).questions[0].id)
    store.task("t").cancel()
    for tell in (lambda: store.answer("t", "payout", True), lambda: store.signal("t", "s")):
        with pytest.raises(TaskEnded, match="cancelled"):
            tell()
    clock.advance(timedelta(days=8))
    for tell in (lambda: store.answer("t", "payout", True), lambda: store.signal("t", "s")):
        with pytest.raises(Expired):
            tell()


def test_an_answer_while_the_task_runs_is_there_when_it_is_asked_for(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        try:
            await approve(task)
        except Suspended:
            ways.store.answer("t", "payout", True)
            raise

    with pytest.raises(Suspended):
        ways.resume(work)
    seen = view(ways)
    assert (seen.status, seen.owner) == ("pending", None)
    assert seen.due_at is not None  # a worker goes on with it at once
    assert ways.resume(approve) is True


def test_a_question_answered_in_another_line_of_work_needs_no_suspension(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        await task.step("a", str, 1)
        return await approve(task)

    waits(ways, work)

    async def answered_before_it_comes_to_it(task: Any) -> Any:
        await task.step("a", str, 1)
        ways.store.answer("t", "payout", True)
        return await approve(task)

    assert ways.resume(answered_before_it_comes_to_it) is True


class Meddled(MemoryBackend):
    """Somebody comes in between, just before an event of a certain type is stored."""

    def __init__(self, type: str) -> None:
        super().__init__()
        self.type, self.come_in = type.encode(), list[Callable[[], object]]()

    def append(self, appends: Sequence[Append]) -> list[AppendResult | VersionMismatch]:
        stored = b"".join(body for append in appends for _, body in append.records)
        if self.come_in and self.type in stored:
            self.come_in.pop(0)()
        return super().append(appends)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("what", ["answer", "signal", "cancel"])
def test_what_comes_just_before_a_task_is_given_back_is_not_lost(
    what: str, asynchronous: bool
) -> None:
    backend = Meddled("task.suspended")
    with holdfast.open(backend) as store, holdfast.open(backend) as other:
        ways = Ways(store, asynchronous=asynchronous)

        async def work(task: Any) -> Any:
            return await (approve(task) if what == "answer" else task.wait_for("s"))

        backend.come_in.append(
            {
                "answer": lambda: other.answer("t", "payout", True),
                "signal": lambda: other.signal("t", "s", True),
                "cancel": lambda: other.task("t").cancel(),
            }[what]
        )
        with pytest.raises(Suspended):
            ways.resume(work)
        assert backend.come_in == []
        seen = view(ways)
        if what == "cancel":
            assert (seen.status, seen.owner) == ("cancelled", None)
            return
        assert (seen.status, seen.owner) == ("pending", None)
        assert [info.status for info in store.tasks()] == ["pending"]
        assert seen.due_at is not None
        assert ways.resume(work) is True


def test_an_answer_between_two_who_ask_the_same_is_not_lost() -> None:
    """The second has looked before the answer came; were the question recorded once more, it would
    be open again."""
    with holdfast.open("memory://") as store:
        with pytest.raises(Suspended), store.task("t") as task:
            first, second = (
                ask(task._require_session(), "q", "Which?", None, Any, None) for _ in range(2)
            )
            log = store._log
            records = [
                drive(log, run_to(AppendRecords, script, script.send)) for script in (first, second)
            ]
            with pytest.raises(Suspended):
                drive(log, run_to(AppendRecords, first, first.send, log.handle(records[0])))
            store.answer("t", "q", "yes")
            with pytest.raises(Exception) as overtaken:
                log.handle(records[1])
            end = drive(log, run_to(AppendRecords, second, second.throw, overtaken.value))
            assert isinstance(end, Ended) and end.value == "yes"
            raise task._require_session().suspension.branch.suspended or AssertionError
        assert [event.type for event in store.task("t").history()].count("task.asked") == 1
        with store.task("t") as task:
            assert task.ask("q", "Which?") == "yes"


ABANDONED = """
import os, sys, time, holdfast
store = holdfast.open(sys.argv[1], key=os.environ.get('HOLDFAST_KEY'))
with store.task("t") as task:
    try:
        task.ask("payout", "Approve the payout?", {"sum": 41}, returns=bool)
    except BaseException:
        print("waits", flush=True)
        time.sleep(60)
"""


@pytest.mark.every_engine
def test_a_task_whose_process_was_killed_is_answered_and_goes_on(durable_url: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ABANDONED, durable_url], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        os.kill(process.pid, signal.SIGKILL)
    with holdfast.open(durable_url) as store:
        seen = store.get_task("t")
        assert seen is not None
        assert (seen.status, seen.abandoned) == ("running", True)
        store.answer("t", "payout", True)
        for asynchronous in (False, True):
            assert Ways(store, asynchronous=asynchronous).resume(approve, wait=0) is True


# -- when nobody answers ---------------------------------------------------------------------------


def asking_for(seconds: float | timedelta) -> Any:
    async def work(task: Any) -> Any:
        try:
            return await task.ask("q", "Which?", timeout=seconds)
        except TimeoutError:
            return "nobody"

    return work


def test_a_question_that_nobody_answers_in_time_is_a_timeout_for_ever(
    ways: Ways, clock: Any
) -> None:
    waits(ways, asking_for(timedelta(minutes=1)))
    (ask,) = view(ways).questions
    assert ask.until is not None
    assert view(ways).due_at == ask.until
    assert -0.1 < ask.until.timestamp() - clock.now() - 60 < 2, "never early, and little late"
    clock.advance(59)
    waits(ways, asking_for(5))  # what was recorded first counts
    clock.advance(2)
    assert ways.resume(asking_for(60)) == "nobody"
    assert view(ways).questions[0].status == "timeout"
    with pytest.raises(NotFound, match="timed out"):
        ways.store.answer("t", "q", "late")
    assert ways.resume(asking_for(3600)) == "nobody"


def test_an_answer_after_the_time_and_before_anybody_noticed_counts(ways: Ways, clock: Any) -> None:
    waits(ways, asking_for(60))
    clock.advance(61)
    ways.store.answer("t", "q", "late")
    assert ways.resume(asking_for(60)) == "late"


def test_a_question_asked_again_after_a_timeout_is_a_new_one(ways: Ways, clock: Any) -> None:
    async def work(task: Any) -> Any:
        reminders = 0
        while True:
            try:
                return [reminders, await task.ask("q", "Which?", timeout=60)]
            except TimeoutError:
                reminders += 1
                await task.decide(f"reminder {reminders}")

    waits(ways, work)
    for reminders in (1, 2):
        clock.advance(61)
        waits(ways, work)
        assert len(view(ways).decisions) == reminders
    (ask,) = view(ways).questions
    assert ask.status == "open"
    ways.store.answer("t", "q", "at last")
    assert ways.resume(work) == [2, "at last"]


def test_a_signal_that_does_not_come_in_time(ways: Ways, clock: Any) -> None:
    async def work(task: Any) -> Any:
        found = []
        for _ in range(3):
            try:
                found.append(await task.wait_for("s", timeout=60))
            except TimeoutError:
                found.append("nothing")
        return found

    waits(ways, work)
    clock.advance(61)
    waits(ways, work)  # the second
    ways.store.signal("t", "s", "two")
    waits(ways, work)
    clock.advance(61)
    assert ways.resume(work) == ["nothing", "two", "nothing"]
    ways.store.signal("t", "s", "late")
    assert ways.resume(work) == ["nothing", "two", "nothing"]


@ON_MEMORY
def test_a_timeout_that_nobody_catches_is_a_failure_of_the_task(ways: Ways, clock: Any) -> None:
    async def work(task: Any) -> Any:
        return await task.ask("q", "Which?", timeout=60)

    waits(ways, work)
    clock.advance(61)
    for _ in range(2):
        with pytest.raises(TimeoutError, match="'q'"):
            ways.resume(work)
    assert view(ways).status == "failed"
