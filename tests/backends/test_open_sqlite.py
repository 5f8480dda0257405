"""SQLite: how large a record may be, and what an interrupted read leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.interrupts import Interrupts, list_places
from holdfast.backends.sqlite import SQLiteBackend
from holdfast.conformance.build import StreamTracker, bodies, read_all
from holdfast.errors import TooLarge


def test_the_largest_record_is_as_large_as_it_says_and_a_larger_one_is_refused(
    tmp_path: Path,
) -> None:
    backend = SQLiteBackend(tmp_path / "agents.db", durability="process")
    limit = backend.describe().limits["record"]
    tracker, other = StreamTracker("s"), StreamTracker("other")
    tracker.write(backend, b"a")
    with pytest.raises(TooLarge, match=f"at most {limit} bytes; nothing was written"):
        backend.append([other.next(b"small"), tracker.next(bytes(limit + 8192))])
    assert backend.head(other.stream) is None
    tracker.write(backend, bytes(limit))
    assert [len(body) for body in bodies(read_all(backend, tracker.stream))] == [1, limit]
    backend.close()


def test_an_interrupted_read_keeps_no_connection(tmp_path: Path) -> None:
    """A fork waits for the connections in use."""
    backend = SQLiteBackend(tmp_path / "agents.db", durability="process")
    tracker, hits = StreamTracker("s"), 0
    tracker.write(backend, b"a")
    for place in list_places(lambda at: backend.read(tracker.stream)):
        hits += Interrupts(place).run(lambda at: backend.read(tracker.stream))
        assert not backend._reading, place
        assert bodies(read_all(backend, tracker.stream)) == [b"a"]
    assert hits > 5
    backend.close()
