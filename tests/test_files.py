"""What is particular to the files backend: its layout, its names, torn tails, damage, the index, links and processes."""

from __future__ import annotations

import json
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.backends import Appended, Fields, StreamKey
from holdfast.backends._filesystem import filesystem_of, refuse_network_filesystem
from holdfast.backends.files import FilesBackend, _catalog
from holdfast.backends.files._disk import Disk
from holdfast.backends.files._frame import encode_frame
from holdfast.backends.files._names import file_name, path_of
from holdfast.conformance._build import Life, all_heads, bodies, ids, key, must_head, read_all, stored, versions
from holdfast.errors import CorruptRecord, InvalidId, UnsupportedFilesystem, UnsupportedVersion

HOSTILE = [
    *(
        "..",
        ".",
        "/",
        "../../../../etc/passwd",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "C:\\x",
        "~",
        "~root",
        "%",
        "%2e%2e",
        "",
        " ",
    ),
    *("A", "a", "À", "À", "CON", "con", "nul", "com1", "a\0b", "\n", "a.jsonl", "a.jsonl.tmp", "-rf", "*", "😀"),
    *("x" * 119, "x" * 120, "x" * 121, "x" * 5000, "é" * 2000, "X" * 121),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def backend(root: Path) -> Iterator[FilesBackend]:
    backend = FilesBackend(root, durability="process")
    yield backend
    backend.close()


def file_of(root: Path, stream: StreamKey) -> Path:
    return root / path_of(stream)


def forget_index(root: Path) -> None:
    """As after a reboot: what was acknowledged is only known from the files."""
    for path in root.glob("index.db*"):
        path.unlink()


def tamper(root: Path, sql: str) -> None:
    """Change the index behind the back of its owner."""
    db = apsw.Connection(str(root / "index.db"))
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    db.execute(sql).fetchall()
    db.close()


def everything_below(root: Path) -> dict[str, str]:
    return {str(path): oct(stat.S_IMODE(path.lstat().st_mode)) for path in root.rglob("*")}


# -- layout and names --------------------------------------------------------------------------------------------


def test_every_line_is_json_with_the_body_as_it_was(backend: FilesBackend, root: Path) -> None:
    life = Life("chat")
    life.write(backend, b'{"role": "user", "content": "hi"}', b"\x00binary\n")
    life.write(backend, b'{"n":1}', fields=Fields(status="open"))
    lines = [json.loads(line) for line in file_of(root, life.stream).read_bytes().splitlines()]
    records = [record for line in lines for append in line["appends"] for record in append["records"]]
    assert records[0]["body"] == {"role": "user", "content": "hi"}
    assert "base64" in records[1]
    assert [(line["first"], line["last"]) for line in lines] == [(1, 2), (3, 3)]
    assert lines[1]["fields"] == {"status": "open"}
    assert lines[0]["stream"] == ["tenant", "kind", "chat"]


@pytest.mark.parametrize(
    "body",
    [
        *(
            b"",
            b"{}",
            b"{ }",
            b' {"a":1}',
            b'{"a":1} ',
            b'{"a":\n1}',
            b'{"a":"\xff"}',
            b'{"a":"\\ud800"}',
            b'{"a":1e999}',
        ),
        *(b"{},{}", b'{},"b":{}', b'{}],"x":[{}', b'{"a":NaN}', b"[1]", b"null", b"\0", b'{"a":1,"a":2}', b'{"\r":1}'),
        *(
            b'{"a":' * 150 + b"{}" + b"}" * 150,
            b'{"a":' * 990 + b"{}" + b"}" * 990,
            b'{"a":' * 10**5 + b"{}" + b"}" * 10**5,
        ),
        b'{"sum":"' + b"0" * 32 + b'"}',
    ],
    ids=lambda body: repr(body[:20]),
)
def test_a_body_comes_back_byte_for_byte_and_leaves_the_line_json(
    backend: FilesBackend, root: Path, body: bytes
) -> None:
    life = Life()
    life.write(backend, body)
    assert bodies(read_all(backend, life.stream)) == [body]
    assert bodies(read_all(FilesBackend(root), life.stream)) == [body]
    [line] = file_of(root, life.stream).read_bytes().splitlines()
    assert line.count(b"\0") == 0
    json.loads(line)


@given(
    st.lists(st.binary() | st.dictionaries(st.text(), st.integers()).map(lambda d: json.dumps(d).encode()), min_size=1)
)
def test_frames_of_any_bodies_survive_encoding(records: list[bytes]) -> None:
    from holdfast.backends.files._frame import Frame, Stored, decode_frame

    stored = Stored(b"id", 1, tuple((b"h", body) for body in records))
    line = encode_frame(Frame(key(), 1, len(records), b"i", (stored,)))
    assert line.count(b"\n") == 1 and b"\0" not in line
    assert decode_frame(line).appends == (stored,)


@pytest.mark.skipif(not shutil.which("jq"), reason="jq is not installed")
def test_jq_reads_the_files(backend: FilesBackend, root: Path) -> None:
    life = Life()
    for n in range(3):
        life.write(backend, b'{"n":%d}' % n)
    command = ["jq", "-c", ".appends[].records[].body.n", str(file_of(root, life.stream))]
    assert subprocess.run(command, capture_output=True, check=True).stdout.split() == [b"0", b"1", b"2"]


def test_only_the_owner_can_read_anything_whatever_the_umask(tmp_path: Path) -> None:
    for umask in (0o000, 0o777):
        root, before = tmp_path / f"store{umask}", os.umask(umask)
        try:
            backend = FilesBackend(root)
            Life().write(backend)
        finally:
            os.umask(before)
        found = {oct(stat.S_IMODE(root.stat().st_mode)): "root"} | {
            mode: path for path, mode in everything_below(root).items()
        }
        assert set(found) == {"0o600", "0o700"}, found
        backend.close()


def test_hostile_ids_stay_inside_the_root_and_apart(root: Path) -> None:
    backend = FilesBackend(root, durability="process")
    outside = sorted(root.parent.iterdir())
    streams = {StreamKey(*names) for odd in HOSTILE for names in (("t", "k", odd), (odd, "k", odd), ("t", odd, odd))}
    lives = [Life(stream) for stream in sorted(streams)]
    for n, life in enumerate(lives):
        life.write(backend, b'{"n":%d}' % n)
    for n, life in enumerate(lives):
        assert bodies(read_all(backend, life.stream)) == [b'{"n":%d}' % n]
    assert sorted(root.parent.iterdir()) == outside
    assert {path.name for path in root.iterdir()} <= {"holdfast.json", "lock", "streams"} | {
        f"index.db{suffix}" for suffix in ("", "-wal", "-shm")
    }
    backend.close()
    forget_index(root)
    again = FilesBackend(root, durability="process")
    listed = {
        head.stream for life in lives for head in all_heads(again, tenant=life.stream.tenant, kind=life.stream.kind)
    }
    assert listed == {life.stream for life in lives if life.stream.id}, "a listing begins behind the empty id"


def _as_a_careless_file_system_sees_it(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold().rstrip(". ")


@given(st.text(), st.text())
def test_two_ids_never_share_a_file_name_on_any_file_system(one: str, other: str) -> None:
    names = [_as_a_careless_file_system_sees_it(file_name(text)) for text in (one, other)]
    assert (names[0] == names[1]) == (one == other)


@given(st.text(st.sampled_from("aAéÉ%.~/\\cCoOnN0\0")))
def test_a_file_name_is_one_plain_part_of_a_path(id: str) -> None:
    name = file_name(id)
    assert 0 < len(name) <= 140
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_%~")
    assert name not in {"con", "nul", "aux", "prn"}


@given(st.text(min_size=1), st.binary(max_size=50))
def test_any_id_is_kept_inside_the_root(id: str, body: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "store"
        backend = FilesBackend(root, durability="process")
        life = Life(StreamKey(id, id, id))
        life.write(backend, body)
        assert bodies(read_all(backend, life.stream)) == [body]
        assert file_of(root, life.stream).resolve().is_relative_to(root.resolve())
        assert [path.name for path in Path(folder).iterdir()] == ["store"]
        backend.close()


def test_an_id_that_is_not_text_is_refused(backend: FilesBackend) -> None:
    with pytest.raises(InvalidId):
        backend.head(key("\ud800"))


@pytest.mark.timeout(60)
def test_pipes_folders_and_stray_files_among_the_streams_are_not_listed(tmp_path: Path) -> None:
    root = tmp_path / "store"
    backend = FilesBackend(root)
    life = Life("kept")
    life.write(backend, b"x")
    [folder] = (root / "streams").glob("*/*/*")
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "folder.jsonl").mkdir()
    (folder.parent / "stray").write_text("x")
    backend.close()
    for leftover in root.glob("index.db*"):
        leftover.unlink()
    backend = FilesBackend(root)
    try:
        heads = backend.heads(tenant=life.stream.tenant, kind=life.stream.kind)
        assert [head.stream for head in heads] == [life.stream]
    finally:
        backend.close()


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("dear")
    with pytest.raises(UnsupportedVersion):
        FilesBackend(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    "marker", ['{"format":"holdfast-files","version":2}', "{}", "", "[1", '{"format":"x","version":1}']
)
def test_a_newer_or_foreign_format_is_refused(backend: FilesBackend, root: Path, marker: str) -> None:
    backend.close()
    (root / "holdfast.json").write_text(marker)
    with pytest.raises(UnsupportedVersion):
        FilesBackend(root)


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnsupportedVersion):
        FilesBackend(tmp_path / "file")


def test_describe_says_what_and_where_it_is(tmp_path: Path) -> None:
    backend = FilesBackend(tmp_path / "a b")
    life = Life()
    life.write(backend)
    description = backend.describe()
    assert (description.engine, description.durability) == ("files", "disk")
    assert description.location == (tmp_path / "a b").resolve().as_uri()
    assert description.sizes["data"] == file_of(tmp_path / "a b", life.stream).stat().st_size
    assert description.sizes["index"] > 0
    assert not description.warnings
    assert FilesBackend(tmp_path / "c", durability="process").describe().durability == "process"


# -- torn tails and damage ---------------------------------------------------------------------------------------


class Sample:
    """A store with one stream of three frames, which can be brought back to that state at once."""

    def __init__(self, root: Path) -> None:
        self.root, self.life = root, Life()
        backend = FilesBackend(root, durability="process")
        self.life.write(backend, b'{"n":1}', b"\x00two")
        self.life.write(backend, b'{"n":3}', indexed=True)
        self.before = self.life.version
        self.start = file_of(root, self.life.stream).stat().st_size
        self.life.write(backend, b'{"n":4}', b'{"n":5}')
        self.path = file_of(root, self.life.stream)
        self.data = self.path.read_bytes()
        self.records = read_all(backend, self.life.stream)
        backend.close()

    def reopened(self, data: bytes, *, same_boot: bool = False) -> FilesBackend:
        """The store after its file came to hold `data`; the index survives only within the boot."""
        with self.path.open("r+b") as file:
            file.write(data)
            file.truncate()
        if not same_boot:
            forget_index(self.root)
        return FilesBackend(self.root, durability="process")

    def next_after(self, count: int) -> Life:
        """A writer that knows the first `count` records."""
        life = Life(self.life.stream)
        life.incarnation, life.version = self.life.incarnation, count
        life.hash = self.records[count - 1].hash
        return life


@pytest.fixture
def sample(root: Path) -> Sample:
    return Sample(root)


def test_a_tail_torn_at_any_byte_is_ignored_by_readers_and_cut_by_the_next_writer(
    sample: Sample, caplog: pytest.LogCaptureFixture
) -> None:
    for cut in range(sample.start, len(sample.data)):
        backend = sample.reopened(sample.data[:cut])
        torn = sample.data[sample.start : cut]
        assert read_all(backend, sample.life.stream) == sample.records[: sample.before]
        assert must_head(backend, sample.life.stream).version == sample.before
        assert ids(all_heads(backend)) == ["s"]
        assert sample.path.read_bytes() == sample.data[:cut], "readers never repair"
        caplog.clear()
        with caplog.at_level(logging.WARNING, "holdfast"):
            sample.next_after(sample.before).write(backend, b"after")
        assert bodies(read_all(backend, sample.life.stream))[sample.before :] == [b"after"]
        assert sample.path.read_bytes().startswith(sample.data[: sample.start])
        kept = [path.read_bytes() for path in sample.root.glob("torn/*")]
        assert kept == ([torn] if torn else [])
        assert len(caplog.records) == bool(torn)
        assert "body" not in caplog.text
        assert len(backend.describe().warnings) == 1 + bool(torn)
        backend.close()
        shutil.rmtree(sample.root / "torn", ignore_errors=True)


def test_nothing_that_was_acknowledged_in_this_boot_is_taken_for_a_torn_tail(sample: Sample) -> None:
    for cut in range(sample.start, len(sample.data)):
        backend = sample.reopened(sample.data[:cut], same_boot=True)
        with pytest.raises(CorruptRecord) as caught:
            sample.next_after(sample.before).write(backend)
        assert caught.value.version == sample.before + 1
        assert f"byte offset {sample.start}" in str(caught.value)
        assert backend.read(sample.life.stream) == sample.records[: sample.before]
        assert sample.path.read_bytes() == sample.data[:cut]
        backend.close()


@pytest.mark.parametrize("written", [0, 1, 40, 200])
@pytest.mark.parametrize("zeros", [1, 511, 512, 4096, 100_000])
def test_a_tail_of_zeros_is_torn(sample: Sample, written: int, zeros: int) -> None:
    data = sample.data[: sample.start + written] + bytes(zeros)
    backend = sample.reopened(data)
    assert read_all(backend, sample.life.stream) == sample.records[: sample.before]
    sample.next_after(sample.before).write(backend, b"after")
    assert [path.read_bytes() for path in sample.root.glob("torn/*")] == [data[sample.start :]]


def test_a_sector_that_never_reached_the_disk_is_torn_even_if_the_end_did(root: Path) -> None:
    backend = FilesBackend(root, durability="process")
    life = Life()
    life.write(backend, b"a")
    start = file_of(root, life.stream).stat().st_size
    known = (life.version, life.hash)
    life.write(backend, b'{"big":"%s"}' % (b"x" * 5000))
    backend.close()
    path = file_of(root, life.stream)
    data = path.read_bytes()
    path.write_bytes(data[:1024] + bytes(1024) + data[2048:])
    forget_index(root)
    backend = FilesBackend(root, durability="process")
    assert bodies(read_all(backend, life.stream)) == [b"a"]
    life.version, life.hash = known
    life.write(backend, b"b")
    assert path.read_bytes()[:start] == data[:start]


@pytest.mark.parametrize(
    "garbage", [b"x", b"garbage" * 1000, b'{"length":', b'{"length":12', b"\xff" * 600, b'{"first":1']
)
def test_a_tail_of_garbage_without_an_end_is_torn(sample: Sample, garbage: bytes) -> None:
    backend = sample.reopened(sample.data + garbage)
    assert read_all(backend, sample.life.stream) == sample.records
    sample.next_after(5).write(backend, b"six")
    assert [path.read_bytes() for path in sample.root.glob("torn/*")] == [garbage]


@pytest.mark.parametrize("garbage", [b"\n", b"garbage\n", b"{}\n", b'{"length":99}\n', b"one\ntwo", b"\0a\n"])
def test_a_tail_that_could_have_been_acknowledged_is_damage_and_stays(sample: Sample, garbage: bytes) -> None:
    backend = sample.reopened(sample.data + garbage)
    with pytest.raises(CorruptRecord):
        backend.head(sample.life.stream)
    with pytest.raises(CorruptRecord):
        sample.next_after(5).write(backend)
    with pytest.raises(CorruptRecord):
        backend.read(sample.life.stream, reverse=True)
    assert backend.read(sample.life.stream) == sample.records
    with pytest.raises(CorruptRecord):
        backend.read(sample.life.stream, after=5)
    assert sample.path.read_bytes() == sample.data + garbage


@pytest.mark.parametrize("same_boot", [True, False])
def test_a_flipped_bit_at_any_byte_is_reported_and_never_returned_or_cut(sample: Sample, same_boot: bool) -> None:
    for offset in range(len(sample.data)):
        changed = bytearray(sample.data)
        changed[offset] ^= 1 << (offset % 8)
        backend = sample.reopened(bytes(changed), same_boot=same_boot)
        seen, problems = [], 0
        for after in range(5):
            try:
                seen += backend.read(sample.life.stream, after=after, limit=1)
            except CorruptRecord as error:
                problems += 1
                assert "byte offset" in str(error)
        assert problems, offset
        assert all(record == sample.records[record.version - 1] for record in seen), offset
        try:
            head = must_head(backend, sample.life.stream)
            assert (head.version, head.hash) == (5, sample.life.hash)
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
    assert backend.read(sample.life.stream) == sample.records[:2]
    with pytest.raises(CorruptRecord) as caught:
        backend.read(sample.life.stream, after=2)
    assert caught.value.version == 3
    assert backend.read(sample.life.stream, after=3) == sample.records[3:]
    assert versions(backend.read(sample.life.stream, reverse=True)) == [5, 4]
    with pytest.raises(CorruptRecord):
        backend.read(sample.life.stream, after=4, reverse=True)
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
    assert backend.read(sample.life.stream) == sample.records[:2]
    for query in ({"after": 2}, {"after": 4, "reverse": True}):
        with pytest.raises(CorruptRecord):
            backend.read(sample.life.stream, **query)  # type: ignore[arg-type]


def test_a_valid_file_under_the_name_of_another_stream_is_refused(sample: Sample) -> None:
    other = key("other")
    backend = sample.reopened(sample.data)
    Life(other).write(backend)
    file_of(sample.root, other).write_bytes(sample.data)
    for again in (backend, sample.reopened(sample.data)):
        with pytest.raises(CorruptRecord):
            again.head(other)
        with pytest.raises(CorruptRecord):
            again.read(other)
        with pytest.raises(CorruptRecord):
            Life(other).write(again)


def test_a_file_that_was_taken_away_is_reported_within_the_boot(sample: Sample) -> None:
    sample.path.unlink()
    backend = FilesBackend(sample.root)
    for call in (backend.head, backend.read):
        with pytest.raises(CorruptRecord):
            call(sample.life.stream)
    forget_index(sample.root)
    assert backend.head(sample.life.stream) is None


def test_hostile_lines_with_a_right_checksum_cost_an_error_only(sample: Sample) -> None:
    from holdfast.backends.files._frame import _sum

    for inner in (
        b'"first":5,"last":6',
        b'"first":6,"last":6,"stream":3',
        b"[" * 100_000,
        b'"first":6,"last":99999,"appends":[]',
    ):
        start = b'{"length":%d,' % 999 + inner
        line = b'{"length":%d,' % (len(start) + 43) + inner
        line = b'{"length":%d,' % (len(line) + 43) + inner
        line += _sum(line)
        backend = sample.reopened(sample.data + line)
        with pytest.raises(CorruptRecord):
            backend.head(sample.life.stream)
        backend.close()


# -- deletion ----------------------------------------------------------------------------------------------------


def test_a_deleted_stream_leaves_one_line_and_nothing_of_its_content(backend: FilesBackend, root: Path) -> None:
    life = Life()
    life.write(backend, b'{"secret":1}')
    path = file_of(root, life.stream)
    with path.open("ab") as file:
        file.write(b'{"secret":')
    forget_index(root)
    backend.append([life.next(b'{"secret":2}')])
    assert list(root.glob("torn/*"))
    assert backend.delete(life.stream, expected=must_head(backend, life.stream))
    [line] = path.read_bytes().splitlines()
    assert json.loads(line)["deleted"] == [life.incarnation.hex()]
    assert not [path for path in root.rglob("*.jsonl*") if b"secret" in path.read_bytes()]
    assert not list(root.glob("torn/*"))


def test_former_lives_are_refused_even_after_the_index_was_lost(backend: FilesBackend, root: Path) -> None:
    lives = [Life() for _ in range(3)]
    for life in lives:
        life.write(backend, b"x", indexed=True)
        assert backend.delete(life.stream, expected=must_head(backend, life.stream))
    backend.close()
    forget_index(root)
    again = FilesBackend(root)
    assert ids(all_heads(again)) == []
    for life in lives:
        life.version, life.hash = 0, b""
        [answer] = again.append([life.next()])
        assert not isinstance(answer, Appended)
    Life().write(again, b"new")
    assert bodies(read_all(again, key())) == [b"new"]


def test_ids_of_deleted_records_are_found_even_after_the_index_was_lost(backend: FilesBackend, root: Path) -> None:
    life = Life()
    first = life.write(backend, b"1", b"2", b"3", indexed=True)
    second = life.write(backend, b"4", indexed=True)
    life.write(backend, b"5")
    for upto in (1, 2, 4):
        assert backend.delete(life.stream, expected=must_head(backend, life.stream), upto=upto)
        backend.close()
        forget_index(root)
        backend = FilesBackend(root, durability="process")
        assert versions(read_all(backend, life.stream)) == list(range(upto + 1, 6))
        assert versions(read_all(backend, life.stream, reverse=True)) == list(range(5, upto, -1))
        assert stored(backend.append([life.next(id=first.id, indexed=True)])) == [(1, 3, True)]
        assert stored(backend.append([life.next(id=second.id, indexed=True)])) == [(4, 4, True)]
    assert b'"1"' not in file_of(root, life.stream).read_bytes()
    backend.close()


def test_a_reader_that_is_under_way_is_not_disturbed_by_a_rewrite(backend: FilesBackend) -> None:
    life = Life()
    for n in range(20):
        life.write(backend, b"%d" % n)
    with backend._streams.look(life.stream) as (span, _):
        before = span.get(0, span.end)
        assert backend.delete(life.stream, expected=must_head(backend, life.stream), upto=15)
        assert span.get(0, span.end) == before
    assert versions(read_all(backend, life.stream)) == [16, 17, 18, 19, 20]


# -- the index ---------------------------------------------------------------------------------------------------


def test_a_lost_index_is_rebuilt_with_heads_due_times_and_ids(backend: FilesBackend, root: Path) -> None:
    lives = [Life(f"s{n}") for n in range(20)]
    for n, life in enumerate(lives):
        life.write(
            backend, b"a", indexed=True, id=b"chosen", fields=Fields(status="even" if n % 2 == 0 else "odd", due_at=n)
        )
    listed = all_heads(backend)
    backend.close()
    forget_index(root)
    again = FilesBackend(root, durability="process")
    assert [head.stream for head in all_heads(again)] == [head.stream for head in listed]
    assert len(all_heads(again, status="odd")) == 10
    assert [head.fields.due for head in again.due(tenant="tenant", kind="kind", before=5.0)] == [0, 1, 2, 3, 4, 5]
    for life in lives:
        assert stored(again.append([life.next(id=b"chosen", indexed=True)])) == [(1, 1, True)]


def test_an_index_that_is_deleted_while_the_store_is_open_is_replaced(backend: FilesBackend, root: Path) -> None:
    other = FilesBackend(root, durability="process")
    Life("a").write(backend)
    Life("b").write(other)
    forget_index(root)
    Life("c").write(backend)
    assert ids(all_heads(other)) == ids(all_heads(backend)) == ["a", "b", "c"]
    forget_index(root)
    assert ids(all_heads(other)) == ["a", "b", "c"]
    other.close()
    Life("d").write(backend)
    assert ids(all_heads(FilesBackend(root))) == ["a", "b", "c", "d"]


def test_an_index_that_lost_its_log_is_replaced(backend: FilesBackend, root: Path) -> None:
    Life("a").write(backend)
    backend.close()
    (root / "index.db-wal").unlink()
    assert ids(all_heads(FilesBackend(root))) == ["a"]


@pytest.mark.parametrize("content", [b"", b"garbage" * 1000, b"SQLite format 3\0" + bytes(5000)])
def test_an_index_that_is_not_one_is_replaced(backend: FilesBackend, root: Path, content: bytes) -> None:
    life = Life()
    life.write(backend, indexed=True, id=b"chosen")
    backend.close()
    for path in root.glob("index.db*"):
        path.write_bytes(content)
    again = FilesBackend(root)
    assert ids(all_heads(again)) == ["s"]
    assert stored(again.append([life.next(id=b"chosen", indexed=True)])) == [(1, 1, True)]


def test_an_index_whose_tables_are_gone_or_changed_is_replaced(backend: FilesBackend, root: Path) -> None:
    Life().write(backend)
    for sql in ("DROP TABLE streams", "UPDATE streams SET fields = x'ff'", "DROP TABLE meta"):
        backend.close()
        tamper(root, sql)
        backend = FilesBackend(root)
        assert ids(all_heads(backend)) == ["s"], sql
    backend.close()


def test_the_index_of_another_boot_or_of_a_copied_store_is_not_believed(
    backend: FilesBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Life("a").write(backend)
    Life("b").write(backend)
    backend.close()

    def omit(store: Path) -> FilesBackend:
        tamper(store, "DELETE FROM streams WHERE id = x'62'")
        return FilesBackend(store)

    assert ids(all_heads(omit(root))) == ["a"], "in the same boot it is believed: that is what the test changes"
    shutil.copytree(root, root.parent / "copy")
    assert ids(all_heads(omit(root.parent / "copy"))) == ["a", "b"]
    monkeypatch.setattr(_catalog, "boot_id", lambda: "another")
    assert ids(all_heads(omit(root))) == ["a", "b"]
    monkeypatch.setattr(_catalog, "boot_id", lambda: "")
    assert ids(all_heads(omit(root))) == ["a", "b"]


def test_without_room_for_an_index_the_store_is_still_readable(backend: FilesBackend, root: Path) -> None:
    class NoNewFiles(Disk):
        def open(self, top: int, path: str, *, write: bool = False, create: bool = False) -> int:
            if create:
                raise OSError(28, "no space")
            return super().open(top, path, write=write, create=create)

    life = Life()
    life.write(backend, b"a", fields=Fields(due_at=1.0))
    backend.close()
    forget_index(root)
    again = FilesBackend(root, disk=NoNewFiles())
    assert ids(all_heads(again)) == ["s"]
    assert len(again.due(tenant="tenant", kind="kind")) == 1
    assert bodies(read_all(again, life.stream)) == [b"a"]
    assert must_head(again, life.stream).version == 1
    assert again.describe().sizes["data"] > 0


def test_a_version_is_found_without_reading_the_history(backend: FilesBackend) -> None:
    life = Life()
    for n in range(300):
        life.write(backend, b'{"n":%d,"x":"%s"}' % (n, b"x" * 2000))
    read = []

    class Counting(Disk):
        def read(self, file: int, size: int, offset: int) -> bytes:
            data = super().read(file, size, offset)
            read.append(len(data))
            return data

    again = FilesBackend(backend._root, durability="process", disk=Counting())
    assert must_head(again, life.stream).version == 300
    for query in ({"after": 150, "limit": 1}, {"after": 150, "limit": 1, "reverse": True}):
        read.clear()
        [record] = again.read(life.stream, **query)  # type: ignore[arg-type]
        assert record.version in (149, 151)
        assert sum(read) < 150_000, "600 000 bytes are there"


# -- links, file systems, processes --------------------------------------------------------------------------------


def test_a_planted_link_is_refused_and_what_it_points_to_is_untouched(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("precious")
    life = Life()
    for link in ("streams", "streams/tenant", "streams/tenant/kind", path_of(life.stream).rpartition("/")[0]):
        backend = FilesBackend(root, durability="process")
        (root / link).parent.mkdir(parents=True, exist_ok=True)
        (root / link).symlink_to(outside)
        with pytest.raises(UnsupportedVersion):
            backend.append([life.next()])
        with pytest.raises(UnsupportedVersion):
            backend.head(life.stream)
        backend.close()
        shutil.rmtree(root)
    for link in (path_of(life.stream), "lock", "holdfast.json"):
        FilesBackend(root, durability="process").close()
        (root / link).parent.mkdir(parents=True, exist_ok=True)
        (root / link).unlink(missing_ok=True)
        (root / link).symlink_to(outside / "file")
        with pytest.raises(UnsupportedVersion):
            FilesBackend(root, durability="process").append([life.next()])
        shutil.rmtree(root)
    assert [path.name for path in outside.iterdir()] == ["file"]
    assert (outside / "file").read_text() == "precious"


def test_a_link_in_the_place_of_the_index_is_replaced_not_followed(
    backend: FilesBackend, root: Path, tmp_path: Path
) -> None:
    Life().write(backend)
    backend.close()
    forget_index(root)
    (tmp_path / "victim").write_text("precious")
    (root / "index.db").symlink_to(tmp_path / "victim")
    again = FilesBackend(root)
    assert ids(all_heads(again)) == ["s"]
    assert (tmp_path / "victim").read_text() == "precious"
    assert not (root / "index.db").is_symlink()


def test_network_file_systems_are_refused_by_their_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/sda / ext4 rw 0 0\nhost:/x /mnt/share nfs4 rw 0 0\n"
        "//host/y /mnt/with\\040space cifs rw 0 0\n/dev/sdb /mnt/share/local xfs rw 0 0\nbroken\n"
    )
    for path, kind in {
        "/home": "ext4",
        "/mnt/share/a": "nfs4",
        "/mnt/sharework": "ext4",
        "/mnt/share/local/b": "xfs",
    }.items():
        assert filesystem_of(path, mounts=str(mounts)) == kind
    with pytest.raises(UnsupportedFilesystem, match="cifs"):
        refuse_network_filesystem("/mnt/with space/store", mounts=str(mounts))
    refuse_network_filesystem("/mnt/share/local", mounts=str(mounts))
    refuse_network_filesystem("/anywhere", mounts=str(tmp_path / "no such table"))


def test_a_forked_child_and_its_parent_go_on_independently(backend: FilesBackend, root: Path) -> None:
    parent = Life("parent")
    parent.write(backend, b"1")
    child = os.fork()
    if not child:
        status = 1
        try:
            Life("child").write(backend, b"c")
            assert bodies(read_all(backend, parent.stream))[0] == b"1"
            backend.close()
            status = 0
        finally:
            os._exit(status)
    parent.write(backend, b"2")
    assert os.waitpid(child, 0)[1] == 0
    parent.write(backend, b"3")
    assert bodies(read_all(backend, parent.stream)) == [b"1", b"2", b"3"]
    assert ids(all_heads(backend)) == ["child", "parent"]


WRITER = """
import os, sys
from holdfast.backends import Appended
from holdfast.backends.files import FilesBackend
from holdfast.conformance._build import Life, key
backend, name = FilesBackend(sys.argv[1], durability="process"), sys.argv[2]
life = Life("shared")
life.incarnation = b"the same"
for n in range(int(sys.argv[3])):
    while True:
        head = backend.head(life.stream)
        if head:
            life.version, life.hash = head.version, head.hash
        [answer] = backend.append([life.next(b"%s %d" % (name.encode(), n))])
        if isinstance(answer, Appended):
            break
    Life(f"{name}-{n}").write(backend)
    print(n, flush=True)
"""


def test_two_processes_interleave_without_losing_or_doubling_anything(root: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(root)]
    writers = [subprocess.Popen([*command, name, "40"], stdout=subprocess.DEVNULL) for name in ("a", "b")]
    assert [writer.wait() for writer in writers] == [0, 0]
    backend = FilesBackend(root)
    records = read_all(backend, key("shared"))
    assert versions(records) == list(range(1, 81))
    for name in (b"a", b"b"):
        assert [body for body in bodies(records) if body.startswith(name)] == [b"%s %d" % (name, n) for n in range(40)]
    assert len(all_heads(backend)) == 81


def test_a_writer_that_is_killed_loses_nothing_that_it_acknowledged(root: Path) -> None:
    for kill, acknowledged in enumerate((1, 2, 5, 17)):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(root), f"w{kill}", "1000000"], stdout=subprocess.PIPE
        )
        assert writer.stdout is not None
        for _ in range(acknowledged):
            last = int(writer.stdout.readline())
        writer.kill()
        writer.wait()
        writer.stdout.close()
        backend = FilesBackend(root)
        records = read_all(backend, key("shared"))
        assert versions(records) == list(range(1, len(records) + 1))
        assert {b"w%d %d" % (kill, n) for n in range(last + 1)} <= set(bodies(records))
        assert {f"w{kill}-{n}" for n in range(last + 1)} <= set(ids(all_heads(backend)))
        Life(f"after {kill}").write(backend)
        backend.close()
