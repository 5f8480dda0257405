"""The structs of a memory: as stored in events, as indexed, and as recalled.

Events of a memory stream record that a text was remembered, superseded, forgotten, judged or used.
An index keeps the memories that `fold.py` derives from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, ClassVar, Final, NamedTuple

import msgspec

from ..backends import Head
from ..backends.clock import to_datetime
from ..log.reprs import ShortRepr

KIND: Final = "memory"
REMEMBERED: Final = "memory.remembered"
SUPERSEDED: Final = "memory.superseded"
FORGOTTEN: Final = "memory.forgotten"
JUDGED: Final = "memory.judged"
USED: Final = "memory.used"
VARIANT_SEPARATOR: Final = "\nAlso noted as: "
"""Separates a text from its variants."""
MAX_SHOWN_VARIANTS: Final = 15
"""How many variants a model is shown. They are mostly typos and should not fill its window."""


# -- events ----------------------------------------------------------------------------------------


class Remembered(msgspec.Struct, frozen=True, omit_defaults=True):
    """A memory to store.

    `at` is when it was said or became true (Unix seconds), if not when it was stored. `fact`: it is
    true whenever it is said, so a repeat on another day is a duplicate.
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
        """Whether the time is part of the content."""
        return self.at is not None and not self.fact


class Superseded(msgspec.Struct, frozen=True, omit_defaults=True):
    """A memory was replaced. `sources`: further sources of the old one, kept for the new one."""

    id: str
    by: Remembered
    sources: tuple[str, ...] = ()


class Forgotten(msgspec.Struct, frozen=True, omit_defaults=True):
    """Memories are no longer recalled.

    With a source or tags, only the statements from that source or with these tags go; a memory with
    other statements is kept.
    """

    ids: list[str]
    source: str | None = None
    tags: tuple[str, ...] = ()


class Judged(msgspec.Struct, frozen=True):
    """A caller gave feedback on a memory."""

    id: str
    useful: bool


class Used(msgspec.Struct, frozen=True):
    """Memories were shown to a model."""

    ids: list[str]


# -- index ----------------------------------------------------------------------------------------


class Statement(
    msgspec.Struct, frozen=True, omit_defaults=True, gc=False, rename={"mentions": "heard"}
):
    """One wording of a memory from one source with one set of tags: a part of the memory.

    `version` is that of the newest event with it; 0 if the memory has no other statement.
    `dated_at` is the time that was given for it, if any.
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


class MemoryDoc(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    gc=False,
    rename={"mentions": "heard", "statements": "sayings"},
):
    """A memory in the index, with its search terms.

    `number` is the version of the event that first stored it. `at` is when it was last said,
    `first_at` when first, `dated_at` the time that was given for it, if any. `variants` are other
    wordings. `sources` and `statements` are empty if there is only one. `useful` is its worth from
    feedback and use as of `useful_at`; it fades.
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
    statements: tuple[Statement, ...] = ()


encode_doc: Final = msgspec.json.Encoder().encode
decode_doc: Final = msgspec.json.Decoder(MemoryDoc).decode


class IndexPosition(NamedTuple):
    """The position up to which an index has followed a stream.

    The hash of the record there shows whether it is still the same stream. One that was restored
    from a backup, or copied and written to in both places, has other records at the same versions.
    """

    incarnation: bytes
    version: int
    hash: bytes = b""


class MemoryFilter(msgspec.Struct, frozen=True):
    """A filter of memories. `tags`: all of them. `now`: excludes what has expired by then.

    `author`: by this one, or by one of these. `without`: by none of these authors.
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
        """The allowed authors; None: all."""
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


# -- public ---------------------------------------------------------------------------------------


class MemoryItem(ShortRepr, msgspec.Struct, frozen=True, kw_only=True):
    """A memory. `mentions` counts how often it was said: last `at`, first `first_at`.

    `sources` are all its sources, and `source` is the first one. `variants` are texts that look
    like this one with a typo. A few of them may state another fact, so they are kept.
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
        """The text with its newest 15 variants, for a model; see `holdfast.memory.quoted`."""
        return join_variants(self.text, self.variants)


class MemoryHit(MemoryItem, frozen=True, kw_only=True):
    """A recalled memory with its score, from 0 to 1 (matches the whole query), and why."""

    _shown = ("text", "score", "why", "tags", "author", "subject", "source", "at", "id")

    score: float
    why: dict[str, float]


class MemoryInfo(msgspec.Struct, frozen=True):
    """A memory namespace in a listing, with the version of its stream."""

    namespace: str
    version: int

    @classmethod
    def of(cls, head: Head) -> MemoryInfo:
        return cls(head.stream.id, head.version)


class MemoryStats(msgspec.Struct, frozen=True):
    """Statistics of a namespace. `version`: of its stream, as far as the index has followed it.

    `compared_by`: what finds the nearest vectors, if there are any: "pgvector" (in the database),
    or each "process" by itself.
    """

    memories: int
    sources: int
    oldest: datetime | None
    newest: datetime | None
    vectors: int
    version: int
    compared_by: str | None = None


def sources_of(doc: MemoryDoc) -> tuple[str, ...]:
    """Return all sources, the first one first."""
    return doc.sources or (() if doc.source is None else (doc.source,))


def join_variants(text: str, variants: Sequence[str]) -> str:
    return VARIANT_SEPARATOR.join((text, *variants[-MAX_SHOWN_VARIANTS:]))


def build_item(doc: MemoryDoc) -> MemoryItem:
    return MemoryItem(**_item_fields(doc))


def build_hit(doc: MemoryDoc, score: float, why: dict[str, float]) -> MemoryHit:
    return MemoryHit(**_item_fields(doc), score=score, why=why)


def _item_fields(doc: MemoryDoc) -> dict[str, Any]:
    return {
        "id": doc.id,
        "text": doc.text,
        "variants": doc.variants,
        "at": to_datetime(doc.at),
        "first_at": to_datetime(doc.first_at),
        "source": doc.source,
        "sources": sources_of(doc),
        "tags": doc.tags,
        "meta": dict(doc.meta or {}),
        "author": doc.author,
        "importance": doc.importance,
        "subject": doc.subject,
        "expires_at": None if doc.expires_at is None else to_datetime(doc.expires_at),
        "mentions": doc.mentions,
    }
