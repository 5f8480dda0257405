"""`holdfast verify`, `repair` and `anchor`: check that stored data is complete and unaltered."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import msgspec

from .parser.declare import Option, command
from .stores import Json, Url, open_store
from .text import format_count, format_size, printable, to_json

if TYPE_CHECKING:
    from ..types import VerifyProgress, VerifyResult

_Tenant = Annotated[
    str | None,
    Option(
        "--tenant",
        metavar="NAME",
        envvar="HOLDFAST_TENANT",
        help="Only this tenant. [default: all tenants]",
    ),
]
_Key = Annotated[
    Path | None,
    Option(
        "--anchor-key",
        metavar="FILE",
        help="The anchor's key file: 32 bytes or more, in hexadecimal or base64, or an Ed25519 key"
        " (PEM).",
    ),
]


@command(
    "holdfast verify agents.db",
    "holdfast verify agents.db --anchor monday.anchor --anchor-key anchor.key",
)
def verify(
    url: Url,
    anchor: Annotated[
        Path | None,
        Option("--anchor", metavar="FILE", help="Compare with this anchor, and read everything."),
    ] = None,
    since: Annotated[
        Path | None,
        Option(
            "--since", metavar="FILE", help="Compare with this anchor, and read only newer records."
        ),
    ] = None,
    anchor_key: _Key = None,
    tenant: _Tenant = None,
    as_json: Json = False,
) -> None:
    """Check hash chains and payloads.

    Exits with 1 if it finds a problem.
    """
    with open_store(url, tenant or "default") as store, _progress_bar(as_json) as progress:
        report = store.verify(
            anchor,
            anchor_key=anchor_key,
            since=since,
            all_tenants=tenant is None,
            progress=progress,
        )
    if as_json:
        facts = {"ok": report.ok, **msgspec.structs.asdict(report)}
        click.echo(to_json(facts))
    else:
        _print_report(report)
    if not report.ok:
        raise click.exceptions.Exit(1)


@command("holdfast backup agents.db before.db && holdfast repair agents.db")
def repair(url: Url, as_json: Json = False) -> None:
    """Rebuild indexes, heads and the memory index from the records.

    Back up the store first, and verify it afterwards. Records are never changed.
    """
    with open_store(url, "default") as store:
        done = store.repair()
    if as_json:
        click.echo(to_json(done))
        return
    for tenant, kind, name in (*done.heads, *done.namespaces):
        click.echo(printable(f"{kind} {name!r} of tenant {tenant!r}"))
    click.echo(str(done))


@command(
    "holdfast anchor agents.db --to monday.anchor --anchor-key anchor.key",
    "holdfast anchor agents.db > monday.anchor",
)
def anchor(
    url: Url,
    to: Annotated[
        Path | None,
        Option("--to", metavar="FILE", help="The file to write. [default: standard output]"),
    ] = None,
    anchor_key: _Key = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace an existing file.")] = False,
    tenant: _Tenant = None,
    as_json: Json = False,
) -> None:
    """Write a signed snapshot of all stream heads.

    Keep it away from the store: `holdfast verify --anchor` compares the store with it. The anchor
    itself is JSON Lines; with --to, --json describes the file that was written.
    """
    with open_store(url, tenant or "default") as store:
        written = store.anchor(
            to or sys.stdout, key=anchor_key, all_tenants=tenant is None, overwrite=overwrite
        )
    if as_json and to is not None:
        click.echo(to_json({"path": str(to), **msgspec.structs.asdict(written)}))
        return
    where = "" if to is None else f" to {printable(str(to))}"
    click.echo(
        f"wrote an anchor of {format_count(written.streams, 'stream')}{where}, {written.signed}",
        err=to is None,
    )


def _print_report(report: VerifyResult) -> None:
    for problem in report.problems:
        click.echo(printable(str(problem)))
    if report.found > len(report.problems):
        click.echo(f"… and {report.found - len(report.problems):,} more")
    click.echo(str(report))
    if any(problem.what in ("index", "head") for problem in report.problems):
        click.echo("`holdfast repair` rebuilds indexes and heads from the records")


@contextmanager
def _progress_bar(quiet: bool) -> Iterator[Callable[[VerifyProgress], None] | None]:
    """Yield a function that shows progress as a bar, or None without a terminal."""
    if quiet or not sys.stdout.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("verifying"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[amount]}"),
    )
    with Progress(*columns, TimeElapsedColumn(), transient=True) as bar:
        task = bar.add_task("verifying", total=None, amount="")

        def show(progress: VerifyProgress) -> None:
            amount = f"{format_count(progress.records, 'record')}, {format_size(progress.bytes)}"
            if progress.problems:
                amount += f", {format_count(progress.problems, 'problem')}"
            bar.update(task, completed=progress.streams, total=progress.of, amount=amount)

        yield show
