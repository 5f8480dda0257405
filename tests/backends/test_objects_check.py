"""Object stores: an entry, a pointer or a root that is missing, damaged or elsewhere is reported,
and what is derived is stored again. On a space in memory, and on both services."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from helpers.engines.fake_dynamodb import FakeTableSpace
from helpers.engines.memory_space import MemorySpace
from helpers.servers import url_on
from holdfast._open import open_backend
from holdfast.backends import HeadFields, StreamKey, SupportsCheck
from holdfast.backends.objects import format as form
from holdfast.backends.objects.backend import ObjectsBackend
from holdfast.backends.objects.index import all_entry, due_entry, status_entry
from holdfast.conformance.build import (
    StreamTracker,
    all_due,
    all_heads,
    append_id,
    ids,
    key,
    must_head,
    stored,
)

FIELDS = HeadFields("open", b"label", "me", 5.0, 9.0)
FIRST, SECOND, ROOT_ID = (append_id(name, indexed=True) for name in (b"first", b"second", b"root"))


class Store:
    """A store with two streams and one that was deleted, and the way around the library."""

    def __init__(self, backend: ObjectsBackend) -> None:
        self.backend = backend
        self.space: Any = backend._space
        trackers = [StreamTracker(name) for name in ("a", "b", "gone")]
        for tracker in trackers:
            tracker.write(self.backend, b"0", id=b"root", indexed=True)
            tracker.write(self.backend, b"1", b"2", id=b"first", indexed=True, fields=FIELDS)
            tracker.write(self.backend, b"3")
            tracker.write(self.backend, b"4", id=b"second", indexed=True)
        gone = trackers.pop().stream
        assert self.backend.delete(gone, expected=must_head(self.backend, gone))
        self.tracker = trackers[0]
        self.lineage = form.lineage_of(self.tracker.stream, self.tracker.incarnation)

    def found(self) -> list[tuple[str | None, bool]]:
        return [
            (problem.stream.id if problem.stream else None, problem.derived)
            for problem in self.backend.check()
        ]

    def move(self, partition: str, name: bytes, target: str, new_name: bytes) -> None:
        data = self.space.get(partition, name).data
        self.space.remove(partition, [name])
        self.space.put(target, new_name, data)

    def change_byte(self, partition: str, name: bytes, offset: int) -> None:
        data = bytearray(self.space.get(partition, name).data)
        data[offset] ^= 1
        self.space.put(partition, name, bytes(data))


ENGINES = (
    "memory",
    "table",
    pytest.param("dynamodb", marks=pytest.mark.server),
    pytest.param("s3", marks=pytest.mark.server),
)


@pytest.fixture(params=ENGINES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param in ("memory", "table"):
        space = MemorySpace() if request.param == "memory" else FakeTableSpace()
        backend: Any = ObjectsBackend(space, width=0)
    else:
        backend = open_backend(url_on(request.param, tmp_path))
    store = Store(backend)
    yield store
    backend.close()


def remove(store: Store, entry: tuple[str, bytes] | None) -> None:
    assert entry is not None and store.space.get(*entry) is not None
    store.space.remove(entry[0], [entry[1]])


def pointer(store: Store, id: bytes) -> tuple[str, bytes]:
    return form.ids_partition(store.lineage), form.id_name(id)


def commit(store: Store, version: int) -> tuple[str, bytes]:
    return form.commits_partition(store.lineage), form.version_name(version)


def root(store: Store) -> tuple[str, bytes]:
    return form.root_partition(store.tracker.stream), form.ROOT


Change = Callable[[Store], object]
DERIVED: dict[str, Change] = {
    "not listed": lambda s: remove(s, all_entry(key("a"), s.lineage)),
    "no status": lambda s: remove(s, status_entry(key("a"), s.lineage, FIELDS, 2)),
    "no due": lambda s: remove(s, due_entry(key("a"), s.lineage, FIELDS, 2)),
    "no id": lambda s: remove(s, pointer(s, FIRST)),
    "no id of the root": lambda s: remove(s, pointer(s, ROOT_ID)),
    "damaged id": lambda s: s.change_byte(*pointer(s, SECOND), -1),
    "id elsewhere": lambda s: s.move(*pointer(s, SECOND), form.ids_partition(s.lineage), b"x" * 32),
    "exchanged id": lambda s: s.move(*pointer(s, FIRST), *pointer(s, SECOND)),
}
DAMAGES: dict[str, Change] = {
    "damaged root": lambda s: s.change_byte(*root(s), -1),
    "root elsewhere": lambda s: s.move(*root(s), "r/" + "0" * 32, form.ROOT),
    "root under another name": lambda s: s.move(
        *root(s), root(s)[0].replace("r/", "q/"), form.ROOT
    ),
    "no root": lambda s: remove(s, root(s)),
    "commits elsewhere": lambda s: s.move(*commit(s, 2), "c/" + "0" * 32, commit(s, 2)[1]),
    "commits under another name": lambda s: s.move(*commit(s, 2), "b/" + "0" * 32, commit(s, 2)[1]),
}


@pytest.mark.parametrize("name", DERIVED)
def test_what_is_derived_is_reported_and_rebuilt(store: Store, name: str) -> None:
    assert isinstance(store.backend, SupportsCheck) and store.found() == []
    DERIVED[name](store)
    assert store.found() == [("a", True)]
    assert store.backend.rebuild() >= 1
    assert store.found() == [] and store.backend.rebuild() == 0
    assert ids(all_due(store.backend)) == ids(all_heads(store.backend)) == ["a", "b"]
    assert ids(all_heads(store.backend, status="open")) == ["a", "b"]
    for chosen, versions in ((b"root", (1, 1)), (b"first", (2, 3)), (b"second", (5, 5))):
        again = store.tracker.next(id=chosen, indexed=True)
        assert stored(store.backend.append([again])) == [(*versions, True)]


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_lost_is_reported_and_left_as_it_is(store: Store, name: str) -> None:
    DAMAGES[name](store)
    store.backend._streams.forget(store.tracker.stream)
    before = [problem for problem in store.backend.check() if not problem.derived]
    assert before or store.backend.list_damaged("tenant", "kind") == [key("a")]
    store.backend.rebuild()
    assert [problem for problem in store.backend.check() if not problem.derived] == before


def test_objects_of_others_beside_the_streams_are_no_problem(store: Store) -> None:
    store.space.put("notes/2026", b"readme", b"not an object of ours")
    assert store.found() == []


def test_streams_are_found_by_their_roots(store: Store) -> None:
    assert store.backend.list_scopes() == [("tenant", "kind")]
    other = StreamTracker(StreamKey("ä:ö", "k/d", "x:y"))
    other.write(store.backend)
    lineage = form.lineage_of(other.stream, other.incarnation)
    remove(store, all_entry(other.stream, lineage))
    assert store.backend.list_scopes() == [("tenant", "kind"), ("ä:ö", "k/d")]
    assert store.found() == [("x:y", True)]
    assert store.backend.delete(other.stream, expected=must_head(store.backend, other.stream))
    assert store.backend.list_scopes() == [("tenant", "kind")]
    new = StreamTracker(other.stream)
    new.write(store.backend)
    assert store.backend.list_scopes() == [("tenant", "kind"), ("ä:ö", "k/d")]


@pytest.mark.parametrize("change", ["append", "delete", "create"])
@pytest.mark.parametrize("operation", ["get", "list", "scan", "walk"])
@pytest.mark.parametrize("number", range(12))
def test_a_stream_that_changes_during_the_look_is_no_problem(
    operation: str, number: int, change: str
) -> None:
    """Whenever another process appends, deletes or creates."""
    space, left = MemorySpace(), [number]
    store, writer = Store(ObjectsBackend(space, width=0)), ObjectsBackend(space, width=0)

    def meddle(asked: str, partition: str) -> None:
        left[0] -= asked == operation
        if left[0] >= 0:
            return
        space.before = lambda operation, partition: None
        if change == "append":
            fields = HeadFields("done", due_at=7.0)
            store.tracker.write(writer, b"5", indexed=True, fields=fields)
        elif change == "delete":
            stream = store.tracker.stream
            assert writer.delete(stream, expected=must_head(writer, stream))
        else:
            new = StreamTracker("new")
            new.write(writer, b"1", indexed=True)
            new.write(writer, b"2", indexed=True)

    space.before = meddle
    assert store.found() == []


@pytest.mark.server
@pytest.mark.parametrize("engine", ["dynamodb", "s3"])
def test_verify_reports_it_and_finds_tenants_by_what_is_stored(engine: str, tmp_path: Path) -> None:
    with holdfast.open(url_on(engine, tmp_path), tenant="acme") as store:
        store.stream("orders").append(("placed", 1), id="req-1")
        backend: Any = store._log.backend
        head = must_head(backend, StreamKey("acme", "stream", "orders"))
        lineage = form.lineage_of(head.stream, head.incarnation)
        backend._space.remove(*_listed(all_entry(head.stream, lineage)))
        [problem] = store.verify().problems
        assert (problem.tenant, problem.id, problem.what) == ("acme", "orders", "index")
        registration = StreamKey("$system", "tenant", "acme")
        backend._space.remove(form.root_partition(registration), [form.ROOT])
        backend._streams.forget(registration)
        report = store.verify(all_tenants=True)
        assert ("acme", "storage") in [(each.tenant, each.what) for each in report.problems]


def _listed(entry: tuple[str, bytes]) -> tuple[str, list[bytes]]:
    return entry[0], [entry[1]]
