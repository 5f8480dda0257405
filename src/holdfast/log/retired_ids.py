"""Closed ids: what was swept leaves a small record, so that nobody begins anew under its id without meaning to.

An expired id stays closed until somebody frees it. While the stream is there its head says so; the sweep, before it
deletes the stream, says the same in a stream of kind `closed`. That one counts only when the stream itself is gone.
It also remembers large values that are still to be deleted (then it is due), in case the sweep is cut off in between.
"""

from __future__ import annotations

import logging
from hashlib import sha256

import msgspec

from ..backends import Cursor, Head, HeadFields, StreamKey
from ..errors import Conflict, CorruptRecord, Expired
from . import operations as ops
from .blobs import delete_blobs, incarnation_hex
from .codec import encode
from .events import AppendContext, NewEvent
from .ids import MAX_ID_BYTES
from .operations import Operation
from .stream_ops import append_events, delete_stream

KIND = "closed"
CLOSED = "id.closed"

logger = logging.getLogger("holdfast")


class RetiredId(msgspec.Struct, frozen=True):
    """Which life of which stream was swept, and since when it had expired (Unix seconds)."""

    at: float
    kind: str
    id: str
    incarnation: str = msgspec.field(name="life")


class RetiredIdRecord(msgspec.Struct, frozen=True):
    """What is written about a closed id, and where it stands. `unfinished`: large values may still be there."""

    head: Head
    closed: RetiredId

    @property
    def unfinished(self) -> bool:
        return self.head.fields.due_at is not None


def closed_key(key: StreamKey) -> StreamKey:
    """Where it says that an id is closed. A long id stands there by its digest, in a form that no short one has."""
    name = f"{key.kind}/{key.id}"
    if len(name.encode()) > MAX_ID_BYTES:
        name = f"{key.kind}:{sha256(key.id.encode()).hexdigest()}"
    return StreamKey(key.tenant, KIND, name)


def closed_at(key: StreamKey) -> Operation[float | None]:
    """When a stream that was swept had expired; None if its id is not closed. Ask only when there is no such stream."""
    mark = yield from _mark(closed_key(key))
    return mark.closed.at if mark else None


def check_open(key: StreamKey) -> Operation[None]:
    """`Expired` if a stream that is not there was swept."""
    at = yield from closed_at(key)
    if at is not None:
        raise Expired(str(key), at=at, swept=True)


def close(head: Head, stamp: AppendContext, *, large: bool) -> Operation[RetiredIdRecord]:
    """Write that an id is closed, before its stream is deleted. `Conflict` if somebody else is at it."""
    key = closed_key(head.stream)
    at = head.fields.expires_at
    closed = RetiredId(
        head.now if at is None else at,
        head.stream.kind,
        head.stream.id,
        incarnation_hex(head.incarnation),
    )
    mark = yield from _mark(key)
    if mark and (mark.closed, mark.unfinished) == (closed, large):
        return mark  # by a sweep that was cut off
    if mark and mark.unfinished and mark.closed.incarnation != closed.incarnation:
        yield from delete_blobs(
            head.stream, mark.closed.incarnation
        )  # of a former life; nothing else remembers them
    return (
        yield from _write(key, mark, closed, HeadFields(due_at=head.now if large else None), stamp)
    )


def finish(mark: RetiredIdRecord, stamp: AppendContext) -> Operation[None]:
    """Delete the large values of what was swept, and write that they are gone."""
    closed = mark.closed
    key = mark.head.stream._replace(kind=closed.kind, id=closed.id)
    now = yield from ops.head(key)
    if now is not None and incarnation_hex(now.incarnation) == closed.incarnation:
        return  # it was not deleted after all
    yield from delete_blobs(key, closed.incarnation)
    try:
        yield from _write(mark.head.stream, mark, closed, HeadFields(), stamp)
    except Conflict:
        pass  # somebody else did, or freed the id


def unfinished(
    tenant: str, after: Cursor | None
) -> Operation[tuple[list[RetiredIdRecord], Cursor | None]]:
    """One page of what a sweep left behind, and where the next one begins; None if there is no more."""
    page = yield from ops.due(tenant, KIND, after=after)
    found = []
    for head in page:
        try:
            mark = yield from _mark(head.stream)
        except CorruptRecord:
            logger.warning(
                "%s cannot be read: what was swept under it may have left large values", head.stream
            )
            continue
        if mark and mark.unfinished:
            found.append(mark)
    return found, (page[-1].fields.due or 0.0, page[-1].stream.id) if page else None


def reopen(key: StreamKey, stamp: AppendContext) -> Operation[bool]:
    """Free a closed id; False if it was not closed. `Conflict` if a sweep is at it: run it again."""
    mark = yield from _mark(closed_key(key))
    if mark is None:
        return False
    if mark.unfinished:
        now = yield from ops.head(key)
        if now is None or incarnation_hex(now.incarnation) != mark.closed.incarnation:
            yield from delete_blobs(key, mark.closed.incarnation)
    return (yield from delete_stream(mark.head.stream, stamp, "its id was freed", mark.head))


def _mark(key: StreamKey) -> Operation[RetiredIdRecord | None]:
    head = yield from ops.head(key)
    if head is None:
        return None
    newest = yield from ops.read(key, limit=1, reverse=True, plain=True)
    if not newest:
        return None  # freed in between
    try:
        return RetiredIdRecord(head, msgspec.convert(newest[0].envelope.data, RetiredId))
    except msgspec.ValidationError:
        raise CorruptRecord(
            str(key), version=newest[0].version, what="it does not say what was closed"
        ) from None


def _write(
    key: StreamKey,
    mark: RetiredIdRecord | None,
    closed: RetiredId,
    fields: HeadFields,
    stamp: AppendContext,
) -> Operation[RetiredIdRecord]:
    """At the version that was seen, and in its life: an id that was freed in between must not be closed again by this."""
    event = NewEvent(CLOSED, encode(msgspec.to_builtins(closed)))
    expected, incarnation = (mark.head.version, mark.head.incarnation) if mark else (0, None)
    yield from append_events(
        key, [event], stamp, expected=expected, fields=fields, incarnation=incarnation
    )
    head = yield from ops.head(key)
    if head is None:
        raise Conflict(str(key), expected=expected + 1, actual=0)
    return RetiredIdRecord(head, closed)
