"""The `Runner` interface for teams and agents, and the runner for an agent without a team."""

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

from .states import MessageDict, StateDict, find_context

StreamItem = BaseAgentEvent | BaseChatMessage | TaskResult


class TeamSnapshot(NamedTuple):
    """A consistent state to store, with the progress of the run that it belongs to."""

    state: StateDict
    condition_calls: list[int]
    """The number of messages in each call of the termination condition since its last reset."""
    messages: list[MessageDict]
    """All messages, if the state does not keep them."""
    undelivered: int = 0
    """How many of the last `messages` are not in the state yet."""
    finished: bool = False
    stop_reason: str | None = None


SaveSnapshot = Callable[[TeamSnapshot], Awaitable[None]]


class Runner(Protocol):
    """A team or an agent, as the rest of the integration sees it."""

    async def enter(self) -> StateDict:
        """Prepare for a block and return the current state."""
        ...

    async def halt(self) -> None:
        """End a run whose stream was not read to its end. Its stored turns stay."""
        ...

    async def leave(self) -> None:
        """Undo what `enter` changed."""
        ...

    async def load(self, state: StateDict, condition_calls: Sequence[int]) -> None:
        """Replace the current state, whatever it was."""
        ...

    def all_messages(self, state: StateDict, messages: list[MessageDict]) -> list[MessageDict]:
        """Return all messages: from the state if it keeps them, otherwise `messages`."""
        ...

    def create(self, message: MessageDict) -> BaseAgentEvent | BaseChatMessage: ...

    def run(
        self,
        task: list[BaseChatMessage] | None,
        token: CancellationToken,
        output_task: bool,
        messages: list[MessageDict],
        save: SaveSnapshot,
    ) -> AsyncGenerator[StreamItem, None]:
        """Run, and yield each message after it is stored."""
        ...


class DirectRunGuard:
    """Rejects direct calls of `run` and `run_stream` inside a block: they would not be stored.

    It replaces the methods on the object. During our own runs `allowed` is True, because AutoGen's
    methods call each other.
    """

    def __init__(self, runner: ChatAgent | Team) -> None:
        self._runner = runner
        self._originals: dict[str, Any] | None = None
        self.allowed = False

    def install(self) -> None:
        attributes, names = vars(self._runner), ("run", "run_stream")
        self._originals = {name: attributes[name] for name in names if name in attributes}
        attributes.update({name: self._wrap(getattr(self._runner, name)) for name in names})

    def remove(self) -> None:
        if self._originals is not None:
            attributes = vars(self._runner)
            del attributes["run"], attributes["run_stream"]
            attributes.update(self._originals)
            self._originals = None

    def _wrap(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def guarded(*args: Any, **options: Any) -> Any:
            if not self.allowed:
                raise RuntimeError(
                    f"this {type(self._runner).__name__} is in a block of persisted(), where direct"
                    " runs are not stored; call run or run_stream of the object that the block"
                    " returns"
                )
            return method(*args, **options)

        return guarded


def to_context(create: Callable[[MessageDict], Any], message: MessageDict) -> list[MessageDict]:
    """Return the form that a message has in a model's context."""
    created = create(message)
    before = created.context if isinstance(created, HandoffMessage) else []
    return [each.model_dump() for each in (*before, created.to_model_message())]


class SoloRunner:
    """Runs an agent without a team, or a team whose state is stored only at the end of a run.

    An agent's stream advances only when it is read.
    """

    def __init__(self, runner: ChatAgent | Team) -> None:
        self._runner = runner
        self._factory = MessageFactory()
        types = [*runner.produced_message_types] if isinstance(runner, ChatAgent) else []
        # An agent's produced_message_types lack the type of its structured output.
        if structure := getattr(runner, "_output_content_type", None):
            types.append(StructuredMessage[structure])  # type: ignore[valid-type]
        for message_type in types:
            if not self._factory.is_registered(message_type):
                self._factory.register(message_type)

    async def enter(self) -> StateDict:
        return await self._save_state()

    async def halt(self) -> None:
        """Do nothing: closing the stream has ended the run."""

    async def leave(self) -> None:
        """Do nothing: `enter` changes nothing."""

    async def load(self, state: StateDict, condition_calls: Sequence[int]) -> None:
        await self._runner.load_state(state)

    def all_messages(self, state: StateDict, messages: list[MessageDict]) -> list[MessageDict]:
        return messages

    def create(self, message: MessageDict) -> BaseAgentEvent | BaseChatMessage:
        return self._factory.create(message)

    async def run(
        self,
        task: list[BaseChatMessage] | None,
        token: CancellationToken,
        output_task: bool,
        messages: list[MessageDict],
        save: SaveSnapshot,
    ) -> AsyncGenerator[StreamItem, None]:
        task_ids = {message.id for message in task or ()}
        messages = [*messages, *(dict(message.dump()) for message in task or ())]
        if task is not None:
            await save(TeamSnapshot(await self._save_state(), [], messages, undelivered=len(task)))
        unsaved: BaseChatMessage | None = None
        stream = self._runner.run_stream(task=task, cancellation_token=token)
        async with aclosing(stream) as items:
            async for item in items:
                is_new = not isinstance(item, TaskResult) and item.id not in task_ids
                if isinstance(item, TaskResult):
                    reason = item.stop_reason
                    state = await self._save_state()
                    await save(TeamSnapshot(state, [], messages, finished=True, stop_reason=reason))
                    if not output_task:
                        replies = [reply for reply in item.messages if reply.id not in task_ids]
                        item = TaskResult(messages=replies, stop_reason=reason)
                elif is_new and not isinstance(item, ModelClientStreamingChunkEvent):
                    messages = [*messages, dict(item.dump())]
                if isinstance(item, ToolCallExecutionEvent):
                    state = await self._save_state()
                    # The context now ends with the tool results: the agent can resume from there.
                    if find_context(state):
                        await save(TeamSnapshot(state, [], messages))
                if unsaved is not None:
                    yield unsaved
                    unsaved = None
                if is_new and isinstance(item, BaseChatMessage):
                    # If this is the answer, the result comes next and stores it.
                    unsaved = item
                elif output_task or is_new or isinstance(item, TaskResult):
                    yield item

    async def _save_state(self) -> StateDict:
        return dict(await self._runner.save_state())
