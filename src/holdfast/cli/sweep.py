"""`holdfast sweep`: what has gone, what stays, and why."""

from __future__ import annotations

import msgspec
import typer

from .. import Store
from .text import printable


def print_sweep(
    store: Store, *, dry_run: bool, force: bool, limit: int, grace: float, as_json: bool
) -> None:
    """Sweep, and print one line for each stream and one that says it all."""
    report = store.sweep(dry_run=dry_run, limit=limit, grace=grace, force=force)
    if as_json:
        typer.echo(printable(msgspec.json.encode(report).decode()))
        return
    verb = "would delete" if dry_run else "deleted"
    for swept in report.would_delete if dry_run else report.deleted:
        typer.echo(
            f"{verb}  {swept.kind}  {printable(swept.id)}  (expired {swept.expires_at:%Y-%m-%d %H:%M:%S} UTC)"
        )
    for spared in report.spared:
        typer.echo(f"spared  {spared.kind}  {printable(spared.id)}  ({spared.why})")
    typer.echo(str(report).replace("pass force=True", "pass --force"))
