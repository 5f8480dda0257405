"""Redis clusters: one node passes the contract, and one node of several is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.engines.redis_server import Server, until
from holdfast.backends import Backend
from holdfast.backends.redis import RedisBackend
from holdfast.backends.redis.keys import SHARDS
from holdfast.conformance import BackendConformance
from holdfast.conformance.build import StreamTracker
from holdfast.errors import HeadRegressed, UnsupportedServer


class TestRedisInAClusterOfOneNode(BackendConformance):
    """One node refuses commands with keys in two slots, as a large cluster does."""

    model_examples = 10
    server: Server

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def cluster(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        server = cls.server = _cluster_node(
            tmp_path_factory.mktemp("cluster") / "one", range(16384)
        )
        until(lambda: b"cluster_state:ok" in _raw(server("CLUSTER", "INFO")))
        yield
        server.kill()

    def open_backend(self, place: Path) -> Backend:
        return RedisBackend(self.server.url(f"?prefix=t{abs(hash(place))}"))

    def test_it_is_a_cluster_and_streams_are_spread_over_its_slots(
        self, backend: RedisBackend
    ) -> None:
        with pytest.raises(Exception, match=r"CROSSSLOT|same slot"):
            self.server("MGET", "a", "b")
        trackers = [StreamTracker(f"{number}") for number in range(500)]
        backend.append([tracker.next() for tracker in trackers])
        assert len({backend._keys.tag(tracker.stream) for tracker in trackers}) == SHARDS
        assert all(
            self.server("CLUSTER", "COUNTKEYSINSLOT", slot)
            for slot in _slots(self.server, backend, trackers[:3])
        )

    def test_a_cluster_that_lost_what_was_acknowledged_is_not_written_to_again(
        self, backend: RedisBackend
    ) -> None:
        tracker = StreamTracker()
        tracker.write(backend, b"a")
        self.server("DEL", backend._keys.for_stream(tracker.stream).counter)
        with pytest.raises(HeadRegressed):
            backend.append([tracker.next(b"b")])


def test_one_node_of_several_is_refused(tmp_path: Path) -> None:
    one = _cluster_node(tmp_path / "one", range(8192))
    two = _cluster_node(tmp_path / "two", range(8192, 16384))
    one("CLUSTER", "MEET", "127.0.0.1", two.port)
    for node in (one, two):
        until(lambda: b"cluster_state:ok" in _raw(node("CLUSTER", "INFO")))  # noqa: B023
    with pytest.raises(UnsupportedServer, match="one node of a cluster of several"):
        backend = RedisBackend(one.url())
        try:
            for number in range(64):
                StreamTracker(f"{number}").write(backend)
        finally:
            backend.close()
    one.kill()
    two.kill()


def _cluster_node(place: Path, slots: range) -> Server:
    node = Server(place, "--cluster-enabled", "yes")
    node("CLUSTER", "ADDSLOTS", *slots)
    return node


def _slots(server: Server, backend: RedisBackend, trackers: list[StreamTracker]) -> list[int]:
    return [
        server("CLUSTER", "KEYSLOT", backend._keys.for_stream(tracker.stream).head)
        for tracker in trackers
    ]


def _raw(answer: Any) -> bytes:
    """redis-py makes a dictionary of some answers."""
    if isinstance(answer, dict):
        return b"\n".join(f"{key}:{value}".encode() for key, value in answer.items())
    return bytes(answer)
