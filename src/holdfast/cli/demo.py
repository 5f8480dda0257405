"""`holdfast demo`: kill an agent repeatedly and watch it resume."""

from __future__ import annotations

from typing import Annotated

import typer

from .stores import exit_on_error


def demo(
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="The store to use. [default: a temporary file]", show_default=False
        ),
    ] = None,
    kills: Annotated[
        int, typer.Option(min=1, max=25, help="How many times to kill the agent.")
    ] = 5,
    seed: Annotated[
        int | None, typer.Option(help="Repeat the choices of an earlier run.", show_default=False)
    ] = None,
) -> None:
    """Kill an agent repeatedly and watch it resume.

    The agent's process gets kill -9 in the middle of its work. Exits with 0 if every side effect
    happened exactly once.
    """
    from ..demo.run import run_demo

    with exit_on_error():
        code = run_demo(url=url, kills=kills, seed=seed)
    raise typer.Exit(code)
