"""Build the command that an operator types next: with real names, quoted, and without secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from ... import StepInfo, TaskView
from ...backends.urls import parse_url, redact_url
from ...errors import InvalidURL
from ...tasks.control.shell_command import format_command
from ..stores import given_keys

MAX_STEPS: Final = 3
"""For how many steps in doubt to print commands."""
_SAFE_KEYS: Final = ("file:", "env:", "kms:")
_SAFE_OPTIONS: Final = frozenset(
    {"host", "port", "dbname", "schema", "prefix", "region", "endpoint", "durability", "timeout"}
    | {"tracebacks", "sslmode"}
)


class StoreCommands(NamedTuple):
    """Builds commands for the store that this command was given."""

    url: str | None
    tenant: str

    def build(self, name: str, *names: str, options: Sequence[str] = ()) -> str:
        """Return a command for this store, quoted for the shell. It contains no password.

        `names` are the positional arguments after the store.
        """
        words = ["holdfast"]
        for key in given_keys():
            if key != "env:HOLDFAST_KEY":
                words += ["--key", key if key.startswith(_SAFE_KEYS) else "KEY"]
        store = [] if self.url is None else [_hide_password(self.url)]
        if self.tenant != os.environ.get("HOLDFAST_TENANT", "default"):
            options = [*options, "--tenant", self.tenant]
        return format_command([*words, name], [*store, *names], options)


def _hide_password(url: str) -> str:
    """Return the URL unchanged if it can't contain a secret; otherwise without its secret parts."""
    if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+://", url) and "@" not in url:
        try:
            if set(parse_url(url, example="", options=None).options) <= _SAFE_OPTIONS:
                return url
        except InvalidURL:
            pass
    return redact_url(url)


def advise_next(view: TaskView, commands: StoreCommands) -> list[str]:
    """Return the lines that tell an operator what to do about a task; none if it needs nothing."""
    if view.status in ("finished", "cancelled", "retrying"):
        return []
    if view.status == "running" and not view.abandoned:
        return []
    unsure = [
        (step.path, step.result_schema)
        for step in view.steps
        if step.final or (step.in_doubt and not _is_left_to_check(step))
    ]
    if unsure:
        return advise_resolving(view.id, unsure, commands)
    lines = []
    for question in view.questions:
        if question.status == "open":
            answer = commands.build("answer", view.id, question.name, "JSON")
            lines += ["Answer the question:", f"  {answer}"]
    if view.status in ("failed", "stuck") and view.agent is not None:
        retry = _retry_command(view, commands)
        lines += ["When the cause is gone, let a worker try again:", f"  {retry}"]
    elif view.status in ("failed", "stuck"):
        lines.append("When the cause is gone, run the program again: the task has no agent.")
    return lines


def _is_left_to_check(step: StepInfo) -> bool:
    """Return True if the step's check has yet to be called, and may find the outcome."""
    return step.mode == "check" and step.check is None


def advise_resolving(
    task: str, steps: Sequence[tuple[str, Any]], commands: StoreCommands
) -> list[str]:
    """Return the lines for steps in doubt, given by their path and the schema of their result."""
    lines = ["Find out whether it was done, then run one of these:"]
    for step, schema in steps[:MAX_STEPS]:
        result = "null" if schema == {"type": "null"} else "JSON"
        done = commands.build("resolve", task, step, options=["--result", result])
        again = commands.build("resolve", task, step, options=["--retry"])
        lines += [f"  {done}  # it was done", f"  {again}  # it was not done"]
    if len(steps) > MAX_STEPS:
        lines.append(f"  and the same for {len(steps) - MAX_STEPS} more steps")
    return lines


def _retry_command(view: TaskView, commands: StoreCommands) -> str:
    """Return the command that retries a task, with a larger limit if that was used up."""
    if view.error is not None and view.error.root.type == "TaskTimeout" and view.timeout:
        return commands.build("retry", view.id, options=["--timeout", f"{2 * view.timeout:g}s"])
    if view.error is None or view.error.root.type != "BudgetExceeded" or view.budget is None:
        return commands.build("retry", view.id)
    limits = {name: getattr(view.budget, name) for name in ("tokens", "cost", "calls")}
    doubled = ",".join(f"{name}={2 * limit}" for name, limit in limits.items() if limit)
    return commands.build("retry", view.id, options=["--budget", doubled])
