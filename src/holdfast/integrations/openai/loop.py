"""One completion, step by step: read what is stored, do the next missing thing, store it, repeat.

Each round starts from what is stored, so a first run, a run after a crash and an accidental
second run are the same code. It is written once for sync and async: `yield` hands out what a call
of the chat, the SDK or a tool returned and gets back its value; the driver awaits it if needed.
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
from .tools import BadToolCall, Toolbox, as_text, is_async, run, run_async
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
"""A streamed answer is saved after this much new text or time, not at every word."""

INSTRUCTIONS: Final = ("system", "developer")
FIRST_LOOK: Final = 32
EVERYTHING: Final = sys.maxsize
END: Final = object()

Steps = Generator[Any, Any, "TurnAnswer"]


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
    """Calls of tools without a function: append a result for each, then complete again."""
    meta: Message
    """Metadata: model, response, finish, usage; `interrupted` if the answer is incomplete."""


class Piece(msgspec.Struct, frozen=True):
    """A piece of text for the caller."""

    text: str


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
    ) -> None:
        self.client, self.chat, self.dialect, self.tools = client, chat, dialect, tools
        self.awaited, self.streamed, self.rounds = awaited, streamed, rounds
        self.window, self.options = window, options

    def steps(self) -> Steps:
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
                return answer
            else:
                if _count_rounds(exchange) >= self.rounds:
                    raise TooManyRounds(self.rounds)
                yield from self._ask(exchange)
                replied = True

    def _read_exchange(self) -> Generator[Any, Any, list[MessageEntry]]:
        """Return the newest user message and everything after it."""
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

    def _store(
        self, name: str, said: ModelReply, exchange: Sequence[MessageEntry]
    ) -> Generator[Any, Any, None]:
        """Store the next messages. If another process stored this step first, its result counts."""
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
            # Stored by another process, or by this one before a rewind removed the message.
            if [entry.version for entry in (yield from self._read_exchange())] != versions:
                return

    def _run_tool(
        self, call: ToolCall, exchange: Sequence[MessageEntry]
    ) -> Generator[Any, Any, None]:
        """Run a tool and store its result."""
        try:
            function, arguments = self.tools.prepare(call)
        except BadToolCall as error:
            text = str(error)
        else:
            if not self.awaited:
                value = run(call.id, function, arguments)
            elif is_async(function):
                value = yield run_async(call.id, function, arguments)
            else:
                value = yield asyncio.to_thread(run, call.id, function, arguments)
            text = as_text(call.name, value)
        yield from self._store(
            f"result of {call.id}", ModelReply([self.dialect.result(call, text)], {}), exchange
        )

    def _ask(self, exchange: Sequence[MessageEntry]) -> Generator[Any, Any, None]:
        """Call the model with the window and store its reply."""
        messages = yield self.chat.window(**self.window)
        response = yield self.dialect.ask(self.client, messages, self.options)
        seen = {"seen": exchange[-1].version}
        said: ModelReply = (
            (yield from self._listen(response, seen))
            if self.streamed
            else self.dialect.reply(response)
        )
        yield from self._store("answer", ModelReply(said.messages, {**said.meta, **seen}), exchange)

    def _listen(self, events: Any, seen: Message) -> Generator[Any, Any, ModelReply]:
        """Yield the streamed text, saving drafts on the way."""
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
            return listener.reply()
        except Stopped:
            if draft.whole:
                message = {"role": "assistant", "content": draft.whole}
                yield self.chat.append(message, meta={"interrupted": True, **seen})
            yield events.close()
            raise
        except BaseException as error:
            if isinstance(error, GeneratorExit):
                raise
            # Save the draft if possible, but the original error matters more.
            try:
                if draft.new:
                    yield self.chat.draft(draft.take(), of=draft.of)
                yield events.close()
            except (HoldfastError, OSError):
                pass
            raise


class _DraftBuffer:
    """The saved and unsaved parts of a streamed answer. Each attempt has its own draft id."""

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
    """Return the calls without a result, in order."""
    answered = {answers_call(entry.message) for entry in exchange}
    return [
        call for entry in exchange for call in calls_of(entry.message) if call.id not in answered
    ]


def _is_answered(exchange: Sequence[MessageEntry]) -> bool:
    """Return whether the newest message is a reply to everything before it.

    It is not if another request appended a message in between, which still needs an answer.
    """
    newest = exchange[-1]
    seen = newest.meta.get("seen", newest.version)
    return is_from_model(newest.message) and not any(
        seen < entry.version < newest.version and not is_from_model(entry.message)
        for entry in exchange
    )


def _count_rounds(exchange: Sequence[MessageEntry]) -> int:
    """Count the replies with tool calls in this exchange, across crashes."""
    return len(
        {entry.meta.get("seen", entry.version) for entry in exchange if calls_of(entry.message)}
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
        messages=[entry.message for entry in exchange if entry.message.get("role") != "user"],
        calls=[call.raw for call in calls],
        meta={key: value for key, value in newest.meta.items() if key != "seen"},
    )
