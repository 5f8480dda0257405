"""PostgreSQL: connections that are interrupted, a server that is away, URLs and schemas that are in
the way, and sizes."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import psycopg
import pytest

import holdfast
from helpers.servers import postgres as server_url
from helpers.servers import url_on
from holdfast.backends import Append, AppendResult, StreamKey
from holdfast.backends.postgres import PostgresBackend, listen
from holdfast.backends.postgres import append as postgres_append
from holdfast.backends.postgres import backend as postgres
from holdfast.backends.postgres import pool as _postgres_connections
from holdfast.backends.postgres.listen import NotifyListener
from holdfast.backends.postgres.pool import PostgresPool
from holdfast.backends.postgres.query_sql import QueryStatements
from holdfast.backends.postgres.schema import render_schema_script
from holdfast.backends.postgres.url import parse_conninfo


@pytest.fixture
def url(tmp_path: Path) -> str:
    return url_on("postgres", tmp_path)


@pytest.fixture
def schema(url: str) -> str:
    return url.rpartition("schema=")[2]


@pytest.fixture
def admin() -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with psycopg.connect(server_url(), autocommit=True) as connection:
        yield connection


# -- interrupts ------------------------------------------------------------------------------------


class Interrupt(BaseException):
    """As from a signal."""


class Interrupting:
    """Raises at the n-th line of the pool's own code that is reached."""

    def __init__(self, after: int) -> None:
        self._left = after
        self.struck = False

    def __enter__(self) -> Interrupting:
        sys.settrace(self._look)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _look(self, frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_filename != _postgres_connections.__file__:
            return None
        if event == "line" and not self.struck:
            self._left -= 1
            if self._left < 0:
                self.struck = True
                raise Interrupt
        return self._look


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_an_interrupt_anywhere_leaves_the_pool_usable() -> None:
    pool = PostgresPool(parse_conninfo(server_url(), timeout=30), size=1, prepare=True, timeout=1)
    struck, after = True, 0
    while struck:
        with Interrupting(after) as interrupting:
            try:
                with pool.connection() as connection:
                    connection.execute("SELECT 1")
            except Interrupt:
                pass
        with pool.connection() as connection:
            assert connection.execute("SELECT 2").fetchone() == (2,)
        struck, after = interrupting.struck, after + 1
    assert after > 20
    pool.close()


def test_a_place_that_was_lost_is_made_again_and_never_one_too_many() -> None:
    pool = PostgresPool(parse_conninfo(server_url(), timeout=30), size=2, prepare=True, timeout=1)
    for _ in range(5):
        pool._take_slot(0.0)  # an interrupt before it is noted
    with pool.connection(), pool.connection():
        with pytest.raises(holdfast.errors.Unavailable, match="pool_size"), pool.connection():
            pass
    pool.close()


def test_whoever_waits_for_a_connection_gets_the_one_that_comes_back() -> None:
    pool = PostgresPool(parse_conninfo(server_url(), timeout=30), size=1, prepare=True, timeout=30)

    def session() -> object:
        with pool.connection() as connection:
            return connection.info.backend_pid

    with ThreadPoolExecutor() as threads:
        with pool.connection() as connection:
            waiting = [threads.submit(session) for _ in range(3)]
            own = connection.info.backend_pid
        assert {one.result(30) for one in waiting} == {own}
    pool.close()


# -- a server that takes no more -------------------------------------------------------------------


class Asking(PostgresPool):
    """A pool that tells when it asks for a connection."""

    def __init__(self, url: str, timeout: float) -> None:
        super().__init__(parse_conninfo(url, timeout=30), size=4, prepare=True, timeout=timeout)
        self.asks: queue.SimpleQueue[None] = queue.SimpleQueue()

    def _open(self) -> _postgres_connections.PostgresConnection:
        try:
            return super()._open()
        finally:
            self.asks.put(None)


@pytest.fixture
def alone(schema: str, admin: psycopg.Connection[tuple[object, ...]]) -> Iterator[str]:
    """The URL of a role that may have one connection."""
    admin.execute(f"CREATE ROLE {schema}_alone LOGIN CONNECTION LIMIT 1")
    yield server_url().replace("postgresql://postgres:@", f"postgresql://{schema}_alone:@")
    admin.execute(f"DROP ROLE {schema}_alone")


def test_whoever_gets_no_connection_waits_for_one_of_the_pool(alone: str) -> None:
    pool = Asking(alone, timeout=30)

    def session() -> object:
        with pool.connection() as connection:
            return connection.info.backend_pid

    with ThreadPoolExecutor() as threads:
        with pool.connection() as connection:
            own = connection.info.backend_pid
            pool.asks.get(timeout=30)
            waiting = [threads.submit(session) for _ in range(3)]
            pool.asks.get(timeout=30)  # and is refused
        assert {one.result(30) for one in waiting} == {own}
    pool.close()


def test_whoever_gets_no_connection_waits_no_longer_than_for_a_full_pool(alone: str) -> None:
    pool = Asking(alone, timeout=1)
    with pool.connection():
        with (
            pytest.raises(holdfast.errors.Unavailable, match="CONNECTION LIMIT"),
            pool.connection(),
        ):
            pass
    with pool.connection() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    pool.close()


def test_a_pool_without_a_connection_does_not_wait_for_one(alone: str) -> None:
    mine, other = Asking(alone, timeout=3600), Asking(alone, timeout=30)
    with other.connection(), ThreadPoolExecutor() as threads:
        for _ in range(3):
            mine._free_slots.put(mine._take_slot(0.0))  # left by connections that failed

        def session() -> None:
            with mine.connection():
                pass

        for one in [threads.submit(session) for _ in range(3)]:
            with pytest.raises(holdfast.errors.Unavailable, match="CONNECTION LIMIT"):
                one.result(30)
    other.close()


# -- following -------------------------------------------------------------------------------------


class Away:
    """A pool whose server is away."""

    def __init__(self) -> None:
        self.asked: queue.SimpleQueue[None] = queue.SimpleQueue()

    def connect(self) -> Any:
        self.asked.put(None)
        raise holdfast.errors.Unavailable("nobody is there")


def test_a_server_that_is_away_is_not_asked_more_often_because_more_want_to_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listen, "RETRY_SECONDS", 3600)
    away = Away()
    listener = NotifyListener(away, QueryStatements("holdfast"))  # type: ignore[arg-type]
    for number in range(20):
        listener.watch(StreamKey("default", "stream", f"{number}"), lambda: None)
        if not number:
            away.asked.get(timeout=30)
    listener.close()
    assert away.asked.empty()


def test_one_who_fails_at_being_told_keeps_nobody_else_from_it(url: str) -> None:
    told = threading.Event()

    def fail() -> None:
        raise RuntimeError("not ours")

    backend = PostgresBackend(url)
    stream = StreamKey("default", "stream", "s")
    backend.watch(stream, fail)
    backend.watch(stream, told.set)
    assert told.wait(30)  # of what may have been there before
    told.clear()
    backend.append([an_append("s", 10)])
    assert told.wait(30)
    backend.close()


# -- URLs and schemas ------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_the_encoding_of_the_environment_does_not_count(
    url: str, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", encoding)
    for given in (url, f"{url}&client_encoding={encoding}"):
        with holdfast.open(given) as store:
            store.stream("☃").append(("noted", "snow"))
    with holdfast.open(url) as store:
        assert store.stream("☃").version() == 2


def test_a_server_that_is_not_released_yet_is_taken_by_its_number(
    url: str, schema: str, admin: psycopg.Connection[tuple[object, ...]]
) -> None:
    admin.execute(f"CREATE SCHEMA {schema}_beta")
    admin.execute(
        f"CREATE FUNCTION {schema}_beta.current_setting(name text) RETURNS text LANGUAGE sql AS"
        " $$ SELECT CASE name WHEN 'server_version' THEN '19beta1' ELSE "
        "pg_catalog.current_setting(name) END $$"
    )
    with holdfast.open(f"{url}&options=-csearch_path%3D{schema}_beta,pg_catalog") as store:
        assert store.health().engine_version == "19beta1"


@pytest.mark.parametrize("word", ["user", "order"])
def test_a_schema_may_have_a_name_that_sql_has_a_use_for(
    word: str, url: str, schema: str, admin: psycopg.Connection[tuple[object, ...]]
) -> None:
    given = url.replace(f"schema={schema}", f"schema={word}")
    try:
        with holdfast.open(f"{given}&partitions=2") as store:
            store.stream("s").append(("noted", 1))
            with store.task("t") as task:
                assert task.step("one", int, "1") == 1
        admin.execute(f'DROP SCHEMA "{word}" CASCADE')
        admin.execute(render_schema_script(given))
        with holdfast.open(given) as store:
            assert store.stream("s").append(("noted", 1)).last == 1
    finally:
        admin.execute(f'DROP SCHEMA "{word}" CASCADE')


@pytest.mark.parametrize("table", ["records (x integer)", "holdfast (x integer)"])
def test_a_schema_that_something_else_uses_is_refused_for_good(
    table: str, url: str, schema: str, admin: psycopg.Connection[tuple[object, ...]]
) -> None:
    admin.execute(f"CREATE SCHEMA {schema}")
    admin.execute(f"CREATE TABLE {schema}.{table}")
    with pytest.raises(holdfast.errors.UnsupportedVersion, match="another schema"):
        holdfast.open(url)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("sslmode=s3cret", "sslmode"),
        ("connect_timeout=s3cret", "connect_timeout"),
        ("port=s3cret", "port"),
        ("target_session_attrs=s3cret", "target_session_attrs"),
        ("service=s3cret", "service"),
        ("host=one,two&port=1,2,3", "port"),
        ("hostaddr=s3cret", "hostaddr"),
        ("keepalives_idle=s3cret", "keepalives_idle"),
        ("schema=information_schema", "information_schema"),
        ("application_name=\ud800", "postgresql://"),
    ],
)
def test_an_option_that_libpq_cannot_use_is_a_wrong_url(option: str, says: str) -> None:
    host = "" if "host=" in option else "127.0.0.1"
    with pytest.raises(holdfast.errors.InvalidURL, match=says) as caught:
        holdfast.open(f"postgresql://clerk:s3cret@{host}/db?{option}")
    assert "s3cret" not in str(caught.value)


# -- sizes -----------------------------------------------------------------------------------------


def an_append(name: str, size: int) -> Append:
    key = StreamKey("default", "stream", name)
    return Append(
        key, 0, b"", os.urandom(16), os.urandom(16), [(os.urandom(32), bytes(size // 2))] * 2
    )


def test_an_append_that_is_too_large_is_refused_before_it_is_sent(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (postgres, postgres_append):
        monkeypatch.setattr(module, "MAX_APPEND_BYTES", 10_000)
    backend = PostgresBackend(url)
    assert backend.describe().limits == {"append": 10_000}
    for batch in ([an_append("s", 10_002)], [an_append("one", 10), an_append("s", 10_002)]):
        with pytest.raises(holdfast.errors.TooLarge, match="10000"):
            backend.append(batch)
    assert backend.head(StreamKey("default", "stream", "one")) is None
    assert isinstance(backend.append([an_append("s", 10_000)])[0], AppendResult)
    backend.close()


def test_the_answer_to_a_large_append_is_waited_for_longer(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = PostgresBackend(url, timeout=5)
    waited: list[float] = []
    wait = _postgres_connections.PostgresConnection.wait

    def noted(self: Any, *args: Any, **options: Any) -> Any:
        waited.append(self.answer_timeout)
        return wait(self, *args, **options)

    monkeypatch.setattr(_postgres_connections.PostgresConnection, "wait", noted)
    backend.append([an_append("large", 3 * 1024 * 1024), an_append("other", 10)])
    assert max(waited) > 5, "half of the timeout, and a second for each MiB"
    waited.clear()
    backend.append([an_append("small", 10)])
    assert max(waited) < 2.6
    backend.close()


def test_a_batch_that_is_larger_than_one_statement_is_stored(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_append, "STATEMENT_BYTES", 1_000)
    backend = PostgresBackend(url)
    batch = [an_append(f"s{number}", 600) for number in range(5)]
    for _ in range(
        4
    ):  # on one stream: each follows the one before, and two do not fit into one statement
        last = batch[-1]
        place = last.expected + 2, last.records[-1][0], last.incarnation
        batch.append(Append(last.stream, *place, os.urandom(16), an_append("", 600).records))
    answers = backend.append(batch)
    assert [type(answer) for answer in answers] == [AppendResult] * 9
    assert not any(isinstance(answer, AppendResult) and answer.duplicate for answer in answers)
    assert [len(backend.read(append.stream)) for append in batch[:5]] == [2, 2, 2, 2, 10]
    backend.close()
