"""Tests with many threads: one winner per version, and no reader sees a partial append."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from ..backends import Append, AppendResult, Backend, HeadFields, VersionMismatch
from .build import (
    StreamTracker,
    all_due,
    all_heads,
    at,
    bodies,
    ids,
    must_head,
    read_all,
    timeless,
    versions,
)

T = TypeVar("T")
THREADS = 6
ROUNDS = 8


def together(works: Sequence[Callable[[], T]]) -> list[T]:
    """Run each function in its own thread, all at the same moment; raise the first error."""
    gate = threading.Barrier(len(works))

    def start(work: Callable[[], T]) -> T:
        gate.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result() for future in [pool.submit(start, work) for work in works]]


class RacingTests:
    writes_beside_readers: int

    def test_of_many_writers_with_the_same_expectation_exactly_one_wins(
        self, backend: Backend
    ) -> None:
        tracker = StreamTracker()
        for _ in range(ROUNDS):
            contenders = [
                tracker.next(b"a%d" % number, b"b%d" % number) for number in range(THREADS)
            ]
            answers = together([partial(backend.append, [one]) for one in contenders])
            won = [
                one
                for one, [answer] in zip(contenders, answers, strict=True)
                if isinstance(answer, AppendResult)
            ]
            assert len(won) == 1
            tracker.follow(won[0])
            for [answer] in answers:
                assert isinstance(answer, AppendResult) or timeless(answer.head) == at(tracker)
            newest = bodies(backend.read(tracker.stream, after=tracker.version - 2))
            assert newest == [body for _, body in won[0].records]
        assert versions(read_all(backend, tracker.stream)) == list(range(1, 2 * ROUNDS + 1))

    def test_of_many_who_create_a_stream_exactly_one_wins(self, backend: Backend) -> None:
        for number in range(ROUNDS):
            trackers = [StreamTracker(f"{number}") for _ in range(THREADS)]
            answers = together(
                [partial(backend.append, [tracker.next(b"x")]) for tracker in trackers]
            )
            assert [isinstance(answer, AppendResult) for [answer] in answers].count(True) == 1
            assert versions(read_all(backend, trackers[0].stream)) == [1]

    def test_the_same_append_sent_by_many_is_stored_once(self, backend: Backend) -> None:
        tracker = StreamTracker()
        for number in range(ROUNDS):
            append = tracker.next(b"x", b"y", indexed=number % 2 == 0)
            answers = together([partial(backend.append, [append])] * THREADS)
            tracker.follow(append)
            places = {
                (answer.first, answer.last)
                for [answer] in answers
                if isinstance(answer, AppendResult)
            }
            assert places == {(tracker.version - 1, tracker.version)}
            fresh = [
                answer
                for [answer] in answers
                if isinstance(answer, AppendResult) and not answer.duplicate
            ]
            assert len(fresh) == 1
        assert versions(read_all(backend, tracker.stream)) == list(range(1, 2 * ROUNDS + 1))

    def test_either_the_deletion_or_the_append_wins_and_never_both(self, backend: Backend) -> None:
        for number in range(ROUNDS):
            tracker = StreamTracker(f"{number}")
            tracker.write(backend, b"a")
            answers: list[AppendResult | VersionMismatch] = []
            works: list[Callable[[], object]] = [
                partial(
                    backend.delete, tracker.stream, expected=must_head(backend, tracker.stream)
                ),
                partial(_append_into, answers, backend, tracker.next(b"b")),
            ]
            deleted, _ = together(works)
            if deleted:
                assert answers == [VersionMismatch(None)]
                assert backend.head(tracker.stream) is None
            else:
                assert bodies(read_all(backend, tracker.stream)) == [b"a", b"b"]

    def test_writers_on_different_streams_do_not_disturb_each_other(self, backend: Backend) -> None:
        trackers = [StreamTracker(f"{number}") for number in range(THREADS)]

        def write(tracker: StreamTracker) -> None:
            for number in range(15):
                tracker.write(
                    backend, b"%d" % number, indexed=True, fields=HeadFields(status=f"{number}")
                )

        together([partial(write, tracker) for tracker in trackers])
        for tracker in trackers:
            assert bodies(read_all(backend, tracker.stream)) == [
                b"%d" % number for number in range(15)
            ]
            assert timeless(backend.head(tracker.stream)) == at(tracker, HeadFields(status="14"))

    def test_a_reader_beside_a_writer_sees_no_gap_no_half_append_and_nothing_vanish(
        self, backend: Backend
    ) -> None:
        tracker = StreamTracker()
        tracker.write(backend, b"0", b"0", b"0")

        def read(seen: int) -> int:
            head = must_head(backend, tracker.stream)
            records = read_all(backend, tracker.stream)
            assert versions(records) == list(range(1, len(records) + 1))
            assert len(records) % 3 == 0, "half of an append was visible"
            assert len(records) >= max(seen, head.version), "visible records vanished"
            assert bodies(records) == [b"%d" % (place // 3) for place in range(len(records))]
            assert head.hash == records[head.version - 1].hash
            return len(records)

        _read_while_writing(
            read,
            lambda number: tracker.write(backend, *[b"%d" % number] * 3),
            self.writes_beside_readers,
        )

    def test_the_head_never_runs_ahead_of_what_can_be_read(self, backend: Backend) -> None:
        tracker = StreamTracker()
        tracker.write(backend, fields=HeadFields(owner="0"))

        def read(seen: int) -> int:
            head = must_head(backend, tracker.stream)
            assert head.version % 2 == 1, "the head was in the middle of an append"
            assert head.fields.owner == f"{head.version // 2}", (
                "the fields and the version are from two different appends"
            )
            assert versions(backend.read(tracker.stream, after=head.version - 1, limit=1)) == [
                head.version
            ]
            assert head.version >= seen
            return head.version

        def write(number: int) -> None:
            tracker.write(backend, b"x", b"y", fields=HeadFields(owner=f"{number}"))

        _read_while_writing(read, write, self.writes_beside_readers)

    def test_no_acknowledged_stream_is_missing_from_a_later_listing(self, backend: Backend) -> None:
        acknowledged: list[str] = []

        def write(number: int) -> None:
            # Ids jump back and forth, so that new ones appear before and after a reader's page.
            tracker = StreamTracker(f"{(number * 7919) % 1000:04}")
            tracker.write(backend, fields=HeadFields(status="s", due_at=float(number % 5)))
            acknowledged.append(tracker.stream.id)

        def read(seen: int) -> int:
            wanted = set(acknowledged)
            for listed in (
                all_heads(backend, limit=7),
                all_heads(backend, status="s"),
                all_due(backend, limit=7),
            ):
                assert len(ids(listed)) == len(set(ids(listed))), "a stream was listed twice"
                assert wanted <= set(ids(listed)), "an acknowledged stream was not listed"
            return len(wanted)

        _read_while_writing(read, write, min(self.writes_beside_readers, 300))


def _append_into(
    answers: list[AppendResult | VersionMismatch], backend: Backend, append: Append
) -> None:
    answers += backend.append([append])


def _read_while_writing(
    read: Callable[[int], int], write: Callable[[int], object], max_writes: int
) -> None:
    """Run two readers in loops while one writer writes, until both have read often enough.

    `read` gets its previous result, so that it can detect that something vanished.
    """
    done = threading.Event()
    reads = [0, 0]

    def keep_reading(reader: int) -> None:
        seen, last_round = 0, False
        while not last_round:
            last_round = done.is_set()
            seen = read(seen)
            reads[reader] += 1

    def keep_writing(readers: list[Future[None]]) -> None:
        number = 0
        while (number < 30 or (number < max_writes and min(reads) < 10)) and not any(
            one.done() for one in readers
        ):
            number += 1
            write(number)

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(keep_reading, reader) for reader in (0, 1)]
        try:
            keep_writing(readers)
        finally:
            done.set()
        for one in readers:
            one.result()
