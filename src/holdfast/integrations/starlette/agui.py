"""Turns of a durable chat as runs of the AG-UI protocol: approvals are interrupts.

Every event has an id, `start.version.number`: the version at which the run started, the version of
the stored event that it comes from, and its number, as several may come from one. The events of a
run are derived from stored data, so a client that continues after an id gets the others as if it
had never disconnected.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import msgspec

from ...conversations import DraftPiece, MessageEntry
from ...conversations.quote import value_to_text
from .turns import TurnKeeper, TurnState

Cursor = tuple[int, int]
"""The version of a stored event, and the number of an event that was made from it."""

_ERRORS: Final = ("failed", "stuck")


class RunRequest(msgspec.Struct, frozen=True):
    """What a client sends to start a run, or to continue one after an interrupt."""

    thread_id: str
    run_id: str
    message_id: str = ""
    message: dict[str, Any] = {}
    answers: dict[str, tuple[bool, Any]] = {}
    """For each interrupt, whether it is answered, and the answer."""


def read_run(body: dict[str, Any]) -> RunRequest:
    """Return a request to run, from the JSON of a `RunAgentInput`."""
    thread_id, run_id = str(body.get("threadId", "")), str(body.get("runId", ""))
    if not run_id:
        raise ValueError("runId must be a string")
    resume = body.get("resume")
    if isinstance(resume, list) and resume:
        answers = {}
        for entry in resume:
            if not isinstance(entry, dict) or entry.get("status") not in ("resolved", "cancelled"):
                raise ValueError("an entry of resume must be resolved or cancelled")
            is_answered = entry["status"] == "resolved"
            answers[str(entry.get("interruptId", ""))] = is_answered, entry.get("payload")
        return RunRequest(thread_id, run_id, answers=answers)
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    if not isinstance(last, dict) or last.get("role") != "user" or not last.get("content"):
        raise ValueError("the last of the messages must be the user's")
    message = {"role": "user", "content": last["content"]}
    return RunRequest(thread_id, run_id, str(last.get("id", "")), message)


def parse_event_id(text: str) -> tuple[int, Cursor]:
    """Return the start of the run and the position that the id of an event names."""
    parts = text.split(".")
    if len(parts) != 3 or len(text) > 50 or not all(p.isascii() and p.isdigit() for p in parts):
        raise ValueError("Last-Event-ID must be the id of an event of this run")
    start, version, number = map(int, parts)
    return start, (version, number)


class AguiStream:
    """The events of one run: what came after the version `start` of the conversation."""

    def __init__(self, keeper: TurnKeeper, turn: str | None, run_id: str, start: int) -> None:
        self._keeper, self._turn, self._run_id, self._start = keeper, turn, run_id, start
        self._open: str | None = None
        """The id of the message that is being streamed."""
        self._sent = ""
        self._left = ("", "")
        """The id and the text of the message that was open when the run started."""
        self._is_stale = False
        """Whether the client may have text of an earlier run that differs from what is stored."""
        self._messages: list[dict[str, Any]] = []

    async def follow(self, after: Cursor) -> AsyncIterator[str]:
        """Yield the server-sent events after a position."""
        if after < (self._start, 0):
            yield self._format(self._describe_run("RUN_STARTED"), (self._start, 0))
        first = await self._read_messages()
        version, number = self._start, 0
        async for item in self._keeper.follow(self._turn, first):
            if item is None:
                yield ": still here\n\n"
                continue
            if not isinstance(item, TurnState):
                if item.version <= self._start:
                    self._note_earlier(item)
                    continue
                version, number = item.version, -1
            for event in self._convert(item):
                number += 1
                if (version, number) > after:
                    yield self._format(event, (version, number))

    async def _read_messages(self) -> int:
        """Read the messages before the turn. Return the version of the user's message."""
        first = 0
        for entry in await self._keeper.chat.entries():
            if entry.version > self._start:
                break
            self._keep(entry)
            if entry.meta.get("turn") == self._turn:
                first = entry.version
                break
        return first or self._start

    def _keep(self, entry: MessageEntry) -> None:
        """Keep a message for snapshots, which replace what the client has."""
        role = entry.message.get("role")
        if role in ("user", "assistant"):
            kept = {"id": f"message-{entry.version}", "role": role, "content": _text_of(entry)}
            self._messages.append(kept)

    def _note_earlier(self, item: MessageEntry | DraftPiece) -> None:
        """Note what an earlier run of the same turn has sent."""
        self._is_stale = True
        if isinstance(item, MessageEntry):
            self._keep(item)
            self._left = ("", "")
        else:
            before = self._left[1] if self._left[0] == item.of else ""
            self._left = item.of, before + item.text

    def _convert(self, item: MessageEntry | DraftPiece | TurnState) -> Iterator[dict[str, Any]]:
        if self._is_stale:
            self._is_stale = False
            yield {"type": "MESSAGES_SNAPSHOT", "messages": list(self._messages)}
        if isinstance(item, DraftPiece):
            yield from self._convert_piece(item)
        elif isinstance(item, MessageEntry):
            yield from self._convert_message(item)
        else:
            yield from self._convert_state(item)

    def _convert_piece(self, piece: DraftPiece) -> Iterator[dict[str, Any]]:
        text = piece.text
        if self._open != piece.of:
            yield from self._replace_open()
            if self._left[0] == piece.of:
                text = self._left[1] + text
            self._open, self._sent = piece.of, ""
            yield {"type": "TEXT_MESSAGE_START", "messageId": piece.of, "role": "assistant"}
        self._sent += text
        yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": piece.of, "delta": text}

    def _replace_open(self) -> Iterator[dict[str, Any]]:
        """Take back the message that is open: the process that streamed it died."""
        if self._open is not None:
            yield {"type": "TEXT_MESSAGE_END", "messageId": self._open}
            yield {"type": "MESSAGES_SNAPSHOT", "messages": list(self._messages)}
            self._open = None

    def _convert_message(self, entry: MessageEntry) -> Iterator[dict[str, Any]]:
        text = _text_of(entry)
        if entry.message.get("role") == "assistant" and text:
            if self._open is None or not text.startswith(self._sent):
                yield from self._replace_open()
                self._open, self._sent = f"message-{entry.version}", ""
                yield {"type": "TEXT_MESSAGE_START", "messageId": self._open, "role": "assistant"}
            if rest := text[len(self._sent) :]:
                yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": self._open, "delta": rest}
            yield {"type": "TEXT_MESSAGE_END", "messageId": self._open}
            self._open, self._sent = None, ""
        self._keep(entry)

    def _convert_state(self, state: TurnState) -> Iterator[dict[str, Any]]:
        if self._open is not None:
            yield {"type": "TEXT_MESSAGE_END", "messageId": self._open}
            self._open = None
        if state.status in _ERRORS:
            message = f"the answer failed ({state.error or state.status})"
            yield {"type": "RUN_ERROR", "message": message}
            return
        yield {**self._describe_run("RUN_FINISHED"), "outcome": _describe_outcome(state)}

    def _describe_run(self, kind: str) -> dict[str, Any]:
        return {"type": kind, "threadId": self._keeper.conversation, "runId": self._run_id}

    def _format(self, event: dict[str, Any], cursor: Cursor) -> str:
        data = msgspec.json.encode(event).decode()
        return f"id: {self._start}.{cursor[0]}.{cursor[1]}\ndata: {data}\n\n"


def _describe_outcome(state: TurnState) -> dict[str, Any]:
    if state.status == "cancelled":
        return {"type": "cancelled"}
    if not state.questions:
        return {"type": "success"}
    interrupts = []
    for question in state.questions:
        interrupt = {
            "id": question.id,
            "reason": "input_required",
            "message": question.text,
            "metadata": {"name": question.name, "payload": question.payload},
        }
        if isinstance(question.schema, dict):
            interrupt["responseSchema"] = question.schema
        if question.until is not None:
            interrupt["expiresAt"] = question.until.isoformat()
        interrupts.append(interrupt)
    return {"type": "interrupt", "interrupts": interrupts}


def _text_of(entry: MessageEntry) -> str:
    content = entry.message.get("content")
    return content if isinstance(content, str) else value_to_text(content or "")
