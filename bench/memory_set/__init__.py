"""A labelled set for measuring what long-term memory finds: memories, questions, and which memories
answer each.

Written by hand. About half are turns of ten conversations between two people, told over several
sittings (a source is one sitting, `mara-and-tom/3`): questions are answered in the next turn, "it"
stands for something said before, and months later things have changed. The rest is what agents
noted while working for an insurer, the operations of a bank and a start-up (`task/claims-1042`),
minutes of meetings, and what users asked for. People and companies are invented.

A question's `kind` says what makes it hard:

    plain        it uses the words of the answer
    paraphrase   it uses other words, or other forms of them
    temporal     it asks when, or names a date: the answer's own date or text decides
    context      the words are in a turn or two before or after, the answer has hardly any of them
    multi        one memory is not enough
    adversarial  another memory has nearly the same words and is wrong: another person or year

`answers` names every memory that answers the question; a superseded one is not among them unless
the question asks for the past. To add a case, add lines to the files beside this one, each beside
the questions about it. `documents.py` makes paragraphs and documents, which are longer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, NamedTuple

__all__ = ["KINDS", "Kind", "Memory", "Question", "memories", "questions"]

Kind = Literal[
    "plain", "paraphrase", "temporal", "context", "multi", "adversarial", "paragraph", "document",
    "two-hop",
]  # fmt: skip
KINDS: tuple[Kind, ...] = ("plain", "paraphrase", "temporal", "context", "multi", "adversarial")

HERE = Path(__file__).resolve().parent
QUESTIONS = "_questions.jsonl"


class Memory(NamedTuple):
    """One thing to remember. `at` is in UTC; `tags` are few and say nothing that the text does
    not."""

    id: str
    source: str
    at: datetime
    author: Literal["user", "model", "tool"]
    tags: tuple[str, ...]
    text: str


class Question(NamedTuple):
    """What is asked, why it is hard, and the ids of all memories that answer it."""

    text: str
    kind: Kind
    answers: tuple[str, ...]


def memories() -> list[Memory]:
    """All memories in the order of time, as a store would have received them."""
    found = [
        Memory(
            id=line["id"],
            source=line["source"],
            at=datetime.fromisoformat(line["at"]).replace(tzinfo=timezone.utc),
            author=line["author"],
            tags=tuple(line["tags"]),
            text=line["text"],
        )
        for path in sorted(HERE.glob("*.jsonl"))
        if not path.name.endswith(QUESTIONS)
        for line in lines_of(path)
    ]
    return sorted(found, key=lambda memory: memory.at)


def questions() -> list[Question]:
    """All questions, file by file."""
    return [
        Question(text=line["text"], kind=line["kind"], answers=tuple(line["answers"]))
        for path in sorted(HERE.glob(f"*{QUESTIONS}"))
        for line in lines_of(path)
    ]


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)
