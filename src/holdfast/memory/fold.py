"""Derive memories from the events of a stream, merging duplicates.

Pure and deterministic: every process that follows a stream derives the same memories. That is why
two processes that remember the same fact at the same time leave one memory, without coordination.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from .duplicates.find import compare_texts, compute_signature
from .model import (
    FORGOTTEN,
    JUDGED,
    REMEMBERED,
    SUPERSEDED,
    USED,
    Forgotten,
    Judged,
    MemoryDoc,
    Remembered,
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
"""After this time, the worth of feedback and use has halved."""
FEEDBACK_WORTH: Final = 1.0
USED_WORTH: Final = 0.2
MAX_WORTH: Final = 5.0

_TYPES: Final[dict[str, Any]] = {
    REMEMBERED: Remembered,
    SUPERSEDED: Superseded,
    FORGOTTEN: Forgotten,
    JUDGED: Judged,
    USED: Used,
}

_NO_ALIASES: Final[Mapping[str, int]] = MappingProxyType({})


class MemoryEvent(NamedTuple):
    """An event of a memory stream. `id` is also the id of the memory that it creates, if any.

    `payload` is None for an event type that only a newer Holdfast knows; it is skipped. `hash` is
    that of its record.
    """

    version: int
    id: str
    at: float
    payload: Remembered | Superseded | Forgotten | Judged | Used | None
    hash: bytes = b""


class IndexChanges(NamedTuple):
    """Changes to an index: memories to write, memories to remove, new ids of known memories."""

    put: list[MemoryDoc]
    gone: list[MemoryDoc]
    aliases: dict[str, int]


def decode_memory_event(type: str, data: object) -> Any:
    """Decode a stored event; None if only a newer Holdfast knows its type.

    Raises `msgspec.ValidationError` if it is damaged.
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
            keys.update(dict.fromkeys(compute_signature(payload.text).keys))
        elif isinstance(payload, Superseded):
            ids[payload.id] = None
            keys.update(dict.fromkeys(compute_signature(payload.by.text).keys))
        elif isinstance(payload, Judged):
            ids[payload.id] = None
        elif payload is not None:
            ids.update(dict.fromkeys(payload.ids))
    return list(ids), list(keys)


class MemoryFold:
    """Memories while events are applied. `known`: those that matter; `aliases`: their other ids."""

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
            # Of two processes that supersede a memory at the same time, the first one wins.
            if (old := self._find(payload.id)) is not None:
                self._remove(old)
                self._remember(event, payload.by, old, payload.sources)
        elif isinstance(payload, Forgotten):
            for name in payload.ids:
                if (old := self._find(name)) is not None:
                    self._forget(old, payload)
        elif isinstance(payload, Judged):
            worth = FEEDBACK_WORTH if payload.useful else -FEEDBACK_WORTH
            self._add_worth(payload.id, worth, event.at)
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
        """Apply a memory. `old`: the one that it replaces, with its further `sources`."""
        known, wording = self._find_duplicate(event, memory)
        if known is not None:
            self._change(
                add_statement(known, build_statement(memory, event.at, event.version), wording)
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
        )
        doc = merge_statements(doc, [first, *others])
        if old is not None:
            doc = msgspec.structs.replace(doc, useful=old.useful, useful_at=old.useful_at)
        self._change(doc)

    def _find_duplicate(
        self, event: MemoryEvent, memory: Remembered
    ) -> tuple[MemoryDoc | None, str | None]:
        """Return the known memory that this one duplicates, and the wording that it repeats.

        The wording is None if the text is only like it. (None, None): it is a new memory.
        """
        mine, new = compute_signature(memory.text), build_statement(memory, event.at)
        alike = None
        for number in sorted({number for key in mine.keys for number in self._by_key.get(key, ())}):
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
        statements = statements_of(doc)
        left = [one for one in statements if not is_from_source(one, payload.source, payload.tags)]
        if not left:
            self._remove(doc)
        elif len(left) < len(statements):
            self._change(merge_statements(doc, left))

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


def fade_worth(useful: float, seconds: float) -> float:
    """Return the worth of feedback and use after a time."""
    return useful * float(0.5 ** (max(seconds, 0.0) / USE_HALVING_SECONDS))


def _can_merge(known: MemoryDoc, memory: Remembered, event: MemoryEvent) -> bool:
    """Whether two texts that say the same may become one memory.

    Not if author or subject differ, nor if both were given different times: a dialogue has many a
    "yes".
    """
    if known.subject != memory.subject or known.author != memory.author:
        return False
    if known.expires_at is not None and known.expires_at <= event.at:
        return False
    return not memory.dated or known.dated_at is None or known.dated_at == memory.at


def _never_expires(known: MemoryDoc, memory: Remembered) -> bool:
    """Whether neither expires. One that does must not survive as a variant of the other."""
    return (
        known.expires_at is None
        and memory.expires_at is None
        and all(one.expires_at is None for one in known.statements)
    )


def _prior_mentions(old: MemoryDoc | None, memory: Remembered) -> int:
    """Return the mention count to start with: a memory replaced by the same text keeps its own."""
    return (
        1
        if old is None
        or compare_texts(compute_signature(old.text), compute_signature(memory.text)) != "same"
        else old.mentions
    )
