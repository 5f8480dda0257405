"""`holdfast health`: backend, durability, size and task counts of a store."""

from __future__ import annotations

from itertools import islice
from typing import Final

import click
import msgspec

from .. import Health, Store
from ..types import CacheSize
from .parser.declare import command
from .stores import Json, Tenant, Url, open_store
from .text import format_size, printable, to_json

_MAX_COUNT: Final = 10_000
_STATUSES: Final = ("pending", "running", "suspended", "retrying", "failed", "stuck")
_DURABILITY: Final = {
    "disk": "an acknowledged append survives power loss",
    "process": "an acknowledged append survives a process crash, not always a machine crash",
    "memory": "everything is lost when the process ends",
}


@command("holdfast health agents.db", "holdfast health agents.db --json | jq .tasks")
def health(url: Url, tenant: Tenant = "default", as_json: Json = False) -> None:
    """Show backend, durability, size and task counts."""
    with open_store(url, tenant) as store:
        report, tasks = store.health(), _count_tasks(store)
    if as_json:
        facts = {**msgspec.structs.asdict(report), "tasks": tasks}
        click.echo(to_json(facts))
    else:
        _print_table(report, tasks)


def _count_tasks(store: Store) -> dict[str, int]:
    """Count the tasks that have not ended, by status, up to 10,000 of each."""
    counts = {
        status: sum(1 for _ in islice(store.tasks(status=status), _MAX_COUNT))
        for status in _STATUSES
    }
    return {status: count for status, count in counts.items() if count}


def _print_table(health: Health, tasks: dict[str, int]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in _rows(health, tasks):
        table.add_row(name, Text(printable(value)))
    for warning in health.warnings:
        table.add_row(
            Text("warning", style="bold yellow"), Text(printable(warning), style="yellow")
        )
    Console(highlight=False).print(table)


def _rows(health: Health, tasks: dict[str, int]) -> list[tuple[str, str]]:
    sizes = ", ".join(f"{name} {format_size(count)}" for name, count in health.sizes.items())
    streams = ", ".join(f"{count} of kind {kind}" for kind, count in health.streams.items())
    more = "" if health.counted_all else " or more"
    rows = [
        ("location", health.location),
        ("engine", f"{health.engine} {health.engine_version}".strip()),
        ("durability", f"{health.durability} ({_DURABILITY.get(health.durability, 'unknown')})"),
        ("encrypted", "yes" if health.encrypted else "no"),
        ("size", sizes or "unknown"),
        ("tenant", health.tenant),
        ("streams", streams + more if streams else "none"),
    ]
    if health.caches:
        caches = [f"{name} {_format_cache(size)}" for name, size in health.caches.items()]
        rows.append(("caches", ", ".join(caches)))
    if tasks:
        counts = [
            f"{count}{' or more' if count == _MAX_COUNT else ''} {status}"
            for status, count in tasks.items()
        ]
        rows.append(("tasks", ", ".join(counts)))
    if (lease := health.oldest_lease) is not None:
        until = f"{lease.until:%Y-%m-%d %H:%M:%S} UTC"
        rows.append(("oldest lease", f"{lease.stream} by {lease.owner} until {until}"))
    return rows


def _format_cache(size: CacheSize) -> str:
    if size.unit == "bytes":
        return f"{format_size(size.used)} of {format_size(size.limit)}"
    return f"{size.used} of {size.limit}"
