"""What users hand to a memory, checked before anything is done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Protocol, TypedDict, TypeVar

import msgspec

from ..backends import StreamKey
from ..backends.clock import EARLIEST, LATEST
from ..errors import NotSerializable, TooLarge
from ..log.codec import decode, encode
from ..log.ids import checked_id
from ..log.log import Log
from ..log.validation import seconds, shown, timestamp
from .model import Remembering, Superseded

LONGEST: Final = 100_000
"""Characters of one memory. What is longer is a document: attach it to a task, and remember what matters of it."""
MOST_TAGS: Final = 100
MOST_AUTHORS: Final = 100
MOST_META_BYTES: Final = 65_536
"""As JSON. It is read with the memory each time, also to rank it."""

T = TypeVar("T", bound=Remembering | Superseded)


class Sourced(Protocol):
    """A task or a conversation: what has a stream of its own."""

    @property
    def _key(self) -> StreamKey: ...


Source = str | Sourced
"""Where a memory comes from: a name, a task or a conversation."""
Authors = str | Iterable[str]
"""By whom memories may be: one name, or several."""


class _Text(TypedDict):
    text: str


class NewMemory(_Text, total=False):
    """What `remember_many` takes for each memory: the text, and what else `remember` takes."""

    tags: Iterable[str]
    importance: float
    source: Source | None
    author: str
    at: float | datetime | None
    subject: str | None
    meta: Mapping[str, Any] | None
    ttl: float | timedelta | None


_FIELDS: Final = frozenset(NewMemory.__required_keys__ | NewMemory.__optional_keys__)


def said_of(
    text: str,
    now: float,
    *,
    tags: Iterable[str] = (),
    importance: float = 0.5,
    source: object = None,
    author: str = "model",
    at: float | datetime | None = None,
    subject: str | None = None,
    meta: Mapping[str, Any] | None = None,
    ttl: float | timedelta | None = None,
) -> Remembering:
    """What is to be remembered, or an error that says what is wrong with it. `now`: when `ttl` begins."""
    if type(importance) not in (int, float) or not 0 <= importance <= 1:
        raise ValueError(f"importance must be a number from 0 to 1, got {shown(importance)}")
    return Remembering(
        text=checked_text(text, "text"),
        tags=tags_of(tags),
        importance=float(importance),
        source=source_name(source),
        author=checked_id(author, "author"),
        at=None if at is None else moment(at, "at"),
        subject=None if subject is None else checked_id(subject, "subject"),
        meta=_meta(meta),
        expires_at=None if ttl is None else now + seconds(ttl, "ttl"),
    )


def redacted(log: Log, event: T) -> T:
    """What is to be remembered, as it is to be stored."""
    if log.redactor is None:
        return event
    if isinstance(event, Superseded):
        return msgspec.structs.replace(event, by=redacted(log, event.by))
    text, meta = log.redaction.text(event.text), log.redaction.value(event.meta)
    return msgspec.structs.replace(event, text=text, meta=meta)


def said_in(item: object, now: float) -> Remembering:
    """One of those that are remembered together: a dict with what `remember` takes."""
    if not isinstance(item, Mapping) or "text" not in item:
        raise TypeError("each memory must be a dict with its text: dict(text=…, source=…, at=…)")
    unknown = sorted(str(name) for name in item if name not in _FIELDS)
    if unknown:
        raise TypeError(
            f"a memory has no {', '.join(unknown)}; it has {', '.join(sorted(_FIELDS))}"
        )
    return said_of(now=now, **{str(name): value for name, value in item.items()})


def checked_text(text: str, what: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a str, got {shown(text)}")
    if not text.strip():
        raise ValueError(f"{what} is empty")
    if len(text) > LONGEST:
        raise ValueError(
            f"{what} has over {LONGEST:,} characters; remember what matters of it, and attach the rest to a task"
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        problem = "it holds half of a surrogate pair, which is not text; decode it properly"
        raise NotSerializable(what, problem) from None
    return text


def tags_of(tags: Iterable[str]) -> tuple[str, ...]:
    if isinstance(tags, str):
        raise TypeError("tags must be a list of str, like ['acme'], got a str")
    found = tuple(dict.fromkeys(checked_id(tag, "tag") for tag in tags))
    if len(found) > MOST_TAGS:
        raise ValueError(f"tags must be at most {MOST_TAGS}, got {len(found)}")
    return found


def authors_of(authors: object, what: str = "author") -> str | tuple[str, ...] | None:
    """Who is asked for: a name, or several. Nobody is refused: it could be meant as anybody."""
    if authors is None or isinstance(authors, str):
        return None if authors is None else checked_id(authors, what)
    if not isinstance(authors, Iterable) or isinstance(authors, bytes | Mapping):
        raise TypeError(f"{what} must be a name or a list of names, got {shown(authors)}")
    found = tuple(sorted({checked_id(name, what) for name in authors}))
    if not found:
        raise ValueError(f"{what} must name somebody, got an empty list; leave it out for anybody")
    if len(found) > MOST_AUTHORS:
        raise ValueError(f"{what} must be at most {MOST_AUTHORS} names, got {len(found)}")
    return found[0] if len(found) == 1 else found


def source_name(source: object) -> str | None:
    """Where a memory comes from: a name, or a task or conversation, which are named by kind and id."""
    if source is None:
        return None
    if isinstance(source, str):
        return checked_id(source, "source")
    key = getattr(source, "_key", None)
    if key is None:
        raise TypeError(f"source must be a str, a task or a conversation, got {shown(source)}")
    return f"{key.kind}/{key.id}"


def moment(at: float | datetime, what: str) -> float:
    """A time in Unix seconds, of a year that a datetime can have. A datetime needs its zone."""
    found = timestamp(at, what, any_year=True)
    if not EARLIEST <= found <= LATEST:
        raise ValueError(
            f"{what} must be in the years 1 to 9999; leave it out if there is no such time"
        )
    return found


def bound(at: float | datetime, what: str) -> float:
    """The same for a limit: one that no memory can reach is none."""
    return min(max(timestamp(at, what, any_year=True), EARLIEST), LATEST)


def score_of(value: float, what: str) -> float:
    if type(value) not in (int, float) or not 0 <= value <= 1:
        raise ValueError(f"{what} must be a number from 0 to 1, got {shown(value)}")
    return float(value)


def question_of(query: str) -> str:
    """Any text is a question. Half a character, as of a text that was cut in its middle, is no reason to refuse it."""
    if not isinstance(query, str):
        raise TypeError(f"query must be a str, got {shown(query)}")
    if len(query) > LONGEST:
        raise ValueError(f"query must be at most {LONGEST:,} characters, got {len(query):,}")
    return query.encode(errors="replace").decode()


def _meta(meta: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if meta is None:
        return None
    if not isinstance(meta, Mapping):
        raise TypeError(f"meta must be a dict, got {shown(meta)}")
    try:
        copied: dict[str, Any] = decode(encode(dict(meta), max_bytes=MOST_META_BYTES))
    except TooLarge as error:
        raise TooLarge(
            f"meta: {error}; keep what one looks up in it, and attach the rest to a task"
        ) from None
    return copied or None
