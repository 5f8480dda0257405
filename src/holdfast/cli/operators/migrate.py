"""`holdfast migrate`: import what another library has stored."""

from __future__ import annotations

from typing import Annotated

import click
import msgspec

from ...backends.urls import redact_url
from ..parser.declare import Argument, command
from ..stores import Json, Tenant, Url, fail, open_store
from ..text import printable, to_json

Source = Annotated[
    str,
    Argument(
        metavar="SRC",
        help="An SQLite file of a SqliteSaver, or the postgresql:// URL of a PostgresSaver.",
    ),
]


@command("holdfast migrate agents.db checkpoints.sqlite")
def migrate(url: Url, source: Source, tenant: Tenant = "default", as_json: Json = False) -> None:
    """Import the threads of LangGraph's own checkpointers.

    SRC is only read. If it is interrupted, run it again to continue.
    """
    try:
        from ...integrations.langgraph import import_checkpoints
    except ImportError as error:
        fail(str(error))
    if not as_json:
        click.echo(f"from {printable(redact_url(source))}")
    with open_store(url, tenant, create=True, quiet=as_json) as store:
        result = import_checkpoints(source, store)
    click.echo(to_json(msgspec.to_builtins(result)) if as_json else str(result))
    for text in result.unreadable:
        click.echo(f"left out: {printable(text)}", err=True)
    if result.unreadable:
        raise click.exceptions.Exit(1)
