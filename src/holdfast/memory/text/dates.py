"""Dates in texts, and the time that a question asks about.

"7 May 2023", "May 7th, 2023", "2023-05-07" and "05/07/2023" are one day. A date becomes one word
("2023-05-07", "2023-05" for a month, "--05-07" for a day of any year), which `expand_date` turns
into all terms by which a query may name the day.

"Yesterday", "vor zwei Wochen", "上周" and "latest" in a question become a period, and are left out
of the words that a memory should have. Knows English, German, French, Spanish, Chinese, Japanese
and Arabic. Days are those of UTC.
"""

from __future__ import annotations

import re
from calendar import monthrange
from datetime import datetime, timedelta, timezone
from typing import Final, NamedTuple

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
    # With slashes the month comes first (US), unless the first number is over 12; with dots the
    # day comes first.
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


Period = tuple[float, float]
"""The first and the last moment, as Unix seconds."""

_NUMBERS: Final = {
    word: number
    for number, words in enumerate(
        (
            "a an one ein eine einem einer un une una 一",
            "two couple zwei deux dos 二 两",
            "three few drei trois tres 三",
            "four vier quatre cuatro 四",
            "five fünf cinq cinco 五",
            "six sechs seis 六",
            "seven sieben sept siete 七",
            "eight acht huit ocho 八",
            "nine neun neuf nueve 九",
            "ten zehn dix diez 十",
        ),
        1,
    )
    for word in words.split()
}
_UNITS: Final = {
    "day": "days?|tage?n?|jours?|días?|dias?|天|日",
    "week": "weeks?|wochen?|semaines?|semanas?|周|週間?|星期",
    "month": "months?|monate?n?|mois|mes(?:es)?|个?月|か月|ヶ月",
    "year": "years?|jahre?n?|ans?|années?|años?|年",
}
_DAYS: Final = {"day": 1, "week": 7, "month": 30, "year": 365}
_WEEKDAYS: Final = (
    "monday|montag|lundi|lunes",
    "tuesday|dienstag|mardi|martes",
    "wednesday|mittwoch|mercredi|miércoles",
    "thursday|donnerstag|jeudi|jueves",
    "friday|freitag|vendredi|viernes",
    "saturday|samstag|samedi|sábado",
    "sunday|sonntag|dimanche|domingo",
)
_FOREIGN_MONTHS: Final = (
    "januar|janvier|enero|1月|يناير",
    "februar|février|febrero|2月|فبراير",
    "märz|mars|marzo|3月|مارس",
    "avril|abril|4月|أبريل",
    "mai|mayo|5月|مايو",
    "juni|juin|junio|6月|يونيو",
    "juli|juillet|julio|7月|يوليو",
    "août|agosto|8月|أغسطس",
    "septembre|septiembre|9月|سبتمبر",
    "oktober|octobre|octubre|10月|أكتوبر",
    "novembre|noviembre|11月|نوفمبر",
    "dezember|décembre|diciembre|12月|ديسمبر",
)
_COUNT: Final = rf"(?P<count>\d{{1,3}}|{'|'.join(sorted(_NUMBERS, key=len, reverse=True))})"
_UNIT: Final = "(?:" + "|".join(f"(?P<{unit}>{words})" for unit, words in _UNITS.items()) + ")"


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


_AGO: Final = (
    _compile(rf"\b(?:a )?{_COUNT}(?: of)? {_UNIT} ago\b"),
    _compile(rf"\b(?:vor|il y a|hace) {_COUNT} {_UNIT}(?!\w)"),
    _compile(rf"{_COUNT}{_UNIT}前"),
)
_PAST: Final = _compile(
    rf"\b(?:in |over |during |within )?(?:the |den |les |los |las )?"
    rf"(?:last|past|letzten|derni(?:er|ère)s|últim[oa]s) {_COUNT} {_UNIT}(?!\w)"
)
# Days, weeks, months and years before the current one.
_NAMED: Final = tuple(
    (_compile(pattern), unit, back)
    for unit, back, pattern in (
        (
            "day",
            2,
            r"\bday before yesterday\b|\bvorgestern\b|\bavant-hier\b|\banteayer\b|前天|一昨日",
        ),
        ("day", 1, r"\byesterday\b|\blast night\b|\bgestern\b|\bayer\b|昨天|昨日|أمس"),
        ("day", 0, r"\btoday\b|\bthis morning\b|\bheute\b|\baujourd['\u2019]hui\b|\bhoy\b"),
        ("day", 0, "今天|今日|اليوم"),
        ("week", 1, r"\b(?:last|previous|letzter?|vorige|vergangene)n? (?:week|woche)\b"),
        ("week", 1, r"\bsemaine (?:dernière|passée)\b|\bsemana pasada\b"),
        ("week", 1, "上周|上星期|先週|الأسبوع الماضي"),
        ("month", 1, r"\b(?:last|previous|letzten|vorigen|vergangenen) (?:month|monat)\b"),
        ("month", 1, r"\bmois dernier\b|\bmes pasado\b|上个月|上月|先月|الشهر الماضي"),
        ("year", 1, r"\b(?:last|previous|letztes|voriges|vergangenes|letzten) (?:year|jahr)\b"),
        ("year", 1, r"\b(?:année|an) derni(?:ère|er)\b|\baño pasado\b|去年|昨年|العام الماضي"),
        ("week", 0, r"\bthis week\b|\bdieser? woche\b|\bcette semaine\b|\besta semana\b"),
        ("week", 0, "[本这]周|今週"),
        ("month", 0, r"\bthis month\b|\bdiesen monat\b|\bce mois\b|\beste mes\b|这个月|今月"),
    )
)
_WEEKDAY: Final = _compile(
    r"\b(?P<before>(?:last|letzten) )?(?:"
    + "|".join(f"(?P<d{at}>{names})" for at, names in enumerate(_WEEKDAYS))
    + r")(?(before)| (?:dernier|pasado))\b"
)
_HIER: Final = _compile(r"\bhier\b")
_FRENCH: Final = _compile(
    r"[éèêàçù]"
    r"|\b(?:avons|avez|ont|est-ce|qui|que|quoi|nous|les)\b|\bqu['\u2019]"
)
_IN_MONTH: Final = _compile(
    r"(?:\b(?:im|en|in|au mois de) |في |(?<!\d)(?=\d))(?:"
    + "|".join(f"(?P<m{at}>{names})" for at, names in enumerate(_FOREIGN_MONTHS))
    + r")(?!\w*\d)"
)
_NEWEST: Final = _compile(
    r"\b(?:latest|newest|most recent(?:ly)?|recent(?:ly)?|lately|right now|now(?! that)"
    r"|current(?:ly)?|at the moment|these days|neueste[rns]?|zuletzt|kürzlich|jetzt|aktuell\w*"
    r"|derzeit|momentan|récemment|maintenant|actuel\w*|recientemente|ahora|actual(?:mente)?)\b"
    r"|最新|最近|现在|目前|現在|الآن|حاليا|مؤخرا"
)
_SINCE: Final = _compile(
    r"\bsince (?:the|our|my|his|her|their|that) "
    r"(?P<event>[^\W\d]{3,}(?: [^\W\d]{3,}){0,2})[?.!\s]*$"
)


class TimeHint(NamedTuple):
    """What a question says about time.

    `rest` is the question without that. `since` names the event after which it is, as in "since the
    audit"; its words are in `rest`, too.
    """

    rest: str
    period: Period | None = None
    newest: bool = False
    since: str | None = None


def read_time(query: str, now: float) -> TimeHint:
    """Return what a question says about time, as of `now`."""
    query = _translate_months(query)
    newest = _NEWEST.search(query) is not None
    rest = _NEWEST.sub(" ", query) if newest else query
    try:
        today = datetime.fromtimestamp(now, timezone.utc)
        found = _find_period(rest, today.replace(hour=0, minute=0, second=0, microsecond=0))
    except (OverflowError, ValueError, OSError):
        found = None
    if found is not None:
        match, period = found
        return TimeHint(f"{rest[: match.start()]} {rest[match.end() :]}", period, newest)
    if event := _SINCE.search(rest):
        return TimeHint(rest, None, newest, event["event"])
    # A question of nothing but such words asks for them.
    return TimeHint(rest if rest.strip(" ?!.") else query, None, newest)


def drop_since(query: str) -> str:
    """Return a question without "since the audit"."""
    return _SINCE.sub("", query)


def closeness(at: float, period: Period) -> float:
    """Return 1 for a time in the period, and less the farther it is from it."""
    start, end = period
    distance = max(start - at, at - end, 0.0)
    return float(0.5 ** (distance / max((end - start) / 2, 43_200.0)))


def _find_period(text: str, today: datetime) -> tuple[re.Match[str], Period] | None:
    if match := _PAST.search(text):
        unit, count = _read_amount(match)
        start = today - timedelta(days=_DAYS[unit] * count)
        return match, (start.timestamp(), _end_of(today, "day"))
    for pattern in _AGO:
        if match := pattern.search(text):
            unit, count = _read_amount(match)
            day = today - timedelta(days=_DAYS[unit] * count)
            # "Two weeks ago" is about two weeks ago.
            slack = timedelta(days=0 if unit == "day" else _DAYS[unit] // 2)
            return match, ((day - slack).timestamp(), _end_of(day + slack, "day"))
    for pattern, unit, back in _NAMED:
        if match := pattern.search(text):
            start = _start_of(today, unit, back)
            return match, (start.timestamp(), _end_of(start, unit))
    # In German, "hier" is "here".
    if (match := _HIER.search(text)) and _FRENCH.search(text):
        day = today - timedelta(days=1)
        return match, (day.timestamp(), _end_of(day, "day"))
    if match := _WEEKDAY.search(text):
        at = next(at for at in range(7) if match[f"d{at}"])
        day = today - timedelta(days=(today.weekday() - at) % 7 or 7)
        return match, (day.timestamp(), _end_of(day, "day"))
    return None


def _read_amount(match: re.Match[str]) -> tuple[str, int]:
    word = match["count"].lower()
    unit = next(unit for unit in _UNITS if match[unit])
    return unit, int(word) if word.isdecimal() else _NUMBERS[word]


def _start_of(today: datetime, unit: str, back: int) -> datetime:
    if unit == "day":
        return today - timedelta(days=back)
    if unit == "week":
        return today - timedelta(days=today.weekday() + 7 * back)
    if unit == "year":
        return today.replace(year=today.year - back, month=1, day=1)
    months = today.year * 12 + today.month - 1 - back
    return today.replace(year=months // 12, month=months % 12 + 1, day=1)


def _end_of(start: datetime, unit: str) -> float:
    """Return the last moment of the day, week, month or year that starts then."""
    days = {"day": 1, "week": 7, "month": monthrange(start.year, start.month)[1]}
    length = days.get(unit) or (366 if monthrange(start.year, 2)[1] == 29 else 365)
    return (start + timedelta(days=length)).timestamp() - 1e-3


def _translate_months(query: str) -> str:
    """Return a query with the English names of months: a memory's day is indexed with them."""

    def name(match: re.Match[str]) -> str:
        at = next(at for at in range(12) if match[f"m{at}"])
        return f" {match[0]} {MONTHS[at]} "

    return _IN_MONTH.sub(name, query)
