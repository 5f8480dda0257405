"""Normalize a text into words for comparison, dropping only what cannot change its meaning.

Dropped are white space, the form of quotes and dashes, punctuation at the end, fillers at both
ends, and the case of ordinary words. The case of others counts ("5 mW" is not "5 MW", "hepatitis A"
not "hepatitis a"), and so does every sign: "A+" is not "A-", ".env" not "env", "No, deploys on
Friday" not "No deploys on Friday". Search uses other rules: see `text/tokens.py`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from ..text.characters import UNSPACED, combining_marks, normalize_for_reading
from ..text.words import STOP
from .fillers import trim_fillers

Mark = Literal["name", "first", "lower", "loud", "quiet", "fixed"]
"""How a word is written.

"name": with a capital. "first": with a capital at the start of a sentence, where any word has one.
"lower": without. "loud", "quiet": all words of the text have capitals, or none, so case means
nothing. "fixed": another spelling would be something else.
"""
Letters = Literal["lower", "capital", "capitals", "mixed", "none"]
"""The case of the letters of one word."""


class Token(NamedTuple):
    key: str
    """Must be equal for two words to be the same."""
    loose: str
    """Must be equal for two words to be alike: lower case, and empty for "the"."""
    mark: Mark


class _Piece(NamedTuple):
    """A word with its signs, or a punctuation mark."""

    text: str
    lower: str
    letters: Letters
    word: bool
    number: bool
    usual: tuple[Token, ...]
    """Its tokens inside a sentence with ordinary capitals, which is nearly always right.

    Computed in advance, because pieces are cached.
    """


_QUOTES: Final = str.maketrans(
    dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033", '"') | {"`": "'", "\u00b4": "'"}
)
_NO_END: Final = frozenset(".,;:")
_ENDS: Final = str.maketrans("!\u2026", "..")
_SENTENCE: Final = frozenset('.?:"(')
_BETWEEN: Final = "\u2014"
_CHUNK: Final = re.compile("([(\\[{\"'\u00bf\u00a1]*)(.*?)([.,;:!?\u2026)\\]}\"']*)", re.DOTALL)
_FEET: Final = re.compile("[0-9]['\"]+$")
"""6'2" """
_WIDE: Final = re.compile(f"(?<=[{UNSPACED}])[,.:;!?()]|[,.:;!?()](?=[{UNSPACED}])|{_BETWEEN}")
_PLAIN: Final = re.compile("[A-Za-z]+(?:['-][A-Za-z]+)*")
_NUMBER: Final = re.compile(r"[^\w]?[0-9][0-9.,:/]*")
_UNIT: Final = re.compile(
    "[yzafpnumcdhkMGTPEZY]?i?"
    "(?:wh?|hz|b|bit|bps|v|va|a|ah|j|pa|m|g|l|s|k|c|f|n|mol|ev|cal|bar|t|h|lm|lx|x|d)",
    re.IGNORECASE,
)
_HOURS: Final = frozenset(("am", "pm"))
_NOT: Final = {"ca": "can", "wo": "will", "sha": "shall"}
_NO_APOSTROPHE: Final = re.compile(
    "(do|does|did|is|are|was|were|would|should|could|has|have|had)nt"
)
_SHORT: Final = {"'m": "am", "'re": "are", "'ve": "have", "'ll": "will"}
_OPERATORS: Final = frozenset("=+-*/^\u00d7")
_THE: Final = frozenset(("the", "teh", "hte"))
_MIN_LOUD_WORDS: Final = 3
"""From this many words on, all in capitals, capitals do not mark names."""
_CACHE_CHUNKS: Final = 1 << 15
_CACHE_MAX_CHARS: Final = 32


def tokenize(text: str) -> list[Token]:
    """Return the words and marks of a text without the fillers at both ends, in linear time."""
    readable = _strip_quotes(normalize_for_reading(text).translate(_QUOTES))
    if not readable.isascii():
        readable = _WIDE.sub(lambda mark: f" {mark[0]} ", readable)
    pieces: list[_Piece] = []
    for chunk in readable.split():
        pieces.extend(
            _split_chunk_cached(chunk) if len(chunk) <= _CACHE_MAX_CHARS else _split_chunk(chunk)
        )
    pieces = _trim_end(pieces)
    if not pieces:
        return []
    start, end = trim_fillers([piece.lower for piece in pieces])
    return _tokenize_pieces(_trim_end(pieces[start:end]))


def _split_chunk(chunk: str) -> tuple[_Piece, ...]:
    """Split text without spaces into a word with its signs and the punctuation around it."""
    match = _CHUNK.fullmatch(chunk)
    before, body, after = match.groups() if match else ("", chunk, "")
    if feet := _FEET.search(body + after.rstrip(".,;:!?")):
        body, after = body + after[: feet.end() - len(body)], after[feet.end() - len(body) :]
    inner: list[_Piece] = []
    if body in ("-", "--", _BETWEEN):
        inner = [_mark_piece("-")]
    elif body:
        inner = [_piece(body, _classify_letters(body), word=True)]
    if after == "!" and body[-1:].isnumeric():
        ending = [_piece("!", "none", word=False)]  # a factorial or an exclamation
    else:
        ending = [_mark_piece(mark.translate(_ENDS)) for mark in after]
    return (*map(_mark_piece, before), *inner, *ending)


_split_chunk_cached: Final = lru_cache(_CACHE_CHUNKS)(_split_chunk)


def _mark_piece(sign: str) -> _Piece:
    return _piece('"' if sign == "'" else sign, "none", word=False)


def _piece(text: str, letters: Letters, *, word: bool) -> _Piece:
    number = word and letters == "none" and _NUMBER.fullmatch(text) is not None
    usual = _word_tokens(text, letters, None, loud=False, starts=False, number=False)
    return _Piece(text, text.lower(), letters, word, number, usual)


def _classify_letters(body: str) -> Letters:
    """Classify the letters of a word; "none" for numbers, flags, file names and the like."""
    if not (_PLAIN if body.isascii() else _any_script()).fullmatch(body):
        return "none"
    if body.lower() == body or body == "I" or (body.startswith("I'") and body[2:].islower()):
        return "lower"
    if len(body) > 1 and body.upper() == body:
        return "capitals"
    parts = re.split("['-]", body)
    titled = body[0].isupper() and all(part[1:] == part[1:].lower() for part in parts)
    return "capital" if titled else "mixed"


@lru_cache(1)
def _any_script() -> re.Pattern[str]:
    letter = rf"[^\W\d_][{combining_marks()}]*"
    return re.compile(rf"(?:{letter})+(?:['-](?:{letter})+)*")


# -- both ends -----------------------------------------------------------------------------------


def _trim_end(pieces: list[_Piece]) -> list[_Piece]:
    """Drop the punctuation at the end, but not a question mark; reduce "!!!" and "???" to one."""
    kept: list[_Piece] = []
    for piece in pieces:
        if piece.word or piece.text not in ".?" or not kept or kept[-1] != piece:
            kept.append(piece)
    while (
        kept
        and not kept[-1].word
        and (kept[-1].text in _NO_END or (kept[-1].text == "!" and not _is_factorial(kept)))
    ):
        kept.pop()
    return kept


def _is_factorial(pieces: list[_Piece]) -> bool:
    """Whether a final "!" is a factorial: "= 5!" is 120; "I owe you 5!" is not."""
    return len(pieces) > 2 and pieces[-3].text in _OPERATORS


def _strip_quotes(text: str) -> str:
    """Strip the quotes of a text that is one quotation."""
    bare = text.strip().rstrip(".!")
    is_quotation = len(bare) > 2 and bare[0] == bare[-1] == '"' and bare.count('"') == 2
    return bare[1:-1] if is_quotation else text


# -- tokens --------------------------------------------------------------------------------------


def _tokenize_pieces(pieces: list[_Piece]) -> list[Token]:
    plain = [piece for piece in pieces if piece.letters != "none"]
    long = [piece.letters for piece in plain if len(piece.text) > 1]
    loud = len(long) >= _MIN_LOUD_WORDS and all(letters == "capitals" for letters in long)
    titled = bool(long) and "lower" not in long
    case: Mark | None = (
        "loud"
        if loud or titled
        else "quiet"
        if all(p.text == "I" or p.text == p.lower for p in pieces)
        else None
    )
    found: list[Token] = []
    starts, number = True, False
    for piece in pieces:
        if case or starts or number:
            found += _word_tokens(
                piece.text, piece.letters, case, loud=loud, starts=starts, number=number
            )
        else:
            found += piece.usual
        starts, number = not piece.word and piece.text in _SENTENCE, piece.number
    return found


def _word_tokens(
    text: str, letters: Letters, case: Mark | None, *, loud: bool, starts: bool, number: bool
) -> tuple[Token, ...]:
    """Return one token, or two for "don't".

    `case`: set if capitals do not mark names in this text. `number`: it follows a number.
    """
    lower = text.lower()
    if number and lower in _HOURS:
        return (Token(lower, lower, "fixed"),)
    letter = len(text) == 1 and (lower not in "ai" or (text == "A" and case is None and not starts))
    if letters == "none" or letter or (number and lower not in STOP and _UNIT.fullmatch(text)):
        return (Token(text, lower, "fixed"),)
    if letters == "mixed" or (letters == "capitals" and len(text) > 1 and not loud):
        return (Token(text, lower, "fixed" if lower in STOP else "name"),)
    mark: Mark = case or ("lower" if letters == "lower" else "first" if starts else "name")
    return tuple(
        Token(part, "" if part in _THE else part, mark) for part in _split_contraction(lower)
    )


def _split_contraction(lower: str) -> list[str]:
    """Split a contraction. Not "it's", which may be "it is" or "it has"."""
    if "'" not in lower:
        if lower == "cannot":
            return ["can", "not"]
        without = _NO_APOSTROPHE.fullmatch(lower)
        return [without[1], "not"] if without else [lower]
    base, _, ending = lower.rpartition("'")
    if ending == "t" and base.endswith("n"):
        return [_NOT.get(base[:-1], base[:-1]), "not"]
    return [base, _SHORT["'" + ending]] if "'" + ending in _SHORT else [lower]
