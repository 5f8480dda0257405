"""Checkpoints: a task as one mutable document, for applications built around such a document.

A saved checkpoint is a state document: each save stores the changes, and every version stays
readable with `store.state("checkpoint/claims-42").history()`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import msgspec

from ..backends import Head, HeadFields, StreamKey, clock
from ..errors import Conflict, SchemaMismatch
from ..log import operations as ops
from ..log.codec import decode, encode
from ..log.codec.read_only import freeze
from ..log.events import AppendContext, new_append_context
from ..log.head_fields import is_expired, slide_expiry
from ..log.ids import check_id, stream_key
from ..log.log import Log
from ..log.operations import Operation
from ..log.operations.retired_ids import is_retired
from ..log.validation import check_seconds
from ..state.state import (
    SAVED,
    KnownDocument,
    StateFold,
    append_expiry,
    append_value,
    delete_document,
    follow_expiries,
    load_at_head,
)
from .state.load import load_view
from .state.view import DEFAULT_CONTEXT_TOKENS, PlanItem, TaskView

if TYPE_CHECKING:
    from ..conversations.tokens import Counter
    from .resume_context.context import ResumeContext

READ_ONLY: Final = (
    "the checkpoint of a task is read-only, because changes to it would not reach the task; use"
    " task.discover(), task.decide(), task.make_plan() or task.step(), or change a copy:"
    " AgentCheckpoint.from_dict(checkpoint.to_dict())"
)

C = TypeVar("C", bound="AgentCheckpoint")


def _now() -> datetime:
    return datetime.now(timezone.utc)


class SeenDocument(msgspec.Struct, frozen=True):
    """The stored document that a checkpoint last loaded or saved. The next save builds on it.

    `ahead` is how many seconds the backend's clock was ahead of the local one.
    """

    key: StreamKey
    document: KnownDocument
    ahead: float


@dataclass
class AgentCheckpoint:
    """The progress of an agent as one document. Change it, then `store.save_checkpoint` it.

    `completed` has the indexes of the finished items of `plan`. `results` maps these indexes, as
    text ("0", "1", …), to the items' results. `decisions` and `discoveries` hold what you put
    there; in a task's checkpoint, a decision is {"what": …, "why": …} and a discovery is text.

    Attributes that you add (`checkpoint.retries = 3`) and the fields of a dataclass that extends
    this one are part of the document as well, unless their names start with an underscore. All
    values except the two times are plain JSON values.

    The checkpoint that `task.checkpoint()` returns is read-only.
    """

    agent_id: str
    task_id: str
    goal: str = ""
    plan: list[PlanItem] = field(default_factory=list, repr=False)
    completed: list[int] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict, repr=False)
    decisions: list[Any] = field(default_factory=list, repr=False)
    discoveries: list[Any] = field(default_factory=list, repr=False)
    created_at: datetime = field(default_factory=_now)
    updated_at: datetime = field(default_factory=_now)

    # Not fields: they are not part of the document.
    _seen: ClassVar[SeenDocument | None] = None
    _read_only: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.created_at, self.updated_at = (
            _to_utc(self.created_at, "created_at"),
            _to_utc(self.updated_at, "updated_at"),
        )

    def __setattr__(self, name: str, value: object) -> None:
        if self._read_only:
            raise TypeError(READ_ONLY)
        super().__setattr__(name, value)

    def resume_context(
        self,
        max_tokens: int = DEFAULT_CONTEXT_TOKENS,
        *,
        notes: Sequence[str] = (),
        counter: Counter | None = None,
    ) -> ResumeContext:
        """Return text for the model: what is done, decided and found out, and what is next.

        It is the text of `Task.resume_context`, from this document and without memories.
        """
        from .resume_context.document import build_checkpoint_context

        return build_checkpoint_context(self, max_tokens, notes=notes, counter=counter)

    def to_dict(self) -> dict[str, Any]:
        """Return a copy of the document for JSON, with the times as ISO text in UTC.

        Raises `TypeError` or `ValueError` for values that would not come back unchanged, such as a
        tuple, a number as a key, or a time without a zone.
        """
        found: dict[str, Any] = decode(_encode_checkpoint(self, self.updated_at))
        return found

    @classmethod
    def from_dict(cls: type[C], document: Mapping[str, Any]) -> C:
        """Create a checkpoint from a document. Only `agent_id` and `task_id` are required.

        Keys that are not fields become attributes, so that nothing is lost. A time may be ISO text
        (UTC if it has no zone), Unix seconds, or a datetime.
        """
        if not isinstance(document, Mapping):
            raise TypeError(f"document must be a dict, got {type(document).__name__}")
        given = dict(document)
        missing = [key for key in ("agent_id", "task_id") if key not in given]
        if missing:
            raise ValueError(f"document must have {', '.join(missing)}")
        times = {name: _parse_time(given.pop(name), name) for name in _TIMES if name in given}
        values: dict[str, Any] = decode(encode(given)) | times
        names = {each.name: each.init for each in fields(cls)}
        checkpoint = cls(**{name: value for name, value in values.items() if names.get(name)})
        for name in values.keys() - names.keys():
            _check_name(cls, name)
        for name, value in values.items():
            if not names.get(name):
                setattr(checkpoint, name, value)
        _encode_checkpoint(checkpoint, checkpoint.updated_at)
        return checkpoint


class _Document(msgspec.Struct):
    """The types of a stored checkpoint's fields. They are checked, so code can rely on them."""

    agent_id: str
    task_id: str
    goal: str
    plan: list[PlanItem]
    completed: list[int]
    results: dict[str, Any]
    decisions: list[Any]
    discoveries: list[Any]


_check = msgspec.json.Decoder(_Document).decode
_TIMES = ("created_at", "updated_at")
_OURS = ("agent_id", "task_id", "completed", *_TIMES)
_NAMES = tuple(each.name for each in fields(AgentCheckpoint))


def _encode_checkpoint(checkpoint: AgentCheckpoint, updated_at: datetime) -> bytes:
    """Return the document as JSON. Raise if it could not be read back."""
    values = {each.name: getattr(checkpoint, each.name) for each in fields(checkpoint)}
    for name, value in vars(checkpoint).items():
        if name not in values and not name.startswith("_"):
            _check_name(type(checkpoint), name)
            values[name] = value
    values["created_at"] = _to_utc(checkpoint.created_at, "created_at").isoformat()
    values["updated_at"] = _to_utc(updated_at, "updated_at").isoformat()
    raw = encode(values)
    try:
        _check(raw)
    except msgspec.ValidationError as error:
        raise ValueError(f"the checkpoint is not valid: {error}") from None
    return raw


def _check_name(kind: type[AgentCheckpoint], name: str) -> None:
    """Raise `ValueError` if a document cannot have an attribute with this name."""
    if name.startswith("_"):
        raise ValueError(f"the names in a checkpoint must not start with '_', got {name!r}")
    if hasattr(getattr(kind, name, None), "__get__"):
        raise ValueError(
            f"{name!r} is a method of {kind.__name__}, so a checkpoint cannot store a value under"
            " that name; choose another one"
        )


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
    """Convert a time from a document to a datetime."""
    try:
        time = msgspec.convert(value, datetime, strict=False)
    except msgspec.ValidationError:
        raise ValueError(f"{name} must be ISO text, Unix seconds or a datetime") from None
    return time if time.utcoffset() is not None else time.replace(tzinfo=timezone.utc)


def make_checkpoint(view: TaskView, kind: type[C]) -> C:
    """Return a task as a read-only checkpoint: its plan, and the results of the finished items.

    Steps that are not items of the plan are not included.
    """
    steps = {step.path: step for step in view.steps}
    done = {
        index: steps[path].result
        for index, path in enumerate(view.plan_paths)
        if path in steps and steps[path].status == "completed"
    }
    checkpoint = kind(
        agent_id=view.agent or "",
        task_id=view.id,
        goal=view.goal or "",
        plan=freeze(view.plan, READ_ONLY),
        completed=freeze(list(done), READ_ONLY),
        results=freeze({str(index): result for index, result in done.items()}, READ_ONLY),
        decisions=freeze(
            [{"what": note.text, "why": note.why} for note in view.decisions], READ_ONLY
        ),
        discoveries=freeze([note.text for note in view.discoveries], READ_ONLY),
        created_at=view.created_at,
        updated_at=view.updated_at,
    )
    vars(checkpoint)["_read_only"] = True
    return checkpoint


# -- stored as state documents ---------------------------------------------------------------------


def _key(tenant: str, task_id: str) -> StreamKey:
    return stream_key(tenant, "state", f"checkpoint/{check_id(task_id, 'task_id')}")


def save_checkpoint(
    log: Log, tenant: str, checkpoint: AgentCheckpoint, ttl: float | timedelta | None
) -> Operation[int]:
    """Save a checkpoint on top of the version it was loaded at.

    This call captures its values and the time; the returned operation stores them.
    """
    if checkpoint._read_only:
        raise TypeError(READ_ONLY)
    seconds = None if ttl is None else check_seconds(ttl, "ttl")
    key, stamp = _key(tenant, checkpoint.task_id), new_append_context()
    saved_at = datetime.fromtimestamp(stamp.at, timezone.utc)
    seen = checkpoint._seen
    # If its task_id has changed since it was loaded, it is a new document.
    if seen is not None and seen.key != key:
        seen = None
    raw = _redact_document(log, _encode_checkpoint(checkpoint, saved_at))
    return _save(key, checkpoint, raw, stamp, saved_at, seen, seconds)


def _redact_document(log: Log, raw: bytes) -> bytes:
    """Redact the document, except its ids and times."""
    if log.redactor is None:
        return raw
    document = decode(raw)
    redacted = {
        name: document.pop(name) if name in _OURS else log.redactor.value(document.pop(name))
        for name in _NAMES
    }
    # The application chose the remaining names, and a name may mark a secret.
    return encode(redacted | log.redactor.value(document))


def _save(
    key: StreamKey,
    checkpoint: AgentCheckpoint,
    raw: bytes,
    stamp: AppendContext,
    saved_at: datetime,
    seen: SeenDocument | None,
    ttl: float | None,
) -> Operation[int]:
    known, ahead = (
        (yield from _find_basis(key, stamp)) if seen is None else (seen.document, seen.ahead)
    )
    while True:
        fields = _expiry_fields(known, stamp.at + ahead, ttl)
        try:
            saved, now = yield from append_value(key, raw, stamp, known, fields)
            break
        except Conflict:
            if seen is None or known is None:
                raise
            known = yield from _rebase(key, known)
    ahead = now - stamp.at
    # Only now, so that a checkpoint that could not be saved is unchanged and can be saved again.
    checkpoint.updated_at = saved_at
    _set_seen(checkpoint, SeenDocument(key, saved, ahead))
    if known is None and ttl is not None and abs(ahead) > clock.MAX_SKEW_SECONDS:
        # A new document's expiry is by the local clock, until the response shows the backend's.
        after = msgspec.structs.replace(stamp, id=stamp.id + 1)
        try:
            corrected = yield from append_expiry(key, now + ttl, after, saved)
        except Conflict:
            pass  # another process has saved it since, and set its expiry
        else:
            _set_seen(checkpoint, SeenDocument(key, corrected, ahead))
    return saved.version


def _set_seen(checkpoint: AgentCheckpoint, seen: SeenDocument) -> None:
    vars(checkpoint)["_seen"] = seen


def _expiry_fields(known: KnownDocument | None, now: float, ttl: float | None) -> HeadFields | None:
    """Return the head fields with the new expiry; None if the expiry doesn't change."""
    expires_at = None if known is None else known.expires_at
    new = None if ttl is None else slide_expiry(expires_at, now, ttl)
    return None if new == expires_at else HeadFields(expires_at=new)


def _find_basis(
    key: StreamKey, stamp: AppendContext
) -> Operation[tuple[KnownDocument | None, float]]:
    """Return what a new checkpoint builds on: nothing, or a cleared or expired document.

    Also return how many seconds the backend's clock is ahead.
    """
    head = yield from ops.head(key)
    if head is None:
        return None, 0.0
    if is_expired(head):
        known = _forget_value(head)
    else:
        known = yield from load_at_head(key, head)
        if known.raw is not None:
            raise Conflict(str(key), expected=0, actual=known.version)
    return known, head.now - stamp.at


def _forget_value(head: Head) -> KnownDocument:
    """Return an expired document without its value: the next version does not build on it."""
    fold = StateFold(head.version, 0, 0)
    return KnownDocument(head.incarnation, head.version, None, fold, head.fields.expires_at)


def _rebase(key: StreamKey, known: KnownDocument) -> Operation[KnownDocument | None]:
    """Return the document to build on after a conflict, or None if it expired and was purged.

    Only its expiry may have changed. If another process saved or deleted it, raise `Conflict`.
    """
    now = yield from follow_expiries(key, known)
    if now is not None and now.version > known.version:
        return now
    head = yield from ops.head(key)
    if head is None and (yield from is_retired(key, known.incarnation)):
        return None
    raise Conflict(str(key), expected=known.version, actual=head.version if head else 0)


def prepare_load(
    tenant: str, task_id: str, kind: Any
) -> Callable[[], Operation[AgentCheckpoint | None]]:
    """Check the arguments of `load_checkpoint`. Return a factory for the operation."""
    loaded = AgentCheckpoint if kind is None else kind
    if not (isinstance(loaded, type) and issubclass(loaded, AgentCheckpoint)):
        got = getattr(kind, "__name__", type(kind).__name__)
        raise TypeError(f"type must be AgentCheckpoint or a class that extends it, got {got}")
    key = _key(tenant, task_id)
    return lambda: _load(key, task_id, loaded, clock.time())


def _load(key: StreamKey, task_id: str, kind: type[C], at: float) -> Operation[C | None]:
    """Return the saved checkpoint, or else the task with this id as one; None without either.

    `at` is the time of the call.
    """
    head = yield from ops.head(key)
    known = None
    if head is not None and not is_expired(head):
        known = yield from load_at_head(key, head)
    if head is None or known is None or known.raw is None:
        view = yield from load_view(key._replace(kind="task", id=task_id))
        return None if view is None else make_checkpoint(view, kind)
    try:
        checkpoint = kind.from_dict(decode(known.raw))
    except (TypeError, ValueError) as error:
        raise SchemaMismatch(
            str(key), version=known.version, type=SAVED, what=f"cannot be read: {error}"
        ) from None
    _set_seen(checkpoint, SeenDocument(key, known, head.now - at))
    return checkpoint


def prepare_delete(
    log: Log, tenant: str, task_id: str, reason: str, by: str | None
) -> Callable[[], Operation[bool]]:
    """Check the arguments of `delete_checkpoint`. Return a factory for the operation."""
    key, why = _key(tenant, task_id), log.redaction.redact_text(reason)
    return lambda: delete_document(key, new_append_context(by), why)
