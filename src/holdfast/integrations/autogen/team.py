"""Run an AutoGen team and store its state between turns, when it is consistent.

A team does not wait for the reader of `run_stream`: when the reader gets a message, the next agent
may be speaking already. But the team does wait for its termination condition, which it calls after
each turn, before it chooses the next speaker. At that point no agent is speaking, and every
participant has received all messages. So a `StoringCondition` takes the place of the condition. It
stores the state and returns once the state is durable; only then is the message yielded.

Replacing the condition needs private attributes of a team (`PRIVATE_ATTRIBUTES`), which only this
module uses.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from weakref import WeakKeyDictionary

from autogen_agentchat.base import TaskResult, TerminationCondition
from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage, StopMessage
from autogen_agentchat.teams import BaseGroupChat
from autogen_core import CancellationToken, SingleThreadedAgentRuntime

from .runners import SaveSnapshot, StreamItem, TeamSnapshot
from .states import MessageDict, StateDict, find_manager, find_participants

PRIVATE_ATTRIBUTES = (
    "_termination_condition",
    "_max_turns",
    "_message_factory",
    "_initialized",
    "_runtime",
    "_embedded_runtime",
)

Messages = Sequence[BaseAgentEvent | BaseChatMessage]

TIMEOUT_SECONDS = 10.0
"""How long a message may take to reach all participants, or a team to stop; usually instant."""


class StoringCondition(TerminationCondition):
    """Wraps a team's termination condition, and makes the team wait until its state is stored."""

    def __init__(self, condition: TerminationCondition | None) -> None:
        self.condition = condition
        self.calls: list[int] = []
        """The number of messages in each call since the last reset."""
        self.save: Callable[[Messages, StopMessage | None], Awaitable[None]] | None = None

    @property
    def terminated(self) -> bool:
        return self.condition is not None and self.condition.terminated

    async def __call__(self, messages: Messages) -> StopMessage | None:
        stop = await self.condition(messages) if self.condition is not None else None
        self.calls.append(len(messages))
        if self.save is not None:
            await self.save(messages, stop)
        return stop

    async def reset(self) -> None:
        self.calls.clear()
        if self.condition is not None:
            await self.condition.reset()

    async def repeat_calls(self, messages: Messages, calls: Sequence[int]) -> None:
        """Restore what the condition has counted, by repeating its calls with the same messages."""
        await self.reset()
        start = len(messages) - sum(calls)
        for count in calls if start >= 0 else ():
            if self.condition is not None:
                await self.condition(messages[start : start + count])
            start += count
            self.calls.append(count)
        # The condition was not terminated before, so it depends on something else, like the time.
        if self.terminated:
            await self.reset()


_conditions: WeakKeyDictionary[BaseGroupChat, StoringCondition] = WeakKeyDictionary()


class TeamRunner:
    """Runs a team that waits until each turn is stored."""

    def __init__(self, team: BaseGroupChat) -> None:
        if missing := [name for name in PRIVATE_ATTRIBUTES if not hasattr(team, name)]:
            raise TypeError(
                f"teams of this AutoGen version have no {missing[0]}; use a version that Holdfast's"
                " integration supports"
            )
        self._team = team
        self._condition = _conditions.setdefault(
            team, StoringCondition(team._termination_condition)
        )
        self._newest: _TeamRun | None = None
        self._is_unused = True

    async def enter(self) -> StateDict:
        self._is_unused = not self._team._initialized
        self._team._termination_condition = self._condition
        return dict(await self._team.save_state())

    async def leave(self) -> None:
        self._team._termination_condition, self._condition.save = self._condition.condition, None

    async def load(self, state: StateDict, condition_calls: Sequence[int]) -> None:
        if not self._is_unused:
            self._replace_runtime()
            # Otherwise a selector's context would have every message twice.
            await self._team.reset()
        self._is_unused = False
        await self._team.load_state(state)
        messages = [self.create(message) for message in self.all_messages(state, [])]
        await self._condition.repeat_calls(messages, condition_calls)

    def _replace_runtime(self) -> None:
        """Give the team a new runtime, and with it a new manager.

        The old manager does not call our condition, and if its run was interrupted, it would wait
        forever for the interrupted speaker.
        """
        if not self._team._embedded_runtime:
            raise RuntimeError(
                "a team with its own runtime can be used in only one block; create a new team"
            )
        self._team._runtime = SingleThreadedAgentRuntime(ignore_unhandled_exceptions=False)
        self._team._initialized = False

    def all_messages(self, state: StateDict, messages: list[MessageDict]) -> list[MessageDict]:
        return list(find_manager(state).get("message_thread", ()))

    def create(self, message: MessageDict) -> BaseAgentEvent | BaseChatMessage:
        return self._team._message_factory.create(message)

    async def run(
        self,
        task: list[BaseChatMessage] | None,
        token: CancellationToken,
        output_task: bool,
        messages: list[MessageDict],
        save: SaveSnapshot,
    ) -> AsyncGenerator[StreamItem, None]:
        run = self._newest = _TeamRun(token)
        is_task = task is not None  # whether the next messages are the task

        async def save_turn(turn: Messages, stop: StopMessage | None) -> None:
            nonlocal is_task
            try:
                await save(await self._take_snapshot(turn, stop, is_task=is_task))
                run.stored.update(message.id for message in turn)
                run.queue.put_nowait(None)
            except BaseException as error:  # the team reports only the error's text
                run.failure = error
                raise
            is_task = False

        self._condition.save = save_turn
        stream = self._team.run_stream(
            task=task, cancellation_token=token, output_task_messages=output_task
        )
        token.add_callback(self._cancel_runtime)
        run.task = asyncio.create_task(run.read(stream))
        try:
            async with aclosing(run.items()) as items:
                async for item in items:
                    if isinstance(item, TaskResult):
                        await run.task  # so that the caller can use the team again at once
                        state, calls = dict(await self._team.save_state()), self._condition.calls
                        await save(TeamSnapshot(state, [*calls], [], 0, True, item.stop_reason))
                    yield item
        finally:
            await run.end()

    async def halt(self) -> None:
        if self._newest is not None:
            await self._newest.end()

    def _cancel_runtime(self) -> None:
        """Cancel the tasks of the team's runtime.

        With the token alone, a team would wait forever for a running tool.
        """
        if self._team._embedded_runtime:
            for task in list(getattr(self._team._runtime, "_background_tasks", ())):
                task.cancel()

    async def _take_snapshot(
        self, messages: Messages, stop: StopMessage | None, *, is_task: bool
    ) -> TeamSnapshot:
        """Return the state as it will be once the condition has returned, before the next turn."""
        state = await self._wait_for_delivery(messages, is_task=is_task)
        manager = find_manager(state)
        reason, calls = stop.content if stop else None, list(self._condition.calls)
        if not is_task and "current_turn" in manager:
            manager["current_turn"] += 1
        limit = self._team._max_turns
        if reason is None and limit is not None and manager.get("current_turn", 0) >= limit:
            reason = f"Maximum number of turns {limit} reached."
        if reason is not None:
            manager["current_turn"], calls = 0, []
        return TeamSnapshot(state, calls, [], finished=reason is not None, stop_reason=reason)

    async def _wait_for_delivery(self, messages: Messages, *, is_task: bool) -> StateDict:
        """Return the team's state once everyone but the speaker has received the newest message."""
        chat = [message for message in messages if isinstance(message, BaseChatMessage)]
        newest = chat[-1].dump() if chat else None
        deadline = asyncio.get_running_loop().time() + TIMEOUT_SECONDS
        while True:
            state = dict(await self._team.save_state())
            buffers = [part["message_buffer"] for part in find_participants(state).values()]
            missing = sum(not buffer or buffer[-1] != newest for buffer in buffers)
            if newest is None or missing <= (0 if is_task else 1):
                return state
            if asyncio.get_running_loop().time() > deadline:
                raise TimeoutError(
                    "a message did not reach all participants of the team within"
                    f" {TIMEOUT_SECONDS:g} seconds, so its state was not stored; run the task again"
                )
            await asyncio.sleep(0)


class _TeamRun:
    """One run of a team: an asyncio task that reads its stream into a queue."""

    def __init__(self, token: CancellationToken) -> None:
        self.token = token
        self.task: asyncio.Task[None] | None = None
        # None in the queue means that a turn was stored.
        self.queue: asyncio.Queue[StreamItem | BaseException | None] = asyncio.Queue()
        self.stored: set[str] = set()
        self.failure: BaseException | None = None

    async def read(self, stream: AsyncGenerator[StreamItem, None]) -> None:
        """Read the team's stream to its end, in one context, without waiting for the caller."""
        try:
            async for item in stream:
                self.queue.put_nowait(item)
        except BaseException as error:
            self.queue.put_nowait(error)

    async def items(self) -> AsyncGenerator[StreamItem, None]:
        """Yield the team's messages, each chat message once it is stored.

        If another item arrives before a chat message is stored, the message is only a part of a
        turn, and is yielded without waiting.
        """
        unsaved: BaseChatMessage | None = None
        while True:
            item = await self.queue.get()
            if isinstance(item, BaseException) and self.failure is not None:
                raise self.failure  # a message that was not stored is not yielded
            if unsaved is not None and (item is not None or unsaved.id in self.stored):
                yield unsaved
                unsaved = None
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, BaseChatMessage) and item.id not in self.stored:
                unsaved = item
            elif item is not None:
                yield item
                if isinstance(item, TaskResult):
                    return

    async def end(self) -> None:
        if self.task is not None and not self.task.done():
            self.token.cancel()
            await asyncio.wait({self.task}, timeout=TIMEOUT_SECONDS)
            # If the run has not ended by now, an agent ignores the cancellation; leave that agent
            # alone.
            self.task.cancel()
            await asyncio.wait({self.task})
