"""The command that serves the web dashboard."""

from __future__ import annotations

import gc
import ipaddress
import os
import secrets
import signal
from pathlib import Path
from typing import Annotated

import click

from ...errors import MissingExtra
from ..parser.declare import Option, command
from ..stores import Json, Tenant, Url, fail, open_store
from ..text import to_json
from .actor import choose_actor


@command(
    "holdfast serve agents.db",
    "holdfast serve agents.db --allow-write --port 0",
    "HOLDFAST_WEB_TOKEN=… holdfast serve agents.db --host 0.0.0.0 --allow-host agents.example.com",
)
def serve(
    url: Url,
    host: Annotated[str, Option(metavar="ADDRESS", help="The address to listen on.")] = (
        "127.0.0.1"
    ),
    port: Annotated[
        int, Option(min=0, max=65535, help="The port to listen on; 0 picks a free one.")
    ] = 4040,
    allow_write: Annotated[
        bool,
        Option("--allow-write", help="Let people answer, resolve, retry, cancel, fork and forget."),
    ] = False,
    allowed_hosts: Annotated[
        list[str] | None,
        Option(
            "--allow-host",
            metavar="NAME",
            help="A host name that browsers use for this server. Repeatable.",
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
    token_file: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="A file with a line NAME:TOKEN for each person or program that may use it.",
        ),
    ] = None,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Serve the web dashboard.

    By default it listens on this machine only and is read-only. On another address
    people log in with the token in HOLDFAST_WEB_TOKEN (TOKEN, or NAME:TOKEN) or with one from
    --token-file. If there is none, the command generates a token and prints it.
    """
    require_web("holdfast serve")
    from ...web import WebOptions
    from ...web.server import DashboardServer

    token, tokens = read_environment_token()
    if token_file is not None:
        tokens |= read_tokens(token_file)
    if token is None and not tokens and user_header is None and not is_loopback(host):
        token = secrets.token_urlsafe(24)
        click.echo(f"log in with this token: {token}", err=True)
    options = WebOptions(
        allow_write=allow_write,
        token=token,
        tokens=tokens,
        user_header=user_header,
        user=choose_actor(None),
        hosts=tuple(allowed_hosts or ()),
    )
    with open_store(url, tenant) as store:
        server = DashboardServer(store, options, host, port)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: server.stop())  # until the server has handlers
        text = f"dashboard: {server.address}"
        click.echo(to_json({"address": server.address}) if as_json else text)
        gc.freeze()  # what was imported stays, so collections during requests need not look at it
        server.run()


def read_environment_token() -> tuple[str | None, dict[str, str]]:
    """Return the token in HOLDFAST_WEB_TOKEN: one without a name, or one by its name."""
    text = os.environ.get("HOLDFAST_WEB_TOKEN", "")
    name, colon, token = text.partition(":")
    if not colon:
        return text or None, {}
    if not name or not token:
        fail("HOLDFAST_WEB_TOKEN must be TOKEN or NAME:TOKEN")
    return None, {name: token}


def read_tokens(path: str) -> dict[str, str]:
    """Return the tokens of a file by name. Exit if a line is not NAME:TOKEN."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"could not read the token file: {getattr(error, 'strerror', None) or error}")
    tokens: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, token = (part.strip() for part in line.partition(":"))
        if not name or not token or name in tokens:
            fail(f"line {number} of the token file must be NAME:TOKEN, with a name of its own")
        tokens[name] = token
    if not tokens:
        fail("the token file has no line NAME:TOKEN")
    return tokens


def require_web(command: str) -> None:
    """Exit with what to install if the packages of the extra `web` are missing."""
    try:
        import jinja2  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        fail(str(MissingExtra(command, "web")))


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
