"""Messages of AutoGen 0.7 as messages of the Agent Framework. AutoGen itself is not imported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from agent_framework import Content, Message


def convert_messages(messages: Iterable[Any], user: str = "user") -> list[Message]:
    """Return what the agents and the user said, with tool calls and their results.

    Events that no model sees, such as pieces of a stream, are left out. So is an interrupted call
    without a result: a provider would reject it.
    """
    given = list(messages)
    answered = {
        result.call_id
        for message in given
        if _kind(message) == "ToolCallExecutionEvent"
        for result in message.content
    }
    found: list[Message] = []
    for message in given:
        contents = _contents(message, answered)
        if contents:
            role = _role(message, user)
            found.append(Message(role, contents, author_name=message.source, message_id=message.id))
    return found


def _kind(message: Any) -> str:
    return str(getattr(message, "type", type(message).__name__))


def _role(message: Any, user: str) -> str:
    if _kind(message) == "ToolCallExecutionEvent":
        return "tool"
    return "user" if message.source == user else "assistant"


def _contents(message: Any, answered: set[str]) -> Sequence[Content]:
    kind = _kind(message)
    if kind == "ToolCallRequestEvent":
        return [
            Content.from_function_call(call.id, call.name, arguments=call.arguments)
            for call in message.content
            if call.id in answered
        ]
    if kind == "ToolCallExecutionEvent":
        return [
            Content.from_function_result(result.call_id, result=result.content)
            for result in message.content
        ]
    if kind == "MultiModalMessage":
        return [
            Content.from_text(part) if isinstance(part, str) else Content.from_uri(part.data_uri)
            for part in message.content
        ]
    if hasattr(message, "to_model_text"):  # a chat message, not an event
        text = message.to_model_text()
        return [Content.from_text(text)] if text else []
    return []
