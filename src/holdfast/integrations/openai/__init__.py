"""Crash-safe chat loops for the OpenAI SDK: a durable conversation is the list of messages.

    chat = store.conversation("support-42")
    chat.append({"role": "user", "content": question}, id=request_id)
    answer = complete(client, chat, model="gpt-5", tools=[look_up_order])
    print(answer.text)

After a crash anywhere in there, run the same lines again. Finished work is not repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Literal, overload

from ... import AsyncConversation, Conversation
from .loop import EVERYTHING, Completion, TooManyRounds, TurnAnswer
from .pieces import AnswerStream, AsyncAnswerStream
from .tools import Function, Toolbox, call_id
from .wire import ChatCompletions, Dialect, Message, NoAnswer, Responses

try:
    from openai import AsyncOpenAI, OpenAI
except ImportError as error:
    raise ImportError(
        "holdfast.integrations.openai needs the OpenAI SDK: pip install openai"
    ) from error

__all__ = [
    "AnswerStream",
    "AsyncAnswerStream",
    "NoAnswer",
    "TooManyRounds",
    "TurnAnswer",
    "call_id",
    "complete",
]

Api = Literal["chat", "responses"]
Counter = Callable[[Message], int]
DIALECTS: dict[Api, Callable[[], Dialect]] = {"chat": ChatCompletions, "responses": Responses}
OURS = {"messages", "input", "previous_response_id", "conversation"}


@overload
def complete(
    client: OpenAI,
    chat: Conversation,
    *,
    model: str,
    api: Api = ...,
    system: str | None = ...,
    window: int | None = ...,
    counter: Counter | None = ...,
    tools: Iterable[Function | Message] = ...,
    functions: Mapping[str, Function] | None = ...,
    rounds: int = ...,
    stream: Literal[False] = False,
    **options: Any,
) -> TurnAnswer: ...


@overload
def complete(
    client: OpenAI,
    chat: Conversation,
    *,
    model: str,
    api: Api = ...,
    system: str | None = ...,
    window: int | None = ...,
    counter: Counter | None = ...,
    tools: Iterable[Function | Message] = ...,
    functions: Mapping[str, Function] | None = ...,
    rounds: int = ...,
    stream: Literal[True],
    **options: Any,
) -> AnswerStream: ...


@overload
def complete(
    client: AsyncOpenAI,
    chat: AsyncConversation,
    *,
    model: str,
    api: Api = ...,
    system: str | None = ...,
    window: int | None = ...,
    counter: Counter | None = ...,
    tools: Iterable[Function | Message] = ...,
    functions: Mapping[str, Function] | None = ...,
    rounds: int = ...,
    stream: Literal[False] = False,
    **options: Any,
) -> Coroutine[Any, Any, TurnAnswer]: ...


@overload
def complete(
    client: AsyncOpenAI,
    chat: AsyncConversation,
    *,
    model: str,
    api: Api = ...,
    system: str | None = ...,
    window: int | None = ...,
    counter: Counter | None = ...,
    tools: Iterable[Function | Message] = ...,
    functions: Mapping[str, Function] | None = ...,
    rounds: int = ...,
    stream: Literal[True],
    **options: Any,
) -> AsyncAnswerStream: ...
def complete(
    client: OpenAI | AsyncOpenAI,
    chat: Conversation | AsyncConversation,
    *,
    model: str,
    api: Api = "chat",
    system: str | None = None,
    window: int | None = None,
    counter: Counter | None = None,
    tools: Iterable[Function | Message] = (),
    functions: Mapping[str, Function] | None = None,
    rounds: int = 20,
    stream: bool = False,
    **options: Any,
) -> TurnAnswer | AnswerStream | Coroutine[Any, Any, TurnAnswer] | AsyncAnswerStream:
    """Answer the newest message of a chat, storing each reply and tool result as it arrives.

    If the newest message is already an answer, it is returned without calling the model. Call
    `complete` again after any crash or error: a tool whose result is stored is not run again; an
    interrupted one is. With an `AsyncOpenAI` client and an `AsyncConversation`, await the result;
    tools may then be async, and other tools run in a thread.

    Args:
        client: An `OpenAI` or `AsyncOpenAI` client.
        chat: The conversation to answer.
        model: The name of the model.
        api: `"chat"` for chat completions, `"responses"` for the Responses API.
        system: A system message in front of the chat; not stored.
        window: How many of the newest tokens to send; by default the whole chat.
        counter: Counts the tokens of a message, for `window`.
        tools: Functions, whose schema follows from signature and docstring, or schemas as the
            API takes them.
        functions: The functions of schemas in `tools`, by name. Calls of a tool without a
            function are returned in `TurnAnswer.calls`.
        rounds: How many replies may call tools before `TooManyRounds` is raised.
        stream: Return an iterator of text pieces.
        **options: Passed to the SDK.

    Returns:
        A `TurnAnswer`, or an `AnswerStream` with `stream=True`.

    Raises:
        TooManyRounds: The model keeps calling tools.
        NoAnswer: The reply did not arrive completely; nothing was stored.
        Exception: Errors of tools and of the SDK are raised as they are. Arguments that don't
            fit a tool are reported to the model instead.

    Example:
        chat.append({"role": "user", "content": question}, id=request_id)
        answer = complete(client, chat, model="gpt-5", tools=[look_up_order])
    """
    if not isinstance(chat, Conversation | AsyncConversation):
        raise TypeError(
            "complete(client, chat, ...): chat must be a conversation, "
            f"like store.conversation('support-42'), got {type(chat).__name__}"
        )
    awaited = isinstance(chat, AsyncConversation)
    if isinstance(client, AsyncOpenAI if not awaited else OpenAI):
        raise TypeError(
            "client must be OpenAI for a conversation of store, AsyncOpenAI for one of store.aio"
        )
    for name in OURS & options.keys():
        raise TypeError(f"{name}= is not accepted: the model sees what the chat holds")
    if options.get("n", 1) != 1:
        raise TypeError("n= is not accepted: a chat has one answer to a message")
    if api not in DIALECTS:
        raise ValueError(f"api must be 'chat' or 'responses', got {api!r}")
    if not hasattr(client, api):
        kind = type(client).__name__
        raise TypeError(
            f"complete(client, chat, ...): client must be an OpenAI() or AsyncOpenAI(), got {kind}"
        )
    if window is not None and type(window) is not int:
        raise TypeError(f"window must be an integer >= 1, got {type(window).__name__}")
    if window is not None and window < 1:
        raise ValueError(f"window must be an integer >= 1, got {window}")
    dialect = DIALECTS[api]()
    toolbox = Toolbox(tools, functions, dialect)
    if not awaited and toolbox.is_async:
        raise TypeError("async tools need an AsyncOpenAI client and a conversation of store.aio")
    if toolbox.schemas:
        options["tools"] = toolbox.schemas
    if stream:
        options["stream"] = True
    # The whole chat is a window in which every message is free.
    room: Message = (
        {"max_tokens": window, "counter": counter}
        if window is not None
        else {"max_tokens": EVERYTHING, "counter": _free}
    )
    steps = Completion(
        client,
        chat,
        dialect,
        toolbox,
        awaited=awaited,
        streamed=stream,
        rounds=rounds,
        window={**room, "system": system},
        options={"model": model, **options},
    ).steps()
    if awaited:
        answer = AsyncAnswerStream(steps)
        return answer if stream else answer.drain()
    return AnswerStream(steps) if stream else AnswerStream(steps).drain()


def _free(_: Message) -> int:
    return 0
