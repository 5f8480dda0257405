"""Forks of a stream: which other streams still read from it.

The parent records a fork in an event `<kind>.forked` before the fork exists. The fork's first
event, `<kind>.branched`, names the incarnation of the parent that it starts from. A recorded fork
may not exist: its creation was interrupted, or it was deleted since.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeVar

import msgspec

from ...backends import Head, StreamKey
from ...errors import CorruptRecord, DataProblem, Erased
from .. import operations as ops
from ..events import StoredEvent
from . import Operation

T = TypeVar("T")


class ForkTaken(msgspec.Struct, frozen=True):
    child: str


class ForkAncestor(msgspec.Struct, frozen=True):
    id: str
    incarnation: str


class _ForkOrigin(msgspec.Struct, frozen=True):
    """A task names the incarnation of its parent; a conversation names all that it reads from."""

    parent: str
    incarnation: str | None = None
    ancestors: list[ForkAncestor] = []


def list_forks(
    head: Head, gone: Collection[StreamKey] = (), *, damaged: bool = False
) -> Operation[list[str]]:
    """Return the ids of the forks that read from this incarnation, except those in `gone`.

    This reads the whole stream, which is the only record of its forks. If it is damaged, raise,
    or with `damaged` look through all streams of the kind.
    """
    key, found = head.stream, dict[str, bool]()
    incarnation = ForkAncestor(key.id, head.incarnation.hex())
    after = 0
    try:
        while page := (yield from ops.read(key, after=after, decoded=True)):
            after = page[-1].version
            for stored in page:
                if stored.envelope.type == f"{key.kind}.forked":
                    child = key._replace(id=convert_data(key, stored, ForkTaken).child)
                    if child.id not in found and child not in gone:
                        found[child.id] = yield from is_fork_of(child, incarnation)
    except Erased:
        return []  # its forks cannot read it any more
    except DataProblem:
        if not damaged:
            raise
        # Forks that are recorded after the damage are found by their own first events.
        return (yield from _find_forks(key, incarnation, gone))
    return [child for child, is_live in found.items() if is_live]


def _find_forks(
    key: StreamKey, parent: ForkAncestor, gone: Collection[StreamKey]
) -> Operation[list[str]]:
    """Look for forks among all streams of the kind. Damaged ones read nothing any more."""
    found: list[str] = []
    after = ""
    while page := (yield from ops.heads(key.tenant, key.kind, after=after, damaged=True)):
        after = page[-1].stream.id
        for entry in page:
            try:
                if entry.stream not in gone and (yield from is_fork_of(entry.stream, parent)):
                    found.append(entry.stream.id)
            except DataProblem:
                continue
    return found


def is_fork_of(child: StreamKey, parent: ForkAncestor) -> Operation[bool]:
    """Return whether a stream is a fork that reads from this incarnation of the parent."""
    try:
        first = yield from ops.read(child, limit=1, decoded=True)
    except Erased:
        return False  # an erased fork reads nothing any more
    if not first or first[0].envelope.type != f"{child.kind}.branched":
        return False
    origin = convert_data(child, first[0], _ForkOrigin)
    return parent in origin.ancestors or parent == ForkAncestor(
        origin.parent, origin.incarnation or ""
    )


def list_ancestors(stream: StreamKey) -> Operation[list[ForkAncestor]]:
    """Return the incarnations that a stream reads from as a fork; none if it isn't one."""
    first = yield from ops.read(stream, limit=1, decoded=True)
    if not first or first[0].envelope.type != f"{stream.kind}.branched":
        return []
    origin = convert_data(stream, first[0], _ForkOrigin)
    parent = [ForkAncestor(origin.parent, origin.incarnation)] if origin.incarnation else []
    return [*parent, *origin.ancestors]


def convert_data(key: StreamKey, stored: StoredEvent, struct: type[T]) -> T:
    """Convert the data of an event to a struct. Raise `CorruptRecord` if it does not fit."""
    data: Any = stored.envelope.data
    try:
        return msgspec.convert(data, struct)
    except msgspec.ValidationError:
        raise CorruptRecord(
            str(key), version=stored.version, what="its data does not fit its event type"
        ) from None
