"""Word lists: English stop words, general words, numbers, units."""

from __future__ import annotations

from typing import Final


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
"""Not indexed and not searched. Negations, numbers and verbs with a meaning are not in it."""

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
"""In capitals they are names, not stop words."""

UNITS: Final = frozenset(
    split_words(
        "am pm km kg mg mm cm ft lb lbs oz ml ms min hr hrs kb mb gb tb hz mhz ghz kw usd eur gbp"
    )
)
"""After digits they are a separate word: "5pm" is "5 pm"."""

GENERAL_WORDS: Final = frozenset(
    split_words("""
thing things stuff something anything everything kind kinds sort sorts type types way ways lot lots
tell say mention talk discuss describe explain ask answer know think get make happen involve include
many much various different certain specific particular general detail information info example
recently currently usually mainly exactly
""")
)
"""Words that form a question rather than say what it is about."""
