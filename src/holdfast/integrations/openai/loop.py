"""One completion, step by step: look at what is stored, do the next thing that is missing, store it, look again.

Since each round begins with what is stored, a first run, a run after a crash and a second run by mistake are the same
code. It is written once for sync and async: `yield` hands out what a call of the chat, the SDK or a tool returned, and
gets back its value; whoever drives it awaits what is to be awaited.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
import uuid
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

import msgspec

from ...errors import HoldfastError, IdReused, NeedsHuman
from ...types import MessageEntry
from .tools import Mistaken, Toolbox, as_text, is_async, run, run_async
from .wire import (
    Dialect,
    Message,
    ModelReply,
    ToolCall,
    answers_call,
    calls_of,
    is_from_model,
    text_of,
)

DRAFT_SECONDS: Final = 1.0
DRAFT_CHARACTERS: Final = 2048
"""A streamed answer is kept when so much of it is new, or so much time has passed: not at each of its words."""

INSTRUCTIONS: Final = ("system", "developer")
FIRST_LOOK: Final = 32
EVERYTHING: Final = sys.maxsize
END: Final = object()

Steps = Generator[Any, Any, "TurnAnswer"]


class TooManyRounds(NeedsHuman):
    """The model keeps calling tools. All results are stored: raise `rounds=`, or append a message that tells it to stop."""

    def __init__(self, rounds: int) -> None:
        super().__init__(
            f"the model called tools {rounds} times for one answer; raise rounds= to let it go on, "
            "or append a message that tells it to stop"
        )
        self.rounds = rounds


class TurnAnswer(msgspec.Struct, frozen=True):
    """What a turn of the model came to, as it is stored."""

    text: str
    """What the model said to the user."""
    messages: list[Message]
    """Everything since the user's message, in order: calls, their results, the answer."""
    calls: list[Message]
    """Calls of tools that have no function here: append a result for each, and complete again."""
    meta: Message
    """What is noted beside the answer: model, response, finish, usage; `interrupted` if it is not whole."""


class Piece(msgspec.Struct, frozen=True):
    """A piece of text for whoever listens."""

    text: str


class Stopped(Exception):
    """Whoever listened has stopped."""


class Completion:
    """What is needed to bring one chat to an answer."""

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
    ) -> None:
        self.client, self.chat, self.dialect, self.tools = client, chat, dialect, tools
        self.awaited, self.streamed, self.rounds = awaited, streamed, rounds
        self.window, self.options = window, options

    def steps(self) -> Steps:
        """Until there is an answer, or calls that only the caller can answer."""
        said_now = False
        while True:
            exchange: list[MessageEntry] = yield from self._exchange()
            if all(entry.message.get("role") in INSTRUCTIONS for entry in exchange):
                raise ValueError("there is nothing to answer: append the user's message first")
            calls = _open_calls(exchange)
            here = next((call for call in calls if self.tools.has(call)), None)
            if here is not None:
                yield from self._settle(here, exchange)
            elif calls or _is_answered(exchange):
                answer = _answer(exchange, calls)
                if self.streamed and answer.text and not said_now:
                    yield Piece(answer.text)
                return answer
            else:
                if _rounds(exchange) >= self.rounds:
                    raise TooManyRounds(self.rounds)
                yield from self._ask(exchange)
                said_now = True

    def _exchange(self) -> Generator[Any, Any, list[MessageEntry]]:
        """The newest user message and all that came after it."""
        for count in (FIRST_LOOK * 4**power for power in itertools.count()):
            entries: list[MessageEntry] = yield self.chat.entries(last=count)
            users = [
                index for index, entry in enumerate(entries) if entry.message.get("role") == "user"
            ]
            if users:
                return entries[users[-1] :]
            if len(entries) < count:
                return entries
        raise AssertionError("unreachable")

    def _keep(
        self, name: str, said: ModelReply, exchange: Sequence[MessageEntry]
    ) -> Generator[Any, Any, None]:
        """Store what came next, unless somebody else has done so meanwhile: of two that do the same, the first one counts."""
        versions = [entry.version for entry in exchange]
        for attempt in itertools.count():
            try:
                stored = yield self.chat.append(
                    *said.messages, id=f"{name} after {versions[-1]}, {attempt}", meta=said.meta
                )
                if not stored.duplicate:
                    return
            except IdReused:
                pass
            # Either it was somebody else, or it was we, before a rewind took the message back.
            if [entry.version for entry in (yield from self._exchange())] != versions:
                return

    def _settle(
        self, call: ToolCall, exchange: Sequence[MessageEntry]
    ) -> Generator[Any, Any, None]:
        """Run a tool and store its result."""
        try:
            function, arguments = self.tools.prepare(call)
        except Mistaken as mistake:
            text = str(mistake)
        else:
            if not self.awaited:
                value = run(call.id, function, arguments)
            elif is_async(function):
                value = yield run_async(call.id, function, arguments)
            else:
                value = yield asyncio.to_thread(run, call.id, function, arguments)
            text = as_text(call.name, value)
        yield from self._keep(
            f"result of {call.id}", ModelReply([self.dialect.result(call, text)], {}), exchange
        )

    def _ask(self, exchange: Sequence[MessageEntry]) -> Generator[Any, Any, None]:
        """Show the model what there is, and store what it says."""
        messages = yield self.chat.window(**self.window)
        response = yield self.dialect.ask(self.client, messages, self.options)
        seen = {"seen": exchange[-1].version}
        said: ModelReply = (
            (yield from self._listen(response, seen))
            if self.streamed
            else self.dialect.said(response)
        )
        yield from self._keep("answer", ModelReply(said.messages, {**said.meta, **seen}), exchange)

    def _listen(self, events: Any, seen: Message) -> Generator[Any, Any, ModelReply]:
        """Pass on what is streamed, and keep drafts of it on the way."""
        listener = self.dialect.listener()
        following: Callable[..., Any] = anext if self.awaited else next
        draft = _DraftBuffer()
        try:
            while (event := (yield following(events, END))) is not END:
                text = listener.hear(event)
                if text:
                    draft.add(text)
                    if draft.is_due():
                        yield self.chat.draft(draft.take(), of=draft.of)
                    yield Piece(text)
            return listener.said()
        except Stopped:
            if draft.whole:
                message = {"role": "assistant", "content": draft.whole}
                yield self.chat.append(message, meta={"interrupted": True, **seen})
            yield events.close()
            raise
        except BaseException as error:
            if isinstance(error, GeneratorExit):
                raise
            # What has arrived can be read until the answer is asked for again; what happened is more important than that.
            try:
                if draft.new:
                    yield self.chat.draft(draft.take(), of=draft.of)
                yield events.close()
            except (HoldfastError, OSError):
                pass
            raise


class _DraftBuffer:
    """What of a streamed answer has been kept, and what has not. Each attempt at an answer has a name of its own."""

    def __init__(self) -> None:
        self.of = uuid.uuid4().hex
        self.whole, self.new = "", ""
        self._kept_at = time.monotonic()

    def add(self, text: str) -> None:
        self.whole += text
        self.new += text

    def is_due(self) -> bool:
        return (
            len(self.new) >= DRAFT_CHARACTERS or time.monotonic() - self._kept_at >= DRAFT_SECONDS
        )

    def take(self) -> str:
        text, self.new, self._kept_at = self.new, "", time.monotonic()
        return text


def _open_calls(exchange: Sequence[MessageEntry]) -> list[ToolCall]:
    """The calls that have no result, in order."""
    answered = {answers_call(entry.message) for entry in exchange}
    return [
        call for entry in exchange for call in calls_of(entry.message) if call.id not in answered
    ]


def _is_answered(exchange: Sequence[MessageEntry]) -> bool:
    """Whether the newest message is the model's, and the model had seen all that was before it.

    It had not if another request put a message in between: that one is still to be answered.
    """
    newest = exchange[-1]
    seen = newest.meta.get("seen", newest.version)
    return is_from_model(newest.message) and not any(
        seen < entry.version < newest.version and not is_from_model(entry.message)
        for entry in exchange
    )


def _rounds(exchange: Sequence[MessageEntry]) -> int:
    """How often the model has called tools in this exchange, before a crash or after."""
    return len(
        {entry.meta.get("seen", entry.version) for entry in exchange if calls_of(entry.message)}
    )


def _answer(exchange: Sequence[MessageEntry], calls: Sequence[ToolCall]) -> TurnAnswer:
    newest = next(entry for entry in reversed(exchange) if is_from_model(entry.message))
    seen = newest.meta.get("seen")
    # Of one reply in several items (reasoning, text, calls), all that is text.
    reply = (
        [newest]
        if seen is None
        else [entry for entry in exchange if entry.meta.get("seen") == seen]
    )
    return TurnAnswer(
        text="".join(text_of(entry.message) for entry in reply),
        messages=[entry.message for entry in exchange if entry.message.get("role") != "user"],
        calls=[call.raw for call in calls],
        meta={key: value for key, value in newest.meta.items() if key != "seen"},
    )
