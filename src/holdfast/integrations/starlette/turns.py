"""Turns of a durable chat: start one, follow it from any event, and answer its questions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, Final, cast

import msgspec

from ... import AsyncStore, Question, TaskView
from ...conversations import AsyncConversation, DraftPiece, MessageEntry
from ...errors import HoldfastError, IdReused, LeaseHeld, NotFound, TaskEnded
from .lifespan import StoreLifespan

QUIET_SECONDS: Final = 0.25
"""How long nothing must have been appended before the state of the turn is read."""
ENDING_SECONDS: Final = 0.02
"""The same, once an answer is there: the turn is about to end."""
KEEPALIVE_SECONDS: Final = 15.0
RECENT: Final = 200
"""How many of the newest messages to search for the user's newest one."""
_AT_REST: Final = ("finished", "cancelled", "failed", "stuck")


class ChatBusy(HoldfastError):
    """The conversation already has an unfinished turn: `turn`."""

    def __init__(self, turn: str | None) -> None:
        super().__init__("the conversation is busy with another message; wait for its answer")
        self.turn = turn


class TurnState(msgspec.Struct, frozen=True):
    """The state of a turn when no more events come: it has ended, or waits for an answer."""

    status: str
    questions: list[Question] = []
    error: str | None = None


TurnItem = MessageEntry | DraftPiece | TurnState | None
"""What a follower of a turn gets. None: nothing has come for a while."""


class TurnKeeper:
    """The turns of one conversation of a durable chat."""

    def __init__(
        self, agent: str, lifespan: StoreLifespan, store: AsyncStore, conversation: str
    ) -> None:
        self._agent, self._lifespan, self._store = agent, lifespan, store
        self.conversation = conversation
        self.chat: AsyncConversation = store.conversation(conversation)

    async def begin(self, message: Mapping[str, Any], request_id: str) -> int:
        """Store the user's message and queue its answer. Return the version of the message.

        Repeated with the same id, it returns the same version and queues nothing new.

        Raises:
            ChatBusy: Another message has not been answered yet.
            IdReused: With this id, the turn would be that of another conversation.
        """
        turn = self.turn_id(request_id)
        view = await self._store.get_task(turn)
        if view is not None and not self._is_own(view):
            raise IdReused(turn, id=request_id)
        if view is None or view.status in ("failed", "stuck"):
            version = await self._append(message, request_id, turn)
            await self._submit(turn, version)
        else:
            version = int(view.input["version"])
        self._wake()
        return version

    def turn_id(self, request_id: str) -> str:
        """Return the id of the task that answers a message."""
        return f"{self._agent}/{self.conversation}/{request_id}"

    def _is_own(self, view: TaskView) -> bool:
        """Whether a task is a turn of this conversation. Clients may send the id of any task."""
        given = view.input if isinstance(view.input, dict) else {}
        return view.agent == self._agent and given.get("conversation") == self.conversation

    async def _append(self, message: Mapping[str, Any], request_id: str, turn: str) -> int:
        try:
            async with self.chat.turn(wait=0) as chat:
                pending = await chat.pending()
                other = None if pending is None else pending.meta.get("turn")
                if other not in (None, turn) and await self._is_active(str(other)):
                    raise ChatBusy(str(other))
                appended = await chat.append(
                    dict(message), id=f"turn/{request_id}", meta={"turn": turn}
                )
                return appended.last
        except LeaseHeld:
            for entry in await self.chat.entries(last=RECENT):
                if entry.meta.get("turn") == turn:
                    return entry.version  # this request was sent twice
            raise ChatBusy(await self.find_turn()) from None

    async def _is_active(self, turn: str) -> bool:
        view = await self._store.get_task(turn)
        return view is not None and view.status not in _AT_REST

    async def _submit(self, turn: str, version: int) -> None:
        given = {"conversation": self.conversation, "version": version}
        try:
            await self._store.submit(self._agent, turn, input=given)
        except TaskEnded:
            pass  # another request was faster

    def _wake(self) -> None:
        self._lifespan.wake_worker(self._store.tenant)

    async def find_turn(self) -> str | None:
        """Return the turn of the newest message of a user that has one.

        If the process died between storing the message and queueing its answer, queue it now.
        """
        for entry in reversed(await self.chat.entries(last=RECENT)):
            turn = entry.meta.get("turn")
            if isinstance(turn, str) and entry.message.get("role") == "user":
                if await self._store.get_task(turn) is None:
                    await self._submit(turn, entry.version)
                self._wake()
                return turn
        return None

    async def follow(self, turn: str | None, after: int) -> AsyncIterator[TurnItem]:
        """Yield what is appended after a version until the turn ends or asks; then its state.

        None is yielded when nothing has come for a while.
        """
        quiet, pause = 0.0, QUIET_SECONDS
        while True:
            async with aclosing(self._read(after, pause)) as items:
                async for item in items:
                    after, quiet = item.version, 0.0
                    yield item
                    if isinstance(item, MessageEntry):
                        pause = ENDING_SECONDS
                        break
            state = await self.read_state(turn)
            if state is not None:
                # What was appended before the state was read comes first.
                async with aclosing(self._read(after, 0)) as items:
                    async for item in items:
                        yield item
                yield state
                return
            quiet, pause = quiet + pause, min(pause * 2, QUIET_SECONDS)
            if quiet >= KEEPALIVE_SECONDS:
                quiet = 0.0
                yield None

    def _read(self, after: int, timeout: float) -> AsyncGenerator[MessageEntry | DraftPiece, None]:
        found = self.chat.follow_with_drafts(after=after, timeout=timeout)
        return cast("AsyncGenerator[MessageEntry | DraftPiece, None]", found)

    async def read_state(self, turn: str | None) -> TurnState | None:
        """Return the state of a turn; None while it is running."""
        if turn is None:
            return TurnState("finished")
        view = await self._store.get_task(turn)
        if view is None:
            return TurnState("cancelled")  # it was deleted, or has expired
        if view.status in _AT_REST:
            error = view.error.type if view.error is not None else None
            return TurnState(view.status, error=error)
        questions = open_questions(view)
        return TurnState("asks", questions) if view.status == "suspended" and questions else None

    async def answer(self, turn: str, question: str, value: Any, by: str | None = None) -> None:
        """Answer a question of a turn, by the question's id. The turn continues.

        Raises:
            NotFound: The turn has no such question.
            AlreadyAnswered: The question has another answer already.
        """
        view = await self._store.get_task(turn)
        for asked in view.questions if view is not None and self._is_own(view) else []:
            if asked.id == question:
                if asked.status != "answered" or asked.answer != value:
                    await self._store.answer(turn, asked.name, value, by=by, question=question)
                self._wake()
                return
        raise NotFound("the turn has no such question")

    async def cancel(self, turn: str, by: str | None = None) -> None:
        """Cancel a turn. Raises `NotFound` if the conversation has no such turn."""
        view = await self._store.get_task(turn)
        if view is None or not self._is_own(view):
            raise NotFound("the conversation has no such turn")
        await self._store.task(turn).cancel("cancelled in the chat", by=by)


def open_questions(view: TaskView) -> list[Question]:
    """Return the questions that can be answered."""
    return [question for question in view.questions if question.status == "open"]
