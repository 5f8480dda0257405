"""The command line, `holdfast`: one file per group of commands.

`import holdfast` does not import this package; it imports click when a command runs.
"""

from __future__ import annotations


def main() -> None:
    """Run the command."""
    import sys

    try:
        from .app import app

        app(prog_name="holdfast")
    except KeyboardInterrupt:  # before the command starts, or after it ends
        sys.exit(130)
