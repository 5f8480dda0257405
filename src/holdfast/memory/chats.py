"""Chats with long-term memory: what a turn recalls into the prompt, and what it leaves behind.

Neither changes the conversation. What is recalled is quoted in the prompt only. It is recalled as
of the time of the user's message, so a turn that is repeated after a crash recalls the same again,
unless a memory was changed or forgotten. What a turn leaves is appended to the memory under an id
that is derived from the user's message: once, however often the turn is repeated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..backends import AppendResult, StreamKey, clock
from ..errors import IdReused
from ..log import operations as ops
from ..log.drivers import EffectGen
from ..log.events import NewEvent, new_append_context
from ..log.validation import check_int
from .arguments import NewMemory, build_memory_from_dict, check_score, redact_memory
from .memory import AsyncMemory, Memory
from .model import REMEMBERED, MemoryHit
from .quote import quoted
from .subjects import append_about
from .trust import Trust, build_trust_filter, check_trust

if TYPE_CHECKING:
    from ..types import MessageEntry

MAX_QUERY_CHARS: Final = 4_000
"""How much of the user's message is looked up."""
INTRODUCTION: Final = "Notes from memory that may help with the message after them."

NewMemories = Iterable[str | NewMemory]

_encode = msgspec.json.Encoder().encode


class FinishedTurn(msgspec.Struct, frozen=True):
    """A turn of a chat, for the function that says what to remember of it."""

    user: str
    """The text of the user's message."""
    answer: str
    """The text of the model's answer."""
    messages: list[dict[str, Any]]
    """All messages of the turn, in order: the user's, calls, their results, the answer."""


RememberTurn = Callable[[FinishedTurn], NewMemories | Awaitable[NewMemories]]


@dataclass(frozen=True)
class ChatMemory:
    """A memory for a chat, and how much of it the model is shown: `complete(…, memory=…)`.

    Args:
        memory: What is asked before a turn, and gets what the turn leaves behind.
        k: The maximum number of memories to show. 0 shows none.
        max_tokens: The maximum number of tokens to show, and at most a quarter of the window.
        min_score: The minimum score of a memory that is shown.
        trust: Whose memories are shown: names of authors, or True for everyone's. By default all
            except tools and the web.
        subject: Only memories about this subject, or about none, are shown; what a turn leaves
            behind is about it. By default the subject of the conversation.
    """

    memory: Memory | AsyncMemory
    k: int = 5
    max_tokens: int = 500
    min_score: float = 0.05
    trust: Trust | None = None
    subject: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.memory, Memory | AsyncMemory):
            raise TypeError(
                "memory must be a memory, like store.memory('customer-42'), "
                f"got {type(self.memory).__name__}"
            )
        check_int(self.k, "k")
        check_int(self.max_tokens, "max_tokens", least=1)
        check_score(self.min_score, "min_score")
        if self.trust is not None:
            check_trust(self.trust)

    def recall_gen(
        self, query: str, at: float, subject: str | None, window: int | None
    ) -> EffectGen[list[MemoryHit]]:
        """Return the memories for a message that was appended at a time."""
        most = self.max_tokens if window is None else min(self.max_tokens, window // 4)
        if not self.k or most < 1 or not query.strip():
            return []
        where = build_trust_filter(self.trust, self.subject or subject, at)
        where = msgspec.structs.replace(where, as_of=at)
        query = query[:MAX_QUERY_CHARS]
        hits = yield from self.memory._recall_gen(query, self.k, where, self.min_score, most, None)
        # With a time of its own, a memory can seem older than it is.
        return [hit for hit in hits if hit.mentions > 1 or hit.told_at.timestamp() <= at]

    def store_gen(
        self, given: object, source: StreamKey, message: MessageEntry, subject: str | None
    ) -> EffectGen[None]:
        """Remember what the user's function returned for a turn, unless it was remembered."""
        new = self._build_memories(given, source, self.subject or subject)
        if not new:
            return
        space, context = self.memory._key, new_append_context()
        events = [NewEvent(REMEMBERED, _encode(one)) for one in new]
        subjects = [one.subject for one in new]
        name = turn_id(source, message)

        def append() -> ops.Operation[AppendResult]:
            return append_about(space, events, subjects, context, id=name)

        try:
            yield from ops.settle(append)
        except IdReused:
            pass  # another run of the turn was faster; its function returned something else

    def is_stored_gen(self, source: StreamKey, message: MessageEntry) -> EffectGen[bool]:
        """Whether the memories of a turn are stored."""
        found = yield from ops.settle(
            lambda: ops.find_append(self.memory._key, turn_id(source, message))
        )
        return found is not None

    def _build_memories(self, given: object, source: StreamKey, subject: str | None) -> list[Any]:
        if given is None:
            return []
        if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
            raise TypeError(
                "the remember function must return a list of texts, or of dicts for remember_many,"
                f" got {type(given).__name__}"
            )
        items = [{"text": one} if isinstance(one, str) else one for one in given]
        defaults = {"source": f"{source.kind}/{source.id}", "subject": subject}
        new = [
            build_memory_from_dict(
                {**defaults, **one} if isinstance(one, Mapping) else one, clock.time()
            )
            for one in items
        ]
        return [redact_memory(self.memory._log, one) for one in new]


def turn_id(source: StreamKey, message: MessageEntry) -> str:
    """Return the append id of what a turn leaves behind."""
    chat = blake2b(f"{source.kind}/{source.id}".encode(), digest_size=8).hexdigest()
    return f"turn {message.id} of chat {chat}"


def quote_for_chat(hits: list[MemoryHit]) -> str:
    """Return the text to put before the user's message."""
    return f"{INTRODUCTION}\n{quoted(hits)}"
