"""`holdfast copy`, `backup` and `schema`: copy a store, back it up, set up a database by hand."""

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

from ..backends.urls import pop_option, redact_url
from .stores import (
    URL_FORMS,
    Json,
    Url,
    exit_on_error,
    given_keys,
    reject_memory_url,
    split_url,
    store_url,
)
from .text import format_count, format_size, printable

if TYPE_CHECKING:
    from ..types import CopyProgress, CopyResult

_REPORT_SECONDS = 5.0


def copy(
    src: Annotated[
        str | None,
        typer.Argument(metavar="SRC", help=f"The store to copy. {URL_FORMS}", show_default=False),
    ] = None,
    dst: Annotated[
        str | None,
        typer.Argument(
            metavar="DST",
            help="The store to copy to; created if it does not exist.",
            show_default=False,
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Read back everything in the copy.")
    ] = True,
    delete: Annotated[
        bool, typer.Option("--delete", help="Also delete the streams that the source has deleted.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Copy a store to any backend.

    Copies all tenants, byte for byte. If it is interrupted, run it again to continue.
    """
    if not src or not dst:
        # HOLDFAST_URL stands for neither: it would be easy to copy in the wrong direction.
        raise typer.BadParameter(
            "name the store and where to copy it: holdfast copy agents.db postgresql://host/agents"
        )
    with exit_on_error():
        reject_memory_url(src)
        reject_memory_url(dst)
        if not as_json:
            typer.echo(f"from {printable(redact_url(src))} to {printable(redact_url(dst))}")
        with _show_progress(as_json) as progress:
            copied = holdfast.copy(
                src, dst, progress=progress, verify=verify, delete=delete, key=given_keys() or None
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
        bool, typer.Option("--overwrite", help="Replace an existing file.")
    ] = False,
) -> None:
    """Online backup of a SQLite store.

    Writes a consistent snapshot to a file while other processes keep writing.
    """
    url, path = split_url(
        url, path, "name the store and the backup file: holdfast backup agents.db backup.db"
    )
    with exit_on_error():
        source = store_url(url)
        reject_memory_url(source)
        count = holdfast.backup(source, path, overwrite=overwrite)
    typer.echo(f"wrote {printable(os.fspath(path))}, {format_size(count)}")


def schema(url: Url = None) -> None:
    """Print SQL/JSON for manual setup.

    For databases where Holdfast may not create tables and indexes itself. Does not connect.
    """
    with exit_on_error():
        typer.echo(_schema(pop_option(store_url(url), "durability")[0]).rstrip("\n"))


def _schema(url: str) -> str:
    scheme = url.partition("://")[0].lower() if "://" in url else "sqlite"
    if scheme in ("postgresql", "postgres"):
        from ..backends.postgres.schema import render_schema_script
        from ..backends.postgres.url import parse_postgres_url, read_schema_option
        from ..memory.search.postgres_sql import setup_script

        store = render_schema_script(url)  # its last lines grant privileges on all tables
        return setup_script(read_schema_option(parse_postgres_url(url).options)) + store
    if scheme == "dynamodb":
        from ..backends.dynamodb.backend import create_table_json, parse_table_name

        return create_table_json(parse_table_name(url))
    if scheme == "s3":
        return "only the bucket is needed: the rest is created when the store is first opened"
    if scheme not in _ENGINES:
        raise ValueError(f"{scheme!r} is not a store URL scheme")
    return f"nothing is needed: {_ENGINES[scheme]} stores are created when they are first opened"


_ENGINES = {
    "sqlite": "SQLite",
    "file": "file",
    "memory": "memory",
    "redis": "Redis",
    "rediss": "Redis",
}


@contextmanager
def _show_progress(quiet: bool) -> Iterator[Callable[[CopyProgress], None] | None]:
    """Yield a function that shows progress: a bar on a terminal, else a line now and then."""
    try:
        if quiet:
            yield None
        elif sys.stdout.isatty():
            with _progress_bar() as show:
                yield show
        else:
            yield _ProgressLines().show
    except KeyboardInterrupt:
        typer.echo("holdfast: stopped; run the same command again to continue", err=True)
        raise typer.Exit(130) from None


class _ProgressLines:
    """Prints a line every few seconds, and one when verification starts."""

    def __init__(self) -> None:
        self._phase = "copying"
        self._started = self._printed = time.perf_counter()

    def show(self, progress: CopyProgress) -> None:
        now = time.perf_counter()
        if progress.phase != self._phase:
            # Without a count: this is often the last line, and a low one would look like a loss.
            typer.echo("copied; now comparing with the source")
            self._phase, self._printed = progress.phase, now
            return
        if now - self._printed < _REPORT_SECONDS:
            return
        self._printed = now
        done, total = progress.streams, progress.of
        of = "" if total is None else f"{done:,} of "
        streams = of + format_count(done if total is None else total, "stream")
        typer.echo(f"{progress.phase}  {streams}  {_amount(progress, now - self._started)}")


@contextmanager
def _progress_bar() -> Iterator[Callable[[CopyProgress], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[amount]}"),
    )
    started = time.perf_counter()
    with Progress(*columns, TimeElapsedColumn(), transient=True) as bar:
        task = bar.add_task("copying", total=None, amount="")

        def show(progress: CopyProgress) -> None:
            amount = _amount(progress, time.perf_counter() - started)
            bar.update(
                task,
                description=progress.phase,
                completed=progress.streams,
                total=progress.of,
                amount=amount,
            )

        yield show


def _amount(progress: CopyProgress, seconds: float) -> str:
    rate = ""
    if progress.phase == "copying" and seconds > 0:
        rate = f", {progress.records / seconds:,.0f} records/s"
    return f"{format_count(progress.records, 'record')}, {format_size(progress.bytes)}{rate}"


def _summary(copied: CopyResult, verify: bool) -> str:
    counts = [format_count(copied.streams, "stream"), format_count(copied.records, "record")]
    checked = f"{copied.verified} verified" if verify else "records not read back"
    lines = [
        f"copied {', '.join(counts)}, {format_size(copied.bytes)};"
        f" {copied.skipped} already there; {checked}"
    ]
    if copied.deleted:
        lines.append(
            f"deleted {format_count(copied.deleted, 'stream')} that the source has deleted"
        )
    if copied.extra:
        lines.append(f"{format_count(copied.extra, 'stream')} at the destination only:")
        lines += [f"  {printable(name)}" for name in copied.extra_names]
        lines += ["  …"] * (copied.extra > len(copied.extra_names))
    return "\n".join(lines)
