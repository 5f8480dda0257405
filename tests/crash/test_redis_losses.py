"""A Redis that lost what it had acknowledged: whoever knows of it is told, by whichever call comes
first, and nothing is papered over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from helpers.engines.network_proxy import Proxy, Redis
from helpers.engines.redis_server import Server
from holdfast import Store
from holdfast.backends import StreamKey
from holdfast.backends.redis.keys import RedisKeys
from holdfast.errors import HeadRegressed

from .redis_look import stored, times_stored

PREFIX = "losses"
CONTENT = "what the user said"

CALLS: dict[str, Callable[[Store], object]] = {
    "append": lambda store: store.stream("s").append(("noted", CONTENT)),
    "append to a new stream": lambda store: store.stream("new").append(("noted", CONTENT)),
    "read": lambda store: list(store.stream("s").read()),
    "version": lambda store: store.stream("s").version(),
    "say": lambda store: store.conversation("c").append({"role": "user", "content": CONTENT}),
    "messages": lambda store: store.conversation("c").messages(),
    "list": lambda store: list(store.conversations()),
    "delete": lambda store: store.conversation("c").delete(),
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """One that keeps nothing on disk, unless it is told to."""
    server = Server(tmp_path / "redis", durable=False)
    yield server
    server.kill()


@pytest.fixture
def url(server: Server) -> str:
    return server.url(f"?prefix={PREFIX}")


@pytest.mark.parametrize("how", ["killed", "killed, and opened by another", "emptied"])
@pytest.mark.parametrize("call", CALLS)
def test_a_server_that_kept_nothing_is_found_out_by_the_first_call(
    call: str, how: str, server: Server, url: str
) -> None:
    with holdfast.open(url, durability="memory") as store:
        store.conversation("c").append({"role": "user", "content": "first"})
        store.stream("s").append(("noted", "first"))
        server("FLUSHALL") if how == "emptied" else server.restart()
        if how.endswith("another"):
            with holdfast.open(url, durability="memory") as other:
                other.stream("s").append(("noted", "of the other"))
        for again in (CALLS[call], CALLS["append"], CALLS["read"]):
            with pytest.raises(HeadRegressed) as caught:
                again(store)
            assert CONTENT not in str(caught.value)
    assert set(stored(server, PREFIX)) == ({"s"} if how.endswith("another") else set())
    with holdfast.open(url, durability="memory") as store:
        assert store.stream("new").append(("noted", "begun anew")).last == 1


def neighbour(name: str) -> str:
    """Another stream that shares its shard."""
    keys = RedisKeys(PREFIX, 0)
    tag = keys.tag(StreamKey("default", "stream", name))
    return next(
        f"n{n}" for n in range(10_000) if keys.tag(StreamKey("default", "stream", f"n{n}")) == tag
    )


@pytest.mark.parametrize("name", ["s", neighbour("s")], ids=["the same stream", "its neighbour"])
def test_a_server_that_came_back_with_an_old_snapshot_is_found_out(
    name: str, server: Server, url: str
) -> None:
    with holdfast.open(url, durability="memory") as store:
        store.stream("s").append(("noted", "kept"))
        server("SAVE")
        store.stream("s").append(("noted", "lost"))
        server.restart()
        for _ in range(2):
            with pytest.raises(HeadRegressed):
                store.stream(name).append(("noted", "on top of what was lost"))
    assert times_stored(server, PREFIX, ["kept", "lost", "on top of what was lost"]) == [1, 0, 0]


@pytest.mark.parametrize("behind", [False, True])
def test_a_failover_goes_on_if_the_replica_had_everything_and_is_found_out_if_not(
    behind: bool, tmp_path: Path
) -> None:
    server = Server(tmp_path / "primary")
    replica = server.replicate(tmp_path / "replica")
    try:
        with (
            Proxy(("127.0.0.1", server.port), Redis) as proxy,
            holdfast.open(f"redis://127.0.0.1:{proxy.port}/0?prefix={PREFIX}") as store,
        ):
            store.stream("s").append(("noted", "first"))
            assert server("WAIT", 1, 10_000) == 1
            replica("REPLICAOF", "NO", "ONE")
            if behind:
                store.stream("s").append(("noted", "not replicated"))
            server.kill()
            proxy.target = ("127.0.0.1", replica.port)
            # before the next append is sent: one that is lost on its way would be in doubt
            proxy.cut_all()
            if behind:
                with pytest.raises(HeadRegressed):
                    store.stream("s").append(("noted", "mark"))
            else:
                assert store.stream("s").append(("noted", "mark")).last == 2
        assert times_stored(replica, PREFIX, ["first", "mark"]) == [1, 0 if behind else 1]
    finally:
        server.kill()
        replica.kill()
