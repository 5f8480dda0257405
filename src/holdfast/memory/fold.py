"""From events to memories: what is known after each, and which texts say the same.

Pure, and the same everywhere: whoever follows a stream comes to the same memories. That is what makes two processes that
remember the same fact at once leave one memory, without asking each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from .duplicates.find import same, signature
from .model import (
    FORGOTTEN,
    JUDGED,
    REMEMBERED,
    SUPERSEDED,
    USED,
    Forgotten,
    Judged,
    MemoryDoc,
    Remembering,
    Superseded,
    Used,
)
from .sources import has_room, is_from, of_doc, of_said, together, with_saying

DAY: Final = 86_400.0
FADING_SECONDS: Final = 30 * DAY
"""After this time, what use was worth is worth half."""
JUDGED_WORTH: Final = 1.0
USED_WORTH: Final = 0.2
MOST_USEFUL: Final = 5.0

_TYPES: Final[dict[str, Any]] = {
    REMEMBERED: Remembering,
    SUPERSEDED: Superseded,
    FORGOTTEN: Forgotten,
    JUDGED: Judged,
    USED: Used,
}


_NONE: Final[Mapping[str, int]] = MappingProxyType({})


class MemoryEvent(NamedTuple):
    """An event of a memory stream. `id` is its own, and that of the memory if it says one.

    `event` is None if only a newer Holdfast knows what it says; then nothing follows from it here.
    """

    version: int
    id: str
    at: float
    event: Remembering | Superseded | Forgotten | Judged | Used | None
    hash: bytes = b""
    """Of the record that it was read from."""


class IndexChanges(NamedTuple):
    """What events do to an index: memories as they are now, those that are gone, and ids that mean another memory."""

    put: list[MemoryDoc]
    gone: list[MemoryDoc]
    aliases: dict[str, int]


def event_of(type: str, data: object) -> Any:
    """The event that was stored; None if it is of a kind that only a newer Holdfast knows. `msgspec.ValidationError` if damaged."""
    known = _TYPES.get(type)
    return None if known is None else msgspec.convert(data, known)


def asked_for(events: Iterable[MemoryEvent]) -> tuple[list[str], list[str]]:
    """The ids and keys of memories that these events may be about: what has to be known to fold them."""
    ids: dict[str, None] = {}
    keys: dict[str, None] = {}
    for happened in events:
        event = happened.event
        if isinstance(event, Remembering):
            keys.update(dict.fromkeys(signature(event.text).keys))
        elif isinstance(event, Superseded):
            ids[event.id] = None
            keys.update(dict.fromkeys(signature(event.by.text).keys))
        elif isinstance(event, Judged):
            ids[event.id] = None
        elif event is not None:  # of a kind that only a newer Holdfast knows
            ids.update(dict.fromkeys(event.ids))
    return list(ids), list(keys)


class MemoryFold:
    """Memories while events are applied. `known` are those that may matter, `aliases` the other ids that they have."""

    def __init__(self, known: Iterable[MemoryDoc] = (), aliases: Mapping[str, int] = _NONE) -> None:
        self._docs: dict[int, MemoryDoc] = {}
        self._by_id: dict[str, int] = {}
        self._by_key: dict[str, dict[int, None]] = {}
        self._changed: dict[int, None] = {}
        self._gone: dict[int, MemoryDoc] = {}
        self._new_aliases: dict[str, int] = {}
        self.learn(known, aliases)

    def learn(self, known: Iterable[MemoryDoc], aliases: Mapping[str, int]) -> None:
        """Take in memories as an index has them, unless more is known of them here."""
        for doc in known:
            if doc.number not in self._docs and doc.number not in self._gone:
                self._enter(doc)
        self._by_id.update(aliases)

    def id_of(self, id: str) -> str:
        """The id of the memory that an id means: what was known already keeps its own."""
        doc = self._find(id)
        return id if doc is None else doc.id

    def has(self, id: str) -> bool:
        """Whether there is a memory of this id."""
        return self._find(id) is not None

    def apply(self, happened: MemoryEvent) -> None:
        event = happened.event
        if isinstance(event, Remembering):
            self._say(happened, event)
        elif isinstance(event, Superseded):
            # Of two who correct the same memory at once the first has done it, and the second is told that it is gone.
            if (old := self._find(event.id)) is not None:
                self._remove(old)
                self._say(happened, event.by, old, event.sources)
        elif isinstance(event, Forgotten):
            for name in event.ids:
                if (old := self._find(name)) is not None:
                    self._forget(old, event)
        elif isinstance(event, Judged):
            self._value(event.id, JUDGED_WORTH if event.useful else -JUDGED_WORTH, happened.at)
        elif event is not None:
            for name in event.ids:
                self._value(name, USED_WORTH, happened.at)

    def changes(self) -> IndexChanges:
        put = [self._docs[number] for number in self._changed if number in self._docs]
        return IndexChanges(put, list(self._gone.values()), self._new_aliases)

    def _say(
        self,
        happened: MemoryEvent,
        said: Remembering,
        old: MemoryDoc | None = None,
        sources: Sequence[str] = (),
    ) -> None:
        """Something was said. `old` is what it takes the place of, if anything, and `sources` say it as well."""
        known, wording = self._known(happened, said)
        if known is not None:
            self._change(with_saying(known, of_said(said, happened.at, happened.version), wording))
            self._by_id[happened.id] = known.number
            self._new_aliases[happened.id] = known.number
            return
        first = of_said(said, happened.at, happened.version, mentions=_heard_before(old, said))
        others = [msgspec.structs.replace(first, source=source, mentions=1) for source in sources]
        doc = MemoryDoc(
            happened.version,
            happened.id,
            said.text,
            first.at,
            first.first_at,
            author=said.author,
            subject=said.subject,
        )
        doc = together(doc, [first, *others])
        if old is not None:
            doc = msgspec.structs.replace(doc, useful=old.useful, useful_at=old.useful_at)
        self._change(doc)

    def _known(
        self, happened: MemoryEvent, said: Remembering
    ) -> tuple[MemoryDoc | None, str | None]:
        """The memory that says this already, and the wording of it that is the same; or that is like it, and None."""
        mine, new = signature(said.text), of_said(said, happened.at)
        alike = None
        for number in sorted({number for key in mine.keys for number in self._by_key.get(key, ())}):
            known = self._docs[number]
            if not _may_be_one(known, said, happened):
                continue
            for wording in (known.text, *known.variants):
                verdict = same(mine, signature(wording))
                if verdict == "same" and has_room(known, new, wording):
                    return known, wording
                if (
                    verdict == "alike"
                    and alike is None
                    and _lasting(known, said)
                    and has_room(known, new, None)
                ):
                    alike = known
        return alike, None

    def _forget(self, doc: MemoryDoc, event: Forgotten) -> None:
        sayings = of_doc(doc)
        left = [one for one in sayings if not is_from(one, event.source, event.tags)]
        if not left:
            self._remove(doc)
        elif len(left) < len(sayings):
            self._change(together(doc, left))

    def _value(self, id: str, worth: float, at: float) -> None:
        doc = self._find(id)
        if doc is None:
            return
        useful = faded(doc.useful, at - doc.useful_at) + worth
        useful = max(-MOST_USEFUL, min(MOST_USEFUL, useful))
        self._change(msgspec.structs.replace(doc, useful=useful, useful_at=at))

    def _find(self, id: str) -> MemoryDoc | None:
        number = self._by_id.get(id)
        return None if number is None else self._docs.get(number)

    def _enter(self, doc: MemoryDoc) -> None:
        self._docs[doc.number] = doc
        self._by_id[doc.id] = doc.number
        for key in doc.keys:
            self._by_key.setdefault(key, {})[doc.number] = None

    def _change(self, doc: MemoryDoc) -> None:
        if (old := self._docs.get(doc.number)) is not None and old.keys != doc.keys:
            self._leave_keys(old)
        self._enter(doc)
        self._changed[doc.number] = None

    def _remove(self, doc: MemoryDoc) -> None:
        del self._docs[doc.number]
        self._leave_keys(doc)
        self._gone[doc.number] = doc

    def _leave_keys(self, doc: MemoryDoc) -> None:
        for key in doc.keys:
            self._by_key[key].pop(doc.number, None)


def faded(useful: float, seconds: float) -> float:
    """What use was worth, after a time."""
    return useful * float(0.5 ** (max(seconds, 0.0) / FADING_SECONDS))


def _may_be_one(known: MemoryDoc, said: Remembering, happened: MemoryEvent) -> bool:
    """Whether the two can be one memory if they say the same.

    Not of different people, nor about different ones; nor if each was given its time, and not the same: a dialogue has many a "yes".
    """
    if known.subject != said.subject or known.author != said.author:
        return False
    if known.expires_at is not None and known.expires_at <= happened.at:
        return False
    return not said.dated or known.dated_at is None or known.dated_at == said.at


def _lasting(known: MemoryDoc, said: Remembering) -> bool:
    """Whether neither of them expires. If one does, it must not live on as a wording of the other."""
    return (
        known.expires_at is None
        and said.expires_at is None
        and all(one.expires_at is None for one in known.sayings)
    )


def _heard_before(old: MemoryDoc | None, said: Remembering) -> int:
    """What is replaced by the same text, for another importance or tag, was heard as often as before."""
    return (
        1
        if old is None or same(signature(old.text), signature(said.text)) != "same"
        else old.mentions
    )
