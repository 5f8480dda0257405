"""Build a click command from a declared one, with a help that fits a screen."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from enum import Enum
from types import UnionType
from typing import Annotated, Any, NamedTuple, NoReturn, Union, get_args, get_origin, get_type_hints

import click

from ..stores import KEY_HELP, REDACT_HELP, STORE_HELP, extend_store_options
from .completion import complete_name
from .declare import Argument, CommandSpec, Option

INTERRUPTED = 130
"""The exit code after Ctrl-C, as that of a shell."""
HELP_WIDTH = 100
CONTEXT_SETTINGS: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": HELP_WIDTH,
}


class Position(NamedTuple):
    """A positional argument of a command."""

    parameter: str
    argument: Argument
    required: bool


class CliCommand(click.Command):
    """A command whose help explains its arguments and ends with examples."""

    def __init__(self, positions: Sequence[Position], examples: Sequence[str], **given: Any):
        super().__init__(**given)
        self.positions, self.examples = positions, examples

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.positions:
            with formatter.section("Arguments"):
                formatter.write_dl(
                    [(each.argument.metavar, each.argument.help) for each in self.positions]
                )
        super().format_options(ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(formatter, self.examples)


def write_examples(formatter: click.HelpFormatter, examples: Sequence[str]) -> None:
    """Write the examples of a command at the end of its help, each on its line."""
    with formatter.section("Examples"):
        for example in examples:
            formatter.write(f"  {example}\n")


def build_command(spec: CommandSpec, name: str, *, hidden: bool = False) -> CliCommand:
    """Return the click command for a declared one."""
    hints = get_type_hints(spec.function, include_extras=True)
    positions: list[Position] = []
    options: list[click.Parameter] = []
    for parameter in inspect.signature(spec.function).parameters.values():
        kind, meta = _split_hint(hints[parameter.name])
        required = parameter.default is inspect.Parameter.empty
        if isinstance(meta, Argument):
            positions.append(Position(parameter.name, meta, required and not meta.is_store))
        else:
            default = None if required else parameter.default
            options.append(_build_option(parameter.name, kind, meta, default))
    takes_store = bool(positions) and positions[0].argument.is_store
    options += store_options() if takes_store else store_options()[1:]
    return CliCommand(
        positions,
        spec.examples,
        name=name,
        params=[_build_argument(index, positions) for index in range(len(positions))] + options,
        callback=_make_callback(spec, positions, takes_store),
        help=inspect.getdoc(spec.function),
        hidden=hidden,
        context_settings=CONTEXT_SETTINGS,
    )


def store_options(*, hidden: bool = True) -> list[click.Parameter]:
    """Return the global options, which name and open the store. The help shows them once."""
    return [
        click.Option(["--store", "-s"], metavar="URL", help=STORE_HELP),
        click.Option(["--key"], metavar="KEY", multiple=True, help=KEY_HELP, hidden=hidden),
        click.Option(
            ["--redact"], is_flag=True, envvar="HOLDFAST_REDACT", help=REDACT_HELP, hidden=hidden
        ),
    ]


def _make_callback(
    spec: CommandSpec, positions: Sequence[Position], takes_store: bool
) -> Callable[..., None]:
    def run(**given: Any) -> None:
        named = given.pop("store") if takes_store else None
        store = extend_store_options(given.pop("key"), given.pop("redact"), named)
        try:
            if store is not None and not takes_store:
                raise click.UsageError("--store before the command needs a command on one store")
            values = [given.pop(each.parameter) for each in positions]
            names = arrange_names(positions, values, store, spec.examples[0])
            spec.function(**names, **given)
        except click.UsageError as error:
            error.ctx = error.ctx or click.get_current_context()
            raise
        except KeyboardInterrupt:
            click.echo("holdfast: interrupted", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None

    return run


def arrange_names(
    positions: Sequence[Position], values: Sequence[str | None], store: str | None, example: str
) -> dict[str, str | None]:
    """Map the given values to arguments. If the store is omitted, the values are all names.

    `store` is the one given by --store. With HOLDFAST_URL, the first value is a store if there are
    more values than names, or if names are optional and it is written as a path or a URL.
    """
    given = [value for value in values if value is not None]
    takes_store = bool(positions) and positions[0].argument.is_store
    names = positions[1:] if takes_store else positions
    url = store
    if takes_store and store is None and given:
        least = sum(each.required for each in names)
        is_store = looks_like_store(given[0])
        if not os.environ.get("HOLDFAST_URL"):
            if len(given) == least and not is_store:
                _fail_missing("the store (URL, --store or HOLDFAST_URL)", example)
            url, *given = given
        elif len(given) > len(names) or (len(given) > least and is_store):
            url, *given = given
    missing = [each.argument.metavar for each in names[len(given) :] if each.required]
    if missing:
        _fail_missing(" and ".join(missing), example)
    if len(given) > len(names):
        raise click.UsageError(f"too many arguments: --store already names the store; {example}")
    filled = dict(zip([each.parameter for each in names], given, strict=False))
    arranged = {each.parameter: filled.get(each.parameter) for each in names}
    return {positions[0].parameter: url, **arranged} if takes_store else arranged


def looks_like_store(text: str) -> bool:
    """Return whether an argument is written as a URL or as a path, which ids rarely are."""
    return "://" in text or text.endswith((".db", ".sqlite")) or text.startswith(("/", "./", "../"))


def _fail_missing(what: str, example: str) -> NoReturn:
    raise click.UsageError(f"missing {what}, as in: {example}")


def _build_argument(index: int, positions: Sequence[Position]) -> click.Argument:
    position = positions[index]
    name = position.argument.metavar
    return click.Argument(
        [position.parameter],
        required=False,
        metavar=name if position.required else f"[{name}]",
        shell_complete=lambda ctx, _, text: _complete_position(ctx, text, index, positions),
    )


def _complete_position(
    ctx: click.Context, text: str, index: int, positions: Sequence[Position]
) -> list[str]:
    """Complete a positional argument. The store may be named by an option or HOLDFAST_URL."""
    first = ctx.params.get(positions[0].parameter)
    is_known = bool(ctx.params.get("store") or os.environ.get("HOLDFAST_URL"))
    is_shifted = is_known and positions[0].argument.is_store
    if is_shifted and not (first and looks_like_store(first)):
        if index + 1 >= len(positions):
            return []
        values = [ctx.params.get(each.parameter) for each in positions[:index]]
        given = dict(zip([each.parameter for each in positions[1:]], values, strict=False))
        return complete_name(ctx, text, positions[index + 1].argument.complete, given, None)
    given = {each.parameter: ctx.params.get(each.parameter) for each in positions[1:index]}
    return complete_name(ctx, text, positions[index].argument.complete, given, first)


def _find_url(ctx: click.Context) -> str | None:
    """Return the store named on a line whose last option is being completed.

    Click doesn't parse the arguments of such a line.
    """
    given = [ctx.params.get("url"), *ctx.args]
    return next((each for each in given if each and looks_like_store(each)), None)


def _split_hint(hint: Any) -> tuple[Any, Any]:
    """Return the type of an annotation without None, and its Option or Argument."""
    if get_origin(hint) is Union:  # Python 3.10 adds None to the type if it is the default
        hint = get_args(hint)[0]
    assert get_origin(hint) is Annotated, f"a parameter of a command must be Annotated, got {hint}"
    kind, meta, *_ = get_args(hint)
    if get_origin(kind) in (Union, UnionType):
        [kind] = [each for each in get_args(kind) if each is not type(None)]
    return kind, meta


def _build_option(name: str, kind: Any, meta: Option, default: Any) -> click.Option:
    names = list(meta.names) or [f"--{name.replace('_', '-')}"]
    text, extra = meta.help, []
    if meta.envvar is not None:
        extra.append(f"env: {meta.envvar}")
    if meta.default_text is not None:
        extra.append(f"default: {meta.default_text}")
    elif default and not isinstance(default, (bool, Enum)) and meta.envvar is None:
        extra.append(f"default: {default}")
    if extra:
        text = f"{text} [{'; '.join(extra)}]"
    complete = meta.complete
    return click.Option(
        [*names, name],
        help=text,
        metavar=meta.metavar or _metavar(kind),
        type=_parameter_type(kind, meta),
        default=default.value if isinstance(default, Enum) else default,
        callback=(lambda _, __, value: None if value is None else kind(value))
        if _is_subclass(kind, Enum)
        else None,
        is_flag=kind is bool or None,
        multiple=get_origin(kind) is list,
        envvar=meta.envvar,
        shell_complete=None
        if complete is None
        else lambda ctx, _, text: complete_name(ctx, text, complete, {}, _find_url(ctx)),
    )


def _is_subclass(kind: Any, base: type) -> bool:
    # In Python 3.10 list[str] passes for a type.
    return isinstance(kind, type) and get_origin(kind) is None and issubclass(kind, base)


def _metavar(kind: Any) -> str | None:
    if kind is bool or _is_subclass(kind, Enum):
        return None
    return "N" if kind in (int, float) else "TEXT"


def _parameter_type(kind: Any, meta: Option) -> Any:
    if meta.convert is not None:
        return _wrap_converter(meta.convert)
    if _is_subclass(kind, os.PathLike):
        return _wrap_converter(kind)
    if _is_subclass(kind, Enum):
        return click.Choice([each.value for each in kind])
    if get_origin(kind) is list:
        return click.STRING
    if kind in (int, float) and (meta.min, meta.max) != (None, None):
        least = None if meta.min is None else kind(meta.min)
        most = None if meta.max is None else kind(meta.max)
        return (click.IntRange if kind is int else click.FloatRange)(least, most)
    return {bool: None, str: click.STRING, int: click.INT, float: click.FLOAT}[kind]


def _wrap_converter(convert: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Return a converter whose errors name the option."""

    def convert_value(value: Any) -> Any:
        try:
            return convert(value) if isinstance(value, str) else value  # else it is the default
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return convert_value
