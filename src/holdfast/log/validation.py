"""Validation of numbers, times and durations in arguments."""

from __future__ import annotations

from datetime import datetime, timedelta


def describe_value(value: object) -> str:
    """Describe a value for an error message: a number by its value, anything else by its type."""
    kind = type(value)
    if value is None or kind in (bool, float) or (isinstance(value, int) and abs(value) < 1 << 64):
        return repr(value)
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g} seconds"
    return kind.__name__


def check_timestamp(value: float | datetime, what: str, *, any_year: bool = False) -> float:
    """Return a time in Unix seconds, from 1970 on unless `any_year`. A datetime needs a zone."""
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise ValueError(
                f"{what} must have a time zone, got a datetime without one; "
                "use datetime.now(timezone.utc), or .astimezone() if it is local time"
            )
        return value.timestamp()
    if type(value) not in (int, float) or value != value or not (any_year or 0 <= value < 1e11):
        raise ValueError(f"{what} must be a datetime or Unix seconds, got {describe_value(value)}")
    return float(min(max(value, -1e15), 1e15))


def check_int(value: int, what: str, least: int = 0) -> int:
    """Return an integer that fits every backend, or raise `ValueError`."""
    if type(value) is not int or not least <= value < 1 << 63:
        raise ValueError(f"{what} must be an integer >= {least}, got {describe_value(value)}")
    return value


def check_seconds(value: float | timedelta, what: str, least: float = 0.0) -> float:
    """Return a duration in seconds, or raise `ValueError`."""
    length = value.total_seconds() if isinstance(value, timedelta) else value
    if type(length) not in (int, float) or not least <= length < 1e11:
        raise ValueError(
            f"{what} must be seconds >= {least:g} or a timedelta, got {describe_value(value)}"
        )
    return float(length)
