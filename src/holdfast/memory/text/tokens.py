"""Text to the terms by which memories are indexed and asked for.

The same function reads memories and questions, so both sides agree on every rule: "Where did she buy the bikes?" and
"She bought a bike" share "bui" and "bike". Terms are whole strings for an index that splits at spaces: letters and
digits in lower case, and within identifiers the characters of `JOINERS`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from .characters import (
    KOREAN,
    NAMES,
    UNSPACED,
    plain,
    with_telephones,
    without_opening,
    without_umlauts,
    word_class,
)
from .dates import dated_words, day_and_weekday, rewrite_dates
from .stemming import stem
from .words import GENERAL, NEGATED, NUMBERS, SPELLED_LIKE_STOP_WORDS, STOP, UNITS

LONGEST: Final = 64
JOINERS: Final = "-_.@:&+#"
GENERAL_WEIGHT: Final = 0.4
CHARACTER_WEIGHT: Final = 0.3
"""Of one Chinese character, where the question has more: most words have two."""

_CACHED: Final = 1 << 15
_CACHED_LENGTH: Final = 32

_JOIN: Final = r"(?:[-_.@'&]|(?<=[0-9]):(?=[0-9]))"
_ASCII: Final = re.compile(rf"[A-Za-z0-9]+(?:{_JOIN}[A-Za-z0-9]+)*(?:\+\+|#)?")
_THOUSANDS: Final = re.compile("(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_NUMBER: Final = re.compile("[0-9]+(?:[.:][0-9]+)*")
_ORDINAL: Final = re.compile("([0-9]+)(?:st|nd|rd|th)")
_MEASURED: Final = re.compile("([0-9][0-9.:]*)([a-z]+)")
_NAME_AND_NUMBER: Final = re.compile("([a-z]+)([0-9]+)")
_VERSION: Final = re.compile(r"v([0-9]+(?:\.[0-9]+)*)")
_CONTRACTED: Final = re.compile("(.+?)(n't|'s|'re|'ve|'ll|'d|'m)")
# Between a lower and an upper letter, and before the last capital of a row: camel|Case, HTTP|Server, but LLMs.
_HUMPS: Final = re.compile("(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})")
_SPLIT: Final = re.compile(r"[-_.@:&+#]+")
_LEFT_OUT: Final = frozenset("-_.")
# Chinese characters, but for those that are in every other sentence and mean little alone.
_HAN: Final = re.compile(
    "[\u3400-\u9fff\uf900-\ufaff](?<![的了是在和与也就都不吗呢吧啊我你他她它们這这那有個个])"
)
_RUNS: Final = re.compile(f"([{UNSPACED}]+)|([{KOREAN}]+)|([^{UNSPACED}{KOREAN}]+)")
_SCRIPTS: Final = re.compile(f"[{UNSPACED}{KOREAN}]")


def terms(text: str) -> list[str]:
    """The index terms of a text, in order and with repeats. Never raises, whatever the text is."""
    found: list[str] = []
    for chunk in with_telephones(rewrite_dates(text)).split():
        found.extend(_remembered(chunk) if len(chunk) <= _CACHED_LENGTH else _read(chunk))
    return found


def query_terms(text: str) -> dict[str, float]:
    """The terms of a question with their weights: 1, or less for words that many questions have. Empty: nothing to ask for."""
    asked = terms(without_opening(text))
    alone = len(asked) == 1
    return {term: 1.0 if alone else _weight(term) for term in asked}


def _weight(term: str) -> float:
    if term in _GENERAL_TERMS:
        return GENERAL_WEIGHT
    return CHARACTER_WEIGHT if len(term) == 1 and _HAN.match(term) else 1.0


def date_terms(at: float) -> list[str]:
    """The terms by which a question may name the day (UTC) of a Unix time. Empty if it is no day of any calendar."""
    return list(_of_day(at // 86_400))


@lru_cache(1024)
def _of_day(day: float) -> tuple[str, ...]:
    named = day_and_weekday(day * 86_400)
    return () if named is None else (*terms(named[0]), *terms(named[1]))


@lru_cache(_CACHED)
def _remembered(chunk: str) -> tuple[str, ...]:
    return tuple(_read(chunk))


def _read(chunk: str) -> list[str]:
    """The terms of text without spaces."""
    if chunk.startswith("--") and (date := _date(chunk)):
        return date
    found = _read_plain(plain(chunk))
    if written := without_umlauts(chunk):
        found += [term for term in _read_plain(plain(written)) if term not in found]
    return found


def _read_plain(chunk: str) -> list[str]:
    if "," in chunk:
        chunk = _THOUSANDS.sub("", chunk)
    pattern = _ASCII if chunk.isascii() else _any_script()
    found: list[str] = []
    for token in pattern.findall(chunk):
        found.extend(
            _token(token) if token.isascii() or not _SCRIPTS.search(token) else _by_script(token)
        )
    return [term[:LONGEST] for term in found]


@lru_cache(1)
def _any_script() -> re.Pattern[str]:
    word = rf"[^\W_][{word_class()}]*"
    return re.compile(rf"{word}(?:{_JOIN}{word})*(?:\+\+|#)?")


def _by_script(token: str) -> list[str]:
    """Pairs of characters where words are not told apart by spaces; words and pairs for Korean, which glues particles on."""
    found: list[str] = []
    for unspaced, korean, other in _RUNS.findall(token):
        if unspaced:
            found.extend(_pairs(unspaced) or [unspaced])
            if len(unspaced) > 1:  # many a Chinese character is a word
                found.extend(_HAN.findall(unspaced))
        elif korean:
            found.append(korean)
            found.extend(_pairs(korean) if len(korean) > 2 else ())
        else:
            found.extend(term for word in _any_script().findall(other) for term in _token(word))
    return found


def _pairs(run: str) -> list[str]:
    return [run[at : at + 2] for at in range(len(run) - 1)]


def _token(token: str) -> list[str]:
    """The terms of a word, number or identifier."""
    if "'" in token:
        return _with_apostrophe(token)
    if token.isalpha():
        if token in SPELLED_LIKE_STOP_WORDS or token in NAMES:
            return [token.lower()]
        return (
            _word(token.casefold())
            if token[1:].islower() or token.isupper()
            else _camel(token[:LONGEST])
        )
    lower = token.casefold()
    if _NUMBER.fullmatch(lower):
        return [lower, *_parts_of_number(lower)] if ":" in lower else [lower]
    return (
        _date(lower)
        or _measured(lower)
        or (_identifier if _SPLIT.search(lower) else _letters_and_digits)(token)
    )


def _parts_of_number(number: str) -> list[str]:
    """ "14:30:00" is found as 14:30; "10.0.0.5:5432" by the address and by the port."""
    parts = number.split(":")
    if all(len(part) <= 2 for part in parts):
        return [f"{parts[0]}:{parts[1]}"] if len(parts) == 3 else []
    return parts


def _word(word: str) -> list[str]:
    if word in STOP:
        return []
    if word in NEGATED:
        return ["not"]
    return [NUMBERS.get(word) or (stem(word) if word.isascii() else word)]


def _camel(token: str) -> list[str]:
    parts = _HUMPS.split(token)
    found = _word(token.casefold())
    return (
        found + [term for part in parts for term in _word(part.casefold())]
        if len(parts) > 1
        else found
    )


def _with_apostrophe(token: str) -> list[str]:
    """ "Anna's" is Anna, "don't" is not, "O'Brien" is also found as "OBrien" and "Brien"."""
    match = _CONTRACTED.fullmatch(token) or _CONTRACTED.fullmatch(token.lower())
    if match:
        base = match[1]
        if match[2] == "n't":
            return [*(() if base.lower() in ("ca", "wo", "sha", "ai") else _token(base)), "not"]
        return _token(base)
    parts = [part for part in token.split("'") if part]
    if len(parts) < 2:
        return _token(parts[0])
    whole = _word("".join(parts).casefold())
    return whole + [term for part in parts if len(part) > 2 for term in _token(part)]


def _date(word: str) -> list[str]:
    return [
        term
        for part in dated_words(word) or ()
        for term in (_word(part) if part.isalpha() else (part,))
    ]


def _measured(lower: str) -> list[str]:
    """ "7th" is 7; "5pm" and "3.5km" are found by their parts too."""
    if ordinal := _ORDINAL.fullmatch(lower):
        return [ordinal[1]]
    if (measured := _MEASURED.fullmatch(lower)) and measured[2] in UNITS:
        return [lower, measured[1], *([] if measured[2] in STOP else [measured[2]])]
    return []


def _identifier(token: str) -> list[str]:
    """The whole and its parts: "form-12B" is form-12b, form and 12b."""
    lower = token.casefold()
    parts = [part for part in _SPLIT.split(token) if part]
    letters = all(part.isalpha() for part in parts)
    if letters and all(len(part) == 1 for part in parts) and set(lower) & {"."}:
        return _word("".join(parts).casefold())  # U.S.A., e.g., p.m.
    signs = set(_SPLIT.findall(lower))
    whole = [] if letters and signs == {"-"} else [lower]
    if letters and len(signs) == 1 and signs <= _LEFT_OUT and len(parts) <= 3:
        whole += _word(
            "".join(parts).casefold()
        )  # "e-mail" is "email", "user_name" also "username", "Node.js" "nodejs"
    version = _VERSION.fullmatch(lower)
    return whole + ([version[1]] if version else [term for part in parts for term in _token(part)])


def _letters_and_digits(token: str) -> list[str]:
    """ "12B" stays whole; "GPT4" is found by its parts too."""
    lower = token.casefold()
    named = _NAME_AND_NUMBER.fullmatch(lower)
    return [lower, *_word(named[1]), named[2]] if named else [lower]


_GENERAL_TERMS: Final = frozenset(term for word in GENERAL for term in _word(word))
