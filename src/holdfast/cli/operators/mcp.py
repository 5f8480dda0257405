"""The command that serves a store to MCP clients."""

from __future__ import annotations

import contextlib
import secrets
import signal
import sys
import threading
from collections.abc import AsyncIterator
from typing import Annotated, Any

import click

from ... import Store, Worker
from ...errors import MissingExtra
from ...tasks.agents.declare import registered_agents
from ..parser.declare import Argument, Option, command
from ..stores import Json, Tenant, Url, fail, open_store
from ..text import to_json
from ..worker import load_app
from .actor import By, choose_actor
from .serve import is_loopback, read_environment_token

AppFile = Annotated[
    str | None,
    Argument(
        metavar="APP",
        help="A file or module with agents. Clients can start their tasks, and this process runs"
        " them.",
    ),
]


@command(
    "holdfast mcp agents.db",
    "holdfast mcp agents.db app.py --allow-write",
    "holdfast mcp agents.db --http --port 4041",
)
def mcp(
    url: Url,
    app: AppFile = None,
    http: Annotated[
        bool, Option("--http", help="Serve streamable HTTP instead of standard input.")
    ] = False,
    host: Annotated[str, Option(metavar="ADDRESS", help="The address to listen on.")] = (
        "127.0.0.1"
    ),
    port: Annotated[
        int, Option(min=0, max=65535, help="The port to listen on; 0 picks a free one.")
    ] = 4041,
    allow_write: Annotated[
        bool,
        Option(
            "--allow-write",
            help="Let clients start, answer, resolve, retry and cancel tasks, and change memories.",
        ),
    ] = False,
    allowed_hosts: Annotated[
        list[str] | None,
        Option(
            "--allow-host",
            metavar="NAME",
            help="A host name that clients use for this server. Repeatable.",
        ),
    ] = None,
    user_header: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="The header in which your reverse proxy passes the user's name. Only the proxy"
            " may reach this server.",
        ),
    ] = None,
    by: By = None,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Serve the store to MCP clients, such as coding agents.

    It talks to the client that starts it over standard input and output, or serves HTTP. It is
    read-only by default. On an address other than this machine's, clients send the token in
    HOLDFAST_WEB_TOKEN. If that isn't set, the command generates a token and prints it.
    """
    try:
        import uvicorn  # noqa: F401

        from ...integrations.mcp import McpOptions, create_http_app, create_server
        from ...web import WebOptions
        from ...web.server import AppServer
    except ImportError:
        fail(str(MissingExtra("holdfast mcp", "mcp")))
    if app is not None:
        with contextlib.redirect_stdout(sys.stderr):  # standard output is for the protocol
            load_app(app)
        if not registered_agents:
            fail(f"{app} has no agents; decorate a function with @holdfast.agent('claims')")
    agents = sorted(registered_agents) if app is not None else []
    user = choose_actor(by)
    options = McpOptions(allow_write=allow_write, user=user, agents=agents)
    with open_store(url, tenant, create=app is not None, quiet=True) as store:

        @contextlib.asynccontextmanager
        async def lifespan(_: Any) -> AsyncIterator[None]:
            with _run_worker(store) if agents else contextlib.nullcontext():
                yield

        server = create_server(store, options, lifespan=lifespan)
        if not http:
            server.run("stdio")
            return
        token, tokens = read_environment_token()
        if token is None and not tokens and user_header is None and not is_loopback(host):
            token = secrets.token_urlsafe(24)
            click.echo(f"clients send this token: {token}", err=True)
        web = WebOptions(
            token=token,
            tokens=tokens,
            user_header=user_header,
            user=user,
            hosts=tuple(allowed_hosts or ()),
        )
        listening = AppServer(create_http_app(server, web), host, port)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: listening.stop())  # until the server has handlers
        address = f"{listening.address}mcp"
        click.echo(to_json({"address": address}) if as_json else f"mcp: {address}")
        listening.run()


@contextlib.contextmanager
def _run_worker(store: Store) -> Any:
    """Run a worker beside the server. Its running tasks stop at their next step."""
    worker = Worker(store, grace=5.0)
    thread = threading.Thread(target=worker.run, name="holdfast-mcp-worker", daemon=True)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(timeout=10.0)
