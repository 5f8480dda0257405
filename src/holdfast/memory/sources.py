"""A memory is what all who have said it say together, and what is left of it when one of them is forgotten.

Each saying is kept with its source, tags and `meta`, if they differ: so nothing of a source stays when that source is forgotten, and
nothing of the others goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET

from ..backends import clock
from .arguments import said_of
from .duplicates.find import signature
from .model import MemoryDoc, Remembering, Saying, Superseded
from .text.tokens import date_terms, terms

WORDINGS: Final = 64
"""So many wordings has a memory. One more is a memory of its own, so that none is lost, and none makes a memory endless."""
SAYINGS: Final = 200
"""And so many sources and sets of tags."""
OF_CONTEXT: Final = 8
"""By so many of its sources a memory is found."""


def of_doc(doc: MemoryDoc) -> tuple[Saying, ...]:
    """Who has said it. A memory that was said once, or always alike, is its own saying."""
    if doc.sayings:
        return doc.sayings
    return (
        Saying(
            text=doc.text,
            at=doc.at,
            first_at=doc.first_at,
            source=doc.source,
            tags=doc.tags,
            importance=doc.importance,
            meta=doc.meta,
            expires_at=doc.expires_at,
            mentions=doc.mentions,
            dated_at=doc.dated_at,
        ),
    )


def of_said(said: Remembering, at: float, version: int = 0, mentions: int = 1) -> Saying:
    """`at` is when the event was written, which counts unless another time was given."""
    at, dated_at = (at, None) if said.at is None else (said.at, said.at if said.dated else None)
    return Saying(
        text=said.text,
        at=at,
        first_at=at,
        source=said.source,
        tags=said.tags,
        importance=said.importance,
        meta=said.meta,
        expires_at=said.expires_at,
        mentions=mentions,
        version=version,
        dated_at=dated_at,
    )


def has_room(doc: MemoryDoc, new: Saying, wording: str | None) -> bool:
    """Whether a memory can take one more saying in. `wording`: which of its own it says; None if none of them."""
    if wording is None:
        return 1 + len(doc.variants) < WORDINGS and len(doc.sayings) < SAYINGS
    return len(doc.sayings) < SAYINGS or any(_is_one(one, new, wording) for one in doc.sayings)


def with_saying(doc: MemoryDoc, new: Saying, wording: str | None) -> MemoryDoc:
    """What is known, and what one more adds to it. What never expires stays so."""
    new = new if wording is None else msgspec.structs.replace(new, text=wording)
    sayings = list(of_doc(doc))
    for place, one in enumerate(sayings):
        if _is_one(one, new, new.text):
            sayings[place] = _heard_again(one, new)
            break
    else:
        sayings.append(new)
    return together(doc, sayings)


def together(doc: MemoryDoc, sayings: Sequence[Saying]) -> MemoryDoc:
    """A memory made of sayings, in the order in which they came.

    The text is the wording that was heard most often: a slip of the finger is not said twice. Of `meta` the newest values count.
    """
    heard: dict[str, int] = {}
    for one in sayings:
        heard[one.text] = heard.get(one.text, 0) + one.mentions
    text = max(heard, key=heard.__getitem__)
    tags = tuple(dict.fromkeys(tag for one in sayings for tag in one.tags))
    sources = tuple(dict.fromkeys(one.source for one in sayings if one.source is not None))
    meta: dict[str, object] = {}
    for one in sorted(sayings, key=lambda one: one.version):
        meta.update(one.meta or {})
    ends = [one.expires_at for one in sayings]
    at, first_at = max(one.at for one in sayings), min(one.first_at for one in sayings)
    return msgspec.structs.replace(
        doc,
        text=text,
        variants=tuple(one for one in heard if one != text),
        terms=_terms(text, heard),
        keys=tuple(dict.fromkeys(key for wording in heard for key in signature(wording).keys)),
        context=_context((at, first_at), sources, tags),
        at=at,
        first_at=first_at,
        dated_at=next((one.dated_at for one in sayings if one.dated_at is not None), None),
        tags=tags,
        source=sources[0] if sources else None,
        sources=sources if len(sources) > 1 else (),
        importance=max(one.importance for one in sayings),
        meta=meta or None,
        expires_at=None if None in ends else max(end for end in ends if end is not None),
        mentions=sum(heard.values()),
        sayings=tuple(sayings) if len(sayings) > 1 else (),
    )


def replacing(old: MemoryDoc, text: str, **given: Any) -> Superseded:
    """What takes the place of a memory. What is not given (UNSET) stays as it is, and so do its other sources."""
    changed = {name: value for name, value in given.items() if value is not UNSET}
    kept: dict[str, Any] = {
        "tags": old.tags,
        "importance": old.importance,
        "source": old.source,
        "author": old.author,
        "at": old.dated_at,
        "subject": old.subject,
        "meta": old.meta,
    }
    said = said_of(text, clock.time(), **{**kept, **changed})
    if "ttl" not in changed:
        said = msgspec.structs.replace(said, expires_at=old.expires_at)
    return Superseded(old.id, said, () if "source" in changed else old.sources[1:])


def is_from(one: Saying, source: str | None, tags: Iterable[str]) -> bool:
    """Whether a saying is of this source and has these tags. None and no tags: any is."""
    return (source is None or one.source == source) and set(tags).issubset(one.tags)


def _is_one(known: Saying, new: Saying, wording: str) -> bool:
    return known.text == wording and known.source == new.source and known.tags == new.tags


def _heard_again(known: Saying, new: Saying) -> Saying:
    ends = (known.expires_at, new.expires_at)
    return msgspec.structs.replace(
        known,
        at=max(known.at, new.at),
        first_at=min(known.first_at, new.first_at),
        importance=max(known.importance, new.importance),
        meta={**(known.meta or {}), **(new.meta or {})} or None,
        expires_at=None if None in ends else max(end for end in ends if end is not None),
        mentions=known.mentions + new.mentions,
        version=new.version,
        dated_at=known.dated_at if new.dated_at is None else new.dated_at,
    )


def _terms(text: str, wordings: Iterable[str]) -> str:
    """The words of the text, and those that only other wordings of it have."""
    own = terms(text)
    others = dict.fromkeys(
        term for wording in wordings if wording != text for term in terms(wording)
    )
    return " ".join([*own, *(term for term in others if term not in own)])


def _context(times: Iterable[float], sources: Sequence[str], tags: Iterable[str]) -> str:
    """The words by which a memory is found beside its own: when, where from, and what about."""
    found = [*(term for at in times for term in date_terms(at))]
    found += [term for name in (*sources[:OF_CONTEXT], *tags) for term in terms(name)]
    return " ".join(dict.fromkeys(found))
