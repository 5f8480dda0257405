"""Tests of `heads` and `due`: what they list, in which order, and page by page."""

from __future__ import annotations

import random

from ..backends import Backend, HeadFields
from .build import (
    KIND,
    TENANT,
    StreamTracker,
    all_due,
    all_heads,
    assert_listed,
    at,
    conflict,
    ids,
    key,
)

# UTF-16 and some collations put U+1F600 before U+FF5E, and "a" before "B"; UTF-8 bytes do not.
IN_ORDER = [*"!", "0", "10", *"2BZ_a", "a ", "a!", "aa", *"b~\x7féñд語\uff5e😀", "😀a"]


class ListingTests:
    many_streams: int

    def test_nothing_is_listed_in_an_empty_store(self, backend: Backend) -> None:
        assert list(backend.heads(tenant=TENANT, kind=KIND)) == []
        assert list(backend.due(tenant=TENANT, kind=KIND)) == []

    def test_heads_are_whole_and_up_to_date(self, backend: Backend) -> None:
        fields = HeadFields(status="s", label=b"\x00l", owner="o", due_at=5.5, expires_at=7.25)
        one, two = StreamTracker("one"), StreamTracker("two")
        one.write(backend, fields=HeadFields(status="before", due_at=1.0))
        two.write(backend)
        one.write(backend, b"a", b"b", fields=fields)
        assert_listed(backend.heads(tenant=TENANT, kind=KIND), [at(one, fields), at(two)])
        assert_listed(backend.due(tenant=TENANT, kind=KIND), [at(one, fields)])

    def test_heads_are_ordered_by_the_utf8_bytes_of_their_ids(self, backend: Backend) -> None:
        _create(backend, IN_ORDER)
        assert sorted(IN_ORDER, key=str.encode) == IN_ORDER
        assert ids(backend.heads(tenant=TENANT, kind=KIND)) == IN_ORDER

    def test_heads_start_behind_after_whether_or_not_it_exists(self, backend: Backend) -> None:
        _create(backend, IN_ORDER)
        for place, name in enumerate(IN_ORDER):
            assert ids(backend.heads(tenant=TENANT, kind=KIND, after=name)) == IN_ORDER[place + 1 :]
        assert (
            ids(backend.heads(tenant=TENANT, kind=KIND, after="a!!"))
            == IN_ORDER[IN_ORDER.index("aa") :]
        )
        assert ids(backend.heads(tenant=TENANT, kind=KIND, after="😀😀")) == []

    def test_pages_of_heads_make_up_the_whole(self, backend: Backend) -> None:
        _create(backend, IN_ORDER)
        for limit in (1, 2, 5, len(IN_ORDER), 500):
            assert ids(all_heads(backend, limit=limit)) == IN_ORDER

    def test_many_heads_are_listed_to_the_end(self, backend: Backend) -> None:
        wanted = [f"{number:04}" for number in range(self.many_streams)]
        _create(backend, wanted, fields=HeadFields(status="s", due_at=1.0))
        assert ids(all_heads(backend)) == wanted
        assert ids(all_heads(backend, status="s", limit=333)) == wanted
        assert ids(all_due(backend)) == wanted

    def test_heads_are_filtered_by_status(self, backend: Backend) -> None:
        statuses = {
            "a": "pending",
            "b": "done",
            "c": None,
            "d": "pending",
            "e": "Pending",
            "f": "",
            "g": "pending ",
        }
        for name, status in statuses.items():
            StreamTracker(name).write(backend, fields=HeadFields(status=status))
        for status in ("pending", "done", "Pending", "", "pending ", "missing", "%", "*"):
            wanted = [name for name, has in statuses.items() if has == status]
            assert ids(all_heads(backend, status=status)) == wanted
            assert ids(all_heads(backend, status=status, limit=1)) == wanted
        assert ids(backend.heads(tenant=TENANT, kind=KIND, status="pending", after="a")) == ["d"]
        assert ids(backend.heads(tenant=TENANT, kind=KIND)) == list(statuses)

    def test_a_changed_status_is_listed_under_the_new_one_only(self, backend: Backend) -> None:
        tracker = StreamTracker()
        tracker.write(backend, fields=HeadFields(status="pending"))
        tracker.write(backend, fields=HeadFields(status="done"))
        tracker.write(backend, fields=None)
        assert ids(all_heads(backend, status="pending")) == []
        assert ids(all_heads(backend, status="done")) == ["s"]

    def test_due_is_the_earlier_of_the_two_times(self, backend: Backend) -> None:
        times = {
            "a": (5.0, 9.0),
            "b": (9.0, 4.0),
            "c": (None, 3.0),
            "d": (2.0, None),
            "e": (None, None),
        }
        for name, (due_at, expires_at) in times.items():
            StreamTracker(name).write(
                backend, fields=HeadFields(due_at=due_at, expires_at=expires_at)
            )
        assert ids(backend.due(tenant=TENANT, kind=KIND)) == ["d", "c", "b", "a"]
        assert ids(backend.due(tenant=TENANT, kind=KIND, before=4.0)) == ["d", "c", "b"]

    def test_due_includes_the_moment_itself_and_nothing_later(self, backend: Backend) -> None:
        StreamTracker().write(backend, fields=HeadFields(due_at=1700000000.123456))
        assert ids(backend.due(tenant=TENANT, kind=KIND, before=1700000000.123456)) == ["s"]
        assert ids(backend.due(tenant=TENANT, kind=KIND, before=1700000000.123455)) == []

    def test_a_due_time_of_zero_or_before_1970_is_a_time(self, backend: Backend) -> None:
        for name, time in (("a", 0.0), ("b", -1.5), ("c", -1e9), ("d", 0.25)):
            StreamTracker(name).write(backend, fields=HeadFields(expires_at=time))
        assert ids(all_due(backend)) == ["c", "b", "a", "d"]
        assert ids(all_due(backend, limit=1)) == ["c", "b", "a", "d"]
        assert ids(all_due(backend, before=0.0)) == ["c", "b", "a"]

    def test_due_streams_are_ordered_by_time_and_then_by_the_utf8_bytes_of_their_ids(
        self, backend: Backend
    ) -> None:
        places = [
            (time, f"{name}{time}") for time in (1.0, 2.5, 10.0, 1e10) for name in IN_ORDER[::2]
        ]
        for time, name in random.Random(7).sample(places, len(places)):  # noqa: S311 - an order, not a secret
            StreamTracker(name).write(backend, fields=HeadFields(due_at=time))
        wanted = [
            name for _, name in sorted(places, key=lambda place: (place[0], place[1].encode()))
        ]
        for limit in (1, 3, 100):
            assert ids(all_due(backend, limit=limit)) == wanted

    def test_a_page_of_due_starts_behind_the_cursor(self, backend: Backend) -> None:
        for name in ("a", "b", "c"):
            for time in (1.0, 2.0):
                StreamTracker(f"{name}{time:.0f}").write(backend, fields=HeadFields(due_at=time))
        assert ids(backend.due(tenant=TENANT, kind=KIND, after=(1.0, "b1"))) == [
            "c1",
            "a2",
            "b2",
            "c2",
        ]
        assert ids(backend.due(tenant=TENANT, kind=KIND, after=(1.0, "bb"))) == [
            "c1",
            "a2",
            "b2",
            "c2",
        ]
        assert ids(
            backend.due(tenant=TENANT, kind=KIND, after=(1.5, "z"), before=2.0, limit=2)
        ) == ["a2", "b2"]
        assert ids(backend.due(tenant=TENANT, kind=KIND, after=(1.0, "c1"), before=1.0)) == []

    def test_a_moved_or_removed_due_time_is_listed_where_it_is_now(self, backend: Backend) -> None:
        moved, removed, kept = (
            StreamTracker("moved"),
            StreamTracker("removed"),
            StreamTracker("kept"),
        )
        for tracker in (moved, removed, kept):
            tracker.write(backend, fields=HeadFields(due_at=1.0))
        moved.write(backend, fields=HeadFields(due_at=9.0))
        removed.write(backend, fields=HeadFields())
        kept.write(backend, fields=None)
        assert ids(backend.due(tenant=TENANT, kind=KIND)) == ["kept", "moved"]
        assert ids(backend.due(tenant=TENANT, kind=KIND, before=1.0)) == ["kept"]

    def test_only_the_tenant_and_kind_that_were_asked_for_are_listed(
        self, backend: Backend
    ) -> None:
        names = ["a", "b", "A", "a%", "_", "*", "ab", "a/b", "a'--"]
        for tenant in names:
            for kind in ("k", "kk"):
                StreamTracker(key(f"{tenant}.{kind}", tenant=tenant, kind=kind)).write(
                    backend, fields=HeadFields(status="s", due_at=1.0)
                )
        for tenant in names:
            for kind in ("k", "kk"):
                wanted = [f"{tenant}.{kind}"]
                assert ids(all_heads(backend, tenant=tenant, kind=kind)) == wanted
                assert ids(all_heads(backend, tenant=tenant, kind=kind, status="s")) == wanted
                assert ids(all_due(backend, tenant=tenant, kind=kind)) == wanted
        assert list(backend.heads(tenant="missing", kind="k")) == []
        assert list(backend.due(tenant="a", kind="missing")) == []

    def test_a_refused_append_lists_no_stream(self, backend: Backend) -> None:
        tracker = StreamTracker()
        tracker.follow(tracker.next(b"never stored"))
        conflict(backend.append([tracker.next(b"x", fields=HeadFields(status="s", due_at=1.0))]))
        assert all_heads(backend) == []
        assert all_due(backend) == []


def _create(backend: Backend, names: list[str], fields: HeadFields | None = None) -> None:
    shuffled = random.Random(1).sample(names, len(names))  # noqa: S311 - an order, not a secret
    answers = backend.append([StreamTracker(name).next(b"x", fields=fields) for name in shuffled])
    assert len(answers) == len(names)
