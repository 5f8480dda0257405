"""Describe an exception: its frames, its causes, and the parts of its group.

A description has files, line numbers, function names and source lines. It never has the values of
variables. Frames of Holdfast itself are left out, so that the program's own come first. All texts
are redacted, and the size is limited: the first and the last frames stay, and so do the first and
the last exceptions of a long chain.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from ...errors import StepFailed
from ..state import events as ev
from ..state.failure import LAST_FRAMES, Failure, FailureFrame

if TYPE_CHECKING:
    from ...log.log import Log

MAX_MESSAGE_CHARACTERS: Final = 4000
MAX_CAUSE_CHARACTERS: Final = 1000
"""Maximum length of the message of a cause."""
MAX_TEXT_CHARACTERS: Final = 300
"""Maximum length of a file name, a function name and a source line."""
FIRST_FRAMES: Final = 8
"""How many frames of an exception to keep at the outer end."""
FIRST_CAUSES, LAST_CAUSES = 4, 4
"""How many exceptions of a chain to keep at each end."""
MAX_PARTS: Final = 5
"""How many exceptions of a group to keep."""
MAX_FRAMES: Final = 80
"""Maximum number of frames of one description, all exceptions together."""
MAX_ERRORS: Final = 24
"""Maximum number of exceptions of one description."""
MAX_DEPTH: Final = 3
"""How deep to follow groups inside groups."""

MAX_NESTED: Final = (FIRST_CAUSES + LAST_CAUSES) * (MAX_DEPTH + 1)
"""How deep causes and groups of a description can be nested."""

_NAME: Final = __name__.partition(".")[0] + "."
_PLUMBING: Final = tuple(
    os.path.join(os.path.dirname(os.__file__), name, "") for name in ("asyncio", "concurrent")
)
_PACKAGE: Final = (
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
)
_CALLERS: Final = tuple(
    os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    for name in ("frames.py", "timed_calls.py")
)
"""The files whose functions call the program."""


def error_text(error: BaseException) -> str:
    """Return the message of an exception, shortened and valid as UTF-8."""
    try:
        text = str(error)
    except Exception:  # its own __str__ fails
        return ""
    return _clean(text, MAX_MESSAGE_CHARACTERS)


def capture_trace(log: Log, error: BaseException, task: str | None = None) -> ev.Trace | None:
    """Return the traceback and the causes of an exception; None if the store keeps none.

    Type and message of the exception itself are not in it: its event has them. If `task` is given,
    a `StepFailed` of that task only names its step, whose own event has the rest.
    """
    capture = _Capture(log.redaction.redact_error, task)
    if not log.tracebacks:
        step = capture.own_step(error)
        return ev.Trace(step=step) if step else None
    try:
        return capture.describe(error)
    except Exception:  # a class of the program misbehaves; the failure itself must be recorded
        return None


def describe_failure(log: Log, error: BaseException) -> Failure:
    """Return an exception as a `Failure`, redacted."""
    redact = log.redaction.redact_error
    failure = build_failure(
        redact(type(error).__name__), redact(error_text(error)), capture_trace(log, error)
    )
    if isinstance(error, StepFailed) and failure.cause is None:  # from the record, or not kept
        cause = Failure(error.type, error.message)
        failure = msgspec.structs.replace(failure, step=error.step, cause=cause)
    return failure


def build_failure(
    type: str,
    message: str,
    trace: ev.Trace | None,
    *,
    attempt: int = 0,
    find_step: Callable[[str], Failure | None] | None = None,
    depth: int = 0,
) -> Failure:
    """Return the public form of a stored failure. `find_step` returns the failure of a step.

    What is nested deeper than any description is left out: any writer can forge events.
    """
    if trace is None or depth > MAX_NESTED:
        return Failure(type, message, attempt=attempt)
    cause = None
    if trace.cause is not None:
        cause = _build_part(trace.cause, find_step, depth + 1)
    elif trace.step and find_step is not None:
        cause = find_step(trace.step)
    return Failure(
        type,
        message,
        attempt=attempt,
        step=trace.step or None,
        frames=[
            FailureFrame(frame.file, frame.line, frame.function, frame.source)
            for frame in trace.frames
        ],
        omitted_frames=trace.omitted,
        cause=cause,
        implicit=trace.implicit,
        omitted_causes=trace.skipped,
        group=[_build_part(part, find_step, depth + 1) for part in trace.group],
    )


def _build_part(
    trace: ev.Trace, find_step: Callable[[str], Failure | None] | None, depth: int
) -> Failure:
    return build_failure(trace.type, trace.message, trace, find_step=find_step, depth=depth)


class _Link(NamedTuple):
    """An exception of a chain, and whether it is only the context of the one before it."""

    error: BaseException
    implicit: bool


class _Capture:
    """Describes one exception with its causes, within the limits."""

    def __init__(self, redact: Callable[[str], str], task: str | None) -> None:
        self._redact, self._task = redact, task
        self._frames_left, self._errors_left = MAX_FRAMES, MAX_ERRORS
        self._seen = set[int]()

    def describe(self, error: BaseException, depth: int = 0) -> ev.Trace:
        chain = list(self._chain(error))
        skipped = max(len(chain) - FIRST_CAUSES - LAST_CAUSES, 0)
        kept = chain[:FIRST_CAUSES] + chain[FIRST_CAUSES + skipped :]
        self._errors_left -= len(kept)
        found: ev.Trace | None = None
        # From the root cause on: it must not be the one without room for its frames.
        for place, link in reversed(list(enumerate(kept))):
            is_top = place == 0
            follows = kept[place + 1].implicit if place + 1 < len(kept) else False
            frames, omitted = self._frames(link.error)
            found = ev.Trace(
                type="" if is_top and not depth else self._name(link.error),
                message="" if is_top and not depth else self._message(link.error),
                frames=frames,
                omitted=omitted,
                step=self.own_step(link.error),
                cause=found,
                implicit=follows,
                skipped=skipped if place == FIRST_CAUSES - 1 else 0,
                group=self._group(link.error, depth),
            )
        assert found is not None
        return found

    def _chain(self, error: BaseException) -> Iterator[_Link]:
        """Yield the exception and what caused it, as Python would show them."""
        link: _Link | None = _Link(error, False)
        while link is not None and id(link.error) not in self._seen:
            self._seen.add(id(link.error))
            yield link
            found = link.error
            if self.own_step(found):
                return
            if found.__cause__ is not None:
                link = _Link(found.__cause__, False)
            elif found.__context__ is not None and not found.__suppress_context__:
                link = _Link(found.__context__, True)
            else:
                link = None

    def _group(self, error: BaseException, depth: int) -> list[ev.Trace]:
        parts: Any = getattr(error, "exceptions", None)
        if type(parts) is not tuple or depth >= MAX_DEPTH:
            return []
        return [
            self.describe(part, depth + 1)
            for part in parts[:MAX_PARTS]
            if isinstance(part, BaseException)
            and id(part) not in self._seen
            and self._errors_left > 0
        ]

    def own_step(self, error: BaseException) -> str:
        """Return the step of a `StepFailed` of the task; else an empty string."""
        return error.step if isinstance(error, StepFailed) and error.task == self._task else ""

    def _name(self, error: BaseException) -> str:
        return self._text(type(error).__name__)

    def _message(self, error: BaseException) -> str:
        return self._redact(error_text(error))[:MAX_CAUSE_CHARACTERS]

    def _frames(self, error: BaseException) -> tuple[list[ev.TraceFrame], int]:
        """Return the frames to keep, outermost first, and how many are left out in between."""
        found: list[TracebackType] = []
        inside: TracebackType | None = None
        traceback = error.__traceback__
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename.startswith(_PACKAGE):
                inside = traceback
            else:
                found.append(traceback)
            traceback = traceback.tb_next
        while len(found) > 1 and found[0].tb_frame.f_code.co_filename.startswith(_PLUMBING):
            del found[0]  # Holdfast called the program through it
        if not found and inside is not None and _is_own_fault(error, inside):
            found = [inside]
        last = min(LAST_FRAMES, self._frames_left)
        first = min(FIRST_FRAMES, self._frames_left - last)
        omitted = max(len(found) - first - last, 0)
        kept = found[:first] + found[first + omitted :] if omitted else found
        self._frames_left -= len(kept)
        return [self._frame(each) for each in kept], omitted

    def _frame(self, traceback: TracebackType) -> ev.TraceFrame:
        code, line = traceback.tb_frame.f_code, traceback.tb_lineno or 0
        linecache.checkcache(code.co_filename)
        source = linecache.getline(code.co_filename, line, traceback.tb_frame.f_globals)
        return ev.TraceFrame(
            self._text(code.co_filename), line, self._text(code.co_name), self._text(source.strip())
        )

    def _text(self, text: str) -> str:
        """Redact a text, then cut it: a part of a secret would not be recognized."""
        return self._redact(_clean(text, MAX_MESSAGE_CHARACTERS))[:MAX_TEXT_CHARACTERS]


def _is_own_fault(error: BaseException, innermost: TracebackType) -> bool:
    """Return whether an error without frames of the program is a fault in Holdfast itself.

    It is not if Holdfast reports it, or where Holdfast calls the program: functions written in C
    have no frames.
    """
    file = innermost.tb_frame.f_code.co_filename
    return not type(error).__module__.startswith(_NAME) and file not in _CALLERS


def _clean(text: str, length: int) -> str:
    """Return a text that is valid as UTF-8 and not longer than this."""
    return text[:length].encode(errors="replace").decode()
