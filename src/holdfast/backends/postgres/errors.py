"""Translate the errors of psycopg and libpq into Holdfast's.

A connection that breaks before the answer to a write, and so to its COMMIT, becomes
`OutcomeUnknown`: the write may be stored. This backend never repeats such a write;
`holdfast/log/appender.py` sends it again with the same id. A write that the server rolled back
is repeated in `rollbacks.py`.
"""

from __future__ import annotations

import re
from typing import Final

from ...errors import (
    AccessDenied,
    CorruptRecord,
    HoldfastError,
    InvalidId,
    InvalidURL,
    NotSetUp,
    OutcomeUnknown,
    ReadOnly,
    StorageFull,
    TooLarge,
    Unavailable,
)

try:
    import psycopg as psycopg  # the other modules of this backend import both from here
    from psycopg.conninfo import conninfo_to_dict as conninfo_to_dict
except ModuleNotFoundError as missing:
    from ...errors import MissingExtra

    raise MissingExtra("postgresql://", "postgres") from missing

SERVER_FULL: Final = (
    "PostgreSQL accepts no more connections: the server's max_connections, or the CONNECTION LIMIT "
    "of this user or database, is reached; nothing was written. Raise it, or lower pool_size in "
    "the URLs"
)
_BY_SQLSTATE: Final[dict[str, tuple[type[HoldfastError], str]]] = {
    "28000": (
        AccessDenied,
        "PostgreSQL does not accept this user from this host; check the user and pg_hba.conf",
    ),
    "28P01": (AccessDenied, "PostgreSQL rejects this user and password"),
    "3D000": (NotSetUp, "this database does not exist; create it, or correct the URL"),
    "3F000": (
        NotSetUp,
        "Holdfast's schema does not exist; open the store again, or apply the output of "
        "`holdfast schema`",
    ),
    "42P01": (
        NotSetUp,
        "tables of Holdfast are missing; open the store again, or apply the output of "
        "`holdfast schema`",
    ),
    "42501": (
        AccessDenied,
        "this user lacks a privilege; `holdfast schema` prints the GRANTs that are needed",
    ),
    "25006": (
        ReadOnly,
        "this server, database or user is read-only: it may be a standby; use the primary",
    ),
    "53100": (StorageFull, "the disk of the PostgreSQL server is full; nothing was written"),
    "53200": (
        Unavailable,
        "PostgreSQL is out of memory (SQLSTATE 53200); nothing was written. For tables with many "
        "partitions, raise its max_locks_per_transaction",
    ),
    "53300": (Unavailable, SERVER_FULL),
    "54000": (TooLarge, "PostgreSQL cannot store a value of this size; nothing was written"),
    # A row that already exists, a number without a successor, changed or missing columns.
    "23502": (CorruptRecord, "a table has different columns from those that Holdfast created"),
    "23505": (CorruptRecord, "its tables contradict each other"),
    "22003": (CorruptRecord, "a version in its tables is out of range"),
    "42703": (CorruptRecord, "a column that Holdfast created is missing"),
    "42804": (CorruptRecord, "a column does not have the type that Holdfast gave it"),
    "42883": (CorruptRecord, "a column does not have the type that Holdfast gave it"),
    "XX001": (CorruptRecord, "PostgreSQL reports damaged data"),
    "XX002": (CorruptRecord, "PostgreSQL reports a damaged index"),
}

_SERVER_FULL_TEXT: Final = "too many|remaining connection slots|no more connections allowed"
_BY_CONNECT_TEXT: Final[tuple[tuple[str, str], ...]] = (
    ("no pg_hba.conf entry|authentication failed|role.*not exist", "28000"),
    ("database.*does not exist", "3D000"),
    ("read-only|not in hot standby", "25006"),
    (_SERVER_FULL_TEXT, "53300"),
)
"""The SQLSTATE for a text of libpq, which often does not give one."""
_UNREACHABLE: Final = (
    ("SSL|certificate", "no secure connection to PostgreSQL; check sslmode and the certificates"),
    (
        "could not translate host name|resolve host",
        "the host name is not known; check the URL, and write @ : / ? # in a password as "
        "%40 %3A %2F %3F %23",
    ),
    ("timeout", "PostgreSQL did not answer in time; check host, port and the network"),
    ("", "PostgreSQL is unreachable; check host and port, and that the server runs"),
)
_INVALID_OPTION: Final = re.compile(
    r'invalid "?(?!integer)(?P<a>[a-z_]+)"? value|for connection option "(?P<b>[a-z_]+)"'
    r"|bad value for (?P<c>[a-z_]+)|invalid (?P<d>port) number"
    r"|could not match \d+ (?P<e>port) numbers|could not match \d+ (?P<f>host) names"
    r"|definition of (?P<g>service)|could not parse network address"
)
"""Matches the messages of libpq about an option that it cannot use."""


def translate_error(error: psycopg.Error, where: str, *, writing: bool = False) -> HoldfastError:
    """Translate an error of a statement. `where` names the server.

    The text of the driver is left out: it may quote a value, or the URL.
    """
    state = error.sqlstate
    if is_unstorable_text(error):
        return InvalidId(f"{where}: PostgreSQL cannot store text with a NUL; nothing was written")
    if state is None or state == "40003" or (state[:2] in ("08", "57") and state != "57014"):
        # The driver has no public name for its timeout.
        timed_out = type(error).__name__ == "_WaitTimeout"
        reason = (
            "no answer before the deadline"
            if timed_out
            else "the connection was lost before the answer arrived"
        )
        if writing:
            return OutcomeUnknown(f"{where}: {reason}; retry with the same id")
        return Unavailable(f"{where}: {reason}; retry")
    if state in _BY_SQLSTATE:
        kind, reason = _BY_SQLSTATE[state]
        if kind is CorruptRecord:
            return CorruptRecord(where, what=reason)
        return kind(f"{where}: {reason}")
    return Unavailable(
        f"{where}: PostgreSQL refused ({type(error).__name__}, SQLSTATE {state}); "
        "nothing was written"
    )


def is_unstorable_text(error: psycopg.Error) -> bool:
    """Return whether the driver refused to send a value: text with a NUL."""
    return isinstance(error, psycopg.DataError) and error.sqlstate is None


def is_server_full(error: psycopg.Error) -> bool:
    """Return whether the server, the database or the user has reached a connection limit."""
    return error.sqlstate == "53300" or re.search(_SERVER_FULL_TEXT, str(error)) is not None


def _match(table: tuple[tuple[str, str], ...], text: str) -> str | None:
    """Return the value of the first pattern that is found in the text."""
    return next((value for pattern, value in table if re.search(pattern, text, re.DOTALL)), None)


def translate_connect_error(error: psycopg.Error, where: str, *, password: bool) -> HoldfastError:
    """Translate the error of a connection attempt. `password`: whether the URL has one.

    Raise the result `from None`: the cause may quote the URL, and so the password.
    """
    kind, reason = _classify_connect_error(str(error), error.sqlstate, password=password)
    return kind(f"{where}: {reason}")


def _classify_connect_error(
    text: str, state: str | None, *, password: bool
) -> tuple[type[HoldfastError], str]:
    """Return the class and the message for a text of libpq, which often has no SQLSTATE."""
    invalid = _INVALID_OPTION.search(text)
    if invalid is not None:
        name = next((name for name in invalid.groups() if name), "hostaddr")
        return InvalidURL, f"the option {name!r} of the URL has an invalid value; correct it"
    if "no password supplied" in text:
        return (
            AccessDenied,
            "PostgreSQL requires a password, and there is none in the URL, in PGPASSWORD or in the "
            "password file (PGPASSFILE, ~/.pgpass)",
        )
    if state == "28P01" or "password authentication failed" in text:
        kind, reason = _BY_SQLSTATE["28P01"]
        source = "; the password came from PGPASSWORD or the password file (PGPASSFILE)"
        return kind, reason + ("" if password else source)
    if state not in _BY_SQLSTATE:
        state = _match(_BY_CONNECT_TEXT, text)
    if state is not None:
        return _BY_SQLSTATE[state]
    return Unavailable, _match(_UNREACHABLE, text) or ""
