"""`store.verify()`: what was changed in a store is found, at its place, on every engine; what is in
order is not complained of."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from helpers.engines.memory_space import MemorySpace
from helpers.servers import postgres, url_on
from helpers.stored.store_copies import LARGE, Meddler, Wrapper, populate
from helpers.stored.tampering import (
    Change,
    Link,
    altered,
    chained,
    cut_out,
    found,
    inserted,
    key,
    links,
    rebuild,
    rehashed,
    replaced,
    store_of,
    swapped,
    truncated,
    written,
)
from holdfast._open import open_backend
from holdfast.admin.verify.chain import MAX_FAULTS, ChainWalk
from holdfast.backends import Append, Head, HeadFields, Record, StreamKey, memory
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.objects.backend import ObjectsBackend
from holdfast.backends.objects.format import root_partition
from holdfast.log import chain
from holdfast.log.head_fields import encode_fields
from holdfast.log.ids import append_id, new_id
from holdfast.types import VerifyResult

pytestmark = pytest.mark.unencrypted(
    "changes stored records, of which encryption leaves nothing to change"
)

DAMAGES: dict[str, tuple[Change, list[tuple[str, int | None, str]]]] = {
    "altered": (altered(3), [("b", 3, "altered")]),
    "altered-first": (altered(1), [("b", 1, "altered")]),
    "altered-newest": (altered(6), [("b", 6, "altered")]),
    "rehashed": (rehashed(3), [("b", 3, "altered")]),
    "replaced": (replaced(3), [("b", 3, "altered")]),
    "swapped": (swapped(3, 4), [("b", 3, "misplaced")]),
    "swapped-far": (swapped(2, 5), [("b", 2, "misplaced"), ("b", 5, "misplaced")]),
    "inserted": (inserted(3), [("b", 3, "inserted")]),
    "inserted-first": (inserted(1), [("b", 1, "inserted")]),
    "appended": (inserted(7), [("b", 7, "altered")]),
    "cut-out": (cut_out(3), [("b", 3, "missing")]),
    "two-cut-out": (cut_out(2, 2), [("b", 2, "missing")]),
    "first-cut-out": (cut_out(1), [("b", 1, "missing")]),
    "two-places": (
        lambda old: altered(5)(altered(2)(old)),
        [("b", 2, "altered"), ("b", 5, "altered")],
    ),
}


@pytest.fixture(params=list(DAMAGES))
def damage(request: pytest.FixtureRequest) -> tuple[Change, list[tuple[str, int | None, str]]]:
    return DAMAGES[request.param]


# -- on every engine -------------------------------------------------------------------------------


@pytest.mark.every_engine
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_store_with_something_of_everything_is_in_order(
    asynchronous: bool, store: holdfast.Store
) -> None:
    populate(store)
    report = (
        asyncio.run(store.aio.verify(all_tenants=True))
        if asynchronous
        else store.verify(all_tenants=True)
    )
    assert report.ok and report.problems == [] and report.found == 0
    assert report.anchored == "unanchored" and "unanchored" in str(report)
    assert (report.streams, report.records) == (23, 44)
    assert report.bytes > 2_500_000


def test_what_was_changed_is_found_at_its_place(url: str) -> None:
    """All damages in one store, a stream for each: an engine with a slow start is started once."""
    source = MemoryBackend()
    for name in DAMAGES:
        for number in range(6):
            store_of(source).stream(name).append(("noted", {"number": number}))
    backend = open_backend(url)
    rebuild(source, backend, {key(name): change for name, (change, _) in DAMAGES.items()})
    with store_of(backend) as store:
        report = store.verify()
    expected = [
        (name, version, what)
        for name, (_, faults) in DAMAGES.items()
        for _, version, what in faults
    ]
    assert sorted(found(report), key=str) == sorted(expected, key=str)
    assert not report.ok and report.found == len(expected)


def test_without_an_anchor_a_tail_that_is_gone_is_not_noticed_and_that_is_said(url: str) -> None:
    backend = open_backend(url)
    rebuild(written(), backend, {key("b"): truncated(4)})
    with store_of(backend) as store:
        report = store.verify()
    assert report.ok
    assert "cannot be detected" in str(report)


# -- in the tables of an engine --------------------------------------------------------------------


class Tables:
    """The tables of a store, for somebody who can write to them. `?` stands for a value."""

    def __init__(self, execute: Callable[[str, Sequence[object]], Any]) -> None:
        self._execute = execute

    def change(self, statement: str, *values: object) -> None:
        number = "(SELECT stream FROM streams WHERE kind = 'stream' AND id = 'b')"
        self._execute(statement.replace("{b}", number), values)


@pytest.fixture(params=["sqlite", "postgres"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Tables]:
    """A store with streams in it, and its tables."""
    url = str(tmp_path / "agents.db") if request.param == "sqlite" else url_on("postgres", tmp_path)
    with holdfast.open(url) as store:
        for name in ("a", "b", "c"):
            for number in range(6):
                store.stream(name).append(("noted", {"number": number}))

    def on_sqlite(statement: str, values: Sequence[object]) -> None:
        connection = sqlite3.connect(url)
        with connection:
            connection.execute(statement, values)
        connection.close()

    def on_postgres(statement: str, values: Sequence[object]) -> None:
        with psycopg.connect(postgres(), autocommit=True) as connection:
            connection.execute(f"SET search_path TO {url.rpartition('schema=')[2]}")
            connection.execute(statement.replace("?", "%s"), values)

    return url, Tables(on_sqlite if request.param == "sqlite" else on_postgres)


def verified(url: str, **options: Any) -> VerifyResult:
    with holdfast.open(url, create=False) as store:
        return store.verify(**options)


def test_in_tables_an_altered_body_is_found(tables: tuple[str, Tables]) -> None:
    tables[1].change(
        "UPDATE records SET body = ? WHERE stream = {b} AND version = 4",
        b'{"id":"x","type":"t","at":0}',
    )
    assert found(verified(tables[0])) == [("b", 4, "altered")]


def test_in_tables_a_gap_is_found(tables: tuple[str, Tables]) -> None:
    tables[1].change("DELETE FROM records WHERE stream = {b} AND version IN (2, 3)")
    [problem] = verified(tables[0]).problems
    assert (problem.id, problem.version, problem.what) == ("b", 2, "missing")
    assert "versions 2 to 3" in problem.details


def test_in_tables_records_of_another_stream_do_not_fit(tables: tuple[str, Tables]) -> None:
    tables[1].change("DELETE FROM records WHERE stream = {b} AND version = 6")
    tables[1].change(
        "INSERT INTO records SELECT {b}, version, append_id, hash, body FROM records WHERE version "
        "= 6 AND stream ="
        " (SELECT stream FROM streams WHERE kind = 'stream' AND id = 'a')"
    )
    assert ("b", 6, "altered") in found(verified(tables[0]))


def test_in_tables_exchanged_streams_are_found(tables: tuple[str, Tables]) -> None:
    tables[1].change("UPDATE streams SET id = 'x' WHERE id = 'a' AND kind = 'stream'")
    assert ("x", 1, "altered") in found(verified(tables[0]))


@pytest.mark.server
def test_on_postgres_a_head_that_does_not_fit_is_found(tmp_path: Path) -> None:
    url = url_on("postgres", tmp_path)
    with holdfast.open(url) as store:
        for name in ("short", "long", "other"):
            for number in range(4):
                store.stream(name).append(("noted", number))
    with psycopg.connect(postgres(), autocommit=True) as connection:
        connection.execute(f"SET search_path TO {url.rpartition('schema=')[2]}")
        connection.execute("UPDATE streams SET version = 6 WHERE id = 'short' AND kind = 'stream'")
        connection.execute("UPDATE streams SET version = 2 WHERE id = 'long' AND kind = 'stream'")
        connection.execute(
            "UPDATE streams SET hash = %s WHERE id = 'other' AND kind = 'stream'", [b"\1" * 32]
        )
    assert [(name, what) for name, _, what in found(verified(url))] == [
        ("long", "head"),
        ("long", "head"),
        ("other", "head"),
        ("short", "missing"),
    ]


def test_in_files_a_flipped_bit_is_found_and_the_rest_is_read(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/agents"
    with holdfast.open(url) as store:
        for name in ("a", "b"):
            for number in range(6):
                store.stream(name).append(("noted", {"number": number}))
    [path] = [
        path
        for path in tmp_path.rglob("*.jsonl")
        if b'["default","stream","b"]' in path.read_bytes()
    ]
    content = path.read_bytes()
    path.write_bytes(content.replace(b'{"number":2}', b'{"number":7}'))
    report = verified(url)
    assert found(report) == [("b", None, "storage"), ("b", 3, "unreadable")]
    assert report.records == 6 + 5 + 1  # all but that one, and that the tenant is there


@pytest.mark.parametrize("left", [b"garbage", None])
def test_on_an_object_store_what_lists_leave_out_is_named(left: bytes | None) -> None:
    space = MemorySpace()
    store = store_of(ObjectsBackend(space))
    for name in ("a", "b", "c") * 3:
        store.stream(name).append(("noted", 1))
    place = root_partition(key("b"))
    [root] = space.objects[place]
    space.objects[place] = {root: (left, 0)} if left else {}
    report = store_of(ObjectsBackend(space)).verify()
    damaged = [("", None, "storage")] if left else []
    assert found(report) == [*damaged, ("b", None, "unreadable")]
    assert report.streams == 3


# -- the chain alone -------------------------------------------------------------------------------

INCARNATION = b"l" * 16


def judged(made: list[Link], *, page: int = 1000) -> ChainWalk:
    """What a walk finds, page by page."""
    walk = ChainWalk(chain.seed(key("s"), INCARNATION))
    records = [
        Record(number, link.append_id, link.hash, link.body) for number, link in enumerate(made, 1)
    ]
    rest: list[Record] = []
    for at in range(0, len(records), page):
        rest += records[at : at + page]
        rest = rest[walk.take(rest, more=at + page < len(records)) :]
    assert not rest
    return walk


BODIES = st.lists(st.binary(max_size=5), min_size=1, max_size=30, unique=True)


@pytest.mark.slow
@given(BODIES, st.data(), st.integers(1, 12))
def test_any_single_record_that_is_changed_is_found_at_its_place(
    bodies: list[bytes], data: st.DataObject, page: int
) -> None:
    made = chained(key("s"), INCARNATION, bodies)
    at = data.draw(st.integers(1, len(made)), "at")
    old_hash, old_body, _ = made[at - 1]
    new_hash = data.draw(st.one_of(st.just(old_hash), st.binary(min_size=32, max_size=32)), "hash")
    new_body = data.draw(st.one_of(st.just(old_body), st.binary(max_size=5)), "body")
    made[at - 1] = Link(new_hash, new_body)
    faults = judged(made, page=page).faults
    if (new_hash, new_body) == (old_hash, old_body):
        assert faults == []
    else:
        assert [(fault.version, fault.what) for fault in faults] == [(at, "altered")]


@given(BODIES, st.data(), st.integers(1, 12))
def test_a_record_that_is_replaced_with_the_right_hash_breaks_the_chain_after_it(
    bodies: list[bytes], data: st.DataObject, page: int
) -> None:
    """Nobody can tell whether that record was replaced, or the next one altered: the place is where
    the chain breaks."""
    made = chained(key("s"), INCARNATION, bodies)
    at = data.draw(st.integers(1, len(made)), "at")
    forged = chained(key("s"), INCARNATION, [*bodies[: at - 1], b"forged"])
    made[at - 1] = forged[-1]
    faults = judged(made, page=page).faults
    assert [(fault.version, fault.what) for fault in faults] == [(at + 1, "altered")] * (
        at < len(made)
    )


@pytest.mark.slow
@given(BODIES.filter(lambda bodies: len(bodies) > 1), st.data(), st.integers(1, 12))
def test_any_two_records_that_change_places_are_found(
    bodies: list[bytes], data: st.DataObject, page: int
) -> None:
    made = chained(key("s"), INCARNATION, bodies)
    places = data.draw(st.sets(st.integers(1, len(made)), min_size=2, max_size=2), "places")
    one, other = sorted(places)
    faults = judged(swapped(one, other)(made), page=page).faults
    assert faults[0].version == one
    if page > len(made):
        expected = (
            [(one, "misplaced")] if other == one + 1 else [(one, "misplaced"), (other, "misplaced")]
        )
        assert [(fault.version, fault.what) for fault in faults] == expected


@given(BODIES, st.data(), st.integers(1, 12))
def test_what_is_put_in_or_cut_out_is_found_and_what_follows_is_not_blamed(
    bodies: list[bytes], data: st.DataObject, page: int
) -> None:
    made = chained(key("s"), INCARNATION, bodies)
    at = data.draw(st.integers(1, len(made)), "at")
    put_in = judged([*made[: at - 1], Link(b"\1" * 32, b"forged"), *made[at - 1 :]], page=page)
    assert [(fault.version, fault.what) for fault in put_in.faults] == [(at, "inserted")]
    count = data.draw(st.integers(1, len(made) - at + 1), "count")
    left = cut_out(at, count)(made)
    faults = [(fault.version, fault.what) for fault in judged(left, page=page).faults]
    # Of what is cut off at the end the chain knows nothing, and of a single record that is left
    # nobody can say what it was.
    assert (
        faults == []
        if at > len(left)
        else [(at, "altered")]
        if at == len(left)
        else [(at, "missing")]
    )


def test_a_walk_gives_up_after_a_hundred_faults() -> None:
    made = [Link(b"\1" * 32, str(number).encode()) for number in range(10_000)]
    walk = judged(made)
    assert walk.gave_up and len(walk.faults) == MAX_FAULTS
    assert "the rest of this stream was not checked" in walk.faults[-1].details


@pytest.mark.parametrize("version", [0, -1, 3, 1 << 63, 1 << 70])
def test_a_number_that_no_record_can_have_ends_nothing(version: int) -> None:
    made = chained(key("s"), INCARNATION, [b"1", b"2", b"3", b"4", b"5"])
    records = [
        Record(number, link.append_id, link.hash, link.body) for number, link in enumerate(made, 1)
    ]
    records[3] = msgspec.structs.replace(records[3], version=version)
    walk = ChainWalk(chain.seed(key("s"), INCARNATION))
    assert walk.take(records, more=False) == 5
    assert [fault.what for fault in walk.faults] == ["inserted", "missing"]


# -- what records hold -----------------------------------------------------------------------------


def test_a_record_whose_hash_is_right_and_that_is_no_event_is_found() -> None:
    source = written()
    head = source.head(key("b"))
    assert head is not None

    def garbled(old: list[Link]) -> list[Link]:
        return chained(
            key("b"),
            head.incarnation,
            [*(link.body for link in old[:2]), b"\x80\x04K\x01.", old[3].body],
        )

    target = MemoryBackend()
    rebuild(source, target, {key("b"): garbled})
    assert found(store_of(target).verify()) == [("b", 3, "undecodable")]


def with_values() -> tuple[MemoryBackend, list[StreamKey]]:
    """A stream with a large value, a task with a large result, and one with a file."""
    backend = MemoryBackend()
    store = store_of(backend)
    store.stream("s").append(("small", 1), ("large", LARGE))
    with store.task("t", goal="g") as task:
        task.step("make", lambda: LARGE + "result")
        task.attach("claims.bin", b"claim" * 500_000)
        task.finish("done")
    return backend, [head.stream for head in backend.heads(tenant="default", kind="blob")]


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize("since", [False, True])
def test_a_large_value_or_file_that_is_gone_is_missed_by_what_names_it(
    index: int, since: bool, tmp_path: Path
) -> None:
    backend, values = with_values()
    assert len(values) == 3
    anchor = empty_anchor(tmp_path)
    assert store_of(backend).verify().ok and store_of(backend).verify(since=anchor).ok
    del backend._streams[values[index]]
    report = store_of(backend).verify(since=anchor) if since else store_of(backend).verify()
    assert [problem.what for problem in report.problems] == ["value"]
    assert report.problems[0].kind in ("stream", "task") and report.problems[0].version


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize("since", [False, True])
def test_a_large_value_or_file_that_was_written_anew_with_its_chain_is_found(
    index: int, since: bool, tmp_path: Path
) -> None:
    backend, values = with_values()
    head = backend.head(values[index])
    assert head is not None
    old = [link.body for link in links(backend, head.stream)]
    forged = chained(head.stream, head.incarnation, [*old[:-1], b"\0" + b"y" * (len(old[-1]) - 1)])
    target = MemoryBackend()
    rebuild(backend, target, {head.stream: lambda _: forged})
    anchor = empty_anchor(tmp_path)
    report = store_of(target).verify(since=anchor) if since else store_of(target).verify()
    assert {problem.what for problem in report.problems} == {"value"}


def empty_anchor(place: Path) -> Path:
    """Of a store with nothing in it: everything came after it."""
    path = place / "empty.anchor"
    store_of(MemoryBackend()).anchor(path)
    return path


def test_a_file_that_nobody_has_finished_writing_is_no_damage() -> None:
    backend, values = with_values()
    [file] = [stream for stream in values if "-file-" in stream.id]
    half = file._replace(id=file.id.rpartition("-")[0] + "-" + "0" * 64)
    incarnation = append_id(new_id())
    [link] = chained(half, incarnation, [b"\0" + b"half"])
    fields = encode_fields(chain.seed(half, incarnation), HeadFields())
    backend.append(
        [Append(half, 0, b"", incarnation, link.append_id, [(link.hash, link.body)], fields)]
    )
    assert store_of(backend).verify().ok


# -- heads -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "hash", "what", "at"),
    [(6, b"\1" * 32, "head", 6), (8, None, "missing", 7), (4, None, "head", 4)],
)
def test_a_head_that_does_not_fit_the_newest_record_is_found(
    version: int, hash: bytes | None, what: str, at: int
) -> None:
    backend = written()
    stream = backend._streams[key("b")]
    stream.version, stream.hash = version, hash or stream.records[min(version, 6) - 1].hash
    assert found(store_of(backend).verify()) == [("b", at, what)]


def test_records_without_a_head_are_found() -> None:
    class Headless(Wrapper):
        def head(self, stream: StreamKey) -> Head | None:
            return None if stream.id == "b" else super().head(stream)

    assert found(store_of(Headless(written())).verify()) == [("b", None, "head")]


# -- encrypted -------------------------------------------------------------------------------------

SECRET = bytes(range(32))


def test_an_encrypted_store_is_in_order_and_stays_so_with_a_new_key_and_after_erasure(
    tmp_path: Path,
) -> None:
    backend, anchor = MemoryBackend(), tmp_path / "anchor"
    with holdfast.open(backend, key=SECRET) as store:
        populate(store)
        assert store.verify(all_tenants=True).ok
        store.anchor(anchor, all_tenants=True)
        store.rekey(SECRET[::-1])
        store.erase(store.task("claim-42"))
        for options in ({}, {"anchor": anchor}, {"since": anchor}):
            report = store.verify(all_tenants=True, **options)
            assert report.problems == [] and report.erased == 1
            assert "erased: 1 stream" in str(report)


def test_an_erased_subject_leaves_an_encrypted_store_in_order_by_the_anchor_too(
    tmp_path: Path,
) -> None:
    """The list of what is about a subject goes as a whole, and the audit stream says so."""
    anchor = tmp_path / "anchor"
    with holdfast.open("memory://", key=SECRET) as store:
        store.conversation("chat", subject="person-7").append({"role": "user", "content": "hello"})
        store.memory("notes").remember("likes tea", subject="person-7")
        store.memory("notes").remember("likes coffee", subject="person-8")
        store.anchor(anchor)
        store.erase(subject="person-7")
        for options in ({}, {"anchor": anchor}, {"since": anchor}):
            report = store.verify(**options)
            assert report.problems == []
            assert report.deleted == len(options)


def test_a_list_of_a_subject_that_is_gone_and_was_not_erased_is_missed(tmp_path: Path) -> None:
    backend, anchor = MemoryBackend(), tmp_path / "anchor"
    with holdfast.open(backend, key=SECRET) as store:
        store.conversation("chat", subject="person-7").append({"role": "user", "content": "hello"})
        store.conversation("other", subject="person-8").append({"role": "user", "content": "hello"})
        store.anchor(anchor)
        store.erase(subject="person-8")
        del backend._streams[key("person-7", "subject")]
        assert found(store.verify(anchor)) == [("person-7", None, "stream_missing")]


@pytest.mark.parametrize("label", [b"", b'{"goal":"planted"}', b"\1" * 60])
def test_a_label_that_somebody_without_the_key_wrote_is_found(label: bytes) -> None:
    backend = MemoryBackend()
    with holdfast.open(backend, key=SECRET) as store:
        for name in ("a", "b"):
            with store.task(name, goal="a goal") as task:
                task.step("one", lambda: 1)
        assert store.verify().ok
        kept = backend._streams[key("b", "task")]
        kept.fields = msgspec.structs.replace(kept.fields, label=label)
        assert found(store.verify()) == [("b", None, "head")]


def sealed() -> MemoryBackend:
    backend = MemoryBackend()
    store = holdfast.open(backend, key=SECRET)
    for name in ("a", "b"):
        for number in range(4):
            store.stream(name).append(("noted", number))
    store.stream("b").append(("noted", LARGE))
    return backend


def test_a_copy_of_sealed_records_opens() -> None:
    """So that whatever the following tests find is what they have changed."""
    target = MemoryBackend()
    rebuild(sealed(), target, {})
    assert holdfast.open(target, key=SECRET).verify(all_tenants=True).ok


@pytest.mark.parametrize("planted", ["of another stream", "in clear", "an earlier one", "flipped"])
def test_a_record_that_does_not_open_is_found_even_if_the_chain_was_made_anew(planted: str) -> None:
    source, target = sealed(), MemoryBackend()
    head = source.head(key("b"))
    assert head is not None
    mine, others = ([link.body for link in links(source, key(name))] for name in "ba")
    new = {
        "of another stream": others[2],
        "in clear": b'{"id":"x","type":"noted","at":0,"data":2}',
        "an earlier one": mine[1],
        "flipped": mine[2][:-1] + bytes([mine[2][-1] ^ 1]),
    }[planted]
    ids = [link.append_id for link in links(source, key("b"))]
    forged = chained(key("b"), head.incarnation, [*mine[:2], new, *mine[3:]], ids)
    rebuild(source, target, {key("b"): lambda _: forged})
    with holdfast.open(target, key=SECRET) as store:
        assert found(store.verify()) == [("b", 3, "undecodable")]


def test_an_encrypted_large_value_that_is_gone_or_was_exchanged_is_found() -> None:
    source = sealed()
    [value] = [head.stream for head in source.heads(tenant="default", kind="blob")]
    target = MemoryBackend()
    rebuild(source, target, {value: lambda _: []})
    with holdfast.open(target, key=SECRET) as store:
        assert found(store.verify()) == [("b", 5, "value")]


# -- while others write ----------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pages, so that few records make many of them."""
    monkeypatch.setattr(memory, "PAGE_BYTES", 300)


@pytest.mark.usefixtures("small")
def test_what_is_appended_while_a_stream_is_read_is_left_alone() -> None:
    backend = written()
    other = store_of(backend).stream("b")
    meddler = Meddler(backend, "b", 2, lambda: other.append(("noted", "x" * 500), ("noted", "y")))
    report = store_of(meddler).verify()
    assert meddler.meddled and report.ok


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("after", [0, 2])
def test_a_stream_that_is_deleted_while_it_is_read_is_no_problem(after: int) -> None:
    backend = written()
    meddler = Meddler(backend, "b", after, lambda: store_of(backend).stream("b").delete())
    report = store_of(meddler).verify()
    assert meddler.meddled and report.ok


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("after", [0, 2])
def test_a_stream_that_is_begun_anew_while_it_is_read_is_no_problem(after: int) -> None:
    backend = written()
    stream = store_of(backend).stream("b")

    class After(Meddler):
        """Meddles after the page was read."""

        def read(self, stream: StreamKey, **options: Any) -> Sequence[Record]:  # type: ignore[override]
            page = self.inner.read(stream, **options)
            super().read(stream, **options)
            return page

    def begin_anew() -> None:
        stream.delete()
        stream.append(*[("noted", number) for number in range(9)])

    meddler = After(backend, "b", after, begin_anew)
    report = store_of(meddler).verify()
    assert meddler.meddled and report.ok


def test_an_engine_that_is_away_for_a_moment_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.backends.clock.sleep", lambda seconds: None)
    calls: list[int] = []

    class Away(Wrapper):
        def head(self, stream: StreamKey) -> Head | None:
            calls.append(1)
            if len(calls) % 2 == 0:
                raise holdfast.errors.Unavailable("down")
            return super().head(stream)

    assert store_of(Away(written())).verify().ok
