"""Memories about a subject: listed with it before they are stored, and in an encrypted store sealed with its key."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .. import _operations as ops
from .._events import NewEvent, Stamp
from .._ids import append_id
from .._operations import Operation
from .._streams import append_events
from .._subjects import note_subject
from ..backends import Appended, StreamKey
from ._model import Said, Superseded


def subject_of(event: object) -> str | None:
    """Whom an event is about."""
    said = event.by if isinstance(event, Superseded) else event
    return said.subject if isinstance(said, Said) else None


def append_about(
    space: StreamKey, events: Sequence[NewEvent], subjects: Sequence[str | None], stamp: Stamp, *, id: str | None = None
) -> Operation[Appended]:
    """Append events, each about a subject or about none."""
    if not any(subjects):
        return (yield from append_events(space, events, stamp, id=id))
    from ..encryption._data_keys import subject_key

    head = yield from ops.head(space)
    incarnation = head.incarnation if head else append_id(stamp.id)
    keys: dict[str | None, str] = {None: ""}
    for number, subject in enumerate(dict.fromkeys(filter(None, subjects)), len(events)):
        after = msgspec.structs.replace(stamp, id=stamp.id + number)  # the first are those of the events
        keys[subject] = subject_key(subject, (yield from note_subject(space, incarnation, subject, after)))
    named = [keys[subject] for subject in subjects]
    return (yield from append_events(space, events, stamp, id=id, incarnation=incarnation, keys=named))
