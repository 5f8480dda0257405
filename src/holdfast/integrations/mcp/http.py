"""An MCP server over streamable HTTP, behind the gate of the web dashboard."""

from __future__ import annotations

from typing import Any, Final

from mcp.server import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from ...web.app import problem
from ...web.auth import Guard
from ...web.options import WebOptions
from .durable_tools import USER_SCOPE

HTTP_PATH: Final = "/mcp"


def create_http_app(
    server: MCPServer[Any], options: WebOptions | None = None, *, path: str = HTTP_PATH
) -> ASGIApp:
    """Return an MCP server as an ASGI application, for streamable HTTP at `path`.

    `options` say who may use it, as for the dashboard: by default only programs on this machine.
    """
    app = server.streamable_http_app(
        streamable_http_path=path,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    return McpGate(app, Guard(options or WebOptions()))


class McpGate:
    """Checks the host, the origin and the token of every request. The SDK's own check is off."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app, self._guard = app, guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope)
            host = request.headers.get("host", "")
            origin = request.headers.get("origin")
            refused = None
            if not self._guard.is_host_allowed(host):
                refused = problem(421, "Misdirected", "this server does not serve that host name")
            elif origin is not None and origin.partition("://")[2] != host:
                refused = problem(403, "CrossSite", "pages of other sites may not use this server")
            else:
                known, user = self._guard.find_user(request)
                if known:
                    scope[USER_SCOPE] = user
                else:
                    refused = problem(401, "Unauthorized", "send Authorization: Bearer TOKEN")
            if refused is not None:
                await refused(scope, receive, send)
                return
        await self._app(scope, receive, send)
