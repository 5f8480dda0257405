"""What SQLite reads and writes: lists from one place, appends nothing but records; and what it says
if records are gone."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast.backends import HeadFields, HeadSummary, VersionMismatch
from holdfast.backends.sqlite import SQLiteBackend
from holdfast.conformance.build import KIND, TENANT, StreamTracker, key
from holdfast.errors import CorruptRecord

STREAMS = 4_000
PAGE = 100
LISTS: dict[str, Callable[[SQLiteBackend], Sequence[HeadSummary]]] = {
    "heads": lambda backend: backend.heads(tenant=TENANT, kind=KIND, after="3", limit=PAGE),
    "heads by status": lambda backend: backend.heads(
        tenant=TENANT, kind=KIND, status="open", after="3", limit=PAGE
    ),
    "heads of a rare status": lambda backend: backend.heads(
        tenant=TENANT, kind=KIND, status="rare", limit=PAGE
    ),
    "due": lambda backend: backend.due(tenant=TENANT, kind=KIND, after=(0.25, ""), limit=PAGE),
}


def digest(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SQLiteBackend]:
    """Streams that were neither made nor fall due in the order of their names; one in forty is
    rare."""
    backend = SQLiteBackend(tmp_path_factory.mktemp("lists") / "agents.db", durability="process")
    for start in range(0, STREAMS, 500):
        batch = []
        for number in range(start, start + 500):
            status = "rare" if number % 40 == 0 else "open" if number % 2 else "done"
            fields = HeadFields(
                status=status, label=b"a label", due_at=int(digest(-number)[:8], 16) / 16**8
            )
            batch.append(StreamTracker(digest(number)[:16]).next(b"x" * 600, fields=fields))
        backend.append(batch)
    yield backend
    backend.close()


@pytest.mark.parametrize("name", LISTS)
def test_a_page_of_a_list_is_read_from_a_few_pages_of_the_file(
    filled: SQLiteBackend, name: str
) -> None:
    filled._idle.clear()  # a new connection, which has read nothing yet
    assert len(LISTS[name](filled)) == PAGE
    [reader] = filled._idle
    read, _ = reader.status(apsw.SQLITE_DBSTATUS_CACHE_MISS)
    assert 1 < read <= 24  # a stream each would be a hundred


def test_an_append_that_changes_no_field_writes_its_records_and_nothing_else(
    tmp_path: Path,
) -> None:
    backend, tracker = SQLiteBackend(tmp_path / "agents.db"), StreamTracker()
    tracker.write(backend, fields=HeadFields(status="open", due_at=1.0))
    assert backend._writer is not None
    before = backend._writer.connection.total_changes()
    tracker.write(backend, b"a", b"b")
    assert backend._writer.connection.total_changes() - before == 2
    backend.close()


def test_a_stream_whose_records_are_gone_is_said_to_be_damaged(tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    with holdfast.open(path) as store:
        for name in ("cut", "whole"):
            store.stream(name).append(("noted", 1))
    with sqlite3.connect(path) as database:
        database.execute(
            "DELETE FROM records WHERE stream = (SELECT stream FROM streams WHERE id = 'cut')"
        )
    database.close()
    with holdfast.open(path) as store:
        with pytest.raises(CorruptRecord, match="no record"):
            store.stream("cut").version()
        with pytest.raises(CorruptRecord, match="no record"):
            store.stream("cut").append(("noted", 2))
        assert [(problem.id, problem.what) for problem in store.verify().problems] == [
            ("cut", "unreadable")
        ]
        assert [info.id for info in store.streams()] == [
            "whole"
        ]  # one that has no version is not in the way of others


def test_a_deleted_stream_leaves_nothing_to_those_that_come_after(tmp_path: Path) -> None:
    backend = SQLiteBackend(tmp_path / "agents.db")
    old = StreamTracker("old")
    first = old.write(backend, b"old", id=b"i" * 16, indexed=True)
    head = backend.head(old.stream)
    assert head is not None and backend.delete(old.stream, expected=head)
    new, other = StreamTracker("new"), StreamTracker("other")
    backend.append(
        [
            new.follow(new.next(b"new", id=first.id, indexed=True)),
            other.follow(other.next(b"other")),
        ]
    )
    new.write(backend, b"more")
    assert [record.body for record in backend.read(key("new"))] == [b"new", b"more"]
    assert [record.body for record in backend.read(key("other"))] == [b"other"]
    assert not list(backend.read(key("old")))
    assert backend.append([first]) == [VersionMismatch(None)]
    backend.close()


def test_nobody_gets_the_number_of_a_stream_whose_records_are_gone(tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    with holdfast.open(path) as store:
        store.stream("cut").append(("noted", 1), id="once")
    with sqlite3.connect(path) as database:
        database.execute(
            "DELETE FROM records WHERE stream = (SELECT stream FROM streams WHERE id = 'cut')"
        )
    database.close()
    with holdfast.open(path) as store:
        store.stream("new").append(("noted", 2), id="once")
        for use in (store.stream("cut").version, lambda: store.stream("cut").append(("noted", 3))):
            with pytest.raises(CorruptRecord, match="no record"):
                use()
        assert store.stream("cut").delete(), "a damaged stream can be deleted"
        assert [event.data for event in store.stream("new").read()] == [2]
