"""An index of memories that is damaged, or cannot be written: memories are recalled all the
same."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

import holdfast
from helpers.memory.memory_facts import FACTS, answers, fill, indexed, inner, right_answers
from helpers.stores import url_of
from holdfast.memory.search.sqlite import FORMAT


@pytest.mark.parametrize("damage", ["not a database", "torn", "another program's"])
def test_a_damaged_index_of_its_own_is_made_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    url = url_of("files", tmp_path)
    fill(url)
    expected, path = indexed(url), tmp_path / "agents" / "memory.db"
    size = path.stat().st_size
    if damage == "not a database":
        path.write_bytes(b"\xff" * size)
    elif damage == "torn":
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\x01" * (size - 4096))
    else:
        path.unlink()
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE memory_format (format INTEGER)")
            connection.execute("INSERT INTO memory_format VALUES (?)", (FORMAT,))
            connection.execute("CREATE TABLE memory_spaces (other INTEGER)")
        connection.close()
    assert indexed(url) == expected
    caplog.clear()
    assert indexed(url) == expected and not caplog.records, "it is whole again"
    with holdfast.open(url) as store:
        assert inner(store) == str(path)


@contextmanager
def raw(path: Path) -> Iterator[apsw.Connection]:
    connection = apsw.Connection(str(path))
    yield connection
    connection.close()


def test_damaged_words_in_the_store_s_own_file_are_made_anew(tmp_path: Path) -> None:
    url = url_of("sqlite", tmp_path)
    fill(url)
    expected = indexed(url)
    with raw(tmp_path / "agents.db") as connection:
        connection.execute("UPDATE memory_terms_data SET block = zeroblob(7) WHERE id > 10")
    assert indexed(url) == expected
    with holdfast.open(url) as store:
        assert answers(store) == expected and inner(store) == str(tmp_path / "agents.db")
        assert len(store.memory("m").recall("customer", k=100)) == len(FACTS)


def test_a_damaged_page_in_the_store_s_own_file_is_not_touched_and_memories_are_recalled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, path = url_of("sqlite", tmp_path), tmp_path / "agents.db"
    fill(url)
    expected = indexed(url)
    with raw(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        (root,) = connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'memory_docs'"
        ).fetchall()[0]
    with path.open("r+b") as file:
        file.seek((root - 1) * 4096)
        file.write(b"\x55" * 4096)
    with holdfast.open(url) as store:
        assert answers(store) == expected and inner(store) == ":memory:"
        store.memory("m").remember("Customer Kim ordered 5 lamps")
    assert "is damaged" in caplog.text and "lamps" not in caplog.text
    with path.open("rb") as file:
        file.seek((root - 1) * 4096)
        assert file.read(4096) == b"\x55" * 4096


@pytest.mark.slow
def test_pages_that_the_index_seems_to_share_with_the_store_are_not_freed(tmp_path: Path) -> None:
    url, path = url_of("sqlite", tmp_path), tmp_path / "agents.db"
    fill(url)
    with holdfast.open(url, index="memory") as store:
        for number in range(300):
            store.memory("m").remember(
                f"Customer Max ordered {number} pens {'x' * 200}", source="pens"
            )
    expected = indexed(url)
    with raw(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        roots = dict(connection.execute("SELECT name, rootpage FROM sqlite_schema").fetchall())
    with path.open("r+b") as file:
        file.seek((roots["records"] - 1) * 4096)
        page = file.read(4096)
        file.seek((roots["memory_docs"] - 1) * 4096)
        file.write(page)
    assert indexed(url) == expected == right_answers(url)
    with raw(path) as connection:
        for table in ("records", "streams"):
            assert connection.execute(f"PRAGMA quick_check({table})").fetchall() == [("ok",)]


def test_a_store_that_cannot_be_written_is_recalled_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = url_of("sqlite", tmp_path)
    fill(url)

    def flags(path: str) -> int:
        return apsw.SQLITE_OPEN_READONLY if path != ":memory:" else apsw.SQLITE_OPEN_READWRITE

    monkeypatch.setattr("holdfast.memory.search.sqlite_file._flags", flags)
    with holdfast.open(url) as store:
        assert answers(store) == right_answers(url) and inner(store) == ":memory:"


def test_a_trigger_planted_on_the_index_cannot_reach_the_store_s_own_tables(tmp_path: Path) -> None:
    url = url_of("sqlite", tmp_path)
    fill(url)
    indexed(url)
    with raw(tmp_path / "agents.db") as connection:
        connection.execute(
            "CREATE TRIGGER sneaky AFTER INSERT ON memory_docs BEGIN DELETE FROM records; END"
        )
    with holdfast.open(url) as store:
        store.memory("m").remember("Customer Kim ordered 5 lamps")
        assert [hit.text for hit in store.memory("m").recall("Kim", k=1)] == [
            "Customer Kim ordered 5 lamps"
        ]
        assert store.memory("m").stats().memories == len(FACTS) + 1
    assert [hits[:1] for hits in right_answers(url)] == [hits[:1] for hits in indexed(url)]
