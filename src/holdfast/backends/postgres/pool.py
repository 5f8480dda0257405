"""Connections to PostgreSQL: a pool, and its errors in our words."""

from __future__ import annotations

import queue
import re
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final
from weakref import WeakSet

try:
    import psycopg as psycopg  # for the other files of this backend too
    from psycopg.conninfo import conninfo_to_dict
except ModuleNotFoundError as missing:
    from ...errors import MissingExtra

    raise MissingExtra("postgresql://", "postgres") from missing

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
from .arrays import KINDS, Array
from .sql import Columns

LIFETIME_SECONDS: Final = 30 * 60.0
"""After so long a connection is renewed when it comes back: a name may stand for another server by then."""
PLAN_SECONDS: Final = 10.0
"""After so long the server plans our statements anew: for a table that was small, a plan may read all of it each time."""
_TABLES: Final = "the store in PostgreSQL"
CANCEL_SECONDS: Final = 1.0
"""How long we try to tell the server that nobody waits for an answer any more."""
CROWDED_SECONDS: Final = 1.0
"""So long a server that takes no more connections is not asked for one, if there are others to wait for."""


def _dumper(of: type[Array]) -> Any:
    """What tells the driver to pass an array on as it is."""

    class ArrayDumper(psycopg.adapt.Dumper):
        kind, format, oid = of, psycopg.pq.Format.BINARY, of.array

        def dump(self, obj: Any) -> Any:
            return obj

    return ArrayDumper


_DUMPERS: Final = [_dumper(kind) for kind in KINDS]


class PostgresConnection(psycopg.Connection[Any]):
    """A connection whose calls end: without a word from the server for so long, it is given up."""

    patience = 30.0
    born = 0.0
    planned = 0.0

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        return super().wait(gen, interval, self.patience if timeout is None else timeout)


def fetched(
    connection: PostgresConnection,
    statement: str,
    values: Sequence[Any] | Mapping[str, Any],
    columns: Columns | None,
    *,
    prepare: bool | None = None,
) -> list[Any]:
    """The rows of a statement, if they are what its columns were made for. Otherwise the driver is not let near them: it would turn
    whatever a column holds into objects of Python, JSON of any size and depth too."""
    cursor = connection.execute(statement, values, binary=True, prepare=prepare)
    result = cursor.pgresult
    if columns is None or result is None:
        return cursor.fetchall()
    if tuple(map(result.ftype, range(result.nfields))) != columns.types:
        raise CorruptRecord(_TABLES, what="a column has another type than Holdfast gave it")
    rows = cursor.fetchall()
    if any(None in row[: columns.present] for row in rows):
        raise CorruptRecord(_TABLES, what="a column holds NULL where Holdfast allows none")
    return rows


class PoolSlot:
    """The right to use one connection."""


class PostgresPool:
    """Connections that are not in use. Whoever needs one and finds none connects by itself, so that it hears why that fails.
    If the server takes no more, it waits for one of those that are in use, as if the pool were no larger.

    An interrupt may strike anywhere, so there is no lock here that could be left closed: what is done with lists and queues is done in
    one step. A place that was taken and lost at that very moment is missing from `_every`, which knows of those that still exist.

    `where` names the server in errors.
    """

    def __init__(
        self,
        parameters: dict[str, Any],
        *,
        size: int,
        prepare: bool,
        patience: float,
        where: str = "PostgreSQL",
    ) -> None:
        self._parameters, self._where, self._prepare, self._patience = (
            parameters,
            where,
            prepare,
            patience,
        )
        self._idle: list[PostgresConnection] = []
        self._size = size
        self._every: WeakSet[PoolSlot] = WeakSet()
        self._places: queue.SimpleQueue[PoolSlot] = queue.SimpleQueue()
        self._crowded_until = 0.0
        self._closed = False

    @contextmanager
    def connection(self) -> Iterator[PostgresConnection]:
        """A connection in autocommit mode. After an error of any kind it is not used again."""
        place: PoolSlot | None = None
        deadline = time.monotonic() + self._patience
        try:
            connection: PostgresConnection | None = None
            while connection is None:
                place = self._place(deadline)
                try:
                    connection = self._take() or self._connected()
                except psycopg.Error as error:
                    now = time.monotonic()
                    if not is_crowded(error) or len(self._every) < 2 or now >= deadline:
                        raise self._refusal(error) from None
                    # Others have places. Without ours there are at last as many as connections, and those come back.
                    self._crowded_until, place = now + CROWDED_SECONDS, None
            connection.patience = self._patience
            try:
                yield connection
            except BaseException:
                _give_up(connection)
                raise
            if self._closed or time.monotonic() - connection.born > LIFETIME_SECONDS:
                connection.close()
            else:
                self._put(connection)
        finally:
            if place is not None:
                self._places.put(place)
                place = None  # a traceback may keep this frame

    def _place(self, deadline: float) -> PoolSlot:
        """One that is free, a new one if there are too few, or one that comes back before the deadline."""
        wait = 0.0
        while True:
            try:
                return self._places.get(timeout=wait)
            except queue.Empty:
                pass
            crowded = len(self._every) > 0 and time.monotonic() < self._crowded_until
            if len(self._every) < self._size and not crowded:
                place = PoolSlot()
                self._every.add(place)
                if len(self._every) <= self._size:  # otherwise somebody else had the same idea
                    return place
                del place
            wait = min(deadline - time.monotonic(), 1.0)
            if wait <= 0:
                says = "all connections of this store are in use; raise pool_size in the URL; nothing was written"
                raise Unavailable(f"{self._where}: {_CROWDED if crowded else says}")

    def connect(self) -> PostgresConnection:
        """A new connection, or an error that says why there is none."""
        try:
            return self._connected()
        except psycopg.Error as error:
            raise self._refusal(error) from None

    def _refusal(self, error: psycopg.Error) -> HoldfastError:
        """To be raised without its cause: that may quote the URL, and with it the password."""
        kind, says = _not_connected(
            str(error), error.sqlstate, password="password" in self._parameters
        )
        return kind(f"{self._where}: {says}")

    def _connected(self) -> PostgresConnection:
        connection = PostgresConnection.connect(
            autocommit=True, prepare_threshold=0 if self._prepare else None, **self._parameters
        )
        for dumper in _DUMPERS:
            connection.adapters.register_dumper(dumper.kind, dumper)
        connection.patience, connection.born = self._patience, time.monotonic()
        connection.planned = connection.born
        return connection

    def _put(self, connection: PostgresConnection) -> None:
        self._idle.append(connection)
        if self._closed:  # meanwhile
            self.close()

    def _take(self) -> PostgresConnection | None:
        """The connection that was used last, if the server has not hung up on it meanwhile."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            hung_up = connection.closed or _has_spoken(connection.fileno())
            if not hung_up and self._planned_anew(connection):
                return connection
            connection.close()

    def _planned_anew(self, connection: PostgresConnection) -> bool:
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
        while self._idle:
            try:
                self._idle.pop().close()
            except IndexError:
                pass  # somebody else closes it


def _give_up(connection: PostgresConnection) -> None:
    """Close a connection whose answer nobody waits for. The server would not notice: a statement that waits for a lock looks at no
    socket, so it would wait on, hold one of its few sessions, and be done at some time nobody expects."""
    try:
        active = connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE
        if (
            active and psycopg.capabilities.has_cancel_safe()
        ):  # the old way to cancel may wait for ever
            connection.cancel_safe(timeout=CANCEL_SECONDS)
    except psycopg.Error:
        pass  # it cannot be reached
    finally:
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
        "".join(map(str, found.values())).encode()
    except (psycopg.Error, UnicodeError):
        raise InvalidURL(
            "this is not a URL of PostgreSQL; it looks like postgresql://user:password@host:5432/database"
        ) from None
    found["client_encoding"] = (
        "UTF8"  # whatever the environment or the URL says: our names are any text
    )
    found.setdefault("connect_timeout", "10")
    found.setdefault("application_name", "holdfast")
    found.setdefault("target_session_attrs", "read-write")
    found.setdefault("keepalives_idle", "30")
    found.setdefault("tcp_user_timeout", str(int(timeout * 1000)))
    return found


_CROWDED: Final = (
    "PostgreSQL takes no more connections: the server's max_connections, or the CONNECTION LIMIT of this user or database, "
    "is reached; raise it, or lower pool_size in the URLs; nothing was written"
)
_BY_STATE: Final[dict[str, tuple[type[HoldfastError], str]]] = {
    "28000": (
        AccessDenied,
        "PostgreSQL does not let this user in from here; check the user and pg_hba.conf",
    ),
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
    "42501": (
        AccessDenied,
        "this user may not do that; `holdfast schema` prints the GRANTs that are needed",
    ),
    "25006": (ReadOnly, "this server, database or user takes no writes: it may be a standby"),
    "53100": (StorageFull, "the disk of the PostgreSQL server is full; nothing was written"),
    "53200": (
        Unavailable,
        "PostgreSQL has no memory left for this (SQLSTATE 53200); for tables of many partitions, raise its "
        "max_locks_per_transaction; nothing was written",
    ),
    "53300": (Unavailable, _CROWDED),
    "54000": (TooLarge, "PostgreSQL cannot keep a value of this size; nothing was written"),
    # A row that is there already, or a number that has no next one; columns that are of other types, or not there.
    "23502": (CorruptRecord, "a table has other columns than Holdfast made"),
    "23505": (CorruptRecord, "its tables contradict each other"),
    "22003": (CorruptRecord, "a version in its tables is beyond all that there can be"),
    "42703": (CorruptRecord, "a column that Holdfast made is not there"),
    "42804": (CorruptRecord, "a column has another type than Holdfast gave it"),
    "42883": (CorruptRecord, "a column has another type than Holdfast gave it"),
    "XX001": (CorruptRecord, "PostgreSQL reports damaged data"),
    "XX002": (CorruptRecord, "PostgreSQL reports a damaged index"),
}
_AGAIN: Final = {"40001", "40P01"}
"""Serialization failure and deadlock: rolled back, and may be tried again as a whole."""


def may_be_tried_again(error: psycopg.Error) -> bool:
    return error.sqlstate in _AGAIN


def is_without_place(error: psycopg.Error) -> bool:
    """Whether the driver refused to send a value: a text with a NUL, which no table of PostgreSQL holds."""
    return isinstance(error, psycopg.DataError) and error.sqlstate is None


def is_crowded(error: psycopg.Error) -> bool:
    """Whether the server, the database or the user has as many connections as it may have."""
    return error.sqlstate == "53300" or _says_crowded(str(error))


def translated(error: psycopg.Error, where: str, *, writing: bool = False) -> HoldfastError:
    """The driver's error as ours. Its own text is left out: it may quote a value, or the URL. `where` names the server."""
    state = error.sqlstate
    if is_without_place(error):
        return InvalidId(f"{where}: PostgreSQL keeps no text with a NUL in it; nothing was written")
    if state is None or state == "40003" or (state[:2] in ("08", "57") and state != "57014"):
        # The driver has no public name for the end of its patience.
        late = type(error).__name__ == "_WaitTimeout"
        says = (
            "no answer within the 'timeout' of the URL"
            if late
            else "the connection was lost before the answer came"
        )
        return (OutcomeUnknown if writing else Unavailable)(f"{where}: {says}")
    if state in _BY_STATE:
        kind, says = _BY_STATE[state]
        return (
            CorruptRecord(where, what=says) if kind is CorruptRecord else kind(f"{where}: {says}")
        )
    return Unavailable(
        f"{where}: PostgreSQL refused ({type(error).__name__}, SQLSTATE {state}); nothing was written"
    )


_WRONG: Final = re.compile(
    r'invalid "?(?!integer)(?P<a>[a-z_]+)"? value|for connection option "(?P<b>[a-z_]+)"|bad value for (?P<c>[a-z_]+)'
    r"|invalid (?P<d>port) number|could not match \d+ (?P<e>port) numbers|could not match \d+ (?P<f>host) names"
    r"|definition of (?P<g>service)|could not parse network address"
)
"""What libpq says of an option that it cannot use."""


def _says_crowded(text: str) -> bool:
    return (
        "too many" in text
        or "remaining connection slots" in text
        or "no more connections allowed" in text
    )


def _not_connected(
    text: str, state: str | None, *, password: bool
) -> tuple[type[HoldfastError], str]:
    """What libpq says, in our words; it gives no SQLSTATE. `password`: whether the URL has one."""
    wrong = _WRONG.search(text)
    if wrong is not None:
        name = next((name for name in wrong.groups() if name), "hostaddr")
        return (
            InvalidURL,
            f"the option {name!r} of the URL has a value that cannot be used; correct it",
        )
    if "no password supplied" in text:
        return (
            AccessDenied,
            "PostgreSQL wants a password, and none was given: the URL has none, and neither has PGPASSWORD or the password "
            "file (PGPASSFILE, ~/.pgpass), which are read too",
        )
    if state == "28P01" or "password authentication failed" in text:
        kind, says = _BY_STATE["28P01"]
        whose = (
            ""
            if password
            else ": the URL has none, so it is that of PGPASSWORD or of the password file (PGPASSFILE)"
        )
        return kind, says + whose
    if state in _BY_STATE:
        return _BY_STATE[state]
    if (
        "no pg_hba.conf entry" in text
        or "authentication failed" in text
        or ("role" in text and "not exist" in text)
    ):
        return _BY_STATE["28000"]
    if "database" in text and "does not exist" in text:
        return _BY_STATE["3D000"]
    if "read-only" in text or "not in hot standby" in text:
        return _BY_STATE["25006"]
    if _says_crowded(text):
        return _BY_STATE["53300"]
    if "SSL" in text or "certificate" in text:
        return (
            Unavailable,
            "no secure connection to PostgreSQL could be made; check sslmode and the certificates",
        )
    if "could not translate host name" in text or "resolve host" in text:
        return (
            Unavailable,
            "the host name is not known; check the URL, and write @ : / ? # in a password as %40 %3A %2F %3F %23",
        )
    if "timeout" in text:
        return (
            Unavailable,
            "PostgreSQL did not answer in time; check host and port, and that it can be reached",
        )
    return (
        Unavailable,
        "PostgreSQL cannot be reached; check host and port, and that the server runs",
    )
