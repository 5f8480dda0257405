"""The fold of a task's events: paths are unambiguous, order among parallel steps makes no
difference, hostile events are errors."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from helpers.example_counts import examples
from holdfast import HoldfastError, LeaseHeld, Store
from holdfast.backends import StreamKey
from holdfast.errors import CorruptRecord, UnsupportedVersion
from holdfast.tasks.state import events as ev
from holdfast.tasks.state.fold import TaskState, plan_step_paths
from holdfast.tasks.steps.identity import StepPath, is_path, keyed_path, numbered_path, parse_path

KEY = StreamKey("default", "task", "t")

# -- paths -----------------------------------------------------------------------------------------

texts = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]) | st.sampled_from("%/#[]2F"),
    min_size=1,
)
places = st.tuples(texts, st.none() | texts, st.integers(1, 99))


def path_of(parts: list[tuple[str, str | None, int]]) -> str:
    path = ""
    for name, key, number in parts:
        path = numbered_path(path, name, number) if key is None else keyed_path(path, name, key)
    return path


def known(parts: list[tuple[str, str | None, int]]) -> list[Any]:
    return [(name, key, number if key is None else 1) for name, key, number in parts]


@pytest.mark.slow
@given(st.lists(places, min_size=1, max_size=4))
def test_a_path_says_what_it_was_made_from(parts: list[tuple[str, str | None, int]]) -> None:
    path = path_of(parts)
    found = []
    rest = path
    while rest:
        assert is_path(rest)
        place = parse_path(rest)
        found.insert(0, (place.name, place.key, place.number))
        rest = place.scope
    assert found == known(parts)


@given(st.lists(places, min_size=1, max_size=3), st.lists(places, min_size=1, max_size=3))
def test_different_steps_have_different_paths(
    one: list[tuple[str, str | None, int]], two: list[tuple[str, str | None, int]]
) -> None:
    assert (path_of(one) == path_of(two)) == (known(one) == known(two))


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("collect", StepPath("", "collect", None, 1)),
        ("collect/search#2", StepPath("collect", "search", None, 2)),
        ("pay[order-7]", StepPath("", "pay", "order-7", 1)),
        ("a%2Fb[%5B%25%5D]/c", StepPath("a%2Fb[%5B%25%5D]", "c", None, 1)),
    ],
)
def test_paths_are_readable(path: str, place: StepPath) -> None:
    assert parse_path(path) == place
    assert is_path(path)


@pytest.mark.parametrize(
    "text",
    ["", "/", "a/", "/a", "a//b", "a#", "a#0", "a#x", "a#-1", "a#1_0", "a#²", "a#" + "9" * 5000,
    "#2", "[k]", "a[]", "a[k", "a]",
     "a[k]x", "a[k]#2", "a#2[k]", "a[b[c]]", "a#2#3"],
)  # fmt: skip
def test_what_is_no_path(text: str) -> None:
    assert not is_path(text)


@given(st.lists(st.sampled_from(["a", "a#2", "b", "%"]) | texts, max_size=8))
def test_the_items_of_a_plan_have_paths_of_their_own(names: list[str]) -> None:
    paths = plan_step_paths(list(names))
    assert len(set(paths)) == len(paths) == len(names)
    assert [parse_path(path).name for path in paths] == names


# -- folding ---------------------------------------------------------------------------------------


def fold(events: list[tuple[int, str, ev.TaskEvent]]) -> TaskState:
    state = TaskState(KEY)
    for version, name, event in events:
        state.apply(KEY, version, 1000.0 + version, name, event)
    return state


def told(state: TaskState) -> Any:
    """Everything a fold says."""
    steps = {
        path: {
            name: getattr(step, name)
            for name in {**vars(type(step)), **vars(step)}
            if not name.startswith("_") and name not in ("place", "blob_owner", "in_doubt")
        }
        for path, step in state.steps.items()
    }
    plain = (
        state.version,
        state.status,
        state.runs,
        state.plan,
        state.goal,
        state.result,
        state.error,
        state.noted,
        state.updated_at,
    )
    notes = (
        sorted(state.decisions, key=lambda note: note.version),
        sorted(state.discoveries, key=lambda note: note.version),
    )
    return steps, plain, notes


def start() -> list[tuple[int, str, ev.TaskEvent]]:
    return [
        (1, ev.CREATED, ev.Created(salt="s", ttl=None, goal="g")),
        (2, ev.CLAIMED, ev.Claimed("h", 30.0)),
    ]


def ended(path: str, outcome: str, since: float | None) -> tuple[str, ev.TaskEvent]:
    common: dict[str, Any] = {"args": "x", "since": since} if since is not None else {}
    if outcome == "failed":
        return ev.STEP_FAILED, ev.StepEvent(path, error="ValueError", message="no", **common)
    return ev.STEP_COMPLETED, ev.StepEvent(path, result=msgspec.Raw(b"1"), **common)


@st.composite
def parallel_steps(draw: st.DrawFn) -> tuple[list[list[tuple[str, ev.TaskEvent]]], int]:
    """The events of several steps, each in order, and a seed to interleave them with."""
    steps = []
    for number in range(draw(st.integers(1, 5))):
        path, mode = f"s{number}", draw(st.sampled_from(["", "once"]))
        begun = ev.StepEvent(path, args="x", mode=mode, since=5.0)
        events: list[tuple[str, ev.TaskEvent]] = [(ev.STEP_STARTED, begun)]
        if draw(st.booleans()):
            events.append(
                (ev.STEP_PROGRESSED, ev.StepEvent(path, cursor=msgspec.Raw(b"7"), done=1))
            )
        if draw(st.booleans()):
            events.append(
                (ev.STEP_FAILED, ev.StepEvent(path, error="OSError", again=True, attempt=1))
            )
        outcome = draw(st.sampled_from(["completed", "failed", "none"]))
        if outcome != "none":
            events.append(ended(path, outcome, 5.0 if not mode else None))
        if draw(st.booleans()):
            note = ev.Noted(f"n{number}", f"text {number}", step=path)
            events.insert(draw(st.integers(0, len(events))), (ev.DECIDED, note))
        steps.append(events)
    return steps, draw(st.integers(0, 1000))


@given(parallel_steps())
@settings(max_examples=examples(100))
def test_the_order_in_which_parallel_steps_are_folded_makes_no_difference(
    given: tuple[list[list[tuple[str, ev.TaskEvent]]], int],
) -> None:
    steps, seed = given
    chooser = random.Random(seed)
    queues, stored = [list(events) for events in steps], start()
    while any(queues):
        queue = chooser.choice([queue for queue in queues if queue])
        stored.append((len(stored) + 1, *queue.pop(0)))
    whole = fold(stored)
    # A lease owner folds its own appends when they are acknowledged: in order for each step, in any
    # order across steps.
    heads, rest = stored[:2], stored[2:]
    by_step: dict[str, list[Any]] = {}
    for entry in rest:
        by_step.setdefault(getattr(entry[2], "step", ""), []).append(entry)
    mixed, waiting = list(heads), list(by_step.values())
    while waiting:
        queue = chooser.choice(waiting)
        mixed.append(queue.pop(0))
        waiting = [queue for queue in waiting if queue]
    assert told(fold(mixed)) == told(whole)


@pytest.mark.parametrize("outcome", ["completed", "failed"])
@pytest.mark.parametrize("late", ["started", "progressed", "again"])
def test_what_arrives_after_the_end_of_its_step_changes_nothing(outcome: str, late: str) -> None:
    events = [*start(), (3, *ended("a", outcome, 5.0))]
    lates: dict[str, tuple[str, ev.TaskEvent]] = {
        "started": (ev.STEP_STARTED, ev.StepEvent("a", args="x", since=5.0)),
        "progressed": (ev.STEP_PROGRESSED, ev.StepEvent("a", cursor=msgspec.Raw(b"7"))),
        "again": (ev.STEP_FAILED, ev.StepEvent("a", error="OSError", again=True)),
    }
    before, after = fold(events), fold([*events, (4, *lates[late])])
    assert told(after)[0] == told(before)[0]


def test_a_step_of_an_earlier_run_begins_anew_when_it_is_started_in_a_later_one() -> None:
    events = [*start(), (3, *ended("a", "completed", 5.0)), (4, ev.CLAIMED, ev.Claimed("i", 30.0))]
    state = fold(
        [*events, (5, ev.STEP_STARTED, ev.StepEvent("a", args="y", mode="once", since=9.0))]
    )
    assert state.steps["a"].state == "started"
    assert state.steps["a"].in_doubt(None)
    assert not state.steps["a"].in_doubt(2), "the run that is at it knows what it does"


@pytest.mark.parametrize(
    ("after", "state"),
    [
        ([], "retrying"),
        ([(ev.RENEWED, ev.Renewed("h"))], "retrying"),
        ([(ev.FORKED, ev.Forked("f", 1))], "retrying"),
        ([(ev.RELEASED, ev.Released(why="KeyboardInterrupt"))], "retrying"),
        ([(ev.RELEASED, ev.Released())], "failed"),
        ([(ev.FAILED, ev.Failed("KeyError", ""))], "failed"),
        ([(ev.FAILED, ev.Failed("StepFailed", "", steps=["a"]))], "retrying"),
        ([(ev.DECIDED, ev.Noted("1", "x"))], "failed"),
        ([(ev.STEP_COMPLETED, ev.StepEvent("b", args="x"))], "failed"),
        ([(ev.STEP_STARTED, ev.StepEvent("b", args="x"))], "failed"),
        ([(ev.STEP_FAILED, ev.StepEvent("b", args="x", error="OSError"))], "retrying"),
        ([(ev.PLANNED, ev.Planned("plan", []))], "failed"),
    ],
)
def test_a_failure_is_replayed_if_the_program_is_known_to_have_gone_on(
    after: list[tuple[str, ev.TaskEvent]], state: str
) -> None:
    events = [*start(), (3, *ended("a", "failed", 5.0))]
    for name, event in [*after, (ev.CLAIMED, ev.Claimed("i", 30.0))]:
        events.append((len(events) + 1, name, event))
    assert fold(events).steps["a"].state == state


def test_a_doubt_is_not_tried_again_because_a_run_has_ended() -> None:
    failed = ev.StepEvent("a", args="x", mode="once", error="OSError", doubt=True)
    for after in (ev.Failed("StepFailed", "", steps=["a"]), ev.Released(why="StepInDoubt")):
        name = ev.FAILED if isinstance(after, ev.Failed) else ev.RELEASED
        events = [
            *start(),
            (3, ev.STEP_FAILED, failed),
            (4, name, after),
            (5, ev.CLAIMED, ev.Claimed("i", 30.0)),
        ]
        assert fold(events).steps["a"].in_doubt(2)


def test_a_note_that_was_written_twice_is_told_once() -> None:
    note = ev.Noted("1", "x")  # the answer to the first append was lost
    state = fold(
        [
            *start(),
            (3, ev.DECIDED, note),
            (4, ev.DECIDED, note),
            (5, ev.DISCOVERED, ev.Noted("2", "x")),
        ]
    )
    assert [found.version for found in state.decisions] == [3]
    assert [found.version for found in state.discoveries] == [5]


def test_a_settlement_of_a_step_that_is_not_there_is_nothing() -> None:
    assert fold([*start(), (3, ev.STEP_RESOLVED, ev.StepEvent("a", again=True))]).steps == {}


# -- hostile events --------------------------------------------------------------------------------


@pytest.fixture
def memory() -> Iterator[Store]:
    with holdfast.open("memory://") as store:
        yield store


def planted(store: Store, id: str, *events: tuple[str, Any], before: bool = True) -> None:
    """Write events as somebody would who can write to the store."""
    if before:
        with store.task(id, goal="g") as task:
            task.make_plan(["a"])
            task.step("a", lambda: 1)
    stream = store.stream(id)
    stream._key = store.task(id)._key
    stream.append(*events)


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def everything(store: Store, id: str) -> list[Any]:
    """Every way of looking at a task and going on with it."""

    def enter() -> Any:
        with store.task(id, wait=0, steal=True) as task:
            task.make_plan(["a"])
            for item in task.remaining():
                task.step(item, lambda: 1)
            task.step("b", lambda: holdfast.current_step().cursor)
            task.decide("x")
            return [
                task.goal,
                task.input,
                task.plan,
                task.in_doubt,
                task.result,
                task.view(),
                task.preview(),
            ]

    handle = store.task(id)
    calls = [lambda: store.get_task(id), handle.history, lambda: handle.view(version=1),
        lambda: list(store.tasks()), handle.view,
             handle.preview, handle.resume_context, handle.checkpoint, enter,
             lambda: handle.fork("fork of " + id).view(),
             lambda: store.resolve(id, "a", retry=True), handle.cancel]  # fmt: skip
    errors = []
    for call in calls:
        try:
            call()
        except HoldfastError as error:
            errors.append(error)
    return errors


HOSTILE: list[tuple[str, Any]] = [
    ("task.created", None),
    ("task.created", {"salt": 7, "ttl": None}),
    ("task.created", {"salt": "s", "ttl": "x"}),
    ("task.created", {"salt": "s", "ttl": None, "goal": ["x"]}),
    ("task.claimed", {"owner": 7, "lease": 1}),
    ("task.claimed", {}),
    ("task.planned", {"id": "p", "items": "text"}),
    ("task.planned", {"id": "p", "items": [7]}),
    ("task.planned", {"id": "p", "items": [""]}),
    ("task.planned", {"id": "p", "items": [{"title": "x"}]}),
    ("task.planned", {"id": "p", "items": [{"name": ["x"]}]}),
    ("task.planned", {"id": "p", "items": [None]}),
    ("task.decided", {"id": "n", "text": 7}),
    ("task.discovered", [1]),
    ("task.released", {"orphaned": 7}),
    ("task.failed", {"type": 1, "message": "x"}),
    ("task.cancelled", {"reason": 7}),
    ("task.branched", {"parent": "x"}),
    ("step.started", {}),
    ("step.started", {"step": 7}),
    ("step.started", {"step": ""}),
    ("step.started", {"step": "a#x"}),
    ("step.started", {"step": "a#" + "9" * 5000}),
    ("step.started", {"step": "a//b"}),
    ("step.completed", {"step": "a", "blob": {"digest": 1}}),
    ("step.completed", {"step": "a", "attempt": "many"}),
    ("step.failed", {"step": "a", "causes": "b"}),
    ("step.progressed", {"step": "a", "done": "x"}),
    ("step.resolved", "text"),
]


@pytest.mark.parametrize(("name", "data"), HOSTILE)
def test_an_event_of_a_wrong_shape_is_an_error(memory: Store, name: str, data: Any) -> None:
    planted(memory, "t", (name, data))
    with pytest.raises(CorruptRecord) as caught:
        memory.get_task("t")
    assert caught.value.version == 6
    with pytest.raises(CorruptRecord):
        memory.task("t").__enter__()
    assert everything(memory, "t")


def test_an_event_of_an_unknown_type_asks_for_a_newer_version(memory: Store) -> None:
    planted(memory, "t", ("task.teleported", {}))
    with pytest.raises(UnsupportedVersion, match="newer"):
        memory.get_task("t")
    with pytest.raises(UnsupportedVersion):
        memory.task("t").__enter__()
    assert everything(memory, "t")


ODD: list[tuple[str, Any]] = [
    ("task.claimed", {"owner": "a/b/c/d/e", "lease": -1e308}),
    ("task.claimed", {"owner": "", "lease": 1}),
    ("task.planned", {"id": "plan", "items": ["x", {"name": "x", "deep": deep(50)}]}),
    ("task.planned", {"id": "plan", "items": [{"name": "\u0000" + "n" * 5000}]}),
    ("task.released", {"drift": [["a"], ["a", "b", "c", "d", "e"], ["s", "arguments", "x", "y"]]}),
    ("task.released", {"orphaned": ["no such step"]}),
    ("task.failed", {"type": "X", "message": "y", "steps": ["none", "a", "a#x"]}),
    ("task.finished", {"result": deep(80)}),
    ("task.branched", {"parent": "nobody", "incarnation": "x", "at": 99}),
    ("task.forked", {"child": "", "at": -1}),
    (
        "step.started",
        {"step": "z/z/z", "mode": "odd", "kind": "odd", "since": 1e300, "attempt": -5},
    ),
    ("step.started", {"step": "z", "mode": "once", "since": -1e300}),
    ("step.completed", {"step": "z"}),
    ("step.completed", {"step": "a", "how": "odd", "result": deep(80)}),
    ("step.completed", {"step": "b", "blob": {"digest": "00", "size": -1, "incarnation": "x"}}),
    ("step.completed", {"step": "b", "blob": {"digest": "00", "size": 2**62, "incarnation": "x"}}),
    ("step.progressed", {"step": "b", "cursor": deep(80)}),
    ("step.failed", {"step": "b", "causes": ["b", "b", "none"], "again": True}),
    ("step.failed", {"step": "b", "doubt": True, "error": None}),
    ("step.resolved", {"step": "a", "again": True}),
    ("step.resolved", {"step": "b%ZZ%FF"}),
]


@pytest.mark.parametrize(("name", "data"), ODD)
def test_an_odd_event_never_leads_to_an_error_that_is_not_ours(
    memory: Store, name: str, data: Any
) -> None:
    planted(memory, "t", (name, data))
    everything(memory, "t")
    planted(memory, "begins with it", (name, data), before=False)
    everything(memory, "begins with it")


def test_results_nested_too_deep_are_errors(memory: Store) -> None:
    # Past the codec's own limit, as only a hostile hand can write it.
    key = memory.task("t")._key
    with memory.task("t") as task:
        task.step("a", lambda: 1)
    for levels in (150, 20_000):
        raw = b"[" * levels + b"]" * levels
        for name, field in (("step.completed", b"result"), ("step.progressed", b"cursor")):
            data = b'{"step":"b","' + field + b'":' + raw + b"}"
            stream = f"{name} {levels}"
            with memory.task(stream) as task:
                task.step("a", lambda: 1)
            append_raw(memory, key._replace(id=stream), name, data)
            assert everything(memory, stream)


def append_raw(store: Store, key: StreamKey, name: str, data: bytes) -> None:
    from holdfast.log import operations as ops
    from holdfast.log.events import NewEvent, new_append_context
    from holdfast.log.operations.stream_ops import append_events

    ops.run(store._log, append_events(key, [NewEvent(name, data)], new_append_context()))


def test_a_task_that_was_forked_from_itself_is_an_error(memory: Store) -> None:
    planted(
        memory, "t", ("task.branched", {"parent": "t", "incarnation": "x", "at": 1}), before=False
    )
    head = memory._log.backend.head(memory.task("t")._key)
    assert head is not None
    planted(
        memory,
        "u",
        ("task.branched", {"parent": "u", "incarnation": head.incarnation.hex(), "at": 1}),
        before=False,
    )
    for name in ("t", "u"):
        with pytest.raises(CorruptRecord, match="forked from"):
            memory.get_task(name)
        everything(memory, name)


def test_a_ring_of_forks_comes_to_an_end(memory: Store) -> None:
    with memory.task("p") as task:
        task.step("a", lambda: 1)
    memory.task("p").fork("one")
    backend = memory._log.backend
    child = backend.head(memory.task("one")._key)
    assert child is not None
    # Somebody replaces the parent by a fork of its own child.
    parent = backend.head(memory.task("p")._key)
    assert parent is not None
    backend.delete(memory.task("p")._key, expected=parent)
    planted(
        memory,
        "p",
        ("task.branched", {"parent": "one", "incarnation": child.incarnation.hex(), "at": 1}),
        before=False,
    )
    assert everything(memory, "p")
    with pytest.raises(CorruptRecord):
        memory.get_task("one")


def test_a_label_that_is_none_is_an_error_in_a_list(memory: Store) -> None:
    from holdfast.backends import HeadFields
    from holdfast.log import operations as ops
    from holdfast.log.events import NewEvent, new_append_context
    from holdfast.log.operations.stream_ops import append_events

    for n, label in enumerate([b"text", b'{"goal": 7}', b"[" * 10_000, b"\xff"]):
        with memory.task("t") as task:
            task.step(f"{n}", lambda: 1)
        event = NewEvent("task.renewed", b'{"owner":"x"}')
        ops.run(
            memory._log,
            append_events(
                task._key, [event], new_append_context(), fields=HeadFields("pending", label)
            ),
        )
        with pytest.raises(CorruptRecord):
            list(memory.tasks())
        assert memory.get_task("t") is not None


@pytest.mark.parametrize("process", ["²", "٣", "9" * 5000, "-1", "", "0x7", "99999999999999999999"])
def test_an_owner_with_an_odd_process_number_is_held_to_be_alive(
    memory: Store, process: str
) -> None:
    from holdfast.backends import HeadFields
    from holdfast.log import operations as ops
    from holdfast.log.events import NewEvent, new_append_context
    from holdfast.log.operations.stream_ops import append_events

    with memory.task("t") as task:
        holder = task._require_session().lease.owner.split("/")
    owner = "/".join([*holder[:2], process, *holder[3:]])
    event = NewEvent("task.claimed", msgspec.json.encode({"holder": owner, "lease": 30}))
    fields = HeadFields("running", b"{}", owner, time.time() + 30)
    ops.run(memory._log, append_events(task._key, [event], new_append_context(), fields=fields))
    with pytest.raises(LeaseHeld):
        memory.task("t", wait=0).__enter__()
    everything(memory, "t")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False,
    allow_infinity=False) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "x"]),
    inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
FIELDS = ["step", "args", "mode", "since", "attempt", "error", "again", "doubt", "causes", "result",
    "blob", "cursor", "id",
          "items", "owner", "lease", "salt", "ttl", "input", "steps", "drift", "orphaned", "text",
          "parent", "incarnation", "at"]  # fmt: skip


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(ev._TYPES)),
            st.dictionaries(
                st.sampled_from(FIELDS),
                json_values | st.sampled_from(["a", "a/b", "b#2", "c[k]"]),
                max_size=6,
            ),
        ),
        max_size=4,
    )
)
@settings(max_examples=examples(60), deadline=None)
def test_whatever_is_stored_only_our_errors_come_of_it(events: list[tuple[str, Any]]) -> None:
    with holdfast.open("memory://") as store:
        if events:
            planted(store, "t", *events)
            everything(store, "t")
