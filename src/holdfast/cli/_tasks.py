"""The commands about tasks: list them, look at one, settle what is in doubt, cancel."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from holdfast import TaskInfo, TaskView
from holdfast.errors import who

from ._stores import Json, Tenant, Url, failed, named, opened
from ._text import event_json, event_line, printable, to_json

TaskId = Annotated[str | None, typer.Argument(metavar="TASK", help="The task's id.", show_default=False)]


def tasks(
    url: Url = None,
    status: Annotated[str | None, typer.Option(help="Only those with this status.", show_default=False)] = None,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """List the tasks, one per line: status, id and goal. `?`: a step is in doubt; `!`: its process was killed."""
    with opened(url, tenant) as store:
        for info in store.tasks(status=status):
            typer.echo(to_json(_facts(info)) if as_json else _line(info))


def task(
    url: Url = None,
    task_id: TaskId = None,
    history: Annotated[bool, typer.Option("--history", help="Every event, oldest first.")] = False,
    context: Annotated[bool, typer.Option("--context", help="What a model is told when the task is resumed.")] = False,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Show a task: where it stands, and what a resume would do."""
    url, name = named(url, task_id, "name the task: holdfast task agents.db claims-42")
    with opened(url, tenant) as store:
        view = store.get_task(name)
        if view is None:
            raise failed(f"tenant {tenant!r} has no task {name!r} in this store, or it has expired; check the names")
        if history:
            for event in store.task(name).history():
                typer.echo(event_json(event) if as_json else event_line(event))
        elif context:
            brief = view.resume_context()
            typer.echo(to_json(brief.to_dict()) if as_json else _lines(str(brief)))
        elif as_json:
            typer.echo(to_json(view.checkpoint().to_dict() | {"status": view.status, "in_doubt": view.in_doubt}))
        else:
            typer.echo(_lines(_summary(view)))


def resolve(
    names: Annotated[
        list[str], typer.Argument(metavar="[URL] TASK STEP", help="The task's id, and the step's path or name.")
    ],
    result: Annotated[
        str | None, typer.Option(help="It was done, and this is its result, as JSON.", show_default=False)
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="It was not done: run it again.")] = False,
    tenant: Tenant = "default",
) -> None:
    """Settle a step that is in doubt, after finding out whether it was done."""
    if len(names) not in (2, 3):
        raise typer.BadParameter(
            "name the store, the task and the step: holdfast resolve agents.db claims-42 pay --retry"
        )
    url, task_id, step = [None, *names][-3:]
    if (result is None) != retry:
        raise typer.BadParameter("say --result JSON (it was done), or --retry (it was not)")
    options: dict[str, Any] = {"retry": True}
    if result is not None:
        try:
            options = {"result": json.loads(result)}
        except ValueError:
            raise typer.BadParameter("the result is not JSON; text needs quotes: --result '\"done\"'") from None
    with opened(url, tenant) as store:
        store.resolve(str(task_id), str(step), **options)
    typer.echo(f"settled {printable(str(step))} of {printable(str(task_id))}")


def cancel(
    url: Url = None,
    task_id: TaskId = None,
    reason: Annotated[str | None, typer.Option(help="Why; it is recorded.", show_default=False)] = None,
    tenant: Tenant = "default",
) -> None:
    """End a task for good, whoever works on it."""
    url, name = named(url, task_id, "name the task: holdfast cancel agents.db claims-42")
    with opened(url, tenant) as store:
        store.task(name).cancel(reason)
    typer.echo(f"cancelled {printable(name)}")


def _facts(info: TaskInfo) -> dict[str, object]:
    times = {"lease_until": info.lease_until, "expires_at": info.expires_at}
    return {
        "id": info.id,
        "status": info.status,
        "in_doubt": info.in_doubt,
        "goal": info.goal,
        "agent": info.agent,
        "owner": info.owner,
        "abandoned": info.abandoned,
        "version": info.version,
        **{name: None if at is None else at.isoformat() for name, at in times.items()},
    }


def _line(info: TaskInfo) -> str:
    mark = "?" if info.in_doubt else "!" if info.abandoned else " "
    goal = printable(info.goal or "")
    return f"{info.status:<10}{mark} {printable(info.id)}  {goal if len(goal) <= 80 else goal[:79] + '…'}".rstrip()


def _summary(view: TaskView) -> str:
    lines = [f"goal: {view.goal or '(none)'}", f"run {view.runs}, last event {view.updated_at:%Y-%m-%d %H:%M:%S} UTC"]
    if view.owner is not None:
        gone = " (gone: whoever enters it next takes it over)" if view.abandoned else ""
        lines.append(f"held by {who(view.owner)}{gone}, lease until {view.lease_until:%H:%M:%S} UTC")
    if view.error is not None:
        lines.append(f"error: {view.error.type}: {view.error.message}")
    if view.status == "finished":
        lines.append(f"result: {_cut(to_json(view.result))}")
    return "\n".join([*lines, str(view.preview())])


def _cut(text: str) -> str:
    return text if len(text) <= 200 else text[:199] + "…"


def _lines(text: str) -> str:
    """Text of several lines, each harmless to a terminal."""
    return "\n".join(map(printable, text.split("\n")))
