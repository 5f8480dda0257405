"""`holdfast crashtest`: kills an agent at each of its writes, and says what became of it."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from .durations import duration
from .stores import failed
from .text import printable


def crashtest(
    agent: Annotated[
        str,
        typer.Argument(metavar="APP:AGENT", help="The file and the agent in it: app.py:claims."),
    ],
    goal: Annotated[
        str | None, typer.Option(help="The goal of the task.", show_default=False)
    ] = None,
    given: Annotated[
        str | None,
        typer.Option("--input", metavar="JSON", help="The input of the task.", show_default=False),
    ] = None,
    answer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=JSON", help="The answer to a question; for each one."),
    ] = None,
    signal: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=JSON", help="What a signal brings; for each one."),
    ] = None,
    store: Annotated[
        str, typer.Option(metavar="KIND", help="The stores to use: sqlite or files.")
    ] = "sqlite",
    points: Annotated[
        int | None,
        typer.Option(min=1, help="Only so many points, evenly spread.", show_default=False),
    ] = None,
    timeout: Annotated[
        float, duration("How long one process may take.", least=1, default="60s")
    ] = 60.0,
) -> None:
    """Kill an agent at each of its writes, resume it, and compare with a run that nobody has disturbed."""
    from .. import HoldfastError
    from ..testing import MatrixError, crash_matrix

    try:
        report = crash_matrix(
            agent,
            goal=goal,
            input=None if given is None else _json(given),
            answers=_named(answer),
            signals=_named(signal),
            store=store,  # type: ignore[arg-type]  # checked there
            points=points,
            timeout=timeout,
        )
    except (MatrixError, HoldfastError, ValueError) as error:
        raise failed(_end_of(str(error))) from None
    for line in str(report).splitlines():
        typer.echo(printable(line))
    raise typer.Exit(0 if report.ok else 1)


def _end_of(text: str) -> str:
    """Of a message with a traceback: what it begins with, and what went wrong."""
    first, *others = text.splitlines()
    return f"{first} {others[-1]}" if "Traceback" in text else text


def _named(given: list[str] | None) -> dict[str, Any]:
    pairs = [text.partition("=") for text in given or ()]
    return {name: _json(value) if equals else None for name, equals, value in pairs}


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise typer.BadParameter(
            "that is not JSON; text needs quotes: --answer 'payout=\"yes\"'"
        ) from None
