"""Turn text into the terms by which memories are indexed and searched.

Memories and queries go through the same function, so "Where did she buy the bikes?" and "She bought
a bike" share "bui" and "bike". Terms suit an index that splits at spaces: they consist of
lower-case letters, digits and, inside identifiers, the characters in `JOINERS`.

A long text is split into passages, so that one page of a document can answer a question.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from .characters import (
    KOREAN,
    NAMES,
    UNSPACED,
    add_telephone_terms,
    normalize_for_search,
    spell_out_umlauts,
    strip_opening_verb,
    word_class,
)
from .dates import expand_date, format_day, rewrite_dates
from .stemming import stem
from .words import (
    GENERAL_WORDS,
    NEGATED,
    NUMBERS,
    SPELLED_LIKE_STOP_WORDS,
    STOP,
    UNITS,
    guess_language,
    is_small_word,
)

MAX_TERM_CHARS: Final = 64
JOINERS: Final = "-_.@:&+#"
GENERAL_WEIGHT: Final = 0.5
CHARACTER_WEIGHT: Final = 0.3
"""The weight of a single Chinese character in a longer query: most words have two characters."""

FOREIGN_SHARE: Final = 0.6
"""The share of a word's weight that its stem in another language has, beside the English one."""

_CACHE_CHUNKS: Final = 1 << 15
_CACHE_MAX_CHARS: Final = 32

_JOIN: Final = r"(?:[-_.@'&]|(?<=[0-9]):(?=[0-9]))"
_ASCII: Final = re.compile(rf"[A-Za-z0-9]+(?:{_JOIN}[A-Za-z0-9]+)*(?:\+\+|#)?")
_THOUSANDS: Final = re.compile("(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_NUMBER: Final = re.compile("[0-9]+(?:[.:][0-9]+)*")
_ORDINAL: Final = re.compile("([0-9]+)(?:st|nd|rd|th)")
_MEASURED: Final = re.compile("([0-9][0-9.:]*)([a-z]+)")
_NAME_AND_NUMBER: Final = re.compile("([a-z]+)([0-9]+)")
_VERSION: Final = re.compile(r"v([0-9]+(?:\.[0-9]+)*)")
_CONTRACTED: Final = re.compile("(.+?)(n't|'s|'re|'ve|'ll|'d|'m)")
# Between a lower and an upper letter, and before the last capital of a run: camel|Case,
# HTTP|Server, but LLMs.
_HUMPS: Final = re.compile("(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})")
_LETTERS: Final = re.compile(r"[^\W\d_]+")
_SPLIT: Final = re.compile(r"[-_.@:&+#]+")
_DROPPED_JOINERS: Final = frozenset("-_.")
# Chinese characters, except for frequent ones that mean little on their own.
_HAN: Final = re.compile(
    "[\u3400-\u9fff\uf900-\ufaff](?<![的了是在和与也就都不吗呢吧啊我你他她它们這这那有個个])"
)
_RUNS: Final = re.compile(f"([{UNSPACED}]+)|([{KOREAN}]+)|([^{UNSPACED}{KOREAN}]+)")
_SCRIPTS: Final = re.compile(f"[{UNSPACED}{KOREAN}]")


def terms(text: str) -> list[str]:
    """Return the terms of a text, in order and with repeats. Never raises.

    A text in another language has the stems of that language beside those of English: a name in it
    is found by a question in any language.
    """
    language = guess_language(text)
    found: list[str] = []
    for chunk in _split_chunks(text):
        usual = _read_cached(chunk) if len(chunk) <= _CACHE_MAX_CHARS else _read(chunk)
        found.extend(usual)
        if language:
            found.extend(_foreign_terms(chunk, language, usual))
    return found


def query_terms(text: str) -> dict[str, float]:
    """Return the terms of a query with their weights: 1, or less for general words.

    A term that a query repeats counts as often. The stems of two languages share a word's weight.
    """
    text = strip_opening_verb(text)
    language = guess_language(text)
    found: dict[str, float] = {}
    for chunk in _split_chunks(text):
        if language and is_small_word(chunk, language):
            continue
        usual = _read(chunk)
        foreign = _foreign_terms(chunk, language, usual) if language else []
        share = FOREIGN_SHARE if foreign else 0.0
        for stems, weight in ((usual, 1 - share), (foreign, share)):
            for term in stems:
                found[term] = found.get(term, 0.0) + weight
    if list(found.values()) == [1.0]:
        return found
    return {term: count * _weight(term) for term, count in found.items()}


def group_query_terms(text: str) -> list[tuple[str, ...]]:
    """Return the terms of a query in groups. A group has the spellings of one word.

    In a script without spaces, it has two characters, as a pair and alone.
    """
    text = strip_opening_verb(text)
    language = guess_language(text)
    groups: list[tuple[str, ...]] = []
    for chunk in _split_chunks(text):
        if language and is_small_word(chunk, language):
            continue
        usual = _read(chunk)
        if _SCRIPTS.search(chunk):
            groups += [(term, *term) if len(term) == 2 else (term,) for term in usual]
        elif usual:
            groups.append((*usual, *(_foreign_terms(chunk, language, usual) if language else ())))
    return list(dict.fromkeys(groups))


def _split_chunks(text: str) -> list[str]:
    return add_telephone_terms(rewrite_dates(text)).split()


def _foreign_terms(chunk: str, language: str, usual: Sequence[str]) -> list[str]:
    """Return the stems of a chunk in another language, without the usual terms."""
    words = _LETTERS.findall(normalize_for_search(chunk[:_CACHE_MAX_CHARS]).casefold())
    stems = (stem(word, language) for word in words if len(word) > 1 and word.isascii())
    return [term for term in dict.fromkeys(stems) if term not in usual]


def _weight(term: str) -> float:
    if term in _general_terms():
        return GENERAL_WEIGHT
    return CHARACTER_WEIGHT if len(term) == 1 and _HAN.match(term) else 1.0


def date_terms(at: float) -> list[str]:
    """Return the terms for the day (UTC) of a Unix time; none if the time is out of range."""
    return list(_day_terms(at // 86_400))


@lru_cache(1024)
def _day_terms(day: float) -> tuple[str, ...]:
    named = format_day(day * 86_400)
    return () if named is None else (*terms(named[0]), *terms(named[1]))


@lru_cache(_CACHE_CHUNKS)
def _read_cached(chunk: str) -> tuple[str, ...]:
    return tuple(_read(chunk))


def _read(chunk: str) -> list[str]:
    """Return the terms of text without spaces."""
    if chunk.startswith("--") and (date := _date_terms(chunk)):
        return date
    found = _read_plain(normalize_for_search(chunk))
    if written := spell_out_umlauts(chunk):
        found += [term for term in _read_plain(normalize_for_search(written)) if term not in found]
    return found


def _read_plain(chunk: str) -> list[str]:
    if "," in chunk:
        chunk = _THOUSANDS.sub("", chunk)
    pattern = _ASCII if chunk.isascii() else _any_script()
    found: list[str] = []
    for token in pattern.findall(chunk):
        found.extend(
            _token_terms(token)
            if token.isascii() or not _SCRIPTS.search(token)
            else _script_terms(token)
        )
    return [term[:MAX_TERM_CHARS] for term in found]


@lru_cache(1)
def _any_script() -> re.Pattern[str]:
    word = rf"[^\W_][{word_class()}]*"
    return re.compile(rf"{word}(?:{_JOIN}{word})*(?:\+\+|#)?")


def _script_terms(token: str) -> list[str]:
    """Return character pairs for scripts without spaces, and for Korean also words.

    Korean attaches particles to words, so both are needed.
    """
    found: list[str] = []
    for unspaced, korean, other in _RUNS.findall(token):
        if unspaced:
            found.extend(_pairs(unspaced) or [unspaced])
            if len(unspaced) > 1:  # many Chinese characters are words
                found.extend(_HAN.findall(unspaced))
        elif korean:
            found.append(korean)
            found.extend(_pairs(korean) if len(korean) > 2 else ())
        else:
            found.extend(
                term for word in _any_script().findall(other) for term in _token_terms(word)
            )
    return found


def _pairs(run: str) -> list[str]:
    return [run[at : at + 2] for at in range(len(run) - 1)]


def _token_terms(token: str) -> list[str]:
    """Return the terms of a word, number or identifier."""
    if "'" in token:
        return _apostrophe_terms(token)
    if token.isalpha():
        if token in SPELLED_LIKE_STOP_WORDS or token in NAMES:
            return [token.lower()]
        if token[1:].islower() or token.isupper():
            return _word_terms(token.casefold())
        return _camel_terms(token[:MAX_TERM_CHARS])
    lower = token.casefold()
    if _NUMBER.fullmatch(lower):
        return [lower, *_number_parts(lower)] if ":" in lower else [lower]
    return (
        _date_terms(lower)
        or _measure_terms(lower)
        or (_identifier_terms if _SPLIT.search(lower) else _mixed_terms)(token)
    )


def _number_parts(number: str) -> list[str]:
    """Return further terms: 14:30 for "14:30:00"; address and port for "10.0.0.5:5432"."""
    parts = number.split(":")
    if all(len(part) <= 2 for part in parts):
        return [f"{parts[0]}:{parts[1]}"] if len(parts) == 3 else []
    return parts


def _word_terms(word: str) -> list[str]:
    if word in STOP:
        return []
    if word in NEGATED:
        return ["not"]
    return [NUMBERS.get(word) or stem(word)]


def _camel_terms(token: str) -> list[str]:
    parts = _HUMPS.split(token)
    found = _word_terms(token.casefold())
    if len(parts) > 1:
        found += [term for part in parts for term in _word_terms(part.casefold())]
    return found


def _apostrophe_terms(token: str) -> list[str]:
    """Return "Anna's" as "Anna", "don't" as "do" and "not", "O'Brien" as "OBrien" and "Brien"."""
    match = _CONTRACTED.fullmatch(token) or _CONTRACTED.fullmatch(token.lower())
    if match:
        base = match[1]
        if match[2] == "n't":
            return [
                *(() if base.lower() in ("ca", "wo", "sha", "ai") else _token_terms(base)),
                "not",
            ]
        return _token_terms(base)
    parts = [part for part in token.split("'") if part]
    if len(parts) < 2:
        return _token_terms(parts[0])
    whole = _word_terms("".join(parts).casefold())
    return whole + [term for part in parts if len(part) > 2 for term in _token_terms(part)]


def _date_terms(word: str) -> list[str]:
    return [
        term
        for part in expand_date(word) or ()
        for term in (_word_terms(part) if part.isalpha() else (part,))
    ]


def _measure_terms(lower: str) -> list[str]:
    """Return 7 for "7th"; return "5pm" and "3.5km" whole and in parts."""
    if ordinal := _ORDINAL.fullmatch(lower):
        return [ordinal[1]]
    if (measured := _MEASURED.fullmatch(lower)) and measured[2] in UNITS:
        return [lower, measured[1], *([] if measured[2] in STOP else [measured[2]])]
    return []


def _identifier_terms(token: str) -> list[str]:
    """Return an identifier whole and in parts: "form-12B" is form-12b, form and 12b."""
    lower = token.casefold()
    parts = [part for part in _SPLIT.split(token) if part]
    letters = all(part.isalpha() for part in parts)
    if letters and all(len(part) == 1 for part in parts) and set(lower) & {"."}:
        return _word_terms("".join(parts).casefold())  # U.S.A., e.g., p.m.
    signs = set(_SPLIT.findall(lower))
    whole = [] if letters and signs == {"-"} else [lower]
    if letters and len(signs) == 1 and signs <= _DROPPED_JOINERS and len(parts) <= 3:
        # "e-mail" is "email", "user_name" also "username", "Node.js" also "nodejs".
        whole += _word_terms("".join(parts).casefold())
    version = _VERSION.fullmatch(lower)
    return whole + (
        [version[1]] if version else [term for part in parts for term in _token_terms(part)]
    )


def _mixed_terms(token: str) -> list[str]:
    """Return "12B" whole, and "GPT4" whole and in parts."""
    lower = token.casefold()
    named = _NAME_AND_NUMBER.fullmatch(lower)
    return [lower, *_word_terms(named[1]), named[2]] if named else [lower]


@lru_cache(1)
def _general_terms() -> frozenset[str]:
    return frozenset(term for word in GENERAL_WORDS for term in _word_terms(word))


# -- passages --------------------------------------------------------------------------------------

MAX_WHOLE_CHARS: Final = 2_400
"""Texts up to this length are one passage: a note, a turn, a paragraph, an abstract."""
PASSAGE_CHARS: Final = 1_500
"""About how long a passage of a longer text is."""

_BREAKS: Final = (
    re.compile(r"\n\s*\n"),
    re.compile(r"\n"),
    re.compile("[.!?\u2026]['\"\u201d\u2019)]?\\s|[\u3002\uff01\uff1f]"),
    re.compile(r"\s"),
)
"""Where to split, the best place first: between paragraphs, lines, sentences, words."""


def split_passages(text: str) -> list[str]:
    """Return the passages of a text in order. Joined, they are the text."""
    if len(text) <= MAX_WHOLE_CHARS:
        return [text]
    passages = []
    start = 0
    while len(text) - start > MAX_WHOLE_CHARS:
        end = _find_break(text, start + PASSAGE_CHARS // 2, start + PASSAGE_CHARS)
        passages.append(text[start:end])
        start = end
    return [*passages, text[start:]]


def _find_break(text: str, first: int, last: int) -> int:
    """Return the end of the last good break between two places, or `last`."""
    for pattern in _BREAKS:
        ends = [found.end() for found in pattern.finditer(text, first, last)]
        if ends:
            return ends[-1]
    return last
