"""Programs that tests start: a function of a module of the tests, in a process of its own."""

from __future__ import annotations

import sys

from helpers.paths import TESTS


def program(
    module: str, *args: object, function: str = "main", warnings: str = "default"
) -> list[str]:
    """The command that runs a function of a module below tests/, with these arguments.

    The tests come last in the path of the process: some of their folders are named like modules of
    Python.
    """
    start = (
        f"import sys; sys.path.append({str(TESTS)!r}); from {module} import {function}; "
        f"{function}()"
    )
    return [sys.executable, "-W", warnings, "-c", start, *map(str, args)]
