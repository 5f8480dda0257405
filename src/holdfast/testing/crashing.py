"""Crashes inside this process: a run ends at a chosen place as if it had been killed there."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NoReturn

from ..log import leases
from ..log.operations import Operation
from ..log.validation import whole_number
from ..tasks.run.session import Change, Session
from ..tasks.state import events as ev
from ..tasks.steps.identity import place_of

_lock = threading.Lock()


class Crashed(BaseException):
    """The run ends here as if its process had been killed. Not an `Exception`: no `except Exception` goes on after a kill."""


class Crash:
    """A crash to come, as a context manager; also around async code, in a plain `with`."""

    def __init__(
        self, after: str | None, before: str | None, during: str | None, write: int | None
    ) -> None:
        self._after, self._before, self._during, self._write = after, before, during, write
        self.happened = False
        """Whether the run has died."""
        self._writes = 0
        self._ran: dict[str, None] = {}
        self._beating = threading.local()

    def __enter__(self) -> Crash:
        self._put, self._begin, self._beat = Session.put, Session.begin, Session.beat
        crash = self

        def put(
            session: Session, changes: Sequence[Change], *args: Any, **options: Any
        ) -> Operation[Any]:
            return crash._writing(session, changes, args, options)

        def begin(session: Session, run: Any, call: Any) -> bool:
            return crash._beginning(session, run, call)

        def beat(session: Session, *args: Any, **options: Any) -> None:
            crash._renewing(session, args, options)

        for name, method in (("put", put), ("begin", begin), ("beat", beat)):
            setattr(Session, name, method)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        for name, method in (("put", self._put), ("begin", self._begin), ("beat", self._beat)):
            setattr(Session, name, method)
        if error is None and not self.happened:
            ran = ", ".join(map(repr, self._ran)) or "none"
            raise AssertionError(
                f"nothing died {self._place()}: the steps that ran are {ran}; writes: {self._writes}"
            )
        return self.happened and error is not None and _is_crash(error)

    def _place(self) -> str:
        for word, step in (
            ("after", self._after),
            ("before", self._before),
            ("during", self._during),
        ):
            if step is not None:
                return f"{word} {step!r}"
        return f"at write {self._write}"

    # -- in place of the session's methods -------------------------------------------------------------------------------

    def _writing(
        self, session: Session, changes: Sequence[Change], args: Any, options: Any
    ) -> Operation[Any]:
        if getattr(self._beating, "now", False):  # written by the clock, not by the program
            return (yield from self._put(session, changes, *args, **options))
        if self.happened or _has(changes, self._during, ev.STEP_COMPLETED, ev.STEP_FAILED):
            self._die(session)
        answer = yield from self._put(session, changes, *args, **options)
        with _lock:
            self._writes += 1
            last = self._writes == self._write
        if (
            last
            or _has(changes, self._after, ev.STEP_COMPLETED, ev.STEP_FAILED)
            or _has(changes, self._before, ev.STEP_STARTED)
        ):
            self._die(session)
        return answer

    def _beginning(self, session: Session, run: Any, call: Any) -> bool:
        if self.happened:
            self._die(session)
        if not self._begin(session, run, call):
            return False
        self._ran[run.path] = None
        # A start that can wait is not written before the function runs, and a kill here loses it.
        if not call.declared.eager and _is(run.path, self._before):
            session.end(run)
            self._die(session)
        return True

    def _renewing(self, session: Session, args: Any, options: Any) -> None:
        if self.happened:
            return
        self._beating.now = True
        try:
            self._beat(session, *args, **options)
        finally:
            self._beating.now = False

    def _die(self, session: Session) -> NoReturn:
        """Let a session end as if its process had been killed: it writes no more, and whoever comes next takes over at once."""
        self.happened = True
        crashed = Crashed(f"{session.key} died {self._place()}, as the test has asked for")
        with session.lock:
            session.over = crashed  # type: ignore[assignment]  # raised by all that the session is asked for
        leases.crashed.add(session.owner)
        raise crashed


def crash(
    *,
    after: str | None = None,
    before: str | None = None,
    during: str | None = None,
    write: int | None = None,
) -> Crash:
    """Let the run inside the block die as if it were killed; `Crashed` leaves the block no further.

    `after="pay"`: when the end of that step (its name, or its path) is stored. `before`: before its function runs; of a `once` or
    `check` step, when its start is stored. `during`: when its function has run and nobody has recorded that: the worst
    moment. `write=n`: when the n-th write of the block is stored. Nothing more is written, no progress, no failure, no
    release, and entering the task again takes over at once. If nothing dies, the end of the block is an AssertionError.
    """
    given = [point for point in (after, before, during, write) if point is not None]
    if len(given) != 1:
        raise TypeError(
            "crash() takes one of after=, before=, during= (a step's name) and write= (a number of writes)"
        )
    if write is not None:
        whole_number(write, "write", 1)
    return Crash(after, before, during, write)


def _is(path: str, step: str | None) -> bool:
    return step is not None and (path == step or place_of(path).name == step)


def _has(changes: Sequence[Change], step: str | None, *names: str) -> bool:
    """Whether one of these is such an event of the step. A failure that is tried again in the same run is not its end."""
    return step is not None and any(
        name in names
        and isinstance(event, ev.StepEvent)
        and not event.again
        and _is(event.step, step)
        for name, event in changes
    )


def _is_crash(error: BaseException) -> bool:
    """Whether it is a crash, or a group (of a TaskGroup) in which there is one."""
    return isinstance(error, Crashed) or any(map(_is_crash, getattr(error, "exceptions", ())))
