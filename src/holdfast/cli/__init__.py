"""The command `holdfast`: look at a store from a shell, and see it survive.

Nothing here is imported by `import holdfast`, and typer and rich only when a command runs.
"""

from __future__ import annotations


def main() -> None:
    """The entry point of the command."""
    from .app import app

    app()
