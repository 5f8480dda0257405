"""The commands that give tasks to workers, and give tasks what they wait for."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from .. import Budget, Question, Store, TaskView
from ..errors import who
from .stores import Json, Tenant, Url, failed, named, opened
from .tasks import ENDED, TaskId, question_facts
from .text import LINE_LENGTH, printable, to_json

Limits = Annotated[
    list[str] | None,
    typer.Option(
        "--budget",
        metavar="LIMIT",
        help="What its model calls may use: tokens=100000, cost=2.5, calls=40. Several with commas, or one by one.",
        show_default=False,
    ),
]

Subject = Annotated[
    str | None,
    typer.Option(
        metavar="ID",
        help="Whom it is about, so that `holdfast erase --subject` finds it.",
        show_default=False,
    ),
]


def submit(
    names: Annotated[
        list[str],
        typer.Argument(metavar="[URL] AGENT TASK", help="The agent's name, and the task's id."),
    ],
    input: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="What the task begins with.", show_default=False),
    ] = None,
    goal: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="What the task is to reach.", show_default=False),
    ] = None,
    limits: Limits = None,
    subject: Subject = None,
    tenant: Tenant = "default",
) -> None:
    """Let a worker run a task of an agent. A task that is there and has not ended is tried again."""
    url, agent, task_id = _given(
        names, 2, "holdfast submit agents.db claims claim-42 --input '{\"sum\": 41}'"
    )
    value = None if input is None else _json(input, "input", "--input '\"text\"'")
    budget = _budget(limits)
    with opened(url, tenant, create=True) as store:
        is_new = store.submit(
            agent, task_id, goal=goal, input=value, budget=budget, subject=subject
        )
        view = None if is_new else store.get_task(task_id)
    if view is not None and view.status in ENDED:
        typer.echo(f"{printable(task_id)} is {view.status} already")
        return
    _check_budget(view, budget)
    typer.echo(f"submitted {printable(task_id)}{'' if is_new else ' again'}")


def retry(
    url: Url = None,
    task_id: TaskId = None,
    status: Annotated[
        str | None,
        typer.Option(
            help="In place of TASK: all that are failed, or all that are stuck.", show_default=False
        ),
    ] = None,
    limits: Limits = None,
    tenant: Tenant = "default",
) -> None:
    """Let a worker try a task again that it has given up: one that is failed or stuck, or all of these."""
    budget = _budget(limits)
    if status is not None:
        if task_id is not None or status not in ("failed", "stuck"):
            raise typer.BadParameter(
                "without a task: holdfast retry agents.db --status failed, or --status stuck"
            )
        with opened(url, tenant) as store:
            _retry_all(store, status, budget)
        return
    url, name = named(url, task_id, "name the task: holdfast retry agents.db claim-42")
    with opened(url, tenant) as store:
        view = store.get_task(name)
        if view is None:
            raise failed(
                f"tenant {tenant!r} has no task {name!r} in this store, or it has expired; check the names"
            )
        if view.agent is None:
            raise failed(
                f"{name!r} is no agent's task, workers do not know it; open it again in its program"
            )
        if view.status in ENDED:
            raise failed(f"{name!r} is {view.status}; there is nothing to try again")
        if view.owner is not None and not view.abandoned:
            raise failed(f"{name!r} is being run by {who(view.owner)}")
        store.submit(view.agent, name, budget=budget)
        _check_budget(store.get_task(name), budget)
    typer.echo(f"submitted {printable(name)} again")


def _retry_all(store: Store, status: str, budget: Budget | None) -> None:
    """Submit every task of this status again. Those that no agent has are left to their programs."""
    again = left = 0
    for info in store.tasks(status=status):
        if info.agent is None:
            left += 1
        else:
            store.submit(info.agent, info.id, budget=budget)
            again += 1
    typer.echo(f"submitted {again} of status {status} again")
    if left:
        typer.echo(
            f"{left} of status {status} are no agent's tasks, workers do not know them; their programs may go on"
        )


def questions(url: Url = None, tenant: Tenant = "default", as_json: Json = False) -> None:
    """List the questions that suspended tasks wait for, one per line: task, name, question and what it is about."""
    with opened(url, tenant) as store:
        for info in store.tasks(status="suspended"):
            view = store.get_task(info.id)
            for question in view.questions if view is not None else ():
                if question.status == "open":
                    typer.echo(
                        to_json({"task": info.id, **question_facts(question)})
                        if as_json
                        else _line(info.id, question)
                    )


def answer(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="[URL] TASK NAME JSON",
            help="The task's id, the question's name, and the answer.",
        ),
    ],
    by: Annotated[
        str | None, typer.Option(help="Who answers; it is recorded.", show_default=False)
    ] = None,
    tenant: Tenant = "default",
) -> None:
    """Answer what a task asks; a worker then goes on with it. The first answer counts."""
    url, task_id, name, text = _given(names, 3, "holdfast answer agents.db claim-42 payout true")
    value = _json(text, "answer", "'\"text\"'")
    with opened(url, tenant) as store:
        view = store.get_task(task_id)
        found = (
            next((question for question in view.questions if question.name == name), None)
            if view is not None
            else None
        )
        if found is not None:
            typer.echo(f"question: {printable(found.text)}\nabout: {to_json(found.payload)}")
        try:
            store.answer(task_id, name, value, by=by, question=None if found is None else found.id)
        except TypeError as error:
            raise failed(str(error)) from None
    typer.echo(f"answered {printable(name)} of {printable(task_id)}: {to_json(value)}")


def signal(
    names: Annotated[
        list[str],
        typer.Argument(metavar="[URL] TASK NAME", help="The task's id, and the signal's name."),
    ],
    payload: Annotated[
        str | None, typer.Option(help="What to tell with it, as JSON.", show_default=False)
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(help="An id of your own: telling it twice is once.", show_default=False),
    ] = None,
    tenant: Tenant = "default",
) -> None:
    """Tell a task that something happened, whether it waits for it already or not."""
    url, task_id, name = _given(
        names, 2, "holdfast signal agents.db claim-42 paid --payload '{\"sum\": 41}'"
    )
    value = None if payload is None else _json(payload, "payload", "--payload '\"text\"'")
    with opened(url, tenant) as store:
        is_new = store.signal(task_id, name, value, id=id)
    typer.echo(f"{'told' if is_new else 'had told'} {printable(task_id)}: {printable(name)}")


def _line(task_id: str, question: Question) -> str:
    line = f"{printable(task_id)}  {printable(question.name)}  {printable(question.text)}  {to_json(question.payload)}"
    return line if len(line) <= LINE_LENGTH else line[: LINE_LENGTH - 1] + "…"


def _given(names: list[str], count: int, usage: str) -> tuple[Any, ...]:
    """The store, if it is named, and so many names."""
    if len(names) not in (count, count + 1):
        raise typer.BadParameter(f"name all of it: {usage}")
    return tuple([None, *names][-count - 1 :])


def _budget(limits: list[str] | None) -> Budget | None:
    """What the options say, together."""
    if not limits:
        return None
    found: dict[str, Any] = {}
    for limit in ",".join(limits).split(","):
        name, _, number = limit.partition("=")
        if name not in ("tokens", "cost", "calls") or name in found:
            raise typer.BadParameter(
                "a budget is tokens=…, cost=… or calls=…, each once: --budget tokens=100000,cost=2.5"
            )
        try:
            found[name] = float(number) if name == "cost" else int(number)
        except ValueError:
            raise typer.BadParameter(f"{name} is a number: --budget {name}=40") from None
    try:
        return Budget(**found)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _check_budget(view: TaskView | None, budget: Budget | None) -> None:
    """Say so if it was not taken: whoever runs a task goes by the budget that it was begun with."""
    if view is not None and budget is not None and view.budget != budget:
        raise failed(
            f"the budget of {view.id!r} stays as it was, because somebody runs it, or was killed doing so; try again when it is pending or failed"
        )


def _json(text: str, what: str, quoted: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise typer.BadParameter(f"the {what} is not JSON; text needs quotes: {quoted}") from None
