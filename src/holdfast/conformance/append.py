"""Tests of appends to one stream: what is stored, what is rejected, and the head afterwards."""

from __future__ import annotations

import os

import msgspec

from ..backends import AppendResult, Backend, HeadFields
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

EVERY_FIELD = HeadFields(
    status="Running ✓",
    label=bytes(range(256)),
    owner="wörker '1'",
    due_at=1700000000.123456,
    expires_at=4102444800.5,
)


class AppendTests:
    def test_a_first_append_creates_the_stream_at_version_one(self, backend: Backend) -> None:
        tracker = StreamTracker()
        [answer] = backend.append([tracker.next(b"a")])
        assert isinstance(answer, AppendResult)
        assert (answer.first, answer.last, answer.duplicate) == (1, 1, False)
        assert bodies(backend.read(tracker.stream)) == [b"a"]

    def test_versions_are_contiguous_over_appends_of_several_records(
        self, backend: Backend
    ) -> None:
        tracker = StreamTracker()
        tracker.write(backend, b"a")
        tracker.write(backend, b"b", b"c", b"d")
        tracker.write(backend, b"e")
        records = read_all(backend, tracker.stream)
        assert versions(records) == [1, 2, 3, 4, 5]
        assert bodies(records) == [b"a", b"b", b"c", b"d", b"e"]

    def test_a_record_comes_back_exactly_as_it_was_appended(self, backend: Backend) -> None:
        tracker = StreamTracker()
        first = tracker.write(backend, b"a", b"b", id=b"\x00\xff id")
        second = tracker.write(backend, b"c", id=os.urandom(200))
        got = [
            (record.version, record.append_id, record.hash, record.body)
            for record in backend.read(tracker.stream)
        ]
        assert got == [
            (1, first.id, first.records[0][0], b"a"),
            (2, first.id, first.records[1][0], b"b"),
            (3, second.id, second.records[0][0], b"c"),
        ]

    def test_the_head_is_the_newest_version_hash_incarnation_and_fields(
        self, backend: Backend
    ) -> None:
        tracker = StreamTracker()
        for size in (1, 3, 1):
            tracker.write(backend, *[b"x"] * size, fields=EVERY_FIELD)
            assert timeless(backend.head(tracker.stream)) == at(tracker, EVERY_FIELD)

    def test_a_stale_append_writes_nothing_and_says_the_true_head(self, backend: Backend) -> None:
        tracker = StreamTracker()
        stale = tracker.next(b"stale", b"stale")
        tracker.write(backend, b"a", fields=EVERY_FIELD)
        assert timeless(conflict(backend.append([stale]))) == at(tracker, EVERY_FIELD)
        assert bodies(read_all(backend, tracker.stream)) == [b"a"]
        behind = tracker.next(b"behind")
        tracker.write(backend, b"b")
        assert timeless(conflict(backend.append([behind]))) == at(tracker, EVERY_FIELD)
        assert bodies(read_all(backend, tracker.stream)) == [b"a", b"b"]

    def test_an_append_ahead_of_the_head_conflicts(self, backend: Backend) -> None:
        tracker = StreamTracker()
        tracker.write(backend, b"a")
        ahead = msgspec.structs.replace(tracker.next(b"x"), expected=2)
        assert timeless(conflict(backend.append([ahead]))) == at(tracker)
        assert versions(read_all(backend, tracker.stream)) == [1]

    def test_an_append_to_a_missing_stream_at_a_later_version_conflicts_and_creates_nothing(
        self, backend: Backend
    ) -> None:
        tracker = StreamTracker()
        tracker.follow(tracker.next(b"never stored"))
        assert conflict(backend.append([tracker.next(b"x")])) is None
        assert backend.head(tracker.stream) is None
        assert list(backend.read(tracker.stream)) == []

    def test_the_right_version_with_another_hash_conflicts(self, backend: Backend) -> None:
        tracker = StreamTracker()
        tracker.write(backend, b"a")
        for wrong in (b"", bytes(32), tracker.hash[:-1], tracker.hash + b"\x00"):
            answer = backend.append(
                [msgspec.structs.replace(tracker.next(b"x"), expected_hash=wrong)]
            )
            assert timeless(conflict(answer)) == at(tracker)
        assert versions(read_all(backend, tracker.stream)) == [1]

    def test_the_right_version_and_hash_with_another_incarnation_conflicts(
        self, backend: Backend
    ) -> None:
        tracker = StreamTracker()
        tracker.write(backend, b"a")
        other = msgspec.structs.replace(tracker.next(b"x"), incarnation=os.urandom(16))
        assert timeless(conflict(backend.append([other]))) == at(tracker)
        assert versions(read_all(backend, tracker.stream)) == [1]

    def test_creating_a_stream_that_exists_conflicts_whatever_the_incarnation(
        self, backend: Backend
    ) -> None:
        tracker = StreamTracker()
        tracker.write(backend, b"a")
        again, same = StreamTracker(), StreamTracker()
        same.incarnation = tracker.incarnation
        for other in (again, same):
            assert timeless(conflict(backend.append([other.next(b"x")]))) == at(tracker)
        assert bodies(read_all(backend, tracker.stream)) == [b"a"]

    def test_a_refused_append_leaves_no_fields_and_no_due_time(self, backend: Backend) -> None:
        tracker = StreamTracker()
        stale = tracker.next(b"x", fields=HeadFields(status="stale", due_at=1.0))
        tracker.write(backend, b"a", fields=HeadFields(status="true"))
        conflict(backend.append([stale]))
        assert timeless(backend.head(tracker.stream)) == at(tracker, HeadFields(status="true"))
        assert list(backend.due(tenant=tracker.stream.tenant, kind=tracker.stream.kind)) == []

    def test_an_append_without_fields_keeps_those_of_the_head(self, backend: Backend) -> None:
        tracker = StreamTracker()
        tracker.write(backend, fields=EVERY_FIELD)
        tracker.write(backend, fields=None)
        assert must_head(backend, tracker.stream).fields == EVERY_FIELD

    def test_an_append_with_fields_replaces_all_of_them(self, backend: Backend) -> None:
        tracker = StreamTracker()
        tracker.write(backend, fields=EVERY_FIELD)
        tracker.write(backend, fields=HeadFields(owner="other"))
        assert must_head(backend, tracker.stream).fields == HeadFields(owner="other")
        tracker.write(backend, fields=HeadFields())
        assert must_head(backend, tracker.stream).fields == HeadFields()

    def test_empty_and_zero_are_fields_like_others_and_not_the_same_as_none(
        self, backend: Backend
    ) -> None:
        tracker = StreamTracker()
        tracker.write(backend)
        assert must_head(backend, tracker.stream).fields == HeadFields()
        empty = HeadFields(status="", label=b"", owner="", due_at=0.0, expires_at=0.0)
        tracker.write(backend, fields=empty)
        assert must_head(backend, tracker.stream).fields == empty

    def test_one_append_may_hold_many_records(self, backend: Backend) -> None:
        tracker = StreamTracker()
        tracker.write(backend, *(b"%d" % number for number in range(1000)))
        assert bodies(read_all(backend, tracker.stream)) == [
            b"%d" % number for number in range(1000)
        ]

    def test_a_stream_is_not_touched_by_appends_to_another(self, backend: Backend) -> None:
        one, two = StreamTracker("one"), StreamTracker("two")
        one.write(backend, b"1")
        two.write(backend, b"2", b"2")
        one.write(backend, b"1")
        assert bodies(read_all(backend, one.stream)) == [b"1", b"1"]
        assert bodies(read_all(backend, two.stream)) == [b"2", b"2"]
        assert stored(backend.append([two.next(b"2")])) == [(3, 3, False)]

    def test_the_same_id_in_another_tenant_or_kind_is_another_stream(
        self, backend: Backend
    ) -> None:
        trackers = [
            StreamTracker(key(tenant=tenant, kind=kind))
            for tenant in ("a", "b")
            for kind in ("a", "b")
        ]
        for tracker in trackers:
            tracker.write(backend, str(tracker.stream[:2]).encode())
        for tracker in trackers:
            assert bodies(read_all(backend, tracker.stream)) == [str(tracker.stream[:2]).encode()]
            assert timeless(backend.head(tracker.stream)) == at(tracker)
