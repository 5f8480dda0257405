"""Artifacts: files that are kept with a task, whole or not at all; plain and async."""

from __future__ import annotations

import asyncio
import io
import os
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import pytest

import holdfast
from helpers.run_cli import run
from helpers.stores import ON_MEMORY
from helpers.sync_and_async import Ways, view
from helpers.tasks.artifact_files import LARGE, MIB, Twice, attached, blobs, done
from holdfast import NotFound, Store
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import HasForks, InvalidId, SourceChanged, TaskEnded

# -- there and back --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1, MIB, MIB + 1, 4 * MIB, len(LARGE)])
def test_what_is_attached_comes_back(ways: Ways, tmp_path: Path, size: int) -> None:
    data = LARGE[:size]
    path = tmp_path / "source"
    path.write_bytes(data)

    async def work(task: Any) -> None:
        for name, source in (
            ("path", path),
            ("text", str(path)),
            ("bytes", data),
            ("file", io.BytesIO(data)),
        ):
            found = await task.attach(name, source)
            assert (found.name, found.size, found.digest) == (name, size, sha256(data).hexdigest())
            assert task.artifacts[name] == found
            assert await done(found.read()) == data
            await done(found.save(tmp_path / "saved"))
            assert (tmp_path / "saved").read_bytes() == data
        with found.open() as file:
            assert file.read() == data

    ways.resume(work)
    assert ways.store.artifact("t", "path").read() == data
    assert sorted(os.listdir(tmp_path))[-2:] == ["saved", "source"], (
        "nothing else is left beside them"
    )


@pytest.mark.slow
def test_chunks_are_given_one_after_the_other(ways: Ways) -> None:
    async def work(task: Any) -> list[bytes]:
        found = await task.attach("large", LARGE)
        if ways.asynchronous:
            return [chunk async for chunk in found.chunks()]
        return list(found.chunks())

    chunks = ways.resume(work)
    assert b"".join(chunks) == LARGE
    assert max(map(len, chunks)) == MIB


def test_from_outside_it_is_found_by_name_or_not_found(url: str) -> None:
    async def outside(store: holdfast.AsyncStore) -> bytes:
        with pytest.raises(NotFound, match="no artifact"):
            await store.artifact("t", "b")
        return await (await store.artifact("t", "a")).read()

    with holdfast.open(url) as store:
        with store.task("t") as task:
            found = task.attach("a", b"one")
        assert store.artifact("t", "a") == found
        assert asyncio.run(outside(store.aio)) == b"one"
        for whose, name in (("t", "b"), ("other", "a")):
            with pytest.raises(NotFound):
                store.artifact(whose, name)
        with pytest.raises(NotFound):
            store.for_tenant("other").artifact("t", "a")
        [info] = view(Ways(store, asynchronous=False)).artifacts
        assert (info.name, info.size, info.digest, info.at) == (
            "a",
            3,
            sha256(b"one").hexdigest(),
            found.at,
        )


@ON_MEMORY
def test_a_file_is_taken_from_where_it_stands_and_stays_open(ways: Ways) -> None:
    async def work(task: Any) -> None:
        file = io.BytesIO(b"head and body")
        file.seek(9)
        assert await done((await task.attach("a", file)).read()) == b"body"
        assert not file.closed

    ways.resume(work)


@ON_MEMORY
def test_what_cannot_seek_is_read_once(ways: Ways, tmp_path: Path) -> None:
    def fill(path: Path) -> None:
        with path.open("wb", buffering=0) as file:
            for at in range(0, len(LARGE), 1_000_003):  # it comes in pieces that are no chunks
                file.write(LARGE[at : at + 1_000_003])

    class Stream:
        """As some clients give it: nothing but `read`."""

        def __init__(self) -> None:
            self.file = io.BytesIO(LARGE)

        def read(self, size: int) -> bytes:
            return self.file.read(min(size, 70_000))

    async def work(task: Any) -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        with ThreadPoolExecutor(1) as pool:
            filled = pool.submit(fill, pipe)
            assert await done((await task.attach("pipe", pipe)).read()) == LARGE
            filled.result()
        assert await done((await task.attach("stream", Stream())).read()) == LARGE

    ways.resume(work)


@ON_MEMORY
def test_what_is_no_file_of_bytes_is_refused(ways: Ways, tmp_path: Path) -> None:
    class Empty(io.RawIOBase):
        """Not blocking, and with nothing to read yet."""

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> None:
            return None

    async def work(task: Any) -> None:
        refused: list[tuple[Any, type[Exception]]] = [
            (7, TypeError),
            (None, TypeError),
            (bytearray(b"x"), TypeError),
            (io.StringIO("text"), TypeError),
            (Empty(), BlockingIOError),
            (tmp_path, IsADirectoryError),
            (tmp_path / "none", FileNotFoundError),
        ]
        for source, error in refused:
            with pytest.raises(error):
                await task.attach("a", source)
        for text in ("hello text", "a letter. " * 1000):
            with pytest.raises(
                OSError, match="a string is a path; to attach content, pass bytes"
            ) as caught:
                await task.attach("a", text)
            assert (text in str(caught.value)) == (len(text) < 100)
        for name in ("", "\0", "x" * 600, 7):
            with pytest.raises(InvalidId):
                await task.attach(name, b"x")
        assert task.artifacts == {}

    ways.resume(work)
    assert not blobs(ways.store)


# -- once and again --------------------------------------------------------------------------------


def test_the_same_again_writes_nothing_and_other_content_is_the_new_one(ways: Ways) -> None:
    async def first(task: Any) -> Any:
        return await task.attach("report", b"draft")

    async def again(task: Any) -> Any:
        before = await task.version()
        found = await task.attach("report", io.BytesIO(b"draft"))
        assert await task.version() == before
        return found

    async def other(task: Any) -> None:
        await task.attach("report", b"final")
        assert await done(task.artifacts["report"].read()) == b"final"

    assert ways.resume(first).at == ways.resume(again).at
    assert attached(ways.store) == ["report"]
    ways.resume(other)
    assert attached(ways.store) == ["report", "report"]
    assert ways.store.artifact("t", "report").read() == b"final"
    assert [info.digest for info in view(ways).artifacts] == [sha256(b"final").hexdigest()]
    ways.resume(first)  # whatever was attached last counts, known before or not
    assert ways.store.artifact("t", "report").read() == b"draft"


@pytest.mark.slow
def test_the_same_content_is_stored_once(ways: Ways) -> None:
    async def work(task: Any) -> None:
        for name in ("a", "b", "c"):
            await task.attach(name, LARGE)
        await task.attach("d", LARGE[:-1])

    ways.resume(work)
    assert [head.version for head in blobs(ways.store)] == [10, 10]
    assert attached(ways.store) == ["a", "b", "c", "d"]


def test_a_task_that_has_ended_gives_what_it_has_and_takes_nothing_new(ways: Ways) -> None:
    async def work(task: Any) -> None:
        await task.attach("a", b"one")
        await task.finish()

    async def again(task: Any) -> None:
        assert await done((await task.attach("a", b"one")).read()) == b"one"
        with pytest.raises(TaskEnded):
            await task.attach("b", b"two")

    ways.resume(work)
    ways.resume(again)
    assert len(blobs(ways.store)) == 1


@pytest.mark.every_engine
def test_everything_is_deleted_with_the_task(ways: Ways) -> None:
    async def work(task: Any) -> None:
        await task.attach("a", LARGE)
        await task.attach("a", b"another")

    ways.resume(work)
    assert len(blobs(ways.store)) == 2
    ways.run(done(ways.task().delete()))
    assert blobs(ways.store) == []
    with pytest.raises(NotFound):
        ways.store.artifact("t", "a")


@pytest.mark.slow
def test_a_fork_sees_what_its_parent_had_and_has_its_own(ways: Ways) -> None:
    async def work(task: Any) -> None:
        await task.attach("a", LARGE)
        await task.attach("b", b"one")

    async def in_fork(task: Any) -> None:
        assert await done(task.artifacts["a"].read()) == LARGE
        assert await done((await task.attach("a", LARGE)).read()) == LARGE
        await task.attach("b", b"two")

    async def later(task: Any) -> None:
        await task.attach("c", b"after the fork")

    ways.resume(work)
    ways.run(done(ways.task().fork("fork")))
    ways.resume(later)
    before = len(blobs(ways.store))
    ways.resume(in_fork, "fork")
    store = ways.store
    assert len(blobs(store)) == before + 1, "what the parent has is not stored again"
    assert attached(store, "fork") == ["b"]
    assert [info.name for info in view(ways, "fork").artifacts] == ["a", "b"]
    assert (store.artifact("fork", "b").read(), store.artifact("t", "b").read()) == (b"two", b"one")
    with pytest.raises(HasForks):
        store.task("t").delete()
    assert store.artifact("fork", "a").read() == LARGE
    store.task("fork").delete()
    assert len(blobs(store)) == before
    assert store.artifact("t", "b").read() == b"one"


@ON_MEMORY
def test_as_an_argument_of_a_step_it_counts_by_its_content(ways: Ways) -> None:
    calls: list[int] = []

    def measure(file: Any) -> int:
        calls.append(file.size)
        return cast("int", file.size)

    async def work(task: Any) -> int:
        return cast("int", await task.step("measure", measure, await task.attach("a", b"four")))

    async def changed(task: Any) -> None:
        with pytest.raises(holdfast.errors.ReplayMismatch):
            await task.step("measure", measure, await task.attach("a", b"eleven"))

    assert [ways.resume(work), ways.resume(work)] == [4, 4]
    ways.resume(changed)
    assert calls == [4]


# -- files that change -----------------------------------------------------------------------------


CHANGES: list[Callable[[io.BytesIO], object]] = [
    lambda file: file.getbuffer().__setitem__(slice(5 * MIB, 5 * MIB + 4), b"\0\0\0\0"),
    lambda file: file.truncate(6 * MIB),
    lambda file: file.truncate(8 * MIB),
    lambda file: (file.seek(0, 2), file.write(b"more")),
    lambda file: (file.seek(0, 2), file.write(LARGE)),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", CHANGES, ids=["altered", "cut", "cut between appends", "longer", "twice as long"]
)
@pytest.mark.parametrize(
    "size", [len(LARGE), 8 * MIB + 1, 12 * MIB], ids=["odd", "one more", "even"]
)
@ON_MEMORY
def test_a_file_that_changes_while_it_is_read_is_not_attached(
    ways: Ways, change: Any, size: int
) -> None:
    data = (LARGE + LARGE)[:size]

    async def work(task: Any) -> None:
        file: Twice
        file = Twice(data, 3 * MIB, lambda: change(file))
        with pytest.raises(SourceChanged) as caught:
            await task.attach("log", file)
        assert caught.value.name == "log"
        assert task.artifacts == {}
        assert blobs(ways.store) == []
        assert (
            await done((await task.attach("log", data)).read()) == data
        )  # when nobody writes to it any more

    ways.resume(work)
    assert attached(ways.store) == ["log"]


def test_a_path_whose_file_changes_in_the_middle_of_being_stored_is_not_attached(
    tmp_path: Path,
) -> None:
    path = tmp_path / "source"
    path.write_bytes(LARGE)

    class Meddling(MemoryBackend):
        def append(self, batch: Any) -> Any:
            if any(append.stream.kind == "blob" for append in batch):
                with path.open("r+b") as file:
                    file.seek(8 * MIB)
                    file.write(b"\0\0\0\0")
            return super().append(batch)

    with holdfast.open(Meddling()) as store, store.task("t") as task:
        with pytest.raises(SourceChanged):
            task.attach("a", path)
        assert blobs(store) == []
        assert task.attach("a", path).read() == path.read_bytes()


# -- as a file -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_an_open_artifact_is_a_file_like_any_other(store: Store, seed: int) -> None:
    draw = random.Random(seed)
    with store.task("t") as task:
        opened, model = task.attach("a", LARGE).open(), io.BytesIO(LARGE)
    with opened:
        assert opened.readable() and opened.seekable() and not opened.writable()
        for _ in range(60):
            at = draw.choice([draw.randrange(len(LARGE) + 100), draw.randrange(10) * MIB])
            whence = draw.choice([os.SEEK_SET, os.SEEK_END, os.SEEK_CUR])
            offset = (
                at - {os.SEEK_SET: 0, os.SEEK_END: len(LARGE), os.SEEK_CUR: model.tell()}[whence]
            )
            assert opened.seek(offset, whence) == model.seek(offset, whence)
            size = draw.choice([0, 1, 1000, MIB, 3 * MIB])
            assert opened.read(size) == model.read(size)
            assert opened.tell() == model.tell()
        with pytest.raises(ValueError, match="must be >= 0"):
            opened.seek(-1)


def test_what_wants_a_file_can_have_one(store: Store) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("large", LARGE)
        archive.writestr("small", b"small")
    with (
        store.task("t") as task,
        zipfile.ZipFile(task.attach("a.zip", packed.getvalue()).open()) as archive,
    ):
        assert archive.read("small") == b"small"
        assert archive.read("large") == LARGE


# -- large -----------------------------------------------------------------------------------------


WEIGHED = """
import asyncio, resource, sys
from hashlib import sha256

import holdfast

path, url, way = sys.argv[1:]


async def program():
    async with holdfast.aopen(url) as store, store.task("t") as task:
        found = await task.attach("a", path)
        digest = sha256()
        async for chunk in found.chunks():
            digest.update(chunk)
        await found.save(path + ".saved")
    return found, digest


def plain():
    with holdfast.open(url) as store, store.task("t") as task:
        found = task.attach("a", path)
        digest = sha256()
        with found.open() as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
        found.save(path + ".saved")
    return found, digest


found, digest = plain() if way == "plain" else asyncio.run(program())
assert digest.hexdigest() == found.digest
print(found.size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["plain", "async"])
def test_a_file_of_200_mb_needs_little_more_memory_than_a_small_one(
    tmp_path: Path, way: str
) -> None:
    weights: list[int] = []
    for size in (1000, 200 * MIB):
        folder = tmp_path / str(size)
        folder.mkdir()
        path = folder / "source"
        with path.open("wb") as file:
            file.truncate(size)
        command = [sys.executable, "-c", WEIGHED, str(path), str(folder / "agents.db"), way]
        told = subprocess.run(command, capture_output=True, text=True, check=False)
        assert told.returncode == 0, told.stderr
        found, weight = map(int, told.stdout.split())
        assert found == size == (folder / "source.saved").stat().st_size
        weights.append(weight)
    assert weights[1] - weights[0] < 60, f"{weights} MB"


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def shelf(tmp_path: Path) -> str:
    url = str(tmp_path / "agents.db")
    with holdfast.open(url) as store, store.task("t") as task:
        task.attach("report.bin", b"\0\xff\x1b[31m\n")
        task.attach("odd\x1b[2J", LARGE)
    return url


def test_an_artifact_goes_to_standard_output_or_into_a_file(
    shelf: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("artifact", shelf, "t", "report.bin").stdout_bytes == b"\0\xff\x1b[31m\n"
    target = tmp_path / "out"
    assert run("artifact", shelf, "t", "odd\x1b[2J", "--output", str(target)).output == ""
    assert target.read_bytes() == LARGE
    monkeypatch.setenv("HOLDFAST_URL", shelf)
    assert run("artifact", "t", "report.bin").stdout_bytes == b"\0\xff\x1b[31m\n"


@pytest.mark.slow
def test_what_is_not_there_or_cannot_be_written_is_one_line(shelf: str, tmp_path: Path) -> None:
    for arguments in (
        ("t", "none"),
        ("none", "report.bin"),
        ("t", "report.bin", "--output", str(tmp_path)),
        ("t", "report.bin", "--output", str(tmp_path / "no" / "folder")),
    ):
        result = run("artifact", shelf, *arguments)
        assert result.exit_code == 1
        assert len(result.stderr.splitlines()) == 1
    assert run("artifact", shelf).exit_code == 2


def test_artifacts_are_listed_with_their_task(shelf: str) -> None:
    import json

    shown = run("task", shelf, "t").output
    assert "artifact: report.bin (8 B, " in shown
    assert "artifact: odd\\u001b[2J (9.0 MiB, " in shown
    told = json.loads(run("task", shelf, "t", "--json").output)["artifacts"]
    assert [(file["name"], file["size"]) for file in told] == [
        ("report.bin", 8),
        ("odd\x1b[2J", len(LARGE)),
    ]
