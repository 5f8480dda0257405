"""The commands about tasks: list, show, download artifacts, resolve unknown outcomes, cancel."""

from __future__ import annotations

import json
import sys
from datetime import datetime, timezone
from typing import Annotated, Any, NoReturn

import click
import msgspec

from .. import Failure, Question, Store, TaskInfo, TaskView
from ..errors import format_owner
from ..types import Cancellation
from .live.activity import activity_facts, activity_lines, describe_activity
from .live.watch import UNENDED, After, Follow, Interval, Watch, follow_events, watch_tasks
from .operators.actor import By, choose_actor
from .operators.doubts import doubt_lines
from .operators.next_command import StoreCommands, advise_next
from .operators.selection import (
    AgentOption,
    DryRun,
    ErrorOption,
    Selection,
    SinceOption,
    StatusOption,
    Yes,
    act_on_tasks,
    reject_both,
)
from .parser.completion import complete_artifacts, complete_steps, complete_tasks
from .parser.declare import Argument, Option, command
from .parser.durations import duration_option
from .stores import Json, Tenant, Url, fail, open_store
from .text import cut, event_json, event_line, format_size, printable, printable_lines, to_json

ENDED = ("finished", "cancelled")
_MAX_FAILED_STEPS = 5
TaskId = Annotated[str, Argument(metavar="TASK", help="The task's id.", complete=complete_tasks)]
OptionalTaskId = Annotated[
    str | None, Argument(metavar="TASK", help="The task's id.", complete=complete_tasks)
]


@command(
    "holdfast tasks agents.db --status failed --since 2h",
    "holdfast tasks agents.db --json | jq -r .id",
)
def tasks(
    url: Url,
    status: StatusOption = None,
    agent: AgentOption = None,
    since: SinceOption = None,
    error: ErrorOption = None,
    watch: Watch = False,
    interval: Interval = 2.0,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """List tasks.

    Prints one line per task: status, agent, id and goal. `?` marks a task with a step in doubt,
    `!` one whose process was killed, `*` one that takes longer than expected. If a process was
    killed during a step, `?` appears after the next run; `holdfast task` shows it at once.
    """
    chosen = Selection(status, agent, since, error)
    with open_store(url, tenant) as store:
        if watch:
            _watch(store, chosen, interval, as_json)
        for info in chosen.iterate(store):
            click.echo(show_task(info, as_json))


@command("holdfast watch agents.db", "holdfast watch agents.db --agent claims --interval 10s")
def watch(
    url: Url,
    status: StatusOption = None,
    agent: AgentOption = None,
    since: SinceOption = None,
    error: ErrorOption = None,
    interval: Annotated[
        float, duration_option("How often to poll.", least=0.1, default="2s")
    ] = 2.0,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Watch tasks: the current step of each, and its progress.

    Shows the tasks that have not ended, until Ctrl-C: on a terminal a live table, elsewhere a line
    for each change. It is the same as `holdfast tasks --watch`.
    """
    with open_store(url, tenant) as store:
        _watch(store, Selection(status, agent, since, error), interval, as_json)


def _watch(store: Store, chosen: Selection, every: float, as_json: bool) -> None:
    watch_tasks(
        store,
        lambda: chosen.iterate(store, UNENDED),
        lambda info: show_task(info, as_json),
        every,
        as_json=as_json,
    )


@command(
    "holdfast task agents.db claim-42",
    "holdfast task agents.db claim-42 --history",
    "holdfast task agents.db claim-42 --follow",
)
def task(
    url: Url,
    task_id: TaskId,
    history: Annotated[bool, Option("--history", help="Print every event, oldest first.")] = False,
    context: Annotated[
        bool, Option("--context", help="Print the resume context for the model.")
    ] = False,
    follow: Follow = False,
    after: After = 0,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Show one task: status, steps, next action."""
    name = task_id
    with open_store(url, tenant) as store:
        view = require_task(store, name)
        if follow:
            follow_events(store, name, after, as_json=as_json)
        elif history:
            for event in store.task(name).history():
                click.echo(event_json(event) if as_json else event_line(event))
        elif context:
            # The view's own resume context would lack memories.
            text = store.task(name).resume_context()
            click.echo(to_json(text.to_dict()) if as_json else printable_lines(str(text)))
        elif as_json:
            click.echo(to_json(_view_facts(view)))
        else:
            click.echo(printable_lines(_view_text(view, StoreCommands(url, tenant))))


@command(
    "holdfast resolve agents.db claim-42 pay --result '\"sent\"'",
    "holdfast resolve agents.db claim-42 pay --retry",
)
def resolve(
    url: Url,
    task_id: TaskId,
    step: Annotated[
        str, Argument(metavar="STEP", help="The step's path or name.", complete=complete_steps)
    ],
    result: Annotated[
        str | None, Option(help="The step was done: record this result, given as JSON.")
    ] = None,
    retry: Annotated[bool, Option("--retry", help="The step was not done: run it again.")] = False,
    by: By = None,
    override: Annotated[
        bool,
        Option(
            "--override",
            help="Replace an earlier resolution, unless the task has already continued with it.",
        ),
    ] = False,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Resolve a step whose outcome is unknown.

    Before you resolve it, check with the external service whether the step was done. Only the first
    resolution counts, unless you pass --override.
    """
    if (result is None) != retry:
        raise click.UsageError("use --result JSON (it was done) or --retry (it was not)")
    options: dict[str, Any] = {"retry": True}
    if result is not None:
        options = {"result": parse_json(result, "result", "--result '\"done\"'")}
    with open_store(url, tenant) as store:
        try:
            store.resolve(task_id, step, by=choose_actor(by), override=override, **options)
        except TypeError as error:
            fail(str(error))
        echo_change(store, task_id, f"resolved {printable(step)} of {printable(task_id)}", as_json)


@command(
    "holdfast cancel agents.db claim-42 --reason 'sent by mistake'",
    "holdfast cancel agents.db --agent claims --status stuck --dry-run",
)
def cancel(
    url: Url,
    task_id: OptionalTaskId = None,
    status: StatusOption = None,
    agent: AgentOption = None,
    since: SinceOption = None,
    error: ErrorOption = None,
    reason: Annotated[str | None, Option(help="The reason to record.")] = None,
    by: By = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Cancel a task, or several.

    A worker that is running the task stops at its next write.
    """
    chosen = Selection(status, agent, since, error)
    actor = choose_actor(by)
    if not chosen:
        name = require_name(task_id, "holdfast cancel agents.db claim-42")
        with open_store(url, tenant) as store:
            view = require_task(store, name)
            if view.status == "finished":  # to cancel a task again is no error
                fail(f"task {name!r} is finished; there is nothing to cancel")
            if dry_run:
                click.echo(show_task(view, as_json))
                return
            store.task(name).cancel(reason, by=actor)
            echo_change(store, name, f"cancelled {printable(name)}", as_json)
        return
    reject_both(task_id, "holdfast cancel agents.db --status stuck --dry-run")
    with open_store(url, tenant) as store:
        act_on_tasks(
            store,
            [info for info in chosen.iterate(store, UNENDED) if info.status not in ENDED],
            "cancel",
            "cancelled {}",
            lambda info: store.task(info.id).cancel(reason, by=actor),
            show_task,
            dry_run=dry_run,
            yes=yes,
            as_json=as_json,
        )


@command(
    "holdfast artifact agents.db claim-42 report.pdf --output report.pdf",
    "holdfast artifact agents.db claim-42 claims.csv | wc -l",
)
def artifact(
    url: Url,
    task_id: TaskId,
    name: Annotated[
        str, Argument(metavar="NAME", help="The file's name.", complete=complete_artifacts)
    ],
    output: Annotated[str | None, Option(metavar="FILE", help="The file to write.")] = None,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Download a task's file.

    Writes to standard output, or to --output FILE. With --json it describes the file instead, and
    writes it only with --output.
    """
    stdout = sys.stdout.buffer
    if output is None and not as_json and stdout.isatty():
        raise click.UsageError(
            "the file may contain control characters and standard output is a terminal:"
            " use --output FILE or a pipe"
        )
    with open_store(url, tenant) as store:
        found = store.artifact(task_id, name)
        try:
            if output is not None:
                found.save(output)
            elif not as_json:
                stdout.writelines(found.chunks())
                stdout.flush()
        except OSError as error:
            fail(f"could not write the file: {error.strerror or error}")
    if as_json:
        facts = {"task": task_id, "name": found.name, "size": found.size, "digest": found.digest}
        click.echo(to_json({**facts, "at": found.at, "path": output}))


def require_name(task_id: str | None, example: str) -> str:
    """Return the name of the task; a usage error if it is missing."""
    if task_id is None:
        raise click.UsageError(f"missing TASK, as in: {example}")
    return task_id


def require_task(store: Store, name: str) -> TaskView:
    """Return a task. Exit if the store has no such task."""
    view = store.get_task(name)
    if view is None:
        fail_no_task(store.tenant, name)
    return view


def echo_change(store: Store, name: str, text: str, as_json: bool) -> None:
    """Print that a task was changed: as text, or with --json as the task is now."""
    click.echo(show_task(require_task(store, name), True) if as_json else text)


def fail_no_task(tenant: str, name: str) -> NoReturn:
    """Exit because the store has no such task."""
    fail(
        f"tenant {tenant!r} has no task {name!r} in this store, or it has expired; check the names"
    )


def parse_json(text: str, what: str, quoted: str) -> Any:
    """Decode the JSON of an option. `quoted` is an example of text in JSON."""
    try:
        return json.loads(text)
    except ValueError:
        raise click.UsageError(f"the {what} is not JSON; text needs quotes: {quoted}") from None


def _task_facts(task: TaskInfo | TaskView) -> dict[str, object]:
    """Return what both `tasks --json` and `task --json` show."""
    return {
        "id": task.id,
        "status": task.status,
        "in_doubt": bool(task.in_doubt),
        "goal": task.goal,
        "agent": task.agent,
        "owner": task.owner,
        "abandoned": task.abandoned,
        "due_at": task.due_at,
        "lease_until": task.lease_until,
        "expires_at": task.expires_at,
        "crashes": task.crashes,
    } | activity_facts(task)


def show_task(info: TaskInfo | TaskView, as_json: bool) -> str:
    """Return the line of a task in a listing."""
    if as_json:
        return to_json(_task_facts(info))
    mark = "?" if info.in_doubt else "!" if info.abandoned else "*" if info.overdue else " "
    agent, goal = printable(info.agent or "-"), cut(printable(info.goal or ""), 80)
    doing = printable(describe_activity(info))
    line = f"{info.status:<10}{mark} {agent:<12}  {printable(info.id)}  {goal}".rstrip()
    return f"{line}  ({doing})" if doing else line


def _view_text(view: TaskView, commands: StoreCommands) -> str:
    lines = [f"goal: {view.goal or '(none)'}"]
    if view.agent is not None:
        lines.append(f"agent: {view.agent}")
    lines.append(f"run {view.runs}, last event {view.updated_at:%Y-%m-%d %H:%M:%S} UTC")
    if view.owner is not None:
        dead = " (dead: the next process that opens the task takes it over)"
        owner = format_owner(view.owner) + (dead if view.abandoned else "")
        lines.append(f"leased by {owner}, until {view.lease_until:%H:%M:%S} UTC")
    lines += activity_lines(view)
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
    if view.cancellation is not None:
        lines.append(_cancellation_line(view.cancellation))
    lines += _failure_lines(view)
    lines += doubt_lines(view)
    if view.status == "finished":
        lines.append(f"result: {cut(to_json(view.result))}")
    lines += [
        f"artifact: {file.name} ({format_size(file.size)}, {file.at:%Y-%m-%d %H:%M:%S} UTC)"
        for file in view.artifacts
    ]
    title, *steps = [
        line for line in str(view.preview()).split("\n") if "store.resolve(" not in line
    ]
    # A line break in a stored text must not look like a line of ours, such as the next command.
    advice = map(printable, advise_next(view, commands))
    return "\n".join([title, *map(printable, lines), "steps:", *steps, *advice])


def _failure_lines(view: TaskView) -> list[str]:
    """Return why the task failed, and why steps that it does not mention did."""
    lines: list[str] = []
    shown: set[str] = set()
    failure = view.error
    if failure is not None:
        lines += _describe_failure("error", failure, failure.step)
    while failure is not None:
        shown.add(failure.step or "")
        failure = failure.cause
    others = [
        step
        for step in view.steps
        if step.error is not None and step.status != "completed" and step.path not in shown
    ]
    for step in others[-_MAX_FAILED_STEPS:]:
        if step.error is not None:
            lines += _describe_failure("failed", step.error, step.path)
    return lines


def _describe_failure(label: str, failure: Failure, step: str | None) -> list[str]:
    root = failure.root
    line = f"{label}: {root.type}" + (f": {root.message}" if root.message else "")
    where = [] if step is None else [f"step {step}"]
    if root.attempt > 1 or (step is not None and root.attempt):
        where.append(f"attempt {root.attempt}")
    lines = [line, *([f"  in {', '.join(where)}"] if where else [])]
    has_more = failure.frames or root.frames or root.cause or root.group
    return (
        [*lines, *(f"  {line}".rstrip() for line in str(failure).split("\n"))]
        if has_more
        else lines
    )


def _cancellation_line(cancelled: Cancellation) -> str:
    by = "" if cancelled.by is None else f" by {cancelled.by}"
    reason = "" if cancelled.reason is None else f": {cut(cancelled.reason)}"
    return f"cancelled at {cancelled.at:%Y-%m-%d %H:%M:%S} UTC{by}{reason}"


def _question_line(question: Question) -> str:
    status: str = question.status
    if status == "answered":
        status = f"{to_json(question.answer)}, by {question.by or 'unknown'}"
    payload = "" if question.payload is None else f" {cut(to_json(question.payload))}"
    return f"question {question.name}: {cut(question.text)}{payload} ({cut(status)})"


def _amounts(tokens: int | None, cost: float | None, calls: int | None) -> str:
    """Format the amounts of a usage or a budget."""
    counts = [
        f"{count:,} {unit}" for count, unit in ((calls, "calls"), (tokens, "tokens")) if count
    ]
    return ", ".join([*counts, *([f"a cost of {cost:g}"] if cost else [])])


def _view_facts(view: TaskView) -> dict[str, object]:
    """Return what `task --json` shows. The progress of the plan is that of the checkpoint."""
    checkpoint = view.checkpoint()
    return _task_facts(view) | {
        "plan": checkpoint.plan,
        "completed": checkpoint.completed,
        "results": checkpoint.results,
        "decisions": checkpoint.decisions,
        "discoveries": checkpoint.discoveries,
        "created_at": view.created_at,
        "updated_at": view.updated_at,
        "runs": view.runs,
        "result": view.result,
        "error": view.error,
        "cancellation": view.cancellation,
        "steps": [{**msgspec.structs.asdict(step), "overdue": step.overdue} for step in view.steps],
        "timeout": view.timeout,
        "deadline": view.deadline,
        "usage": msgspec.structs.asdict(view.usage),
        "budget": None if view.budget is None else msgspec.structs.asdict(view.budget),
        "artifacts": view.artifacts,
        "waits_for": view.waits_for,
        "questions": view.questions,
        "parent": view.parent,
        "children": view.children,
    }
