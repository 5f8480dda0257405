"""`holdfast demo`: kill an agent repeatedly and watch it resume."""

from __future__ import annotations

from typing import Annotated

import click

from .operators.serve import require_web
from .parser.declare import Option, command
from .stores import Json, exit_on_error
from .text import to_json


@command("holdfast demo", "holdfast demo --kills 10 --serve")
def demo(
    url: Annotated[
        str | None,
        Option(
            *("--store", "-s", "--url"),
            metavar="URL",
            help="The store to use.",
            default_text="a temporary file",
        ),
    ] = None,
    kills: Annotated[int, Option(min=1, max=25, help="How many times to kill the agent.")] = 5,
    seed: Annotated[int | None, Option(help="Repeat the choices of an earlier run.")] = None,
    serve: Annotated[
        bool, Option("--serve", help="Show it live on the web dashboard, until you press Ctrl-C.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Kill an agent repeatedly and watch it resume.

    The agent's process gets kill -9 in the middle of its work. Exits with 0 if every side effect
    happened exactly once.
    """
    from ..demo.run import run_demo

    if serve:
        require_web("holdfast demo --serve")
    with exit_on_error():
        report = run_demo(url=url, kills=kills, seed=seed, serve=serve, to_stderr=as_json)
    if as_json:
        click.echo(to_json(report))
    raise click.exceptions.Exit(0 if report.ok else 1)
