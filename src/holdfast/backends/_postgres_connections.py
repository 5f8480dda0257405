"""Connections to PostgreSQL: a pool, what the server is asked before it is trusted, and its errors in our words."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

try:
    import psycopg as psycopg  # for the other files of this backend too
    from psycopg.conninfo import conninfo_to_dict
except ModuleNotFoundError as missing:
    from ..errors import MissingExtra

    raise MissingExtra("postgresql://", "postgres") from missing

from ..errors import (
    AccessDenied,
    CorruptRecord,
    HoldfastError,
    InvalidURL,
    NotSetUp,
    OutcomeUnknown,
    ReadOnly,
    StorageFull,
    TooLarge,
    Unavailable,
)

LIFETIME_SECONDS: Final = 30 * 60.0
"""After so long a connection is renewed when it comes back: a name may stand for another server by then."""
PLAN_SECONDS: Final = 10.0
"""After so long the server plans our statements anew: for a table that was small, a plan may read all of it each time."""


class Connection(psycopg.Connection[Any]):
    """A connection whose calls end: without a word from the server for so long, it is given up."""

    patience = 30.0
    born = 0.0
    planned = 0.0

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        return super().wait(gen, interval, self.patience if timeout is None else timeout)


class Pool:
    """Connections that are not in use. Whoever needs one and finds none connects by itself, so that it hears why that fails."""

    def __init__(self, parameters: dict[str, Any], *, size: int, prepare: bool, patience: float) -> None:
        self._parameters, self._prepare, self._patience = parameters, prepare, patience
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(size)
        self._closed = False

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection in autocommit mode. After an error of any kind it is not used again."""
        if not self._places.acquire(timeout=self._patience):
            raise Unavailable(
                "all connections to PostgreSQL are in use; raise pool_size in the URL; nothing was written"
            )
        try:
            connection = self._take() or self.connect()
            try:
                yield connection
            except BaseException:
                connection.close()
                raise
            if self._closed or time.monotonic() - connection.born > LIFETIME_SECONDS:
                connection.close()
            else:
                with self._lock:
                    self._idle.append(connection)
        finally:
            self._places.release()

    def connect(self) -> Connection:
        """A new connection, or an error that says why there is none."""
        try:
            connection = Connection.connect(
                autocommit=True, prepare_threshold=0 if self._prepare else None, **self._parameters
            )
        except psycopg.Error as error:
            raise translated(error, connecting=True) from None  # it may quote the URL, and with it the password
        connection.patience, connection.born = self._patience, time.monotonic()
        connection.planned = connection.born
        return connection

    def _take(self) -> Connection | None:
        """The connection that was used last, if the server has not hung up on it meanwhile."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            hung_up = connection.closed or _has_spoken(connection.fileno())
            if not hung_up and self._planned_anew(connection):
                return connection
            connection.close()

    def _planned_anew(self, connection: Connection) -> bool:
        """Have old plans forgotten. False if the connection turns out to be dead."""
        now = time.monotonic()
        if self._prepare and now - connection.planned > PLAN_SECONDS:
            try:
                connection.execute("DISCARD PLANS", prepare=False)
            except psycopg.Error:
                return False
            connection.planned = now
        return True

    def close(self) -> None:
        self._closed = True
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def _has_spoken(socket: int) -> bool:
    """Whether the server has sent something by itself: it never does, but to say goodbye."""
    waiting = select.poll()  # not select(), which knows no sockets beyond the 1,024th
    waiting.register(socket, select.POLLIN)
    return bool(waiting.poll(0))


def parameters(url: str, *, timeout: float) -> dict[str, Any]:
    """What libpq makes of a URL without our own options, with good defaults."""
    try:
        found: dict[str, Any] = conninfo_to_dict(url)
    except psycopg.Error:
        raise InvalidURL(
            "this is not a URL of PostgreSQL; it looks like postgresql://user:password@host:5432/database"
        ) from None
    found.setdefault("connect_timeout", "10")
    found.setdefault("application_name", "holdfast")
    found.setdefault("target_session_attrs", "read-write")
    found.setdefault("keepalives_idle", "30")
    found.setdefault("tcp_user_timeout", str(int(timeout * 1000)))
    return found


_BY_STATE: Final[dict[str, tuple[type[HoldfastError], str]]] = {
    "28000": (AccessDenied, "PostgreSQL does not let this user in from here; check the user and pg_hba.conf"),
    "28P01": (AccessDenied, "PostgreSQL refuses this user and password"),
    "3D000": (NotSetUp, "this database does not exist; create it, or correct the URL"),
    "3F000": (
        NotSetUp,
        "the schema of Holdfast is not there; open the store again, or apply what `holdfast schema` prints",
    ),
    "42P01": (
        NotSetUp,
        "tables of Holdfast are not there; open the store again, or apply what `holdfast schema` prints",
    ),
    "42501": (AccessDenied, "this user may not read and write the tables of Holdfast; grant it the rights"),
    "25006": (ReadOnly, "this server, database or user takes no writes: it may be a standby"),
    "53100": (StorageFull, "the disk of the PostgreSQL server is full; nothing was written"),
    "54000": (TooLarge, "PostgreSQL cannot keep a value of this size; nothing was written"),
    "XX001": (CorruptRecord, "PostgreSQL reports damaged data"),
    "XX002": (CorruptRecord, "PostgreSQL reports a damaged index"),
}
_AGAIN: Final = {"40001", "40P01"}
"""Serialization failure and deadlock: rolled back, and may be tried again as a whole."""


def may_be_tried_again(error: psycopg.Error) -> bool:
    return error.sqlstate in _AGAIN


def translated(error: psycopg.Error, *, writing: bool = False, connecting: bool = False) -> HoldfastError:
    """The driver's error as ours. Its own text is left out: it may quote a value, or the URL."""
    state = error.sqlstate
    if connecting:
        # libpq gives no SQLSTATE for a failed connection: the server's own words are all there is.
        return _not_connected(str(error), state)
    if state is None or state == "40003" or (state[:2] in ("08", "57") and state != "57014"):
        if writing:
            return OutcomeUnknown("the connection to PostgreSQL was lost before it answered")
        return Unavailable(f"the connection to PostgreSQL was lost ({type(error).__name__})")
    if state in _BY_STATE:
        kind, says = _BY_STATE[state]
        if kind is CorruptRecord:
            return CorruptRecord("the database", what=says)
        return kind(says)
    return Unavailable(f"PostgreSQL refused ({type(error).__name__}, SQLSTATE {state}); nothing was written")


def _not_connected(text: str, state: str | None) -> HoldfastError:
    if state in _BY_STATE:
        kind, says = _BY_STATE[state]
        return kind(says)
    if "password authentication failed" in text or "no password supplied" in text:
        return AccessDenied(_BY_STATE["28P01"][1])
    if "no pg_hba.conf entry" in text or "authentication failed" in text or ("role" in text and "not exist" in text):
        return AccessDenied(_BY_STATE["28000"][1])
    if "database" in text and "does not exist" in text:
        return NotSetUp(_BY_STATE["3D000"][1])
    if "read-only" in text or "not in hot standby" in text:
        return ReadOnly(_BY_STATE["25006"][1])
    if "too many" in text or "remaining connection slots" in text:
        return Unavailable("PostgreSQL takes no more connections (max_connections); nothing was written")
    if "SSL" in text or "certificate" in text:
        return Unavailable("no secure connection to PostgreSQL could be made; check sslmode and the certificates")
    if "could not translate host name" in text or "resolve host" in text:
        return Unavailable("the host name of the PostgreSQL server is not known; check the URL")
    if "timeout" in text:
        return Unavailable("PostgreSQL did not answer in time; check host and port, and that it can be reached")
    return Unavailable("PostgreSQL cannot be reached; check host and port, and that the server runs")
