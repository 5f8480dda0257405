"""Checkpoints: a task as one mutable document, for applications built around such a document.

A saved checkpoint is a state document: each save stores the changes, and every version stays
readable with `store.state("checkpoint/claims-42").history()`.
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
from ..log.ids import check_id, stream_key
from ..log.log import Log
from ..log.operations import Operation
from ..log.operations.stream_ops import new_append_context
from ..state.state import SAVED, KnownDocument, load_document, save_document
from .state.load import load_view
from .state.view import PlanItem, TaskView


def _now() -> datetime:
    return datetime.now(timezone.utc)


@dataclass
class AgentCheckpoint:
    """The progress of an agent as one document. Change it, then `store.save_checkpoint` it.

    `completed` has the indexes of the finished items of `plan`, `results` their results by that
    index as text: "0", "1", … `decisions` and `discoveries` hold what you put there; in the
    checkpoint of a task a decision is {"what": …, "why": …} and a discovery a text. All values
    except the two times are plain JSON values.
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
            _to_utc(self.created_at, "created_at"),
            _to_utc(self.updated_at, "updated_at"),
        )
        # The document last loaded or saved, and its key; the next save builds on it. Not a field:
        # it is not part of the document.
        self._seen: tuple[StreamKey, KnownDocument] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return a copy of the document for JSON, with the times as ISO text in UTC.

        Raises `TypeError` or `ValueError` for values that would not come back unchanged, such as a
        tuple, a number as a key, or a time without a zone.
        """
        found: dict[str, Any] = decode(_encode_checkpoint(self, self.updated_at))
        return found

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> AgentCheckpoint:
        """Return the checkpoint in a document. All keys after `goal` are optional.

        A time may be ISO text (UTC if it has no zone), Unix seconds, or a datetime. Raises
        `ValueError` for unknown keys.
        """
        if not isinstance(document, Mapping):
            raise TypeError(f"document must be a dict, got {type(document).__name__}")
        given = dict(document)
        names = [each.name for each in fields(AgentCheckpoint)]
        unknown = [key for key in given if key not in names]
        missing = [key for key in names[:3] if key not in given]
        if unknown:
            raise ValueError(
                f"document has unknown keys {', '.join(map(repr, unknown))}; rename or remove "
                f"them. A checkpoint has {', '.join(names)}"
            )
        if missing:
            raise ValueError(f"document must have {', '.join(missing)}")
        for name in ("created_at", "updated_at"):
            if name in given:
                given[name] = _parse_time(given[name], name)
        shared = cls(**given)
        copied = decode(_encode_checkpoint(shared, shared.updated_at))
        return cls(**{**copied, "created_at": shared.created_at, "updated_at": shared.updated_at})


class _Document(msgspec.Struct):
    """The types that a stored checkpoint must have, so that code can rely on them."""

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


def _encode_checkpoint(checkpoint: AgentCheckpoint, updated_at: datetime) -> bytes:
    """Return the document as JSON. Raise if it could not be read again."""
    values = {each.name: getattr(checkpoint, each.name) for each in fields(AgentCheckpoint)}
    values["created_at"] = _to_utc(checkpoint.created_at, "created_at").isoformat()
    values["updated_at"] = _to_utc(updated_at, "updated_at").isoformat()
    raw = encode(values)
    try:
        _check(raw)
    except msgspec.ValidationError as error:
        raise ValueError(f"the checkpoint is not valid: {error}") from None
    return raw


def _to_utc(time: datetime, name: str) -> datetime:
    if not isinstance(time, datetime):
        raise TypeError(f"{name} must be a datetime, got {type(time).__name__}")
    if time.utcoffset() is None:
        raise ValueError(f"{name} must have a time zone; use datetime.now(timezone.utc)")
    try:
        return time.astimezone(timezone.utc)
    except OverflowError:
        raise ValueError(f"{name} must be in the years 1 to 9999 in UTC") from None


def _parse_time(value: object, name: str) -> datetime:
    """Return a time of a document as a datetime."""
    try:
        time = msgspec.convert(value, datetime, strict=False)
    except msgspec.ValidationError:
        raise ValueError(f"{name} must be ISO text, Unix seconds or a datetime") from None
    return time if time.utcoffset() is not None else time.replace(tzinfo=timezone.utc)


def make_checkpoint(view: TaskView) -> AgentCheckpoint:
    """Return a task as a checkpoint: its plan, and the results of the finished items.

    Steps that are not items of the plan are not included.
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
    return stream_key(tenant, "state", f"checkpoint/{check_id(task_id, 'task_id')}")


def save_checkpoint(log: Log, tenant: str, checkpoint: AgentCheckpoint) -> Operation[int]:
    """Save a checkpoint on top of the version it was loaded at.

    Its values and the time are captured by this call, before the operation runs.
    """
    key, stamp = _key(tenant, checkpoint.task_id), new_append_context()
    saved_at = datetime.fromtimestamp(stamp.at, timezone.utc)
    seen = checkpoint._seen
    # With another task_id than it was loaded with, it is a new document.
    known = seen[1] if seen is not None and seen[0] == key else None
    raw = _redact_document(log, _encode_checkpoint(checkpoint, saved_at))
    return _save(key, checkpoint, raw, stamp, saved_at, known)


def _redact_document(log: Log, raw: bytes) -> bytes:
    """Return the document redacted, except its ids and times."""
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
        known = yield from load_document(key)
        if known is not None and known.raw is not None:
            raise Conflict(str(key), expected=0, actual=known.version)
    known = yield from save_document(
        key, raw, stamp, known, if_version=known.version if known else 0
    )
    # Only now: a checkpoint that could not be saved is unchanged, so saving it again is the same.
    checkpoint.updated_at, checkpoint._seen = saved_at, (key, known)
    return known.version


def load_checkpoint(tenant: str, task_id: str) -> Operation[AgentCheckpoint | None]:
    """Return the saved checkpoint, or the task of this id as one; None if there is neither."""
    key = _key(tenant, task_id)
    known = yield from load_document(key)
    if known is None or known.raw is None:
        view = yield from load_view(stream_key(tenant, "task", task_id))
        return None if view is None else make_checkpoint(view)
    try:
        checkpoint = AgentCheckpoint.from_dict(decode(known.raw))
    except (TypeError, ValueError) as error:
        raise SchemaMismatch(
            str(key), version=known.version, type=SAVED, what=f"cannot be read: {error}"
        ) from None
    checkpoint._seen = (key, known)
    return checkpoint
