"""Options that take a length of time: `30s`, `5m`, `12h`, `60d`, or a number of seconds."""

from __future__ import annotations

import re
from typing import Any, Final

import typer

_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST: Final = 36_500 * 86400.0
"""A hundred years: dates in Python end at some point."""


def duration(help: str, *, least: float = 0.0, default: str | None = None) -> Any:
    """A `typer.Option` whose value is a number of seconds. `default` is how the help shows the default."""

    def seconds(text: str | float) -> float:
        if not isinstance(text, str):
            return text  # the default
        found = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)\s*([smhd]?)", text.strip(), re.ASCII)
        value = -1.0 if found is None else float(found[1]) * _UNITS[found[2]]
        if not least <= value <= _LONGEST:
            limits = f", at least {least:g}s and at most 100 years" if found is not None else ""
            raise typer.BadParameter(
                f"must be a duration like 30s, 5m, 12h or 60d{limits}, got {text!r}"
            )
        return value

    return typer.Option(
        metavar="DURATION",
        parser=seconds,
        help=f"{help} For example 30s, 5m, 12h or 60d.",
        show_default=default or False,
    )
