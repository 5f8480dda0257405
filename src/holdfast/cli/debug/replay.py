"""`holdfast replay`: re-run code against a recorded task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import click

import holdfast

from ... import Store
from ...tasks.agents.declare import find_agent
from ..parser.declare import Option, command
from ..stores import Json, Tenant, Url, fail, open_store
from ..tasks import TaskId, fail_no_task
from ..text import printable_lines, to_json
from ..worker import App, load_app

if TYPE_CHECKING:
    from ...types import ReplayResult


@command(
    "holdfast replay agents.db app.py claim-42",
    "holdfast backup agents.db copy.db && holdfast replay copy.db app.py claim-42",
)
def replay(
    url: Url,
    app: App,
    task_id: TaskId,
    agent: Annotated[str | None, Option(help="The agent to run. [default: the task's own]")] = None,
    version: Annotated[
        int | None, Option(min=1, help="Use the recording up to this version.")
    ] = None,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Re-run code against a recorded task (no side effects).

    Calls no step and writes nothing. Exits with 1 if the code diverges from the recording.
    """
    if task_id.endswith(".py") and not app.endswith(".py"):
        app, task_id = task_id, app  # the order of earlier versions
    load_app(app)
    with open_store(url, tenant) as store:
        found = _replay(store, task_id, agent, version)
    if as_json:
        click.echo(to_json(_facts(found)))
    else:
        click.echo(printable_lines(str(found)))
    if not found.ok:
        raise click.exceptions.Exit(1)


def _replay(store: Store, task_id: str, agent: str | None, version: int | None) -> ReplayResult:
    view = store.get_task(task_id)
    if view is None:
        fail_no_task(store.tenant, task_id)
    name = agent or view.agent
    if name is None:
        fail(f"task {task_id!r} has no agent; name the one to run: --agent claims")
    if not find_agent(name).is_async:
        return holdfast.replay(name, task_id, store=store, version=version)
    import asyncio

    return asyncio.run(holdfast.replay(name, task_id, store=store.aio, version=version))


def _facts(found: ReplayResult) -> dict[str, object]:
    divergence = found.divergence
    return {
        "task": found.task,
        "version": found.version,
        "ok": found.ok,
        "ended": found.ended,
        "divergence": None
        if divergence is None
        else {
            "step": divergence.step,
            "what": divergence.what,
            "recorded": divergence.recorded,
            "asked": divergence.asked,
        },
        "steps": found.steps,
        "orphaned": found.orphaned,
        "drift": [{"step": entry.step, "what": entry.what} for entry in found.drift],
        "error": None if found.error is None else type(found.error).__name__,
    }
