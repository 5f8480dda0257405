"""One interface to the APIs of models: requests, replies as messages, and stored messages."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

from ...errors import Retryable
from ...log.drivers import Effect

Message = dict[str, Any]

EVERYTHING: Final = sys.maxsize
"""The tokens of a window that is the whole chat."""


class Returned(Effect):
    """What a call returned: the value, or an awaitable of it."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def perform(self, log: Any) -> Any:
        return self.value

    async def perform_async(self, log: Any) -> Any:
        return await self.value if inspect.isawaitable(self.value) else self.value


class NoAnswer(Retryable):
    """The reply is incomplete: the stream ended early or the response failed. Nothing was stored.

    Call `complete` again.
    """


class ModelReply(NamedTuple):
    """A reply to store: messages in the form that the API takes back, and metadata."""

    messages: list[Message]
    meta: Message


class ToolCall(NamedTuple):
    """A tool call by the model. `arguments` is None for calls of built-in tools."""

    id: str
    name: str
    arguments: str | None
    raw: Message


class StreamListener(Protocol):
    """Assembles a streamed reply."""

    def hear(self, event: Any) -> str:
        """Take the next event and return its text, if any."""

    def reply(self) -> ModelReply:
        """Return the complete reply; raise `NoAnswer` if the stream ended early."""


class Dialect(Protocol):
    """How to call one of the APIs."""

    ends_with_user: bool
    """Whether the newest message must be the user's: the model would continue an answer."""

    def ask(self, client: Any, messages: Sequence[Any], options: Message) -> Any:
        """Start a call; the driver awaits the result of an async client."""

    def reply(self, response: Any) -> ModelReply: ...

    def listener(self) -> StreamListener: ...

    def result(self, call: ToolCall, text: str) -> Message:
        """Return the message that answers a tool call."""

    def function(self, name: str, description: str, parameters: Message) -> Message:
        """Return a function in the form that is offered to the model."""


def as_json(item: Any) -> Message:
    """Return an SDK object as JSON with exactly the fields and names that the API sent."""
    found: Message = item.to_dict(mode="json")
    return found


def reply_meta(response: Any, finish: str | None) -> Message:
    """Return the metadata of a reply, for billing and audits; it is not sent to the model."""
    meta = {"model": response.model, "response": response.id, "finish": finish}
    if getattr(response, "usage", None) is not None:
        meta["usage"] = as_json(response.usage)
    return meta


# -- reading stored messages of any API ------------------------------------------------------------


def calls_of(message: Message) -> list[ToolCall]:
    """Return the tool calls in a message that need a result."""
    kind = message.get("type")
    if isinstance(kind, str) and kind.endswith("_call") and isinstance(message.get("call_id"), str):
        arguments = message.get("arguments") if kind == "function_call" else None
        return [ToolCall(message["call_id"], message.get("name", kind), arguments, message)]
    found = []
    for raw in message.get("tool_calls") or ():
        function = raw.get("function") or {}
        found.append(
            ToolCall(
                raw["id"], function.get("name", raw.get("type", "")), function.get("arguments"), raw
            )
        )
    if message.get("role") == "assistant":
        for block in _blocks(message, "tool_use"):
            arguments = json.dumps(block.get("input") or {})
            found.append(ToolCall(block["id"], block.get("name", ""), arguments, block))
    return found


def answered_calls(message: Message) -> list[str]:
    """Return the ids of the calls that a message answers."""
    if message.get("role") == "tool":
        return [message["tool_call_id"]] if message.get("tool_call_id") else []
    if message.get("role") == "user":
        return [block["tool_use_id"] for block in _blocks(message, "tool_result")]
    is_output = str(message.get("type")).endswith("_output")
    answered = message.get("call_id") or message.get("id") if is_output else None
    return [answered] if answered else []


def is_from_user(message: Message) -> bool:
    """Return whether the message is what a user says, not the result of a tool."""
    return message.get("role") == "user" and not answered_calls(message)


def _blocks(message: Message, kind: str) -> list[Message]:
    content = message.get("content")
    return (
        [block for block in content if block.get("type") == kind]
        if isinstance(content, list)
        else []
    )


def is_from_model(message: Message) -> bool:
    """Return whether the message is from the model, not from a user, a tool or the program."""
    if "role" in message:
        return bool(message["role"] == "assistant")
    return not str(message.get("type")).endswith(("_output", "_response"))


def text_of(message: Message) -> str:
    """Return the text of a message for the user."""
    content = message.get("content") if message.get("role") == "assistant" else None
    if isinstance(content, list):
        return "".join(part.get("text") or part.get("refusal") or "" for part in content)
    return content or message.get("refusal") or ""


def text_of_user(message: Message) -> str:
    """Return the text of what a user says, without images and files."""
    content = message.get("content")
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, dict))
        return "\n".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""
