"""Retired ids: a purged stream leaves a small record, so that its id is not reused by accident.

An expired id stays retired until a caller frees it. While the stream exists, its head has the
expiry. Before the sweep deletes the stream, it writes a record to a stream of kind `closed`, which
counts only when the stream itself is gone. While blobs are still to be deleted, that record is due,
so that an interrupted sweep is finished later.
"""

from __future__ import annotations

import logging
from hashlib import sha256

import msgspec

from ...backends import Cursor, Head, HeadFields, StreamKey
from ...errors import Conflict, CorruptRecord, Expired
from .. import operations as ops
from ..codec import encode
from ..events import AppendContext, NewEvent
from ..ids import MAX_ID_BYTES
from . import Operation
from .blobs import delete_blobs
from .stream_ops import append_events, delete_stream

RETIRED_ID_KIND = "closed"
RETIRED = "id.retired"

logger = logging.getLogger("holdfast")


class RetiredId(msgspec.Struct, frozen=True):
    """The purged incarnation of a stream, and when it expired (Unix seconds)."""

    at: float
    kind: str
    id: str
    incarnation: str


class RetiredIdRecord(msgspec.Struct, frozen=True):
    """The record of a retired id, and the head of its stream."""

    head: Head
    retired: RetiredId

    @property
    def is_unfinished(self) -> bool:
        """Whether blobs may still have to be deleted."""
        return self.head.fields.due_at is not None


def retired_id_key(key: StreamKey) -> StreamKey:
    """Return the key of an id's record. If the id is long, use its digest, after ":" not "/"."""
    name = f"{key.kind}/{key.id}"
    if len(name.encode()) > MAX_ID_BYTES:
        name = f"{key.kind}:{sha256(key.id.encode()).hexdigest()}"
    return StreamKey(key.tenant, RETIRED_ID_KIND, name)


def get_retired_at(key: StreamKey) -> Operation[float | None]:
    """Return when a purged stream expired; None if its id is not retired.

    Call it only when the stream does not exist.
    """
    record = yield from _read_record(retired_id_key(key))
    return record.retired.at if record else None


def is_retired(key: StreamKey, incarnation: bytes) -> Operation[bool]:
    """Return whether this incarnation of a stream that does not exist was purged."""
    record = yield from _read_record(retired_id_key(key))
    return record is not None and record.retired.incarnation == incarnation.hex()


def check_not_retired(key: StreamKey) -> Operation[None]:
    """Raise `Expired` if a stream that does not exist was purged."""
    at = yield from get_retired_at(key)
    if at is not None:
        raise Expired(str(key), at=at, swept=True)


def retire_id(head: Head, stamp: AppendContext, *, large: bool) -> Operation[RetiredIdRecord]:
    """Write the record of a retired id, before its stream is deleted.

    `large`: the stream has blobs. Raise `Conflict` if another process writes the record.
    """
    key = retired_id_key(head.stream)
    at = head.fields.expires_at
    retired = RetiredId(
        head.now if at is None else at, head.stream.kind, head.stream.id, head.incarnation.hex()
    )
    record = yield from _read_record(key)
    if record and (record.retired, record.is_unfinished) == (retired, large):
        return record  # written by an interrupted sweep
    if record and record.is_unfinished and record.retired.incarnation != retired.incarnation:
        # Blobs of an earlier incarnation: only this record refers to them.
        yield from delete_blobs(head.stream, record.retired.incarnation)
    fields = HeadFields(due_at=head.now if large else None)
    return (yield from _write_record(key, record, retired, fields, stamp))


def finish_retiring(record: RetiredIdRecord, stamp: AppendContext) -> Operation[None]:
    """Delete the blobs of a purged stream, and record that they are gone."""
    retired = record.retired
    key = record.head.stream._replace(kind=retired.kind, id=retired.id)
    now = yield from ops.head(key)
    if now is not None and now.incarnation.hex() == retired.incarnation:
        return  # the stream was not deleted after all
    yield from delete_blobs(key, retired.incarnation)
    try:
        yield from _write_record(record.head.stream, record, retired, HeadFields(), stamp)
    except Conflict:
        pass  # another process did, or freed the id


def list_unfinished(
    tenant: str, after: Cursor | None
) -> Operation[tuple[list[RetiredIdRecord], Cursor | None]]:
    """Return one page of records whose blobs are still to be deleted, and the next cursor."""
    page = yield from ops.due(tenant, RETIRED_ID_KIND, after=after)
    found = []
    for head in page:
        try:
            record = yield from _read_record(head.stream)
        except CorruptRecord:
            logger.warning(
                "%s cannot be read; the purged stream it records may have left blobs", head.stream
            )
            continue
        if record and record.is_unfinished:
            found.append(record)
    return found, (page[-1].fields.due or 0.0, page[-1].stream.id) if page else None


def free_id(key: StreamKey, stamp: AppendContext) -> Operation[bool]:
    """Free a retired id; return False if it is not retired. Raise `Conflict` if a sweep uses it."""
    record = yield from _read_record(retired_id_key(key))
    if record is None:
        return False
    if record.is_unfinished:
        now = yield from ops.head(key)
        if now is None or now.incarnation.hex() != record.retired.incarnation:
            yield from delete_blobs(key, record.retired.incarnation)
    return (yield from delete_stream(record.head.stream, stamp, "its id was freed", record.head))


def _read_record(key: StreamKey) -> Operation[RetiredIdRecord | None]:
    head = yield from ops.head(key)
    if head is None:
        return None
    newest = yield from ops.read(key, limit=1, reverse=True, decoded=True)
    if not newest:
        return None  # freed in between
    try:
        return RetiredIdRecord(head, msgspec.convert(newest[0].envelope.data, RetiredId))
    except msgspec.ValidationError:
        raise CorruptRecord(
            str(key), version=newest[0].version, what="it does not name the retired id"
        ) from None


def _write_record(
    key: StreamKey,
    record: RetiredIdRecord | None,
    retired: RetiredId,
    fields: HeadFields,
    stamp: AppendContext,
) -> Operation[RetiredIdRecord]:
    """Append at the version and incarnation of `record`: an id freed since must stay free."""
    event = NewEvent(RETIRED, encode(msgspec.to_builtins(retired)))
    expected, incarnation = (record.head.version, record.head.incarnation) if record else (0, None)
    yield from append_events(
        key, [event], stamp, expected=expected, fields=fields, incarnation=incarnation
    )
    head = yield from ops.head(key)
    if head is None:
        raise Conflict(str(key), expected=expected + 1, actual=0)
    return RetiredIdRecord(head, retired)
