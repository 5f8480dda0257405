"""The Messages API: requests, and replies as messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ..chat_loop.wire import (
    Message,
    ModelReply,
    NoAnswer,
    StreamListener,
    ToolCall,
    as_json,
    reply_meta,
)

GROWING = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
"""Streamed pieces of a block, and its field that each belongs to."""


class MessagesApi:
    """`client.messages`."""

    ends_with_user = True

    def ask(self, client: Any, messages: Sequence[Any], options: Message) -> Any:
        system, turns = split_turns(messages)
        return client.messages.create(
            messages=turns, **({"system": system} if system else {}), **options
        )

    def reply(self, response: Any) -> ModelReply:
        content = [as_json(block) for block in response.content]
        return ModelReply(
            [{"role": "assistant", "content": content}], reply_meta(response, response.stop_reason)
        )

    def listener(self) -> StreamListener:
        return _MessageListener()

    def result(self, call: ToolCall, text: str) -> Message:
        result = {"type": "tool_result", "tool_use_id": call.id, "content": text}
        return {"role": "user", "content": [result]}

    def function(self, name: str, description: str, parameters: Message) -> Message:
        return {"name": name, "description": description, "input_schema": parameters}


def split_turns(messages: Sequence[Message]) -> tuple[str, list[Message]]:
    """Return the system prompt and the turns, as the API takes them.

    Neighbours with the same role become one turn: results of parallel calls, which are stored one
    by one, must arrive together, before any text. Empty answers are left out.
    """
    system: list[str] = []
    turns: list[Message] = []
    for message in messages:
        if "role" not in message:
            raise ValueError(
                f"the chat has a message of another API, of type {message.get('type')!r}: "
                "use one API for a chat from beginning to end"
            )
        role, content = message["role"], message.get("content")
        if role in ("system", "developer"):
            system += [block["text"] for block in _as_blocks(content) if block.get("text")]
        elif turns and turns[-1]["role"] == role:
            blocks = [*_as_blocks(turns[-1]["content"]), *_as_blocks(content)]
            blocks.sort(key=lambda block: block.get("type") != "tool_result")
            turns[-1] = {"role": role, "content": blocks}
        elif content:
            turns.append({"role": role, "content": content})
    return "\n\n".join(system), turns


def _as_blocks(content: Any) -> list[Message]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return list(content or ())


class _MessageListener:
    def __init__(self) -> None:
        self._message: Any = None
        self._blocks: list[Message] = []
        self._inputs: dict[int, str] = {}
        self._meta: Message = {}
        self._complete = False

    def hear(self, event: Any) -> str:
        if event.type == "message_start":
            self._message = event.message
            self._meta = reply_meta(event.message, None)
        elif event.type == "content_block_start":
            self._blocks.append(as_json(event.content_block))
        elif event.type == "content_block_delta":
            return self._grow(event.index, as_json(event.delta))
        elif event.type == "message_delta":
            self._meta["finish"] = event.delta.stop_reason
            self._meta["usage"] = {**self._meta.get("usage", {}), **as_json(event.usage)}
        elif event.type == "message_stop":
            self._complete = True
        return ""

    def _grow(self, index: int, delta: Message) -> str:
        block, kind = self._blocks[index], delta["type"]
        if kind in GROWING:
            field = GROWING[kind]
            block[field] = block.get(field, "") + delta[field]
        elif kind == "input_json_delta":
            self._inputs[index] = self._inputs.get(index, "") + delta["partial_json"]
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or []), delta["citation"]]
        return str(delta["text"]) if kind == "text_delta" else ""

    def reply(self) -> ModelReply:
        if not self._complete:
            raise NoAnswer("the stream ended early; nothing was stored, call complete() again")
        for index, text in self._inputs.items():
            try:
                self._blocks[index]["input"] = json.loads(text or "{}")
            except ValueError:
                raise NoAnswer(
                    "the answer ends in the middle of a tool call "
                    f"({self._meta['finish']}); nothing was stored, raise max_tokens="
                ) from None
        return ModelReply([{"role": "assistant", "content": self._blocks}], self._meta)
