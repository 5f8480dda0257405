"""The commands. Each uses the public library and nothing below it; what goes wrong is one line and an exit code."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer

import holdfast
from holdfast import HoldfastError, Store, StreamInfo

from ._text import event_json, event_line, message_line, printable, to_json

app = typer.Typer(
    name="holdfast",
    help="Look at a Holdfast store from a shell, and see it survive.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_URL = "The store: a path, sqlite:///agents.db or file:///directory. Or set HOLDFAST_URL."
Url = Annotated[str | None, typer.Argument(metavar="URL", help=_URL, show_default=False)]
Tenant = Annotated[str, typer.Option(envvar="HOLDFAST_TENANT", help="Whose streams to look at.")]
Json = Annotated[bool, typer.Option("--json", help="JSON instead of text for people.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {holdfast.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Options of the command as a whole."""


@app.command()
def health(url: Url = None, tenant: Tenant = "default", as_json: Json = False) -> None:
    """Where the state is, on what engine, how durable and how large."""
    with _opened(_url(url), tenant) as store:
        report = store.health()
    if as_json:
        import msgspec

        typer.echo(printable(msgspec.json.encode(report).decode()))
        return
    from ._health import print_health

    print_health(report)


@app.command()
def streams(url: Url = None, tenant: Tenant = "default", as_json: Json = False) -> None:
    """List the streams, one per line: newest version and id."""
    with _opened(_url(url), tenant) as store:
        for info in store.streams():
            typer.echo(json.dumps({"id": info.id, "version": info.version}) if as_json else _row(info))


@app.command()
def read(
    url: Url = None,
    stream: Annotated[str | None, typer.Argument(metavar="STREAM", help="The stream's id.", show_default=False)] = None,
    after: Annotated[int, typer.Option(min=0, help="Only events after this version.")] = 0,
    last: Annotated[int | None, typer.Option(min=1, help="Only the newest N events.", show_default=False)] = None,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Print the events of a stream, oldest first, one per line."""
    if stream is None:  # `holdfast read orders-7`, the store being named by the environment
        url, stream = None, url
    if stream is None:
        raise typer.BadParameter("name the stream to read: holdfast read agents.db orders-7")
    if after and last is not None:
        raise typer.BadParameter("use --after or --last, not both")
    line = event_json if as_json else event_line
    with _opened(_url(url), tenant) as store:
        events = store.stream(stream)
        if not events.version():
            raise _failed(f"tenant {tenant!r} has no stream {stream!r} in this store; check the names")
        for event in events.read(after=after) if last is None else events.last(last):
            typer.echo(line(event))


@app.command()
def conversations(url: Url = None, tenant: Tenant = "default", as_json: Json = False) -> None:
    """List the conversations, one per line: number of messages and id."""
    with _opened(_url(url), tenant) as store:
        for chat in store.conversations():
            count = chat.count()
            typer.echo(to_json({"id": chat.id, "messages": count}) if as_json else f"{count:>9}  {printable(chat.id)}")


@app.command()
def messages(
    url: Url = None,
    conversation: Annotated[
        str | None, typer.Argument(metavar="CONVERSATION", help="The conversation's id.", show_default=False)
    ] = None,
    last: Annotated[int | None, typer.Option(min=1, help="Only the newest N messages.", show_default=False)] = None,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Print the messages of a conversation, oldest first, one per line; with --json exactly as they are stored."""
    if conversation is None:  # the store being named by the environment
        url, conversation = None, url
    if conversation is None:
        raise typer.BadParameter("name the conversation: holdfast messages agents.db support-42")
    with _opened(_url(url), tenant) as store:
        chat = store.conversation(conversation)
        if not chat.version():
            raise _failed(f"tenant {tenant!r} has no conversation {conversation!r} in this store; check the names")
        for entry in chat.entries(last=last):
            typer.echo(to_json(entry.message) if as_json else message_line(entry))


@app.command()
def demo(
    kills: Annotated[int, typer.Option(min=1, help="How many writers to kill, for each backend.")] = 20,
    seed: Annotated[int | None, typer.Option(help="Repeat the choices of an earlier run.", show_default=False)] = None,
) -> None:
    """Kill writers with -9 in a loop and count what is lost: nothing."""
    from .demo import run

    raise typer.Exit(run(kills=kills, seed=seed))


def _row(info: StreamInfo) -> str:
    return f"{info.version:>9}  {printable(info.id)}"


def _url(given: str | None) -> str:
    url = given or os.environ.get("HOLDFAST_URL")
    if not url:
        raise typer.BadParameter("name a store, like agents.db, or set HOLDFAST_URL")
    return url


@contextmanager
def _opened(url: str, tenant: str) -> Iterator[Store]:
    """The open store; an error of the library, in here, is one line on stderr and exit code 1."""
    try:
        _refuse_to_create(url)
        with holdfast.open(url, tenant=tenant) as store:
            yield store
    except (HoldfastError, ValueError) as error:
        raise _failed(str(error)) from None


def _refuse_to_create(url: str) -> None:
    """Looking at a store must not make one: a mistyped path would look like an empty store."""
    parts = urlsplit(url)
    if parts.scheme == "memory":
        raise ValueError("a memory:// store lives inside its process and cannot be seen from here; name a file")
    path = url
    if parts.scheme in ("sqlite", "file") and not parts.netloc:
        path = unquote(parts.path[1:] if parts.scheme == "sqlite" else parts.path)
    elif "://" in url:
        return  # open() says what a URL is
    marker = os.path.join(path, "holdfast.json") if parts.scheme == "file" else path
    if path and (not os.path.exists(marker) or os.path.getsize(marker) == 0):
        raise ValueError(f"there is no store at {path}; check the path")


def _failed(message: str) -> typer.Exit:
    typer.echo(f"holdfast: {printable(' '.join(message.split()))}", err=True)
    return typer.Exit(1)
