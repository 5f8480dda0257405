"""Which Redis servers are accepted, what they guarantee, and a clear error for each defect."""

from __future__ import annotations

import datetime
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

import holdfast
from helpers.engines.redis_server import DURABLE, Server, until
from holdfast.backends.redis import RedisBackend
from holdfast.backends.redis.errors import ResponseError
from holdfast.backends.redis.keys import RedisKeys
from holdfast.backends.redis.server import inspect_server
from holdfast.backends.redis.url import parse_redis_url
from holdfast.conformance.build import (
    KIND,
    TENANT,
    StreamTracker,
    all_heads,
    bodies,
    ids,
    must_head,
    read_all,
)
from holdfast.conformance.lifecycle import exit_code, fork
from holdfast.errors import (
    AccessDenied,
    InvalidURL,
    StorageFull,
    Unavailable,
    UnsupportedServer,
    UnsupportedVersion,
)

SECRET = "s3cr3t-pass"
# As docs/explanation/redis.md says it.
RIGHTS = (
    "~{holdfast* resetchannels &*{holdfast* +@read +@write +@scripting +@connection +@pubsub "
    "+info +select +time +wait +config|get"
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "redis")
    yield server
    server.kill()


@pytest.mark.parametrize(
    "url",
    [
        "redis://",
        "redis:///0",
        f"redis://:{SECRET}@/0",
        f"redis://{SECRET}@127.0.0.1:1/0",
        f"rediss://{SECRET}@127.0.0.1:1/0",
        f"redis://u:{SECRET}@host/zero",
        f"redis://u:{SECRET}@host/0/1",
        f"redis://u:{SECRET}@host:port/0",
        f"redis://u:{SECRET}@host/0?prefix=",
        f"redis://u:{SECRET}@host/0?prefix=a:b",
        f"redis://u:{SECRET}@host/0?prefix={{a}}",
        f"redis://u:{SECRET}@host/0?durability=some",
        f"redis://u:{SECRET}@host/0?wait_replicas=some",
        f"redis://u:{SECRET}@host/0?wait_aof=maybe",
        f"redis://u:{SECRET}@host/0?timeout=0",
        f"redis://u:{SECRET}@host/0?timeout=soon",
        f"redis://u:{SECRET}@host/0?timeout=nan",
        f"redis://u:{SECRET}@host/0?wait_ms=99999999999999999999",
        f"redis://u:{SECRET}@host/0?wait_replicas=99999999999999999999",
        f"redis://u:12?{SECRET}=x@host/0",  # a password with a '?', which is not written as %3F
        f"redis://u:12?prefix=a&{SECRET}=x@host/0",
        f"redis://u:12?{SECRET}=x&{SECRET}=y@host/0",
        f"redis://host/0?{SECRET}=x",
        f"redis://u:{SECRET}@host/0?ca=/ca.pem",
        f"rediss://u:{SECRET}@host/0?ca=/not/there.pem",
    ],
)
def test_a_bad_url_is_said_to_be_one(url: str) -> None:
    with pytest.raises(InvalidURL) as raised:
        holdfast.open(url)
    assert SECRET not in str(raised.value)


def test_a_user_without_a_password_is_not_shown_for_it_may_be_the_password(server: Server) -> None:
    with pytest.raises(
        InvalidURL, match=r"write redis://:password@host or redis://user:password@host"
    ) as raised:
        RedisBackend(server.url(user=f"{SECRET}@"))
    assert SECRET not in str(raised.value)
    server("ACL", "SETUSER", "agent", "on", "nopass", "~*", "&*", "+@all")
    RedisBackend(server.url(user="agent:@")).close()  # with the colon it is a user who needs none


def test_a_database_that_is_not_there_is_a_bad_url(server: Server) -> None:
    with pytest.raises(InvalidURL, match="no such database"):
        RedisBackend(f"redis://127.0.0.1:{server.port}/99")


def test_another_database_is_another_store(server: Server) -> None:
    zero, one = RedisBackend(server.url()), RedisBackend(f"redis://127.0.0.1:{server.port}/1")
    StreamTracker().write(zero)
    assert one.head(StreamTracker().stream) is None
    zero.close()
    one.close()


def test_the_missing_package_is_named() -> None:
    script = (
        "import sys; sys.modules['redis'] = None; import holdfast; "
        "holdfast.open('redis://127.0.0.1')"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    [error] = [line for line in ended.stderr.splitlines() if "MissingExtra: " in line]
    assert "MissingExtra: a redis:// store needs" in error
    assert "pip install '.[redis]'" in error


# -- being let in ----------------------------------------------------------------------------------


def test_a_wrong_password_or_none_is_denied_and_never_shown(server: Server) -> None:
    with pytest.raises(
        AccessDenied, match="has no password, and the URL has one; remove it from the URL"
    ) as raised:
        RedisBackend(server.url(user=f":{SECRET}@"))
    assert SECRET not in str(raised.value)
    server("CONFIG", "SET", "requirepass", SECRET)
    wrong = "rejects the user and password of the URL; correct them"
    for user, says in (
        ("", "requires a password, and the URL has none"),
        (":wrong-one@", wrong),
        (f"nobody:{SECRET}@", wrong),
    ):
        with pytest.raises(AccessDenied, match=says) as raised:
            RedisBackend(server.url(user=user))
        assert SECRET not in str(raised.value)
        assert "wrong-one" not in str(raised.value)
    backend = RedisBackend(server.url(user=f":{SECRET}@"))
    assert SECRET not in repr(backend.describe()) + repr(backend._address) + repr(vars(backend))
    backend.close()


def test_the_documented_rights_are_enough(server: Server) -> None:
    server("ACL", "SETUSER", "agent", "on", f">{SECRET}", *RIGHTS.split())
    backend = RedisBackend(server.url(user=f"agent:{SECRET}@"))
    tracker = StreamTracker()
    heard = threading.Event()
    stop = backend.watch(tracker.stream, heard.set)
    until(lambda: server("PUBSUB", "CHANNELS"))
    tracker.write(
        backend, b"a", indexed=True, fields=holdfast.backends.HeadFields(status="s", due_at=1.0)
    )
    assert heard.wait(30)
    stop()
    assert bodies(read_all(backend, tracker.stream)) == [b"a"]
    assert (
        ids(all_heads(backend, status="s")) == ids(backend.due(tenant=TENANT, kind=KIND)) == ["s"]
    )
    assert backend.delete(tracker.stream, expected=must_head(backend, tracker.stream))
    assert backend.describe().durability == "disk"
    assert list(server("KEYS", "*probe*")) == []
    backend.close()


@pytest.mark.parametrize(
    "command", ["rpush", "hset", "zrem", "sadd", "unlink", "incr", "eval", "evalsha", "info"]
)
def test_a_right_that_is_missing_is_named_before_anything_is_written(
    server: Server, command: str
) -> None:
    server("ACL", "SETUSER", "agent", "on", f">{SECRET}", *RIGHTS.split(), f"-{command}")
    with pytest.raises(AccessDenied, match=rf"may not run {command}\b"):
        backend = RedisBackend(server.url(user=f"agent:{SECRET}@"))
        try:
            StreamTracker().write(backend)
        finally:
            backend.close()
    assert [
        key for key in server("KEYS", "*") if b":h:" in key or b":r:" in key or b":n" in key
    ] == []


def test_keys_of_another_prefix_are_denied(server: Server) -> None:
    server("ACL", "SETUSER", "agent", "on", f">{SECRET}", *RIGHTS.split())
    with pytest.raises(AccessDenied, match="touch its keys"):
        RedisBackend(server.url("?prefix=other", user=f"agent:{SECRET}@"))


def test_who_may_not_publish_appends_all_the_same(server: Server) -> None:
    server(
        "ACL", "SETUSER", "agent", "on", f">{SECRET}", *RIGHTS.split(), "resetchannels", "-publish"
    )
    backend = RedisBackend(server.url(user=f"agent:{SECRET}@"))
    StreamTracker().write(backend, b"a")
    backend.close()


# -- being reached ---------------------------------------------------------------------------------


def test_a_server_that_is_not_there_is_unavailable() -> None:
    for scheme in ("redis", "rediss"):
        says = r"cannot connect to rediss?://u@127.*: nothing listens there; .* server runs"
        with pytest.raises(Unavailable, match=says):
            RedisBackend(f"{scheme}://u:{SECRET}@127.0.0.1:1/0")


def test_a_host_that_nobody_knows_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    says = "the host name is not known; check it"
    with pytest.raises(Unavailable, match=says):
        RedisBackend(f"redis://{'x' * 64}.invalid/0")

    def unknown(*_: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(Unavailable, match=says):
        RedisBackend("redis://no-such-host.invalid/0")


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_a_server_that_never_answers_is_unavailable(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(Unavailable, match="no answer in time; check host and port"):
            RedisBackend(f"{scheme}://127.0.0.1:{silent.getsockname()[1]}/0", timeout=0.2)


@pytest.mark.parametrize(
    ("answer", "raised", "says"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            Unavailable,
            r"is not Redis; .* whether it requires TLS \(rediss://\)",
        ),
        (b"", Unavailable, r"closed at once; .* whether it requires TLS \(rediss://\)"),
        (b"-ERR max number of clients reached\r\n", Unavailable, "no more clients; .*maxclients"),
        (
            b"-DENIED Redis is running in protected mode because\r\n",
            AccessDenied,
            r"protected mode\); set requirepass",
        ),
    ],
    ids=["not Redis", "nothing", "full", "protected"],
)
def test_what_answers_otherwise_than_redis_does_is_told_apart(
    answer: bytes, raised: type[Exception], says: str
) -> None:
    def answers(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = threading.Thread(target=answers, args=(listener,))
        other.start()
        try:
            raise ConnectionRefusedError("of another server, which is none of this")
        except ConnectionRefusedError:
            with pytest.raises(raised, match=says):
                RedisBackend(f"redis://:{SECRET}@127.0.0.1:{listener.getsockname()[1]}/0")
        other.join()


def test_a_server_without_tls_is_said_to_be_one(server: Server) -> None:
    with pytest.raises(Unavailable, match="check that it uses TLS"):
        RedisBackend(f"rediss://127.0.0.1:{server.port}/0", timeout=0.3)


def test_tls_is_used_and_the_certificate_is_verified(server: Server, tmp_path: Path) -> None:
    certificate = _certificate(tmp_path)
    with _tls_before(server.port, certificate) as port:
        with pytest.raises(Unavailable, match="check that it uses TLS, with a certificate that"):
            RedisBackend(f"rediss://localhost:{port}/0")
        with pytest.raises(Unavailable, match="certificate"):
            RedisBackend(
                f"rediss://127.0.0.1:{port}/0?ca={certificate}"
            )  # trusted, but of another host
        backend = RedisBackend(f"rediss://localhost:{port}/0?ca={certificate}")
        StreamTracker().write(backend, b"a")
        assert bodies(read_all(backend, StreamTracker().stream)) == [b"a"]
        backend.close()


def test_a_server_that_loads_its_data_is_unavailable_until_it_has(server: Server) -> None:
    backend = RedisBackend(server.url())
    for number in range(40):
        StreamTracker(f"{number}").write(backend, os.urandom(500_000))
    server("BGREWRITEAOF")
    until(lambda: b"aof_rewrite_in_progress:0" in server.info("persistence"))
    server.kill()
    server.start(*server.options, "--key-load-delay", "5000")
    assert b"loading:1" in server.info("persistence"), "it was too quick to be seen"
    with pytest.raises(Unavailable, match=r"load|LOADING"):
        RedisBackend(server.url())
    with pytest.raises(Unavailable):
        backend.append([StreamTracker("new").next()])
    until(lambda: b"loading:0" in server.info("persistence"))
    StreamTracker("new").write(backend)
    backend.close()


# -- what it promises ------------------------------------------------------------------------------


def test_a_server_without_aof_is_refused_unless_memory_is_enough(tmp_path: Path) -> None:
    server = Server(tmp_path / "redis", durable=False)
    with pytest.raises(
        UnsupportedServer,
        match=r"needs appendonly yes and appendfsync always; .* has appendonly no",
    ):
        holdfast.open(server.url())
    with pytest.raises(
        UnsupportedServer,
        match=r"needs appendonly yes; .* or open the store with durability='memory'",
    ):
        holdfast.open(server.url(), durability="process")
    assert server("DBSIZE") == 0
    backend = RedisBackend(server.url(), durability="memory")
    assert backend.describe().durability == "memory"
    backend.close()
    server.kill()


def test_a_server_that_syncs_every_second_is_refused_for_disk(server: Server) -> None:
    for policy in ("everysec", "no"):
        server("CONFIG", "SET", "appendfsync", policy)
        with pytest.raises(
            UnsupportedServer, match=f"has appendfsync {policy}.*durability='process'"
        ):
            RedisBackend(server.url())
        backend = RedisBackend(server.url(), durability="process")
        assert backend.describe().durability == "process"
        backend.close()


def test_a_server_that_does_not_sync_while_it_rewrites_is_refused_for_disk(server: Server) -> None:
    server("CONFIG", "SET", "no-appendfsync-on-rewrite", "yes")
    with pytest.raises(
        UnsupportedServer, match=r"no-appendfsync-on-rewrite no; .* durability='process'"
    ):
        RedisBackend(server.url())
    backend = RedisBackend(server.url(), durability="process")
    assert backend.describe().durability == "process"
    assert "no-appendfsync-on-rewrite" in backend.describe().warnings[0]
    server("CONFIG", "SET", "no-appendfsync-on-rewrite", "no")
    assert (backend.describe().durability, backend.describe().warnings) == ("disk", [])
    backend.close()


@contextmanager
def _rewriting(server: Server, *commands: tuple[str, ...]) -> Iterator[None]:
    """While a rewrite of the append-only file, or a snapshot before it, is under way."""
    server("SET", "something", "x")
    server("CONFIG", "SET", "rdb-key-save-delay", 600_000_000)
    for command in commands:
        server(*command)
    assert server.rewrites()
    yield
    server("CONFIG", "SET", "rdb-key-save-delay", 0)
    for child in psutil.Process(server.process.pid).children():
        child.send_signal(signal.SIGUSR1)  # as Redis ends it
    until(lambda: not server.rewrites())


ON, OFF = ("CONFIG", "SET", "appendonly", "yes"), ("CONFIG", "SET", "appendonly", "no")


@pytest.mark.parametrize("durability", ["disk", "process"])
@pytest.mark.parametrize(
    "commands", [(OFF, ON), (ON,), (("BGSAVE",), ON)], ids=["again", "first", "scheduled"]
)
def test_a_server_whose_aof_was_just_switched_on_is_unavailable_until_the_file_is_there(
    commands: tuple[tuple[str, ...], ...], durability: Any, tmp_path: Path
) -> None:
    """Before that no file has anything that a restart would read, whatever the server confirms."""
    server = Server(tmp_path / "redis", "--appendfsync", "always", durable=False)
    if OFF in commands:
        server(*ON)
        until(lambda: not server.rewrites())
        RedisBackend(server.url()).close()
    with _rewriting(server, *commands):
        with pytest.raises(Unavailable, match="still creating its append-only file"):
            RedisBackend(server.url(), durability=durability)
        backend = RedisBackend(server.url(), durability="memory")
        assert backend.describe().durability == "memory"
        assert "still being created" in backend.describe().warnings[0]
    until(lambda: backend.describe().durability == "disk")  # Redis begins again by itself
    backend.close()
    backend = RedisBackend(server.url(), durability=durability)
    tracker = StreamTracker()
    tracker.write(backend, b"a")
    server.options = DURABLE  # also after a restart
    server.restart()
    assert bodies(read_all(backend, tracker.stream)) == [b"a"]
    backend.close()
    server.kill()


@pytest.mark.parametrize(("earlier", "refuses"), [(0, False), (1, False), (1, True)])
def test_an_ordinary_rewrite_changes_nothing(server: Server, earlier: int, refuses: bool) -> None:
    """Neither the first of a server that has had its file from the start, nor a later one, even if
    it takes no writes just now."""
    RedisBackend(server.url()).close()  # the store is there
    for _ in range(earlier):
        server("BGREWRITEAOF")
        until(lambda: not server.rewrites())
    with _rewriting(server, ("BGREWRITEAOF",)):
        server("CONFIG", "SET", "min-replicas-to-write", int(refuses))
        backend = RedisBackend(server.url())
        assert (backend.describe().durability, backend.describe().warnings) == ("disk", [])
        server("CONFIG", "SET", "min-replicas-to-write", 0)
        StreamTracker().write(backend, b"a")
        assert server("KEYS", "*probe*") == []
        backend.close()


class _Told:
    """A connection to a simulated server: it answers what the server's source says."""

    def __init__(self, version: str, sizes: tuple[int, int, int], synced: object) -> None:
        self._version, self._sizes, self._synced = version, list(sizes), synced
        self._answers: list[Any] = []

    def pack_commands(self, commands: list[Any]) -> list[Any]:
        return commands

    def send_packed_command(self, commands: list[Any]) -> None:
        self._answers += [self._answer(*command) for command in commands]

    def read_response(self, *, disable_decoding: bool) -> Any:
        return self._answers.pop(0)

    def _answer(self, name: str, *rest: Any) -> Any:
        if name == "INFO":
            base, before, after = self._sizes
            size, self._sizes[1] = before, after
            return (
                f"redis_version:{self._version}\r\naof_enabled:1\r\naof_rewrite_in_progress:1\r\n"
                f"aof_base_size:{base}\r\naof_current_size:{size}\r\n"
            ).encode()
        known = {
            "CONFIG": [b"appendfsync", b"always", b"no-appendfsync-on-rewrite", b"no"],
            "HMGET": [None, None],
        }
        return {**known, "EVAL": [], "WAITAOF": self._synced}[name]


@pytest.mark.parametrize(
    ("version", "sizes", "synced", "durability"),
    [
        ("7.0.15", (0, 0, 90), None, "memory"),  # it writes, to a file that is not yet in its place
        ("7.0.15", (88, 300, 390), None, "disk"),
        ("7.0.15", (88, 300, 300), None, "memory"),
        (
            "7.2.5",
            (88, 300, 390),
            [0, 0],
            "memory",
        ),  # switched off and on again: only WAITAOF knows
        ("7.2.5", (0, 300, 390), [1, 0], "disk"),
        ("7.2.5", (0, 0, 90), ResponseError("NOPERM"), "memory"),
        ("7.2.5", (88, 300, 390), ResponseError("NOPERM"), "disk"),
    ],
)
def test_newer_servers_are_asked_in_their_own_way(
    version: str, sizes: tuple[int, int, int], synced: object, durability: str
) -> None:
    server, _ = inspect_server(
        _Told(version, sizes, synced), parse_redis_url("redis://host"), RedisKeys("holdfast", 0)
    )
    assert server.durability == durability


def test_what_the_server_really_has_is_reported(server: Server) -> None:
    for asked in ("disk", "process", "memory"):
        with holdfast.open(server.url(), durability=asked) as store:  # type: ignore[arg-type]
            assert store.health().durability == "disk"


def test_where_config_is_forbidden_disk_is_refused_and_the_rest_is_said(tmp_path: Path) -> None:
    server = Server(tmp_path / "redis", "--rename-command", "CONFIG", "")
    with pytest.raises(UnsupportedServer, match="does not reveal, because CONFIG is forbidden"):
        RedisBackend(server.url())
    backend = RedisBackend(server.url(), durability="process")
    described = backend.describe()
    assert described.durability == "process"
    assert "appendfsync" in described.warnings[0]
    backend.close()
    server.kill()


def test_every_new_connection_looks_again(server: Server) -> None:
    backend = RedisBackend(server.url())
    StreamTracker().write(backend)
    server("CONFIG", "SET", "appendfsync", "everysec")
    server("CLIENT", "KILL", "TYPE", "normal")
    for _ in range(2):
        with pytest.raises(UnsupportedServer, match="appendfsync everysec"):
            backend.append([StreamTracker("new").next()])
    server("CONFIG", "SET", "appendfsync", "always")
    StreamTracker("new").write(backend)
    backend.close()


def test_a_server_that_deletes_when_full_is_refused(server: Server) -> None:
    server("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    backend = RedisBackend(server.url())
    assert any("allkeys-lru" in warning for warning in backend.describe().warnings)
    backend.close()
    server("CONFIG", "SET", "maxmemory", "100mb")
    with pytest.raises(UnsupportedServer, match="set maxmemory-policy noeviction"):
        RedisBackend(server.url(), durability="memory")


def test_evicted_keys_are_warned_of(server: Server) -> None:
    server("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    server("SET", "x", "x" * 3_000_000)
    server("CONFIG", "SET", "maxmemory", "2mb")
    until(lambda: b"evicted_keys:0" not in server.info("stats"))
    server("CONFIG", "SET", "maxmemory", "0")
    server("CONFIG", "SET", "maxmemory-policy", "noeviction")
    backend = RedisBackend(server.url())
    [warning] = backend.describe().warnings
    assert "has evicted" in warning
    backend.close()


def test_a_server_too_old_for_waitaof_is_refused_if_asked_for_it(server: Server) -> None:
    with pytest.raises(UnsupportedServer, match=r"7\.2 or newer"):
        RedisBackend(server.url("?wait_aof=on"))


def test_a_full_server_refuses_appends_whole_and_deletes(server: Server) -> None:
    backend = RedisBackend(server.url())
    tracker, spare = StreamTracker(), StreamTracker("spare")
    tracker.write(backend, b"a", indexed=True)
    spare.write(backend, *[b"x" * 100_000] * 30)
    server("CONFIG", "SET", "maxmemory", "100kb")
    before = server("DUMP", backend._keys.for_stream(tracker.stream).head)
    for batch in (
        [tracker.next(b"b", indexed=True)],
        [tracker.next(b"b"), StreamTracker("new").next(b"c")],
    ):
        with pytest.raises(StorageFull):
            backend.append(batch)
    assert bodies(read_all(backend, tracker.stream)) == [b"a"]
    assert server("DUMP", backend._keys.for_stream(tracker.stream).head) == before
    assert ids(all_heads(backend)) == ["s", "spare"]
    RedisBackend(server.url()).close()  # it can still be opened and read
    assert backend.delete(spare.stream, expected=must_head(backend, spare.stream))
    with pytest.raises(StorageFull):
        backend.append([StreamTracker("new").next(b"b")])
    server("CONFIG", "SET", "maxmemory", "0")
    tracker.write(backend, b"b")
    backend.close()


def test_a_server_that_cannot_save_refuses_appends(tmp_path: Path) -> None:
    server = Server(tmp_path / "redis", durable=False)
    backend = RedisBackend(server.url(), durability="memory")
    tracker = StreamTracker()
    tracker.write(backend, b"a")
    server("CONFIG", "SET", "save", "3600 1")
    shutil.rmtree(server.place)
    server("BGSAVE")
    until(lambda: b"rdb_last_bgsave_status:err" in server.info("persistence"))
    with pytest.raises(StorageFull, match="cannot write to its disk"):
        backend.append([tracker.next(b"b")])
    assert bodies(read_all(backend, tracker.stream)) == [b"a"]
    backend.close()
    server.kill()


# -- the schema ------------------------------------------------------------------------------------


def test_a_newer_schema_and_foreign_keys_are_refused(server: Server) -> None:
    RedisBackend(server.url()).close()
    server("HSET", "{holdfast}:store", "schema", "2")
    with pytest.raises(UnsupportedVersion, match="schema version 2, this Holdfast supports 1"):
        RedisBackend(server.url())
    for command in (
        ("SET", "{foreign}:store", "x"),
        ("HSET", "{other}:store", "x", "y", "schema", "x"),
    ):
        server(*command)
        prefix = command[1].partition("}")[0][1:]
        with pytest.raises(UnsupportedVersion, match="choose another prefix"):
            RedisBackend(server.url(f"?prefix={prefix}"))


def test_sixteen_processes_that_start_at_once_make_one_store(server: Server) -> None:
    def work() -> None:
        backend = RedisBackend(server.url())
        StreamTracker(f"{id(backend)}-{threading.get_native_id()}").write(backend, b"x")
        backend.close()

    children = [fork(work) for _ in range(16)]
    assert [exit_code(child) for child in children] == [0] * 16
    backend = RedisBackend(server.url())
    assert len(all_heads(backend)) == 16
    backend.close()


def _certificate(place: Path) -> Path:
    """A certificate of `localhost` that is its own authority, with its key, in one file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    begin = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=1)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = place / "localhost.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + secret)
    return path


class _tls_before:
    """A port that speaks TLS and passes on what it hears to the one behind it."""

    def __init__(self, port: int, certificate: Path) -> None:
        self._behind = port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        self._listener = socket.create_server(("127.0.0.1", 0))

    def __enter__(self) -> int:
        threading.Thread(target=self._accept, daemon=True).start()
        return int(self._listener.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                raw, _ = self._listener.accept()
            except OSError:
                return
            try:
                front = self._context.wrap_socket(raw, server_side=True)
            except (OSError, ssl.SSLError):
                raw.close()
                continue
            behind = socket.create_connection(("127.0.0.1", self._behind))
            for one, other in ((front, behind), (behind, front)):
                threading.Thread(target=_pass_on, args=(one, other), daemon=True).start()


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    try:
        while heard := one.recv(65536):
            other.sendall(heard)
    except OSError:
        pass
    for end in (one, other):
        end.close()
