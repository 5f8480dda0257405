"""`holdfast sweep`: purge expired data."""

from __future__ import annotations

from typing import Annotated

import click

from .operators.actor import By, choose_actor
from .parser.declare import Option, command
from .parser.durations import duration_option
from .stores import Json, Tenant, Url, open_store
from .text import printable, to_json


@command("holdfast sweep agents.db --dry-run", "holdfast sweep agents.db --grace 7d")
def sweep(
    url: Url,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Print what would be deleted; delete nothing.")
    ] = False,
    force: Annotated[
        bool,
        Option(
            "--force",
            help="Ignore the quota: 100 streams or half of the store, whichever is more, within"
            " 24 hours.",
        ),
    ] = False,
    limit: Annotated[int, Option(min=1, help="Maximum number of streams to delete.")] = 1000,
    grace: Annotated[
        float, duration_option("How long to keep data after it has expired.", default="1d")
    ] = 86400.0,
    by: By = None,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Purge expired data.

    Deletes ended tasks, conversations, checkpoints and other state documents whose time to live is
    over.
    """
    with open_store(url, tenant) as store:
        report = store.sweep(
            dry_run=dry_run, limit=limit, grace=grace, force=force, by=choose_actor(by)
        )
    if as_json:
        click.echo(to_json(report))
        return
    verb = "would delete" if dry_run else "deleted"
    for deleted in report.would_delete if dry_run else report.deleted:
        expired = f"{deleted.expires_at:%Y-%m-%d %H:%M:%S}"
        click.echo(f"{verb}  {deleted.kind}  {printable(deleted.id)}  (expired {expired} UTC)")
    for spared in report.spared:
        click.echo(f"spared  {spared.kind}  {printable(spared.id)}  ({spared.why})")
    click.echo(str(report).replace("pass force=True", "pass --force"))
