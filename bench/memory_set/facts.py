"""Facts that change, and questions about a time.

`dated()` are notes on the same matters from several days, and questions with a relative date;
`UPDATED` are facts, what became of them later, and questions about now.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, NamedTuple

DAY: Final = 86_400.0
NOW: Final = 1_773_828_000.0
"""Wednesday, 18 March 2026, 10:00 UTC: the time of asking."""


class Dated(NamedTuple):
    """Notes of one matter with their times, a question, and which of the notes answers it."""

    notes: tuple[tuple[str, float], ...]
    question: str
    answer: int


_MATTERS: Final = (
    "the press release about the {} line was moved to the {} shift",
    "the steering group discussed the {} budget and the {} travel costs",
    "a customer complained about the {} invoice and the {} reminder",
    "the crew replaced the {} pump and the {} valve",
)
_PARTS: Final = (
    ("red", "late"),
    ("blue", "early"),
    ("green", "night"),
    ("yellow", "spare"),
    ("white", "second"),
)
_TIMES: Final = (
    ("yesterday", 1.0),
    ("today", 0.1),
    ("last week", 7.0),
    ("two weeks ago", 14.0),
    ("last month", 30.0),
    ("three days ago", 3.0),
    ("a month ago", 30.0),
    ("the day before yesterday", 2.0),
    ("last year", 300.0),
    ("last Friday", 5.0),
)
_ASKED: Final = (
    "What happened with the press release {}?",
    "What did the steering group discuss {}?",
    "What did a customer complain about {}?",
    "What did the crew replace {}?",
)
_AGES: Final = (0.1, 1.0, 2.0, 3.0, 5.0, 7.0, 14.0, 30.0, 60.0, 300.0)


def dated() -> list[Dated]:
    """Return forty questions: four matters, each noted on ten days, asked about by ten phrases."""
    found = []
    for at, (matter, asked) in enumerate(zip(_MATTERS, _ASKED, strict=True)):
        notes = tuple(
            (
                matter.format(*_PARTS[(at + age) % len(_PARTS)]) + f", note {days + at:g}",
                NOW - days * DAY,
            )
            for age, days in enumerate(_AGES)
        )
        for phrase, days in _TIMES:
            found.append(Dated(notes, asked.format(phrase), _AGES.index(days)))
    return found


class Updated(NamedTuple):
    """A fact, what became of it, and a question about now."""

    old: str
    new: str
    question: str


UPDATED: Final = tuple(
    Updated(**one) for one in json.loads(Path(__file__).with_name("updates.json").read_text())
)

NOTHING: Final = tuple(Path(__file__).with_name("nothing.txt").read_text("utf-8").splitlines())
"""Questions about nothing that the set tells. Many of them share a name with it."""

LANGUAGES: Final[dict[str, list[tuple[str, str]]]] = {
    language: [(text, question) for text, question in pairs]
    for language, pairs in json.loads(
        Path(__file__).with_name("languages.json").read_text("utf-8")
    ).items()
}
"""Memories in six languages, each with a question about it."""
