"""What runs: a team, an agent by itself, or a team of another kind, each as the rest of the integration sees it."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple, Protocol

from autogen_agentchat.base import ChatAgent, TaskResult, Team
from autogen_agentchat.messages import (
    BaseAgentEvent,
    BaseChatMessage,
    HandoffMessage,
    MessageFactory,
    ModelClientStreamingChunkEvent,
    StructuredMessage,
    ToolCallExecutionEvent,
)
from autogen_core import CancellationToken

from .states import Message, State, context_of

Item = BaseAgentEvent | BaseChatMessage | TaskResult


class TeamSnapshot(NamedTuple):
    """What is to be stored: a state that is whole, and what belongs to it."""

    state: State
    shown: list[int]
    """How many messages the termination condition was shown in each call since it began to count."""
    said: list[Message]
    """What was said, where the state does not have that."""
    owed: int = 0
    """How many messages at the end of that are not in the state."""
    finished: bool = False
    stop_reason: str | None = None


Store = Callable[[TeamSnapshot], Awaitable[None]]


class Runner(Protocol):
    """A team or an agent, as the rest of the integration sees it."""

    async def enter(self) -> State:
        """Get ready for a block; the state it has."""
        ...

    async def halt(self) -> None:
        """End a run that was left in the middle. What was stored of it stays."""
        ...

    async def leave(self) -> None: ...

    async def load(self, state: State, shown: Sequence[int]) -> None:
        """Take on a state, whatever was there before."""
        ...

    def thread(self, state: State, said: list[Message]) -> list[Message]:
        """All that was said."""
        ...

    def create(self, message: Message) -> BaseAgentEvent | BaseChatMessage: ...

    def items(
        self,
        task: list[BaseChatMessage] | None,
        token: CancellationToken,
        output: bool,
        said: list[Message],
        store: Store,
    ) -> AsyncGenerator[Item, None]:
        """Run. What is said is stored before it is handed on."""
        ...


class Door:
    """Keeps a team or an agent that is in a block from being run past it, where nothing would be stored.

    The methods are replaced on this object. In a run of ours the door is open, for AutoGen calls some of them by others.
    """

    def __init__(self, runner: ChatAgent | Team) -> None:
        self._runner = runner
        self._before: dict[str, Any] | None = None
        self.is_open = False

    def shut(self) -> None:
        inside, names = vars(self._runner), ("run", "run_stream")
        self._before = {name: inside[name] for name in names if name in inside}
        inside.update({name: self._watched(getattr(self._runner, name)) for name in names})

    def remove(self) -> None:
        if self._before is not None:
            inside = vars(self._runner)
            del inside["run"], inside["run_stream"]
            inside.update(self._before)
            self._before = None

    def _watched(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def watched(*args: Any, **options: Any) -> Any:
            if not self.is_open:
                raise RuntimeError(
                    f"this {type(self._runner).__name__} is in a block of persisted(), and what it does by itself is not "
                    "stored: call run or run_stream of what the block gives you"
                )
            return method(*args, **options)

        return watched


def as_seen(create: Callable[[Message], Any]) -> Callable[[Message], list[Message]]:
    """How a message looks in a model's context."""

    def seen(message: Message) -> list[Message]:
        made = create(message)
        before = made.context if isinstance(made, HandoffMessage) else []
        return [each.model_dump() for each in (*before, made.to_model_message())]

    return seen


class SoloRunner:
    """An agent by itself, whose stream goes on only when it is read; or a team with an inside of its own, which is stored at the end."""

    def __init__(self, runner: ChatAgent | Team) -> None:
        self._runner = runner
        self._factory = MessageFactory()
        kinds = [*runner.produced_message_types] if isinstance(runner, ChatAgent) else []
        if structure := getattr(
            runner, "_output_content_type", None
        ):  # which the types above do not tell
            kinds.append(StructuredMessage[structure])  # type: ignore[valid-type]
        for kind in kinds:
            if not self._factory.is_registered(kind):
                self._factory.register(kind)

    async def enter(self) -> State:
        return dict(await self._runner.save_state())

    async def halt(self) -> None:
        """Closing the stream has ended it."""

    async def leave(self) -> None:
        """Nothing was changed."""

    async def load(self, state: State, shown: Sequence[int]) -> None:
        await self._runner.load_state(state)

    def thread(self, state: State, said: list[Message]) -> list[Message]:
        return said

    def create(self, message: Message) -> BaseAgentEvent | BaseChatMessage:
        return self._factory.create(message)

    async def items(
        self,
        task: list[BaseChatMessage] | None,
        token: CancellationToken,
        output: bool,
        said: list[Message],
        store: Store,
    ) -> AsyncGenerator[Item, None]:
        asked = {message.id for message in task or ()}
        said = [*said, *(dict(message.dump()) for message in task or ())]
        if task is not None:
            await store(
                TeamSnapshot(dict(await self._runner.save_state()), [], said, owed=len(task))
            )
        held: BaseChatMessage | None = None
        stream = self._runner.run_stream(task=task, cancellation_token=token)
        async with aclosing(stream) as items:
            async for item in items:
                is_new = not isinstance(item, TaskResult) and item.id not in asked
                if isinstance(item, TaskResult):
                    state = dict(await self._runner.save_state())
                    await store(
                        TeamSnapshot(state, [], said, finished=True, stop_reason=item.stop_reason)
                    )
                    if not output:
                        messages = [message for message in item.messages if message.id not in asked]
                        item = TaskResult(messages=messages, stop_reason=item.stop_reason)
                elif is_new and not isinstance(item, ModelClientStreamingChunkEvent):
                    said = [*said, dict(item.dump())]
                if isinstance(item, ToolCallExecutionEvent):
                    state = dict(await self._runner.save_state())
                    if context_of(
                        state
                    ):  # ends with the results now, which is as good a place as any to go on from
                        await store(TeamSnapshot(state, [], said))
                if held is not None:
                    yield held
                    held = None
                if is_new and isinstance(item, BaseChatMessage):
                    held = item  # the answer, if the result comes next, and stored by then
                elif output or is_new or isinstance(item, TaskResult):
                    yield item
