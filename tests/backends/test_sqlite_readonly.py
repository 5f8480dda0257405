"""A store that a user may only read: it opens, everything can be read, and writes are refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from helpers.stores import KEY
from holdfast.backends.sqlite import backend
from holdfast.errors import ReadOnly

pytestmark = pytest.mark.unencrypted("runs on encrypted stores by itself")

PROGRAM = """
import os, sys
from click.testing import CliRunner

import holdfast
from holdfast.cli.app import app

COMMANDS = (["tasks"], ["task", "t"], ["conversations"], ["messages", "c"], ["health"], ["verify"])

def run_commands(path, key):
    for command, *rest in COMMANDS:
        done = CliRunner().invoke(app, [command, path, *rest], env={"HOLDFAST_KEY": key})
        assert done.exit_code == 0, (command, done.output, done.exception)

def read(store):
    assert [m["content"] for m in store.conversation("c").messages()] == ["hello"]
    assert [task.id for task in store.tasks()] == ["t"]
    assert store.task("t").view().steps[0].result == 1
    assert [hit.text for hit in store.memory("m").recall("tea")] == ["Ann likes tea"]
    report = store.verify()
    assert report.ok and report.streams, report

def refuse(write):
    try:
        write()
    except holdfast.errors.ReadOnly:
        return
    raise AssertionError("it was written")

path, writable, key = sys.argv[1], sys.argv[2], sys.argv[3] or None
# Python may be where only root can read it: import everything before.
with holdfast.open(writable, key=key) as store:
    read(store)
    store.stream("gone").append(("noted", 1))
    store.stream("gone").delete()
run_commands(writable, key)
folder = os.path.dirname(path)
for name in os.listdir(folder):
    os.chmod(os.path.join(folder, name), 0o444)
os.chmod(folder, 0o555)
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)

with holdfast.open(path, key=key) as store:
    read(store)
    assert any("read-only" in warning for warning in store.health().warnings)
    message = {"role": "user", "content": "more"}
    refuse(lambda: store.conversation("c").append(message))
    refuse(lambda: store.conversation("new").append(message))
    refuse(lambda: store.conversation("c").delete())
    refuse(lambda: store.task("t").cancel())
    refuse(lambda: store.memory("m").remember("more"))
    refuse(lambda: holdfast.open(os.path.join(folder, "new.db")))
run_commands(path, key)
print("read")
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that another user may enter, which those of pytest may not."""
    place = Path(tempfile.mkdtemp(dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
    for folder in (place, place / "store", place / "writable"):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
    yield place
    (place / "store").chmod(0o755)
    shutil.rmtree(place)


def write_sample(path: Path, key: str | None = None) -> holdfast.Store:
    store = holdfast.open(path, key=key)
    store.conversation("c").append({"role": "user", "content": "hello"})
    store.memory("m").remember("Ann likes tea")
    store.memory("m").recall("tea")
    with store.task("t", goal="read it") as task:
        task.step("one", lambda: 1)
    return store


def read_as_another(place: Path, key: str | None = None) -> str:
    """Run the program as a user who may only read, and return what it prints."""
    write_sample(place / "writable" / "agents.db", key).close()
    paths = [str(place / name / "agents.db") for name in ("store", "writable")]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *paths, key or ""],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
def test_a_store_that_may_only_be_read_opens_for_reading(place: Path, key: str | None) -> None:
    write_sample(place / "store" / "agents.db", key).close()
    assert read_as_another(place, key).startswith("read\n")


def copy_files(source: Path, target: Path, *suffixes: str) -> None:
    """As a process leaves them that is killed."""
    for suffix in suffixes:
        shutil.copy(f"{source}{suffix}", f"{target}{suffix}")
    assert Path(f"{target}-wal").stat().st_size


def test_a_log_that_a_killed_process_has_left_is_read_too(place: Path) -> None:
    with write_sample(place / "other.db"):
        copy_files(place / "other.db", place / "store" / "agents.db", "", "-wal", "-shm")
    assert read_as_another(place).startswith("read\n")


def test_a_log_that_cannot_be_read_is_not_ignored(place: Path) -> None:
    with write_sample(place / "other.db"):
        copy_files(place / "other.db", place / "store" / "agents.db", "", "-wal")
    told = read_as_another(place)
    assert "ReadOnly" in told and "open it once where it can be written to" in told


def test_what_another_user_writes_meanwhile_is_read(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is open for reading, the log of a writer appears, and goes again."""
    path = place / "store" / "agents.db"
    write_sample(path).close()
    monkeypatch.setattr(backend, "is_readonly", lambda _: True)
    with holdfast.open(path) as reader:
        monkeypatch.undo()
        for number in range(1, 3):
            with holdfast.open(path) as writer:
                writer.conversation("c").append({"role": "user", "content": "more"})
                assert len(reader.conversation("c").messages()) == 1 + number
            assert len(reader.conversation("c").messages()) == 1 + number
        with pytest.raises(ReadOnly):
            reader.conversation("c").append({"role": "user", "content": "mine"})
