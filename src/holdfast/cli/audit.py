"""`holdfast audit`: who did what to a task, and when."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import click

from .parser.completion import complete_tasks
from .parser.declare import Argument, Option, command
from .stores import Tenant, Url, open_store
from .text import printable


class AuditFormat(str, Enum):
    """The output formats of an audit."""

    text = "text"
    jsonl = "jsonl"
    csv = "csv"


@command(
    "holdfast audit agents.db claim-42",
    "holdfast audit agents.db claim-42 --content --format csv > claim-42.csv",
)
def audit(
    url: Url,
    task_id: Annotated[
        str,
        Argument(
            metavar="TASK",
            help="The id of the task or, with --kind, of another stream.",
            complete=complete_tasks,
        ),
    ],
    kind: Annotated[
        str,
        Option(
            metavar="KIND", help="The stream's kind: task, conversation, memory, state or stream."
        ),
    ] = "task",
    format: Annotated[
        AuditFormat, Option("--format", help="A table, JSON Lines, or CSV for a spreadsheet.")
    ] = AuditFormat.text,
    content: Annotated[
        bool, Option("--content", help="Include content, such as inputs and results.")
    ] = False,
    tenant: Tenant = "default",
    as_json: Annotated[bool, Option("--json", help="The same as --format jsonl.")] = False,
) -> None:
    """Show who did what to a task, and when.

    Lists claims, steps, answers, cancellations and deletions with their correlation ids.
    """
    with open_store(url, tenant) as store:
        trail = store.audit(task_id, kind=kind, content=content)
    if as_json or format is AuditFormat.jsonl:
        for line in trail.jsonl().splitlines():
            click.echo(printable(line))
    elif format is AuditFormat.csv:
        click.echo(trail.csv(), nl=False)
    else:
        click.echo(trail.text())
