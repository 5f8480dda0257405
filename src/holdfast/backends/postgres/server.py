"""Check a PostgreSQL server: its version, its encoding and its durability."""

from __future__ import annotations

from ...errors import UnsupportedServer
from ..interface import Durability
from .errors import psycopg, translate_error
from .pool import PostgresConnection

_SETTINGS = (
    "server_version_num",
    "server_version",
    "server_encoding",
    "fsync",
    "full_page_writes",
    "synchronous_commit",
)


def inspect_server(
    connection: PostgresConnection, durability: Durability, where: str
) -> tuple[str, str, list[str]]:
    """Return the version, the value for synchronous_commit, and warnings for an operator.

    Raise `UnsupportedServer` if the server cannot guarantee this durability.
    """
    try:
        row = connection.execute(
            "SELECT " + ", ".join(f"current_setting('{name}')" for name in _SETTINGS), prepare=False
        ).fetchone()
    except psycopg.Error as error:
        raise translate_error(error, where) from None
    number, version, encoding, fsync, full_pages, commit = row or ("0",) * len(_SETTINGS)
    if int(number) < 130000:
        raise UnsupportedServer(f"PostgreSQL {version} is too old; Holdfast needs 13 or newer")
    if encoding != "UTF8":
        raise UnsupportedServer(
            f"the database has the encoding {encoding}; create one with the encoding UTF8"
        )
    warnings = []
    if fsync != "on":
        if durability == "disk":
            raise UnsupportedServer(
                "the server runs with fsync=off and may lose everything when its machine goes "
                "down; turn it on, or open the store with durability='process' (in the URL: "
                "durability=process)"
            )
        warnings.append(
            "the server runs with fsync=off: when its machine goes down, everything may be lost"
        )
    if full_pages != "on":
        warnings.append(
            "the server runs with full_page_writes=off: a partially written page may damage tables"
        )
    if durability != "disk":
        return version, "off", warnings
    if commit not in ("on", "remote_apply"):
        warnings.append(
            f"synchronous_commit is {commit!r}; Holdfast commits its own transactions with 'on'"
        )
        commit = "on"
    return version, commit, warnings
