"""`holdfast sweep`: purge expired data."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from .durations import duration_option
from .stores import Json, Tenant, Url, open_store
from .text import printable


def sweep(
    url: Url = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be deleted; delete nothing.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Allow deleting more than half of the store.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of streams to delete.")] = 1000,
    grace: Annotated[
        float, duration_option("How long to keep data after it has expired.", default="1d")
    ] = 86400.0,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Purge expired data.

    Deletes ended tasks and conversations whose time to live has passed.
    """
    with open_store(url, tenant) as store:
        report = store.sweep(dry_run=dry_run, limit=limit, grace=grace, force=force)
    if as_json:
        typer.echo(printable(msgspec.json.encode(report).decode()))
        return
    verb = "would delete" if dry_run else "deleted"
    for deleted in report.would_delete if dry_run else report.deleted:
        expired = f"{deleted.expires_at:%Y-%m-%d %H:%M:%S}"
        typer.echo(f"{verb}  {deleted.kind}  {printable(deleted.id)}  (expired {expired} UTC)")
    for spared in report.spared:
        typer.echo(f"spared  {spared.kind}  {printable(spared.id)}  ({spared.why})")
    typer.echo(str(report).replace("pass force=True", "pass --force"))
