"""Options that take a time or a duration: `30s`, `5m`, `12h`, `60d`, or a number of seconds."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta, timezone
from typing import Any, Final

import click

from .declare import Option

_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MAX_SECONDS: Final = 36_500 * 86400.0
"""A hundred years, well below the last date that Python can represent."""


def parse_duration(text: str) -> float | None:
    """Return the seconds of a duration; None if the text is not one."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)\s*([smhd]?)", text.strip(), re.ASCII)
    return None if match is None else float(match[1]) * _UNITS[match[2]]


def parse_time(text: str | None, option: str, *, end_of_day: bool = False) -> datetime | None:
    """Parse the time of an option. With `end_of_day`, a date means its last moment."""
    if text is None:
        return None
    try:
        return _parse_moment(text, end_of_day=end_of_day)
    except ValueError:
        raise click.UsageError(
            f"--{option} must be a date or a time, like 2026-01-31 or 2026-01-31T14:30"
        ) from None


def parse_since(text: str) -> datetime:
    """Parse the time of a `--since` that also takes a duration, counted back from now."""
    seconds = parse_duration(text)
    try:
        if seconds is None:
            return _parse_moment(text)
        if seconds <= _MAX_SECONDS:
            return datetime.now(timezone.utc) - timedelta(seconds=seconds)
    except ValueError:
        pass
    raise click.UsageError(
        "--since must be a duration like 30s, 5m, 12h or 60d, at most 100 years, or a date or a"
        f" time, like 2026-01-31 or 2026-01-31T14:30, got {text!r}"
    )


def _parse_moment(text: str, *, end_of_day: bool = False) -> datetime:
    moment = datetime.fromisoformat(text[:-1] + "+00:00" if text[-1:] in ("Z", "z") else text)
    if end_of_day and len(text) <= len("2026-01-31"):
        moment = datetime.combine(moment, time.max)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)


def duration_option(help: str, *, least: float = 0.0, default: str | None = None) -> Any:
    """Return an option that parses to seconds. The help shows `default` as its default."""

    def parse_seconds(text: str) -> float:
        found = parse_duration(text)
        value = -1.0 if found is None else found
        if not least <= value <= _MAX_SECONDS:
            limits = f", at least {least:g}s and at most 100 years" if found is not None else ""
            raise ValueError(f"must be a duration like 30s, 5m, 12h or 60d{limits}, got {text!r}")
        return value

    return Option(
        metavar="DURATION",
        convert=parse_seconds,
        help=f"{help} For example 30s, 5m, 12h or 60d.",
        default_text=default,
    )
