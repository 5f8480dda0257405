"""The files that an index of memories is in: it takes none that is something else, and leaves
nothing in its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from helpers.memory.memory_facts import answers, fill, indexed, inner, right_answers
from helpers.stores import url_of
from holdfast.memory.search.sqlite_file import APPLICATION_ID, TABLES


def done(path: Path, *statements: str) -> list[tuple[Any, ...]]:
    """What the last of these statements gives, on a connection of its own."""
    connection = apsw.Connection(str(path))
    try:
        return [connection.execute(statement).fetchall() for statement in statements][-1]
    finally:
        connection.close()


# -- files of somebody else ------------------------------------------------------------------------


def a_text(path: Path) -> None:
    path.write_text("my only copy " * 1000)


def a_short_text(path: Path) -> None:
    path.write_text("x")


def a_database(path: Path) -> None:
    done(path, "CREATE TABLE notes (text)", "INSERT INTO notes VALUES ('mine')")


def a_marked_database(path: Path) -> None:
    done(path, "PRAGMA application_id = 77")


def a_store(path: Path) -> None:
    holdfast.open(path).close()


@pytest.mark.parametrize("make", [a_text, a_short_text, a_database, a_marked_database, a_store])
def test_a_file_of_something_else_is_refused_as_index_and_stays_as_it_is(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    url, path = url_of("sqlite", tmp_path), tmp_path / "theirs"
    fill(url)
    make(path)
    before = path.read_bytes()

    async def opened() -> None:
        async with holdfast.aopen(url, index=path):
            pass

    with pytest.raises(ValueError, match="which is neither; choose another path"):
        holdfast.open(url, index=path)
    with pytest.raises(ValueError, match="which is neither; choose another path"):
        asyncio.run(opened())
    assert path.read_bytes() == before and sorted(os.listdir(tmp_path)) == ["agents.db", "theirs"]


@pytest.mark.parametrize("link", [False, True])
def test_the_store_s_own_file_is_no_place_for_an_index_of_its_own(
    tmp_path: Path, link: bool
) -> None:
    url, path = url_of("sqlite", tmp_path), tmp_path / "agents.db"
    with pytest.raises(ValueError, match="which is neither"):
        holdfast.open(url, index=path)
    fill(url)
    if link:
        path = tmp_path / "link.db"
        path.symlink_to(tmp_path / "agents.db")
    with pytest.raises(ValueError, match="which is neither"):
        holdfast.open(url, index=path)
    assert indexed(url) == right_answers(url)


def test_a_folder_is_refused_as_index(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a file"):
        holdfast.open(url_of("sqlite", tmp_path), index=tmp_path)


@pytest.mark.parametrize("make", [a_text, a_database])
def test_a_file_that_takes_the_place_of_the_index_while_it_is_in_use_stays_as_it_is(
    tmp_path: Path, make: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    url, path = url_of("sqlite", tmp_path), tmp_path / "index.db"
    fill(url)
    with holdfast.open(url, index=path) as store:
        make(path)
        before = path.read_bytes()
        assert answers(store) == right_answers(url) and inner(store) == ":memory:"
    assert path.read_bytes() == before and "was left unchanged" in caplog.text


@pytest.mark.parametrize("empty", ["no bytes", "no tables"])
def test_an_empty_file_may_become_the_index(tmp_path: Path, empty: str) -> None:
    url, path = url_of("sqlite", tmp_path), tmp_path / "index.db"
    fill(url)
    path.touch()
    if empty == "no tables":
        done(path, "VACUUM")
    with holdfast.open(url, index=path) as store:
        assert answers(store) == right_answers(url) and inner(store) == str(path)
    assert done(path, "PRAGMA application_id") == [(APPLICATION_ID,)]


def test_an_index_of_ours_in_a_given_place_is_mended_as_long_as_it_can_be_told_to_be_ours(
    tmp_path: Path,
) -> None:
    url, path = url_of("sqlite", tmp_path), tmp_path / "index.db"
    fill(url)
    expected = right_answers(url)
    with holdfast.open(url, index=path) as store:
        assert answers(store) == expected
    done(path, "UPDATE memory_docs SET body = x'00'")
    for _ in range(2):
        with holdfast.open(url, index=path) as store:
            assert answers(store) == expected and inner(store) == str(path)
    path.write_bytes(b"\xff" * path.stat().st_size)
    with pytest.raises(ValueError, match="which is neither"):
        holdfast.open(url, index=path)


def test_a_mark_is_in_the_file_itself_before_anything_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at any instant after that, it is known to be ours."""
    url, path = url_of("sqlite", tmp_path), tmp_path / "index.db"

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("holdfast.memory.search.sqlite_file.enable_wal", killed)
    with holdfast.open(url, index=path) as store, pytest.raises(KeyboardInterrupt):
        store.memory("m").recall("tea")
    assert path.read_bytes()[68:72] == APPLICATION_ID.to_bytes(4, "big")


# -- tables of somebody else -----------------------------------------------------------------------


def test_tables_of_others_in_the_store_s_file_stay_although_their_names_begin_like_ours(
    tmp_path: Path,
) -> None:
    url, path = url_of("sqlite", tmp_path), tmp_path / "agents.db"
    fill(url)
    for table in ("memory_notes", "memory_docs"):
        done(path, f"CREATE TABLE {table} (text)", f"INSERT INTO {table} VALUES ('mine')")
    with holdfast.open(url) as store:
        assert answers(store) == right_answers(url) and inner(store) == ":memory:", (
            "there is no room for ours"
        )
    assert done(path, "SELECT text FROM memory_docs") == [("mine",)]
    done(path, "DROP TABLE memory_docs")
    with holdfast.open(url) as store:
        assert answers(store) == right_answers(url) and inner(store) == str(path)
    done(path, "UPDATE memory_format SET format = 1")
    assert indexed(url) == right_answers(url), "made anew"
    assert done(path, "SELECT format > 1 FROM memory_format") == [(1,)]
    assert done(path, "SELECT text FROM memory_notes") == [("mine",)]


def test_a_trigger_on_the_index_cannot_reach_tables_of_others(tmp_path: Path) -> None:
    url, path = url_of("sqlite", tmp_path), tmp_path / "agents.db"
    fill(url)
    indexed(url)
    done(path, "CREATE TABLE memory_notes (text)", "INSERT INTO memory_notes VALUES ('mine')")
    done(
        path,
        "CREATE TRIGGER memory_sneaky AFTER INSERT ON memory_docs BEGIN DELETE FROM memory_notes; "
        "END",
    )
    with holdfast.open(url) as store:
        store.memory("m").remember("Customer Kim ordered 5 lamps")
        assert [hit.text for hit in store.memory("m").recall("Kim", k=1)] == [
            "Customer Kim ordered 5 lamps"
        ]
    assert done(path, "SELECT text FROM memory_notes") == [("mine",)]


def test_all_tables_of_an_index_are_known_by_name(tmp_path: Path) -> None:
    fill(url_of("sqlite", tmp_path))
    indexed(url_of("sqlite", tmp_path))
    made = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name GLOB 'memory_*'"
    assert {name for (name,) in done(tmp_path / "agents.db", made)} == TABLES


# -- what is left ----------------------------------------------------------------------------------


def left_in(path: Path, *words: bytes) -> int:
    """How often these are in a file and those beside it, as they are or as terms."""
    content = b"".join(one.read_bytes().lower() for one in path.parent.glob(path.name + "*"))
    return sum(content.count(word) for word in words)


@pytest.mark.parametrize("still_open", [True, False])
def test_nothing_of_a_deleted_namespace_is_left_in_the_index(
    tmp_path: Path, still_open: bool
) -> None:
    path = tmp_path / "index.db"
    with holdfast.open(url_of("sqlite", tmp_path), index=path) as store:
        for number in range(60):
            for namespace in ("mine", "theirs"):
                text = f"{namespace} phrase{number} belongs to patient {number}"
                store.memory(namespace).remember(
                    text, tags=[f"{namespace}tag"], source=f"{namespace}source{number}"
                )
        assert (
            len(store.memory("mine").recall("patient"))
            == len(store.memory("theirs").recall("patient"))
            == 5
        )
        store.memory("mine").forget_where(source="minesource7")
        assert store.memory("mine").recall("phrase8")
        assert store.memory("mine").delete()
        if still_open:
            assert left_in(path, b"mine") == 0
    assert left_in(path, b"mine") == 0 and left_in(path, b"theirs") > 60
    with holdfast.open(url_of("sqlite", tmp_path), index=path) as store:
        assert (
            len(store.memory("theirs").recall("phrase7 patient", min_score=0)) == 5
            and store.memory("mine").recall("phrase7") == []
        )


def test_a_text_that_is_forgotten_is_overwritten_in_the_index(tmp_path: Path) -> None:
    path = tmp_path / "index.db"
    with holdfast.open(url_of("sqlite", tmp_path), index=path) as store:
        memory = store.memory("m")
        names = [
            memory.remember(f"the safe opens with the code word xylo{number}phone")
            for number in range(5)
        ]
        memory.recall("safe")
        memory.forget(names[2])
        memory.recall("safe")
    assert left_in(path, b"word xylo2phone") == 0 and left_in(path, b"word xylo3phone") > 0
