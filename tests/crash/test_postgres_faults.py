"""A real PostgreSQL behind a network that loses answers, and killed with -9 under load: nothing
acknowledged is lost, nothing is stored twice, and whoever writes goes on by itself.

`HOLDFAST_SERVER_KILLS` and `HOLDFAST_SERVER_CUTS` say how often, `HOLDFAST_SEED` repeats a run's
draws.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

import holdfast
from helpers.engines.network_proxy import Postgres, Proxy
from helpers.engines.postgres_server import PostgresServer, running
from holdfast.backends.postgres import PostgresBackend
from holdfast.errors import Unavailable

from .postgres_look import Settling, appends, schema_of, stored, times_stored
from .server_faults import Case, LostAnswers
from .server_kills import KILLS, killed_under_load


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running(memory=True) as server:
        yield server


@pytest.fixture
def schema(tmp_path: Path) -> str:
    return schema_of(tmp_path)


@pytest.fixture
def proxy(server: PostgresServer) -> Iterator[Proxy]:
    with Proxy(("127.0.0.1", server.port), Postgres) as proxy:
        yield proxy


@pytest.fixture
def url(server: PostgresServer, proxy: Proxy, schema: str) -> str:
    """A store whose server is behind the proxy."""
    return f"{server.url(port=proxy.port)}&schema={schema}"


class TestLostAnswers(LostAnswers):
    @pytest.fixture
    def case(self, server: PostgresServer, proxy: Proxy, url: str, schema: str) -> Case:
        return Case(
            url, proxy, PostgresBackend, 2.0, appends, partial(times_stored, server, schema)
        )


@pytest.mark.timeout(120 + KILLS * 10)
def test_a_server_killed_under_load_loses_nothing_acknowledged(tmp_path: Path, schema: str) -> None:
    with running(memory=True) as server:
        url = f"{server.url()}&schema={schema}"
        with holdfast.open(url):
            pass  # the tables are there
        verdict = killed_under_load(url, tmp_path, server.kill, server.start)
        assert server.kills == KILLS
        assert server.log().count("automatic recovery in progress") >= KILLS
        assert sum(len(bodies) for bodies in stored(server, schema).values()) == verdict.stored


@pytest.mark.parametrize("setting", ["role", "server"])
def test_an_append_is_on_disk_when_it_is_acknowledged_whatever_the_server_is_set_to(
    setting: str, schema: str
) -> None:
    # The server writes what was committed asynchronously only after a while: ten seconds at most.
    options = {"synchronous_commit": "off"} if setting == "server" else {}
    with running(memory=True, wal_writer_delay="10s", **options) as server:
        if setting == "role":
            server.sql("ALTER ROLE postgres SET synchronous_commit = off")
        server.sql("CREATE TABLE plain (x integer)")
        with holdfast.open(f"{server.url()}&schema={schema}") as store:
            for number in range(1, 6):
                assert store.stream("s").append(("noted", f"mark {number}")).last == number
                server.sql(
                    "INSERT INTO plain VALUES (1)"
                )  # what happens to those who do not insist
                server.kill()
                server.start()
                assert len(stored(server, schema)["s"]) == number
        assert server.sql("SELECT count(*) FROM plain")[0][0] < 5, "the fault never happened"


def test_a_batch_is_on_disk_when_it_is_acknowledged(schema: str) -> None:
    with running(memory=True, wal_writer_delay="10s", synchronous_commit="off") as server:
        url = f"{server.url()}&schema={schema}"

        async def main() -> None:
            async with holdfast.aopen(url) as store:
                for turn in range(1, 4):
                    await asyncio.gather(
                        *(
                            store.stream(f"s{n % 4}").append(("noted", n), ("noted", n))
                            for n in range(8)
                        )
                    )
                    server.kill()
                    server.start()
                    assert [len(bodies) for bodies in stored(server, schema).values()] == [
                        4 * turn
                    ] * 4

        asyncio.run(main())


def test_a_server_that_stands_still_holds_nobody_for_ever_and_is_taken_up_again(
    schema: str,
) -> None:
    with running(memory=True) as server, ThreadPoolExecutor() as threads, Settling() as settling:
        url = f"{server.url()}&schema={schema}&timeout=4&connect_timeout=2"
        with holdfast.open(url) as store:
            store.stream("s").append(("noted", "first"))
            server.freeze()
            try:
                with pytest.raises(Unavailable):
                    list(store.stream("s").read())
                with pytest.raises(Unavailable):
                    holdfast.open(url)
            finally:
                server.thaw()
            store.stream("s").append(("noted", "second"))
            server.freeze()
            try:
                answer = threads.submit(store.stream("s").append, ("noted", "third"))
                assert settling.begun.wait(30)
            finally:
                server.thaw()
            assert answer.result(60).last == 3
        assert times_stored(server, schema, ["first", "second", "third"]) == [1, 1, 1]
