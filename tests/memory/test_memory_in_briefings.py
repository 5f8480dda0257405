"""What a briefing tells of what earlier tasks have learned, and that nothing is learned by being
told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast
from helpers.example_counts import examples
from helpers.memory.learning_tasks import BUYER, GOAL, known, remembered
from helpers.stores import ON_MEMORY
from helpers.sync_and_async import Ways, view
from helpers.tasks.task_views import FLAG, T, done, own_words, step, texts, view_of
from holdfast import MemoryItem, Store, Suspended, Task, testing
from holdfast.memory.embedders import Embedder
from holdfast.memory.model import Remembered
from holdfast.tasks.memory import drop_recalled
from holdfast.tasks.resume_context.context import build_resume_context
from holdfast.tasks.resume_context.queries import recall_queries

pytestmark = pytest.mark.usefixtures("no_agents")

# -- what a briefing tells -------------------------------------------------------------------------


def buy(ways: Ways, id: str, **notes: list[str]) -> None:
    """An earlier task that has learned something."""

    async def work(task: Any) -> None:
        for text in notes.get("discover", ()):
            await task.discover(text)
        await task.finish("ordered")

    ways.resume(work, id, goal=f"Order laptops for {id}", agent="buyer")


def briefing(ways: Ways, id: str = "t", **options: Any) -> Any:
    """The briefing of a task, inside its block."""

    async def work(task: Any) -> Any:
        return await task.resume_context(**options)

    return ways.resume(work, id, **BUYER)


def test_a_new_task_is_told_what_earlier_ones_of_its_agent_have_left(ways: Ways) -> None:
    buy(ways, "sales", discover=["laptops need an approval by Ann"])
    day = next(iter(ways.store.memory("buyer").all())).at.strftime("%Y-%m-%d")
    context = briefing(ways)
    assert f'- {day}, "task/sales": "laptops need an approval by Ann"' in context.text
    assert f'- {day}, "task/sales":\n> Order laptops for sales\n> Outcome: ordered' in context.text
    assert set(context.memories.values()) == set(remembered(ways.store))
    outside = ways.store.task("t").resume_context()  # from outside, too
    assert outside.memories == context.memories
    ways.store.memory("buyer").feedback(next(iter(context.memories)), useful=True)


@pytest.mark.slow
def test_of_others_and_of_itself_a_task_is_told_nothing(ways: Ways) -> None:
    ways.store.memory("seller").remember("laptops are sold in June")
    ways.store.for_tenant("globex").memory("buyer").remember("laptops are ordered in June")

    async def work(task: Any) -> Any:
        for number in range(30):
            await task.remember(f"three laptops to order: number {number}")
        return await task.resume_context()

    assert ways.resume(work, **BUYER).memories == {}
    ways.store.memory("buyer").remember("laptops are ordered by Ann")
    assert list(ways.resume(work).memories.values()) == ["laptops are ordered by Ann"]


@ON_MEMORY
def test_how_many_memories_are_told_is_said_and_they_keep_to_the_budget(ways: Ways) -> None:
    for number in range(9):
        ways.store.memory("buyer").remember(
            f"laptops come from vendor {number} " + "and so on " * 60
        )
    assert len(briefing(ways).memories) == 5
    assert len(briefing(ways, memories=7).memories) == 7
    nothing = briefing(ways, memories=0)
    assert nothing.memories == {} and "Remembered from" not in nothing.text
    short = briefing(ways, max_tokens=230)
    assert short.tokens <= 230 and not short.complete
    assert 0 < len(short.memories) < 5
    assert f"Omitted to fit the token budget: {5 - len(short.memories)} memor" in short.text
    with pytest.raises(ValueError, match="memories"):
        briefing(ways, memories=-1)


@ON_MEMORY
def test_without_a_goal_or_an_agent_or_a_memory_there_is_nothing_to_recall(ways: Ways) -> None:
    ways.store.memory("buyer").remember("laptops come from vendor A")

    async def work(task: Any) -> Any:
        return (await task.resume_context()).memories

    assert ways.resume(work, "aimless", agent="buyer") == {}
    assert ways.resume(work, "nobody's", goal=GOAL) == {}
    assert ways.resume(work, "another's", goal=GOAL, agent="seller") == {}
    assert [info.namespace for info in ways.store.memory_namespaces()] == ["buyer"]


def test_the_same_task_and_the_same_memories_give_the_same_briefing(store: Store) -> None:
    memory = store.memory("buyer")
    memory.remember("laptops were ordered", at=0, importance=0.6)
    memory.remember("laptops were ordered, and in good time")
    memory.remember("laptops are free today", ttl=3600)
    with store.task("t", **BUYER):
        pass
    first = store.task("t").resume_context()
    before = [hit.text for hit in memory.recall(GOAL, min_score=0)]
    assert before == list(first.memories.values()) and "laptops are free today" in before
    with testing.fake_clock(start=store.task("t").view().created_at.timestamp() + 1e9):
        later = store.task("t").resume_context()
        after = [hit.text for hit in memory.recall(GOAL, min_score=0)]
    before.remove("laptops are free today")
    assert after == before[::-1]  # what is new counts a little more, but not for ever
    assert list(later.memories.values()) == before


@settings(deadline=None, max_examples=examples(30), suppress_health_check=[HealthCheck.too_slow])
@given(
    texts.filter(lambda text: bool(text.strip())),
    texts.map(lambda text: text[:100]),
    st.integers(400, 3000),
)
def test_what_is_recalled_stays_a_quotation(text: str, source: str, budget: int) -> None:
    memory = MemoryItem(
        id="1", text=text, at=T, first_at=T, source=source, sources=(source,), tags=(), meta={},
        author=FLAG, importance=0.5, subject=None,
        expires_at=None, mentions=1, told_at=T,
    )  # fmt: skip
    context = build_resume_context(view_of(), budget, memories=[memory])
    assert FLAG not in own_words(context)
    assert context.tokens <= budget


class Meant:
    """An embedder to which laptops and notebooks are one."""

    name = "meant"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, texts: list[str]) -> list[list[float]]:
        self.asked += texts
        return [
            [float("laptop" in text.lower() or "notebook" in text), float("desk" in text), 0.1]
            for text in texts
        ]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_briefing_finds_by_meaning_with_the_embedder_of_the_store(asynchronous: bool) -> None:
    embed = Meant()
    with holdfast.open("memory://", embed=embed) as store:
        ways = Ways(store, asynchronous=asynchronous)
        store.memory("buyer").remember_many(
            [{"text": "notebooks come from vendor A"}, {"text": "desks are made of oak"}]
        )
        assert list(briefing(ways, memories=1).memories.values()) == [
            "notebooks come from vendor A"
        ]
        assert GOAL in embed.asked
        assert list(ways.store.task("t").resume_context(memories=1).memories.values()) == [
            "notebooks come from vendor A"
        ]


def test_a_briefing_finds_by_meaning_with_the_embedder_of_the_agent(store: Store) -> None:
    embed = Meant()

    async def awaited(texts: list[str]) -> list[list[float]]:
        return embed(texts)

    @holdfast.agent("plain", embed=embed)
    def plain(task: Task) -> list[str]:
        return list(task.resume_context(memories=1).memories.values())

    @holdfast.agent("async", embed=Embedder(awaited, name="meant"))
    async def asynchronous(task: Any) -> list[str]:
        return list((await task.resume_context(memories=1)).memories.values())

    for agent in ("plain", "async"):
        embed.asked.clear()
        store.memory(agent).remember_many(
            [{"text": "notebooks come from vendor A"}, {"text": "desks are made of oak"}]
        )
        store.submit(agent, agent, goal=GOAL)
        assert [ran.status for ran in store.run_due()] == ["finished"]
        view = store.get_task(agent)
        assert view is not None and view.result == ["notebooks come from vendor A"]
        assert GOAL in embed.asked
    embed.asked.clear()
    with store.task("by hand", goal=GOAL, agent="async") as task:  # it cannot await: by words
        task.resume_context()
    assert embed.asked == []
    with pytest.raises(TypeError, match="async"):
        holdfast.agent("a", embed=Embedder(awaited, name="meant"))(lambda task: None)


# -- for the next steps ----------------------------------------------------------------------------

TRIP = {"goal": "Arrange the visit of the auditors", "agent": "buyer"}
HOTEL = "The Flandria in Ghent has quiet hotel rooms"


def visit(ways: Ways, plan: list[Any], **options: Any) -> list[str]:
    """What is told to a task with this plan whose first item is done."""
    for number in range(9):
        ways.store.memory("buyer").remember(f"auditors want a visit to warehouse {number}")
    ways.store.memory("buyer").remember_many(
        [{"text": HOTEL}, {"text": "Parking in Ghent is free on Sundays"}, {"text": "Ann left"}]
    )

    async def work(task: Any) -> Any:
        items = await task.make_plan(plan)
        await task.step(items[0], lambda: "done")
        return await task.resume_context(**options)

    return list(ways.resume(work, **TRIP).memories.values())


def test_what_fits_the_next_step_is_told_however_much_fits_the_goal(ways: Ways) -> None:
    told = visit(ways, ["ask for the date", "book a hotel in Ghent", "report"])
    assert HOTEL in told and len(told) == 5
    assert sum("auditors" in text for text in told) == 3
    assert "Ann left" not in told


@pytest.mark.parametrize(
    "item",
    [
        {"name": "2", "description": "book a hotel in Ghent"},
        {"name": "2", "args": {"what": "hotel", "where": "Ghent"}},
    ],
)
def test_what_fits_the_details_of_the_next_step_is_told(ways: Ways, item: Any) -> None:
    assert HOTEL in visit(ways, ["1", item, "3"])


@ON_MEMORY
def test_what_fits_only_a_finished_step_is_not_asked_for(ways: Ways) -> None:
    assert HOTEL not in visit(ways, ["book a hotel in Ghent", "report"], memories=50)


def test_what_fits_an_interrupted_step_is_told(ways: Ways) -> None:
    ways.store.memory("buyer").remember(HOTEL)

    async def work(task: Any) -> None:
        def stop() -> None:
            raise KeyboardInterrupt

        await task.step("book a hotel in Ghent", holdfast.step(once=True)(stop))

    with pytest.raises(KeyboardInterrupt):
        ways.resume(work, **TRIP)
    told = ways.store.task("t").resume_context()
    assert list(told.memories.values()) == [HOTEL]


def test_without_a_goal_the_next_steps_are_asked_for(ways: Ways) -> None:
    ways.store.memory("buyer").remember(HOTEL)

    async def work(task: Any) -> Any:
        await task.make_plan(["book a hotel in Ghent"])
        return await task.resume_context()

    assert list(ways.resume(work, agent="buyer").memories.values()) == [HOTEL]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_embedder_gets_all_questions_in_one_call(asynchronous: bool) -> None:
    batches: list[list[str]] = []

    def embed(texts: list[str]) -> list[list[float]]:
        batches.append(texts)
        return [[float("room" in text or "hotel" in text), 0.1] for text in texts]

    with holdfast.open("memory://", embed=Embedder(embed, name="rooms")) as store:
        ways = Ways(store, asynchronous=asynchronous)
        store.memory("buyer").remember("The Flandria has quiet rooms")

        async def work(task: Any) -> Any:
            await task.make_plan([f"book hotel {n}" for n in range(9)])
            return await task.resume_context()

        told = ways.resume(work, **TRIP)
    assert list(told.memories.values()) == ["The Flandria has quiet rooms"]
    asked = [TRIP["goal"], "book hotel 0", "book hotel 1", "book hotel 2"]
    assert batches == [asked, ["The Flandria has quiet rooms"]]


def test_the_questions_to_memory_are_few_and_not_long() -> None:
    plan = [{"name": f"item {n}", "about": "x" * 9000} for n in range(500)]
    stopped = [step("look", "running", version=3), step("read", "retrying", version=4)]
    view = view_of(done("item 0"), *stopped, plan=plan, goal="g" * 9000)
    queries = recall_queries(view)
    assert [query.split("\n")[0][:6] for query in queries] == ["gggggg", "read", "look", "item 1"]
    assert max(map(len, queries)) == 4000
    ended = recall_queries(view_of(plan=["a"], status="finished", goal="Say it"))
    assert ended == ["Say it"]
    assert recall_queries(view_of(plan=["Say it", " "], goal="Say it")) == ["Say it"]


# -- nothing is learned by being told --------------------------------------------------------------


def test_what_a_task_was_told_is_not_remembered_again_when_it_repeats_it(ways: Ways) -> None:
    buy(ways, "sales", discover=["Laptops need an approval by Ann"])
    before = known(ways.store)

    async def begin(task: Any) -> None:
        assert "approval by Ann" in (await task.resume_context()).text
        await task.discover("laptops need an approval by Ann")  # as a model does

    async def end(task: Any) -> None:
        await task.discover("laptops need an approval by Bob")
        await task.finish("three laptops ordered")

    ways.resume(begin, **BUYER)
    ways.resume(end)  # another run, to which nothing was told
    assert known(ways.store) == [
        *before,
        ("laptops need an approval by Bob", ("discovery",), 1),
        (f"{GOAL}\nOutcome: three laptops ordered", ("outcome",), 1),
    ]


def test_what_a_task_finds_out_by_itself_reinforces_what_is_known(ways: Ways) -> None:
    ways.store.memory("buyer").remember("Laptops need an approval by Ann")

    async def work(task: Any) -> None:
        await task.resume_context(memories=0)  # it was not told
        await task.discover("laptops need an approval by Ann")
        await task.finish(remember=True)

    ways.resume(work, **BUYER)
    assert known(ways.store)[0] == ("Laptops need an approval by Ann", ("discovery",), 2)


@ON_MEMORY
def test_the_same_outcome_again_is_no_confirmation_if_it_was_told(ways: Ways) -> None:
    async def work(task: Any) -> None:
        if task.id != "first":
            assert (await task.resume_context()).memories
        await task.finish("ordered")

    ways.resume(work, "first", **BUYER)
    ways.resume(work, "second", **BUYER)
    assert known(ways.store) == [(f"{GOAL}\nOutcome: ordered", ("outcome",), 1)]


@ON_MEMORY
def test_a_decision_that_was_recalled_is_known_with_and_without_its_reason(ways: Ways) -> None:
    ways.store.memory("buyer").remember(
        "order laptops from vendor A\nBecause: the only one with an SLA"
    )

    async def work(task: Any) -> None:
        await task.resume_context()
        await task.decide("order laptops from vendor A", why="the only one with an SLA")
        await task.decide("order laptops from vendor A")
        await task.decide("order laptops from vendor A", why="B is closed in May")
        await task.finish("ordered")

    ways.resume(work, **BUYER)
    assert remembered(ways.store)[1:] == [
        "order laptops from vendor A\nBecause: B is closed in May",
        f"{GOAL}\nOutcome: ordered",
    ]


@ON_MEMORY
def test_to_be_told_something_is_noted_once_with_what_is_written_next(ways: Ways) -> None:
    ways.store.memory("buyer").remember("laptops need an approval by Ann")

    async def work(task: Any) -> None:
        for _ in range(3):
            await task.resume_context()
        await task.step("look", lambda: 1)
        await task.resume_context()

    for _ in range(2):
        ways.resume(work, **BUYER)
    types = [event.type for event in ways.store.task("t").history()]
    assert types.count("task.recalled") == 1
    assert types.index("task.recalled") < types.index("step.completed")


@ON_MEMORY
def test_who_only_asks_for_a_briefing_leaves_a_waiting_task_as_it_is(ways: Ways) -> None:
    ways.store.memory("buyer").remember("laptops need an approval by Ann")

    async def wait(task: Any) -> None:
        await task.wait_for("delivered")

    async def look(task: Any) -> Any:
        context = await task.resume_context()
        clock.advance(5)
        task._require_session().beat()
        return context.memories

    with testing.fake_clock() as clock:
        with pytest.raises(Suspended):
            ways.resume(wait, **BUYER)
        assert ways.resume(look)
    assert view(ways).status == "suspended"
    assert "task.recalled" in [event.type for event in ways.store.task("t").history()]


@given(
    st.lists(texts.filter(lambda text: bool(text.strip())), max_size=4), st.lists(texts, max_size=4)
)
@settings(deadline=None, max_examples=examples(25))
def test_of_what_is_left_only_what_was_recalled_is_taken_out(
    left: list[str], recalled: list[str]
) -> None:
    said = [Remembered(text) for text in left]
    kept = drop_recalled(said, recalled)
    assert [one for one in said if one in kept] == kept  # in order
    assert not {one.text for one in kept} & set(recalled)
    assert drop_recalled(said, []) == said
    assert drop_recalled(kept, recalled) == kept


def test_what_several_tasks_find_out_is_one_memory_whatever_the_day() -> None:
    with holdfast.open("memory://") as store, testing.fake_clock() as clock:
        for day in range(3):
            with store.task(f"t{day}", goal=f"Check claim {day}", agent="claims") as task:
                task.discover("The archive is closed on Mondays")
                task.finish("done")
            clock.advance(86_400)
        known = [one for one in store.memory("claims").all() if "discovery" in one.tags]
        assert [(one.text, one.mentions) for one in known] == [
            ("The archive is closed on Mondays", 3)
        ]
