"""Conversations inside a task: an append that a resume repeats is stored once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ..backends import AppendResult, StreamKey
from ..conversations import AsyncConversation, Conversation
from ..conversations.base import ConversationBase
from ..log import operations as ops
from ..log.log import Log
from ..log.operations.subjects import SubjectRegistrar
from .run.frames import current_frame
from .steps.fingerprints import fingerprint

if TYPE_CHECKING:
    from .run.session import Session


def _nothing() -> None:
    pass


class _TaskConversationBase(ConversationBase):
    """Derives append ids from the place in the task and the content."""

    def __init__(
        self,
        log: Log,
        key: StreamKey,
        session: Session,
        owner: str | None = None,
        about: SubjectRegistrar | None = None,
    ) -> None:
        if about is None and session.state.subject is not None:
            about = SubjectRegistrar(key, session.state.subject)
        super().__init__(log, key, owner, about)
        self._session = session

    def _id_for(
        self, messages: tuple[object, ...], if_version: int | None, meta: object, pin: bool
    ) -> tuple[str | None, Callable[[], None]]:
        """Return an append id, and a function that gives its number back if the append fails.

        The id depends on the scope, the content, and how many times this run appended it there.
        """
        if if_version is not None:
            return None, _nothing  # `if_version` already makes a repeated append fail
        session, frame = self._session, current_frame()
        session.check_active()
        scope = frame.path if frame is not None and frame.session is session else ""
        options = {
            "to": self._key.id,
            "meta": meta,
            "pin": pin,
            "place": session.step_identity(scope),
        }
        digest = fingerprint(session.salt, messages, options)
        what = ("append", digest)
        number = session.take_number(scope, what)
        append_id = f"task/{session.incarnation_hex}/{digest}/{number}"
        return append_id, lambda: session.release_number(scope, what, number)


class TaskConversation(_TaskConversationBase, Conversation):
    """A `Conversation` whose `append` does nothing when a resumed task runs the same code again."""

    def append(
        self,
        *messages: object,
        id: str | None = None,
        if_version: int | None = None,
        meta: dict[str, Any] | None = None,
        pin: bool = False,
    ) -> AppendResult:
        """`Conversation.append`. The default `id` depends on the step and the content."""
        chosen, undo = (id, _nothing) if id else self._id_for(messages, if_version, meta, pin)
        try:
            if self._session.is_stale():
                ops.run(self._log, self._session.catch_up())
            return super().append(*messages, id=chosen, if_version=if_version, meta=meta, pin=pin)
        except BaseException:
            undo()  # a retry gets the same id
            raise

    @contextmanager
    def turn(
        self, *, lease: float | timedelta = 30.0, wait: float | timedelta | None = None
    ) -> Iterator[Conversation]:
        """`Conversation.turn`. A replay writes nothing, so it takes no lease."""
        if self._session.replaying is not None:
            yield self
            return
        with super().turn(lease=lease, wait=wait) as held:
            yield held

    def _with_owner(self, owner: str) -> TaskConversation:
        return TaskConversation(self._log, self._key, self._session, owner, self._subject)


class AsyncTaskConversation(_TaskConversationBase, AsyncConversation):
    """A `TaskConversation` whose methods are awaited."""

    async def append(
        self,
        *messages: object,
        id: str | None = None,
        if_version: int | None = None,
        meta: dict[str, Any] | None = None,
        pin: bool = False,
    ) -> AppendResult:
        """`TaskConversation.append`, awaited."""
        chosen, undo = (id, _nothing) if id else self._id_for(messages, if_version, meta, pin)
        try:
            if self._session.is_stale():
                await ops.run_async(self._log, self._session.catch_up())
            return await super().append(
                *messages, id=chosen, if_version=if_version, meta=meta, pin=pin
            )
        except BaseException:
            undo()  # a retry gets the same id
            raise

    @asynccontextmanager
    async def turn(
        self, *, lease: float | timedelta = 30.0, wait: float | timedelta | None = None
    ) -> AsyncIterator[AsyncConversation]:
        """`TaskConversation.turn`, awaited."""
        if self._session.replaying is not None:
            yield self
            return
        async with super().turn(lease=lease, wait=wait) as held:
            yield held

    def _with_owner(self, owner: str) -> AsyncTaskConversation:
        return AsyncTaskConversation(self._log, self._key, self._session, owner, self._subject)
