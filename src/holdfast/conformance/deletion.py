"""Tests of deletion: what is gone, what stays, and what must never come back."""

from __future__ import annotations

import os

import msgspec

from ..backends import Append, Backend, HeadFields
from .build import (
    StreamTracker,
    all_due,
    all_heads,
    assert_listed,
    at,
    bodies,
    conflict,
    ids,
    must_head,
    read_all,
    stored,
    timeless,
    versions,
)

LISTED = HeadFields(status="s", label=b"l", owner="o", due_at=1.0, expires_at=2.0)


def _delete(backend: Backend, tracker: StreamTracker) -> None:
    assert backend.delete(tracker.stream, expected=must_head(backend, tracker.stream)) is True


class DeletionTests:
    def test_a_deleted_stream_does_not_exist(self, backend: Backend) -> None:
        tracker, other = StreamTracker(), StreamTracker("other")
        tracker.write(backend, b"a", b"b", fields=LISTED)
        other.write(backend, b"c", fields=LISTED)
        _delete(backend, tracker)
        assert backend.head(tracker.stream) is None
        for after in (0, 1, 5):
            assert list(backend.read(tracker.stream, after=after)) == []
            assert list(backend.read(tracker.stream, after=after, reverse=True)) == []
        assert bodies(read_all(backend, other.stream)) == [b"c"]

    def test_a_deleted_stream_is_not_listed(self, backend: Backend) -> None:
        tracker, other = StreamTracker(), StreamTracker("other")
        tracker.write(backend, fields=LISTED)
        other.write(backend, fields=LISTED)
        _delete(backend, tracker)
        assert ids(all_heads(backend)) == ["other"]
        assert ids(all_heads(backend, status="s")) == ["other"]
        assert ids(all_due(backend)) == ["other"]

    def test_deleting_what_is_missing_or_was_deleted_says_no(self, backend: Backend) -> None:
        tracker = StreamTracker()
        assert backend.delete(tracker.stream, expected=at(tracker)) is False
        tracker.write(backend)
        head = must_head(backend, tracker.stream)
        assert backend.delete(tracker.stream, expected=head) is True
        assert backend.delete(tracker.stream, expected=head) is False

    def test_a_moved_head_refuses_the_deletion_and_nothing_is_done(self, backend: Backend) -> None:
        tracker = StreamTracker()
        tracker.write(backend, b"a", b"b")
        before = must_head(backend, tracker.stream)
        tracker.write(backend, b"c")
        now = must_head(backend, tracker.stream)
        moved = [
            before,
            msgspec.structs.replace(now, version=now.version + 1),
            msgspec.structs.replace(now, hash=before.hash),
            msgspec.structs.replace(now, incarnation=os.urandom(16)),
        ]
        for expected in moved:
            assert backend.delete(tracker.stream, expected=expected) is False
        assert bodies(read_all(backend, tracker.stream)) == [b"a", b"b", b"c"]
        assert timeless(backend.head(tracker.stream)) == at(tracker)

    def test_only_version_hash_and_incarnation_are_compared(self, backend: Backend) -> None:
        tracker = StreamTracker()
        tracker.write(backend, b"a", b"b", fields=LISTED)
        expected = msgspec.structs.replace(
            must_head(backend, tracker.stream), fields=HeadFields(), now=0.0
        )
        assert backend.delete(tracker.stream, expected=expected) is True

    def test_an_append_of_the_deleted_incarnation_is_refused(self, backend: Backend) -> None:
        for indexed in (False, True):
            tracker = StreamTracker(f"indexed {indexed}")
            first = tracker.write(backend, b"a", indexed=indexed)
            last = tracker.write(backend, b"b", indexed=indexed)
            following = tracker.next(b"c", indexed=indexed)
            recreate = msgspec.structs.replace(first, id=os.urandom(16))
            _delete(backend, tracker)
            for late in (first, last, following, recreate):
                assert conflict(backend.append([late])) is None
            assert backend.head(tracker.stream) is None
            assert list(backend.read(tracker.stream)) == []

    def test_a_new_incarnation_starts_at_one_with_nothing_of_the_former(
        self, backend: Backend
    ) -> None:
        former, tracker = StreamTracker(), StreamTracker()
        former.write(backend, b"old", b"old", fields=LISTED)
        _delete(backend, former)
        tracker.write(backend, b"new")
        assert versions(read_all(backend, tracker.stream)) == [1]
        assert bodies(read_all(backend, tracker.stream)) == [b"new"]
        assert timeless(backend.head(tracker.stream)) == at(tracker)
        assert all_due(backend) == []
        assert_listed(all_heads(backend), [at(tracker)])
        tracker.write(backend, b"newer")
        assert bodies(read_all(backend, tracker.stream)) == [b"new", b"newer"]

    def test_a_late_append_of_a_former_incarnation_cannot_enter_the_new_one(
        self, backend: Backend
    ) -> None:
        former, tracker = StreamTracker(), StreamTracker()
        first = former.write(backend, b"same")
        following = former.next(b"late")
        _delete(backend, former)
        twin = Append(tracker.stream, 0, b"", tracker.incarnation, os.urandom(16), first.records)
        tracker.follow(twin)
        assert stored(backend.append([twin])) == [(1, 1, False)]
        # Version and hash are those of the former incarnation: only the incarnation differs.
        for late in (first, following):
            assert timeless(conflict(backend.append([late]))) == at(tracker)
        assert bodies(read_all(backend, tracker.stream)) == [b"same"]

    def test_the_head_of_a_former_incarnation_cannot_delete_the_new_one(
        self, backend: Backend
    ) -> None:
        former, tracker = StreamTracker(), StreamTracker()
        first = former.write(backend, b"same")
        head = must_head(backend, former.stream)
        _delete(backend, former)
        backend.append(
            [Append(tracker.stream, 0, b"", tracker.incarnation, os.urandom(16), first.records)]
        )
        assert backend.delete(tracker.stream, expected=head) is False
        assert bodies(read_all(backend, tracker.stream)) == [b"same"]

    def test_indexed_ids_of_a_former_incarnation_are_forgotten(self, backend: Backend) -> None:
        former, tracker = StreamTracker(), StreamTracker()
        used = [former.write(backend, b"old", indexed=True).id for _ in range(3)]
        _delete(backend, former)
        for used_id in used:
            tracker.write(backend, b"new", id=used_id, indexed=True)
        assert bodies(read_all(backend, tracker.stream)) == [b"new"] * 3

    def test_every_former_incarnation_stays_refused(self, backend: Backend) -> None:
        firsts = []
        for _ in range(3):
            tracker = StreamTracker()
            firsts.append(tracker.write(backend, b"x"))
            _delete(backend, tracker)
        for first in firsts:
            assert conflict(backend.append([first])) is None
        StreamTracker().write(backend, b"new")
