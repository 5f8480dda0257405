"""Checkpoints: a task as one mutable document, for programs that were written against such a document.

A saved checkpoint is a state document, so that each save stores what changed and every version stays readable:
`store.state("checkpoint/claims-42").history()`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from typing import Any

import msgspec

from ..backends import StreamKey
from ..errors import Conflict, SchemaMismatch
from ..log.codec import decode, encode
from ..log.events import AppendContext
from ..log.ids import checked_id, stream_key
from ..log.log import Log
from ..log.operations import Operation
from ..log.stream_ops import new_append_context
from ..state.state import SAVED, KnownDocument, find, save
from .state.load import get_view
from .state.view import PlanItem, TaskView


def _now() -> datetime:
    return datetime.now(timezone.utc)


@dataclass
class AgentCheckpoint:
    """How far an agent has got, as one document. It is yours to change: work on it, then `store.save_checkpoint` it.

    `completed` holds the indexes of the items of `plan` that are done, `results` their results under "0", "1", …: that index as
    text. `decisions` and `discoveries` hold what you put there; in the checkpoint of a task a decision is
    {"what": …, "why": …} and a discovery its text. Everything but the two times is JSON-native.
    """

    agent_id: str
    task_id: str
    goal: str
    plan: list[PlanItem] = field(default_factory=list, repr=False)
    completed: list[int] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict, repr=False)
    decisions: list[Any] = field(default_factory=list, repr=False)
    discoveries: list[Any] = field(default_factory=list, repr=False)
    created_at: datetime = field(default_factory=_now)
    updated_at: datetime = field(default_factory=_now)

    def __post_init__(self) -> None:
        self.created_at, self.updated_at = (
            _utc(self.created_at, "created_at"),
            _utc(self.updated_at, "updated_at"),
        )
        # What was last loaded or saved, and where; the next save builds on it. Not a field: it is no part of the document.
        self._seen: tuple[StreamKey, KnownDocument] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The document, for JSON: a copy of its own, with the times as ISO text in UTC.

        What would not come back as it is (a tuple, a number as a key, a time without a zone) is a TypeError or a ValueError.
        """
        found: dict[str, Any] = decode(_written(self, self.updated_at))
        return found

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> AgentCheckpoint:
        """The checkpoint in a document. What is missing after `goal` has its default; keys of no field are a ValueError.

        A time may be ISO text (in UTC if it names no zone), seconds since 1970, or a datetime.
        """
        if not isinstance(document, Mapping):
            raise TypeError(f"document must be a dict, got {type(document).__name__}")
        given = dict(document)
        names = [each.name for each in fields(AgentCheckpoint)]
        unknown, missing = (
            [key for key in given if key not in names],
            [key for key in names[:3] if key not in given],
        )
        if unknown:
            raise ValueError(
                f"a checkpoint has no {', '.join(map(repr, unknown))}; rename them or leave them out. "
                f"It has {', '.join(names)}"
            )
        if missing:
            raise ValueError(f"a checkpoint needs {', '.join(missing)}")
        for name in ("created_at", "updated_at"):
            if name in given:
                given[name] = _time(given[name], name)
        made = cls(**given)
        copied = decode(
            _written(made, made.updated_at)
        )  # so that it shares nothing with the document
        return cls(**{**copied, "created_at": made.created_at, "updated_at": made.updated_at})


class _Document(msgspec.Struct):
    """What a stored checkpoint must look like. Enough of it that code which reads one finds what it expects."""

    agent_id: str
    task_id: str
    goal: str
    plan: list[PlanItem]
    completed: list[int]
    results: dict[str, Any]
    decisions: list[Any]
    discoveries: list[Any]


_check = msgspec.json.Decoder(_Document).decode
_OURS = ("agent_id", "task_id", "completed", "created_at", "updated_at")


def _written(checkpoint: AgentCheckpoint, updated_at: datetime) -> bytes:
    """The document as JSON, after making sure that it can be read again."""
    values = {each.name: getattr(checkpoint, each.name) for each in fields(AgentCheckpoint)}
    values["created_at"] = _utc(checkpoint.created_at, "created_at").isoformat()
    values["updated_at"] = _utc(updated_at, "updated_at").isoformat()
    raw = encode(values)
    try:
        _check(raw)
    except msgspec.ValidationError as error:
        raise ValueError(f"not a checkpoint: {error}") from None
    return raw


def _utc(time: datetime, name: str) -> datetime:
    if not isinstance(time, datetime):
        raise TypeError(f"{name} must be a datetime, got {type(time).__name__}")
    if time.utcoffset() is None:
        raise ValueError(
            f"{name} has no time zone, so it could be any of 24 hours; use datetime.now(timezone.utc)"
        )
    try:
        return time.astimezone(timezone.utc)
    except OverflowError:
        raise ValueError(f"{name} is outside the years 1 to 9999 in UTC") from None


def _time(value: object, name: str) -> datetime:
    """A time as documents have it."""
    try:
        time = msgspec.convert(value, datetime, strict=False)
    except msgspec.ValidationError:
        raise ValueError(f"{name} is not a time: neither ISO text nor seconds since 1970") from None
    return time if time.utcoffset() is not None else time.replace(tzinfo=timezone.utc)


def checkpoint_of(view: TaskView) -> AgentCheckpoint:
    """A task as a checkpoint: its plan, and the results of the items that are finished.

    A checkpoint knows the plan and nothing else: steps that are not items of it are left out.
    """
    steps = {step.path: step for step in view.steps}
    done = {
        index: steps[path].result
        for index, path in enumerate(view.plan_paths)
        if path in steps and steps[path].status == "completed"
    }
    return AgentCheckpoint(
        agent_id=view.agent or "",
        task_id=view.id,
        goal=view.goal or "",
        plan=copy.deepcopy(view.plan),
        completed=list(done),
        results={str(index): copy.deepcopy(result) for index, result in done.items()},
        decisions=[{"what": note.text, "why": note.why} for note in view.decisions],
        discoveries=[note.text for note in view.discoveries],
        created_at=view.created_at,
        updated_at=view.updated_at,
    )


# -- stored as state documents ---------------------------------------------------------------------


def _key(tenant: str, task_id: str) -> StreamKey:
    return stream_key(tenant, "state", f"checkpoint/{checked_id(task_id, 'task_id')}")


def save_checkpoint(log: Log, tenant: str, checkpoint: AgentCheckpoint) -> Operation[int]:
    """Save a checkpoint upon the version that it was loaded at. Its values and the time are taken when this is called."""
    key, stamp = _key(tenant, checkpoint.task_id), new_append_context()
    saved_at = datetime.fromtimestamp(stamp.at, timezone.utc)
    seen = checkpoint._seen
    known = (
        seen[1] if seen is not None and seen[0] == key else None
    )  # else its task_id was changed: a new document
    raw = _redacted(log, _written(checkpoint, saved_at))
    return _save(key, checkpoint, raw, stamp, saved_at, known)


def _redacted(log: Log, raw: bytes) -> bytes:
    """The document as it is to be stored. Its ids and times stay."""
    if log.redactor is None:
        return raw
    document = decode(raw)
    return encode(
        {
            name: part if name in _OURS else log.redactor.value(part)
            for name, part in document.items()
        }
    )


def _save(
    key: StreamKey,
    checkpoint: AgentCheckpoint,
    raw: bytes,
    stamp: AppendContext,
    saved_at: datetime,
    known: KnownDocument | None,
) -> Operation[int]:
    if known is None:
        known = yield from find(key)
        if known is not None and known.raw is not None:
            raise Conflict(str(key), expected=0, actual=known.version)
    known = yield from save(key, raw, stamp, known, if_version=known.version if known else 0)
    # Only now: a checkpoint that could not be saved is as it was, and saving it again has the same answer.
    checkpoint.updated_at, checkpoint._seen = saved_at, (key, known)
    return known.version


def load_checkpoint(tenant: str, task_id: str) -> Operation[AgentCheckpoint | None]:
    """The saved checkpoint; without one, what the task of this id would look like as one; None if there is neither."""
    key = _key(tenant, task_id)
    known = yield from find(key)
    if known is None or known.raw is None:
        view = yield from get_view(stream_key(tenant, "task", task_id))
        return None if view is None else checkpoint_of(view)
    try:
        checkpoint = AgentCheckpoint.from_dict(decode(known.raw))
    except (TypeError, ValueError) as error:
        raise SchemaMismatch(
            str(key), version=known.version, type=SAVED, what=f"cannot be read: {error}"
        ) from None
    checkpoint._seen = (key, known)
    return checkpoint
