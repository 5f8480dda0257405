"""The files backend: its layout and names, deletion, links, file systems and processes."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.engines.files_stores import file_of, forget_index
from holdfast.backends import AppendResult, HeadFields, StreamKey
from holdfast.backends.files import FilesBackend
from holdfast.backends.files.frame import encode_frame
from holdfast.backends.files.names import file_name, path_of
from holdfast.backends.filesystem import detect_filesystem, refuse_network_filesystem
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
from holdfast.errors import InvalidId, UnsupportedFilesystem, UnsupportedVersion

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
    *(
        "A",
        "a",
        "À",
        "À",
        "CON",
        "con",
        "nul",
        "com1",
        "a\0b",
        "\n",
        "a.jsonl",
        "a.jsonl.tmp",
        "-rf",
        "*",
        "😀",
    ),
    *("x" * 119, "x" * 120, "x" * 121, "x" * 5000, "é" * 2000, "X" * 121),
]


def everything_below(root: Path) -> dict[str, str]:
    return {str(path): oct(stat.S_IMODE(path.lstat().st_mode)) for path in root.rglob("*")}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def backend(root: Path) -> Iterator[FilesBackend]:
    backend = FilesBackend(root, durability="process")
    yield backend
    backend.close()


# -- layout and names ------------------------------------------------------------------------------


def test_every_line_is_json_with_the_body_as_it_was(backend: FilesBackend, root: Path) -> None:
    tracker = StreamTracker("chat")
    tracker.write(backend, b'{"role": "user", "content": "hi"}', b"\x00binary\n")
    tracker.write(backend, b'{"n":1}', fields=HeadFields(status="open"))
    lines = [json.loads(line) for line in file_of(root, tracker.stream).read_bytes().splitlines()]
    records = [
        record for line in lines for append in line["appends"] for record in append["records"]
    ]
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
        *(
            b"{},{}",
            b'{},"b":{}',
            b'{}],"x":[{}',
            b'{"a":NaN}',
            b"[1]",
            b"null",
            b"\0",
            b'{"a":1,"a":2}',
            b'{"\r":1}',
        ),
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
    tracker = StreamTracker()
    tracker.write(backend, body)
    assert bodies(read_all(backend, tracker.stream)) == [body]
    assert bodies(read_all(FilesBackend(root), tracker.stream)) == [body]
    [line] = file_of(root, tracker.stream).read_bytes().splitlines()
    assert line.count(b"\0") == 0
    json.loads(line)


@given(
    st.lists(
        st.binary()
        | st.dictionaries(st.text(), st.integers()).map(lambda d: json.dumps(d).encode()),
        min_size=1,
    )
)
def test_frames_of_any_bodies_survive_encoding(records: list[bytes]) -> None:
    from holdfast.backends.files.frame import AppendFrame, StoredAppend, decode_frame

    stored = StoredAppend(b"id", 1, tuple((b"h", body) for body in records))
    line = encode_frame(AppendFrame(key(), 1, len(records), b"i", (stored,)))
    assert line.count(b"\n") == 1 and b"\0" not in line
    assert decode_frame(line).appends == (stored,)


@pytest.mark.skipif(not shutil.which("jq"), reason="jq is not installed")
def test_jq_reads_the_files(backend: FilesBackend, root: Path) -> None:
    tracker = StreamTracker()
    for n in range(3):
        tracker.write(backend, b'{"n":%d}' % n)
    command = ["jq", "-c", ".appends[].records[].body.n", str(file_of(root, tracker.stream))]
    assert subprocess.run(command, capture_output=True, check=True).stdout.split() == [
        b"0",
        b"1",
        b"2",
    ]


def test_only_the_owner_can_read_anything_whatever_the_umask(tmp_path: Path) -> None:
    for umask in (0o000, 0o777):
        root, before = tmp_path / f"store{umask}", os.umask(umask)
        try:
            backend = FilesBackend(root)
            StreamTracker().write(backend)
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
    streams = {
        StreamKey(*names)
        for odd in HOSTILE
        for names in (("t", "k", odd), (odd, "k", odd), ("t", odd, odd))
    }
    trackers = [StreamTracker(stream) for stream in sorted(streams)]
    for n, tracker in enumerate(trackers):
        tracker.write(backend, b'{"n":%d}' % n)
    for n, tracker in enumerate(trackers):
        assert bodies(read_all(backend, tracker.stream)) == [b'{"n":%d}' % n]
    assert sorted(root.parent.iterdir()) == outside
    assert {path.name for path in root.iterdir()} <= {"holdfast.json", "lock", "streams"} | {
        f"index.db{suffix}" for suffix in ("", "-wal", "-shm")
    }
    backend.close()
    forget_index(root)
    again = FilesBackend(root, durability="process")
    listed = {
        head.stream
        for tracker in trackers
        for head in all_heads(again, tenant=tracker.stream.tenant, kind=tracker.stream.kind)
    }
    assert listed == {tracker.stream for tracker in trackers if tracker.stream.id}, (
        "a listing begins behind the empty id"
    )


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
        tracker = StreamTracker(StreamKey(id, id, id))
        tracker.write(backend, body)
        assert bodies(read_all(backend, tracker.stream)) == [body]
        assert file_of(root, tracker.stream).resolve().is_relative_to(root.resolve())
        assert [path.name for path in Path(folder).iterdir()] == ["store"]
        backend.close()


def test_an_id_that_is_not_text_is_refused(backend: FilesBackend) -> None:
    with pytest.raises(InvalidId):
        backend.head(key("\ud800"))


@pytest.mark.timeout(60)
def test_pipes_folders_and_stray_files_among_the_streams_are_not_listed(tmp_path: Path) -> None:
    root = tmp_path / "store"
    backend = FilesBackend(root)
    tracker = StreamTracker("kept")
    tracker.write(backend, b"x")
    [folder] = (root / "streams").glob("*/*/*")
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "folder.jsonl").mkdir()
    (folder.parent / "stray").write_text("x")
    backend.close()
    for leftover in root.glob("index.db*"):
        leftover.unlink()
    backend = FilesBackend(root)
    try:
        heads = backend.heads(tenant=tracker.stream.tenant, kind=tracker.stream.kind)
        assert [head.stream for head in heads] == [tracker.stream]
    finally:
        backend.close()


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("dear")
    with pytest.raises(UnsupportedVersion):
        FilesBackend(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    "marker",
    [
        b'{"format":"holdfast-files","version":2}',
        b'{"format":"holdfast-files","version":0}',
        b'{"format":"holdfast\xffiles","version":1}',
        b"{}",
        b"",
        b"[1",
        b'{"format":"x","version":1}',
    ],
)
def test_a_newer_or_foreign_format_is_refused(
    backend: FilesBackend, root: Path, marker: bytes
) -> None:
    backend.close()
    (root / "holdfast.json").write_bytes(marker)
    with pytest.raises(UnsupportedVersion):
        FilesBackend(root)


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnsupportedVersion):
        FilesBackend(tmp_path / "file")


def test_describe_says_what_and_where_it_is(tmp_path: Path) -> None:
    backend = FilesBackend(tmp_path / "a b")
    tracker = StreamTracker()
    tracker.write(backend)
    description = backend.describe()
    assert (description.engine, description.durability) == ("files", "disk")
    assert description.location == (tmp_path / "a b").resolve().as_uri()
    assert description.sizes["data"] == file_of(tmp_path / "a b", tracker.stream).stat().st_size
    assert description.sizes["index"] > 0
    assert not description.warnings
    assert FilesBackend(tmp_path / "c", durability="process").describe().durability == "process"


# -- deletion --------------------------------------------------------------------------------------


def test_a_deleted_stream_leaves_one_line_and_nothing_of_its_content(
    backend: FilesBackend, root: Path
) -> None:
    tracker = StreamTracker()
    tracker.write(backend, b'{"secret":1}')
    path = file_of(root, tracker.stream)
    with path.open("ab") as file:
        file.write(b'{"secret":')
    forget_index(root)
    backend.append([tracker.next(b'{"secret":2}')])
    assert list(root.glob("torn/*"))
    assert backend.delete(tracker.stream, expected=must_head(backend, tracker.stream))
    [line] = path.read_bytes().splitlines()
    assert json.loads(line)["deleted"] == [tracker.incarnation.hex()]
    assert not [path for path in root.rglob("*.jsonl*") if b"secret" in path.read_bytes()]
    assert not list(root.glob("torn/*"))


def test_former_incarnations_are_refused_even_after_the_index_was_lost(
    backend: FilesBackend, root: Path
) -> None:
    trackers = [StreamTracker() for _ in range(3)]
    for tracker in trackers:
        tracker.write(backend, b"x", indexed=True)
        assert backend.delete(tracker.stream, expected=must_head(backend, tracker.stream))
    backend.close()
    forget_index(root)
    again = FilesBackend(root)
    assert ids(all_heads(again)) == []
    for tracker in trackers:
        tracker.version, tracker.hash = 0, b""
        [answer] = again.append([tracker.next()])
        assert not isinstance(answer, AppendResult)
    StreamTracker().write(again, b"new")
    assert bodies(read_all(again, key())) == [b"new"]


def test_ids_are_found_even_after_the_index_was_lost(backend: FilesBackend, root: Path) -> None:
    tracker = StreamTracker()
    first = tracker.write(backend, b"1", b"2", b"3", indexed=True)
    second = tracker.write(backend, b"4", indexed=True)
    tracker.write(backend, b"5")
    backend.close()
    forget_index(root)
    backend = FilesBackend(root, durability="process")
    assert stored(backend.append([tracker.next(id=first.id, indexed=True)])) == [(1, 3, True)]
    assert stored(backend.append([tracker.next(id=second.id, indexed=True)])) == [(4, 4, True)]
    backend.close()


def test_a_reader_that_is_under_way_is_not_disturbed_by_a_deletion(backend: FilesBackend) -> None:
    tracker = StreamTracker()
    for n in range(20):
        tracker.write(backend, b"%d" % n)
    with backend._streams.open_settled(tracker.stream) as (span, _):
        before = span.get(0, span.end)
        assert backend.delete(tracker.stream, expected=must_head(backend, tracker.stream))
        assert span.get(0, span.end) == before
    assert read_all(backend, tracker.stream) == []


# -- links, file systems, processes ----------------------------------------------------------------


def test_a_planted_link_is_refused_and_what_it_points_to_is_untouched(
    root: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("precious")
    tracker = StreamTracker()
    for link in (
        "streams",
        "streams/tenant",
        "streams/tenant/kind",
        path_of(tracker.stream).rpartition("/")[0],
    ):
        backend = FilesBackend(root, durability="process")
        (root / link).parent.mkdir(parents=True, exist_ok=True)
        (root / link).symlink_to(outside)
        with pytest.raises(UnsupportedVersion):
            backend.append([tracker.next()])
        with pytest.raises(UnsupportedVersion):
            backend.head(tracker.stream)
        backend.close()
        shutil.rmtree(root)
    for link in (path_of(tracker.stream), "lock", "holdfast.json"):
        FilesBackend(root, durability="process").close()
        (root / link).parent.mkdir(parents=True, exist_ok=True)
        (root / link).unlink(missing_ok=True)
        (root / link).symlink_to(outside / "file")
        with pytest.raises(UnsupportedVersion):
            FilesBackend(root, durability="process").append([tracker.next()])
        shutil.rmtree(root)
    assert [path.name for path in outside.iterdir()] == ["file"]
    assert (outside / "file").read_text() == "precious"


def test_a_link_in_the_place_of_the_index_is_replaced_not_followed(
    backend: FilesBackend, root: Path, tmp_path: Path
) -> None:
    StreamTracker().write(backend)
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
        assert detect_filesystem(path, mounts=str(mounts)) == kind
    with pytest.raises(UnsupportedFilesystem, match="cifs"):
        refuse_network_filesystem("/mnt/with space/store", mounts=str(mounts))
    refuse_network_filesystem("/mnt/share/local", mounts=str(mounts))
    refuse_network_filesystem("/anywhere", mounts=str(tmp_path / "no such table"))


def test_a_forked_child_and_its_parent_go_on_independently(
    backend: FilesBackend, root: Path
) -> None:
    parent = StreamTracker("parent")
    parent.write(backend, b"1")
    child = os.fork()
    if not child:
        status = 1
        try:
            StreamTracker("child").write(backend, b"c")
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
from holdfast.backends import AppendResult
from holdfast.backends.files import FilesBackend
from holdfast.conformance.build import StreamTracker, key
backend, name = FilesBackend(sys.argv[1], durability="process"), sys.argv[2]
tracker = StreamTracker("shared")
tracker.incarnation = b"the same"
for n in range(int(sys.argv[3])):
    while True:
        head = backend.head(tracker.stream)
        if head:
            tracker.version, tracker.hash = head.version, head.hash
        [answer] = backend.append([tracker.next(b"%s %d" % (name.encode(), n))])
        if isinstance(answer, AppendResult):
            break
    StreamTracker(f"{name}-{n}").write(backend)
    print(n, flush=True)
"""


def test_two_processes_interleave_without_losing_or_doubling_anything(root: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(root)]
    writers = [
        subprocess.Popen([*command, name, "40"], stdout=subprocess.DEVNULL) for name in ("a", "b")
    ]
    assert [writer.wait() for writer in writers] == [0, 0]
    backend = FilesBackend(root)
    records = read_all(backend, key("shared"))
    assert versions(records) == list(range(1, 81))
    for name in (b"a", b"b"):
        assert [body for body in bodies(records) if body.startswith(name)] == [
            b"%s %d" % (name, n) for n in range(40)
        ]
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
        StreamTracker(f"after {kill}").write(backend)
        backend.close()
