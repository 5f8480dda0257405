"""Two-hop questions: one memory says who or what is meant, another one has the answer.

"What does the person who signs the orders say about the budget?" is answered by "Ines Albrecht
signs the orders" and what Ines Albrecht says about the budget; and fourteen others say something
about it, too. Half are such tables of people, half are written one by one: companies, machines,
codes, and other languages.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Final

from . import Memory, Question

START: Final = datetime(2025, 6, 2, 9, tzinfo=timezone.utc)

ROLES: Final = {
    "Ines Albrecht": "signs the orders",
    "Bertil Sand": "runs the warehouse in Oslo",
    "Chiara Monti": "answers the complaints",
    "Dov Peretz": "drives the blue truck",
    "Edith Rao": "keeps the keys of the archive",
    "Fabrice Nolet": "negotiates the leases",
    "Gudrun Hale": "trains the apprentices",
    "Hiro Tanabe": "maintains the payroll software",
    "Isla Boyd": "chairs the works council",
    "Jakub Wren": "inspects the cranes",
    "Kamala Iyer": "designs the brochures",
    "Lars Ostby": "checks the invoices from abroad",
    "Mina Farah": "translates the contracts",
    "Noel Baptiste": "audits the travel expenses",
    "Olga Dmitrieva": "buys the packaging",
}
TOPICS: Final = {
    "budget": (
        "{} finds the budget too tight.", "{} wants a tenth of the budget kept back.",
        "{} has no objection to the budget.", "{} asked for a second look at the budget.",
        "The budget should be split by quarter, {} said.",
    ),
    "relocation": (
        "{} is against the relocation.", "{} would start the relocation in spring.",
        "The relocation is overdue, according to {}.", "{} fears that the relocation costs staff.",
        "{} offered to help with the relocation.",
    ),
    "holiday rota": (
        "{} prefers the holiday rota of last year.", "{} found two mistakes in the holiday rota.",
        "{} swapped a week in the holiday rota.", "The holiday rota suits {} well.",
        "{} wants the holiday rota online.",
    ),
    "canteen": (
        "{} misses soup in the canteen.", "{} thinks that the canteen closes too early.",
        "{} praised the canteen.", "The canteen is too loud for {}.",
        "{} never eats in the canteen.",
    ),
}  # fmt: skip
ASKED: Final = (
    "What does the person who {0} say about the {1}?",
    "What is the opinion on the {1} of the colleague who {0}?",
    "How does the one who {0} see the {1}?",
)

# Each: the memory that names it, the one that answers, the question, and what is similar.
CHAINS: Final = (
    ("The valves come from Torvik AB.", "Torvik AB delivers on Thursdays before noon.",
     "On which days does the supplier of the valves deliver?",
     ("Marlow Metals delivers on Mondays.", "Pellan delivers when the depot is open.")),
    ("The boiler in hall 3 has the serial number KX-4471.",
     "KX-4471 was serviced by a technician from Brandon's in March.",
     "Who serviced the boiler in hall 3?",
     ("KX-4409 was serviced in May by our own people.", "The lift was serviced in April.")),
    ("Our landlord at the harbour is Fenwick Estates.",
     "Fenwick Estates wants three months of notice.",
     "How much notice does the landlord at the harbour want?",
     ("Notice for the copier is six weeks.", "Aldana wants notice in writing.")),
    ("The project for the tax office is called \"Heron\".", "Heron is four weeks late.",
     "How late is the project for the tax office?",
     ("Bluebell is two weeks late.", "The train was an hour late again.")),
    ("Complaints about noise go to Odile Marchetti.",
     "Odile Marchetti is on leave until the ninth, and Piet stands in.",
     "Who stands in for the person who gets complaints about noise?",
     ("Rosa stands in for Hakim at the desk.", "The agency stands in for the porter.")),
    ("Claim 58213377 is about the flooded cellar in Wick Lane.",
     "For 58213377 the assessor comes on the second of May.",
     "When does the assessor come for the flooded cellar?",
     ("The assessor comes in June for the roof.", "For 58213001 the assessor has been there.")),
    ("The new intern in the lab is Teodor Blum.",
     "Teodor Blum is allergic to latex gloves.",
     "What is the new intern in the lab allergic to?",
     ("Petra is allergic to pollen.", "The cook is allergic to celery.")),
    ("Refunds above 500 euros are approved by Zelda Quinn.",
     "Zelda Quinn works from Lisbon on Fridays.",
     "Where does the approver of refunds above 500 euros work on Fridays?",
     ("Sami works from home on Fridays.", "On Fridays we work until three.")),
    ("The backup job runs on host db-07.", "On db-07 the disk is ninety percent full.",
     "How full is the disk of the host that runs the backup job?",
     ("On db-02 the disk was replaced.", "The disk of the camera is full.")),
    ("Das Lager in Husum leitet Wiebke Jansen.",
     "Wiebke Jansen will die Inventur im November machen.",
     "Wann will die Leiterin vom Lager in Husum die Inventur machen?",
     ("Die Inventur in Kiel war im Mai.", "Wir machen die Inventur mit der Firma Boysen.")),
    ("订单由王小明签署。", "王小明说第三季度收入会下降。", "签署订单的人说第三季度怎么样\uff1f",
     ("财务部说第三季度收入不变。", "第三季度的会议在周五。")),
    ("注文書には田中さんが署名する。", "田中さんは来週の会議に反対している。",
     "注文書に署名する人は来週の会議についてどう思っている\uff1f",
     ("来週の会議は火曜日だ。", "佐藤さんは来週の会議に来ない。")),
)  # fmt: skip


def chains() -> tuple[list[Memory], list[Question]]:
    """Return the memories and the questions; each question has two answers."""
    memories: list[Memory] = []
    questions: list[Question] = []

    def tell(text: str) -> str:
        place = len(memories)
        at = START + timedelta(hours=7 * place)
        memories.append(Memory(f"link-{place}", f"note-{place}", at, "model", (), text))
        return memories[-1].id

    people = list(ROLES)
    roles = {name: tell(f"{name} {role}.") for name, role in ROLES.items()}
    said = {
        (name, topic): tell(forms[(number + len(topic)) % len(forms)].format(name))
        for topic, forms in TOPICS.items()
        for number, name in enumerate(people)
    }
    for number, name in enumerate(people):
        topic = list(TOPICS)[number % len(TOPICS)]
        form = ASKED[number % len(ASKED)]
        answers = (roles[name], said[name, topic])
        questions.append(Question(form.format(ROLES[name], topic), "two-hop", answers))
    for first, second, question, others in CHAINS:
        ids = (tell(first), tell(second))
        for other in others:
            tell(other)
        questions.append(Question(question, "two-hop", ids))
    return memories, questions
