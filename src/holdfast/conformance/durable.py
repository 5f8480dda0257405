"""Tests of persistent data: reopened stores, several backends on one place, killed processes."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from ..backends import AppendResult, Backend, Head, HeadFields
from ..errors import StoreClosed
from .build import (
    StreamTracker,
    all_due,
    all_heads,
    assert_listed,
    at,
    bodies,
    conflict,
    must_head,
    read_all,
    stored,
    timeless,
    versions,
)
from .lifecycle import exit_code, fork
from .racing import together

Opener = Callable[[], Backend]
FIELDS = HeadFields(status="s", label=b"\x00", owner="o", due_at=1.5, expires_at=None)


class DurableTests:
    def open_backend(self, place: Path) -> Backend:
        raise NotImplementedError

    def test_read_everything_is_there_after_opening_again(
        self, backend: Backend, open_again: Opener
    ) -> None:
        first, second = StreamTracker("😀 first"), StreamTracker("second")
        first.write(backend, b"a", bytes(range(256)), fields=FIELDS)
        second.write(backend, b"")
        first.write(backend, b"c")
        before = [_read_everything(backend, tracker) for tracker in (first, second)]
        backend.close()
        again = open_again()
        assert [_read_everything(again, tracker) for tracker in (first, second)] == before
        assert_listed(all_due(again), [at(first, FIELDS)])
        assert_listed(all_heads(again), [at(second), at(first, FIELDS)])
        first.write(again, b"d")
        assert bodies(read_all(again, first.stream))[-2:] == [b"c", b"d"]

    def test_ids_and_versions_are_still_checked_after_opening_again(
        self, backend: Backend, open_again: Opener
    ) -> None:
        tracker = StreamTracker()
        stale = tracker.next(b"stale")
        indexed = tracker.write(backend, b"a", b"b", indexed=True)
        plain = tracker.write(backend, b"c")
        backend.close()
        again = open_again()
        assert stored(again.append([plain])) == [(3, 3, True)]
        assert stored(again.append([tracker.next(id=indexed.id, indexed=True)])) == [(1, 2, True)]
        assert timeless(conflict(again.append([stale]))) == at(tracker)

    def test_what_was_deleted_stays_deleted_after_opening_again(
        self, backend: Backend, open_again: Opener
    ) -> None:
        gone, kept = StreamTracker("gone"), StreamTracker("kept")
        first = gone.write(backend, b"x", indexed=True, fields=FIELDS)
        kept.write(backend, b"1", b"2", b"3")
        backend.delete(gone.stream, expected=must_head(backend, gone.stream))
        backend.close()
        again = open_again()
        assert again.head(gone.stream) is None
        assert conflict(again.append([first])) is None
        assert bodies(read_all(again, kept.stream)) == [b"1", b"2", b"3"]
        assert_listed(all_heads(again), [at(kept)])
        assert all_due(again) == []
        StreamTracker("gone").write(again, b"new", id=first.id, indexed=True)

    def test_what_one_backend_acknowledged_another_over_the_same_place_sees(
        self, backend: Backend, open_again: Opener
    ) -> None:
        other, tracker = open_again(), StreamTracker()
        for writer, reader in [(backend, other), (other, backend)] * 3:
            fields = HeadFields(owner=f"{tracker.version}", due_at=1.0)
            tracker.write(writer, b"x", fields=fields)
            assert _read_everything(reader, tracker) == _read_everything(writer, tracker)
            wanted = [at(tracker, fields)]
            for where in (reader, writer):
                assert_listed(all_heads(where), wanted)
                assert_listed(all_due(where), wanted)

    def test_a_backend_is_not_fooled_by_what_it_knew_before_another_wrote(
        self, backend: Backend, open_again: Opener
    ) -> None:
        other, former, tracker = open_again(), StreamTracker(), StreamTracker()
        former.write(backend, b"a", indexed=True)
        following = former.next(b"late")
        assert other.delete(former.stream, expected=must_head(other, former.stream)) is True
        assert conflict(backend.append([following])) is None
        append = tracker.write(other, b"b", indexed=True)
        assert timeless(conflict(backend.append([following]))) == at(tracker)
        assert stored(backend.append([tracker.next(id=append.id, indexed=True)])) == [(1, 1, True)]
        assert bodies(read_all(backend, tracker.stream)) == [b"b"]

    def test_of_several_backends_with_the_same_expectation_exactly_one_wins(
        self, backend: Backend, open_again: Opener
    ) -> None:
        backends, tracker = [backend, open_again(), open_again()], StreamTracker()
        for _ in range(8):
            contenders = [
                (one, tracker.next(b"%d" % number)) for number, one in enumerate(backends)
            ]
            answers = together([partial(one.append, [append]) for one, append in contenders])
            won = [
                append
                for (_, append), [answer] in zip(contenders, answers, strict=True)
                if isinstance(answer, AppendResult)
            ]
            assert len(won) == 1
            tracker.follow(won[0])
            assert all(
                _read_everything(one, tracker) == _read_everything(backend, tracker)
                for one in backends
            )

    def test_closing_one_backend_leaves_the_others_working(
        self, backend: Backend, open_again: Opener
    ) -> None:
        other, tracker = open_again(), StreamTracker()
        tracker.write(backend, b"a")
        backend.close()
        tracker.write(other, b"b")
        assert bodies(read_all(other, tracker.stream)) == [b"a", b"b"]
        with pytest.raises(StoreClosed):
            backend.head(tracker.stream)

    def test_many_may_open_an_empty_place_at_once(self, place: Path) -> None:
        empty = place / "empty"
        empty.mkdir()
        opened = together([lambda: self.open_backend(empty)] * 5)
        tracker = StreamTracker()
        for one in opened:
            tracker.write(one, b"x")
        assert [versions(read_all(one, tracker.stream)) for one in opened] == [[1, 2, 3, 4, 5]] * 5
        for one in opened:
            one.close()

    if hasattr(os, "fork"):

        def test_what_a_forked_child_wrote_is_there_for_the_parent(self, backend: Backend) -> None:
            tracker = StreamTracker()
            tracker.write(backend, b"parent")
            append = tracker.follow(tracker.next(b"child"))
            assert exit_code(fork(lambda: stored(backend.append([append])))) == 0
            assert bodies(read_all(backend, tracker.stream)) == [b"parent", b"child"]
            assert stored(backend.append([append])) == [(2, 2, True)]
            tracker.write(backend, b"parent")
            assert timeless(backend.head(tracker.stream)) == at(tracker)

        def test_processes_that_race_have_one_winner_per_version(
            self, backend: Backend, open_again: Opener
        ) -> None:
            tracker = StreamTracker()
            tracker.write(backend, b"x")

            def compete() -> None:
                one = open_again()
                mine = StreamTracker()
                mine.incarnation = tracker.incarnation
                while mine.version < 40:
                    [answer] = one.append([mine.next(b"%d" % os.getpid())])
                    head = (
                        must_head(one, tracker.stream)
                        if isinstance(answer, AppendResult)
                        else answer.head
                    )
                    assert head is not None
                    mine.version, mine.hash = head.version, head.hash

            children = [fork(compete) for _ in range(3)]
            assert [exit_code(child) for child in children] == [0, 0, 0]
            records = read_all(backend, tracker.stream)
            assert versions(records) == list(range(1, len(records) + 1))
            assert len({record.append_id for record in records}) == len(records)
            assert len(records) >= 40

        def test_what_was_acknowledged_survives_a_killed_process(
            self, backend: Backend, open_again: Opener
        ) -> None:
            tracker = StreamTracker()
            acknowledged = _write_until_killed(open_again, tracker, acknowledgements=25)
            again = open_again()
            for one in (backend, again):
                records = read_all(one, tracker.stream)
                assert len(records) >= acknowledged
                assert len(records) % 3 == 0, "half of an append survived"
                assert bodies(records) == [b"%d" % (place // 3) for place in range(len(records))]
                assert versions(records) == list(range(1, len(records) + 1))
                head = must_head(one, tracker.stream)
                assert (head.version, head.hash) == (len(records), records[-1].hash)
                assert head.fields == HeadFields(owner=f"{head.version // 3 - 1}")


def _read_everything(
    backend: Backend, tracker: StreamTracker
) -> tuple[Head | None, list[tuple[int, bytes, bytes, bytes]]]:
    records = read_all(backend, tracker.stream)
    return timeless(backend.head(tracker.stream)), [
        (r.version, r.append_id, r.hash, r.body) for r in records
    ]


def _write_until_killed(
    open_again: Opener, tracker: StreamTracker, *, acknowledgements: int
) -> int:
    """Kill a child that appends three records at a time; return the last acknowledged version."""
    read_end, write_end = os.pipe()

    def write_forever() -> None:
        backend = open_again()
        for number in range(1_000_000):
            tracker.write(backend, *[b"%d" % number] * 3, fields=HeadFields(owner=f"{number}"))
            os.write(write_end, struct.pack("q", tracker.version))

    child = fork(write_forever)
    os.close(write_end)
    with open(read_end, "rb", buffering=0) as pipe:
        reported = [pipe.read(8) for _ in range(acknowledgements)]
        os.kill(child, signal.SIGKILL)
        # Versions that it reported just before it died were acknowledged too.
        reported += iter(partial(pipe.read, 8), b"")
    assert exit_code(child) == -signal.SIGKILL
    return int(struct.unpack("q", reported[-1])[0])
