"""Forks with another input, or with other results of completed steps; plain and async."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from helpers.sync_and_async import Ways, view
from holdfast import NotFound, Store
from holdfast.errors import ReplayMismatch


@holdfast.step(once=True)
def assess(claim: str) -> int:
    return 30


async def settle(task: Any) -> Any:
    """Two steps; what the second one does depends on the first."""
    amount = await task.step("assess", assess, task.input)
    return await task.finish(await task.step("pay", lambda amount: f"paid {amount}", amount))


def run(ways: Ways, id: str, **options: Any) -> Any:
    async def body() -> Any:
        async with ways.task(id, **options) as task:
            return await settle(task)

    return ways.run(body())


def fork(ways: Ways, id: str, **options: Any) -> None:
    async def body() -> None:
        await ways.task("t").fork(id, **options)

    ways.run(body())


def version_after(ways: Ways, path: str) -> int:
    return next(step.version for step in view(ways).steps if step.path == path)


@pytest.mark.every_engine
def test_a_fork_continues_with_another_result_and_the_original_keeps_its_own(ways: Ways) -> None:
    assert run(ways, "t", input="C-1") == "paid 30"
    fork(ways, "u", version=version_after(ways, "assess"), results={"assess": 50}, by="ann")
    assert run(ways, "u") == "paid 50"
    assert run(ways, "t") == "paid 30"
    step = view(ways, "u").steps[0]
    assert (step.result, step.how) == (50, "resolved")
    [changed] = [e for e in ways.store.task("u").history() if e.type == "step.resolved"]
    assert (changed.data["by"], changed.by) == ("ann", "ann")
    assert ways.store.task("t").history()[-1].by == "ann"


def test_a_fork_from_the_start_runs_with_another_input(ways: Ways) -> None:
    run(ways, "t", input="C-1")
    fork(ways, "u", version=1, input="C-2")
    assert view(ways, "u").input == "C-2" and view(ways).input == "C-1"
    assert run(ways, "u") == "paid 30"
    assert view(ways, "u").steps[0].arguments == {"claim": "C-2"}


def test_finished_steps_are_not_reused_for_another_input(ways: Ways) -> None:
    run(ways, "t", input="C-1")
    fork(ways, "u", version=version_after(ways, "assess"), input="C-2")
    with pytest.raises(ReplayMismatch, match="other arguments"):
        run(ways, "u")


def test_a_fork_of_a_changed_fork_has_the_change(ways: Ways) -> None:
    run(ways, "t", input="C-1")
    fork(ways, "u", version=version_after(ways, "assess"), input="C-1", results={"assess": 7})

    async def again() -> None:
        await ways.task("u").fork("w")

    ways.run(again())
    assert run(ways, "w") == "paid 7"


def test_a_repeated_fork_is_one_and_another_change_is_refused(store: Store) -> None:
    with store.task("t", input=1) as task:
        task.step("a", lambda: 1)
    for _ in range(2):
        store.task("t").fork("u", results={"a": 2}, input=2)
    for other in ({"input": 3}, {"results": {"a": 2}}, {}):
        with pytest.raises(holdfast.HoldfastError, match="already exists"):
            store.task("t").fork("u", version=store.task("t").version(), **other)
    with pytest.raises(holdfast.HoldfastError, match="already exists"):
        store.task("t").fork("u", results={"a": 3}, input=2)
    assert store.task("u").view().steps[0].result == 2


def test_a_change_that_does_not_fit_is_refused_and_makes_no_fork(store: Store) -> None:
    with store.task("t") as task:
        task.step("assess", assess, "C-1")
        task.step("free", lambda: "any")
        chat = task.conversation("chat")
        chat.append({"role": "user", "content": "hi"})
        task.reply(chat, lambda messages: {"role": "assistant", "content": "yes"})
    refused: list[tuple[dict[str, object], type[Exception], str]] = [
        ({"assess": "thirty"}, TypeError, "assess"),
        ({"nothing": 1}, NotFound, "no completed step 'nothing'"),
        ({view_path(store): "no"}, ValueError, "fork the conversation"),
        ({"free": "x" * 70_000}, ValueError, "at most 65536 bytes"),
    ]
    for results, kind, text in refused:
        with pytest.raises(kind, match=text):
            store.task("t").fork("u", results=results)
        assert store.get_task("u") is None


def view_path(store: Store) -> str:
    found = store.get_task("t")
    assert found is not None
    return next(step.path for step in found.steps if step.reply is not None)


def test_a_changed_result_is_redacted_like_any_other(tmp_path: Any) -> None:
    with holdfast.open("memory://", redact=True) as store:
        with store.task("t", input="x") as task:
            task.step("a", lambda: "b")
        store.task("t").fork("u", results={"a": "ann@example.com"}, input="bob@example.com")
        assert "example.com" not in str([event.data for event in store.task("u").history()])
