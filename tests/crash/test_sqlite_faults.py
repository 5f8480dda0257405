"""A broken or full disk under SQLite: the n-th call fails, for every n, and no answer is a lie.

SQLite on Unix reports a full disk as such only when a write fails; a failed sync or open is an I/O
error whatever the cause. So `full` here is a failing write, and the others stand for EIO and ENOSPC
alike.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import apsw
import pytest

import holdfast
from helpers.stored.checker import judge, read_store
from helpers.stored.notes import Plan, plan
from holdfast import HoldfastError, OutcomeUnknown, Store
from holdfast.backends.sqlite import SQLiteBackend
from holdfast.errors import StorageFull, Unavailable
from holdfast.log.log import Log

from .crew import program
from .vfs import Call, watched

FAULTS = ["write", "full", "full after a part", "sync", "open", "read", "any"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory if possible: the faults are injected, a real disk adds nothing but time."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


class Faults:
    """Lets the n-th call of a kind (or of any kind) fail, and with `lasting` all that follow, until
    healed."""

    reads = True

    def __init__(self) -> None:
        self.fault, self.after, self.lasting, self.hits = "", 0, False, 0
        self._lock = threading.Lock()

    def arm(self, fault: str, after: int, *, lasting: bool) -> None:
        self.fault, self.after, self.lasting, self.hits = fault, after, lasting, 0

    def heal(self) -> None:
        self.fault = ""

    def around(self, call: Call, do: Callable[[], None], part: Callable[[int], None]) -> None:
        if self._fails(call):
            if self.fault == "full after a part":
                part(len(call.data) // 2)
            raise _error(self.fault, call.kind)
        do()

    def _fails(self, call: Call) -> bool:
        with self._lock:
            wanted = "write" if self.fault.startswith("full") else self.fault
            if wanted not in (call.kind, "any"):
                return False
            self.after -= 1
            failing = self.after == 0 or (self.lasting and self.after < 0)
            self.hits += failing
            return failing


def _error(fault: str, kind: str) -> apsw.Error:
    """What SQLite's own layer reports to it."""
    if fault.startswith("full"):
        return apsw.FullError("injected")
    if kind == "open":
        return apsw.CantOpenError("injected")
    error: Any = apsw.IOError("injected")
    error.extendedresult = {
        "read": apsw.SQLITE_IOERR_READ,
        "write": apsw.SQLITE_IOERR_WRITE,
        "sync": apsw.SQLITE_IOERR_FSYNC,
        "truncate": apsw.SQLITE_IOERR_TRUNCATE,
        "delete": apsw.SQLITE_IOERR_DELETE,
    }[kind]
    return cast("apsw.Error", error)


class Diary:
    """What was tried, and what the store said to it."""

    def __init__(self) -> None:
        self.notes: list[dict[str, Any]] = []
        self.doubts: list[tuple[Plan, str]] = []
        self.errors: Counter[str] = Counter()

    def append(self, store: Store, key: str) -> None:
        step = plan(key)
        self._append(store, step, step.id)

    def repeat_doubts(self, store: Store) -> None:
        """Repeat everything in doubt with the id that the error named."""
        doubts, self.doubts = self.doubts, []
        for step, append_id in doubts:
            self._append(store, step, append_id)

    def _append(self, store: Store, step: Plan, append_id: str | None) -> None:
        self.notes.append({"what": "try", "key": step.key})
        try:
            answer = store.stream(step.stream).append(*step.events, id=append_id)
        except OutcomeUnknown as error:
            assert error.id is not None
            self.doubts.append((step, error.id))
            self.errors["OutcomeUnknown"] += 1
        except (
            Unavailable,
            StorageFull,
        ) as error:  # anything else fails the test: it is no answer to a broken disk
            self.notes.append({"what": "refused", "key": step.key})
            self.errors[type(error).__name__] += 1
        else:
            self.notes.append(
                {"what": "ack", "key": step.key, "first": answer.first, "last": answer.last}
            )


def keys(run: str, count: int) -> list[str]:
    return [f"{run}/{number}" for number in range(count)]


def checkpoint(backend: SQLiteBackend) -> None:
    """What the thread for it does, but now."""
    try:
        connection = backend._connect()
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        connection.close()
    except (apsw.Error, Unavailable, StorageFull):
        pass  # a checkpoint that fails leaves everything in the WAL


def ordeal(path: Path, faults: Faults, fault: str, after: int, *, lasting: bool) -> Diary:
    """A store that works, then meets the fault, then is healed; and another process's view of
    it."""
    diary = Diary()
    with watched(faults) as vfs:
        backend = SQLiteBackend(path, vfs=vfs)
        store = Store(Log(backend, timeout=0, pause=lambda seconds: None), "default")
        for key in keys("before", 4):
            diary.append(store, key)
        assert not diary.errors
        faults.arm(fault, after, lasting=lasting)
        for key in keys("during", 3):
            diary.append(store, key)
            read_quietly(store)
        checkpoint(backend)
        for key in keys("during after the checkpoint", 2):
            diary.append(store, key)
        faults.heal()

        # The same open store works again, and nothing is left behind that keeps others from
        # writing.
        errors, diary.errors = diary.errors, Counter()
        diary.repeat_doubts(store)
        diary.append(store, "healed/0")
        with holdfast.open(path) as other:
            diary.append(other, "other/0")
        diary.append(store, "healed/1")
        assert not diary.errors and not diary.doubts, diary.errors
        diary.errors = errors
        store.close()
    return diary


def read_quietly(store: Store) -> None:
    """Reading gives events or a typed error, never a wrong event: the checker compares those after
    the fault."""
    try:
        list(store.stream("shared 0").read())
    except Unavailable:
        pass


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "lasting"])
@pytest.mark.parametrize("fault", FAULTS)
def test_every_answer_is_true_whichever_call_fails(fault: str, lasting: bool, folder: Path) -> None:
    faults = Faults()
    errors: Counter[str] = Counter()
    for after in itertools.count(1):
        place = folder / str(after)
        place.mkdir()
        diary = ordeal(place / "store.db", faults, fault, after, lasting=lasting)
        verdict, _ = judge(diary.notes, read_store(f"sqlite:///{place / 'store.db'}"), {})
        assert verdict.ok, (after, verdict.violations)
        shutil.rmtree(place)
        if not faults.hits:
            break
        errors += diary.errors
    print(f"{fault}: {after - 1} calls failed in turn; {dict(errors)}")
    assert after > 1, "the fault never happened"
    if fault.startswith("full"):
        assert errors["StorageFull"] and set(errors) == {"StorageFull"}
    else:
        assert "StorageFull" not in errors


@pytest.mark.parametrize("fault", [*FAULTS, "delete"])
def test_a_new_store_that_cannot_be_made_says_so_and_can_be_made_later(
    fault: str, folder: Path
) -> None:
    faults = Faults()
    failed = 0
    for after in itertools.count(1):
        path = folder / f"{after}.db"
        with watched(faults) as vfs:
            faults.arm(fault, after, lasting=False)
            try:
                SQLiteBackend(path, vfs=vfs).close()
            except StorageFull:
                assert fault.startswith("full"), after
                failed += 1
            except Unavailable:
                assert not fault.startswith("full"), after
                failed += 1
            faults.heal()
        with holdfast.open(path) as store:
            assert store.stream("x").append(("noted", None)).last == 1
        if not faults.hits:
            break
    assert failed, "no call that failed made opening fail"


def test_closing_while_the_disk_breaks_loses_nothing(folder: Path) -> None:
    faults = Faults()
    for after in itertools.count(1):
        diary, path = Diary(), folder / f"{after}.db"
        with watched(faults) as vfs:
            store = Store(Log(SQLiteBackend(path, vfs=vfs)), "default")
            for key in keys("before", 4):
                diary.append(store, key)
            faults.arm("any", after, lasting=True)
            store.close()
            faults.heal()
        verdict, _ = judge(diary.notes, read_store(f"sqlite:///{path}"), {})
        assert verdict.ok and verdict.acknowledged == 4, (after, verdict.violations)
        if not faults.hits:
            break
    assert after > 5, "closing did next to nothing that could fail"


def test_a_disk_limit_that_is_really_reached_is_reported_and_passes(folder: Path) -> None:
    """RLIMIT_FSIZE: the system itself refuses to let the file grow."""
    done = subprocess.run(
        program("small_disk", folder / "store.db", "limit"),
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    print(done.stdout.decode())


def test_a_disk_that_is_really_full_is_reported_and_passes(folder: Path) -> None:
    """A small file system of our own, in a user namespace: real ENOSPC, no root needed."""
    place = folder / "small"
    place.mkdir()
    script = 'mount -t tmpfs -o size=2m none "$1" && shift && exec "$@"'
    inside = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        script,
        "sh",
        str(place),
    ]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*inside, "true"], capture_output=True).returncode
    ):
        pytest.skip("this machine does not let us mount a small file system of our own")
    command = [*inside, *program("small_disk", place / "store.db", "full")]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    print(done.stdout.decode())


def test_a_folder_that_is_gone_is_reported(folder: Path) -> None:
    with pytest.raises(HoldfastError, match="does not exist"):
        holdfast.open(folder / "nowhere" / "store.db")
