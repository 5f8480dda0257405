"""The typer application: the global options, and all commands in their help panels.

Commands use the public library and nothing below it. An error is one line and an exit code.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

import holdfast

from . import (
    audit,
    convert,
    copy,
    crashtest,
    demo,
    health,
    keys,
    memory,
    questions,
    replay,
    streams,
    sweep,
    tasks,
    verify,
    worker,
)
from .stores import set_store_options


class _Commands(TyperGroup):
    """The group of commands. It explains where --key and --redact belong if they come too late."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:  # some versions of typer vendor click: there is no type to name
            name = getattr(error, "option_name", None)
            if type(error).__name__ != "NoSuchOption" or name not in ("--key", "--redact"):
                raise
            value = " KEY" if name == "--key" else ""
            raise typer.BadParameter(
                f"{name} comes before the command:"
                f" holdfast {name}{value} {ctx.invoked_subcommand} …"
            ) from None


app = typer.Typer(
    name="holdfast",
    cls=_Commands,
    help="Inspect a Holdfast store, run its tasks, and maintain it.",
    epilog="Environment: HOLDFAST_URL, HOLDFAST_KEY, HOLDFAST_TENANT, HOLDFAST_REDACT.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {holdfast.__version__}")
        raise typer.Exit


@app.callback()
def _set_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help=f"The key of an encrypted store: {keys.KEY_FORMS}. Repeatable."
            " Or set HOLDFAST_KEY.",
            show_default=False,
        ),
    ] = None,
    redact: Annotated[
        bool,
        typer.Option(
            "--redact",
            envvar="HOLDFAST_REDACT",
            help="Remove keys, tokens, card numbers, IBANs, e-mail addresses and passwords from"
            " everything the command stores.",
        ),
    ] = False,
) -> None:
    set_store_options(key or [], redact)


_PANELS: Final = {
    "Start here": (demo.demo, health.health),
    "Tasks": (
        tasks.tasks,
        tasks.task,
        questions.submit,
        questions.retry,
        tasks.resolve,
        tasks.cancel,
        tasks.artifact,
    ),
    "Workers and human input": (
        worker.worker,
        questions.questions,
        questions.answer,
        questions.signal,
    ),
    "Conversations, memory, streams": (
        streams.conversations,
        streams.messages,
        memory.memories,
        memory.recall,
        memory.remember,
        memory.forget,
        memory.reindex,
        streams.streams,
        streams.read,
    ),
    "Debug and test": (replay.replay, crashtest.crashtest),
    "Integrity and audit": (verify.verify, verify.anchor, audit.audit),
    "Encryption and privacy": (keys.key, keys.rekey, convert.encrypt, convert.decrypt, keys.erase),
    "Storage": (copy.copy, copy.backup, sweep.sweep, copy.schema),
}

for _panel, _commands in _PANELS.items():
    for _command in _commands:
        app.command(rich_help_panel=_panel)(_command)
