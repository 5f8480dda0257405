"""The two dialects of OpenAI's API, chat completions and Responses, as one: what to send, and what came back as plain messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from ...errors import Retryable

Message = dict[str, Any]


class NoAnswer(Retryable):
    """The model's answer did not arrive whole: a stream that ended early, a response that failed. Nothing was stored: ask again."""


class ModelReply(NamedTuple):
    """An answer of the model, ready to be stored: its messages as they are sent back to it, and what to note beside them."""

    messages: list[Message]
    meta: Message


class ToolCall(NamedTuple):
    """A tool call that the model made. `arguments` is None for a kind of call that is not that of a function."""

    id: str
    name: str
    arguments: str | None
    raw: Message


class StreamListener(Protocol):
    """Puts a streamed answer together."""

    def hear(self, event: Any) -> str:
        """Take the next event; the text in it, if any."""

    def said(self) -> ModelReply:
        """The whole answer. `NoAnswer` if the stream ended before it did."""


class Dialect(Protocol):
    """How one of the two APIs is spoken to."""

    def ask(self, client: Any, messages: Sequence[Any], options: Message) -> Any:
        """Begin a call; what it returns is awaited if the client is an async one."""

    def said(self, response: Any) -> ModelReply: ...

    def listener(self) -> StreamListener: ...

    def result(self, call: ToolCall, text: str) -> Message:
        """The message that answers a tool call."""

    def function(self, name: str, description: str, parameters: Message) -> Message:
        """A function as it is offered to the model."""


class ChatCompletions:
    """`client.chat.completions`."""

    def ask(self, client: Any, messages: Sequence[Any], options: Message) -> Any:
        return client.chat.completions.create(messages=messages, **options)

    def said(self, response: Any) -> ModelReply:
        choice = response.choices[0]
        return ModelReply(
            [_sendable(plain(choice.message))], _noted(response, choice.finish_reason)
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
            delta = plain(choice.delta)
            self._finish = choice.finish_reason or self._finish
            for call in delta.pop("tool_calls", None) or ():
                _merge(self._calls.setdefault(call.pop("index"), {}), call)
            delta.pop("role", None)
            _merge(self._message, delta)
        self._meta = {**self._meta, **_noted(event, self._finish)}
        return "".join(
            choice.delta.content or choice.delta.refusal or "" for choice in event.choices
        )

    def said(self) -> ModelReply:
        if self._finish is None:
            raise NoAnswer("the stream ended before the answer did; nothing was stored, ask again")
        if self._calls:
            self._message["tool_calls"] = [call for _, call in sorted(self._calls.items())]
        return ModelReply([_sendable(self._message)], self._meta)


def _sendable(message: Message) -> Message:
    """A message as it is, unless it says nothing at all: the API does not take back its own null."""
    silent = not any(value for key, value in message.items() if key != "role")
    return {**message, "content": ""} if silent else message


def _merge(whole: Message, delta: Message) -> None:
    """Add a delta to what came before. Only what is sent in pieces grows: names and ids come whole."""
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

    def said(self, response: Any) -> ModelReply:
        if response.status not in ("completed", "incomplete"):
            code = response.error.code if response.error else "no reason given"
            raise NoAnswer(
                f"the response is {response.status} ({code}); nothing was stored, ask again"
            )
        if not response.output:
            raise NoAnswer("the response is empty; nothing was stored, ask again")
        details = response.incomplete_details
        finish = details.reason if details else response.status
        return ModelReply([plain(item) for item in response.output], _noted(response, finish))

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

    def said(self) -> ModelReply:
        if self._response is None:
            raise NoAnswer("the stream ended before the answer did; nothing was stored, ask again")
        return self._dialect.said(self._response)


def plain(item: Any) -> Message:
    """A message of the SDK as JSON, with exactly what the API said: no more nulls, no fewer, the API's own names."""
    found: Message = item.to_dict(mode="json")
    return found


def _noted(response: Any, finish: str | None) -> Message:
    """What is worth keeping beside an answer, for bills and audits; never sent to the model."""
    meta = {"model": response.model, "response": response.id, "finish": finish}
    if getattr(response, "usage", None) is not None:
        meta["usage"] = plain(response.usage)
    return meta


# -- reading stored messages, of either dialect ------------------------------------------------------------------------


def calls_of(message: Message) -> list[ToolCall]:
    """The tool calls in a message that somebody has to answer."""
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
    """The id of the call that a message answers."""
    if message.get("role") == "tool":
        return message.get("tool_call_id")
    is_output = str(message.get("type")).endswith("_output")
    return message.get("call_id") or message.get("id") if is_output else None


def is_from_model(message: Message) -> bool:
    """Whether the model said it, rather than a user, a tool or the program."""
    if "role" in message:
        return bool(message["role"] == "assistant")
    return not str(message.get("type")).endswith(("_output", "_response"))


def text_of(message: Message) -> str:
    """What a message says to the user."""
    content = message.get("content") if message.get("role") == "assistant" else None
    if isinstance(content, list):
        return "".join(part.get("text") or part.get("refusal") or "" for part in content)
    return content or message.get("refusal") or ""
