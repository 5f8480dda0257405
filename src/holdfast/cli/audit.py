"""`holdfast audit`: who did what to a task, and when."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from .stores import Tenant, Url, open_store, split_url
from .text import printable


class AuditFormat(str, Enum):
    """The output formats of an audit."""

    text = "text"
    jsonl = "jsonl"
    csv = "csv"


def audit(
    url: Url = None,
    task: Annotated[
        str | None,
        typer.Argument(
            metavar="TASK", help="The id of the task, or of another stream.", show_default=False
        ),
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            metavar="KIND", help="The stream's kind: task, conversation, memory, state or stream."
        ),
    ] = "task",
    format: Annotated[
        AuditFormat, typer.Option("--format", help="A table, JSON Lines, or CSV for a spreadsheet.")
    ] = AuditFormat.text,
    content: Annotated[
        bool, typer.Option("--content", help="Include content, such as inputs and results.")
    ] = False,
    tenant: Tenant = "default",
) -> None:
    """Show who did what to a task, and when.

    Lists claims, steps, answers, cancellations and deletions with their correlation ids.
    """
    url, task = split_url(url, task, "name the task: holdfast audit agents.db claims-42")
    with open_store(url, tenant) as store:
        trail = store.audit(task, kind=kind, content=content)
    if format is AuditFormat.csv:
        typer.echo(trail.csv(), nl=False)
    elif format is AuditFormat.jsonl:
        for line in trail.jsonl().splitlines():
            typer.echo(printable(line))
    else:
        typer.echo(trail.text())
