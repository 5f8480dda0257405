"""From events to memories: what is known after each, and which texts say the same.

Pure, and the same everywhere: whoever follows a stream comes to the same memories. That is what makes two processes that
remember the same fact at once leave one memory, without asking each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from ._duplicates import Signature, same
from ._duplicates import signature as read_signature
from ._model import FORGOTTEN, JUDGED, REMEMBERED, SUPERSEDED, USED, Doc, Forgotten, Judged, Said, Superseded, Used
from ._text import date_terms, terms

DAY: Final = 86_400.0
FADING_SECONDS: Final = 30 * DAY
"""After this time, what use was worth is worth half."""
JUDGED_WORTH: Final = 1.0
USED_WORTH: Final = 0.2
MOST_USEFUL: Final = 5.0
SHORT: Final = 2_000
"""Characters of a text whose signature is kept for a while."""

_TYPES: Final[dict[str, Any]] = {
    REMEMBERED: Said,
    SUPERSEDED: Superseded,
    FORGOTTEN: Forgotten,
    JUDGED: Judged,
    USED: Used,
}


_NONE: Final[Mapping[str, int]] = MappingProxyType({})


_short_signature = lru_cache(2048)(read_signature)


def signature(text: str) -> Signature:
    """What a text says. It is asked for several times while events are folded."""
    return _short_signature(text) if len(text) <= SHORT else read_signature(text)


class Happened(NamedTuple):
    """An event of a memory stream. `id` is its own, and that of the memory if it says one."""

    version: int
    id: str
    at: float
    event: Said | Superseded | Forgotten | Judged | Used


class Changes(NamedTuple):
    """What events do to an index: memories as they are now, those that are gone, and ids that mean another memory."""

    put: list[Doc]
    gone: list[Doc]
    aliases: dict[str, int]


def event_of(type: str, data: object) -> Any:
    """The event that was stored; None if it is of a kind that only a newer Holdfast knows. `msgspec.ValidationError` if damaged."""
    known = _TYPES.get(type)
    return None if known is None else msgspec.convert(data, known)


def asked_for(events: Iterable[Happened]) -> tuple[list[str], list[str]]:
    """The ids and keys of memories that these events may be about: what has to be known to fold them."""
    ids: dict[str, None] = {}
    keys: dict[str, None] = {}
    for _, _, _, event in events:
        if isinstance(event, Said):
            keys.update(dict.fromkeys(signature(event.text).keys))
        elif isinstance(event, Superseded):
            ids[event.id] = None
            keys.update(dict.fromkeys(signature(event.by.text).keys))
        elif isinstance(event, Judged):
            ids[event.id] = None
        elif event is not None:  # of a kind that only a newer Holdfast knows
            ids.update(dict.fromkeys(event.ids))
    return list(ids), list(keys)


class Fold:
    """Memories while events are applied. `known` are those that may matter, `aliases` the other ids that they have."""

    def __init__(self, known: Iterable[Doc] = (), aliases: Mapping[str, int] = _NONE) -> None:
        self._docs: dict[int, Doc] = {}
        self._by_id: dict[str, int] = {}
        self._by_key: dict[str, dict[int, None]] = {}
        self._changed: dict[int, None] = {}
        self._gone: dict[int, Doc] = {}
        self._new_aliases: dict[str, int] = {}
        self.learn(known, aliases)

    def learn(self, known: Iterable[Doc], aliases: Mapping[str, int]) -> None:
        """Take in memories as an index has them, unless more is known of them here."""
        for doc in known:
            if doc.number not in self._docs and doc.number not in self._gone:
                self._enter(doc)
        self._by_id.update(aliases)

    def id_of(self, id: str) -> str:
        """The id of the memory that an id means: what was known already keeps its own."""
        doc = self._find(id)
        return id if doc is None else doc.id

    def apply(self, happened: Happened) -> None:
        event = happened.event
        if isinstance(event, Said):
            self._say(happened, event)
        elif isinstance(event, Superseded):
            if (old := self._find(event.id)) is not None:
                self._remove(old)
            self._say(happened, event.by)
        elif isinstance(event, Forgotten):
            for name in event.ids:
                if (old := self._find(name)) is not None:
                    self._remove(old)
        elif isinstance(event, Judged):
            self._value(event.id, JUDGED_WORTH if event.useful else -JUDGED_WORTH, happened.at)
        else:
            for name in event.ids:
                self._value(name, USED_WORTH, happened.at)

    def changes(self) -> Changes:
        put = [self._docs[number] for number in self._changed if number in self._docs]
        return Changes(put, list(self._gone.values()), self._new_aliases)

    def _say(self, happened: Happened, said: Said) -> None:
        mine = signature(said.text)
        for number in dict.fromkeys(number for key in mine.keys for number in self._by_key.get(key, ())):
            known = self._docs[number]
            verdict = same(mine, signature(known.text)) if _may_be_one(known, said, happened) else None
            if verdict is not None:
                text, sign = (said.text, mine) if verdict == "beyond" else (known.text, signature(known.text))
                self._change(_heard_again(known, said, happened, text, sign))
                self._by_id[happened.id] = number
                self._new_aliases[happened.id] = number
                return
        self._change(_first_heard(happened, said, mine))

    def _value(self, id: str, worth: float, at: float) -> None:
        doc = self._find(id)
        if doc is None:
            return
        useful = faded(doc.useful, at - doc.useful_at) + worth
        useful = max(-MOST_USEFUL, min(MOST_USEFUL, useful))
        self._change(msgspec.structs.replace(doc, useful=useful, useful_at=at))

    def _find(self, id: str) -> Doc | None:
        number = self._by_id.get(id)
        return None if number is None else self._docs.get(number)

    def _enter(self, doc: Doc) -> None:
        self._docs[doc.number] = doc
        self._by_id[doc.id] = doc.number
        for key in doc.keys:
            self._by_key.setdefault(key, {})[doc.number] = None

    def _change(self, doc: Doc) -> None:
        if (old := self._docs.get(doc.number)) is not None and old.keys != doc.keys:
            self._leave_keys(old)
        self._enter(doc)
        self._changed[doc.number] = None

    def _remove(self, doc: Doc) -> None:
        del self._docs[doc.number]
        self._leave_keys(doc)
        self._gone[doc.number] = doc

    def _leave_keys(self, doc: Doc) -> None:
        for key in doc.keys:
            self._by_key[key].pop(doc.number, None)


def faded(useful: float, seconds: float) -> float:
    """What use was worth, after a time."""
    return useful * float(0.5 ** (max(seconds, 0.0) / FADING_SECONDS))


def _may_be_one(known: Doc, said: Said, happened: Happened) -> bool:
    """Whether the two can be one memory if they say the same: not of different people, nor said on two days in two places."""
    if known.subject != said.subject:
        return False
    if known.expires_at is not None and known.expires_at <= happened.at:
        return False
    if not (known.dated and said.dated) or known.source == said.source:
        return True
    return int(known.at // DAY) == int((said.at or 0.0) // DAY)


def _first_heard(happened: Happened, said: Said, mine: Signature) -> Doc:
    at = happened.at if said.at is None else said.at
    return Doc(
        number=happened.version,
        id=happened.id,
        text=said.text,
        at=at,
        heard_at=at,
        terms=" ".join(terms(said.text)),
        context=_context(at, said.source, said.tags),
        keys=mine.keys,
        tags=said.tags,
        importance=said.importance,
        source=said.source,
        author=said.author,
        subject=said.subject,
        meta=said.meta,
        expires_at=said.expires_at,
        dated=said.dated,
    )


def _heard_again(known: Doc, said: Said, happened: Happened, text: str, mine: Signature) -> Doc:
    """What is known, and what the new one adds to it. What never expires stays so."""
    at = happened.at if said.at is None else said.at
    expires = None
    if known.expires_at is not None and said.expires_at is not None:
        expires = max(known.expires_at, said.expires_at)
    tags = tuple(dict.fromkeys((*known.tags, *said.tags)))
    source = known.source or said.source
    return msgspec.structs.replace(
        known,
        text=text,
        terms=" ".join(terms(text)),
        keys=mine.keys,
        context=_context(known.at, source, tags),
        tags=tags,
        source=source,
        importance=max(known.importance, said.importance),
        meta={**(said.meta or {}), **(known.meta or {})} or None,
        expires_at=expires,
        heard=known.heard + 1,
        heard_at=max(known.heard_at, at),
    )


def _context(at: float, source: str | None, tags: Sequence[str]) -> str:
    """The words by which a memory is found beside its own: when, where from, and what about."""
    return " ".join(
        dict.fromkeys([*date_terms(at), *terms(source or ""), *(term for tag in tags for term in terms(tag))])
    )
