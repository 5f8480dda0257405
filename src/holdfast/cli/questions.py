"""The commands that send something to a task: submit, retry, answers to questions, signals."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .. import Budget, Question, Store, TaskView
from ..errors import format_owner
from .stores import Json, Tenant, Url, fail, open_store, split_names, split_url
from .tasks import ENDED, TaskId, fail_no_task, parse_json, question_facts
from .text import cut, printable, to_json

Limits = Annotated[
    list[str] | None,
    typer.Option(
        "--budget",
        metavar="LIMIT",
        help="What its model calls may use: tokens=100000, cost=2.5, calls=40."
        " Separate several with commas, or repeat the option.",
        show_default=False,
    ),
]

Subject = Annotated[
    str | None,
    typer.Option(
        metavar="ID",
        help="Id of the person the task is about, for `holdfast erase --subject`.",
        show_default=False,
    ),
]


def submit(
    names: Annotated[
        list[str],
        typer.Argument(metavar="[URL] AGENT TASK", help="The agent's name, and the task's id."),
    ],
    input: Annotated[
        str | None, typer.Option(metavar="JSON", help="The task's input.", show_default=False)
    ] = None,
    goal: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The task's goal.", show_default=False)
    ] = None,
    limits: Limits = None,
    subject: Subject = None,
    tenant: Tenant = "default",
) -> None:
    """Queue a task for a worker.

    A task that exists and has not ended is queued again.
    """
    url, agent, task_id = split_names(
        names, 2, "holdfast submit agents.db claims claim-42 --input '{\"sum\": 41}'"
    )
    value = None if input is None else parse_json(input, "input", "--input '\"text\"'")
    budget = _parse_budget(limits)
    with open_store(url, tenant, create=True) as store:
        is_new = store.submit(
            agent, task_id, goal=goal, input=value, budget=budget, subject=subject
        )
        view = None if is_new else store.get_task(task_id)
    if view is not None and view.status in ENDED:
        typer.echo(f"{printable(task_id)} is already {view.status}")
        return
    _check_budget(view, budget)
    typer.echo(f"submitted {printable(task_id)}{'' if is_new else ' again'}")


def retry(
    url: Url = None,
    task_id: TaskId = None,
    status: Annotated[
        str | None,
        typer.Option(
            help="Instead of TASK: all tasks that are failed, or all that are stuck.",
            show_default=False,
        ),
    ] = None,
    limits: Limits = None,
    tenant: Tenant = "default",
) -> None:
    """Requeue failed or stuck tasks."""
    budget = _parse_budget(limits)
    if status is not None:
        if task_id is not None or status not in ("failed", "stuck"):
            raise typer.BadParameter(
                "without a task: holdfast retry agents.db --status failed, or --status stuck"
            )
        with open_store(url, tenant) as store:
            _retry_all(store, status, budget)
        return
    url, name = split_url(url, task_id, "name the task: holdfast retry agents.db claim-42")
    with open_store(url, tenant) as store:
        view = store.get_task(name)
        if view is None:
            fail_no_task(tenant, name)
        if view.agent is None:
            fail(
                f"task {name!r} has no agent, so workers can't run it;"
                " resume it from the script that created it"
            )
        if view.status in ENDED:
            fail(f"task {name!r} is {view.status}; there is nothing to retry")
        if view.owner is not None and not view.abandoned:
            fail(f"task {name!r} is being run by {format_owner(view.owner)}")
        store.submit(view.agent, name, budget=budget)
        _check_budget(store.get_task(name), budget)
    typer.echo(f"submitted {printable(name)} again")


def _retry_all(store: Store, status: str, budget: Budget | None) -> None:
    """Submit every task of this status again, except those without an agent."""
    submitted = skipped = 0
    for info in store.tasks(status=status):
        if info.agent is None:
            skipped += 1
        else:
            store.submit(info.agent, info.id, budget=budget)
            submitted += 1
    typer.echo(f"submitted {submitted} of status {status} again")
    if skipped:
        typer.echo(
            f"skipped {skipped} of status {status} without an agent: workers can't run them;"
            " resume them from the scripts that created them"
        )


def questions(url: Url = None, tenant: Tenant = "default", as_json: Json = False) -> None:
    """List open questions.

    Prints one line per question of a suspended task: task, name, question and payload.
    """
    with open_store(url, tenant) as store:
        for info in store.tasks(status="suspended"):
            view = store.get_task(info.id)
            for question in view.questions if view is not None else ():
                if question.status == "open":
                    facts = {"task": info.id, **question_facts(question)}
                    typer.echo(to_json(facts) if as_json else _question_line(info.id, question))


def answer(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="[URL] TASK NAME JSON",
            help="The task's id, the question's name, and the answer.",
        ),
    ],
    by: Annotated[
        str | None, typer.Option(help="Who answers, to be recorded.", show_default=False)
    ] = None,
    tenant: Tenant = "default",
) -> None:
    """Answer a question.

    A worker then resumes the task. The first answer counts.
    """
    url, task_id, name, text = split_names(
        names, 3, "holdfast answer agents.db claim-42 payout true"
    )
    value = parse_json(text, "answer", "'\"text\"'")
    with open_store(url, tenant) as store:
        view = store.get_task(task_id)
        asked = view.questions if view is not None else ()
        found = next((question for question in asked if question.name == name), None)
        if found is not None:
            typer.echo(f"question: {printable(found.text)}\nabout: {to_json(found.payload)}")
        try:
            store.answer(task_id, name, value, by=by, question=None if found is None else found.id)
        except TypeError as error:
            fail(str(error))
    typer.echo(f"answered {printable(name)} of {printable(task_id)}: {to_json(value)}")


def signal(
    names: Annotated[
        list[str],
        typer.Argument(metavar="[URL] TASK NAME", help="The task's id, and the signal's name."),
    ],
    payload: Annotated[
        str | None, typer.Option(help="The signal's payload, as JSON.", show_default=False)
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(
            help="An id of your own; a second signal with it is ignored.", show_default=False
        ),
    ] = None,
    tenant: Tenant = "default",
) -> None:
    """Send a signal to a task.

    The task receives it now, or when it starts to wait for it.
    """
    url, task_id, name = split_names(
        names, 2, "holdfast signal agents.db claim-42 paid --payload '{\"sum\": 41}'"
    )
    value = None if payload is None else parse_json(payload, "payload", "--payload '\"text\"'")
    with open_store(url, tenant) as store:
        is_new = store.signal(task_id, name, value, id=id)
    if is_new:
        typer.echo(f"sent signal {printable(name)} to {printable(task_id)}")
    else:
        typer.echo(f"ignored a duplicate of signal {printable(name)} to {printable(task_id)}")


def _question_line(task_id: str, question: Question) -> str:
    names = f"{printable(task_id)}  {printable(question.name)}"
    return cut(f"{names}  {printable(question.text)}  {to_json(question.payload)}")


def _parse_budget(limits: list[str] | None) -> Budget | None:
    if not limits:
        return None
    amounts: dict[str, Any] = {}
    for limit in ",".join(limits).split(","):
        name, _, number = limit.partition("=")
        if name not in ("tokens", "cost", "calls") or name in amounts:
            raise typer.BadParameter(
                "a budget is tokens=…, cost=… or calls=…, each once:"
                " --budget tokens=100000,cost=2.5"
            )
        try:
            amounts[name] = float(number) if name == "cost" else int(number)
        except ValueError:
            raise typer.BadParameter(
                f"{name} must be a number, got {number!r}: --budget {name}=40"
            ) from None
    try:
        return Budget(**amounts)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _check_budget(view: TaskView | None, budget: Budget | None) -> None:
    """Fail if the budget was not replaced: a running task keeps the budget it started with."""
    if view is not None and budget is not None and view.budget != budget:
        fail(
            f"the budget of task {view.id!r} is unchanged: the task is running, or its process was"
            " killed; try again when it is pending or failed"
        )
