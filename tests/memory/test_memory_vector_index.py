"""The contract of an index that keeps vectors, on each kind there is."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from helpers.servers import url_on
from holdfast.backends import StreamKey
from holdfast.backends.postgres import PostgresBackend
from holdfast.memory.fold import IndexChanges
from holdfast.memory.model import IndexPosition, MemoryDoc, MemoryFilter
from holdfast.memory.search.index import MemoryIndex
from holdfast.memory.search.postgres import PostgresIndex
from holdfast.memory.search.sqlite import SQLiteIndex

SPACE, OTHER = StreamKey("default", "memory", "ada"), StreamKey("default", "memory", "bob")
INCARNATION, M = b"incarnation 1", "model/2"
NOW = 1_000.0
ALL = MemoryFilter(now=0.0)


@pytest.fixture(params=("memory", "file", "postgres"))
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MemoryIndex]:
    if request.param == "postgres":
        backend = PostgresBackend(url_on("postgres", tmp_path))
        yield PostgresIndex(backend)
        backend.close()
        return
    index = SQLiteIndex(":memory:" if request.param == "memory" else str(tmp_path / "a.db"))
    yield index
    index.close()


def doc(number: int, text: str = "", **more: Any) -> MemoryDoc:
    text = text or f"text {number}"
    return MemoryDoc(
        number,
        f"id-{number}",
        text,
        at=float(number),
        first_at=0.0,
        terms=text.replace(" ", "-"),
        **more,
    )


def write(
    index: MemoryIndex,
    put: list[MemoryDoc],
    gone: Sequence[MemoryDoc] = (),
    space: StreamKey = SPACE,
) -> None:
    before = index.position(space)
    after = IndexPosition(INCARNATION, 1 if before is None else before.version + 1)
    assert index.write(space, before, after, IndexChanges(put, list(gone), {}))


def clear(index: MemoryIndex, space: StreamKey = SPACE) -> None:
    at = index.position(space)
    assert at is not None
    index.clear(space, at)


def kept(index: MemoryIndex, model: str = M, space: StreamKey = SPACE) -> dict[int, bytes]:
    """All vectors there are, read in each of the ways there are, and counted."""
    found, after = {}, 0
    while page := index.vectors(space, model, after, 2).vectors:
        assert [one.place for one in page] == sorted({one.place for one in page})
        assert page[0].place > after
        assert sorted(index.vectors_at(space, model, [one.place for one in page])) == sorted(page)
        found |= {one.number: one.values for one in page}
        after = page[-1].place
    assert index.vectors_of(space, model, [*found, 999]) == found
    assert index.models(space)[1].get(model, 0) == len(found)
    return found


def without(index: MemoryIndex, model: str = M, after: int = 0, limit: int = 100) -> list[int]:
    return [one.number for one in index.without_vector(SPACE, model, after, limit, NOW)]


def test_an_index_that_followed_nothing_has_no_vectors(index: MemoryIndex) -> None:
    index.put_vectors(SPACE, M, [(doc(1), b"aaaa")])
    assert kept(index) == {}
    assert index.models(SPACE) == (0, {})
    assert without(index) == []
    assert list(index.numbers(SPACE, ALL)) == []
    assert list(index.docs(SPACE, [1], ALL)) == []


def test_each_memory_gets_one_vector_of_each_model(index: MemoryIndex) -> None:
    docs = [doc(number) for number in range(1, 6)]
    write(index, docs)
    assert without(index) == [1, 2, 3, 4, 5]
    assert without(index, after=2, limit=2) == [3, 4]
    index.put_vectors(SPACE, M, [(docs[3], b"dddd"), (docs[1], b"bbbb")])
    index.put_vectors(SPACE, M, [(docs[3], b"DDDD"), (docs[4], b"eeee")])
    assert kept(index) == {4: b"dddd", 2: b"bbbb", 5: b"eeee"}, "the first one stays"
    assert without(index) == [1, 3]
    assert without(index, "another/2") == [1, 2, 3, 4, 5]
    assert index.models(SPACE) == (5, {M: 3})


def test_what_has_expired_gets_no_vector(index: MemoryIndex) -> None:
    write(index, [doc(1, expires_at=NOW), doc(2, expires_at=NOW + 1), doc(3)])
    assert without(index) == [2, 3]


def test_a_vector_goes_with_its_memory_and_with_its_text_but_not_with_its_use(
    index: MemoryIndex,
) -> None:
    docs = [doc(number) for number in (1, 2, 3)]
    write(index, docs)
    index.put_vectors(SPACE, M, [(one, b"vvvv") for one in docs])
    index.put_vectors(SPACE, "other/2", [(docs[0], b"oooo")])
    write(index, [msgspec.structs.replace(docs[1], useful=1.0), doc(3, "another text")], [docs[0]])
    assert kept(index) == {2: b"vvvv"}
    assert kept(index, "other/2") == {}
    assert without(index) == [3]


def test_a_vector_of_what_has_changed_meanwhile_is_not_kept(index: MemoryIndex) -> None:
    write(index, [doc(1), doc(2), doc(3)])
    slow = [(one, b"vvvv") for one in index.without_vector(SPACE, M, 0, 10, NOW)]
    write(index, [doc(2, "another text")], [doc(1)])
    index.put_vectors(SPACE, M, slow)
    assert kept(index) == {3: b"vvvv"}
    assert without(index) == [2]


def test_places_are_never_used_twice(index: MemoryIndex) -> None:
    write(index, [doc(1), doc(2)])
    index.put_vectors(SPACE, M, [(doc(1), b"aaaa"), (doc(2), b"bbbb")])
    last = index.vectors(SPACE, M, 0, 10).vectors[-1]
    write(index, [doc(2, "another text")])
    index.put_vectors(SPACE, M, [(doc(2, "another text"), b"cccc")])
    [new] = index.vectors(SPACE, M, last.place, 10).vectors
    assert (new.number, new.values) == (2, b"cccc")
    assert list(index.vectors_at(SPACE, M, [last.place])) == []


def test_two_models_are_kept_the_newest(index: MemoryIndex) -> None:
    write(index, [doc(1)])
    for name in ("a", "b", "a", "c"):
        index.put_vectors(SPACE, name, [(doc(1), name.encode() * 4)])
    assert index.models(SPACE) == (1, {"b": 1, "c": 1})
    assert kept(index, "a") == {}
    assert kept(index, "b") == {1: b"bbbb"}


def test_namespaces_have_vectors_of_their_own(index: MemoryIndex) -> None:
    for space in (SPACE, OTHER):
        write(index, [doc(1), doc(2)], space=space)
        index.put_vectors(space, M, [(doc(1), space.id.encode())])
    assert kept(index) == {1: b"ada"}
    [theirs] = index.vectors(OTHER, M, 0, 10).vectors
    assert list(index.vectors_at(SPACE, M, [theirs.place])) == []
    clear(index, OTHER)
    assert kept(index, space=OTHER) == {}
    assert kept(index) == {1: b"ada"}


def test_a_namespace_that_is_made_anew_is_told_from_the_former_one(index: MemoryIndex) -> None:
    write(index, [doc(1)])
    index.put_vectors(SPACE, M, [(doc(1), b"aaaa")])
    before = index.vectors(SPACE, M, 0, 10).filling
    assert index.vectors(SPACE, M, 99, 10).filling == before, "also of an empty page"
    clear(index)
    write(index, [doc(1)])
    assert kept(index) == {}
    index.put_vectors(SPACE, M, [(doc(1), b"bbbb")])
    assert index.vectors(SPACE, M, 0, 10).filling != before


def test_numbers_and_docs_are_those_that_are_asked_for(index: MemoryIndex) -> None:
    docs = [
        doc(
            number,
            source=f"s{number % 2}",
            tags=("a", f'"{number}\\ä"'),
            author="ann" if number % 3 else "bob",
            subject=(None, "x", "y")[number % 3],
        )
        for number in range(1, 10)
    ]
    docs.append(doc(10, expires_at=5.0))
    write(index, docs)
    for where in (
        ALL,
        MemoryFilter(now=9.0),
        MemoryFilter(now=0.0, source="s1"),
        MemoryFilter(now=0.0, source="s1", since=3.0, until=7.0),
        MemoryFilter(now=0.0, tags=("a",)),
        MemoryFilter(now=0.0, tags=('"4\\ä"', "a")),
        MemoryFilter(now=0.0, tags=("4",)),
        MemoryFilter(now=0.0, author="bob"),
        MemoryFilter(now=0.0, subject="x", author="model"),
        MemoryFilter(now=0.0, visible_to="x"),
        MemoryFilter(now=0.0, visible_to="y", author="ann"),
        MemoryFilter(now=9.0, visible_to=None),
    ):
        wanted = [one for one in docs if where.has(one)]
        assert list(index.numbers(SPACE, where)) == [one.number for one in wanted]
        found = index.docs(SPACE, [2, 3, 4, 10, 77], where)
        assert sorted(found, key=lambda one: one.number) == [
            one for one in wanted if one.number in (2, 3, 4, 10)
        ]


@pytest.mark.server
def test_in_postgresql_a_write_that_waited_for_vectors_is_begun_again(tmp_path: Path) -> None:
    """It could not see them: it would leave the vector of a memory behind that it forgets."""
    url = url_on("postgres", tmp_path)
    backend = PostgresBackend(url)
    index = PostgresIndex(backend)
    write(index, [doc(1)])
    answers: list[bool] = []
    gone = IndexChanges([], [doc(1)], {})

    def forget() -> None:
        answers.append(
            index.write(SPACE, IndexPosition(INCARNATION, 1), IndexPosition(INCARNATION, 2), gone)
        )

    dsn = url.partition("&schema=")[0]
    with psycopg.connect(dsn) as putting, psycopg.connect(dsn, autocommit=True) as watching:
        putting.execute(f"UPDATE {backend.schema}.memory_spaces SET puts = puts + 1")
        writer = threading.Thread(target=forget)
        writer.start()
        while watching.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone() == (
            0,
        ):
            pass
        putting.commit()
        writer.join()
    assert answers == [False]
    assert index.write(SPACE, IndexPosition(INCARNATION, 1), IndexPosition(INCARNATION, 2), gone)
    backend.close()


@pytest.mark.server
def test_in_postgresql_two_who_take_out_the_same_at_the_same_position_count_it_once(
    tmp_path: Path,
) -> None:
    url = url_on("postgres", tmp_path)
    backend = PostgresBackend(url)
    index = PostgresIndex(backend)
    write(index, [doc(1), doc(2)])
    at, answers = IndexPosition(INCARNATION, 1), list[bool]()
    dsn = url.partition("&schema=")[0]
    with psycopg.connect(dsn) as holding, psycopg.connect(dsn, autocommit=True) as watching:
        holding.execute(f"SELECT FROM {backend.schema}.memory_spaces FOR UPDATE")
        writers = [
            threading.Thread(
                target=lambda: answers.append(
                    index.write(SPACE, at, at, IndexChanges([], [doc(1)], {}))
                )
            )
            for _ in range(2)
        ]
        for writer in writers:
            writer.start()
        while watching.execute(
            "SELECT count(*) > 1 FROM pg_locks WHERE NOT granted"
        ).fetchone() != (True,):
            pass
        holding.commit()
        for writer in writers:
            writer.join()
    assert sorted(answers) == [False, True] and index.models(SPACE) == (1, {})
    backend.close()
