"""Opening and closing a store, on every backend."""

from __future__ import annotations

import os
import sqlite3
import stat
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.backends import Append, HeadFields, StreamKey
from holdfast.backends.memory import MemoryBackend


def data(stream: holdfast.Stream) -> list[Any]:
    return [event.data for event in stream.read()]


@pytest.mark.every_engine
def test_everything_is_there_after_opening_again(durable_url: str) -> None:
    for number in range(3):
        with holdfast.open(durable_url) as store:
            store.stream("s").append(("n", number), id=f"req-{number}")
            assert (
                store.stream("s").append(("n", 0), id="req-0").duplicate is (number > 0)
                or number == 0
            )
    with holdfast.open(durable_url) as store:
        assert data(store.stream("s")) == [0, 1, 2]


def test_a_backend_object_can_be_opened_in_place_of_a_url() -> None:
    backend = MemoryBackend()
    with holdfast.open(backend, tenant="acme") as store:
        store.stream("s").append(("n", 1))
        assert backend.heads(tenant="acme", kind="stream")[0].version == 1
    wrong: Any = 7
    with pytest.raises(TypeError, match="URL, a path or a Backend"):
        holdfast.open(wrong)


def test_a_private_memory_store_is_private_and_a_named_one_is_shared() -> None:
    with holdfast.open("memory://") as one, holdfast.open("memory://") as two:
        one.stream("s").append(("n", 1))
        assert data(two.stream("s")) == []
    with holdfast.open("memory://test-shared") as one:
        one.stream("s").append(("n", 1))
    with holdfast.open("memory://test-shared") as two:
        assert data(two.stream("s")) == [1]


def test_sqlite_urls_name_relative_and_absolute_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("sqlite:///one.db", f"sqlite:///{tmp_path}/two%20words.db", "three.db"):
        holdfast.open(url).close()
    holdfast.open(tmp_path / "four.db").close()
    assert {p.name for p in tmp_path.iterdir()} >= {"one.db", "two words.db", "three.db", "four.db"}


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("", "name a file"),
        (":memory:", "memory://"),
        ("nosuch://host/x", "nosuch"),
        ("sqlite://host/x.db", "sqlite"),
        ("sqlite:///", "sqlite"),
        ("file://host/dir", "file"),
        ("sqlite:///a.db?mode=rw", "takes no options"),
        ("sqlite:a.db", "exactly these slashes"),
        ("sqlite:/a.db", "exactly these slashes"),
        ("sqlite://a.db", "exactly these slashes"),
        ("file://dir", "exactly these slashes"),
        ("memory://a/b", "exactly these slashes"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused_with_a_hint(url: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        holdfast.open(url)


def test_a_password_in_a_refused_url_is_not_shown() -> None:
    with pytest.raises(ValueError, match="nosuch") as caught:
        holdfast.open("nosuch://user:CANARY@host/x")
    assert "CANARY" not in str(caught.value)


MANGLED = [
    '"postgresql://agents:CANARY@host/agents"',
    "'redis://:CANARY@host'",
    "postgresql//agents:CANARY@host/agents",
    "://agents:CANARY@host/agents",
    "host=127.0.0.1 user=agents password=CANARY dbname=agents",
    "host=127.0.0.1 PASSWORD = CANARY",
    " postgresql://agents:CANARY@host/agents",
    "postgresql://agents:CANARY@host/agents\n",
    "redis://:CANARY@host ",
]


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("url", MANGLED)
def test_a_url_with_a_slip_in_it_is_not_taken_for_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, create: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(holdfast.errors.InvalidURL) as caught:
        holdfast.open(url, create=create)
    assert "CANARY" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", [*MANGLED[:6], "postgresql://agents:CANARY@host/agents"])
def test_a_url_is_no_place_for_a_backup_or_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with holdfast.open("agents.db") as store:
        for use in (
            lambda: holdfast.backup(store, url),
            lambda: holdfast.open("agents.db", index=url),
        ):
            with pytest.raises(holdfast.errors.InvalidURL) as caught:
                use()
            assert "CANARY" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["a@b.db", "password.db", "a:b.db", "x//y@z.db", " in the middle.db".strip(), "ä 'b'.db"],
)
def test_odd_names_of_files_are_names_of_files(tmp_path: Path, name: str) -> None:
    (tmp_path / "x").mkdir()
    with holdfast.open(str(tmp_path / name)) as store:
        store.stream("s").append(("noted", 1))


def test_places_that_cannot_be_a_store_are_refused_and_left_alone(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="directory"):
        holdfast.open(tmp_path)
    with pytest.raises(holdfast.errors.Unavailable, match="does not exist"):
        holdfast.open(tmp_path / "missing" / "a.db")
    text = tmp_path / "notes.txt"
    text.write_text("these are my notes, " * 100)
    with pytest.raises(holdfast.errors.UnsupportedVersion):
        holdfast.open(text)
    assert text.read_text() == "these are my notes, " * 100
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    before = other.read_bytes()
    with pytest.raises(holdfast.errors.UnsupportedVersion, match="not a Holdfast store"):
        holdfast.open(other)
    assert other.read_bytes() == before


@pytest.mark.parametrize(
    "planted",
    [
        "CREATE TRIGGER undo AFTER INSERT ON records BEGIN DELETE FROM records WHERE rowid = "
        "new.rowid; END",
        "CREATE VIEW more AS WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) "
        "SELECT i FROM n",
        "ALTER TABLE records ADD COLUMN extra TEXT",
    ],
)
def test_a_database_with_planted_triggers_views_or_columns_is_refused(
    tmp_path: Path, planted: str
) -> None:
    path = tmp_path / "a.db"
    with holdfast.open(path) as store:
        store.stream("s").append(("n", 1))
    with sqlite3.connect(path) as connection:
        connection.execute(planted)
    connection.close()
    with pytest.raises(holdfast.errors.UnsupportedVersion, match="did not create"):
        holdfast.open(path)


@pytest.mark.slow
def test_a_planted_value_of_enormous_size_is_refused_before_it_is_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holdfast.open(path) as store:
        store.stream("s").append(("n", 1))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE records SET body = zeroblob(200000000)")
    connection.close()
    with holdfast.open(path) as store, pytest.raises(holdfast.errors.CorruptRecord):
        data(store.stream("s"))


def test_an_id_that_is_not_text_is_left_out_of_listings_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holdfast.open(path) as store:
        for name in ("r", "s", "t"):
            store.stream(name).append(("n", 1))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE streams SET id = CAST(x'73ff' AS TEXT) WHERE id = 's'")
    connection.close()
    with holdfast.open(path) as store:
        assert [each.id for each in store.streams()] == ["r", "t"]
        assert any("not valid text" in problem.details for problem in store.verify().problems)


@pytest.mark.parametrize("lost", [["", "-wal", "-shm"], [""], ["-wal"]])
def test_nothing_is_acknowledged_into_files_that_are_gone(tmp_path: Path, lost: list[str]) -> None:
    path = tmp_path / "a.db"
    with holdfast.open(path) as store:
        store.stream("s").append(("n", 1))
        for suffix in lost:
            os.remove(f"{path}{suffix}")
        # A busy writer looks a hundred times a second, so the very next append may still slip
        # through.
        with pytest.raises(holdfast.errors.Unavailable, match="removed or replaced"):
            for _ in range(100_000):
                store.stream("s").append(("n", 2))
        with pytest.raises(holdfast.errors.Unavailable, match="removed or replaced"):
            store.stream("s").append(("n", 2))
    with holdfast.open(path) as store:
        store.stream("s").append(("n", 3))


def test_a_file_that_was_replaced_under_an_open_store_is_noticed(tmp_path: Path) -> None:
    for name in ("a.db", "other.db"):
        with holdfast.open(tmp_path / name) as store:
            store.stream("s").append(("n", name))
    with holdfast.open(tmp_path / "a.db") as store:
        store.stream("s").append(("n", 2))
        os.replace(tmp_path / "other.db", tmp_path / "a.db")
        with pytest.raises(holdfast.errors.Unavailable, match="removed or replaced"):
            for _ in range(100_000):
                store.stream("s").append(("n", 3))
        with pytest.raises(holdfast.errors.Unavailable, match="removed or replaced"):
            data(store.stream("s"))


def test_a_store_of_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    holdfast.open(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(holdfast.errors.UnsupportedVersion, match="schema version 99"):
        holdfast.open(path)


def test_files_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with holdfast.open(tmp_path / "a.db") as store:
            store.stream("s").append(("n", 1))
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == {"a.db": 0o600, "a.db-wal": 0o600, "a.db-shm": 0o600}


@pytest.mark.every_engine
def test_the_weaker_durability_is_named_and_shown(durable_url: str) -> None:
    with holdfast.open(durable_url) as store:
        assert store.health().durability == "disk"
    # Whoever cannot promise less says what it does promise.
    least = "disk" if durable_url.startswith(("redis", "dynamodb", "s3")) else "process"
    with holdfast.open(durable_url, durability="process") as store:
        assert store.health().durability == least
    wrong: Any = "none"
    with pytest.raises(ValueError, match="durability"):
        holdfast.open(durable_url, durability=wrong)


@pytest.mark.every_engine
def test_health_says_where_the_state_is_and_how_large(durable_url: str) -> None:
    with holdfast.open(durable_url, tenant="acme") as store:
        for number in range(3):
            store.stream(f"s{number}").append(("n", 1))
        health = store.health()
    place, asked = (
        text.partition("?")[0].replace(":@", "@") for text in (health.location, durable_url)
    )
    assert place in asked or asked in place
    assert (health.tenant, health.streams, health.counted_all) == ("acme", {"stream": 3}, True)
    knows_size = not durable_url.startswith(("dynamodb:", "s3:"))  # AWS would bill for counting
    assert (sum(health.sizes.values()) > 0) is knows_size
    assert health.engine_version and health.oldest_lease is None


def test_health_names_the_oldest_lease(store: holdfast.Store) -> None:
    backend = store._log.backend
    store._log.register_tenant("default")
    for name, owner, due in (
        ("late", "worker-1", 2e9),
        ("early", "worker-2", 1e9),
        ("timer", None, 5e8),
    ):
        key = StreamKey("default", "task", name)
        incarnation = os.urandom(16)
        fields = store._log.reader.encode_fields(
            key, incarnation, HeadFields("running", None, owner, due)
        )
        backend.append([Append(key, 0, b"", incarnation, b"i" * 16, [(bytes(32), b"{}")], fields)])
    assert store.health().oldest_lease == holdfast.types.LeaseInfo(
        "early", "worker-2", datetime.fromtimestamp(1e9, timezone.utc)
    )
    assert store.for_tenant("other").health().oldest_lease is None
