"""AutoGen agents and teams that resume after a restart: `autogen-agentchat` 0.7.

    async with persisted(store, "team-1", team) as run:
        async for message in run.run_stream(task="Plan the release"):
            print(message)

Run the same program again after a crash, and the team resumes: every agent has all messages, the
task isn't given twice, and no agent is skipped or called twice for the same turn. For classic
AutoGen see `holdfast.integrations.autogen_classic`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import msgspec

from ... import AsyncState, AsyncStore, Store
from ...errors import IdReused, NeedsHuman

try:
    from autogen_agentchat import __version__ as autogen_version
    from autogen_agentchat.base import ChatAgent, Response, TaskResult, Team
    from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage
    from autogen_agentchat.teams import BaseGroupChat, MagenticOneGroupChat
    from autogen_core import CancellationToken

    if tuple(map(int, autogen_version.split(".")[:2])) < (0, 7):
        raise ImportError(f"AutoGen {autogen_version} is installed")
except ImportError as error:
    raise ImportError(
        "holdfast.integrations.autogen needs AutoGen 0.7: pip install 'autogen-agentchat>=0.7' "
        "(for 0.2, autogen and ag2 use holdfast.integrations.autogen_classic)"
    ) from error

from .history import RunHistory, RunRecord, Task, are_same, decode_history, to_messages
from .runners import DirectRunGuard, Runner, SoloRunner, StreamItem, TeamSnapshot, to_context
from .states import MessageDict, StateDict, describe_layout, find_manager, is_state, repair_state
from .team import TeamRunner

__all__ = ["LayoutChanged", "Persisted", "persisted"]

logger = logging.getLogger("holdfast")
_in_use: WeakSet[ChatAgent | Team] = WeakSet()
_first_states: WeakKeyDictionary[ChatAgent | Team, StateDict] = WeakKeyDictionary()
"""The state that each object had before its first block, to start with under a new id."""


class LayoutChanged(NeedsHuman):
    """The stored state belongs to another team or agent. Nothing was loaded or changed."""

    def __init__(self, id: str, *, stored: list[str], given: list[str]) -> None:
        super().__init__(
            f"the state {id!r} was saved as {'; '.join(stored)} and can't be loaded into"
            f" {'; '.join(given)}; use the same participants in the same order, or another id"
        )
        self.id, self.stored, self.given = id, stored, given


def persisted(store: Store | AsyncStore, id: str, runner: ChatAgent | Team) -> Persisted:
    """Return a block that restores a team or an agent from `id` and stores each of its turns.

    Inside the block, call `run` and `run_stream` of the object that it returns; they take the same
    arguments as AutoGen's. Under a new id, the team or agent starts with the state that it had when
    it was first passed to this function. The same object may be used in several blocks, one after
    the other.
    """
    if not isinstance(store, Store | AsyncStore):
        raise TypeError(
            "store must be a store from holdfast.open() or holdfast.aopen(), got"
            f" {type(store).__name__}; the arguments are a store, an id and an agent or a team"
        )
    if not isinstance(runner, ChatAgent | Team):
        raise TypeError(f"runner must be an AutoGen agent or team, got {type(runner).__name__}")
    return Persisted(store.aio if isinstance(store, Store) else store, id, runner)


class Persisted:
    """A team or an agent in its block.

    If a run was interrupted, the same task resumes it: the stream starts with the messages that the
    run already has, unchanged, and continues with new ones. The same is true of a run that ended
    before its caller got the result. Any other task starts a new run, and so does the same text
    once its result was delivered. But a message whose `id` was used before never starts a new run:
    its run is repeated from the record, or `IdReused` is raised if the content differs.

    If another process has run the team or agent in the meantime, the next turn raises `Conflict`:
    leave the block and enter it again.
    """

    def __init__(self, store: AsyncStore, id: str, runner: ChatAgent | Team) -> None:
        self._id, self._object = id, runner
        self._document: AsyncState[Any] = store.state(id)
        # Magentic-One calls its condition at other times than other teams do, and can't resume from
        # there without a new task.
        self._runner: Runner = (
            TeamRunner(runner)
            if isinstance(runner, BaseGroupChat) and not isinstance(runner, MagenticOneGroupChat)
            else SoloRunner(runner)
        )
        self._guard = DirectRunGuard(runner)
        self._version = 0
        self._state: StateDict = {}
        self._history = RunHistory()
        self._resumed = self._entered = False
        # Whether the object is in the stored state: no run is under way, and none was interrupted.
        self._is_current = False
        self._delivered = False  # whether the caller has got the newest result
        self._serial = 0  # the number of the newest run in this block

    @property
    def resumed(self) -> bool:
        """Whether there was a stored state when the block was entered."""
        return self._resumed

    @property
    def pending(self) -> list[BaseChatMessage] | None:
        """The task of an interrupted run, which `run()` resumes; empty if the run had no task.

        None if no run was interrupted.
        """
        if self._history.finished:
            return None
        return self._chat_messages(self._history.task_of(-1, self._all_messages()))

    @property
    def messages(self) -> list[BaseAgentEvent | BaseChatMessage]:
        """All stored messages of all runs, oldest first. The last one is `messages[-1]`."""
        return [self._runner.create(message) for message in self._all_messages()]

    async def __aenter__(self) -> Persisted:
        if self._object in _in_use:
            raise RuntimeError(
                f"this {type(self._object).__name__} is already in a block of persisted();"
                " leave that block first"
            )
        _in_use.add(self._object)
        self._entered = True
        try:
            _first_states.setdefault(self._object, await self._runner.enter())
            self._resumed = await self._restore()
            self._guard.install()
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await self._runner.halt()
            if kind is None and self._delivered and not self._history.result_seen:
                self._history.result_seen = True
                await self._save()
        finally:
            await self._leave()

    async def run(
        self,
        *,
        task: Task | None = None,
        cancellation_token: CancellationToken | None = None,
        output_task_messages: bool = True,
    ) -> TaskResult:
        """Read `run_stream` to its end. Return the result, with all messages of the run."""
        stream = self.run_stream(
            task=task,
            cancellation_token=cancellation_token,
            output_task_messages=output_task_messages,
        )
        async with aclosing(stream):
            async for item in stream:
                if isinstance(item, TaskResult):
                    return item
        raise RuntimeError("the run ended without a result")

    async def on_messages(
        self, messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken
    ) -> Response:
        """Do the same as `run`, for code that calls an agent's `on_messages`."""
        result = await self.run(
            task=messages, cancellation_token=cancellation_token, output_task_messages=False
        )
        *inner, answer = result.messages
        assert isinstance(answer, BaseChatMessage)
        return Response(chat_message=answer, inner_messages=inner)

    async def run_stream(
        self,
        *,
        task: Task | None = None,
        cancellation_token: CancellationToken | None = None,
        output_task_messages: bool = True,
    ) -> AsyncGenerator[StreamItem, None]:
        """Run, and yield each chat message once it is stored, then the result.

        Without a task, an interrupted run is resumed. If the stream ends early (because of an error
        or a cancellation, or because you stop reading), the current turn is dropped, and the next
        run resumes from the stored state.
        """
        if not self._entered:
            raise RuntimeError("call this inside the block: async with persisted(...) as run")
        messages = to_messages(task)
        await self._runner.halt()
        if not self._is_current:
            await self._restore()
        if self._delivered:
            self._history.result_seen = True
        known = self._find_run(messages) if messages is not None else None
        if known is not None and (known < len(self._history.runs) - 1 or self._history.finished):
            items = self._repeat_run(known, output_task_messages)
        else:
            items = self._run(messages, known, cancellation_token, output_task_messages)
        async with aclosing(items):
            async for item in items:
                yield item

    # -- runs ----------------------------------------------------------------------------------

    def _find_run(self, task: list[BaseChatMessage]) -> int | None:
        """Return the index of the run that has this task; None if there is none."""
        redact = self._document._log.redaction.redact_value
        known = self._history.find_run(task, self._all_messages(), redact)
        if known is not None:
            stored = self._chat_messages(self._history.task_of(known, self._all_messages()))
            for before, now in zip(stored, task, strict=False):
                if not are_same([dict(before.dump())], [dict(now.dump())], redact):
                    raise IdReused(str(self._document._key), id=now.id)
        return known

    def _create_messages(
        self, run: int, output_task: bool
    ) -> list[BaseAgentEvent | BaseChatMessage]:
        stored = self._history.messages_of(run, self._all_messages())
        first = 0 if output_task else self._history.runs[run].task_size
        return [self._runner.create(message) for message in stored[first:]]

    async def _repeat_run(self, run: int, output_task: bool) -> AsyncGenerator[StreamItem, None]:
        """Yield the messages and the result of a finished run from the record."""
        messages = self._create_messages(run, output_task)
        for message in messages:
            yield message
        if run == len(self._history.runs) - 1:
            self._delivered = True
        yield TaskResult(messages=messages, stop_reason=self._history.runs[run].stop_reason)

    async def _run(
        self,
        task: list[BaseChatMessage] | None,
        known: int | None,
        outer_token: CancellationToken | None,
        output_task: bool,
    ) -> AsyncGenerator[StreamItem, None]:
        """Resume the interrupted run, or start a new one."""
        self._is_current = self._delivered = False
        self._serial = serial = self._serial + 1
        delivered = len(self._history.messages) - self._history.undelivered
        messages = self._history.messages[:delivered]
        undelivered = self._chat_messages(self._history.messages[delivered:])
        earlier: list[BaseAgentEvent | BaseChatMessage] = []
        if known is not None:
            earlier, output_task = self._create_messages(known, output_task), False
        elif task is not None or self._history.finished:
            await self._start_run(task)
            undelivered += task or []
        for message in earlier:
            yield message
        token = CancellationToken()
        if outer_token is not None:
            outer_token.add_callback(token.cancel)
        save = partial(self._save_snapshot, serial)
        items = self._runner.run(undelivered or None, token, output_task, messages, save)
        self._guard.allowed = True
        try:
            async with aclosing(items):
                async for item in items:
                    if isinstance(item, TaskResult):
                        self._is_current = self._delivered = True
                        self._guard.allowed = False
                        item = TaskResult(
                            messages=[*earlier, *item.messages], stop_reason=item.stop_reason
                        )
                    yield item
        finally:
            if serial == self._serial:  # no other run has started since
                self._guard.allowed = False

    async def _start_run(self, task: list[BaseChatMessage] | None) -> None:
        """Start a new run in memory. Its first snapshot stores it."""
        # The new task replaces an interrupted run, and counts its turns from 0.
        if not self._history.finished:
            find_manager(self._state)["current_turn"] = 0
            await self._runner.load(self._state, [])
        self._history = RunHistory(
            runs=[*self._history.runs, RunRecord(len(self._all_messages()), len(task or ()))],
            finished=False,
            result_seen=False,
            messages=self._history.messages,
        )

    def _chat_messages(self, messages: list[MessageDict]) -> list[BaseChatMessage]:
        created = map(self._runner.create, messages)
        return [message for message in created if isinstance(message, BaseChatMessage)]

    def _all_messages(self) -> list[MessageDict]:
        return self._runner.all_messages(self._state, self._history.messages)

    # -- the stored document -------------------------------------------------------------------

    async def _save_snapshot(self, serial: int, snapshot: TeamSnapshot) -> None:
        if serial != self._serial or not self._entered:
            raise RuntimeError("this stream was left for another run; read the stream of that run")
        history, self._state = self._history, snapshot.state
        history.messages, history.undelivered = snapshot.messages, snapshot.undelivered
        history.condition_calls, history.finished = snapshot.condition_calls, snapshot.finished
        history.runs[-1].stop_reason = snapshot.stop_reason
        await self._save()

    async def _save(self) -> None:
        self._history.autogen = autogen_version
        document = {"holdfast": msgspec.to_builtins(self._history), "state": self._state}
        self._version = await self._document.save(document, if_version=self._version)

    async def _restore(self) -> bool:
        """Load the stored state into the team or agent; return whether there was one."""
        first = _first_states[self._object]
        document = await self._read()
        state, history = first, RunHistory()
        if isinstance(document, dict) and "holdfast" in document:
            state, history = document["state"], decode_history(document["holdfast"], self._id)
            self._check_layout(state, first)
            if history.autogen.split(".")[:2] != autogen_version.split(".")[:2]:
                logger.warning(
                    "state %r was saved with AutoGen %s, and %s is installed",
                    self._id,
                    history.autogen,
                    autogen_version,
                )
        elif is_state(document):
            self._check_layout(document, first)
            state, problems = repair_state(document, partial(to_context, self._runner.create))
            if problems:
                logger.warning(
                    "state %r was saved during a turn; repaired: %s", self._id, "; ".join(problems)
                )
        elif document is not None:
            raise ValueError(
                f"the state {self._id!r} holds something other than a team or an agent;"
                " choose another id"
            )
        await self._runner.load(state, history.condition_calls)
        self._state, self._history, self._is_current, self._delivered = state, history, True, False
        return document is not None

    def _check_layout(self, state: StateDict, first: StateDict) -> None:
        stored, given = describe_layout(state), describe_layout(first)
        if stored != given:
            raise LayoutChanged(self._id, stored=stored, given=given)

    async def _read(self) -> Any:
        """Return the stored document, and set `_version` to its version."""
        while True:
            self._version = await self._document.version()
            document = await self._document.load(None)
            if self._version == await self._document.version():
                return document

    async def _leave(self) -> None:
        self._entered = False
        self._guard.remove()
        try:
            await self._runner.leave()
        finally:
            _in_use.discard(self._object)
