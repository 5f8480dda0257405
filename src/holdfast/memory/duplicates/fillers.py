"""Strip phrases around a fact that say nothing: "FYI", "just a quick reminder:", "by the way".

A list, not a rule: everything else counts as part of the fact. "It was said that", "probably",
"confirmed" and "again" are not in it, because they change a fact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

PAUSES: Final = frozenset((":", ",", "-", ".", ";"))
"""Marks that separate a phrase from the rest."""
_MAX_FILLERS: Final = 16
"""More fillers than this are not natural speech."""


def _phrases(text: str, *, index: int) -> dict[str, list[list[str]]]:
    """Index phrases by their first (0) or last (-1) word, longest first.

    "as mentioned before" must be tried before "as mentioned".
    """
    table: dict[str, list[list[str]]] = {}
    phrases = (phrase.split() for phrase in text.replace("\n", "").split("|"))
    for phrase in sorted(phrases, key=len, reverse=True):
        table.setdefault(phrase[index], []).append(phrase)
    return table


# Followed by a sentence.
_BEFORE_A_SENTENCE: Final = _phrases(
    "fyi|btw|please|just so you know|note that|please note that|also note that|just note that|"
    "it should be noted that|reminder that|a reminder that|just a reminder that|"
    "quick reminder that|just a quick reminder that|friendly reminder that|remember that|"
    "please remember that|just remember that|always remember that|keep in mind that|"
    "please keep in mind that|bear in mind that|please bear in mind that|don't forget that|"
    "do not forget that|please don't forget that|never forget that|be aware that|"
    "please be aware that|i want you to know that|you should know that|for your information|"
    "it turns out that|turns out that|i learned that|i have learned that|we learned that|"
    "i found out that|we found out that|the user said that|the user says that|"
    "the user mentioned that|the user told me that|user said that|user mentioned that",
    index=0,
)
_AROUND: Final = (
    "fyi|btw|please|by the way|for the record|just so you know|so you know|for your information|"
    "for your reference|as mentioned|as mentioned before|as mentioned earlier|"
    "as previously mentioned|as i mentioned|as i said|as noted|as discussed|as discussed before|"
    "as discussed earlier|as we discussed|as previously discussed|per our discussion|"
    "as per our discussion|as you know|note to self|heads up|just a heads up|please note|thanks|"
    "thank you"
)
# Followed by a comma, a colon or another pause.
_BEFORE_A_PAUSE: Final = _phrases(
    _AROUND + "|note|notes|quick note|side note|a quick note|one more thing|one more thing to note|"
    "reminder|a reminder|just a reminder|quick reminder|just a quick reminder|friendly reminder|"
    "remember|please remember|remember this|don't forget|do not forget|keep in mind|"
    "please keep in mind|memo|info|important|very important|important note|important update|"
    "update|quick update|small update|also|ok|okay|hey|hi|hello|hi all|hi team|hi everyone|"
    "hello everyone|hello team|hey team|hi folks|hey folks|hey everyone|good morning|"
    "good morning all|good morning team|good morning folks|good morning everyone|to recap|recap|"
    "in short|as a reminder|it turns out|turns out|quick one|noted|so|well|actually|请记住|請記住|"
    "记住|記住|注意|请注意|請注意|提醒|提醒一下|备注|備註|メモ|参考まで|覚えておいて|ちなみに|"
    "念のため",
    index=0,
)
_AFTER_A_COMMA: Final = _phrases(_AROUND, index=-1)
_AFTER_A_SENTENCE: Final = _phrases(
    _AROUND + "|noted|remember|please remember|please remember this|"
    "remember this|remember that|please remember that|important|this is important|keep it in mind|"
    "keep this in mind|please keep this in mind|please keep in mind|don't forget|do not forget|"
    "don't forget it|don't forget this|cheers|many thanks|thanks a lot|thanks all|thanks everyone",
    index=-1,
)


def trim_fillers(pieces: Sequence[str]) -> tuple[int, int]:
    """Return start and end of the fact in lower-case words and punctuation. It is never empty."""
    start, end = 0, len(pieces)
    for _ in range(_MAX_FILLERS):
        if cut := _count_opening(pieces, start, end):
            start += cut
        elif cut := _count_closing(pieces, start, end):
            end -= cut
        else:
            break
    return start, end


def _count_opening(pieces: Sequence[str], start: int, end: int) -> int:
    """Count the pieces at the front that are a filler."""
    for phrase in _BEFORE_A_PAUSE.get(pieces[start], ()):
        after = start + len(phrase)
        if after + 1 < end and pieces[after] in PAUSES and list(pieces[start:after]) == phrase:
            return len(phrase) + 1
    for phrase in _BEFORE_A_SENTENCE.get(pieces[start], ()):
        after = start + len(phrase)
        if after < end and pieces[after] not in PAUSES and list(pieces[start:after]) == phrase:
            return len(phrase)
    return 0


def _count_closing(pieces: Sequence[str], start: int, end: int) -> int:
    """Count the pieces at the end: in brackets, after a comma, or as a sentence.

    Not after a colon, as in "Answer: thanks".
    """
    bracketed = pieces[end - 1] == ")"
    last = end - 1 if bracketed else end
    if last <= start + 1:
        return 0
    tables = [(",-;", _AFTER_A_COMMA), (".", _AFTER_A_SENTENCE)]
    if bracketed:
        tables = [("(", _AFTER_A_COMMA)]
    for signs, table in tables:
        for phrase in table.get(pieces[last - 1], ()):
            before = last - len(phrase) - 1
            if (
                before > start
                and pieces[before] in signs
                and list(pieces[before + 1 : last]) == phrase
            ):
                return end - before
    return 0
