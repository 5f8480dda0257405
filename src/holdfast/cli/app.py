"""The commands. Each uses the public library and nothing below it; what goes wrong is one line and an exit code."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import holdfast

from .. import StreamInfo
from ..errors import Erased
from . import audit, convert, copy, crashtest, keys, memory, questions, replay, verify, worker
from . import tasks as _tasks
from .durations import duration
from .stores import Json, Tenant, Url, failed, named, opened, use_keys, use_redaction
from .text import event_json, event_line, message_line, printable, to_json


class _Commands(TyperGroup):
    """The commands, of which each may be given options that belong before it."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:  # typer has a click of its own, or not, by its version: there is no type to name
            name = getattr(error, "option_name", None)
            if type(error).__name__ != "NoSuchOption" or name not in ("--key", "--redact"):
                raise
            value = " KEY" if name == "--key" else ""
            raise typer.BadParameter(
                f"{name} comes before the command: holdfast {name}{value} {ctx.invoked_subcommand} …"
            ) from None


app = typer.Typer(
    name="holdfast",
    cls=_Commands,
    help="Look at a Holdfast store from a shell, and see it survive.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {holdfast.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and leave."
        ),
    ] = False,
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help=f"The key of an encrypted store: {keys.KEYS}. May be given again. Or set HOLDFAST_KEY.",
            show_default=False,
        ),
    ] = None,
    redact: Annotated[
        bool,
        typer.Option(
            "--redact",
            envvar="HOLDFAST_REDACT",
            help="Take keys, tokens, card numbers, IBANs, e-mail addresses and passwords out of what is stored.",
        ),
    ] = False,
) -> None:
    """Options of the command as a whole."""
    use_keys(key or [])
    use_redaction(redact)


@app.command()
def health(url: Url = None, tenant: Tenant = "default", as_json: Json = False) -> None:
    """Where the state is, on what engine, how durable and how large, and how many tasks there are of each status."""
    with opened(url, tenant) as store:
        report, tasks = store.health(), _tasks.count_tasks(store)
    if as_json:
        import msgspec

        typer.echo(
            printable(msgspec.json.encode({**msgspec.to_builtins(report), "tasks": tasks}).decode())
        )
        return
    from .health import print_health

    print_health(report, tasks)


@app.command()
def streams(url: Url = None, tenant: Tenant = "default", as_json: Json = False) -> None:
    """List the streams, one per line: newest version and id."""
    with opened(url, tenant) as store:
        for info in store.streams():
            typer.echo(
                json.dumps({"id": info.id, "version": info.version}) if as_json else _row(info)
            )


@app.command()
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
    """Print the events of a stream, oldest first, one per line."""
    url, stream = named(url, stream, "name the stream to read: holdfast read agents.db orders-7")
    if after and last is not None:
        raise typer.BadParameter("use --after or --last, not both")
    line = event_json if as_json else event_line
    with opened(url, tenant) as store:
        events = store.stream(stream)
        if not events.version():
            raise failed(
                f"tenant {tenant!r} has no stream {stream!r} in this store; check the names"
            )
        for event in events.read(after=after) if last is None else events.last(last):
            typer.echo(line(event))


@app.command()
def conversations(url: Url = None, tenant: Tenant = "default", as_json: Json = False) -> None:
    """List the conversations, one per line: number of messages and id."""
    with opened(url, tenant) as store:
        for info in store.conversations():
            facts: dict[str, object] = {"id": info.id}
            try:
                facts["messages"] = store.conversation(info.id).count()
            except Erased:  # one that is gone must not hide the others
                facts |= {"messages": None, "erased": True}
            count = "erased" if "erased" in facts else facts["messages"]
            typer.echo(to_json(facts) if as_json else f"{count:>9}  {printable(info.id)}")


@app.command()
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
    """Print the messages of a conversation, oldest first, one per line; with --json exactly as they are stored."""
    url, conversation = named(
        url, conversation, "name the conversation: holdfast messages agents.db support-42"
    )
    with opened(url, tenant) as store:
        chat = store.conversation(conversation)
        if not chat.version():
            raise failed(
                f"tenant {tenant!r} has no conversation {conversation!r} in this store; check the names"
            )
        for entry in chat.entries(last=last):
            typer.echo(to_json(entry.message) if as_json else message_line(entry))


app.command()(_tasks.tasks)
app.command()(_tasks.task)
app.command()(_tasks.artifact)
app.command()(_tasks.resolve)
app.command()(_tasks.cancel)
app.command()(questions.submit)
app.command()(questions.retry)
app.command()(questions.questions)
app.command()(questions.answer)
app.command()(questions.signal)
app.command()(memory.memories)
app.command()(memory.recall)
app.command()(memory.remember)
app.command()(memory.forget)
app.command()(memory.reindex)
app.command()(worker.worker)
app.command()(replay.replay)
app.command()(crashtest.crashtest)
app.command()(verify.verify)
app.command()(verify.anchor)
app.command()(audit.audit)
app.command()(keys.key)
app.command()(keys.rekey)
app.command()(keys.erase)
app.command()(convert.encrypt)
app.command()(convert.decrypt)
app.command()(copy.copy)
app.command()(copy.backup)
app.command()(copy.schema)


@app.command()
def sweep(
    url: Url = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be deleted, and delete nothing.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Delete more than half of the store, if that is due.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many streams.")] = 1000,
    grace: Annotated[float, duration("How long to keep what has expired.", default="1d")] = 86400.0,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Delete what has expired: finished tasks, and conversations with a time to live."""
    from .sweep import print_sweep

    with opened(url, tenant) as store:
        print_sweep(store, dry_run=dry_run, force=force, limit=limit, grace=grace, as_json=as_json)


@app.command()
def demo(
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="The store to use. [default: a temporary file]", show_default=False
        ),
    ] = None,
    kills: Annotated[int, typer.Option(min=1, max=25, help="How often to kill the agent.")] = 5,
    seed: Annotated[
        int | None, typer.Option(help="Repeat the choices of an earlier run.", show_default=False)
    ] = None,
) -> None:
    """Kill an agent with -9 in the middle of its work, and see that nothing is done twice."""
    from .demo import run

    try:
        code = run(url=url, kills=kills, seed=seed)
    except (holdfast.HoldfastError, ValueError) as error:
        raise failed(str(error)) from None
    raise typer.Exit(code)


def _row(info: StreamInfo) -> str:
    return f"{info.version:>9}  {printable(info.id)}"
