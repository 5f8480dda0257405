"""Connections to PostgreSQL: a pool, and reading rows with verified types."""

from __future__ import annotations

import queue
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple
from weakref import WeakSet

from ...errors import CorruptRecord, HoldfastError, Unavailable
from .. import deadline
from .arrays import ARRAY_TYPES, BinaryArray
from .errors import SERVER_FULL, is_server_full, psycopg, translate_connect_error

MAX_CONNECTION_AGE: Final = 30 * 60.0
"""After how many seconds to replace a connection: its host name may now lead to another server."""
MAX_PLAN_AGE: Final = 10.0
"""After how many seconds the server plans statements again: a plan made when a table was small may
read the whole table each time."""
CANCEL_SECONDS: Final = 1.0
"""How long to try to cancel a statement after the caller stopped waiting for its answer."""
MIN_ANSWER_SECONDS: Final = 1.0
"""Longer than an append waits on the server for a locked stream, if the deadline allows it."""
SERVER_FULL_PAUSE: Final = 1.0
"""How many seconds to wait for a connection in use before asking a full server for a new one."""


class Columns(NamedTuple):
    """The columns that a statement returns if the tables are as Holdfast created them.

    `types` are the server's type numbers; the first `not_null` columns are never NULL.
    """

    types: tuple[int, ...]
    not_null: int


def _array_dumper(array_type: type[BinaryArray]) -> Any:
    """Return a dumper with which the driver sends an array unchanged."""

    class ArrayDumper(psycopg.adapt.Dumper):
        kind, format, oid = array_type, psycopg.pq.Format.BINARY, array_type.array

        def dump(self, obj: Any) -> Any:
            return obj

    return ArrayDumper


_DUMPERS: Final = [_array_dumper(array_type) for array_type in ARRAY_TYPES]


class PostgresConnection(psycopg.Connection[Any]):
    """A connection that gives up a call if the server is silent for `answer_timeout` seconds."""

    answer_timeout = 30.0
    opened_at = 0.0
    planned_at = 0.0

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        return super().wait(gen, interval, self.answer_timeout if timeout is None else timeout)


def fetch_rows(
    connection: PostgresConnection,
    statement: str,
    values: Sequence[Any] | Mapping[str, Any],
    columns: Columns | None,
    *,
    prepare: bool | None = None,
) -> list[Any]:
    """Run a statement and return its rows; raise `CorruptRecord` if they don't fit `columns`.

    The types are checked before the driver decodes anything: it would build Python objects from any
    content of a column, for example from JSON of any size and depth.
    """
    cursor = connection.execute(statement, values, binary=True, prepare=prepare)
    result = cursor.pgresult
    if columns is None or result is None:
        return cursor.fetchall()
    where = "the store in PostgreSQL"
    if tuple(map(result.ftype, range(result.nfields))) != columns.types:
        raise CorruptRecord(where, what="a column does not have the type that Holdfast gave it")
    rows = cursor.fetchall()
    if any(None in row[: columns.not_null] for row in rows):
        raise CorruptRecord(where, what="a column has a NULL that Holdfast does not allow")
    return rows


class PoolSlot:
    """The permission to use one connection."""


class PostgresPool:
    """A pool of connections. `where` names the server in errors.

    A caller that finds no idle connection opens one itself, so that it gets the error if that
    fails. If the server accepts no more, the caller waits for a connection that is in use, as if
    the pool were smaller.

    An interrupt may happen anywhere, so there is no lock that could stay locked: each operation on
    lists and queues is atomic. If an interrupt loses a slot, the weak set `_slots` forgets it, and
    the pool may create another one.
    """

    def __init__(
        self,
        parameters: dict[str, Any],
        *,
        size: int,
        prepare: bool,
        timeout: float,
        where: str = "PostgreSQL",
    ) -> None:
        self._parameters, self._where = parameters, where
        self._prepare, self._timeout = prepare, timeout
        self._idle: list[PostgresConnection] = []
        self._size = size
        self._slots: WeakSet[PoolSlot] = WeakSet()
        self._free_slots: queue.SimpleQueue[PoolSlot] = queue.SimpleQueue()
        self._full_until = 0.0
        self._closed = False

    @contextmanager
    def connection(self) -> Iterator[PostgresConnection]:
        """Yield a connection in autocommit mode; close it after an error of any kind."""
        slot: PoolSlot | None = None
        until = time.monotonic() + deadline.require(self._timeout, self._where)
        try:
            connection: PostgresConnection | None = None
            while connection is None:
                slot = self._take_slot(until)
                try:
                    connection = self._take_idle() or self._open()
                except psycopg.Error as error:
                    now = time.monotonic()
                    if not is_server_full(error) or len(self._slots) < 2 or now >= until:
                        raise self._refusal(error) from None
                    # Give up this slot, so that there are as many slots as connections, and wait
                    # until another caller returns one.
                    self._full_until, slot = now + SERVER_FULL_PAUSE, None
            connection.answer_timeout = self._answer_timeout()
            try:
                yield connection
            except BaseException:
                _cancel_and_close(connection)
                raise
            if self._closed or time.monotonic() - connection.opened_at > MAX_CONNECTION_AGE:
                connection.close()
            else:
                self._put(connection)
        finally:
            if slot is not None:
                self._free_slots.put(slot)
                slot = None  # a traceback may keep this frame

    def _answer_timeout(self) -> float:
        return deadline.split(self._timeout, least=MIN_ANSWER_SECONDS)

    def _take_slot(self, until: float) -> PoolSlot:
        """Return a free slot, a new one, or one that another caller returns before `until`."""
        wait = 0.0
        while True:
            try:
                return self._free_slots.get(timeout=wait)
            except queue.Empty:
                pass
            full = len(self._slots) > 0 and time.monotonic() < self._full_until
            if len(self._slots) < self._size and not full:
                slot = PoolSlot()
                self._slots.add(slot)
                if len(self._slots) <= self._size:  # otherwise another thread added one too
                    return slot
                del slot
            wait = min(until - time.monotonic(), 1.0)
            if wait <= 0:
                in_use = (
                    "all connections of this store are in use; nothing was written. "
                    "Raise pool_size in the URL"
                )
                raise Unavailable(f"{self._where}: {SERVER_FULL if full else in_use}")

    def connect(self) -> PostgresConnection:
        """Open a connection that is not part of the pool."""
        try:
            return self._open()
        except psycopg.Error as error:
            raise self._refusal(error) from None

    def _refusal(self, error: psycopg.Error) -> HoldfastError:
        password = "password" in self._parameters
        return translate_connect_error(error, self._where, password=password)

    def _open(self) -> PostgresConnection:
        parameters = dict(self._parameters)
        left = int(deadline.require(self._timeout, self._where))
        # libpq takes whole seconds, at least 2.
        parameters["connect_timeout"] = max(2, min(left, parameters["connect_timeout"]))
        connection = PostgresConnection.connect(
            autocommit=True, prepare_threshold=0 if self._prepare else None, **parameters
        )
        for dumper in _DUMPERS:
            connection.adapters.register_dumper(dumper.kind, dumper)
        connection.answer_timeout, connection.opened_at = self._answer_timeout(), time.monotonic()
        connection.planned_at = connection.opened_at
        return connection

    def _put(self, connection: PostgresConnection) -> None:
        self._idle.append(connection)
        if self._closed:  # by another thread in the meantime
            self.close()

    def _take_idle(self) -> PostgresConnection | None:
        """Return the idle connection that was used last; close those that the server has ended."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            ended = connection.closed or _has_input(connection.fileno())
            if not ended and self._discard_old_plans(connection):
                return connection
            connection.close()

    def _discard_old_plans(self, connection: PostgresConnection) -> bool:
        """Make the server forget old plans. Return False if the connection is dead."""
        now = time.monotonic()
        if self._prepare and now - connection.planned_at > MAX_PLAN_AGE:
            try:
                connection.execute("DISCARD PLANS", prepare=False)
            except psycopg.Error:
                return False
            connection.planned_at = now
        return True

    def close(self) -> None:
        self._closed = True
        while self._idle:
            try:
                self._idle.pop().close()
            except IndexError:
                pass  # another thread closes it


def _cancel_and_close(connection: PostgresConnection) -> None:
    """Cancel the running statement and close the connection.

    The server would not notice a closed connection: a statement that waits for a lock does not
    read from the socket. It would keep its session, and run at an unexpected time.
    """
    try:
        active = connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE
        if active and psycopg.capabilities.has_cancel_safe():  # the old cancel may wait forever
            connection.cancel_safe(timeout=max(deadline.remaining(CANCEL_SECONDS), 0.05))
    except psycopg.Error:
        pass  # the server is unreachable
    finally:
        connection.close()


def _has_input(socket: int) -> bool:
    """Return whether an idle connection has input, which means that the server ended it."""
    poll = select.poll()  # select() does not support descriptors above 1,023
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(0))
