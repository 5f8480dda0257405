"""What a resume would do with each recorded step, told without doing it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from ..conversations.quote import one_line
from .resume_context.select import enclosed
from .state.view import ENDED, Drift, Status, StepInfo, TaskView

_NAMED: Final = 8
"""So many steps of a sort are named on a terminal; the rest is counted."""
_LONGEST_NAME: Final = 60
_ROWS: Final = (
    ("skipped", "finished, kept"),
    ("rerun", "run again"),
    ("waiting", "waiting"),
    ("checked", "its check decides"),
    ("in_doubt", "in doubt"),
    ("replayed", "fail as before"),
    ("pending", "not begun"),
    ("orphaned", "no longer asked for"),
)
_SETTLED: Final = ("checked", "in_doubt", "replayed")
"""Whoever settles one of these has to name it, so they are shown by their paths; others as people write them."""


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of a task, by their paths, sorted by what a resume would do with them."""

    task: str
    status: Status
    version: int
    skipped: list[str]
    """Finished: they return their stored result."""
    rerun: list[str]
    """Interrupted, failed, or settled as not done: they run again."""
    checked: list[str]
    """In doubt, and their check decides whether they run."""
    in_doubt: list[str]
    """In doubt for good: `store.resolve` has to say what became of them."""
    replayed: list[str]
    """Failed, and the program went on: they fail in the same way without running."""
    pending: list[str]
    """Items of the plan that were never begun."""
    orphaned: list[str]
    """Recorded, but the newest run did not ask for them: renamed, or no longer in the program."""
    drift: list[Drift]
    """Recorded steps with other arguments, other code or another model than now."""
    waiting: list[str] = []
    """Children that had to wait: they go on by themselves."""
    waits_for: list[str] = []
    """What the task waits for: until it is there, a resume gets no further."""

    @property
    def ok(self) -> bool:
        """Whether a resume needs nobody's attention: nothing is in doubt, has changed or is no longer asked for."""
        return not (self.in_doubt or self.orphaned or self.drift)

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON values."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return {**found, "ok": self.ok}

    def __str__(self) -> str:
        rows = [
            (label, [path if field in _SETTLED else unquote(path) for path in getattr(self, field)])
            for field, label in _ROWS
        ]
        rows.append(
            ("changed", [f"{unquote(change.step)} ({change.what})" for change in self.drift])
        )
        width = max(len(label) for label, _ in rows)
        table = [
            f"  {label:<{width}}  {len(paths):>5,}  {_listed(paths)}"
            for label, paths in rows
            if paths
        ]
        title = f"task {_shown(self.task)}, {self.status}"
        return "\n".join([title, *(table or ["  nothing is recorded"]), *self._advice()])

    def _advice(self) -> list[str]:
        if self.status in ENDED:
            return [f"Nothing will run: the task is {self.status}."]
        said = []
        if self.waits_for:
            said.append(f"It waits for {_listed(self.waits_for)}.")
        if self.in_doubt:
            said.append(
                "Settle what is in doubt: store.resolve(task, step, result=…), or retry=True if it was not done."
            )
        if self.drift or self.orphaned:
            said.append("The program has changed since: resume it, fork the task, or delete it.")
        return said


def preview(view: TaskView, current_code: Mapping[str, str]) -> Preview:
    """What a resume would do. `current_code` maps names of steps to digests of the functions they are now.

    A step that is running is told as if its process died now. An ended task does nothing: what is recorded is returned.
    """
    by_path = {step.path: step for step in view.steps}
    fates: dict[str, list[str]] = {
        fate: []
        for fate in ("skipped", "rerun", "waiting", "checked", "in_doubt", "replayed", "pending")
    }
    for step in view.steps:
        fate = _fate(step)
        if fate == "skipped" or step.in_doubt or not enclosed(step, by_path):
            fates[fate].append(step.path)
    fates["pending"] = [path for path in view.plan_paths if path not in by_path]
    if view.status in ENDED:
        for fate in ("rerun", "waiting", "checked", "in_doubt", "pending"):
            fates[fate] = []
    return Preview(
        task=view.id,
        status=view.status,
        version=view.version,
        **fates,
        orphaned=list(view.orphaned),
        drift=[*view.drift, *_code_drift(view, current_code)],
        waits_for=list(view.waits_for),
    )


def _fate(step: StepInfo) -> str:
    if step.status == "completed":
        return "skipped"
    if step.in_doubt or (step.status == "running" and step.mode):
        return "checked" if step.mode == "check" else "in_doubt"
    if step.status == "waiting":
        return "waiting"
    return "replayed" if step.status == "failed" and step.replays else "rerun"


def _code_drift(view: TaskView, current_code: Mapping[str, str]) -> list[Drift]:
    """Finished steps whose function is another one now: what is kept is the result of the old one."""
    known = {change.step for change in view.drift if change.what == "code"}
    found = []
    for step in view.steps:
        now = current_code.get(step.name, "")
        if step.status == "completed" and step.path not in known and _differ(step.code, now):
            found.append(Drift(step.path, "code", step.code, now))
    return found


def _differ(recorded: str, now: str) -> bool:
    """Digests of two versions of Python cannot be compared, nor can a function that has none."""
    version, _, digest = recorded.partition(":")
    version_now, _, digest_now = now.partition(":")
    return bool(digest and digest_now) and version == version_now and digest != digest_now


def _listed(paths: list[str]) -> str:
    more = f" and {len(paths) - _NAMED:,} more" if len(paths) > _NAMED else ""
    return ", ".join(map(_shown, paths[:_NAMED])) + more


def _shown(name: str) -> str:
    return one_line(name, _LONGEST_NAME)
