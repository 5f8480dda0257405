"""Deleting a stream or its beginning: what is gone, what stays, and what may never come back."""

from __future__ import annotations

import os

import msgspec

from ..backends import Append, Backend, HeadFields
from .build import (
    Life,
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


def _delete(backend: Backend, life: Life) -> None:
    assert backend.delete(life.stream, expected=must_head(backend, life.stream)) is True


class DeletionTests:
    def test_a_deleted_stream_does_not_exist(self, backend: Backend) -> None:
        life, other = Life(), Life("other")
        life.write(backend, b"a", b"b", fields=LISTED)
        other.write(backend, b"c", fields=LISTED)
        _delete(backend, life)
        assert backend.head(life.stream) is None
        for after in (0, 1, 5):
            assert list(backend.read(life.stream, after=after)) == []
            assert list(backend.read(life.stream, after=after, reverse=True)) == []
        assert bodies(read_all(backend, other.stream)) == [b"c"]

    def test_a_deleted_stream_is_not_listed(self, backend: Backend) -> None:
        life, other = Life(), Life("other")
        life.write(backend, fields=LISTED)
        other.write(backend, fields=LISTED)
        _delete(backend, life)
        assert ids(all_heads(backend)) == ["other"]
        assert ids(all_heads(backend, status="s")) == ["other"]
        assert ids(all_due(backend)) == ["other"]

    def test_deleting_what_is_missing_or_was_deleted_says_no(self, backend: Backend) -> None:
        life = Life()
        assert backend.delete(life.stream, expected=at(life)) is False
        life.write(backend)
        head = must_head(backend, life.stream)
        assert backend.delete(life.stream, expected=head) is True
        assert backend.delete(life.stream, expected=head) is False

    def test_a_moved_head_refuses_the_deletion_and_nothing_is_done(self, backend: Backend) -> None:
        life = Life()
        life.write(backend, b"a", b"b")
        before = must_head(backend, life.stream)
        life.write(backend, b"c")
        now = must_head(backend, life.stream)
        moved = [
            before,
            msgspec.structs.replace(now, version=now.version + 1),
            msgspec.structs.replace(now, hash=before.hash),
            msgspec.structs.replace(now, incarnation=os.urandom(16)),
        ]
        for expected in moved:
            assert backend.delete(life.stream, expected=expected) is False
        assert bodies(read_all(backend, life.stream)) == [b"a", b"b", b"c"]
        assert timeless(backend.head(life.stream)) == at(life)

    def test_only_version_hash_and_incarnation_are_compared(self, backend: Backend) -> None:
        life = Life()
        life.write(backend, b"a", b"b", fields=LISTED)
        expected = msgspec.structs.replace(
            must_head(backend, life.stream), fields=HeadFields(), now=0.0
        )
        assert backend.delete(life.stream, expected=expected) is True

    def test_an_append_of_the_deleted_life_is_refused(self, backend: Backend) -> None:
        for indexed in (False, True):
            life = Life(f"indexed {indexed}")
            first = life.write(backend, b"a", indexed=indexed)
            last = life.write(backend, b"b", indexed=indexed)
            following = life.next(b"c", indexed=indexed)
            anew = msgspec.structs.replace(first, id=os.urandom(16))
            _delete(backend, life)
            for late in (first, last, following, anew):
                assert conflict(backend.append([late])) is None
            assert backend.head(life.stream) is None
            assert list(backend.read(life.stream)) == []

    def test_a_new_life_starts_at_one_with_nothing_of_the_former(self, backend: Backend) -> None:
        former, life = Life(), Life()
        former.write(backend, b"old", b"old", fields=LISTED)
        _delete(backend, former)
        life.write(backend, b"new")
        assert versions(read_all(backend, life.stream)) == [1]
        assert bodies(read_all(backend, life.stream)) == [b"new"]
        assert timeless(backend.head(life.stream)) == at(life)
        assert all_due(backend) == []
        assert_listed(all_heads(backend), [at(life)])
        life.write(backend, b"newer")
        assert bodies(read_all(backend, life.stream)) == [b"new", b"newer"]

    def test_a_late_append_of_a_former_life_cannot_enter_the_new_one(
        self, backend: Backend
    ) -> None:
        former, life = Life(), Life()
        first = former.write(backend, b"same")
        following = former.next(b"late")
        _delete(backend, former)
        twin = Append(life.stream, 0, b"", life.incarnation, os.urandom(16), first.records)
        life.follow(twin)
        assert stored(backend.append([twin])) == [(1, 1, False)]
        # Version and hash are those the former life had: only the incarnation tells them apart.
        for late in (first, following):
            assert timeless(conflict(backend.append([late]))) == at(life)
        assert bodies(read_all(backend, life.stream)) == [b"same"]

    def test_the_head_of_a_former_life_cannot_delete_the_new_one(self, backend: Backend) -> None:
        former, life = Life(), Life()
        first = former.write(backend, b"same")
        head = must_head(backend, former.stream)
        _delete(backend, former)
        backend.append(
            [Append(life.stream, 0, b"", life.incarnation, os.urandom(16), first.records)]
        )
        assert backend.delete(life.stream, expected=head) is False
        assert bodies(read_all(backend, life.stream)) == [b"same"]

    def test_indexed_ids_of_a_former_life_are_forgotten(self, backend: Backend) -> None:
        former, life = Life(), Life()
        used = [former.write(backend, b"old", indexed=True).id for _ in range(3)]
        _delete(backend, former)
        for used_id in used:
            life.write(backend, b"new", id=used_id, indexed=True)
        assert bodies(read_all(backend, life.stream)) == [b"new"] * 3

    def test_every_former_life_stays_refused(self, backend: Backend) -> None:
        firsts = []
        for _ in range(3):
            life = Life()
            firsts.append(life.write(backend, b"x"))
            _delete(backend, life)
        for first in firsts:
            assert conflict(backend.append([first])) is None
        Life().write(backend, b"new")
