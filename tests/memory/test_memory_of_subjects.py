"""Whose memories a resume context quotes: those of its own subject, and those about no one."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from helpers.memory.concept_embedder import Concepts
from helpers.stores import ON_MEMORY
from helpers.sync_and_async import Ways
from holdfast import Store, Task, TaskView
from holdfast.errors import InvalidId, ReplayMismatch
from holdfast.tasks.agents.declare import registered_agents

pytestmark = pytest.mark.usefixtures("no_agents")

GOAL = "Settle the water damage claim"
SECRET = "account DE89 of the water damage claim"
READERS = ("ann", "bob", None)


async def finish(task: Any) -> None:
    await task.finish(SECRET)


async def fail(task: Any) -> None:
    await task.fail(f"no payment to {SECRET}")


async def decide(task: Any) -> None:
    await task.decide(f"pay to {SECRET}", why=SECRET)
    await task.finish()


async def discover(task: Any) -> None:
    await task.discover(SECRET)
    await task.finish()


async def remember(task: Any) -> None:
    await task.remember(f"remember {SECRET}")


async def leave_by_function(task: Any) -> None:
    await task.finish(remember=lambda view: [SECRET, {"text": f"and {SECRET}", "tags": ["a"]}])


async def have_a_goal(task: Any) -> None:
    await task.finish("settled")


WAYS_TO_LEAVE = (finish, fail, decide, discover, remember, leave_by_function, have_a_goal)


def settle(ways: Ways, work: Any, subject: str | None, id: str = "earlier", **options: Any) -> Any:
    goal = f"{GOAL} of {SECRET}" if work is have_a_goal else GOAL
    return ways.resume(work, id, goal=goal, agent="claims", subject=subject, **options)


def told(ways: Ways, subject: str | None, **options: Any) -> str:
    """The resume context of a new task about a subject, asked for inside and from outside."""

    async def work(task: Any) -> Any:
        return await task.resume_context(memories=50, trust=True)

    name = f"for {subject}"
    inside = ways.resume(
        work, name, **{"goal": GOAL, "agent": "claims", "subject": subject, **options}
    )
    outside = ways.store.task(name).resume_context(memories=50, trust=True)
    assert inside.memories == outside.memories
    return f"{inside.text}\n{inside.memories}\n{inside.to_dict()}"


# -- by subject ------------------------------------------------------------------------------------


@pytest.mark.parametrize("work", WAYS_TO_LEAVE)
@pytest.mark.parametrize("left_by", READERS)
def test_what_a_task_leaves_is_told_only_for_its_subject(
    ways: Ways, work: Any, left_by: str | None
) -> None:
    settle(ways, work, left_by)
    quoted = {reader for reader in READERS if "DE89" in told(ways, reader)}
    assert quoted == ({left_by} if left_by else set(READERS))


@pytest.mark.every_engine
def test_no_engine_tells_one_subject_of_another(ways: Ways) -> None:
    for work in WAYS_TO_LEAVE:
        settle(ways, work, "ann", f"ann's {work.__name__}")
    settle(ways, discover, None, "general")
    ways.store.memory("claims").remember(f"by hand: {SECRET}", subject="bob", source="mail")
    ways.store.memory("claims").remember("water damage claims are read by Eve", source="mail")
    about = {reader: told(ways, reader) for reader in READERS}
    assert "Outcome: account DE89" in about["ann"] and "Eve" in about["ann"]
    assert "by hand" not in about["ann"]
    assert "by hand" in about["bob"] and "Eve" in about["bob"]
    for reader in ("bob", None):
        assert "ann's" not in about[reader] and "Outcome: account" not in about[reader]
        assert '"task/general"' in about[reader]
    assert "by hand" not in about[None] and "Eve" in about[None]


def test_what_a_worker_gives_up_on_is_told_only_for_its_subject(store: Store) -> None:
    @holdfast.agent("claims", max_attempts=1)
    def claims(task: Task) -> None:
        raise ValueError(f"no such account: {SECRET}")

    store.submit("claims", "t", goal=f"{GOAL} of {SECRET}", subject="ann")
    assert [ran.status for ran in store.run_due()] == ["failed"]
    ways = Ways(store, asynchronous=False)
    assert [reader for reader in READERS if "DE89" in told(ways, reader)] == ["ann"]


def test_what_a_child_leaves_is_about_the_subject_of_its_parent(ways: Ways) -> None:
    @holdfast.agent("claims")
    def claims(task: Task) -> str:
        return SECRET

    @holdfast.agent("claims async")
    async def claims_async(task: Any) -> str:
        return SECRET

    name = "claims async" if ways.asynchronous else "claims"

    async def work(task: Any) -> None:
        await task.run_child(name, "child", goal=GOAL)

    ways.resume(work, "parent", agent="other", subject="ann")
    about = [reader for reader in READERS if "DE89" in told(ways, reader, agent=name)]
    assert about == ["ann"]


@pytest.mark.parametrize("engine", ["memory", "sqlite", "postgres"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_search_by_meaning_stays_with_the_subject(
    engine: str, asynchronous: bool, tmp_path: Any
) -> None:
    from helpers.stores import url_of

    with holdfast.open(url_of(engine, tmp_path), embed=Concepts()) as store:
        ways = Ways(store, asynchronous=asynchronous)

        async def work(task: Any) -> None:
            await task.discover(f"{task.id} has a hound")
            await task.finish()

        for subject in READERS:
            ways.resume(work, f"{subject}'s dog", goal="Pay", agent="claims", subject=subject)
        for reader in READERS:
            text = told(ways, reader, goal="Who has a puppy?")
            about = {s for s in READERS if f"{s}'s dog has a hound" in text}
            assert about == {reader, None}


def test_a_task_can_leave_something_about_no_one_in_particular(ways: Ways) -> None:
    async def work(task: Any) -> None:
        await task.remember("water damage: the archive closes at noon", subject=None)
        await task.remember("water damage: Bob was there", subject="bob")
        await task.finish(
            remember=lambda view: [{"text": "water damage takes a week", "subject": None}]
        )

    settle(ways, work, "ann")
    about = {reader: told(ways, reader) for reader in READERS}
    for text in about.values():
        assert "closes at noon" in text and "takes a week" in text
    assert [reader for reader in READERS if "Bob was there" in about[reader]] == ["bob"]


def test_the_same_text_about_two_subjects_stays_two_memories(ways: Ways) -> None:
    async def work(task: Any) -> str:
        await task.resume_context(memories=9)
        return str(await task.remember("The water damage was in the kitchen"))

    ids = {subject: settle(ways, work, subject, f"{subject}'s") for subject in ("ann", "bob")}
    memories = {memory.id: memory.subject for memory in ways.store.memory("claims").all()}
    assert memories == {ids["ann"]: "ann", ids["bob"]: "bob"}
    # Another task about Bob gets it told, says it again, and so learns the id of Bob's.
    assert settle(ways, work, "bob", "bob's second") == ids["bob"]


@pytest.mark.parametrize("url", ["memory://"])
def test_a_subject_is_erased_with_what_its_tasks_left(url: str) -> None:
    for asynchronous in (False, True):
        with holdfast.open(url, key=holdfast.keys.generate()) as store:
            ways = Ways(store, asynchronous=asynchronous)
            for work in WAYS_TO_LEAVE:
                settle(ways, work, "ann", f"ann's {work.__name__}")
            settle(ways, discover, "bob", "bob's")
            store.erase(subject="ann")
            assert {memory.subject for memory in store.memory("claims").all()} == {"bob"}
            assert [reader for reader in READERS if "DE89" in told(ways, reader)] == ["bob"]


@ON_MEMORY
def test_a_task_says_whom_it_is_about(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        return task.subject, (ways.store.get_task("t") or task).subject

    assert ways.resume(work, subject="ann") == ("ann", "ann")
    assert ways.resume(work, "about no one") == (None, "ann")
    with pytest.raises(ReplayMismatch, match="another subject"):
        ways.resume(work, subject="bob")


# -- by memory scope -------------------------------------------------------------------------------


def namespaces(store: Store) -> list[str]:
    return [info.namespace for info in store.memory_namespaces()]


def settle_with_agent(ways: Ways, task: str, **options: Any) -> Any:
    """Declare the agent "claims" with these options, and run a task of it to its end."""
    if ways.asynchronous:

        @holdfast.agent("claims", **options)
        async def settle_async(task: Any) -> list[str]:
            await task.remember("a note on the water damage")
            context = await task.resume_context(memories=9)
            return sorted(context.memories.values())

        return ways.run(ways.store.aio.run("claims", task, goal=GOAL, subject=task[:3]))

    @holdfast.agent("claims", **options)
    def settle_plain(task: Task) -> list[str]:
        task.remember("a note on the water damage")
        return sorted(task.resume_context(memories=9).memories.values())

    return ways.store.run("claims", task, goal=GOAL, subject=task[:3])


def test_an_agent_names_the_namespace_of_what_its_tasks_remember(ways: Ways) -> None:
    by_subject = {"memory": lambda task: f"claims/{task.subject}"}
    assert settle_with_agent(ways, "ann-1", **by_subject) == []
    assert settle_with_agent(ways, "bob-1", **by_subject) == []
    assert namespaces(ways.store) == ["claims/ann", "claims/bob"]
    assert settle_with_agent(ways, "ann-2", **by_subject) == [
        f"{GOAL}\nOutcome: []",
        "a note on the water damage",
    ]
    view = ways.store.get_task("ann-2")
    assert view is not None and view.memory_namespace == "claims/ann"
    types = [event.type for event in ways.store.task("ann-2").history()]
    assert types.count("task.memory_named") == 1


def test_two_agents_can_share_a_namespace(ways: Ways) -> None:
    ways.store.memory("office").remember("water damage: ask Eve first")
    assert settle_with_agent(ways, "ann-1", memory="office") == ["water damage: ask Eve first"]
    assert namespaces(ways.store) == ["office"]


def test_a_shared_namespace_is_still_read_by_subject(ways: Ways) -> None:
    settle_with_agent(ways, "ann-1", memory="office")
    assert settle_with_agent(ways, "bob-1", memory="office") == []


def test_a_process_without_the_agent_finds_the_namespace_in_the_task(ways: Ways) -> None:
    async def begin(task: Any) -> None:
        await task.remember("a note on the water damage")

    async def end(task: Any) -> Any:
        await task.remember("a note on the water damage")  # again, as code does that resumes
        await task.finish("settled")

    holdfast.agent("claims", memory=lambda task: f"claims/{task.subject}")(lambda task: None)
    settle(ways, begin, "ann", "t")
    del registered_agents["claims"]
    settle(ways, end, "ann", "t")
    assert namespaces(ways.store) == ["claims/ann"]
    assert [(one.text, one.mentions) for one in ways.store.memory("claims/ann").all()] == [
        ("a note on the water damage", 1),
        (f"{GOAL}\nOutcome: settled", 1),
    ]


def test_a_task_that_only_asks_records_no_namespace(ways: Ways) -> None:
    holdfast.agent("claims", memory="office")(lambda task: None)
    ways.store.memory("office").remember("water damage: ask Eve first")

    async def look(task: Any) -> Any:
        return (await task.resume_context()).memories

    assert settle(ways, look, "ann", "t") == settle(ways, look, "ann", "t")
    assert list(settle(ways, look, "ann", "t").values()) == ["water damage: ask Eve first"]
    types = [event.type for event in ways.store.task("t").history()]
    assert "task.memory_named" not in types


def test_what_was_saved_for_an_end_that_never_came_is_forgotten_in_its_namespace(
    ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    holdfast.agent("claims", memory="office")(lambda task: None)

    class Killed(BaseException):
        pass

    def kill(*args: Any, **kwargs: Any) -> Any:
        raise Killed

    async def work(task: Any) -> None:
        monkeypatch.setattr("holdfast.tasks.state.events.Finished", kill)
        await task.finish(SECRET)

    with pytest.raises(Killed):
        settle(ways, work, "ann", "t")
    assert [memory.subject for memory in ways.store.memory("office").all()] == ["ann"]
    del registered_agents["claims"]
    ways.store.task("t").cancel()
    assert list(ways.store.memory("office").all()) == []


def test_a_failing_step_is_still_retried_when_the_failure_is_remembered(store: Store) -> None:
    tried: list[int] = []

    @holdfast.agent("claims", memory="office", max_attempts=1)
    def claims(task: Task) -> str:
        def read() -> str:
            tried.append(1)
            if len(tried) == 1:
                raise OSError("the disk was asleep")
            return "read"

        return task.step("read", read)

    store.submit("claims", "t", goal=GOAL)
    assert [ran.status for ran in store.run_due()] == ["failed"]
    assert namespaces(store) == ["office"]
    store.submit("claims", "t")
    assert [ran.status for ran in store.run_due()] == ["finished"]
    assert len(tried) == 2


def test_a_task_keeps_the_namespace_that_was_named_first(ways: Ways) -> None:
    names = iter(("first", "second", "third"))
    holdfast.agent("claims", memory=lambda task: next(names))(lambda task: None)
    settle(ways, remember, "ann", "t")
    settle(ways, finish, "ann", "t")
    assert namespaces(ways.store) == ["first"]


def test_a_replay_records_no_namespace(store: Store) -> None:
    settle_with_agent(Ways(store, asynchronous=False), "ann-1", memory="office")
    version = store.task("ann-1").version()
    assert store.replay("claims", "ann-1").divergence is None
    assert store.task("ann-1").version() == version
    assert namespaces(store) == ["office"]


@ON_MEMORY
@pytest.mark.parametrize("wrong", [None, "", 7, "a" * 2000])
def test_a_namespace_that_cannot_be_one_is_refused_when_it_is_needed(
    ways: Ways, wrong: Any
) -> None:
    holdfast.agent("claims", memory=lambda task: wrong)(lambda task: None)
    with pytest.raises(InvalidId, match="the memory namespace of agent 'claims' must"):
        settle(ways, remember, "ann")


def test_memory_is_a_name_or_a_function_that_names() -> None:
    async def later(task: TaskView) -> str:
        return "claims"

    for wrong in (False, True, 7, later):
        with pytest.raises(TypeError, match="memory must be a namespace"):
            holdfast.agent("a", memory=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidId, match="memory must"):
        holdfast.agent("a", memory="")


def test_a_subject_is_erased_from_the_namespace_of_its_tasks() -> None:
    with holdfast.open("memory://", key=holdfast.keys.generate()) as store:
        ways = Ways(store, asynchronous=False)
        by_subject = {"memory": lambda task: f"claims/{task.subject}"}
        settle_with_agent(ways, "ann-1", **by_subject)
        settle_with_agent(ways, "bob-1", **by_subject)
        done = store.erase(subject="ann")
        assert done.memories == ["claims/ann"]
        assert list(store.memory("claims/ann").all()) == []
        assert len(list(store.memory("claims/bob").all())) == 2
