"""Operations on any stream: append events, read their data, delete it and tell the audit stream so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ..backends import AppendResult, Head, HeadFields, StreamKey, clock
from ..errors import Conflict, CorruptRecord
from . import operations as ops
from .blobs import delete_blobs, get_blob, incarnation_hex, put_blob
from .codec import Undecodable, decode, encode
from .context import origin
from .events import INLINE_BYTES, AppendContext, Blob, NewEvent, StoredEvent, encode_envelopes
from .ids import append_id, new_id
from .operations import Operation

AUDIT_ID: Final = "log"
AUDIT_LOOKBACK: Final = 1000


def new_append_context() -> AppendContext:
    """Id, time and origin for one append, taken when the user calls."""
    correlation, actor = origin()
    return AppendContext(new_id(), clock.time(), correlation, actor)


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
    """Append events, large data first and apart. `Conflict` if the stream is deleted in between: run it again."""
    blobs: dict[bytes, Blob] = {}
    # What has a key of its own stays in its record: a large value has the key of the stream.
    large = [event.data for event in events if len(event.data) > INLINE_BYTES and not keys]
    if large:
        if incarnation is None:
            head = yield from ops.head(stream)
            incarnation = head.incarnation if head else append_id(stamp.id)
        for data in large:
            blobs[data] = yield from put_blob(stream, incarnation_hex(incarnation), data, stamp)
    bodies = encode_envelopes(events, stamp, blobs)
    return (
        yield from ops.append(
            ops.AppendRecords(
                stream, bodies, stamp, id, expected, seen, fields, incarnation, exclusive, keys
            )
        )
    )


def data_of(stream: StreamKey, stored: StoredEvent) -> Operation[Any]:
    """The data of an event that was read as plain, wherever it is kept."""
    blob = stored.envelope.blob
    if blob is None:
        return stored.envelope.data
    try:
        return decode((yield from get_blob(stream, blob)))
    except Undecodable as error:
        raise CorruptRecord(str(stream), version=stored.version, what=str(error)) from None


def list_streams(tenant: str, kind: str, after: str) -> Operation[tuple[list[Head], str]]:
    """One page of what is there, and where the next one begins."""
    page = yield from ops.heads(tenant, kind, after=after, places=True)
    return [head for head in page if isinstance(head, Head)], page[-1].stream.id if page else ""


class Deletion(msgspec.Struct, frozen=True):
    """A deletion, as the audit stream tells it. `at` is the engine's time; only the sweep says that."""

    kind: str
    id: str
    incarnation: str = msgspec.field(name="life")
    reason: str
    at: float | None = None


def audit_of(tenant: str) -> StreamKey:
    return StreamKey(tenant, "audit", AUDIT_ID)


def deletion_of(stored: StoredEvent) -> Deletion | None:
    """What an entry of the audit stream says was deleted; None if it is about something else."""
    if stored.envelope.type != "stream.deleted":
        return None
    try:
        return msgspec.convert(stored.envelope.data, Deletion)
    except msgspec.ValidationError:
        return None


def tell_audit(
    head: Head,
    stamp: AppendContext,
    reason: str,
    *,
    type: str = "stream.deleted",
    at: float | None = None,
) -> Operation[AppendResult]:
    """Tell the tenant's audit stream, before a stream goes: so a deletion can be told from tampering."""
    facts = {
        "kind": head.stream.kind,
        "id": head.stream.id,
        "version": head.version,
        "hash": head.hash.hex(),
        "life": incarnation_hex(head.incarnation),
        "reason": reason,
    }
    if at is not None:
        facts["at"] = at
    return (
        yield from append_events(
            audit_of(head.stream.tenant), [NewEvent(type, encode(facts))], stamp
        )
    )


def delete_stream(
    stream: StreamKey, stamp: AppendContext, reason: str, seen: Head | None = None
) -> Operation[bool]:
    """Delete a stream and its blobs; `Conflict` if somebody appended meanwhile (since `seen`, if given): run it again."""
    head = seen or (yield from ops.head(stream))
    if head is None:
        for deletion in (yield from late_deletions(stream)):
            yield from delete_blobs(
                stream, deletion.incarnation
            )  # in case that deletion was cut off
        return False
    yield from tell_audit(head, stamp, reason)
    if not (yield from ops.delete(stream, expected=head)):
        now = yield from ops.head(stream)
        raise Conflict(str(stream), expected=head.version, actual=now.version if now else 0)
    yield from delete_blobs(stream, incarnation_hex(head.incarnation))
    return True


def late_deletions(stream: StreamKey) -> Operation[list[Deletion]]:
    """The deletions of a stream of which the audit stream told lately."""
    newest = yield from ops.read(
        audit_of(stream.tenant), limit=AUDIT_LOOKBACK, reverse=True, plain=True
    )
    told = [deletion_of(stored) for stored in newest]
    return [
        deletion
        for deletion in told
        if deletion and (deletion.kind, deletion.id) == (stream.kind, stream.id)
    ]
