"""`store.repair` rebuilds what is derived from the records, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import apsw
import msgspec
import pytest

import holdfast
from helpers.run_cli import run
from helpers.stores import KEY
from holdfast.backends import HeadFields, StreamKey
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import DataProblem

pytestmark = pytest.mark.unencrypted("runs on encrypted stores by itself")

BY_KEY = pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
BOTH_WAYS = pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])


class Lasting(MemoryBackend):
    def close(self) -> None: ...


@holdfast.agent("repaired")
def agent(task: holdfast.Task) -> int:
    return task.step("one", lambda: 1)


def write_sample(store: holdfast.Store) -> None:
    with store.task("open", goal="go on") as task:
        task.step("one", lambda: 1)
    with store.task("done", goal="end") as task:
        task.finish(3)
    store.submit("repaired", "queued")
    store.conversation("c").append({"role": "user", "content": "hello"})
    store.conversation("c").expire(timedelta(days=1000))
    store.conversation("slides").append({"role": "user", "content": "hello"})
    store.conversation("slides").expire(timedelta(days=1000), sliding=True)
    store.state("d").save({"a": 1})
    store.state("d").expire(timedelta(days=1000))
    store.stream("e").append(("noted", 1), id="req-1")
    store.memory("m").remember("Ann likes tea")
    store.memory("m").recall("tea")


def edit(path: Path, *statements: str) -> None:
    with closing(apsw.Connection(str(path))) as database:
        database.execute("PRAGMA ignore_check_constraints = ON").fetchall()
        for statement in statements:
            database.execute(statement).fetchall()


def repair(store: holdfast.Store, asynchronous: bool) -> holdfast.types.RepairResult:
    return asyncio.run(store.aio.repair()) if asynchronous else store.repair()


def test_a_store_without_damage_stays_as_it_is(store: holdfast.Store) -> None:
    write_sample(store)
    done = store.repair()
    assert (done.entries, done.heads, done.namespaces) == (0, [], [])
    assert store.verify().ok


# -- heads -----------------------------------------------------------------------------------------


@BY_KEY
@BOTH_WAYS
@pytest.mark.parametrize("change", ["altered", "removed"])
def test_the_fields_of_heads_are_derived_again(
    key: str | None, asynchronous: bool, change: str
) -> None:
    backend = Lasting()
    with holdfast.open(backend, key=key) as store:
        write_sample(store)
        expiries = [each.expires_at for each in store.conversations()]
    for name, stream in backend._streams.items():
        if name.kind in ("task", "conversation", "state", "stream"):
            stream.fields = (
                msgspec.structs.replace(stream.fields, status="failed", owner="somebody")
                if change == "altered"
                else HeadFields()
            )
    with holdfast.open(backend, key=key) as store:
        assert {problem.what for problem in store.verify().problems} == {"head"}
        assert len(repair(store, asynchronous).heads) == 7
        assert store.verify().ok
        statuses = {task.id: task.status for task in store.tasks()}
        assert statuses == {"open": "pending", "done": "finished", "queued": "pending"}
        assert [each.expires_at for each in store.conversations()] == [
            expiries[0],
            pytest.approx(expiries[1], abs=timedelta(seconds=5)),
        ]
        assert store.task("done").view().result == 3
        assert [each.id for each in store.run_due()] == ["queued"]
        with store.task("open") as task:
            assert task.step("one", lambda: 2) == 1


def test_a_stream_whose_records_are_damaged_too_is_left_alone() -> None:
    backend = Lasting()
    with holdfast.open(backend) as store:
        write_sample(store)
    task = backend._streams[StreamKey("default", "task", "open")]
    task.fields = msgspec.structs.replace(task.fields, status="failed")
    task.records[0] = msgspec.structs.replace(task.records[0], body=b"{}")
    with holdfast.open(backend) as store:
        assert store.repair().heads == []
        with pytest.raises(DataProblem):
            store.task("open").view()


# -- SQLite ----------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "agents.db"
    with holdfast.open(path) as store:
        write_sample(store)
    yield path
    with holdfast.open(path) as store:
        assert store.verify().ok
        assert store.stream("e").append(("noted", 1), id="req-1").duplicate
        assert [hit.text for hit in store.memory("m").recall("tea")] == ["Ann likes tea"]
        assert sorted(task.id for task in store.tasks(status="pending")) == ["open", "queued"]
        store.conversation("new").append({"role": "user", "content": "new"})
        assert store.verify().ok


def without_entries(index: str, condition: str) -> list[str]:
    """Statements that remove entries from an index, and leave the table as it is."""
    change = "UPDATE sqlite_schema SET sql = {} WHERE name = '" + index + "'"
    where = "CASE WHEN instr(sql, ' WHERE ') THEN ' AND ' ELSE ' WHERE ' END"
    return [
        "PRAGMA writable_schema = ON",
        change.format(f"sql || {where} || '{condition}'"),
        "PRAGMA writable_schema = RESET",
        f"REINDEX {index}",
        "PRAGMA writable_schema = ON",
        change.format(f"substr(sql, 1, length(sql) - length('{condition}') - length({where}))"),
        "PRAGMA writable_schema = RESET",
    ]


EDITS = {
    "a status": without_entries("streams_by_status", "id <> ''open''"),
    "a due time": without_entries("streams_by_due", "id <> ''queued''"),
    "an append id": without_entries("records_by_append", "version <> 1"),
    "another due time": ["UPDATE streams SET due = due + 1 WHERE due IS NOT NULL"],
    "a count": ["UPDATE numbers SET last = last + 7"],
    "no count": ["DELETE FROM numbers"],
    "a checksum": ["UPDATE numbers SET tombstones = zeroblob(16)"],
    "a memory": ["UPDATE memory_docs SET body = CAST(replace(body, 'tea', 'mud') AS BLOB)"],
    "a word": ["DELETE FROM memory_terms"],
    "an id": ["UPDATE memory_ids SET number = 77"],
    "a total": ["UPDATE memory_spaces SET memories = 9"],
}


@BOTH_WAYS
@pytest.mark.parametrize("what", EDITS)
def test_what_is_derived_is_rebuilt(path: Path, what: str, asynchronous: bool) -> None:
    with holdfast.open(path) as store:  # so that there is a tombstone, and a sum of tombstones
        store.stream("gone").append(("noted", 1))
        store.stream("gone").delete()
    edit(path, *EDITS[what])
    with holdfast.open(path) as store:
        assert {problem.what for problem in store.verify().problems} == {"index"}, what
        done = repair(store, asynchronous)
        assert done.entries or done.namespaces


def test_the_command_line_repairs_and_says_what(path: Path) -> None:
    edit(path, "UPDATE numbers SET last = 1", "UPDATE streams SET status = 'x' WHERE id = 'open'")
    verified = run("verify", path)
    assert verified.exit_code == 1 and "`holdfast repair`" in verified.stdout
    done = run("repair", path)
    assert done.exit_code == 0
    assert "task 'open'" in done.stdout and "rebuilt 1 entry, 1 head" in done.stdout
    again = msgspec.json.decode(run("repair", path, "--json").stdout)
    assert again == {"entries": 0, "heads": [], "namespaces": []}
