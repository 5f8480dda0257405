"""PostgreSQL URLs: Holdfast's own options, and those of libpq."""

from __future__ import annotations

import re
from typing import Any, Final

from ...errors import InvalidURL
from ..urls import ServerURL, parse_url, pop_option, read_int_option, unknown_option_error
from .errors import conninfo_to_dict, psycopg

OPTIONS: Final = ("schema", "partitions", "pool_size", "prepare")
"""The options of a URL in addition to those of libpq."""
CONNECT_SECONDS: Final = 10
NO_LIMIT: Final = 1_000_000
MAX_PARTITIONS: Final = 500
"""One transaction creates and locks all of them. A server's default settings don't allow 1,000."""


def parse_postgres_url(url: str) -> ServerURL:
    """Parse a URL. Raise `InvalidURL`, naming the option, if Holdfast and libpq don't know it."""
    given = parse_url(url, example="postgresql://user:password@host/database", options=None)
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()} | {"ssl"}
    for name in given.options:
        if name not in OPTIONS and name not in known:
            raise unknown_option_error(name, given.parts, OPTIONS, ", and those of libpq")
    return given


def read_schema_option(options: dict[str, str]) -> str:
    schema = options.get("schema", "holdfast")
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema) or schema.startswith("pg_"):
        raise InvalidURL(
            "the option 'schema' of the URL must consist of at most 63 lowercase letters, digits "
            "and _, and must not start with a digit or pg_"
        )
    if schema == "information_schema":
        raise InvalidURL("the schema 'information_schema' is the server's own; choose another one")
    return schema


def read_partitions_option(options: dict[str, str]) -> int:
    return read_int_option(options, "partitions", 0, most=MAX_PARTITIONS)


def parse_conninfo(url: str, *, timeout: float) -> dict[str, Any]:
    """Return the connection parameters of libpq for a URL, with defaults."""
    for name in OPTIONS:  # libpq rejects options that it doesn't know
        url, _ = pop_option(url, name)
    try:
        parameters: dict[str, Any] = conninfo_to_dict(url)
        "".join(map(str, parameters.values())).encode()
    except (psycopg.Error, UnicodeError):
        raise InvalidURL(
            "this is not a PostgreSQL URL; it must look like "
            "postgresql://user:password@host:5432/database"
        ) from None
    # Overrides the environment and the URL, because names may be any text.
    parameters["client_encoding"] = "UTF8"
    parameters["connect_timeout"] = _read_connect_timeout(parameters)
    parameters.setdefault("application_name", "holdfast")
    parameters.setdefault("target_session_attrs", "read-write")
    parameters.setdefault("keepalives_idle", "30")
    parameters.setdefault("tcp_user_timeout", str(int(timeout * 1000)))
    return parameters


def _read_connect_timeout(parameters: dict[str, Any]) -> int:
    """Return libpq's option of that name, in seconds. 0 means no limit of its own."""
    value = str(parameters.get("connect_timeout", CONNECT_SECONDS)).strip()
    if not re.fullmatch(r"-?\d{1,9}", value):
        raise InvalidURL("the option 'connect_timeout' of the URL must be a number of seconds")
    return int(value) if int(value) > 0 else NO_LIMIT
