"""Build the resume context: the text that a model reads when a task resumes.

It is built from the recorded events each time. Nothing is summarized, so nothing degrades from one
resume to the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ...conversations.messages import Message
from ...conversations.tokens import Counter, default_counter
from ...errors import BudgetExceeded
from ...log.codec.walk import MarkedText
from ...log.reprs import html_pre, html_table
from ...log.validation import check_int
from ..state.view import DEFAULT_CONTEXT_TOKENS, TaskView
from .select import NO_FIELDS, SelectedFacts, TaskFacts
from .wording import render_resume_context

if TYPE_CHECKING:
    from ...memory.model import MemoryItem

DEFAULT_MEMORIES: Final = 5
"""How many memories a resume context has, unless the program asks for another number."""
SUFFICIENT_TOKENS: Final = 500
"""With the default counters, this many tokens are enough for the shortest context of any task."""

_FIRST_SIZE: Final = 64
_PRECISION: Final = 32
"""The search for the best size stops within 1/32 of it: more counting would gain few words."""


class ResumeContext:
    """The resume context of a task: its `text`, its size in `tokens`, and its facts as data.

    It changes with every resume. So in the arguments of a step, this object, its text and its
    messages count as "the resume context of the task", whatever they say.
    """

    __slots__ = ("_selection", "_text", "_tokens")

    def __init__(self, selection: SelectedFacts, text: MarkedText, tokens: int) -> None:
        self._selection, self._text, self._tokens = selection, text, tokens

    @property
    def text(self) -> str:
        """The text for the model."""
        return self._text

    @property
    def tokens(self) -> int:
        """The size of the text as one message, in tokens."""
        return self._tokens

    @property
    def complete(self) -> bool:
        """Whether it contains everything: nothing was omitted or shortened to fit."""
        return self._selection.complete

    def messages(self) -> list[Message]:
        """Return the text as one message to put before the others.

        Its role is `user`: quoted text must not gain the authority of a system prompt.
        """
        return [_to_message(self._text)]

    def to_dict(self) -> dict[str, Any]:
        """Return the facts of the text as JSON values.

        A quoted text is `{"text": …, "more": number of characters omitted}`.
        """
        facts: dict[str, Any] = msgspec.to_builtins(self._selection)
        return facts

    @property
    def memories(self) -> dict[str, str]:
        """The texts of the quoted memories, as far as they fit, by id, for `Memory.feedback`."""
        return {memory.id: memory.text.text for memory in self._selection.memories}

    def __str__(self) -> str:
        return self._text

    def __holdfast_fingerprint__(self) -> str:
        return self._text.mark

    def __repr__(self) -> str:
        return f"<ResumeContext of {self._selection.task!r}: {self._tokens} tokens>"

    def _repr_html_(self) -> str:
        more = "" if self.complete else ", shortened to fit"
        title = f"Resume context of {self._selection.task}: {self._tokens} tokens{more}"
        return html_table(title, ()) + html_pre(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ResumeContext) and (self._text, self._tokens) == (
            other._text,
            other._tokens,
        )

    def __hash__(self) -> int:
        return hash(self._text)


def build_resume_context(
    view: TaskView,
    max_tokens: int = DEFAULT_CONTEXT_TOKENS,
    *,
    notes: Sequence[str] = (),
    counter: Counter | None = None,
    memories: Sequence[MemoryItem] = (),
    fields: Mapping[str, Any] = NO_FIELDS,
) -> ResumeContext:
    """Build a resume context of at most `max_tokens`. The same view gives the same text.

    Args:
        view: The task.
        max_tokens: The token budget. With the default counter, 500 is enough for any task.
        notes: Texts from other sources, the most important first. They are quoted.
        counter: Counts the tokens of a message, as for `Conversation.window`.
        memories: Recalled memories, the best first. They are quoted.
        fields: Other facts by name, such as fields that an application added to a checkpoint.

    Raises:
        BudgetExceeded: Not even the goal, the steps in doubt and the next step fit.
    """
    check_int(max_tokens, "max_tokens", 1)
    if isinstance(notes, str) or not all(isinstance(note, str) for note in notes):
        raise TypeError("notes must be a list of texts")
    facts = TaskFacts(view, list(notes), list(memories), fields)
    count = counter or default_counter()
    best = _render(facts, 0, count)
    if best.tokens > max_tokens:
        raise BudgetExceeded(
            needed=best.tokens,
            budget=max_tokens,
            what="the shortest resume context",
            advice="raise max_tokens",
        )
    # Double the size until it is too large, then bisect. Only a text that was counted and fits is
    # ever used, so this works with any counter, even if it counts fewer tokens for a longer text.
    fits, too_large = 0, 0
    while not best.complete and (not too_large or too_large - fits > max(fits // _PRECISION, 1)):
        size = (fits + too_large) // 2 if too_large else max(2 * fits, _FIRST_SIZE)
        candidate = _render(facts, size, count)
        if candidate.tokens <= max_tokens:
            best, fits = candidate, size
        else:
            too_large = size
    return best


def _render(facts: TaskFacts, size: int, count: Counter) -> ResumeContext:
    selection = facts.select(size)
    text = render_resume_context(selection)
    marked = MarkedText(text, f"<resume context of {facts.task}>")
    return ResumeContext(selection, marked, count(_to_message(text)))


def _to_message(text: str) -> Message:
    return {"role": "user", "content": text}
