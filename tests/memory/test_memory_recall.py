"""What recall puts first, what it finds however much there is, and what it leaves out."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast
from helpers.example_counts import examples
from helpers.memory.memory_engines import ENGINES, on
from holdfast import MemoryHit, testing
from holdfast.memory import NewMemory, Weights
from holdfast.memory.text.tokens import terms

NOON = datetime(2025, 5, 7, 12, tzinfo=timezone.utc)

WORDS = ["amber", "birch", "cedar", "dahlia", "elder", "fennel", "ginger"]


@pytest.fixture
def memory() -> Iterator[holdfast.Memory]:
    with holdfast.open("memory://") as store:
        yield store.memory("claims")


def texts(hits: list[MemoryHit]) -> list[str]:
    return [hit.text for hit in hits]


def talk(*lines: str) -> list[NewMemory]:
    return [
        {"text": line, "source": "chat", "at": NOON + timedelta(minutes=n)}
        for n, line in enumerate(lines)
    ]


# -- order -----------------------------------------------------------------------------------------


def test_the_question_word_by_word_comes_before_a_talk_that_is_all_about_it(
    memory: holdfast.Memory,
) -> None:
    memory.remember("Acme refund policy", at=NOON - timedelta(days=900), importance=0.0)
    lines = (
        "the refund at Acme",
        "a policy for Acme",
        "the Acme refund",
        "the refund policy",
        "bye",
    )
    memory.remember_many([{**line, "importance": 1.0} for line in talk(*lines)])
    hits = memory.recall("Acme refund policy", 6)
    assert texts(hits)[0] == "Acme refund policy"
    assert hits[0].score == 1.0 > hits[1].score
    assert hits[-1].text == "bye" and hits[-1].score > 0.3, "what is lent still counts"


def test_of_those_that_have_all_that_is_asked_for_the_important_one_is_first(
    memory: holdfast.Memory,
) -> None:
    memory.remember("wifi password: hunter2", importance=1.0)
    memory.remember_many(
        talk(
            "what is the wifi password?",
            "I forgot the wifi password",
            "the wifi password was changed",
        )
    )
    hits = memory.recall("wifi password", 6)
    assert texts(hits)[0] == "wifi password: hunter2"
    assert [hit.score for hit in hits] == [1.0] * 4


def test_the_same_text_is_first_even_among_more_important_ones_that_have_all_words(
    memory: holdfast.Memory,
) -> None:
    memory.remember_many(
        [{"text": f"Policy {n}: refund of Acme", "importance": 1.0} for n in range(9)]
    )
    memory.remember("The Acme refund policy.", importance=0.0)
    assert texts(memory.recall("the acme refund policy", 1)) == ["The Acme refund policy."]


def test_a_phrase_of_the_question_in_a_long_text_is_worth_all_of_it(
    memory: holdfast.Memory,
) -> None:
    memory.remember(
        "Minutes. "
        + "Nothing of note was said. " * 60
        + "The green door sticks. "
        + "And so on. " * 60
    )
    memory.remember_many([{"text": f"The green gate {n} sticks"} for n in range(9)])
    hits = memory.recall("green door sticks", 2, min_score=0)
    assert hits[0].text.startswith("Minutes") and hits[0].score == 1.0
    assert hits[1].score < 1.0


sentences = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(" ".join)


@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    said=st.lists(
        st.tuples(sentences, st.sampled_from(["a", "b", None]), st.sampled_from([0.0, 1.0])),
        min_size=1,
    ),
    question=sentences,
)
def test_scores_are_a_share_and_nothing_is_before_what_has_all_that_is_asked_for(
    said: list[tuple[str, str | None, float]], question: str
) -> None:
    with holdfast.open("memory://") as store:
        memory = store.memory("x")
        memory.remember_many(
            [
                {"text": text, "source": source, "importance": importance}
                for text, source, importance in said
            ]
        )
        hits = memory.recall(question, 1000)
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True) and all(0 < score <= 1 for score in scores)
    asked = set(terms(question))
    full = [asked <= set(terms(hit.text)) and len(hit.text.split()) <= 2 for hit in hits]
    assert all(hit.score == 1.0 for hit, whole in zip(hits, full, strict=True) if whole)
    assert all(asked <= set(terms(hit.text)) for hit in hits if hit.score == 1.0)


def test_a_least_score_is_a_share_of_what_is_asked_for(memory: holdfast.Memory) -> None:
    memory.remember_many(
        [{"text": "amber birch cedar dahlia"}, {"text": "amber birch"}, {"text": "amber elder"}]
    )
    assert texts(memory.recall("amber birch cedar dahlia", min_score=0.99)) == [
        "amber birch cedar dahlia"
    ]
    assert len(memory.recall("amber birch cedar dahlia", min_score=0.2)) == 2


# -- what is found ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("The db listens on 10.0.0.5:5432", "10.0.0.5"),
        ("The db listens on 10.0.0.5:5432", "port 5432"),
        ("Backup runs at 14:30:00", "what runs at 14:30?"),
        ("Backup runs at 14:30", "14:30:00"),
        ("Will is the new CFO", "Who is Will?"),
        ("We are told that Can is from Ankara", "Tell me about Can"),
        ("我家的狗很大", "狗"),
        ("我家的狗很大", "狗的名字"),
        ("用户喜欢猫", "猫"),
        ("Node.js 18 is required", "nodejs"),
        ("nodejs 18 is required", "Node.js"),
        ("user_name is unique", "username"),
        ("the username is unique", "user_name"),
        ("Müller GmbH pays late", "Mueller"),
        ("Mueller GmbH pays late", "Müller"),
        ("Muller GmbH pays late", "Müller"),
        ("Call +49 (0)30 1234567", "+49301234567"),
        ("Call 030/1234567", "+49 30 1234567"),
        ("Call +1 (555) 010-4477", "555-010-4477 or +15550104477"),
    ],
)
def test_things_are_found_however_they_are_written(
    memory: holdfast.Memory, text: str, question: str
) -> None:
    memory.remember_many(
        [
            {"text": text},
            {"text": "Something else, by 12:15, at 10.9.8.7"},
            {"text": "今日は天気がいい"},
        ]
    )
    assert texts(memory.recall(question, 1, min_score=0)) == [text]


def test_nobody_is_called_will_where_a_question_only_begins_so(memory: holdfast.Memory) -> None:
    memory.remember_many([{"text": "Will is the new CFO"}, {"text": "The invoice is paid"}])
    assert texts(memory.recall("Will the invoice be paid?")) == ["The invoice is paid"]
    assert memory.recall("Hello. Can you come?") == []


@pytest.mark.usefixtures("little_work")
@pytest.mark.parametrize("engine", ENGINES)
def test_common_words_count_for_what_rarer_ones_bring(engine: str, tmp_path: Path) -> None:
    with on(engine, tmp_path) as store:
        memory = store.memory("x", weights=Weights(candidates=2))
        memory.remember("amber and birch and cedar")
        memory.remember_many([{"text": f"amber {n}"} for n in range(8)])
        memory.remember_many([{"text": f"birch {n}"} for n in range(9)])
        memory.remember_many([{"text": f"cedar {n}"} for n in range(10)])
        assert texts(memory.recall("cedar amber birch", 1)) == ["amber and birch and cedar"], (
            "the oldest of all"
        )
        memory.remember("one dahlia")
        assert len(memory.recall("cedar or dahlia", 9)) == 9, (
            "one that has the rarest word is not enough"
        )
        assert texts(memory.recall("cedar 3", 2))[0] == "cedar 3"


@pytest.mark.usefixtures("little_work")
@pytest.mark.parametrize("engine", ENGINES)
def test_of_what_the_rarest_word_brings_those_with_more_words_are_looked_at(
    engine: str, tmp_path: Path
) -> None:
    with on(engine, tmp_path) as store:
        memory = store.memory("x", weights=Weights(candidates=2))
        for word, count in (("cedar", 14), ("birch", 12), ("amber", 8)):
            memory.remember_many([{"text": f"{word} {n}"} for n in range(count)])
        memory.remember_many(
            [{"text": "amber and birch"}, {"text": "amber 8"}, {"text": "amber 9"}]
        )
        assert texts(memory.recall("amber birch cedar", 1)) == ["amber and birch"]


@pytest.mark.usefixtures("little_work")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_word_that_only_others_have_does_not_hide_what_is_asked_for(
    engine: str, tmp_path: Path
) -> None:
    with on(engine, tmp_path) as store:
        memory = store.memory("x", weights=Weights(candidates=2))
        memory.remember_many([{"text": f"invoice amber {n}", "at": NOON} for n in range(4)])
        wanted = {"tags": ["rare"], "source": "mail", "author": "ann", "subject": "acme"}
        memory.remember("invoice sent", at=NOON - timedelta(days=9), **wanted)  # type: ignore[arg-type]
        memory.remember_many([{"text": f"invoice {n}", "at": NOON} for n in range(9)])
        for name, value in wanted.items():
            hits = memory.recall("which invoice of amber?", 2, **{name: value})  # type: ignore[arg-type]
            assert texts(hits) == ["invoice sent"], name
            assert [one.text for one in memory.all(**{name: value})] == ["invoice sent"], name  # type: ignore[arg-type]
        assert texts(
            memory.recall("which invoice of amber?", 2, until=NOON - timedelta(days=1))
        ) == ["invoice sent"]
        assert memory.recall("which invoice of amber?", 2, tags=["rare", "other"]) == []
        assert memory.recall("which invoice of amber?", 2, subject="mail") == []


@pytest.mark.usefixtures("little_work")
@pytest.mark.parametrize("engine", ENGINES)
def test_in_a_time_of_which_much_is_known_the_common_words_are_looked_for_too(
    engine: str, tmp_path: Path
) -> None:
    with on(engine, tmp_path) as store:
        memory = store.memory("x", weights=Weights(candidates=2))
        memory.remember_many(
            [{"text": f"invoice {n}", "at": NOON - timedelta(days=9)} for n in range(9)]
        )
        memory.remember_many([{"text": f"invoice amber {n}", "at": NOON} for n in range(12)])
        assert len(memory.recall("invoice of amber", 2, until=NOON - timedelta(days=1))) == 2


@pytest.mark.slow
def test_engines_give_the_same_memories_with_the_same_scores_in_the_same_order(
    tmp_path: Path,
) -> None:
    rng = random.Random(5)
    words = [
        f"{one}{other}"
        for one in ("bar", "dor", "fin", "gul", "hem")
        for other in ("a", "en", "ix", "o", "us", "al")
    ]
    said: list[NewMemory] = [
        {
            "text": " ".join(rng.choices(words, k=6)) + f" {n}",
            "source": f"s{n % 20}",
            "at": NOON - timedelta(hours=rng.randrange(9000)),
            "importance": rng.choice([0.2, 0.5, 0.9]),
            "tags": rng.sample(["a", "b", "c"], k=1),
        }
        for n in range(400)
    ]
    asked = [" ".join(rng.choices(words, k=rng.randint(1, 4))) for _ in range(25)]
    answers = []
    for engine in ENGINES:
        with testing.fake_clock(NOON.timestamp()), on(engine, tmp_path) as store:
            memory = store.memory("x", weights=Weights(candidates=20))
            memory.remember_many(said)
            found = [memory.recall(question, 8) for question in asked]
            found += [memory.recall(question, 8, tags=["a"]) for question in asked]
            answers.append([[(hit.text, hit.score) for hit in hits] for hits in found])
    assert answers[0] == answers[1] == answers[2]


def test_a_very_long_question_is_answered(memory: holdfast.Memory) -> None:
    # On a day that is no 17th: the date is a part of what is searched, and among so many words it
    # would count as much.
    memory.remember_many([{"text": f"fact {n} of amber", "at": 1.7e9} for n in range(50)])
    question = (
        " ".join("z" + "".join("bcdfghjklm"[int(digit)] for digit in str(n)) for n in range(3000))
        + " fact 17 amber"
    )
    assert texts(memory.recall(question, 1, min_score=0)) == ["fact 17 of amber"]


# -- how much --------------------------------------------------------------------------------------


def test_what_does_not_fit_makes_room_for_what_does(memory: holdfast.Memory) -> None:
    for n in range(5):
        memory.remember("cat " * 300 + f"{n} cat fact")
        memory.remember(f"small cat remark {n}")
    hits = memory.recall("cat fact", 3, max_tokens=60, min_score=0)
    assert len(hits) == 3 and all(hit.text.startswith("small") for hit in hits)
    assert len(memory.recall("cat fact", 5, max_tokens=20)) < 5


def test_all_can_be_of_a_time_and_about_somebody(memory: holdfast.Memory) -> None:
    memory.remember("Ann likes tea", subject="ann", at=NOON)
    memory.remember("Bo likes tea", subject="bo", at=NOON + timedelta(days=1))
    memory.remember("Tea is hot", at=NOON + timedelta(days=2))
    assert [one.text for one in memory.all(subject="bo")] == ["Bo likes tea"]
    assert [one.text for one in memory.all(since=NOON + timedelta(hours=1))] == [
        "Bo likes tea",
        "Tea is hot",
    ]
    assert [one.text for one in memory.all(until=NOON + timedelta(hours=1), subject="ann")] == [
        "Ann likes tea"
    ]
    assert texts(memory.recall("who likes tea?", subject="ann")) == ["Ann likes tea"]
