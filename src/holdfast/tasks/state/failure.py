"""Why a step or a task failed, as `view.error` and `step.error` show it."""

from __future__ import annotations

from typing import Final

import msgspec

from ...log.reprs import ShortRepr

LAST_FRAMES: Final = 16
"""How many frames of an exception are kept at the inner end of its traceback."""


class FailureFrame(msgspec.Struct, frozen=True):
    """A line of a traceback. `source` is the line of code; "" if it was not found."""

    file: str
    line: int
    function: str
    source: str = ""


class Failure(ShortRepr, msgspec.Struct, frozen=True):
    """An exception: its type and message, where it was raised, and what caused it.

    `frames` are lines of the program, outermost first, without those of Holdfast. There are none if
    the store was opened with `tracebacks=False`. `print(failure)` prints the traceback.
    """

    _shown = ("type", "message", "attempt", "step")

    type: str
    message: str
    attempt: int = 0
    """Which attempt of the step, or which failed run in a row of the task; 0 for a cause."""
    step: str | None = None
    """For a `StepFailed`: the path of the step. Its own failure is the `cause`."""
    frames: list[FailureFrame] = []
    omitted_frames: int = 0
    """How many frames are left out before the last 16, because there are too many."""
    cause: Failure | None = None
    """The exception that caused it (`raise … from`), or that was handled when it was raised."""
    implicit: bool = False
    """Whether `cause` was only being handled: there was no `from`."""
    omitted_causes: int = 0
    """How many causes are left out before `cause`, because there are too many."""
    group: list[Failure] = []
    """The exceptions of an exception group, up to 5."""

    @property
    def root(self) -> Failure:
        """The exception that the program raised: the one that a `StepFailed` wraps, or this one."""
        wraps = self.step is not None or self.type in _WRAPPERS
        return self.cause.root if wraps and self.cause is not None else self

    def __str__(self) -> str:
        """The failure as Python prints a traceback, with the step's frames after the agent's."""
        return self.format()

    def format(self, *, messages: bool = True) -> str:
        """Return `str(failure)`; without `messages`, only types and places, no content."""
        return "\n".join(_format_failure(self, messages))


_WRAPPERS: Final = ("StepFailed", "ChildFailed")
"""The exceptions with which Holdfast reports the failure of a step."""


def _format_failure(failure: Failure, messages: bool) -> list[str]:
    """Return the lines of a failure, with its causes first."""
    root, frames = failure.root, list[str]()
    found: Failure | None = failure
    while found is not None:
        frames += _format_frames(found)
        found = None if found is root else found.cause
    lines: list[str] = []
    if root.cause is not None:
        lines = [*_format_failure(root.cause, messages), ""]
        if root.omitted_causes:
            lines += [f"[{root.omitted_causes} more causes]", ""]
        lines += [_IMPLICIT_CAUSE if root.implicit else _EXPLICIT_CAUSE, ""]
    if frames:
        lines += ["Traceback (most recent call last):", *frames]
    lines.append(root.type + (f": {root.message}" if messages and root.message else ""))
    for number, part in enumerate(root.group, 1):
        lines += [f"  -- {number} of the group --"]
        lines += [f"  {line}".rstrip() for line in _format_failure(part, messages)]
    return lines


_EXPLICIT_CAUSE: Final = "This exception was the direct cause of the following one:"
_IMPLICIT_CAUSE: Final = "While handling this exception, another one was raised:"


def _format_frames(failure: Failure) -> list[str]:
    lines = []
    gap = max(len(failure.frames) - LAST_FRAMES, 0)
    for place, frame in enumerate(failure.frames):
        if failure.omitted_frames and place == gap:
            lines.append(f"  [{failure.omitted_frames} more frames]")
        lines.append(f'  File "{frame.file}", line {frame.line}, in {frame.function}')
        if frame.source:
            lines.append(f"    {frame.source}")
    return lines
