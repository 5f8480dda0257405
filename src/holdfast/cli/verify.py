"""`holdfast verify` and `holdfast anchor`: is everything there as it was written?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from .stores import Json, Url, opened
from .text import counted, printable, size

if TYPE_CHECKING:
    from ..types import VerifyProgress, VerifyResult

_Tenant = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        metavar="NAME",
        envvar="HOLDFAST_TENANT",
        help="Of one tenant. [default: of all]",
        show_default=False,
    ),
]
_Key = Annotated[
    Path | None,
    typer.Option(
        "--anchor-key",
        metavar="FILE",
        help="The file with the anchor's key: 32 bytes or more, in hexadecimal or base64, or an Ed25519 key (PEM).",
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
            help="Compare with this anchor, and read all.",
            show_default=False,
        ),
    ] = None,
    since: Annotated[
        Path | None,
        typer.Option(
            "--since",
            metavar="FILE",
            help="Compare with this anchor, and read what came after.",
            show_default=False,
        ),
    ] = None,
    anchor_key: _Key = None,
    tenant: _Tenant = None,
    as_json: Json = False,
) -> None:
    """Read everything and check it: hash chains, heads, large values. Exit code 1 if anything is wrong."""
    with opened(url, tenant or "default") as store, _bar(as_json) as progress:
        report = store.verify(
            anchor,
            anchor_key=anchor_key,
            since=since,
            all_tenants=tenant is None,
            progress=progress,
        )
    if as_json:
        typer.echo(
            printable(
                msgspec.json.encode({"ok": report.ok, **msgspec.to_builtins(report)}).decode()
            )
        )
    else:
        _print(report)
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
        bool, typer.Option("--overwrite", help="Replace the file if there is one.")
    ] = False,
    tenant: _Tenant = None,
) -> None:
    """Write where every stream stands, signed, to be kept where the store is not: `verify --anchor` compares with it."""
    with opened(url, tenant or "default") as store:
        made = store.anchor(
            to or sys.stdout, key=anchor_key, all_tenants=tenant is None, overwrite=overwrite
        )
    where = "" if to is None else f" to {printable(str(to))}"
    typer.echo(
        f"wrote an anchor of {counted(made.streams, 'stream')}{where}, {made.signed}",
        err=to is None,
    )


def _print(report: VerifyResult) -> None:
    for problem in report.problems:
        typer.echo(printable(str(problem)))
    if report.found > len(report.problems):
        typer.echo(f"… and {report.found - len(report.problems):,} more")
    typer.echo(str(report))


@contextmanager
def _bar(quiet: bool) -> Iterator[Callable[[VerifyProgress], None] | None]:
    """A bar on a terminal, nothing elsewhere."""
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
            wrong = f", {counted(progress.problems, 'problem')}" if progress.problems else ""
            amount = f"{counted(progress.records, 'record')}, {size(progress.bytes)}{wrong}"
            bar.update(task, completed=progress.streams, total=progress.of, amount=amount)

        yield show
