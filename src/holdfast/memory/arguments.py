"""Check the arguments of `Memory` methods before anything is done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Protocol, TypedDict, TypeVar

import msgspec

from ..backends import StreamKey
from ..backends.clock import MAX_TIMESTAMP, MIN_TIMESTAMP
from ..errors import NotSerializable, TooLarge
from ..log.codec import decode, encode
from ..log.ids import check_id
from ..log.log import Log
from ..log.validation import check_seconds, check_timestamp, describe_value
from .model import Consolidated, Remembered, Superseded

MAX_TEXT_CHARS: Final = 100_000
"""Longer texts are documents: attach them to a task and remember the important parts."""
MAX_TAGS: Final = 100
MAX_AUTHORS: Final = 100
MAX_META_BYTES: Final = 65_536
"""The maximum size as JSON. `meta` is read with the memory every time, even for ranking."""

T = TypeVar("T", bound=Remembered | Superseded | Consolidated)


class Sourced(Protocol):
    """A task or a conversation: an object with a stream."""

    @property
    def _key(self) -> StreamKey: ...


Source = str | Sourced
"""Where a memory comes from: a name, a task or a conversation."""
Authors = str | Iterable[str]
"""One or several names of authors to filter by."""


class _Text(TypedDict):
    text: str


class NewMemory(_Text, total=False):
    """A memory for `remember_many`: the arguments of `remember` as a dict."""

    tags: Iterable[str]
    importance: float
    source: Source | None
    author: str
    at: float | datetime | None
    subject: str | None
    meta: Mapping[str, Any] | None
    ttl: float | timedelta | None
    valid_from: float | datetime | None
    valid_until: float | datetime | None


OPTIONS: Final = tuple(name for name in NewMemory.__annotations__ if name != "text")
"""The optional arguments of `remember`, in order."""
_FIELDS: Final = frozenset(("text", *OPTIONS))


def build_memory(
    text: str,
    now: float,
    tags: Iterable[str] = (),
    importance: float = 0.5,
    source: object = None,
    author: str = "model",
    at: float | datetime | None = None,
    subject: str | None = None,
    meta: Mapping[str, Any] | None = None,
    ttl: float | timedelta | None = None,
    valid_from: float | datetime | None = None,
    valid_until: float | datetime | None = None,
) -> Remembered:
    """Check the arguments of `remember` and return the event. `ttl` counts from `now`."""
    start = None if valid_from is None else check_time(valid_from, "valid_from")
    end = None if valid_until is None else check_time(valid_until, "valid_until")
    if start is not None and end is not None and end <= start:
        raise ValueError("valid_until must be later than valid_from")
    return Remembered(
        text=check_text(text, "text"),
        tags=check_tags(tags),
        importance=check_score(importance, "importance"),
        source=check_source(source),
        author=check_id(author, "author"),
        at=None if at is None else check_time(at, "at"),
        subject=None if subject is None else check_id(subject, "subject"),
        meta=_check_meta(meta),
        expires_at=None if ttl is None else now + check_seconds(ttl, "ttl"),
        valid_from=start,
        valid_until=end,
    )


def redact_memory(log: Log, event: T) -> T:
    """Return the event with its text and meta redacted, if the store has a redactor."""
    if log.redactor is None:
        return event
    if isinstance(event, Superseded):
        return msgspec.structs.replace(event, by=redact_memory(log, event.by))
    if isinstance(event, Consolidated):
        by = None if event.by is None else redact_memory(log, event.by)
        return msgspec.structs.replace(event, by=by, reason=log.redaction.redact_text(event.reason))
    text, meta = log.redaction.redact_text(event.text), log.redaction.redact_value(event.meta)
    return msgspec.structs.replace(event, text=text, meta=meta)


def build_memory_from_dict(item: object, now: float) -> Remembered:
    """Return the event for one dict of `remember_many`."""
    if not isinstance(item, Mapping) or "text" not in item:
        raise TypeError("each memory must be a dict with a text, like dict(text=…, source=…)")
    unknown = sorted(str(name) for name in item if name not in _FIELDS)
    if unknown:
        raise TypeError(
            f"keys of a memory must be {', '.join(sorted(_FIELDS))}, got {', '.join(unknown)}"
        )
    return build_memory(now=now, **{str(name): value for name, value in item.items()})


def check_text(text: str, what: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a str, got {describe_value(text)}")
    if not text.strip():
        raise ValueError(f"{what} must not be empty")
    if len(text) > MAX_TEXT_CHARS:
        raise ValueError(
            f"{what} must be at most {MAX_TEXT_CHARS:,} characters, got {len(text):,};"
            " remember the important parts and attach the rest to a task"
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        problem = "it contains half of a surrogate pair, which is not text; decode it properly"
        raise NotSerializable(what, problem) from None
    return str.__str__(text)


def check_tags(tags: Iterable[str]) -> tuple[str, ...]:
    if isinstance(tags, str):
        raise TypeError("tags must be a list of str, like ['acme'], got a str")
    found = tuple(dict.fromkeys(check_id(tag, "tag") for tag in tags))
    if len(found) > MAX_TAGS:
        raise ValueError(f"tags must be at most {MAX_TAGS}, got {len(found)}")
    return found


def check_authors(authors: object, what: str = "author") -> str | tuple[str, ...] | None:
    """Check one or several names to filter by. An empty list is refused: it is ambiguous."""
    if authors is None or isinstance(authors, str):
        return None if authors is None else check_id(authors, what)
    if not isinstance(authors, Iterable) or isinstance(authors, bytes | Mapping):
        raise TypeError(f"{what} must be a name or a list of names, got {describe_value(authors)}")
    found = tuple(sorted({check_id(name, what) for name in authors}))
    if not found:
        raise ValueError(
            f"{what} must have at least one name, got an empty list; omit it to include all"
        )
    if len(found) > MAX_AUTHORS:
        raise ValueError(f"{what} must be at most {MAX_AUTHORS} names, got {len(found)}")
    return found[0] if len(found) == 1 else found


def check_source(source: object) -> str | None:
    """Return the name of a source: the given str, or the kind and id of a task or conversation."""
    if source is None:
        return None
    if isinstance(source, str):
        return check_id(source, "source")
    key = getattr(source, "_key", None)
    if key is None:
        raise TypeError(
            f"source must be a str, a task or a conversation, got {describe_value(source)}"
        )
    return f"{key.kind}/{key.id}"


def check_time(at: float | datetime, what: str) -> float:
    """Return a time as Unix seconds. A datetime needs a timezone; the year must be 1 to 9999."""
    found = check_timestamp(at, what, any_year=True)
    if not MIN_TIMESTAMP <= found <= MAX_TIMESTAMP:
        raise ValueError(
            f"{what} must be in the years 1 to 9999, got {describe_value(at)}; omit it if unknown"
        )
    return found


def clamp_time(at: float | datetime, what: str) -> float:
    """Return a filter's time as Unix seconds, clamped to the years that a memory can have."""
    return min(max(check_timestamp(at, what, any_year=True), MIN_TIMESTAMP), MAX_TIMESTAMP)


def check_score(value: float, what: str) -> float:
    if type(value) not in (int, float) or not 0 <= value <= 1:
        raise ValueError(f"{what} must be a number from 0 to 1, got {describe_value(value)}")
    return float(value)


def check_query(query: str) -> str:
    """Check a query. Half a surrogate pair, as in a truncated text, is replaced, not refused."""
    if not isinstance(query, str):
        raise TypeError(f"query must be a str, got {describe_value(query)}")
    if len(query) > MAX_TEXT_CHARS:
        raise ValueError(f"query must be at most {MAX_TEXT_CHARS:,} characters, got {len(query):,}")
    return query.encode(errors="replace").decode()


def _check_meta(meta: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if meta is None:
        return None
    if not isinstance(meta, Mapping):
        raise TypeError(f"meta must be a dict, got {describe_value(meta)}")
    try:
        copied: dict[str, Any] = decode(encode(dict(meta), max_bytes=MAX_META_BYTES))
    except TooLarge as error:
        raise TooLarge(
            f"meta: {error}; keep only what you look up in it, and attach the rest to a task"
        ) from None
    return copied or None
