"""What an event of a consolidation does to memories, and when it does nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.memory.fold import MemoryEvent, MemoryFold
from holdfast.memory.model import Consolidated, Forgotten, MemoryDoc, Remembered, Restored

NOW = 1_800_000_000.0


class Log:
    """Memories that are derived from the events so far."""

    def __init__(self) -> None:
        self._fold, self._version = MemoryFold(), 0
        for number, subject in (("one", "ann"), ("two", "ann"), ("three", "ann"), ("four", None)):
            source = f"s{self._version + 1}"
            self.add(Remembered(f"text number {number}", source=source, subject=subject))

    def add(self, payload: Any) -> str:
        self._version += 1
        name = f"e{self._version}"
        event = MemoryEvent(self._version, name, NOW + self._version, payload)
        self._fold.apply(event)
        return name

    def docs(self) -> dict[str, MemoryDoc]:
        return {doc.id: doc for doc in self._fold.changes().put}

    def open(self) -> list[str]:
        return [name for name, doc in self.docs().items() if doc.superseded_by is None]


def change(kind: str = "merge", **given: Any) -> Consolidated:
    fields: dict[str, Any] = {
        "evidence": ("e1", "e2"),
        "closes": ("e1", "e2"),
        "by": Remembered("both", subject="ann"),
        "subject": "ann",
    }
    return Consolidated(run="r", proposal="p", kind=kind, **{**fields, **given})


def test_a_merge_closes_its_evidence_and_is_undone_exactly() -> None:
    log = Log()
    before = log.docs()
    made = log.add(change())
    assert log.open() == ["e3", "e4", made]
    doc = log.docs()[made]
    assert (doc.text, doc.mentions, doc.sources) == ("both", 2, ("s1", "s2"))
    assert (doc.evidence, doc.replaced) == (("e1", "e2"), ("e1", "e2"))
    assert log.docs()["e1"].valid_until == NOW + 5
    log.add(Restored(made, 5, ("e1", "e2"), made))
    assert log.docs() == before


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(change(evidence=("e1", "e9"), closes=("e1",)), id="an unknown memory"),
        pytest.param(change(evidence=("e1", "e1"), closes=("e1",)), id="a memory twice"),
        pytest.param(change(evidence=("e1", "e4"), closes=("e1",)), id="another subject"),
        pytest.param(change(subject=None), id="no subject"),
        pytest.param(change(closes=("e1", "e3")), id="closes more than its evidence"),
        pytest.param(change(by=None, keep="e3"), id="keeps what is no evidence"),
    ],
)
def test_an_event_that_does_not_fit_does_nothing(payload: Consolidated) -> None:
    log = Log()
    before = log.docs()
    log.add(payload)
    assert log.docs() == before


@pytest.mark.parametrize("first", [Forgotten(["e2"]), change(), change(kind="archive", by=None)])
def test_of_two_changes_of_a_memory_the_first_one_wins(first: Any) -> None:
    log = Log()
    log.add(first)
    before = log.docs()
    log.add(change(evidence=("e2", "e3"), closes=("e2", "e3")))
    assert log.docs() == before


def test_an_undo_does_not_reopen_what_another_event_has_closed() -> None:
    log = Log()
    archived = log.add(change(kind="archive", by=None))
    before = log.docs()
    log.add(Restored("e99", 99, ("e1", "e2")))
    assert log.docs() == before
    log.add(Restored(archived, 5, ("e1", "e2")))
    assert log.open() == ["e1", "e2", "e3", "e4"]


def test_a_kept_memory_takes_over_the_sources_of_its_duplicates_and_gives_them_back() -> None:
    log = Log()
    before = log.docs()
    same = change(kind="duplicate", by=None, keep="e1", closes=("e2",))
    merged = log.add(same)
    kept = log.docs()["e1"]
    assert (kept.sources, kept.mentions, kept.replaced) == (("s1", "s2"), 2, ("e2",))
    more = Remembered("text number one", source="s5", subject="ann")
    log.add(more)
    log.add(Restored(merged, 5, ("e2",), "e1"))
    after = log.docs()
    assert (after["e1"].sources, after["e1"].mentions) == (("s1", "s5"), 2)
    assert after["e1"].replaced == () and after["e2"] == before["e2"]


def test_a_memory_that_replaced_others_before_passes_them_on_and_gets_them_back() -> None:
    log = Log()
    first = log.add(change())
    both = change(evidence=(first, "e3"), closes=(first, "e3"))
    before = log.docs()
    second = log.add(both)
    assert log.docs()[second].replaced == ("e1", "e2", first, "e3")
    log.add(Restored(second, 6, (first, "e3"), second))
    assert log.docs() == before


def test_a_text_made_from_a_forgotten_source_is_forgotten() -> None:
    log = Log()
    made = log.add(change())
    log.add(Forgotten([made, "e1"], source="s1"))
    assert log.open() == ["e3", "e4"]
    log.add(Restored(made, 5, ("e1", "e2")))
    assert log.open() == ["e2", "e3", "e4"]


def test_events_are_stored_without_defaults() -> None:
    assert msgspec.json.encode(Restored("e", 5, ("a",))) == b'{"event":"e","version":5,"ids":["a"]}'
