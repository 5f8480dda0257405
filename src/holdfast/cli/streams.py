"""The commands about streams and conversations: list them and print their contents."""

from __future__ import annotations

from typing import Annotated, Final

import click

from ..errors import Erased
from .parser.completion import complete_conversations, complete_streams
from .parser.declare import Argument, Option, command
from .stores import Json, Tenant, Url, fail, open_store
from .text import event_json, event_line, message_line, printable, to_json

_KINDS: Final = (
    *("stream", "task", "conversation", "memory", "state", "subject", "notification", "blob"),
    "audit",
)


@command("holdfast streams agents.db", "holdfast streams agents.db --kind conversation --json")
def streams(
    url: Url,
    kind: Annotated[
        str, Option(help=f"The kind of streams to list: {', '.join(_KINDS)}.")
    ] = "stream",
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """List streams.

    Prints one line per stream: newest version and id. Lists the application's own streams
    (`store.stream`), or with --kind those of tasks, conversations, and so on.
    """
    with open_store(url, tenant) as store:
        found = False
        for info in store.streams(kind=kind):
            found = True
            facts = {"id": info.id, "version": info.version}
            click.echo(to_json(facts) if as_json else f"{info.version:>9}  {printable(info.id)}")
        if not found:
            others = [other for other in _KINDS if next(store.streams(kind=other), None)]
            hint = f"; use --kind: {', '.join(others)}" if others else ""
            click.echo(f"tenant {printable(tenant)} has no streams of kind {kind}{hint}", err=True)


@command(
    "holdfast read agents.db orders-7 --last 10",
    "holdfast read agents.db orders-7 --json | jq .data",
)
def read(
    url: Url,
    stream: Annotated[
        str, Argument(metavar="STREAM", help="The stream's id.", complete=complete_streams)
    ],
    after: Annotated[int, Option(min=0, help="Only events after this version.")] = 0,
    last: Annotated[int | None, Option(min=1, help="Only the newest N events.")] = None,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Print a stream's events.

    Prints one line per event, oldest first.
    """
    if after and last is not None:
        raise click.UsageError("use --after or --last, not both")
    with open_store(url, tenant) as store:
        events = store.stream(stream)
        if not events.version():
            fail(f"tenant {tenant!r} has no stream {stream!r} in this store; check the names")
        for event in events.read(after=after) if last is None else events.last(last):
            click.echo(event_json(event) if as_json else event_line(event))


@command("holdfast conversations agents.db")
def conversations(url: Url, tenant: Tenant = "default", as_json: Json = False) -> None:
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
            click.echo(to_json(facts) if as_json else f"{count:>9}  {printable(info.id)}")


@command(
    "holdfast messages agents.db support-42 --last 10",
    "holdfast messages agents.db support-42 --json > support-42.jsonl",
)
def messages(
    url: Url,
    conversation: Annotated[
        str,
        Argument(
            metavar="CONVERSATION", help="The conversation's id.", complete=complete_conversations
        ),
    ],
    last: Annotated[int | None, Option(min=1, help="Only the newest N messages.")] = None,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Print a conversation's messages.

    Prints one line per message, oldest first. With --json, messages are printed exactly as stored.
    """
    with open_store(url, tenant) as store:
        chat = store.conversation(conversation)
        if not chat.version():
            fail(
                f"tenant {tenant!r} has no conversation {conversation!r} in this store;"
                " check the names"
            )
        for entry in chat.entries(last=last):
            click.echo(to_json(entry.message) if as_json else message_line(entry))
