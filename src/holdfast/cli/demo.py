"""`holdfast demo`: writers are killed in a loop, and a table says what was lost."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.syntax import Syntax
from rich.table import Table

from ._ordeal import WRITERS, Ordeal, Tally, WriterFailed

_USE = """\
store = holdfast.open("agents.db")
store.stream("orders-7").append(("order.placed", {"sku": "A1"}), id="req-17")"""


def run(*, kills: int, seed: int | None = None) -> int:
    """Show it. The result is an exit code: 0 only if nothing was lost, doubled or torn."""
    console = Console(highlight=False)
    seed = time.time_ns() % 1_000_000 if seed is None else seed
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    console.print(f"Up to {WRITERS} processes write to one stream and are killed with -9; kills per backend: {kills}.")
    console.print(f"[dim]seed {seed}, in {folder}[/dim]\n")
    stores = {"SQLite": str(folder / "demo.db"), "files": "file://" + quote(str(folder / "demo"))}
    try:
        tallies = {name: _endure(console, name, url, kills, seed) for name, url in stores.items()}
    except WriterFailed as error:
        console.print(f"[bold red]The demo could not run:[/bold red] {error}")
        return 1
    console.print()
    console.print(_table(tallies))
    if not all(tally.ok for tally in tallies.values()):
        for name, tally in tallies.items():
            for problem in tally.problems:
                console.print(f"{name}: {problem}", style="red", markup=False, soft_wrap=True)
        console.print(
            f"\n[bold red]Something was lost.[/bold red] The stores are kept in {folder}; the seed is {seed}."
        )
        return 1
    shutil.rmtree(folder)
    _conclude(console, tallies)
    return 0


def _endure(console: Console, name: str, url: str, kills: int, seed: int) -> Tally:
    columns = (
        TextColumn("[bold]{task.description:<7}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("kills   {task.fields[acknowledged]} appends acknowledged"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(name, total=kills, acknowledged=0)

        def show(tally: Tally) -> None:
            progress.update(bar, completed=tally.kills, acknowledged=tally.acknowledged)

        tally = Ordeal(url, kills=kills, seed=seed, progress=show).run()
    if not console.is_terminal:
        console.print(f"{name}: {tally.kills} kills, {tally.acknowledged} appends acknowledged")
    return tally


def _table(tallies: dict[str, Tally]) -> Table:
    table = Table(title="What the killed writers left behind", title_justify="left", title_style="bold")
    table.add_column("")
    for name in tallies:
        table.add_column(name, justify="right")
    rows = {
        "writers killed with -9": [tally.kills for tally in tallies.values()],
        "… in the middle of an append": [tally.in_flight for tally in tallies.values()],
        "… whose append had been stored all the same": [tally.already_stored for tally in tallies.values()],
        "appends acknowledged": [tally.acknowledged for tally in tallies.values()],
        "appends found": [tally.found for tally in tallies.values()],
    }
    for label, counts in rows.items():
        table.add_row(label, *map(str, counts))
    table.add_section()
    for label in ("lost", "doubled", "torn"):
        counts = [getattr(tally, label) for tally in tallies.values()]
        table.add_row(label, *(f"[bold {'red' if count else 'green'}]{count}" for count in counts))
    intact = ["[bold red]no" if tally.problems else "[bold green]yes" for tally in tallies.values()]
    table.add_row("versions without a gap, hash chain intact", *intact)
    return table


def _conclude(console: Console, tallies: dict[str, Tally]) -> None:
    kills = sum(tally.kills for tally in tallies.values())
    console.print(
        f"\nProcesses that died without warning: {kills}. Every append that had returned is in the store, once and whole; "
        "an append that was cut off is there whole or not at all, and repeating it with the same id stored it once. "
        "Nobody had to repair anything. (Power loss cannot be shown like this: for that, each append waits for the disk.)"
    )
    console.print("\nTo use it:\n")
    console.print(Syntax(_USE, "python", background_color="default", theme="ansi_dark"))
