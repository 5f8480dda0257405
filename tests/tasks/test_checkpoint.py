"""Checkpoints: a document that comes back exactly, keeps its versions, and refuses a writer who has
not seen the newest one."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from helpers.paths import ROOT
from holdfast.backends.faulty import FaultyBackend
from holdfast.backends.memory import MemoryBackend
from holdfast.log import operations as ops
from holdfast.log.log import Log
from holdfast.tasks.checkpoint import AgentCheckpoint, make_checkpoint, save_checkpoint
from holdfast.tasks.state.view import Note, StepInfo, StepStatus, TaskView

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


def small(task_id: str = "claims-42") -> AgentCheckpoint:
    return AgentCheckpoint(
        "claims", task_id, "Draft the checklist", plan=["read", {"name": "write", "pages": 2}]
    )


# -- the document ----------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)
offsets = st.integers(-86_399, 86_399).map(lambda seconds: timezone(timedelta(seconds=seconds)))
times = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29), timezones=offsets | st.timezones())
checkpoints = st.builds(
    AgentCheckpoint,
    agent_id=texts,
    task_id=texts,
    goal=texts,
    plan=st.lists(texts | st.dictionaries(texts, values, max_size=3), max_size=5),
    completed=st.lists(st.integers(0, 50), max_size=5),
    results=st.dictionaries(texts, values, max_size=5),
    decisions=st.lists(values, max_size=3),
    discoveries=st.lists(values, max_size=3),
    created_at=times,
    updated_at=times,
)


@pytest.mark.slow
@given(checkpoints)
@settings(deadline=None)
def test_every_checkpoint_comes_back_from_its_dict_also_through_json(
    checkpoint: AgentCheckpoint,
) -> None:
    document = checkpoint.to_dict()
    assert AgentCheckpoint.from_dict(document) == checkpoint
    assert AgentCheckpoint.from_dict(json.loads(json.dumps(document))) == checkpoint
    assert AgentCheckpoint.from_dict(document).to_dict() == document


def test_the_dict_has_the_fields_by_name_and_the_times_as_text() -> None:
    checkpoint = small()
    checkpoint.created_at = checkpoint.updated_at = NOON.astimezone(timezone(timedelta(hours=2)))
    assert checkpoint.to_dict() == {
        "agent_id": "claims",
        "task_id": "claims-42",
        "goal": "Draft the checklist",
        "plan": ["read", {"name": "write", "pages": 2}],
        "completed": [],
        "results": {},
        "decisions": [],
        "discoveries": [],
        "created_at": "2026-03-01T12:00:00+00:00",
        "updated_at": "2026-03-01T12:00:00+00:00",
    }


def test_a_new_checkpoint_was_made_now_and_shares_nothing_with_another() -> None:
    before = datetime.now(timezone.utc)
    one, other = small(), small()
    assert before <= one.created_at <= one.updated_at <= datetime.now(timezone.utc)
    one.completed.append(0)
    one.results["0"] = "ok"
    assert (other.completed, other.results) == ([], {})


def test_a_dict_shares_nothing_with_its_checkpoint() -> None:
    checkpoint = small()
    document = checkpoint.to_dict()
    again = AgentCheckpoint.from_dict(document)
    cast(dict[str, Any], checkpoint.plan[1])["pages"] = 3
    document["plan"].append("more")
    document["plan"][1]["pages"] = 4
    assert again.plan == ["read", {"name": "write", "pages": 2}]
    assert checkpoint.plan == ["read", {"name": "write", "pages": 3}]


@pytest.mark.parametrize(
    "stored",
    [
        *(
            "2026-03-01T12:00:00",
            "2026-03-01 12:00:00.000",
            "2026-03-01T12:00:00Z",
            "2026-03-01T14:00:00+02:00",
        ),
        *(NOON.timestamp(), int(NOON.timestamp()), NOON, NOON.replace(tzinfo=None)),
    ],
)
def test_a_document_of_an_older_program_may_write_its_times_in_other_ways(stored: object) -> None:
    document = {"agent_id": "a", "task_id": "t", "goal": "g", "created_at": stored}
    assert AgentCheckpoint.from_dict(document).created_at == NOON


@pytest.mark.parametrize("stored", [None, True, "yesterday", "2026-03-01", 1e40, [2026]])
def test_what_is_not_a_time_is_refused_by_name(stored: object) -> None:
    with pytest.raises(ValueError, match="created_at must be ISO text"):
        AgentCheckpoint.from_dict(
            {"agent_id": "a", "task_id": "t", "goal": "g", "created_at": stored}
        )


def test_a_time_without_a_zone_is_refused_when_made_and_when_written() -> None:
    naive = NOON.replace(tzinfo=None)
    with pytest.raises(
        ValueError, match=r"created_at must have a time zone.*datetime\.now\(timezone\.utc\)"
    ):
        AgentCheckpoint("a", "t", "g", created_at=naive)
    checkpoint = small()
    checkpoint.updated_at = naive
    with pytest.raises(ValueError, match="updated_at must have a time zone"):
        checkpoint.to_dict()
    checkpoint.updated_at = cast(Any, "2026-03-01")
    with pytest.raises(TypeError, match="updated_at must be a datetime, got str"):
        checkpoint.to_dict()
    with pytest.raises(ValueError, match="in the years"):
        AgentCheckpoint(
            "a", "t", "g", created_at=datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))
        )


def test_keys_that_no_checkpoint_has_are_refused_and_named_before_they_are_lost() -> None:
    document = {**small().to_dict(), "completed_steps": [0], "retries": 2}
    with pytest.raises(
        ValueError, match=r"unknown keys 'completed_steps', 'retries'; rename .* completed, results"
    ) as caught:
        AgentCheckpoint.from_dict(document)
    assert "claims-42" not in str(caught.value)
    with pytest.raises(ValueError, match="must have task_id, goal"):
        AgentCheckpoint.from_dict({"agent_id": "a"})
    with pytest.raises(TypeError, match="must be a dict, got list"):
        AgentCheckpoint.from_dict(cast(Any, [document]))


@pytest.mark.parametrize(
    ("field", "value", "place"),
    [
        ("goal", None, r"\$\.goal"),
        ("plan", ["read", 3], r"\$\.plan\[1\]"),
        ("completed", ["read"], r"\$\.completed\[0\]"),
        ("completed", [True], r"\$\.completed\[0\]"),
        ("results", ["done"], r"\$\.results"),
        ("discoveries", "a secret", r"\$\.discoveries"),
        ("results", {0: "done"}, "results"),
        ("results", {"0": ("a", "secret")}, r"results\[?.*0"),
        ("results", {"0": float("nan")}, r"results\[?.*0"),
    ],
)
def test_what_could_not_be_read_again_is_not_written_either(
    field: str, value: object, place: str
) -> None:
    checkpoint = small()
    setattr(checkpoint, field, value)
    with pytest.raises((TypeError, ValueError), match=place) as caught:
        checkpoint.to_dict()
    assert "secret" not in str(caught.value)
    with pytest.raises((TypeError, ValueError), match=place):
        AgentCheckpoint.from_dict({**small().to_dict(), field: value})


# -- of a task -------------------------------------------------------------------------------------


def step(path: str, status: StepStatus = "completed", result: Any = None) -> StepInfo:
    return StepInfo(path=path, name=path, status=status, started_at=NOON, result=result)


def view_of(plan: list[Any], steps: list[StepInfo], **fields: Any) -> TaskView:
    paths = [item if isinstance(item, str) else item["name"] for item in plan]
    usual: dict[str, Any] = {
        "id": "claims-42",
        "goal": "Draft the checklist",
        "input": None,
        "agent": "claims",
        "status": "pending",
        "plan": plan,
        "plan_paths": paths,
        "steps": steps,
        "decisions": [],
        "discoveries": [],
        "result": None,
        "error": None,
        "created_at": NOON,
        "updated_at": NOON + timedelta(minutes=5),
        "owner": None,
        "lease_until": None,
        "expires_at": None,
        "version": 9,
        "runs": 1,
        "orphaned": [],
        "drift": [],
    }
    return TaskView(**{**usual, **fields})


def test_the_checkpoint_of_a_task_has_its_plan_and_the_results_of_the_finished_items() -> None:
    decision = Note("vendor A", "cheapest with an SLA", NOON)
    view = view_of(
        ["read", {"name": "compare"}, "write", "send", "file"],
        [
            step("compare", result={"best": "A"}),
            step("read"),
            step("look up"),
            step("write", "failed"),
            step("send", "interrupted"),
        ],
        decisions=[decision, Note("no call", None, NOON)],
        discoveries=[Note("100 calls a minute", None, NOON)],
    )
    assert make_checkpoint(view) == AgentCheckpoint(
        agent_id="claims",
        task_id="claims-42",
        goal="Draft the checklist",
        plan=["read", {"name": "compare"}, "write", "send", "file"],
        completed=[0, 1],
        results={"0": None, "1": {"best": "A"}},
        decisions=[
            {"what": "vendor A", "why": "cheapest with an SLA"},
            {"what": "no call", "why": None},
        ],
        discoveries=["100 calls a minute"],
        created_at=NOON,
        updated_at=NOON + timedelta(minutes=5),
    )


def test_items_of_the_same_name_have_results_of_their_own() -> None:
    view = view_of(
        ["ask", "ask"],
        [step("ask", "failed"), step("ask#2", result="yes")],
        plan_paths=["ask", "ask#2"],
    )
    checkpoint = make_checkpoint(view)
    assert (checkpoint.completed, checkpoint.results) == ([1], {"1": "yes"})


def test_a_task_without_goal_agent_and_plan_has_an_empty_checkpoint() -> None:
    checkpoint = make_checkpoint(view_of([], [step("look up", result=1)], goal=None, agent=None))
    assert (checkpoint.goal, checkpoint.agent_id, checkpoint.plan) == ("", "", [])
    assert (checkpoint.completed, checkpoint.results) == ([], {})


def test_changing_a_checkpoint_does_not_change_the_view_that_it_was_made_from() -> None:
    view = view_of([{"name": "read"}], [step("read", result=["a"])])
    checkpoint = make_checkpoint(view)
    checkpoint.results["0"].append("b")
    cast(dict[str, Any], checkpoint.plan[0])["pages"] = 2
    assert (view.steps[0].result, view.plan) == (["a"], [{"name": "read"}])


def test_the_document_of_twenty_steps_with_small_results_is_under_10_kb() -> None:
    plan = [f"step {number}: look at the papers of one more case" for number in range(20)]
    steps = [
        step(
            name, result={"ok": True, "found": "what a person would say in a sentence or two. " * 3}
        )
        for name in plan
    ]
    notes = [Note("go on with vendor A", "cheapest with an SLA", NOON)] * 5
    checkpoint = make_checkpoint(view_of(plan, steps, decisions=notes, discoveries=notes))
    assert len(checkpoint.completed) == 20
    assert len(json.dumps(checkpoint.to_dict())) < 10_000


# -- saved and loaded ------------------------------------------------------------------------------


def saved(store: holdfast.Store, task_id: str = "claims-42") -> AgentCheckpoint:
    """What is stored, which the test knows to be there."""
    found = store.load_checkpoint(task_id)
    assert found is not None
    return found


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
    store: holdfast.Store,
) -> None:
    class Watched:
        def handle(self, request: ops.Request) -> Any:
            asked.append(type(request).__name__)
            return store._log.handle(request)

    checkpoint, asked = small(), list[str]()
    store.save_checkpoint(checkpoint)
    checkpoint.completed.append(0)
    ops.run(cast(Log, Watched()), save_checkpoint(store._log, store.tenant, checkpoint))
    assert asked == ["AppendRecords"]


@pytest.mark.every_engine
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


def test_a_cleared_document_may_be_begun_anew_and_an_expired_one_says_so(
    store: holdfast.Store,
) -> None:
    store.save_checkpoint(small())
    document = store.state("checkpoint/claims-42")
    document.clear()
    assert store.load_checkpoint("claims-42") is None
    checkpoint = small()
    assert store.save_checkpoint(checkpoint) == 3
    assert saved(store) == checkpoint
    document.expire(0)
    for again in (
        lambda: store.load_checkpoint("claims-42"),
        lambda: store.save_checkpoint(small()),
    ):
        with pytest.raises(holdfast.errors.Expired):
            again()


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
    assert checkpoint == make_checkpoint(view) == view.checkpoint()
    assert (checkpoint.completed, checkpoint.results) == ([0], {"0": "fine"})
    assert checkpoint.decisions == [{"what": "pay in full", "why": "the papers are complete"}]
    assert checkpoint.discoveries == ["they answer within a day"]
    assert asyncio.run(store.aio.load_checkpoint("claims-42")) == checkpoint

    checkpoint.discoveries.append("only in the document")
    assert store.save_checkpoint(checkpoint) == 1
    assert saved(store) == checkpoint
    view = store.get_task("claims-42")
    assert view is not None and [note.text for note in view.discoveries] == [
        "they answer within a day"
    ]


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
    store.state("checkpoint/claims-42").delete()

    world = World(PLAN, dies_at=-1, after_the_effect=False)
    result = run_as_a_task(store, world, "claims-42", "Settle")
    assert [each["did"] for each in result["all"]] == ["read", "compare", "pay", "write"]
    assert (world.done, world.planned) == (["compare", "write"], 0)


@pytest.mark.slow
def test_the_agent_among_the_examples_pays_once_however_it_is_killed(tmp_path: Path) -> None:
    example = ROOT / "examples" / "claims_agent.py"
    said: list[str] = []
    for last in [
        "look up the policy",
        "paid 120",
        "write the letter",
        "finished: 4 steps",
    ]:  # then it is killed
        with subprocess.Popen(
            [sys.executable, example, tmp_path], stdout=subprocess.PIPE, text=True
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
    assert len((tmp_path / "payments.jsonl").read_text().splitlines()) == 1
