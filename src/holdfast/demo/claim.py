"""The claim of the demo, and the rules by which the simulated model answers questions about it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final, Literal

GOAL: Final = (
    "Settle claim 42: pay what the policy covers, and tell the customer and the repair shop."
)

PLANNING: Final = "make the plan"
RECEIPTS: Final = "read the receipts"
PAY: Final = "pay"
MAILS: Final = {"customer": "mail the customer", "repair shop": "mail the repair shop"}
CLOSING: Final = "write the summary"
PLAN: Final = [
    "read the claim",
    RECEIPTS,
    "compare with the policy",
    PAY,
    "write the letter",
    *MAILS.values(),
]
STEPS: Final = [PLANNING, *PLAN, CLOSING]
"""Everything the agent does, in order."""

LETTER: Final = "A pipe burst and the cellar was under water. Receipts are enclosed."
EXCESS: Final = 250
BILLS: Final = [
    ["pump hire", 180],
    ["drying for a week", 420],
    ["new pipe", 95],
    ["plumber", 340],
    ["sofa", 890],
    ["tiles", 260],
    ["tile layer", 480],
    ["paint", 75],
    ["waste skip", 150],
    ["carpet", 610],
    ["electrician", 220],
    ["cleaning", 130],
]
_FURNITURE: Final = ("sofa", "carpet")
_FIRST_WITH_PROGRESS: Final = 3
"""From this receipt on, a kill within the step could lose saved progress."""

Kind = Literal["asked", "reading", "effect", "between"]


@dataclass(frozen=True)
class KillMoment:
    """A moment at which the agent can be killed, in or after `step`."""

    kind: Kind
    step: str
    description: str


@dataclass(frozen=True)
class ModelAnswer:
    """The text that the model returns, and the moment at which it was asked."""

    text: str
    moment: KillMoment


def answer_question(question: str) -> ModelAnswer:
    """Return the model's answer. A question starts with the name of its step."""
    step, _, rest = question.partition(": ")
    numbers = [int(number) for number in re.findall(r"\d+", rest)]
    if step == RECEIPTS:
        kind: Kind = "reading" if numbers[0] >= _FIRST_WITH_PROGRESS else "asked"
        covered = "no" if any(thing in rest for thing in _FURNITURE) else "yes"
        return ModelAnswer(
            covered, KillMoment(kind, step, f"while reading receipt {numbers[0]} of {len(BILLS)}")
        )
    return ModelAnswer(
        _write_text(step, numbers), KillMoment("asked", step, f'in mid-step: "{step}"')
    )


def _write_text(step: str, numbers: list[int]) -> str:
    match step:
        case "make the plan":
            return json.dumps(PLAN)
        case "read the claim":
            return "A burst pipe. The policy covers damage by water, not furniture."
        case "compare with the policy":
            covered, excess = numbers
            return str(covered - excess)
        case "write the letter":
            return f"We have paid you {numbers[0]} EUR. Furniture is not covered."
        case "write the summary":
            return f"Claim 42 is settled with {numbers[0]} EUR."
    raise ValueError(f"no answer is defined for step {step!r}")
