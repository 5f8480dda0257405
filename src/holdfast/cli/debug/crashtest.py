"""`holdfast crashtest`: kill an agent around every write and check the result."""

from __future__ import annotations

import math
import time
from typing import Annotated, Any, Final

import click
import msgspec

from ..parser.declare import Argument, Option, command
from ..parser.durations import duration_option
from ..stores import Json, fail
from ..tasks import parse_json
from ..text import printable_lines, to_json

_PROGRESS_SECONDS: Final = 5.0


@command(
    "holdfast crashtest app.py:claims --input '{\"sum\": 41}'",
    "holdfast crashtest app.py:claims --answer payout=true --points 20",
)
def crashtest(
    agent: Annotated[
        str, Argument(metavar="APP:AGENT", help="A file and an agent in it: app.py:claims.")
    ],
    goal: Annotated[str | None, Option(help="The task's goal.")] = None,
    given: Annotated[
        str | None, Option("--input", metavar="JSON", help="The task's input.")
    ] = None,
    answer: Annotated[
        list[str] | None, Option(metavar="NAME=JSON", help="The answer to a question. Repeatable.")
    ] = None,
    signal: Annotated[
        list[str] | None, Option(metavar="NAME=JSON", help="The payload of a signal. Repeatable.")
    ] = None,
    engine: Annotated[
        str,
        Option("--engine", "--store", metavar="KIND", help="The store to use: sqlite or files."),
    ] = "sqlite",
    points: Annotated[int | None, Option(min=1, help="Try only N points, evenly spread.")] = None,
    effects_only: Annotated[
        bool, Option("--effects-only", help="Compare side effects only: the result may vary.")
    ] = False,
    timeout: Annotated[
        float, duration_option("The time limit for one process.", least=1, default="60s")
    ] = 60.0,
    as_json: Json = False,
) -> None:
    """Kill an agent around every write and check the result.

    Resumes the agent after each kill, and compares its result and side effects with a run without
    kills. Progress goes to standard error.
    """
    from ... import HoldfastError
    from ...testing import MatrixError, crash_matrix

    try:
        report = crash_matrix(
            agent,
            goal=goal,
            input=None if given is None else parse_json(given, "input", "--input '\"text\"'"),
            answers=_parse_values(answer),
            signals=_parse_values(signal),
            store=engine,  # type: ignore[arg-type]  # checked there
            points=points,
            timeout=timeout,
            effects_only=effects_only,
            progress=_Progress().show,
        )
    except (MatrixError, HoldfastError, ValueError) as error:
        fail(_shorten_traceback(str(error)).replace("effects_only=True", "--effects-only"))
    if as_json:
        click.echo(to_json({**msgspec.structs.asdict(report), "ok": report.ok}))
    else:
        click.echo(printable_lines(str(report)))
    raise click.exceptions.Exit(0 if report.ok else 1)


class _Progress:
    """Prints on standard error how many points are done: at the start, and every few seconds."""

    def __init__(self) -> None:
        self._shown = -math.inf
        click.echo("running the agent twice without a kill", err=True)

    def show(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._shown >= _PROGRESS_SECONDS or done == total:
            self._shown = now
            click.echo(f"killed at {done} of {total} points", err=True)


def _shorten_traceback(text: str) -> str:
    """Return the first line of a message with a traceback, and its error; else the message."""
    first, *others = text.splitlines()
    if "Traceback" not in text:
        return text
    errors = [line for line in others if not line.startswith("See docs/")]
    return f"{first} {errors[-1]}"


def _parse_values(given: list[str] | None) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        quoted = f"'{name}=\"yes\"'"
        values[name] = parse_json(value, f"value of {name}", quoted) if equals else None
    return values
