"""How many requests a backend on an object store sends when others append to the same stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from helpers.engines.memory_space import MemorySpace
from holdfast.backends import Head
from holdfast.backends.objects.backend import ObjectsBackend
from holdfast.conformance.build import StreamTracker, conflict, must_head


def counted(space: MemorySpace, act: Callable[[], object]) -> list[str]:
    """The requests that a call sends."""
    sent: list[str] = []
    space.before = lambda operation, partition: sent.append(operation)
    try:
        act()
    finally:
        space.before = lambda operation, partition: None
    return sent


def test_an_append_that_was_overtaken_does_not_read_again_what_it_found() -> None:
    space = MemorySpace()
    one, other = ObjectsBackend(space, width=0), ObjectsBackend(space, width=0)
    tracker = StreamTracker()
    tracker.write(one, b"a")
    stale = tracker.next(b"overtaken")
    tracker.write(other, b"b")
    answers: list[Any] = []
    # It loses, reads the winner, looks for one more, and checks that the stream still exists.
    assert counted(space, lambda: answers.extend(one.append([stale]))) == ["create", *["get"] * 3]
    assert conflict(answers).version == 2
    assert counted(space, lambda: tracker.write(one, b"c")) == ["create", "get"]


def test_a_backend_that_is_far_behind_skips_what_others_have_appended() -> None:
    space = MemorySpace()
    one, other = ObjectsBackend(space, width=0), ObjectsBackend(space, width=0)
    tracker = StreamTracker()
    tracker.write(one, b"a")
    for number in range(50):
        tracker.write(other, b"%d" % number)
    heads: list[Head] = []
    sent = counted(space, lambda: heads.append(must_head(one, tracker.stream)))
    assert sent == ["get", "get", "scan", "get", "get"]
    assert heads[0].version == 51
