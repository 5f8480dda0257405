"""Redis with replicas: when an append counts as stored, and who may be written to."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from helpers.engines.redis_server import Server, until
from holdfast.backends.redis import RedisBackend
from holdfast.backends.redis.errors import ConnectionLost
from holdfast.conformance.build import StreamTracker, bodies, must_head, read_all
from holdfast.errors import OutcomeUnknown, ReadOnly, Unavailable

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


def test_a_replica_can_be_read_and_says_that_it_cannot_be_written(
    server: Server, tmp_path: Path
) -> None:
    primary = RedisBackend(server.url())
    tracker = StreamTracker()
    tracker.write(primary, b"a")
    replica = server.replicate(tmp_path / "replica")
    backend = RedisBackend(replica.url())
    assert bodies(read_all(backend, tracker.stream)) == [b"a"]
    with pytest.raises(ReadOnly, match="name the primary"):
        backend.append([tracker.next(b"b")])
    with pytest.raises(ReadOnly):
        backend.delete(tracker.stream, expected=must_head(backend, tracker.stream))
    assert any("replica" in warning for warning in backend.describe().warnings)
    backend.close()
    server.kill()
    replica("CONFIG", "SET", "replica-serve-stale-data", "no")
    until(lambda: b"master_link_status:down" in replica.info("replication"))
    with pytest.raises(Unavailable):
        RedisBackend(replica.url())
    replica.kill()
    primary.close()


def test_an_append_that_too_few_replicas_confirm_is_in_doubt_until_they_do(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = RedisBackend(server.url("?wait_replicas=1&wait_ms=300"))
    tracker = StreamTracker()
    append = tracker.follow(tracker.next(b"a"))

    def readable() -> bool:
        try:
            return bool(backend.read(tracker.stream))
        except Unavailable:
            return False

    [warning] = backend.describe().warnings
    assert "wait_replicas is 1, but 0 replicas are connected" in warning
    for _ in range(2):
        with pytest.raises(
            OutcomeUnknown,
            match="has it, but 0 of 1 replicas confirmed within 300 ms; connect replicas",
        ):
            backend.append([append])
        with pytest.raises(Unavailable, match="is not confirmed: 0 of 1 replicas"):
            backend.read(tracker.stream)
    [said] = caplog.messages
    assert "0 of 1 replicas confirmed" in said
    replica = server.replicate(tmp_path / "replica")
    until(readable)
    assert "confirmed again" in caplog.messages[-1]
    assert len(caplog.messages) == 2
    assert backend.describe().warnings == []
    assert bodies(backend.read(tracker.stream)) == [b"a"]
    tracker.write(backend, b"b")
    [answer] = backend.append([append])
    assert isinstance(answer, holdfast.backends.AppendResult)
    assert answer.duplicate
    late = tracker.follow(tracker.next(b"c"))
    replica.process.send_signal(signal.SIGSTOP)
    for _ in range(
        2
    ):  # the second time it is a repeat, on a connection that has not written before
        with pytest.raises(OutcomeUnknown):
            backend.append([late])
        server("CLIENT", "KILL", "TYPE", "normal")
    replica.process.send_signal(signal.SIGCONT)
    # WAIT is for what a connection wrote itself, so a repeat that is to be confirmed is a write,
    # too.
    assert int(server("GET", backend._keys.for_stream(tracker.stream).counter)) > 3
    until(readable)
    assert bodies(read_all(backend, tracker.stream)) == [b"a", b"b", b"c"]
    backend.close()
    replica.kill()


def test_who_may_not_ask_for_confirmations_is_told_so(server: Server) -> None:
    server("ACL", "SETUSER", "agent", "on", f">{SECRET}", *RIGHTS.split(), "-wait")
    backend = RedisBackend(server.url("?wait_replicas=1", user=f"agent:{SECRET}@"))
    with pytest.raises(OutcomeUnknown, match="may not run wait"):
        backend.append([StreamTracker().next(b"a")])
    backend.close()


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ([1, 2], None),
        ([0, 2], "the server did not sync within 1000 ms"),
        ([1, 1], "1 of 2 replicas confirmed"),
        (2, "no valid answer"),
        (ConnectionLost(), "no valid answer"),
    ],
)
def test_what_waitaof_answers_is_said_in_words(
    server: Server, reply: object, says: str | None
) -> None:
    """By its word alone: the server here is older."""
    backend = RedisBackend(server.url("?wait_replicas=2"))
    backend._address = backend._address._replace(wait_aof=True)
    lacking = backend._check_confirmed(reply)
    assert lacking == says if says is None else says in (lacking or "")
    backend.close()


def test_a_server_that_wants_replicas_of_its_own_is_unavailable_without_them(
    server: Server,
) -> None:
    backend = RedisBackend(server.url())
    server("CONFIG", "SET", "min-replicas-to-write", "1")
    with pytest.raises(Unavailable, match="NOREPLICAS"):
        backend.append([StreamTracker().next()])
    server("CONFIG", "SET", "min-replicas-to-write", "0")
    StreamTracker().write(backend)
    backend.close()
