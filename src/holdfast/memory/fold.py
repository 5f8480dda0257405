"""Derive memories from the events of a stream, merging duplicates.

The fold is pure and deterministic: every process that follows a stream derives the same memories.
So if two processes remember the same fact at the same time, there is one memory, without
coordination.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from .duplicates import compare_texts, compute_signature
from .model import (
    CONSOLIDATED,
    FORGOTTEN,
    JUDGED,
    REMEMBERED,
    RESTORED,
    SUPERSEDED,
    USED,
    Consolidated,
    Forgotten,
    Judged,
    MemoryDoc,
    Remembered,
    Restored,
    Statement,
    Superseded,
    Used,
)
from .statements import (
    add_statement,
    build_statement,
    has_room,
    is_from_source,
    merge_statements,
    statements_of,
)

DAY_SECONDS: Final = 86_400.0
USE_HALVING_SECONDS: Final = 30 * DAY_SECONDS
"""The half-life of feedback and use."""
FEEDBACK_WORTH: Final = 1.0
USED_WORTH: Final = 0.2
MAX_WORTH: Final = 5.0

_TYPES: Final[dict[str, Any]] = {
    REMEMBERED: Remembered,
    SUPERSEDED: Superseded,
    FORGOTTEN: Forgotten,
    JUDGED: Judged,
    USED: Used,
    CONSOLIDATED: Consolidated,
    RESTORED: Restored,
}

_NO_ALIASES: Final[Mapping[str, int]] = MappingProxyType({})


class MemoryEvent(NamedTuple):
    """An event of a memory stream. `id` is also the id of the memory that it creates, if any.

    `payload` is None for an event type that only a newer Holdfast knows; such an event is skipped.
    `hash` is the hash of its record.
    """

    version: int
    id: str
    at: float
    payload: Remembered | Superseded | Forgotten | Judged | Used | Consolidated | Restored | None
    hash: bytes = b""


class IndexChanges(NamedTuple):
    """Changes to an index: memories to write, memories to remove, new ids of known memories."""

    put: list[MemoryDoc]
    gone: list[MemoryDoc]
    aliases: dict[str, int]


def decode_memory_event(type: str, data: object) -> Any:
    """Decode a stored event; return None if only a newer Holdfast knows its type.

    Raises `msgspec.ValidationError` if the event is damaged.
    """
    known = _TYPES.get(type)
    return None if known is None else msgspec.convert(data, known)


def collect_lookups(events: Iterable[MemoryEvent]) -> tuple[list[str], list[str]]:
    """Return the ids and keys of all memories that these events may affect."""
    ids: dict[str, None] = {}
    keys: dict[str, None] = {}
    for event in events:
        payload = event.payload
        if isinstance(payload, Remembered):
            keys[compute_signature(payload.text).key] = None
        elif isinstance(payload, Superseded):
            ids[payload.id] = None
            keys[compute_signature(payload.by.text).key] = None
        elif isinstance(payload, Judged):
            ids[payload.id] = None
        elif isinstance(payload, Consolidated):
            ids.update(dict.fromkeys(payload.evidence))
        elif isinstance(payload, Restored):
            ids.update(dict.fromkeys((*payload.ids, *filter(None, [payload.made]))))
        elif payload is not None:
            ids.update(dict.fromkeys(payload.ids))
    return list(ids), list(keys)


class MemoryFold:
    """Applies events to memories, starting with `known` ones and their other ids, the `aliases`."""

    def __init__(
        self, known: Iterable[MemoryDoc] = (), aliases: Mapping[str, int] = _NO_ALIASES
    ) -> None:
        self._docs: dict[int, MemoryDoc] = {}
        self._by_id: dict[str, int] = {}
        self._by_key: dict[str, dict[int, None]] = {}
        self._changed: dict[int, None] = {}
        self._gone: dict[int, MemoryDoc] = {}
        self._new_aliases: dict[str, int] = {}
        self.learn(known, aliases)

    def learn(self, known: Iterable[MemoryDoc], aliases: Mapping[str, int]) -> None:
        """Add memories from an index, unless this fold has newer versions of them."""
        for doc in known:
            if doc.number not in self._docs and doc.number not in self._gone:
                self._insert(doc)
        self._by_id.update(aliases)

    def resolve_id(self, id: str) -> str:
        """Return the id of the memory that an event id stands for."""
        doc = self._find(id)
        return id if doc is None else doc.id

    def has(self, id: str) -> bool:
        return self._find(id) is not None

    def apply(self, event: MemoryEvent) -> None:
        payload = event.payload
        if isinstance(payload, Remembered):
            self._remember(event, payload)
        elif isinstance(payload, Superseded):
            # If two processes supersede a memory at the same time, the first one wins.
            old = self._find(payload.id)
            if old is not None and old.superseded_by is None:
                self._close(old, event, payload.by)
                self._remember(event, payload.by, old, payload.sources)
        elif isinstance(payload, Forgotten):
            for name in payload.ids:
                if (old := self._find(name)) is not None:
                    self._forget(old, payload)
        elif isinstance(payload, Judged):
            worth = FEEDBACK_WORTH if payload.useful else -FEEDBACK_WORTH
            self._add_worth(payload.id, worth, event.at)
        elif isinstance(payload, Consolidated):
            self._consolidate(event, payload)
        elif isinstance(payload, Restored):
            self._restore(payload)
        elif payload is not None:
            for name in payload.ids:
                self._add_worth(name, USED_WORTH, event.at)

    def changes(self) -> IndexChanges:
        put = [self._docs[number] for number in self._changed if number in self._docs]
        return IndexChanges(put, list(self._gone.values()), self._new_aliases)

    def _remember(
        self,
        event: MemoryEvent,
        memory: Remembered,
        old: MemoryDoc | None = None,
        sources: Sequence[str] = (),
    ) -> None:
        """Add a memory, or merge it into a duplicate.

        `old` is the memory that it replaces, if any, and `sources` are the further sources to keep.
        """
        known, wording = self._find_duplicate(event, memory)
        if known is not None:
            merged = add_statement(known, build_statement(memory, event.at, event.version), wording)
            replaced = () if old is None else (*old.replaced, old.id)
            self._change(
                msgspec.structs.replace(
                    merged,
                    told_at=max(known.told_at, event.at),
                    replaced=tuple(dict.fromkeys((*known.replaced, *replaced))),
                )
            )
            self._by_id[event.id] = known.number
            self._new_aliases[event.id] = known.number
            return
        first = build_statement(
            memory, event.at, event.version, mentions=_prior_mentions(old, memory)
        )
        others = [msgspec.structs.replace(first, source=source, mentions=1) for source in sources]
        doc = MemoryDoc(
            event.version,
            event.id,
            memory.text,
            first.at,
            first.first_at,
            author=memory.author,
            subject=memory.subject,
            told_at=event.at,
            valid_from=memory.valid_from,
            valid_until=memory.valid_until,
        )
        doc = merge_statements(doc, [first, *others])
        if old is not None:
            doc = msgspec.structs.replace(
                doc, useful=old.useful, useful_at=old.useful_at, replaced=(*old.replaced, old.id)
            )
        self._change(doc)

    def _close(self, old: MemoryDoc, event: MemoryEvent, by: Remembered) -> None:
        """End the validity of a superseded memory. It is kept for questions about the past."""
        end = by.valid_from
        if end is None:
            end = event.at if by.at is None else min(by.at, event.at)
        if old.valid_until is not None:
            end = min(end, old.valid_until)
        # Without keys, nothing is merged into it.
        self._change(msgspec.structs.replace(old, valid_until=end, superseded_by=event.id, keys=()))

    def _find_duplicate(
        self, event: MemoryEvent, memory: Remembered
    ) -> tuple[MemoryDoc | None, str | None]:
        """Return the known memory that this one duplicates, and the wording that it repeats.

        The wording is None if the texts are only alike. Returns (None, None) for a new memory.
        """
        mine, new = compute_signature(memory.text), build_statement(memory, event.at)
        alike = None
        for number in sorted(self._by_key.get(mine.key, ())):
            known = self._docs[number]
            if not _can_merge(known, memory, event):
                continue
            for wording in (known.text, *known.variants):
                verdict = compare_texts(mine, compute_signature(wording))
                if verdict == "same" and has_room(known, new, wording):
                    return known, wording
                if (
                    verdict == "alike"
                    and alike is None
                    and _never_expires(known, memory)
                    and has_room(known, new, None)
                ):
                    alike = known
        return alike, None

    def _forget(self, doc: MemoryDoc, payload: Forgotten) -> None:
        left = _list_left(doc, payload)
        if is_removed(doc, payload):
            self._remove(doc)
        elif len(left) < len(statements_of(doc)):
            self._change(merge_statements(doc, left))

    def _consolidate(self, event: MemoryEvent, payload: Consolidated) -> None:
        """Apply a proposal, unless one of its memories is closed, gone or about someone else.

        So if two runs consolidate the same memories at the same time, the first one wins.
        """
        docs = {name: doc for name in payload.evidence if (doc := self._find(name)) is not None}
        if (
            len({doc.number for doc in docs.values()}) < len(payload.evidence)
            or not docs.keys() >= {*payload.closes, *filter(None, [payload.keep])}
            or any(
                doc.superseded_by is not None or doc.subject != payload.subject
                for doc in docs.values()
            )
        ):
            return
        closed = [docs[name] for name in payload.closes]
        if payload.by is not None:
            made = build_result(
                event.version, event.id, event.at, payload.by, list(docs.values()), closed
            )
            for doc in docs.values():
                self._change(msgspec.structs.replace(doc, summaries=(*doc.summaries, event.id)))
            self._change(made)
        elif payload.keep is not None:
            kept, merge = docs[payload.keep], payload.kind == "duplicate"
            self._change(add_evidence(kept, closed, event.version if merge else None))
        for doc in closed:
            self._change(close_doc(self._docs[doc.number], event.id, event.at))

    def _restore(self, payload: Restored) -> None:
        """Undo a consolidation, unless the memory that it made was superseded or forgotten."""
        docs = [doc for name in payload.ids if (doc := self._find(name)) is not None]
        made: MemoryDoc | None = None
        if payload.made is not None:
            made = self._find(payload.made)
            if made is None or made.superseded_by is not None:
                return
            closed = [doc for doc in docs if doc.superseded_by == payload.event]
            left = take_back(made, payload.version, closed)
            if left is None:
                self._remove(made)
            else:
                self._change(left)
        for doc in docs:
            if made is None or doc.number != made.number:
                self._change(reopen_doc(doc, payload.event, payload.proposal))

    def _add_worth(self, id: str, worth: float, at: float) -> None:
        doc = self._find(id)
        if doc is None:
            return
        useful = fade_worth(doc.useful, at - doc.useful_at) + worth
        useful = max(-MAX_WORTH, min(MAX_WORTH, useful))
        self._change(msgspec.structs.replace(doc, useful=useful, useful_at=at))

    def _find(self, id: str) -> MemoryDoc | None:
        number = self._by_id.get(id)
        return None if number is None else self._docs.get(number)

    def _insert(self, doc: MemoryDoc) -> None:
        self._docs[doc.number] = doc
        self._by_id[doc.id] = doc.number
        for key in doc.keys:
            self._by_key.setdefault(key, {})[doc.number] = None

    def _change(self, doc: MemoryDoc) -> None:
        if (old := self._docs.get(doc.number)) is not None and old.keys != doc.keys:
            self._remove_keys(old)
        self._insert(doc)
        self._changed[doc.number] = None

    def _remove(self, doc: MemoryDoc) -> None:
        del self._docs[doc.number]
        self._remove_keys(doc)
        self._gone[doc.number] = doc

    def _remove_keys(self, doc: MemoryDoc) -> None:
        for key in doc.keys:
            self._by_key[key].pop(doc.number, None)


def is_removed(doc: MemoryDoc, payload: Forgotten) -> bool:
    """Whether an event that forgets parts of a memory removes all of it.

    A text that was made from several memories may quote any of them.
    """
    left = _list_left(doc, payload)
    return not left or (bool(doc.evidence) and len(left) < len(statements_of(doc)))


def _list_left(doc: MemoryDoc, payload: Forgotten) -> list[Statement]:
    return [
        one for one in statements_of(doc) if not is_from_source(one, payload.source, payload.tags)
    ]


def fade_worth(useful: float, seconds: float) -> float:
    """Return the worth of feedback and use that is left after this many seconds."""
    return useful * float(0.5 ** (max(seconds, 0.0) / USE_HALVING_SECONDS))


def _can_merge(known: MemoryDoc, memory: Remembered, event: MemoryEvent) -> bool:
    """Whether two texts that say the same may become one memory.

    Not if their authors or subjects differ, if the known memory has expired, if they are valid at
    different times, or if both were given times and these differ: the same "yes" occurs many times
    in a dialogue.
    """
    if known.subject != memory.subject or known.author != memory.author:
        return False
    if known.expires_at is not None and known.expires_at <= event.at:
        return False
    if known.superseded_by is not None:
        return False
    if (known.valid_from, known.valid_until) != (memory.valid_from, memory.valid_until):
        return False
    return not memory.dated or known.dated_at is None or known.dated_at == memory.at


def _never_expires(known: MemoryDoc, memory: Remembered) -> bool:
    """Whether neither memory expires. A text that expires must not survive as a variant."""
    return (
        known.expires_at is None
        and memory.expires_at is None
        and all(one.expires_at is None for one in known.statements)
    )


def _prior_mentions(old: MemoryDoc | None, memory: Remembered) -> int:
    """Return the initial mention count. Replacing a memory with the same text keeps its count."""
    return (
        1
        if old is None
        or compare_texts(compute_signature(old.text), compute_signature(memory.text)) != "same"
        else old.mentions
    )


def close_doc(doc: MemoryDoc, event: str, at: float) -> MemoryDoc:
    """Return a memory that is no longer recalled, except for a time before `at`."""
    end = at if doc.valid_until is None else min(at, doc.valid_until)
    return msgspec.structs.replace(
        doc, open_until=doc.valid_until, valid_until=end, superseded_by=event, keys=()
    )


def reopen_doc(doc: MemoryDoc, event: str, proposal: str | None) -> MemoryDoc:
    """Return a memory as it was before an event closed it, or made a text from it.

    It keeps the id of the `proposal` that was undone, if one was.
    """
    summaries = tuple(one for one in doc.summaries if one != event)
    declined = doc.declined if proposal is None else (*doc.declined, proposal)
    doc = msgspec.structs.replace(doc, summaries=summaries, declined=declined)
    if doc.superseded_by != event:
        return doc
    doc = msgspec.structs.replace(
        doc, superseded_by=None, valid_until=doc.open_until, open_until=None
    )
    return merge_statements(doc, statements_of(doc))


def build_result(
    version: int,
    id: str,
    at: float,
    by: Remembered,
    evidence: Sequence[MemoryDoc],
    closed: Sequence[MemoryDoc],
) -> MemoryDoc:
    """Return the memory that a consolidation makes from others.

    It has a statement for each of theirs, with its source, tags and times. So to forget a source is
    to forget what was made from it.
    """
    statements = [
        msgspec.structs.replace(
            one, text=by.text, importance=by.importance, meta=None, version=version, dated_at=None
        )
        for doc in evidence
        for one in statements_of(doc)
    ]
    best = max(evidence, key=lambda doc: doc.useful)
    doc = MemoryDoc(
        version,
        id,
        by.text,
        at,
        at,
        author=by.author,
        subject=by.subject,
        told_at=at,
        useful=best.useful,
        useful_at=best.useful_at,
        evidence=tuple(doc.id for doc in evidence),
        replaced=list_replaced(closed),
    )
    return merge_statements(doc, statements)


def add_evidence(kept: MemoryDoc, closed: Sequence[MemoryDoc], version: int | None) -> MemoryDoc:
    """Return the memory that stands for others from now on.

    With a `version`, the others say the same: their statements become its own.
    """
    known = tuple(dict.fromkeys((*kept.replaced, *list_replaced(closed))))
    kept = msgspec.structs.replace(kept, replaced=known)
    if version is None:
        return kept
    taken = [
        msgspec.structs.replace(one, text=kept.text, version=version)
        for doc in closed
        for one in statements_of(doc)
    ]
    return merge_statements(kept, [*statements_of(kept), *taken])


def take_back(made: MemoryDoc, version: int, closed: Sequence[MemoryDoc]) -> MemoryDoc | None:
    """Return what is left of a memory without what the event at `version` gave it; None if nothing.

    `closed` are the memories that the event closed. What was said since stays.
    """
    if made.number == version and not made.statements:
        return None
    statements = statements_of(made)
    left = [one for one in statements if one.version != version]
    if not left:
        return None
    gone = list_replaced(closed)
    replaced = tuple(one for one in made.replaced if one not in gone)
    made = msgspec.structs.replace(made, replaced=replaced)
    if made.number == version:
        made = msgspec.structs.replace(made, evidence=())
    return made if len(left) == len(statements) else merge_statements(made, left)


def list_replaced(closed: Sequence[MemoryDoc]) -> tuple[str, ...]:
    """Return the ids of closed memories, and of those that they had replaced before."""
    return tuple(name for doc in closed for name in (*doc.replaced, doc.id))
