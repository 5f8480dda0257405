"""`holdfast watch` and `holdfast task --follow`: print what changes, until Ctrl-C."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Final

import click

from ... import Store, TaskInfo, TaskView
from ..parser.build import INTERRUPTED
from ..parser.declare import Option
from ..parser.durations import duration_option
from ..text import cut, event_json, event_line, printable
from .activity import format_age, step_facts

UNENDED: Final = ("running", "retrying", "failed", "stuck", "suspended", "pending")
_CLEAR: Final = "\x1b[H\x1b[2J"
_HEARTBEAT: Final = "task.renewed"
_BAR: Final = 10

Watch = Annotated[bool, Option("--watch", help="Keep watching: print what changes, until Ctrl-C.")]
Interval = Annotated[
    float, duration_option("With --watch: how often to poll.", least=0.1, default="2s")
]
Follow = Annotated[
    bool, Option("--follow", help="Print events as they are recorded, until the task has ended.")
]
After = Annotated[
    int, Option(min=0, metavar="N", help="With --follow: only events after version N.")
]


@contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """Turn Ctrl-C inside the block into an exit code."""
    try:
        yield
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED) from None


def follow_events(store: Store, task_id: str, after: int, *, as_json: bool) -> None:
    """Print the events of a task until it has ended; without heartbeats, unless as JSON."""
    with exit_on_interrupt():
        for event in store.follow(task_id, after=after):
            if as_json:
                click.echo(event_json(event))
            elif event.type != _HEARTBEAT:
                click.echo(event_line(event))


def watch_tasks(
    store: Store,
    list_tasks: Callable[[], Iterable[TaskInfo]],
    format_task: Callable[[TaskInfo | TaskView], str],
    every: float,
    *,
    as_json: bool,
) -> None:
    """Keep printing tasks: a table on a terminal, elsewhere the lines that change.

    A task that is no longer listed is printed one last time, in its final state.
    """
    before: dict[str, object] = {}
    is_table = sys.stdout.isatty() and not as_json
    with exit_on_interrupt():
        while True:
            tasks = list(list_tasks())
            if is_table:
                _draw(tasks)
            else:
                now = {info.id: _state_of(info) for info in tasks}
                for info in tasks:
                    if before.get(info.id) != now[info.id]:
                        click.echo(format_task(info))
                for gone in sorted(before.keys() - now.keys()):
                    if (view := store.get_task(gone)) is not None:
                        click.echo(format_task(view))
                before = now
            time.sleep(every)


def _state_of(info: TaskInfo) -> object:
    """Return the fields of a line. It is printed again if one changes, not because time passes."""
    step = info.step and (info.step.path, info.step.started_at, info.step.done)
    return (info.status, info.in_doubt, info.abandoned, info.overdue, info.due_at, step)


def _draw(tasks: Sequence[TaskInfo]) -> None:
    """Redraw the screen, without wrapping a line or scrolling."""
    columns, rows = shutil.get_terminal_size()
    room = max(rows - 3, 1)
    counts = ", ".join(f"{n:,} {status}" for status, n in Counter(t.status for t in tasks).items())
    title = f"{datetime.now():%H:%M:%S}  {len(tasks):,} tasks" + (f": {counts}" if counts else "")
    shown = format_table(tasks[:room])
    if len(tasks) > room:
        shown[-1] = f"… and {len(tasks) - room + 1:,} more"
    click.echo(_CLEAR + "\n".join(line[:columns] for line in [title, *shown]))


def format_table(tasks: Sequence[TaskInfo]) -> list[str]:
    """Return a line for each task, below a line of titles: what it is doing, and how far it is."""
    table: list[tuple[str, ...]] = [
        ("STATUS", "AGENT", "TASK", "STEP", "SINCE", "PROGRESS", "GOAL")
    ]
    table += [_row(info) for info in tasks]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


def _row(info: TaskInfo) -> tuple[str, ...]:
    mark = "?" if info.in_doubt else "!" if info.abandoned else "*" if info.overdue else ""
    step = since = progress = ""
    if info.step is not None and not info.abandoned:
        facts = step_facts(info.step)
        step, since = cut(info.step.path, 30), format_age(info.step.started_at)
        progress = _bar(facts["done"], facts["total"])
    agent, name, goal = cut(info.agent or "-", 20), cut(info.id, 40), cut(info.goal or "", 80)
    status = f"{info.status} {mark}".rstrip()
    return tuple(map(printable, (status, agent, name, step, since, progress, goal)))


def _bar(done: object, total: object) -> str:
    """Return how far a step is: a bar with numbers, a number, or "" if it reports no progress."""
    if not isinstance(done, (int, float)):
        return ""
    if not isinstance(total, (int, float)) or total <= 0:
        return f"{done:g}"
    full = round(_BAR * min(max(done / total, 0), 1))
    return f"{'#' * full}{'.' * (_BAR - full)} {done:g} of {total:g}"
