"""The store: what users open, and its async twin."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from types import TracebackType
from typing import Any

from . import _operations as ops
from ._events import EventType
from ._health import Health, examine
from ._ids import checked_tenant, stream_key
from ._log import Log
from ._state import AsyncState, State
from ._streams import AsyncStream, Stream, StreamInfo, list_streams
from .conversations import AsyncConversation, Conversation
from .conversations._lifecycle import listed


class Store:
    """An open store. Use it from as many threads as you like; `aio` is the same store for async code.

    Leaving the `with` block, or `close()`, lets writes in flight finish and releases the engine.
    """

    def __init__(self, log: Log, tenant: str, *, owner: bool = True) -> None:
        self._log, self._tenant, self._owner = log, tenant, owner

    @property
    def tenant(self) -> str:
        return self._tenant

    @property
    def aio(self) -> AsyncStore:
        """The async view of this store: the same names, awaited."""
        return AsyncStore(self._log, self._tenant, owner=False)

    def for_tenant(self, tenant: str) -> Store:
        """The same store for another tenant, who shares the engine and none of the data. Closing a view closes nothing."""
        return Store(self._log, checked_tenant(tenant), owner=False)

    def conversation(self, id: str) -> Conversation:
        """A conversation. No I/O until it is used; it exists from its first message."""
        return Conversation(self._log, stream_key(self._tenant, "conversation", id))

    def conversations(self) -> Iterator[Conversation]:
        """The conversations that have not expired, ordered by id, page by page."""
        after = ""
        while True:
            found, after = ops.run(self._log, listed(self._tenant, after))
            yield from map(self.conversation, found)
            if not after:
                return

    def stream(self, id: str, *, types: Iterable[EventType] = ()) -> Stream:
        """A stream of your own events. No I/O until it is used; it exists from its first append."""
        return Stream(self._log, stream_key(self._tenant, "stream", id), types)

    def streams(self) -> Iterator[StreamInfo]:
        """Your own streams, ordered by id, page by page."""
        after = ""
        while page := ops.run(self._log, list_streams(self._tenant, "stream", after)):
            yield from page
            after = page[-1].id

    def state(self, id: str, type: Any = Any) -> State:
        """A document that is saved whole, of plain JSON values or of a declared type. No I/O until it is used."""
        return State(self._log, stream_key(self._tenant, "state", id), type)

    def states(self) -> Iterator[StreamInfo]:
        """Your state documents, ordered by id, page by page."""
        after = ""
        while page := ops.run(self._log, list_streams(self._tenant, "state", after)):
            yield from page
            after = page[-1].id

    def health(self) -> Health:
        """Where the state is, on what engine, how durable, how large, and the oldest lease."""
        return ops.run(self._log, examine(self._log.describe(), self._tenant))

    def close(self) -> None:
        """Let writes in flight finish and release the engine. Closing twice is harmless."""
        if self._owner:
            self._log.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store on {type(self._log.backend).__name__}, tenant {self._tenant!r}>"


class AsyncStore:
    """An open store for async code, usable from several event loops at once."""

    def __init__(self, log: Log, tenant: str, *, owner: bool = True) -> None:
        self._log, self._tenant, self._owner = log, tenant, owner

    @property
    def tenant(self) -> str:
        return self._tenant

    def for_tenant(self, tenant: str) -> AsyncStore:
        """`Store.for_tenant`."""
        return AsyncStore(self._log, checked_tenant(tenant), owner=False)

    def conversation(self, id: str) -> AsyncConversation:
        """`Store.conversation`, with awaited methods."""
        return AsyncConversation(self._log, stream_key(self._tenant, "conversation", id))

    async def conversations(self) -> AsyncIterator[AsyncConversation]:
        """`Store.conversations` as an async iterator."""
        after = ""
        while True:
            found, after = await ops.run_async(self._log, listed(self._tenant, after))
            for name in found:
                yield self.conversation(name)
            if not after:
                return

    def stream(self, id: str, *, types: Iterable[EventType] = ()) -> AsyncStream:
        """`Store.stream`, with awaited methods."""
        return AsyncStream(self._log, stream_key(self._tenant, "stream", id), types)

    async def streams(self) -> AsyncIterator[StreamInfo]:
        """`Store.streams` as an async iterator."""
        after = ""
        while page := await ops.run_async(self._log, list_streams(self._tenant, "stream", after)):
            for info in page:
                yield info
            after = page[-1].id

    def state(self, id: str, type: Any = Any) -> AsyncState:
        """`Store.state`, with awaited methods."""
        return AsyncState(self._log, stream_key(self._tenant, "state", id), type)

    async def states(self) -> AsyncIterator[StreamInfo]:
        """`Store.states` as an async iterator."""
        after = ""
        while page := await ops.run_async(self._log, list_streams(self._tenant, "state", after)):
            for info in page:
                yield info
            after = page[-1].id

    async def health(self) -> Health:
        """`Store.health`, awaited."""
        description = await self._log.in_thread(self._log.describe)
        return await ops.run_async(self._log, examine(description, self._tenant))

    async def close(self) -> None:
        """`Store.close`, awaited."""
        if self._owner:
            await self._log.close_async()

    async def __aenter__(self) -> AsyncStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncStore on {type(self._log.backend).__name__}, tenant {self._tenant!r}>"
