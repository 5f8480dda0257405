"""A text as a sequence of words in which only what cannot change its meaning no longer counts.

That is: white space, the form of quotes and dashes, punctuation at the end, fillers around it, and the case of ordinary words.
The case of others counts ("5 mW" is not "5 MW", "hepatitis A" not "hepatitis a"), and so does every sign: "A+" is not "A-", ".env" not
"env", and "No, deploys on Friday" is not "No deploys on Friday". This is what two texts are compared by, not what is searched.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from ..text.characters import UNSPACED, marks, visible
from ..text.words import STOP
from .fillers import between_fillers

Mark = Literal["name", "first", "lower", "loud", "quiet", "fixed"]
"""How a word is written: with a capital; with one at the start of a sentence, where any word has one; without one; with or without one
in a text of which that is true for all words, which tells nothing; and what is as it is written or something else."""
Letters = Literal["lower", "capital", "capitals", "mixed", "none"]
"""How the letters of one word are written."""


class Token(NamedTuple):
    key: str
    """What must be equal for two words to be the same."""
    loose: str
    """What must be equal for them to be alike: without capitals, and empty where a word hardly matters."""
    mark: Mark


class _Piece(NamedTuple):
    """A word with its signs, or a punctuation mark, which has no letters."""

    text: str
    lower: str
    letters: Letters
    word: bool
    number: bool
    usual: tuple[Token, ...]
    """What it is in the middle of a sentence with capitals as usual: nearly always that. Known in advance, because pieces are remembered."""


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
    "[yzafpnumcdhkMGTPEZY]?i?(?:wh?|hz|b|bit|bps|v|va|a|ah|j|pa|m|g|l|s|k|c|f|n|mol|ev|cal|bar|t|h|lm|lx|x|d)",
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
_LOUD: Final = 3
"""So many words in capitals, and none without, are no names any more."""
_CACHED: Final = 1 << 15
_CACHED_LENGTH: Final = 32


def read(text: str) -> list[Token]:
    """The words and marks of a text, without the fillers at both ends. Empty only if there is none. Linear in its length."""
    shown = _unquoted(visible(text).translate(_QUOTES))
    if not shown.isascii():
        shown = _WIDE.sub(lambda mark: f" {mark[0]} ", shown)
    pieces: list[_Piece] = []
    for chunk in shown.split():
        pieces.extend(_remembered(chunk) if len(chunk) <= _CACHED_LENGTH else _taken_apart(chunk))
    pieces = _ended(pieces)
    if not pieces:
        return []
    start, end = between_fillers([piece.lower for piece in pieces])
    return _tokens(_ended(pieces[start:end]))


def _taken_apart(chunk: str) -> tuple[_Piece, ...]:
    """Text without spaces: a word with all its signs, and the punctuation around it."""
    match = _CHUNK.fullmatch(chunk)
    before, body, after = match.groups() if match else ("", chunk, "")
    if feet := _FEET.search(body + after.rstrip(".,;:!?")):
        body, after = body + after[: feet.end() - len(body)], after[feet.end() - len(body) :]
    inner = [] if not body else [_mark("-")] if body in ("-", "--", _BETWEEN) else [_word(body)]
    marks_after = list(after)
    if marks_after == ["!"] and body[-1:].isnumeric():
        return (
            *map(_mark, before),
            *inner,
            _piece("!", "none", word=False),
        )  # a factorial, or an exclamation
    return (
        *map(_mark, before),
        *inner,
        *map(_mark, (mark.translate(_ENDS) for mark in marks_after)),
    )


_remembered: Final = lru_cache(_CACHED)(_taken_apart)


def _mark(sign: str) -> _Piece:
    return _piece('"' if sign == "'" else sign, "none", word=False)


def _word(body: str) -> _Piece:
    return _piece(body, _letters(body), word=True)


def _piece(text: str, letters: Letters, *, word: bool) -> _Piece:
    number = word and letters == "none" and _NUMBER.fullmatch(text) is not None
    usual = _of_word(text, letters, None, loud=False, starts=False, number=False)
    return _Piece(text, text.lower(), letters, word, number, usual)


def _letters(body: str) -> Letters:
    """ "none" for what is not made of letters only, such as a number, a flag or the name of a file."""
    if not (_PLAIN if body.isascii() else _any_script()).fullmatch(body):
        return "none"
    if body.lower() == body or body == "I" or (body.startswith("I'") and body[2:].islower()):
        return "lower"
    if len(body) > 1 and body.upper() == body:
        return "capitals"
    parts = re.split("['-]", body)
    return (
        "capital"
        if body[0].isupper() and all(part[1:] == part[1:].lower() for part in parts)
        else "mixed"
    )


@lru_cache(1)
def _any_script() -> re.Pattern[str]:
    letter = rf"[^\W\d_][{marks()}]*"
    return re.compile(rf"(?:{letter})+(?:['-](?:{letter})+)*")


# -- both ends -------------------------------------------------------------------------------------------------------------


def _ended(pieces: list[_Piece]) -> list[_Piece]:
    """Without the punctuation at the end, apart from a question mark, and with one mark for "!!!" and "???"."""
    kept: list[_Piece] = []
    for piece in pieces:
        if piece.word or piece.text not in ".?" or not kept or kept[-1] != piece:
            kept.append(piece)
    while (
        kept
        and not kept[-1].word
        and (kept[-1].text in _NO_END or (kept[-1].text == "!" and not _factorial(kept)))
    ):
        kept.pop()
    return kept


def _factorial(pieces: list[_Piece]) -> bool:
    """ "= 5!" is 120; "I owe you 5!" is not."""
    return len(pieces) > 2 and pieces[-3].text in _OPERATORS


def _unquoted(text: str) -> str:
    """A text that is one quotation, without its quotes."""
    bare = text.strip().rstrip(".!")
    return (
        bare[1:-1]
        if len(bare) > 2 and bare[0] == bare[-1] == '"' and bare.count('"') == 2
        else text
    )


# -- what counts -----------------------------------------------------------------------------------------------------------


def _tokens(pieces: list[_Piece]) -> list[Token]:
    plain = [piece for piece in pieces if piece.letters != "none"]
    long = [piece.letters for piece in plain if len(piece.text) > 1]
    loud = len(long) >= _LOUD and all(letters == "capitals" for letters in long)
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
            found += _of_word(
                piece.text, piece.letters, case, loud=loud, starts=starts, number=number
            )
        else:
            found += piece.usual
        starts, number = not piece.word and piece.text in _SENTENCE, piece.number
    return found


def _of_word(
    text: str, letters: Letters, case: Mark | None, *, loud: bool, starts: bool, number: bool
) -> tuple[Token, ...]:
    """One token, or two for "don't". `case`: if capitals tell no names in this text. `number`: after one."""
    lower = text.lower()
    if number and lower in _HOURS:
        return (Token(lower, lower, "fixed"),)
    letter = len(text) == 1 and (lower not in "ai" or (text == "A" and case is None and not starts))
    if letters == "none" or letter or (number and lower not in STOP and _UNIT.fullmatch(text)):
        return (Token(text, lower, "fixed"),)
    if letters == "mixed" or (letters == "capitals" and len(text) > 1 and not loud):
        return (Token(text, lower, "fixed" if lower in STOP else "name"),)
    mark: Mark = case or ("lower" if letters == "lower" else "first" if starts else "name")
    return tuple(Token(part, "" if part in _THE else part, mark) for part in _parts(lower))


def _parts(lower: str) -> list[str]:
    """A word with its contraction taken apart. Not "it's", which may be "it is" or "it has"."""
    if "'" not in lower:
        if lower == "cannot":
            return ["can", "not"]
        without = _NO_APOSTROPHE.fullmatch(lower)
        return [without[1], "not"] if without else [lower]
    base, _, ending = lower.rpartition("'")
    if ending == "t" and base.endswith("n"):
        return [_NOT.get(base[:-1], base[:-1]), "not"]
    return [base, _SHORT["'" + ending]] if "'" + ending in _SHORT else [lower]
