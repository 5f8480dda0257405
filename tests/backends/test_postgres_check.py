"""PostgreSQL: whatever is changed in a table by hand is refused, or reported by a check, and what
is derived can be rebuilt."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import holdfast
from helpers.servers import postgres, url_on
from holdfast.backends import HeadFields, SupportsCheck
from holdfast.backends.postgres import PostgresBackend
from holdfast.conformance.build import StreamTracker, all_due, all_heads, ids, must_head, stored
from holdfast.errors import AccessDenied

pytestmark = [pytest.mark.server, pytest.mark.unencrypted("changes what is beside the records")]


class Store:
    """A store with three streams and one that was deleted, and the way around the library."""

    def __init__(self, place: Path, partitions: int) -> None:
        url = url_on("postgres", place)
        self.schema = url.rpartition("schema=")[2]
        self.backend = PostgresBackend(f"{url}&partitions={partitions}", durability="process")
        self.trackers = [StreamTracker(name) for name in ("a", "b", "gone")]
        for tracker in self.trackers:
            fields = HeadFields("open", b"label", "me", 5.0, 9.0)
            tracker.write(self.backend, b"1", b"2", id=b"first", indexed=True, fields=fields)
            tracker.write(self.backend, b"3")
            tracker.write(self.backend, b"4", id=b"second", indexed=True)
        gone = self.trackers.pop().stream
        assert self.backend.delete(gone, expected=must_head(self.backend, gone))
        self.tracker = self.trackers[0]

    def change(self, sql: str) -> None:
        with psycopg.connect(postgres(), autocommit=True) as connection:
            connection.execute(f'SET search_path = "{self.schema}"')  # type: ignore[arg-type]
            assert connection.execute(sql).rowcount != 0  # type: ignore[arg-type]

    def found(self) -> list[tuple[str | None, str, bool]]:
        return [
            (problem.stream.id if problem.stream else None, problem.what, problem.derived)
            for problem in self.backend.check()
        ]


@pytest.fixture(params=[0, 3], ids=["plain", "partitioned"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path, request.param)
    yield store
    store.backend.close()


NUMBER = "(SELECT stream FROM streams WHERE id = 'a')"
GONE = "(SELECT stream FROM streams WHERE id = 'gone')"
REMAINS, DUE, IDS = (
    "it was deleted, but some of its data is left",
    "its due time does not match its fields",
    "its append ids do not match its records",
)
DERIVED = {
    "due": ("UPDATE streams SET due = 6 WHERE id = 'a'", DUE),
    "no due": ("UPDATE streams SET due = NULL WHERE id = 'a'", DUE),
    "an id": (f"UPDATE append_ids SET id = '\\x80' WHERE stream = {NUMBER} AND first = 1", IDS),
    "first of an id": (
        f"UPDATE append_ids SET first = 2 WHERE stream = {NUMBER} AND first = 1",
        IDS,
    ),
    "last of an id": (f"UPDATE append_ids SET last = 3 WHERE stream = {NUMBER} AND first = 1", IDS),
    "an id gone": (f"DELETE FROM append_ids WHERE stream = {NUMBER} AND first = 4", IDS),
    "an id too many": (f"INSERT INTO append_ids VALUES ({NUMBER}, '\\xff', 3, 3)", IDS),
    "an id of no stream": (
        "UPDATE append_ids SET stream = 4711 WHERE stream = " + NUMBER + " AND first = 4",
        IDS,
    ),
}


@pytest.mark.parametrize("name", DERIVED)
def test_what_is_derived_is_reported_and_rebuilt(store: Store, name: str) -> None:
    assert isinstance(store.backend, SupportsCheck) and store.found() == []
    change, what = DERIVED[name]
    store.change(change)
    assert ("a", what, True) in store.found()
    assert store.backend.rebuild() >= 1
    assert store.found() == [] and store.backend.rebuild() == 0
    assert ids(all_due(store.backend)) == ids(all_heads(store.backend)) == ["a", "b"]
    for chosen, versions in ((b"first", (1, 2)), (b"second", (4, 4))):
        again = store.tracker.next(id=chosen, indexed=True)
        assert stored(store.backend.append([again])) == [(*versions, True)]


def test_records_of_no_stream_and_streams_that_share_records_are_reported(store: Store) -> None:
    store.change(f"UPDATE records SET stream = 4711 WHERE stream = {NUMBER}")
    orphan = "records or append ids have number 4711, which belongs to no stream"
    assert (None, orphan, False) in store.found()
    store.change(
        "UPDATE streams SET stream = (SELECT stream FROM streams WHERE id = 'b') WHERE id = 'a'"
    )
    assert any(stream is None and "same number" in what for stream, what, _ in store.found())


@pytest.mark.parametrize(
    "change",
    [
        f"UPDATE records SET stream = {GONE} WHERE stream = {NUMBER}",
        "UPDATE streams SET alive = false WHERE id = 'a'",
        "UPDATE streams SET alive = false, version = 0, hash = '', incarnation = '' WHERE id = 'a'",
        "UPDATE streams SET owner = 'me' WHERE id = 'gone'",
    ],
)
def test_what_is_left_of_a_deleted_stream_is_reported_and_left_as_it_is(
    store: Store, change: str
) -> None:
    store.change(change)
    before = store.found()
    assert [what for _, what, derived in before if not derived] == [REMAINS]
    store.backend.rebuild()
    assert [what for _, what, derived in store.found() if not derived] == [REMAINS]


def test_an_append_id_of_a_deleted_stream_is_reported_and_removed(store: Store) -> None:
    store.change(f"INSERT INTO append_ids VALUES ({GONE}, '\\xff', 1, 1)")
    assert ("gone", IDS, True) in store.found()
    assert store.backend.rebuild() == 1 and store.found() == []


def test_a_sequence_that_went_back_is_reported_and_rebuilt(store: Store) -> None:
    store.change("SELECT setval('stream_numbers', 1)")
    [(_, what, derived)] = store.found()
    assert "new streams would get numbers from 2 on" in what and derived
    assert store.backend.rebuild() == 1
    assert store.found() == []
    StreamTracker("new").write(store.backend)


def test_a_role_that_only_reads_can_check(store: Store) -> None:
    role = f"watcher_{store.schema}"
    store.change(
        f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {store.schema} TO {role};"
        f" GRANT SELECT ON ALL TABLES IN SCHEMA {store.schema} TO {role}"
    )
    url = postgres().replace("postgres:@", f"{role}:@")
    assert role in url
    watcher = PostgresBackend(f"{url}&schema={store.schema}")
    assert list(watcher.check()) == [] and watcher.list_scopes() == [("tenant", "kind")]
    store.change("UPDATE streams SET due = 6 WHERE id = 'a'")
    assert [problem.what for problem in watcher.check()] == [DUE]
    with pytest.raises(AccessDenied):
        watcher.rebuild()
    watcher.close()


def test_a_stream_under_another_name_is_listed_by_that_name(store: Store) -> None:
    assert store.backend.list_scopes() == [("tenant", "kind")]
    store.change("UPDATE streams SET tenant = 'other', kind = 'ä' WHERE id = 'a'")
    assert store.backend.list_scopes() == [("other", "ä"), ("tenant", "kind")]
    store.change("UPDATE streams SET tenant = '', kind = '', id = '' WHERE id = 'a'")
    store.change("UPDATE streams SET due = 3 WHERE id = ''")
    assert ("", DUE, True) in store.found()


def test_a_check_of_many_streams_goes_page_by_page(store: Store) -> None:
    batch = [StreamTracker(f"s{number:04}") for number in range(1200)]
    for start in range(0, 1200, 200):
        store.backend.append([one.next() for one in batch[start : start + 200]])
    assert store.found() == []
    store.change("UPDATE streams SET due = 1 WHERE id IN ('s0000', 's0150', 's1199')")
    store.change(
        "UPDATE records SET stream = -1"
        " WHERE stream = (SELECT stream FROM streams WHERE id = 's0777')"
    )
    found = [stream for stream, _, _ in store.found()]
    assert found == ["s0000", "s0150", "s1199", None]


def test_a_check_reports_nothing_while_others_write(store: Store) -> None:
    stopped = threading.Event()
    backend, failed = store.backend, list[Exception]()

    def write() -> None:
        try:
            tracker = StreamTracker("busy")
            while not stopped.is_set():
                tracker.write(
                    backend, indexed=True, fields=HeadFields(due_at=float(tracker.version))
                )
                if tracker.version > 20:
                    assert backend.delete(
                        tracker.stream, expected=must_head(backend, tracker.stream)
                    )
                    tracker = StreamTracker("busy")
        except Exception as error:
            failed.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(30):
            assert store.found() == []
    finally:
        stopped.set()
        writer.join()
    assert not failed


def test_verify_reports_it_with_the_stream_and_finds_tenants_by_what_is_stored(
    tmp_path: Path,
) -> None:
    url = url_on("postgres", tmp_path)
    schema = url.rpartition("schema=")[2]
    with holdfast.open(url, tenant="acme") as store:
        store.stream("orders").append(("placed", 1), id="req-1")
        with psycopg.connect(postgres(), autocommit=True) as connection:
            connection.execute(f"DELETE FROM {schema}.append_ids")  # type: ignore[arg-type]
        [problem] = store.verify().problems
        assert (problem.tenant, problem.id, problem.what) == ("acme", "orders", "index")
        with psycopg.connect(postgres(), autocommit=True) as connection:
            connection.execute(f"UPDATE {schema}.streams SET id = 'x' WHERE id = 'acme'")  # type: ignore[arg-type]
        report = store.verify(all_tenants=True)
        assert ("acme", "storage") in [(each.tenant, each.what) for each in report.problems]
        assert report.streams >= 2 and report.records >= 2
