"""`holdfast notifications`: what hooks have not received, and deliver it again."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import click

from ...notify import UndeliveredNotification
from ..parser.declare import Option, command
from ..stores import Json, Tenant, Url, open_store
from ..text import format_count, printable, to_json


class UndeliveredStatus(str, Enum):
    """The statuses of a notification that a hook has not received."""

    retrying = "retrying"
    dead = "dead"


@command(
    "holdfast notifications agents.db --status dead",
    "holdfast notifications agents.db --retry --task claim-42",
)
def notifications(
    url: Url,
    status: Annotated[
        UndeliveredStatus | None, Option(help="Only notifications with this status.")
    ] = None,
    retry: Annotated[
        bool,
        Option(
            "--retry", help="Let the workers deliver dead ones again, and retry the others now."
        ),
    ] = False,
    id: Annotated[
        str | None, Option(metavar="ID", help="With --retry: only the one with this id.")
    ] = None,
    task: Annotated[
        str | None, Option(metavar="TASK", help="Only notifications about this task.")
    ] = None,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """List the notifications that a hook has not received.

    Holdfast retries each one for a day, unless its hook sets another limit. Then it is dead.
    """
    if id is not None and not retry:
        raise click.UsageError("--id needs --retry")
    if retry and status is not None:
        raise click.UsageError("--retry can't be combined with --status; use --id or --task")
    with open_store(url, tenant) as store:
        if retry:
            count = store.redeliver(id, task=task)
            text = f"{format_count(count, 'notification')} to deliver again"
            click.echo(to_json({"notifications": count}) if as_json else text)
            return
        for found in store.notifications(status=None if status is None else status.value):
            if task in (None, found.task):
                click.echo(to_json(found) if as_json else _line(found))


def _line(found: UndeliveredNotification) -> str:
    when = "" if found.next_at is None else f"  next try {found.next_at:%Y-%m-%d %H:%M:%S}"
    attempts = format_count(found.attempts, "attempt")
    return printable(
        f"{found.id}  {found.status}  {found.kind}  {found.task}  {found.hook}  {attempts}"
        f" since {found.since:%Y-%m-%d %H:%M:%S}  {found.error}{when}"
    )
