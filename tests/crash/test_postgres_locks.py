"""Streams that somebody has locked, and a client that stops in the middle of what it says: nobody
else is held up by it."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from helpers.engines.postgres_server import PostgresServer, running
from holdfast import AsyncStore, Store
from holdfast.backends import Append, AppendResult, StreamKey
from holdfast.backends.interface import StreamBlocked
from holdfast.backends.postgres import PostgresBackend
from holdfast.errors import HeadRegressed, OutcomeUnknown, Unavailable
from holdfast.log.log import Log

from .postgres_look import schema_of, stored, times_stored


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running(memory=True) as server:
        yield server


@pytest.fixture
def schema(tmp_path: Path) -> str:
    return schema_of(tmp_path)


@pytest.fixture
def url(server: PostgresServer, schema: str) -> str:
    return f"{server.url()}&schema={schema}&application_name={schema}"


def an_append(name: str, body: bytes) -> Append:
    key = StreamKey("default", "stream", name)
    return Append(key, 0, b"", os.urandom(16), os.urandom(16), [(os.urandom(32), body)])


def after(append: Append, body: bytes) -> Append:
    digest = append.records[-1][0]
    return Append(
        append.stream,
        append.expected + 1,
        digest,
        append.incarnation,
        os.urandom(16),
        [(os.urandom(32), body)],
    )


@contextmanager
def locked(server: PostgresServer, schema: str, *names: str) -> Iterator[None]:
    """Somebody has a lock on these streams."""
    with server.connection() as other, other.transaction():
        other.execute(
            f"SELECT FROM {schema}.streams WHERE id = ANY (%s) FOR UPDATE".encode(), [list(names)]
        )
        yield


def wait_for_waiting(server: PostgresServer, schema: str) -> None:
    """Until one of our sessions waits for a lock."""
    waits = f"application_name = '{schema}' AND wait_event_type = 'Lock'"
    server.until(f"SELECT count(*) > 0 FROM pg_stat_activity WHERE {waits}", True)


# -- a client that stops in the middle -------------------------------------------------------------


class Halting:
    """Passes everything on, until it is told after how many more bytes of the client nothing more
    is."""

    def __init__(self, port: int) -> None:
        self._to = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.left: int | None = None
        self.stopped = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._to)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._pump, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, False), daemon=True).start()

    def _pump(self, source: socket.socket, to: socket.socket, upward: bool) -> None:
        try:
            while data := source.recv(65536):
                if upward and self.left is not None:
                    data, self.left = data[: self.left], max(self.left - len(data), 0)
                    to.sendall(data)
                    if not self.left:
                        self.stopped.set()
                else:
                    to.sendall(data)
        except OSError:
            pass  # the other side is gone

    def close(self) -> None:
        self._listener.close()


@pytest.mark.parametrize("bytes_sent", [100, 2_000, 9_000, 30_000, 60_000, 120_000, 150_000])
def test_a_client_that_stops_in_the_middle_of_a_batch_has_locked_nothing(
    bytes_sent: int, server: PostgresServer, schema: str, url: str
) -> None:
    """As one does that is frozen, or whose machine is gone: the server waits for the rest, for two
    hours if need be."""
    halting = Halting(server.port)
    frozen = PostgresBackend(url.replace(str(server.port), str(halting.port), 1), timeout=3600)
    first = [an_append(f"s{number}", b"first") for number in range(8)]
    again = [after(append, b"x" * 20_000) for append in first]
    others = [after(append, b"others") for append in first]
    frozen.append(first)
    frozen.append([an_append(f"warm {number}", b"prepared") for number in range(2)])
    halting.left = bytes_sent
    threading.Thread(target=_given_up, args=(frozen, again), daemon=True).start()
    assert halting.stopped.wait(60)
    session = f"application_name = '{schema}' AND wait_event = 'ClientRead'"
    server.until(f"SELECT count(*) FROM pg_stat_activity WHERE {session}", 1)
    backend = PostgresBackend(url.replace(f"application_name={schema}", "application_name=other"))
    assert [type(answer) for answer in backend.append(others)] == [AppendResult] * 8
    backend.close()
    server.sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {session}")
    halting.close()
    found = stored(server, schema)
    assert [found[f"s{number}"] for number in range(8)] == [[b"first", b"others"]] * 8


def _given_up(backend: PostgresBackend, batch: list[Append]) -> None:
    with pytest.raises(OutcomeUnknown):
        backend.append(batch)


# -- a stream that is locked -----------------------------------------------------------------------


@pytest.mark.timeout(120)
def test_a_locked_stream_holds_up_nobody_else(
    server: PostgresServer, schema: str, url: str
) -> None:
    with (
        Store(Log(PostgresBackend(url), timeout=3600), "default") as store,
        ThreadPoolExecutor() as threads,
    ):
        for name in ("locked", "other"):
            store.stream(name).append(("noted", "first"))
        with locked(server, schema, "locked"):
            waiting = threads.submit(store.stream("locked").append, ("noted", "mark"))
            wait_for_waiting(server, schema)
            for number in range(2, 7):
                assert store.stream("other").append(("noted", number)).last == number
            assert store.stream("new").append(("noted", "made meanwhile")).last == 1
            assert not waiting.done()
        assert waiting.result(60).last == 2
    assert times_stored(server, schema, ["first", "mark", "made meanwhile"]) == [2, 1, 1]


@pytest.mark.timeout(120)
def test_those_who_share_a_batch_with_locked_streams_are_stored_at_once(
    server: PostgresServer, schema: str, url: str
) -> None:
    async def main() -> None:
        async with AsyncStore(Log(PostgresBackend(url), timeout=3600), "default") as store:
            names = [f"s{number}" for number in range(8)]
            await asyncio.gather(*(store.stream(name).append(("noted", "first")) for name in names))
            held = names[2:5]
            with locked(server, schema, *held):
                # Twice each: the second expects what the first leaves.
                appends = {
                    (name, turn): asyncio.ensure_future(
                        store.stream(name).append(("noted", f"{name} {turn}"), id=turn)
                    )
                    for turn in ("one", "two")
                    for name in names
                }
                free = [append for (name, _), append in appends.items() if name not in held]
                assert (
                    sorted(answer.last for answer in await asyncio.gather(*free))
                    == [2] * 5 + [3] * 5
                )
                assert not any(
                    appends[name, turn].done() for name in held for turn in ("one", "two")
                )
            assert {name: (await appends[name, "two"]).last for name in held} == dict.fromkeys(
                held, 3
            )

    asyncio.run(main())
    marks = [f"s{number} {turn}" for number in range(8) for turn in ("one", "two")]
    assert times_stored(server, schema, marks) == [1] * 16


def test_a_stream_that_stays_locked_is_unavailable_and_nothing_was_written(
    server: PostgresServer, schema: str, url: str
) -> None:
    with Store(Log(PostgresBackend(url), timeout=2), "default") as store:
        store.stream("s").append(("noted", "first"))
        with locked(server, schema, "s"), pytest.raises(Unavailable, match="locked"):
            store.stream("s").append(("noted", "mark"))
        assert store.stream("s").append(("noted", "last")).last == 2
    assert times_stored(server, schema, ["first", "mark", "last"]) == [1, 0, 1]


def test_a_backend_says_which_of_a_batch_are_locked(
    server: PostgresServer, schema: str, url: str
) -> None:
    backend = PostgresBackend(url)
    first = [an_append(f"s{number}", b"first") for number in range(3)]
    backend.append(first)
    with locked(server, schema, "s1"):
        answers = backend.append([after(append, b"next") for append in first])
        assert [type(answer) for answer in answers] == [AppendResult, StreamBlocked, AppendResult]
        [alone] = backend.append([after(first[1], b"alone")])
        assert isinstance(alone, StreamBlocked)
        assert alone.head is not None and alone.head.version == 1
    [alone] = backend.append([after(first[1], b"alone")])
    assert isinstance(alone, AppendResult)
    backend.close()
    assert stored(server, schema) == {
        "s0": [b"first", b"next"],
        "s1": [b"first", b"alone"],
        "s2": [b"first", b"next"],
    }


def test_what_is_left_out_of_a_batch_for_another_reason_is_not_taken_for_locked(
    server: PostgresServer, schema: str, url: str
) -> None:
    """Two that follow each other are one to the statement, and the id of the second is known."""
    backend = PostgresBackend(url)
    [first] = batch = [replace(an_append("s", b"first"), id=b"\xffknown")]
    backend.append(batch)
    second = after(first, b"second")
    third = replace(after(second, b"third"), id=b"\xffknown")
    answers = backend.append(
        [second, third, after(second, b"fourth"), an_append("other", b"other")]
    )
    assert [
        (answer.last, answer.duplicate) for answer in answers if isinstance(answer, AppendResult)
    ] == [(2, False), (1, True), (3, False), (1, False)]
    backend.close()
    assert stored(server, schema) == {"s": [b"first", b"second", b"fourth"], "other": [b"other"]}


@pytest.mark.timeout(120)
def test_an_async_append_that_is_cancelled_while_its_stream_is_locked_ends(
    server: PostgresServer, schema: str, url: str
) -> None:
    async def main() -> None:
        async with AsyncStore(Log(PostgresBackend(url), timeout=3600), "default") as store:
            await store.stream("s").append(("noted", "first"))
            with locked(server, schema, "s"):
                append = asyncio.ensure_future(store.stream("s").append(("noted", "mark")))
                await asyncio.to_thread(wait_for_waiting, server, schema)
                append.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await append
            assert (await store.stream("s").append(("noted", "last"))).last == 2

    asyncio.run(main())
    assert times_stored(server, schema, ["first", "mark", "last"]) == [1, 0, 1]


def test_what_was_given_up_does_not_wait_on_at_the_server(
    server: PostgresServer, schema: str, url: str
) -> None:
    backend = PostgresBackend(url, timeout=2)
    first = an_append("s", b"first")
    backend.append([first])
    with server.connection() as other, other.transaction():
        other.execute(f"LOCK TABLE {schema}.streams IN ACCESS EXCLUSIVE MODE".encode())
        with pytest.raises(OutcomeUnknown):
            backend.append([after(first, b"given up")])
        with pytest.raises(Unavailable):
            backend.head(first.stream)
        # The lock is still there, and so would they be.
        server.until(
            f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{schema}'", 0
        )
    assert stored(server, schema) == {"s": [b"first"]}
    assert isinstance(backend.append([after(first, b"again")])[0], AppendResult)
    backend.close()


@pytest.mark.parametrize(
    "options", ["", "&options=-cdefault_transaction_isolation%3Drepeatable%5C%20read"]
)
def test_batches_that_meet_on_the_same_streams_store_each_append_once(
    options: str, server: PostgresServer, schema: str, url: str
) -> None:
    """Some are to streams that all of them make at the same time."""
    turns, agents, processes = 6, 6, 4

    async def talk(store: AsyncStore, process: int, agent: int) -> None:
        for turn in range(turns):
            mark = f"{process}.{agent}.{turn}"
            await store.stream(f"shared {turn % 3}").append(
                ("noted", mark), id=mark if agent % 2 else None
            )
            await store.stream(f"new {turn} {agent % 3}").append(("noted", mark), ("noted", "more"))

    async def main(process: int) -> None:
        async with holdfast.aopen(url + options) as store:
            await asyncio.gather(*(talk(store, process, agent) for agent in range(agents)))

    holdfast.open(url).close()
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda process: asyncio.run(main(process)), range(processes)))
    marks = [f"{p}.{a}.{t}" for p in range(processes) for a in range(agents) for t in range(turns)]
    assert times_stored(server, schema, marks) == [2] * len(marks)


# -- what the server has lost ----------------------------------------------------------------------


def forget(server: PostgresServer, schema: str, name: str) -> None:
    """As a failover to a standby that was behind, or a restored backup."""
    number = f"(SELECT stream FROM {schema}.streams WHERE id = '{name}')"
    server.sql(
        f"DELETE FROM {schema}.records WHERE stream = {number}",
        f"DELETE FROM {schema}.streams WHERE id = '{name}'",
    )


def add(store: Store, name: str) -> Any:
    return store.stream(name).append(("noted", "next"))


def add_with_others(store: Store, name: str) -> Any:
    """In a batch."""

    async def main() -> list[Any]:
        names = (name, "another", "third")
        return await asyncio.gather(
            *(store.aio.stream(one).append(("noted", "next")) for one in names)
        )

    return asyncio.run(main())[0]


@pytest.mark.parametrize("append", [add, add_with_others])
@pytest.mark.parametrize("made_again", [False, True])
def test_a_stream_that_the_server_has_lost_as_a_whole_does_not_begin_anew(
    append: Callable[[Store, str], Any],
    made_again: bool,
    server: PostgresServer,
    schema: str,
    url: str,
) -> None:
    with holdfast.open(url) as store, holdfast.open(url) as other:
        for number in range(3):
            store.stream("orders").append(("noted", number))
        forget(server, schema, "orders")
        if made_again:
            other.stream("orders").append(("noted", "by another process"))
        for _ in range(2):
            with pytest.raises(HeadRegressed) as caught:
                append(store, "orders")
            assert (caught.value.acknowledged, caught.value.actual) == (3, int(made_again))
        assert len(list(other.stream("orders").read())) == int(made_again)


@pytest.mark.parametrize("append", [add, add_with_others])
@pytest.mark.parametrize("made_again", [False, True])
def test_a_stream_that_was_deleted_may_begin_anew(
    append: Callable[[Store, str], Any],
    made_again: bool,
    server: PostgresServer,
    schema: str,
    url: str,
) -> None:
    with holdfast.open(url) as store, holdfast.open(url) as other:
        for number in range(3):
            store.stream("orders").append(("noted", number))
        other.stream("orders").delete()
        if made_again:
            other.stream("orders").append(("noted", "by another process"))
        assert append(store, "orders").last == 1 + made_again
