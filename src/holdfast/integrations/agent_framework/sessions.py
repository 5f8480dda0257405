"""Histories and sessions: `HoldfastHistoryProvider` and `HoldfastAgentSessionStore`."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from ... import AsyncStore, Conflict, Store

try:
    from agent_framework import AgentSession, HistoryProvider, Message, SessionStore
    from agent_framework._sessions import filter_new_messages
except ImportError as error:
    raise ImportError(
        "holdfast.integrations.agent_framework needs the Microsoft Agent Framework 1.23 or newer: "
        "pip install -U agent-framework-core"
    ) from error

from .from_autogen import convert_messages

NO_SESSION = "default"
"""The conversation of a run that has no session id."""


def as_async_store(store: Store | AsyncStore, caller: str) -> AsyncStore:
    if not isinstance(store, Store | AsyncStore):
        raise TypeError(
            f"{caller}(store): store must be an open store, "
            f'like holdfast.open("agents.db"), got {type(store).__name__}'
        )
    return store.aio if isinstance(store, Store) else store


class HoldfastHistoryProvider(HistoryProvider):
    """Keeps the messages of each session in the conversation with the session's id."""

    DEFAULT_SOURCE_ID = "holdfast"

    def __init__(
        self,
        store: Store | AsyncStore,
        source_id: str = DEFAULT_SOURCE_ID,
        *,
        skip_excluded: bool = False,
        **options: Any,
    ) -> None:
        """Keep histories in `store`; in those of a tenant with `store.for_tenant("acme")`.

        Args:
            store: An open store.
            source_id: The name of this provider among those of an agent.
            skip_excluded: Leave out messages that a compaction has excluded.
            **options: Those of the framework's `HistoryProvider`, such as `store_outputs`.
        """
        super().__init__(source_id, **options)
        self.skip_excluded = skip_excluded
        self._store = as_async_store(store, "HoldfastHistoryProvider")

    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Message]:
        """Return the messages of a session, oldest first."""
        stored = await self._store.conversation(session_id or NO_SESSION).messages()
        messages = [Message.from_dict(message) for message in stored]
        if not self.skip_excluded:
            return messages
        return [each for each in messages if not each.additional_properties.get("_excluded", False)]

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Append the messages that the history does not end with yet, atomically."""
        chat = self._store.conversation(session_id or NO_SESSION)
        while messages:
            version = await chat.version()  # read first: a later append is a conflict
            stored = [Message.from_dict(message) for message in await chat.messages()]
            new = filter_new_messages(stored, messages)
            if not new:
                return
            try:
                await chat.append(*[message.to_dict() for message in new], if_version=version)
                return
            except Conflict:
                continue

    async def import_autogen(
        self, session_id: str, messages: Iterable[Any], *, user: str = "user"
    ) -> int:
        """Start a session with the messages of an AutoGen chat, and return their number.

        Importing the same messages again adds nothing and returns 0. `user` is the source of the
        user's messages. Raises `IdReused` if other messages were imported into this session.
        """
        converted = convert_messages(messages, user)
        if not converted:
            return 0
        result = await self._store.conversation(session_id).append(
            *[message.to_dict() for message in converted], id="from AutoGen"
        )
        return 0 if result.duplicate else len(converted)


with warnings.catch_warnings():
    # The framework warns that its session stores are experimental, even if one is only defined.
    warnings.simplefilter("ignore")

    class HoldfastAgentSessionStore(SessionStore):
        """Keeps session snapshots as state documents. Each version stores what has changed."""

        def __init__(self, store: Store | AsyncStore) -> None:
            self._store = as_async_store(store, "HoldfastAgentSessionStore")

        async def get(self, session_id: str) -> AgentSession | None:
            """Return the stored session, or None."""
            saved = await self._state(session_id).load(None)
            return None if saved is None else AgentSession.from_dict(saved)

        async def set(self, session_id: str, session: AgentSession) -> None:
            """Store a session under an id, replacing the one that is there."""
            await self._state(session_id).save(session.to_dict())

        async def delete(self, session_id: str) -> None:
            """Delete a session, if it is there."""
            await self._state(session_id).delete(reason="deleted by the Agent Framework")

        def _state(self, session_id: str) -> Any:
            self.validate_session_id(session_id)
            return self._store.state(f"agent session {session_id}")
