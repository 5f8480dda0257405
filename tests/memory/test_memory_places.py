"""Where the index of memories is: with the data, on this machine, or where one says."""

from __future__ import annotations

import sqlite3
import stat
import threading
from pathlib import Path
from typing import Any, cast

import pytest

import holdfast
from helpers.engines.postgres_pooler import Pooler
from helpers.engines.postgres_server import running
from helpers.memory.memory_facts import QUESTIONS, answers, fill, inner, right_answers
from helpers.servers import url_on
from helpers.stores import url_of
from holdfast.backends import IndexFile, IndexLocation, StreamKey
from holdfast.backends.memory import MemoryBackend
from holdfast.memory.resources import get_follower


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory for the test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "holdfast"


@pytest.mark.server
def test_each_engine_has_its_index_where_the_data_is_or_on_this_machine(
    tmp_path: Path, cache: Path
) -> None:
    files = tmp_path / "agents"
    for name, place in {
        "sqlite": str(tmp_path / "agents.db"),
        "files": str(files / "memory.db"),
        "memory": ":memory:",
    }.items():
        with holdfast.open(url_of(name, tmp_path)) as store:
            store.memory("m").remember("tea")
            assert [hit.text for hit in store.memory("m").recall("tea")] == ["tea"]
            assert inner(store) == place
    with holdfast.open(url_of("postgres", tmp_path)) as store:
        assert inner(store) == "PostgresIndex"
    assert not cache.exists()
    with holdfast.open(url_of("redis", tmp_path)) as store:
        store.memory("m").remember("tea")
        assert Path(inner(store)).parent == cache
    (made,) = cache.glob("*.db")
    assert (
        stat.S_IMODE(made.stat().st_mode) == 0o600 and stat.S_IMODE(cache.stat().st_mode) == 0o700
    )
    assert stat.S_IMODE((files / "memory.db").stat().st_mode) == 0o600
    with holdfast.open(MemoryBackend()) as store:
        assert inner(store) == ":memory:"


def test_a_backend_of_your_own_can_say_where_its_index_is(tmp_path: Path, cache: Path) -> None:
    class Hosting(MemoryBackend):
        places: list[IndexLocation] = ["cache"]

        def index_locations(self) -> list[IndexLocation]:
            return self.places

    backend = Hosting()
    with holdfast.open(backend) as store:
        assert Path(inner(store)).parent == cache
    backend = Hosting()
    backend.places = [
        IndexFile(str(tmp_path / "no folder" / "index.db")),
        IndexFile(str(tmp_path / "index.db")),
    ]
    with holdfast.open(backend) as store:
        store.memory("m").remember("tea")
        assert [hit.text for hit in store.memory("m").recall("tea")] == ["tea"]
        assert inner(store) == str(tmp_path / "index.db"), "the first place cannot be used"


def test_the_index_can_be_elsewhere(tmp_path: Path) -> None:
    url = url_of("sqlite", tmp_path)
    fill(url)
    with holdfast.open(url, index=tmp_path / "elsewhere.db") as store:
        assert inner(store) == str(tmp_path / "elsewhere.db")
        assert answers(store) == right_answers(url)
    with sqlite3.connect(tmp_path / "agents.db") as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    connection.close()
    assert not [name for name in names if name.startswith("memory")], (
        "nothing of it is in the store's own file"
    )


async def _recalled(url: str, index: Path) -> list[str]:
    async with holdfast.aopen(url, index=index) as store:
        return [hit.text for hit in await store.memory("m").recall(QUESTIONS[0], k=4)]


def test_an_async_store_takes_the_same_option(tmp_path: Path) -> None:
    import asyncio

    url = url_of("sqlite", tmp_path)
    fill(url)
    assert asyncio.run(_recalled(url, tmp_path / "elsewhere.db")) == right_answers(url)[0]
    assert (tmp_path / "elsewhere.db").exists()


@pytest.mark.server
@pytest.mark.parametrize("obstacle", ["a file", "open to others"])
def test_without_a_cache_directory_the_index_is_in_memory(
    tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture, obstacle: str
) -> None:
    if obstacle == "a file":
        cache.parent.write_text("not a directory")
    else:
        cache.mkdir(parents=True)
        cache.chmod(0o777)
    with holdfast.open(url_of("redis", tmp_path)) as store:
        for _ in range(3):
            store.memory("m").remember("tea")
            assert len(store.memory("m").recall("tea")) == 1
        assert inner(store) == ":memory:"
    assert (
        len([record for record in caplog.records if "using an index in memory" in record.message])
        == 1
    )


@pytest.mark.server
def test_a_user_who_may_make_no_tables_has_the_index_on_this_machine(
    tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import psycopg

    url = url_on("postgres", tmp_path)
    fill(url)
    schema = url.rpartition("schema=")[2]
    with psycopg.connect(url.rpartition("&schema=")[0], autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {schema}_reader LOGIN".encode())
        admin.execute(f"GRANT USAGE ON SCHEMA {schema} TO {schema}_reader".encode())
        admin.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {schema}_reader".encode())
        admin.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {schema}_reader".encode())
    with holdfast.open(url.replace("postgres:@", f"{schema}_reader:@")) as store:
        assert answers(store) == right_answers(url)
        assert Path(inner(store)).parent == cache
    assert "may not create them" in caplog.text


@pytest.mark.server
def test_a_write_whose_answer_was_lost_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.backends.postgres import PostgresBackend

    url = url_on("postgres", tmp_path)
    fill(url)
    transact, lost = PostgresBackend.transact, []

    def without_answer(self: Any, work: Any) -> Any:
        done = transact(self, work)
        if len(lost) < 3:
            lost.append(work)
            raise holdfast.OutcomeUnknown("the connection was lost")
        return done

    with holdfast.open(url) as store:
        get_follower(store._log, store.memory("m")._key).index.position(store.memory("m")._key)
        monkeypatch.setattr("holdfast.memory.search.catch_up.BATCH_EVENTS", 3)
        monkeypatch.setattr(PostgresBackend, "transact", without_answer)
        assert answers(store) == right_answers(url) and len(lost) == 3


@pytest.mark.server
def test_the_tables_are_made_once_however_many_begin_at_once(tmp_path: Path) -> None:
    from holdfast.backends.postgres import PostgresBackend
    from holdfast.memory.search.postgres import PostgresIndex
    from holdfast.memory.search.postgres_sql import drop_statements

    backends = [PostgresBackend(url_on("postgres", tmp_path)) for _ in range(6)]
    space = StreamKey("default", "memory", "m")
    for _ in range(4):
        start, failed = threading.Barrier(len(backends)), []

        def begin(
            index: PostgresIndex, start: threading.Barrier = start, failed: list[Exception] = failed
        ) -> None:
            start.wait()
            try:
                index.position(space)
            except Exception as error:
                failed.append(error)

        indexes = [PostgresIndex(backend) for backend in backends]
        threads = [threading.Thread(target=begin, args=(index,)) for index in indexes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        drop = drop_statements(indexes[0]._dialect.schema)
        backends[0].transact(lambda connection, drop=drop: connection.execute(drop, prepare=False))
    for backend in backends:
        backend.close()


@pytest.mark.slow
@pytest.mark.server
def test_a_text_with_more_words_than_postgres_can_index_is_kept_and_found_by_its_first_ones(
    tmp_path: Path,
) -> None:
    text = "".join(chr(0x20000 + n % 20_000) + chr(0x20000 + n * 7 % 19_997) for n in range(50_000))
    with holdfast.open(url_on("postgres", tmp_path)) as store:
        assert store.memory("m").stats().memories == 0
        backend, schema = (
            cast("Any", store._log.backend),
            f"{store._log.backend.describe().location}".rpartition("=")[2],
        )
        # long numbers, long lexemes
        later = f"ALTER TABLE {schema}.memory_spaces ALTER COLUMN space RESTART WITH 100000000"
        backend.transact(lambda connection: connection.execute(later))
        store.memory("m").remember(text)
        store.memory("m").remember("short")
        for start in range(0, 40_000, 2_000):
            assert [hit.text for hit in store.memory("m").recall(text[start : start + 2], k=1)] == [
                text
            ]
        assert store.memory("m").stats().memories == 2


@pytest.mark.slow
@pytest.mark.server
def test_the_index_needs_nothing_of_a_session() -> None:
    with running(memory=True) as server, Pooler(server.port) as pooler:
        url = f"{server.url(port=pooler.port)}&prepare=off"
        fill(url)
        with holdfast.open(url) as store:
            assert answers(store) == right_answers(server.url()) and inner(store) == "PostgresIndex"
