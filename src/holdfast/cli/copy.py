"""`holdfast copy`, `holdfast backup` and `holdfast schema`: to another store, to another file, to another database."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

import holdfast

from .. import HoldfastError
from ..backends.urls import shown_url, without
from .stores import Json, Url, failed, key_given, named, refuse_memory, store_url
from .text import counted, printable, size

if TYPE_CHECKING:
    from ..types import CopyProgress, CopyResult

_SAY_SECONDS = 5.0
_BOTH = (
    "name both, the store and where to copy it: holdfast copy agents.db postgresql://host/agents"
)
_PLACES = "A path, or a URL like file:///directory or postgresql://host/database."
_NOTHING = "nothing is needed: {} stores are made when they are first opened"


def copy(
    src: Annotated[
        str | None,
        typer.Argument(metavar="SRC", help=f"The store to copy. {_PLACES}", show_default=False),
    ] = None,
    dst: Annotated[
        str | None,
        typer.Argument(
            metavar="DST", help="The store to copy to; made if it is not there.", show_default=False
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Read back everything that was copied.")
    ] = True,
    delete: Annotated[
        bool,
        typer.Option("--delete", help="Delete copies of what was deleted at the source since."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Copy a whole store, all tenants, byte for byte, to another one of any kind. Interrupted, run it again: it goes on."""
    if not src or not dst:
        raise typer.BadParameter(
            _BOTH
        )  # the environment names neither: it would be easy to copy in the wrong direction
    with _saying():
        refuse_memory(src)
        refuse_memory(dst)
        if not as_json:
            typer.echo(f"from {printable(shown_url(src))} to {printable(shown_url(dst))}")
        with _shown(as_json) as progress:
            copied = holdfast.copy(
                src, dst, progress=progress, verify=verify, delete=delete, key=key_given() or None
            )
    typer.echo(
        printable(msgspec.json.encode(copied).decode()) if as_json else _summary(copied, verify)
    )


def backup(
    url: Url = None,
    path: Annotated[
        str | None, typer.Argument(metavar="PATH", help="The file to write.", show_default=False)
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file if there is one.")
    ] = False,
) -> None:
    """Write a backup of an SQLite store to a file, as it is at one instant, while others go on writing."""
    url, path = named(
        url, path, "name the store and the file for its backup: holdfast backup agents.db backup.db"
    )
    with _saying():
        source = store_url(url)
        refuse_memory(source)
        count = holdfast.backup(source, path, overwrite=overwrite)
    typer.echo(f"wrote {printable(os.fspath(path))}, {size(count)}")


def schema(url: Url = None) -> None:
    """Print what somebody has to make by hand, where Holdfast may not: tables and indexes. Does not connect."""
    with _saying():
        typer.echo(_schema(without(store_url(url), "durability")[0]).rstrip("\n"))


def _schema(url: str) -> str:
    scheme = url.partition("://")[0].lower() if "://" in url else "sqlite"
    if scheme in ("postgresql", "postgres"):
        from ..backends.postgres.setup import schema_sql
        from ..backends.postgres.setup import read_url, schema_of
        from ..memory.search.postgres_sql import by_hand

        store = schema_sql(url)  # ends with the rights to all tables, and so it comes last
        return by_hand(schema_of(read_url(url).options)) + store
    if scheme == "dynamodb":
        from ..backends.dynamodb.backend import create_table_json, table_of

        return create_table_json(table_of(url))
    if scheme == "s3":
        return "nothing is needed but the bucket: the rest is made when the store is first opened"
    if scheme not in _ENGINES:
        raise ValueError(f"there is no store of kind {scheme!r}")
    return _NOTHING.format(_ENGINES[scheme])


_ENGINES = {
    "sqlite": "SQLite",
    "file": "file",
    "memory": "memory",
    "redis": "Redis",
    "rediss": "Redis",
}


@contextmanager
def _saying() -> Iterator[None]:
    """An error of the library, in here, is one line on stderr and exit code 1."""
    try:
        yield
    except (HoldfastError, ValueError) as error:
        raise failed(str(error)) from None


@contextmanager
def _shown(quiet: bool) -> Iterator[Callable[[CopyProgress], None] | None]:
    """What shows how far a copy has got: a bar on a terminal, now and then a line elsewhere."""
    try:
        if quiet:
            yield None
        elif sys.stdout.isatty():
            with _bar() as show:
                yield show
        else:
            yield _Lines().show
    except KeyboardInterrupt:
        typer.echo(
            "holdfast: stopped; run the same command again, and it goes on from here", err=True
        )
        raise typer.Exit(130) from None


class _Lines:
    """A line every few seconds, and one when it begins to verify."""

    def __init__(self) -> None:
        self._phase, self._began, self._said = "copying", time.perf_counter(), time.perf_counter()

    def show(self, progress: CopyProgress) -> None:
        now = time.perf_counter()
        if progress.phase != self._phase:
            # Without a count: it is often the last line of progress, and would look as if most were left out.
            typer.echo("copied; now comparing with the source")
            self._phase, self._said = progress.phase, now
            return
        if now - self._said < _SAY_SECONDS:
            return
        self._said = now
        done, of = progress.streams, progress.of
        streams = counted(done, "stream") if of is None else f"{done:,} of {counted(of, 'stream')}"
        typer.echo(f"{progress.phase}  {streams}  {_amount(progress, now - self._began)}")


@contextmanager
def _bar() -> Iterator[Callable[[CopyProgress], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[amount]}"),
    )
    began = time.perf_counter()
    with Progress(*columns, TimeElapsedColumn(), transient=True) as bar:
        task = bar.add_task("copying", total=None, amount="")

        def show(progress: CopyProgress) -> None:
            amount = _amount(progress, time.perf_counter() - began)
            bar.update(
                task,
                description=progress.phase,
                completed=progress.streams,
                total=progress.of,
                amount=amount,
            )

        yield show


def _amount(progress: CopyProgress, seconds: float) -> str:
    rate = (
        f", {progress.records / seconds:,.0f} records/s"
        if progress.phase == "copying" and seconds > 0
        else ""
    )
    return f"{counted(progress.records, 'record')}, {size(progress.bytes)}{rate}"


def _summary(copied: CopyResult, verify: bool) -> str:
    lines = [
        f"copied {counted(copied.streams, 'stream')}, {counted(copied.records, 'record')}, {size(copied.bytes)}; "
        f"{copied.skipped} were there already; "
        + (f"{copied.verified} verified" if verify else "their records were not read back")
    ]
    if copied.deleted:
        lines.append(
            f"deleted {counted(copied.deleted, 'stream')} that had been deleted at the source"
        )
    if copied.extra:
        lines.append(f"{counted(copied.extra, 'stream')} at the destination only:")
        lines += [f"  {printable(name)}" for name in copied.extra_names]
        lines += ["  …"] * (copied.extra > len(copied.extra_names))
    return "\n".join(lines)
