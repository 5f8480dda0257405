"""Forks, expiry, deletion and what is told about a conversation at a glance."""

from __future__ import annotations

import msgspec

from ..backends import StreamKey
from ..backends.clock import moment
from ..errors import AlreadyExists, CorruptRecord, HasForks, LeaseLost, NotFound
from ..log import operations as ops
from ..log.blobs import incarnation_hex
from ..log.events import AppendContext
from ..log.forks import living_forks
from ..log.operations import Operation
from ..log.retired_ids import check_open, reopen
from ..log.stream_ops import delete_stream
from . import fold
from .entries import ConversationInfo, ConversationView
from .fold import Ancestor, ConversationBranched, ConversationFold
from .read import KnownConversation, learn, marks_at, segment_at, segments, state_at
from .write import must_exist, new_event, put


class ConversationForked(msgspec.Struct, frozen=True):
    """A fork was taken at version `at`."""

    child: str
    at: int


def fork(
    key: StreamKey, child: StreamKey, version: int | None, stamp: AppendContext, lease_owner: str | None
) -> Operation[None]:
    """Begin another conversation with this one's messages up to a version. Copies nothing.

    The parent hears of it first, so that nobody deletes it unawares; a fork that was cut off there is made by the retry.
    """
    known = must_exist(key, (yield from learn(key, owner=lease_owner)))
    there = yield from _branched(child)
    if version is None and there is not None and there.parent == key.id:
        version = there.at  # made by a call that was cut off, or by this one before
    at = known.version if version is None else version
    if not 1 <= at <= known.version:
        raise NotFound(
            f"{key} has versions 1 to {known.version}; there is no version {at} to fork at"
        )
    branched = ConversationBranched(key.id, at, (yield from _ancestors(key, known, at)))
    standing = yield from ops.head(child)
    if standing is not None:
        if there == branched and standing.version == 1:
            return
        raise AlreadyExists(f"{child} exists already; give the fork an id of its own")
    yield from check_open(child)
    then = yield from state_at(key, known, at)
    marks = yield from marks_at(key, then)
    # The stream that holds the messages hears of it: a fork of a fork may reach past its parent.
    owner = key._replace(id=branched.ancestors[0].id)
    told = must_exist(owner, known if owner == key else (yield from learn(owner)))
    event = new_event(fold.FORKED, ConversationForked(child.id, at), told.fold)
    yield from put(owner, told, [event], stamp)
    first = new_event(fold.BRANCHED, branched, ConversationFold(at, then.count, at), marks)
    yield from put(
        child, None, [first], msgspec.structs.replace(stamp, id=stamp.id + 1), expected=0
    )
    for ancestor in branched.ancestors:
        head = yield from ops.head(key._replace(id=ancestor.id))
        if (
            head is None or incarnation_hex(head.incarnation) != ancestor.incarnation
        ):  # it was deleted while it was forked
            yield from delete_stream(child, stamp, "what it was forked from was deleted meanwhile")
            raise NotFound(f"{key} was deleted while it was forked")


def _ancestors(key: StreamKey, known: KnownConversation, at: int) -> Operation[list[Ancestor]]:
    parts = yield from segments(key, known.fold.base)
    found: list[Ancestor] = []
    for part in parts[parts.index(segment_at(parts, at)) :]:
        head = yield from ops.head(part.key)
        if head is None:
            raise CorruptRecord(str(part.key), what="it was deleted while it was forked")
        upto = at if not found else part.upto
        found.append(Ancestor(part.key.id, incarnation_hex(head.incarnation), part.base, upto))
    return found


def _branched(key: StreamKey) -> Operation[ConversationBranched | None]:
    """What a conversation was forked from, if it was."""
    first = yield from ops.read(key, limit=1, plain=True)
    if not first or first[0].envelope.type != fold.BRANCHED:
        return None
    branched: ConversationBranched = fold.payload(
        key, 1, first[0].envelope.data, ConversationBranched
    )
    return branched


def delete(key: StreamKey, stamp: AppendContext, reason: str, owner: str | None) -> Operation[bool]:
    """Delete a conversation, unless forks still read from it, and free its id. False if there was nothing to do."""
    head = yield from ops.head(key)
    if owner is not None and (head is None or head.fields.owner != owner):
        raise LeaseLost(str(key), owner=head.fields.owner if head else None)
    if head is not None:
        living = yield from living_forks(head)
        if living:
            raise HasForks(str(key), forks=living)
    # At the head that was looked at: a fork that is taken meanwhile moves it.
    deleted = yield from delete_stream(key, stamp, reason, head)
    freed = yield from reopen(key, msgspec.structs.replace(stamp, id=stamp.id + 1))
    return deleted or freed


def expire(
    key: StreamKey, ttl: float | None, stamp: AppendContext, owner: str | None
) -> Operation[None]:
    """Set when a conversation ends, by the engine's clock; None: never."""
    found = yield from learn(key, expired=True, owner=owner)
    if found is None:
        yield from check_open(key)  # what was swept cannot be brought back
    known = must_exist(key, found)
    at = None if ttl is None else known.now + ttl
    fields = msgspec.structs.replace(known.fields, expires_at=at)
    event = new_event(fold.EXPIRES, Expires(at), known.fold)
    yield from put(key, known, [event], stamp, expected=known.record, fields=fields)


class Expires(msgspec.Struct, frozen=True):
    """When the conversation ends (Unix seconds)."""

    at: float | None


def view(key: StreamKey) -> Operation[ConversationView]:
    """A conversation at a glance."""
    known = must_exist(key, (yield from learn(key)))
    marks = yield from marks_at(key, known.fold)
    branched = yield from _branched(key)
    first = yield from ops.read(key, limit=1)
    last = yield from ops.read(key, limit=1, reverse=True)
    expires = known.fields.expires_at
    return ConversationView(
        id=key.id,
        version=known.version,
        messages=known.fold.count,
        created_at=moment(first[0].envelope.at),
        updated_at=moment(last[0].envelope.at),
        expires_at=None if expires is None else moment(expires),
        forked_from=branched.parent if branched else None,
        forked_version=branched.at if branched else None,
        pins=len(marks.pins),
        summarized_upto=marks.covers,
    )


def list_conversations(tenant: str, after: str) -> Operation[tuple[list[ConversationInfo], str]]:
    """One page of what is there and has not expired, and where the next one begins."""
    page = yield from ops.heads(tenant, "conversation", after=after)
    found: list[ConversationInfo] = []
    for head in page:
        expires = head.fields.expires_at
        if expires is None or expires > head.now:
            found.append(
                ConversationInfo(head.stream.id, None if expires is None else moment(expires))
            )
    return found, page[-1].stream.id if page else ""
