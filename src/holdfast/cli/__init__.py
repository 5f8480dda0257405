"""The command line, `holdfast`: one file per group of commands.

`import holdfast` does not import this package; it imports typer and rich when a command runs.
"""

from __future__ import annotations


def main() -> None:
    """Run the command."""
    from .app import app

    app()
