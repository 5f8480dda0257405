"""A program beside the recording of its task: what is recorded is given back, and where the program departs from it, it is stopped.

The functions of steps are not called, so only what is asked for outside of steps is asked for at all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from ...backends import StreamKey
from ...errors import StepFailed, Suspended
from ...log.codec import decode
from ...log.events import Blob
from ..state.fold import CHILD
from ..state import events as ev
from ..state.fold import Attachment, TaskState, paths_of
from ..state.view import PlanItem
from ..state.waits import ASK, SIGNAL, TIMER, TaskWait

if TYPE_CHECKING:
    from ..run.effects import Script
    from ..steps.run import StepCall

FINISHED: Final = "finished"
SUSPENDED: Final = "suspended"
FAILED: Final = "failed"
RECORDING_ENDED: Final = "recording ended"
DIVERGED: Final = "diverged"


class Divergence(msgspec.Struct, frozen=True):
    """Where a program departs from what is recorded: at which step (or name), and in what.

    `recorded` says what was recorded there, `asked` what the program asks for now; None is nothing. Arguments are told by their
    fingerprints.
    """

    step: str
    what: str
    recorded: str | None
    asked: str | None

    def __str__(self) -> str:
        at = f" at {self.step!r}" if self.step else ""
        return f"{self.what}{at}: recorded {self.recorded or 'nothing'}, asked for {self.asked or 'nothing'}"


class Diverged(BaseException):
    """The program is stopped. Not an `Exception`, so that it does not go on; whatever it asks for next raises it again."""


class Recording(TaskState):
    """The fold of a task, and what a replay needs beside it: every plan, every file, every note as it was made."""

    def __init__(self, key: StreamKey) -> None:
        super().__init__(key)
        self.planned: dict[str, ev.Planned] = {}
        self.files: dict[tuple[str, str], Attachment] = {}
        self.notes: dict[str, tuple[str, int]] = {}
        """What was noted outside of steps: the kind of note and its version, by id."""

    def apply(self, key: StreamKey, version: int, at: float, name: str, event: Any) -> None:
        super().apply(key, version, at, name, event)
        if name == ev.PLANNED:
            self.planned[event.id] = event
        elif name == ev.ATTACHED:
            self.files[event.name, event.blob.digest] = Attachment(
                version, at, key, event.name, event.blob
            )
        elif name in (ev.DECIDED, ev.DISCOVERED) and not event.step:
            self.notes[event.id] = (_NOTES[name], version)


_NOTES: Final = {ev.DECIDED: "decision", ev.DISCOVERED: "discovery"}


class ReplayState:
    """What a replay has given back so far, and where it has left the recording."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.status = FAILED if recording.status == "retrying" else recording.status
        self.result, self._error = recording.result, recording.error
        # For the program it is a task that runs.
        recording.status, recording.result, recording.error = "running", b"null", None
        if self.status == FAILED:  # these ended the run, and do so again
            for step in recording.steps.values():
                if step.state == "retrying" and step.error is not None:
                    step.state = "failed"
        self._lock = threading.Lock()
        self.divergence: Divergence | None = None
        self.given: dict[str, None] = {}
        """Steps that were given back, in order."""
        self.value: bytes | None = None
        """What the program finished with."""
        self._asked: set[str] = set()
        self._waited: set[str] = set()
        self._noted: set[str] = set()
        self._beyond: Divergence | None = (
            None  # the first thing that is not recorded, where a recording may have ended
        )
        self._failure_given = self._met_a_wait = False
        self._gave_up: str | None = None

    def check(self) -> None:
        """Stop a program that has departed."""
        if self.divergence is not None:
            raise Diverged

    def depart(self, step: str, what: str, recorded: str | None, asked: str | None) -> NoReturn:
        """The program has departed from the recording."""
        with self._lock:
            self.divergence = self.divergence or Divergence(step, what, recorded, asked)
        raise Diverged

    def new(self, step: str, what: str, asked: str) -> NoReturn:
        """The program asks for something that is not recorded: it has departed, or come to where the recording ends."""
        if self.status == FINISHED:
            self.depart(step, what, self._next(), asked)
        with self._lock:
            self._beyond = self._beyond or Divergence(step, what, None, asked)
        self._stop("the recording ends here")

    def _stop(self, why: str) -> NoReturn:
        raise Suspended(str(self.recording.key), why=why)

    def _wait_on(self) -> NoReturn:
        self._met_a_wait = True
        self._stop("it waits, as it is recorded")

    # -- what the program asks for -----------------------------------------------------------------

    def step(self, call: StepCall) -> Script[Any]:
        """The recorded outcome of a step."""
        from ..steps.run import _recorded

        record = call.record
        if record is None:
            self.new(call.path, "new step", _step(call.path, call.fingerprint))
        self._asked.add(call.path)
        if record.args != call.fingerprint:
            self.depart(
                call.path,
                "arguments",
                _step(call.path, record.args),
                _step(call.path, call.fingerprint),
            )
        if record.state == "completed":
            self.given[call.path] = None
            return (yield from _recorded(call, record))
        if record.state == "failed":
            self.given[call.path] = None
            self._failure_given = True
            if record.doubt and record.mode == "once":
                raise call.in_doubt(
                    f"ended with {record.error}, which does not say whether it was done"
                )
            raise call.failure(record)
        if record.kind == CHILD and record.place.key in self._children():
            self._wait_on()
        self._stop(f"step {call.path!r} was begun, and its end is not recorded")

    def _children(self) -> list[str]:
        return self.recording.suspended_on.children if self.status == SUSPENDED else []

    def wait(self, kind: str, name: str, id: str) -> TaskWait | None:
        """A recorded wait that is over; or None for a time that may have been over before it was waited for."""
        known = self.recording.waits.all.get(id)
        if known is None:
            if kind == TIMER:
                return None
            self._new_wait(kind, name)
        self._waited.add(id)
        if known.how is None:
            ends_here = self.status == SUSPENDED and id in self.recording.suspended_on.waits
            if kind != TIMER or ends_here:
                self._wait_on()
        return known

    def _new_wait(self, kind: str, name: str) -> NoReturn:
        asked = f"the answer to {name!r}" if kind == ASK else f"signal {name!r}"
        for other, known in self.recording.waits.all.items():
            if (
                kind == ASK
                and known.event.kind == ASK
                and known.event.name == name
                and other not in self._waited
            ):
                self.depart(name, "question", f"{asked}, to another question or payload", asked)
        self.new(name, "new wait", asked)

    def plan(self, id: str, given: Any, as_plan: Callable[[Any], list[PlanItem]]) -> list[PlanItem]:
        """A recorded plan, which is the plan from now on."""
        planned = self.recording.planned.get(id)
        if planned is None:
            self.new("", "new plan", "a plan")
        if id == "plan" and not callable(given) and as_plan(given) != planned.items:
            self.depart("", "plan", f"a plan of {len(planned.items)} items", "another plan")
        recording = self.recording
        recording.plan = planned.items
        recording.plan_paths = {
            path: at for at, path in enumerate(planned.paths or paths_of(planned.items))
        }
        return planned.items

    def note(self, name: str, id: str) -> None:
        """A decision or a discovery that is recorded."""
        if id not in self.recording.noted:
            self.new("", _NOTES[name], f"a {_NOTES[name]} that is not recorded")
        self._noted.add(id)

    def file(self, name: str, blob: Blob) -> Attachment:
        """A file that is recorded."""
        known = self.recording.files.get((name, blob.digest))
        if known is None:
            self.new(name, "artifact", f"to attach {name!r} with content that is not recorded")
        return known

    def finish(self, value: bytes | None) -> None:
        """The program finishes. A function that would make the result (None) is not called: the recorded one is given back."""
        self.check()
        self.value = value
        if self.status != FINISHED:
            self.new("", "result", "to finish")
        if self.value is not None and decode(self.value) != decode(self.result):
            self.depart("", "result", "a result", "to finish with another result")
        self.recording.status, self.recording.result = FINISHED, self.result
        self.value = self.result

    def fail(self, reason: str) -> None:
        """The program gives its task up."""
        if self.status in _CLOSED and self._error != ("fail", reason):
            self.depart("", "failure", self._end(), "to give up, for a reason that is not recorded")
        self._gave_up = reason
        self.recording.status = FAILED

    def is_left(self, path: str) -> bool:
        """Whether an item of the plan is still to be asked for."""
        return path not in self._asked

    # -- the verdict -------------------------------------------------------------------------------

    def orphaned(self) -> list[str]:
        """Recorded steps outside of others that were not asked for, but for those that the recorded run had not asked for either."""
        before = set(self.recording.orphaned)
        steps = self.recording.steps.items()
        return [
            path
            for path, step in steps
            if not (step.place.scope or path in self._asked or path in before)
        ]

    def ended(self, error: BaseException | None) -> str:
        """How the replay has ended: `error` came out of the program."""
        how = self._how(error)
        if self.divergence is None:
            self.divergence = self._departed_at_the_end(how, error) or self._left_out()
        return how if self.divergence is None else DIVERGED

    def _how(self, error: BaseException | None) -> str:
        if self._gave_up is not None or is_failure(error):
            return FAILED
        if error is None and self.recording.status == FINISHED:
            return FINISHED
        return SUSPENDED if self._met_a_wait and self.status != FAILED else RECORDING_ENDED

    def _departed_at_the_end(self, how: str, error: BaseException | None) -> Divergence | None:
        beyond, recorded = self._beyond, self._end()
        if how == FAILED and self._gave_up is None:
            if (
                self.status == FAILED
                and self._error is not None
                and self._error[0] == type(error).__name__
            ):
                return None
            if self._failure_given and self.status not in _CLOSED and isinstance(error, StepFailed):
                return None  # killed before its failure was recorded
            return Divergence("", "failure", recorded, f"to fail with {type(error).__name__}")
        if how == SUSPENDED and self.status == FINISHED:
            return Divergence("", "wait", recorded, "to wait")
        if how == RECORDING_ENDED and self.status in (FAILED, SUSPENDED):
            if beyond is not None:
                return msgspec.structs.replace(beyond, recorded=recorded)
            if self._met_a_wait:
                return Divergence("", "wait", recorded, "to wait")
        return None

    def _left_out(self) -> Divergence | None:
        recorded = self._next()
        if recorded is None:
            return None
        if self._beyond is not None:
            return msgspec.structs.replace(self._beyond, recorded=recorded)
        missing = self._missing()
        return Divergence(missing[0] if missing else "", "orphaned", recorded, None)

    def _missing(self) -> list[str]:
        """Recorded steps that had to be asked for. Beside one that fails, it is a matter of chance how many others are begun."""
        steps = self.recording.steps
        return [
            path for path in self.orphaned() if not (self._failure_given and steps[path].beside)
        ]

    def _next(self) -> str | None:
        """What is recorded and not asked for yet, the first of it."""
        recording = self.recording
        for path in self._missing():
            return _step(path, recording.steps[path].args)
        if self.status != FINISHED:
            return None
        for name, wait in recording.waits.all.items():
            if wait.how is not None and name not in self._waited and _is_outside(name, wait):
                return f"signal {wait.event.name!r}" if wait.event.name else "a sleep"
        if (
            recording.runs == 1
        ):  # else one that was cut off may have noted what later ones had no reason to
            for note, (kind, version) in recording.notes.items():
                if note not in self._noted:
                    return f"a {kind} (version {version})"
        return None

    def _end(self) -> str | None:
        """How the recorded run has ended, in words."""
        if self.status == FINISHED:
            return "a result"
        if self.status == FAILED:
            return f"a failure ({self._error[0] if self._error else ''})"
        return "that it waits" if self.status == SUSPENDED else None


_CLOSED: Final = (FINISHED, FAILED, SUSPENDED)
"""A run that has ended so has asked for nothing more. Of any other, nobody knows what it was about to do."""


def _is_outside(id: str, wait: TaskWait) -> bool:
    """Whether it was waited for outside of steps. Of a question, nobody knows."""
    return "/" not in id if wait.event.kind == SIGNAL else id.startswith(f"{TIMER} #")


def _step(path: str, args: str) -> str:
    return f"step {path!r} with arguments {args}"


def is_failure(error: BaseException | None) -> bool:
    """Whether the program has failed: not if it was only stopped, also in a group of tasks."""
    from ..base import _is_failure

    return error is not None and _is_failure(error)
