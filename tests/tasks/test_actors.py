"""Who did it: `by` is recorded with what people do to tasks and data, and the audit shows it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast import Store, keys


def fail(task: holdfast.Task) -> None:
    raise ValueError("no")


def actors(store: Store, id: str, kind: str = "task") -> dict[str, str | None]:
    """Who did what, by the words of the audit; the last one counts."""
    return {entry.what: entry.by for entry in store.audit(id, kind=kind)}


@pytest.mark.every_engine
@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_people_do_to_a_task_names_them(store: Store, asynchronous: bool) -> None:
    @holdfast.agent("clerk", max_attempts=1)
    def clerk(task: holdfast.Task) -> str:
        if task.view().runs == 1:
            raise ValueError("not yet")
        task.ask("payout", "May this be paid?", returns=bool)
        task.wait_for("paid")
        return "paid"

    async def call(name: str, *args: Any, **options: Any) -> Any:
        if asynchronous:
            return await getattr(store.aio, name)(*args, **options)
        return getattr(store, name)(*args, **options)

    async def program() -> None:
        await call("submit", "clerk", "t", by="ann")
        store.run_due()
        assert [info.status for info in store.tasks()] == ["failed"]
        await call("retry", "t", by="bob")
        store.run_due()
        await call("answer", "t", "payout", True, by="cleo")
        store.run_due()
        await call("signal", "t", "paid", by="dan")
        task = store.aio.task("t") if asynchronous else store.task("t")
        cancelled = task.cancel("a test", by="eve")
        if asynchronous:
            await cancelled

    asyncio.run(program()) if asynchronous else _drive(program())
    found = actors(store, "t")
    assert found["created"] == "ann"
    assert found["queued for a worker"] == "bob"
    assert found["question answered"] == "cleo"
    assert found["signal received"] == "dan"
    assert found["cancelled"] == "eve"
    assert found["run failed"] is None


def _drive(program: Any) -> None:
    with pytest.raises(StopIteration):
        program.send(None)


@pytest.mark.every_engine
def test_deleting_names_who_did_it(store: Store) -> None:
    store.run(lambda task: None, "t")
    store.conversation("c").append({"role": "user", "content": "hello"})
    store.stream("s").append(("n", 1))
    store.state("d").save({"a": 1})
    things = (store.task("t"), store.conversation("c"), store.stream("s"), store.state("d"))
    for thing in things:
        assert thing.delete(by="ann")
    for kind, name in (("task", "t"), ("conversation", "c"), ("stream", "s"), ("state", "d")):
        assert actors(store, name, kind)["deletion decided"] == "ann"


def test_erasing_names_who_did_it() -> None:
    with holdfast.open("memory://", key=keys.generate()) as store:
        store.stream("s").append(("n", 1))
        store.conversation("c", subject="person-7").append({"role": "user", "content": "hello"})
        store.erase(store.stream("s"), by="ann")
        with holdfast.correlate("req-1", actor="bob"):
            store.erase(subject="person-7")
        asyncio.run(_erase_async(store))
        assert actors(store, "s", "stream")["erasure decided"] == "ann"
        assert actors(store, "c", "conversation")["erasure decided"] == "bob"
        assert actors(store, "s2", "stream")["erasure decided"] == "cleo"


async def _erase_async(store: Store) -> None:
    await store.aio.stream("s2").append(("n", 1))
    await store.aio.erase(store.aio.stream("s2"), by="cleo")


def test_purging_names_who_did_it() -> None:
    with holdfast.open("memory://") as store:
        with store.task("t", ttl=0) as task:
            task.finish()
        assert [purged.id for purged in store.sweep(grace=0, by="ann").deleted] == ["t"]
        assert actors(store, "t")["deletion decided"] == "ann"


def test_the_actor_of_a_block_is_the_default_everywhere() -> None:
    def ask(task: holdfast.Task) -> bool:
        return task.ask("payout", "May this be paid?", returns=bool)

    with holdfast.open("memory://") as store, holdfast.correlate("req-1", actor="ann"):
        with pytest.raises(holdfast.Suspended):
            store.run(ask, "t")
        store.answer("t", "payout", True)
        store.task("t").cancel("a test")
        view = store.get_task("t")
        assert view is not None and view.cancellation is not None
        assert (view.questions[0].by, view.cancellation.by) == ("ann", "ann")
        store.run(lambda task: None, "t3")
        store.task("t3").delete(by="bob")
        assert actors(store, "t3")["deletion decided"] == "bob"


def test_a_name_must_be_a_valid_id() -> None:
    with holdfast.open("memory://") as store:
        with pytest.raises(ValueError):
            store.run(fail, "t")
        for call in (
            lambda: store.retry("t", by=""),
            lambda: store.signal("t", "x", by=""),
            lambda: store.task("t").cancel(by=""),
            lambda: store.task("t").delete(by=""),
            lambda: store.sweep(by=""),
        ):
            with pytest.raises(holdfast.errors.InvalidId, match="by"):
                call()


def test_a_task_is_retried_unless_it_has_ended_runs_or_has_no_agent() -> None:
    with holdfast.open("memory://") as store:
        with pytest.raises(ValueError, match="no"):
            store.run(fail, "t")
        store.retry("t", budget=holdfast.Budget(calls=3))
        view = store.get_task("t")
        assert view is not None
        assert (view.status, view.budget) == ("pending", holdfast.Budget(calls=3))
        with store.task("t"), pytest.raises(holdfast.errors.LeaseHeld):
            store.retry("t")
        with store.task("plain"):
            pass
        with pytest.raises(ValueError, match="has no agent"):
            store.retry("plain")
        store.task("plain").cancel()
        with pytest.raises(holdfast.errors.TaskEnded):
            store.retry("plain")
        with pytest.raises(holdfast.errors.NotFound):
            store.retry("nowhere")
        with pytest.raises(TypeError, match="budget"):
            store.retry("t", budget=7)  # type: ignore[arg-type]
