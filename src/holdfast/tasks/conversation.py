"""Conversations inside a task: an append that a resumed task repeats is stored only once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..backends import AppendResult, StreamKey
from ..conversations import AsyncConversation, Conversation
from ..conversations.base import ConversationBase
from ..log import operations as ops
from ..log.log import Log
from ..log.operations.subjects import SubjectRegistrar
from .run.frames import current_frame
from .steps.identity import fingerprint

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

    def _needs_no_turn(self) -> bool:
        """Return whether no turn is needed, as in a replay, which writes nothing."""
        return self._session.replaying is not None or super()._needs_no_turn()

    def _id_for(
        self, messages: tuple[object, ...], if_version: int | None, meta: object, pin: bool
    ) -> tuple[str | None, Callable[[], None]]:
        """Return an append id, and a function that releases its number if the append fails.

        The id depends on the scope, the content, and how often this run has appended it there.
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
            "place": session.steps.find_identity(scope),
        }
        digest = fingerprint(session.salt, messages, options)
        what = ("append", digest)
        number = session.counters.take(scope, what)
        append_id = f"task/{session.incarnation_hex}/{digest}/{number}"
        return append_id, lambda: session.counters.release(scope, what, number)


class TaskConversation(_TaskConversationBase, Conversation):
    """A `Conversation` whose `append` does nothing when a resumed task repeats it."""

    def append(
        self,
        *messages: object,
        id: str | None = None,
        if_version: int | None = None,
        meta: dict[str, Any] | None = None,
        pin: bool = False,
    ) -> AppendResult:
        """Like `Conversation.append`, but with an `id` derived from the step and the content.

        With an `id` or `if_version` of your own, none is derived.
        """
        chosen, undo = (id, _nothing) if id else self._id_for(messages, if_version, meta, pin)
        try:
            if self._session.is_stale():
                ops.run(self._log, self._session.catch_up())
            return super().append(*messages, id=chosen, if_version=if_version, meta=meta, pin=pin)
        except BaseException:
            undo()  # a retry gets the same id
            raise

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

    def _with_owner(self, owner: str) -> AsyncTaskConversation:
        return AsyncTaskConversation(self._log, self._key, self._session, owner, self._subject)
