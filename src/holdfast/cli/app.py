"""All commands: the panels of the help, the noun groups, and the global options.

A command is one function. It has a name of its own (`holdfast tasks`) and may have one in a group
(`holdfast task list`). Only the module of the command that runs is imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

import click

import holdfast

from .parser.build import CONTEXT_SETTINGS, build_command, store_options, write_examples
from .parser.declare import CommandSpec
from .stores import set_store_options
from .text import LINE_LENGTH


class NounGroup(NamedTuple):
    """Commands about one thing. `default` is the one that runs if none is named."""

    help: str
    commands: Mapping[str, str]
    default: str | None = None

    @property
    def short_help(self) -> str:
        """The line in the list of all commands: what it is about, and the names of its commands."""
        text = f"{self.help}: {', '.join(self.commands)}"
        return text if len(text) <= 72 else text[:72].rpartition(",")[0] + ", …"


GROUPS: Final = {
    "task": NounGroup(
        "Show and control tasks",
        {
            "show": "tasks.task",
            "list": "tasks.tasks",
            "watch": "tasks.watch",
            "submit": "questions.submit",
            "run": "live.run.run",
            "retry": "questions.retry",
            "resolve": "tasks.resolve",
            "cancel": "tasks.cancel",
            "signal": "questions.signal",
            "artifact": "tasks.artifact",
            "audit": "audit.audit",
            "replay": "debug.replay.replay",
        },
        default="show",
    ),
    "question": NounGroup(
        "Questions of agents", {"list": "questions.questions", "answer": "questions.answer"}
    ),
    "chat": NounGroup(
        "Conversations", {"list": "streams.conversations", "show": "streams.messages"}
    ),
    "memory": NounGroup(
        "Long-term memory",
        {
            "list": "memory.memories",
            "search": "memory.recall",
            "about": "memory.about",
            "entities": "memory.entities",
            "add": "memory.remember",
            "forget": "memory.forget",
            "consolidate": "memory.consolidate",
            "reindex": "memory.reindex",
        },
    ),
    "stream": NounGroup("Streams of events", {"list": "streams.streams", "show": "streams.read"}),
    "key": NounGroup(
        "Keys of encrypted stores",
        {"generate": "keys.key", "rotate": "keys.rekey"},
        default="generate",
    ),
    "store": NounGroup(
        "The whole store",
        {
            "health": "health.health",
            "copy": "copy.copy",
            "migrate": "operators.migrate.migrate",
            "backup": "copy.backup",
            "verify": "verify.verify",
            "repair": "verify.repair",
            "anchor": "verify.anchor",
            "sweep": "sweep.sweep",
            "erase": "keys.erase",
            "encrypt": "convert.encrypt",
            "decrypt": "convert.decrypt",
            "schema": "copy.schema",
        },
    ),
}

PANELS: Final = {
    "Start here": (
        *("demo.demo", "tasks.tasks", "tasks.watch"),
        "health.health",
        "operators.serve.serve",
    ),
    "Tasks": (
        *("task", "questions.submit", "live.run.run", "questions.retry", "tasks.resolve"),
        "tasks.cancel",
    ),
    "Workers and people": (
        *("worker.worker", "live.workers.workers", "question", "questions.signal"),
        *("operators.notifications.notifications", "operators.mcp.mcp"),
    ),
    "Conversations, memory, streams": ("chat", "memory", "stream"),
    "Debug and test": ("debug.replay.replay", "debug.crashtest.crashtest"),
    "Integrity and audit": ("verify.verify", "audit.audit"),
    "Encryption and privacy": ("key", "keys.erase"),
    "Storage": ("store", "copy.copy", "copy.backup"),
}

_PATHS: Final = [
    *(path for panel in PANELS.values() for path in panel if path not in GROUPS),
    *(path for group in GROUPS.values() for path in group.commands.values()),
]

COMMANDS: Final = {name: path for path in _PATHS if (name := path.rpartition(".")[2]) not in GROUPS}
"""The commands that have a name of their own, and where their functions are."""

EXIT_CODES: Final = {
    0: "done",
    1: "it did not work, or a check failed",
    2: "wrong usage",
    3: "`run`: the task waits",
    4: "`run`: a step is in doubt",
    130: "Ctrl-C",
}

_ENVIRONMENT: Final = "HOLDFAST_URL (the store), HOLDFAST_KEY, HOLDFAST_TENANT, HOLDFAST_REDACT"
_EXAMPLES: Final = (
    "holdfast demo",
    "holdfast tasks agents.db",
    "HOLDFAST_URL=agents.db holdfast task claim-42",
)


def load_command(path: str) -> CommandSpec:
    """Import a command by its path in this package, `module.function`."""
    module, _, name = path.rpartition(".")
    spec = getattr(importlib.import_module(f".{module}", __package__), name)
    assert isinstance(spec, CommandSpec)
    return spec


class LazyGroup(click.Group):
    """A group that imports a command when it is asked for. It suggests names for unknown ones."""

    def __init__(self, paths: Mapping[str, str], **given: Any) -> None:
        super().__init__(context_settings=CONTEXT_SETTINGS, no_args_is_help=True, **given)
        self.paths = paths

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.paths)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        path = self.paths.get(cmd_name)
        return None if path is None else build_command(load_command(path), cmd_name)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            close = get_close_matches(name, self.list_commands(ctx), 3)
            if close and not ctx.resilient_parsing:
                ctx.fail(f"No such command {name!r}. Did you mean {' or '.join(close)}?")
        return super().resolve_command(ctx, args)

    def write_commands(self, title: str, names: Sequence[str], formatter: Any, ctx: Any) -> None:
        """Write a panel of commands into the help, each with one line."""
        commands = [(name, self.get_command(ctx, name)) for name in names]
        rows = [
            (f"{name:<13}", command.get_short_help_str(LINE_LENGTH))
            for name, command in commands
            if command
        ]
        with formatter.section(title):
            formatter.write_dl(rows)


class NounCommands(LazyGroup):
    """The commands of a noun group."""

    def __init__(self, name: str, group: NounGroup) -> None:
        super().__init__(group.commands, name=name, short_help=group.short_help)
        self.default = group.default
        self.help = f"{group.help}."
        if group.default is not None:
            self.help += (
                f"\n\n`holdfast {name} …` is the same as `holdfast {name} {self.default} …`"
            )
            self.help += ", unless the next word is one of these commands."

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = (*self.paths, *ctx.help_option_names)
        if args and self.default is not None and args[0] not in known:
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        found = super().shell_complete(ctx, incomplete)
        command = None if self.default is None else self.get_command(ctx, self.default)
        if command is not None:
            inner = command.make_context(command.name, [], parent=ctx, resilient_parsing=True)
            found += command.params[0].shell_complete(inner, incomplete)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.write_commands("Commands", list(self.paths), formatter, ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        examples = [load_command(path).examples[0] for path in self.paths.values()]
        flat = {path.rpartition(".")[2]: name for name, path in self.paths.items()}
        shown = []
        for example in examples[:3]:
            words = example.split(" ")
            words[1:2] = [f"{self.name} {flat[words[1]]}"] if words[1] in flat else words[1:2]
            shown.append(" ".join(words))
        write_examples(formatter, shown)


class RootCommands(LazyGroup):
    """`holdfast` itself: the groups, and the commands that have a name of their own."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        visible = [name.rpartition(".")[2] for panel in PANELS.values() for name in panel]
        return [*visible, *(name for name in COMMANDS if name not in visible)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in GROUPS:
            return NounCommands(cmd_name, GROUPS[cmd_name])
        path = COMMANDS.get(cmd_name)
        if path is None:
            return None
        hidden = not any(path in panel for panel in PANELS.values())
        return build_command(load_command(path), cmd_name, hidden=hidden)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, panel in PANELS.items():
            names = [path.rpartition(".")[2] for path in panel]
            self.write_commands(title, names, formatter, ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(formatter, _EXAMPLES)
        codes = "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())
        formatter.write_paragraph()
        formatter.write_text(f"Environment: {_ENVIRONMENT}.")
        formatter.write_text(f"Exit codes: {codes}.")


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"holdfast {holdfast.__version__}")
        ctx.exit()


def _print_completion(ctx: click.Context, _: click.Parameter, shell: str | None) -> None:
    if shell is None or ctx.resilient_parsing:
        return
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)
    assert complete is not None
    click.echo(complete(app, {}, "holdfast", "_HOLDFAST_COMPLETE").source())
    ctx.exit()


def _set_options(store: str | None, key: tuple[str, ...], redact: bool) -> None:
    set_store_options(key, redact, store)


app = RootCommands(
    COMMANDS,
    name="holdfast",
    help="Inspect a Holdfast store, run its tasks, and maintain it.",
    callback=_set_options,
    params=[
        *store_options(hidden=False),
        click.Option(
            ["--completion"],
            type=click.Choice(["bash", "zsh", "fish"]),
            metavar="SHELL",
            expose_value=False,
            is_eager=True,
            callback=_print_completion,
            help="Print the completion script for bash, zsh or fish, and exit.",
        ),
        click.Option(
            ["--version"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_show_version,
            help="Print the version and exit.",
        ),
    ],
)
"""The application with all commands."""
