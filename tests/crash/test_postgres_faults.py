"""A real PostgreSQL behind a network that loses answers, and killed with -9 under load: nothing acknowledged is lost, nothing
is stored twice, and whoever writes goes on by itself.

`HOLDFAST_SERVER_KILLS` and `HOLDFAST_SERVER_CUTS` say how often, `HOLDFAST_SEED` repeats a run's draws.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from holdfast._log import Log
from holdfast.backends.postgres import PostgresBackend
from holdfast.errors import OutcomeUnknown, Unavailable
from postgres_server import PostgresServer, running
from proxy import Postgres, Proxy, When

from .postgres_look import Settling, appends, commits, schema_of, stored, times_stored
from .server_kills import CUTS, KILLS, killed_under_load

TIMEOUT = "&timeout=2"


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


@pytest.mark.timeout(120 + CUTS)
@pytest.mark.parametrize("action", ["cut", "cut before"])
def test_every_append_whose_answer_is_cut_off_is_stored_exactly_once(
    action: str, server: PostgresServer, proxy: Proxy, url: str, schema: str
) -> None:
    marks = [f"mark {number}" for number in range(CUTS)]
    last: Counter[str] = Counter()
    with holdfast.open(url) as store:
        for number, mark in enumerate(marks):
            name = f"s{number % 7}"
            proxy.arm(action, when=appends)
            answer = store.stream(name).append(("noted", mark), id=mark if number % 2 else None)
            last[name] += 1
            assert (answer.first, answer.last) == (last[name], last[name])
            assert proxy.did[action] == number + 1, "this append was not cut off"
    assert times_stored(server, schema, marks) == [1] * CUTS
    print(f"{CUTS} of {CUTS} appends exactly once ({action})")


@pytest.mark.timeout(120 + CUTS)
@pytest.mark.parametrize(("action", "when"), [("cut", appends), ("cut before", appends), ("cut before", commits)])
@pytest.mark.parametrize("streams", [3, 8])
def test_every_batch_of_async_appends_whose_answer_is_cut_off_is_stored_exactly_once(
    action: str, when: When, streams: int, server: PostgresServer, proxy: Proxy, url: str, schema: str
) -> None:
    agents, marks = 8, [f"mark {number}" for number in range(CUTS)]

    async def main() -> None:
        async with holdfast.aopen(url) as store:
            for first in range(0, CUTS, agents):
                proxy.arm(action, when=when)
                group = marks[first : first + agents]
                answers = await asyncio.gather(
                    *(
                        store.stream(f"s{number % streams}").append(("noted", mark), id=mark if number % 2 else None)
                        for number, mark in enumerate(group)
                    )
                )
                assert not any(answer.duplicate for answer in answers)
                assert proxy.did[action] == first // agents + 1, "this batch was not cut off"

    asyncio.run(main())
    assert times_stored(server, schema, marks) == [1] * CUTS
    print(f"{CUTS} of {CUTS} appends exactly once ({action}, {proxy.did[action]} batches)")


def test_an_append_that_is_cut_off_again_and_again_is_stored_once(
    server: PostgresServer, proxy: Proxy, url: str, schema: str
) -> None:
    with holdfast.open(url) as store:
        proxy.arm("cut before", when=appends, times=4)
        assert store.stream("s").append(("noted", "mark")).last == 1
    assert proxy.did["cut before"] == 4
    assert times_stored(server, schema, ["mark"]) == [1]


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
def test_an_append_is_on_disk_when_it_is_acknowledged_whatever_the_server_is_set_to(setting: str, schema: str) -> None:
    # The server writes what was committed asynchronously only after a while: ten seconds at most.
    options = {"synchronous_commit": "off"} if setting == "server" else {}
    with running(memory=True, wal_writer_delay="10s", **options) as server:
        if setting == "role":
            server.sql("ALTER ROLE postgres SET synchronous_commit = off")
        server.sql("CREATE TABLE plain (x integer)")
        with holdfast.open(f"{server.url()}&schema={schema}") as store:
            for number in range(1, 6):
                assert store.stream("s").append(("noted", f"mark {number}")).last == number
                server.sql("INSERT INTO plain VALUES (1)")  # what happens to those who do not insist
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
                        *(store.stream(f"s{n % 4}").append(("noted", n), ("noted", n)) for n in range(8))
                    )
                    server.kill()
                    server.start()
                    assert [len(bodies) for bodies in stored(server, schema).values()] == [4 * turn] * 4

        asyncio.run(main())


def test_a_call_whose_answer_never_comes_ends_and_is_settled(
    server: PostgresServer, proxy: Proxy, url: str, schema: str
) -> None:
    with holdfast.open(url + TIMEOUT) as store:
        store.stream("s").append(("noted", "first"))
        proxy.arm("swallow", when=appends)
        answer = store.stream("s").append(("noted", "mark"), id="mark")
        assert proxy.did["swallow"] == 1
        assert (answer.first, answer.last) == (2, 2)
        assert store.stream("s").append(("noted", "mark"), id="mark").duplicate
    assert times_stored(server, schema, ["first", "mark"]) == [1, 1]


@pytest.mark.parametrize("id", ["mark", None])
def test_an_append_that_cannot_be_settled_is_unknown_until_it_is_repeated(
    id: str | None, server: PostgresServer, proxy: Proxy, url: str, schema: str
) -> None:
    with Store(Log(PostgresBackend(url), settle_seconds=0.5), "default") as store:
        store.stream("s").append(("noted", "first"))
        proxy.arm("cut", when=appends)
        proxy.refuse()
        with pytest.raises(OutcomeUnknown) as caught:
            store.stream("s").append(("noted", "mark"), id=id)
        assert proxy.did["cut"] == 1
        proxy.allow()
        again = store.stream("s").append(("noted", "mark"), id=caught.value.id)
        assert again.duplicate and (again.first, again.last) == (2, 2)
        assert store.stream("s").append(("noted", "last")).last == 3
    assert times_stored(server, schema, ["first", "mark", "last"]) == [1, 1, 1]


def test_a_server_that_stands_still_holds_nobody_for_ever_and_is_taken_up_again(schema: str) -> None:
    with running(memory=True) as server, ThreadPoolExecutor() as threads, Settling() as settling:
        url = f"{server.url()}&schema={schema}&timeout=1&connect_timeout=2"
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


def test_a_slow_network_changes_nothing(server: PostgresServer, proxy: Proxy, url: str, schema: str) -> None:
    proxy.delay = 0.02
    with holdfast.open(url) as store:
        for number in range(5):
            store.stream("s").append(("noted", f"mark {number}"))
        assert [event.data for event in store.stream("s").read()] == [f"mark {number}" for number in range(5)]
    assert times_stored(server, schema, [f"mark {number}" for number in range(5)]) == [1] * 5
