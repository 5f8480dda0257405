"""Operations on any stream: append events, load their data, delete the stream and record that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ...backends import AppendResult, Head, HeadFields, StreamKey
from ...errors import Conflict, CorruptRecord, DataProblem
from .. import operations as ops
from ..codec import Undecodable, decode, encode
from ..events import INLINE_BYTES, AppendContext, Blob, NewEvent, StoredEvent, encode_envelopes
from ..head_fields import is_expired
from ..ids import append_id
from . import Operation
from .blobs import delete_blobs, get_blob, put_blob

AUDIT_ID: Final = "log"
AUDIT_LOOKBACK_EVENTS: Final = 1000


def append_events(
    stream: StreamKey,
    events: Sequence[NewEvent],
    stamp: AppendContext,
    *,
    id: str | None = None,
    expected: int | None = None,
    seen: int | None = None,
    fields: HeadFields | None = None,
    incarnation: bytes | None = None,
    exclusive: bool = False,
    keys: Sequence[str] = (),
) -> Operation[AppendResult]:
    """Append events, after storing large data as blobs.

    Raise `Conflict` if the stream is deleted in between; the caller runs the operation again.
    """
    blobs: dict[bytes, Blob] = {}
    # A record with its own key keeps large data inline: a blob would have the stream's key.
    large = [event.data for event in events if len(event.data) > INLINE_BYTES and not keys]
    if large:
        if incarnation is None:
            head = yield from ops.head(stream)
            incarnation = head.incarnation if head else append_id(stamp.id)
        for data in large:
            blobs[data] = yield from put_blob(stream, incarnation.hex(), data, stamp)
    bodies = encode_envelopes(events, stamp, blobs)
    return (
        yield from ops.append(
            ops.AppendRecords(
                stream, bodies, stamp, id, expected, seen, fields, incarnation, exclusive, keys
            )
        )
    )


def load_data(stream: StreamKey, stored: StoredEvent) -> Operation[Any]:
    """Return the data of an event that was read with `decoded`, from its blob if it has one."""
    blob = stored.envelope.blob
    if blob is None:
        return stored.envelope.data
    try:
        return decode((yield from get_blob(stream, blob)))
    except Undecodable as error:
        raise CorruptRecord(str(stream), version=stored.version, what=str(error)) from None


def list_streams(tenant: str, kind: str, after: str) -> Operation[tuple[list[Head], str]]:
    """Return one page of heads that have not expired, and the id after which the next starts."""
    page = yield from ops.heads(tenant, kind, after=after, with_position=True)
    found = [head for head in page if isinstance(head, Head) and not is_expired(head)]
    return found, page[-1].stream.id if page else ""


def get_version(stream: StreamKey) -> Operation[int]:
    """Return the newest version of a stream, 0 if it does not exist."""
    head = yield from ops.head(stream)
    return head.version if head else 0


def readable_head(stream: StreamKey) -> Operation[Head | None]:
    """Return the head of a stream to delete; None if it does not exist, or cannot be read."""
    try:
        return (yield from ops.head(stream, damaged=True))
    except DataProblem:
        return None


class Deletion(msgspec.Struct, frozen=True):
    """A deletion in the audit stream. `at` is the backend's time; only sweeps set it."""

    kind: str
    id: str
    incarnation: str
    reason: str
    at: float | None = None
    version: int = 0


def audit_key(tenant: str) -> StreamKey:
    return StreamKey(tenant, "audit", AUDIT_ID)


def decode_deletion(stored: StoredEvent) -> Deletion | None:
    """Return the deletion that an audit event records; None if it records something else."""
    if stored.envelope.type != "stream.deleted":
        return None
    try:
        return msgspec.convert(stored.envelope.data, Deletion)
    except msgspec.ValidationError:
        return None


def append_audit_event(
    head: Head,
    stamp: AppendContext,
    reason: str,
    *,
    type: str = "stream.deleted",
    at: float | None = None,
) -> Operation[AppendResult]:
    """Record in the tenant's audit stream that a stream is about to be deleted.

    Without this record, a missing stream would look like tampering.
    """
    facts = {
        "kind": head.stream.kind,
        "id": head.stream.id,
        "version": head.version,
        "hash": head.hash.hex(),
        "incarnation": head.incarnation.hex(),
        "reason": reason,
    }
    if at is not None:
        facts["at"] = at
    return (
        yield from append_events(
            audit_key(head.stream.tenant), [NewEvent(type, encode(facts))], stamp
        )
    )


def delete_stream(
    stream: StreamKey, stamp: AppendContext, reason: str, seen: Head | None = None
) -> Operation[bool]:
    """Delete a stream and its blobs, even a damaged one. Return False if it does not exist.

    Raise `Conflict` if another writer appended in between (since `seen`, if given).
    """
    try:
        head = seen or (yield from ops.head(stream, damaged=True))
    except DataProblem:
        return (yield from _discard_stream(stream, stamp, reason))
    if head is None:
        for deletion in (yield from list_recent_deletions(stream)):
            # The deletion may have been interrupted before it deleted the blobs.
            yield from delete_blobs(stream, deletion.incarnation)
        return False
    yield from append_audit_event(head, stamp, reason)
    if not (yield from ops.delete(stream, expected=head)):
        now = yield from ops.head(stream, damaged=True)
        raise Conflict(str(stream), expected=head.version, actual=now.version if now else 0)
    yield from delete_blobs(stream, head.incarnation.hex())
    return True


def _discard_stream(stream: StreamKey, stamp: AppendContext, reason: str) -> Operation[bool]:
    """Delete a stream whose head cannot be read, and the blobs of all its incarnations."""
    lost = Head(stream, b"", HeadFields(), 0.0, 0, b"")
    yield from append_audit_event(lost, stamp, reason)
    discarded = yield from ops.discard(stream)
    yield from delete_blobs(stream, "")
    return discarded


def list_recent_deletions(stream: StreamKey) -> Operation[list[Deletion]]:
    """Return the deletions of a stream among the newest audit events."""
    newest = yield from ops.read(
        audit_key(stream.tenant), limit=AUDIT_LOOKBACK_EVENTS, reverse=True, decoded=True
    )
    return [
        deletion
        for stored in newest
        if (deletion := decode_deletion(stored))
        and (deletion.kind, deletion.id) == (stream.kind, stream.id)
    ]
