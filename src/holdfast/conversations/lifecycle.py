"""Fork, expire, delete, view and list conversations."""

from __future__ import annotations

import msgspec

from ..backends import StreamKey
from ..backends.clock import to_datetime
from ..errors import AlreadyExists, CorruptRecord, HasForks, LeaseLost, NotFound, TamperDetected
from ..log import operations as ops
from ..log.events import AppendContext
from ..log.head_fields import is_expired
from ..log.operations import Operation
from ..log.operations.forks import list_forks
from ..log.operations.retired_ids import check_not_retired, free_id
from ..log.operations.stream_ops import delete_stream, readable_head
from . import fold
from .entries import ConversationInfo, ConversationView
from .fold import Ancestor, ConversationBranched, ConversationFold
from .read import (
    ConversationSnapshot,
    find_segment,
    load_snapshot,
    load_snapshot_at,
    read_fold_at,
    read_marks,
    read_segments,
)
from .sliding_expiry import encode_label
from .write import new_event, require_snapshot, store_events


class ConversationForked(msgspec.Struct, frozen=True):
    """A fork was taken at version `at`."""

    child: str
    at: int


def fork_conversation(
    key: StreamKey,
    child: StreamKey,
    version: int | None,
    stamp: AppendContext,
    lease_owner: str | None,
) -> Operation[None]:
    """Start another conversation with the messages up to a version. Nothing is copied.

    The fork is recorded in the parent first, so that no other process deletes the parent meanwhile.
    If the process dies in between, a retry creates the fork.
    """
    try:
        loaded = yield from load_snapshot(key, owner=lease_owner)
    except (CorruptRecord, TamperDetected):
        if version is None:
            raise
        loaded = yield from load_snapshot_at(key, version)  # the part before the damage
    snapshot = require_snapshot(key, loaded)
    existing = yield from _read_branched(child)
    if version is None and existing is not None and existing.parent == key.id:
        version = existing.at  # from an interrupted call, or an earlier attempt of this one
    at = snapshot.version if version is None else version
    if not 1 <= at <= snapshot.version:
        raise NotFound(f"version must be between 1 and {snapshot.version} to fork {key}, got {at}")
    branched = ConversationBranched(key.id, at, (yield from _read_ancestors(key, snapshot, at)))
    child_head = yield from ops.head(child)
    if child_head is not None:
        if existing == branched and child_head.version == 1:
            return
        raise AlreadyExists(f"{child} already exists; choose another id for the fork")
    yield from check_not_retired(child)
    then = yield from read_fold_at(key, snapshot, at)
    marks = yield from read_marks(key, then)
    # Record the fork in the stream that has this version: for a fork of a fork, it may be an
    # ancestor.
    origin = key._replace(id=branched.ancestors[0].id)
    if origin != key:
        snapshot = require_snapshot(origin, (yield from load_snapshot(origin)))
    event = new_event(fold.FORKED, ConversationForked(child.id, at), snapshot.fold)
    yield from store_events(origin, snapshot, [event], stamp)
    first = new_event(fold.BRANCHED, branched, ConversationFold(at, then.count, at), marks)
    yield from store_events(
        child, None, [first], msgspec.structs.replace(stamp, id=stamp.id + 1), expected=0
    )
    for ancestor in branched.ancestors:
        head = yield from ops.head(key._replace(id=ancestor.id))
        if head is None or head.incarnation.hex() != ancestor.incarnation:
            yield from delete_stream(child, stamp, "its parent was deleted while it was forked")
            raise NotFound(f"{key} was deleted while it was being forked")


def _read_ancestors(
    key: StreamKey, snapshot: ConversationSnapshot, at: int
) -> Operation[list[Ancestor]]:
    parts = yield from read_segments(key, snapshot.fold.base)
    found: list[Ancestor] = []
    for part in parts[parts.index(find_segment(parts, at)) :]:
        head = yield from ops.head(part.key)
        if head is None:
            raise CorruptRecord(str(part.key), what="it was deleted while it was forked")
        upto = at if not found else part.upto
        found.append(Ancestor(part.key.id, head.incarnation.hex(), part.base, upto))
    return found


def _read_branched(key: StreamKey) -> Operation[ConversationBranched | None]:
    """Return the origin of a conversation, if it is a fork."""
    first = yield from ops.read(key, limit=1, decoded=True)
    if not first or first[0].envelope.type != fold.BRANCHED:
        return None
    branched: ConversationBranched = fold.decode_payload(
        key, 1, first[0].envelope.data, ConversationBranched
    )
    return branched


def delete_conversation(
    key: StreamKey, stamp: AppendContext, reason: str, owner: str | None
) -> Operation[bool]:
    """Delete a conversation, unless it has forks, and free its id.

    Return False if there was nothing to do.
    """
    head = yield from readable_head(key)
    if owner is not None and (head is None or head.fields.owner != owner):
        raise LeaseLost(str(key), owner=head.fields.owner if head else None)
    if head is not None:
        forks = yield from list_forks(head, damaged=True)
        if forks:
            raise HasForks(str(key), forks=forks)
    # Delete only at this head: a fork that was created meanwhile has moved it.
    deleted = yield from delete_stream(key, stamp, reason, head)
    freed = yield from free_id(key, msgspec.structs.replace(stamp, id=stamp.id + 1))
    return deleted or freed


def set_expiry(
    key: StreamKey, ttl: float | None, sliding: bool, stamp: AppendContext, owner: str | None
) -> Operation[None]:
    """Set when a conversation expires, by the database clock; None means never.

    With `sliding`, the time starts again with each append.
    """
    snapshot = yield from load_snapshot(key, expired=True, owner=owner)
    if snapshot is None:
        yield from check_not_retired(key)  # a purged conversation cannot be restored
    snapshot = require_snapshot(key, snapshot)
    at = None if ttl is None else snapshot.now + ttl
    every = ttl if sliding else None
    fields = msgspec.structs.replace(snapshot.fields, expires_at=at, label=encode_label(every))
    event = new_event(fold.EXPIRES, Expires(at, every), snapshot.fold)
    yield from store_events(key, snapshot, [event], stamp, expected=snapshot.record, fields=fields)


class Expires(msgspec.Struct, frozen=True, omit_defaults=True):
    """When the conversation expires, in Unix seconds. `ttl` is set for a sliding expiry."""

    at: float | None
    ttl: float | None = None


def read_view(key: StreamKey) -> Operation[ConversationView]:
    """Return an overview of a conversation."""
    snapshot = require_snapshot(key, (yield from load_snapshot(key)))
    marks = yield from read_marks(key, snapshot.fold)
    branched = yield from _read_branched(key)
    first = yield from ops.read(key, limit=1)
    last = yield from ops.read(key, limit=1, reverse=True)
    expires = snapshot.fields.expires_at
    return ConversationView(
        id=key.id,
        version=snapshot.version,
        messages=snapshot.fold.count,
        created_at=to_datetime(first[0].envelope.at),
        updated_at=to_datetime(last[0].envelope.at),
        expires_at=None if expires is None else to_datetime(expires),
        forked_from=branched.parent if branched else None,
        forked_version=branched.at if branched else None,
        pins=len(marks.pins),
        summarized_upto=marks.covers,
    )


def list_conversations(tenant: str, after: str) -> Operation[tuple[list[ConversationInfo], str]]:
    """Return a page of unexpired conversations, and where the next page starts."""
    page = yield from ops.heads(tenant, "conversation", after=after)
    found: list[ConversationInfo] = []
    for head in page:
        expires = head.fields.expires_at
        if not is_expired(head):
            found.append(
                ConversationInfo(head.stream.id, None if expires is None else to_datetime(expires))
            )
    return found, page[-1].stream.id if page else ""
