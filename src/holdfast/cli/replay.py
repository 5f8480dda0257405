"""`holdfast replay`: a program against what one of its tasks has recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

import holdfast

from .. import Store
from ..tasks.agents.declare import find
from .stores import Json, Tenant, failed, opened
from .text import printable, to_json
from .worker import _load

if TYPE_CHECKING:
    from ..types import ReplayResult


def replay(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="[URL] TASK APP",
            help="The task's id, and the program: app.py, or a module, shop.agents.",
        ),
    ],
    agent: Annotated[
        str | None,
        typer.Option(help="The agent to run. [default: the task's own]", show_default=False),
    ] = None,
    version: Annotated[
        int | None, typer.Option(min=1, help="Only up to this version.", show_default=False)
    ] = None,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Run a program against what a task has recorded, calling and writing nothing; exit code 1 if it departs from that."""
    if len(names) not in (2, 3):
        raise typer.BadParameter(
            "name the store, the task and the program: holdfast replay agents.db claims-42 app.py"
        )
    url, task_id, app = [None, *names][-3:]
    _load(str(app))
    with opened(url, tenant) as store:
        found = _replay(store, str(task_id), agent, version)
    if as_json:
        typer.echo(to_json(_facts(found)))
    else:
        typer.echo("\n".join(map(printable, str(found).split("\n"))))
    if not found.ok:
        raise typer.Exit(1)


def _replay(store: Store, task_id: str, agent: str | None, version: int | None) -> ReplayResult:
    view = store.get_task(task_id)
    if view is None:
        raise failed(
            f"tenant {store.tenant!r} has no task {task_id!r} in this store, or it has expired; check the names"
        )
    name = agent or view.agent
    if name is None:
        raise failed(f"task {task_id!r} does not say whose it is; name the agent: --agent claims")
    if not find(name).is_async:
        return holdfast.replay(name, task_id, store=store, version=version)
    import asyncio

    return asyncio.run(holdfast.replay(name, task_id, store=store.aio, version=version))


def _facts(found: ReplayResult) -> dict[str, object]:
    departs = found.divergence
    return {
        "task": found.task,
        "version": found.version,
        "ok": found.ok,
        "ended": found.ended,
        "divergence": None
        if departs is None
        else {
            "step": departs.step,
            "what": departs.what,
            "recorded": departs.recorded,
            "asked": departs.asked,
        },
        "steps": found.steps,
        "orphaned": found.orphaned,
        "drift": [{"step": entry.step, "what": entry.what} for entry in found.drift],
        "error": None if found.error is None else type(found.error).__name__,
    }
