"""Backups of SQLite stores: whole, of one instant, checked, and never in the place of something
else."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

import holdfast
from helpers.stored.store_copies import dump, many, populate
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.sqlite import backup
from holdfast.errors import AlreadyExists, CorruptRecord, NotSetUp


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "agents.db"
    with holdfast.open(path) as store:
        populate(store)
    return path


def test_a_backup_is_the_same_store(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "backup.db"
    size = holdfast.backup(source, target)
    assert dump(target) == dump(source)
    assert size == target.stat().st_size
    assert sorted(tmp_path.iterdir()) == [source, target]
    with holdfast.open(target) as store:
        assert (
            store.stream("orders-7").append(("order.placed", {"number": 1}), id="req-1").duplicate
        )
        assert store.stream("orders-7").append(("order.sold", 1)).last == 6


def test_what_is_only_in_the_wal_is_in_the_backup(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as store:
        many(store, 20)
        assert (tmp_path / "agents.db-wal").stat().st_size > 0
        holdfast.backup(store, tmp_path / "backup.db")
        many(store.for_tenant("later"), 1)
    saved = dump(tmp_path / "backup.db")
    assert len(saved) == 21
    assert saved.items() <= dump(tmp_path / "agents.db").items()


def test_only_its_owner_can_read_it(source: Path, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        holdfast.backup(source, tmp_path / "backup.db")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "backup.db").stat().st_mode) == 0o600


WRITER = """
import sys, holdfast
with holdfast.open(sys.argv[1]) as store:
    number = 0
    while True:
        number += 1
        store.stream(f"s-{number % 7}").append(("noted", number), ("noted", "x" * 3000))
        print(number, flush=True)
"""


def test_it_is_made_while_another_process_writes(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In steps of one page, so that there are writes between any two of them."""
    monkeypatch.setattr(backup, "STEP_PAGES", 1)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(source)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    try:
        acknowledged = 0
        while acknowledged < 50:
            acknowledged = int(writer.stdout.readline())
        holdfast.backup(source, tmp_path / "backup.db")
        after = acknowledged
        while after < acknowledged + 50:
            after = int(writer.stdout.readline())
    finally:
        writer.kill()
        writer.stdout.close()
        writer.wait()
    saved, now = dump(tmp_path / "backup.db"), dump(source)
    assert saved.keys() <= now.keys()
    for stream, (_, records) in saved.items():
        assert records == now[stream][1][: len(records)]
    numbers = [
        record
        for stream, (_, records) in saved.items()
        if stream[2].startswith("s-")
        for record in records
    ]
    assert len(numbers) >= 2 * acknowledged
    assert len(numbers) % 2 == 0  # no append in halves
    with holdfast.open(tmp_path / "backup.db") as store:
        for number in range(7):
            assert list(store.stream(f"s-{number}").read())


def test_a_file_is_replaced_only_if_told(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "backup.db"
    target.write_text("precious")
    with pytest.raises(AlreadyExists, match="already exists"):
        holdfast.backup(source, target)
    assert target.read_text() == "precious"
    holdfast.backup(source, target, overwrite=True)
    assert dump(target) == dump(source)


def test_a_file_that_appears_meanwhile_is_not_replaced(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "backup.db"
    check = backup._verify

    def late(draft: str, path: str) -> None:
        check(draft, path)
        target.write_text("precious")

    monkeypatch.setattr(backup, "_verify", late)
    with pytest.raises(AlreadyExists):
        holdfast.backup(source, target)
    assert target.read_text() == "precious"
    assert sorted(tmp_path.iterdir()) == [source, target]


def test_the_store_itself_is_never_replaced(source: Path, tmp_path: Path) -> None:
    before = dump(source)
    (tmp_path / "link.db").symlink_to(source)
    for path in (source, tmp_path / "link.db"):
        with pytest.raises(AlreadyExists, match="the store itself"):
            holdfast.backup(source, path, overwrite=True)
    assert dump(source) == before


@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
def test_a_log_of_another_database_is_not_left_beside_the_backup(
    suffix: str, source: Path, tmp_path: Path
) -> None:
    (tmp_path / f"backup.db{suffix}").write_bytes(b"of another database")
    with pytest.raises(AlreadyExists, match="was not closed"):
        holdfast.backup(source, tmp_path / "backup.db", overwrite=True)
    assert not (tmp_path / "backup.db").exists()


def test_a_backup_that_is_in_use_is_not_replaced(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "backup.db"
    holdfast.backup(source, target)
    with holdfast.open(target) as store:
        store.stream("mine").append(("noted", 1))
        with pytest.raises(AlreadyExists):
            holdfast.backup(source, target, overwrite=True)
        assert store.stream("mine").version() == 1


def test_a_damaged_store_gives_no_backup(source: Path, tmp_path: Path) -> None:
    database = sqlite3.connect(source)
    [[page]] = database.execute(
        "SELECT rootpage FROM sqlite_schema WHERE name = 'records_by_place'"
    ).fetchall()
    [[size]] = database.execute("PRAGMA page_size").fetchall()
    database.close()
    with source.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * 64)
    with pytest.raises(CorruptRecord):
        holdfast.backup(source, tmp_path / "backup.db")
    assert sorted(tmp_path.iterdir()) == [source]


def test_an_error_leaves_nothing_behind(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(backup, "_sync", refuse)
    with pytest.raises(holdfast.errors.Unavailable, match="Input/output error"):
        holdfast.backup(source, tmp_path / "backup.db")
    assert sorted(tmp_path.iterdir()) == [source]


def test_the_file_and_its_name_are_on_the_disk_when_it_returns(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, synced = backup._sync, list[tuple[bool, bool]]()

    def watched(path: str) -> None:
        sync(path)
        synced.append((os.path.isdir(path), (tmp_path / "backup.db").exists()))

    monkeypatch.setattr(backup, "_sync", watched)
    holdfast.backup(source, tmp_path / "backup.db")
    assert synced == [(False, False), (True, True)]


@pytest.mark.parametrize("missing", ["typo.db", "nowhere/typo.db"])
def test_a_store_that_is_not_there_is_not_made(missing: str, tmp_path: Path) -> None:
    with pytest.raises(NotSetUp):
        holdfast.backup(tmp_path / missing, tmp_path / "backup.db")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_named(source: Path, tmp_path: Path) -> None:
    with pytest.raises(holdfast.errors.Unavailable, match="directory does not exist"):
        holdfast.backup(source, tmp_path / "nowhere" / "backup.db")


def test_other_engines_are_copied_instead(tmp_path: Path) -> None:
    with (
        holdfast.open(MemoryBackend()) as store,
        pytest.raises(ValueError, match="copy it to a file instead"),
    ):
        holdfast.backup(store, tmp_path / "backup.db")
    assert list(tmp_path.iterdir()) == []


def test_a_stranger_is_not_backed_up(tmp_path: Path) -> None:
    connection = apsw.Connection(str(tmp_path / "other.db"))
    connection.execute("CREATE TABLE t (x)")
    connection.close()
    with pytest.raises(holdfast.errors.UnsupportedVersion):
        holdfast.backup(tmp_path / "other.db", tmp_path / "backup.db")


def test_writers_do_not_wait_for_a_backup(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write is acknowledged in the middle of the backup, which has not got it."""
    monkeypatch.setattr(backup, "STEP_PAGES", 1)

    class Slow(apsw.Connection):
        def backup(self, database: str, other: apsw.Connection, name: str) -> apsw.Backup:
            work = super().backup(database, other, name)
            work.step(1)
            with holdfast.open(source) as store:
                store.stream("meanwhile").append(("noted", 1))
            return work

    monkeypatch.setattr(backup.apsw, "Connection", Slow)
    holdfast.backup(source, tmp_path / "backup.db")
    assert ("default", "stream", "meanwhile") in dump(source)
    assert ("default", "stream", "meanwhile") not in dump(tmp_path / "backup.db")
