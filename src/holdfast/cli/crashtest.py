"""`holdfast crashtest`: kill an agent around every write and check the result."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .durations import duration_option
from .stores import fail
from .tasks import parse_json
from .text import printable


def crashtest(
    agent: Annotated[
        str, typer.Argument(metavar="APP:AGENT", help="A file and an agent in it: app.py:claims.")
    ],
    goal: Annotated[str | None, typer.Option(help="The task's goal.", show_default=False)] = None,
    given: Annotated[
        str | None,
        typer.Option("--input", metavar="JSON", help="The task's input.", show_default=False),
    ] = None,
    answer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=JSON", help="The answer to a question. Repeatable."),
    ] = None,
    signal: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=JSON", help="The payload of a signal. Repeatable."),
    ] = None,
    store: Annotated[
        str, typer.Option(metavar="KIND", help="The kind of store to use: sqlite or files.")
    ] = "sqlite",
    points: Annotated[
        int | None,
        typer.Option(min=1, help="Try only N points, evenly spread.", show_default=False),
    ] = None,
    timeout: Annotated[
        float, duration_option("Time limit of one process.", least=1, default="60s")
    ] = 60.0,
) -> None:
    """Kill an agent around every write and check the result.

    Resumes the agent after each kill, and compares its result and side effects with a run without
    kills.
    """
    from .. import HoldfastError
    from ..testing import MatrixError, crash_matrix

    try:
        report = crash_matrix(
            agent,
            goal=goal,
            input=None if given is None else parse_json(given, "input", "--input '\"text\"'"),
            answers=_parse_values(answer),
            signals=_parse_values(signal),
            store=store,  # type: ignore[arg-type]  # checked there
            points=points,
            timeout=timeout,
        )
    except (MatrixError, HoldfastError, ValueError) as error:
        fail(_shorten_traceback(str(error)))
    for line in str(report).splitlines():
        typer.echo(printable(line))
    raise typer.Exit(0 if report.ok else 1)


def _shorten_traceback(text: str) -> str:
    """Return the first and last line of a message with a traceback; others are returned whole."""
    first, *others = text.splitlines()
    return f"{first} {others[-1]}" if "Traceback" in text else text


def _parse_values(given: list[str] | None) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        quoted = f"'{name}=\"yes\"'"
        values[name] = parse_json(value, f"value of {name}", quoted) if equals else None
    return values
