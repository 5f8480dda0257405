"""The options of the web server."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

import msgspec

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]", "::1")


class WebOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Who may do what on the dashboard.

    Without a token and without a user header, only browsers on this machine are served: requests
    must name a loopback host.
    """

    allow_write: bool = False
    """Whether people may answer, resolve, retry, cancel, fork and change memories."""
    token: str | None = None
    """A token that several people share to log in, each with a name of their own choice. Programs
    send it as `Authorization: Bearer TOKEN`, and are recorded as `api`."""
    tokens: Mapping[str, str] = {}
    """The tokens of people and programs by name. Who uses one is recorded with its name."""
    user_header: str | None = None
    """A header in which a reverse proxy passes the name of the user it has authenticated. The
    server must not be reachable except through that proxy."""
    user: str | None = None
    """Who is recorded for actions if the request names no user: the login user of the machine."""
    hosts: Sequence[str] = ()
    """Host names that requests may name, besides loopback. Empty with a token: any."""
    secret: bytes = msgspec.field(default_factory=lambda: secrets.token_bytes(32))
    """Signs session cookies and forms. Give several servers the same one."""

    def __post_init__(self) -> None:
        if self.token == "" or not all(map(all, self.tokens.items())):
            raise ValueError("a token and its name must not be empty; for no token, give None")

    def __repr__(self) -> str:
        return f"<WebOptions allow_write={self.allow_write}>"
