"""Artifacts with several writers, killed ones among them, and damage that is noticed; plain and
async."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import pytest

import holdfast
from helpers.sync_and_async import Ways, view
from helpers.tasks.artifact_files import LARGE, MIB, Twice, attached, blobs, done
from holdfast import Artifact, HoldfastError, Store
from holdfast.backends import StreamKey
from holdfast.backends.faulty import FaultyBackend
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import CorruptRecord, LeaseLost, SourceChanged
from holdfast.log import operations as ops
from holdfast.log.events import Blob, NewEvent, new_append_context
from holdfast.log.operations.blobs import put_chunks
from holdfast.log.operations.stream_ops import append_events

# -- writers beside each other ---------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.every_engine
@pytest.mark.long("dynamodb", "s3")
def test_many_writers_of_the_same_content_make_one_file(store: Store) -> None:
    with store.task("t") as task:
        together = threading.Barrier(6)

        def write(name: str) -> Artifact:
            together.wait()
            return task.attach(name, io.BytesIO(LARGE))

        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(write, "abcdef"))
        assert all(artifact.read() == LARGE for artifact in found)
    assert [head.version for head in blobs(store)] == [10]


class Beside:
    """Another writer of the same file, in another process as far as the store can tell."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, place: int, count: int, data: bytes = LARGE) -> None:
        with holdfast.open(self.url) as store:
            head = ops.run(store._log, ops.head(StreamKey("default", "task", "t")))
            assert head is not None
            blob = Blob(sha256(LARGE).hexdigest(), len(LARGE), head.incarnation.hex())
            chunks = [data[at * MIB : (at + 1) * MIB] for at in range(place, place + count)]
            put = put_chunks(head.stream, blob, place, chunks, None, new_append_context())
            assert ops.run(store._log, put) is not None, "the other writer was not heard"

    def delete(self) -> None:
        with holdfast.open(self.url) as store:
            [head] = blobs(store)
            assert ops.run(store._log, ops.delete(head.stream, expected=head))


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize(
    "what", ["ahead", "finished", "wrong", "deleted", "deleted and ahead", "deleted and wrong"]
)
def test_another_writer_is_followed_or_replaced(
    durable_url: str, asynchronous: bool, what: str
) -> None:
    beside = Beside(durable_url)

    def act() -> None:  # four chunks are stored, the next four are about to be
        if what == "ahead":
            beside(4, 2)
        elif what == "finished":
            beside(4, 6)
        elif what == "wrong":
            beside(4, 3, bytes(len(LARGE)))
        else:
            beside.delete()
            if what == "deleted and ahead":
                beside(0, 6)
            elif what == "deleted and wrong":
                beside(0, 6, bytes(4 * MIB) + LARGE[4 * MIB :])

    async def work(task: Any) -> bytes:
        source = Twice(LARGE, 5 * MIB, act)
        found = await task.attach("a", source)
        assert source.passes > 2, "the other writer never came"
        return cast("bytes", await done(found.read()))

    with holdfast.open(durable_url) as store:
        assert Ways(store, asynchronous=asynchronous).resume(work) == LARGE
        assert [head.version for head in blobs(store)] == [10]


@pytest.mark.slow
@pytest.mark.parametrize(("count", "changed"), [(6, 9), (6, 4), (2, 4)])
def test_one_whose_file_changed_does_not_spoil_what_another_has_written(
    durable_url: str, count: int, changed: int
) -> None:
    beside = Beside(durable_url)
    with holdfast.open(durable_url) as store, store.task("t") as task:
        source: Twice

        def act() -> None:
            beside(4, count)
            source.getbuffer()[changed * MIB : changed * MIB + 4] = bytes(4)

        source = Twice(LARGE, 4 * MIB, act)
        with pytest.raises(SourceChanged):
            task.attach("a", source)
        assert [head.version for head in blobs(store)] == [4 + count]
        assert task.attach("a", LARGE).read() == LARGE


@pytest.mark.parametrize("at", [0, 5, 9])
def test_a_task_that_is_deleted_meanwhile_leaves_nothing_behind(durable_url: str, at: int) -> None:
    def act() -> None:
        with holdfast.open(durable_url) as other:
            assert other.task("t").delete()

    with holdfast.open(durable_url) as store:
        with pytest.raises(LeaseLost), store.task("t") as task:
            task.attach("a", Twice(LARGE, at * MIB, act))
        assert blobs(store) == []
        assert store.get_task("t") is None


@pytest.mark.parametrize("seed", range(6))
def test_on_an_engine_that_fails_it_is_whole_or_not_attached(seed: int) -> None:
    inner = MemoryBackend("")
    backend = FaultyBackend(
        inner,
        seed=seed,
        unavailable=0.1,
        lost_answer=0.1,
        lost_request=0.1,
        late=0.1,
        read_unavailable=0.02,
    )
    failures = 0
    with holdfast.open(backend) as store:
        while not _tried(store) or not sum(backend.injected.values()):
            failures += 1
            assert failures < 200, "it never came through, or no fault happened"
        with holdfast.open(inner) as sound:
            assert sound.artifact("t", "a").read() == LARGE
            assert [head.version for head in blobs(sound)] == [10]


def _tried(store: Store) -> bool:
    try:
        with store.task("t", steal=True) as task:
            task.attach("a", io.BytesIO(LARGE))
    except HoldfastError:
        return False
    return True


# -- killed ----------------------------------------------------------------------------------------


KILLED = """
import io, os, signal, sys
import holdfast

path, url, lies = sys.argv[1:]


class Dying(io.FileIO):
    passes = 0

    def seek(self, *place):
        self.passes += 1
        return super().seek(*place)

    def read(self, size=-1):
        if self.passes < 2:
            return super().read(size)
        if self.tell() >= 9 * 1024 * 1024:
            os.kill(os.getpid(), signal.SIGKILL)
        data = super().read(size)
        return bytes(len(data)) if lies == "lies" else data


with holdfast.open(url, key=os.environ.get("HOLDFAST_KEY")) as store, store.task("t") as task:
    task.attach("a", Dying(path))
"""


@pytest.mark.slow
@pytest.mark.parametrize("lies", ["honest", "lies"])
def test_killed_while_it_is_stored_the_next_run_continues_it_or_begins_again(
    durable_url: str, tmp_path: Path, lies: str
) -> None:
    path = tmp_path / "source"
    path.write_bytes(LARGE)
    killed = subprocess.run([sys.executable, "-c", KILLED, path, durable_url, lies], check=False)
    assert killed.returncode == -signal.SIGKILL
    with holdfast.open(durable_url) as store:
        [half] = blobs(store)
        assert half.version == 8
        assert attached(store) == []
        with store.task("t") as task:
            assert task.artifacts == {}
            found = task.attach("a", path)
        [whole] = blobs(store)
        assert (whole.version, whole.incarnation == half.incarnation) == (10, lies == "honest")
        assert found.read() == LARGE
    subprocess.run(
        [sys.executable, "-c", KILLED, path, durable_url, lies], check=True
    )  # there is nothing left to do


def test_cancelled_while_it_is_stored_the_task_goes_on_and_may_continue_it(url: str) -> None:
    async def program(store: holdfast.AsyncStore) -> None:
        async with store.task("t") as task:
            loop, stored = asyncio.get_running_loop(), threading.Event()

            def act() -> None:
                loop.call_soon_threadsafe(attaching.cancel)
                loop.call_soon_threadsafe(stored.set)
                stored.wait()

            attaching = asyncio.ensure_future(task.attach("a", Twice(LARGE, 5 * MIB, act)))
            with pytest.raises(asyncio.CancelledError):
                await attaching
            assert task.artifacts == {}
            await task.step("goes on", len, "four")
            assert await (await task.attach("a", LARGE)).read() == LARGE

    with holdfast.open(url) as store:
        asyncio.run(program(store.aio))
        assert len(blobs(store)) == 1


# -- damage ----------------------------------------------------------------------------------------


def rewritten(store: Store, alter: Callable[[list[bytes]], list[bytes]]) -> None:
    """Replace the one file by another, whose chain is sound: only its digest can tell."""
    [head] = blobs(store)
    bodies = [record.body for record in _records(store, head.stream)]
    assert ops.run(store._log, ops.delete(head.stream, expected=head))
    ops.run(
        store._log,
        ops.append(ops.AppendRecords(head.stream, alter(bodies), new_append_context(), expected=0)),
    )


def _records(store: Store, key: StreamKey) -> list[Any]:
    found: list[Any] = []
    while page := ops.run(store._log, ops.read_records(key, after=len(found))):
        found += page
    return found


DAMAGES: list[Callable[[list[bytes]], list[bytes]]] = [
    lambda bodies: [bodies[0][:-1] + bytes([bodies[0][-1] ^ 1]), *bodies[1:]],
    lambda bodies: [*bodies[:-1], bodies[-1][:-1] + bytes([bodies[-1][-1] ^ 1])],
    lambda bodies: [bodies[1], bodies[0], *bodies[2:]],
    lambda bodies: bodies[:-1],
    lambda bodies: [*bodies, b"\0more"],
    lambda bodies: [b"\0", *bodies[1:]],
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage", DAMAGES, ids=["first", "last", "swapped", "cut", "longer", "empty chunk"]
)
def test_altered_content_is_never_given_whole(ways: Ways, tmp_path: Path, damage: Any) -> None:
    async def work(task: Any) -> None:
        found = await task.attach("a", LARGE)
        rewritten(ways.store, damage)
        saved = tmp_path / "saved"
        saved.write_bytes(b"old")
        with pytest.raises(CorruptRecord):
            await done(found.read())
        with pytest.raises(CorruptRecord):
            await done(found.save(saved))
        assert saved.read_bytes() == b"old"
        assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]
        with found.open() as file, pytest.raises(CorruptRecord):
            while file.read(100_000):
                pass

    ways.resume(work)


def test_a_chunk_that_was_altered_on_the_disk_is_found(tmp_path: Path) -> None:
    import apsw

    url = tmp_path / "agents.db"
    with holdfast.open(url) as store, store.task("t") as task:
        task.attach("a", LARGE)
    changed = LARGE[2 * MIB : 2 * MIB + 64]
    connection = apsw.Connection(str(url))
    tables = [
        str(row[0])
        for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
    ]
    altered = 0
    for table in tables:
        columns = [str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})")]
        if "body" in columns:
            bodies = list(connection.execute(f"SELECT rowid, body FROM {table}"))
            for rowid, body in bodies:
                if isinstance(body, bytes) and changed in body:
                    connection.execute(
                        f"UPDATE {table} SET body = ? WHERE rowid = ?",
                        (body.replace(changed, bytes(64)), rowid),
                    )
                    altered += 1
    connection.close()
    assert altered == 1
    with holdfast.open(url) as store:
        found = store.artifact("t", "a")
        with pytest.raises(CorruptRecord):
            found.read()
        with found.open() as file:
            file.seek(2 * MIB)
            with pytest.raises(CorruptRecord):
                file.read(1)


HOSTILE: list[Any] = [
    {},
    {"name": "a"},
    {"name": "", "blob": {"digest": "00", "size": 1, "incarnation": "x"}},
    {"name": "a", "blob": {"digest": "00", "size": -1, "incarnation": "x"}},
    {"name": "a", "blob": {"digest": "00", "size": "many", "incarnation": "x"}},
]

ODD: list[Any] = [
    {"name": "a", "blob": {"digest": "00", "size": 0, "incarnation": "x"}},
    {"name": "a", "blob": {"digest": "00", "size": 2**62, "incarnation": "x"}},
    {"name": "../a\x1b", "blob": {"digest": "../../a", "size": 1, "incarnation": "x"}},
]


def planted(store: Store, data: Any) -> None:
    import msgspec

    with store.task("t"):
        pass
    event = NewEvent("task.attached", msgspec.json.encode(data))
    ops.run(
        store._log, append_events(StreamKey("default", "task", "t"), [event], new_append_context())
    )


@pytest.mark.parametrize("data", HOSTILE)
def test_an_event_of_a_wrong_shape_is_an_error(data: Any) -> None:
    with holdfast.open("memory://") as store:
        planted(store, data)
        with pytest.raises(CorruptRecord):
            store.get_task("t")


@pytest.mark.parametrize("data", ODD)
def test_an_event_that_names_what_is_not_there_is_listed_and_cannot_be_read(data: Any) -> None:
    with holdfast.open("memory://") as store:
        planted(store, data)
        [info] = view(Ways(store, asynchronous=False)).artifacts
        with pytest.raises(HoldfastError):
            store.artifact("t", info.name).read()
