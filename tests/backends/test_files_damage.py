"""The files backend: torn tails, damage, and the index, which can always be made anew."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from helpers.engines.files_stores import file_of, forget_index
from holdfast.backends import HeadFields
from holdfast.backends.files import FilesBackend, catalog
from holdfast.backends.files.disk import Disk
from holdfast.backends.files.frame import AppendFrame, encode_frame
from holdfast.conformance.build import (
    StreamTracker,
    all_heads,
    bodies,
    ids,
    key,
    must_head,
    read_all,
    stored,
    versions,
)
from holdfast.errors import CorruptRecord


def tamper(root: Path, sql: str) -> None:
    """Change the index behind the back of its owner."""
    db = apsw.Connection(str(root / "index.db"))
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    db.execute(sql).fetchall()
    db.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def backend(root: Path) -> Iterator[FilesBackend]:
    backend = FilesBackend(root, durability="process")
    yield backend
    backend.close()


# -- torn tails and damage -------------------------------------------------------------------------


class Sample:
    """A store with one stream of three frames, which can be brought back to that state at once."""

    def __init__(self, root: Path) -> None:
        self.root, self.tracker = root, StreamTracker()
        backend = FilesBackend(root, durability="process")
        self.tracker.write(backend, b'{"n":1}', b"\x00two")
        self.tracker.write(backend, b'{"n":3}', indexed=True)
        self.before = self.tracker.version
        self.start = file_of(root, self.tracker.stream).stat().st_size
        self.tracker.write(backend, b'{"n":4}', b'{"n":5}')
        self.path = file_of(root, self.tracker.stream)
        self.data = self.path.read_bytes()
        self.records = read_all(backend, self.tracker.stream)
        backend.close()

    def reopened(self, data: bytes, *, same_boot: bool = False) -> FilesBackend:
        """The store after its file came to hold `data`; the index survives only within the boot."""
        with self.path.open("r+b") as file:
            file.write(data)
            file.truncate()
        if not same_boot:
            forget_index(self.root)
        return FilesBackend(self.root, durability="process")

    def next_after(self, count: int) -> StreamTracker:
        """A writer that knows the first `count` records."""
        tracker = StreamTracker(self.tracker.stream)
        tracker.incarnation, tracker.version = self.tracker.incarnation, count
        tracker.hash = self.records[count - 1].hash
        return tracker


@pytest.fixture
def sample(root: Path) -> Sample:
    return Sample(root)


def test_a_tail_torn_at_any_byte_is_ignored_by_readers_and_cut_by_the_next_writer(
    sample: Sample, caplog: pytest.LogCaptureFixture
) -> None:
    for cut in range(sample.start, len(sample.data)):
        backend = sample.reopened(sample.data[:cut])
        torn = sample.data[sample.start : cut]
        assert read_all(backend, sample.tracker.stream) == sample.records[: sample.before]
        assert must_head(backend, sample.tracker.stream).version == sample.before
        assert ids(all_heads(backend)) == ["s"]
        assert sample.path.read_bytes() == sample.data[:cut], "readers never repair"
        caplog.clear()
        with caplog.at_level(logging.WARNING, "holdfast"):
            sample.next_after(sample.before).write(backend, b"after")
        assert bodies(read_all(backend, sample.tracker.stream))[sample.before :] == [b"after"]
        assert sample.path.read_bytes().startswith(sample.data[: sample.start])
        kept = [path.read_bytes() for path in sample.root.glob("torn/*")]
        assert kept == ([torn] if torn else [])
        assert len(caplog.records) == bool(torn)
        assert "body" not in caplog.text
        assert len(backend.describe().warnings) == 1 + bool(torn)
        backend.close()
        shutil.rmtree(sample.root / "torn", ignore_errors=True)


def test_nothing_that_was_acknowledged_in_this_boot_is_taken_for_a_torn_tail(
    sample: Sample,
) -> None:
    for cut in range(sample.start, len(sample.data)):
        backend = sample.reopened(sample.data[:cut], same_boot=True)
        with pytest.raises(CorruptRecord) as caught:
            sample.next_after(sample.before).write(backend)
        assert caught.value.version == sample.before + 1
        assert f"byte offset {sample.start}" in str(caught.value)
        assert backend.read(sample.tracker.stream) == sample.records[: sample.before]
        assert sample.path.read_bytes() == sample.data[:cut]
        backend.close()


@pytest.mark.parametrize("written", [0, 1, 40, 200])
@pytest.mark.parametrize("zeros", [1, 511, 512, 4096, 100_000])
def test_a_tail_of_zeros_is_torn(sample: Sample, written: int, zeros: int) -> None:
    data = sample.data[: sample.start + written] + bytes(zeros)
    backend = sample.reopened(data)
    assert read_all(backend, sample.tracker.stream) == sample.records[: sample.before]
    sample.next_after(sample.before).write(backend, b"after")
    assert [path.read_bytes() for path in sample.root.glob("torn/*")] == [data[sample.start :]]


def test_a_sector_that_never_reached_the_disk_is_torn_even_if_the_end_did(root: Path) -> None:
    backend = FilesBackend(root, durability="process")
    tracker = StreamTracker()
    tracker.write(backend, b"a")
    start = file_of(root, tracker.stream).stat().st_size
    known = (tracker.version, tracker.hash)
    tracker.write(backend, b'{"big":"%s"}' % (b"x" * 5000))
    backend.close()
    path = file_of(root, tracker.stream)
    data = path.read_bytes()
    path.write_bytes(data[:1024] + bytes(1024) + data[2048:])
    forget_index(root)
    backend = FilesBackend(root, durability="process")
    assert bodies(read_all(backend, tracker.stream)) == [b"a"]
    tracker.version, tracker.hash = known
    tracker.write(backend, b"b")
    assert path.read_bytes()[:start] == data[:start]


@pytest.mark.parametrize(
    "garbage",
    [b"x", b"garbage" * 1000, b'{"length":', b'{"length":12', b"\xff" * 600, b'{"first":1'],
)
def test_a_tail_of_garbage_without_an_end_is_torn(sample: Sample, garbage: bytes) -> None:
    backend = sample.reopened(sample.data + garbage)
    assert read_all(backend, sample.tracker.stream) == sample.records
    sample.next_after(5).write(backend, b"six")
    assert [path.read_bytes() for path in sample.root.glob("torn/*")] == [garbage]


@pytest.mark.parametrize(
    "garbage", [b"\n", b"garbage\n", b"{}\n", b'{"length":99}\n', b"one\ntwo", b"\0a\n"]
)
def test_a_tail_that_could_have_been_acknowledged_is_damage_and_stays(
    sample: Sample, garbage: bytes
) -> None:
    backend = sample.reopened(sample.data + garbage)
    with pytest.raises(CorruptRecord):
        backend.head(sample.tracker.stream)
    with pytest.raises(CorruptRecord):
        sample.next_after(5).write(backend)
    with pytest.raises(CorruptRecord):
        backend.read(sample.tracker.stream, reverse=True)
    assert backend.read(sample.tracker.stream) == sample.records
    with pytest.raises(CorruptRecord):
        backend.read(sample.tracker.stream, after=5)
    assert sample.path.read_bytes() == sample.data + garbage


@pytest.mark.parametrize("same_boot", [True, False])
def test_a_flipped_bit_at_any_byte_is_reported_and_never_returned_or_cut(
    sample: Sample, same_boot: bool
) -> None:
    for offset in range(len(sample.data)):
        changed = bytearray(sample.data)
        changed[offset] ^= 1 << (offset % 8)
        backend = sample.reopened(bytes(changed), same_boot=same_boot)
        seen, problems = [], 0
        for after in range(5):
            try:
                seen += backend.read(sample.tracker.stream, after=after, limit=1)
            except CorruptRecord as error:
                problems += 1
                assert "byte offset" in str(error)
        assert problems, offset
        assert all(record == sample.records[record.version - 1] for record in seen), offset
        try:
            head = must_head(backend, sample.tracker.stream)
            assert (head.version, head.hash) == (5, sample.tracker.hash)
            sample.next_after(5).write(backend)
        except CorruptRecord:
            pass
        assert sample.path.read_bytes().startswith(changed), offset
        assert not (sample.root / "torn").exists(), offset
        backend.close()


def test_damage_in_the_middle_leaves_what_is_before_and_behind_it_readable(sample: Sample) -> None:
    middle = sample.data.index(b'{"n":3}')
    damaged = sample.data[:middle] + b'{"n":9}' + sample.data[middle + 7 :]
    backend = sample.reopened(damaged)
    assert backend.read(sample.tracker.stream) == sample.records[:2]
    with pytest.raises(CorruptRecord) as caught:
        backend.read(sample.tracker.stream, after=2)
    assert caught.value.version == 3
    assert backend.read(sample.tracker.stream, after=3) == sample.records[3:]
    assert versions(backend.read(sample.tracker.stream, reverse=True)) == [5, 4]
    with pytest.raises(CorruptRecord):
        backend.read(sample.tracker.stream, after=4, reverse=True)
    assert sample.path.read_bytes() == damaged


def test_an_id_that_may_be_in_a_damaged_frame_is_neither_known_nor_new(sample: Sample) -> None:
    middle = sample.data.index(b'{"n":3}')
    backend = sample.reopened(sample.data[:middle] + b'{"n":9}' + sample.data[middle + 7 :])
    with pytest.raises(CorruptRecord):
        backend.append([sample.next_after(5).next(indexed=True)])
    with pytest.raises(CorruptRecord):
        backend.append([sample.next_after(2).next()])
    sample.next_after(5).write(backend)


def test_a_missing_frame_is_noticed(sample: Sample) -> None:
    lines = sample.data.splitlines(keepends=True)
    backend = sample.reopened(lines[0] + lines[2])
    assert backend.read(sample.tracker.stream) == sample.records[:2]
    for query in ({"after": 2}, {"after": 4, "reverse": True}):
        with pytest.raises(CorruptRecord):
            backend.read(sample.tracker.stream, **query)  # type: ignore[arg-type]


@pytest.mark.parametrize("order", [(0, 2, 1), (2, 1, 0), (0, 1, 2, 1), (0, 1, 2, 2), (0, 2), (2,)])
@pytest.mark.parametrize("same_boot", [True, False])
def test_valid_frames_at_the_end_that_are_not_in_order_are_damage_not_a_shorter_stream(
    sample: Sample, order: tuple[int, ...], same_boot: bool
) -> None:
    lines = sample.data.splitlines(keepends=True)
    backend = sample.reopened(b"".join(lines[n] for n in order), same_boot=same_boot)
    for call in (
        lambda: backend.head(sample.tracker.stream),
        lambda: backend.read(sample.tracker.stream, reverse=True),
        lambda: sample.next_after(5).write(backend),
    ):
        with pytest.raises(CorruptRecord, match="byte offset"):
            call()
    assert not (sample.root / "torn").exists()


def test_a_tombstone_behind_other_frames_is_damage(sample: Sample) -> None:
    stream = sample.tracker.stream
    line = encode_frame(AppendFrame(stream, 0, 0, deleted=(sample.tracker.incarnation,)))
    backend = sample.reopened(sample.data + line)
    with pytest.raises(CorruptRecord, match="not in order"):
        backend.head(stream)


def test_a_valid_file_under_the_name_of_another_stream_is_refused(sample: Sample) -> None:
    other = key("other")
    backend = sample.reopened(sample.data)
    StreamTracker(other).write(backend)
    file_of(sample.root, other).write_bytes(sample.data)
    for again in (backend, sample.reopened(sample.data)):
        with pytest.raises(CorruptRecord):
            again.head(other)
        with pytest.raises(CorruptRecord):
            again.read(other)
        with pytest.raises(CorruptRecord):
            StreamTracker(other).write(again)


def test_a_file_that_was_taken_away_is_reported_within_the_boot(sample: Sample) -> None:
    sample.path.unlink()
    backend = FilesBackend(sample.root)
    for call in (backend.head, backend.read):
        with pytest.raises(CorruptRecord):
            call(sample.tracker.stream)
    forget_index(sample.root)
    assert backend.head(sample.tracker.stream) is None


def test_hostile_lines_with_a_right_checksum_cost_an_error_only(sample: Sample) -> None:
    from holdfast.backends.files.frame import _checksum

    for inner in (
        b'"first":5,"last":6',
        b'"first":6,"last":6,"stream":3',
        b"[" * 100_000,
        b'"first":6,"last":99999,"appends":[]',
    ):
        start = b'{"length":%d,' % 999 + inner
        line = b'{"length":%d,' % (len(start) + 43) + inner
        line = b'{"length":%d,' % (len(line) + 43) + inner
        line += _checksum(line)
        backend = sample.reopened(sample.data + line)
        with pytest.raises(CorruptRecord):
            backend.head(sample.tracker.stream)
        backend.close()


# -- the index -------------------------------------------------------------------------------------


def test_a_lost_index_is_rebuilt_with_heads_due_times_and_ids(
    backend: FilesBackend, root: Path
) -> None:
    trackers = [StreamTracker(f"s{n}") for n in range(20)]
    for n, tracker in enumerate(trackers):
        tracker.write(
            backend,
            b"a",
            indexed=True,
            id=b"chosen",
            fields=HeadFields(status="even" if n % 2 == 0 else "odd", due_at=n),
        )
    listed = all_heads(backend)
    backend.close()
    forget_index(root)
    again = FilesBackend(root, durability="process")
    assert [head.stream for head in all_heads(again)] == [head.stream for head in listed]
    assert len(all_heads(again, status="odd")) == 10
    assert [head.fields.due for head in again.due(tenant="tenant", kind="kind", before=5.0)] == [
        0,
        1,
        2,
        3,
        4,
        5,
    ]
    for tracker in trackers:
        assert stored(again.append([tracker.next(id=b"chosen", indexed=True)])) == [(1, 1, True)]


def test_an_index_that_is_deleted_while_the_store_is_open_is_replaced(
    backend: FilesBackend, root: Path
) -> None:
    other = FilesBackend(root, durability="process")
    StreamTracker("a").write(backend)
    StreamTracker("b").write(other)
    forget_index(root)
    StreamTracker("c").write(backend)
    assert ids(all_heads(other)) == ids(all_heads(backend)) == ["a", "b", "c"]
    forget_index(root)
    assert ids(all_heads(other)) == ["a", "b", "c"]
    other.close()
    StreamTracker("d").write(backend)
    assert ids(all_heads(FilesBackend(root))) == ["a", "b", "c", "d"]


def test_an_index_that_lost_its_log_is_replaced(backend: FilesBackend, root: Path) -> None:
    StreamTracker("a").write(backend)
    backend.close()
    (root / "index.db-wal").unlink()
    assert ids(all_heads(FilesBackend(root))) == ["a"]


@pytest.mark.parametrize("content", [b"", b"garbage" * 1000, b"SQLite format 3\0" + bytes(5000)])
def test_an_index_that_is_not_one_is_replaced(
    backend: FilesBackend, root: Path, content: bytes
) -> None:
    tracker = StreamTracker()
    tracker.write(backend, indexed=True, id=b"chosen")
    backend.close()
    for path in root.glob("index.db*"):
        path.write_bytes(content)
    again = FilesBackend(root)
    assert ids(all_heads(again)) == ["s"]
    assert stored(again.append([tracker.next(id=b"chosen", indexed=True)])) == [(1, 1, True)]


def test_an_index_whose_tables_are_gone_or_changed_is_replaced(
    backend: FilesBackend, root: Path
) -> None:
    StreamTracker().write(backend)
    for sql in ("DROP TABLE streams", "UPDATE streams SET fields = x'ff'", "DROP TABLE meta"):
        backend.close()
        tamper(root, sql)
        backend = FilesBackend(root)
        assert ids(all_heads(backend)) == ["s"], sql
    backend.close()


def test_the_index_of_another_boot_or_of_a_copied_store_is_not_believed(
    backend: FilesBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    StreamTracker("a").write(backend)
    StreamTracker("b").write(backend)
    backend.close()

    def omit(store: Path) -> FilesBackend:
        tamper(store, "DELETE FROM streams WHERE id = x'62'")
        return FilesBackend(store)

    assert ids(all_heads(omit(root))) == ["a"], (
        "in the same boot it is believed: that is what the test changes"
    )
    shutil.copytree(root, root.parent / "copy")
    assert ids(all_heads(omit(root.parent / "copy"))) == ["a", "b"]
    monkeypatch.setattr(catalog, "boot_id", lambda: "another")
    assert ids(all_heads(omit(root))) == ["a", "b"]
    monkeypatch.setattr(catalog, "boot_id", lambda: "")
    assert ids(all_heads(omit(root))) == ["a", "b"]


def test_without_room_for_an_index_the_store_is_still_readable(
    backend: FilesBackend, root: Path
) -> None:
    class NoNewFiles(Disk):
        def open(self, top: int, path: str, *, write: bool = False, create: bool = False) -> int:
            if create:
                raise OSError(28, "no space")
            return super().open(top, path, write=write, create=create)

    tracker = StreamTracker()
    tracker.write(backend, b"a", fields=HeadFields(due_at=1.0))
    backend.close()
    forget_index(root)
    again = FilesBackend(root, disk=NoNewFiles())
    assert ids(all_heads(again)) == ["s"]
    assert len(again.due(tenant="tenant", kind="kind")) == 1
    assert bodies(read_all(again, tracker.stream)) == [b"a"]
    assert must_head(again, tracker.stream).version == 1
    assert again.describe().sizes["data"] > 0


def test_a_version_is_found_without_reading_the_history(backend: FilesBackend) -> None:
    tracker = StreamTracker()
    for n in range(300):
        tracker.write(backend, b'{"n":%d,"x":"%s"}' % (n, b"x" * 2000))
    read = []

    class Counting(Disk):
        def read(self, file: int, size: int, offset: int) -> bytes:
            data = super().read(file, size, offset)
            read.append(len(data))
            return data

    again = FilesBackend(backend._root, durability="process", disk=Counting())
    assert must_head(again, tracker.stream).version == 300
    for query in ({"after": 150, "limit": 1}, {"after": 150, "limit": 1, "reverse": True}):
        read.clear()
        [record] = again.read(tracker.stream, **query)  # type: ignore[arg-type]
        assert record.version in (149, 151)
        assert sum(read) < 150_000, "600 000 bytes are there"
