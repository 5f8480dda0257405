"""Show the demo's progress: a bar for each run on a terminal, otherwise a line."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Column

from .claim import STEPS
from .world import AgentRun


class RunProgress:
    """Shows the runs of the agent. `show_step` may be called from any thread."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._has_bars = console.is_terminal and not console.is_dumb_terminal
        self._bars: dict[int, TaskID] = {}
        note = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(14, complete_style="cyan", finished_style="green"),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", table_column=note),
            console=console,
            expand=True,
            disable=not self._has_bars,
        )

    def __enter__(self) -> RunProgress:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show_step(self, run: AgentRun) -> None:
        self._update(run, f"[dim]{escape(run.doing)}")

    def show_end(self, run: AgentRun) -> None:
        note = "[bold green]finished"
        if run.killed is not None:
            note = f"[bold red]kill -9[/] {escape(run.killed.description)}"
        self._update(run, note)
        if not self._has_bars:
            done = f"{len(run.done)} of {len(STEPS)} steps done"
            if run.number > 1:
                done = f"{len(run.kept)} of {len(STEPS)} steps kept, {len(run.done)} done"
            self._console.print(f"run {run.number}: {done}\n       {note}")

    def _update(self, run: AgentRun, note: str) -> None:
        if run.number not in self._bars:
            self._bars[run.number] = self._progress.add_task(
                f"run {run.number}", total=len(STEPS), note=""
            )
        done = len(run.kept) + len(run.done)
        self._progress.update(self._bars[run.number], completed=done, note=note)
