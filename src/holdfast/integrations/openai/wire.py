"""One interface to chat completions and the Responses API: requests, and replies as messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from ...errors import Retryable

Message = dict[str, Any]


class NoAnswer(Retryable):
    """The reply is incomplete: the stream ended early or the response failed. Nothing was stored.

    Call `complete` again.
    """


class ModelReply(NamedTuple):
    """A reply ready to be stored: messages as the API takes them back, and metadata."""

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
    """How to call one of the two APIs."""

    def ask(self, client: Any, messages: Sequence[Any], options: Message) -> Any:
        """Start a call; the driver awaits the result of an async client."""

    def reply(self, response: Any) -> ModelReply: ...

    def listener(self) -> StreamListener: ...

    def result(self, call: ToolCall, text: str) -> Message:
        """The message that answers a tool call."""

    def function(self, name: str, description: str, parameters: Message) -> Message:
        """A function as it is offered to the model."""


class ChatCompletions:
    """`client.chat.completions`."""

    def ask(self, client: Any, messages: Sequence[Any], options: Message) -> Any:
        return client.chat.completions.create(messages=messages, **options)

    def reply(self, response: Any) -> ModelReply:
        choice = response.choices[0]
        return ModelReply(
            [_sendable(as_json(choice.message))], _reply_meta(response, choice.finish_reason)
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
        self._meta = {**self._meta, **_reply_meta(event, self._finish)}
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
    """Return the message, with empty content if it is empty: the API rejects its own null."""
    silent = not any(value for key, value in message.items() if key != "role")
    return {**message, "content": ""} if silent else message


def _merge(whole: Message, delta: Message) -> None:
    """Add a delta. Only streamed text grows: names and ids arrive complete."""
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
        return ModelReply(
            [as_json(item) for item in response.output], _reply_meta(response, finish)
        )

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


def as_json(item: Any) -> Message:
    """Return an SDK object as JSON with exactly the fields and names that the API sent."""
    found: Message = item.to_dict(mode="json")
    return found


def _reply_meta(response: Any, finish: str | None) -> Message:
    """Return the metadata of a reply, for billing and audits; it is not sent to the model."""
    meta = {"model": response.model, "response": response.id, "finish": finish}
    if getattr(response, "usage", None) is not None:
        meta["usage"] = as_json(response.usage)
    return meta


# -- reading stored messages of either API ----------------------------------------------------


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
    return found


def answers_call(message: Message) -> str | None:
    """Return the id of the call that a message answers."""
    if message.get("role") == "tool":
        return message.get("tool_call_id")
    is_output = str(message.get("type")).endswith("_output")
    return message.get("call_id") or message.get("id") if is_output else None


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
