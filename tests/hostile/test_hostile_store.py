"""Somebody can write to the store: whatever they plant, reading it is an error of ours or nothing,
and nothing of it is run.

A share of all combinations of what is planted and where; HOLDFAST_HOSTILE=all takes all of them
(`make soak`).
"""

from __future__ import annotations

import io
import logging
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from helpers.run_cli import plain_terminal, run
from helpers.stored import hostile_content as hostile
from helpers.stored.hostile_content import (
    FIELDS,
    RAW,
    Lasting,
    cloned,
    foreign_errors,
    places,
    plant,
    populate,
    share,
    variants,
)
from helpers.stored.tampering import rebuild
from holdfast import HoldfastError, keys
from holdfast.backends import Backend, HeadFields, StreamKey
from holdfast.backends.files import FilesBackend
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.sqlite import SQLiteBackend
from holdfast.errors import CorruptRecord

KEY = bytes(range(32))
RING = StreamKey("$system", "key", "ring")
BOTH_WAYS = pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])


def both_ways(jobs: list[Any], of: int) -> list[tuple[Any, bool]]:
    """A share of them, each with whether it is for the async interface."""
    return [
        (job, asynchronous)
        for asynchronous in (False, True)
        for job in share(jobs, of, asynchronous)
    ]


def named(value: Any) -> str:
    if isinstance(value, tuple):
        return f"{value[0]}.{value[1]} = {value[2]}"
    return str(value) if not isinstance(value, bool) else "async" if value else "plain"


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    hostile.TRIPPED.clear()
    caplog.set_level(logging.CRITICAL, logger="holdfast")
    yield
    assert not hostile.TRIPPED


@pytest.fixture(scope="module")
def clear(tmp_path_factory: pytest.TempPathFactory) -> MemoryBackend:
    """A store with something of everything. All ways of reading it have been gone, so that nothing
    is imported later."""
    backend = Lasting()
    with holdfast.open(backend) as store:
        populate(store)
    foreign_errors(lambda: holdfast.open(cloned(backend)), tmp_path_factory.mktemp("warm"))
    return backend


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> MemoryBackend:
    """The same, encrypted."""
    backend = Lasting()
    with holdfast.open(backend, key=KEY) as store:
        populate(store)
        store.conversation("erased").append({"role": "user", "content": "x"})
        store.erase(store.conversation("erased"))
    foreign_errors(lambda: holdfast.open(cloned(backend), key=KEY), tmp_path_factory.mktemp("warm"))
    return backend


@BOTH_WAYS
def test_the_ways_of_reading_read(clear: MemoryBackend, tmp_path: Path, asynchronous: bool) -> None:
    with holdfast.open(cloned(clear)) as store, hostile.Loop() as loop:
        looked_at: Any = hostile.Awaited(store.aio, loop) if asynchronous else store
        failed = set()
        for name, way in hostile.ways(looked_at, tmp_path).items():
            try:
                way()
            except HoldfastError:
                failed.add(name)
    # These have nothing to find, or are refused, in a store that is in order.
    assert failed == {"window", "turn", "prompt", "task talk", "closed", "resolve"}
    assert (
        foreign_errors(lambda: holdfast.open(cloned(clear)), tmp_path, asynchronous=asynchronous)
        == []
    )


def test_the_tripwire_would_be_noticed(clear: MemoryBackend, tmp_path: Path) -> None:
    import pickle

    pickle.loads(RAW["pickle"])
    assert foreign_errors(lambda: holdfast.open(cloned(clear)), tmp_path) == [
        "executed ('pickle',)"
    ]
    hostile.TRIPPED.clear()


# -- in any record and any head, with a chain that fits --------------------------------------------


def in_turn(
    backend: MemoryBackend,
    jobs: list[tuple[Any, ...]],
    folder: Path,
    asynchronous: bool,
    key: bytes | None = None,
) -> None:
    found: dict[str, tuple[Any, ...]] = {}
    for stream, version, name, planted in jobs:
        target = cloned(backend)
        if isinstance(planted, HeadFields):
            target._streams[stream].fields = planted
        else:
            plant(target, stream, version, planted)
        open_store = partial(holdfast.open, target, key=key)
        for error in foreign_errors(open_store, folder, asynchronous=asynchronous):
            found.setdefault(error, (str(stream), version, name))
    assert found == {}


@BOTH_WAYS
def test_whatever_a_record_is_only_our_errors_come_of_it(
    clear: MemoryBackend, tmp_path: Path, asynchronous: bool
) -> None:
    jobs = [
        (stream, version, name, body)
        for stream, version in places(clear)
        for name, body in RAW.items()
    ]
    in_turn(clear, share(jobs, 37, asynchronous), tmp_path, asynchronous)


@BOTH_WAYS
def test_whatever_a_field_of_an_event_is_only_our_errors_come_of_it(
    clear: MemoryBackend, tmp_path: Path, asynchronous: bool
) -> None:
    jobs = []
    for stream, version in places(clear):
        body = clear._streams[stream].records[version - 1].body
        if body.startswith(b"{"):
            jobs += [(stream, version, name, changed) for name, changed in variants(body)]
    in_turn(clear, share(jobs, 211, asynchronous), tmp_path, asynchronous)


@BOTH_WAYS
def test_whatever_the_fields_of_a_head_are_only_our_errors_come_of_it(
    clear: MemoryBackend, tmp_path: Path, asynchronous: bool
) -> None:
    jobs = [
        (stream, 0, repr(fields)[:99], fields) for stream in clear._streams for fields in FIELDS
    ]
    in_turn(clear, share(jobs, 59, asynchronous), tmp_path, asynchronous)


@BOTH_WAYS
def test_in_an_encrypted_store_only_our_errors_come_of_what_is_planted(
    sealed: MemoryBackend, tmp_path: Path, asynchronous: bool
) -> None:
    jobs: list[tuple[Any, ...]] = []
    for stream, version in places(sealed):
        jobs += [(stream, version, name, body) for name, body in RAW.items()]
    jobs += [
        (stream, 0, repr(fields)[:99], fields) for stream in sealed._streams for fields in FIELDS
    ]
    in_turn(sealed, share(jobs, 127, asynchronous), tmp_path, asynchronous, KEY)


@BOTH_WAYS
def test_whatever_the_keys_of_a_store_are_only_our_errors_come_of_it(
    sealed: MemoryBackend, tmp_path: Path, asynchronous: bool
) -> None:
    jobs = []
    for stream in sealed._streams:
        if stream.kind == "key":
            jobs += [
                (stream, 1, *variant)
                for variant in variants(sealed._streams[stream].records[0].body)
            ]
    in_turn(sealed, share(jobs, 401, asynchronous), tmp_path, asynchronous, KEY)


WRONG: list[Any] = [
    None,
    -1,
    0,
    1,
    7,
    2**62,
    2**64 - 1,
    1e300,
    "",
    "x",
    "9" * 5000,
    [],
    {},
    {"n": 1},
]


PASSPHRASE = keys.passphrase("four words and more", n=1 << 14)


@pytest.fixture(scope="module")
def behind_a_passphrase() -> MemoryBackend:
    backend = Lasting()
    with holdfast.open(backend, key=PASSPHRASE) as store:
        store.stream("s").append(("noted", 1))
    return backend


@pytest.mark.parametrize("wrong", WRONG, ids=lambda value: repr(value)[:20])
@pytest.mark.parametrize("fact", ["n", "r", "p", "salt", "how", "key", "check", "wrapped", "facts"])
def test_whatever_a_ring_says_of_a_passphrase_costs_an_error_and_little_else(
    behind_a_passphrase: MemoryBackend, fact: str, wrong: Any
) -> None:
    backend, key = cloned(behind_a_passphrase), PASSPHRASE
    ring = msgspec.json.decode(backend._streams[RING].records[0].body)
    by = ring["data"]["masters"][0]["by"]
    facts = by["facts"] if fact in by["facts"] else by
    if facts[fact] == wrong:
        return
    facts[fact] = wrong
    plant(backend, RING, 1, msgspec.json.encode(ring))
    try:
        holdfast.open(backend, key=key).stream("s").version()
    except HoldfastError:
        pass
    else:
        assert fact == "key", "it names the key for people, and opens nothing"


def test_one_that_cannot_be_read_does_not_keep_the_others_waiting() -> None:
    for body, fields in [(b"[", {}), (None, {"label": b"\xff"}), (b"[", {"status": "finished"})]:
        backend = Lasting()
        with holdfast.open(backend) as store:
            store.submit("hostile-healthy", "bad")
            store.submit("hostile-healthy", "good")
        bad = StreamKey("default", "task", "bad")
        if body is not None:
            plant(backend, bad, 1, body)
        stream = backend._streams[bad]
        stream.fields = msgspec.structs.replace(stream.fields, **fields)
        with holdfast.open(backend) as store:
            store.run_due()
            view = store.get_task("good")
            assert view is not None and view.status == "finished"


# -- lists that would never come to an end ---------------------------------------------------------


class Repeating(Lasting):
    """An engine whose lists begin anew wherever one goes on."""

    asked = 0

    def heads(self, **options: Any) -> Any:
        self.asked += 1
        assert self.asked < 200, "it is asked for ever"
        return super().heads(**{**options, "after": ""})

    def due(self, **options: Any) -> Any:
        self.asked += 1
        assert self.asked < 200, "it is asked for ever"
        return super().due(**{**options, "after": None})


@pytest.mark.parametrize(
    "ask",
    [
        lambda store: list(store.tasks()),
        lambda store: list(store.streams()),
        lambda store: list(store.conversations()),
        lambda store: store.sweep(grace=0, dry_run=True, limit=10_000),
        lambda store: store.health(),
        lambda store: store.anchor(io.StringIO()),
        lambda store: holdfast.copy(store._log.backend, MemoryBackend()),
    ],
)
def test_a_list_that_does_not_go_on_is_an_error(
    clear: MemoryBackend, ask: Callable[[holdfast.Store], Any]
) -> None:
    backend = Repeating()
    backend._streams = cloned(clear)._streams
    for key, stream in backend._streams.items():
        if key.kind == "conversation":
            stream.fields = HeadFields(expires_at=1.0)
    with holdfast.open(backend) as store:
        try:
            ask(store)
        except CorruptRecord:
            pass


# -- in the rows of an SQLite file -----------------------------------------------------------------

_NEWEST = (
    "rowid IN (SELECT max(records.rowid) FROM records JOIN streams USING (stream) WHERE "
    "kind = '{}')"
)
_TASKS = "kind = 'task'"

ROWS: list[tuple[str, str, str, str]] = [
    *(
        ("streams", column, value, _TASKS)
        for column, value in [
            ("id", "CAST(x'fffe' AS TEXT) || stream"), ("id", "char(0) || stream"),
            ("id", "CAST(x'eda080' AS TEXT) || stream"), ("status", "CAST(x'ff' AS TEXT)"),
            ("owner", "CAST(x'ff' AS TEXT)"), ("label", "zeroblob(1000000)"),
            ("incarnation", "x''"), ("due", "1e308"), ("due", "5.0"), ("due_at", "9e999"),
            ("expires_at", "-9e999"), ("stream", "-1"), ("stream", "9223372036854775807"),
            ("stream", "1"),
        ]
    ),
    ("streams", "due", "5.0", "kind = 'closed'"),
    ("streams", "expires_at", "1e308", "kind = 'conversation'"),
    ("streams", "kind", "CAST(x'ff' AS TEXT)", "kind = 'tenant'"),
    ("streams", "id", "CAST(x'ff' AS TEXT)", "kind = 'tenant'"),
    *(
        ("records", column, value, _NEWEST.format(kind))
        for column, value, kind in [
            ("version", "9223372036854775807", "memory"),
            ("version", "-9223372036854775808", "stream"), ("hash", "x''", "task"),
            ("append_id", "x''", "state"), ("body", "zeroblob(40000000)", "conversation"),
            ("body", "x''", "audit"), ("stream", "-1", "tenant"),
            ("stream", "9223372036854775807", "tenant"),
        ]
    ),
    *(
        (
            "records", "stream", "-stream",
            f"stream IN (SELECT stream FROM streams WHERE kind = '{kind}')",
        )
        for kind in [
            "audit", "blob", "closed", "conversation", "memory", "state", "stream", "task",
            "tenant",
        ]
    ),
    ("numbers", "last", "-5", "1"), ("numbers", "last", "9223372036854775807", "1"),
    ("numbers", "tombstones", "x''", "1"),
    ("tombstones", "incarnation", "x''", "1"),
]  # fmt: skip

UNTYPED: list[tuple[str, str, str, str]] = [
    *(
        ("records", column, value, _NEWEST.format(kind))
        for column, value, kind in [
            ("body", "7", "state"), ("body", "'text'", "conversation"), ("body", "NULL", "memory"),
            ("body", "1.5", "blob"), ("hash", "'text'", "task"), ("append_id", "7", "stream"),
            ("version", "x'ff'", "state"),
        ]
    ),
    *(
        ("streams", column, value, _TASKS)
        for column, value in [
            ("incarnation", "NULL"), ("incarnation", "'text'"), ("status", "7"),
            ("label", "'text'"), ("owner", "x'ff'"), ("due_at", "'soon'"), ("due_at", "1.5"),
            ("expires_at", "x'00'"), ("id", "stream"), ("stream", "'one'"), ("stream", "NULL"),
        ]
    ),
    ("numbers", "last", "'one'", "1"), ("numbers", "tombstones", "7", "1"),
]  # fmt: skip
"""What no strict table holds: the table was another when it was put there."""


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sqlite") / "agents.db"
    with holdfast.open(path, durability="process") as store:
        populate(store)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


def with_rows(backend: Backend, source: MemoryBackend) -> None:
    rebuild(source, backend, {})
    backend.close()


def planted(database: Path, place: Path, what: tuple[str, str, str, str], *, typed: bool) -> Path:
    """A copy of the file with other values in a column."""
    table, column, value, where = what
    path = place / "agents.db"
    path.write_bytes(database.read_bytes())
    connection = sqlite3.connect(path, isolation_level=None)
    tables = connection.execute(
        "SELECT sql, name FROM sqlite_schema WHERE type = 'table'"
    ).fetchall()
    if not typed:
        loose = [
            (sql.replace("STRICT, ", "").replace("STRICT", "").replace("NOT NULL", ""), name)
            for sql, name in tables
        ]
        connection = _with_schema(connection, path, loose)
    connection.execute("PRAGMA ignore_check_constraints = ON")
    connection.execute(f"UPDATE {table} SET {column} = {value} WHERE {where}")
    assert connection.execute("SELECT changes()").fetchone()[0], "it was planted"
    if not typed:
        connection = _with_schema(connection, path, tables)
    connection.close()
    return path


def _with_schema(
    connection: sqlite3.Connection, path: Path, tables: list[Any]
) -> sqlite3.Connection:
    connection.execute("PRAGMA writable_schema = ON")
    connection.executemany(
        "UPDATE sqlite_schema SET sql = ? WHERE name = ? AND type = 'table'", tables
    )
    connection.close()
    return sqlite3.connect(path, isolation_level=None)


@pytest.mark.parametrize(("what", "asynchronous"), both_ways(ROWS, 1), ids=named)
def test_whatever_a_row_holds_only_our_errors_come_of_it(
    database: Path, tmp_path: Path, what: tuple[str, str, str, str], asynchronous: bool
) -> None:
    path = planted(database, tmp_path, what, typed=True)
    assert foreign_errors(lambda: holdfast.open(path), tmp_path, asynchronous=asynchronous) == []


@pytest.mark.parametrize(("what", "asynchronous"), both_ways(UNTYPED, 1), ids=named)
def test_a_row_of_other_types_than_its_table_has_is_an_error(
    database: Path, tmp_path: Path, what: tuple[str, str, str, str], asynchronous: bool
) -> None:
    path = planted(database, tmp_path, what, typed=False)
    assert foreign_errors(lambda: holdfast.open(path), tmp_path, asynchronous=asynchronous) == []


def test_a_row_that_is_due_at_another_time_than_its_head_says_is_left_out(
    database: Path, tmp_path: Path
) -> None:
    path = planted(database, tmp_path, ("streams", "due", "5.0", "id = 'asking'"), typed=True)
    with holdfast.open(path) as store:
        listed = [head.stream.id for head in store._log.backend.due(tenant="default", kind="task")]
    assert "asking" not in listed and listed


# -- on the command line ---------------------------------------------------------------------------

COMMANDS = [
    ("health",), ("health", "--json"), ("streams",), ("read", "events"),
    ("read", "events", "--json"), ("tasks",), ("tasks", "--json"),
    ("task", "task"), ("task", "task", "--history"), ("task", "task", "--context"),
    ("task", "task", "--json"), ("artifact", "task", "file.txt"),
    ("questions",), ("questions", "--json"), ("conversations",), ("messages", "chat"),
    ("messages", "chat", "--json"), ("verify", "--json"), ("anchor",),
    ("audit", "task", "--content"), ("audit", "chat", "--kind", "conversation", "--format", "csv"),
    ("sweep", "--dry-run"),
    ("answer", "asking", "payout", "true"), ("signal", "task", "poke"),
    ("resolve", "task", "one", "--retry"), ("retry", "task"),
    ("cancel", "task"), ("sweep", "--force", "--grace", "0"),
]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    share(
        [
            "deep data", "a time of no calendar", "a time before all", "not UTF-8", "pickle",
            "yaml", "a huge number", "a NUL in a text", "a blob of all memory", "template",
        ],
        2,
    ),
)  # fmt: skip
def test_a_command_ends_with_a_line_and_not_with_a_trace(
    clear: MemoryBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    plain_terminal(monkeypatch)
    target = cloned(clear)
    for stream in [stream for stream in target._streams if stream.kind not in ("tenant", "blob")]:
        plant(target, stream, target._streams[stream].version, RAW[name])
        target._streams[stream].fields = FIELDS[len(stream.id) % len(FIELDS)]
    path = tmp_path / "agents.db"
    with_rows(SQLiteBackend(path), target)
    for command, *arguments in COMMANDS:
        result = run(command, path, *arguments)
        assert result.exception is None or isinstance(result.exception, SystemExit), (
            command,
            arguments,
            result.exception,
        )
        assert result.exit_code in (0, 1), (command, result.output)
        assert "\x00" not in result.stdout or command == "artifact"


# -- in JSON Lines files ---------------------------------------------------------------------------

LINES: list[Callable[[dict[str, Any]], object]] = [
    *(lambda line, name=name, value=value: line.update({name: value})
      for name in ("first", "last", "ids") for value in (-1, 0, 2**63, 2**64 - 1, None, "x", [])),
    *(lambda line, value=value: line.update(stream=value)
    for value in ([], ["a"], [1, 2, 3], "x", None, ["default", "conversation", "\0"])),
    *(lambda line, value=value: line.update(incarnation=value)
    for value in ("", "zz", "00" * 1000, 7)),
    *(lambda line, value=value: line["fields"].update(due_at=value, expires_at=value)
      for value in ("nan", "inf", "-inf", "soon", 1e300, [], "9" * 5000)),
    *(lambda line, value=value: line["fields"].update(label=value)
    for value in ("ff", "zz", 7, "00" * 100_000)),
    *(lambda line, value=value: line["fields"].update(status=value, owner=value)
    for value in ("", "\0", 7, "\U0010ffff" * 1000)),
    *(lambda line, value=value: line["appends"][0].update(records=value)
    for value in ([], None, [{}], [{"hash": "zz", "body": {}}])),
    *(lambda line, value=value: line["appends"][0]["records"][0].update(base64=value)
    for value in ("", "AA==", "not base64", 7)),
    *(lambda line, value=value: line["appends"][0]["records"][0].update(body=value)
    for value in (7, [], {"id": "x"}, None)),
    lambda line: line.update(appends=[]), lambda line: line.update(appends=line["appends"] * 3),
    lambda line: line.pop("stream"),
    lambda line: line.update(first=0, deleted=["zz"], kept=[["ff", -1, 2**63]]),
    lambda line: line.update(deleted=["ff"] * 1000),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(clear: MemoryBackend, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files") / "agents"
    with_rows(FilesBackend(root, durability="process"), clear)
    return root


def summed(line: dict[str, Any]) -> bytes:
    """The line with its length and the right sum, as somebody writes it who knows how."""
    from hashlib import sha256

    inner = msgspec.json.encode(
        {name: value for name, value in line.items() if name not in ("length", "sum")}
    )[1:-1]
    length = 0
    for _ in range(4):
        start = b'{"length":%d,' % length + inner
        length = len(start) + len(b',"sum":""}\n') + 32
    return start + b',"sum":"%s"}\n' % sha256(start).hexdigest()[:32].encode()


@pytest.mark.parametrize(
    ("number", "asynchronous"), both_ways(list(range(len(LINES))), 7), ids=named
)
def test_whatever_a_line_says_only_our_errors_come_of_it(
    folder: Path, tmp_path: Path, number: int, asynchronous: bool
) -> None:
    import shutil

    root = tmp_path / "agents"
    shutil.copytree(folder, root)
    for index in root.glob("index*"):
        index.unlink()
    files = sorted(path for path in root.rglob("*.jsonl"))
    for path in files[number % 2 :: 2]:
        first, *rest = path.read_bytes().splitlines(keepends=True)
        line = msgspec.json.decode(first)
        LINES[number](line)
        path.write_bytes(summed(line) + b"".join(rest))
    assert (
        foreign_errors(
            lambda: holdfast.open(f"file://{root}?durability=process"),
            tmp_path,
            asynchronous=asynchronous,
        )
        == []
    )


# -- memory ----------------------------------------------------------------------------------------

_LIMITED = """
import logging, resource, sys
import holdfast
from holdfast import HoldfastError
logging.disable(logging.CRITICAL)
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
with holdfast.open(sys.argv[1]) as store:
    stream = store.stream("s")
    ways = [lambda: list(stream.read()), lambda: stream.append(("n", 1)), lambda: store.verify()]
    for read in ways[: int(sys.argv[2])]:
        try:
            read()
        except HoldfastError as error:
            print(type(error).__name__)
"""


def limited(url: str, ways: int) -> list[str]:
    """What reading a stream comes to with a gigabyte of memory."""
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, url, str(ways)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_record_that_would_fill_the_memory_is_not_parsed(tmp_path: Path) -> None:
    backend = Lasting()
    with holdfast.open(backend) as store:
        store.stream("s").append(("noted", 1))
    huge = hostile.envelope(b"[" + b"[]," * 20_000_000 + b"[]]")  # as objects, more than a gigabyte
    plant(backend, StreamKey("default", "stream", "s"), 1, huge)
    path = tmp_path / "agents.db"
    with_rows(SQLiteBackend(path), backend)
    assert "CorruptRecord" in limited(str(path), 3)


def test_a_line_that_would_fill_the_memory_is_not_read(tmp_path: Path) -> None:
    root = tmp_path / "agents"
    with holdfast.open(f"file://{root}") as store:
        store.stream("s").append(("noted", 1))
    [path] = root.rglob("s.jsonl")
    for index in root.glob("index*"):
        index.unlink()
    size = 5 << 28  # more than a gigabyte, and sparse: it takes no room on the disk
    for start in (b'{"length":%d,' % (size - path.stat().st_size), b"x"):
        with path.open("r+b") as file:
            file.seek(0, os.SEEK_END)
            end = file.tell()
            file.write(start)
            file.truncate(size)
            file.seek(size - 1)
            file.write(b"\n")
        assert "CorruptRecord" in limited(f"file://{root}", 1)
        os.truncate(path, end)


def test_a_large_value_is_not_read_beyond_what_a_value_can_have(clear: MemoryBackend) -> None:
    from holdfast.log.codec import MAX_STORED_BYTES

    backend = cloned(clear)
    events = StreamKey("default", "stream", "events")
    body = msgspec.json.decode(backend._streams[events].records[2].body)
    body["blob"]["size"] = MAX_STORED_BYTES + 1
    plant(backend, events, 3, msgspec.json.encode(body))
    read = list[StreamKey]()
    backend.read = lambda stream, **options: (
        read.append(stream),
        MemoryBackend.read(backend, stream, **options),
    )[1]  # type: ignore[method-assign]
    with holdfast.open(backend) as store, pytest.raises(CorruptRecord, match="over the limit"):
        list(store.stream("events").read())
    assert not [stream for stream in read if stream.kind == "blob"]


def test_a_line_that_could_not_be_read_again_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.backends.files.append.MAX_FRAME_BYTES", 2000)
    with holdfast.open(f"file://{tmp_path}/agents") as store:
        stream = store.stream("s")
        stream.append(("noted", "x" * 500))
        with pytest.raises(holdfast.errors.TooLarge, match="nothing was written"):
            stream.append(("noted", "x" * 3000))
        stream.append(("noted", "y" * 500))
        assert [event.data[0] for event in stream.read()] == ["x", "y"]


def test_a_subject_in_an_incarnation_that_is_not_valid_is_an_error(sealed: MemoryBackend) -> None:
    from holdfast.log import operations as ops
    from holdfast.log.events import NewEvent, new_append_context
    from holdfast.log.operations.stream_ops import append_events

    with holdfast.open(cloned(sealed), key=KEY) as store:
        event = NewEvent("subject.used", b'{"kind":"conversation","id":"about","incarnation":"no"}')
        ops.run(
            store._log,
            append_events(
                StreamKey("default", "subject", "person-7"), [event], new_append_context()
            ),
        )
        with pytest.raises(CorruptRecord):
            store.erase(subject="person-7")
