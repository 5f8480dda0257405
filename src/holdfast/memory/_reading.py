"""A text as a sequence of words in which only plural, tense, articles, case and punctuation no longer count.

This is what two texts are compared by. Far less is thrown away than for searching: "from Paris to London" is not
"from London to Paris", "my dog" is not "your dog", "$500" is not "€500" and "is it?" is not "it is".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from ._characters import KOREAN, UNSPACED, marks, visible
from ._fillers import DROPPED, closing, is_filler, opening
from ._stemming import inflection
from ._words import NUMBERS, listed

Mark = Literal["digit", "name", "first", "lower", "quiet", "loud"]
"""How a word is written: with a digit; with a capital; with one at the start of a sentence, where any word has one;
without one; and without or with capitals only, among words that are all like that, which tells nothing."""
Letters = Literal["digit", "capital", "capitals", "mixed", "lower"]
"""How the letters of one word are written."""


class Token(NamedTuple):
    key: str
    """What must be equal for two words to be one."""
    word: str
    """As it was written, in lower case."""
    mark: Mark | Letters


class Segment(NamedTuple):
    """The words between two punctuation marks."""

    tokens: list[Token]
    before: str
    """The mark before it: "" at the start of the text, "." for any end of a sentence."""
    after: str


_BE: Final = frozenset(listed("is are am be been being"))
_KEPT: Final = frozenset(
    listed("was were had did this has does his its us as")
)  # no plurals; "was" is not "is" any more
_SHORT: Final = {"'re": "be", "'m": "be", "'ve": "have", "'ll": "will", "'d": "'d"}
_IS_AFTER: Final = frozenset(listed("it that he she there what who here where how let"))
_NOT: Final = {"ca": "can", "wo": "will", "sha": "shall", "ai": "be"}
_NO_APOSTROPHE: Final = re.compile("(ca|do|does|did|is|are|was|were|wo|would|should|could|has|have|had)nt")
_DO: Final = frozenset({"do", "does", "did"})

_DECORATION: Final = "🙂😀😃😄😁😊😉🙏😅😂🎉🎊✨🚀❤💙💚💛🔥💡📝📌⭐🌟👀🔔📣📢👋🤖🧠🥳🤔"
_SIGN: Final = (
    "->|<-|=>|[<>=!]=|[<>=~$%°¢£¤¥¬±\u00d7÷\u20a0-\u20cf\u2190-\u22ff]"  # comparisons, currencies, operators
    r"|(?<![\w)])[-+](?=[0-9.$€£])|(?<=\s)[*/^+](?=\s)|(?<=[0-9])['\"\u2032\u2033]|(?<![\w!])!(?=\w)"  # -5, 3 + 4, 6'2", !ready
    f"|(?![{_DECORATION}])[\u2300-\u23ff\u25a0-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff]"  # a red light is not a green one
)
_DIVIDER: Final = r"[.,;:!?()\[\]{}\u2014…|•]|(?<=\s)-+(?=\s)"
_ENDS: Final = frozenset(".!?…")
# After these a word like "confirmed" tells the state of something; after others it repeats what was said.
_STATED: Final = frozenset({"", ":", "-", "--", "\u2014", "|"})
_FILLERS: Final = 16
"""More than so many are no speech, and looking for them would take quadratic time."""
_LEFT: Final = 3
"""So many words must be left when a filler at the end is taken off."""
_THOUSANDS: Final = re.compile("(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")


_CACHED: Final = 1 << 15
_CACHED_LENGTH: Final = 32
_LOUD: Final = 3
"""So many words in capitals in a row of words are no names any more."""


def _pattern(word: str) -> re.Pattern[str]:
    """Words, signs that carry a meaning, and the marks that divide a text. All else is passed over."""
    joint = "(?:[_.@&'/]|(?<=[0-9])[:,](?=[0-9]))"
    return re.compile(
        rf"(?P<word>(?:(?<![\w.])\.(?=[0-9]))?{word}(?:{joint}{word})*(?:\+\+|#)?)|(?P<glyph>[{UNSPACED}]|[{KOREAN}]+)"
        rf"|(?P<sign>{_SIGN})|(?P<divider>{_DIVIDER})"
    )


_ASCII: Final = _pattern("[A-Za-z0-9]+")


@lru_cache(1)
def _any_script() -> re.Pattern[str]:
    return _pattern(rf"[^\W_{UNSPACED}{KOREAN}](?:(?![{UNSPACED}{KOREAN}])[\w{marks()}])*")


def read(text: str) -> list[Segment]:
    """The segments of a text without the fillers at both ends. No segment is empty."""
    segments = [Segment([], "", "")]
    shown = visible(text)
    for piece in (_ASCII if shown.isascii() else _any_script()).finditer(shown):
        part = piece[0]
        if piece.lastgroup == "divider":
            _divide(segments, part)
        elif piece.lastgroup == "word":
            segments[-1].tokens.extend(_remembered(part) if len(part) <= _CACHED_LENGTH else _taken_apart(part))
        else:
            segments[-1].tokens.append(Token(part, part, "lower"))
    return _marked(_without_fillers([segment for segment in segments if segment.tokens]))


def _without_fillers(segments: Sequence[Segment]) -> list[Segment]:
    """What is left between the fillers at both ends. May be nothing."""
    rest = list(segments)
    for _ in range(_FILLERS):
        if not rest:
            break
        first, last = rest[0], rest[-1]
        if is_filler(words(first)):
            del rest[0]
        elif last.before not in _STATED and is_filler(words(last)) and sum(len(s.tokens) for s in rest[:-1]) >= _LEFT:
            del rest[-1]
        elif cut := opening(words(first)):
            rest[0] = first._replace(tokens=first.tokens[cut:])
        elif cut := closing(words(last)):
            rest[-1] = last._replace(tokens=last.tokens[:-cut])
        else:
            break
        rest = [segment for segment in rest if segment.tokens]
    return rest


def words(segment: Segment) -> list[str]:
    return [token.word for token in segment.tokens]


def significant(segment: Segment) -> list[Token]:
    """The words without articles and the like, and without the "do" of "does not"."""
    tokens = segment.tokens
    following = [token.word for token in tokens[1:]] + [""]
    return [
        token
        for token, after in zip(tokens, following, strict=True)
        if token.word not in DROPPED and token.key != "'s" and not (token.word in _DO and after == "not")
    ]


def _divide(segments: list[Segment], mark: str) -> None:
    if mark == "?":
        segments[-1].tokens.append(Token("?", "?", "lower"))
    sign = "." if mark in _ENDS else mark
    if segments[-1].tokens:
        segments[-1] = segments[-1]._replace(after=sign)
        segments.append(Segment([], sign, ""))
    elif segments[-1].before and sign == ".":
        segments[-1] = segments[-1]._replace(before=sign)


def _taken_apart(shown: str) -> tuple[Token, ...]:
    """A word as tokens: mostly one, and two for "don't" and "Bob's"."""
    letters = _letters(shown)
    parts = _parts(shown.casefold())
    return tuple(Token(_key(part), part, "digit" if any(map(str.isnumeric, part)) else letters) for part in parts)


_remembered: Final = lru_cache(_CACHED)(_taken_apart)


def _letters(shown: str) -> Letters:
    if shown == "I" or not any(map(str.isupper, shown)):
        return "lower"
    if any(map(str.isupper, shown[1:])):
        return "mixed" if any(map(str.islower, shown)) else "capitals"
    return "capital"


def _marked(segments: list[Segment]) -> list[Segment]:
    """The segments with what the capitals of each word mean where it stands."""
    for place, segment in enumerate(segments):
        loud = sum(token.mark == "capitals" for token in segment.tokens) >= _LOUD
        starts = place == 0 or segment.before == "."
        for at, token in enumerate(segment.tokens):
            if token.mark not in ("lower", "digit"):
                first = starts and at == 0 and token.mark == "capital"
                mark: Mark = "first" if first else "loud" if loud and token.mark == "capitals" else "name"
                segment.tokens[at] = Token(token.key, token.word, mark)
    if not any(token.mark in ("first", "name") for segment in segments for token in segment.tokens):
        for segment in segments:
            segment.tokens[:] = [
                Token(*token[:2], "quiet") if token.mark == "lower" else token for token in segment.tokens
            ]
    return segments


def _parts(lower: str) -> list[str]:
    """A word with its contraction taken apart, and "1,000" as 1000."""
    if "'" not in lower:
        without = _NO_APOSTROPHE.fullmatch(lower)
        if without:
            return [_NOT.get(without[1], without[1]), "not"]
        if lower == "cannot":
            return ["can", "not"]
        return [_THOUSANDS.sub("", lower)]
    base, _, ending = lower.rpartition("'")
    if ending == "t" and base.endswith("n"):
        return [_NOT.get(base[:-1], base[:-1]), "not"]
    if ending == "s":
        return [base, "is" if base in _IS_AFTER else "'s"]
    return [base, _SHORT["'" + ending]] if "'" + ending in _SHORT else [lower]


def _key(word: str) -> str:
    if word in _BE:
        return "be"
    if word in _KEPT:
        return "was" if word == "were" else "have" if word == "has" else "do" if word == "does" else word
    if word in NUMBERS:
        return NUMBERS[word]
    return inflection(word) if word.isascii() and word.isalpha() else word
