"""Running a team of AutoGen so that its state is stored exactly when it is whole.

A team does not wait for whoever reads `run_stream`: when a message arrives there, others may have begun to speak. What it
does wait for is its termination condition, which it asks after each turn, before it chooses the next speaker. Nobody
speaks then, and everybody has heard what was said. So a `Gate` in the place of the condition stores the state and lets
the team go on when it is durable; and a message is handed on only after that.

To put it there takes attributes of a team that are not public (`INSIDE`), here and nowhere else.
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

from .runners import Item, Store, TeamSnapshot
from .states import Message, State, manager_of, participants_of

INSIDE = (
    "_termination_condition",
    "_max_turns",
    "_message_factory",
    "_initialized",
    "_runtime",
    "_embedded_runtime",
)

PATIENCE_SECONDS = 10.0
"""How long a message may take to reach all participants, and a team to stop. It takes no time if nothing is wrong."""


class Gate(TerminationCondition):
    """A team's termination condition, and the place where the team waits until it is stored."""

    def __init__(self, condition: TerminationCondition | None) -> None:
        self.condition = condition
        self.shown: list[int] = []
        self.between: (
            Callable[
                [Sequence[BaseAgentEvent | BaseChatMessage], StopMessage | None], Awaitable[None]
            ]
            | None
        )
        self.between = None

    @property
    def terminated(self) -> bool:
        return self.condition is not None and self.condition.terminated

    async def __call__(
        self, messages: Sequence[BaseAgentEvent | BaseChatMessage]
    ) -> StopMessage | None:
        stop = await self.condition(messages) if self.condition is not None else None
        self.shown.append(len(messages))
        if self.between is not None:
            await self.between(messages, stop)
        return stop

    async def reset(self) -> None:
        self.shown.clear()
        if self.condition is not None:
            await self.condition.reset()

    async def show_again(
        self, messages: Sequence[BaseAgentEvent | BaseChatMessage], shown: Sequence[int]
    ) -> None:
        """Let the condition count again what it had counted: it is shown the same messages in the same calls."""
        await self.reset()
        at = len(messages) - sum(shown)
        for count in shown if at >= 0 else ():
            if self.condition is not None:
                await self.condition(messages[at : at + count])
            at += count
            self.shown.append(count)
        if self.terminated:  # it was not: it depends on something else, like the time
            await self.reset()


_gates: WeakKeyDictionary[BaseGroupChat, Gate] = WeakKeyDictionary()


class TeamRunner:
    """A team that waits at its gate."""

    def __init__(self, team: BaseGroupChat) -> None:
        if missing := [name for name in INSIDE if not hasattr(team, name)]:
            raise TypeError(
                f"teams of this AutoGen have no {missing[0]}: it is too old or too new for this integration"
            )
        self._team = team
        self._gate = _gates.setdefault(team, Gate(team._termination_condition))
        self._newest: _TeamRun | None = None
        self._as_made = True

    async def enter(self) -> State:
        self._as_made = not self._team._initialized
        self._team._termination_condition = self._gate
        return dict(await self._team.save_state())

    async def leave(self) -> None:
        self._team._termination_condition, self._gate.between = self._gate.condition, None

    async def load(self, state: State, shown: Sequence[int]) -> None:
        if not self._as_made:
            self._renew()
            await self._team.reset()  # a selector's context would have everything twice otherwise
        self._as_made = False
        await self._team.load_state(state)
        await self._gate.show_again([self.create(said) for said in self.thread(state, [])], shown)

    def _renew(self) -> None:
        """Give the team a new manager: one that was cut off waits for that speaker for ever, and an old one has no gate."""
        if not self._team._embedded_runtime:
            raise RuntimeError(
                "a team on a runtime of your own can be used only once here: make it anew"
            )
        self._team._runtime = SingleThreadedAgentRuntime(ignore_unhandled_exceptions=False)
        self._team._initialized = False

    def thread(self, state: State, said: list[Message]) -> list[Message]:
        return list(manager_of(state).get("message_thread", ()))

    def create(self, message: Message) -> BaseAgentEvent | BaseChatMessage:
        return self._team._message_factory.create(message)

    async def items(
        self,
        task: list[BaseChatMessage] | None,
        token: CancellationToken,
        output: bool,
        said: list[Message],
        store: Store,
    ) -> AsyncGenerator[Item, None]:
        run = self._newest = _TeamRun(token)
        begins = task is not None

        async def between(
            messages: Sequence[BaseAgentEvent | BaseChatMessage], stop: StopMessage | None
        ) -> None:
            nonlocal begins
            try:
                moment = await self._moment(messages, stop, begins=begins)
                await store(moment)
                run.stored.update(message.id for message in messages)
                run.queue.put_nowait(None)
            except BaseException as error:  # the team makes a text of it
                run.failure = error
                raise
            begins = False

        self._gate.between = between
        stream = self._team.run_stream(
            task=task, cancellation_token=token, output_task_messages=output
        )
        token.add_callback(self._cut)
        run.task = asyncio.create_task(run.read(stream))
        try:
            async with aclosing(run.items()) as items:
                async for item in items:
                    if isinstance(item, TaskResult):
                        await run.task  # then the team can be used again at once
                        state = dict(await self._team.save_state())
                        await store(
                            TeamSnapshot(
                                state, list(self._gate.shown), [], 0, True, item.stop_reason
                            )
                        )
                    yield item
        finally:
            await run.end()

    async def halt(self) -> None:
        if self._newest is not None:
            await self._newest.end()

    def _cut(self) -> None:
        """Cancel what the team's runtime is doing. The token alone leaves a team whose tool is running waiting for ever."""
        if self._team._embedded_runtime:
            for task in list(getattr(self._team._runtime, "_background_tasks", ())):
                task.cancel()

    async def _moment(
        self,
        messages: Sequence[BaseAgentEvent | BaseChatMessage],
        stop: StopMessage | None,
        *,
        begins: bool,
    ) -> TeamSnapshot:
        """The state at the gate, as it is once the team has gone on from there and before anybody speaks."""
        state = await self._heard_by_all(messages, begins=begins)
        manager = manager_of(state)
        reason, shown = stop.content if stop else None, list(self._gate.shown)
        if not begins and "current_turn" in manager:
            manager["current_turn"] += 1
        most = self._team._max_turns
        if reason is None and most is not None and manager.get("current_turn", 0) >= most:
            reason = f"Maximum number of turns {most} reached."
        if reason is not None:
            manager["current_turn"], shown = 0, []
        return TeamSnapshot(state, shown, [], finished=reason is not None, stop_reason=reason)

    async def _heard_by_all(
        self, messages: Sequence[BaseAgentEvent | BaseChatMessage], *, begins: bool
    ) -> State:
        """The team's state, once the newest message has reached all but the one who said it."""
        newest = next(
            (
                message.dump()
                for message in reversed(messages)
                if isinstance(message, BaseChatMessage)
            ),
            None,
        )
        deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while True:
            state = dict(await self._team.save_state())
            buffers = [part["message_buffer"] for part in participants_of(state).values()]
            deaf = sum(not buffer or buffer[-1] != newest for buffer in buffers)
            if newest is None or deaf <= (0 if begins else 1):
                return state
            if asyncio.get_running_loop().time() > deadline:
                raise TimeoutError(
                    "a message did not reach all participants of the team, so its state cannot be stored"
                )
            await asyncio.sleep(0)


class _TeamRun:
    """One run of a team: a task that reads its stream, and what came of it."""

    def __init__(self, token: CancellationToken) -> None:
        self.token = token
        self.task: asyncio.Task[None] | None = None
        self.queue: asyncio.Queue[Item | BaseException | None] = (
            asyncio.Queue()
        )  # None: something was stored
        self.stored: set[str] = set()
        self.failure: BaseException | None = None

    async def read(self, stream: AsyncGenerator[Item, None]) -> None:
        """Read the team's stream as fast as it comes, in one context from beginning to end."""
        try:
            async for item in stream:
                self.queue.put_nowait(item)
        except BaseException as error:
            self.queue.put_nowait(error)

    async def items(self) -> AsyncGenerator[Item, None]:
        """What the team says, a chat message once it is stored. One that others follow before that is a part of a turn."""
        held: BaseChatMessage | None = None
        while True:
            item = await self.queue.get()
            if isinstance(item, BaseException) and self.failure is not None:
                raise self.failure  # and what could not be stored was not said
            if held is not None and (item is not None or held.id in self.stored):
                yield held
                held = None
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, BaseChatMessage) and item.id not in self.stored:
                held = item
            elif item is not None:
                yield item
                if isinstance(item, TaskResult):
                    return

    async def end(self) -> None:
        if self.task is not None and not self.task.done():
            self.token.cancel()
            await asyncio.wait({self.task}, timeout=PATIENCE_SECONDS)
            self.task.cancel()  # if it has not ended, somebody ignores being cancelled, and is left alone
            await asyncio.wait({self.task})
