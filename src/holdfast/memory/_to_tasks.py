"""From memory to tasks: what a briefing tells of what is known.

Nobody has asked for it, and a model reads it. So it is of those who are trusted, and has something to do with the goal.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from .. import _clock
from .. import _operations as ops
from .._ids import stream_key
from ..tasks._agents import registered
from ._arguments import source_name
from ._calling import Look, Script
from ._model import KIND, Hit, Remembered
from ._trust import Trust, where_trusted
from ._weights import UNASKED

if TYPE_CHECKING:
    from ..tasks._shape import Shape
    from ..tasks._view import TaskView

QUESTION_CHARACTERS: Final = 4000
SPARE: Final = 20
"""So many more are recalled than wanted: those of the task itself are left out."""


def relevant_to(task: Shape, view: TaskView, most: int, trust: Trust | None) -> Script[list[Remembered]]:
    """The memories of its agent that fit a task's goal, best first, but for its own: those are in its record.

    By the time of the record, not by the clock: the same task and the same memories give the same. `trust`: of whom; None leaves it to
    the agent.
    """
    agent = registered.get(view.agent or "")
    if trust is None and agent is not None:
        trust = agent.trust
    where = where_trusted(trust, view.updated_at.timestamp())
    if not most or view.agent is None or view.goal is None:
        return []
    space = stream_key(task._key.tenant, KIND, view.agent)
    if (yield Look(partial(ops.run, task._log, ops.head(space)))) is None:
        return []
    from ._asking import as_vector
    from ._memory import AsyncMemory, Memory  # with its index: only who has memories needs it

    memory = (AsyncMemory if task._asynchronous else Memory)(task._log, space, None)
    if agent is not None and agent.embedding is not None and (task._asynchronous or not agent.embedding.is_async):
        memory._embedding = agent.embedding
    own, now, wanted, query = source_name(task), _clock.time(), most + SPARE, view.goal[:QUESTION_CHARACTERS]
    question = yield from as_vector(memory, query, None)
    while True:
        hits: list[Hit] = yield Look(partial(memory._recalled, query, where, wanted, 0.0, None, question))
        living = [hit for hit in hits if hit.expires_at is None or hit.expires_at.timestamp() > now]
        others = [hit for hit in living if hit.sources != (own,) and (question is None or _is_near(hit))]
        # By meaning there is always one more, but none that fits better than the last.
        if len(others) >= most or len(hits) < wanted or (question is not None and hits[-1].score < UNASKED):
            return list(others[:most])
        wanted *= 4


def _is_near(hit: Hit) -> bool:
    """Whether there is a reason to tell it, other than that everything else is even farther away."""
    return "words" in hit.why or hit.score >= UNASKED
