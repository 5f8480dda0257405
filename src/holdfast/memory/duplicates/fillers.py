"""Phrases that people and models put around a fact and that say nothing: "FYI", "just a quick reminder:", "by the way".

A list, not a rule: whatever is not in it counts as part of the fact. "It was said that", "probably", "confirmed" and "again" are
not in it, because a fact with one of them is another fact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

PAUSES: Final = frozenset((":", ",", "-", ".", ";"))
"""What sets a phrase apart from the rest."""
_MOST: Final = 16
"""More than so many are no speech."""


def _phrases(text: str, *, under: int) -> dict[str, list[list[str]]]:
    """Phrases under their first or last word, longest first: "as mentioned before" is not "as mentioned"."""
    table: dict[str, list[list[str]]] = {}
    phrases = (phrase.split() for phrase in text.replace("\n", "").split("|"))
    for phrase in sorted(phrases, key=len, reverse=True):
        table.setdefault(phrase[under], []).append(phrase)
    return table


# What follows is a sentence of its own.
_BEFORE_A_SENTENCE: Final = _phrases(
    "fyi|btw|please|just so you know|note that|please note that|also note that|just note that|it should be noted that|"
    "reminder that|a reminder that|just a reminder that|quick reminder that|just a quick reminder that|friendly reminder that|"
    "remember that|please remember that|just remember that|always remember that|keep in mind that|please keep in mind that|"
    "bear in mind that|please bear in mind that|don't forget that|do not forget that|please don't forget that|never forget that|"
    "be aware that|please be aware that|i want you to know that|you should know that|for your information|"
    "it turns out that|turns out that|i learned that|i have learned that|we learned that|i found out that|we found out that|"
    "the user said that|the user says that|the user mentioned that|the user told me that|user said that|user mentioned that",
    under=0,
)
_AROUND: Final = (
    "fyi|btw|please|by the way|for the record|just so you know|so you know|for your information|for your reference|"
    "as mentioned|as mentioned before|as mentioned earlier|as previously mentioned|as i mentioned|as i said|as noted|"
    "as discussed|as discussed before|as discussed earlier|as we discussed|as previously discussed|per our discussion|"
    "as per our discussion|as you know|note to self|heads up|just a heads up|please note|thanks|thank you"
)
# Before a comma or a colon.
_BEFORE_A_PAUSE: Final = _phrases(
    _AROUND
    + "|note|notes|quick note|side note|a quick note|one more thing|one more thing to note|reminder|a reminder|"
    "just a reminder|quick reminder|just a quick reminder|friendly reminder|remember|please remember|remember this|"
    "don't forget|do not forget|keep in mind|please keep in mind|memo|info|important|very important|important note|important update|"
    "update|quick update|small update|also|ok|okay|hey|hi|hello|hi all|hi team|hi everyone|hello everyone|hello team|hey team|"
    "hi folks|hey folks|hey everyone|good morning|good morning all|good morning team|good morning folks|good morning everyone|"
    "to recap|recap|in short|as a reminder|it turns out|turns out|quick one|noted|so|well|actually|"
    "请记住|請記住|记住|記住|注意|请注意|請注意|提醒|提醒一下|备注|備註|メモ|参考まで|覚えておいて|ちなみに|念のため",
    under=0,
)
_AFTER_A_COMMA: Final = _phrases(_AROUND, under=-1)
_AFTER_A_SENTENCE: Final = _phrases(
    _AROUND
    + "|noted|remember|please remember|please remember this|remember this|remember that|please remember that|"
    "important|this is important|keep it in mind|keep this in mind|please keep this in mind|please keep in mind|"
    "don't forget|do not forget|don't forget it|don't forget this|cheers|many thanks|thanks a lot|thanks all|thanks everyone",
    under=-1,
)


def between_fillers(pieces: Sequence[str]) -> tuple[int, int]:
    """Where the fact begins and ends in words and punctuation marks, all in lower case. Something is always left."""
    start, end = 0, len(pieces)
    for _ in range(_MOST):
        if cut := _opening(pieces, start, end):
            start += cut
        elif cut := _closing(pieces, start, end):
            end -= cut
        else:
            break
    return start, end


def _opening(pieces: Sequence[str], start: int, end: int) -> int:
    """How many pieces at the front are a filler."""
    for phrase in _BEFORE_A_PAUSE.get(pieces[start], ()):
        after = start + len(phrase)
        if after + 1 < end and pieces[after] in PAUSES and list(pieces[start:after]) == phrase:
            return len(phrase) + 1
    for phrase in _BEFORE_A_SENTENCE.get(pieces[start], ()):
        after = start + len(phrase)
        if after < end and pieces[after] not in PAUSES and list(pieces[start:after]) == phrase:
            return len(phrase)
    return 0


def _closing(pieces: Sequence[str], start: int, end: int) -> int:
    """How many at the end: in brackets, after a comma, or as a sentence. Not after a colon: "Answer: thanks"."""
    bracketed = pieces[end - 1] == ")"
    last = end - 1 if bracketed else end
    if last <= start + 1:
        return 0
    tables = (
        [("(", _AFTER_A_COMMA)]
        if bracketed
        else [(",-;", _AFTER_A_COMMA), (".", _AFTER_A_SENTENCE)]
    )
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
