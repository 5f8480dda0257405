"""Choose tasks by status, agent, time and error, and act on all of them after a confirmation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, NamedTuple

import click

from ... import HoldfastError, Store, TaskInfo, TaskView
from ..parser.completion import complete_agents, complete_statuses
from ..parser.declare import Option
from ..parser.durations import parse_since
from ..stores import confirm, fail
from ..text import format_count, printable

StatusOption = Annotated[
    str | None, Option("--status", help="Only tasks with this status.", complete=complete_statuses)
]
AgentOption = Annotated[
    str | None,
    Option("--agent", metavar="NAME", help="Only tasks of this agent.", complete=complete_agents),
]
SinceOption = Annotated[
    str | None,
    Option(
        "--since",
        metavar="TIME",
        help="Only tasks with an event since then: a duration like 2h, or a time like 2026-01-31"
        " or 2026-01-31T14:30 (UTC).",
    ),
]
ErrorOption = Annotated[
    str | None,
    Option(
        "--error",
        metavar="TEXT",
        help="Only tasks that failed or are in doubt because of an exception whose type or message"
        " contains this text.",
    ),
]
DryRun = Annotated[bool, Option("--dry-run", help="Print the selected tasks; change nothing.")]
Yes = Annotated[bool, Option("--yes", help="Do not ask for confirmation.")]


class Selection(NamedTuple):
    """The options that choose tasks."""

    status: str | None
    agent: str | None
    since: str | None
    error: str | None

    def __bool__(self) -> bool:
        return any(option is not None for option in self)

    def iterate(self, store: Store, statuses: Sequence[str | None] = (None,)) -> Iterator[TaskInfo]:
        """Yield the tasks that fit; without a chosen status, those with one of `statuses`."""
        since = None if self.since is None else parse_since(self.since)
        for status in (self.status,) if self.status is not None else statuses:
            yield from store.tasks(status=status, agent=self.agent, since=since, error=self.error)


def reject_both(task: str | None, usage: str) -> None:
    """Exit with a usage error if a task is named beside options that select tasks."""
    if task is not None:
        raise click.UsageError(f"name a task, or select tasks with options, not both: {usage}")


def act_on_tasks(
    store: Store,
    tasks: Sequence[TaskInfo],
    verb: str,
    done: str,
    act: Callable[[TaskInfo], None],
    show: Callable[[TaskInfo | TaskView, bool], str],
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Act on each task after a confirmation, and print what was done.

    `verb` names the action in the question, and `done` is the message afterwards, with {} for the
    tasks. A task that can't be changed, for example because it has ended in the meantime, is
    reported on standard error, and the exit code is 1.
    """
    count = format_count(len(tasks), "task")
    if dry_run:
        for info in tasks:
            click.echo(show(info, as_json))
        click.echo(f"would {verb} {count}", err=as_json)
        return
    if tasks and not yes:
        for info in tasks:
            click.echo(show(info, False), err=True)
        if not confirm(f"{verb} {count}?"):
            fail("nothing was changed; use --yes to skip the confirmation, or --dry-run")
    refused = 0
    for info in tasks:
        try:
            act(info)
        except (HoldfastError, ValueError) as error:
            refused += 1
            click.echo(f"holdfast: {printable(' '.join(str(error).split()))}", err=True)
            continue
        after = store.get_task(info.id) if as_json else None
        click.echo(done.format(printable(info.id)) if after is None else show(after, True))
    if not as_json:
        click.echo(done.format(format_count(len(tasks) - refused, "task")))
    if refused:
        raise click.exceptions.Exit(1)
