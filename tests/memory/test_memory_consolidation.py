"""Consolidation of memories: what is proposed, what is applied, by whom, and what undo restores."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Budget, Store, testing
from holdfast.errors import NotFound, StepFailed
from holdfast.memory import ConsolidationResult, Proposal, consolidate, propose, undo_consolidation
from holdfast.memory.consolidation.find import ARCHIVE_BATCH

NOW = 1_800_000_000.0
HOUR, DAY = 3_600.0, 86_400.0
YEAR = 365 * DAY

Model = Callable[[list[dict[str, str]]], Any]


@pytest.fixture
def clock() -> Iterator[testing.FakeClock]:
    with testing.fake_clock(NOW) as clock:
        yield clock


class Consolidator:
    """Consolidates the memory "m" of a store, plain or async."""

    def __init__(self, store: Store, asynchronous: bool) -> None:
        self.store, self._asynchronous = store, asynchronous
        self.memory = store.memory("m")

    def run(self, model: Model | None = None, **given: Any) -> ConsolidationResult:
        if not self._asynchronous:
            return consolidate(self.store, "m", model=model, **given)

        async def answer(messages: list[dict[str, str]]) -> Any:
            assert model is not None
            return model(messages)

        async def run() -> ConsolidationResult:
            ask = None if model is None else answer
            return await consolidate(self.store.aio, "m", model=ask, **given)

        return asyncio.run(run())

    def undo(self, run_id: str) -> tuple[int, int]:
        if not self._asynchronous:
            done = undo_consolidation(self.store, "m", run_id)
        else:
            done = asyncio.run(self._undo(run_id))
        return done.undone, done.left

    async def _undo(self, run_id: str) -> Any:
        return await undo_consolidation(self.store.aio, "m", run_id)

    def propose(self, **given: Any) -> list[Proposal]:
        if not self._asynchronous:
            return propose(self.store, "m", **given)

        async def find() -> list[Proposal]:
            return await propose(self.store.aio, "m", **given)

        return asyncio.run(find())

    def texts(self) -> list[str]:
        return [item.text for item in self.memory.all()]


@pytest.fixture
def here(store: Store, asynchronous: bool, clock: testing.FakeClock) -> Consolidator:
    """A memory on each engine, plain and async."""
    return Consolidator(store, asynchronous)


@pytest.fixture
def plain(clock: testing.FakeClock) -> Iterator[Consolidator]:
    """A memory in this process, for rules that are above the engine."""
    with holdfast.open("memory://") as store:
        yield Consolidator(store, False)


def answer(*proposals: dict[str, Any]) -> Model:
    """A model that proposes this for the first memories that it is shown, and then nothing."""
    left = [json.dumps({"proposals": proposals})]
    return lambda messages: left.pop() if left else '{"proposals": []}'


def merge(*numbers: int, text: str, kind: str = "merge") -> dict[str, Any]:
    return {"kind": kind, "memories": list(numbers), "text": text, "reason": "because"}


def kinds(proposals: Sequence[Proposal]) -> list[str]:
    return [one.kind for one in proposals]


# -- without a model -------------------------------------------------------------------------------


@pytest.mark.every_engine
def test_memories_with_the_same_words_of_one_day_become_one_and_undo_parts_them(
    here: Consolidator,
) -> None:
    text = "Ann signs the orders of the shop"
    one = here.memory.remember(text, at=NOW - HOUR, source="mail-1", tags=["people"])
    other = here.memory.remember(text, at=NOW, source="mail-2", importance=1.0)
    before = list(here.memory.all())
    assert len(before) == 2
    result = here.run()
    assert kinds(result.applied) == ["duplicate"] and not result.left
    [item] = here.memory.all()
    assert (item.id, item.mentions, item.importance) == (other, 2, 1.0)
    assert (set(item.sources), item.tags) == ({"mail-1", "mail-2"}, ("people",))
    assert [each.id for each in here.memory.evidence(other)] == [one]
    assert [each.id for each in here.memory.recall("who signs?", source="mail-1")] == [other]
    assert here.undo(result.run_id) == (1, 0)
    assert list(here.memory.all()) == before
    assert here.undo(result.run_id) == (0, 0)
    here.memory.rebuild()
    assert list(here.memory.all()) == before
    assert not list(here.store.verify().problems)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param({"at": NOW - 3 * DAY}, {"at": NOW}, id="another day"),
        pytest.param({"author": "person"}, {"author": "web"}, id="another author"),
        pytest.param({"subject": "ann"}, {"subject": "bob"}, id="another subject"),
        pytest.param({"valid_until": NOW + DAY}, {}, id="another validity"),
        pytest.param({"at": NOW - 1, "ttl": DAY}, {"at": NOW}, id="one expires"),
    ],
)
def test_the_same_words_are_no_duplicate_if_something_else_differs(
    plain: Consolidator, first: dict[str, Any], second: dict[str, Any]
) -> None:
    for options in (first, second):
        plain.memory.remember("Ann signs the orders of the shop", **options)
    assert plain.run().applied == []
    assert len(plain.texts()) == 2


def test_short_replies_are_no_duplicates(plain: Consolidator) -> None:
    for hours in range(3):
        plain.memory.remember("Yes, please", at=NOW - hours * HOUR)
    assert plain.propose() == []


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param({"importance": 1.0}, id="pinned"),
        pytest.param({"importance": 0.6}, id="important"),
        pytest.param({"author": "person"}, id="by a person"),
        pytest.param({"at": NOW + YEAR - DAY}, id="recent"),
        pytest.param({"ttl": 3 * YEAR}, id="with a time to live"),
    ],
)
def test_what_is_old_and_was_never_used_is_archived_unless_it_matters(
    plain: Consolidator, clock: testing.FakeClock, kept: dict[str, Any]
) -> None:
    plain.memory.remember("The printer is on the second floor")
    special = plain.memory.remember("The stapler is on the third floor", **kept)
    used = plain.memory.remember("The scanner is on the first floor")
    clock.advance(YEAR)
    assert plain.propose() == []  # use is not recorded here
    plain.memory.feedback(used, useful=True)
    result = plain.run()
    assert kinds(result.applied) == ["archive"]
    assert [item.id for item in plain.memory.all()] == [special, used]
    assert plain.memory.recall("printer") == []
    assert [hit.text for hit in plain.memory.recall("printer", as_of=NOW + DAY)] == [
        "The printer is on the second floor"
    ]
    assert plain.undo(result.run_id) == (1, 0)
    assert len(plain.texts()) == 3
    assert plain.propose() == []  # a person has undone it


def test_unused_memories_stay_if_the_caller_says_so(
    plain: Consolidator, clock: testing.FakeClock
) -> None:
    plain.memory.remember("The printer is on the second floor")
    plain.memory.feedback(plain.memory.remember("The scanner is on the first floor"), useful=True)
    clock.advance(YEAR)
    assert plain.propose(unused_after=None) == []
    assert plain.propose(unused_after=2 * YEAR) == []
    assert kinds(plain.propose(unused_after=YEAR / 2)) == ["archive"]


def test_expired_memories_are_removed_from_the_index(
    here: Consolidator, clock: testing.FakeClock
) -> None:
    here.memory.remember("The code of the day is seven", ttl=10)
    here.memory.remember("The code of the week is nine")
    clock.advance(20)
    result = here.run()
    assert kinds(result.applied) == ["expire"]
    assert here.texts() == ["The code of the week is nine"]
    assert here.propose() == []
    assert here.undo(result.run_id) == (0, 0)


def test_a_duplicate_does_not_keep_other_unused_memories_from_being_archived(
    plain: Consolidator, clock: testing.FakeClock
) -> None:
    for hours in range(2):
        plain.memory.remember("Ann signs the orders of the shop", at=NOW - hours * HOUR)
    plain.memory.remember("The printer is on the second floor")
    plain.memory.feedback(plain.memory.remember("The scanner is on the first floor"), useful=True)
    clock.advance(YEAR)
    assert kinds(plain.run().applied) == ["duplicate", "archive"]
    assert plain.texts() == [
        "Ann signs the orders of the shop",
        "The scanner is on the first floor",
    ]


def test_expired_memories_of_many_others_do_not_hide_those_of_a_subject(
    plain: Consolidator, clock: testing.FakeClock
) -> None:
    plain.memory.remember_many(
        {"text": f"The code of room {n} is {n}", "subject": "bob", "ttl": 10}
        for n in range(ARCHIVE_BATCH)
    )
    plain.memory.remember("The code of the day is seven", subject="ann", ttl=11)
    clock.advance(20)
    assert kinds(plain.propose(subject="ann")) == ["expire"]


def test_a_conflict_is_left_to_a_person(here: Consolidator, clock: testing.FakeClock) -> None:
    here.memory.remember("Ann lives in Ghent")
    clock.advance(DAY)
    here.memory.remember("Ann lives in Rome")
    assert kinds(here.run().left) == ["supersede"]
    assert len(here.texts()) == 2
    for policy in ("ask", "all", lambda proposal: "apply"):
        with pytest.raises(holdfast.Suspended):
            here.run(policy=policy, run_id="ask")
        assert len(here.texts()) == 2
        view = here.store.get_task("ask")
        assert view is not None and view.questions
        here.store.task("ask").delete()
    with pytest.raises(holdfast.Suspended):
        here.run(policy="ask")
    [question] = list(here.store.tasks(status="suspended"))
    here.store.answer(question.id, "approve", True)
    result = here.run(policy="ask")
    assert result.run_id == question.id
    assert here.texts() == ["Ann lives in Rome"]
    assert here.undo(result.run_id) == (1, 0)
    assert here.texts() == ["Ann lives in Ghent", "Ann lives in Rome"]


@pytest.mark.parametrize("answered", [False, [], ["no such proposal"]])
def test_what_a_person_declines_is_left(plain: Consolidator, answered: object) -> None:
    plain.memory.remember("Ann lives in Ghent", at=NOW - DAY)
    plain.memory.remember("Ann lives in Rome")
    with pytest.raises(holdfast.Suspended):
        plain.run(policy="ask", run_id="r")
    plain.store.answer("r", "approve", answered)
    result = plain.run(policy="ask", run_id="r")
    assert kinds(result.left) == ["supersede"] and not result.applied
    assert len(plain.texts()) == 2


def test_a_person_can_choose_some_of_the_proposals(plain: Consolidator) -> None:
    for name in ("Ann", "Bob"):
        plain.memory.remember(f"{name} lives in Ghent", at=NOW - DAY)
        plain.memory.remember(f"{name} lives in Rome")
    with pytest.raises(holdfast.Suspended):
        plain.run(policy="ask", run_id="r")
    view = plain.store.get_task("r")
    assert view is not None
    [question] = view.questions
    [_, bob] = question.payload
    assert sorted(bob["memories"].values()) == ["Bob lives in Ghent", "Bob lives in Rome"]
    plain.store.answer("r", "approve", [bob["id"]])
    result = plain.run(policy="ask", run_id="r")
    assert [one.id for one in result.applied] == [bob["id"]]
    assert plain.texts() == ["Ann lives in Ghent", "Ann lives in Rome", "Bob lives in Rome"]


# -- with a model ----------------------------------------------------------------------------------

TEA = ("Bob prefers tea in the morning", "In the morning Bob likes to drink tea")


@pytest.mark.every_engine
@pytest.mark.long("dynamodb", "s3")
def test_a_merge_replaces_its_evidence_and_undo_brings_it_back(here: Consolidator) -> None:
    ids = [here.memory.remember(text, source=f"chat-{n}") for n, text in enumerate(TEA)]
    here.memory.remember("The printer is on the second floor")
    before = list(here.memory.all())
    result = here.run(answer(merge(1, 2, text="Bob drinks tea in the morning")), policy="all")
    assert kinds(result.applied) == ["merge"] and result.model_calls == 1
    [hit] = here.memory.recall("what does Bob drink?")
    assert (hit.text, hit.author, hit.mentions) == ("Bob drinks tea in the morning", "model", 2)
    assert (set(hit.evidence), set(hit.sources)) == (set(ids), {"chat-0", "chat-1"})
    assert [item.text for item in here.memory.evidence(hit.id)] == list(TEA)
    assert all(here.memory.get(name) is None for name in ids)
    assert here.run(policy="all").applied == []  # nothing is left to do
    assert here.undo(result.run_id) == (1, 0)
    assert list(here.memory.all()) == before
    assert not list(here.store.verify().problems)
    again = here.run(answer(merge(1, 2, text="Bob drinks tea in the morning")), policy="all")
    assert again.applied == []  # it was undone


def test_a_summary_stays_beside_its_evidence_until_that_changes(here: Consolidator) -> None:
    ids = [here.memory.remember(text) for text in TEA]
    result = here.run(answer(merge(1, 2, text="Bob and his tea", kind="summary")), policy="all")
    assert here.texts() == [*TEA, "Bob and his tea"]
    asked: list[object] = []
    here.run(lambda messages: asked.append(messages) or "[]", policy="all")
    assert asked == []  # they have their summary
    here.memory.supersede(ids[0], "Bob prefers coffee in the morning")
    archived = here.run()
    assert kinds(archived.applied) == ["archive"]
    assert here.texts() == [TEA[1], "Bob prefers coffee in the morning"]
    assert here.undo(result.run_id) == (0, 1)
    assert here.undo(archived.run_id) == (1, 0)
    assert here.undo(result.run_id) == (1, 0)
    assert here.texts() == [TEA[1], "Bob prefers coffee in the morning"]


def test_a_newer_memory_supersedes_an_older_one(plain: Consolidator) -> None:
    plain.memory.remember("Bob prefers tea in the morning", at=NOW - DAY)
    plain.memory.remember("Bob stopped to drink tea in the morning")
    change = {"kind": "supersede", "memories": [1, 2], "keep": 2}
    result = plain.run(answer(change), policy="all")
    assert plain.texts() == ["Bob stopped to drink tea in the morning"]
    assert plain.undo(result.run_id) == (1, 0)
    assert len(plain.texts()) == 2


def test_undo_keeps_what_was_said_since(plain: Consolidator) -> None:
    for text in TEA:
        plain.memory.remember(text)
    text = "Bob drinks tea in the morning"
    result = plain.run(answer(merge(1, 2, text=text)), policy="all")
    plain.memory.remember(text, source="Bob himself")
    assert plain.undo(result.run_id) == (1, 0)
    items = {item.text: item for item in plain.memory.all()}
    assert set(items) == {*TEA, text}
    assert (items[text].mentions, items[text].sources) == (1, ("Bob himself",))


def test_undo_leaves_what_was_corrected_since(plain: Consolidator) -> None:
    for text in TEA:
        plain.memory.remember(text)
    result = plain.run(answer(merge(1, 2, text="Bob drinks tea")), policy="all")
    [made] = plain.memory.all()
    plain.memory.supersede(made.id, "Bob drinks coffee")
    assert plain.undo(result.run_id) == (0, 1)
    assert plain.texts() == ["Bob drinks coffee"]


@pytest.mark.parametrize("protected", [{"importance": 1.0}, {"author": "person"}])
def test_pinned_and_trusted_memories_are_not_merged_away_without_a_question(
    plain: Consolidator, protected: dict[str, Any]
) -> None:
    plain.memory.remember(TEA[0], **protected)
    plain.memory.remember(TEA[1])
    with pytest.raises(holdfast.Suspended):
        plain.run(answer(merge(1, 2, text="Bob drinks tea")), policy="all")
    assert plain.texts() == list(TEA)


def test_a_text_from_the_web_stays_one_and_never_replaces_a_persons(plain: Consolidator) -> None:
    shown: list[str] = []

    def model(messages: list[dict[str, str]]) -> str:
        shown.append(messages[1]["content"])
        return json.dumps({"proposals": [merge(1, 2, text="Bob drinks tea")]})

    for text in TEA:
        plain.memory.remember(text, author="web")
    plain.memory.remember("Bob drinks coffee in the morning", author="person")
    result = plain.run(model, policy="all")
    assert len(shown) == 1 and "coffee" not in shown[0]
    [made] = [item for item in plain.memory.all() if item.evidence]
    assert made.author == "web" and kinds(result.applied) == ["merge"]


def test_subjects_and_namespaces_and_tenants_are_never_mixed(here: Consolidator) -> None:
    text = "The customer prefers tea in the morning"
    for tenant, namespace, subject in (
        ("default", "m", None),
        ("default", "m", "ann"),
        ("default", "m", "bob"),
        ("default", "n", "ann"),
        ("other", "m", "ann"),
    ):
        memory = here.store.for_tenant(tenant).memory(namespace)
        for at in (NOW - HOUR, NOW):
            memory.remember(text, subject=subject, at=at)
            memory.remember(f"{text}: {tenant}/{namespace}/{subject} {at}", subject=subject, at=at)
    shown: list[str] = []

    def model(messages: list[dict[str, str]]) -> str:
        shown.append(messages[1]["content"])
        return "[]"

    result = here.run(model, subject="ann")
    assert kinds(result.applied) == ["duplicate"]
    assert shown and all("default/m/ann" in one for one in shown)
    assert not any(other in one for one in shown for other in ("None", "bob", "/n/", "other"))
    counts = [
        len(list(here.store.for_tenant(tenant).memory(namespace).all(subject=subject)))
        for tenant, namespace, subject in [
            ("default", "m", "ann"),
            ("default", "m", "bob"),
            ("default", "n", "ann"),
            ("other", "m", "ann"),
        ]
    ]
    assert counts == [3, 4, 4, 4]
    view = here.store.get_task(result.run_id)
    assert view is not None and view.subject == "ann"


def test_a_budget_ends_the_model_calls_and_not_the_run(here: Consolidator) -> None:
    text = "Ann signs the orders of the shop"
    here.memory.remember(text, at=NOW - HOUR)
    here.memory.remember(text, at=NOW)
    for topic in ("green tea leaves", "printer paper upstairs", "yellow bicycles outside"):
        here.memory.remember(topic)
        here.memory.remember(f"{topic} {topic.split()[0]}")
    calls: list[object] = []
    result = here.run(lambda messages: calls.append(messages) or "[]", budget=Budget(calls=1))
    assert len(calls) == result.model_calls == 1
    assert result.budget_exceeded and kinds(result.applied) == ["duplicate"]


def test_usage_of_the_answer_counts(plain: Consolidator) -> None:
    for text in TEA:
        plain.memory.remember(text)
    usage = {"input_tokens": 40, "output_tokens": 2}
    result = plain.run(lambda messages: {"proposals": [], "usage": usage})
    view = plain.store.get_task(result.run_id)
    assert view is not None
    assert (view.usage.calls, view.usage.tokens) == (1, 42)


def test_a_model_that_fails_is_asked_again_by_the_next_call(here: Consolidator) -> None:
    for text in TEA:
        here.memory.remember(text)

    def fail(messages: object) -> str:
        raise OSError("no route to the model")

    with pytest.raises(StepFailed):
        here.run(fail, policy="all")
    result = here.run(answer(merge(1, 2, text="Bob drinks tea")), policy="all")
    assert kinds(result.applied) == ["merge"]
    assert len(list(here.store.tasks())) == 1


def test_a_finished_run_gives_its_result_again(plain: Consolidator) -> None:
    for text in TEA:
        plain.memory.remember(text)
    model = answer(merge(1, 2, text="Bob drinks tea"))
    result = plain.run(model, policy="all", run_id="r")
    assert plain.run(model, policy="all", run_id="r") == result
    assert plain.texts() == ["Bob drinks tea"]


def test_a_proposal_whose_memories_have_changed_is_stale(plain: Consolidator) -> None:
    ids = [plain.memory.remember(text) for text in TEA]

    def model(messages: object) -> str:
        plain.memory.supersede(ids[0], "Bob prefers coffee")
        return json.dumps({"proposals": [merge(1, 2, text="Bob drinks tea")]})

    result = plain.run(model, policy="all")
    assert kinds(result.stale) == ["merge"] and not result.applied
    assert plain.texts() == [TEA[1], "Bob prefers coffee"]
    assert plain.memory.stats().version == 3  # nothing was written


@pytest.mark.parametrize("kind", ["merge", "summary", "supersede", "duplicate"])
def test_a_run_that_dies_before_it_records_a_change_does_not_apply_it_twice(
    here: Consolidator, kind: str
) -> None:
    text = "Ann signs the orders of the shop"
    for number, each in enumerate((text, text) if kind == "duplicate" else TEA):
        here.memory.remember(each, at=NOW - HOUR * (2 - number))
    change = merge(1, 2, text="Bob drinks tea", kind=kind)
    if kind == "supersede":
        change = {"kind": kind, "memories": [1, 2], "keep": 2}
    with testing.crash(during="apply"):
        here.run(answer(change), policy="all")
    version = here.memory.stats().version
    result = here.run(answer(change), policy="all")
    assert kinds(result.applied) == [kind]
    assert here.memory.stats().version == version == 3
    assert len(here.texts()) == (3 if kind == "summary" else 1)
    assert here.undo(result.run_id) == (1, 0)
    assert len(here.texts()) == 2


def test_two_runs_at_the_same_time_apply_a_change_once(plain: Consolidator) -> None:
    for text in TEA:
        plain.memory.remember(text)
    other: list[ConsolidationResult] = []

    def model(messages: object) -> str:
        if not other:
            other.append(ConsolidationResult(run_id=""))
            other.append(plain.run(model, policy="all", run_id="other"))
        return json.dumps({"proposals": [merge(1, 2, text="Bob drinks tea")]})

    result = plain.run(model, policy="all", run_id="one")
    assert kinds(other[1].applied) == kinds(result.stale) == ["merge"]
    assert plain.texts() == ["Bob drinks tea"]


# -- forgetting ------------------------------------------------------------------------------------


def test_to_forget_a_source_is_to_forget_what_was_made_from_it(here: Consolidator) -> None:
    here.memory.remember(TEA[0], source="private")
    here.memory.remember(TEA[1], source="public")
    here.run(answer(merge(1, 2, text="Bob drinks tea")), policy="all")
    assert here.memory.forget_where(source="private") == 2
    assert here.texts() == [TEA[1]]
    here.memory.rebuild()
    assert here.texts() == [TEA[1]]


@pytest.mark.parametrize("kind", ["merge", "summary"])
def test_to_forget_an_author_is_to_forget_what_was_made_from_it(
    plain: Consolidator, kind: str
) -> None:
    plain.memory.remember(TEA[0], author="Carl")
    plain.memory.remember(TEA[1])
    plain.run(answer(merge(1, 2, text="Bob drinks tea", kind=kind)), policy="all")
    plain.memory.forget_where(author="Carl")
    assert plain.texts() == [TEA[1]]


def test_to_forget_a_memory_is_to_forget_its_summary(plain: Consolidator) -> None:
    first = plain.memory.remember(TEA[0])
    plain.memory.remember(TEA[1])
    plain.run(answer(merge(1, 2, text="Bob and his tea", kind="summary")), policy="all")
    assert plain.memory.forget(first)
    assert plain.texts() == [TEA[1]]
    with pytest.raises(NotFound):
        plain.memory.evidence(first)


def test_erasing_a_subject_erases_the_run_too(tmp_path: Path) -> None:
    with holdfast.open(str(tmp_path / "agents.db"), key=bytes(range(32))) as store:
        memory = store.memory("m")
        for text in TEA:
            memory.remember(text, subject="bob")
        memory.remember("The printer is on the second floor")
        model = answer(merge(1, 2, text="Bob drinks tea"))
        result = consolidate(store, "m", subject="bob", model=model, policy="all")
        assert [item.text for item in memory.all(subject="bob")] == ["Bob drinks tea"]
        store.erase(subject="bob")
        assert [item.text for item in memory.all()] == ["The printer is on the second floor"]
        with pytest.raises(holdfast.errors.Erased):
            store.get_task(result.run_id)
        assert consolidate(store, "m", subject="bob").applied == []


# -- inside a task ---------------------------------------------------------------------------------


def test_an_agent_consolidates_as_a_part_of_its_task(plain: Consolidator) -> None:
    for text in TEA:
        plain.memory.remember(text)

    @holdfast.agent("tidy")
    def tidy(task: holdfast.Task) -> int:
        model = answer(merge(1, 2, text="Bob drinks tea"))
        result = consolidate(task, "m", model=model, policy="ask")
        return len(result.applied)

    plain.store.submit(tidy, "night-1")
    plain.store.run_due()
    plain.store.answer("night-1", "approve", True)
    plain.store.run_due()
    view = plain.store.get_task("night-1")
    assert view is not None and view.result == 1
    assert plain.texts() == ["Bob drinks tea"]
    assert plain.undo("night-1") == (1, 0)


def test_a_task_consolidates_a_memory_twice_and_a_repeated_run_matches(plain: Consolidator) -> None:
    text = "Ann signs the orders of the shop"
    seen: list[list[list[str]]] = []

    @holdfast.agent("tidy")
    def tidy(task: holdfast.Task) -> None:
        found = []
        for name in ("Ann", "Eve"):
            task.step(f"tell-{name}", tell, name)
            found.append(kinds(consolidate(task, "m").applied))
        seen.append(found)
        task.ask("go-on", "Go on?", returns=bool)
        seen.append([kinds(consolidate(task, "m").applied)])

    def tell(name: str) -> None:
        for hours in range(2):
            plain.memory.remember(text.replace("Ann", name), at=NOW - hours * HOUR)

    plain.store.submit(tidy, "night-1")
    plain.store.run_due()
    assert seen == [[["duplicate"], ["duplicate"]]]
    assert plain.texts() == [text, text.replace("Ann", "Eve")]
    plain.store.answer("night-1", "go-on", True)
    plain.store.run_due()
    assert seen == [[["duplicate"], ["duplicate"]], [["duplicate"], ["duplicate"]], [[]]]
    assert plain.undo("night-1") == (2, 0)


def test_after_a_call_that_failed_a_task_can_call_it_again(plain: Consolidator) -> None:
    for text in TEA:
        plain.memory.remember(text)

    def fail(messages: list[dict[str, str]]) -> str:
        raise ConnectionError("no route")

    with plain.store.task("t") as task:
        with pytest.raises(StepFailed):
            consolidate(task, "m", model=fail, policy="all")
        model = answer(merge(1, 2, text="Bob drinks tea"))
        assert kinds(consolidate(task, "m", model=model, policy="all").applied) == ["merge"]


def test_a_task_consolidates_only_memories_about_its_own_subject(plain: Consolidator) -> None:
    with plain.store.task("t", subject="ann") as task:
        with pytest.raises(ValueError, match="must be the task's own"):
            consolidate(task, "m", subject="bob")
        with pytest.raises(TypeError, match="must be left out"):
            consolidate(task, "m", run_id="r")
        assert consolidate(task, "m").applied == []


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"policy": "yes"}, ValueError, "policy must be"),
        ({"policy": None}, ValueError, "policy must be"),
        ({"model": "gpt"}, TypeError, "model must be"),
        ({"unused_after": -1}, ValueError, "unused_after must be"),
        ({"trusted": 7}, TypeError, "trusted must be"),
        ({"subject": ""}, holdfast.errors.InvalidId, "subject must"),
        ({"run_id": ""}, holdfast.errors.InvalidId, "run_id must"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(
    plain: Consolidator, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        consolidate(plain.store, "m", **given)
    assert list(plain.store.tasks()) == []


def test_a_plain_store_refuses_an_async_model(plain: Consolidator) -> None:
    async def model(messages: object) -> str:
        return "[]"

    with pytest.raises(TypeError, match="synchronous"):
        consolidate(plain.store, "m", model=model)


def test_a_policy_must_return_a_decision(plain: Consolidator) -> None:
    for at in (NOW - 1, NOW):
        plain.store.memory("m").remember("Ann signs the orders of the shop", at=at)
    wrong: Any = lambda proposal: True  # noqa: E731
    with pytest.raises(StepFailed, match="must return"):
        consolidate(plain.store, "m", policy=wrong)
    assert len(list(plain.store.memory("m").all())) == 2


def test_a_long_namespace_is_consolidated_too(plain: Consolidator) -> None:
    name = "n" * 512
    plain.store.memory(name).remember("Ann signs the orders")
    assert consolidate(plain.store, name).applied == []
