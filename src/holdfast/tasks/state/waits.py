"""What a task waits for, as the fold of its events: questions and their answers, signals, times, children."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from . import events as ev

ASK, SIGNAL, TIMER = "ask", "signal", "timer"


class TaskWait:
    """One thing that a task waits for, or waited for. `how` is None until it is over: see `Answered`."""

    __slots__ = ("at", "by", "ended_at", "event", "how", "value", "version")

    def __init__(self, version: int, at: float, event: ev.Asked) -> None:
        self.version, self.at, self.event = version, at, event
        self.how: str | None = None
        self.by: str | None = None
        self.value = msgspec.Raw(b"null")
        self.ended_at: float | None = None


class TaskWaits:
    """All that a task has waited for, by its id."""

    def __init__(self) -> None:
        self.all: dict[str, TaskWait] = {}
        self.current: dict[str, str] = {}
        """The question that counts, by name: one that is asked later under the same name replaces it."""
        self.signals: dict[str, dict[int, msgspec.Raw]] = {}
        """What was signalled and not taken yet, by name, then by number. Not by version: a fork has two streams of them."""
        self._signalled: dict[str, int] = {}
        self.children: dict[str, str] = {}
        """Children that have ended on their own since the newest run began, and how."""

    def asked(self, version: int, at: float, event: ev.Asked) -> None:
        self.all[event.wait] = TaskWait(version, at, event)
        if event.kind == ASK:
            self.current[event.name] = event.wait

    def answered(self, at: float, event: ev.Answered) -> None:
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
                return  # another has taken it
            value = left.pop(event.signal)
        wait.how, wait.by, wait.value, wait.ended_at = event.how, event.by, value, at

    def signalled(self, event: ev.Signalled) -> None:
        number = self._signalled[event.name] = self._signalled.get(event.name, 0) + 1
        self.signals.setdefault(event.name, {})[number] = event.payload

    def is_over(self, id: str) -> bool:
        """Whether a task that waits for this can go on. Times pass without anybody saying so, and are not looked at."""
        wait = self.all.get(id)
        return wait is not None and (
            wait.how is not None
            or (wait.event.kind == SIGNAL and bool(self.signals.get(wait.event.name)))
        )

    def is_ready(self, waits: Iterable[str], children: Iterable[str]) -> bool:
        """Whether a task that waits for any of these can go on."""
        return any(map(self.is_over, waits)) or any(child in self.children for child in children)

    def wakes_at(self, waits: Iterable[str]) -> float | None:
        """When the first of these times comes."""
        times = [self.all[each].event.until for each in waits if each in self.all]
        return min((time for time in times if time is not None), default=None)

    def open_signals(self, name: str) -> list[TaskWait]:
        """Who waits for a signal of a name."""
        found = [
            wait
            for wait in self.all.values()
            if wait.event.kind == SIGNAL and wait.event.name == name
        ]
        return [wait for wait in found if wait.how is None]

    def open_asks(self) -> list[TaskWait]:
        """The questions that nobody has answered yet."""
        return [self.all[each] for each in self.current.values() if self.all[each].how is None]
