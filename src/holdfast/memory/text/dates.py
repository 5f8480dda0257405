"""Unify written dates: "7 May 2023", "May 7th, 2023", "2023-05-07", "05/07/2023" are one day.

A date becomes one word ("2023-05-07", "2023-05" for a month, "--05-07" for a day of any year),
which `expand_date` turns into all terms by which a query may name the day.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Final

from .words import split_words

MONTHS: Final = split_words(
    "january february march april may june july august september october november december"
)
WEEKDAYS: Final = split_words("monday tuesday wednesday thursday friday saturday sunday")

_NUMBER: Final = {name[:3]: number for number, name in enumerate(MONTHS, 1)}
_MONTH: Final = (
    "(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?"
    r"|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b\.?"
)
_YEAR: Final = "(?:1[5-9]|20|21)[0-9]{2}"
_GAP: Final = "[\\s\u00a0\u3000]{1,3}"
_WIDE_DIGITS: Final = {0xFF10 + digit: str(digit) for digit in range(10)}

_DIGITS_FIRST: Final = re.compile(
    rf"""(?<![\w./:,-])(?:
    (?P<iso>{_YEAR})(?P<sign>[-/.])(?P<iso_month>[0-9]{{1,2}})(?P=sign)(?P<iso_day>[0-9]{{1,2}})
        (?![0-9])(?:T(?=[0-9]))?
    |(?P<cjk>{_YEAR})年(?P<cjk_month>[0-9]{{1,2}})月(?:(?P<cjk_day>[0-9]{{1,2}})日)?
    |(?P<first>[0-9]{{1,2}})(?P<dot>[/.])(?P<second>[0-9]{{1,2}})(?P=dot)
        (?P<last>{_YEAR}|[0-9]{{2}})(?![\w-])(?!\.[0-9])
    |(?P<day>[0-9]{{1,2}})(?:st|nd|rd|th)?(?:{_GAP}of)?(?:{_GAP}|-)(?P<month>{_MONTH})
        (?:(?:,?{_GAP}|-)(?P<year>{_YEAR})(?![\w-]))?
    )""",
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)
_MONTH_FIRST: Final = re.compile(
    rf"""(?<![\w-])(?P<month>{_MONTH}),?{_GAP}(?:
    (?:of{_GAP})?(?P<alone>{_YEAR})(?![\w-])
    |(?:the{_GAP})?(?P<day>[0-9]{{1,2}})(?:st|nd|rd|th)?(?![\w:-])
        (?:,?{_GAP}(?P<year>{_YEAR})(?![\w-]))?
    )""",
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)
_REWRITTEN: Final = re.compile(rf"({_YEAR}|-)-(0[1-9]|1[0-2])(?:-([0-3][0-9]))?", re.ASCII)
_DIGIT: Final = re.compile("[0-9\uff10-\uff19]")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


def rewrite_dates(text: str) -> str:
    """Return the text with each written date as one word."""
    if not _DIGIT.search(text):
        return text
    if "年" in text:
        text = text.translate(_WIDE_DIGITS)
    return _MONTH_FIRST.sub(_month_first, _DIGITS_FIRST.sub(_digits_first, text))


def expand_date(word: str) -> list[str] | None:
    """Return the words of a rewritten date (day, month, year, then whole); None if it isn't one."""
    match = _REWRITTEN.fullmatch(word)
    if match is None:
        return None
    year, month, day = match.groups()
    words = ([str(int(day))] if day else []) + [MONTHS[int(month) - 1]]
    if year == "-":
        return [*words, f"{month}-{day}"] if day else None
    whole = (
        [f"{year}-{month}-{day}", f"{year}-{month}", f"{month}-{day}"]
        if day
        else [f"{year}-{month}"]
    )
    return [*words, year, *whole]


def format_day(at: float) -> tuple[str, str] | None:
    """Return the day of a Unix time (UTC, "2023-05-07") and its weekday; None if out of range."""
    try:
        moment = _EPOCH + timedelta(seconds=at)
    except (OverflowError, ValueError):
        return None
    return moment.strftime("%Y-%m-%d"), WEEKDAYS[moment.weekday()]


def _digits_first(match: re.Match[str]) -> str:
    if match["iso"]:
        return _join_date(match, match["iso"], match["iso_month"], match["iso_day"])
    if match["cjk"]:
        return _join_date(match, match["cjk"], match["cjk_month"], match["cjk_day"])
    if match["month"]:
        return _join_date(match, match["year"], match["month"], match["day"])
    first, second, last = match["first"], match["second"], match["last"]
    if len(last) == 2:
        if match["dot"] == ".":  # 1.2.34 is a version more often than a day
            return match[0]
        last = ("19" if int(last) >= 70 else "20") + last
    # With slashes the month comes first (US), unless it is over 12; with dots the day comes first.
    day_first = match["dot"] == "." or int(first) > 12
    return _join_date(match, last, second if day_first else first, first if day_first else second)


def _month_first(match: re.Match[str]) -> str:
    return _join_date(match, match["alone"] or match["year"], match["month"], match["day"])


def _join_date(match: re.Match[str], year: str | None, month: str, day: str | None) -> str:
    """Return the date as one word, or the text unchanged if there is no such day."""
    number = int(month) if month.isdigit() else _NUMBER[month[:3].lower()]
    if not 1 <= number <= 12 or (day and not 1 <= int(day) <= 31):
        return match[0]
    return f" {year or '-'}-{number:02}{f'-{int(day):02}' if day else ''} "
