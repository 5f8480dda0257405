"""Tests of `SupportsCheck` and `SupportsFieldRepair`: what is stored beside the records agrees
with them, and can be repaired.

A backend without these capabilities passes them all.
"""

from __future__ import annotations

from ..backends import Backend, HeadFields, SupportsCheck, SupportsFieldRepair
from .build import (
    StreamTracker,
    all_due,
    all_heads,
    ids,
    key,
    must_head,
    read_all,
    stored,
    timeless,
)


def write_sample(backend: Backend) -> list[StreamTracker]:
    """Write streams of two tenants and two kinds, and delete a stream of a third tenant."""
    trackers = [
        StreamTracker(key("a")),
        StreamTracker(key("b", kind="other")),
        StreamTracker(key("c", tenant="other")),
        StreamTracker(key("gone", tenant="former")),
    ]
    for tracker in trackers:
        tracker.write(backend, b"1", b"2", fields=HeadFields("pending", b"label", "me", 5.0, 9.0))
        tracker.write(backend, b"3", b"4", id=b"chosen", indexed=True)
        tracker.write(backend, b"5", fields=HeadFields("done", due_at=7.0))
        tracker.write(backend, b"6")
    gone = trackers.pop().stream
    assert backend.delete(gone, expected=must_head(backend, gone))
    return trackers


class CheckTests:
    def test_the_fields_of_a_head_can_be_replaced_without_an_append(self, backend: Backend) -> None:
        if not isinstance(backend, SupportsFieldRepair):
            return
        tracker, fields = StreamTracker(), HeadFields("pending", b"new", None, 3.0, None)
        tracker.write(backend, b"1", fields=HeadFields("done", b"label", "me", 5.0, 9.0))
        head = must_head(backend, tracker.stream)
        assert backend.replace_fields(head, fields)
        changed = must_head(backend, tracker.stream)
        assert (changed.position, changed.fields) == (head.position, fields)
        assert ids(all_heads(backend, status="done")) == []
        assert (
            ids(all_heads(backend, status="pending")) == ids(all_due(backend, before=3.0)) == ["s"]
        )
        assert backend.replace_fields(head, HeadFields())
        assert must_head(backend, tracker.stream).fields == HeadFields()
        assert ids(all_heads(backend, status="pending")) == ids(all_due(backend)) == []
        tracker.write(backend, b"2")
        assert not backend.replace_fields(head, fields)
        assert must_head(backend, tracker.stream).fields == HeadFields()

    def test_a_check_of_undamaged_data_finds_nothing(self, backend: Backend) -> None:
        if isinstance(backend, SupportsCheck):
            assert list(backend.check()) == []
            write_sample(backend)
            assert list(backend.check()) == []

    def test_every_tenant_and_kind_with_a_stream_is_listed(self, backend: Backend) -> None:
        if isinstance(backend, SupportsCheck):
            assert list(backend.list_scopes()) == []
            scopes = sorted(tracker.stream[:2] for tracker in write_sample(backend))
            assert list(backend.list_scopes()) == scopes

    def test_a_rebuild_of_undamaged_data_changes_nothing(self, backend: Backend) -> None:
        if isinstance(backend, SupportsCheck):
            trackers = write_sample(backend)
            before = [
                (timeless(must_head(backend, tracker.stream)), read_all(backend, tracker.stream))
                for tracker in trackers
            ]
            assert backend.rebuild() == 0
            assert list(backend.check()) == []
            for tracker, (head, records) in zip(trackers, before, strict=True):
                tenant, kind, name = tracker.stream
                assert timeless(must_head(backend, tracker.stream)) == head
                assert read_all(backend, tracker.stream) == records
                assert ids(all_heads(backend, tenant=tenant, kind=kind)) == [name]
                assert ids(all_heads(backend, tenant=tenant, kind=kind, status="pending")) == []
                assert ids(all_heads(backend, tenant=tenant, kind=kind, status="done")) == [name]
                assert ids(all_due(backend, tenant=tenant, kind=kind, before=7.0)) == [name]
                repeated = tracker.next(b"again", id=b"chosen", indexed=True)
                assert stored(backend.append([repeated])) == [(3, 4, True)]
