"""What a task is doing, in words and as JSON values."""

from __future__ import annotations

from datetime import datetime, timezone

from ... import StepInfo, TaskInfo, TaskView
from ...errors import format_owner
from ...types import RunningStep
from ..text import cut

_Step = StepInfo | RunningStep


def format_seconds(seconds: float) -> str:
    """Return a length of time in its two largest units: `12 s`, `3 min 5 s`, `2 h 10 min`."""
    whole = max(int(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def format_age(since: datetime) -> str:
    """Return how long ago a time was."""
    return format_seconds((datetime.now(timezone.utc) - since).total_seconds())


def describe_activity(info: TaskInfo | TaskView) -> str:
    """Return what a listed task is doing; "" if it is doing nothing, or that is unknown."""
    if isinstance(info, TaskView):
        return ""
    if info.overdue and info.lingers_in is not None:
        return f"cancelled, but still running in {format_owner(info.lingers_in)}"
    return "" if info.step is None or info.abandoned else _describe_step(info.step)


def activity_lines(view: TaskView) -> list[str]:
    """Return the lines about what a task is doing, and about its time limit."""
    lines = [f"running: {_describe_step(step)}" for step in view.steps if step.status == "running"]
    cancelled = view.cancellation
    if cancelled is not None and cancelled.overdue:
        owner = "" if cancelled.owner is None else f" in {format_owner(cancelled.owner)}"
        lines.append(f"not ended: {', '.join(map(cut, cancelled.running))} still running{owner}")
    if view.deadline is not None and view.status not in ("finished", "cancelled"):
        lines.append(f"timeout: fails at {view.deadline:%Y-%m-%d %H:%M:%S} UTC")
    return lines


def _describe_step(step: _Step) -> str:
    done, total = _progress(step)
    parts = [f"{cut(step.path, 80)} for {format_age(step.started_at)}"]
    if done is not None:
        parts.append(f"{done:g}" if total is None else f"{done:g} of {total:g}")
    if step.overdue and step.expect is not None:
        parts.append(f"overdue: expected {format_seconds(step.expect)}")
    return ", ".join(parts)


def _progress(step: _Step) -> tuple[float | None, float | None]:
    if isinstance(step, RunningStep):
        return step.done, step.total
    return (None, None) if step.progress is None else (step.progress.done, step.progress.total)


def activity_facts(task: TaskInfo | TaskView) -> dict[str, object]:
    """Return what both `tasks --json` and `task --json` show about it."""
    if isinstance(task, TaskInfo):
        step: _Step | None = task.step
    else:
        running = [step for step in task.steps if step.status == "running"]
        step = max(running, key=lambda step: (step.overdue, step.started_at), default=None)
    return {"overdue": bool(task.overdue), "step": None if step is None else step_facts(step)}


def step_facts(step: _Step) -> dict[str, object]:
    """Return when a step started, and its progress."""
    done, total = _progress(step)
    return {
        "path": step.path,
        "started_at": step.started_at.isoformat(),
        "done": done,
        "total": total,
        "expect": step.expect,
        "overdue": step.overdue,
    }
