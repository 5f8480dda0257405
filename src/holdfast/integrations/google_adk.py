"""Sessions of Google's Agent Development Kit, kept in a store.

    runner = Runner(agent=agent, app_name="shop", session_service=HoldfastSessionService(store))

A session is the conversation `adk/APP/USER/SESSION`; its messages are the events of the session.
State that sessions share (`app:` and `user:`) is in state documents.
"""

from __future__ import annotations

import json
import time
import uuid
from typing import Any, Final
from urllib.parse import unquote

from .. import AsyncConversation, AsyncState, AsyncStore, Conflict, Store
from ..errors import Expired, IdReused
from .listing import join_id, list_ids

try:
    from google.adk.errors._stale_session_error import StaleSessionError
    from google.adk.errors.already_exists_error import AlreadyExistsError
    from google.adk.errors.session_not_found_error import SessionNotFoundError
    from google.adk.events import Event
    from google.adk.sessions import BaseSessionService, Session, State
    from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse
except ImportError as error:
    raise ImportError(
        "holdfast.integrations.google_adk needs the Agent Development Kit 2.13 or newer: "
        "pip install -U google-adk"
    ) from error

__all__ = ["HoldfastSessionService"]

Message = dict[str, Any]
PREFIX: Final = "adk"


class HoldfastSessionService(BaseSessionService):  # type: ignore[misc]  # ADK is not installed here
    """A session service on a Holdfast store. An event is durable when `append_event` returns.

    The id of an event is its append id, so an event that is appended again is stored once. A
    session object that is older than the stored session raises `StaleSessionError`.
    """

    def __init__(self, store: Store | AsyncStore) -> None:
        """Keep sessions in `store`; in those of a tenant with `store.for_tenant("acme")`."""
        if not isinstance(store, Store | AsyncStore):
            raise TypeError(
                "HoldfastSessionService(store): store must be an open store, "
                f'like holdfast.open("agents.db"), got {type(store).__name__}'
            )
        self._store = store.aio if isinstance(store, Store) else store

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Create a session; raise `AlreadyExistsError` if there is one with that id."""
        new_id = (session_id or "").strip() or str(uuid.uuid4())
        chat = self._chat(app_name, user_id, new_id)
        if await chat.version():
            raise AlreadyExistsError(f"Session with id {new_id} already exists.")
        own = await self._share_state(app_name, user_id, state or {})
        try:
            await chat.append({"created": time.time(), "state": own}, if_version=0)
        except Conflict:
            raise AlreadyExistsError(f"Session with id {new_id} already exists.") from None
        session = await self.get_session(app_name=app_name, user_id=user_id, session_id=new_id)
        if session is None:
            raise SessionNotFoundError(f"Session {new_id} was deleted while it was created.")
        return session

    async def get_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        config: GetSessionConfig | None = None,
    ) -> Session | None:
        """Return a session with its events, or the newest of them; None if there is none."""
        session = await self._load(app_name, user_id, session_id.strip())
        if session is None or config is None:
            return session
        if config.num_recent_events is not None:
            count = len(session.events) - config.num_recent_events
            session.events = session.events[max(count, 0) :]
        if config.after_timestamp is not None:
            earliest = config.after_timestamp
            session.events = [event for event in session.events if event.timestamp >= earliest]
        return session

    async def list_sessions(
        self, *, app_name: str, user_id: str | None = None
    ) -> ListSessionsResponse:
        """Return the sessions of a user, or of all users, without events; the oldest first."""
        place = [app_name] if user_id is None else [app_name, user_id]
        found: list[Session] = []
        for rest in await list_ids(self._store, PREFIX, *place):
            *others, session_id = map(unquote, rest.split("/"))
            session = await self._load(app_name, others[0] if others else place[1], session_id)
            if session is not None:
                session.events = []
                found.append(session)
        found.sort(key=lambda each: (each.last_update_time, each.user_id, each.id))
        return ListSessionsResponse(sessions=found)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session, if it is there."""
        chat = self._chat(app_name, user_id, session_id.strip())
        await chat.delete(reason="deleted by the Agent Development Kit")

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return what the sessions of a user share, without the prefix `user:`."""
        return await self._shared(app_name, user_id).load({})

    async def append_event(self, session: Session, event: Event) -> Event:
        """Store an event, durably, and apply it to the session object."""
        if event.partial:
            return event
        chat = self._chat(session.app_name, session.user_id, session.id)
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        if any(stored == event for stored in session.events if stored.id == event.id):
            return event  # its changes of shared state may be superseded by now
        message = {"event": json.loads(event.model_dump_json(exclude_none=True, by_alias=True))}
        version = await self._expected_version(chat, session)
        # Before the event: if the process dies in between, the event's next attempt repeats it.
        await self._share_state(session.app_name, session.user_id, event.actions.state_delta)
        try:
            result = await chat.append(message, id=event.id, if_version=version)
        except IdReused:  # another event with the same id
            result = await self._append(chat, message, version)
        except Conflict as conflict:
            raise _stale(session) from conflict
        if result.duplicate:
            return event
        session._storage_update_marker = str(result.last)
        session.last_update_time = event.timestamp
        return self._commit_event_to_session(session, event)

    # -- stored sessions ---------------------------------------------------------------------------

    async def _append(self, chat: AsyncConversation, message: Message, version: int) -> Any:
        try:
            return await chat.append(message, if_version=version)
        except Conflict as conflict:
            raise StaleSessionError(f"{chat.id} has changed since it was read") from conflict

    async def _expected_version(self, chat: AsyncConversation, session: Session) -> int:
        version = await chat.version()
        if not version:
            raise SessionNotFoundError(f"Session {session.id} not found.")
        marker = session._storage_update_marker
        return version if marker is None else int(marker)

    async def _load(self, app_name: str, user_id: str, session_id: str) -> Session | None:
        chat = self._chat(app_name, user_id, session_id)
        try:
            entries = await chat.entries()
        except Expired:
            return None
        if not entries:
            return None
        first, *others = [entry.message for entry in entries]
        state = dict(first["state"])
        events = [Event.model_validate(message["event"]) for message in others]
        for event in events:
            state.update(_own_part(event.actions.state_delta))
        for prefix, shared in (
            (State.APP_PREFIX, await self._shared(app_name).load({})),
            (State.USER_PREFIX, await self._shared(app_name, user_id).load({})),
        ):
            state.update({prefix + key: value for key, value in shared.items()})
        session = Session(
            app_name=app_name,
            user_id=user_id,
            id=session_id,
            state=state,
            events=events,
            last_update_time=events[-1].timestamp if events else first["created"],
        )
        session._storage_update_marker = str(entries[-1].version)
        return session

    async def _share_state(
        self, app_name: str, user_id: str, state: dict[str, Any]
    ) -> dict[str, Any]:
        """Store the parts of a state that sessions share, and return the session's own part."""
        for prefix, shared in (
            (State.APP_PREFIX, self._shared(app_name)),
            (State.USER_PREFIX, self._shared(app_name, user_id)),
        ):
            part = {
                key.removeprefix(prefix): value
                for key, value in state.items()
                if key.startswith(prefix)
            }
            while part:
                version = await shared.version()  # read first: a later save is a conflict
                known = await shared.load({})
                if {**known, **part} == known:
                    break
                try:
                    await shared.save({**known, **part}, if_version=version)
                    break
                except Conflict:
                    continue
        return _own_part(state)

    def _chat(self, app_name: str, user_id: str, session_id: str) -> AsyncConversation:
        return self._store.conversation(join_id(PREFIX, app_name, user_id, session_id))

    def _shared(self, *owner: str) -> AsyncState[dict[str, Any]]:
        return self._store.state(join_id("adk-state", *owner))


def _stale(session: Session) -> StaleSessionError:
    return StaleSessionError(
        f"session {session.id} has changed since it was read; call get_session and try again"
    )


def _own_part(state: dict[str, Any]) -> dict[str, Any]:
    shared = (State.APP_PREFIX, State.USER_PREFIX, State.TEMP_PREFIX)
    return {key: value for key, value in state.items() if not key.startswith(shared)}
