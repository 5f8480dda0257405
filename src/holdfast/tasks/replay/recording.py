"""Compare a running agent with the recording of its task, and stop it where it diverges.

Step functions are not called, so only what the agent requests outside of steps is compared.
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
from ..state import events as ev
from ..state.fold import CHILD, AttachedFile, TaskState, plan_step_paths
from ..state.view import PlanItem
from ..state.waits import ASK, SIGNAL, TIMER, TaskWait

if TYPE_CHECKING:
    from ...log.drivers import EffectGen
    from ..steps.run import StepCall

FINISHED: Final = "finished"
SUSPENDED: Final = "suspended"
FAILED: Final = "failed"
RECORDING_ENDED: Final = "recording ended"
DIVERGED: Final = "diverged"


class Divergence(msgspec.Struct, frozen=True):
    """Where the code diverges from the recording: the step (or name), and what differs.

    `recorded` is what the recording has there, and `asked` is what the code requests now. None
    means nothing. Arguments are shown as fingerprints.
    """

    step: str
    what: str
    recorded: str | None
    asked: str | None

    def __str__(self) -> str:
        at = f" at {self.step!r}" if self.step else ""
        recorded, requested = self.recorded or "nothing", self.asked or "nothing"
        return f"{self.what}{at}: recorded {recorded}, requested {requested}"


class Diverged(BaseException):
    """Stops the agent. Not an `Exception`, so agents don't catch it. Later requests raise it."""


class Recording(TaskState):
    """The state of a task, with every plan, file and note that was recorded."""

    def __init__(self, key: StreamKey) -> None:
        super().__init__(key)
        self.planned: dict[str, ev.Planned] = {}
        self.files: dict[tuple[str, str], AttachedFile] = {}
        self.notes: dict[str, tuple[str, int]] = {}
        """Notes outside of steps: the kind of note and its version, by id."""

    def apply(self, key: StreamKey, version: int, at: float, name: str, event: Any) -> None:
        super().apply(key, version, at, name, event)
        if name == ev.PLANNED:
            self.planned[event.id] = event
        elif name == ev.ATTACHED:
            self.files[event.name, event.blob.digest] = AttachedFile(
                version, at, key, event.name, event.blob
            )
        elif name in (ev.DECIDED, ev.DISCOVERED) and not event.step:
            self.notes[event.id] = (_NOTES[name], version)


_NOTES: Final = {ev.DECIDED: "decision", ev.DISCOVERED: "discovery"}


class ReplayState:
    """What a replay has requested so far, and where it diverges from the recording."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.status = FAILED if recording.status == "retrying" else recording.status
        self.result, self._error = recording.result, recording.error
        # To the agent, the task is running.
        recording.status, recording.result, recording.error = "running", b"null", None
        if self.status == FAILED:  # these failures ended the run, and do so again
            for step in recording.steps.values():
                if step.state == "retrying" and step.error is not None:
                    step.state = "failed"
        self._lock = threading.Lock()
        self.divergence: Divergence | None = None
        self.replayed: dict[str, None] = {}
        """Steps whose recorded outcome was used, in order."""
        self.value: bytes | None = None
        """The result that the agent finished with."""
        self._requested: set[str] = set()
        self._waited: set[str] = set()
        self._noted: set[str] = set()
        self._first_unrecorded: Divergence | None = None
        """The first request that is not recorded. The recording may have ended there."""
        self._replayed_failure = self._reached_wait = False
        self._fail_reason: str | None = None

    def check(self) -> None:
        """Stop the agent if it has diverged."""
        if self.divergence is not None:
            raise Diverged

    def diverge(self, step: str, what: str, recorded: str | None, asked: str | None) -> NoReturn:
        """Record that the agent diverges, and stop it."""
        with self._lock:
            self.divergence = self.divergence or Divergence(step, what, recorded, asked)
        raise Diverged

    def require_recorded(self, step: str, what: str, asked: str) -> NoReturn:
        """Stop the agent at an unrecorded request: it diverges, or the recording ends here."""
        if self.status == FINISHED:
            self.diverge(step, what, self._next_recorded(), asked)
        with self._lock:
            self._first_unrecorded = self._first_unrecorded or Divergence(step, what, None, asked)
        self._stop("the recording ends here")

    def _stop(self, why: str) -> NoReturn:
        raise Suspended(str(self.recording.key), why=why)

    def _stop_at_wait(self) -> NoReturn:
        self._reached_wait = True
        self._stop("it waits, as recorded")

    # -- requests of the agent ---------------------------------------------------------------------

    def step_gen(self, call: StepCall) -> EffectGen[Any]:
        """Return or raise the recorded outcome of a step."""
        from ..steps.run import recorded_result_gen

        record = call.record
        if record is None:
            self.require_recorded(
                call.path, "new step", _describe_step(call.path, call.fingerprint)
            )
        self._requested.add(call.path)
        if record.args != call.fingerprint:
            self.diverge(
                call.path,
                "arguments",
                _describe_step(call.path, record.args),
                _describe_step(call.path, call.fingerprint),
            )
        if record.state == "completed":
            self.replayed[call.path] = None
            return (yield from recorded_result_gen(call, record))
        if record.state == "failed":
            self.replayed[call.path] = None
            self._replayed_failure = True
            if record.doubt and record.mode == "once":
                raise call.in_doubt(
                    f"ended with {record.error}, which does not show whether it was done"
                )
            raise call.failure(record)
        waits = self.recording.suspended_on if self.status == SUSPENDED else ev.TaskSuspended()
        is_child = record.kind == CHILD and record.parsed_path.key in waits.children
        if is_child or call.path in waits.checks:
            self._stop_at_wait()
        self._stop(f"step {call.path!r} was started, and its end is not recorded")

    def wait(self, kind: str, name: str, id: str) -> TaskWait | None:
        """Return a recorded wait that is over; None for a timer that never had to wait."""
        known = self.recording.waits.all.get(id)
        if known is None:
            if kind == TIMER:
                return None
            self._new_wait(kind, name)
        self._waited.add(id)
        if known.how is None:
            ends_here = self.status == SUSPENDED and id in self.recording.suspended_on.waits
            if kind != TIMER or ends_here:
                self._stop_at_wait()
        return known

    def _new_wait(self, kind: str, name: str) -> NoReturn:
        requested = f"the answer to {name!r}" if kind == ASK else f"signal {name!r}"
        for other, known in self.recording.waits.all.items():
            if (
                kind == ASK
                and known.event.kind == ASK
                and known.event.name == name
                and other not in self._waited
            ):
                self.diverge(
                    name, "question", f"{requested}, to another question or payload", requested
                )
        self.require_recorded(name, "new wait", requested)

    def plan(self, id: str, given: Any, as_plan: Callable[[Any], list[PlanItem]]) -> list[PlanItem]:
        """Return a recorded plan, and make it the current plan."""
        planned = self.recording.planned.get(id)
        if planned is None:
            self.require_recorded("", "new plan", "a plan")
        if id == "plan" and not callable(given) and as_plan(given) != planned.items:
            self.diverge("", "plan", f"a plan of {len(planned.items)} items", "another plan")
        recording = self.recording
        self._requested.update(planned.steps)
        recording.plan = planned.items
        recording.plan_paths = {
            path: at for at, path in enumerate(planned.paths or plan_step_paths(planned.items))
        }
        return planned.items

    def note(self, name: str, id: str) -> None:
        """Require that a decision or a discovery is recorded."""
        if id not in self.recording.noted:
            self.require_recorded("", _NOTES[name], f"a {_NOTES[name]} that is not recorded")
        self._noted.add(id)

    def file(self, name: str, blob: Blob) -> AttachedFile:
        """Return the recorded attachment of a file."""
        known = self.recording.files.get((name, blob.digest))
        if known is None:
            self.require_recorded(
                name, "artifact", f"to attach {name!r} with content that is not recorded"
            )
        return known

    def finish(self, value: bytes | None) -> None:
        """Finish the task. If `value` is None, a function computes it: use the recorded value."""
        self.check()
        self.value = value
        if self.status != FINISHED:
            self.require_recorded("", "result", "to finish")
        if self.value is not None and decode(self.value) != decode(self.result):
            self.diverge("", "result", "a result", "to finish with another result")
        self.recording.status, self.recording.result = FINISHED, self.result
        self.value = self.result

    def fail(self, reason: str) -> None:
        """Fail the task with a reason."""
        if self.status in _ENDED and self._error != ("fail", reason):
            self.diverge(
                "", "failure", self._recorded_end(), "to fail, for a reason that is not recorded"
            )
        self._fail_reason = reason
        self.recording.status = FAILED

    def is_unrequested(self, path: str) -> bool:
        """Whether a plan item has not been requested yet."""
        return path not in self._requested

    # -- the outcome -------------------------------------------------------------------------------

    def orphaned(self) -> list[str]:
        """Return the recorded top-level steps that were not requested.

        Steps that the recorded run did not request either are left out.
        """
        before = set(self.recording.orphaned)
        steps = self.recording.steps.items()
        return [
            path
            for path, step in steps
            if not (step.parsed_path.scope or path in self._requested or path in before)
        ]

    def conclude(self, error: BaseException | None) -> str:
        """Return how the replay ended, and set the divergence. `error` is the agent's exception."""
        ending = self._ending(error)
        if self.divergence is None:
            self.divergence = (
                self._divergence_at_end(ending, error) or self._divergence_by_omission()
            )
        return ending if self.divergence is None else DIVERGED

    def _ending(self, error: BaseException | None) -> str:
        if self._fail_reason is not None or is_failure(error):
            return FAILED
        if error is None and self.recording.status == FINISHED:
            return FINISHED
        return SUSPENDED if self._reached_wait and self.status != FAILED else RECORDING_ENDED

    def _divergence_at_end(self, ending: str, error: BaseException | None) -> Divergence | None:
        unrecorded, recorded = self._first_unrecorded, self._recorded_end()
        if ending == FAILED and self._fail_reason is None:
            if (
                self.status == FAILED
                and self._error is not None
                and self._error[0] == type(error).__name__
            ):
                return None
            if (
                self._replayed_failure
                and self.status not in _ENDED
                and isinstance(error, StepFailed)
            ):
                return None  # killed before its failure was recorded
            return Divergence("", "failure", recorded, f"to fail with {type(error).__name__}")
        if ending == SUSPENDED and self.status == FINISHED:
            return Divergence("", "wait", recorded, "to wait")
        if ending == RECORDING_ENDED and self.status in (FAILED, SUSPENDED):
            if unrecorded is not None:
                return msgspec.structs.replace(unrecorded, recorded=recorded)
            if self._reached_wait:
                return Divergence("", "wait", recorded, "to wait")
        return None

    def _divergence_by_omission(self) -> Divergence | None:
        recorded = self._next_recorded()
        if recorded is None:
            return None
        if self._first_unrecorded is not None:
            return msgspec.structs.replace(self._first_unrecorded, recorded=recorded)
        missing = self._missing_steps()
        return Divergence(missing[0] if missing else "", "orphaned", recorded, None)

    def _missing_steps(self) -> list[str]:
        """Return the orphaned steps that the agent should have requested.

        After a failure, it's a matter of chance which parallel steps were started.
        """
        steps = self.recording.steps
        return [
            path
            for path in self.orphaned()
            if not (self._replayed_failure and steps[path].parallel)
        ]

    def _next_recorded(self) -> str | None:
        """Describe the first entry of the recording that was not requested yet."""
        recording = self.recording
        for path in self._missing_steps():
            return _describe_step(path, recording.steps[path].args)
        if self.status != FINISHED:
            return None
        for name, wait in recording.waits.all.items():
            if wait.how is not None and name not in self._waited and _is_outside(name, wait):
                return f"signal {wait.event.name!r}" if wait.event.name else "a sleep"
        if recording.runs == 1:  # else an interrupted run may have notes that later ones lack
            for note, (kind, version) in recording.notes.items():
                if note not in self._noted:
                    return f"a {kind} (version {version})"
        return None

    def _recorded_end(self) -> str | None:
        """Describe how the recorded run ended."""
        if self.status == FINISHED:
            return "a result"
        if self.status == FAILED:
            return f"a failure ({self._error[0] if self._error else ''})"
        return "that it waits" if self.status == SUSPENDED else None


_ENDED: Final = (FINISHED, FAILED, SUSPENDED)
"""A run with such an end requested nothing more. What any other run would do next is unknown."""


def _is_outside(id: str, wait: TaskWait) -> bool:
    """Whether the wait was outside of steps. False for questions, where that is unknown."""
    return "/" not in id if wait.event.kind == SIGNAL else id.startswith(f"{TIMER} #")


def _describe_step(path: str, args: str) -> str:
    return f"step {path!r} with arguments {args}"


def is_failure(error: BaseException | None) -> bool:
    """Whether the agent failed, and was not just stopped. `error` may be an exception group."""
    from ..ending import is_failure

    return error is not None and is_failure(error)
