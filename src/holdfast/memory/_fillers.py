"""Words that people and models put around a fact without changing it: "FYI", "just a quick reminder:", "as discussed".

Such a word is only a filler at the edge of a text. In the middle it may be what the text says: that Alice learned
Spanish is not that Alice discussed Spanish.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ._words import listed

DROPPED: Final = frozenset(
    listed("a an the that really actually also please btw fyi indeed basically literally truly very quite")
)
"""Left out wherever they stand."""

_WEAK: Final = frozenset(
    listed("""
fyi btw note notes noted noting reminder reminders remember remembering remind recall please also again just really
actually confirmed confirming confirmation update important importantly know learned learnt discussed mentioned mentioning
said saying agreed info information memo memory fact facts recap summary summarizing attention aware mind forget thanks
thank cheers ok okay sure yes yep yeah indeed basically anyway anyways context heads reference awareness observation
discovered insight tip according clear hint ps nb psa clarify clarifying restating repeating repeat stated
""")
)
_GLUE: Final = frozenset(
    listed("""
a an the this that it is be to of for in on as per by with at so and i we you our your my me us all everyone everybody team
folks guys here there one more thing another quick quickly small little short brief new side self last earlier before
previously once assistant friendly gentle final key point points keep keeping bear out worth good way up what already first second hey
hi hello oh well now today agent user got above
""")
)
# Before "that" more goes, because what follows is a sentence of its own: "I wanted to mention that ...".
_WEAK_BEFORE_THAT: Final = frozenset(
    listed("""
note noted noting reminder remember remind recall know learned learnt discussed mentioned mention mentioning said agreed fact
aware mind forget fyi discovered confirmed turns clarify repeat saying update known clear
""")
)
_GLUE_BEFORE_THAT: Final = (
    _GLUE | _WEAK | frozenset(listed("was should must want wanted would like let do have had has been"))
)
_LONGEST: Final = 12


def _phrases(text: str, *, under: int) -> dict[str, list[list[str]]]:
    """Phrases under their first or last word, longest first: "as discussed earlier" is not "as discussed"."""
    table: dict[str, list[list[str]]] = {}
    for phrase in sorted((phrase.split() for phrase in text.split("|")), key=len, reverse=True):
        table.setdefault(phrase[under], []).append(phrase)
    return table


# These need no comma after them, or before them.
_AROUND: Final = (
    "fyi|btw|please|by the way|for the record|just so you know|for your information|as discussed|as mentioned|as noted|"
    "as you know|as agreed|as we discussed|as i said|as i mentioned|as previously discussed|as previously mentioned|"
    "as mentioned before|as discussed earlier|as mentioned earlier|as per our discussion|per our discussion"
)
_IN_FRONT: Final = _phrases(
    _AROUND + "|ok|okay|also|actually|really|remember|remember to|keep in mind|please keep in mind|do not forget|"
    "do not forget to|never forget|please note|please remember|just a reminder|quick reminder|heads up|it turns out|"
    "turns out|to recap|in summary|in short|once again|as a reminder",
    under=0,
)
_BEHIND: Final = _phrases(_AROUND, under=-1)

_UNSPACED: Final = frozenset(
    listed(
        "请记住 請記住 记住 記住 注意 请注意 請注意 提醒 提醒一下 备注 備註 重要 确认 確認 更新 メモ 参考まで 覚えておいて ちなみに 念のため"
    )
)


def is_filler(words: Sequence[str], weak: frozenset[str] = _WEAK, glue: frozenset[str] = _GLUE) -> bool:
    """Whether a piece of text between two punctuation marks says nothing."""
    if len(words) > _LONGEST:
        return False
    if "".join(words) in _UNSPACED:
        return True
    if "forget" in words:  # "never forget that" is a filler, "forget that" takes something back
        rest = [word for word in words if word not in ("do", "not", "never")]
        return not {"not", "never"}.isdisjoint(words) and all(word in weak or word in glue for word in rest)
    return any(word in weak for word in words) and all(word in weak or word in glue for word in words)


def opening(words: list[str]) -> int:
    """How many words at the front are a filler, without punctuation after it: "I learned that", "FYI"."""
    front = words[:_LONGEST]
    if "that" in front:
        at = front.index("that")
        if is_filler(front[:at], _WEAK_BEFORE_THAT, _GLUE_BEFORE_THAT):
            return at + 1
    known = _IN_FRONT.get(front[0], ())
    return next((len(phrase) for phrase in known if front[: len(phrase)] == phrase), 0)


def closing(words: list[str]) -> int:
    """How many words at the end are one."""
    known = _BEHIND.get(words[-1], ())
    return next((len(phrase) for phrase in known if words[-len(phrase) :] == phrase), 0)


LIMITING: Final = frozenset(
    listed("""
not no never none nobody nothing neither nor without unless except excluding only but or if when whenever while until till
before after since during from with than against instead because although though despite whether where who whose which
in on at to of by for over under above below between into out off up down through via within outside inside near about around as per
can could will would shall should may might must was were had used cannot ought
maybe perhaps possibly probably likely unlikely hypothetically allegedly supposedly rarely seldom hardly barely sometimes often
usually always almost nearly otherwise else stop stopped longer anymore ago
false wrong untrue incorrect myth rumor rumour draft proposed proposal planned tentative tentatively idea question option
alternative cancelled canceled deprecated outdated obsolete old former formerly previously past expired rejected declined
failed postponed delayed denied disputed retracted corrected correction undone reverted revoked removed deleted
assuming provided given supposing permitting failing barring pending
nicht kein keine nie ne pas jamais sans nunca sin non mai senza não nao nem sem niet geen nooit inte aldrig ikke aldri aber sauf
""")
)
"""Words that make a longer text say something else, or less, than the shorter one inside it."""
