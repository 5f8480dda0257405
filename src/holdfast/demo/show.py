"""What the demo shows while it runs: a bar for each run on a terminal, a line for each elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Column

from .claim import STEPS
from .world import AgentRun


class Show:
    """Shows the runs of the agent. `watch` may be called from any thread, `ended` once for each run."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = console.is_terminal and not console.is_dumb_terminal
        self._bars: dict[int, TaskID] = {}
        said = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(14, complete_style="cyan", finished_style="green"),
            MofNCompleteColumn(),
            TextColumn("{task.fields[said]}", table_column=said),
            console=console,
            expand=True,
            disable=not self._live,
        )

    def __enter__(self) -> Show:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def watch(self, run: AgentRun) -> None:
        self._update(run, f"[dim]{escape(run.doing)}")

    def ended(self, run: AgentRun) -> None:
        said = (
            "[bold green]finished"
            if run.killed is None
            else f"[bold red]kill -9[/] {escape(run.killed.words)}"
        )
        self._update(run, said)
        if not self._live:
            self._console.print(f"run {run.number}: {_work(run)}\n       {said}")

    def _update(self, run: AgentRun, said: str) -> None:
        if run.number not in self._bars:
            self._bars[run.number] = self._progress.add_task(
                f"run {run.number}", total=len(STEPS), said=""
            )
        done = len(run.kept) + len(run.done)
        self._progress.update(self._bars[run.number], completed=done, said=said)


def _work(run: AgentRun) -> str:
    done = f"{len(run.done)} of {len(STEPS)} steps done"
    return (
        f"{len(run.kept)} of {len(STEPS)} steps kept, {len(run.done)} done"
        if run.number > 1
        else done
    )
