"""Memories about a subject: listed with it before they are stored, and in an encrypted store sealed with its key; and how they are taken
out of an index that is on disk, where a store is encrypted and its index is not.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..backends import AppendResult, StreamKey, clock
from ..log import operations as ops
from ..log.events import AppendContext, NewEvent
from ..log.ids import append_id
from ..log.log import Log
from ..log.operations import Operation
from ..log.stream_ops import append_events
from ..log.subjects import note_subject
from .fold import IndexChanges
from .model import IndexPosition, Remembering, Superseded
from .search.index import MemoryIndex

EXPIRED = 1_000


def subject_of(event: object) -> str | None:
    """Whom an event is about."""
    said = event.by if isinstance(event, Superseded) else event
    return said.subject if isinstance(said, Remembering) else None


def append_about(
    space: StreamKey,
    events: Sequence[NewEvent],
    subjects: Sequence[str | None],
    stamp: AppendContext,
    *,
    id: str | None = None,
) -> Operation[AppendResult]:
    """Append events, each about a subject or about none."""
    if not any(subjects):
        return (yield from append_events(space, events, stamp, id=id))
    from ..encryption.data_keys import subject_key

    head = yield from ops.head(space)
    incarnation = head.incarnation if head else append_id(stamp.id)
    keys: dict[str | None, str] = {None: ""}
    for number, subject in enumerate(dict.fromkeys(filter(None, subjects)), len(events)):
        after = msgspec.structs.replace(
            stamp, id=stamp.id + number
        )  # the first are those of the events
        keys[subject] = subject_key(
            subject, (yield from note_subject(space, incarnation, subject, after))
        )
    named = [keys[subject] for subject in subjects]
    return (
        yield from append_events(space, events, stamp, id=id, incarnation=incarnation, keys=named)
    )


def take_out(log: Log, space: StreamKey) -> None:
    """Have nothing on disk of what was forgotten in a namespace, nor of what has expired: neither is shown any more, but it is there."""
    from .resources import follower_of

    index = follower_of(log, space).current()
    while (at := index.position(space)) is not None:
        gone = index.expired(space, clock.time(), EXPIRED)
        if not gone:
            break
        index.write(space, at, at, IndexChanges([], list(gone), {}))
    _overwrite(index, space)


def clear_index(log: Log, space: StreamKey) -> None:
    """Have nothing of a namespace in the index."""
    from .resources import follower_of

    index = follower_of(log, space).index
    while (at := index.position(space)) is not None:
        index.clear(space, at)
    _overwrite(index, space)


def _overwrite(index: MemoryIndex, space: StreamKey) -> None:
    """Have the index get rid of what is deleted and still on disk. It does so whenever it clears a namespace: one that is not there will do."""
    beside = space._replace(tenant=f"${space.tenant}")  # no tenant of a user's begins so
    index.write(beside, None, IndexPosition(b"", 0), IndexChanges([], [], {}))
    if (at := index.position(beside)) is not None:
        index.clear(beside, at)
