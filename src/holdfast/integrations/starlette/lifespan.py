"""One store per application: opened at its start, with the tenant of each request, and workers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import holdfast

from ... import AsyncStore, Store, Worker, correlate
from ...backends import Backend
from ...errors import InvalidId

STATE: Final = "holdfast"
"""The name of the lifespan in the state of the application."""
STOP_SECONDS: Final = 5.0
MAX_ID_CHARACTERS: Final = 200


class StoreLifespan:
    """Opens a store when the application starts, and closes it when it ends.

    Args:
        url: The store, as for `holdfast.open`.
        tenant: A function from a request to the tenant that its store is for. None: the store's
            default tenant. Authenticate the request before you trust it.
        workers: Run a worker in this process for each tenant that a request has named, and for
            those in `tenants`. False: other processes run the workers (`holdfast worker`).
        tenants: Tenants whose workers start with the application, so that interrupted turns
            continue before a request comes.
        concurrency: How many tasks each worker runs at once.
        **options: Other arguments of `holdfast.open`, for example `key`.

    Example:
        >>> app = FastAPI(lifespan=StoreLifespan("agents.db"))
    """

    def __init__(
        self,
        url: str | os.PathLike[str] | Backend,
        *,
        tenant: Callable[[HTTPConnection], str] | None = None,
        workers: bool = True,
        tenants: Sequence[str] = ("default",),
        concurrency: int = 64,
        **options: Any,
    ) -> None:
        self._url, self._tenant, self._options = url, tenant, options
        self._with_workers, self._tenants, self._concurrency = workers, tenants, concurrency
        self._store: Store | None = None
        self._workers: dict[str, tuple[Worker, threading.Thread]] = {}

    @contextlib.asynccontextmanager
    async def __call__(self, app: Any) -> AsyncIterator[dict[str, Any]]:
        store = await asyncio.to_thread(holdfast.open, self._url, **self._options)
        self._store = store
        try:
            if self._with_workers:
                for tenant in self._tenants:
                    self.wake_worker(tenant)
            yield {STATE: self}
        finally:
            await asyncio.to_thread(self._stop)
            self._store = None

    @property
    def store(self) -> Store:
        """The open store, for its default tenant."""
        if self._store is None:
            raise RuntimeError("the application has not started: pass lifespan= to it")
        return self._store

    def find_store(self, request: HTTPConnection) -> AsyncStore:
        """Return the store for the tenant of a request."""
        if self._tenant is None:
            return self.store.aio
        return self.store.for_tenant(self._tenant(request)).aio

    def wake_worker(self, tenant: str) -> None:
        """Let the worker of a tenant look for due tasks now; start it if there is none yet."""
        if not self._with_workers:
            return
        if tenant not in self._workers:
            worker = Worker(
                self.store.for_tenant(tenant), concurrency=self._concurrency, grace=STOP_SECONDS
            )
            thread = threading.Thread(target=worker.run, name="holdfast-web-worker", daemon=True)
            self._workers[tenant] = worker, thread
            thread.start()
        self._workers[tenant][0].wake()

    def _stop(self) -> None:
        for worker, _ in self._workers.values():
            worker.stop()
        for _, thread in self._workers.values():
            thread.join(STOP_SECONDS * 2)
        self._workers.clear()
        self.store.close()


def find_lifespan(request: HTTPConnection) -> StoreLifespan:
    """Return the lifespan of the application that serves a request."""
    found = getattr(request.state, STATE, None)
    if not isinstance(found, StoreLifespan):
        raise RuntimeError("the application has no store: create it with lifespan=StoreLifespan(…)")
    return found


def get_store(request: HTTPConnection) -> AsyncStore:
    """Return the store of the application, for the tenant of the request.

    For FastAPI: `store: AsyncStore = Depends(get_store)`.
    """
    return find_lifespan(request).find_store(request)


class CorrelationMiddleware:
    """Stores and logs the id of the request with everything that is appended while it is served.

    The id is that of the header, or a new one. The response has it too. `actor` is a function from
    the request to the name of the user, for the audit.
    """

    def __init__(
        self,
        app: ASGIApp,
        header: str = "x-request-id",
        actor: Callable[[HTTPConnection], str | None] | None = None,
    ) -> None:
        self._app, self._header, self._actor = app, header.lower(), actor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        given = connection.headers.get(self._header, "")
        is_usable = given.isascii() and given.isprintable() and len(given) <= MAX_ID_CHARACTERS
        request_id = given if given and is_usable else uuid.uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                pair = (self._header.encode(), request_id.encode())
                message = {**message, "headers": [*message.get("headers", []), pair]}
            await send(message)

        actor = None if self._actor is None else self._actor(connection)
        with correlate(request_id, actor=actor):
            await self._app(scope, receive, send_with_id)


def check_name(text: Any, what: str) -> str:
    """Return a name from a request; raise `InvalidId` if it is not valid."""
    if not isinstance(text, str) or not text or len(text) > MAX_ID_CHARACTERS:
        raise InvalidId(f"{what} must be a string of 1 to {MAX_ID_CHARACTERS} characters")
    return text
