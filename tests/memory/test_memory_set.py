"""The labelled set of the memory benchmark: is it what it says? A wrong label would be measured as
a wrong answer."""

from __future__ import annotations

import re
import sys
from collections import Counter
from datetime import timedelta
from itertools import pairwise

import pytest

from helpers.paths import ROOT

sys.path.insert(0, str(ROOT))  # `bench` is beside the tests, and not installed

from bench.memory_set import KINDS, Memory, Question, memories, questions

MEMORIES = memories()
QUESTIONS = questions()
BY_ID = {memory.id: memory for memory in MEMORIES}

WHEN = re.compile(
    r"\b(when|day|days|date|dates|month|weekend|weekday|20\d\d|january|february|march|april|may|june|july|august"
    r"|september|october|november|december|spring|summer|autumn|winter)\b",
    re.IGNORECASE,
)
SMALL = frozenset(
    re.findall(
        r"\w+",
        "a about after also an and any are as at be been before but by can could did do does for "
        "from had has have he her his"
        " how i if in into is it its many may me more much my no not now of on or our out over she "
        "so some than that the"
        " their them then there these they this to up us was we were what when where which who "
        "whom whose why will with"
        " would you your s t ll ve",
    )
)


def of_source(memory: Memory) -> list[Memory]:
    return [other for other in MEMORIES if other.source == memory.source]


def speakers(memory: Memory) -> set[str]:
    """The first names of a conversation; everyone's turns have them, so they tell nothing apart."""
    return (
        {name[:5] for name in memory.source.split("/")[0].split("-and-")}
        if "-and-" in memory.source
        else set()
    )


def words(text: str) -> set[str]:
    """The words that carry meaning, cut short so that `lift` and `lifting` are nearly always the
    same."""
    return {word[:5] for word in re.findall(r"[a-z0-9]+", text.lower()) if word not in SMALL}


def shared(question: Question, memory: Memory) -> set[str]:
    return words(question.text) & words(memory.text)


def near(memory: Memory) -> list[Memory]:
    """What was said in the two turns before and after."""
    turns = of_source(memory)
    place = turns.index(memory)
    return turns[max(0, place - 2) : place] + turns[place + 1 : place + 3]


def test_there_is_enough_of_it() -> None:
    sources = {memory.source for memory in MEMORIES}
    turns = sum("-and-" in memory.source for memory in MEMORIES)
    conversations = {source.split("/")[0] for source in sources if "-and-" in source}
    assert len(MEMORIES) >= 620
    assert len(sources) >= 24
    assert 0.4 <= turns / len(MEMORIES) <= 0.6
    assert 8 <= len(conversations) <= 12
    assert len(QUESTIONS) >= 180


def test_it_covers_about_fourteen_months() -> None:
    span = MEMORIES[-1].at - MEMORIES[0].at
    assert timedelta(days=400) <= span <= timedelta(days=440)


def test_every_kind_of_question_has_its_share() -> None:
    counts = Counter(question.kind for question in QUESTIONS)
    assert set(counts) == set(KINDS)
    assert min(counts.values()) >= 25
    assert max(counts.values()) <= 2 * min(counts.values())


def test_nothing_is_there_twice() -> None:
    assert len(BY_ID) == len(MEMORIES)
    assert [
        text
        for text, count in Counter(memory.text.lower() for memory in MEMORIES).items()
        if count > 1
    ] == []
    assert [
        text
        for text, count in Counter(question.text.lower() for question in QUESTIONS).items()
        if count > 1
    ] == []


def test_every_memory_is_complete_and_follows_the_one_before() -> None:
    for memory in MEMORIES:
        assert memory.text == memory.text.strip() and memory.text, memory.id
        assert memory.author in ("user", "model", "tool"), memory.id
        assert 1 <= len(memory.tags) <= 3, memory.id
        assert memory.at.utcoffset() == timedelta(0), memory.id
    for source in {memory.source for memory in MEMORIES}:
        told = [memory for memory in MEMORIES if memory.source == source]
        assert [memory.id for memory in told] == [
            f"{source}#{number}" for number in range(1, len(told) + 1)
        ]
        assert all(earlier.at < later.at for earlier, later in pairwise(told)), source


def test_every_turn_begins_with_one_of_the_two_who_talk() -> None:
    for memory in MEMORIES:
        if "-and-" in memory.source:
            two = memory.source.split("/")[0].split("-and-")
            assert memory.text.split(":")[0].lower() in two, memory.id


def test_conversations_come_back_months_later() -> None:
    sittings: dict[str, set[str]] = {}
    for memory in MEMORIES:
        if "-and-" in memory.source:
            sittings.setdefault(memory.source.split("/")[0], set()).add(f"{memory.at:%Y-%m}")
    assert min(map(len, sittings.values())) >= 3


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.text)
def test_every_question_is_answered_as_its_kind_says(question: Question) -> None:
    assert question.text.endswith("?")
    assert 1 <= len(question.answers) <= 4
    assert len(set(question.answers)) == len(question.answers)
    answers = [BY_ID[answer] for answer in question.answers]
    if question.kind == "plain":
        assert all(len(shared(question, answer)) >= 2 for answer in answers)
    elif question.kind == "paraphrase":
        assert all(len(shared(question, answer) - speakers(answer)) <= 2 for answer in answers)
    elif question.kind == "temporal":
        assert WHEN.search(question.text)
    elif question.kind == "multi":
        assert len(answers) >= 2
    elif question.kind == "context":
        for answer in answers:
            own = shared(question, answer) - speakers(answer)
            around = [shared(question, other) - speakers(answer) for other in near(answer)]
            assert len(own) <= 2 and max(map(len, around)) > len(own)
