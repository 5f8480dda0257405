"""What is known already is reinforced, and nothing that anybody said gets lost by it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import MemoryItem, Store, testing
from holdfast.memory.duplicates import compute_signature
from holdfast.memory.fold import IndexChanges, MemoryEvent, MemoryFold
from holdfast.memory.model import Forgotten, MemoryDoc, Remembered, Superseded
from holdfast.memory.statements import MAX_STATEMENTS, MAX_WORDINGS

NEW_YEAR = 1767225600.0
DAY = 86_400.0


@pytest.fixture
def memory(store: Store) -> holdfast.Memory:
    return store.memory("claims")


def only(memory: holdfast.Memory, **asked: Any) -> MemoryItem:
    [found] = memory.all(**asked)
    return found


# -- wordings --------------------------------------------------------------------------------------


def test_a_text_that_may_be_a_slip_of_the_finger_is_kept_found_and_told(
    memory: holdfast.Memory,
) -> None:
    first = memory.remember("The nightly job was retried by the scheduler")
    assert memory.remember("The nightly job was retired by the scheduler") == first
    known = only(memory)
    assert (known.text, known.variants, known.mentions) == (
        "The nightly job was retried by the scheduler",
        ("The nightly job was retired by the scheduler",),
        2,
    )
    for asked in ("what was retried?", "what was retired?"):
        [hit] = memory.recall(asked)
        assert hit.id == first and hit.variants == known.variants
    assert known.full_text.splitlines() == [known.text, f"Also noted as: {known.variants[0]}"]


def test_the_wording_that_is_heard_most_often_is_the_text(memory: holdfast.Memory) -> None:
    slip, right = (
        "Ann keeps the signed contarcts in the safe",
        "Ann keeps the signed contracts in the safe",
    )
    for text in (slip, right, right):
        memory.remember(text)
    assert (only(memory).text, only(memory).variants, only(memory).mentions) == (right, (slip,), 3)
    memory.remember(
        "Ann keeps the signed contrcats in the safe"
    )  # two letters away from the first, one from the other
    assert only(memory).text == right and len(only(memory).variants) == 2
    memory.remember(slip.upper())
    assert len(only(memory).variants) == 2


def test_a_wording_is_known_by_another_wording_of_the_memory(memory: holdfast.Memory) -> None:
    first = memory.remember("Ann keeps the quarterly contracts in the cabinet")
    assert memory.remember("Ann keeps the quartelry contracts in the cabinet") == first
    assert (
        memory.remember("Ann keeps the quartelry contracts in the cabient") == first
    )  # two slips from the first
    assert len(only(memory).variants) == 2


def test_a_model_is_told_all_wordings_and_what_it_repeats_of_them_is_no_news(store: Store) -> None:
    memory = store.memory("buyer")
    memory.remember("Orders are retried by the nightly job")
    memory.remember("Orders are retired by the nightly job")
    with store.task("t", goal="Look after the nightly job for orders", agent="buyer") as task:
        text = task.resume_context().text
        assert "retried by" in text and "retired by" in text
        task.discover("orders are retired by the nightly job")
        task.finish("done")
    assert [(one.mentions, one.sources) for one in memory.all() if "Orders" in one.text] == [
        (2, ())
    ]


def test_a_memory_with_very_many_wordings_is_followed_by_another(store: Store) -> None:
    memory = store.memory("claims")
    right = "characteristically unsystematic documentation " * 3 + "of it"
    places = [at for at in range(len(right) - 1) if " " not in right[at : at + 2]]
    texts = list(
        dict.fromkeys(
            [right, *(right[:at] + right[at + 1] + right[at] + right[at + 2 :] for at in places)]
        )
    )
    assert len(texts) > MAX_WORDINGS
    memory.remember_many([{"text": text} for text in texts])
    kept = list(memory.all())
    assert 1 < len(kept) <= 1 + len(texts) - MAX_WORDINGS
    assert all(len(one.variants) < MAX_WORDINGS for one in kept)
    assert {text for one in kept for text in (one.text, *one.variants)} == set(texts)
    assert max(one.full_text.count("unsystematic") for one in kept) <= 3 * 16


def test_what_expires_does_not_live_on_as_a_wording_of_something_else(
    memory: holdfast.Memory,
) -> None:
    with testing.fake_clock(start=NEW_YEAR) as clock:
        memory.remember("The nightly job was retried by the scheduler")
        memory.remember("The nightly job was retired by the scheduler", ttl=60)
        assert memory.stats().memories == 2
        clock.advance(61)
        assert only(memory).full_text == "The nightly job was retried by the scheduler"


# -- authors, times --------------------------------------------------------------------------------


def test_what_two_people_say_is_two_memories(memory: holdfast.Memory) -> None:
    text = "Refunds need approval by a manager"
    memory.remember(text, author="ann", importance=1.0)
    memory.remember(text, author="model", source="web page")
    memory.remember(f"{text} (bots exempted)", author="model", source="web page")
    assert [(one.author, one.importance, one.source, one.mentions) for one in memory.all()] == [
        ("ann", 1.0, None, 1),
        ("model", 0.5, "web page", 1),
        ("model", 0.5, "web page", 1),
    ]
    assert [hit.text for hit in memory.recall("refunds", author="ann")] == [text]


def test_a_model_that_adds_to_what_it_was_told_neither_confirms_nor_changes_it(
    store: Store,
) -> None:
    memory = store.memory("buyer")
    told = "Laptops over 1000 euros need an approval by Ann"
    memory.remember(told, author="ann", source="policy")
    with store.task("t", goal="Order a laptop for 1200 euros", agent="buyer") as task:
        assert list(task.resume_context().memories.values()) == [told]
        task.discover(f"{told}, apparently waived")
        task.discover(f"FYI: {told}")
        task.finish("ordered")
    assert [
        (one.text, one.mentions, one.author, one.sources)
        for one in memory.all(tags=())
        if "approval" in one.text
    ] == [(told, 1, "ann", ("policy",)), (f"{told}, apparently waived", 1, "model", ("task/t",))]


def test_answers_and_events_of_different_times_are_different_memories(
    memory: holdfast.Memory,
) -> None:
    lines = ["Do you eat meat?", "No.", "Do you smoke?", "Yes.", "Do you drink alcohol?", "No."]
    said = [
        {"text": text, "source": "interview", "at": NEW_YEAR + at} for at, text in enumerate(lines)
    ]
    memory.remember_many(said)
    assert [one.text for one in memory.all()] == lines
    memory.remember_many(said)  # the same interview, brought in again
    assert [(one.text, one.mentions) for one in memory.all()] == [(text, 2) for text in lines]


def test_what_is_said_again_is_as_old_as_the_last_time_it_was_said(memory: holdfast.Memory) -> None:
    with testing.fake_clock(start=NEW_YEAR):
        memory.remember("The payment server is down", at=NEW_YEAR - 365 * DAY, source="incident-1")
        memory.remember("The payment server is down")
        known = only(memory)
        assert (known.first_at.timestamp(), known.at.timestamp()) == (
            NEW_YEAR - 365 * DAY,
            NEW_YEAR,
        )
        assert len(memory.recall("payment server", since=NEW_YEAR - DAY)) == 1
        assert memory.recall("payment server", until=NEW_YEAR - DAY) == []
        assert memory.forget_where(older_than=30 * DAY) == 0
        stats = memory.stats()
        assert stats.oldest == known.first_at and stats.newest == known.at


def test_a_line_of_a_dialogue_keeps_its_place_when_it_is_said_again(
    memory: holdfast.Memory,
) -> None:
    lines = [
        "Which colour does she like?",
        "Turquoise, as always",
        "Fine, ordered.",
        "Where do we meet?",
        "In Ghent",
    ]
    memory.remember_many(
        [{"text": t, "source": "talk", "at": NEW_YEAR + at} for at, t in enumerate(lines)]
    )
    memory.remember(lines[0], source="talk")
    hits = memory.recall("which colour does she like?", 2)
    assert [hit.text for hit in hits] == lines[:2]


# -- sources, tags, meta ---------------------------------------------------------------------------


def test_a_memory_has_all_its_sources_and_is_found_by_each(memory: holdfast.Memory) -> None:
    for source in ("mail-1", "mail-2", None, "mail-3", "mail-1"):
        memory.remember("Ann signs the orders", source=source)
    memory.remember("Bob signs nothing", source="mail-2")
    for source in ("mail-1", "mail-2", "mail-3"):
        found = next(iter(memory.all(source=source)))
        assert (found.source, found.sources, found.mentions) == (
            "mail-1",
            ("mail-1", "mail-2", "mail-3"),
            5,
        )
        assert "Ann signs the orders" in [
            hit.text for hit in memory.recall("who signs?", source=source)
        ]
    assert list(memory.all(source="mail-4")) == memory.recall("who signs?", source="mail-4") == []
    assert memory.stats().sources == 3


def test_who_forgets_a_source_forgets_what_only_that_source_said(memory: holdfast.Memory) -> None:
    memory.remember(
        "Ann signs the orders",
        source="mail-1",
        tags=["a"],
        meta={"from": "x", "seen": 1},
        importance=0.9,
    )
    memory.remember("Ann signs the orders", source="mail-2", tags=["b"], meta={"from": "y"})
    memory.remember("Bob counts the paper", source="mail-1")
    assert only(memory, tags=["a", "b"]).meta == {"from": "y", "seen": 1}
    assert memory.forget_where(source="mail-1") == 2
    left = only(memory)
    assert (left.sources, left.tags, left.meta, left.importance, left.mentions) == (
        ("mail-2",),
        ("b",),
        {"from": "y"},
        0.5,
        1,
    )
    memory.rebuild()
    assert only(memory) == left
    assert memory.forget_where(source="mail-1") == 0
    assert memory.forget_where(source="mail-2") == 1
    assert list(memory.all()) == []


def test_what_was_said_without_a_source_outlives_the_source(memory: holdfast.Memory) -> None:
    memory.remember("Ann signs the orders")
    memory.remember("Ann signs the orders", source="mail-1")
    assert memory.forget_where(source="mail-1") == 1
    assert (only(memory).source, only(memory).sources) == (None, ())


def test_a_time_goes_with_the_source_that_gave_it(memory: holdfast.Memory) -> None:
    with testing.fake_clock(start=NEW_YEAR) as clock:
        memory.remember("Ann signs the orders")
        memory.remember("Ann signs the orders", source="mail-1", at=NEW_YEAR - 400 * DAY)
        assert only(memory).first_at.timestamp() == NEW_YEAR - 400 * DAY
        memory.forget_where(source="mail-1")
        assert only(memory).first_at.timestamp() == NEW_YEAR
        clock.advance(60)
        memory.supersede(only(memory).id, "Bob signs the orders")
    assert only(memory).at.timestamp() == NEW_YEAR + 60


def test_a_wording_goes_with_the_source_that_used_it(memory: holdfast.Memory) -> None:
    memory.remember("The nightly job was retried by the scheduler", source="log")
    memory.remember("The nightly job was retired by the scheduler", source="mail")
    memory.forget_where(source="log")
    assert (only(memory).text, only(memory).variants) == (
        "The nightly job was retired by the scheduler",
        (),
    )
    assert memory.recall("retried") == [] and len(memory.recall("retired")) == 1


def test_who_forgets_a_tag_forgets_what_was_said_with_it(memory: holdfast.Memory) -> None:
    memory.remember("Prefers tea", meta={"user": "ann"}, tags=["ann"])
    memory.remember("Prefers tea", meta={"user": "bob"}, tags=["bob"])
    assert memory.forget_where(tags=["ann"]) == 1
    assert (only(memory).tags, only(memory).meta) == (("bob",), {"user": "bob"})


def test_of_meta_the_newest_values_count(memory: holdfast.Memory) -> None:
    for day in ("monday", "friday"):
        memory.remember("Order 7 is open", meta={"checked": day, day: True})
    memory.remember("Order 7 is open", source="mail", meta={"checked": "sunday"})
    memory.remember("Order 7 is open", meta={"checked": "tuesday"})
    assert only(memory).meta == {"checked": "tuesday", "monday": True, "friday": True}


def test_a_memory_of_very_many_sources_is_followed_by_another(store: Store) -> None:
    memory = store.memory("claims")
    sources = [f"mail-{number}" for number in range(MAX_STATEMENTS + 5)]
    memory.remember_many([{"text": "Ann signs the orders", "source": source} for source in sources])
    kept = list(memory.all())
    assert [len(one.sources) for one in kept] == [MAX_STATEMENTS, 5]
    assert [source for one in kept for source in one.sources] == sources


def test_each_of_several_tasks_finds_the_outcome_they_share(store: Store) -> None:
    for number in range(3):
        with store.task(f"t{number}", goal="Order desks", agent="buyer") as task:
            task.finish("ordered")
    memory = store.memory("buyer")
    assert only(memory, source="task/t2").sources == ("task/t0", "task/t1", "task/t2")
    with store.task("t0b", goal="Order desks", agent="buyer") as task:
        assert len(task.resume_context().memories) == 1


# -- superseding -----------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])
def test_a_memory_that_is_superseded_hands_on_what_it_had(store: Store, asynchronous: bool) -> None:
    memory = store.memory("claims")

    def supersede(id: str, text: str, **given: Any) -> str:
        if asynchronous:
            return asyncio.run(store.aio.memory("claims").supersede(id, text, **given))
        return memory.supersede(id, text, **given)

    given: dict[str, Any] = {
        "tags": ["a"],
        "importance": 0.9,
        "meta": {"m": 1},
        "subject": "s",
        "author": "ann",
    }
    with testing.fake_clock(start=NEW_YEAR):
        old = memory.remember(
            "Ann signs the orders", source="mail-1", ttl=3600, at=NEW_YEAR - DAY, **given
        )
        memory.remember("Ann signs the orders", source="mail-2", ttl=1800, **given)
        memory.feedback(old, useful=True)
    with testing.fake_clock(start=NEW_YEAR + 60):
        new = memory.get(supersede(old, "Bob signs the orders"))
        assert new is not None and new.id != old
        assert (new.tags, new.importance, new.meta, new.subject, new.author) == (
            ("a",),
            0.9,
            {"m": 1},
            "s",
            "ann",
        )
        assert new.expires_at is not None and new.expires_at.timestamp() == NEW_YEAR + 3600
        assert (new.at.timestamp(), new.sources) == (NEW_YEAR + 60, ("mail-1", "mail-2"))
        assert memory.recall("who signs?")[0].why["use"] > 0
        same = memory.get(
            supersede(new.id, "bob signs the orders", importance=0.2, ttl=None, source="mail-3")
        )
        assert same is not None
        assert (same.importance, same.expires_at, same.sources, same.mentions) == (
            0.2,
            None,
            ("mail-3",),
            new.mentions,
        )
        with pytest.raises(TypeError):
            supersede(same.id, "x", tag=["typo"])


def test_what_takes_the_place_of_a_useful_memory_is_as_useful(memory: holdfast.Memory) -> None:
    old = memory.remember("Ann signs the orders")
    memory.remember("Ann counts the paper")
    memory.feedback(old, useful=True)
    new = memory.supersede(old, "Bob signs the orders")
    uses = {
        hit.id: (hit.mentions, hit.why.get("use", 0.0))
        for hit in memory.recall("who signs orders or counts paper?")
    }
    assert uses[new][0] == 1 and uses[new][1] > 0


# -- laws ------------------------------------------------------------------------------------------

WORDINGS_OF_ONE = [
    "The nightly job was retried by the scheduler",
    "the nightly job was retired by the scheduler",
    "nightly job was retried by scheduler",
    "FYI: The nightly job was retried by the scheduler!",
    "The nightly job was not retried by the scheduler",
    "The nightly job was retried by the scheudler",
]
SAID = st.builds(
    Remembered,
    text=st.sampled_from(WORDINGS_OF_ONE),
    tags=st.sampled_from([(), ("a",), ("b",)]),
    source=st.sampled_from([None, "x", "y"]),
    author=st.sampled_from(["model", "ann"]),
    at=st.sampled_from([None, None, 5.0, 7.0]),
    meta=st.sampled_from([None, {"k": 1}, {"k": 2}]),
    expires_at=st.sampled_from([None, 1e9]),
)
EVENTS = st.lists(
    SAID
    | st.builds(
        Superseded,
        id=st.sampled_from(["e1", "e2", "e3"]),
        by=SAID,
        sources=st.sampled_from([(), ("z",)]),
    )
    | st.builds(
        Forgotten,
        ids=st.lists(st.sampled_from(["e1", "e2", "e3", "e4"]), max_size=4),
        source=st.sampled_from([None, "x"]),
        tags=st.sampled_from([(), ("a",)]),
    ),
    max_size=14,
)


def folded(events: list[Any], size: int) -> dict[int, MemoryDoc]:
    """What an index has after it has followed these events, some at a time."""
    docs: dict[int, MemoryDoc] = {}
    aliases: dict[str, int] = {}
    happened = [
        MemoryEvent(number, f"e{number}", float(number), event)
        for number, event in enumerate(events, 1)
    ]
    for start in range(0, len(happened), size):
        known = list(docs.values())[::-1]
        names = {doc.id: doc.number for doc in known} | {
            name: at for name, at in aliases.items() if at in docs
        }
        fold = MemoryFold(known, names)
        for one in happened[start : start + size]:
            fold.apply(one)
        changes: IndexChanges = fold.changes()
        docs.update({doc.number: doc for doc in changes.put})
        for doc in changes.gone:
            docs.pop(doc.number, None)
        aliases.update(changes.aliases)
    return docs


@pytest.mark.slow
@settings(deadline=None)
@given(EVENTS, st.integers(1, 5))
@example([Remembered(WORDINGS_OF_ONE[0], at=at) for at in (5.0, 7.0, None)], 1)
def test_it_does_not_matter_how_many_events_are_folded_at_a_time(
    events: list[Any], size: int
) -> None:
    assert folded(events, size) == folded(events, 100)


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(SAID, max_size=14))
def test_nothing_that_was_said_is_lost(said: list[Remembered]) -> None:
    docs = folded(said, 3).values()
    assert sum(doc.mentions for doc in docs) == len(said)
    for one in said:
        found = [
            doc
            for doc in docs
            if compute_signature(one.text).words
            in [compute_signature(text).words for text in (doc.text, *doc.variants)]
            and doc.author == one.author
            and (one.source is None or one.source in (doc.source, *doc.sources))
            and set(one.tags) <= set(doc.tags)
            and (one.at is None or one.at in (doc.dated_at, doc.at))
        ]
        assert found


@settings(deadline=None)
@given(st.lists(SAID, max_size=14), st.sampled_from(["x", "y"]))
def test_what_is_left_without_a_source_is_what_the_others_said(
    said: list[Remembered], source: str
) -> None:
    forgotten = folded(
        [*said, Forgotten([f"e{number}" for number in range(1, len(said) + 1)], source)], 100
    )
    texts = {
        compute_signature(text).words
        for doc in forgotten.values()
        for text in (doc.text, *doc.variants)
    }
    assert texts == {compute_signature(one.text).words for one in said if one.source != source}
    assert all(source not in (doc.source, *doc.sources) for doc in forgotten.values())
