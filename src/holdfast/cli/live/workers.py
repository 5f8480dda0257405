"""`holdfast workers`: the registered workers of a store."""

from __future__ import annotations

import click

from ...types import WorkerInfo
from ..parser.declare import command
from ..stores import Json, Tenant, Url, open_store
from ..text import cut, printable, to_json
from .activity import format_age


@command("holdfast workers agents.db", "holdfast workers agents.db --json | jq .running")
def workers(url: Url, tenant: Tenant = "default", as_json: Json = False) -> None:
    """List workers: where they run, what they do, which are lost.

    Prints one line per worker, and one for each task that it runs.
    """
    with open_store(url, tenant) as store:
        for info in store.workers():
            if as_json:
                click.echo(to_json(_worker_facts(info)))
                continue
            click.echo(_worker_line(info))
            for run in info.running:
                name = f"{printable(run.agent)}  {cut(printable(run.id), 80)}"
                click.echo(f"{'':<10}{name}  for {format_age(run.started_at)}")


def _worker_line(info: WorkerInfo) -> str:
    parts = [
        f"{info.status:<10}{printable(info.host)}:{info.pid}",
        f"{len(info.running)} of {info.slots}",
        cut(printable(",".join(info.agents)), 80),
        f"code {printable(info.code_version)}" if info.code_version else "",
        f"up {format_age(info.started_at)}",
        f"seen {format_age(info.heartbeat_at)} ago",
    ]
    return "  ".join(filter(None, parts))


def _worker_facts(info: WorkerInfo) -> dict[str, object]:
    return {
        "id": info.id,
        "status": info.status,
        "host": info.host,
        "pid": info.pid,
        "agents": info.agents,
        "slots": info.slots,
        "running": [
            {"id": run.id, "agent": run.agent, "started_at": run.started_at.isoformat()}
            for run in info.running
        ],
        "started_at": info.started_at.isoformat(),
        "heartbeat_at": info.heartbeat_at.isoformat(),
        "version": info.version,
        "code_version": info.code_version,
    }
