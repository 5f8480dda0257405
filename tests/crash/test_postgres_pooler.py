"""PostgreSQL behind a pooler that gives every transaction another session, as PgBouncer does:
nothing may rest on a session."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest

import holdfast
from helpers.engines.postgres_pooler import Pooler
from helpers.engines.postgres_server import PostgresServer, running
from holdfast.backends import Backend
from holdfast.backends.postgres import PostgresBackend
from holdfast.conformance import DurableBackendConformance

from .postgres_look import schema_of, stored


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    # Commits are made to be lost unless each transaction insists: a SET in another session does not
    # count.
    with running(memory=True, synchronous_commit="off", wal_writer_delay="10s") as server:
        yield server


@pytest.fixture(scope="module")
def pooler(server: PostgresServer) -> Iterator[Pooler]:
    with Pooler(server.port) as pooler:
        yield pooler


def url_through(pooler: Pooler, server: PostgresServer, place: Path) -> str:
    return f"{server.url(port=pooler.port)}&schema={schema_of(place)}&prepare=off"


@pytest.fixture
def url(server: PostgresServer, pooler: Pooler, tmp_path: Path) -> str:
    return url_through(pooler, server, tmp_path)


def test_the_pooler_loses_what_a_session_keeps(server: PostgresServer, pooler: Pooler) -> None:
    """Otherwise the tests here would prove nothing."""
    with psycopg.connect(
        server.url(port=pooler.port), autocommit=True, prepare_threshold=0
    ) as connection:
        connection.execute("SET application_name = 'mine'", prepare=False)
        sessions = [
            connection.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
            for _ in range(4)
        ]
        assert all(one != other for one, other in pairwise(sessions))
        assert connection.execute("SHOW application_name", prepare=False).fetchone() != ("mine",)
        with pytest.raises(psycopg.errors.InvalidSqlStatementName):
            for _ in range(10):
                connection.execute("SELECT %s::int", [1])
    with pytest.raises(psycopg.OperationalError, match="unsupported startup parameter"):
        psycopg.connect(server.url(port=pooler.port) + "&options=-cwork_mem%3D1MB")


class TestThroughThePooler(DurableBackendConformance):
    """The whole contract."""

    model_examples, model_steps = 10, 20

    @pytest.fixture(autouse=True)
    def _servers(self, server: PostgresServer, pooler: Pooler) -> None:
        self._through = pooler, server

    def open_backend(self, place: Path) -> Backend:
        return PostgresBackend(url_through(*self._through, place))


def test_a_conversation_and_a_task_work_through_the_pooler(pooler: Pooler, url: str) -> None:
    before = pooler.did["moves"]
    with holdfast.open(url) as store:
        chat = store.conversation("c")
        for number in range(10):
            chat.append({"role": "user", "content": f"question {number}"})
            chat.append({"role": "assistant", "content": f"answer {number}"})
        done: list[int] = []
        for _ in range(2):
            with store.task("t") as task:
                for number in range(5):
                    task.step(f"step {number}", done.append, number)
        assert done == list(range(5))
    with holdfast.open(url) as store:
        assert [message["content"] for message in store.conversation("c").messages()] == [
            f"{role} {number}" for number in range(10) for role in ("question", "answer")
        ]
    assert pooler.did["moves"] > before + 20


def test_many_agents_share_few_sessions(
    server: PostgresServer, pooler: Pooler, url: str, tmp_path: Path
) -> None:
    async def talk(store: holdfast.AsyncStore, name: str) -> None:
        for number in range(5):
            await store.stream(name).append(("noted", number), id=f"{name} {number}")
            await store.stream("shared").append(("noted", f"{name} {number}"))

    async def main(process: int) -> None:
        async with holdfast.aopen(url) as store:
            await asyncio.gather(*(talk(store, f"{process}.{agent}") for agent in range(8)))

    with holdfast.open(url):
        pass
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda process: asyncio.run(main(process)), range(3)))
    found = stored(server, schema_of(tmp_path))
    assert len(found) == 25 and len(found.pop("shared")) == 120
    assert all(len(bodies) == 5 for bodies in found.values())


def test_what_is_acknowledged_through_the_pooler_is_on_disk(tmp_path: Path) -> None:
    with running(memory=True, synchronous_commit="off", wal_writer_delay="10s") as server:
        for number in range(1, 4):
            with Pooler(server.port) as pooler:
                with holdfast.open(url_through(pooler, server, tmp_path)) as store:
                    for _ in range(number):
                        last = store.stream("s").append(("noted", number)).last
                    server.kill()
            server.start()
            assert len(stored(server, schema_of(tmp_path))["s"]) == last
