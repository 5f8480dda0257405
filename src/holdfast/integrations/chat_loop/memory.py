"""The memory of a chat loop: recall before the model is asked, remember after it has answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ...conversations.tokens import default_counter
from ...log import operations as ops
from ...log.drivers import EffectGen, drive, drive_async
from ...log.operations.subjects import find_subjects
from ...memory.chats import ChatMemory, FinishedTurn, RememberTurn, quote_for_chat
from ...types import MessageEntry
from .tools import is_async
from .wire import EVERYTHING, Message, Returned, is_from_user, text_of, text_of_user


class TurnMemory:
    """The memories that one turn recalls and adds."""

    def __init__(
        self, chat: Any, settings: ChatMemory, remember: RememberTurn | None, *, awaited: bool
    ) -> None:
        self._chat, self._settings, self._remember = chat, settings, remember
        self._awaited = awaited
        registrar = chat._subject
        self._subject: str | None = None if registrar is None else registrar.subject
        self._is_subject_known = registrar is not None or settings.subject is not None

    def recall(
        self, exchange: Sequence[MessageEntry], window: Message
    ) -> EffectGen[tuple[Message | None, Message, list[str]]]:
        """Return a message that quotes recalled memories, the remaining window, and the ids."""
        asked = exchange[0]
        if not is_from_user(asked.message):
            return None, window, []
        yield from self._find_subject()
        most = None if window["max_tokens"] == EVERYTHING else window["max_tokens"]
        query = text_of_user(asked.message)
        hits = yield from self._run(
            self._settings.recall_gen(query, asked._time, self._subject, most)
        )
        if not hits:
            return None, window, []
        message = {"role": "user", "content": quote_for_chat(hits)}
        if most is not None:
            used = (window["counter"] or default_counter())(message)
            window = {**window, "max_tokens": max(most - used, 1)}
        return message, window, [hit.id for hit in hits]

    def remember(self, exchange: Sequence[MessageEntry]) -> EffectGen[None]:
        """Ask the function what to remember of a finished turn, and store that, once."""
        asked, function = exchange[0], self._remember
        if function is None or not is_from_user(asked.message):
            return
        place = self._chat._key
        if (yield from self._run(self._settings.is_stored_gen(place, asked))):
            return
        yield from self._find_subject()
        messages = [entry.message for entry in exchange]
        answer = "".join(map(text_of, messages))
        turn = FinishedTurn(text_of_user(asked.message), answer, messages)
        if not self._awaited:
            given = function(turn)
        elif is_async(function):
            given = yield Returned(function(turn))
        else:
            given = yield Returned(asyncio.to_thread(function, turn))
        yield from self._run(self._settings.store_gen(given, place, asked, self._subject))

    def _find_subject(self) -> EffectGen[None]:
        """Find the subject of a conversation that was opened again without naming it."""
        if self._is_subject_known:
            return
        subjects = yield from ops.settle(lambda: find_subjects(self._chat._key))
        if len(subjects) > 1:
            raise ValueError(
                f"the conversation {self._chat.id!r} is about {len(subjects)} subjects: say whose "
                "memory this is, with store.conversation(id, subject=…) or ChatMemory(subject=…)"
            )
        self._subject = subjects[0] if subjects else None
        self._is_subject_known = True

    def _run(self, steps: EffectGen[Any]) -> EffectGen[Any]:
        """Run steps on the memory's own store, which need not be the chat's."""
        log = self._settings.memory._log
        if self._awaited:
            return (yield Returned(drive_async(log, steps)))
        return (yield Returned(drive(log, steps)))
