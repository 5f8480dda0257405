"""Agents and teams of AutoGen that go on after a restart: `autogen-agentchat` 0.7, whose interface is that since 0.4.

    async with persisted(store, "team-1", team) as run:
        async for message in run.run_stream(task="Plan the release"):
            print(message)

Run the same program again after a crash, and the team goes on where it was: everybody knows what was said, the task is not
given twice, and nobody is left out or asked twice. For classic AutoGen see `holdfast.integrations.autogen_classic`.
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
        raise ImportError(f"this is AutoGen {autogen_version}")
except ImportError as error:
    raise ImportError(
        "holdfast.integrations.autogen needs AutoGen 0.7: pip install 'autogen-agentchat>=0.7' "
        "(for 0.2, autogen and ag2 there is holdfast.integrations.autogen_classic)"
    ) from error

from .record import RunHistory, RunRecord, Task, are_same, messages_of, record_of
from .runners import Door, Item, Runner, SoloRunner, TeamSnapshot, as_seen
from .states import Message, State, is_state, layout_of, manager_of, repaired
from .team import TeamRunner

__all__ = ["LayoutChanged", "Persisted", "persisted"]

logger = logging.getLogger("holdfast")
_in_use: WeakSet[ChatAgent | Team] = WeakSet()
_first_states: WeakKeyDictionary[ChatAgent | Team, State] = WeakKeyDictionary()
"""The state that each had before it was first used here: what it begins with under an id that has none."""


class LayoutChanged(NeedsHuman):
    """The stored state is that of another team or agent. Nothing was loaded, and nothing was changed."""

    def __init__(self, id: str, *, stored: list[str], given: list[str]) -> None:
        super().__init__(
            f"the state {id!r} was saved as {'; '.join(stored)}, and this is {'; '.join(given)}: "
            "load it into the same participants in the same order, or begin under another id"
        )
        self.id, self.stored, self.given = id, stored, given


def persisted(store: Store | AsyncStore, id: str, runner: ChatAgent | Team) -> Persisted:
    """A block in which a team or an agent is what is stored under `id`, and what it does is stored turn by turn.

    Run it through what the block gives you: `run` and `run_stream` take what AutoGen's take. Under an id that is new, it begins
    with what it knew when it was first given to this function; the same object may enter one block after the other.
    """
    if not isinstance(store, Store | AsyncStore):
        raise TypeError(
            "persisted() takes a store from holdfast.open() or aopen(), an id and an agent or a team, in this order, "
            f"and the first is of the type {type(store).__name__}"
        )
    if not isinstance(runner, ChatAgent | Team):
        raise TypeError(
            f"runner must be an agent or a team of AutoGen, got {type(runner).__name__}"
        )
    return Persisted(store.aio if isinstance(store, Store) else store, id, runner)


class Persisted:
    """A team or an agent in its block.

    If a run was cut off, the same task again goes on with it: what was said in it so far comes first in the stream, as it was,
    and then what follows. So it is with a run that ended when the program could not have its result any more. Any other
    task is a new one, and so is the same text once its result was had; but a message with an `id` that was given before never
    is: its run comes again as it was, and with other content it is `IdReused`. If somebody else has run it meanwhile, the next turn raises `Conflict`: leave the block
    and enter it again.
    """

    def __init__(self, store: AsyncStore, id: str, runner: ChatAgent | Team) -> None:
        self._id, self._object = id, runner
        self._document: AsyncState[Any] = store.state(id)
        # Magentic-One asks at other times than other teams, and cannot go on from there without a new task.
        self._runner: Runner = (
            TeamRunner(runner)
            if isinstance(runner, BaseGroupChat) and not isinstance(runner, MagenticOneGroupChat)
            else SoloRunner(runner)
        )
        self._door = Door(runner)
        self._version = 0
        self._state: State = {}
        self._record = RunHistory()
        self._resumed = self._entered = False
        self._as_stored = (
            False  # whether the object is what is stored, and not in the middle of something
        )
        self._delivered = False  # whether the newest run's result was handed over
        self._serial = 0

    @property
    def resumed(self) -> bool:
        """Whether there was a stored state when the block was entered."""
        return self._resumed

    @property
    def pending(self) -> list[BaseChatMessage] | None:
        """The task of the run that was cut off, if one was; empty if it had none. `run()` goes on with it."""
        if self._record.finished:
            return None
        return self._chat_messages(self._record.task(-1, self._said()))

    async def __aenter__(self) -> Persisted:
        if self._object in _in_use:
            raise RuntimeError(
                f"this {type(self._object).__name__} is in such a block already; leave it first"
            )
        _in_use.add(self._object)
        self._entered = True
        try:
            _first_states.setdefault(self._object, await self._runner.enter())
            self._resumed = await self._restore()
            self._door.shut()
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await self._runner.halt()
            if kind is None and self._delivered and not self._record.seen:
                self._record.seen = True
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
        """`run_stream` to its end: the result, with all that was said in the run."""
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
        """`run`, for code that calls an agent's `on_messages`."""
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
    ) -> AsyncGenerator[Item, None]:
        """What is said, each chat message once it is stored, and then the result. Without a task it goes on with what was cut off.

        If it ends early, by an error, a cancellation or because you stop reading, the turn that was under way is dropped, and
        the next run goes on from what is stored.
        """
        if not self._entered:
            raise RuntimeError("run it inside the block: async with persisted(...) as run")
        asked = messages_of(task)
        await self._runner.halt()
        if not self._as_stored:
            await self._restore()
        if self._delivered:
            self._record.seen = True
        known = self._find(asked) if asked is not None else None
        if known is not None and (known < len(self._record.runs) - 1 or self._record.finished):
            items = self._again(known, output_task_messages)
        else:
            items = self._onward(asked, known, cancellation_token, output_task_messages)
        async with aclosing(items):
            async for item in items:
                yield item

    # -- what is behind it ---------------------------------------------------------------------------------------

    def _find(self, asked: list[BaseChatMessage]) -> int | None:
        """Which run has this task."""
        stored = self._document._log.redaction.redact_value
        known = self._record.find(asked, self._said(), stored)
        task = (
            self._chat_messages(self._record.task(known, self._said())) if known is not None else []
        )
        for before, now in zip(task, asked, strict=False):
            if not are_same([dict(before.dump())], [dict(now.dump())], stored):
                raise IdReused(str(self._document._key), id=now.id)
        return known

    async def _again(self, run: int, output: bool) -> AsyncGenerator[Item, None]:
        """A run that has ended, as it was. Nobody is asked anything."""
        messages = [self._runner.create(said) for said in self._record.said_in(run, self._said())]
        messages = messages if output else messages[self._record.runs[run].asked :]
        for message in messages:
            yield message
        if run == len(self._record.runs) - 1:
            self._delivered = True
        yield TaskResult(messages=messages, stop_reason=self._record.runs[run].stop_reason)

    async def _onward(
        self,
        asked: list[BaseChatMessage] | None,
        known: int | None,
        outer: CancellationToken | None,
        output: bool,
    ) -> AsyncGenerator[Item, None]:
        """A run that goes on, or a new one."""
        self._as_stored = self._delivered = False
        self._serial = serial = self._serial + 1
        settled = len(self._record.said) - self._record.owed
        said, owed = self._record.said[:settled], self._chat_messages(self._record.said[settled:])
        earlier: list[BaseAgentEvent | BaseChatMessage] = []
        if known is not None:
            again = self._record.said_in(known, self._said())[
                0 if output else self._record.runs[known].asked :
            ]
            earlier, output = [self._runner.create(message) for message in again], False
        elif asked is not None or self._record.finished:
            await self._begin(asked)
            owed += asked or []
        for message in earlier:
            yield message
        token = CancellationToken()
        if outer is not None:
            outer.add_callback(token.cancel)
        items = self._runner.items(owed or None, token, output, said, partial(self._store, serial))
        self._door.is_open = True
        try:
            async with aclosing(items):
                async for item in items:
                    if isinstance(item, TaskResult):
                        self._as_stored = self._delivered = True
                        self._door.is_open = False
                        item = TaskResult(
                            messages=[*earlier, *item.messages], stop_reason=item.stop_reason
                        )
                    yield item
        finally:
            if serial == self._serial:  # and not if another run has begun since
                self._door.is_open = False

    async def _begin(self, asked: list[BaseChatMessage] | None) -> None:
        """A new run, in memory. It is stored with its first moment."""
        if not self._record.finished:  # given up for a new task, which is to have all its turns
            manager_of(self._state)["current_turn"] = 0
            await self._runner.load(self._state, [])
        run = RunRecord(len(self._said()), len(asked or ()))
        self._record = RunHistory(
            runs=[*self._record.runs, run], finished=False, seen=False, said=self._record.said
        )

    def _chat_messages(self, messages: list[Message]) -> list[BaseChatMessage]:
        made = map(self._runner.create, messages)
        return [message for message in made if isinstance(message, BaseChatMessage)]

    def _said(self) -> list[Message]:
        return self._runner.thread(self._state, self._record.said)

    async def _store(self, run: int, moment: TeamSnapshot) -> None:
        if run != self._serial or not self._entered:
            raise RuntimeError("this stream was left for another run; do not read on in it")
        record = self._record
        record.owed, record.finished, record.runs[-1].stop_reason = (
            moment.owed,
            moment.finished,
            moment.stop_reason,
        )
        record.shown, record.said, self._state = moment.shown, moment.said, moment.state
        await self._save()

    async def _save(self) -> None:
        self._record.autogen = autogen_version
        document = {"holdfast": msgspec.to_builtins(self._record), "state": self._state}
        self._version = await self._document.save(document, if_version=self._version)

    async def _restore(self) -> bool:
        """Make the team or agent what is stored; whether anything is."""
        first = _first_states[self._object]
        document = await self._read()
        state, record = first, RunHistory()
        if isinstance(document, dict) and "holdfast" in document:
            state, record = document["state"], record_of(document["holdfast"], self._id)
            self._fit(state, first)
            if record.autogen.split(".")[:2] != autogen_version.split(".")[:2]:
                logger.warning(
                    "state %r was saved with AutoGen %s, this is %s",
                    self._id,
                    record.autogen,
                    autogen_version,
                )
        elif is_state(document):
            self._fit(document, first)
            state, problems = repaired(document, as_seen(self._runner.create))
            if problems:
                logger.warning(
                    "state %r was saved within a turn; repaired: %s", self._id, "; ".join(problems)
                )
        elif document is not None:
            raise ValueError(
                f"the state {self._id!r} holds something else than a team or an agent: choose another id"
            )
        await self._runner.load(state, record.shown)
        self._state, self._record, self._as_stored, self._delivered = state, record, True, False
        return document is not None

    def _fit(self, state: State, first: State) -> None:
        if layout_of(state) != layout_of(first):
            raise LayoutChanged(self._id, stored=layout_of(state), given=layout_of(first))

    async def _read(self) -> Any:
        """The stored document and its version, of the same instant."""
        while True:
            self._version = await self._document.version()
            document = await self._document.load(None)
            if self._version == await self._document.version():
                return document

    async def _leave(self) -> None:
        self._entered = False
        self._door.remove()
        try:
            await self._runner.leave()
        finally:
            _in_use.discard(self._object)
