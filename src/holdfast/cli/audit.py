"""`holdfast audit`: who did what when."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from .stores import Tenant, Url, named, opened
from .text import printable


class Format(str, Enum):
    """How an audit is printed."""

    text = "text"
    jsonl = "jsonl"
    csv = "csv"


def audit(
    url: Url = None,
    task: Annotated[
        str | None,
        typer.Argument(
            metavar="TASK", help="The task's id, or that of another stream.", show_default=False
        ),
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            metavar="KIND", help="What it is: task, conversation, memory, state or stream."
        ),
    ] = "task",
    format: Annotated[
        Format, typer.Option("--format", help="A table, JSON Lines, or CSV for a spreadsheet.")
    ] = Format.text,
    content: Annotated[
        bool, typer.Option("--content", help="With what was said and done, not only that it was.")
    ] = False,
    tenant: Tenant = "default",
) -> None:
    """Print who did what to a task, and when: claims, steps, answers, cancellations, deletions, with correlation ids."""
    url, task = named(url, task, "name the task: holdfast audit agents.db claims-42")
    with opened(url, tenant) as store:
        found = store.audit(task, kind=kind, content=content)
    if format is Format.csv:
        typer.echo(found.csv(), nl=False)
    elif format is Format.jsonl:
        for line in found.jsonl().splitlines():
            typer.echo(printable(line))
    else:
        typer.echo(found.text())
