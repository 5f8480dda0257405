"""Results that cannot be stored: refused before the function runs where that can be known, and
otherwise the step fails once and for all, because its function has run; plain and async."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import pytest

import holdfast
from helpers.run_cli import run
from helpers.stores import ON_MEMORY
from helpers.sync_and_async import AwaitedTask, Ways, view
from helpers.tasks.step_functions import AT, ORDER, Counting, never, paths
from holdfast import StepFailed, Store
from holdfast.errors import AlreadyResolved, NotSerializable, ReplayMismatch, TooLarge


class Client:
    """What an SDK returns: nothing that could be stored."""


class Colour(Enum):
    RED = "red"


class Pair(NamedTuple):
    a: int
    b: int


def final_failure(ways: Ways, work: Any, id: str = "t") -> StepFailed:
    """Run the work, and see that a step has failed for good."""
    with pytest.raises(StepFailed) as caught:
        ways.resume(work, id)
    assert caught.value.final
    return caught.value


# -- before the function runs ----------------------------------------------------------------------


@dataclass
class WithClient:
    client: Client


@pytest.mark.parametrize(
    "declared", [Client, list[Client], Client | None, WithClient, Callable, type, asyncio.Task]
)
@pytest.mark.parametrize("how", ["annotated", "returns"])
def test_a_declared_type_that_can_never_be_stored_is_refused_before_the_function_runs(
    ways: Ways, declared: Any, how: str
) -> None:
    ran: list[int] = []

    def send() -> Any:
        ran.append(1)

    async def work(task: Any) -> None:
        if how == "annotated":
            send.__annotations__["return"] = declared
            await task.step("send", send)
        else:
            await task.step("send", holdfast.step(send, returns=declared))

    problem = r"'send': it is declared as .* return what you need of it"
    with pytest.raises(TypeError, match=problem) as caught:
        ways.resume(work)
    assert isinstance(caught.value, NotSerializable)
    assert ran == []
    assert view(ways).steps == []


def test_a_type_that_is_not_defined_here_is_noticed_before_the_function_runs(ways: Ways) -> None:
    def send() -> NotImportedHere:  # type: ignore[name-defined]  # noqa: F821
        raise AssertionError

    with pytest.raises(NameError):
        ways.resume(lambda task: task.step("send", send))
    assert view(ways).steps == []


# -- tuples ----------------------------------------------------------------------------------------


@ON_MEMORY
@pytest.mark.parametrize(
    ("returned", "stored"),
    [
        ((1, 2), [1, 2]),
        ((), []),
        ([(1, "a"), {"b": (2, (3,))}], [[1, "a"], {"b": [2, [3]]}]),
        ({"a": (1,), "b": [()]}, {"a": [1], "b": [[]]}),
    ],
)
def test_an_undeclared_tuple_is_a_list_on_the_first_run_and_on_resume(
    ways: Ways, returned: Any, stored: Any
) -> None:
    fn = Counting(returned)
    for _ in range(2):
        assert ways.resume(lambda task: task.step("a", fn)) == stored
    assert len(fn.calls) == 1
    assert view(ways).steps[0].result == stored


def test_a_declared_tuple_is_a_tuple_on_the_first_run_and_on_resume(ways: Ways) -> None:
    def pair() -> tuple[int, str]:
        return 1, "a"

    def named() -> Pair:
        return Pair(1, 2)

    for _ in range(2):
        first = ways.resume(lambda task: task.step("pair", pair))
        assert (first, type(first)) == ((1, "a"), tuple)
        second = ways.resume(lambda task: task.step("named", named))
        assert (second, type(second)) == (Pair(1, 2), Pair)


def test_the_tuple_that_a_check_finds_is_a_list_too(ways: Ways) -> None:
    fn = Counting(ValueError("no"))
    pay = holdfast.step(fn, check=lambda: (1, 2))
    with pytest.raises(StepFailed):
        ways.resume(lambda task: task.step("pay", pay))
    for _ in range(2):
        assert ways.resume(lambda task: task.step("pay", pay)) == [1, 2]


@pytest.mark.slow
def test_a_tuple_that_contains_itself_is_refused_and_ends(ways: Ways) -> None:
    loop: list[Any] = []
    loop.append((loop,))
    error = final_failure(ways, lambda task: task.step("a", lambda: loop))
    assert isinstance(error.__cause__, TooLarge)
    deep: Any = Client()
    for _ in range(100_000):
        deep = (deep,)
    final_failure(ways, lambda task: task.step("b", lambda: deep), "deep")


# -- after the function has run --------------------------------------------------------------------


@ON_MEMORY
@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, Pair(1, 2), AT, {1: "a"}, float("nan"), ORDER, Colour.RED, lambda: 1],
)
def test_a_result_that_would_not_come_back_fails_its_step_for_good(ways: Ways, value: Any) -> None:
    fn = Counting(value)
    error = final_failure(ways, lambda task: task.step("send", fn, 1))
    assert error.type == "NotSerializable"
    assert isinstance(error.__cause__, NotSerializable)
    for word in ("'send'", type(value).__name__, "it ran", "annotate", "resolve"):
        assert word in str(error) or type(value) in (dict, float)
    again = final_failure(ways, lambda task: task.step("send", fn, 1))
    assert (again.message, str(again)) == (error.message, str(error))
    assert fn.calls == [1]
    [step] = view(ways).steps
    assert (step.status, step.final, step.replays, step.in_doubt) == ("failed", True, True, False)


@pytest.mark.usefixtures("no_pause")
def test_no_attempt_repeats_what_cannot_be_stored(ways: Ways) -> None:
    fn = Counting(Client(), Client())
    send = holdfast.step(fn, max_attempts=3)
    final_failure(ways, lambda task: task.step("send", send))
    assert len(fn.calls) == 1


def test_a_result_of_another_type_than_declared_fails_for_good(ways: Ways) -> None:
    def wrong() -> int:
        return "text"  # type: ignore[return-value]

    final_failure(ways, lambda task: task.step("a", wrong))


def test_a_result_that_is_too_large_fails_for_good(ways: Ways) -> None:
    error = final_failure(ways, lambda task: task.step("a", lambda: "x" * (17 * 1024 * 1024)))
    assert error.type == "TooLarge"


def test_an_error_of_the_function_itself_is_a_failure_like_others(ways: Ways) -> None:
    fn = Counting(NotSerializable("$", "raised by the function"), 2)
    with pytest.raises(StepFailed) as caught:
        ways.resume(lambda task: task.step("a", fn))
    assert not caught.value.final
    assert ways.resume(lambda task: task.step("a", fn)) == 2


def test_the_same_call_again_in_the_same_run_does_not_run_it_either(ways: Ways) -> None:
    fn = Counting(Client())

    async def work(task: Any) -> int:
        for _ in range(3):
            with pytest.raises(StepFailed):
                await task.step("send", fn, 1)
        return 1

    for _ in range(2):
        assert ways.resume(work) == 1
    assert fn.calls == [1]
    assert paths(ways) == ["send"]


def test_with_other_arguments_it_is_refused_like_a_finished_step(ways: Ways) -> None:
    fn = Counting(Client())
    final_failure(ways, lambda task: task.step("send", fn, 1))
    with pytest.raises(ReplayMismatch):
        ways.resume(lambda task: task.step("send", fn, 2))
    keep = holdfast.step(never, drift="keep")
    final_failure(ways, lambda task: task.step("send", keep, 2))
    rerun = holdfast.step(Counting("sent"), drift="rerun")
    assert ways.resume(lambda task: task.step("send", rerun, 2)) == "sent"


def test_a_generator_whose_chunk_cannot_be_stored_does_not_run_again(ways: Ways) -> None:
    ran: list[int] = []

    def chunks() -> Any:
        ran.append(1)
        yield Client()

    async def achunks() -> Any:
        ran.append(1)
        yield Client()

    async def work(task: Any) -> None:
        async for _ in task.step("tell", achunks if ways.asynchronous else chunks):
            raise AssertionError

    for _ in range(2):
        final_failure(ways, work)
    assert ran == [1]


@pytest.mark.parametrize("mode", ["once", "check"])
def test_a_guarded_step_whose_result_is_lost_is_not_in_doubt_and_does_not_run_again(
    ways: Ways, mode: str
) -> None:
    fn = Counting(Client())
    pay = holdfast.step(fn, once=True) if mode == "once" else holdfast.step(fn, check=never)
    for _ in range(3):
        final_failure(ways, lambda task: task.step("pay", pay, 1))
    assert fn.calls == [1]
    seen = view(ways)
    assert (seen.in_doubt, seen.status) == ([], "failed")
    assert seen.preview().replayed == ["pay"]
    assert [info.in_doubt for info in ways.store.tasks()] == [False]


# -- a person --------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"once": True}, {"check": never}])
def test_a_person_can_record_the_lost_result(ways: Ways, options: Any) -> None:
    send = holdfast.step(Counting(Client()), **options)
    final_failure(ways, lambda task: task.step("send", send, 1))
    ways.store.resolve("t", "send", result="mail-7")
    assert ways.resume(lambda task: task.step("send", send, 1)) == "mail-7"
    [step] = view(ways).steps
    assert (step.status, step.how, step.final) == ("completed", "resolved", False)


@pytest.mark.parametrize("options", [{}, {"once": True}, {"check": never}])
def test_a_person_can_let_it_run_again(ways: Ways, options: Any) -> None:
    fn = Counting(Client(), "sent")
    send = holdfast.step(fn, **options)
    final_failure(ways, lambda task: task.step("send", send, 1))
    ways.store.resolve("t", "send", retry=True)
    for _ in range(2):
        assert ways.resume(lambda task: task.step("send", send, 1)) == "sent"
    assert fn.calls == [1, 1]
    with pytest.raises(AlreadyResolved):
        ways.store.resolve("t", "send", retry=True)


def test_an_outer_step_is_not_repeated_for_what_an_inner_one_cannot_return(ways: Ways) -> None:
    outer_ran: list[int] = []
    fn = Counting(Client())
    inner = holdfast.step(lambda: fn(1), returns=Any)
    inner.fn.__name__ = "inner"

    @holdfast.step(max_attempts=3)
    def outer() -> Any:
        outer_ran.append(1)
        return [inner(), 2]

    for _ in range(2):
        final_failure(ways, lambda task: task.step("outer", outer))
    assert (outer_ran, fn.calls) == ([1], [1])
    ways.store.resolve("t", "outer/inner", result="sent")
    assert ways.resume(lambda task: task.step("outer", outer)) == ["sent", 2]
    assert (outer_ran, fn.calls) == ([1, 1], [1])


def test_a_retry_of_the_outer_step_retries_the_inner_one_unless_it_is_once(ways: Ways) -> None:
    for options, calls in (({}, 2), ({"once": True}, 1)):
        fn = Counting(Client(), "sent")
        inner = holdfast.step(lambda fn=fn: fn(1), returns=Any, **options)
        name = f"t{calls}"
        final_failure(ways, lambda task, inner=inner: task.step("outer", lambda: inner()), name)
        ways.store.resolve(name, "outer", retry=True)
        if calls == 1:
            final_failure(ways, lambda task, inner=inner: task.step("outer", lambda: inner()), name)
        else:
            found = ways.resume(lambda task, inner=inner: task.step("outer", lambda: inner()), name)
            assert found == "sent"
        assert len(fn.calls) == calls


# -- workers ---------------------------------------------------------------------------------------


def register(ways: Ways, body: Any, name: str = "mailer") -> None:
    """An agent of the kind that is tested, from a body that awaits everything."""

    async def awaited(task: holdfast.AsyncTask) -> Any:
        return await body(task)

    def plain(task: holdfast.Task) -> Any:
        return ways.run(body(AwaitedTask(task)))

    holdfast.agent(name)(awaited if ways.asynchronous else plain)


def drain(store: Store, clock: Any) -> list[str]:
    """Run what is due, also what is due later; return the statuses."""
    found = []
    for _ in range(10):
        found += [result.status for result in store.run_due()]
        clock.advance(3600)
    return found


def test_a_worker_does_not_retry_a_task_whose_step_cannot_be_stored(ways: Ways, clock: Any) -> None:
    mails = Counting(Client(), Client())
    send = holdfast.step(mails, max_attempts=3)

    async def body(task: Any) -> Any:
        try:
            return await task.step("send", send, "ann")
        except StepFailed as error:
            raise RuntimeError("wrapped, as programs do") from error

    register(ways, body)
    ways.store.submit("mailer", "t")
    assert drain(ways.store, clock) == ["failed"]
    assert mails.calls == ["ann"]
    seen = view(ways)
    assert (seen.status, seen.due_at) == ("failed", None)
    assert "Client" in seen.steps[0].error.message  # type: ignore[union-attr]


def test_a_worker_does_not_retry_a_step_that_is_refused_for_its_type(
    ways: Ways, clock: Any
) -> None:
    def send() -> Client:
        raise AssertionError

    async def body(task: Any) -> Any:
        return await task.step("send", send)

    register(ways, body)
    ways.store.submit("mailer", "t")
    assert drain(ways.store, clock) == ["failed"]
    assert "return what you need" in view(ways).error.message  # type: ignore[union-attr]


def test_a_retry_of_the_task_runs_it_again_unless_it_is_once(ways: Ways, clock: Any) -> None:
    for options, calls in (({}, 2), ({"once": True}, 1)):
        name = f"t{calls}"
        mails = Counting(Client(), "sent")
        send = holdfast.step(mails, **options)

        async def body(task: Any, send: Any = send) -> Any:
            return await task.step("send", send, "ann")

        register(ways, body, name)
        ways.store.submit(name, name)
        assert drain(ways.store, clock) == ["failed"]
        ways.store.submit(name, name)  # what `holdfast retry` does
        assert drain(ways.store, clock) == ["finished" if calls == 2 else "failed"]
        assert len(mails.calls) == calls


def test_on_a_retry_of_the_task_a_check_finds_the_lost_result(ways: Ways, clock: Any) -> None:
    fn = Counting(Client())
    pay = holdfast.step(fn, check=lambda: "receipt 7")

    async def body(task: Any) -> Any:
        return await task.step("pay", pay)

    register(ways, body)
    ways.store.submit("mailer", "t")
    assert drain(ways.store, clock) == ["failed"]
    ways.store.submit("mailer", "t")
    assert drain(ways.store, clock) == ["finished"]
    assert len(fn.calls) == 1
    assert view(ways).result == "receipt 7"


def test_a_parent_is_not_retried_for_a_step_of_its_child(ways: Ways, clock: Any) -> None:
    fn, runs = Counting(Client()), list[int]()

    async def child(task: Any) -> Any:
        return await task.step("send", fn)

    async def parent(task: Any) -> Any:
        runs.append(1)
        return await task.run_child("child", "kid")

    register(ways, child, "child")
    register(ways, parent, "parent")
    ways.store.submit("parent", "t")
    assert drain(ways.store, clock) == ["failed"]
    assert (len(fn.calls), runs) == (1, [1])
    ways.store.resolve("kid", "send", result="sent")
    drain(ways.store, clock)
    assert (view(ways, "kid").status, view(ways).status) == ("finished", "finished")
    assert view(ways).result == "sent"


def test_an_agent_that_returns_what_cannot_be_stored_is_not_retried(ways: Ways, clock: Any) -> None:
    mails: list[str] = []

    async def body(task: Any) -> Any:
        mails.append("ann")  # not in a step: every run repeats it
        return Client()

    register(ways, body)
    ways.store.submit("mailer", "t")
    assert drain(ways.store, clock) == ["failed"]
    assert mails == ["ann"]
    assert "Client" in view(ways).error.message  # type: ignore[union-attr]


def test_the_command_line_retries_or_records_it(tmp_path: Any) -> None:
    url = str(tmp_path / "cli.db")
    mails = Counting(Client(), Client())

    @holdfast.agent("mailer")
    def mailer(task: holdfast.Task) -> Any:
        return task.step("send", mails)

    with holdfast.open(url) as store:
        store.submit("mailer", "t")
        assert [result.status for result in store.run_due()] == ["failed"]
        assert run("retry", url, "t").exit_code == 0
        assert [result.status for result in store.run_due()] == ["failed"]
        assert len(mails.calls) == 2
        assert run("resolve", url, "t", "send", "--result", '"mail-7"').exit_code == 0
        assert [result.status for result in store.run_due()] == ["finished"]
        assert len(mails.calls) == 2
