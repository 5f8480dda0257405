"""The checker finds each kind of violation: a judge who acquits everybody proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from helpers.stored.checker import Seen, judge
from helpers.stored.notes import plan
from holdfast import Event

Case = tuple[list[dict[str, Any]], dict[str, list[Event]], Seen]


def keys_of(stream: str, count: int, *, events: int | None = None) -> list[str]:
    """Keys whose plans go to this stream, with that many events."""
    candidates = (f"test/0/writer/{number}" for number in range(100_000))
    found = (
        key
        for key in candidates
        if plan(key).stream == stream and events in (None, len(plan(key).events))
    )
    return [next(found) for _ in range(count)]


def store_of(*keys: str) -> dict[str, list[Event]]:
    """A store that holds these appends, in this order."""
    streams: dict[str, list[Event]] = {}
    for key in keys:
        step = plan(key)
        events = streams.setdefault(step.stream, [])
        for name, data in step.events:
            events.append(
                Event(len(events) + 1, f"{step.stream} {len(events)}", name, dict(data), 0.0)
            )
    return streams


def tries(*keys: str) -> list[dict[str, Any]]:
    return [{"what": "try", "key": key} for key in keys]


def ack(key: str, first: int) -> dict[str, Any]:
    return {"what": "ack", "key": key, "first": first, "last": first + len(plan(key).events) - 1}


ONE, TWO = keys_of("shared 0", 2, events=1)
BATCH = keys_of("shared 0", 1, events=5)[0]


def renumbered(events: list[Event]) -> list[Event]:
    return [
        Event(number, f"{number}", event.type, event.data, 0.0)
        for number, event in enumerate(events, 1)
    ]


def lost() -> Case:
    return [*tries(ONE, TWO), ack(ONE, 1), ack(TWO, 2)], store_of(ONE), {}


def never_attempted() -> Case:
    return tries(ONE), store_of(ONE, TWO), {}


def stored_twice() -> Case:
    return tries(ONE), store_of(ONE, ONE), {}


def torn() -> Case:
    store = store_of(BATCH)
    del store["shared 0"][3:]
    return tries(BATCH), store, {}


def interleaved() -> Case:
    events = store_of(BATCH)["shared 0"]
    return (
        tries(BATCH, ONE),
        {"shared 0": renumbered([*events[:2], *store_of(ONE)["shared 0"], *events[2:]])},
        {},
    )


def gap() -> Case:
    store = store_of(ONE, TWO)
    store["shared 0"][1] = Event(3, "x", store["shared 0"][1].type, store["shared 0"][1].data, 0.0)
    return tries(ONE, TWO), store, {}


def altered() -> Case:
    store = store_of(ONE)
    store["shared 0"][0].data["text"] += "!"
    return tries(ONE), store, {}


def misplaced() -> Case:
    return tries(ONE), {"shared 1": store_of(ONE)["shared 0"]}, {}


def other_place_than_acknowledged() -> Case:
    return [*tries(ONE, TWO), ack(TWO, 1)], store_of(ONE, TWO), {}


def out_of_order() -> Case:
    return [*tries(ONE), ack(ONE, 2), *tries(TWO)], store_of(TWO, ONE), {}


def refused_but_stored() -> Case:
    return [*tries(ONE), {"what": "refused", "key": ONE, "error": "Conflict"}], store_of(ONE), {}


def read_and_gone() -> Case:
    return (
        [*tries(ONE), {"what": "saw", "stream": "shared 0", "version": 2, "event": "x"}],
        store_of(ONE),
        {},
    )


def changed_since_the_last_crash() -> Case:
    _, seen = judge(tries(ONE, TWO), store_of(ONE, TWO), {})
    return tries(ONE, TWO), store_of(TWO, ONE), seen


def noted_by_a_writer() -> Case:
    return [{"what": "wrong", "problem": "a repeat was stored again"}], {}, {}


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (lost, "acknowledged and is lost"),
        (never_attempted, "never attempted"),
        (stored_twice, "more than once"),
        (torn, "torn"),
        (interleaved, "not in one piece"),
        (gap, "version 3 stands where 2 should"),
        (altered, "does not match its own sum"),
        (misplaced, "is in shared 1, not in shared 0"),
        (other_place_than_acknowledged, "was acknowledged at 1, is at [2]"),
        (out_of_order, "began after version"),
        (refused_but_stored, "told that it was not"),
        (read_and_gone, "was read and is gone"),
        (changed_since_the_last_crash, "gone or changed"),
        (noted_by_a_writer, "stored again"),
    ],
)
def test_the_checker_finds(case: Callable[[], Case], words: str) -> None:
    verdict, _ = judge(*case())
    assert any(words in violation for violation in verdict.violations), verdict.violations


def test_the_checker_accepts_a_good_history_and_counts_it() -> None:
    notes = [*tries(ONE, BATCH), ack(ONE, 1), *tries(TWO)]
    verdict, seen = judge(notes, store_of(ONE, BATCH), {})
    assert verdict.ok, verdict.violations
    assert (verdict.attempts, verdict.acknowledged, verdict.stored) == (3, 1, 6)
    assert (verdict.in_doubt_stored, verdict.in_doubt_absent) == (1, 1)
    later, _ = judge([*notes, *tries(BATCH), ack(BATCH, 2)], store_of(ONE, BATCH, TWO), seen)
    assert later.ok, later.violations
