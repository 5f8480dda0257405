"""One completion, step by step: read what is stored, do the next missing thing, store it, repeat.

Each round starts from what is stored, so a first run, a run after a crash and an accidental second
run are the same code. The code is shared by sync and async: it yields what a call to the chat, the
SDK or a tool returned as `Returned`, and gets the value back, which was awaited if needed.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from ...errors import HoldfastError, IdReused, NeedsHuman
from ...log.drivers import Effect, EffectGen
from ...types import MessageEntry
from ..drafts import DraftBuffer
from .memory import TurnMemory
from .tools import BadToolCall, Toolbox, as_text, is_async, run, run_async
from .wire import (
    Dialect,
    Message,
    ModelReply,
    Returned,
    ToolCall,
    answered_calls,
    calls_of,
    is_from_model,
    is_from_user,
    text_of,
)

DRAFT_SECONDS: Final = 1.0
DRAFT_CHARACTERS: Final = 2048
"""A streamed answer is saved after this much new text or time, not after every word."""

INSTRUCTIONS: Final = ("system", "developer")
PAUSED: Final = "pause_turn"
"""The stop reason of an answer that the model wants to continue: it is called again."""
FIRST_LOOK: Final = 32
END: Final = object()


class TooManyRounds(NeedsHuman):
    """The model keeps calling tools. All results are stored.

    Raise `rounds=`, or append a message that tells the model to stop.
    """

    def __init__(self, rounds: int) -> None:
        super().__init__(
            f"the model called tools {rounds} times for one answer; raise rounds= to continue, "
            "or append a message that tells it to stop"
        )
        self.rounds = rounds


class TurnAnswer(msgspec.Struct, frozen=True):
    """The result of one turn of the model, as stored."""

    text: str
    """The model's text for the user."""
    messages: list[Message]
    """All messages since the user's, in order: calls, their results, the answer."""
    calls: list[Message]
    """Calls of tools without a function. Append a result for each, then call `complete` again."""
    meta: Message
    """Metadata: model, response, finish, usage; `interrupted` if the answer is incomplete."""


class Piece(Effect):
    """A piece of text for the caller. `run_to` finds it, so no driver performs it."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class Stopped(Exception):
    """The caller stopped listening."""


class Completion:
    """Brings one chat to its next answer."""

    def __init__(
        self,
        client: Any,
        chat: Any,
        dialect: Dialect,
        tools: Toolbox,
        *,
        awaited: bool,
        streamed: bool,
        rounds: int,
        window: dict[str, Any],
        options: Message,
        memory: TurnMemory | None = None,
    ) -> None:
        self.client, self.chat, self.dialect, self.tools = client, chat, dialect, tools
        self.awaited, self.streamed, self.rounds = awaited, streamed, rounds
        self.window, self.options, self.memory = window, options, memory

    def steps(self) -> EffectGen[TurnAnswer]:
        """Run until there is an answer, or calls that only the caller can answer."""
        replied = False
        while True:
            exchange: list[MessageEntry] = yield from self._read_exchange()
            if all(entry.message.get("role") in INSTRUCTIONS for entry in exchange):
                raise ValueError(
                    "the chat has no message to answer: append the user's message first"
                )
            calls = _open_calls(exchange)
            here = next((call for call in calls if self.tools.has(call)), None)
            if here is not None:
                yield from self._run_tool(here, exchange)
            elif calls or _is_answered(exchange):
                answer = _build_answer(exchange, calls)
                if self.streamed and answer.text and not replied:
                    yield Piece(answer.text)
                if self.memory is not None and not calls:
                    yield from self.memory.remember(exchange)
                return answer
            else:
                if _count_rounds(exchange) >= self.rounds:
                    raise TooManyRounds(self.rounds)
                yield from self._ask(exchange)
                replied = True

    def _read_exchange(self) -> EffectGen[list[MessageEntry]]:
        """Return the newest user message and everything after it."""
        for count in (FIRST_LOOK * 4**power for power in itertools.count()):
            entries: list[MessageEntry] = yield Returned(self.chat.entries(last=count))
            users = [index for index, entry in enumerate(entries) if is_from_user(entry.message)]
            if users:
                return entries[users[-1] :]
            if len(entries) < count:
                return entries
        raise AssertionError("unreachable")

    def _store(
        self, name: str, said: ModelReply, exchange: Sequence[MessageEntry]
    ) -> EffectGen[None]:
        """Store the next messages, unless another process has stored this step first."""
        versions = [entry.version for entry in exchange]
        for attempt in itertools.count():
            try:
                stored = yield Returned(
                    self.chat.append(
                        *said.messages, id=f"{name} after {versions[-1]}, {attempt}", meta=said.meta
                    )
                )
                if not stored.duplicate:
                    return
            except IdReused:
                pass
            # Stored by another process, or by this one before a rewind removed the message.
            if [entry.version for entry in (yield from self._read_exchange())] != versions:
                return

    def _run_tool(self, call: ToolCall, exchange: Sequence[MessageEntry]) -> EffectGen[None]:
        """Run a tool and store its result."""
        try:
            function, arguments = self.tools.prepare(call)
        except BadToolCall as error:
            text = str(error)
        else:
            if not self.awaited:
                value = run(call.id, function, arguments)
            elif is_async(function):
                value = yield Returned(run_async(call.id, function, arguments))
            else:
                value = yield Returned(asyncio.to_thread(run, call.id, function, arguments))
            text = as_text(call.name, value)
        yield from self._store(
            f"result of {call.id}", ModelReply([self.dialect.result(call, text)], {}), exchange
        )

    def _ask(self, exchange: Sequence[MessageEntry]) -> EffectGen[None]:
        """Call the model with the window and store its reply."""
        window, recalled = self.window, None
        seen: Message = {"seen": exchange[-1].version}
        if self.memory is not None:
            recalled, window, ids = yield from self.memory.recall(exchange, window)
            seen |= {"recalled": ids} if ids else {}
        messages = yield Returned(self.chat.window(**window))
        if self.dialect.ends_with_user and exchange[-1].meta.get("finish") != PAUSED:
            messages = _put_user_last(messages)
        if recalled is not None:
            messages = _put_before_user(messages, recalled)
        response = yield Returned(self.dialect.ask(self.client, messages, self.options))
        said: ModelReply = (
            (yield from self._listen(response, seen))
            if self.streamed
            else self.dialect.reply(response)
        )
        yield from self._store("answer", ModelReply(said.messages, {**said.meta, **seen}), exchange)

    def _listen(self, events: Any, seen: Message) -> EffectGen[ModelReply]:
        """Yield the streamed text, saving drafts on the way."""
        listener = self.dialect.listener()
        following: Callable[..., Any] = anext if self.awaited else next
        draft = DraftBuffer(DRAFT_SECONDS, DRAFT_CHARACTERS)
        try:
            while (event := (yield Returned(following(events, END)))) is not END:
                text = listener.hear(event)
                if text:
                    draft.add(text)
                    if draft.is_due():
                        yield Returned(self.chat.draft(draft.take(), of=draft.of))
                    yield Piece(text)
            return listener.reply()
        except Stopped:
            if draft.whole:
                message = {"role": "assistant", "content": draft.whole}
                yield Returned(self.chat.append(message, meta={"interrupted": True, **seen}))
            yield Returned(events.close())
            raise
        except BaseException as error:
            if isinstance(error, GeneratorExit):
                raise
            # Save the draft if possible, but the original error matters more.
            try:
                if draft.new:
                    yield Returned(self.chat.draft(draft.take(), of=draft.of))
                yield Returned(events.close())
            except (HoldfastError, OSError):
                pass
            raise


def _open_calls(exchange: Sequence[MessageEntry]) -> list[ToolCall]:
    """Return the calls without a result, in order."""
    answered = {call for entry in exchange for call in answered_calls(entry.message)}
    return [
        call for entry in exchange for call in calls_of(entry.message) if call.id not in answered
    ]


def _is_answered(exchange: Sequence[MessageEntry]) -> bool:
    """Return whether the newest message is a reply to everything before it.

    It isn't if another request has appended a message meanwhile, which still needs an answer.
    """
    newest = exchange[-1]
    if newest.meta.get("finish") == PAUSED:
        return False
    seen = newest.meta.get("seen", newest.version)
    return is_from_model(newest.message) and not any(
        seen < entry.version < newest.version and not is_from_model(entry.message)
        for entry in exchange
    )


def _put_user_last(messages: Sequence[Message]) -> list[Message]:
    """Put a message that came while the model was answering after that answer."""
    found = list(messages)
    users = [index for index, message in enumerate(found) if is_from_user(message)]
    if users and is_from_model(found[-1]) and not calls_of(found[-1]):
        found.append(found.pop(users[-1]))
    return found


def _put_before_user(messages: Sequence[Message], recalled: Message) -> list[Message]:
    """Put what was recalled before the newest message of the user."""
    found = list(messages)
    users = [index for index, message in enumerate(found) if is_from_user(message)]
    found.insert(users[-1] if users else len(found), recalled)
    return found


def _count_rounds(exchange: Sequence[MessageEntry]) -> int:
    """Count the replies in this exchange that the model did not end, across crashes."""
    return len(
        {
            entry.meta.get("seen", entry.version)
            for entry in exchange
            if calls_of(entry.message) or entry.meta.get("finish") == PAUSED
        }
    )


def _build_answer(exchange: Sequence[MessageEntry], calls: Sequence[ToolCall]) -> TurnAnswer:
    newest = next(entry for entry in reversed(exchange) if is_from_model(entry.message))
    seen = newest.meta.get("seen")
    # A reply may have several items (reasoning, text, calls): join the text.
    reply = (
        [newest]
        if seen is None
        else [entry for entry in exchange if entry.meta.get("seen") == seen]
    )
    return TurnAnswer(
        text="".join(text_of(entry.message) for entry in reply),
        messages=[entry.message for entry in exchange if not is_from_user(entry.message)],
        calls=[call.raw for call in calls],
        meta={key: value for key, value in newest.meta.items() if key != "seen"},
    )
