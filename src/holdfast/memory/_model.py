"""What a memory is: as it is stored, as it is indexed, and as it is recalled.

The events of a memory stream say what was remembered, superseded, forgotten, and found useful. What is known at a version
is a fold of them (`_fold`), and that is what an index keeps.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from .._clock import moment
from .._quiet import Quiet

KIND: Final = "memory"
REMEMBERED: Final = "memory.remembered"
SUPERSEDED: Final = "memory.superseded"
FORGOTTEN: Final = "memory.forgotten"
JUDGED: Final = "memory.judged"
USED: Final = "memory.used"


# -- events ----------------------------------------------------------------------------------------


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something to remember. `at` is when it was said or became true, if that is not when it was stored (Unix seconds).

    `fact`: it holds whenever it is said, so that the same of another day says nothing new.
    """

    text: str
    tags: tuple[str, ...] = ()
    importance: float = 0.5
    source: str | None = None
    author: str = "model"
    at: float | None = None
    subject: str | None = None
    meta: dict[str, Any] | None = None
    expires_at: float | None = None
    fact: bool = False

    @property
    def dated(self) -> bool:
        """Whether the time it was said is part of what it says."""
        return self.at is not None and not self.fact


class Superseded(msgspec.Struct, frozen=True):
    """A memory that another one takes the place of."""

    id: str
    by: Said


class Forgotten(msgspec.Struct, frozen=True):
    ids: list[str]


class Judged(msgspec.Struct, frozen=True):
    """Somebody says that a memory was of use, or was not."""

    id: str
    useful: bool


class Used(msgspec.Struct, frozen=True):
    """Memories that were handed to a model."""

    ids: list[str]


# -- what an index keeps ---------------------------------------------------------------------------


class Doc(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A memory as it stands, with the words by which it is found.

    `number` is the version of the event that first said it. `dated`: the time it was said was given, and is part of it.
    `heard_at` is when it was last said. `useful` is what its use was worth at `useful_at`; it fades.
    """

    number: int
    id: str
    text: str
    at: float
    heard_at: float
    terms: str = ""
    context: str = ""
    keys: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    importance: float = 0.5
    source: str | None = None
    author: str = "model"
    subject: str | None = None
    meta: dict[str, Any] | None = None
    expires_at: float | None = None
    dated: bool = False
    heard: int = 1
    useful: float = 0.0
    useful_at: float = 0.0


class Position(NamedTuple):
    """How far an index has followed a stream: which life of it, up to which version."""

    life: bytes
    version: int


class Where(msgspec.Struct, frozen=True):
    """Which memories are asked for. `tags`: all of them. `now`: what has expired by then is left out."""

    now: float
    tags: tuple[str, ...] = ()
    source: str | None = None
    author: str | None = None
    subject: str | None = None
    since: float | None = None
    until: float | None = None

    def has(self, doc: Doc) -> bool:
        return (
            (doc.expires_at is None or doc.expires_at > self.now)
            and (self.source is None or doc.source == self.source)
            and (self.author is None or doc.author == self.author)
            and (self.subject is None or doc.subject == self.subject)
            and (self.since is None or doc.at >= self.since)
            and (self.until is None or doc.at <= self.until)
            and set(self.tags).issubset(doc.tags)
        )


# -- what users get --------------------------------------------------------------------------------


class Remembered(Quiet, msgspec.Struct, frozen=True, kw_only=True):
    """A memory. `heard` counts how often it was said; `at` is when first."""

    _content = ("text", "tags", "meta")

    id: str
    text: str
    at: datetime
    source: str | None
    tags: tuple[str, ...]
    meta: dict[str, Any]
    author: str
    importance: float
    subject: str | None
    expires_at: datetime | None
    heard: int


class Hit(Remembered, frozen=True, kw_only=True):
    """A memory that was recalled: how well it fits (about 0 to 1), and which signals said so."""

    score: float
    why: dict[str, float]


class MemoryStats(msgspec.Struct, frozen=True):
    """A namespace at a glance. `version` is that of its stream, up to which the index has followed it."""

    memories: int
    sources: int
    oldest: datetime | None
    newest: datetime | None
    vectors: int
    version: int


def shown(doc: Doc) -> Remembered:
    return Remembered(**_fields(doc))


def hit(doc: Doc, score: float, why: dict[str, float]) -> Hit:
    return Hit(**_fields(doc), score=score, why=why)


def _fields(doc: Doc) -> dict[str, Any]:
    return {
        "id": doc.id,
        "text": doc.text,
        "at": moment(doc.at),
        "source": doc.source,
        "tags": doc.tags,
        "meta": dict(doc.meta or {}),
        "author": doc.author,
        "importance": doc.importance,
        "subject": doc.subject,
        "expires_at": None if doc.expires_at is None else moment(doc.expires_at),
        "heard": doc.heard,
    }
