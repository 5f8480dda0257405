"""Crashes inside this process: a run ends at a chosen point as if it had been killed there."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NoReturn

from ..log import leases
from ..log.operations import Operation
from ..log.validation import check_int
from ..tasks.run.session import ActiveSteps, Session
from ..tasks.run.writer import Change
from ..tasks.state import events as ev
from ..tasks.steps.identity import parse_path

_lock = threading.Lock()


class Crashed(BaseException):
    """The run ends here as if killed. Not an `Exception`, so `except Exception` cannot catch it."""


class Crash:
    """A planned crash as a context manager. Use a plain `with`, around async code too."""

    def __init__(
        self, after: str | None, before: str | None, during: str | None, write: int | None
    ) -> None:
        self._after, self._before, self._during, self._write = after, before, during, write
        self.happened = False
        """Whether the crash has happened."""
        self._writes = 0
        self._ran: dict[str, None] = {}
        self._beating = threading.local()

    def __enter__(self) -> Crash:
        self._put, self._begin, self._beat = Session.put, ActiveSteps.begin, Session.beat
        crash = self

        def put(
            session: Session, changes: Sequence[Change], *args: Any, **options: Any
        ) -> Operation[Any]:
            return crash._put_or_die(session, changes, args, options)

        def begin(steps: ActiveSteps, run: Any, call: Any) -> bool:
            return crash._begin_or_die(steps, run, call)

        def beat(session: Session, *args: Any, **options: Any) -> None:
            crash._beat_unless_dead(session, args, options)

        _replace(put, begin, beat)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        _replace(self._put, self._begin, self._beat)
        if error is None and not self.happened:
            ran = ", ".join(map(repr, self._ran)) or "none"
            raise AssertionError(
                f"no crash happened {self._place()}: steps that ran: {ran}; writes: {self._writes}"
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

    # -- replacements of methods -----------------------------------------------------------------

    def _put_or_die(
        self, session: Session, changes: Sequence[Change], args: Any, options: Any
    ) -> Operation[Any]:
        if getattr(self._beating, "now", False):  # a heartbeat, not a write of the program
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

    def _begin_or_die(self, steps: ActiveSteps, run: Any, call: Any) -> bool:
        if self.happened:
            self._die(call.session)
        if not self._begin(steps, run, call):
            return False
        self._ran[run.path] = None
        # A lazy start is not written before the function runs, so a kill here loses it.
        if not call.declared.eager and _is(run.path, self._before):
            steps.end(run)
            self._die(call.session)
        return True

    def _beat_unless_dead(self, session: Session, args: Any, options: Any) -> None:
        if self.happened:
            return
        self._beating.now = True
        try:
            self._beat(session, *args, **options)
        finally:
            self._beating.now = False

    def _die(self, session: Session) -> NoReturn:
        """End a session as if killed: it writes nothing more and can be taken over at once."""
        self.happened = True
        crashed = Crashed(f"{session.key} died {self._place()}, as the test requested")
        with session.lock:
            session.block.closed_error = crashed  # type: ignore[assignment]  # every later call raises it
        leases.crashed_owners.add(session.lease.owner)
        raise crashed


def _replace(put: Any, begin: Any, beat: Any) -> None:
    """Set the methods of all sessions that write, start a step, and renew the lease."""
    setattr(Session, "put", put)  # noqa: B010  mypy refuses an assignment
    setattr(ActiveSteps, "begin", begin)  # noqa: B010
    setattr(Session, "beat", beat)  # noqa: B010


def crash(
    *,
    after: str | None = None,
    before: str | None = None,
    during: str | None = None,
    write: int | None = None,
) -> Crash:
    """End the run inside the block as if it were killed. The block swallows `Crashed`.

    After the crash nothing more is written (no progress, failure or release), and entering the
    task again takes over at once. If no crash happens, leaving the block raises AssertionError.

    Args:
        after: A step's name or path; the run dies when the end of that step is stored.
        before: The run dies before that step's function runs; for a `once` or `check` step,
            when its start is stored.
        during: The run dies after that step's function has run, before this is recorded: the
            worst moment.
        write: The run dies when the n-th write of the block is stored.
    """
    given = [point for point in (after, before, during, write) if point is not None]
    if len(given) != 1:
        raise TypeError(
            "crash() takes one of after=, before=, during= (a step's name) and write= (a count)"
        )
    if write is not None:
        check_int(write, "write", 1)
    return Crash(after, before, during, write)


def _is(path: str, step: str | None) -> bool:
    return step is not None and (path == step or parse_path(path).name == step)


def _has(changes: Sequence[Change], step: str | None, *names: str) -> bool:
    """Return True if `changes` have one of these events of the step, except a retried failure."""
    return step is not None and any(
        name in names
        and isinstance(event, ev.StepEvent)
        and not event.again
        and _is(event.step, step)
        for name, event in changes
    )


def _is_crash(error: BaseException) -> bool:
    """Return True if the error is a crash, or an exception group that contains one."""
    return isinstance(error, Crashed) or any(map(_is_crash, getattr(error, "exceptions", ())))
