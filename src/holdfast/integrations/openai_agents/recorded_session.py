"""The session of a durable run: a resumed run reads the same items, and adds its own once."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, cast

from agents import OpenAIConversationsSession, SessionSettings
from agents.items import TResponseInputItem
from agents.memory import Session, is_openai_responses_compaction_aware_session
from agents.memory.session_settings import resolve_session_limit

from ... import AsyncTask, idempotency_key, step
from .session import HoldfastSession, Wrapper

Call = Callable[[], Awaitable[Any]]


@step
async def _read(limit: int | None, call: Call) -> Any:
    return await call()


@step
async def _add(items: list[Any], call: Call) -> None:
    await call()


class RecordedSession:
    """A session as one run sees it: what was in it at the start, and what the run has added.

    `save` adds the run's items when the run has ended, in one step. A run that fails or waits adds
    nothing: it adds everything once it is resumed and ends. Items are added to a `HoldfastSession`
    exactly once. With other sessions, they may be added twice if the process dies meanwhile.
    """

    def __init__(self, session: Session, task: AsyncTask) -> None:
        if isinstance(
            session, OpenAIConversationsSession
        ) or is_openai_responses_compaction_aware_session(session):
            raise TypeError(
                "session must be one that only stores items, such as HoldfastSession, "
                f"got {type(session).__name__}"
            )
        self._session, self._task = session, task
        self._found: dict[int | None, list[TResponseInputItem]] = {}
        self._added: list[TResponseInputItem] = []
        self._wrapper: Wrapper | None = None
        self.session_id: str = session.session_id

    @property
    def session_settings(self) -> SessionSettings | None:
        return self._session.session_settings

    @session_settings.setter
    def session_settings(self, settings: SessionSettings | None) -> None:
        self._session.session_settings = settings

    async def get_items(
        self, limit: int | None = None, *, wrapper: Wrapper | None = None
    ) -> list[TResponseInputItem]:
        if limit not in self._found:
            self._found[limit] = await self._read(limit, wrapper)
        items = [*self._found[limit], *self._added]
        newest = resolve_session_limit(limit, self.session_settings)
        return items if newest is None else items[max(len(items) - max(newest, 0), 0) :]

    async def _read(self, limit: int | None, wrapper: Wrapper | None) -> list[TResponseInputItem]:
        """Return what was in the session at the start."""
        session = self._session
        if isinstance(session, HoldfastSession):
            chat = session._chat(wrapper)
            version = await self._task.step("read the session", _read, limit, chat.version)
            return await session.get_items_at(version, limit, wrapper=wrapper)
        forwarded = self._forward(wrapper)
        found = await self._task.step(
            "read the session", _read, limit, lambda: session.get_items(limit, **forwarded)
        )
        return cast("list[TResponseInputItem]", found)

    async def add_items(
        self, items: list[TResponseInputItem], *, wrapper: Wrapper | None = None
    ) -> None:
        self._added += items
        self._wrapper = wrapper

    async def pop_item(self, *, wrapper: Wrapper | None = None) -> TResponseInputItem | None:
        """Remove and return the newest item that the run has added; None if there is none."""
        return self._added.pop() if self._added else None

    async def clear_session(self, *, wrapper: Wrapper | None = None) -> None:
        """Forget what the run has added."""
        self._added.clear()

    async def save(self) -> None:
        """Add the items of the run to the session, once."""
        session, wrapper, items = self._session, self._wrapper, self._added

        async def add() -> None:
            if isinstance(session, HoldfastSession):
                await session._chat(wrapper).append(*items, id=idempotency_key())
            else:
                await session.add_items(items, **self._forward(wrapper))

        if items:
            await self._task.step("add to the session", _add, items, add)

    def _forward(self, wrapper: Wrapper | None) -> dict[str, Any]:
        """Return the run's context as an argument, if the session takes one."""
        takes = "wrapper" in inspect.signature(self._session.get_items).parameters
        return {"wrapper": wrapper} if takes else {}
