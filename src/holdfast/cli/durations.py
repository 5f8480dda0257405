"""Options that take a duration: `30s`, `5m`, `12h`, `60d`, or a number of seconds."""

from __future__ import annotations

import re
from typing import Any, Final

import typer

_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MAX_SECONDS: Final = 36_500 * 86400.0
"""A hundred years, well below the last date that Python can represent."""


def duration_option(help: str, *, least: float = 0.0, default: str | None = None) -> Any:
    """Return a `typer.Option` that parses to seconds. The help shows `default` as its default."""

    def parse_seconds(text: str | float) -> float:
        if not isinstance(text, str):
            return text  # the default
        match = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)\s*([smhd]?)", text.strip(), re.ASCII)
        value = -1.0 if match is None else float(match[1]) * _UNITS[match[2]]
        if not least <= value <= _MAX_SECONDS:
            limits = f", at least {least:g}s and at most 100 years" if match is not None else ""
            raise typer.BadParameter(
                f"must be a duration like 30s, 5m, 12h or 60d{limits}, got {text!r}"
            )
        return value

    return typer.Option(
        metavar="DURATION",
        parser=parse_seconds,
        help=f"{help} For example 30s, 5m, 12h or 60d.",
        show_default=default or False,
    )
