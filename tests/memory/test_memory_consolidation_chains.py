"""Consolidations that build on each other: what goes and what comes back when one part goes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import Memory
from holdfast.log import operations as ops
from holdfast.log.events import NewEvent, new_append_context
from holdfast.log.operations.stream_ops import append_events
from holdfast.memory.consolidation import find
from holdfast.memory.consolidation.apply import apply_proposal, undo_run
from holdfast.memory.consolidation.proposals import build_proposal
from holdfast.memory.model import FORGOTTEN, MemoryDoc
from holdfast.memory.search.ranking import AuthorCounter

DAY = 86_400.0
TEA = ("Bob prefers tea in the morning", "In the morning Bob likes to drink tea")
KETTLE = "Bob owns a red tea kettle"
BOTH = "Bob drinks tea in the morning and owns a red kettle"


@pytest.fixture
def memory() -> Iterator[Memory]:
    with holdfast.open("memory://") as store:
        yield store.memory("m")


def texts(memory: Memory) -> list[str]:
    return [item.text for item in memory.all()]


def undo(memory: Memory, run: str) -> tuple[int, int]:
    done = undo_run(memory, run)
    return done.undone, done.left


def change(
    memory: Memory,
    run: str,
    kind: Any,
    evidence: Sequence[str],
    *,
    closes: Sequence[str] = (),
    keep: str | None = None,
    text: str | None = None,
) -> None:
    """Apply one proposal as a run of its own."""
    found = memory._current_index().lookup(memory._key, list(evidence), []).docs
    docs = {doc.id: doc for doc in found}
    proposal = build_proposal(
        kind,
        [docs[name] for name in evidence],
        trusted=(),
        closes=[docs[name] for name in closes],
        keep=None if keep is None else docs[keep],
        text=text,
    )
    assert apply_proposal(memory, proposal, run, run, None)


def summarize_a_summary(memory: Memory) -> list[str]:
    """Return the ids of two memories and of a third: the first are in a summary, all in a merge."""
    ids = [memory.remember(TEA[0], author="Carl"), memory.remember(TEA[1]), memory.remember(KETTLE)]
    change(memory, "run-1", "summary", ids[:2], text="Bob and his tea")
    made = next(item.id for item in memory.all() if item.text == "Bob and his tea")
    change(memory, "run-2", "merge", [made, ids[2]], closes=[made, ids[2]], text=BOTH)
    assert texts(memory) == [*TEA, BOTH]
    return ids


def make_summary_that_replaces(memory: Memory) -> tuple[str, str]:
    """Summarize two memories in "run-1", and replace a third with the summary in "run-2"."""
    ids = [memory.remember(text) for text in (*TEA, KETTLE)]
    change(memory, "run-1", "summary", ids[:2], text="Bob and his tea")
    made = next(item.id for item in memory.all() if item.text == "Bob and his tea")
    change(memory, "run-2", "supersede", [ids[2], made], closes=[ids[2]], keep=made)
    assert texts(memory) == [*TEA, "Bob and his tea"]
    return made, ids[2]


def test_undo_leaves_what_a_later_run_builds_on_until_that_is_undone(memory: Memory) -> None:
    make_summary_that_replaces(memory)
    assert undo(memory, "run-1") == (0, 1)
    assert texts(memory) == [*TEA, "Bob and his tea"]
    assert undo(memory, "run-2") == (1, 0)
    assert undo(memory, "run-1") == (1, 0)
    assert texts(memory) == [*TEA, KETTLE]
    memory.rebuild()
    assert texts(memory) == [*TEA, KETTLE]


def test_one_run_that_builds_on_its_own_summary_is_undone_at_once(memory: Memory) -> None:
    ids = [memory.remember(text) for text in (*TEA, KETTLE)]
    change(memory, "run", "summary", ids[:2], text="Bob and his tea")
    made = next(item.id for item in memory.all() if item.text == "Bob and his tea")
    change(memory, "run", "supersede", [ids[2], made], closes=[ids[2]], keep=made)
    assert undo(memory, "run") == (2, 0)
    assert texts(memory) == [*TEA, KETTLE]


def test_a_run_is_undone_although_what_it_kept_is_gone(memory: Memory) -> None:
    made, third = make_summary_that_replaces(memory)
    event = NewEvent(FORGOTTEN, json.dumps({"ids": [made]}).encode())  # another process forgets it
    log, key = memory._log, memory._key
    ops.run(log, append_events(key, [event], new_append_context()))
    assert texts(memory) == list(TEA)
    assert undo(memory, "run-2") == (1, 0)
    assert texts(memory) == [*TEA, KETTLE]
    memory.rebuild()
    assert memory.forget(third)


@pytest.mark.parametrize("by_author", [False, True])
def test_to_forget_a_memory_is_to_forget_what_was_made_of_its_summary(
    memory: Memory, by_author: bool
) -> None:
    first = summarize_a_summary(memory)[0]
    if by_author:
        assert memory.forget_where(author="Carl") == 1
    else:
        assert memory.forget(first)
    assert texts(memory) == [TEA[1], KETTLE]
    memory.rebuild()
    assert texts(memory) == [TEA[1], KETTLE]
    assert (undo(memory, "run-1"), undo(memory, "run-2")) == ((0, 0), (0, 0))


def test_to_forget_a_merged_text_is_to_forget_what_it_replaced(memory: Memory) -> None:
    summarize_a_summary(memory)
    made = next(item.id for item in memory.all() if item.text == BOTH)
    assert memory.forget(made)
    assert texts(memory) == list(TEA)


def test_what_was_corrected_stays_so_when_the_evidence_is_forgotten(memory: Memory) -> None:
    first = summarize_a_summary(memory)[0]
    made = next(item.id for item in memory.all() if item.text == BOTH)
    memory.supersede(made, "Bob drinks coffee and sold the kettle")
    assert memory.forget(first)
    assert texts(memory) == [TEA[1], "Bob drinks coffee and sold the kettle"]


@pytest.mark.parametrize("by_author", [False, True])
def test_what_a_forgotten_summary_stood_for_is_recalled_again(
    memory: Memory, by_author: bool
) -> None:
    first = memory.remember(TEA[0], author="Carl")
    second, third = memory.remember(TEA[1]), memory.remember(KETTLE)
    change(memory, "run-1", "summary", [first, second], text="Bob and his tea")
    made = next(item.id for item in memory.all() if item.text == "Bob and his tea")
    change(memory, "run-2", "supersede", [third, made], closes=[third], keep=made)
    assert texts(memory) == [*TEA, "Bob and his tea"]
    if by_author:
        memory.forget_where(author="Carl")
    else:
        memory.forget(first)
    assert texts(memory) == [TEA[1], KETTLE]
    memory.rebuild()
    assert texts(memory) == [TEA[1], KETTLE]
    assert memory.forget(third)


# -- the work for many memories --------------------------------------------------------------------


def count_lines(call: Callable[[], object]) -> int:
    """Return how many lines of the package a call runs."""
    lines = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal lines
        if "holdfast" not in frame.f_code.co_filename:
            return None
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines


def build_daily(count: int) -> list[MemoryDoc]:
    """Return memories with the same words, each of another day."""
    return [
        MemoryDoc(n, f"id-{n}", TEA[0], DAY * 2 * n, DAY * 2 * n, keys=("k",), author=f"a{n % 3}")
        for n in range(1, count + 1)
    ]


def build_summarized(count: int) -> list[MemoryDoc]:
    """Return closed memories, their keepers, and a summary of each."""
    docs = []
    for n in range(1, count + 1):
        closed, kept, made = f"closed-{n}", f"kept-{n}", f"made-{n}"
        docs += [
            MemoryDoc(3 * n, closed, f"Tea {n}", 0.0, 0.0, superseded_by="e", summaries=(made,)),
            MemoryDoc(3 * n + 1, kept, f"Tea {n}", 0.0, 0.0, replaced=(closed,)),
            MemoryDoc(3 * n + 2, made, f"All about tea {n}", 0.0, 0.0, evidence=(closed,)),
        ]
    return docs


def find_daily(docs: list[MemoryDoc]) -> None:
    assert not list(find._find_duplicates([as_author(doc, "a") for doc in docs], ()))


def as_author(doc: MemoryDoc, author: str) -> MemoryDoc:
    return msgspec.structs.replace(doc, author=author)


def find_outdated(docs: list[MemoryDoc]) -> None:
    assert not list(find._find_outdated_summaries(docs, docs, ()))


def count_authors(docs: list[MemoryDoc]) -> None:
    counter = AuthorCounter(docs)
    assert {counter.count(doc) for doc in docs} == {3}


@pytest.mark.parametrize(
    ("build", "work"),
    [
        pytest.param(build_daily, find_daily, id="the same words on many days"),
        pytest.param(build_summarized, find_outdated, id="many closed memories with a summary"),
        pytest.param(build_daily, count_authors, id="many who say the same"),
    ],
)
def test_the_work_grows_with_the_memories_and_not_with_their_square(
    build: Callable[[int], list[MemoryDoc]], work: Callable[[list[MemoryDoc]], None]
) -> None:
    few, many = build(100), build(400)
    work(many)  # fills the caches
    assert count_lines(lambda: work(many)) < 8 * count_lines(lambda: work(few))


def test_of_the_same_words_over_days_the_best_of_each_day_stands_for_it() -> None:
    docs = [
        MemoryDoc(n, f"id-{n}", TEA[0], at * DAY, at * DAY, importance=0.9 if n == 2 else 0.5)
        for n, at in enumerate([0.0, 0.5, 1.2, 2.1, 9.0], 1)
    ]
    found = [(one.keep, one.closes) for one in find._find_duplicates(docs, ())]
    assert found == [("id-2", ("id-1", "id-3"))]
