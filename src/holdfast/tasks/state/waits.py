"""The waits of a task, derived from its events: questions, signals, timers and children."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from . import events as ev

ASK, SIGNAL, TIMER = "ask", "signal", "timer"


class TaskWait:
    """One wait of a task. `how` is None until it is over; see `Answered`."""

    __slots__ = ("at", "by", "ended_at", "event", "how", "value", "version")

    def __init__(self, version: int, at: float, event: ev.Asked) -> None:
        self.version, self.at, self.event = version, at, event
        self.how: str | None = None
        self.by: str | None = None
        self.value = msgspec.Raw(b"null")
        self.ended_at: float | None = None


class TaskWaits:
    """All waits of a task."""

    def __init__(self) -> None:
        self.all: dict[str, TaskWait] = {}
        """All waits, by id."""
        self.question_ids: dict[str, str] = {}
        """The id of the current question with each name. A later question replaces it."""
        self.signals: dict[str, dict[int, msgspec.Raw]] = {}
        """Signals that no wait has taken, by name, then by number. They have no unique version,
        because a fork has two streams."""
        self._signalled: dict[str, int] = {}
        self.children: dict[str, str] = {}
        """Children that have ended on their own since the newest run started, with their status."""

    def apply_asked(self, version: int, at: float, event: ev.Asked) -> None:
        """Add a wait."""
        self.all[event.wait] = TaskWait(version, at, event)
        if event.kind == ASK:
            self.question_ids[event.name] = event.wait

    def apply_answered(self, at: float, event: ev.Answered) -> None:
        """End a wait, or set aside a signal of another type."""
        wait = self.all.get(event.wait)
        if wait is None or wait.how is not None:
            return
        value = event.value
        if event.how == "unfit":
            self.signals.get(wait.event.name, {}).pop(event.signal, None)
            return
        if event.signal:
            left = self.signals.get(wait.event.name, {})
            if event.signal not in left:
                return  # another wait has taken it
            value = left.pop(event.signal)
        wait.how, wait.by, wait.value, wait.ended_at = event.how, event.by, value, at

    def apply_signalled(self, event: ev.Signalled) -> None:
        """Keep a signal until a wait takes it."""
        number = self._signalled[event.name] = self._signalled.get(event.name, 0) + 1
        self.signals.setdefault(event.name, {})[number] = event.payload

    def is_satisfied(self, id: str) -> bool:
        """Whether a wait is over or its signal is here. Times are not compared with the clock."""
        wait = self.all.get(id)
        return wait is not None and (
            wait.how is not None
            or (wait.event.kind == SIGNAL and bool(self.signals.get(wait.event.name)))
        )

    def is_ready(self, waits: Iterable[str], children: Iterable[str]) -> bool:
        """Whether a task that waits for any of these can resume."""
        return any(map(self.is_satisfied, waits)) or any(
            child in self.children for child in children
        )

    def wakes_at(self, waits: Iterable[str]) -> float | None:
        """Return the earliest time or deadline of these waits."""
        times = [self.all[wait].event.until for wait in waits if wait in self.all]
        return min((time for time in times if time is not None), default=None)

    def open_signals(self, name: str) -> list[TaskWait]:
        """Return the open waits for signals with this name."""
        return [
            wait
            for wait in self.all.values()
            if wait.how is None and wait.event.kind == SIGNAL and wait.event.name == name
        ]

    def open_questions(self) -> list[TaskWait]:
        """Return the questions without an answer."""
        return [
            wait
            for wait in map(self.all.__getitem__, self.question_ids.values())
            if wait.how is None
        ]
