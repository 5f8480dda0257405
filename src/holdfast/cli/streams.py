"""The commands about streams and conversations: list them and print their contents."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import Erased
from .stores import Json, Tenant, Url, fail, open_store, split_url
from .text import event_json, event_line, message_line, printable, to_json


def streams(url: Url = None, tenant: Tenant = "default", as_json: Json = False) -> None:
    """List streams.

    Prints one line per stream: newest version and id.
    """
    with open_store(url, tenant) as store:
        for info in store.streams():
            facts = {"id": info.id, "version": info.version}
            typer.echo(to_json(facts) if as_json else f"{info.version:>9}  {printable(info.id)}")


def read(
    url: Url = None,
    stream: Annotated[
        str | None, typer.Argument(metavar="STREAM", help="The stream's id.", show_default=False)
    ] = None,
    after: Annotated[int, typer.Option(min=0, help="Only events after this version.")] = 0,
    last: Annotated[
        int | None, typer.Option(min=1, help="Only the newest N events.", show_default=False)
    ] = None,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Print a stream's events.

    Prints one line per event, oldest first.
    """
    url, stream = split_url(url, stream, "name the stream: holdfast read agents.db orders-7")
    if after and last is not None:
        raise typer.BadParameter("use --after or --last, not both")
    with open_store(url, tenant) as store:
        events = store.stream(stream)
        if not events.version():
            fail(f"tenant {tenant!r} has no stream {stream!r} in this store; check the names")
        for event in events.read(after=after) if last is None else events.last(last):
            typer.echo(event_json(event) if as_json else event_line(event))


def conversations(url: Url = None, tenant: Tenant = "default", as_json: Json = False) -> None:
    """List conversations.

    Prints one line per conversation: number of messages and id.
    """
    with open_store(url, tenant) as store:
        for info in store.conversations():
            facts: dict[str, object] = {"id": info.id}
            try:
                facts["messages"] = store.conversation(info.id).count()
            except Erased:  # an erased conversation must not end the listing
                facts |= {"messages": None, "erased": True}
            count = "erased" if "erased" in facts else facts["messages"]
            typer.echo(to_json(facts) if as_json else f"{count:>9}  {printable(info.id)}")


def messages(
    url: Url = None,
    conversation: Annotated[
        str | None,
        typer.Argument(metavar="CONVERSATION", help="The conversation's id.", show_default=False),
    ] = None,
    last: Annotated[
        int | None, typer.Option(min=1, help="Only the newest N messages.", show_default=False)
    ] = None,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Print a conversation's messages.

    Prints one line per message, oldest first; with --json exactly as they are stored.
    """
    url, conversation = split_url(
        url, conversation, "name the conversation: holdfast messages agents.db support-42"
    )
    with open_store(url, tenant) as store:
        chat = store.conversation(conversation)
        if not chat.version():
            fail(
                f"tenant {tenant!r} has no conversation {conversation!r} in this store;"
                " check the names"
            )
        for entry in chat.entries(last=last):
            typer.echo(to_json(entry.message) if as_json else message_line(entry))
