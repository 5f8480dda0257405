"""`holdfast copy`, `backup` and `schema`: copy a store, back it up, set up a database by hand."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import click

import holdfast

from ..backends.urls import pop_option, redact_url
from .parser.declare import Argument, Option, command
from .stores import URL_FORMS, Json, Url, exit_on_error, given_keys, reject_memory_url, store_url
from .text import format_count, format_size, printable, to_json

if TYPE_CHECKING:
    from ..types import CopyProgress, CopyResult

_REPORT_SECONDS = 5.0


@command(
    "holdfast copy agents.db postgresql://host/agents",
    "holdfast copy redis://host copy.db --delete",
)
def copy(
    src: Annotated[str, Argument(metavar="SRC", help=f"The store to copy. {URL_FORMS}")],
    dst: Annotated[str, Argument(metavar="DST", help="Where to copy it; created if needed.")],
    verify: Annotated[
        bool, Option("--verify/--no-verify", help="Read back everything in the copy.")
    ] = True,
    delete: Annotated[
        bool, Option("--delete", help="Also delete streams from DST that were deleted from SRC.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Copy a store to any backend.

    Copies all tenants, byte for byte. If it is interrupted, run it again to continue.
    """
    with exit_on_error():
        reject_memory_url(src)
        reject_memory_url(dst)
        if not as_json:
            click.echo(f"from {printable(redact_url(src))} to {printable(redact_url(dst))}")
        with _show_progress(as_json) as progress:
            copied = holdfast.copy(
                src, dst, progress=progress, verify=verify, delete=delete, key=given_keys() or None
            )
    click.echo(to_json(copied) if as_json else _summary(copied, verify))


@command("holdfast backup agents.db backup.db")
def backup(
    url: Url,
    path: Annotated[str, Argument(metavar="PATH", help="The file to write.")],
    overwrite: Annotated[bool, Option("--overwrite", help="Replace an existing file.")] = False,
    as_json: Json = False,
) -> None:
    """Back up an SQLite store while it is in use.

    Writes a consistent snapshot to a file. Other processes can keep writing.
    """
    with exit_on_error():
        source = store_url(url)
        reject_memory_url(source)
        count = holdfast.backup(source, path, overwrite=overwrite)
    facts = {"path": os.fspath(path), "bytes": count}
    click.echo(
        to_json(facts) if as_json else f"wrote {printable(os.fspath(path))}, {format_size(count)}"
    )


@command("holdfast schema postgresql://host/agents | psql agents")
def schema(url: Url, as_json: Json = False) -> None:
    """Print the SQL or JSON for a manual setup.

    For databases where Holdfast may not create tables and indexes itself. Does not connect.
    """
    with exit_on_error():
        found = _find_schema(_drop_options(store_url(url)))
    if as_json:
        click.echo(to_json(found))
    else:
        click.echo(found["note"] if found["script"] is None else found["script"])


def _drop_options(url: str) -> str:
    """Return the URL without the options that no backend sees."""
    for name in ("durability", "timeout", "tracebacks"):
        url, _ = pop_option(url, name)
    return url


def _find_schema(url: str) -> dict[str, str | None]:
    """Return the engine, and the script that sets it up or a note that none is needed."""
    scheme = url.partition("://")[0].lower() if "://" in url else "sqlite"
    script: str | None = None
    note = ""
    if scheme in ("postgresql", "postgres"):
        from ..backends.postgres.schema import render_schema_script
        from ..backends.postgres.url import parse_postgres_url, read_schema_option
        from ..memory.search.postgres_sql import setup_script

        store = render_schema_script(url)  # its last lines grant privileges on all tables
        script = setup_script(read_schema_option(parse_postgres_url(url).options)) + store
    elif scheme == "dynamodb":
        from ..backends.dynamodb.backend import create_table_json, parse_table_name

        script = create_table_json(parse_table_name(url))
    elif scheme == "s3":
        note = "only the bucket is needed: the rest is created when the store is first opened"
    elif scheme in _ENGINES:
        engine = _ENGINES[scheme]
        note = f"nothing is needed: {engine} stores are created when they are first opened"
    else:
        raise ValueError(f"{scheme!r} is not a store URL scheme")
    if script is not None:
        return {"engine": _NAMES.get(scheme, scheme), "script": script.rstrip("\n"), "note": None}
    return {"engine": _NAMES.get(scheme, scheme), "script": None, "note": note}


_NAMES = {"postgres": "postgresql", "file": "files", "rediss": "redis"}
_ENGINES = {
    "sqlite": "SQLite",
    "file": "file",
    "memory": "memory",
    "redis": "Redis",
    "rediss": "Redis",
}


@contextmanager
def _show_progress(quiet: bool) -> Iterator[Callable[[CopyProgress], None] | None]:
    """Yield a function that shows progress: a bar on a terminal, else a line every few seconds."""
    try:
        if quiet:
            yield None
        elif sys.stdout.isatty():
            with _progress_bar() as show:
                yield show
        else:
            yield _ProgressLines().show
    except KeyboardInterrupt:
        click.echo("holdfast: stopped; run the same command again to continue", err=True)
        raise click.exceptions.Exit(130) from None


class _ProgressLines:
    """Prints a line every few seconds, and one when verification starts."""

    def __init__(self) -> None:
        self._phase = "copying"
        self._started = self._printed = time.perf_counter()

    def show(self, progress: CopyProgress) -> None:
        now = time.perf_counter()
        if progress.phase != self._phase:
            # Without a count: this is often the last line, and a low one would look like a loss.
            click.echo("copied; now comparing with the source")
            self._phase, self._printed = progress.phase, now
            return
        if now - self._printed < _REPORT_SECONDS:
            return
        self._printed = now
        done, total = progress.streams, progress.of
        of = "" if total is None else f"{done:,} of "
        streams = of + format_count(done if total is None else total, "stream")
        click.echo(f"{progress.phase}  {streams}  {_amount(progress, now - self._started)}")


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
