"""Tests of append ids: a repeated append is recognized and never stored twice."""

from __future__ import annotations

import os

import msgspec

from ..backends import Backend, HeadFields
from .build import (
    StreamTracker,
    at,
    bodies,
    conflict,
    key,
    must_head,
    read_all,
    stored,
    timeless,
    versions,
)


class IdTests:
    def test_a_repeated_append_is_answered_as_a_duplicate_and_writes_nothing(
        self, backend: Backend
    ) -> None:
        for indexed in (False, True):
            tracker = StreamTracker(f"indexed {indexed}")
            append = tracker.write(backend, b"a", b"b", indexed=indexed)
            for _ in range(2):
                assert stored(backend.append([append])) == [(1, 2, True)]
            assert bodies(read_all(backend, tracker.stream)) == [b"a", b"b"]
            assert timeless(backend.head(tracker.stream)) == at(tracker)

    def test_the_id_is_checked_before_the_version(self, backend: Backend) -> None:
        for indexed in (False, True):
            tracker = StreamTracker(f"indexed {indexed}")
            tracker.write(backend, b"a")
            append = tracker.write(backend, b"b", b"c", indexed=indexed)
            tracker.write(backend, b"d")
            assert stored(backend.append([append])) == [(2, 3, True)]
            assert versions(read_all(backend, tracker.stream)) == [1, 2, 3, 4]

    def test_a_duplicate_leaves_the_fields_as_they_are_now(self, backend: Backend) -> None:
        for indexed in (False, True):
            tracker = StreamTracker(f"indexed {indexed}")
            append = tracker.write(
                backend, b"a", indexed=indexed, fields=HeadFields(status="old", due_at=1.0)
            )
            tracker.write(backend, b"b", fields=HeadFields(status="new"))
            assert stored(backend.append([append])) == [(1, 1, True)]
            assert must_head(backend, tracker.stream).fields == HeadFields(status="new")

    def test_bodies_are_not_compared(self, backend: Backend) -> None:
        for indexed in (False, True):
            tracker = StreamTracker(f"indexed {indexed}")
            append = tracker.write(backend, b"a", indexed=indexed)
            other = msgspec.structs.replace(append, records=[(os.urandom(32), b"other")])
            assert stored(backend.append([other])) == [(1, 1, True)]
            assert bodies(read_all(backend, tracker.stream)) == [b"a"]

    def test_a_duplicate_is_answered_with_the_versions_it_has_and_not_those_of_the_retry(
        self, backend: Backend
    ) -> None:
        for indexed in (False, True):
            tracker = StreamTracker(f"indexed {indexed}")
            append = tracker.write(backend, b"a", b"b", indexed=indexed)
            tracker.write(backend, b"c")
            longer = msgspec.structs.replace(
                append, records=[*append.records, (os.urandom(32), b"x")]
            )
            shorter = msgspec.structs.replace(append, records=append.records[:1])
            assert stored(backend.append([longer, shorter])) == [(1, 2, True)] * 2

    def test_an_id_that_is_not_indexed_is_found_only_at_its_place(self, backend: Backend) -> None:
        tracker = StreamTracker()
        append = tracker.write(backend, b"a")
        tracker.write(backend, b"b")
        tracker.write(backend, b"c", id=append.id)
        misplaced = msgspec.structs.replace(append, expected=1, expected_hash=append.records[0][0])
        assert timeless(conflict(backend.append([misplaced]))) == at(tracker)
        assert bodies(read_all(backend, tracker.stream)) == [b"a", b"b", b"c"]

    def test_an_indexed_id_is_found_anywhere_whatever_version_is_expected(
        self, backend: Backend
    ) -> None:
        tracker = StreamTracker()
        tracker.write(backend, b"a")
        append = tracker.write(backend, b"b", b"c", indexed=True)
        tracker.write(backend, b"d")
        for expected in (0, 1, 2, 3, 4, 5, 99):
            again = msgspec.structs.replace(append, expected=expected)
            assert stored(backend.append([again])) == [(2, 3, True)]
        assert stored(
            backend.append([tracker.next(b"other body", id=append.id, indexed=True)])
        ) == [(2, 3, True)]
        assert versions(read_all(backend, tracker.stream)) == [1, 2, 3, 4]

    def test_an_indexed_id_is_found_behind_many_others(self, backend: Backend) -> None:
        tracker = StreamTracker()
        appends = [tracker.write(backend, b"%d" % number, indexed=True) for number in range(50)]
        answers = backend.append(
            [tracker.next(b"x", id=append.id, indexed=True) for append in appends]
        )
        assert stored(answers) == [(version, version, True) for version in range(1, 51)]
        assert must_head(backend, tracker.stream).version == 50

    def test_a_duplicate_within_one_batch_is_found(self, backend: Backend) -> None:
        for indexed in (False, True):
            tracker = StreamTracker(f"indexed {indexed}")
            append = tracker.next(b"a", b"b", indexed=indexed)
            assert stored(backend.append([append, append])) == [(1, 2, False), (1, 2, True)]
            assert bodies(read_all(backend, tracker.stream)) == [b"a", b"b"]

    def test_an_indexed_id_is_found_later_in_the_batch_that_stores_it(
        self, backend: Backend
    ) -> None:
        tracker = StreamTracker()
        append = tracker.follow(tracker.next(b"a", indexed=True))
        between = tracker.follow(tracker.next(b"b"))
        again = tracker.next(b"c", id=append.id, indexed=True)
        assert stored(backend.append([append, between, again])) == [
            (1, 1, False),
            (2, 2, False),
            (1, 1, True),
        ]

    def test_an_indexed_append_is_found_by_its_id(self, backend: Backend) -> None:
        tracker = StreamTracker()
        plain = tracker.write(backend, b"a")
        append = tracker.write(backend, b"b", b"c", indexed=True)
        tracker.write(backend, b"d")
        refused = msgspec.structs.replace(tracker.next(b"e", indexed=True), expected=1)
        conflict(backend.append([refused]))
        assert backend.find_append(tracker.stream, append.id) == (2, 3)
        for unknown in (plain.id, refused.id, append.id + b"\0", b"\xff"):
            assert backend.find_append(tracker.stream, unknown) is None
        assert backend.find_append(key("missing"), append.id) is None
        assert backend.find_append(tracker.stream._replace(kind="other"), append.id) is None

    def test_an_append_to_a_former_incarnation_is_not_found_by_its_id(
        self, backend: Backend
    ) -> None:
        former = StreamTracker()
        append = former.write(backend, b"a", indexed=True)
        assert backend.delete(former.stream, expected=must_head(backend, former.stream))
        assert backend.find_append(former.stream, append.id) is None
        current = StreamTracker()
        current.write(backend, b"b")
        assert backend.find_append(current.stream, append.id) is None

    def test_the_id_of_a_refused_append_is_not_remembered(self, backend: Backend) -> None:
        tracker = StreamTracker()
        stale = tracker.next(b"stale", indexed=True)
        tracker.write(backend, b"a")
        conflict(backend.append([stale]))
        assert stored(backend.append([tracker.next(b"b", id=stale.id, indexed=True)])) == [
            (2, 2, False)
        ]

    def test_the_same_id_on_another_stream_is_another_append(self, backend: Backend) -> None:
        streams = [key("a"), key("b"), key("a", tenant="other"), key("a", kind="other")]
        for indexed in (False, True):
            same = os.urandom(16)
            for stream in streams:
                tracker = StreamTracker(stream._replace(id=f"{stream.id} {indexed}"))
                tracker.write(backend, b"x", id=same, indexed=indexed)
                tracker.write(backend, b"y")
                assert bodies(read_all(backend, tracker.stream)) == [b"x", b"y"]

    def test_ids_that_look_alike_are_different(self, backend: Backend) -> None:
        tracker = StreamTracker()
        alike = [
            b"id",
            b"ID",
            b"id ",
            b" id",
            b"id\x00",
            b"\x00id",
            b"\x00",
            b"i",
            b"69",
            b"aWQ=",
            b"\xff\xfe",
            b"%",
        ]
        for version, look_alike in enumerate(alike, 1):
            assert tracker.write(backend, b"x", id=look_alike, indexed=True).expected == version - 1
        for version, look_alike in enumerate(alike, 1):
            assert stored(backend.append([tracker.next(id=look_alike, indexed=True)])) == [
                (version, version, True)
            ], look_alike
