"""The events of a task in words, for an audit: what happened, to which step, who did it, and facts that are no content."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, Final, NamedTuple

from ..errors import who
from .state import events as ev

_PLAIN: Final = (str, int, float, bool)

_WORDS: Final = {
    ev.CREATED: "created",
    ev.BRANCHED: "begun as a fork",
    ev.CLAIMED: "claimed",
    ev.RENEWED: "lease renewed",
    ev.PLANNED: "plan made",
    ev.DECIDED: "decision noted",
    ev.DISCOVERED: "discovery noted",
    ev.ATTACHED: "file attached",
    ev.RECALLED: "memories recalled",
    ev.ASKED: "question asked",
    ev.ANSWERED: "question answered",
    ev.SIGNALLED: "signal received",
    ev.SUSPENDED: "suspended",
    ev.CHILD_ENDED: "child ended",
    ev.REPORTED: "end reported to the parent",
    ev.QUEUED: "queued for a worker",
    ev.PARKED: "parked after crashes",
    ev.BUDGETED: "budget changed",
    ev.LEFT: "left",
    ev.FAILED: "run failed",
    ev.CANCELLED: "cancelled",
    ev.FINISHED: "finished",
    ev.FORKED: "fork taken",
    ev.STEP_STARTED: "step started",
    ev.STEP_PROGRESSED: "step progressed",
    ev.STEP_COMPLETED: "step completed",
    ev.STEP_FAILED: "step failed",
    ev.STEP_SETTLED: "step settled by hand",
    ev.STEP_USED: "model used",
}

# What is told of an event without telling its content: names, numbers and times. Whatever is not named here is content.
_STEP: Final = (
    "kind",
    "mode",
    "model",
    "attempt",
    "how",
    "error",
    "doubt",
    "again",
    "since",
    "done",
    "total",
    "usage",
)
_FACTS: Final = {
    ev.CREATED: ("agent", "ttl", "budget"),
    ev.BRANCHED: ("parent", "at"),
    ev.CLAIMED: ("lease", "stolen"),
    ev.DECIDED: ("step",),
    ev.DISCOVERED: ("step",),
    ev.ATTACHED: ("name",),
    ev.ASKED: ("kind", "name", "until"),
    ev.ANSWERED: ("how", "wait"),
    ev.SIGNALLED: ("name",),
    ev.CHILD_ENDED: ("child", "status"),
    ev.QUEUED: ("at",),
    ev.PARKED: ("crashes",),
    ev.BUDGETED: ("budget",),
    ev.LEFT: ("why", "looked"),
    ev.FAILED: ("type", "steps", "retry_at"),
    ev.FORKED: ("child", "at"),
    ev.STEP_STARTED: _STEP,
    ev.STEP_PROGRESSED: _STEP,
    ev.STEP_COMPLETED: _STEP,
    ev.STEP_FAILED: _STEP,
    ev.STEP_SETTLED: _STEP,
    ev.STEP_USED: _STEP,
}
_TIMES: Final = ("at", "retry_at", "since", "until")
_COUNTS: Final = {ev.PLANNED: "items", ev.RECALLED: "ids", ev.SUSPENDED: "waits"}

# What others do to a task, whoever holds it.
_FROM_OUTSIDE: Final = frozenset(
    {
        ev.CREATED,
        ev.BRANCHED,
        ev.SIGNALLED,
        ev.CHILD_ENDED,
        ev.REPORTED,
        ev.QUEUED,
        ev.PARKED,
        ev.BUDGETED,
        ev.CANCELLED,
        ev.FORKED,
        ev.STEP_SETTLED,
    }
)
_LETS_GO: Final = frozenset(
    {ev.SUSPENDED, ev.LEFT, ev.FAILED, ev.CANCELLED, ev.FINISHED, ev.PARKED}
)
_WAITS: Final = {"signal": "wait for a signal began", "timer": "wait for a time began"}
_ENDED: Final = {
    "signalled": "wait ended by a signal",
    "passed": "the time has come",
    "timeout": "wait ended, its time was over",
    "unfit": "signal of another type set aside",
}


class DescribedEvent(NamedTuple):
    """An event in words. `by` is somebody the event itself names, `holder` the process that held the task and did it."""

    what: str
    step: str | None
    by: str | None
    owner: str | None
    details: dict[str, Any]


class EventDescriber:
    """Tells the events of a task in order: who holds it is known from those before."""

    def __init__(self) -> None:
        self._owner: str | None = None
        self._children: set[str | None] = set()

    def tell(self, name: str, data: Any) -> DescribedEvent:
        """An event in words. Whoever can write to the store can write anything: what has another form is left out."""
        data = data if type(data) is dict else {}
        what = self._words(name, data)
        if name == ev.CLAIMED:
            self._owner = _text(data, "holder")
        owner = None if name in _FROM_OUTSIDE or _is_answer(name, data) else self._owner
        if name in _LETS_GO:
            self._owner = None
        step = _text(data, "step") or None
        by = _text(data, "by") if name == ev.ANSWERED else None
        return DescribedEvent(
            what, step, by, None if owner is None else who(owner), _facts(name, data)
        )

    def _words(self, name: str, data: dict[str, Any]) -> str:
        words = _WORDS.get(name, name)
        if name == ev.CLAIMED and self._owner is not None:
            taken = "taken away" if data.get("stolen") is True else "taken over"
            return f"{taken} from {who(self._owner)}"
        if name == ev.ASKED:
            return _WAITS.get(str(data.get("kind")), words)
        if name == ev.ANSWERED:
            return _ENDED.get(str(data.get("how")), words)
        if name == ev.STEP_SETTLED and data.get("again") is True:
            return "step to be tried again, ordered by hand"
        if name.startswith("step."):
            step, attempt = _text(data, "step"), data.get("attempt")
            if data.get("kind") == "child":  # which only its first event says
                self._children.add(step)
            if step in self._children:
                words = words.replace("step", "child task", 1)
            if type(attempt) is int and attempt > 1:
                words += f" (attempt {attempt})"
            if data.get("doubt") is True:
                words += ", in doubt"
        return words


def _is_answer(name: str, data: dict[str, Any]) -> bool:
    """Whether somebody answered; that a time has come, the holder notes."""
    return name == ev.ANSWERED and data.get("how", "answered") == "answered"


def _facts(name: str, data: dict[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for field in _FACTS.get(name, ()):
        value = data.get(field)
        if field == "step" or value is None:
            continue
        if field in _TIMES and type(value) is float:
            facts[field] = _time(value)
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


def _time(seconds: float) -> str | float:
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return seconds


def _text(data: dict[str, Any], name: str) -> str | None:
    value = data.get(name)
    return value if type(value) is str else None
