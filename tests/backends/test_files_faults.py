"""The files backend under power loss, sudden death, broken and full disks, at every single system
call.

A story of appends and deletions is told again and again, each time with a fault one call later,
until the fault is no longer reached. What must be true at every moment is told by the memory
backend.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.example_counts import LONG
from holdfast.backends import Append, Backend, HeadFields, StreamKey
from holdfast.backends.files import FilesBackend
from holdfast.backends.files.disk import Disk
from holdfast.backends.files.streams import FileStreams
from holdfast.backends.memory import MemoryBackend
from holdfast.conformance.build import (
    StreamTracker,
    all_heads,
    bodies,
    ids,
    key,
    must_head,
    read_all,
    stored,
    timeless,
)
from holdfast.errors import HoldfastError, OutcomeUnknown, ReadOnly, StorageFull, Unavailable

Step = Callable[[Backend], object]
Snapshot = dict[StreamKey, object]
A, B, C = key("a"), key("b"), key("c")
BIG = b'{"big":"%s"}' % (b"x" * 3000)


# -- the story and what must be true ---------------------------------------------------------------


def tell() -> list[Step]:
    """Each step can be repeated: appends have ids, deletions name an incarnation and a version."""
    a, b, c, new_b = StreamTracker(A), StreamTracker(B), StreamTracker(C), StreamTracker(B)

    def append(*batch: Append) -> Step:
        return lambda backend: stored(backend.append(batch))

    def delete(tracker: StreamTracker) -> Step:
        incarnation, version = tracker.incarnation, tracker.version

        def step(backend: Backend) -> None:
            head = backend.head(tracker.stream)
            if head and (head.incarnation, head.version) == (incarnation, version):
                assert backend.delete(tracker.stream, expected=head)

        return step

    def made(
        tracker: StreamTracker,
        *bodies: bytes,
        indexed: bool = False,
        fields: HeadFields | None = None,
    ) -> Append:
        return tracker.follow(tracker.next(*bodies, indexed=indexed, fields=fields))

    return [
        append(made(a, b'{"a":1}', indexed=True, fields=HeadFields(status="open", due_at=5.0))),
        append(made(b, b"b1")),
        append(made(a, BIG, b"a3"), made(b, b"b2", indexed=True), made(c, b"c1")),
        delete(b),
        append(made(new_b, b"new b1", indexed=True)),
        append(made(a, b"a4"), made(a, b"a5", b"a6", indexed=True)),
        append(made(c, b"c2", fields=HeadFields(status="done"))),
    ]


def look(backend: Backend) -> Snapshot:
    return {
        stream: (timeless(backend.head(stream)), tuple(read_all(backend, stream)))
        for stream in (A, B, C)
    }


def expectations(steps: list[Step]) -> list[Snapshot]:
    """What is stored before the first step, and after each one."""
    model = MemoryBackend()
    snapshots = [look(model)]
    for step in steps:
        step(model)
        snapshots.append(look(model))
    return snapshots


class Teller:
    """The story, and the check of a store in which it was told up to some step."""

    def __init__(self) -> None:
        self.steps = tell()
        self.snapshots = expectations(self.steps)

    def tell(self, backend: Backend, start: int = 0) -> Iterator[int]:
        """Tells on, and says how many steps are done."""
        for done, step in enumerate(self.steps[start:], start + 1):
            step(backend)
            yield done

    def check(self, backend: Backend, done: int) -> None:
        """Acknowledged is stored, stored is attempted; the rest of the story can be told on top."""
        before, after = self.snapshots[done], self.snapshots[min(done + 1, len(self.steps))]
        actual = look(backend)
        for stream, found in actual.items():
            assert found in (before[stream], after[stream]), f"{stream} after {done} steps"
        existing = [stream.id for stream, (head, _) in actual.items() if head]  # type: ignore[misc]
        assert ids(all_heads(backend)) == existing
        list(self.tell(backend, done))
        assert look(backend) == self.snapshots[-1]
        assert len(backend.due(tenant="tenant", kind="kind")) == 1


# -- a machine that loses its power ----------------------------------------------------------------


class Death(BaseException):
    """The process, or the machine, is gone. Not an Exception: nothing may catch it and go on."""


class Contents:
    """One file: what is on the disk, and what the system has not written there yet."""

    def __init__(self) -> None:
        self.durable = b""
        self.dirty: list[tuple[int, bytes | None]] = []

    def with_changes(self, change: Callable[[bytes, bool], bytes]) -> bytes:
        data = bytearray(self.durable)
        for number, (offset, written) in enumerate(self.dirty, 1):
            if written is None:
                data = data[:offset].ljust(offset, b"\0")
                continue
            written = change(written, number == len(self.dirty))
            data = data.ljust(offset, b"\0")
            data[offset : offset + len(written)] = written
        return bytes(data)

    def sync(self) -> None:
        self.durable = self.with_changes(lambda data, last: data)
        self.dirty.clear()


AFTER_POWER_LOSS: dict[str, tuple[bool, Callable[[bytes, bool], bytes] | None]] = {
    # whether names that were not synced survive, and what becomes of data that was not
    "nothing that was not synced": (False, None),
    "names without their data": (True, None),
    "zeros in the place of data": (True, lambda data, last: bytes(len(data))),
    "half of the last write": (True, lambda data, last: data[: len(data) // 2] if last else data),
    "everything": (True, lambda data, last: data),
}


class Machine(Disk):
    """A disk that knows what would survive a power loss, and dies before its n-th change."""

    def __init__(self, dies_at: int | None = None) -> None:
        self.changes, self.dies_at = 0, dies_at
        self.files: dict[int, Contents] = {}
        self.names: dict[str, dict[str, Contents | None]] = {"": {}}

    def _change(self) -> None:
        if self.changes == self.dies_at:
            raise Death
        self.changes += 1

    def open(self, top: int, path: str, *, write: bool = False, create: bool = False) -> int:
        if create:
            self._change()
        file = super().open(top, path, write=write, create=create)
        if create:
            self.files[os.fstat(file).st_ino] = Contents()
        return file

    def mkdir(self, top: int, path: str) -> None:
        self._change()
        super().mkdir(top, path)

    def write(self, file: int, data: bytes | memoryview, offset: int) -> int:
        contents = self.files[os.fstat(file).st_ino]
        if self.changes == self.dies_at:
            # Death in the middle of a write.
            data = bytes(data)[: len(data) // 2]
        contents.dirty.append((offset, bytes(data)))
        written = super().write(file, data, offset)
        self._change()
        return written

    def truncate(self, file: int, size: int) -> None:
        self._change()
        self.files[os.fstat(file).st_ino].dirty.append((size, None))
        super().truncate(file, size)

    def fsync(self, file: int) -> None:
        self._change()
        self.files[os.fstat(file).st_ino].sync()

    def fsync_dir(self, top: int, path: str) -> None:
        self._change()
        self.names[path] = self._current(top, path)

    def rename(self, top: int, old: str, new: str) -> None:
        self._change()
        super().rename(top, old, new)

    def unlink(self, top: int, path: str) -> None:
        self._change()
        super().unlink(top, path)

    def _current(self, top: int, path: str) -> dict[str, Contents | None]:
        """The names in a folder now; None stands for a folder."""
        found: dict[str, Contents | None] = {}
        for name in self.list(top, path):
            info = os.stat(f"{path or '.'}/{name}", dir_fd=top, follow_symlinks=False)
            if not name.startswith("index.db"):
                found[name] = None if stat.S_ISDIR(info.st_mode) else self.files[info.st_ino]
        return found

    def boot(self, root: Path, target: Path, what_survives: str) -> None:
        """Put into `target` what is found when the power comes back."""
        names_survive, change = AFTER_POWER_LOSS[what_survives]
        top = os.open(root, os.O_RDONLY)
        folders = [""]
        for folder in folders:
            (target / folder).mkdir(parents=True)
            names = self._current(top, folder) if names_survive else self.names.get(folder, {})
            for name, contents in names.items():
                path = f"{folder}/{name}".lstrip("/")
                if contents is None:
                    folders.append(path)
                else:
                    (target / path).write_bytes(
                        contents.with_changes(change) if change else contents.durable
                    )
        os.close(top)


class Quick(Disk):
    """Nothing is synced: for looking at what came out."""

    def fsync(self, file: int) -> None:
        pass

    def fsync_dir(self, top: int, path: str) -> None:
        pass


def losses(make: Callable[[int], Machine], tmp_path: Path) -> Iterator[str]:
    """Lose the power before every change, look at everything that may then be found, and say what
    is wrong."""
    teller, dies_at, finished = Teller(), 0, False
    while not finished:
        machine, root, done = make(dies_at), tmp_path / str(dies_at), 0
        try:
            backend = FilesBackend(root, disk=machine)
            for done in teller.tell(backend):  # noqa: B007 - used after the death
                pass
            finished = True
            backend.close()
        except Death:
            pass
        for number, what_survives in enumerate(AFTER_POWER_LOSS):
            after = tmp_path / f"{dies_at}-{number}"
            machine.boot(root, after, what_survives)
            try:
                again = FilesBackend(after, disk=Quick())
                teller.check(again, done)
                again.close()
            except (AssertionError, HoldfastError) as error:
                yield (
                    f"power lost at change {dies_at}, after {done} steps, {what_survives}: "
                    f"{error!r}"
                )
        dies_at += 1
    assert dies_at > 50, "the story is too short to prove anything"


def test_a_power_loss_at_any_moment_loses_nothing_acknowledged_and_invents_nothing(
    tmp_path: Path,
) -> None:
    assert list(losses(Machine, tmp_path)) == []


class WithoutFileSync(Machine):
    def fsync(self, file: int) -> None:
        self._change()


class WithoutFolderSync(Machine):
    def fsync_dir(self, top: int, path: str) -> None:
        self._change()
        if path == "":
            super().fsync_dir(top, path)


class WithoutSyncOfUpperFolders(Machine):
    def fsync_dir(self, top: int, path: str) -> None:
        self._change()
        if path.count("/") in (0, 3):
            super().fsync_dir(top, path)


@pytest.mark.parametrize("mutant", [WithoutFileSync, WithoutFolderSync, WithoutSyncOfUpperFolders])
def test_without_one_of_its_syncs_the_power_loss_test_finds_a_loss(
    tmp_path: Path, mutant: type[Machine]
) -> None:
    assert next(losses(mutant, tmp_path), None) is not None


def test_without_durability_a_power_loss_does_lose_what_was_acknowledged(tmp_path: Path) -> None:
    machine = Machine()
    backend = FilesBackend(tmp_path / "store", disk=machine, durability="process")
    StreamTracker(A).write(backend)
    machine.boot(tmp_path / "store", tmp_path / "after", "nothing that was not synced")
    assert FilesBackend(tmp_path / "after").head(A) is None


def test_a_process_that_dies_at_any_moment_leaves_a_store_that_others_go_on_with(
    tmp_path: Path,
) -> None:
    teller, dies_at, finished = Teller(), 0, False
    while not finished:
        machine, root, done = Machine(dies_at), tmp_path / str(dies_at), 0
        try:
            backend = FilesBackend(root, disk=machine)
            for done in teller.tell(backend):  # noqa: B007 - used after the death
                pass
            finished = True
        except Death:
            pass
        machine.dies_at = None
        # Another process of the same machine. What it has seen must survive a power loss from then
        # on.
        witness = FilesBackend(root, disk=machine)
        seen = look(witness)
        machine.boot(root, tmp_path / f"{dies_at}-after", "nothing that was not synced")
        assert look(FilesBackend(tmp_path / f"{dies_at}-after", disk=Quick())) == seen, (
            f"died at {dies_at}"
        )
        teller.check(witness, done)
        dies_at += 1
    assert dies_at > 50


# -- a disk that fails -----------------------------------------------------------------------------


class Faulty(Disk):
    """A disk on which the n-th call of one kind fails, once."""

    def __init__(self, call: str, number: int, code: int) -> None:
        self.call, self.left, self.code, self.hits = call, number, code, 0

    def _meet(self, call: str) -> None:
        if call == self.call and not self.hits:
            self.left -= 1
            if self.left < 0:
                self.hits = 1
                raise OSError(self.code, os.strerror(self.code))

    def open(self, top: int, path: str, *, write: bool = False, create: bool = False) -> int:
        self._meet("create" if create else "open")
        return super().open(top, path, write=write, create=create)

    def mkdir(self, top: int, path: str) -> None:
        self._meet("mkdir")
        super().mkdir(top, path)

    def list(self, top: int, path: str) -> list[str]:
        self._meet("list")
        return super().list(top, path)

    def read(self, file: int, size: int, offset: int) -> bytes:
        self._meet("read")
        return super().read(file, size, offset)

    def write(self, file: int, data: bytes | memoryview, offset: int) -> int:
        self._meet("write")
        if self.call == "rest of a write" and not self.hits and self.left == 0:
            # A short write: the system takes a part, and refuses the rest.
            self.left = -1
            return super().write(file, bytes(data)[: len(data) // 3 + 1], offset)
        self._meet("rest of a write")
        return super().write(file, data, offset)

    def truncate(self, file: int, size: int) -> None:
        self._meet("truncate")
        super().truncate(file, size)

    def fsync(self, file: int) -> None:
        self._meet("fsync")

    def fsync_dir(self, top: int, path: str) -> None:
        self._meet("fsync_dir")

    def rename(self, top: int, old: str, new: str) -> None:
        self._meet("rename")
        super().rename(top, old, new)

    def unlink(self, top: int, path: str) -> None:
        self._meet("unlink")
        super().unlink(top, path)


CALLS = [
    "open",
    "create",
    "mkdir",
    "list",
    "read",
    "write",
    "rest of a write",
    "fsync",
    "fsync_dir",
    "rename",
    "unlink",
]


def _repeatedly(action: Callable[[], Snapshot]) -> Snapshot:
    try:
        return action()
    except HoldfastError:
        return action()  # the fault was in the looking


def _tell_despite(teller: Teller, root: Path, disk: Faulty) -> None:
    """Tell the story, repeating each step that fails, and check that each error was true."""
    try:
        backend = FilesBackend(root, disk=disk)
    except HoldfastError:
        backend = FilesBackend(root, disk=disk)
    for done, step in enumerate(teller.steps):
        before, after = teller.snapshots[done], teller.snapshots[done + 1]
        try:
            step(backend)
        except OutcomeUnknown:
            for stream, found in _repeatedly(lambda: look(backend)).items():
                assert found in (before[stream], after[stream])
            step(backend)
        except (Unavailable, StorageFull, ReadOnly):
            assert _repeatedly(lambda: look(backend)) == before, (
                "an error other than OutcomeUnknown stored something"
            )
            step(backend)
        assert _repeatedly(lambda: look(backend)) == after
    backend.close()


CODES = [errno.EIO, errno.ENOSPC, errno.EROFS]
FAILURES = [
    pytest.param(call, code, id=f"{call}-{errno.errorcode[code]}")
    for number, call in enumerate(CALLS)
    for place, code in enumerate(CODES)
    if LONG or (number + place) % 3 == 0
]
"""Each call with one of the codes, and in `make soak` with each."""


@pytest.mark.parametrize(("call", "code"), FAILURES)
def test_a_call_that_fails_anywhere_gives_a_true_error_and_needs_no_repair(
    tmp_path: Path, call: str, code: int
) -> None:
    teller, number, hits = Teller(), 0, 0
    while True:
        disk = Faulty(call, number, code)
        _tell_despite(teller, tmp_path / str(number), disk)
        again = FilesBackend(tmp_path / str(number), disk=Quick())
        assert look(again) == teller.snapshots[-1]
        assert ids(all_heads(again)) == ["a", "b", "c"]
        again.close()
        if not disk.hits:
            break
        hits, number = hits + 1, number + 1
    assert hits, "the fault was never met"


class FailingSync(Machine):
    """The n-th sync fails, and the system drops what it could not write: to it, the pages are now
    clean."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.left, self.failed = number, False

    def fsync(self, file: int) -> None:
        self.left -= 1
        if self.left == -1:
            self.failed = True
            self.files[os.fstat(file).st_ino].dirty.clear()
            raise OSError(errno.EIO, "failed")
        super().fsync(file)


def _losses_after_failed_syncs(tmp_path: Path) -> Iterator[str]:
    teller, number = Teller(), 0
    while True:
        machine, root, after = (
            FailingSync(number),
            tmp_path / f"s{number}",
            tmp_path / f"s{number}-after",
        )
        try:
            backend = FilesBackend(root, disk=machine)
        except HoldfastError:
            backend = FilesBackend(root, disk=machine)
        for step in teller.steps:
            try:
                step(backend)
            except HoldfastError:
                step(backend)
        if not machine.failed:
            break
        machine.boot(root, after, "nothing that was not synced")
        try:
            assert look(FilesBackend(after, disk=Quick())) == teller.snapshots[-1]
        except (AssertionError, HoldfastError) as error:
            yield f"sync {number}: {error!r}"
        number += 1
    assert number > 5, "the fault was never met"


def test_what_was_repeated_after_a_failed_sync_is_really_on_the_disk(tmp_path: Path) -> None:
    assert list(_losses_after_failed_syncs(tmp_path)) == []


def test_without_writing_again_after_a_failed_sync_a_loss_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = FileStreams._sync
    monkeypatch.setattr(
        FileStreams,
        "_sync",
        lambda self, stream, file, row, state: original(self, stream, file, None, state),
    )
    assert next(_losses_after_failed_syncs(tmp_path), None) is not None


def test_an_append_whose_sync_failed_is_settled_by_its_id(tmp_path: Path) -> None:
    disk = Faulty("fsync", 1_000_000, errno.EIO)
    backend = FilesBackend(tmp_path / "store", disk=disk)
    tracker = StreamTracker(A)
    tracker.write(backend, b"1")
    doubtful = tracker.next(b"2")
    disk.left = 0
    with pytest.raises(OutcomeUnknown):
        backend.append([doubtful])
    assert disk.hits == 1
    assert stored(backend.append([doubtful])) == [(2, 2, True)]
    assert bodies(read_all(backend, A)) == [b"1", b"2"]


# -- a disk that is full, or read-only -------------------------------------------------------------


class Limited(Disk):
    """A disk with room for so many bytes."""

    def __init__(self) -> None:
        self.room = 1 << 30

    def open(self, top: int, path: str, *, write: bool = False, create: bool = False) -> int:
        if create and self.room <= 0:
            raise OSError(errno.ENOSPC, "full")
        return super().open(top, path, write=write, create=create)

    def mkdir(self, top: int, path: str) -> None:
        if self.room <= 0:
            raise OSError(errno.ENOSPC, "full")
        super().mkdir(top, path)

    def write(self, file: int, data: bytes | memoryview, offset: int) -> int:
        if self.room <= 0:
            raise OSError(errno.ENOSPC, "full")
        data = bytes(data)[: self.room]
        self.room -= len(data)
        return super().write(file, data, offset)


@pytest.mark.parametrize("room", [0, 1, 100, 1000])
def test_a_full_disk_refuses_appends_keeps_the_rest_readable_and_works_again_when_there_is_room(
    tmp_path: Path, room: int
) -> None:
    disk = Limited()
    backend = FilesBackend(tmp_path / "store", disk=disk)
    a, c = StreamTracker(A), StreamTracker(C)
    a.write(backend, b"1")
    before = (tmp_path / "store").rglob("*.jsonl").__next__().read_bytes()
    for append in (a.next(BIG), c.next(BIG)):
        disk.room = room
        with pytest.raises(StorageFull):
            backend.append([append])
        assert bodies(read_all(backend, A)) == [b"1"]
        assert backend.head(C) is None
        assert ids(all_heads(backend)) == ["a"]
    assert (tmp_path / "store").rglob("a.jsonl").__next__().read_bytes() == before
    disk.room = 1 << 30
    a.write(backend, BIG)
    c.write(backend, BIG)
    assert bodies(read_all(backend, A)) == [b"1", BIG]
    assert not (tmp_path / "store" / "torn").exists()


def test_a_deletion_without_room_changes_nothing(tmp_path: Path) -> None:
    disk = Limited()
    backend = FilesBackend(tmp_path / "store", disk=disk)
    tracker = StreamTracker(A)
    tracker.write(backend, b"1")
    tracker.write(backend, b"2")
    for room in (0, 1, 50):
        disk.room = room
        with pytest.raises(StorageFull):
            backend.delete(A, expected=must_head(backend, A))
        assert bodies(read_all(backend, A)) == [b"1", b"2"]
    assert not list((tmp_path / "store").rglob("*.tmp"))


def test_an_index_without_room_refuses_appends_and_nothing_else(tmp_path: Path) -> None:
    backend = FilesBackend(tmp_path / "store")
    tracker = StreamTracker(A)
    tracker.write(backend, b"1")

    def limit(pages: int) -> None:
        backend._catalog.use(
            lambda index: index._db.execute(f"PRAGMA max_page_count = {pages}").fetchall()
        )

    limit(1)
    refused = 0
    for n in range(300):
        stream = StreamTracker(f"{n}-{'x' * 300}")
        try:
            stream.write(backend, b"x")
        except StorageFull:
            refused += 1
            assert backend.head(stream.stream) is None
    assert refused
    assert bodies(read_all(backend, A)) == [b"1"]
    limit(1_000_000)
    assert len(all_heads(backend)) == 301 - refused
    tracker.write(backend, b"2")


class WriteProtected(Disk):
    def open(self, top: int, path: str, *, write: bool = False, create: bool = False) -> int:
        if write or create:
            raise OSError(errno.EROFS, "read-only")
        return super().open(top, path, write=write, create=create)

    def mkdir(self, top: int, path: str) -> None:
        raise OSError(errno.EROFS, "read-only")

    def unlink(self, top: int, path: str) -> None:
        raise OSError(errno.EROFS, "read-only")


@pytest.mark.parametrize("with_index", [True, False])
def test_a_read_only_store_can_be_read_and_says_why_it_cannot_be_written(
    tmp_path: Path, with_index: bool
) -> None:
    backend = FilesBackend(tmp_path / "store")
    tracker = StreamTracker(A)
    tracker.write(backend, b"1", fields=HeadFields(status="open", due_at=1.0))
    backend.close()
    if not with_index:
        for path in (tmp_path / "store").glob("index.db*"):
            path.unlink()
    protected = FilesBackend(tmp_path / "store", disk=WriteProtected())
    assert bodies(read_all(protected, A)) == [b"1"]
    assert must_head(protected, A).version == 1
    assert ids(all_heads(protected, status="open")) == ["a"]
    assert len(protected.due(tenant="tenant", kind="kind")) == 1
    for call in (
        lambda: protected.append([tracker.next()]),
        lambda: protected.append([StreamTracker(B).next()]),
        lambda: protected.delete(A, expected=must_head(protected, A)),
    ):
        with pytest.raises(ReadOnly):
            call()
