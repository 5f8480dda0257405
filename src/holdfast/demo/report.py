"""Show the demo's report: the runs, the world's counts, the resume context and the code."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from . import agent
from .claim import STEPS
from .world import MODEL_CALLS, AgentRun

_DONE, _KEPT, _KILLED = "[green]●[/]", "[dim]○[/]", "[bold red]✗[/]"
_FOUND, _REST = "[yellow]?[/]", "[green]◐[/]"
_LEGEND = (
    f"{_DONE} done in this run   {_KILLED} killed here   {_KEPT} finished earlier, not repeated\n"
    f"{_REST} resumed from the saved progress of an earlier run\n"
    f"{_FOUND} killed before it was recorded: the service confirmed that it was done"
)
_OPEN = """\
with holdfast.open("agents.db") as store:
    with store.task("claim-42", goal="Settle claim 42") as task:
        settle(task)          # run it again after every crash"""


def show_runs(console: Console, runs: Sequence[AgentRun]) -> None:
    """Print a table with a row for each step and a column for each run."""
    # Many runs get narrow columns with the last digit of their number: 26 fit in 80 columns.
    many = len(runs) > 14
    table = Table(box=None, padding=0)
    table.add_column("run", min_width=24)
    for run in runs:
        name = str(run.number % 10 if many else run.number)
        table.add_column(name, justify="right", min_width=2 if many else 3)
    for step in STEPS:
        table.add_row(step, *(_format_cell(step, run) for run in runs))
    _print_section(console, "Which run did what", Group(table, Text.from_markup(f"\n{_LEGEND}")))


def _format_cell(step: str, run: AgentRun) -> str:
    if step in run.kept:
        return _KEPT
    if run.killed is not None and run.killed.step == step and step not in run.done:
        return _KILLED
    if step in run.done:
        return _FOUND if step in run.found else _REST if step in run.halfway else _DONE
    return ""


def show_counts(
    console: Console, undisturbed: Counter[str], counted: Counter[str], from_zero: Counter[str]
) -> None:
    """Print the counts of the bank, the mail service and the model."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("")
    table.add_column("counted:\nno kills", justify="right")
    table.add_column("counted: killed,\nwith Holdfast", justify="right", style="bold")
    table.add_column("computed: killed,\nfrom zero each time", justify="right", style="dim")
    effects = [what for what in {**undisturbed, **counted} if what != MODEL_CALLS]
    for what in effects:
        is_correct = counted[what] == undisturbed[what]
        table.add_row(
            what,
            str(undisturbed[what]),
            f"[{'green' if is_correct else 'red'}]{counted[what]}",
            str(from_zero[what]),
        )
    table.add_row(
        MODEL_CALLS,
        str(undisturbed[MODEL_CALLS]),
        str(counted[MODEL_CALLS]),
        str(from_zero[MODEL_CALLS]),
    )
    _print_section(console, "What the outside world counted", table)


def show_resume_context(console: Console, run: AgentRun) -> None:
    """Print the resume context that the model got in a run."""
    context = Text(run.resume_context)
    panel = Panel(context, box=box.HORIZONTALS, padding=0, border_style="dim")
    title = f"What the model read at the start of run {run.number}, generated from the event log"
    _print_section(console, title, panel)


def show_code(console: Console) -> None:
    """Print the code that ran, and where to start writing your own."""
    parts = [inspect.getsource(part).rstrip() for part in (agent.pay.fn, agent.settle)]
    code = Syntax(
        "\n\n".join([*parts, _OPEN]), "python", background_color="default", theme="ansi_dark"
    )
    _print_section(console, "The code that does this", code)
    console.print(f"\nThe whole agent:  {escape(agent.__file__)}", soft_wrap=True)
    console.print("Write your own:   docs/tutorial-agent.md, docs/howto/ in the repository")


def _print_section(console: Console, title: str, body: RenderableType) -> None:
    console.print(f"\n[bold]{title}[/]")
    console.print(body)
