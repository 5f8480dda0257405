"""Deleting a stream or its beginning: what is gone, what stays, and what may never come back."""

from __future__ import annotations

import os

import msgspec

from ..backends import Append, Backend, Fields
from ._build import (
    KIND,
    TENANT,
    Life,
    all_due,
    all_heads,
    assert_listed,
    at,
    bodies,
    conflict,
    ids,
    key,
    must_head,
    read_all,
    stored,
    timeless,
    versions,
)

LISTED = Fields(status="s", label=b"l", owner="o", due_at=1.0, expires_at=2.0)


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
        assert backend.delete(life.stream, expected=head, upto=1) is False

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
            assert backend.delete(life.stream, expected=expected, upto=1) is False
        assert bodies(read_all(backend, life.stream)) == [b"a", b"b", b"c"]
        assert timeless(backend.head(life.stream)) == at(life)

    def test_only_version_hash_and_incarnation_are_compared(self, backend: Backend) -> None:
        life = Life()
        life.write(backend, b"a", b"b", fields=LISTED)
        expected = msgspec.structs.replace(must_head(backend, life.stream), fields=Fields(), now=0.0)
        assert backend.delete(life.stream, expected=expected, upto=1) is True
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

    def test_a_late_append_of_a_former_life_cannot_enter_the_new_one(self, backend: Backend) -> None:
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
        backend.append([Append(life.stream, 0, b"", life.incarnation, os.urandom(16), first.records)])
        assert backend.delete(life.stream, expected=head) is False
        assert backend.delete(life.stream, expected=head, upto=1) is False
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

    def test_deleting_the_beginning_leaves_head_versions_and_the_rest(self, backend: Backend) -> None:
        life = Life()
        life.write(backend, *(b"%d" % number for number in range(1, 6)), fields=LISTED)
        assert backend.delete(life.stream, expected=must_head(backend, life.stream), upto=3) is True
        assert timeless(backend.head(life.stream)) == at(life, LISTED)
        assert bodies(read_all(backend, life.stream)) == [b"4", b"5"]
        assert_listed(all_heads(backend), [at(life, LISTED)])
        assert_listed(all_due(backend), [at(life, LISTED)])
        life.write(backend, b"6")
        assert versions(read_all(backend, life.stream)) == [4, 5, 6]

    def test_reading_from_a_deleted_beginning_starts_at_the_rest(self, backend: Backend) -> None:
        life = Life()
        life.write(backend, *[b"x"] * 6)
        backend.delete(life.stream, expected=must_head(backend, life.stream), upto=3)
        for after in (0, 1, 2, 3):
            assert versions(backend.read(life.stream, after=after)) == [4, 5, 6]
            assert versions(backend.read(life.stream, after=after, limit=2)) == [4, 5]
        assert versions(backend.read(life.stream, after=4)) == [5, 6]
        assert versions(backend.read(life.stream, reverse=True)) == [6, 5, 4]
        assert versions(backend.read(life.stream, after=6, reverse=True, limit=5)) == [5, 4]
        for after in (1, 2, 3, 4):
            assert list(backend.read(life.stream, after=after, reverse=True)) == []

    def test_the_beginning_may_be_deleted_again_and_again(self, backend: Backend) -> None:
        life = Life()
        life.write(backend, *[b"x"] * 4)
        left = {0: [1, 2, 3, 4], 1: [2, 3, 4], 3: [4], 2: [4]}
        for upto, wanted in left.items():
            assert backend.delete(life.stream, expected=must_head(backend, life.stream), upto=upto) is True
            assert versions(read_all(backend, life.stream)) == wanted
        life.write(backend, b"y", b"z")
        assert backend.delete(life.stream, expected=must_head(backend, life.stream), upto=5) is True
        assert versions(read_all(backend, life.stream)) == [6]

    def test_deleting_the_beginning_of_one_stream_leaves_others_whole(self, backend: Backend) -> None:
        lives = [Life(stream) for stream in (key("a"), key("b"), key("a", tenant="other"), key("a", kind="other"))]
        for life in lives:
            life.write(backend, b"1", b"2", b"3")
        assert backend.delete(key("a"), expected=must_head(backend, key("a")), upto=2) is True
        assert [versions(read_all(backend, life.stream)) for life in lives] == [[3], [1, 2, 3], [1, 2, 3], [1, 2, 3]]

    def test_an_indexed_id_is_found_even_if_its_records_are_deleted(self, backend: Backend) -> None:
        life = Life()
        indexed = life.write(backend, b"a", b"b", indexed=True)
        plain = life.write(backend, b"c")
        life.write(backend, b"d")
        backend.delete(life.stream, expected=must_head(backend, life.stream), upto=3)
        assert stored(backend.append([indexed])) == [(1, 2, True)]
        assert timeless(conflict(backend.append([plain]))) == at(life)
        assert versions(read_all(backend, life.stream)) == [4]

    def test_an_append_that_lost_its_first_record_is_found_only_if_indexed(self, backend: Backend) -> None:
        for indexed in (False, True):
            life = Life(f"indexed {indexed}")
            append = life.write(backend, b"a", b"b", indexed=indexed)
            backend.delete(life.stream, expected=must_head(backend, life.stream), upto=1)
            answers = backend.append([append])
            if indexed:
                assert stored(answers) == [(1, 2, True)]
            else:
                assert timeless(conflict(answers)) == at(life)
            assert versions(read_all(backend, life.stream)) == [2]

    def test_a_stream_without_its_beginning_can_be_deleted_and_live_again(self, backend: Backend) -> None:
        former, life = Life(), Life()
        former.write(backend, b"a", b"b", b"c")
        backend.delete(former.stream, expected=must_head(backend, former.stream), upto=2)
        _delete(backend, former)
        life.write(backend, b"new")
        assert [(r.version, r.body) for r in read_all(backend, life.stream)] == [(1, b"new")]
        assert ids(backend.heads(tenant=TENANT, kind=KIND)) == ["s"]
