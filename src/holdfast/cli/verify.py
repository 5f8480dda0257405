"""`holdfast verify` and `holdfast anchor`: check that stored data is complete and unaltered."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from .stores import Json, Url, open_store
from .text import format_count, format_size, printable

if TYPE_CHECKING:
    from ..types import VerifyProgress, VerifyResult

_Tenant = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        metavar="NAME",
        envvar="HOLDFAST_TENANT",
        help="Only this tenant. [default: all tenants]",
        show_default=False,
    ),
]
_Key = Annotated[
    Path | None,
    typer.Option(
        "--anchor-key",
        metavar="FILE",
        help="The anchor's key file: 32 bytes or more, in hexadecimal or base64, or an Ed25519 key"
        " (PEM).",
        show_default=False,
    ),
]


def verify(
    url: Url = None,
    anchor: Annotated[
        Path | None,
        typer.Option(
            "--anchor",
            metavar="FILE",
            help="Compare with this anchor, and read everything.",
            show_default=False,
        ),
    ] = None,
    since: Annotated[
        Path | None,
        typer.Option(
            "--since",
            metavar="FILE",
            help="Compare with this anchor, and read only newer records.",
            show_default=False,
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
        facts = {"ok": report.ok, **msgspec.to_builtins(report)}
        typer.echo(printable(msgspec.json.encode(facts).decode()))
    else:
        _print_report(report)
    if not report.ok:
        raise typer.Exit(1)


def anchor(
    url: Url = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="FILE",
            help="The file to write. [default: standard output]",
            show_default=False,
        ),
    ] = None,
    anchor_key: _Key = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing file.")
    ] = False,
    tenant: _Tenant = None,
) -> None:
    """Write a signed snapshot of all stream heads.

    Keep it away from the store: `holdfast verify --anchor` compares the store with it.
    """
    with open_store(url, tenant or "default") as store:
        written = store.anchor(
            to or sys.stdout, key=anchor_key, all_tenants=tenant is None, overwrite=overwrite
        )
    where = "" if to is None else f" to {printable(str(to))}"
    typer.echo(
        f"wrote an anchor of {format_count(written.streams, 'stream')}{where}, {written.signed}",
        err=to is None,
    )


def _print_report(report: VerifyResult) -> None:
    for problem in report.problems:
        typer.echo(printable(str(problem)))
    if report.found > len(report.problems):
        typer.echo(f"… and {report.found - len(report.problems):,} more")
    typer.echo(str(report))


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
