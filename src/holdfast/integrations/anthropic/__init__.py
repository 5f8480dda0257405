"""Crash-safe chat loops for the Anthropic SDK: the list of messages is a durable conversation.

    chat = store.conversation("support-42")
    chat.append({"role": "user", "content": question}, id=request_id)
    answer = complete(client, chat, model="claude-opus-4-5", max_tokens=1024, tools=[look_up_order])
    print(answer.text)

After a crash at any point, run the same lines again. Finished work is not repeated.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, Literal, overload

from ... import AsyncConversation, Conversation
from ...memory.chats import RememberTurn
from ..chat_loop import Counter, GivenMemory, Started, check_clients, start_completion
from ..chat_loop.loop import TooManyRounds, TurnAnswer
from ..chat_loop.pieces import AnswerStream, AsyncAnswerStream
from ..chat_loop.tools import Function, call_id
from ..chat_loop.wire import Message, NoAnswer
from .dialect import MessagesApi

try:
    from anthropic import Anthropic, AsyncAnthropic
except ImportError as error:
    raise ImportError(
        "holdfast.integrations.anthropic needs the Anthropic SDK: pip install anthropic"
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


@overload
def complete(
    client: Anthropic,
    chat: Conversation,
    *,
    model: str,
    max_tokens: int,
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
    client: Anthropic,
    chat: Conversation,
    *,
    model: str,
    max_tokens: int,
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
    client: AsyncAnthropic,
    chat: AsyncConversation,
    *,
    model: str,
    max_tokens: int,
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
    client: AsyncAnthropic,
    chat: AsyncConversation,
    *,
    model: str,
    max_tokens: int,
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
    client: Anthropic | AsyncAnthropic,
    chat: Conversation | AsyncConversation,
    *,
    model: str,
    max_tokens: int,
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
    interrupted tool is. With an `AsyncAnthropic` client and an `AsyncConversation`, await the
    result; tools may then be async, and other tools run in a thread.

    Args:
        client: An `Anthropic` or `AsyncAnthropic` client.
        chat: The conversation to answer.
        model: The name of the model.
        max_tokens: The maximum number of tokens of each reply.
        system: A system prompt. It is not stored.
        window: The maximum number of tokens to send, newest messages first. Default: the whole
            chat.
        counter: Counts the tokens of a message, for `window`.
        tools: Functions, whose schemas are derived from signature and docstring, or schemas as the
            API takes them, those of the provider's own tools included.
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
        answer = complete(client, chat, model="claude-opus-4-5", max_tokens=1024, tools=[look_up])
    """
    check_clients(client, chat, Anthropic, AsyncAnthropic)
    if "messages" in options:
        raise TypeError("messages= is not accepted: the model gets its messages from the chat")
    if not hasattr(client, "messages"):
        kind = type(client).__name__
        raise TypeError(
            "complete(client, chat, ...): client must be an Anthropic() or AsyncAnthropic(), "
            f"got {kind}"
        )
    return start_completion(
        client,
        chat,
        MessagesApi(),
        async_client="AsyncAnthropic",
        system=system,
        window=window,
        counter=counter,
        tools=tools,
        functions=functions,
        rounds=rounds,
        memory=memory,
        remember=remember,
        stream=stream,
        options={"model": model, "max_tokens": max_tokens, **options},
    )
