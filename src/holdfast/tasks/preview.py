"""Preview a resume: what it would do with each recorded step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from ..conversations.quote import extract_line
from ..log.reprs import html_table
from .resume_context.select import is_inside_completed
from .state.view import ENDED, Drift, Status, StepInfo, TaskView

_MAX_NAMES: Final = 8
"""Maximum number of steps to show per row on a terminal; the others are only counted."""
_MAX_NAME_CHARACTERS: Final = 60
_ROWS: Final = (
    ("skipped", "finished"),
    ("rerun", "run again"),
    ("waiting", "waiting"),
    ("checked", "its check decides"),
    ("in_doubt", "in doubt"),
    ("replayed", "fail as before"),
    ("pending", "not started"),
    ("orphaned", "no longer requested"),
)
_SHOWN_BY_PATH: Final = ("checked", "in_doubt", "replayed")
"""Rows with exact paths, which `store.resolve` needs. Other rows have unescaped paths."""


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """The paths of a task's steps, grouped by what a resume would do with them."""

    task: str
    status: Status
    version: int
    skipped: list[str]
    """Finished: they return their recorded result."""
    rerun: list[str]
    """Interrupted, failed, or resolved as not done: they run again."""
    checked: list[str]
    """Their outcome is unknown, and their check decides whether they run."""
    in_doubt: list[str]
    """In doubt: `store.resolve` must record whether they were done."""
    replayed: list[str]
    """Failed, and the agent handled the failure: they raise it again without running."""
    pending: list[str]
    """Items of the plan that were never started."""
    orphaned: list[str]
    """Recorded, but not requested by the newest run: renamed, or removed from the code."""
    drift: list[Drift]
    """Recorded steps whose arguments, code or model differ now."""
    waiting: list[str] = []
    """Children that wait. They resume on their own."""
    waits_for: list[str] = []
    """What the task waits for. A resume stops there until it arrives."""

    @property
    def ok(self) -> bool:
        """Whether a resume needs no attention: nothing is in doubt, changed or orphaned."""
        return not (self.in_doubt or self.orphaned or self.drift)

    def to_dict(self) -> dict[str, Any]:
        """Return the preview as plain JSON values."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return {**found, "ok": self.ok}

    def _repr_html_(self) -> str:
        rows = [
            (label, len(paths), _join_names(paths))
            for field, label in _ROWS
            if (paths := getattr(self, field))
        ]
        title = f"Resume of task {self.task}, {self.status}"
        return html_table(title, rows, ("", "steps", ""), "\n".join(self._advice()))

    def __str__(self) -> str:
        rows = [
            (
                label,
                [
                    path if field in _SHOWN_BY_PATH else unquote(path)
                    for path in getattr(self, field)
                ],
            )
            for field, label in _ROWS
        ]
        rows.append(
            ("changed", [f"{unquote(change.step)} ({change.what})" for change in self.drift])
        )
        width = max(len(label) for label, _ in rows)
        table = [
            f"  {label:<{width}}  {len(paths):>5,}  {_join_names(paths)}"
            for label, paths in rows
            if paths
        ]
        title = f"task {_shorten(self.task)}, {self.status}"
        return "\n".join([title, *(table or ["  no steps"]), *self._advice()])

    def _advice(self) -> list[str]:
        if self.status in ENDED:
            return [f"Nothing will run: the task is {self.status}."]
        lines = []
        if self.waits_for:
            lines.append(f"The task waits for {_join_names(self.waits_for)}.")
        if self.in_doubt:
            lines.append(
                "Resolve each step in doubt: store.resolve(task, step, result=…), "
                "or retry=True if it was not done."
            )
        if self.drift or self.orphaned:
            lines.append("The code has changed: resume the task, fork it, or delete it.")
        return lines


def preview_resume(view: TaskView, current_code: Mapping[str, str]) -> Preview:
    """Return what a resume would do. `current_code` maps step names to digests of current code.

    A running step is shown as if its process died now. A resume of an ended task runs nothing.
    """
    by_path = {step.path: step for step in view.steps}
    fates: dict[str, list[str]] = {
        fate: []
        for fate in ("skipped", "rerun", "waiting", "checked", "in_doubt", "replayed", "pending")
    }
    for step in view.steps:
        fate = _choose_fate(step)
        if fate == "skipped" or step.in_doubt or not is_inside_completed(step, by_path):
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
        drift=[*view.drift, *_find_code_drift(view, current_code)],
        waits_for=list(view.waits_for),
    )


def _choose_fate(step: StepInfo) -> str:
    if step.status == "completed":
        return "skipped"
    if step.in_doubt or (step.status == "running" and step.mode):
        return "checked" if step.mode == "check" else "in_doubt"
    if step.status == "waiting":
        return "waiting"
    return "replayed" if step.status == "failed" and step.replays else "rerun"


def _find_code_drift(view: TaskView, current_code: Mapping[str, str]) -> list[Drift]:
    """Return a drift for each finished step whose function has changed. Its result is kept."""
    known = {change.step for change in view.drift if change.what == "code"}
    found = []
    for step in view.steps:
        now = current_code.get(step.name, "")
        if step.status == "completed" and step.path not in known and _differ(step.code, now):
            found.append(Drift(step.path, "code", step.code, now))
    return found


def _differ(recorded: str, now: str) -> bool:
    """Return True if two code digests of the same Python version differ, and neither is empty."""
    version, _, digest = recorded.partition(":")
    version_now, _, digest_now = now.partition(":")
    return bool(digest and digest_now) and version == version_now and digest != digest_now


def _join_names(paths: list[str]) -> str:
    more = f" and {len(paths) - _MAX_NAMES:,} more" if len(paths) > _MAX_NAMES else ""
    return ", ".join(map(_shorten, paths[:_MAX_NAMES])) + more


def _shorten(name: str) -> str:
    return extract_line(name, _MAX_NAME_CHARACTERS)
