"""What a task leaves to memory when it ends, or on the way; also when it is killed in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import memory_agents as agents
import msgspec
import pytest

import holdfast
from helpers.memory.learning_tasks import BUYER, GOAL, known, remembered
from helpers.stores import ON_MEMORY
from helpers.sync_and_async import Ways, view
from holdfast import Store, Task, TaskView, testing
from holdfast.backends.faulty import FaultyBackend
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import TaskEnded, Unavailable
from holdfast.tasks.memory import OUTCOME_CHARACTERS
from holdfast.testing.agent_process import ProcessSpec, Target
from holdfast.testing.launcher import Launcher
from holdfast.testing.matrix import (
    Matrix,
    MatrixRun,
    _ignore,
    _import_path,
    _locate_agent,
    _run_points,
    _run_undisturbed,
)
from holdfast.testing.stores import url_at

pytestmark = pytest.mark.usefixtures("no_agents")

# -- what a finished task leaves -------------------------------------------------------------------


@pytest.mark.every_engine
def test_a_finished_task_leaves_its_outcome_its_decisions_and_its_discoveries(ways: Ways) -> None:
    async def work(task: Any) -> None:
        await task.discover("prices of vendor B are without tax")
        await task.decide("vendor A", why="the only one with an SLA")
        await task.finish({"vendor": "A", "laptops": 3})

    ways.resume(work, **BUYER)
    record = view(ways)
    discovery, decision, outcome = ways.store.memory("buyer").all()
    assert (discovery.text, discovery.tags) == (
        "prices of vendor B are without tax",
        ("discovery",),
    )
    assert (decision.text, decision.tags) == (
        "vendor A\nBecause: the only one with an SLA",
        ("decision",),
    )
    assert outcome.text == 'Order three laptops\nOutcome: {"laptops": 3, "vendor": "A"}'
    assert outcome.tags == ("outcome",)
    assert {(memory.source, memory.author) for memory in (discovery, decision, outcome)} == {
        ("task/t", "model")
    }
    assert (discovery.at, decision.at) == (record.discoveries[0].at, record.decisions[0].at)
    assert discovery.importance == decision.importance > outcome.importance


def test_a_task_that_has_finished_leaves_nothing_more(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        await task.decide("vendor A")
        return await task.finish("ordered")

    assert [ways.resume(work, **BUYER) for _ in range(3)] == ["ordered"] * 3
    assert known(ways.store) == [
        ("vendor A", ("decision",), 1),
        (f"{GOAL}\nOutcome: ordered", ("outcome",), 1),
    ]


def test_what_several_runs_have_noted_is_left_once(ways: Ways) -> None:
    async def work(task: Any) -> None:
        await task.discover("Ann signs the orders")
        if not task.resumed:
            raise ValueError("a bug, mended since")
        await task.finish("ordered")

    with pytest.raises(ValueError, match="a bug"):
        ways.resume(work, **BUYER)
    assert (
        remembered(ways.store) == []
    )  # not before it ends, and whoever started it has seen the failure
    ways.resume(work)
    assert known(ways.store) == [
        ("Ann signs the orders", ("discovery",), 1),
        (f"{GOAL}\nOutcome: ordered", ("outcome",), 1),
    ]


@ON_MEMORY
def test_without_an_agent_nothing_is_remembered_and_without_a_goal_only_what_was_noted(
    ways: Ways,
) -> None:
    async def work(task: Any) -> None:
        await task.decide("vendor A")
        await task.finish(7)

    ways.resume(work, "nobody's", goal=GOAL)
    assert list(ways.store.memory_namespaces()) == []
    ways.resume(work, "aimless", agent="buyer")
    assert remembered(ways.store) == ["vendor A"]


@ON_MEMORY
def test_a_task_that_has_nothing_to_leave_writes_nothing(ways: Ways) -> None:
    async def work(task: Any) -> None:
        await task.decide(" ")
        await task.finish(7)

    ways.resume(work, agent="buyer")
    assert list(ways.store.memory_namespaces()) == []


@ON_MEMORY
@pytest.mark.parametrize(
    ("result", "shown"), [(None, "done"), ("", "done"), ("a\nb", "a\nb"), (0, "0"), ([], "[]")]
)
def test_how_a_result_is_told(ways: Ways, result: object, shown: str) -> None:
    async def work(task: Any) -> None:
        await task.finish(result)

    ways.resume(work, **BUYER)
    assert remembered(ways.store) == [f"{GOAL}\nOutcome: {shown}"]


@ON_MEMORY
def test_of_a_long_result_the_beginning_is_remembered_and_that_there_is_more(ways: Ways) -> None:
    async def work(task: Any) -> None:
        await task.decide("d" * 90_000, why="w" * 90_000)  # a memory has at most 100,000
        await task.finish("r" * 300_000)

    ways.resume(work, **BUYER)
    decision, outcome = remembered(ways.store)
    assert outcome.count("r") > OUTCOME_CHARACTERS > len(outcome) - 100
    assert outcome.endswith("… (298,000 more characters)")
    assert decision.count("d") >= 25_000 and decision.count("w") >= 25_000


# -- as the program says ---------------------------------------------------------------------------


def test_remember_false_leaves_nothing(ways: Ways) -> None:
    async def work(task: Any) -> None:
        await task.decide("vendor A")
        await task.finish("ordered", remember=False)

    ways.resume(work, **BUYER)
    assert list(ways.store.memory_namespaces()) == []


def test_a_function_says_what_is_remembered(ways: Ways) -> None:
    seen: list[TaskView] = []

    def lessons(task: TaskView) -> Iterator[Any]:
        seen.append(task)
        yield f"{task.result} from {task.decisions[0].text}"
        yield {
            "text": "laptops take two weeks",
            "tags": ["delivery"],
            "source": "the vendor",
            "importance": 1,
        }

    async def work(task: Any) -> None:
        await task.decide("vendor A")
        await task.finish(lambda: "laptops", remember=lessons)

    ways.resume(work, **BUYER)
    assert [(task.status, task.result) for task in seen] == [("finished", "laptops")]
    first, second = ways.store.memory("buyer").all()
    assert (first.text, first.source, first.tags) == ("laptops from vendor A", "task/t", ())
    assert (second.text, second.source, second.tags) == (
        "laptops take two weeks",
        "the vendor",
        ("delivery",),
    )


def test_the_function_of_an_async_task_may_be_async() -> None:
    async def lessons(task: TaskView) -> list[str]:
        return [f"{task.id}: {task.result}"]

    async def work(task: Any) -> None:
        await task.finish(3, remember=lessons)

    with holdfast.open("memory://") as store:
        Ways(store, asynchronous=True).resume(work, **BUYER)
        assert remembered(store) == ["t: 3"]


@ON_MEMORY
@pytest.mark.parametrize("wrong", ["a text", {"text": "a"}, 7, [7], [{"txt": "a"}], [""]])
def test_a_function_that_gives_something_else_ends_nothing(ways: Ways, wrong: Any) -> None:
    async def work(task: Any) -> None:
        await task.finish(3, remember=lambda task: wrong)

    with pytest.raises((TypeError, ValueError)):
        ways.resume(work, **BUYER)
    assert view(ways).status == "failed"
    assert list(ways.store.memory_namespaces()) == []


@ON_MEMORY
def test_what_cannot_be_done_is_refused_before_the_result_is_made(ways: Ways) -> None:
    made: list[int] = []

    async def nobodys(task: Any) -> None:
        await task.finish(made.append, 1, remember=lambda task: ["a"])

    async def wrong(task: Any) -> None:
        await task.finish(made.append, 1, remember="yes")

    with pytest.raises(ValueError, match="has no agent"):
        ways.resume(nobodys, "nobodys", goal=GOAL)
    with pytest.raises(TypeError, match="remember must be True"):
        ways.resume(wrong, "wrong", **BUYER)
    assert made == []


def test_an_agent_says_it_for_all_its_tasks_and_a_task_for_itself(store: Store) -> None:
    @holdfast.agent("quiet", remember=False)
    def quiet(task: Task) -> str:
        return "done"

    @holdfast.agent("brief", remember=lambda task: [f"{task.goal}: {task.result}"])
    def brief_one(task: Task) -> str:
        return "done"

    for agent in ("quiet", "brief"):
        store.run(agent, f"{agent}-run", goal="Run it")
        store.submit(agent, f"{agent}-submitted", goal="Submit it")
        assert [ran.status for ran in store.run_due()] == ["finished"]
        with store.task(f"{agent}-by-hand", goal="Do it by hand", agent=agent) as task:
            task.finish("done")
    assert remembered(store, "quiet") == []
    assert remembered(store, "brief") == ["Run it: done", "Submit it: done", "Do it by hand: done"]
    with store.task("quiet-but-once", goal="Say it", agent="quiet") as task:
        task.finish("said", remember=True)
    assert remembered(store, "quiet") == ["Say it\nOutcome: said"]


def test_an_agent_takes_what_finish_takes() -> None:
    async def later(task: TaskView) -> list[str]:
        return []

    with pytest.raises(TypeError, match="remember must be True"):
        holdfast.agent("a", remember="no")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="synchronous agent"):
        holdfast.agent("a", remember=later)(lambda task: None)


# -- failures --------------------------------------------------------------------------------------


def test_a_task_that_gives_up_leaves_its_lesson(ways: Ways) -> None:
    async def give_up(task: Any) -> None:
        await task.discover("vendor B is closed in May")
        await task.fail("no vendor delivers in May")

    async def go_on(task: Any) -> None:
        await task.finish("ordered")

    ways.resume(give_up, **BUYER)
    assert known(ways.store) == [(f"{GOAL}\nFailed: no vendor delivers in May", ("failure",), 1)]
    ways.resume(go_on)
    assert remembered(ways.store) == [
        f"{GOAL}\nFailed: no vendor delivers in May",
        "vendor B is closed in May",
        f"{GOAL}\nOutcome: ordered",
    ]


def test_a_worker_leaves_the_lesson_when_it_tries_no_more(store: Store) -> None:
    @holdfast.agent("failing", max_attempts=2)
    def failing(task: Task) -> None:
        raise ValueError("the form is gone")

    def lesson(heard: int) -> list[tuple[str, tuple[str, ...], int]]:
        return [
            (text, ("failure",), heard)
            for text in (f"{GOAL}\nFailed: ValueError", "ValueError: the form is gone")
        ]

    with testing.fake_clock() as clock:
        store.submit("failing", "t", goal=GOAL)
        store.run_due()
        assert remembered(store, "failing") == []
        clock.advance(60)
        store.run_due()
        assert known(store, "failing") == lesson(1)
        store.submit("failing", "t")  # once more, from the beginning
        for _ in range(2):
            store.run_due()
            clock.advance(60)
    assert known(store, "failing") == lesson(2)


def test_a_function_hears_of_failures_too_and_if_it_fails_itself_the_failure_is_recorded(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    def lessons(task: TaskView) -> list[str]:
        assert task.error is not None
        if task.id == "worse":
            raise RuntimeError("secret")
        return [f"{task.status}: {task.error.message}"]

    @holdfast.agent("failing", max_attempts=1, remember=lessons)
    def failing(task: Task) -> None:
        raise ValueError("the form is gone")

    store.submit("failing", "bad", goal=GOAL)
    store.submit("failing", "worse", goal=GOAL)
    store.run_due()
    assert remembered(store, "failing") == ["failed: the form is gone"]
    assert [info.status for info in store.tasks()] == ["failed", "failed"]
    assert "to memory (RuntimeError)" in caplog.text
    assert "secret" not in caplog.text


# -- killed in between -----------------------------------------------------------------------------


@pytest.fixture
def matrix_of(tmp_path: Path) -> Iterator[Callable[[Any], Matrix]]:
    """The matrix of an agent. Its processes end with the test."""
    with ExitStack() as stack:

        def build(agent: Any) -> Matrix:
            target = _locate_agent(agent)
            spec = ProcessSpec(_import_path(), Target(**target), "", "", "t", GOAL, None, 0.0, None)
            (tmp_path / "spec").write_bytes(msgspec.json.encode(spec))
            launcher = Launcher(tmp_path / "spec", tmp_path / "imports")
            stack.callback(launcher.close)
            where = "sqlite", 60.0, tmp_path, launcher, False
            return Matrix(target, "t", GOAL, None, {}, {}, *where)

        yield build


def left_in(url: str, agent: str) -> list[tuple[str, tuple[str, ...], int]]:
    with holdfast.open(url) as store:
        return known(store, agent)


@pytest.mark.slow
def test_killed_at_any_write_a_task_leaves_everything_and_each_once(
    tmp_path: Path, matrix_of: Callable[[Any], Matrix]
) -> None:
    matrix = matrix_of(agents.buyer)
    expected, possible = _run_undisturbed(matrix)
    points = [point for point in possible if "tenant" not in point]
    assert {"after memory.remembered buyer 1", "after memory.remembered buyer 2"} <= set(points)
    found = _run_points(matrix, points, expected, _ignore)
    assert all(any(note["what"] == "killed" for note in evidence.notes) for evidence in found)
    assert [evidence.problem for evidence in found] == [""] * len(points)
    everything = [
        ("Ann signs the orders", (), 1),
        ("prices of vendor B are without tax", ("discovery",), 1),
        ("vendor A\nBecause: the only one with an SLA", ("decision",), 1),
        (f"{GOAL}\nOutcome: three laptops ordered", ("outcome",), 1),
    ]
    left = {
        point: left_in(url_at("sqlite", tmp_path / f"run {n + 2}"), "buyer")
        for n, point in enumerate(points)
    }
    assert left == dict.fromkeys(points, everything)


AFTER_IT = "after memory.remembered fickle"
"""What it leaves is written, that it has ended is not. What follows is the version; (2): the first
try there was a repeat."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kills", "number"), [(["1"], 0), (["1", "3 (2)"], 1), (["1", "3 (2)", "5 (2)"], 0)]
)
def test_what_a_killed_run_would_have_ended_with_is_not_remembered(
    kills: list[str], number: int, tmp_path: Path, matrix_of: Callable[[Any], Matrix]
) -> None:
    run = MatrixRun(matrix_of(agents.fickle), 0)
    for place in kills:
        assert run._run_process(f"{AFTER_IT} {place}") == ("killed", "")
    assert run.finish().result == f"offer number {number}"
    assert left_in(run.url, "fickle") == [
        ("the vendor answers on Mondays", ("discovery",), 1),
        (f"{GOAL}\nOutcome: offer number {number}", ("outcome",), 1),
    ]


def ended(store: Store, end: str) -> None:
    """Another process brings the task to another end, or goes on and brings it to none."""
    if end == "cancelled":
        store.task("t").cancel()
    elif end == "deleted":
        store.task("t").delete()
    else:
        with store.task("t", steal=True) as task:
            task.finish("nothing ordered") if end == "finished" else task.fail("no vendor answers")


LEFT = {
    "finished": ["the vendor answers on Mondays", f"{GOAL}\nOutcome: nothing ordered"],
    "failed": [f"{GOAL}\nFailed: no vendor answers"],
    "cancelled": [],
    "deleted": [],
}


@pytest.mark.slow
@pytest.mark.parametrize("end", LEFT)
def test_whatever_end_is_recorded_only_that_is_remembered(
    end: str, tmp_path: Path, matrix_of: Callable[[Any], Matrix]
) -> None:
    run = MatrixRun(matrix_of(agents.fickle), 0)
    assert run._run_process(f"{AFTER_IT} 1") == ("killed", "")
    with holdfast.open(run.url) as store:
        assert remembered(store, "fickle") == [
            "the vendor answers on Mondays",
            f"{GOAL}\nOutcome: offer number 1",
        ]
        ended(store, end)
        assert remembered(store, "fickle") == LEFT[end]


@ON_MEMORY
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("end", LEFT)
def test_a_failure_that_was_not_recorded_is_forgotten_and_one_that_was_is_not(
    ways: Ways, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def give_up(task: Any) -> None:
        await task.discover("the vendor answers on Mondays")
        await task.fail("this time it is the budget")

    async def cut_off(task: Any) -> None:
        def put(*args: Any, **options: Any) -> Any:
            raise Unavailable("the engine is away")

        monkeypatch.setattr(task._require_session(), "put", put)
        await task.fail("this time it is the weather")

    ways.resume(give_up, **BUYER)
    recorded = f"{GOAL}\nFailed: this time it is the budget"
    assert remembered(ways.store) == [recorded]
    with pytest.raises(Unavailable):
        ways.resume(cut_off)
    assert remembered(ways.store) == [recorded, f"{GOAL}\nFailed: this time it is the weather"]
    ended(ways.store, end)
    assert remembered(ways.store) == [recorded, *LEFT[end]]


@ON_MEMORY
def test_cancelling_a_task_forgets_nothing_that_it_remembered_on_the_way(ways: Ways) -> None:
    async def work(task: Any) -> None:
        await task.remember("Ann signs the orders")

    ways.resume(work, **BUYER)
    ways.store.task("t").cancel()
    ways.store.task("t").cancel()
    assert remembered(ways.store) == ["Ann signs the orders"]


@pytest.mark.slow
@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_but_it_is_if_somebody_else_has_said_it_too(
    first: bool, tmp_path: Path, matrix_of: Callable[[Any], Matrix]
) -> None:
    run = MatrixRun(matrix_of(agents.fickle), 0)

    def say_it() -> None:
        with holdfast.open(run.url) as store:
            store.memory("fickle").remember(f"{GOAL}\nOutcome: offer number 1")

    if first:
        say_it()
    assert run._run_process(f"{AFTER_IT} {2 if first else 1}") == ("killed", "")
    if not first:
        say_it()
    assert run.finish().result == "offer number 0"
    outcomes = [text for text, _, _ in left_in(run.url, "fickle") if "Outcome" in text]
    assert outcomes == [f"{GOAL}\nOutcome: offer number 1", f"{GOAL}\nOutcome: offer number 0"]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_task_whose_memories_cannot_be_written_has_not_ended(asynchronous: bool) -> None:
    backend = FaultyBackend(MemoryBackend(), seed=1)
    with holdfast.open(backend) as store:
        ways = Ways(store, asynchronous=asynchronous)

        async def work(task: Any) -> None:
            await task.decide("vendor A")
            if not task.resumed:
                backend.next("unavailable")
            await task.finish("ordered")

        with pytest.raises(Unavailable):
            ways.resume(work, **BUYER)
        assert view(ways).status == "pending"
        ways.resume(work)
        assert known(store) == [
            ("vendor A", ("decision",), 1),
            (f"{GOAL}\nOutcome: ordered", ("outcome",), 1),
        ]


def test_an_engine_that_is_away_for_a_moment_is_waited_for() -> None:
    backend = FaultyBackend(MemoryBackend(), seed=1)
    with holdfast.open(backend) as store, store.task("t", **BUYER) as task:
        backend.next("unavailable", "unavailable")
        task.finish("ordered")
        assert known(store) == [(f"{GOAL}\nOutcome: ordered", ("outcome",), 1)]


# -- remembered on the way -------------------------------------------------------------------------


def test_what_a_task_remembers_it_remembers_once_however_often_it_is_run(ways: Ways) -> None:
    async def work(task: Any) -> list[str]:
        ids = [
            await task.remember("Ann signs the orders", tags=["people"], importance=0.9, ttl=1e6)
            for _ in range(2)
        ]
        ids.append(
            await task.remember("Bob signs them in May", at=0, subject="bob", meta={"page": 3})
        )
        if not task.resumed:
            raise ValueError("a bug")
        await task.finish(remember=False)
        return ids

    with pytest.raises(ValueError, match="a bug"):
        ways.resume(work, **BUYER)
    ids = ways.resume(work)
    assert ways.resume(work) == ids  # it has finished
    ann, bob = ways.store.memory("buyer").all()
    assert ids == [ann.id, ann.id, bob.id]
    assert (ann.text, ann.tags, ann.source, ann.mentions) == (
        "Ann signs the orders",
        ("people",),
        "task/t",
        1,
    )
    assert ann.expires_at is not None and ann.expires_at > ann.at
    assert (bob.at, bob.subject, bob.meta) == (
        datetime.fromtimestamp(0, timezone.utc),
        "bob",
        {"page": 3},
    )


def test_a_task_reinforces_what_is_known_and_gets_its_id(ways: Ways) -> None:
    before = ways.store.memory("buyer").remember("Ann signs the orders")

    async def work(task: Any) -> list[str]:
        return [await task.remember("Ann signs the orders.") for _ in range(2)]

    assert ways.resume(work, **BUYER) == [before, before]
    assert known(ways.store) == [("Ann signs the orders", (), 2)]


@ON_MEMORY
def test_where_a_task_cannot_remember_it_says_why(ways: Ways) -> None:
    async def work(task: Any) -> None:
        await task.remember("Ann signs the orders")

    async def finish(task: Any) -> None:
        await task.finish()

    with pytest.raises(ValueError, match="has no agent"):
        ways.resume(work, "nobody's")
    ways.resume(finish, "ended", agent="buyer")
    with pytest.raises(TaskEnded):
        ways.resume(work, "ended")
    assert list(ways.store.memory_namespaces()) == []


def test_a_task_is_a_source(store: Store) -> None:
    with store.task("t", agent="buyer") as task:
        store.memory("people").remember("Ann signs the orders", source=task)
    [memory] = store.memory("people").all(source=task)
    assert memory.source == "task/t"


def test_a_replay_remembers_nothing_and_finds_what_was(store: Store) -> None:
    @holdfast.agent("buyer")
    def buyer(task: Task) -> str:
        task.remember("Ann signs the orders", ttl=1e6)
        task.remember("Bob signs them in May")
        task.discover("prices of vendor B are without tax")
        return str(len(task.resume_context().text) > 0)

    store.memory("buyer").remember("Laptops are ordered in June")
    store.run(buyer, "t", goal=GOAL)
    before = known(store), store.task("t").view().version
    replayed = holdfast.replay(buyer, "t", store=store)
    assert replayed.ok, replayed
    assert (known(store), store.task("t").view().version) == before

    @holdfast.agent("buyer")
    def other(task: Task) -> str:
        task.remember("Cleo signs the orders")
        return "True"

    assert not holdfast.replay(other, "t", store=store).ok
    assert known(store) == before[0]
