"""`holdfast replay`: re-run code against a recorded task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

import holdfast

from .. import Store
from ..tasks.agents.declare import find_agent
from .stores import Json, Tenant, fail, open_store, split_names
from .tasks import fail_no_task
from .text import printable_lines, to_json
from .worker import load_app

if TYPE_CHECKING:
    from ..types import ReplayResult


def replay(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="[URL] TASK APP",
            help="The task's id, and the application: app.py, or a module, shop.agents.",
        ),
    ],
    agent: Annotated[
        str | None,
        typer.Option(help="The agent to run. [default: the task's own]", show_default=False),
    ] = None,
    version: Annotated[
        int | None,
        typer.Option(min=1, help="Use the recording up to this version.", show_default=False),
    ] = None,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Re-run code against a recorded task (no side effects).

    Calls no step and writes nothing. Exits with 1 if the code diverges from the recording.
    """
    url, task_id, app = split_names(names, 2, "holdfast replay agents.db claims-42 app.py")
    load_app(app)
    with open_store(url, tenant) as store:
        found = _replay(store, task_id, agent, version)
    if as_json:
        typer.echo(to_json(_facts(found)))
    else:
        typer.echo(printable_lines(str(found)))
    if not found.ok:
        raise typer.Exit(1)


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
