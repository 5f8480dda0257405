"""Exceptions for the stemmer: irregular forms, words to keep apart, British spellings.

Forms that are more often words of their own ("saw", "bit", "leaves", "lives", "rose") are left out
on purpose.
"""

from __future__ import annotations

from typing import Final

from .words import split_words


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
withhold: withheld; withstand: withstood; wring: wrung; write: wrote written; analysis: analyses;
analyze: analyse analysed analysing; appendix: appendices; axis: axes; bacterium: bacteria;
cactus: cacti; calf: calves; child: children kids kid; crisis: crises; criterion: criteria;
curriculum: curricula; diagnosis: diagnoses; elf: elves; foot: feet; fungus: fungi; goose: geese;
half: halves; hypothesis: hypotheses; index: indices indexes; knife: knives; loaf: loaves; man: men;
matrix: matrices; medium: media; mouse: mice; oasis: oases; ox: oxen; parenthesis: parentheses;
person: people persons; phenomenon: phenomena; pie: pies; potato: potatoes; quiz: quizzes;
scarf: scarves; self: selves; shelf: shelves; shoe: shoes; stimulus: stimuli; synthesis: syntheses;
thesis: theses; thief: thieves; tomato: tomatoes; toe: toes; tooth: teeth; vertex: vertices;
wife: wives; wolf: wolves; woman: women
""")

# Words that the rules would confuse with others: importance with imports, experiments with
# experience. From the form after plural and tense (y is i after a plural) to the stem to use
# instead.
APART: Final = _forms("""
analyz: analysi; animal: animal; authority: authority authoriti; business: business;
capital: capital; community: community communiti; continent: continent; department: department;
evening: evening; experiment: experiment experimental; general: general generally generalli;
generation: generation; generous: generous; hospital: hospital;
important: important importance importantly; international: international; morning: morning;
news: news; organic: organic; organization: organization organize organizer organizational;
physics: physics; politics: political politics politician; positive: positive;
productive: productive productivity; relative: relative; several: several; universal: universal;
university: university universiti; wedding: wedding
""")

BRITISH: Final = {
    **{
        word + "our": word + "or"
        for word in split_words(
            "arm behavi col endeav fav flav harb hon hum lab neighb od parl rum sav val vap vig"
        )
    },
    **{
        word + "is": word + "iz"
        for word in split_words(
            "apolog author categor character critic emphas energ final general initial legal "
            "local maxim minim modern mobil normal optim organ popular priorit privat random real "
            "recogn special stabil standard summar symbol sympath synchron util visual capital "
            "central custom digital monet"
        )
    },
}
