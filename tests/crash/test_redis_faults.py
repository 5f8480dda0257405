"""A real Redis behind a network that loses answers, killed with -9 under load, full or demoted:
nothing acknowledged is lost without a word, nothing is stored twice or by half.

`HOLDFAST_SERVER_KILLS` and `HOLDFAST_SERVER_CUTS` say how often, `HOLDFAST_SEED` repeats a run's
draws.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

import holdfast
from helpers.engines.network_proxy import Proxy, Redis
from helpers.engines.redis_server import Server
from holdfast.backends.redis import RedisBackend
from holdfast.errors import HeadRegressed, ReadOnly, StorageFull, Unavailable

from .redis_look import appends, stored, times_stored
from .server_faults import Case, LostAnswers
from .server_kills import KILLS, killed_under_load

PREFIX = "faults"
CONTENT = "what the user said "


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "redis")
    yield server
    server.kill()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(("127.0.0.1", server.port), Redis) as proxy:
        yield proxy


@pytest.fixture
def url(proxy: Proxy) -> str:
    """A store whose server is behind the proxy."""
    return f"redis://127.0.0.1:{proxy.port}/0?prefix={PREFIX}"


# -- answers that are lost -------------------------------------------------------------------------


class TestLostAnswers(LostAnswers):
    @pytest.fixture
    def case(self, server: Server, proxy: Proxy, url: str) -> Case:
        return Case(url, proxy, RedisBackend, 0.5, appends, partial(times_stored, server, PREFIX))


def test_an_answer_that_is_slow_but_in_time_is_waited_for(
    server: Server, proxy: Proxy, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with holdfast.open(url, timeout=20) as store, ThreadPoolExecutor() as threads:
        store.stream("s").append(("noted", "first"))
        proxy.arm("hold", when=appends)
        answer = threads.submit(store.stream("s").append, ("noted", "mark"))
        proxy.wait_for("hold")
        # The time is the fault: longer than connecting may take, far less than an answer.
        time.sleep(1.0)
        proxy.release()
        assert answer.result(60).last == 2
    assert "a write failed" not in caplog.text
    assert times_stored(server, PREFIX, ["first", "mark"]) == [1, 1]


def test_connections_that_died_while_nobody_used_them_are_replaced_unnoticed(
    server: Server, proxy: Proxy, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with holdfast.open(url) as store:
        for number in range(1, 6):
            assert store.stream("s").append(("noted", f"mark {number}")).last == number
            proxy.cut_all()
            assert len(list(store.stream("s").read())) == number
            proxy.cut_all()
    assert proxy.did["cut idle"] >= 10
    assert "a write failed" not in caplog.text
    assert times_stored(server, PREFIX, [f"mark {number}" for number in range(1, 6)]) == [1] * 5


def test_scripts_that_are_forgotten_under_load_are_sent_again(server: Server, url: str) -> None:
    async def main() -> None:
        async with holdfast.aopen(url) as store:

            async def write(name: str) -> None:
                for number in range(30):
                    await store.stream(name).append(("noted", f"{name} {number}"))

            async def flush() -> None:
                for _ in range(30):
                    await asyncio.to_thread(server, "SCRIPT", "FLUSH")

            await asyncio.gather(flush(), *(write(f"s{agent}") for agent in range(6)))

    asyncio.run(main())
    assert (
        times_stored(
            server, PREFIX, [f"s{agent} {number}" for agent in range(6) for number in range(30)]
        )
        == [1] * 180
    )


# -- killed and started again ----------------------------------------------------------------------


@pytest.mark.timeout(120 + KILLS * 10)
def test_a_server_that_syncs_always_killed_under_load_loses_nothing_acknowledged(
    server: Server, tmp_path: Path
) -> None:
    url = server.url(f"?prefix={PREFIX}")
    with holdfast.open(url):
        pass
    verdict = killed_under_load(url, tmp_path, server.kill, server.start)
    assert sum(len(records) for records in stored(server, PREFIX).values()) == verdict.stored


def test_a_server_that_syncs_every_second_and_is_killed_loses_nothing_without_a_word(
    tmp_path: Path,
) -> None:
    """The death of the server alone loses nothing that it has written; if it was late with writing,
    the writers are told."""
    seed = os.environ.get("HOLDFAST_SEED") or secrets.token_hex(4)
    chance, lost = random.Random(seed), 0
    server = Server(
        tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "everysec", durable=False
    )
    url = server.url(f"?prefix={PREFIX}")
    try:
        for run in range(KILLS):
            with holdfast.open(url, durability="process") as store:
                acknowledged = [
                    (name, store.stream(name).append(("noted", f"{run} {number}")).last)
                    for number in range(chance.randrange(1, 40))
                    for name in ("a", "b")
                ]
                server.kill()
                server.start()
                names = {name: len(records) for name, records in stored(server, PREFIX).items()}
                gone = [name for name, last in acknowledged if last > names.get(name, 0)]
                lost += len(gone)
                for name in sorted(set(gone)):
                    with pytest.raises(HeadRegressed):
                        store.stream(name).append(("noted", "on top of what was lost"))
                if not gone:
                    assert (
                        store.stream("a").append(("noted", f"after {run}")).last == names["a"] + 1
                    )
    finally:
        server.kill()
    print(
        f"HOLDFAST_SEED={seed}: {KILLS} kills, {lost} acknowledged appends lost, all of them "
        "reported"
    )


def test_a_server_that_stands_still_holds_nobody_for_ever(server: Server) -> None:
    with holdfast.open(server.url(f"?prefix={PREFIX}&timeout=0.5")) as store:
        store.stream("s").append(("noted", "first"))
        server.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(Unavailable):
                list(store.stream("s").read())
            with ThreadPoolExecutor() as threads:
                answer = threads.submit(store.stream("s").append, ("noted", "mark"))
                with pytest.raises(Unavailable):
                    holdfast.open(server.url("?timeout=0.5"))
                server.process.send_signal(signal.SIGCONT)
                try:
                    assert answer.result(60).last == 2
                except Unavailable:
                    store.stream("s").append(("noted", "mark"))
        finally:
            server.process.send_signal(signal.SIGCONT)
    assert times_stored(server, PREFIX, ["first", "mark"]) == [1, 1]


# -- it refuses ------------------------------------------------------------------------------------


def test_a_full_server_takes_whole_appends_or_nothing(server: Server, url: str) -> None:
    """Single appends and batches, until memory is full, with room made again and again."""
    large = "x" * 20_000
    kept: Counter[str] = Counter()
    refused = 0

    async def write(store: holdfast.AsyncStore, name: str) -> None:
        nonlocal refused
        for number in range(25):
            try:
                answer = await store.stream(name).append(
                    ("noted", f"{number}{large}"), ("noted", f"{number}{large}")
                )
            except StorageFull as error:
                assert large not in str(error)
                refused += 1
            else:
                kept[name] += 2
                assert answer.last == kept[name]

    async def main() -> None:
        async with holdfast.aopen(url) as store:
            for _ in range(3):
                used = int(server("INFO", "memory")["used_memory"])
                server("CONFIG", "SET", "maxmemory", used + 2_000_000)
                await asyncio.gather(*(write(store, f"s{agent}") for agent in range(6)))
                assert {
                    name: len(records) for name, records in stored(server, PREFIX).items()
                } == kept
                assert [event.version async for event in store.stream("s0").read()] == list(
                    range(1, kept["s0"] + 1)
                )

    asyncio.run(main())
    assert refused and kept, "it never was full, or always"


def test_a_server_that_became_a_replica_is_read_only_and_goes_on_when_it_is_not(
    server: Server, url: str
) -> None:
    with holdfast.open(url) as store:
        store.stream("s").append(("noted", "first"))
        server("REPLICAOF", "127.0.0.1", "1")
        for name in ("s", "new"):
            with pytest.raises(ReadOnly) as caught:
                store.stream(name).append(("noted", CONTENT))
            assert CONTENT not in str(caught.value)
        assert [event.data for event in store.stream("s").read()] == ["first"]
        server("REPLICAOF", "NO", "ONE")
        assert store.stream("s").append(("noted", "last")).last == 2
    assert times_stored(server, PREFIX, ["first", CONTENT, "last"]) == [1, 0, 1]
