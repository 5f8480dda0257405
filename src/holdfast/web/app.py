"""The web application: the gate that every request passes, the API's routes, and the pages."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec
from anyio.to_thread import current_default_thread_limiter
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .. import HoldfastError, Store
from ..errors import (
    AlreadyAnswered,
    AlreadyResolved,
    Conflict,
    InvalidId,
    LeaseHeld,
    NotFound,
    OutcomeUnknown,
    TaskEnded,
    Unavailable,
)
from .api import ENDPOINTS, Actor, Endpoint, to_plain
from .auth import SECURITY_HEADERS, Guard
from .live import LiveTopics, TooManyPages
from .openapi import PREFIX, describe_api
from .options import WebOptions
from .pages import page_routes
from .store_facts import StoreMonitor
from .timeline_cache import TimelineCache

logger = logging.getLogger("holdfast")

STATIC: Final = Path(__file__).parent / "static"
MAX_BODY_BYTES: Final = 1024 * 1024
MAX_HANDLERS: Final = 8
"""How many requests are handled at once; others wait. It bounds the memory of the server."""

_STATUS_CODES: Final[tuple[tuple[type[BaseException], int], ...]] = (
    (NotFound, 404),
    (InvalidId, 422),
    (Conflict, 409),
    (AlreadyAnswered, 409),
    (AlreadyResolved, 409),
    (TaskEnded, 409),
    (LeaseHeld, 409),
    (OutcomeUnknown, 504),
    (Unavailable, 503),
    (HoldfastError, 422),
    (TypeError, 422),
    (ValueError, 422),
)

_REFUSALS: Final = {404: "NotFound", 405: "MethodNotAllowed", 413: "TooLarge"}


def create_app(store: Store, options: WebOptions | None = None) -> ASGIApp:
    """Return the dashboard of a store as an ASGI application.

    Args:
        store: The store to show. The application doesn't close it.
        options: Who may do what. Default: loopback only, read-only.

    Example:
        >>> app = holdfast.web.create_app(holdfast.open("agents.db"))
    """
    options = options or WebOptions()
    guard, topics = Guard(options), LiveTopics(store)
    timelines, monitor = TimelineCache(store), StoreMonitor(store)

    def make_actor(request: Request) -> Actor:
        return Actor(store, request.scope.get("holdfast_user"), timelines, monitor)

    description = msgspec.json.encode(describe_api(ENDPOINTS))
    routes: list[BaseRoute] = [
        *(_api_route(endpoint, make_actor) for endpoint in ENDPOINTS),
        Route("/api/openapi.json", lambda _: _json(description)),
        Route("/live", _live(topics, guard)),
        *page_routes(options, guard, make_actor),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    handlers = {HTTPException: _explain_refusal}
    app = Starlette(routes=routes, lifespan=_limit_handlers, exception_handlers=handlers)
    return Gate(app, options, guard)


@asynccontextmanager
async def _limit_handlers(_: Starlette) -> AsyncIterator[None]:
    current_default_thread_limiter().total_tokens = MAX_HANDLERS
    yield


class Gate:
    """Checks every request before a route sees it, and adds the security headers.

    Request lines are not logged: ids may be confidential.
    """

    def __init__(self, app: ASGIApp, options: WebOptions, guard: Guard) -> None:
        self._app, self._options, self._guard = app, options, guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused = self._check(Request(scope))
        is_static = _route_path(scope).startswith("/static/")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", [])]
                headers += [(k.encode(), v.encode()) for k, v in SECURITY_HEADERS.items()]
                stored = b"no-cache" if is_static else b"no-store"  # ours may be kept, and checked
                headers.append((b"cache-control", stored))
                message = {**message, "headers": headers}
            await send(message)

        if refused is not None:
            await refused(scope, receive, send_with_headers)
        else:
            await self._app(scope, _limit_body(receive), send_with_headers)

    def _check(self, request: Request) -> Response | None:
        """Return the response that refuses a request; None if it may pass."""
        guard, path = self._guard, _route_path(request.scope) or "/"
        if not guard.is_host_allowed(request.headers.get("host", "")):
            return problem(421, "Misdirected", "this server does not serve that host name")
        if path.startswith("/static/") or path == "/login":
            return None
        known, user = guard.find_user(request)
        if not known:
            if path.startswith("/api/") or path == "/live" or not guard.needs_login:
                return problem(401, "Unauthorized", "send the token: Authorization: Bearer TOKEN")
            here = quote(f"{path}?{request.url.query}" if request.url.query else path, safe="")
            return RedirectResponse(f"/login?next={here}", 303)
        request.scope["holdfast_user"] = user
        if request.method in ("GET", "HEAD") or path == "/logout":
            return None
        if not self._options.allow_write:
            return problem(403, "ReadOnly", "this server is read-only; start it with --allow-write")
        if path.startswith("/api/") and not _is_safe_api_call(request, guard):
            return problem(403, "CrossSite", "send JSON, from this server's own pages or a script")
        return None


def _route_path(scope: Scope) -> str:
    """Return the path of a request below the path where the dashboard is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _is_safe_api_call(request: Request, guard: Guard) -> bool:
    """Whether no other site's page can have sent an API call with a user's cookies."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return False
    if request.headers.get("authorization", "").lower().startswith("bearer "):
        return True  # browsers add others by themselves, such as those for a proxy
    if "origin" not in request.headers and "sec-fetch-site" not in request.headers:
        return not guard.needs_login  # a script on this machine
    token, user = request.headers.get("x-holdfast-form", ""), request.scope["holdfast_user"]
    return guard.is_own_form(request.headers, token, user)


def _limit_body(receive: Receive) -> Receive:
    read = 0

    async def limited() -> Message:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        if read > MAX_BODY_BYTES:
            raise HTTPException(413, f"a body may have {MAX_BODY_BYTES} bytes")
        return message

    return limited


def _api_route(endpoint: Endpoint[Any], make_actor: Callable[[Request], Actor]) -> Route:
    async def serve(request: Request) -> Response:
        try:
            if endpoint.method == "GET":
                given = dict(request.query_params)
                params = msgspec.convert(given, endpoint.params, strict=False)
            else:
                params = msgspec.json.decode(await request.body(), type=endpoint.params)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return problem(422, "Invalid", str(error))
        try:
            found = await run_in_threadpool(endpoint.handle, make_actor(request), params)
        except (HoldfastError, TypeError, ValueError) as error:
            return problem(status_code(error), type(error).__name__, str(error))
        return _json(msgspec.json.encode(found, enc_hook=to_plain))

    return Route(f"{PREFIX}/{endpoint.path}", serve, methods=[endpoint.method])


def status_code(error: BaseException) -> int:
    """Return the HTTP status for an error."""
    return next((code for kind, code in _STATUS_CODES if isinstance(error, kind)), 500)


def problem(
    status: int, error: str, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    body = msgspec.json.encode({"error": error, "message": message})
    return Response(body, status, headers, media_type="application/json")


async def _explain_refusal(request: Request, error: Exception) -> Response:
    """Answer a request that no endpoint accepts: in JSON under /api/, elsewhere as plain text."""
    assert isinstance(error, HTTPException)
    status, message, headers = error.status_code, error.detail, error.headers
    if not _route_path(request.scope).startswith("/api/"):
        return PlainTextResponse(message, status, headers)
    if status == 404:
        message = "there is no such endpoint; /api/openapi.json describes all"
    elif status == 405 and headers and "Allow" in headers:
        message = f"use {headers['Allow']}"
    return problem(status, _REFUSALS.get(status, "Refused"), message, headers)


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _live(topics: LiveTopics, guard: Guard) -> Callable[[Request], Any]:
    async def serve(request: Request) -> Response:
        if request.method != "GET":
            return problem(405, "MethodNotAllowed", "use GET")
        topic = request.query_params.get("topic", "tasks")
        name = request.query_params.get("id", "")
        if topic not in ("tasks", "task", "conversation") or (topic != "tasks" and not name):
            return problem(422, "Invalid", "topic must be tasks, task or conversation, with an id")
        session = guard.read_session(request)
        changes = topics.follow(
            topic, name, lambda: session is not None and guard.has_ended(session)
        )
        try:
            first = await anext(changes, None)
        except (HoldfastError, ValueError, TypeError) as error:
            return problem(status_code(error), type(error).__name__, str(error))
        except TooManyPages:
            return problem(503, "TooManyPages", "too many pages are open; close some")
        if first is None:
            return problem(401, "Unauthorized", "the session has ended; log in again")

        async def events() -> Any:
            try:
                yield f"retry: 2000\ndata: {first}\n\n"
                async for digest in changes:
                    yield f"data: {digest}\n\n" if digest else ": still here\n\n"
            finally:
                await changes.aclose()

        return StreamingResponse(events(), media_type="text/event-stream")

    return serve
