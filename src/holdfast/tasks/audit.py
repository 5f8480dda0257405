"""Describe the events of a task for an audit: what happened, to which step, and who did it.

Names, numbers and times are included; content is not.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, Final, NamedTuple

from ..errors import format_owner
from .state import events as ev

_PLAIN: Final = (str, int, float, bool)

_WORDS: Final = {
    ev.CREATED: "created",
    ev.BRANCHED: "created as a fork",
    ev.CLAIMED: "claimed",
    ev.RENEWED: "lease renewed",
    ev.PLANNED: "plan created",
    ev.DECIDED: "decision recorded",
    ev.DISCOVERED: "discovery recorded",
    ev.ATTACHED: "file attached",
    ev.RECALLED: "memories recalled",
    ev.MEMORY_NAMED: "memory namespace chosen",
    ev.ASKED: "question asked",
    ev.ANSWERED: "question answered",
    ev.SIGNALLED: "signal received",
    ev.SUSPENDED: "suspended",
    ev.CHILD_ENDED: "child ended",
    ev.REPORTED: "end reported to the parent",
    ev.QUEUED: "queued for a worker",
    ev.STUCK: "stuck after crashes",
    ev.BUDGETED: "budget changed",
    ev.RELEASED: "released",
    ev.FAILED: "run failed",
    ev.CANCELLED: "cancelled",
    ev.LINGERED: "still running after it was cancelled",
    ev.WRITE_REFUSED: "late write refused",
    ev.FINISHED: "finished",
    ev.FORKED: "forked",
    ev.STEP_STARTED: "step started",
    ev.STEP_PROGRESSED: "step progressed",
    ev.STEP_COMPLETED: "step completed",
    ev.STEP_FAILED: "step failed",
    ev.STEP_RESOLVED: "step resolved by an operator",
    ev.STEP_ACCEPTED: "operator's resolution used",
    ev.STEP_CHECKED: "check did not find the result",
    ev.STEP_USED: "model used",
}

# The fields of each event that an audit shows. All others are content.
_STEP: Final = (
    "kind",
    "mode",
    "model",
    "attempt",
    "how",
    "error",
    "doubt",
    "again",
    "override",
    "abandoned",
    "expect",
    "since",
    "done",
    "total",
    "usage",
)
_FACTS: Final = {
    ev.CREATED: ("agent", "ttl", "budget"),
    ev.BRANCHED: ("parent", "at"),
    ev.CLAIMED: ("lease", "stolen", "alive_at", "timeout"),
    ev.DECIDED: ("step",),
    ev.DISCOVERED: ("step",),
    ev.ATTACHED: ("name",),
    ev.MEMORY_NAMED: ("namespace",),
    ev.ASKED: ("kind", "name", "until"),
    ev.ANSWERED: ("how", "wait"),
    ev.SIGNALLED: ("name",),
    ev.CHILD_ENDED: ("child", "status"),
    ev.QUEUED: ("at", "timeout"),
    ev.STUCK: ("crashes",),
    ev.BUDGETED: ("budget",),
    ev.RELEASED: ("why", "unchanged"),
    ev.FAILED: ("type", "steps", "retry_at"),
    ev.FORKED: ("child", "at"),
    ev.LINGERED: ("owner", "steps"),
    ev.WRITE_REFUSED: ("owner", "steps"),
    ev.STEP_STARTED: _STEP,
    ev.STEP_PROGRESSED: _STEP,
    ev.STEP_COMPLETED: _STEP,
    ev.STEP_FAILED: _STEP,
    ev.STEP_RESOLVED: _STEP,
    ev.STEP_USED: _STEP,
}
_TIMES: Final = ("alive_at", "at", "retry_at", "since", "until")
_COUNTS: Final = {ev.PLANNED: "items", ev.RECALLED: "ids", ev.SUSPENDED: "waits"}

# Events that come from outside the run, not from the lease owner.
_FROM_OUTSIDE: Final = frozenset(
    {
        ev.CREATED,
        ev.BRANCHED,
        ev.SIGNALLED,
        ev.CHILD_ENDED,
        ev.REPORTED,
        ev.QUEUED,
        ev.STUCK,
        ev.BUDGETED,
        ev.CANCELLED,
        ev.FORKED,
        ev.STEP_RESOLVED,
    }
)
_RELEASES: Final = frozenset(
    {ev.SUSPENDED, ev.RELEASED, ev.FAILED, ev.CANCELLED, ev.FINISHED, ev.STUCK}
)
_NAMES_A_PERSON: Final = frozenset({ev.ANSWERED, ev.CANCELLED, ev.STEP_RESOLVED})
_WAITS: Final = {"signal": "wait for a signal started", "timer": "wait for a time started"}
_ENDED: Final = {
    "signalled": "wait ended by a signal",
    "passed": "wait for a time ended",
    "timeout": "wait timed out",
    "unfit": "signal of another type skipped",
}


class DescribedEvent(NamedTuple):
    """An event in words.

    `by` is the person whom the event names; `owner` is the lease owner that caused the event.
    """

    what: str
    step: str | None
    by: str | None
    owner: str | None
    details: dict[str, Any]


class EventDescriber:
    """Describes a task's events in order, and keeps track of the lease owner."""

    def __init__(self) -> None:
        self._owner: str | None = None
        self._children: set[str | None] = set()

    def describe(self, name: str, data: Any) -> DescribedEvent:
        """Describe an event. Malformed fields are omitted, because any writer can forge them."""
        data = data if type(data) is dict else {}
        what = self._words(name, data)
        if name == ev.CLAIMED:
            self._owner = _text(data, "owner")
        owner = None if name in _FROM_OUTSIDE or _is_answer(name, data) else self._owner
        if name in _RELEASES:
            self._owner = None
        step = _text(data, "step") or None
        by = _text(data, "by") if name in _NAMES_A_PERSON else None
        return DescribedEvent(
            what,
            step,
            by,
            None if owner is None else format_owner(owner),
            _collect_facts(name, data),
        )

    def _words(self, name: str, data: dict[str, Any]) -> str:
        words = _WORDS.get(name, name)
        if name == ev.CLAIMED and self._owner is not None:
            taken = "lease stolen" if data.get("stolen") is True else "taken over"
            return f"{taken} from {format_owner(self._owner)}"
        if name == ev.ASKED:
            return _WAITS.get(str(data.get("kind")), words)
        if name == ev.ANSWERED:
            return _ENDED.get(str(data.get("how")), words)
        if name == ev.STEP_RESOLVED and data.get("again") is True:
            return "step retry ordered by an operator"
        if name.startswith("step."):
            step, attempt = _text(data, "step"), data.get("attempt")
            if data.get("kind") == "child":  # only the first event has it
                self._children.add(step)
            if step in self._children:
                words = words.replace("step", "child task", 1)
            if type(attempt) is int and attempt > 1:
                words += f" (attempt {attempt})"
            if data.get("doubt") is True:
                words += ", in doubt"
        return words


def _is_answer(name: str, data: dict[str, Any]) -> bool:
    """Return True if the event is a person's answer. Timeouts are recorded by the lease owner."""
    return name == ev.ANSWERED and data.get("how", "answered") == "answered"


def _collect_facts(name: str, data: dict[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for field in _FACTS.get(name, ()):
        value = data.get(field)
        if field == "step" or value is None:
            continue
        if field in _TIMES and type(value) is float:
            facts[field] = _format_time(value)
        elif isinstance(value, _PLAIN):
            facts[field] = value
        elif field in ("usage", "budget") and type(value) is dict:
            facts[field] = {
                key: number for key, number in value.items() if type(number) in (int, float)
            }
        elif field == "steps" and type(value) is list:
            facts[field] = [path for path in value if type(path) is str]
    parent, blob, counted = data.get("parent"), data.get("blob"), data.get(_COUNTS.get(name, ""))
    if type(parent) is dict and type(parent.get("id")) is str:
        facts["parent"] = parent["id"]
    if type(blob) is dict and type(blob.get("size")) is int:
        facts["size"] = blob["size"]
        if name == ev.ATTACHED and type(blob.get("digest")) is str:
            facts["digest"] = blob["digest"]
    if type(counted) is list:
        facts["count"] = len(counted)
    return facts


def _format_time(seconds: float) -> str | float:
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return seconds


def _text(data: dict[str, Any], name: str) -> str | None:
    value = data.get(name)
    return value if type(value) is str else None
