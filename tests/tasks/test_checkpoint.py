"""Checkpoints: a document that comes back exactly, with all that was added to it, and the read-only
one of a task."""

from __future__ import annotations

import copy
import dataclasses
import json
import operator
import types
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from helpers.tasks.checkpoints import Both, saved, small
from holdfast.log.codec.read_only import ReadOnlyDict, ReadOnlyList
from holdfast.tasks.checkpoint import AgentCheckpoint
from holdfast.tasks.state.view import Note, StepInfo, StepStatus, TaskView

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)

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


def test_the_two_ids_are_enough_and_the_goal_comes_later() -> None:
    checkpoint = AgentCheckpoint("agent-01", "claims-42")
    assert (checkpoint.goal, checkpoint.plan, checkpoint.completed) == ("", [], [])
    checkpoint.goal = "Draft the checklist"
    assert AgentCheckpoint.from_dict({"agent_id": "agent-01", "task_id": "claims-42"}).goal == ""
    with pytest.raises(ValueError, match="must have task_id"):
        AgentCheckpoint.from_dict({"agent_id": "a"})
    with pytest.raises(TypeError, match="must be a dict, got list"):
        AgentCheckpoint.from_dict(cast(Any, [checkpoint.to_dict()]))


# -- attributes and fields of its own --------------------------------------------------------------


@dataclasses.dataclass
class ClaimCheckpoint(AgentCheckpoint):
    amount: int = 0
    papers: list[str] = dataclasses.field(default_factory=list)
    checked: bool = dataclasses.field(default=False, init=False)


class Forgetful(AgentCheckpoint):
    """Its author did not think of the base class."""

    retries = 0

    def __post_init__(self) -> None:
        self.trace = ["made"]


def test_attributes_that_a_checkpoint_does_not_know_are_part_of_its_document() -> None:
    checkpoint: Any = small()
    checkpoint.retries = 3
    checkpoint.budget = {"left": 2.5, "spent": [1, None]}
    checkpoint._client = object()  # private: no part of the document
    document = checkpoint.to_dict()
    assert document["retries"] == 3 and document["budget"] == {"left": 2.5, "spent": [1, None]}
    assert "_client" not in document
    again: Any = AgentCheckpoint.from_dict(document)
    assert (again.retries, again.budget) == (3, checkpoint.budget)
    assert again.to_dict() == document
    again.budget["left"] = 0
    assert document["budget"]["left"] == 2.5, "it is a copy"


@pytest.mark.parametrize("value", [{1, 2}, (1, 2), object(), NOON, b"x"])
def test_an_attribute_that_would_not_come_back_is_refused_by_its_name(value: object) -> None:
    checkpoint: Any = small()
    checkpoint.retries = value
    with pytest.raises(holdfast.errors.NotSerializable, match=r"\$\.retries"):
        checkpoint.to_dict()
    with pytest.raises(holdfast.errors.NotSerializable, match=r"\$\.retries"):
        AgentCheckpoint.from_dict({**small().to_dict(), "retries": value})


@pytest.mark.parametrize("name", ["to_dict", "from_dict", "_client", "__class__"])
def test_a_document_cannot_have_the_name_of_a_method_or_of_something_private(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        AgentCheckpoint.from_dict({**small().to_dict(), name: 3})


def test_a_value_in_the_place_of_a_method_is_refused_and_not_lost(store: holdfast.Store) -> None:
    checkpoint: Any = small()
    checkpoint.from_dict = "a text"
    with pytest.raises(ValueError, match="'from_dict' is a method of AgentCheckpoint"):
        store.save_checkpoint(checkpoint)
    assert store.load_checkpoint("claims-42") is None


def test_a_class_of_your_own_comes_back_with_its_fields() -> None:
    checkpoint = ClaimCheckpoint("claims", "claims-42", amount=120, papers=["policy"])
    checkpoint.checked = True
    again = ClaimCheckpoint.from_dict(checkpoint.to_dict())
    assert type(again) is ClaimCheckpoint and again == checkpoint and again.checked
    plain: Any = AgentCheckpoint.from_dict(checkpoint.to_dict())
    assert (plain.amount, plain.papers, plain.checked) == (120, ["policy"], True)
    assert plain.to_dict() == checkpoint.to_dict(), (
        "code that does not know the class loses nothing"
    )
    older = ClaimCheckpoint.from_dict(small().to_dict())
    assert (older.amount, older.papers, older.checked) == (0, [], False)


def test_a_class_that_is_no_dataclass_loses_nothing_either(both: Both) -> None:
    checkpoint = Forgetful("claims", "claims-42")
    checkpoint.retries = 2
    checkpoint.trace.append("saved")
    both.save(checkpoint)
    again = both.load("claims-42", type=Forgetful)
    assert type(again) is Forgetful
    assert (again.retries, again.trace) == (2, ["made", "saved"])


@pytest.mark.every_engine
def test_attributes_and_fields_of_your_own_are_saved_and_loaded(both: Both) -> None:
    checkpoint: Any = small()
    checkpoint.retries = 3
    both.save(checkpoint)
    found: Any = both.load("claims-42")
    assert found.retries == 3
    found.retries += 1
    both.save(found)
    assert both.load("claims-42").retries == 4

    claim = ClaimCheckpoint("claims", "claims-43", amount=120)
    both.save(claim)
    loaded = both.load("claims-43", type=ClaimCheckpoint)
    assert type(loaded) is ClaimCheckpoint and loaded == claim
    plain = both.load("claims-43")
    assert type(plain) is AgentCheckpoint and plain.amount == 120
    plain.completed.append(0)
    both.save(plain)
    assert both.load("claims-43", type=ClaimCheckpoint).amount == 120


@pytest.mark.parametrize("wrong", [dict, int, "AgentCheckpoint", small()])
def test_it_is_loaded_as_a_checkpoint_and_nothing_else(store: holdfast.Store, wrong: Any) -> None:
    with pytest.raises(TypeError, match="type must be AgentCheckpoint or a class that extends it"):
        store.load_checkpoint("claims-42", type=wrong)


def test_a_document_that_does_not_fit_the_class_is_reported_with_its_place(
    store: holdfast.Store,
) -> None:
    @dataclasses.dataclass(kw_only=True)
    class Strict(AgentCheckpoint):
        reviewer: str

    store.save_checkpoint(small())
    with pytest.raises(holdfast.errors.SchemaMismatch, match="reviewer"):
        store.load_checkpoint("claims-42", type=Strict)


def test_attributes_of_your_own_are_redacted_by_name_and_by_value() -> None:
    with holdfast.open("memory://", redact=True) as store:
        checkpoint: Any = small()
        checkpoint.api_key = "hunter2hunter2"
        checkpoint.notes = ["write to ann@example.com", "call back"]
        store.save_checkpoint(checkpoint)
        found: Any = saved(store)
        assert "hunter2" not in found.api_key and "ann@" not in found.notes[0]
        assert found.notes[1] == "call back" and found.goal == "Draft the checklist"


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
    assert view.checkpoint() == AgentCheckpoint(
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
    checkpoint = view.checkpoint()
    assert (checkpoint.completed, checkpoint.results) == ([1], {"1": "yes"})


def test_a_task_without_goal_agent_and_plan_has_an_empty_checkpoint() -> None:
    checkpoint = view_of([], [step("look up", result=1)], goal=None, agent=None).checkpoint()
    assert (checkpoint.goal, checkpoint.agent_id, checkpoint.plan) == ("", "", [])
    assert (checkpoint.completed, checkpoint.results) == ([], {})


CHANGES: dict[str, Callable[[Any], object]] = {
    "append": lambda c: c.discoveries.append("100 calls a minute"),
    "extend": lambda c: c.discoveries.extend(["100 calls a minute"]),
    "insert": lambda c: c.plan.insert(0, "more"),
    "pop": lambda c: c.plan.pop(),
    "remove": lambda c: c.completed.remove(0),
    "sort": lambda c: c.completed.sort(),
    "reverse": lambda c: c.completed.reverse(),
    "clear": lambda c: c.decisions.clear(),
    "set an item": lambda c: operator.setitem(c.plan, 0, "other"),
    "set a slice": lambda c: operator.setitem(c.plan, slice(0, 1), []),
    "delete an item": lambda c: operator.delitem(c.plan, 0),
    "add in place": lambda c: operator.iadd(c.decisions, ["x"]),
    "multiply in place": lambda c: operator.imul(c.plan, 2),
    "set a result": lambda c: operator.setitem(c.results, "1", "x"),
    "delete a result": lambda c: operator.delitem(c.results, "0"),
    "update": lambda c: c.results.update({"1": "x"}),
    "update in place": lambda c: operator.ior(c.results, {"1": "x"}),
    "setdefault": lambda c: c.results.setdefault("1", []),
    "pop a result": lambda c: c.results.pop("0"),
    "popitem": lambda c: c.results.popitem(),
    "clear the results": lambda c: c.results.clear(),
    "inside a result": lambda c: c.results["0"].append("b"),
    "inside the plan": lambda c: operator.setitem(c.plan[0], "pages", 2),
    "inside a decision": lambda c: operator.setitem(c.decisions[0], "why", "x"),
    "an attribute": lambda c: setattr(c, "goal", "another"),
    "an added attribute": lambda c: setattr(c, "retries", 3),
    "an assignment": lambda c: setattr(c, "discoveries", ["x"]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_checkpoint_of_a_task_refuses_every_change_and_names_the_way(name: str) -> None:
    view = view_of(
        [{"name": "read"}, "pay"],
        [step("read", result=["a"])],
        decisions=[Note("vendor A", None, NOON)],
    )
    checkpoint = view.checkpoint()
    with pytest.raises(TypeError, match=r"read-only.*task\.discover\(\), task\.decide\(\)"):
        CHANGES[name](checkpoint)
    assert checkpoint == view.checkpoint()
    assert (view.steps[0].result, view.plan) == (["a"], [{"name": "read"}, "pay"])


def test_every_method_that_changes_a_list_or_a_dict_is_refused() -> None:
    """Python may get more of them: these are those that a frozen twin does not have."""
    for kind, frozen, plain in (
        (ReadOnlyList, tuple, list),
        (ReadOnlyDict, types.MappingProxyType, dict),
    ):
        changing = {
            name
            for name in set(dir(plain)) - set(dir(frozen))
            if name not in ("fromkeys", "copy", "__init__", "__sizeof__", "__reversed__")
        }
        kept = {name for name in changing if getattr(kind, name) is getattr(plain, name)}
        assert kept == set(), f"{kind.__name__} can be changed"


def test_the_checkpoint_of_a_task_cannot_be_saved_but_a_copy_of_it_can(both: Both) -> None:
    with both.store.task("claims-42", goal="Settle", agent="claims") as task:
        task.make_plan([{"name": "read"}, "pay"])
        task.step("read", lambda: {"pages": [1, 2]})
        checkpoint = task.checkpoint()
        with pytest.raises(TypeError, match=r"read-only.*task\.discover"):
            both.save(checkpoint)
    loaded = both.load("claims-42")
    assert loaded.to_dict() == {
        **checkpoint.to_dict(),
        "updated_at": loaded.to_dict()["updated_at"],
    }
    with pytest.raises(TypeError, match=r"read-only.*task\.discover"):
        loaded.discoveries.append("x")
    with pytest.raises(TypeError, match="read-only"):
        both.save(copy.deepcopy(loaded))
    own = AgentCheckpoint.from_dict(loaded.to_dict())
    own.results["0"]["pages"].append(3)
    own.discoveries.append("only in the document")
    assert both.save(own) == 1
    assert both.load("claims-42").results == {"0": {"pages": [1, 2, 3]}}
    view = both.store.get_task("claims-42")
    assert view is not None and view.discoveries == []


def test_what_a_checkpoint_of_a_task_has_can_be_used_and_stored_as_plain_values(
    store: holdfast.Store,
) -> None:
    """Code that was written for plain documents goes on working with it."""
    with store.task("claims-42", goal="Settle", agent="claims") as task:
        task.make_plan([{"name": "read", "pages": [1]}, "pay"])
        task.step("read", lambda: {"pages": [1, 2]})
        checkpoint = task.checkpoint()
        assert json.loads(json.dumps(checkpoint.results)) == {"0": {"pages": [1, 2]}}
        assert isinstance(checkpoint.plan, list) and isinstance(checkpoint.results["0"], dict)
        mine = copy.deepcopy(checkpoint.results)
        mine["0"]["pages"].append(3)
        assert [type(part) for part in (mine, mine["0"], mine["0"]["pages"])] == [dict, dict, list]
        assert type(copy.copy(checkpoint.plan)) is list
        assert task.step("use", lambda given: given, checkpoint.results) == {"0": {"pages": [1, 2]}}

        def typed() -> dict[str, dict[str, list[int]]]:
            return checkpoint.results

        assert task.step("typed", typed) == {"0": {"pages": [1, 2]}}
        store.state("copy").save([checkpoint.plan, checkpoint.results])
        task.finish({"all": checkpoint.results, "first": checkpoint.plan[0]})
    view = store.get_task("claims-42")
    assert view is not None
    assert view.result == {"all": {"0": {"pages": [1, 2]}}, "first": {"name": "read", "pages": [1]}}
    with store.task("claims-43", goal="Settle") as other:
        other.make_plan(checkpoint.plan)
        assert other.plan == [{"name": "read", "pages": [1]}, "pay"]


def test_a_task_is_loaded_as_a_class_of_your_own_too(both: Both) -> None:
    with both.store.task("claims-42", goal="Settle", agent="claims"):
        pass
    found = both.load("claims-42", type=ClaimCheckpoint)
    assert type(found) is ClaimCheckpoint and (found.goal, found.amount) == ("Settle", 0)
    with pytest.raises(TypeError, match="read-only"):
        found.amount = 5


def test_the_document_of_twenty_steps_with_small_results_is_under_10_kb() -> None:
    plan = [f"step {number}: look at the papers of one more case" for number in range(20)]
    steps = [
        step(
            name, result={"ok": True, "found": "what a person would say in a sentence or two. " * 3}
        )
        for name in plan
    ]
    notes = [Note("go on with vendor A", "cheapest with an SLA", NOON)] * 5
    checkpoint = view_of(plan, steps, decisions=notes, discoveries=notes).checkpoint()
    assert len(checkpoint.completed) == 20
    assert len(json.dumps(checkpoint.to_dict())) < 10_000
