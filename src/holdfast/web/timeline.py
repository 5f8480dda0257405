"""The timeline of a task: which process ran which step when, what was interrupted, and the waits.

It is computed from the task's events alone. `build_timeline` has no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from .. import Event
from ..errors import format_owner

RunEnd = Literal[
    "running",
    "released",
    "suspended",
    "failed",
    "finished",
    "cancelled",
    "stuck",
    "killed",
    "taken over",
]
"""How a run ended. killed: its process died, so the next run took over. taken over: its lease was
taken while it was alive."""

StepEnd = Literal["completed", "failed", "retrying", "interrupted", "running"]
"""How an attempt of a step ended."""

_ENDS: dict[str, RunEnd] = {
    "task.released": "released",
    "task.suspended": "suspended",
    "task.failed": "failed",
    "task.finished": "finished",
    "task.cancelled": "cancelled",
    "task.stuck": "stuck",
}
_STEP_ENDS = {"step.completed": "completed", "step.failed": "failed"}
_MARKS = {
    "task.created": "created",
    "task.branched": "forked from another task",
    "task.forked": "forked",
    "task.planned": "plan",
    "task.decided": "decision",
    "task.discovered": "discovery",
    "task.attached": "artifact",
    "task.asked": "wait started",
    "task.answered": "wait ended",
    "task.signalled": "signal",
    "task.child_ended": "child ended",
    "task.queued": "queued",
    "task.budgeted": "budget",
    "task.write_refused": "late write refused",
    "step.resolved": "resolved by an operator",
    "step.checked": "checked, still in doubt",
}


_FROM_OUTSIDE = {
    "task.queued",
    "task.signalled",
    "task.child_ended",
    "task.write_refused",
    "step.resolved",
}
"""Events that do not show that the lease owner was alive."""


class TimelineRun(msgspec.Struct, kw_only=True):
    """One run: a process that had the task's lease, from its claim to its end."""

    number: int
    lane: int
    owner: str
    start: datetime
    end: datetime
    how: RunEnd
    took_over: bool = False
    """Whether it took over from a process that did not release the task."""
    version: int


class TimelineStep(msgspec.Struct, kw_only=True):
    """One attempt of a step, inside a run."""

    path: str
    run: int
    lane: int
    start: datetime
    end: datetime
    status: StepEnd
    attempt: int = 1
    kind: str = "tool"
    mode: str = ""
    how: str = "ran"
    version: int


class TimelineMark(msgspec.Struct, kw_only=True):
    """Something that happened at one instant."""

    at: datetime
    what: str
    name: str = ""
    by: str | None = None
    lane: int | None = None
    version: int


class TimelineGap(msgspec.Struct):
    """A time in which no process had the task: it waited, or no process ran it."""

    start: datetime
    end: datetime
    why: str


class Timeline(msgspec.Struct, kw_only=True):
    """The timeline of a task up to a version."""

    version: int
    lanes: list[str]
    """The processes, in the order of their first claim."""
    runs: list[TimelineRun]
    steps: list[TimelineStep]
    marks: list[TimelineMark]
    gaps: list[TimelineGap]


def build_timeline(events: Iterable[Event], now: datetime) -> Timeline:
    """Return the timeline of a task. `now` is the end of what still runs."""
    builder = TimelineBuilder()
    for event in events:
        builder.add(event)
    return builder.finish(now)


class TimelineBuilder:
    """Reads the events of a task in order. It keeps none of their content."""

    def __init__(self) -> None:
        self.version = 0
        self.lanes: dict[str, int] = {}
        self.runs: list[TimelineRun] = []
        self.steps: list[TimelineStep] = []
        self.marks: list[TimelineMark] = []
        self._current: TimelineRun | None = None
        self._open: dict[str, tuple[int, TimelineStep]] = {}
        """The steps that have not ended, with their places in the list."""
        self._last_sign: datetime | None = None
        """When the owner last wrote something, which shows that it was alive."""

    def add(self, event: Event) -> None:
        self.version, at = event.version, event.at
        data = event.data if isinstance(event.data, dict) else {}
        if event.type == "task.claimed":
            self._start_run(event, at, data)
        elif event.type in _MARKS:
            self._add_mark(event, at, data)
        elif event.type.startswith("step."):
            self._add_step(event, at, data)
        if event.type in _ENDS:
            self._end_run(at, _ENDS[event.type])
        if event.type not in _FROM_OUTSIDE:
            self._last_sign = at

    def _start_run(self, event: Event, at: datetime, data: dict[str, Any]) -> None:
        owner = data.get("owner")
        owner = owner if isinstance(owner, str) else ""
        took_over = self._current is not None
        if self._current is not None:
            alive = self._last_sign or at
            self._end_run(alive, "taken over" if data.get("stolen") else "killed")
        process = owner.rpartition("/")[0]
        lane = self.lanes.setdefault(process, len(self.lanes))
        self._current = TimelineRun(
            number=len(self.runs) + 1,
            lane=lane,
            owner=format_owner(owner),
            start=at,
            end=at,
            how="running",
            took_over=took_over,
            version=event.version,
        )
        self.runs.append(self._current)

    def _end_run(self, at: datetime, how: RunEnd) -> None:
        run, self._current = self._current, None
        if run is None:
            return
        run.end, run.how = max(at, run.start), how
        for _, step in self._open.values():
            step.end, step.status = max(run.end, step.start), "interrupted"
        self._open.clear()

    def _add_step(self, event: Event, at: datetime, data: dict[str, Any]) -> None:
        path, run = data.get("step"), self._current
        if not isinstance(path, str) or run is None:
            return
        step = self._open[path][1] if path in self._open else None
        if step is None and event.type in ("step.started", *_STEP_ENDS):
            step = TimelineStep(
                path=path,
                run=run.number,
                lane=run.lane,
                start=_since(data, at),
                end=at,
                status="running",
                kind=str(data.get("kind", "tool")),
                mode=str(data.get("mode", "")),
                version=event.version,
            )
            self._open[path] = len(self.steps), step
            self.steps.append(step)
        if step is None:
            return
        attempt = data.get("attempt", 1)
        step.attempt = attempt if isinstance(attempt, int) else 1
        if event.type in _STEP_ENDS:
            step.end, step.version = max(at, step.start), event.version
            step.how = str(data.get("how", "ran"))
            if event.type == "step.completed":
                step.status = "completed"
            else:
                step.status = "retrying" if data.get("again") else "failed"
            del self._open[path]

    def _add_mark(self, event: Event, at: datetime, data: dict[str, Any]) -> None:
        by = data.get("by")
        name = data.get("name") or data.get("step") or data.get("child") or ""
        lane = None if self._current is None else self._current.lane
        owner = data.get("owner")
        if event.type == "task.write_refused" and isinstance(owner, str):
            lane = self.lanes.get(owner.rpartition("/")[0])
        self.marks.append(
            TimelineMark(
                at=at,
                what=_MARKS[event.type],
                name=name if isinstance(name, str) else "",
                by=by if isinstance(by, str) else event.by,
                lane=lane,
                version=event.version,
            )
        )

    def finish(self, now: datetime, *, abandoned: bool = False) -> Timeline:
        """Return the timeline so far. What happens later does not change it.

        If the task is `abandoned`, its process is known to be dead: it was killed some time after
        it last wrote something.
        """
        runs, steps = list(self.runs), list(self.steps)
        killed = abandoned and self._current is not None
        end = (self._last_sign or now) if killed else now
        if self._current is not None:
            how: RunEnd = "killed" if killed else "running"
            runs[-1] = replace(self._current, end=max(end, self._current.start), how=how)
        for place, step in self._open.values():
            status: StepEnd = "interrupted" if killed else step.status
            steps[place] = replace(step, end=max(end, step.start), status=status)
        return Timeline(
            version=self.version,
            lanes=[format_owner(f"{process}/") for process in self.lanes],
            runs=runs,
            steps=steps,
            marks=list(self.marks),
            gaps=list(_find_gaps(runs, now)),
        )


def _since(data: dict[str, Any], at: datetime) -> datetime:
    since = data.get("since")
    if not isinstance(since, int | float) or not 0 < since <= at.timestamp():
        return at
    return datetime.fromtimestamp(since, at.tzinfo)


def _find_gaps(runs: Sequence[TimelineRun], now: datetime) -> list[TimelineGap]:
    gaps: list[TimelineGap] = []
    for place, run in enumerate(runs):
        later = runs[place + 1].start if place + 1 < len(runs) else now
        ended = run.how in ("finished", "cancelled", "running") and place + 1 == len(runs)
        if later > run.end and not ended:
            gaps.append(TimelineGap(run.end, later, run.how))
    return gaps
