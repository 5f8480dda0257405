"""Redis URLs and their options."""

from __future__ import annotations

import os
import re
from typing import Final, NamedTuple
from urllib.parse import unquote

from ...errors import InvalidURL
from ..deadline import DEFAULT_TIMEOUT
from ..urls import format_location, parse_url, read_bool_option, read_int_option

OPTIONS: Final = ("ca", "prefix", "wait_aof", "wait_ms", "wait_replicas")


class RedisAddress(NamedTuple):
    """A parsed URL."""

    location: str
    tls: bool
    host: str
    port: int
    database: int
    username: str | None
    password: str | None
    ca: str | None
    prefix: str
    timeout: float
    wait_replicas: int
    wait_aof: bool
    wait_ms: int

    @property
    def answer_timeout(self) -> float:
        """How long an answer may take, in seconds, including the wait for confirmations."""
        return self.timeout + self.wait_ms / 1000

    def __repr__(self) -> str:
        return f"Address({self.location!r})"  # without the password


def parse_redis_url(url: str, timeout: float = DEFAULT_TIMEOUT) -> RedisAddress:
    """Parse a URL; raise `InvalidURL` if it or one of its options is not valid."""
    parts, options = parse_url(
        url, example="redis://user:password@host:6379/0?prefix=holdfast", options=OPTIONS
    )
    path = parts.path.strip("/")
    if not parts.hostname or not re.fullmatch(r"\d{0,5}", path):
        raise InvalidURL(
            "a Redis URL must name a host, and a database by its number: redis://host:6379/0"
        )
    if parts.username and parts.password is None:
        # Probably the password, so it is not shown. A user without one is written with a colon.
        raise InvalidURL(
            "the URL has a user and no password; write redis://:password@host or "
            "redis://user:password@host"
        )
    prefix = options.get("prefix", "holdfast")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", prefix):
        raise InvalidURL(
            "the option 'prefix' of the URL must be 1 to 64 letters, digits, dots, dashes and "
            "underscores"
        )
    tls = parts.scheme.lower() == "rediss"
    if "ca" in options and not tls:
        raise InvalidURL("the option 'ca' is for rediss:// URLs; redis:// is not encrypted")
    if "ca" in options and not os.path.isfile(options["ca"]):
        raise InvalidURL("the option 'ca' of the URL must name an existing file of certificates")
    return RedisAddress(
        location=format_location(parts) + ("" if prefix == "holdfast" else f"?prefix={prefix}"),
        tls=tls,
        host=parts.hostname,
        port=parts.port or 6379,
        database=int(path or "0"),
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        ca=options.get("ca"),
        prefix=prefix,
        timeout=timeout,
        wait_replicas=read_int_option(options, "wait_replicas", 0),
        wait_aof=read_bool_option(options, "wait_aof", False),
        wait_ms=read_int_option(options, "wait_ms", 1_000, least=1),
    )
