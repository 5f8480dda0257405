"""Suspension: what a run waits for, and how its code stops until then."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NoReturn

from ...backends import HeadFields
from ...errors import Suspended
from ..state import events as ev
from ..state.fold import TaskState
from .frames import Branch, current_frame

if TYPE_CHECKING:
    from .session import Session


class Suspension:
    """What the run of a session waits for. Thread-safe."""

    def __init__(self, state: TaskState, lock: threading.RLock) -> None:
        self._state, self._lock = state, lock
        self.branch = Branch()
        """The block itself."""
        self.is_pending = False
        """Whether some branch waits, or the run stops at its next step."""
        self.stop_reason = ""
        """Why the run stops at its next step; "" if it doesn't."""
        self.waits: dict[str, None] = {}
        """Ids of the waits that this run waits for."""
        self.children: dict[str, None] = {}
        """Ids of the children that this run waits for."""
        self.checks: dict[str, float] = {}
        """Steps in doubt whose check this run waits to call, and until when."""
        self.head_before, self.waits_before = HeadFields(), ev.TaskSuspended()
        """The task's head before the claim, and the waits it was suspended on."""
        self._questions: dict[str, str] = {}  # wait ids of this run's questions, by name
        self._recheck_at: float | None = None  # when to check a child that another process runs
        self._interrupted: set[str] = set()  # steps that had to wait in the middle
        self._child_sessions: set[Session] = set()  # of children that run inside this run

    def check(self, ends: bool) -> None:
        """Raise `Suspended` in a waiting branch, and in a stopping run unless it `ends` a task."""
        inside = current_frame()
        if inside is not None and inside.inside_guarded_step():
            return
        here = inside is not None and inside.session.suspension is self
        branch = inside.branch if inside is not None and here else self.branch
        if branch.is_suspended():
            self._mark_interrupted()
            branch.check()
        if self.stop_reason and not ends:
            self.suspend(branch, self.stop_reason)

    def suspend(self, branch: Branch, why: str = "") -> NoReturn:
        """Suspend a branch: raise `Suspended`, now and whenever it calls the task again."""
        with self._lock:
            self.is_pending = True
            events = [self._state.waits.all[wait].event for wait in self.waits]
            waits = [repr(event.name) if event.name else "a time" for event in events]
            waits += [f"child {child!r}" for child in self.children]
            waits += [f"the check of step {path!r}" for path in self.checks]
            branch.suspended = Suspended(
                str(self._state.key), waits=() if why else tuple(waits), why=why
            )
            self._mark_interrupted()
        raise branch.suspended

    def _mark_interrupted(self) -> None:
        """Mark all enclosing steps as interrupted.

        If they swallow `Suspended`, what they return must not be recorded.
        """
        inside = current_frame()
        here = inside is not None and inside.session.suspension is self
        step = inside.run if inside is not None and here else None
        while step is not None:
            self._interrupted.add(step.path)
            step = step.outer

    def check_interrupted(self, path: str, branch: Branch) -> None:
        """Raise `Suspended` again for a step that swallowed it."""
        if path in self._interrupted:
            branch.check()

    def reserve_question(self, name: str, wait: str) -> None:
        """Raise if this run has another open question of this name: it could get the answer."""
        with self._lock:
            other = self._questions.setdefault(name, wait)
            if other != wait and not self._state.waits.is_satisfied(other):
                raise RuntimeError(
                    f"{self._state.key} already has an open question {name!r} with another text or "
                    "payload, maybe from another item of a map; give each question its own name"
                )
            self._questions[name] = wait

    def add_child_wait(self, child: str, until: float | None) -> None:
        """Make the run wait for a child. If another process runs it, check again at `until`."""
        with self._lock:
            self.children[child] = None
            if until is not None:
                self._recheck_at = min(until, self._recheck_at or until)

    def restore_waits(self) -> None:
        """Make the run wait for what the task waited for before the claim."""
        with self._lock:
            self.waits.update(dict.fromkeys(self.waits_before.waits))
            self.children.update(dict.fromkeys(self.waits_before.children))
            self._recheck_at = self.head_before.due_at

    def event(self) -> ev.TaskSuspended:
        """Return the event that says what the run waits for."""
        return ev.TaskSuspended(list(self.waits), list(self.children), list(self.checks))

    def find_due(self, now: float) -> tuple[str, float | None]:
        """Return the status of a task that waits, and when it is due: at its first timeout.

        If a wait is already over, the task is pending and due now.
        """
        waits = self._state.waits
        if waits.is_ready(self.waits, self.children):
            return "pending", now
        times = [
            time
            for time in (
                waits.wakes_at(self.waits),
                self._recheck_at,
                self._state.deadline,
                *self.checks.values(),
            )
            if time is not None
        ]
        # Not in the past: workers scan for tasks that became due since their last scan.
        return "suspended", max(min(times), now) if times else None

    # -- stopping ----------------------------------------------------------------------------------

    def stop(self, why: str) -> None:
        """End the run at its next step, as if it had to wait. Children inside it stop too."""
        with self._lock:
            self.stop_reason, self.is_pending = why, True
            child_sessions = list(self._child_sessions)
        for session in child_sessions:
            session.suspension.stop(why)

    def add_child(self, session: Session) -> None:
        """Register a child that runs inside this run, so that both stop together."""
        with self._lock:
            self._child_sessions.add(session)
        if self.stop_reason:
            session.suspension.stop(self.stop_reason)

    def remove_child(self, session: Session) -> None:
        with self._lock:
            self._child_sessions.discard(session)
