"""The files backend: what lies beside the frames is compared with them, and rebuilt from them."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

import holdfast
from helpers.engines.files_stores import file_of, forget_index
from holdfast.backends import HeadFields, SupportsCheck, VersionMismatch
from holdfast.backends.files import FilesBackend
from holdfast.backends.files.disk import Disk
from holdfast.backends.files.names import file_name, parse_name, path_of
from holdfast.conformance.build import (
    StreamTracker,
    all_heads,
    bodies,
    ids,
    key,
    must_head,
    read_all,
    stored,
)
from holdfast.errors import CorruptRecord

FIELDS = HeadFields(status="open", label=b"label", owner="me", due_at=5.0)
LONG = "x" * 200


def tamper(root: Path, sql: str, *values: object) -> None:
    """Change the index behind the back of its owner."""
    db = apsw.Connection(str(root / "index.db"))
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    db.execute(sql, values).fetchall()
    assert db.changes() > 0
    db.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def trackers(root: Path) -> list[StreamTracker]:
    """The streams of a store: six frames, a single one, a long name, and a recreated stream."""
    backend = FilesBackend(root, durability="process")
    made = [StreamTracker("long"), StreamTracker("one"), StreamTracker(key(LONG, tenant=LONG))]
    for number in range(6):
        made[0].write(backend, b'{"n":%d}' % number, indexed=number % 2 == 0, fields=FIELDS)
    for tracker in made[1:]:
        tracker.write(backend, b"x", fields=FIELDS)
    former = StreamTracker("again")
    former.write(backend)
    assert backend.delete(former.stream, expected=must_head(backend, former.stream))
    made.append(StreamTracker("again"))
    made[3].write(backend, b"new")
    backend.close()
    return made


@pytest.fixture
def store(root: Path, trackers: list[StreamTracker]) -> Iterator[FilesBackend]:
    backend = FilesBackend(root, durability="process")
    yield backend
    backend.close()


def found(backend: FilesBackend) -> list[tuple[str | None, bool]]:
    """The streams with problems, and whether a rebuild helps."""
    return [
        (None if problem.stream is None else problem.stream.id, problem.derived)
        for problem in backend.check()
    ]


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


# -- files -----------------------------------------------------------------------------------------


def test_a_sound_store_has_no_problem_with_or_without_its_index(
    store: FilesBackend, root: Path
) -> None:
    assert isinstance(store, SupportsCheck)
    assert found(store) == []
    forget_index(root)
    assert found(store) == []
    assert store.list_scopes() == sorted([("tenant", "kind"), (LONG, "kind")])


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("order", [(0, 1, 2, 3, 5, 4), (0, 4, 2, 3, 1, 5), (1, 0, 2, 3, 4, 5)])
def test_swapped_lines_are_a_problem_wherever_they_are(
    store: FilesBackend,
    root: Path,
    trackers: list[StreamTracker],
    order: tuple[int, ...],
    lost: bool,
) -> None:
    path = file_of(root, trackers[0].stream)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[number] for number in order))
    if lost:
        forget_index(root)
    [problem] = store.check()
    assert problem.stream == trackers[0].stream and not problem.derived
    assert str(path) in problem.what and "byte offset" in problem.what


@pytest.mark.parametrize("which", [1, 2])
def test_a_damaged_file_is_found_although_nothing_in_it_can_be_read(
    store: FilesBackend, root: Path, trackers: list[StreamTracker], which: int
) -> None:
    stream = trackers[which].stream
    flip(file_of(root, stream), -60)
    forget_index(root)
    assert ids(all_heads(store, tenant=stream.tenant)) == [
        tracker.stream.id
        for tracker in sorted(trackers, key=lambda one: one.stream)
        if tracker.stream.tenant == stream.tenant and tracker.stream != stream
    ]
    with pytest.raises(CorruptRecord):
        store.head(stream)
    assert store.list_damaged(*stream[:2]) == [stream]
    assert [(problem.stream, problem.derived) for problem in store.check()] == [(stream, False)]


def test_a_damaged_tombstone_is_a_problem(
    store: FilesBackend, root: Path, trackers: list[StreamTracker]
) -> None:
    flip(file_of(root, trackers[3].stream), 60)
    assert bodies(read_all(store, trackers[3].stream)) == [b"new"]
    assert found(store) == [("again", False)]


@pytest.mark.parametrize("name", ["streams", "tenant", "kind", "fan", "file"])
@pytest.mark.parametrize("lost", [False, True])
def test_an_altered_name_of_a_file_or_folder_is_a_problem(
    store: FilesBackend, root: Path, trackers: list[StreamTracker], name: str, lost: bool
) -> None:
    path = file_of(root, trackers[0].stream)
    place = {"streams": 3, "tenant": 2, "kind": 1, "fan": 0}
    target = path if name == "file" else path.parents[place[name]]
    target.rename(target.with_name(target.name[:-1] + "\udce5"))
    if lost:
        forget_index(root)
    problems = list(store.check())
    assert problems
    "".join(problem.what for problem in problems).encode()
    if lost and name != "streams":
        assert any("long" in problem.what for problem in problems)


def test_a_missing_file_and_a_shortened_one_are_problems_that_a_rebuild_does_not_hide(
    store: FilesBackend, root: Path, trackers: list[StreamTracker]
) -> None:
    path = file_of(root, trackers[0].stream)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    file_of(root, trackers[1].stream).unlink()
    assert sorted(found(store), key=str) == [("long", False), ("one", False)]
    assert store.rebuild() == 0
    assert sorted(found(store), key=str) == [("long", False), ("one", False)]


def test_an_unfinished_write_is_no_problem(
    store: FilesBackend, root: Path, trackers: list[StreamTracker]
) -> None:
    for tracker in trackers:
        with file_of(root, tracker.stream).open("ab") as file:
            file.write(b'{"length":999,"first":')
    new = file_of(root, key("new"))
    new.parent.mkdir(parents=True, exist_ok=True)
    new.write_bytes(b'{"length":999,"first":')
    file_of(root, key("empty")).parent.mkdir(parents=True, exist_ok=True)
    file_of(root, key("empty")).touch()
    assert found(store) == []
    forget_index(root)
    assert found(store) == []
    assert store.list_damaged("tenant", "kind") == []


def test_a_link_or_a_pipe_among_the_streams_is_a_problem(
    store: FilesBackend, root: Path, trackers: list[StreamTracker]
) -> None:
    folder = file_of(root, trackers[0].stream).parent
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "link.jsonl").symlink_to("/etc/passwd")
    assert found(store) == [(None, False), (None, False)]


def test_names_are_parsed_back_unless_they_are_shortened() -> None:
    for text in ("", "a", "Ä/ö", "con", "%41", "a.b", " ", "\0"):
        assert parse_name(file_name(text)) == text
    for name in (file_name(LONG), "A", "%4", "%zz", "a b", "\udce5", "%ff"):
        assert parse_name(name) is None


# -- the index -------------------------------------------------------------------------------------

CHANGES = {
    "a row that is gone": "DELETE FROM streams WHERE id = x'6c6f6e67'",
    "an id that is gone": "DELETE FROM ids",
    "an id": "UPDATE ids SET append = x'80' WHERE first = 1",
    "the version of an id": "UPDATE ids SET first = 2 WHERE first = 1",
    "a status": "UPDATE streams SET status = x'6f' WHERE id = x'6c6f6e67'",
    "no status": "UPDATE streams SET status = NULL WHERE id = x'6c6f6e67'",
    "a due time": "UPDATE streams SET due = 6.0 WHERE id = x'6c6f6e67'",
    "the key": "UPDATE streams SET id = x'6c6f6e66' WHERE id = x'6c6f6e67'",
}
"""What can be altered in the index without notice, until it is checked."""

NOTICED = {
    name: f"UPDATE streams SET {name} = {value} WHERE id = x'6c6f6e67'"
    for name, value in {
        "size": "size + 1",
        "version": "7",
        "hash": "x'00'",
        "incarnation": "x'00'",
        "fields": "x'7b7d'",
        "inode": "1",
        "sum": "sum + 1",
    }.items()
}
"""What is noticed as soon as the row is read; the index is then rebuilt."""


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_altered_index_is_reported_and_rebuilt(
    root: Path, trackers: list[StreamTracker], change: str
) -> None:
    with_ids = FilesBackend(root, durability="process")
    first = StreamTracker("long")
    first.incarnation = trackers[0].incarnation
    trackers[0].write(with_ids, b"7", id=b"chosen", indexed=True)
    assert found(with_ids) == []
    with_ids.close()
    tamper(root, change)
    backend = FilesBackend(root, durability="process")
    problems = list(backend.check())
    assert problems and any(problem.stream == key("long") for problem in problems)
    assert backend.rebuild() >= 1
    assert found(backend) == []
    assert len(all_heads(backend, status="open")) == 2
    again = trackers[0].next(id=b"chosen", indexed=True)
    assert stored(backend.append([again])) == [(7, 7, True)]
    backend.close()


@pytest.mark.parametrize("change", NOTICED.values(), ids=NOTICED)
def test_an_altered_row_of_the_index_is_not_believed(
    root: Path, trackers: list[StreamTracker], change: str
) -> None:
    tamper(root, change)
    backend = FilesBackend(root, durability="process")
    heads = all_heads(backend)
    assert ids(heads) == ["again", "long", "one"]
    assert [head.fields for head in heads] == [HeadFields(), FIELDS, FIELDS]
    assert must_head(backend, key("long")).version == 6
    assert found(backend) == []
    backend.close()


def test_an_id_that_the_index_has_at_a_wrong_place_is_looked_up_in_the_file(
    root: Path, trackers: list[StreamTracker]
) -> None:
    backend = FilesBackend(root, durability="process")
    trackers[0].write(backend, b"7", b"8", id=b"chosen", indexed=True)
    backend.close()
    for wrong in ("first = 6, last = 6", "last = 7", "first = 0", "first = 99"):
        tamper(root, f"UPDATE ids SET {wrong} WHERE append = x'e3686f73656e'")
        backend = FilesBackend(root, durability="process")
        again = trackers[0].next(id=b"chosen", indexed=True)
        assert stored(backend.append([again])) == [(7, 8, True)], wrong
        backend.close()


WRITER = """
import sys
from holdfast.backends.files import FilesBackend
from holdfast.conformance.build import StreamTracker, must_head
backend = FilesBackend(sys.argv[1], durability="process")
trackers = [StreamTracker(str(n)) for n in range(5)]
for line in sys.stdin:
    for number in range(100):
        for tracker in trackers:
            tracker.write(backend, b"x" * 500, indexed=True)
        if number % 10 == 0:
            backend.delete(trackers[0].stream, expected=must_head(backend, trackers[0].stream))
            trackers[0] = StreamTracker("0")
            trackers[0].write(backend)
    print(flush=True)
"""


def test_a_check_reports_nothing_while_others_write(root: Path) -> None:
    FilesBackend(root).close()
    command = [sys.executable, "-c", WRITER, str(root)]
    writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert writer.stdin is not None and writer.stdout is not None
    backend, checks = FilesBackend(root, durability="process"), 0
    for _ in range(5):
        writer.stdin.write(b"\n")
        while not select.select([writer.stdout], [], [], 0)[0]:
            assert list(backend.check()) == []
            checks += 1
        assert writer.stdout.read(1) == b"\n"
    writer.communicate()
    assert checks > 10
    backend.close()


@pytest.mark.parametrize("what", ["appended", "deleted", "recreated"])
def test_a_stream_that_changes_during_the_look_is_no_problem(
    root: Path, trackers: list[StreamTracker], what: str
) -> None:
    stream, writer = trackers[0].stream, FilesBackend(root, durability="process")

    class Meddling(Disk):
        armed = False

        def open(self, top: int, path: str, *, write: bool = False, create: bool = False) -> int:
            if self.armed and path == path_of(stream):
                self.armed = False
                if what == "appended":
                    trackers[0].write(writer, b"more")
                else:
                    assert writer.delete(stream, expected=must_head(writer, stream))
                if what == "recreated":
                    StreamTracker("long").write(writer, b"new")
            return super().open(top, path, write=write, create=create)

    disk = Meddling()
    backend = FilesBackend(root, durability="process", disk=disk)
    assert found(backend) == []
    disk.armed = True
    assert found(backend) == []
    assert not disk.armed
    backend.close()
    writer.close()


# -- deleting what is damaged ----------------------------------------------------------------------


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30] + b"\n")


@pytest.mark.parametrize("damage", [_cut, Path.unlink])
def test_a_damaged_stream_can_be_discarded_and_does_not_come_back(
    store: FilesBackend, root: Path, trackers: list[StreamTracker], damage: Callable[[Path], None]
) -> None:
    stream = trackers[0].stream
    assert not store.discard(stream) and not store.discard(key("never"))
    damage(file_of(root, stream))
    assert store.discard(stream)
    assert store.head(stream) is None and not store.discard(stream)
    assert found(store) == []
    former = StreamTracker("long")
    former.incarnation = trackers[0].incarnation
    assert store.append([former.next()]) == [VersionMismatch(None)]
    StreamTracker("long").write(store, b"new")
    assert bodies(read_all(store, stream)) == [b"new"]


# -- a folder that may only be read ----------------------------------------------------------------

READER = """
import sys
import holdfast
with holdfast.open(sys.argv[1]) as store:
    assert [info.id for info in store.conversations()] == ["chat"]
    assert [message["content"] for message in store.conversation("chat").messages()] == ["Hello"]
    assert store.verify().ok
    for write in (
        lambda: store.conversation("chat").append({"role": "user", "content": "More"}),
        lambda: store.conversation("new").append({"role": "user", "content": "More"}),
        lambda: store.conversation("chat").delete(),
    ):
        try:
            write()
        except holdfast.errors.ReadOnly:
            continue
        raise AssertionError("it was written")
print("read")
"""


@pytest.mark.parametrize("left", ["all", "no index", "no index and lock"])
def test_a_store_in_a_folder_that_may_only_be_read_can_be_read(root: Path, left: str) -> None:
    with holdfast.open(f"file://{root}") as store:
        store.conversation("chat").append({"role": "user", "content": "Hello"})
    if left != "all":
        forget_index(root)
    if left == "no index and lock":
        (root / "lock").unlink()
    subprocess.run(["chmod", "-R", "a-w", str(root)], check=True)
    # root may write everywhere, unless it gives that up.
    front = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if not os.getuid() else []
    try:
        done = subprocess.run(
            [*front, sys.executable, "-c", READER, f"file://{root}"],
            capture_output=True,
            text=True,
            env=os.environ,
        )
        assert done.stdout == "read\n", done.stderr
    finally:
        subprocess.run(["chmod", "-R", "u+w", str(root)], check=True)
