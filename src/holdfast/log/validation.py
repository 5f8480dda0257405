"""Numbers and times as users give them, checked before anything is done."""

from __future__ import annotations

from datetime import datetime, timedelta


def shown(value: object) -> str:
    """What was given, for an error message: numbers as they are, of anything else the type alone."""
    if (
        value is None
        or type(value) in (bool, float)
        or (type(value) is int and abs(value) < 1 << 64)
    ):
        return repr(value)
    return (
        f"{value.total_seconds():g} seconds"
        if isinstance(value, timedelta)
        else type(value).__name__
    )


def timestamp(value: float | datetime, what: str, *, any_year: bool = False) -> float:
    """A time in Unix seconds, since 1970 unless it may be of any year. A datetime must have its zone."""
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise ValueError(
                f"{what} must have a time zone, got a datetime without one: use datetime.now(timezone.utc), or"
                " .astimezone() if it is local time"
            )
        return value.timestamp()
    if type(value) not in (int, float) or value != value or not (any_year or 0 <= value < 1e11):
        raise ValueError(f"{what} must be a datetime or Unix seconds, got {shown(value)}")
    return float(min(max(value, -1e15), 1e15))


def whole_number(value: int, what: str, least: int = 0) -> int:
    """The number itself, if it is one that every engine can count to."""
    if type(value) is not int or not least <= value < 1 << 63:
        raise ValueError(f"{what} must be an integer >= {least}, got {shown(value)}")
    return value


def seconds(value: float | timedelta, what: str, least: float = 0.0) -> float:
    """A duration in seconds."""
    length = value.total_seconds() if isinstance(value, timedelta) else value
    if type(length) not in (int, float) or not least <= length < 1e11:
        raise ValueError(f"{what} must be seconds >= {least:g} or a timedelta, got {shown(value)}")
    return float(length)
