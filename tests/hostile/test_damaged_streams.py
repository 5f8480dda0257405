"""A record of a conversation, a task, a document or a stream is damaged: what comes before it can
be read and rescued, and all of it can be deleted."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from helpers.engines.files_stores import file_of
from helpers.stores import KEY
from holdfast.backends import Record, StreamKey
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import CorruptRecord, DataProblem

pytestmark = pytest.mark.unencrypted("runs on encrypted stores by itself")

BOTH_WAYS = pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])
KINDS = {"conversation": "c", "task": "t", "state": "d", "stream": "e"}


class Lasting(MemoryBackend):
    def close(self) -> None: ...


class Stored:
    """A store on an engine, which is opened again after it was damaged."""

    def __init__(self, engine: str, place: Path) -> None:
        self.key = KEY if engine.endswith("-encrypted") else None
        self.backend = Lasting() if engine.startswith("memory") else None
        self.path = place / "agents.db"
        self.root = place / "agents" if engine.startswith("files") else None

    def open(self) -> holdfast.Store:
        place = self.backend or (f"file://{self.root}" if self.root else self.path)
        return holdfast.open(place, key=self.key, durability="process")

    def edit(self, statement: str, *values: Any) -> None:
        with closing(sqlite3.connect(self.path)) as database, database:
            assert database.execute(statement, values).rowcount

    def damage(self, kind: str, version: int) -> None:
        """Change a byte of a record."""
        if self.backend is not None:
            records = self.backend._streams[StreamKey("default", kind, KINDS[kind])].records
            old = records[version - 1]
            body = old.body[:-1] + bytes([old.body[-1] ^ 1])
            records[version - 1] = Record(old.version, old.append_id, old.hash, body)
        elif self.root is not None:
            path = file_of(self.root, StreamKey("default", kind, KINDS[kind]))
            lines = path.read_bytes().splitlines(keepends=True)
            spans = [msgspec.json.decode(line) for line in lines]
            [at] = [n for n, span in enumerate(spans) if span["first"] <= version <= span["last"]]
            lines[at] = lines[at][:-60] + bytes([lines[at][-60] ^ 1]) + lines[at][-59:]
            path.write_bytes(b"".join(lines))
        else:
            place = (
                "version = ? AND stream = (SELECT stream FROM streams WHERE kind = ? AND id = ?)"
            )
            with closing(sqlite3.connect(self.path)) as database, database:
                [[body]] = database.execute(
                    f"SELECT body FROM records WHERE {place}", (version, kind, KINDS[kind])
                )
                altered = body[:-1] + bytes([body[-1] ^ 1])
                database.execute(
                    f"UPDATE records SET body = ? WHERE {place}",
                    (altered, version, kind, KINDS[kind]),
                )


ENGINES = ("memory", "memory-encrypted", "sqlite", "sqlite-encrypted")


@pytest.fixture(params=[*ENGINES, "files", "files-encrypted"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Stored:
    stored = Stored(request.param, tmp_path)
    with stored.open() as store:
        for number in range(8):
            store.conversation("c").append({"role": "user", "content": f"text {number}"})
            store.state("d").save({"number": number})
            store.stream("e").append(("noted", {"number": number}))
        with store.task("t", goal="work") as task:
            for number in range(5):
                task.step(f"s{number}", lambda: "done")
        assert store.task("t").version() == 8
    return stored


def call(store: holdfast.Store, asynchronous: bool, action: Callable[[Any], Any]) -> Any:
    """Do something with the store, or with its async interface."""
    if not asynchronous:
        return action(store)

    async def program() -> Any:
        answer = action(store.aio)
        return await answer if inspect.isawaitable(answer) else answer

    return asyncio.run(program())


@BOTH_WAYS
@pytest.mark.parametrize("version", [1, 6, 8])
def test_a_damaged_stream_can_be_deleted(stored: Stored, version: int, asynchronous: bool) -> None:
    for kind in KINDS:
        stored.damage(kind, version)
    with stored.open() as store:
        assert not store.verify().ok
        assert call(store, asynchronous, lambda each: each.conversation("c").delete())
        assert call(store, asynchronous, lambda each: each.task("t").delete())
        assert call(store, asynchronous, lambda each: each.state("d").delete())
        assert call(store, asynchronous, lambda each: each.stream("e").delete())
        assert store.verify().ok
        store.conversation("c").append({"role": "user", "content": "again"})
        assert store.conversation("c").version() == 1


@BOTH_WAYS
def test_a_stream_whose_head_is_damaged_can_be_deleted(tmp_path: Path, asynchronous: bool) -> None:
    stored = Stored("sqlite", tmp_path)
    with stored.open() as store:
        store.conversation("c").append({"role": "user", "content": "x" * 100_000})
        store.conversation("other").append({"role": "user", "content": "y" * 100_000})
    stored.edit("DELETE FROM records WHERE stream = (SELECT stream FROM streams WHERE id = 'c')")
    with stored.open() as store:
        with pytest.raises(CorruptRecord):
            store.conversation("c").messages()
        assert call(store, asynchronous, lambda each: each.conversation("c").delete())
        assert store.verify().ok
        assert len(store._log.backend.heads(tenant="default", kind="blob")) == 1
        assert store.conversation("other").messages()[0]["content"] == "y" * 100_000
        assert store.conversation("c").messages() == []


@BOTH_WAYS
@pytest.mark.parametrize("stored", ENGINES, indirect=True)  # in files, fields are in the lines
def test_a_stream_whose_fields_were_altered_can_be_deleted(
    stored: Stored, asynchronous: bool
) -> None:
    if stored.backend is not None:
        task = stored.backend._streams[StreamKey("default", "task", "t")]
        task.fields = msgspec.structs.replace(task.fields, status="failed")
    else:
        stored.edit("UPDATE streams SET status = 'failed' WHERE id = 't'")
    with stored.open() as store:
        with pytest.raises(DataProblem):
            store.task("t").view()
        assert call(store, asynchronous, lambda each: each.task("t").delete())
        assert store.verify().ok


@BOTH_WAYS
@pytest.mark.parametrize("stored", ["files", "files-encrypted"], indirect=True)
def test_what_comes_before_a_damaged_end_can_be_read_where_the_head_is_damaged_with_it(
    stored: Stored, asynchronous: bool
) -> None:
    for kind in KINDS:
        stored.damage(kind, 8)
    with stored.open() as store:
        view = call(store, asynchronous, lambda each: each.task("t").view(version=4))
        assert [step.name for step in view.steps] == ["s0", "s1"]
        assert call(store, asynchronous, lambda each: each.state("d").load(version=7)) == {
            "number": 6
        }
        for damaged in (
            lambda: store.task("t").view(version=8),
            lambda: store.state("d").load(version=8),
            lambda: store.stream("e").append(("noted", 9)),
            lambda: store.conversation("c").messages(),
        ):
            with pytest.raises(CorruptRecord):
                damaged()
        read = []
        with pytest.raises(CorruptRecord):
            for event in store.stream("e").read():
                read.append(event.data["number"])
        assert read == list(range(7))
    if stored.key is not None:
        return
    with stored.open() as store, holdfast.open("memory://") as target:
        with pytest.raises(CorruptRecord):
            holdfast.copy(store, target)
        # The last append before the damage may be a part of one, for all that can be known.
        assert len(target.conversation("c").messages()) == 6


@BOTH_WAYS
@pytest.mark.parametrize("version", [6, 8])
def test_what_comes_before_the_damage_can_be_read_and_forked(
    stored: Stored, version: int, asynchronous: bool
) -> None:
    if stored.root is not None:
        version = 6  # a fork is recorded in its parent, and behind a damaged end nothing can be
    for kind in KINDS:
        stored.damage(kind, version)
    with stored.open() as store:
        with pytest.raises(DataProblem):
            store.task("t").view()
        with pytest.raises(DataProblem):
            store.conversation("c").messages()
        before = version - 1
        view = call(store, asynchronous, lambda each: each.task("t").view(version=4))
        assert [step.name for step in view.steps] == ["s0", "s1"]
        call(store, asynchronous, lambda each: each.task("t").fork("t2", version=4))
        assert len(store.task("t2").view().steps) == 2
        call(store, asynchronous, lambda each: each.conversation("c").fork("c2", version=before))
        assert len(store.conversation("c2").messages()) == before
        found = call(store, asynchronous, lambda each: each.state("d").load(version=before))
        assert found == {"number": before - 1}
        read = []
        with pytest.raises(DataProblem):
            for event in store.stream("e").read():
                read.append(event.data["number"])
        assert read == list(range(before))
        with pytest.raises(holdfast.errors.HasForks):
            store.conversation("c").delete()


@pytest.mark.parametrize("stored", ["memory", "memory-encrypted"], indirect=True)
@pytest.mark.parametrize("claimed", [3, -3], ids=["repeated", "negative"])
@pytest.mark.parametrize("damaged", [0, 4])
def test_a_record_with_the_version_of_another_ends_what_can_be_read(
    stored: Stored, damaged: int, claimed: int
) -> None:
    assert stored.backend is not None
    for kind, name in KINDS.items():
        records = stored.backend._streams[StreamKey("default", kind, name)].records
        old = records[damaged]
        records[damaged] = Record(claimed, old.append_id, old.hash, old.body)
    with stored.open() as store:
        for read_damaged in (
            lambda: store.task("t").view(),
            lambda: store.conversation("c").messages(),
            lambda: store.stream("e").last(8),
        ):
            with pytest.raises(CorruptRecord):
                read_damaged()
        read = []
        with pytest.raises(CorruptRecord):
            for event in store.stream("e").read():
                read.append(event.data["number"])
        assert read == list(range(damaged))


@pytest.mark.parametrize(("kind", "call"), [
    ("conversation", "store.conversation('c').fork(new_id, version=5)"),
    ("task", "store.task('t').fork(new_id, version=5)"),
])  # fmt: skip
def test_the_error_names_how_to_rescue_what_comes_before(
    kind: str, call: str, tmp_path: Path
) -> None:
    stored = Stored("sqlite", tmp_path)
    with stored.open() as store:
        for number in range(8):
            store.conversation("c").append({"role": "user", "content": f"text {number}"})
        with store.task("t", goal="work") as task:
            for number in range(5):
                task.step(f"s{number}", lambda: "done")
    stored.damage(kind, 6)
    with stored.open() as store, pytest.raises(CorruptRecord) as caught:
        store.conversation("c").messages()
        store.task("t").view()
    assert call in str(caught.value) and "`holdfast copy URL NEW_URL`" in str(caught.value)
    with stored.open() as store, holdfast.open("memory://") as target:
        with pytest.raises(CorruptRecord):
            holdfast.copy(store, target)
        if kind == "conversation":
            assert len(target.conversation("c").messages()) == 5
        else:
            assert len(target.task("t").view().steps) == 3
