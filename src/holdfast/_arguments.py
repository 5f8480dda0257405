"""Numbers and times as users give them, checked before anything is done."""

from __future__ import annotations

from datetime import timedelta


def whole_number(value: int, what: str) -> int:
    """The number itself, if it is one that every engine can count to."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{what} is a whole number, 0 or more")
    return value


def seconds(value: float | timedelta, what: str) -> float:
    """A length of time in seconds."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if type(value) not in (int, float) or not 0 <= value < 1e11:
        raise ValueError(f"{what} is a number of seconds, 0 or more, or a timedelta")
    return float(value)
