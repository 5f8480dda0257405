"""The commands about tasks: list, show, download artifacts, resolve unknown outcomes, cancel."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Annotated, Any, NoReturn

import msgspec
import typer

from .. import ArtifactInfo, Question, TaskInfo, TaskView
from ..errors import format_owner
from .stores import Json, Tenant, Url, fail, open_store, split_names, split_url
from .text import cut, event_json, event_line, format_size, printable, printable_lines, to_json

ENDED = ("finished", "cancelled")
TaskId = Annotated[
    str | None, typer.Argument(metavar="TASK", help="The task's id.", show_default=False)
]


def tasks(
    url: Url = None,
    status: Annotated[
        str | None, typer.Option(help="Only tasks with this status.", show_default=False)
    ] = None,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """List tasks.

    Prints one line per task: status, agent, id and goal. `?` marks a task with a step in doubt,
    `!` one whose process was killed.
    """
    with open_store(url, tenant) as store:
        for info in store.tasks(status=status):
            typer.echo(to_json(_info_facts(info)) if as_json else _info_line(info))


def task(
    url: Url = None,
    task_id: TaskId = None,
    history: Annotated[
        bool, typer.Option("--history", help="Print every event, oldest first.")
    ] = False,
    context: Annotated[
        bool, typer.Option("--context", help="Print the context a model gets on resume.")
    ] = False,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Show one task: status, steps, next action."""
    url, name = split_url(url, task_id, "name the task: holdfast task agents.db claims-42")
    with open_store(url, tenant) as store:
        view = store.get_task(name)
        if view is None:
            fail_no_task(tenant, name)
        if history:
            for event in store.task(name).history():
                typer.echo(event_json(event) if as_json else event_line(event))
        elif context:
            # The view's own resume context would lack memories.
            text = store.task(name).resume_context()
            typer.echo(to_json(text.to_dict()) if as_json else printable_lines(str(text)))
        elif as_json:
            typer.echo(to_json(view.checkpoint().to_dict() | _view_facts(view)))
        else:
            typer.echo(printable_lines(_view_text(view)))


def resolve(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="[URL] TASK STEP", help="The task's id, and the step's path or name."
        ),
    ],
    result: Annotated[
        str | None,
        typer.Option(
            help="The step was done: record this result, given as JSON.", show_default=False
        ),
    ] = None,
    retry: Annotated[
        bool, typer.Option("--retry", help="The step was not done: run it again.")
    ] = False,
    tenant: Tenant = "default",
) -> None:
    """Resolve a step whose outcome is unknown.

    First check in the external system whether the step was done.
    """
    url, task_id, step = split_names(names, 2, "holdfast resolve agents.db claims-42 pay --retry")
    if (result is None) != retry:
        raise typer.BadParameter("use --result JSON (it was done) or --retry (it was not)")
    options: dict[str, Any] = {"retry": True}
    if result is not None:
        options = {"result": parse_json(result, "result", "--result '\"done\"'")}
    with open_store(url, tenant) as store:
        store.resolve(task_id, step, **options)
    typer.echo(f"resolved {printable(step)} of {printable(task_id)}")


def cancel(
    url: Url = None,
    task_id: TaskId = None,
    reason: Annotated[
        str | None, typer.Option(help="The reason to record.", show_default=False)
    ] = None,
    tenant: Tenant = "default",
) -> None:
    """Cancel a task.

    A worker that is running the task stops at its next write.
    """
    url, name = split_url(url, task_id, "name the task: holdfast cancel agents.db claims-42")
    with open_store(url, tenant) as store:
        store.task(name).cancel(reason)
    typer.echo(f"cancelled {printable(name)}")


def artifact(
    names: Annotated[
        list[str],
        typer.Argument(metavar="[URL] TASK NAME", help="The task's id, and the artifact's name."),
    ],
    output: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The file to write, atomically.", show_default=False),
    ] = None,
    tenant: Tenant = "default",
) -> None:
    """Download a task's file.

    Writes to standard output, or to --output FILE.
    """
    url, task_id, name = split_names(
        names, 2, "holdfast artifact agents.db claims-42 report.pdf --output report.pdf"
    )
    stdout = typer.get_binary_stream("stdout")
    if output is None and stdout.isatty():
        raise typer.BadParameter(
            "the file may contain control characters and standard output is a terminal:"
            " use --output FILE or a pipe"
        )
    with open_store(url, tenant) as store:
        found = store.artifact(task_id, name)
        try:
            if output is None:
                stdout.writelines(found.chunks())
                stdout.flush()
            else:
                found.save(output)
        except OSError as error:
            fail(f"could not write the file: {error.strerror or error}")


def fail_no_task(tenant: str, name: str) -> NoReturn:
    """Exit because the store has no such task."""
    fail(
        f"tenant {tenant!r} has no task {name!r} in this store, or it has expired; check the names"
    )


def parse_json(text: str, what: str, quoted: str) -> Any:
    """Decode the JSON of an option; `quoted` shows how to write text."""
    try:
        return json.loads(text)
    except ValueError:
        raise typer.BadParameter(f"the {what} is not JSON; text needs quotes: {quoted}") from None


def _info_facts(info: TaskInfo) -> dict[str, object]:
    return {
        "id": info.id,
        "status": info.status,
        "in_doubt": info.in_doubt,
        "goal": info.goal,
        "agent": info.agent,
        "owner": info.owner,
        "abandoned": info.abandoned,
        "due_at": _iso(info.due_at),
        "lease_until": _iso(info.lease_until),
        "expires_at": _iso(info.expires_at),
    }


def _info_line(info: TaskInfo) -> str:
    mark = "?" if info.in_doubt else "!" if info.abandoned else " "
    agent, goal = printable(info.agent or "-"), cut(printable(info.goal or ""), 80)
    return f"{info.status:<10}{mark} {agent:<12}  {printable(info.id)}  {goal}".rstrip()


def _view_text(view: TaskView) -> str:
    lines = [f"goal: {view.goal or '(none)'}"]
    if view.agent is not None:
        lines.append(f"agent: {view.agent}")
    lines.append(f"run {view.runs}, last event {view.updated_at:%Y-%m-%d %H:%M:%S} UTC")
    if view.owner is not None:
        dead = " (dead: the next process that opens the task takes it over)"
        owner = format_owner(view.owner) + (dead if view.abandoned else "")
        lines.append(f"leased by {owner}, until {view.lease_until:%H:%M:%S} UTC")
    if view.parent is not None:
        lines.append(f"child of {view.parent}")
    lines += [f"child: {child} ({status})" for child, status in view.children.items()]
    if view.waits_for:
        lines.append(f"waits for {', '.join(view.waits_for)}")
    if view.due_at is not None and view.status not in ENDED:
        since = "since" if view.due_at <= datetime.now(timezone.utc) else "at"
        agent = "" if view.agent is None else f", for a worker that has agent {view.agent!r}"
        lines.append(f"due {since} {view.due_at:%Y-%m-%d %H:%M:%S} UTC{agent}")
    lines += map(_question_line, view.questions)
    if view.usage.calls:
        lines.append(f"used: {_amounts(view.usage.tokens, view.usage.cost, view.usage.calls)}")
    if view.budget is not None:
        lines.append(f"budget: {_amounts(view.budget.tokens, view.budget.cost, view.budget.calls)}")
    if view.error is not None:
        lines.append(f"error: {view.error.type}: {view.error.message}")
    if view.status == "finished":
        lines.append(f"result: {cut(to_json(view.result))}")
    lines += [
        f"artifact: {file.name} ({format_size(file.size)}, {file.at:%Y-%m-%d %H:%M:%S} UTC)"
        for file in view.artifacts
    ]
    preview = str(view.preview()).replace(
        "store.resolve(task, step, result=…), or retry=True",
        "holdfast resolve URL TASK STEP --result JSON, or --retry",
    )
    return "\n".join([*lines, preview])


def _question_line(question: Question) -> str:
    status: str = question.status
    if status == "answered":
        status = f"{to_json(question.answer)}, by {question.by or 'unknown'}"
    payload = cut(to_json(question.payload))
    return f"question {question.name}: {cut(question.text)} {payload} ({cut(status)})"


def _amounts(tokens: int | None, cost: float | None, calls: int | None) -> str:
    """Format the amounts of a usage or a budget."""
    counts = [
        f"{count:,} {unit}" for count, unit in ((calls, "calls"), (tokens, "tokens")) if count
    ]
    return ", ".join([*counts, *([f"a cost of {cost:g}"] if cost else [])])


def _view_facts(view: TaskView) -> dict[str, object]:
    """Return the facts that a checkpoint lacks, as JSON values."""
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
        "artifacts": list(map(_artifact_facts, view.artifacts)),
        "waits_for": view.waits_for,
        "due_at": _iso(view.due_at),
        "questions": list(map(question_facts, view.questions)),
        "parent": view.parent,
        "children": view.children,
        "crashes": view.crashes,
    }


def question_facts(question: Question) -> dict[str, object]:
    """Return a question as JSON values."""
    return {
        "id": question.id,
        "name": question.name,
        "text": question.text,
        "payload": question.payload,
        "schema": question.schema,
        "status": question.status,
        "answer": question.answer,
        "by": question.by,
        "asked_at": _iso(question.asked_at),
        "until": _iso(question.until),
        "answered_at": _iso(question.answered_at),
    }


def _artifact_facts(info: ArtifactInfo) -> dict[str, object]:
    return {"name": info.name, "size": info.size, "digest": info.digest, "at": info.at.isoformat()}


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
