"""Paragraphs and documents for the labelled set, made from templates, and questions about them.

A paragraph is about one place and one thing that was built, bought or found there; a document has a
section for each of many places. The same words occur in all of them, so only the right combination
answers a question. Questions ask as people do: in another form of the word ("Who sold ...?" about
"the seller"), with a number in digits, a date in another order, a name without its umlaut.
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from itertools import product
from typing import Final

from . import Memory, Question

SEED: Final = 24
START: Final = datetime(2025, 1, 6, 9, tzinfo=timezone.utc)

PLACES: Final = (
    "Karsholm", "Brackwater", "Ellery Ford", "Tornby", "Müllerstadt", "Vesterlund", "Oakhythe",
    "Sable Quay", "Grünwald", "Penmarrow", "Hollin Cross", "Ravnsund", "Duneport", "Istermoor",
    "Calder Heath", "Wexcombe", "Aldermouth", "Birkenfeld", "Crowsand", "Elmsworth", "Fennick",
    "Garholt", "Harrowmere", "Junipera", "Kestrel Bay", "Lindhaven", "Morwick", "Norrstrand",
    "Polgarth", "Quillon", "Stavely", "Thornehill",
)  # fmt: skip
PEOPLE: Final = (
    "Imogen Vale", "Sander Brandt", "Wren Castell", "Duarte Pires", "Nils Oberg", "Petra Kühn",
    "Amina Saleh", "Tobias Grell", "Lucía Ferrer", "Hana Novak", "Rufus Okoro", "Greta Lindqvist",
)  # fmt: skip
THINGS: Final = (
    ("footbridge", "timber", "the river", "walkers"),
    ("bakery", "brick", "the market square", "commuters"),
    ("clinic", "concrete", "the ring road", "patients"),
    ("observatory", "steel", "the ridge", "visitors"),
    ("library", "sandstone", "the old harbour", "readers"),
    ("greenhouse", "glass", "the allotments", "gardeners"),
    ("ferry pier", "oak", "the estuary", "passengers"),
    ("windmill", "slate", "the northern fields", "farmers"),
)
NUMBERS: Final = ("three", "four", "five", "six", "seven", "eight", "nine", "eleven", "twelve")
MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
)  # fmt: skip
# A fact, and the question about it. The words of the question are other forms of the fact's; it
# names the thing, and not the place.
FACTS: Final = (
    ("{person} sold the plot to the parish for {n} thousand crowns and a share of the timber.",
     "Which seller of plots {where} got {d} thousand?"),
    ("The keys were taken by {person}, who has kept them there since {month} {day}, {year}.",
     "Who keeps keys taken over {where} on {day} {month} {year}?"),
    ("{person} drew the plans and chose {stuff} because it had stood well in the flood of {year}.",
     "Which drawings {where} were choosing {stuff} that stands in floods?"),
    ("It was paid for by {person}, who gave {n} yearly sums and wrote each cheque by hand.",
     "Who is giving {d} sums and writing cheques {where}?"),
    ("A storm tore off the roof and {person} led the crew that rebuilt it within {n} weeks.",
     "Who leads the rebuilding of a torn roof {where} in {d} weeks?"),
    ("{person} found a cellar beneath the floor, which had been hidden since the fire of {year}.",
     "Who is finding what the fire hid {where}?"),
)  # fmt: skip
FILLERS: Final = (
    "The committee met twice that season and agreed on most points without a vote.",
    "Traffic along {near} was counted on two mornings, and the figures were filed.",
    "Several {users} wrote in to say that the entrance was hard to see after dark.",
    "The {stuff} was inspected again in {month} and found to be sound apart from minor wear.",
    "A small exhibition about the {thing} was shown in the town hall, with old photographs.",
    "Insurance was renewed on the usual terms, and the caretaker's hours stayed as they were.",
    "Costs for heating and light were a little lower than in the year before.",
    "Volunteers from the school cleared leaves and repainted the railings on a Saturday.",
    "The council asked for a second quotation before any further work is started.",
    "Some of the older residents remember the {thing} as it looked before the road was widened.",
)


class _Case:
    """One place and thing with its facts, as sentences and as questions."""

    def __init__(self, rng: random.Random, place: str, thing: tuple[str, str, str, str]) -> None:
        names = dict(zip(("thing", "stuff", "near", "users"), thing, strict=True), place=place)
        self.lead = (
            "The {thing} in {place} stands by {near} and is used by {users} all year.".format(
                **names
            )
        )
        self.facts: list[tuple[str, str]] = []
        for fact, question in rng.sample(FACTS, 3):
            n = rng.randrange(len(NUMBERS))
            values = names | {
                "where": f"for a {thing[0]}",
                "person": rng.choice(PEOPLE),
                "n": NUMBERS[n],
                "d": str(12 if NUMBERS[n] == "twelve" else 11 if NUMBERS[n] == "eleven" else n + 3),
                "month": rng.choice(MONTHS),
                "day": str(rng.randrange(1, 29)),
                "year": str(rng.randrange(1931, 1999)),
            }
            self.facts.append((fact.format(**values), question.format(**values)))
        self.fillers = [one.format(**names, month=rng.choice(MONTHS)) for one in FILLERS]

    def paragraph(self, rng: random.Random, fact: int, fillers: int) -> str:
        inner = [self.facts[fact][0], *rng.sample(self.fillers, fillers)]
        rng.shuffle(inner)
        return " ".join([self.lead, *inner])


def _cases(rng: random.Random) -> list[_Case]:
    pairs = list(product(PLACES, THINGS))
    rng.shuffle(pairs)
    return [_Case(rng, place, thing) for place, thing in pairs]


def paragraphs() -> tuple[list[Memory], list[Question]]:
    """Return paragraphs of some eighty words, three for each place and thing, and questions."""
    rng = random.Random(SEED)
    told, asked = [], []
    for at, case in enumerate(_cases(rng)):
        for fact, (_, question) in enumerate(case.facts):
            name = f"paragraph/{at}#{fact + 1}"
            told.append(_memory(name, f"paragraph/{at}", len(told), case.paragraph(rng, fact, 4)))
            asked.append(Question(question, "paragraph", (name,)))
    return told, rng.sample(asked, 120)


def documents() -> tuple[list[Memory], list[Question]]:
    """Return documents of about a thousand words, with a section for each of four places."""
    rng = random.Random(SEED + 1)
    told, asked = [], []
    cases = _cases(rng)
    for at in range(0, len(cases), 4):
        name, sections = f"document/{at // 4}#1", []
        for case in cases[at : at + 4]:
            sections += [case.paragraph(rng, fact, 5) for fact in range(len(case.facts))]
            asked += [Question(question, "document", (name,)) for _, question in case.facts]
        told.append(_memory(name, name.partition("#")[0], len(told), "\n\n".join(sections)))
    return told, rng.sample(asked, 120)


def _memory(name: str, source: str, at: int, text: str) -> Memory:
    return Memory(name, source, START + timedelta(hours=at), "model", (), text)
