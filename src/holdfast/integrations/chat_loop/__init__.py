"""The loop behind `complete`, for the SDKs of OpenAI and Anthropic: a durable conversation."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from ... import AsyncConversation, AsyncMemory, Conversation, Memory
from ...memory.chats import ChatMemory, RememberTurn
from .loop import Completion, TurnAnswer
from .memory import TurnMemory
from .pieces import AnswerStream, AsyncAnswerStream
from .tools import Function, Toolbox, is_async
from .wire import EVERYTHING, Dialect, Message

Counter = Callable[[Message], int]
GivenMemory = Memory | AsyncMemory | ChatMemory
Started = TurnAnswer | AnswerStream | Coroutine[Any, Any, TurnAnswer] | AsyncAnswerStream


def check_clients(
    client: object, chat: object, sync_client: type[Any], async_client: type[Any]
) -> None:
    """Reject an invalid chat, and a sync client with an async chat or the reverse."""
    if not isinstance(chat, Conversation | AsyncConversation):
        raise TypeError(
            "complete(client, chat, ...): chat must be a conversation, "
            f"like store.conversation('support-42'), got {type(chat).__name__}"
        )
    wrong = sync_client if isinstance(chat, AsyncConversation) else async_client
    if isinstance(client, wrong):
        raise TypeError(
            f"client must be {sync_client.__name__} for a conversation of store, "
            f"or {async_client.__name__} for one of store.aio"
        )


def start_completion(
    client: Any,
    chat: Conversation | AsyncConversation,
    dialect: Dialect,
    *,
    async_client: str,
    system: str | None,
    window: int | None,
    counter: Counter | None,
    tools: Iterable[Function | Message],
    functions: Mapping[str, Function] | None,
    rounds: int,
    stream: bool,
    memory: GivenMemory | None,
    remember: RememberTurn | None,
    options: Message,
) -> Started:
    """Start a completion; `options` are those of the SDK."""
    if window is not None and type(window) is not int:
        raise TypeError(f"window must be an integer >= 1, got {type(window).__name__}")
    if window is not None and window < 1:
        raise ValueError(f"window must be an integer >= 1, got {window}")
    awaited = isinstance(chat, AsyncConversation)
    toolbox = Toolbox(tools, functions, dialect)
    if not awaited and toolbox.is_async:
        raise TypeError(
            f"async tools need an {async_client} client and a conversation of store.aio"
        )
    if toolbox.schemas:
        options["tools"] = toolbox.schemas
    if stream:
        options["stream"] = True
    # The whole chat is a window in which no message costs any tokens.
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
        memory=_build_turn_memory(chat, memory, remember),
        options=options,
    ).steps()
    if awaited:
        answer = AsyncAnswerStream(chat._log, steps)
        return answer if stream else answer.drain()
    return AnswerStream(chat._log, steps) if stream else AnswerStream(chat._log, steps).drain()


def _build_turn_memory(
    chat: Conversation | AsyncConversation, given: GivenMemory | None, remember: RememberTurn | None
) -> TurnMemory | None:
    if remember is not None and not callable(remember):
        raise TypeError(f"remember must be a function, got {type(remember).__name__}")
    if given is None:
        if remember is not None:
            raise TypeError("remember= needs the memory to write to: complete(…, memory=…)")
        return None
    settings = given if isinstance(given, ChatMemory) else ChatMemory(given)
    awaited = isinstance(chat, AsyncConversation)
    if isinstance(settings.memory, AsyncMemory) is not awaited:
        raise TypeError(
            "memory must be of store for a conversation of store, and of store.aio for one of "
            "store.aio"
        )
    if not awaited and remember is not None and is_async(remember):
        raise TypeError("an async remember function needs a conversation of store.aio")
    return TurnMemory(chat, settings, remember, awaited=awaited)


def _free(_: Message) -> int:
    return 0
