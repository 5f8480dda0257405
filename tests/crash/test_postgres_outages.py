"""A PostgreSQL that is down, silent, or ends our sessions, at the oddest moments: the store that is
open goes on by itself, every append is stored once or said not to be."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import holdfast
from helpers.engines.network_proxy import Postgres, Proxy
from helpers.engines.postgres_server import PostgresServer, running
from holdfast.backends import Append, AppendResult, StreamKey, VersionMismatch
from holdfast.backends.postgres import PostgresBackend
from holdfast.errors import OutcomeUnknown, Unavailable

from .postgres_look import Settling, appends, schema_of, stored, times_stored


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running(memory=True) as server:
        yield server


@pytest.fixture
def schema(tmp_path: Path) -> str:
    return schema_of(tmp_path)


@pytest.fixture
def url(server: PostgresServer, schema: str) -> str:
    return f"{server.url()}&schema={schema}"


def test_a_server_that_is_down_is_unavailable_and_is_taken_up_again(schema: str) -> None:
    with running(memory=True) as server:
        url = f"{server.url()}&schema={schema}&connect_timeout=5"
        with holdfast.open(url) as store:
            store.stream("s").append(("noted", "first"))
            for end in (server.stop, server.kill):
                end()
                with pytest.raises(Unavailable):
                    holdfast.open(url)
                with pytest.raises(Unavailable):
                    store.stream("s").append(("noted", "refused"))
                with pytest.raises(Unavailable):
                    list(store.stream("s").read())
                server.start()
                store.stream("s").append(("noted", f"after {end.__name__}"))
        assert times_stored(server, schema, ["first", "refused", "after stop", "after kill"]) == [
            1,
            0,
            1,
            1,
        ]


def test_somebody_who_accepts_and_says_nothing_is_unavailable(server: PostgresServer) -> None:
    with Proxy(("127.0.0.1", server.port), Postgres) as proxy:
        proxy.silent = True
        with pytest.raises(Unavailable):
            holdfast.open(server.url(port=proxy.port) + "&connect_timeout=2")
        assert proxy.did["silence"] >= 1


def test_connections_that_died_while_nobody_used_them_are_replaced_unnoticed(
    server: PostgresServer, schema: str
) -> None:
    with Proxy(("127.0.0.1", server.port), Postgres) as proxy, Settling() as settling:
        with holdfast.open(f"{server.url(port=proxy.port)}&schema={schema}") as store:
            for number in range(1, 6):
                assert store.stream("s").append(("noted", f"mark {number}")).last == number
                proxy.cut_all()
                assert len(list(store.stream("s").read())) == number
                proxy.cut_all()
        assert proxy.did["cut idle"] == 10
        assert not settling.begun.is_set()
    assert times_stored(server, schema, [f"mark {number}" for number in range(1, 6)]) == [1] * 5


def terminated(server: PostgresServer, schema: str) -> int:
    """End the sessions of our store in the server; how many there were."""
    rows = server.sql(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        f" WHERE application_name = 'holdfast' AND query LIKE '%{schema}%'"
    )
    return len(rows)


def test_sessions_that_the_server_ends_while_they_are_idle_are_replaced(
    server: PostgresServer, schema: str, url: str
) -> None:
    with holdfast.open(url) as store:
        for number in range(1, 6):
            assert store.stream("s").append(("noted", f"mark {number}")).last == number
            assert terminated(server, schema) == 1
    assert times_stored(server, schema, [f"mark {number}" for number in range(1, 6)]) == [1] * 5


def waiting_for_a_lock(server: PostgresServer, schema: str) -> bool:
    found = server.sql(
        "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE "
        f"'%{schema}%.records%'"
    )
    return bool(found)


def test_a_session_that_the_server_ends_in_the_middle_of_an_append_stores_it_once(
    server: PostgresServer, schema: str, url: str
) -> None:
    with holdfast.open(url) as store, ThreadPoolExecutor() as threads, server.connection() as other:
        store.stream("s").append(("noted", "first"))
        for number in range(3):
            with other.transaction():
                other.execute(f"SELECT FROM {schema}.streams FOR UPDATE".encode())
                answer = threads.submit(store.stream("s").append, ("noted", f"mark {number}"))
                while not waiting_for_a_lock(server, schema):
                    assert not answer.done()
                assert terminated(server, schema) == 1
            assert answer.result(60).last == number + 2
    assert times_stored(server, schema, ["first", "mark 0", "mark 1", "mark 2"]) == [1] * 4


def test_an_append_that_waits_for_a_lock_longer_than_its_time_is_stored_once(
    server: PostgresServer, schema: str, url: str
) -> None:
    """Not for a lock on its stream, which is another matter: for one on the whole table."""
    with (
        holdfast.open(url + "&timeout=4") as store,
        ThreadPoolExecutor() as threads,
        server.connection() as other,
        Settling() as settling,
    ):
        store.stream("s").append(("noted", "first"))
        with other.transaction():
            other.execute(f"LOCK TABLE {schema}.streams IN ACCESS EXCLUSIVE MODE".encode())
            answer = threads.submit(store.stream("s").append, ("noted", "mark"))
            assert settling.begun.wait(30)
        assert answer.result(60).last == 2
        assert store.stream("s").append(("noted", "last")).last == 3
    assert times_stored(server, schema, ["first", "mark", "last"]) == [1, 1, 1]


def an_append(name: str, body: bytes, *, incarnation: bytes = b"incarnation") -> Append:
    key = StreamKey("default", "stream", name)
    return Append(key, 0, b"", incarnation, os.urandom(16), [(os.urandom(32), body)])


def test_a_batch_that_was_committed_is_never_said_to_be_unwritten(
    server: PostgresServer, schema: str
) -> None:
    """After the commit, a look at a member that was not stored is cancelled: that says nothing of
    those that were."""
    with (
        Proxy(("127.0.0.1", server.port), Postgres) as proxy,
        server.connection() as other,
        ThreadPoolExecutor() as threads,
    ):
        backend = PostgresBackend(f"{server.url(port=proxy.port)}&schema={schema}")
        backend.append([an_append("taken", b"first")])
        proxy.arm("hold", when=appends)
        batch = threads.submit(
            backend.append, [an_append("free", b"stored"), an_append("taken", b"too late")]
        )
        proxy.wait_for("hold")
        with other.transaction():
            other.execute(f"LOCK TABLE {schema}.streams IN ACCESS EXCLUSIVE MODE".encode())
            proxy.release()
            waits = (
                "FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = "
                "'holdfast'"
            )
            while not batch.done() and not server.sql(f"SELECT pg_cancel_backend(pid) {waits}"):
                pass
        try:
            answers = batch.result(60)
        except OutcomeUnknown:
            pass
        else:
            assert isinstance(answers[0], AppendResult) and isinstance(answers[1], VersionMismatch)
        assert stored(server, schema)["free"] == [b"stored"]
        backend.close()


def test_a_program_with_very_many_open_files_can_still_use_its_connections(
    server: PostgresServer, schema: str, url: str
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard >= 1500, (
        "this machine does not let a program open so many files: raise its limit (ulimit -Hn)"
    )
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1500), hard))
    many = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with holdfast.open(url) as store:
            for number in range(1, 4):
                assert store.stream("s").append(("noted", number)).last == number
    finally:
        for file in many:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
