"""The commands about tasks: list them, look at one, get its files, settle what is in doubt, cancel."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from itertools import islice
from typing import Annotated, Any, Final

import msgspec
import typer

from .. import ArtifactInfo, Question, Store, TaskInfo, TaskView
from ..errors import who
from .stores import Json, Tenant, Url, failed, named, opened
from .text import event_json, event_line, printable, size, to_json

ENDED = ("finished", "cancelled")
COUNT_LIMIT: Final = 10_000
TaskId = Annotated[
    str | None, typer.Argument(metavar="TASK", help="The task's id.", show_default=False)
]


def tasks(
    url: Url = None,
    status: Annotated[
        str | None, typer.Option(help="Only those with this status.", show_default=False)
    ] = None,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """List the tasks, one per line: status, agent, id and goal. `?`: a step is in doubt; `!`: its process was killed."""
    with opened(url, tenant) as store:
        for info in store.tasks(status=status):
            typer.echo(to_json(_facts(info)) if as_json else _line(info))


def count_tasks(store: Store) -> dict[str, int]:
    """How many tasks there are that have not ended, by status. Counting stops at 10,000 of one."""
    statuses = ("pending", "running", "suspended", "retrying", "failed", "stuck")
    counts = {
        status: sum(1 for _ in islice(store.tasks(status=status), COUNT_LIMIT))
        for status in statuses
    }
    return {status: count for status, count in counts.items() if count}


def task(
    url: Url = None,
    task_id: TaskId = None,
    history: Annotated[bool, typer.Option("--history", help="Every event, oldest first.")] = False,
    context: Annotated[
        bool, typer.Option("--context", help="What a model is told when the task is resumed.")
    ] = False,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Show a task: where it stands, and what a resume would do."""
    url, name = named(url, task_id, "name the task: holdfast task agents.db claims-42")
    with opened(url, tenant) as store:
        view = store.get_task(name)
        if view is None:
            raise failed(
                f"tenant {tenant!r} has no task {name!r} in this store, or it has expired; check the names"
            )
        if history:
            for event in store.task(name).history():
                typer.echo(event_json(event) if as_json else event_line(event))
        elif context:
            brief = store.task(
                name
            ).resume_context()  # not that of the view, which knows nothing of memories
            typer.echo(to_json(brief.to_dict()) if as_json else _lines(str(brief)))
        elif as_json:
            typer.echo(to_json(view.checkpoint().to_dict() | _more(view)))
        else:
            typer.echo(_lines(_summary(view)))


def resolve(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="[URL] TASK STEP", help="The task's id, and the step's path or name."
        ),
    ],
    result: Annotated[
        str | None,
        typer.Option(help="It was done, and this is its result, as JSON.", show_default=False),
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
            raise typer.BadParameter(
                "the result is not JSON; text needs quotes: --result '\"done\"'"
            ) from None
    with opened(url, tenant) as store:
        store.resolve(str(task_id), str(step), **options)
    typer.echo(f"settled {printable(str(step))} of {printable(str(task_id))}")


def cancel(
    url: Url = None,
    task_id: TaskId = None,
    reason: Annotated[
        str | None, typer.Option(help="Why; it is recorded.", show_default=False)
    ] = None,
    tenant: Tenant = "default",
) -> None:
    """End a task for good, whoever works on it."""
    url, name = named(url, task_id, "name the task: holdfast cancel agents.db claims-42")
    with opened(url, tenant) as store:
        store.task(name).cancel(reason)
    typer.echo(f"cancelled {printable(name)}")


def artifact(
    names: Annotated[
        list[str],
        typer.Argument(metavar="[URL] TASK NAME", help="The task's id, and the artifact's name."),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Where to write it, whole or not at all.", show_default=False
        ),
    ] = None,
    tenant: Tenant = "default",
) -> None:
    """Get a file that is attached to a task: into a file, or to standard output."""
    if len(names) not in (2, 3):
        raise typer.BadParameter(
            "name the store, the task and the artifact: holdfast artifact agents.db claims-42 report.pdf --output report.pdf"
        )
    url, task_id, name = [None, *names][-3:]
    stdout = typer.get_binary_stream("stdout")
    if output is None and stdout.isatty():
        raise typer.BadParameter(
            "it may hold anything, and this is a terminal: say --output FILE, or use a pipe"
        )
    with opened(url, tenant) as store:
        found = store.artifact(str(task_id), str(name))
        try:
            if output is None:
                stdout.writelines(found.chunks())
                stdout.flush()
            else:
                found.save(output)
        except OSError as error:
            raise failed(f"it could not be written: {error.strerror or error}") from None


def _facts(info: TaskInfo) -> dict[str, object]:
    times = {"due_at": info.due_at, "lease_until": info.lease_until, "expires_at": info.expires_at}
    return {
        "id": info.id,
        "status": info.status,
        "in_doubt": info.in_doubt,
        "goal": info.goal,
        "agent": info.agent,
        "owner": info.owner,
        "abandoned": info.abandoned,
        **{name: None if at is None else at.isoformat() for name, at in times.items()},
    }


def _line(info: TaskInfo) -> str:
    mark = "?" if info.in_doubt else "!" if info.abandoned else " "
    agent, goal = printable(info.agent or "-"), printable(info.goal or "")
    told = f"{info.status:<10}{mark} {agent:<12}  {printable(info.id)}  {goal if len(goal) <= 80 else goal[:79] + '…'}"
    return told.rstrip()


def _summary(view: TaskView) -> str:
    lines = [f"goal: {view.goal or '(none)'}"]
    if view.agent is not None:
        lines.append(f"agent: {view.agent}")
    lines.append(f"run {view.runs}, last event {view.updated_at:%Y-%m-%d %H:%M:%S} UTC")
    if view.owner is not None:
        gone = " (gone: whoever enters it next takes it over)" if view.abandoned else ""
        lines.append(
            f"held by {who(view.owner)}{gone}, lease until {view.lease_until:%H:%M:%S} UTC"
        )
    if view.parent is not None:
        lines.append(f"child of {view.parent}")
    lines += [f"child: {child} ({status})" for child, status in view.children.items()]
    if view.waits_for:
        lines.append(f"waits for {', '.join(view.waits_for)}")
    if view.due_at is not None and view.status not in ENDED:
        lines.append(_due(view, view.due_at))
    for question in view.questions:
        said = (
            f"{to_json(question.answer)}, by {question.by or 'somebody'}"
            if question.status == "answered"
            else question.status
        )
        lines.append(
            f"question {question.name}: {_cut(question.text)} {_cut(to_json(question.payload))} ({_cut(said)})"
        )
    if view.usage.calls:
        lines.append(f"used: {_amounts(view.usage.tokens, view.usage.cost, view.usage.calls)}")
    if view.budget is not None:
        lines.append(f"budget: {_amounts(view.budget.tokens, view.budget.cost, view.budget.calls)}")
    if view.error is not None:
        lines.append(f"error: {view.error.type}: {view.error.message}")
    if view.status == "finished":
        lines.append(f"result: {_cut(to_json(view.result))}")
    lines += [
        f"artifact: {file.name} ({size(file.size)}, {file.at:%Y-%m-%d %H:%M:%S} UTC)"
        for file in view.artifacts
    ]
    told = str(view.preview()).replace(
        "store.resolve(task, step, result=…), or retry=True",
        "holdfast resolve URL TASK STEP --result JSON, or --retry",
    )
    return "\n".join([*lines, told])


def _due(view: TaskView, at: datetime) -> str:
    since = "since" if at <= datetime.now(timezone.utc) else "at"
    whom = "" if view.agent is None else f", for a worker that has agent {view.agent!r}"
    return f"due {since} {at:%Y-%m-%d %H:%M:%S} UTC{whom}"


def _amounts(tokens: int | None, cost: float | None, calls: int | None) -> str:
    """What was used, or may be."""
    parts = ((calls, "calls"), (tokens, "tokens"))
    told = [f"{count:,} {unit}" for count, unit in parts if count]
    return ", ".join([*told, *([f"a cost of {cost:g}"] if cost else [])])


def _more(view: TaskView) -> dict[str, object]:
    """What a checkpoint does not tell."""
    return {
        "status": view.status,
        "result": view.result,
        "error": None if view.error is None else msgspec.structs.asdict(view.error),
        "steps": [
            {"path": step.path, "status": step.status, "kind": step.kind} for step in view.steps
        ],
        "in_doubt": view.in_doubt,
        "usage": msgspec.structs.asdict(view.usage),
        "budget": None if view.budget is None else msgspec.structs.asdict(view.budget),
        "artifacts": list(map(_file, view.artifacts)),
        "waits_for": view.waits_for,
        "due_at": None if view.due_at is None else view.due_at.isoformat(),
        "questions": list(map(question_facts, view.questions)),
        "parent": view.parent,
        "children": view.children,
        "crashes": view.crashes,
    }


def question_facts(question: Question) -> dict[str, object]:
    """A question as JSON values."""
    times = {
        "asked_at": question.asked_at,
        "until": question.until,
        "answered_at": question.answered_at,
    }
    return {
        "id": question.id,
        "name": question.name,
        "text": question.text,
        "payload": question.payload,
        "schema": question.schema,
        "status": question.status,
        "answer": question.answer,
        "by": question.by,
        **{name: None if at is None else at.isoformat() for name, at in times.items()},
    }


def _file(info: ArtifactInfo) -> dict[str, object]:
    return {"name": info.name, "size": info.size, "digest": info.digest, "at": info.at.isoformat()}


def _cut(text: str) -> str:
    return text if len(text) <= 200 else text[:199] + "…"


def _lines(text: str) -> str:
    """Text of several lines, each harmless to a terminal."""
    return "\n".join(map(printable, text.split("\n")))
