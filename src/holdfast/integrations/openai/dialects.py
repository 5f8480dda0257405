"""Chat completions and the Responses API: requests, and replies as messages."""

from __future__ import annotations

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


class ChatCompletions:
    """`client.chat.completions`."""

    ends_with_user = False

    def ask(self, client: Any, messages: Sequence[Any], options: Message) -> Any:
        return client.chat.completions.create(messages=messages, **options)

    def reply(self, response: Any) -> ModelReply:
        choice = response.choices[0]
        return ModelReply(
            [_sendable(as_json(choice.message))], reply_meta(response, choice.finish_reason)
        )

    def listener(self) -> StreamListener:
        return _ChatListener()

    def result(self, call: ToolCall, text: str) -> Message:
        return {"role": "tool", "tool_call_id": call.id, "content": text}

    def function(self, name: str, description: str, parameters: Message) -> Message:
        function = {"name": name, "description": description, "parameters": parameters}
        return {"type": "function", "function": function}


class _ChatListener:
    def __init__(self) -> None:
        self._message: Message = {"role": "assistant", "content": None}
        self._calls: dict[int, Message] = {}
        self._finish: str | None = None
        self._meta: Message = {}

    def hear(self, event: Any) -> str:
        for choice in event.choices:
            delta = as_json(choice.delta)
            self._finish = choice.finish_reason or self._finish
            for call in delta.pop("tool_calls", None) or ():
                _merge(self._calls.setdefault(call.pop("index"), {}), call)
            delta.pop("role", None)
            _merge(self._message, delta)
        self._meta = {**self._meta, **reply_meta(event, self._finish)}
        return "".join(
            choice.delta.content or choice.delta.refusal or "" for choice in event.choices
        )

    def reply(self) -> ModelReply:
        if self._finish is None:
            raise NoAnswer("the stream ended early; nothing was stored, call complete() again")
        if self._calls:
            self._message["tool_calls"] = [call for _, call in sorted(self._calls.items())]
        return ModelReply([_sendable(self._message)], self._meta)


def _sendable(message: Message) -> Message:
    """Return the message; if empty, with content "": the API rejects the null that it sent."""
    silent = not any(value for key, value in message.items() if key != "role")
    return {**message, "content": ""} if silent else message


def _merge(whole: Message, delta: Message) -> None:
    """Add a delta to a message. Only text grows: names and ids arrive complete."""
    for key, value in delta.items():
        if isinstance(value, dict):
            _merge(whole.setdefault(key, {}), value)
        elif (
            isinstance(value, str)
            and isinstance(whole.get(key), str)
            and key not in ("id", "type", "name")
        ):
            whole[key] += value
        elif value is not None:
            whole[key] = value


class Responses:
    """`client.responses`."""

    ends_with_user = False

    def ask(self, client: Any, messages: Sequence[Any], options: Message) -> Any:
        return client.responses.create(input=messages, **options)

    def reply(self, response: Any) -> ModelReply:
        if response.status not in ("completed", "incomplete"):
            code = response.error.code if response.error else "no reason given"
            raise NoAnswer(
                f"the response is {response.status} ({code}); nothing was stored, call again"
            )
        if not response.output:
            raise NoAnswer("the response is empty; nothing was stored, call complete() again")
        details = response.incomplete_details
        finish = details.reason if details else response.status
        return ModelReply([as_json(item) for item in response.output], reply_meta(response, finish))

    def listener(self) -> StreamListener:
        return _ResponseListener(self)

    def result(self, call: ToolCall, text: str) -> Message:
        return {"type": "function_call_output", "call_id": call.id, "output": text}

    def function(self, name: str, description: str, parameters: Message) -> Message:
        # Not strict: a strict schema would make every parameter required, defaults or not.
        return {
            "type": "function",
            "name": name,
            "description": description,
            "parameters": parameters,
            "strict": False,
        }


class _ResponseListener:
    def __init__(self, dialect: Responses) -> None:
        self._dialect = dialect
        self._response: Any = None

    def hear(self, event: Any) -> str:
        if event.type in ("response.completed", "response.incomplete", "response.failed"):
            self._response = event.response
        is_text = event.type in ("response.output_text.delta", "response.refusal.delta")
        return str(event.delta) if is_text else ""

    def reply(self) -> ModelReply:
        if self._response is None:
            raise NoAnswer("the stream ended early; nothing was stored, call complete() again")
        return self._dialect.reply(self._response)
