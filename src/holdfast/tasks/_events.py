"""The events of a task, as they are stored.

Results stand last and are kept raw: folding a task does not decode them. A result over 64 KiB is a blob that the event names,
so that what a task has done can be told without loading what it has produced.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from .._events import Blob, NewEvent
from ..backends import StreamKey
from ..errors import CorruptRecord, UnsupportedVersion
from ._paths import is_path

KIND: Final = "task"

CREATED: Final = "task.created"
BRANCHED: Final = "task.branched"
CLAIMED: Final = "task.claimed"
RENEWED: Final = "task.renewed"
PLANNED: Final = "task.planned"
DECIDED: Final = "task.decided"
DISCOVERED: Final = "task.discovered"
LEFT: Final = "task.left"
FAILED: Final = "task.failed"
CANCELLED: Final = "task.cancelled"
FINISHED: Final = "task.finished"
FORKED: Final = "task.forked"
STEP_STARTED: Final = "step.started"
STEP_PROGRESSED: Final = "step.progressed"
STEP_COMPLETED: Final = "step.completed"
STEP_FAILED: Final = "step.failed"
STEP_SETTLED: Final = "step.settled"


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of what an event holds."""


class Created(Event, frozen=True, omit_defaults=True):
    """The admission: durable before any work. `salt` keys the fingerprints of arguments, so that they tell nothing."""

    salt: str
    ttl: float | None
    goal: str | None = None
    agent: str | None = None
    input: msgspec.Raw = msgspec.Raw(b"null")


class Branched(Event, frozen=True, omit_defaults=True):
    """The first event of a fork: it begins with the events 1 to `at` of that life of its parent."""

    parent: str
    life: str
    at: int


class Forked(Event, frozen=True, omit_defaults=True):
    """A fork was taken at version `at`."""

    child: str
    at: int


class Claimed(Event, frozen=True, omit_defaults=True):
    """A run begins."""

    holder: str
    lease: float
    stolen: bool = False


class Renewed(Event, frozen=True, omit_defaults=True):
    """The holder is alive."""

    holder: str


class Planned(Event, frozen=True, omit_defaults=True):
    """The plan from now on. `id` tells repeated calls on resume from new ones. `paths`: the steps that the items are, if not as they are counted."""

    id: str
    items: list[Any]
    paths: list[str] = []


class Noted(Event, frozen=True, omit_defaults=True):
    """A decision or a discovery. `id` tells repeated calls on resume from new ones."""

    id: str
    text: str
    why: str | None = None
    step: str = ""


class Left(Event, frozen=True, omit_defaults=True):
    """The holder gave the task back without ending it."""

    unasked: list[str] = []
    drift: list[list[str]] = []
    why: str = ""


class Failed(Event, frozen=True, omit_defaults=True):
    """A run ended with an exception. `steps` are those whose failure it was: the next run tries them again."""

    type: str
    message: str
    steps: list[str] = []
    unasked: list[str] = []
    drift: list[list[str]] = []


class Cancelled(Event, frozen=True, omit_defaults=True):
    reason: str | None = None


class Finished(Event, frozen=True, omit_defaults=True):
    unasked: list[str] = []
    drift: list[list[str]] = []
    result: msgspec.Raw = msgspec.Raw(b"null")


class StepEvent(Event, frozen=True, omit_defaults=True):
    """What happened to a step. One shape for all: an end that comes before its start was written tells the start too."""

    step: str
    args: str = ""
    nth: int = 0
    beside: bool = False
    mode: str = ""
    kind: str = "tool"
    code: str = ""
    model: str | None = None
    attempt: int = 1
    since: float | None = None
    how: str = "ran"
    error: str | None = None
    message: str = ""
    causes: list[str] = []
    doubt: bool = False
    again: bool = False
    done: float | None = None
    total: float | None = None
    cursor: msgspec.Raw = msgspec.Raw(b"null")
    blob: Blob | None = None
    result: msgspec.Raw = msgspec.Raw(b"")


_TYPES: dict[str, type[Event]] = {
    CREATED: Created,
    BRANCHED: Branched,
    FORKED: Forked,
    CLAIMED: Claimed,
    RENEWED: Renewed,
    PLANNED: Planned,
    DECIDED: Noted,
    DISCOVERED: Noted,
    LEFT: Left,
    FAILED: Failed,
    CANCELLED: Cancelled,
    FINISHED: Finished,
    STEP_STARTED: StepEvent,
    STEP_PROGRESSED: StepEvent,
    STEP_COMPLETED: StepEvent,
    STEP_FAILED: StepEvent,
    STEP_SETTLED: StepEvent,
}
_by_shape = {shape: msgspec.json.Decoder(shape) for shape in set(_TYPES.values())}
_decoders = {name: _by_shape[shape] for name, shape in _TYPES.items()}
encoded = msgspec.json.Encoder().encode


def new_event(name: str, data: Event) -> NewEvent:
    return NewEvent(name, encoded(data))


def opened(key: StreamKey, version: int, name: str, data: bytes) -> Event:
    """What an event holds, or `CorruptRecord`: whoever can write to the store can write anything."""
    decoder = _decoders.get(name)
    if decoder is None:
        raise UnsupportedVersion(
            f"{key} holds an event that this Holdfast does not know (version {version}); use a newer one"
        )
    try:
        event: Event = decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise CorruptRecord(str(key), version=version, what=f"it is not a {name!r} event") from None
    if isinstance(event, Planned) and event.paths and not _are_paths(event):
        raise CorruptRecord(str(key), version=version, what="it holds a plan whose items are no steps")
    if isinstance(event, Planned) and not all(map(is_plan_item, event.items)):
        raise CorruptRecord(str(key), version=version, what="it holds a plan whose items have no names")
    if isinstance(event, StepEvent) and not is_path(event.step):
        raise CorruptRecord(str(key), version=version, what="it is of a step without a proper path")
    return event


def _are_paths(plan: Planned) -> bool:
    return len(set(plan.paths)) == len(plan.items) == len(plan.paths) and all(map(is_path, plan.paths))


def is_plan_item(item: object) -> bool:
    name = item.get("name") if type(item) is dict else item
    return type(name) is str and name != ""
