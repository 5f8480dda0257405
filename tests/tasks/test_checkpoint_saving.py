"""Saved checkpoints: they keep their versions, refuse a writer who has not seen the newest one, and
expire some time after the last save."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, cast

import pytest

import holdfast
from helpers.paths import ROOT
from helpers.stored.expiring_streams import Wrapped
from helpers.tasks.checkpoints import Both, saved, small
from holdfast import testing
from holdfast.backends import Backend, StreamKey
from holdfast.backends.faulty import FaultyBackend
from holdfast.backends.memory import MemoryBackend
from holdfast.log import operations as ops
from holdfast.tasks.checkpoint import AgentCheckpoint

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
DAY = 86_400.0

# -- saved and loaded ------------------------------------------------------------------------------


def test_a_saved_checkpoint_is_loaded_as_it_was_and_says_when_it_was_saved(
    store: holdfast.Store,
) -> None:
    assert store.load_checkpoint("claims-42") is None
    checkpoint = small()
    checkpoint.created_at = checkpoint.updated_at = NOON
    before = datetime.now(timezone.utc)
    assert store.save_checkpoint(checkpoint) == 1
    assert before <= checkpoint.updated_at <= datetime.now(timezone.utc)
    assert checkpoint.created_at == NOON
    assert saved(store) == checkpoint
    assert store.load_checkpoint("claims-43") is None
    assert store.for_tenant("globex").load_checkpoint("claims-42") is None


@pytest.mark.every_engine
def test_a_checkpoint_outlives_the_store_that_saved_it(durable_url: str) -> None:
    checkpoint = small()
    with holdfast.open(durable_url) as store:
        store.save_checkpoint(checkpoint)
    with holdfast.open(durable_url) as store:
        found = saved(store)
        assert found == checkpoint
        found.completed.append(0)
        assert store.save_checkpoint(found) == 2


def test_every_save_is_a_version_that_stays_readable_and_stores_what_changed(
    store: holdfast.Store,
) -> None:
    checkpoint = AgentCheckpoint(
        "claims", "claims-42", "goal", plan=[f"step {number}" for number in range(20)]
    )
    store.save_checkpoint(checkpoint)
    for number in range(20):
        checkpoint.results[str(number)] = "x" * 400
        checkpoint.completed.append(number)
        assert store.save_checkpoint(checkpoint) == number + 2
    document = store.state("checkpoint/claims-42")
    assert [document.load(version=entry.version)["completed"] for entry in document.history()] == [
        list(range(n)) for n in range(21)
    ]
    records = store._log.backend.read(document._key)
    whole = sum(entry.size for entry in document.history())
    assert sum(len(record.body) for record in records) < whole / 2


def test_going_on_with_a_saved_checkpoint_is_one_append_and_reads_nothing(
    store: holdfast.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, handle = list[str](), store._log.handle

    def watched(request: ops.Request) -> Any:
        asked.append(type(request).__name__)
        return handle(request)

    checkpoint = small()
    store.save_checkpoint(checkpoint)
    monkeypatch.setattr(store._log, "handle", watched)
    for number in range(3):
        checkpoint.completed.append(number)
        store.save_checkpoint(checkpoint)
    assert asked == ["AppendRecords"] * 3


@pytest.mark.parametrize(
    "expires", [False, True]
)  # a save looks once more at a document that can expire
def test_a_stale_checkpoint_is_refused_and_neither_it_nor_the_stored_one_changes(
    store: holdfast.Store, expires: bool
) -> None:
    store.save_checkpoint(small())
    store.state("checkpoint/claims-42").expire(3600 if expires else None)
    mine, theirs = saved(store), saved(store)
    theirs.results["0"] = "theirs"
    store.save_checkpoint(theirs)
    mine.results["0"] = "mine"
    as_it_was = copy.deepcopy(mine)
    for _ in range(2):  # asking again changes nothing
        with pytest.raises(holdfast.Conflict) as caught:
            store.save_checkpoint(mine)
        assert (caught.value.expected, caught.value.actual) == (2, 3)
    assert mine == as_it_was
    again = saved(store)
    assert again == theirs
    again.results["0"] = "mine"
    assert store.save_checkpoint(again) == 4


def test_two_programs_that_begin_the_same_task_do_not_overwrite_each_other(
    store: holdfast.Store,
) -> None:
    first, second = small(), small()
    second.plan = ["something else"]
    store.save_checkpoint(first)
    with pytest.raises(holdfast.Conflict):
        store.save_checkpoint(second)
    with pytest.raises(holdfast.Conflict):  # it was made anew, so nobody knows what it has seen
        store.save_checkpoint(AgentCheckpoint.from_dict(first.to_dict()))
    assert saved(store) == first


def test_a_copy_has_seen_what_the_original_has_seen(store: holdfast.Store) -> None:
    checkpoint = small()
    store.save_checkpoint(checkpoint)
    twin = copy.deepcopy(checkpoint)
    twin.completed.append(0)
    assert store.save_checkpoint(twin) == 2
    with pytest.raises(holdfast.Conflict):
        store.save_checkpoint(checkpoint)


def test_what_was_seen_is_no_part_of_the_document(store: holdfast.Store) -> None:
    checkpoint = small()
    store.save_checkpoint(checkpoint)
    names = list(checkpoint.to_dict())
    assert (
        names
        == list(dataclasses.asdict(checkpoint))
        == [each.name for each in dataclasses.fields(checkpoint)]
    )
    assert AgentCheckpoint.from_dict(checkpoint.to_dict()) == checkpoint


def test_under_another_task_id_it_is_another_document(store: holdfast.Store) -> None:
    checkpoint = small()
    store.save_checkpoint(checkpoint)
    checkpoint.task_id = "claims-43"
    assert store.save_checkpoint(checkpoint) == 1
    assert saved(store, "claims-43") == checkpoint
    assert saved(store).task_id == "claims-42"
    assert store.for_tenant("globex").save_checkpoint(checkpoint) == 1


def test_a_document_that_was_deleted_and_begun_anew_is_a_conflict_at_the_same_version(
    store: holdfast.Store,
) -> None:
    checkpoint = small()
    store.save_checkpoint(checkpoint)
    assert store.state("checkpoint/claims-42").delete()
    assert store.load_checkpoint("claims-42") is None
    anew = small()
    assert store.save_checkpoint(anew) == 1
    with pytest.raises(holdfast.Conflict):
        store.save_checkpoint(checkpoint)
    assert saved(store) == anew


def test_a_cleared_document_may_be_begun_anew(store: holdfast.Store) -> None:
    store.save_checkpoint(small())
    document = store.state("checkpoint/claims-42")
    document.clear()
    assert store.load_checkpoint("claims-42") is None
    checkpoint = small()
    assert store.save_checkpoint(checkpoint) == 3
    assert saved(store) == checkpoint


@pytest.mark.parametrize(
    "value", [3, ["a"], {"a": 1}, {"agent_id": "a", "task_id": "t", "goal": "g", "plan": "secret"}]
)
def test_something_else_under_the_id_of_a_checkpoint_is_reported_with_its_place(
    value: object,
) -> None:
    with holdfast.open("memory://") as store:
        store.state("checkpoint/claims-42").save(value)
        with pytest.raises(
            holdfast.errors.SchemaMismatch, match="state 'checkpoint/claims-42'"
        ) as caught:
            store.load_checkpoint("claims-42")
        assert caught.value.version == 1
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("task_id", ["", "a\0b", "x" * 513, 7])
def test_an_id_that_no_task_can_have_is_refused(task_id: Any) -> None:
    with holdfast.open("memory://") as store:
        with pytest.raises(holdfast.errors.InvalidId):
            store.load_checkpoint(task_id)
        checkpoint = small()
        checkpoint.task_id = task_id
        with pytest.raises(holdfast.errors.InvalidId):
            store.save_checkpoint(checkpoint)


def test_what_cannot_be_written_leaves_the_stored_one_alone(store: holdfast.Store) -> None:
    checkpoint = small()
    store.save_checkpoint(checkpoint)
    checkpoint.results["0"] = cast(Any, {1, 2})
    with pytest.raises(holdfast.errors.NotSerializable):
        store.save_checkpoint(checkpoint)
    assert saved(store).results == {}
    checkpoint.results["0"] = [1, 2]
    assert store.save_checkpoint(checkpoint) == 2


@pytest.mark.every_engine
def test_async_code_saves_and_loads_the_same_and_is_refused_the_same(store: holdfast.Store) -> None:
    async def scene() -> None:
        checkpoint, aio = small(), store.aio
        assert await aio.load_checkpoint("claims-42") is None
        saving = aio.save_checkpoint(checkpoint)
        checkpoint.discoveries.append("later")  # the document was taken when it was called
        assert await saving == 1
        found = await aio.load_checkpoint("claims-42")
        assert found is not None and found.discoveries == []
        assert found.updated_at == checkpoint.updated_at
        assert await aio.save_checkpoint(checkpoint) == 2
        with pytest.raises(holdfast.Conflict):
            await aio.save_checkpoint(found)

    asyncio.run(scene())
    assert saved(store).discoveries == ["later"]


def test_a_loop_that_loads_again_after_an_error_loses_nothing_on_a_backend_that_fails() -> None:
    def begin() -> AgentCheckpoint:
        return AgentCheckpoint(
            "claims", "claims-42", "count", plan=[str(number) for number in range(25)]
        )

    injected = 0
    for seed in range(8):
        faulty = FaultyBackend(
            MemoryBackend(), seed=seed, lost_answer=0.1, lost_request=0.1, unavailable=0.1
        )
        with holdfast.open(faulty) as store:
            checkpoint = begin()
            while len(checkpoint.completed) < 25:
                number = len(checkpoint.completed)
                checkpoint.results[str(number)] = number * number
                checkpoint.completed.append(number)
                acknowledged = number
                try:
                    store.save_checkpoint(checkpoint)
                except holdfast.Retryable:
                    found = None
                    while found is None:
                        try:
                            found = store.load_checkpoint("claims-42") or begin()
                        except holdfast.Retryable:
                            continue
                    assert len(found.completed) >= acknowledged
                    checkpoint = found
            injected += faulty.injected["lost_answer"]
            with holdfast.open(faulty.inner) as calm:
                assert saved(calm).results == {str(number): number * number for number in range(25)}
    assert injected


# -- how long it is kept ---------------------------------------------------------------------------


def expiry(store: holdfast.Store, task_id: str = "claims-42") -> float | None:
    """How long the document has still to live."""
    head = store._log.backend.head(StreamKey("default", "state", f"checkpoint/{task_id}"))
    assert head is not None
    return None if head.fields.expires_at is None else head.fields.expires_at - head.now


def test_a_checkpoint_is_kept_for_seven_days_after_its_last_save(both: Both) -> None:
    with testing.fake_clock() as clock:
        checkpoint = small()
        both.save(checkpoint)
        assert expiry(both.store) == pytest.approx(7 * DAY)
        clock.advance(6 * DAY)
        both.save(checkpoint)
        clock.advance(7 * DAY - 1)
        assert both.load("claims-42") == checkpoint
        clock.advance(0.08 * DAY)
        assert both.load("claims-42") is None
        assert list(both.store.states()) == []
        assert both.store.sweep().deleted == [], "for a day it can be brought back"
        clock.advance(DAY)
        [gone] = both.store.sweep().deleted
        assert (gone.kind, gone.id) == ("state", "checkpoint/claims-42")
        assert both.load("claims-42") is None


@pytest.mark.parametrize(
    ("ttl", "seconds"),
    [(3600, 3600), (0.5, 0.5), (timedelta(days=30), 30 * DAY), (0, 0), (None, None)],
)
def test_the_time_to_live_is_seconds_or_a_timedelta_or_none(
    both: Both, ttl: Any, seconds: float | None
) -> None:
    with testing.fake_clock():
        both.save(small(), ttl=ttl)
        assert expiry(both.store) == (None if seconds is None else pytest.approx(seconds, abs=1e-3))
        assert (both.load("claims-42") is None) is (ttl == 0)


@pytest.mark.parametrize("ttl", [-1, float("nan"), "7 days", True])
def test_a_time_to_live_that_makes_no_sense_is_refused(both: Both, ttl: Any) -> None:
    with pytest.raises(ValueError, match="ttl must be seconds"):
        both.save(small(), ttl=ttl)
    assert both.load("claims-42") is None


def test_each_save_sets_how_long_it_is_kept(both: Both) -> None:
    with testing.fake_clock() as clock:
        checkpoint = small()
        for ttl, left in ((3600, 3600), (60, 60), (None, None), (120, 120), (7200, 7272)):
            both.save(checkpoint, ttl=ttl)
            assert expiry(both.store) == (None if left is None else pytest.approx(left))
        clock.advance(30)
        both.save(checkpoint, ttl=7200)
        assert expiry(both.store) == pytest.approx(7242), "late enough: it need not move"
        clock.advance(60)
        both.save(checkpoint, ttl=7200)
        assert expiry(both.store) == pytest.approx(7272)


def test_most_saves_leave_the_expiry_as_it_is(store: holdfast.Store) -> None:
    """To move it costs some engines two further requests."""
    appended: list[ops.AppendRecords] = []
    handle = store._log.handle

    def watched(request: ops.Request) -> Any:
        if isinstance(request, ops.AppendRecords):
            appended.append(request)
        return handle(request)

    with testing.fake_clock() as clock, pytest.MonkeyPatch.context() as patched:
        patched.setattr(store._log, "handle", watched)
        checkpoint = small()
        for _ in range(100):
            store.save_checkpoint(checkpoint)
            clock.advance(60)
    assert len(appended) == 100
    assert len([request for request in appended if request.fields is not None]) == 2


def test_an_expired_checkpoint_may_be_saved_on_if_no_other_was_saved_meanwhile(both: Both) -> None:
    with testing.fake_clock() as clock:
        paused, other = small(), small()
        both.save(paused, ttl=60)
        clock.advance(61)
        assert both.load("claims-42") is None
        paused.completed.append(0)
        assert both.save(paused) == 2
        assert both.load("claims-42") == paused
        clock.advance(8 * DAY)
        other.goal = "Begin again"
        assert both.save(other) == 3, "for a new one there is nothing"
        assert both.load("claims-42") == other
        with pytest.raises(holdfast.Conflict):
            both.save(paused)
        assert both.load("claims-42") == other


def test_a_swept_checkpoint_may_be_saved_on_if_no_other_was_saved_meanwhile(both: Both) -> None:
    with testing.fake_clock() as clock:
        paused, other = small(), small()
        both.save(paused)
        stale = both.load("claims-42")
        clock.advance(9 * DAY)
        assert len(both.store.sweep().deleted) == 1
        paused.completed.append(0)
        assert both.save(paused) == 1
        assert both.load("claims-42") == paused
        for late in (stale, other):
            with pytest.raises(holdfast.Conflict):
                both.save(late)
        clock.advance(9 * DAY)
        assert len(both.store.sweep().deleted) == 1
        assert both.save(other) == 1, "for a new one there is nothing"
        assert both.load("claims-42") == other


def test_a_checkpoint_may_be_saved_after_its_expiry_was_changed_by_hand(both: Both) -> None:
    with testing.fake_clock():
        mine = small()
        both.save(mine)
        theirs = both.load("claims-42")
        document = both.store.state("checkpoint/claims-42")
        for ttl in (99, None, 0):
            document.expire(ttl)
        mine.results["0"] = "mine"
        assert both.save(mine) == 5
        assert both.load("claims-42") == mine and expiry(both.store) == pytest.approx(7.07 * DAY)
        document.expire(99)
        theirs.results["0"] = "theirs"
        for _ in range(2):
            with pytest.raises(holdfast.Conflict):
                both.save(theirs)
        assert both.load("claims-42") == mine
        document.clear()
        with pytest.raises(holdfast.Conflict):
            both.save(mine)


@pytest.mark.every_engine
def test_of_two_processes_that_hold_the_same_checkpoint_one_saves_it(durable_url: str) -> None:
    with holdfast.open(durable_url) as one, holdfast.open(durable_url) as other:
        one.save_checkpoint(small())
        mine, theirs = saved(one), saved(other)
        other.state("checkpoint/claims-42").expire(3600)
        theirs.results["0"] = "theirs"
        other.save_checkpoint(theirs)
        mine.results["0"] = "mine"
        with pytest.raises(holdfast.Conflict):
            one.save_checkpoint(mine)
        assert saved(one) == theirs


def test_a_deleted_checkpoint_is_gone_and_may_be_begun_anew(both: Both) -> None:
    assert both.delete("claims-42") is False
    checkpoint = small()
    both.save(checkpoint)
    with both.store.task("claims-43", goal="of the task"):
        pass
    both.save(small("claims-43"))
    assert both.delete("claims-42", reason="done") is True
    assert both.load("claims-42") is None
    assert both.delete("claims-42") is False
    with pytest.raises(holdfast.Conflict):  # whoever deleted it meant it
        both.save(checkpoint)
    assert both.save(small()) == 1
    assert both.delete("claims-43") is True
    assert both.load("claims-43").goal == "of the task", "the task is another thing"


def test_an_expired_checkpoint_can_be_deleted(both: Both) -> None:
    both.save(small(), ttl=0)
    assert (both.delete("claims-42"), both.delete("claims-42")) == (True, False)
    assert both.store.health().streams == {"audit": 1}


def test_the_task_is_loaded_when_its_document_has_expired(both: Both) -> None:
    with both.store.task("claims-42", goal="of the task"):
        pass
    both.save(small(), ttl=0)
    assert both.load("claims-42").goal == "of the task"


@pytest.mark.parametrize("ahead", [-3650 * DAY, 3650 * DAY])
def test_it_is_kept_by_the_clock_of_the_engine_not_by_ours(ahead: float) -> None:
    backend = Wrapped(MemoryBackend())
    backend.ahead = ahead
    with holdfast.open(cast(Backend, backend)) as store:
        checkpoint = small()
        assert store.save_checkpoint(checkpoint, ttl=3600) == 1
        assert expiry(store) == pytest.approx(3600, abs=60)
        checkpoint.completed.append(0)
        store.save_checkpoint(checkpoint, ttl=7200)
        assert expiry(store) == pytest.approx(7200, abs=200)
        found = saved(store)
        assert found == checkpoint
        store.save_checkpoint(found, ttl=60)
        assert expiry(store) == pytest.approx(60, abs=60)
        backend.ahead += 121
        assert store.load_checkpoint("claims-42") is None
        store.save_checkpoint(small(), ttl=3600)
        assert expiry(store) == pytest.approx(3600, abs=60)


# -- beside tasks ----------------------------------------------------------------------------------


class Killed(KeyboardInterrupt):
    """Stands for the death of the process: no `except Exception` sees it."""


class World:
    """What is outside of the store: what was really done, and when the process dies."""

    def __init__(self, plan: list[Any], *, dies_at: int, after_the_effect: bool) -> None:
        self.plan, self.dies_at, self.after_the_effect = plan, dies_at, after_the_effect
        self.planned, self.done, self.asked, self.contexts = (
            0,
            list[str](),
            list[str](),
            list[str](),
        )

    def generate_plan(self, goal: str) -> list[Any]:
        self.planned += 1
        return self.plan

    def execute_step(self, item: Any, context: str) -> dict[str, Any]:
        name = name_of(item)
        self.contexts.append(context)
        dies = self.plan.index(item) == self.dies_at
        if dies:
            self.dies_at = -1
        if dies and not self.after_the_effect:
            raise Killed
        self.done.append(name)
        if dies:
            raise Killed
        return {"did": name}

    def check_operation_status(self, item: Any) -> dict[str, Any] | None:
        name = name_of(item)
        self.asked.append(name)
        return {"did": name} if name in self.done else None


def name_of(item: Any) -> str:
    return item if isinstance(item, str) else str(item["name"])


def build_resume_context(checkpoint: AgentCheckpoint) -> str:
    return f"{checkpoint.goal}: {checkpoint.completed} of {len(checkpoint.plan)}"


def compile_final_result(checkpoint: AgentCheckpoint) -> dict[str, Any]:
    return {
        "of": checkpoint.goal,
        "all": [checkpoint.results[str(i)] for i in range(len(checkpoint.plan))],
    }


def run_with_checkpoints(store: holdfast.Store, world: World, task_id: str, goal: str) -> Any:
    """The loop that many have written by hand, with the two functions changed."""
    checkpoint = store.load_checkpoint(task_id)
    if checkpoint is None:
        checkpoint = AgentCheckpoint("claims", task_id, goal, plan=world.generate_plan(goal))
        store.save_checkpoint(checkpoint)
    for i, item in enumerate(checkpoint.plan):
        if i in checkpoint.completed:
            continue
        result = world.check_operation_status(item)
        if result is None:
            result = world.execute_step(item, build_resume_context(checkpoint))
        checkpoint.results[str(i)] = result
        checkpoint.completed.append(i)
        store.save_checkpoint(checkpoint)
    return compile_final_result(checkpoint)


def run_as_a_task(store: holdfast.Store, world: World, task_id: str, goal: str) -> Any:
    """The same with a task."""

    def execute(item: Any) -> dict[str, Any]:
        return world.execute_step(item, build_resume_context(task.checkpoint()))

    step = holdfast.step(execute, check=world.check_operation_status)
    with store.task(task_id, goal=goal, agent="claims") as task:
        task.make_plan(world.generate_plan, goal)
        for item in task.remaining():
            task.step(item, step, item)
        return task.finish(lambda: compile_final_result(task.checkpoint()))


PLAN = ["read", {"name": "compare", "pages": 2}, "pay", "write"]


@pytest.mark.slow
@pytest.mark.parametrize("run", [run_with_checkpoints, run_as_a_task])
@pytest.mark.parametrize("after_the_effect", [False, True])
@pytest.mark.parametrize("dies_at", range(len(PLAN)))
def test_loop_and_task_give_the_same_result_wherever_they_are_killed(
    url: str, run: Any, dies_at: int, after_the_effect: bool
) -> None:
    world = World(PLAN, dies_at=dies_at, after_the_effect=after_the_effect)
    with holdfast.open(url) as store:
        with pytest.raises(Killed):
            run(store, world, "claims-42", "Settle")
        asked_before = len(world.asked)
        names = [name_of(item) for item in PLAN]
        for _ in range(2):  # the second time there is nothing left to do
            assert run(store, world, "claims-42", "Settle") == {
                "of": "Settle",
                "all": [{"did": name} for name in names],
            }
        assert world.done == names  # each effect once, also the one that was not noted
        assert world.planned == 1
        found = saved(store)
        assert (found.agent_id, found.goal, found.plan, found.completed) == (
            "claims",
            "Settle",
            PLAN,
            [0, 1, 2, 3],
        )
        assert found.results == {str(i): {"did": name} for i, name in enumerate(names)}
        if (
            run is run_as_a_task
        ):  # the loop asks about everything, the task only about what is in doubt
            assert (asked_before, world.asked) == (0, [names[dies_at]])
        # The step that died is told the same the second time, if it runs a second time.
        told = [f"Settle: {list(range(i))} of 4" for i in range(len(PLAN))]
        again = [] if after_the_effect else [told[dies_at]]
        assert world.contexts == [*told[: dies_at + 1], *again, *told[dies_at + 1 :]]


def test_old_code_looks_at_a_task_and_at_its_document_once_there_is_one(
    store: holdfast.Store,
) -> None:
    with store.task("claims-42", goal="Settle", agent="claims") as task:
        task.make_plan(["read", "pay"])
        task.step("read", lambda: "fine")
        task.step("not of the plan", lambda: "beside")
        task.decide("pay in full", why="the papers are complete")
        task.discover("they answer within a day")
        assert task.checkpoint().completed == [0]
    view = store.get_task("claims-42")
    assert view is not None
    checkpoint = saved(store)
    assert checkpoint == view.checkpoint()
    assert (checkpoint.completed, checkpoint.results) == ([0], {"0": "fine"})
    assert checkpoint.decisions == [{"what": "pay in full", "why": "the papers are complete"}]
    assert checkpoint.discoveries == ["they answer within a day"]
    assert asyncio.run(store.aio.load_checkpoint("claims-42")) == checkpoint

    own = AgentCheckpoint.from_dict(checkpoint.to_dict())
    own.discoveries.append("only in the document")
    assert store.save_checkpoint(own) == 1
    assert saved(store) == own
    assert store.delete_checkpoint("claims-42") is True
    assert saved(store) == checkpoint


def test_a_document_with_finished_steps_becomes_a_task_that_does_not_run_them_again(
    store: holdfast.Store,
) -> None:
    checkpoint = AgentCheckpoint("claims", "claims-42", "Settle", plan=PLAN, completed=[0, 2])
    checkpoint.results = {"0": {"did": "read"}, "2": {"did": "pay"}}
    store.save_checkpoint(checkpoint)

    with store.task(checkpoint.task_id, goal=checkpoint.goal, agent=checkpoint.agent_id) as task:
        task.make_plan(checkpoint.plan)
        for i in checkpoint.completed:
            task.step(
                checkpoint.plan[i], lambda item, i=i: checkpoint.results[str(i)], checkpoint.plan[i]
            )
    store.delete_checkpoint("claims-42")

    world = World(PLAN, dies_at=-1, after_the_effect=False)
    result = run_as_a_task(store, world, "claims-42", "Settle")
    assert [each["did"] for each in result["all"]] == ["read", "compare", "pay", "write"]
    assert (world.done, world.planned) == (["compare", "write"], 0)


@pytest.mark.slow
def test_the_agent_among_the_examples_pays_once_however_it_is_killed(tmp_path: Path) -> None:
    example, folder = ROOT / "examples" / "claims_agent.py", tmp_path / "a new" / "folder"
    said: list[str] = []
    for last in [
        "look up the policy",
        "paid 120",
        "write the letter",
        "finished: 4 steps",
    ]:  # then it is killed
        with subprocess.Popen(
            [sys.executable, example, folder], stdout=subprocess.PIPE, text=True
        ) as program:
            assert program.stdout is not None
            for line in program.stdout:
                said.append(line.rstrip("\n"))
                if said[-1] == last:
                    program.kill()
                    break
        assert said[-1] == last
    assert said.count("paid 120") == 1
    assert said.count("(resuming)") == 3
    assert said.count("read the claim") == 1
    assert len((folder / "payments.jsonl").read_text().splitlines()) == 1
