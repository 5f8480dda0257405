"""The structs of a memory: as stored in events, as indexed, and as recalled.

Events of a memory stream record that a text was remembered, superseded, forgotten, judged or used.
An index keeps the memories that `fold.py` derives from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, ClassVar, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from ..backends import Head
from ..backends.clock import to_datetime
from ..log.reprs import ShortRepr

KIND: Final = "memory"
REMEMBERED: Final = "memory.remembered"
SUPERSEDED: Final = "memory.superseded"
FORGOTTEN: Final = "memory.forgotten"
JUDGED: Final = "memory.feedback"
USED: Final = "memory.used"
CONSOLIDATED: Final = "memory.consolidated"
RESTORED: Final = "memory.restored"
VARIANT_SEPARATOR: Final = "\nAlso noted as: "
"""Separates a text from its variants."""
MAX_SHOWN_VARIANTS: Final = 15
"""How many variants a model is shown. They are mostly typos and should not fill its window."""


# -- events ----------------------------------------------------------------------------------------


class Remembered(msgspec.Struct, frozen=True, omit_defaults=True):
    """A memory to store.

    `at` is when the text was said or became true (Unix seconds); None means when it was stored.
    `fact` marks a text that is true whenever it is said, so a repeat on another day is a duplicate.
    `valid_from` and `valid_until` say when it is true, if that is known.
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
    valid_from: float | None = None
    valid_until: float | None = None

    @property
    def dated(self) -> bool:
        """Whether the time is part of the content."""
        return self.at is not None and not self.fact


class Superseded(msgspec.Struct, frozen=True, omit_defaults=True):
    """A memory was replaced. `sources` are its further sources, which the new one keeps."""

    id: str
    by: Remembered
    sources: tuple[str, ...] = ()


class Forgotten(msgspec.Struct, frozen=True, omit_defaults=True):
    """Memories are no longer recalled.

    With a source or tags, only the statements from that source and with those tags are dropped; a
    memory with other statements is kept.
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


class Consolidated(msgspec.Struct, frozen=True, omit_defaults=True):
    """A proposal of the consolidation `run` was applied.

    The memories in `closes` are no longer recalled. The memory `keep` or the new text `by` stands
    for them, if there is one. All are about `subject`. If one of the memories in `evidence` was
    superseded or forgotten in the meantime, the event has no effect.
    """

    run: str
    proposal: str
    kind: str
    evidence: tuple[str, ...]
    closes: tuple[str, ...] = ()
    keep: str | None = None
    by: Remembered | None = None
    subject: str | None = None
    reason: str = ""


class Restored(msgspec.Struct, frozen=True, omit_defaults=True):
    """The `Consolidated` event at `version` was undone: the memories `ids` are as before.

    `event` is the id of that event, and `made` the id of the memory that stood for the others. The
    proposal is declined: it is not made for these memories again.
    """

    event: str
    version: int
    ids: tuple[str, ...]
    made: str | None = None
    proposal: str | None = None


# -- index ----------------------------------------------------------------------------------------


class Statement(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A part of a memory: one wording, from one source, with one set of tags.

    `version` is the version of its newest event, or 0 if it is the memory's only statement.
    `dated_at` is the time given for it, if any.
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


class MemoryDoc(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A memory in the index, with its search terms.

    `number` is the version of the event that first stored the memory. `at` is when it was last
    said, `first_at` when it was first said, and `dated_at` the time given for it, if any.
    `variants` are other wordings. `sources` and `statements` are empty if there is only one.
    `useful` is its worth from feedback and use as of `useful_at`; the worth fades over time.
    `told_at` is when it was last stored. `replaced` are the ids of the memories that it superseded,
    and `superseded_by` is the id of the event that superseded it. `open_until` is the end of its
    validity before a consolidation closed it. `evidence` are the ids of the memories that its text
    was made from, and `summaries` the ids of the texts that were made from it. `declined` are the
    ids of proposals about it that were undone.
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
    told_at: float = 0.0
    valid_from: float | None = None
    valid_until: float | None = None
    replaced: tuple[str, ...] = ()
    superseded_by: str | None = None
    open_until: float | None = None
    evidence: tuple[str, ...] = ()
    summaries: tuple[str, ...] = ()
    declined: tuple[str, ...] = ()


encode_doc: Final = msgspec.json.Encoder().encode
decode_doc: Final = msgspec.json.Decoder(MemoryDoc).decode


class IndexPosition(NamedTuple):
    """The position up to which an index has followed a stream.

    The hash of the record at that version shows whether the stream is still the same. A stream that
    was restored from a backup, or copied and then written to in both places, has different records
    at the same versions.
    """

    incarnation: bytes
    version: int
    hash: bytes = b""


class MemoryFilter(msgspec.Struct, frozen=True):
    """A filter for memories. A memory that has expired by `now` never matches.

    A match is valid now, or at the time `as_of`; with `any_time`, it may no longer be valid.

    A match has all of the `tags`, is by `author` (or one of several), by none of the authors in
    `without`, and about `subject`. `visible_to` is the subject of a task, or None for a task
    without one: only memories that its resume context may quote match, which are about that subject
    or about none.
    """

    now: float
    tags: tuple[str, ...] = ()
    source: str | None = None
    author: str | tuple[str, ...] | None = None
    without: tuple[str, ...] = ()
    subject: str | None = None
    visible_to: str | UnsetType | None = UNSET
    since: float | None = None
    until: float | None = None
    as_of: float | None = None
    any_time: bool = False

    @property
    def authors(self) -> tuple[str, ...] | None:
        """The allowed authors; None allows all."""
        return (self.author,) if isinstance(self.author, str) else self.author

    def has(self, doc: MemoryDoc) -> bool:
        return (
            (doc.expires_at is None or doc.expires_at > self.now)
            and (self.source is None or doc.source == self.source or self.source in doc.sources)
            and (self.authors is None or doc.author in self.authors)
            and doc.author not in self.without
            and (self.subject is None or doc.subject == self.subject)
            and (self.visible_to is UNSET or doc.subject in (None, self.visible_to))
            and (self.since is None or doc.at >= self.since)
            and (self.until is None or doc.at <= self.until)
            and set(self.tags).issubset(doc.tags)
            and (self.any_time or self._is_valid(doc))
        )

    def _is_valid(self, doc: MemoryDoc) -> bool:
        """Whether a memory is valid at the time of the filter.

        What was first said after the time `as_of` was not known then.
        """
        at = self.now if self.as_of is None else self.as_of
        start = doc.valid_from
        if start is None and self.as_of is not None:
            start = doc.first_at
        return (start is None or start <= at) and (doc.valid_until is None or at < doc.valid_until)


# -- public ---------------------------------------------------------------------------------------


class MemoryItem(ShortRepr, msgspec.Struct, frozen=True, kw_only=True):
    """A memory. `mentions` counts how often it was said: first at `first_at`, last at `at`.

    `at` is when it happened, if that was given; `told_at` is when it was last remembered.
    `sources` are all its sources, and `source` is the first of them. `variants` are texts that look
    like this one with a typo; they are kept because some may state a different fact. It is true
    from `valid_from` until `valid_until`, if these are known. `evidence` are the ids of the
    memories that a consolidation made it from; see `Memory.evidence`.
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
    told_at: datetime
    valid_from: datetime | None = None
    valid_until: datetime | None = None
    evidence: tuple[str, ...] = ()

    @property
    def full_text(self) -> str:
        """The text with its newest 15 variants, for a model; see `holdfast.memory.quoted`."""
        return join_variants(self.text, self.variants)


class MemoryHit(MemoryItem, frozen=True, kw_only=True):
    """A recalled memory with its `score`, and what led to it in `why`.

    `score` is the share of the query that the memory has, from 0 to 1 (all of it). It is low if no
    memory has enough of the query to tell an answer from chance, so scores of different queries can
    be compared. `passage` is the part of a long text that fits best, and the whole of a short one.
    `conflicts` are the ids of memories that say otherwise; see `Memory.conflicts`. `confidence`
    says how sure the memory itself is, from 0 to 1: 0.5 if it was said once, more with further
    sources, authors, repeats and use, less with conflicts and bad feedback. It doesn't change the
    order.
    """

    _shown = ("text", "score", "why", "tags", "author", "subject", "source", "at", "id")

    score: float
    why: dict[str, float]
    passage: str
    conflicts: tuple[str, ...] = ()
    confidence: float = 0.5


class MemoryConflict(msgspec.Struct, frozen=True):
    """Two memories that give one thing two values. Resolve it with `supersede` or `forget`."""

    newer: MemoryItem
    older: MemoryItem


class EntityInfo(ShortRepr, msgspec.Struct, frozen=True):
    """A name that memories mention, as most of them write it.

    `kind` is "name", "code", "quoted" or "email"; `memories` counts the memories that mention it,
    and `last_at` is the time of the newest.
    """

    name: str
    kind: Literal["name", "code", "quoted", "email"]
    memories: int
    last_at: datetime


class MemoryInfo(msgspec.Struct, frozen=True):
    """A memory namespace in a listing, with the version of its stream."""

    namespace: str
    version: int

    @classmethod
    def of(cls, head: Head) -> MemoryInfo:
        return cls(head.stream.id, head.version)


class MemoryStats(msgspec.Struct, frozen=True):
    """Statistics of a namespace. `version` is the stream's version up to which the index has read.

    `compared_by` says what compares vectors, if there are any: "pgvector" (in the database) or
    "process" (each process its own copy).
    """

    memories: int
    sources: int
    oldest: datetime | None
    newest: datetime | None
    vectors: int
    version: int
    compared_by: str | None = None


def sources_of(doc: MemoryDoc) -> tuple[str, ...]:
    """Return all sources of a memory, starting with its `source`."""
    return doc.sources or (() if doc.source is None else (doc.source,))


def join_variants(text: str, variants: Sequence[str]) -> str:
    return VARIANT_SEPARATOR.join((text, *variants[-MAX_SHOWN_VARIANTS:]))


def build_item(doc: MemoryDoc) -> MemoryItem:
    return MemoryItem(**_item_fields(doc))


def build_hit(
    doc: MemoryDoc,
    score: float,
    why: dict[str, float],
    passage: str,
    conflicts: tuple[str, ...] = (),
    *,
    confidence: float,
) -> MemoryHit:
    return MemoryHit(
        **_item_fields(doc),
        score=score,
        why={**why, "confidence": confidence},
        passage=passage,
        conflicts=conflicts,
        confidence=confidence,
    )


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
        "told_at": to_datetime(doc.told_at),
        "valid_from": None if doc.valid_from is None else to_datetime(doc.valid_from),
        "valid_until": None if doc.valid_until is None else to_datetime(doc.valid_until),
        "evidence": doc.evidence,
    }
