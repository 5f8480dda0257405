"""Texts of all sizes in one memory: a turn, a paragraph, a document of many passages."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

import holdfast
from helpers.paths import ROOT
from holdfast.memory.text.tokens import MAX_WHOLE_CHARS, split_passages

sys.path.insert(0, str(ROOT))  # `bench` is beside the tests, and not installed

from bench import memory_set
from bench.memory import bm25, fts5, recall_at
from bench.memory_set import documents

FILLER = "The committee met again and agreed on most of the points without a vote. "


def as_dicts(told: Sequence[memory_set.Memory]) -> list[dict[str, object]]:
    return [
        {"text": one.text, "source": one.source, "at": one.at, "tags": one.tags} for one in told
    ]


@pytest.mark.slow
@pytest.mark.parametrize("made", [documents.paragraphs, documents.documents])
def test_more_is_found_than_by_fts5_and_bm25(made: object) -> None:
    told, asked = made()  # type: ignore[operator]
    with holdfast.open("memory://") as store:
        memory = store.memory("notes")
        names = dict(
            zip(memory.remember_many(as_dicts(told)), [one.id for one in told], strict=True)  # type: ignore[arg-type]
        )
        ours = recall_at(
            10, lambda text, k: [names[hit.id] for hit in memory.recall(text, k)], asked
        )
    for baseline in (fts5, bm25):
        assert ours["all"] >= 1.15 * recall_at(10, baseline(told), asked)["all"]


@pytest.mark.every_engine
def test_a_hit_names_the_passage_that_fits(durable_url: str) -> None:
    answer = "The lighthouse keeper at Sable Quay painted the door green."
    document = "\n\n".join(
        [FILLER * 30, FILLER * 30, f"{FILLER * 3}{answer} {FILLER * 3}", FILLER * 30]
    )
    with holdfast.open(durable_url) as store:
        memory = store.memory("notes")
        memory.remember(document)
        memory.remember("A turn about something else")
        (hit,) = memory.recall("who painted the lighthouse door green?")
        assert hit.text == document
        assert answer in hit.passage
        assert len(hit.passage) < len(document) / 2
        short = memory.recall("a turn about something else")[0]
        assert short.passage == short.text


@pytest.mark.every_engine
def test_a_text_about_it_beats_a_long_text_that_mentions_it(durable_url: str) -> None:
    about = (
        "Ferry timetable: the ferry to Ravnsund sails at nine. The ferry back sails at five. " * 4
    )
    mentions = f"{FILLER * 20} The ferry was mentioned once. {FILLER * 20}"
    with holdfast.open(durable_url) as store:
        memory = store.memory("notes")
        memory.remember_many([{"text": mentions}, {"text": about}, {"text": FILLER * 9}])
        assert [hit.text for hit in memory.recall("ferry timetable", 2)] == [about, mentions]


def test_paragraphs_of_one_source_do_not_lend_each_other_score() -> None:
    match = "The bakery by the harbour opened in spring. " + FILLER * 8
    with holdfast.open("memory://") as store:
        memory = store.memory("notes")
        memory.remember_many(
            [
                {"text": f"{FILLER * 8} First.", "source": "report", "at": 1.0},
                {"text": match, "source": "report", "at": 2.0},
                {"text": f"{FILLER * 8} Last.", "source": "report", "at": 3.0},
            ]
        )
        assert [hit.text for hit in memory.recall("bakery harbour")] == [match]


def test_turns_of_a_conversation_do() -> None:
    with holdfast.open("memory://") as store:
        memory = store.memory("notes")
        memory.remember_many(
            [
                {"text": "Where is the bakery by the harbour?", "source": "chat", "at": 1.0},
                {"text": "Next to the bank.", "source": "chat", "at": 2.0},
            ]
        )
        hits = memory.recall("bakery harbour")
        assert [hit.text for hit in hits] == [
            "Where is the bakery by the harbour?",
            "Next to the bank.",
        ]
        assert hits[1].why["neighbours"] > 0


@pytest.mark.parametrize("sign", ["\n\n", "\n", ". ", " ", "。", ""])
def test_passages_joined_are_the_text(sign: str) -> None:
    text = sign.join(["word" * 9] * 400)
    passages = split_passages(text)
    assert "".join(passages) == text
    assert len(passages) > 1
    assert max(map(len, passages)) <= MAX_WHOLE_CHARS


def test_a_short_text_is_one_passage() -> None:
    assert split_passages("a" * MAX_WHOLE_CHARS) == ["a" * MAX_WHOLE_CHARS]
