"""Reduce words to stems, so that "the plans she made" finds "planning" and "make".

The rules are those of Snowball, for the languages it knows. English has irregular forms and British
spellings on top, and a few words that the rules would merge although they mean different things.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from Stemmer import Stemmer


def _forms(table: str) -> dict[str, str]:
    """Parse "base: form form; base: form ..." into a dict from each form to its base."""
    pairs = (entry.split(":") for entry in table.split(";"))
    return {form: base.strip() for base, forms in pairs for form in forms.split()}


IRREGULAR: Final = _forms("""
arise: arose arisen; awake: awoke awoken; bear: borne; beat: beaten; become: became;
begin: began begun; bend: bent; bid: bade bidden; bind: bound; bite: bitten; bleed: bled;
blow: blew blown; break: broke broken; breed: bred; bring: brought; broadcast: broadcasted;
build: built; burn: burnt; buy: bought; catch: caught; choose: chose chosen; cling: clung;
come: came; creep: crept; deal: dealt; die: died dies dying; dig: dug; do: did done does;
draw: drew drawn; dream: dreamt; drink: drank drunk; drive: drove driven; eat: ate eaten;
fall: fell fallen; feed: fed; feel: felt; fight: fought; find: found; flee: fled;
fly: flew flown flies; forbid: forbade forbidden; forecast: forecasted; forget: forgot forgotten;
forgive: forgave forgiven; freeze: froze frozen; get: got gotten; give: gave given;
go: went gone goes; grow: grew grown; hang: hung; have: has had; hear: heard; hide: hid hidden;
hold: held; keep: kept; kneel: knelt; know: knew known; lay: laid; lead: led; lean: leant;
learn: learnt; leap: leapt; leave: left; lend: lent; lie: lain lied lies lying; light: lit;
lose: lost; make: made; mean: meant; meet: met; mistake: mistook mistaken; overcome: overcame;
oversee: oversaw overseen; pay: paid; prove: proven; quit: quitted; rebuild: rebuilt; repay: repaid;
rewrite: rewrote rewritten; ride: rode ridden; ring: rang rung; rise: risen; run: ran; say: said;
see: seen; seek: sought; sell: sold; send: sent; sew: sewn; shake: shook shaken; shine: shone;
shoot: shot; show: shown; shrink: shrank shrunk; sing: sang sung; sink: sank sunk; sit: sat;
sleep: slept; slide: slid; smell: smelt; sow: sown; speak: spoke spoken; speed: sped; spell: spelt;
spend: spent; spill: spilt; spin: spun; spoil: spoilt; spring: sprang sprung; stand: stood;
steal: stole stolen; stick: stuck; sting: stung; strike: struck stricken; strive: strove striven;
swear: swore sworn; sweep: swept; swell: swollen; swim: swam swum; swing: swung; take: took taken;
teach: taught; tear: tore torn; tell: told; think: thought; throw: threw thrown;
tie: ties tied tying; tread: trod trodden; undergo: underwent undergone; understand: understood;
undertake: undertook undertaken; upset: upsetting; use: used uses using; wake: woke woken;
wear: wore worn; weave: wove woven; weep: wept; win: won winning; withdraw: withdrew withdrawn;
withhold: withheld; withstand: withstood; wring: wrung; write: wrote written; analysis: analyses
analyze analyse analyzed analysed analyzing analysing; appendix: appendices; axis: axes; bacterium:
bacteria; cactus: cacti; calf: calves; child: children kids kid; crisis: crises; criterion:
criteria; curriculum: curricula; diagnosis: diagnoses; elf: elves; foot: feet; fungus: fungi; goose:
geese; half: halves; hypothesis: hypotheses; index: indices indexes; knife: knives; loaf: loaves;
man: men; matrix: matrices; medium: media; mouse: mice; oasis: oases; ox: oxen; parenthesis:
parentheses; person: people persons; phenomenon: phenomena; pie: pies; potato: potatoes; quiz:
quizzes; scarf: scarves; self: selves; shelf: shelves; shoe: shoes; stimulus: stimuli; synthesis:
syntheses; thesis: theses; thief: thieves; tomato: tomatoes; toe: toes; tooth: teeth; vertex:
vertices; wife: wives; wolf: wolves; woman: women
""")

# Words that the rules would confuse with others, like importance with imports, or experiments with
# experience. Maps the singular to the stem to use.
APART: Final = _forms("""
authority: authority authoritie; business: business businesse; capital: capital;
continent: continent; department: department; experiment: experiment experimental;
hospital: hospital; important: important importance importantly; morning: morning;
positive: positive positively; productive: productive productively productivity;
relative: relative relatively; several: several; wedding: wedding
""")


MAX_WORD_CHARS: Final = 64
CACHE_WORDS: Final = 1 << 15

# "organise" and "organize", "colour" and "color" are one word; "hour" and "size" stay as they are.
_IZE: Final = re.compile("(?<=[a-z]{2}[a-z])iz(?=(?:e|ed|es|er|ers|ing|ation|ations)$)")
_OUR: Final = re.compile("(?<=[a-z]{2})our")
_PLURAL_OF_INITIALS: Final = re.compile("([b-df-hj-np-tv-xz]{2,})s")
_SCRIPTS: Final = (
    ("\u0370", "\u03ff", "greek"),
    ("\u0400", "\u04ff", "russian"),
    ("\u0530", "\u058f", "armenian"),
    ("\u0600", "\u06ff", "arabic"),
    ("\u0900", "\u097f", "hindi"),
    ("\u0b80", "\u0bff", "tamil"),
)


@lru_cache(CACHE_WORDS)
def stem(word: str, language: str = "") -> str:
    """Return the stem of a lower-case word. It need not be a word itself.

    Without a language, the script decides; Latin letters are taken as English.
    """
    language = language or _language_of_script(word)
    if language == "english":
        word = _OUR.sub("or", _IZE.sub("is", IRREGULAR.get(word, word)))
        if initials := _PLURAL_OF_INITIALS.fullmatch(word):  # LLMs
            return initials[1]
    if not language or not 3 <= len(word) <= MAX_WORD_CHARS:
        return word
    found: str = _new_stemmer(language).stemWord(word)
    return APART.get(word.removesuffix("s"), found) if language == "english" else found


def _new_stemmer(language: str) -> Stemmer:
    """Return a stemmer of this call's own: one serves a single thread at a time.

    A new one takes two microseconds, and a lock could stay locked in a forked child.
    """
    import Stemmer  # only what reads words needs it

    return Stemmer.Stemmer(language, 0)


def _language_of_script(word: str) -> str:
    if word.isascii():
        return "english"
    return next((name for first, last, name in _SCRIPTS if first <= word[:1] <= last), "")
