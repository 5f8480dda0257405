"""The commands that send something to a task: submit, retry, answers to questions, signals."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Annotated, Any

import click
import msgspec

from .. import Budget, Question, Store, TaskView
from ..errors import LeaseHeld, format_owner
from .operators.actor import By, choose_actor
from .operators.selection import (
    AgentOption,
    DryRun,
    ErrorOption,
    Selection,
    SinceOption,
    Yes,
    act_on_tasks,
    reject_both,
)
from .parser.completion import complete_agents, complete_questions
from .parser.declare import Argument, Option, command
from .parser.durations import duration_option
from .stores import Json, Tenant, Url, fail, open_store
from .tasks import (
    ENDED,
    OptionalTaskId,
    TaskId,
    echo_change,
    parse_json,
    require_name,
    require_task,
    show_task,
)
from .text import cut, format_count, printable, to_json

Limits = Annotated[
    list[str] | None,
    Option(
        "--budget",
        metavar="LIMIT",
        help="A limit on the task's model calls: tokens=100000, cost=2.5 or calls=40."
        " Separate several with commas, or repeat the option.",
    ),
]

Subject = Annotated[
    str | None,
    Option(
        metavar="ID",
        help="The customer or person that this is about. Memories about a subject are quoted only"
        " for tasks of that subject, and erasing the subject erases them.",
    ),
]


@command(
    "holdfast submit agents.db claims claim-42 --input '{\"sum\": 41}'",
    "holdfast submit agents.db claims claim-43 --goal 'Settle it' --budget tokens=100000,cost=2.5",
)
def submit(
    url: Url,
    agent: Annotated[
        str, Argument(metavar="AGENT", help="The agent's name.", complete=complete_agents)
    ],
    task_id: TaskId,
    input: Annotated[str | None, Option(metavar="JSON", help="The task's input.")] = None,
    goal: Annotated[str | None, Option(metavar="TEXT", help="The task's goal.")] = None,
    limits: Limits = None,
    subject: Subject = None,
    by: By = None,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Queue a task for a worker.

    A task that exists and has not ended is queued again.
    """
    value = None if input is None else parse_json(input, "input", "--input '\"text\"'")
    budget = _parse_budget(limits)
    with open_store(url, tenant, create=True, quiet=as_json) as store:
        is_new = store.submit(
            agent,
            task_id,
            goal=goal,
            input=value,
            budget=budget,
            subject=subject,
            by=choose_actor(by),
        )
        view = None if is_new else store.get_task(task_id)
        if view is not None and view.status in ENDED:
            text = f"{printable(task_id)} is already {view.status}"
        else:
            _check_budget(view, budget)
            text = f"submitted {printable(task_id)}{'' if is_new else ' again'}"
        echo_change(store, task_id, text, as_json)


@command(
    "holdfast retry agents.db claim-42",
    "holdfast retry agents.db claim-42 --budget tokens=200000,cost=5",
    "holdfast retry agents.db --error ConnectionError --since 2h --dry-run",
)
def retry(
    url: Url,
    task_id: OptionalTaskId = None,
    status: Annotated[
        str | None, Option(help="Only tasks with this status: failed or stuck. [default: both]")
    ] = None,
    agent: AgentOption = None,
    since: SinceOption = None,
    error: ErrorOption = None,
    limits: Limits = None,
    timeout: Annotated[
        float | None, duration_option("A new time limit for the task, from now on.", least=0.001)
    ] = None,
    by: By = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Requeue a failed or stuck task, or several."""
    budget, actor = _parse_budget(limits), choose_actor(by)
    chosen = Selection(status, agent, since, error)
    if not chosen:
        name = require_name(task_id, "holdfast retry agents.db claim-42")
        with open_store(url, tenant) as store:
            if dry_run:
                view = _require_retriable(store, name)
                _check_not_running(view)
                click.echo(show_task(view, as_json))
                return
            _retry_one(store, name, budget, timeout, actor)
            echo_change(store, name, f"submitted {printable(name)} again", as_json)
        return
    usage = "holdfast retry agents.db --status failed"
    reject_both(task_id, usage)
    if status not in (None, "failed", "stuck"):
        raise click.UsageError(f"--status must be failed or stuck: {usage}")
    with open_store(url, tenant) as store:
        found = list(chosen.iterate(store, ("failed", "stuck")))
        runnable = [info for info in found if info.agent is not None]
        if skipped := len(found) - len(runnable):
            click.echo(
                f"skipped {format_count(skipped, 'task')} without an agent: workers can't run them;"
                " resume them from the scripts that created them",
                err=True,
            )
        act_on_tasks(
            store,
            runnable,
            "retry",
            "submitted {} again",
            lambda info: _retry_one(store, info.id, budget, timeout, actor),
            show_task,
            dry_run=dry_run,
            yes=yes,
            as_json=as_json,
        )


def _retry_one(
    store: Store, name: str, budget: Budget | None, timeout: float | None, by: str | None
) -> None:
    _require_retriable(store, name)
    try:
        store.retry(name, budget=budget, timeout=timeout, by=by)
    except LeaseHeld as held:
        raise ValueError(_describe_run(name, held.owner)) from None
    if budget is not None:
        _check_budget(store.get_task(name), budget)


def _require_retriable(store: Store, name: str) -> TaskView:
    """Return a task. Raise `ValueError` if it has ended, or has no agent."""
    view = require_task(store, name)
    if view.status in ENDED:
        raise ValueError(f"task {name!r} is {view.status}; there is nothing to retry")
    if view.agent is None:
        raise ValueError(
            f"task {name!r} has no agent, so workers can't run it; resume it from the program that"
            " created it"
        )
    return view


def _check_not_running(view: TaskView) -> None:
    """Raise `ValueError` if a process is running the task."""
    if view.owner is None or view.lease_until is None:
        return
    if view.lease_until > datetime.now(timezone.utc) and not view.abandoned:
        raise ValueError(_describe_run(view.id, view.owner))


def _describe_run(name: str, owner: str) -> str:
    return f"task {name!r} is being run by {format_owner(owner)}"


@command("holdfast questions agents.db")
def questions(url: Url, tenant: Tenant = "default", as_json: Json = False) -> None:
    """List open questions.

    Prints one line per question of a suspended task: task, name, question and payload.
    """
    with open_store(url, tenant) as store:
        for info in store.tasks(status="suspended"):
            view = store.get_task(info.id)
            for question in view.questions if view is not None else ():
                if question.status == "open":
                    facts = {"task": info.id, **msgspec.structs.asdict(question)}
                    click.echo(to_json(facts) if as_json else _question_line(info.id, question))


@command("holdfast answer agents.db claim-42 payout true --by ann")
def answer(
    url: Url,
    task_id: TaskId,
    name: Annotated[
        str, Argument(metavar="NAME", help="The question's name.", complete=complete_questions)
    ],
    answer: Annotated[str, Argument(metavar="JSON", help="The answer; text needs quotes.")],
    by: By = None,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Answer a question.

    A worker then resumes the task. The first answer counts.
    """
    value = parse_json(answer, "answer", "'\"text\"'")
    with open_store(url, tenant) as store:
        view = store.get_task(task_id)
        asked = view.questions if view is not None else ()
        found = next((question for question in asked if question.name == name), None)
        if found is not None and not as_json:
            click.echo(f"question: {printable(found.text)}\nabout: {to_json(found.payload)}")
        try:
            store.answer(
                task_id,
                name,
                value,
                by=choose_actor(by),
                question=None if found is None else found.id,
            )
        except TypeError as error:
            fail(str(error))
        text = f"answered {printable(name)} of {printable(task_id)}: {to_json(value)}"
        echo_change(store, task_id, text, as_json)


@command("holdfast signal agents.db claim-42 paid --payload '{\"sum\": 41}'")
def signal(
    url: Url,
    task_id: TaskId,
    name: Annotated[str, Argument(metavar="NAME", help="The signal's name.")],
    payload: Annotated[str | None, Option(help="The signal's payload, as JSON.")] = None,
    id: Annotated[
        str | None, Option(help="An id of your own. A second signal with the same id is ignored.")
    ] = None,
    by: By = None,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Send a signal to a task.

    The task receives it now, or when it starts waiting for it.
    """
    value = None if payload is None else parse_json(payload, "payload", "--payload '\"text\"'")
    with open_store(url, tenant) as store:
        is_new = store.signal(task_id, name, value, id=id, by=choose_actor(by))
        what = "sent" if is_new else "ignored a duplicate of"
        text = f"{what} signal {printable(name)} to {printable(task_id)}"
        echo_change(store, task_id, text, as_json)


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
            raise click.UsageError(
                "a budget must have tokens=…, cost=… or calls=…, each at most once:"
                " --budget tokens=100000,cost=2.5"
            )
        try:
            amounts[name] = float(number) if name == "cost" else int(number)
        except ValueError:
            raise click.UsageError(
                f"{name} must be a number, got {number!r}: --budget {name}=40"
            ) from None
    try:
        return Budget(**amounts)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _check_budget(view: TaskView | None, budget: Budget | None) -> None:
    """Fail if the budget was not replaced: a running task keeps the budget it started with."""
    if view is not None and budget is not None and view.budget != budget:
        fail(
            f"the budget of task {view.id!r} is unchanged: the task is running, or its process was"
            " killed; try again when it is pending or failed"
        )
