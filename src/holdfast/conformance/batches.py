"""Tests of batches: each member is atomic and gets its own answer."""

from __future__ import annotations

from ..backends import AppendResult, Backend, HeadFields, VersionMismatch
from .build import StreamTracker, at, bodies, must_head, read_all, stored, timeless, versions


class BatchTests:
    def test_an_empty_batch_is_answered_with_nothing(self, backend: Backend) -> None:
        assert list(backend.append([])) == []

    def test_the_members_of_a_batch_are_answered_in_order(self, backend: Backend) -> None:
        trackers = [StreamTracker(f"s{number}") for number in (3, 1, 2)]
        trackers[1].write(backend, b"before")
        batch = [tracker.next(*[b"x"] * size) for size, tracker in enumerate(trackers, 1)]
        assert stored(backend.append(batch)) == [(1, 1, False), (2, 3, False), (1, 3, False)]
        for tracker, append in zip(trackers, batch, strict=True):
            tracker.follow(append)
            assert timeless(backend.head(tracker.stream)) == at(tracker)

    def test_two_members_may_follow_each_other_on_one_stream(self, backend: Backend) -> None:
        tracker = StreamTracker()
        batch = [
            tracker.follow(tracker.next(*texts, fields=fields)) for texts, fields in _FOLLOWING
        ]
        assert stored(backend.append(batch)) == [(1, 1, False), (2, 3, False), (4, 4, False)]
        assert bodies(read_all(backend, tracker.stream)) == [b"a", b"b", b"c", b"d"]
        assert timeless(backend.head(tracker.stream)) == at(tracker, HeadFields(status="second"))

    def test_a_member_that_expects_what_was_before_the_batch_conflicts_with_what_the_batch_made(
        self, backend: Backend
    ) -> None:
        tracker = StreamTracker()
        stale = tracker.next(b"stale")
        first = tracker.follow(tracker.next(b"first"))
        [one, two] = backend.append([first, stale])
        assert isinstance(one, AppendResult)
        assert isinstance(two, VersionMismatch)
        assert timeless(two.head) == at(tracker)
        assert bodies(read_all(backend, tracker.stream)) == [b"first"]

    def test_a_conflict_of_one_member_does_not_affect_the_others(self, backend: Backend) -> None:
        for place in range(3):
            trackers = [StreamTracker(f"{place}-{number}") for number in range(3)]
            behind = trackers[place].next(
                b"behind", b"behind", fields=HeadFields(status="behind"), indexed=True
            )
            trackers[place].write(backend, b"before")
            batch = [
                behind if number == place else tracker.next(b"in batch")
                for number, tracker in enumerate(trackers)
            ]
            answers = backend.append(batch)
            assert [isinstance(answer, VersionMismatch) for answer in answers] == [
                number == place for number in range(3)
            ]
            for number, tracker in enumerate(trackers):
                expected = b"before" if number == place else b"in batch"
                assert bodies(read_all(backend, tracker.stream)) == [expected]
                assert must_head(backend, tracker.stream).fields == HeadFields()

    def test_what_follows_a_refused_member_on_its_stream_is_refused_too(
        self, backend: Backend
    ) -> None:
        tracker, other = StreamTracker(), StreamTracker("other")
        refused = tracker.follow(tracker.next(b"refused"))
        following = tracker.follow(tracker.next(b"following"))
        true = StreamTracker()
        true.write(backend, b"true")
        answers = backend.append([refused, other.next(b"other"), following])
        assert [isinstance(answer, VersionMismatch) for answer in answers] == [True, False, True]
        assert bodies(read_all(backend, true.stream)) == [b"true"]

    def test_a_refused_member_and_a_good_one_may_be_on_the_same_stream(
        self, backend: Backend
    ) -> None:
        tracker = StreamTracker()
        stale = tracker.next(b"stale")
        tracker.write(backend, b"a")
        answers = backend.append([stale, tracker.next(b"b")])
        assert isinstance(answers[0], VersionMismatch)
        assert stored(answers[1:]) == [(2, 2, False)]
        assert bodies(read_all(backend, tracker.stream)) == [b"a", b"b"]

    def test_a_duplicate_in_a_batch_is_answered_beside_new_members(self, backend: Backend) -> None:
        tracker, other = StreamTracker(), StreamTracker("other")
        first = tracker.write(backend, b"a")
        answers = backend.append([other.next(b"x"), first, tracker.next(b"b")])
        assert stored(answers) == [(1, 1, False), (1, 1, True), (2, 2, False)]
        assert bodies(read_all(backend, tracker.stream)) == [b"a", b"b"]

    def test_a_batch_may_have_hundreds_of_members(self, backend: Backend) -> None:
        trackers = [StreamTracker(f"s{number:03}") for number in range(300)]
        assert (
            stored(backend.append([tracker.next(b"x", b"y") for tracker in trackers]))
            == [(1, 2, False)] * 300
        )
        for tracker in trackers[::29]:
            assert versions(read_all(backend, tracker.stream)) == [1, 2]

    def test_a_stream_may_be_many_times_in_one_batch(self, backend: Backend) -> None:
        tracker = StreamTracker()
        batch = [tracker.follow(tracker.next(b"%d" % number)) for number in range(100)]
        assert stored(backend.append(batch)) == [(n, n, False) for n in range(1, 101)]
        assert bodies(read_all(backend, tracker.stream)) == [
            b"%d" % number for number in range(100)
        ]


_FOLLOWING: list[tuple[tuple[bytes, ...], HeadFields | None]] = [
    ((b"a",), HeadFields(status="first")),
    ((b"b", b"c"), HeadFields(status="second")),
    ((b"d",), None),
]
