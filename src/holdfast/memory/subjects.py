"""Memories about a subject: append them with the subject's key, and purge them from the index."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..backends import AppendResult, StreamKey, clock
from ..log import operations as ops
from ..log.events import AppendContext, NewEvent
from ..log.ids import append_id
from ..log.log import Log
from ..log.operations import Operation
from ..log.operations.stream_ops import append_events
from ..log.operations.subjects import register_use
from .fold import IndexChanges
from .model import Consolidated, IndexPosition, Remembered, Superseded
from .search.index import MemoryIndex


def event_subject(event: object) -> str | None:
    """Return the subject of an event, if it has one."""
    if isinstance(event, Consolidated):
        return event.subject
    memory = event.by if isinstance(event, Superseded) else event
    return memory.subject if isinstance(memory, Remembered) else None


def append_about(
    space: StreamKey,
    events: Sequence[NewEvent],
    subjects: Sequence[str | None],
    stamp: AppendContext,
    *,
    id: str | None = None,
) -> Operation[AppendResult]:
    """Append events, each with its subject or None.

    A subject is registered before its events are stored. In an encrypted store, they are encrypted
    with the subject's key.
    """
    if not any(subjects):
        return (yield from append_events(space, events, stamp, id=id))
    from ..encryption.data_keys import subject_key_name

    head = yield from ops.head(space)
    incarnation = head.incarnation if head else append_id(stamp.id)
    keys: dict[str | None, str] = {None: ""}
    for number, subject in enumerate(dict.fromkeys(filter(None, subjects)), len(events)):
        # The events use the first ids.
        context = msgspec.structs.replace(stamp, id=stamp.id + number)
        keys[subject] = subject_key_name(
            subject, (yield from register_use(space, incarnation, subject, context))
        )
    key_names = [keys[subject] for subject in subjects]
    return (
        yield from append_events(
            space, events, stamp, id=id, incarnation=incarnation, keys=key_names
        )
    )


def purge_index(log: Log, space: StreamKey) -> None:
    """Overwrite forgotten and expired memories of a namespace in the index.

    They are no longer recalled, but a plaintext index on disk may still contain them.
    """
    from .resources import get_follower
    from .search.catch_up import remove_expired

    index = get_follower(log, space).current()
    remove_expired(index, space, clock.time())
    _overwrite_deleted(index, space)


def clear_index(log: Log, space: StreamKey) -> None:
    """Remove a namespace from the index."""
    from .resources import get_follower

    index = get_follower(log, space).index
    while (at := index.position(space)) is not None:
        index.clear(space, at)
    _overwrite_deleted(index, space)


def _overwrite_deleted(index: MemoryIndex, space: StreamKey) -> None:
    """Make the index overwrite deleted rows on disk.

    The index does so whenever it clears a namespace, so this creates an empty one and clears it.
    """
    beside = space._replace(tenant=f"${space.tenant}")  # "$" can't start a user's tenant
    index.write(beside, None, IndexPosition(b"", 0), IndexChanges([], [], {}))
    if (at := index.position(beside)) is not None:
        index.clear(beside, at)
