"""What the demo shows at its end: who did what in which run, what the world counted, what the model was told, the code."""

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
from .world import MODEL_CALLS as _CALLS
from .world import AgentRun

_DONE, _KEPT, _KILLED = "[green]●[/]", "[dim]○[/]", "[bold red]✗[/]"
_FOUND, _REST = "[yellow]?[/]", "[green]◐[/]"
_LEGEND = (
    f"{_DONE} done in this run   {_KILLED} killed in here   {_KEPT} finished before, not done again\n"
    f"{_REST} only the rest of it, from where it had saved its progress\n"
    f"{_FOUND} killed before it was recorded: the service was asked first, and had done it"
)
_OPEN = """\
with holdfast.open("agents.db") as store:
    with store.task("claim-42", goal="Settle claim 42") as task:
        settle(task)          # start it as often as you like"""


def show_runs(console: Console, runs: Sequence[AgentRun]) -> None:
    """A row for each step, a column for each run."""
    many = (
        len(runs) > 14
    )  # then in narrow columns, with the last digit of their number: 26 fit in 80 columns
    table = Table(box=None, padding=0)
    table.add_column("run", min_width=24)
    for run in runs:
        name = str(run.number % 10 if many else run.number)
        table.add_column(name, justify="right", min_width=2 if many else 3)
    for step in STEPS:
        table.add_row(step, *(_cell(step, run) for run in runs))
    _titled(console, "Which run did what", Group(table, Text.from_markup(f"\n{_LEGEND}")))


def _cell(step: str, run: AgentRun) -> str:
    if step in run.kept:
        return _KEPT
    if run.killed is not None and run.killed.step == step and step not in run.done:
        return _KILLED
    if step in run.done:
        return _FOUND if step in run.found else _REST if step in run.halfway else _DONE
    return ""


def show_counts(
    console: Console, undisturbed: Counter[str], counted: Counter[str], zero: Counter[str]
) -> None:
    """What the bank, the mail service and the model counted themselves."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("")
    table.add_column("counted:\nnobody killed", justify="right")
    table.add_column("counted: killed,\nwith Holdfast", justify="right", style="bold")
    table.add_column("computed: killed,\neach from zero", justify="right", style="dim")
    effects = [what for what in {**undisturbed, **counted} if what != _CALLS]
    for what in effects:
        right = counted[what] == undisturbed[what]
        table.add_row(
            what,
            str(undisturbed[what]),
            f"[{'green' if right else 'red'}]{counted[what]}",
            str(zero[what]),
        )
    table.add_row(_CALLS, str(undisturbed[_CALLS]), str(counted[_CALLS]), str(zero[_CALLS]))
    _titled(console, "What the outside world counted", table)


def show_briefing(console: Console, run: AgentRun) -> None:
    """What the model was told when the last run began."""
    told = Panel(Text(run.briefing), box=box.HORIZONTALS, padding=0, border_style="dim")
    _titled(
        console,
        f"What the model was told at the start of run {run.number}, made from the record",
        told,
    )


def show_code(console: Console) -> None:
    """The code that ran, and how to run one's own."""
    parts = [inspect.getsource(part).rstrip() for part in (agent.pay.fn, agent.settle)]
    code = Syntax(
        "\n\n".join([*parts, _OPEN]), "python", background_color="default", theme="ansi_dark"
    )
    _titled(console, "The code that does this", code)
    console.print(f"\nThe whole agent:  {escape(agent.__file__)}", soft_wrap=True)
    console.print("Begin your own:   docs/tutorial-agent.md, docs/howto/ in the repository")


def _titled(console: Console, title: str, body: RenderableType) -> None:
    console.print(f"\n[bold]{title}[/]")
    console.print(body)
