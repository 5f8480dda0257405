"""`holdfast health` as a table."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import Health
from .tasks import COUNT_LIMIT
from .text import printable, size


def print_health(health: Health, tasks: dict[str, int]) -> None:
    """A table of facts, warnings last."""
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
    rows = [
        ("location", health.location),
        ("engine", f"{health.engine} {health.engine_version}".strip()),
        ("durability", f"{health.durability} ({_SURVIVES.get(health.durability, 'unknown')})"),
        ("encrypted", "yes" if health.encrypted else "no"),
        (
            "size",
            ", ".join(f"{name} {size(count)}" for name, count in health.sizes.items()) or "unknown",
        ),
        ("tenant", health.tenant),
    ]
    more = "" if health.counted_all else " or more"
    counts = [f"{count} of kind {kind}" for kind, count in health.streams.items()]
    rows.append(("streams", ", ".join(counts) + more if counts else "none"))
    if tasks:
        told = [
            f"{count}{' or more' if count == COUNT_LIMIT else ''} {status}"
            for status, count in tasks.items()
        ]
        rows.append(("tasks", ", ".join(told)))
    if health.oldest_lease is not None:
        until = health.oldest_lease.until
        lease = f"{health.oldest_lease.stream} by {health.oldest_lease.owner} until {until:%Y-%m-%d %H:%M:%S} UTC"
        rows.append(("oldest lease", lease))
    return rows


_SURVIVES = {
    "disk": "an acknowledged append survives power loss",
    "process": "an acknowledged append survives the process, not always the machine",
    "memory": "gone with the process",
}
