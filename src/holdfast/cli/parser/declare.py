"""Declare a command: a function whose parameters say how they are given on the command line.

    @command("holdfast read agents.db orders-7 --last 10")
    def read(url: Url, stream: StreamId, last: Annotated[int | None, Option(help="…")] = None): …

The first positional argument of a command about a store is `url: Url`. It may be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ... import Store

Completer = Callable[["Store", Mapping[str, Any]], Iterable[str]]
"""Yields the names in a store that a shell may complete. It gets the preceding arguments."""


@dataclass(frozen=True, kw_only=True)
class Argument:
    """How a parameter is given by its position. One with a default may be left out."""

    metavar: str
    help: str
    is_store: bool = False
    complete: Completer | None = None


class Option:
    """How a parameter is given by its name; by default `--parameter-name`."""

    def __init__(
        self,
        *names: str,
        help: str,
        metavar: str | None = None,
        envvar: str | None = None,
        min: float | None = None,
        max: float | None = None,
        default_text: str | None = None,
        convert: Callable[[str], Any] | None = None,
        complete: Completer | None = None,
    ) -> None:
        self.names, self.help, self.metavar, self.envvar = names, help, metavar, envvar
        self.min, self.max = min, max
        self.default_text, self.convert, self.complete = default_text, convert, complete


class CommandSpec(NamedTuple):
    """A function that is a command, and examples of its use."""

    function: Callable[..., None]
    examples: tuple[str, ...]


def command(*examples: str) -> Callable[[Callable[..., None]], CommandSpec]:
    """Declare a command. Its help is the docstring; the first example is shown in usage errors."""
    return lambda function: CommandSpec(function, examples)
