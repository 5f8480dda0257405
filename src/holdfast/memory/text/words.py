"""Word lists (stop words, numbers, units), and the language of a text by its small words.

The small words are of languages in Latin letters that the stemmer knows: "der" and "nicht" are
German. They are written without accents, as they are compared. Those that are ordinary English
words, like "war", are left out.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from typing import Final

from .characters import normalize_for_search


def split_words(text: str) -> list[str]:
    """Split a table written as text into words."""
    return text.split()


STOP: Final = frozenset(
    split_words("""
a an the this that these those
i me my mine myself you your yours yourself yourselves we us our ours ourselves he him his himself
she her hers herself
it its itself they them their theirs themselves someone somebody anyone anybody everyone everybody
who whom whose which what whatever when where why how whether
am is are was were be been being do does did doing done have has had having
can could will would shall should might must ought
of in on at by for with about against between among into onto through during before after above
below over under to
from up down out off upon within along across around toward towards behind beside besides beyond
near per via since until
till than as
and or but if because while although though unless so then else thus hence therefore
here there now just also too very quite rather really actually again once ever even still yet
already only
some any all both each every either such own same other others another more most less least
eg ie etc vs
im ive youre youve youll hes shes weve theyre theyve thats whats lets
yes yeah ok okay oh hey hi hello please
""")
)
"""Words that are neither indexed nor searched. Negations, numbers and most verbs are not here."""

NEGATED: Final = frozenset(
    split_words(
        "cannot cant dont doesnt didnt isnt arent wasnt werent wont wouldnt shouldnt couldnt "
        "hasnt havent hadnt aint"
    )
)
"""An auxiliary verb and "not" in one word."""

NUMBERS: Final = {
    word: str(number)
    for number, word in enumerate(
        split_words("zero one two three four five six seven eight nine ten eleven twelve")
    )
}

SPELLED_LIKE_STOP_WORDS: Final = frozenset({"US", "IT", "WHO"})
"""In capitals, these are names, not stop words."""

UNITS: Final = frozenset(
    split_words(
        "am pm km kg mg mm cm ft lb lbs oz ml ms min hr hrs kb mb gb tb hz mhz ghz kw usd eur gbp"
    )
)
"""After digits, these are separate words: "5pm" is "5 pm"."""

GENERAL_WORDS: Final = frozenset(
    split_words("""
thing things stuff something anything everything kind kinds sort sorts type types way ways lot lots
tell say mention talk discuss describe explain ask answer know think get make happen involve include
many much various different certain specific particular general detail information info example
recently currently usually mainly exactly
""")
)
"""Words that shape a question rather than say what it is about."""


_SMALL_WORDS: Final = {
    "german": "der die das den dem ein eine einen einem einer eines und oder aber ist sind wird "
    "wurde werden hat haben nicht kein keine mit von zu zum zur fur auf aus bei nach uber unter "
    "vor ich du er sie wir ihr mein meine sein seine wer wann wo wie warum welche welcher welches "
    "dass noch auch nur sich um gegen jede jeder jeden",
    "spanish": "el la los las un una de del es son fue esta estan con para por en sobre yo ella "
    "nosotros ellos mi su sus que quien cuando donde cuanto cuantos cual como se lo muy tiene "
    "fueron",
    "french": "l d qu le la les un une de du et ou est sont etait ont pas ne avec dans sur sous "
    "chez je tu il elle nous vous ils elles mon ma mes son sa ses leur qui que quoi quand combien "
    "pourquoi quel quelle quels quelles au aux ce cette ces",
    "italian": "il lo la gli un una di del della dei ed sono con nel nella sul io tu lui lei noi "
    "loro mio mia suo sua che chi quando dove quanto quale perche non si ha hanno",
    "portuguese": "os um uma de da dos das sao foi com para por em na nao eu ele ela nos eles "
    "meu minha seu sua que quem quando onde quanto qual como tem ao",
    "dutch": "de het een en van zijn wordt werd heeft hebben niet geen met voor op uit bij naar "
    "ik jij hij zij wij mijn haar wie wanneer waar hoe waarom welke dat ook nog",
    "swedish": "en ett och ar var har inte med pa av fran jag du han hon vi min sin vem nar hur "
    "varfor vilken som det den de",
    "danish": "en et og er var har ikke med pa af til fra jeg du han hun vi min sin hvem hvornar "
    "hvor hvordan hvorfor hvilken som det den de",
    "polish": "na nie jest sa byl byla od dla po sie ja ty ona kto kiedy gdzie jak dlaczego "
    "ktory ktora jaki jaka co ma ten ta",
    "turkish": "ve bir bu ile icin degil mi ben sen biz onlar kim ne zaman nerede nasil neden "
    "hangi var yok daha cok",
    "finnish": "ja ei oli ovat mina sina han kuka milloin missa miten miksi mika joka kanssa myos",
    "hungarian": "az egy es nem van volt en te mi ki mikor hol hogyan miert melyik hogy meg",
}
_LANGUAGES: Final[dict[str, list[str]]] = {}
for _name, _words in _SMALL_WORDS.items():
    for _word in _words.split():
        _LANGUAGES.setdefault(_word, []).append(_name)
_WORD: Final = re.compile(r"[^\W\d_]+")
_MAX_CHARS: Final = 600
"""The start of a text tells its language."""


@lru_cache(256)
def guess_language(text: str) -> str:
    """Return the language of a text as the stemmer names it; "" for English, or without a sign.

    A sign is more of a language's small words than of English ones: two, or one and an accent.
    """
    start = text[:_MAX_CHARS].lower()
    if start.isascii() and "'" not in start and _LANGUAGES.keys().isdisjoint(start.split()):
        return ""
    found: Counter[str] = Counter()
    english = 0
    for word in _WORD.findall(normalize_for_search(start)):
        english += word in STOP
        found.update(_LANGUAGES.get(word, ()))
    name, count = found.most_common(1)[0] if found else ("", 0)
    return name if count > max(english, text.isascii()) else ""


def small_words(*languages: str) -> frozenset[str]:
    """Return the small words of these languages, without accents."""
    return frozenset(word for name in languages for word in _SMALL_WORDS[name].split())


def is_small_word(word: str, language: str) -> bool:
    """Whether a word, with punctuation or without, says little in that language."""
    found = _WORD.findall(normalize_for_search(word).lower())
    return len(found) == 1 and language in _LANGUAGES.get(found[0], ())
