"""Crash-safe chat loops for the OpenAI SDK: the list of messages is a durable conversation.

    chat = store.conversation("support-42")
    chat.append({"role": "user", "content": question}, id=request_id)
    answer = complete(client, chat, model="gpt-5", tools=[look_up_order])
    print(answer.text)

After a crash at any point, run the same lines again. Finished work is not repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Literal, overload

from ... import AsyncConversation, Conversation
from ...memory.chats import RememberTurn
from ..chat_loop import Counter, GivenMemory, Started, check_clients, start_completion
from ..chat_loop.loop import TooManyRounds, TurnAnswer
from ..chat_loop.pieces import AnswerStream, AsyncAnswerStream
from ..chat_loop.tools import Function, call_id
from ..chat_loop.wire import Dialect, Message, NoAnswer
from .dialects import ChatCompletions, Responses

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
    memory: GivenMemory | None = ...,
    remember: RememberTurn | None = ...,
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
    memory: GivenMemory | None = ...,
    remember: RememberTurn | None = ...,
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
    memory: GivenMemory | None = ...,
    remember: RememberTurn | None = ...,
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
    memory: GivenMemory | None = ...,
    remember: RememberTurn | None = ...,
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
    memory: GivenMemory | None = None,
    remember: RememberTurn | None = None,
    stream: bool = False,
    **options: Any,
) -> Started:
    """Answer the newest message of a chat, storing each reply and tool result as it arrives.

    If the newest message is already an answer, it is returned without calling the model. Call
    `complete` again after any crash or error: a tool whose result is stored is not run again; an
    interrupted tool is. With an `AsyncOpenAI` client and an `AsyncConversation`, await the result;
    tools may then be async, and other tools run in a thread.

    Args:
        client: An `OpenAI` or `AsyncOpenAI` client.
        chat: The conversation to answer.
        model: The name of the model.
        api: `"chat"` for chat completions, `"responses"` for the Responses API.
        system: A system message to send before the chat. It is not stored.
        window: The maximum number of tokens to send, newest messages first. Default: the whole
            chat.
        counter: Counts the tokens of a message, for `window`.
        tools: Functions, whose schemas are derived from signature and docstring, or schemas as the
            API takes them.
        functions: The functions for schemas in `tools`, by name. Calls of a tool without a function
            are returned in `TurnAnswer.calls`.
        rounds: How many replies may call tools before `TooManyRounds` is raised.
        memory: A memory to recall from: memories that fit the user's message are quoted in the
            prompt, and not stored in the chat. A `holdfast.memory.ChatMemory` sets how many.
        remember: A function that gets a `holdfast.memory.FinishedTurn` and returns what to
            remember of it: texts, or dicts for `remember_many`. It is stored once. The function
            is called again if the process dies before that.
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
    check_clients(client, chat, OpenAI, AsyncOpenAI)
    for name in OURS & options.keys():
        raise TypeError(f"{name}= is not accepted: the model gets its messages from the chat")
    if options.get("n", 1) != 1:
        raise TypeError("n= is not accepted: a chat has one answer to a message")
    if api not in DIALECTS:
        raise ValueError(f"api must be 'chat' or 'responses', got {api!r}")
    if not hasattr(client, api):
        kind = type(client).__name__
        raise TypeError(
            f"complete(client, chat, ...): client must be an OpenAI() or AsyncOpenAI(), got {kind}"
        )
    return start_completion(
        client,
        chat,
        DIALECTS[api](),
        async_client="AsyncOpenAI",
        system=system,
        window=window,
        counter=counter,
        tools=tools,
        functions=functions,
        rounds=rounds,
        memory=memory,
        remember=remember,
        stream=stream,
        options={"model": model, **options},
    )
