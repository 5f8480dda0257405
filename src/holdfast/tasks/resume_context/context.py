"""The briefing that a model reads when a task goes on after an interruption.

It is made anew each time from what is recorded. Nothing is summarised, so nothing wears away from one resume to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ...conversations.messages import Message
from ...conversations.tokens import Counter, default_counter
from ...errors import BudgetExceeded
from ...log.validation import whole_number
from ..state.view import TaskView
from .select import SelectedFacts, TaskFacts
from .wording import written

if TYPE_CHECKING:
    from ...memory.model import MemoryItem

ALWAYS_ENOUGH: Final = 500
"""In this many tokens, by the counters that are used by default, something can be told of any task."""

_FIRST_ROOM: Final = 64
_CLOSE_ENOUGH: Final = 32
"""The room is found to a 32nd: finding it exactly would take more counting than it gains words."""


class ResumeContext:
    """A briefing: `text`, how many `tokens` it takes as a message, and the same facts as data."""

    __slots__ = ("_selection", "_text", "_tokens")

    def __init__(self, selection: SelectedFacts, text: str, tokens: int) -> None:
        self._selection, self._text, self._tokens = selection, text, tokens

    @property
    def text(self) -> str:
        return self._text

    @property
    def tokens(self) -> int:
        return self._tokens

    @property
    def complete(self) -> bool:
        """Whether everything is in it, nothing left out or shortened for want of room."""
        return self._selection.complete

    def messages(self) -> list[Message]:
        """One message to put before the others, in the user's role: what it quotes must not gain a system prompt's authority."""
        return [_message(self._text)]

    def to_dict(self) -> dict[str, Any]:
        """What the text tells, as JSON values. A quoted text is `{"text": …, "more": characters left out}`."""
        found: dict[str, Any] = msgspec.to_builtins(self._selection)
        return found

    @property
    def memories(self) -> dict[str, str]:
        """What it tells from memory: texts (as far as there was room) by the ids of the memories, for `Memory.feedback`."""
        return {told.id: told.text.text for told in self._selection.memories}

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"<ResumeContext of {self._selection.task!r}: {self._tokens} tokens>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ResumeContext) and (self._text, self._tokens) == (
            other._text,
            other._tokens,
        )

    def __hash__(self) -> int:
        return hash(self._text)


def brief(
    view: TaskView,
    max_tokens: int = 2000,
    *,
    notes: Sequence[str] = (),
    counter: Counter | None = None,
    memories: Sequence[MemoryItem] = (),
) -> ResumeContext:
    """What a model has to know to go on with a task, in at most `max_tokens`; the same for the same view.

    `notes` are texts from elsewhere, the most important first, and `memories` what was recalled; they are quoted like everything that is recorded. `counter` is a
    function from a message to a number, as for `Conversation.window`. Raises `BudgetExceeded` if not even goal, steps in doubt
    and the place to go on fit; with the default counter 500 tokens are enough for that.
    """
    whole_number(max_tokens, "max_tokens", 1)
    if isinstance(notes, str) or not all(isinstance(note, str) for note in notes):
        raise TypeError("notes must be a list of texts")
    record, count = TaskFacts(view, list(notes), list(memories)), counter or default_counter()
    best = _attempt(record, 0, count)
    if best.tokens > max_tokens:
        raise BudgetExceeded(
            needed=best.tokens,
            budget=max_tokens,
            what="the shortest briefing",
            advice="raise max_tokens",
        )
    # Twice the room until it is too much, then halve the difference. Only what was counted and fits is ever taken, so
    # this holds for any counter, even one for which a longer text is cheaper.
    fits, too_much = 0, 0
    while not best.complete and (not too_much or too_much - fits > max(fits // _CLOSE_ENOUGH, 1)):
        room = (fits + too_much) // 2 if too_much else max(2 * fits, _FIRST_ROOM)
        tried = _attempt(record, room, count)
        if tried.tokens <= max_tokens:
            best, fits = tried, room
        else:
            too_much = room
    return best


def _attempt(record: TaskFacts, room: int, count: Counter) -> ResumeContext:
    selection = record.select(room)
    text = written(selection)
    return ResumeContext(selection, text, count(_message(text)))


def _message(text: str) -> Message:
    return {"role": "user", "content": text}
