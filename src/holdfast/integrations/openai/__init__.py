"""Chat loops on the OpenAI SDK that survive a crash: the conversation is the list of messages, and it is durable.

    chat = store.conversation("support-42")
    chat.append({"role": "user", "content": question}, id=request_id)
    answer = complete(client, chat, model="gpt-5", tools=[look_up_order])
    print(answer.text)

After a crash anywhere in there, run the same lines again: what was done is not done again, what was not is.
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
    "TurnAnswer",
    "AsyncAnswerStream",
    "NoAnswer",
    "AnswerStream",
    "TooManyRounds",
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
    """Bring a chat to its next answer, and store each thing on the way as soon as it is known.

    It answers the newest message. If that is an answer already, that is what is returned, and the model is not asked. Otherwise the model
    is shown the chat (the newest `window` tokens of it; all of it unless told), its answer is stored, the tools it calls
    are run and their results stored, until it has answered. So it can be called again after any crash or error: a
    tool whose result is stored is not run again, one that was cut off is.

    `tools` are functions, whose schema follows from their signature and docstring, or schemas as the API takes them, with
    their functions by name in `functions`; calls of a tool that has no function are returned in `Answer.calls`. An error
    from a tool comes through, and so does one from the SDK; arguments that do not fit are told to the model. In a tool
    `call_id()` is the id of the call, for whoever must not do it twice. After
    `rounds` answers that were tool calls, `TooManyRounds`. All other options go to the SDK as they are.

    With an `AsyncOpenAI` client and an `AsyncConversation` the result is awaited, tools may be async, and other tools
    run in a thread. With `stream=True` it is an iterator of pieces of text.
    """
    if not isinstance(chat, Conversation | AsyncConversation):
        raise TypeError(
            "complete(client, chat, ...): chat must be a conversation, "
            f"like store.conversation('support-42'), got {type(chat).__name__}"
        )
    awaited = isinstance(chat, AsyncConversation)
    if isinstance(client, AsyncOpenAI if not awaited else OpenAI):
        raise TypeError(
            "OpenAI goes with store.conversation(), AsyncOpenAI with that of an async store (store.aio)"
        )
    for name in OURS & options.keys():
        raise TypeError(f"{name}= cannot be given: what the model sees is what the chat holds")
    if options.get("n", 1) != 1:
        raise TypeError("n= cannot be given: a chat has one answer to a message")
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
        raise TypeError(
            "async tools need an AsyncOpenAI client and the conversation of an async store (store.aio)"
        )
    if toolbox.schemas:
        options["tools"] = toolbox.schemas
    if stream:
        options["stream"] = True
    # All of it, as a provider takes it, is a window that nothing is too long for.
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
        pieces = AsyncAnswerStream(steps)
        return pieces if stream else pieces.to_the_end()
    return AnswerStream(steps) if stream else AnswerStream(steps).to_the_end()


def _free(_: Message) -> int:
    return 0
