"""What users hand to a memory, checked before anything is done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, Final, TypeVar

import msgspec

from .._arguments import seconds
from .._codec import decode, encode
from .._ids import checked_id
from .._log import Log
from ._model import Said, Superseded

LONGEST: Final = 100_000
"""Characters of one memory. What is longer is a document: attach it to a task, and remember what matters of it."""
MOST_TAGS: Final = 100

T = TypeVar("T", bound=Said | Superseded)

_FIELDS: Final = frozenset(("text", "tags", "importance", "source", "author", "at", "subject", "meta", "ttl"))


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
) -> Said:
    """What is to be remembered, or an error that says what is wrong with it. `now`: when `ttl` begins."""
    if type(importance) not in (int, float) or not 0 <= importance <= 1:
        raise ValueError("importance is a number from 0 to 1")
    return Said(
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
    text, meta = log.redacted_text(event.text), log.redacted_value(event.meta)
    return msgspec.structs.replace(event, text=text, meta=meta)


def said_in(item: object, now: float) -> Said:
    """One of those that are remembered together: a dict with what `remember` takes."""
    if not isinstance(item, Mapping) or "text" not in item:
        raise TypeError("each memory is a dict with its text: dict(text=…, source=…, at=…)")
    unknown = sorted(str(name) for name in item if name not in _FIELDS)
    if unknown:
        raise TypeError(f"a memory has no {', '.join(unknown)}; it has {', '.join(sorted(_FIELDS))}")
    return said_of(now=now, **{str(name): value for name, value in item.items()})


def checked_text(text: str, what: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{what} is a str")
    if not text.strip():
        raise ValueError(f"{what} is empty")
    if len(text) > LONGEST:
        raise ValueError(
            f"{what} has over {LONGEST:,} characters; remember what matters of it, and attach the rest to a task"
        )
    return text


def tags_of(tags: Iterable[str]) -> tuple[str, ...]:
    if isinstance(tags, str):
        raise TypeError("tags is a list of str: tags=['acme']")
    found = tuple(dict.fromkeys(checked_id(tag, "tag") for tag in tags))
    if len(found) > MOST_TAGS:
        raise ValueError(f"a memory has at most {MOST_TAGS} tags")
    return found


def source_name(source: object) -> str | None:
    """Where a memory comes from: a name, or a task or conversation, which are named by kind and id."""
    if source is None:
        return None
    if isinstance(source, str):
        return checked_id(source, "source")
    key = getattr(source, "_key", None)
    if key is None:
        raise TypeError("source is a str, a task or a conversation")
    return f"{key.kind}/{key.id}"


def moment(at: float | datetime, what: str) -> float:
    """A time in Unix seconds. A datetime without a zone is taken for UTC."""
    if isinstance(at, datetime):
        return (at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)).timestamp()
    if type(at) not in (int, float) or not -1e11 < at < 1e11:
        raise ValueError(f"{what} is a datetime, or Unix seconds")
    return float(at)


def _meta(meta: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if meta is None:
        return None
    if not isinstance(meta, Mapping):
        raise TypeError("meta is a dict")
    copied: dict[str, Any] = decode(encode(dict(meta)))
    return copied or None
