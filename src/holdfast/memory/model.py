"""What a memory is: as it is stored, as it is indexed, and as it is recalled.

The events of a memory stream say what was remembered, superseded, forgotten, and found useful. What is known at a version
is a fold of them (`_fold`), and that is what an index keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, ClassVar, Final, NamedTuple

import msgspec

from ..backends import Head
from ..backends.clock import moment
from ..log.reprs import Readable

KIND: Final = "memory"
REMEMBERED: Final = "memory.remembered"
SUPERSEDED: Final = "memory.superseded"
FORGOTTEN: Final = "memory.forgotten"
JUDGED: Final = "memory.judged"
USED: Final = "memory.used"
VARIANT: Final = "\nAlso noted as: "
"""Between a text and its variants."""
TOLD: Final = 15
"""So many of them are told to a model: what nobody can tell from slips of the finger should not fill its window."""


# -- events ----------------------------------------------------------------------------------------


class Remembering(msgspec.Struct, frozen=True, omit_defaults=True):
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


class Superseded(msgspec.Struct, frozen=True, omit_defaults=True):
    """A memory that another one takes the place of. `sources`: those that said the old one, beside the source of the new one."""

    id: str
    by: Remembering
    sources: tuple[str, ...] = ()


class Forgotten(msgspec.Struct, frozen=True, omit_defaults=True):
    """Memories to be recalled no more. With a source or tags: only what was said from there, or under these; others may say it too."""

    ids: list[str]
    source: str | None = None
    tags: tuple[str, ...] = ()


class Judged(msgspec.Struct, frozen=True):
    """Somebody says that a memory was of use, or was not."""

    id: str
    useful: bool


class Used(msgspec.Struct, frozen=True):
    """Memories that were handed to a model."""

    ids: list[str]


# -- what an index keeps ---------------------------------------------------------------------------


class Saying(
    msgspec.Struct, frozen=True, omit_defaults=True, gc=False, rename={"mentions": "heard"}
):
    """What was said in the same words, from the same source and with the same tags: part of a memory.

    `version` is that of the event that said it last; 0 if there is no other saying.
    """

    text: str
    at: float
    first_at: float
    source: str | None = None
    tags: tuple[str, ...] = ()
    importance: float = 0.5
    meta: dict[str, Any] | None = None
    expires_at: float | None = None
    mentions: int = 1
    version: int = 0
    dated_at: float | None = None
    """The time that was given for it, if one was."""


class MemoryDoc(
    msgspec.Struct, frozen=True, omit_defaults=True, gc=False, rename={"mentions": "heard"}
):
    """A memory as it stands, with the words by which it is found.

    `number` is the version of the event that first said it. `at` is when it was said last, `first_at` when first, and `dated_at` the
    time that was given for it, if one was. `variants` are other wordings, `sources` all sources and `sayings` who said what, if
    there is more than one. `useful` is what its use was worth at `useful_at`; it fades.
    """

    number: int
    id: str
    text: str
    at: float
    first_at: float
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
    dated_at: float | None = None
    mentions: int = 1
    useful: float = 0.0
    useful_at: float = 0.0
    variants: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    sayings: tuple[Saying, ...] = ()


doc_bytes: Final = msgspec.json.Encoder().encode
"""A memory as an index keeps it, and back."""
doc_of: Final = msgspec.json.Decoder(MemoryDoc).decode


class IndexPosition(NamedTuple):
    """How far an index has followed a stream: which life of it, up to which version, and the hash of the record there.

    The hash tells whether this is still the stream that was followed: one that was restored from a backup, or copied and written
    to at both places, has other records at the same versions.
    """

    incarnation: bytes
    version: int
    hash: bytes = b""


class MemoryFilter(msgspec.Struct, frozen=True):
    """Which memories are asked for. `tags`: all of them. `now`: what has expired by then is left out.

    `author`: by this one, or by one of these. `without`: by none of these.
    """

    now: float
    tags: tuple[str, ...] = ()
    source: str | None = None
    author: str | tuple[str, ...] | None = None
    without: tuple[str, ...] = ()
    subject: str | None = None
    since: float | None = None
    until: float | None = None

    @property
    def authors(self) -> tuple[str, ...] | None:
        """All that it may be by; None if it may be by anybody."""
        return (self.author,) if isinstance(self.author, str) else self.author

    def has(self, doc: MemoryDoc) -> bool:
        return (
            (doc.expires_at is None or doc.expires_at > self.now)
            and (self.source is None or doc.source == self.source or self.source in doc.sources)
            and (self.authors is None or doc.author in self.authors)
            and doc.author not in self.without
            and (self.subject is None or doc.subject == self.subject)
            and (self.since is None or doc.at >= self.since)
            and (self.until is None or doc.at <= self.until)
            and set(self.tags).issubset(doc.tags)
        )


# -- what users get --------------------------------------------------------------------------------


class MemoryItem(Readable, msgspec.Struct, frozen=True, kw_only=True):
    """A memory. `mentions` counts how often it was said; `at` is when last, `first_at` when first.

    `sources` are all that said it, and `source` is the first of them. `variants` are texts that look like this one with a slip of
    the finger: mostly they are, but they may say something else, so they are kept.
    """

    _shown: ClassVar[tuple[str, ...]] = ("text", "tags", "author", "subject", "source", "at", "id")

    id: str
    text: str
    variants: tuple[str, ...] = ()
    at: datetime
    first_at: datetime
    source: str | None
    sources: tuple[str, ...]
    tags: tuple[str, ...]
    meta: dict[str, Any]
    author: str
    importance: float
    subject: str | None
    expires_at: datetime | None
    mentions: int

    @property
    def full_text(self) -> str:
        """The text, and the variants below it, of many the newest 15: what to tell a model, quoted (`holdfast.memory.quoted`)."""
        return full_text(self.text, self.variants)


class MemoryHit(MemoryItem, frozen=True, kw_only=True):
    """A memory that was recalled: how well it fits, from 0 to 1 (it has all that was asked for), and which signals said so."""

    _shown = ("text", "score", "why", "tags", "author", "subject", "source", "at", "id")

    score: float
    why: dict[str, float]


class MemoryInfo(msgspec.Struct, frozen=True):
    """A namespace of memory in a listing, with the newest version of its stream."""

    namespace: str
    version: int

    @classmethod
    def of(cls, head: Head) -> MemoryInfo:
        return cls(head.stream.id, head.version)


class MemoryStats(msgspec.Struct, frozen=True):
    """A namespace at a glance. `version` is that of its stream, up to which the index has followed it.

    `compared_by`: who finds the nearest vectors, if there are any: "pgvector" in the database, or each "process" by itself.
    """

    memories: int
    sources: int
    oldest: datetime | None
    newest: datetime | None
    vectors: int
    version: int
    compared_by: str | None = None


def sources_of(doc: MemoryDoc) -> tuple[str, ...]:
    """All of them, the first one first."""
    return doc.sources or (() if doc.source is None else (doc.source,))


def full_text(text: str, variants: Sequence[str]) -> str:
    return VARIANT.join((text, *variants[-TOLD:]))


def shown(doc: MemoryDoc) -> MemoryItem:
    return MemoryItem(**_fields(doc))


def hit(doc: MemoryDoc, score: float, why: dict[str, float]) -> MemoryHit:
    return MemoryHit(**_fields(doc), score=score, why=why)


def _fields(doc: MemoryDoc) -> dict[str, Any]:
    return {
        "id": doc.id,
        "text": doc.text,
        "variants": doc.variants,
        "at": moment(doc.at),
        "first_at": moment(doc.first_at),
        "source": doc.source,
        "sources": sources_of(doc),
        "tags": doc.tags,
        "meta": dict(doc.meta or {}),
        "author": doc.author,
        "importance": doc.importance,
        "subject": doc.subject,
        "expires_at": None if doc.expires_at is None else moment(doc.expires_at),
        "mentions": doc.mentions,
    }
