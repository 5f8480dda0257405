"""Describe steps whose outcome is unknown: arguments, idempotency key, last check."""

from __future__ import annotations

from ... import StepInfo, TaskView
from ..text import cut, to_json


def doubt_lines(view: TaskView) -> list[str]:
    """Return lines about each step of a task whose outcome is unknown."""
    return [line for step in view.steps if step.in_doubt for line in _step_lines(step)]


def _step_lines(step: StepInfo) -> list[str]:
    doubt = "outcome unknown, its check decides" if step.mode == "check" else "in doubt"
    lines = [f"{doubt}: {step.path}"]
    for name, value in (step.arguments or {}).items():
        lines.append(f"  {name}: {cut(to_json(value))}")
    if step.idempotency_key is not None:
        lines.append(f"  idempotency key: {step.idempotency_key}")
    if step.check is not None:
        lines.append(f"  its check: {cut(step.check)}")
    return lines
