"""Forks: who still reads from a stream.

A parent is told of a fork by an event `<kind>.forked` before the fork exists; the fork's first event, `<kind>.branched`,
says which life of which stream it begins with. What is told and what is there may differ: a fork that was cut off or
deleted since is no fork.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeVar

import msgspec

from ..backends import Head, StreamKey
from ..errors import CorruptRecord, Erased
from . import operations as ops
from .blobs import incarnation_hex
from .events import StoredEvent
from .operations import Operation

T = TypeVar("T")


class ForkTaken(msgspec.Struct, frozen=True):
    child: str


class ForkAncestor(msgspec.Struct, frozen=True):
    id: str
    incarnation: str = msgspec.field(name="life")


class _ForkOrigin(msgspec.Struct, frozen=True):
    """A task names the life of its parent; a conversation all lives that it reads from."""

    parent: str
    incarnation: str | None = msgspec.field(default=None, name="life")
    ancestors: list[ForkAncestor] = []


def living_forks(head: Head, gone: Collection[StreamKey] = ()) -> Operation[list[str]]:
    """The ids of the forks that read from this life of a stream, but for those that are as good as `gone`.

    Reads the stream once, from its beginning: nothing else knows of its forks.
    """
    key, found = head.stream, dict[str, bool]()
    incarnation = ForkAncestor(key.id, incarnation_hex(head.incarnation))
    after = 0
    try:
        while page := (yield from ops.read(key, after=after, plain=True)):
            after = page[-1].version
            for stored in page:
                if stored.envelope.type == f"{key.kind}.forked":
                    child = key._replace(id=data_of(key, stored, ForkTaken).child)
                    if child.id not in found and child not in gone:
                        found[child.id] = yield from begins_with(child, incarnation)
    except Erased:
        return []  # nobody reads from it any more
    return [child for child, living in found.items() if living]


def begins_with(child: StreamKey, incarnation: ForkAncestor) -> Operation[bool]:
    try:
        first = yield from ops.read(child, limit=1, plain=True)
    except Erased:
        return False  # it reads from nobody any more
    if not first or first[0].envelope.type != f"{child.kind}.branched":
        return False
    branched = data_of(child, first[0], _ForkOrigin)
    return incarnation in branched.ancestors or (branched.parent, branched.incarnation) == (
        incarnation.id,
        incarnation.incarnation,
    )


def data_of(key: StreamKey, stored: StoredEvent, shape: type[T]) -> T:
    data: Any = stored.envelope.data
    try:
        return msgspec.convert(data, shape)
    except msgspec.ValidationError:
        raise CorruptRecord(
            str(key), version=stored.version, what="its data is not what its type says"
        ) from None
