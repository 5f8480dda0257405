"""Copying what is damaged: it is named, never copied, and keeps nothing else back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

import holdfast
from helpers.engines.memory_space import MemorySpace
from helpers.stored.store_copies import Wrapper, bodies, key, many, on
from holdfast.admin.copy import writer as writing
from holdfast.backends import (
    Append,
    AppendResult,
    Backend,
    Head,
    HeadFields,
    Record,
    StreamKey,
    VersionMismatch,
    memory,
)
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.objects.backend import ObjectsBackend
from holdfast.backends.objects.format import root_partition
from holdfast.errors import CorruptRecord, TooLarge
from holdfast.log import operations as ops
from holdfast.log.events import new_append_context
from holdfast.log.operations.stream_ops import append_audit_event
from holdfast.types import CopyProgress


@pytest.fixture
def source() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def target() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pages and batches, so that few streams make many of them."""
    monkeypatch.setattr(memory, "PAGE_BYTES", 700)
    monkeypatch.setattr(writing, "BATCH_APPENDS", 3)
    monkeypatch.setattr(writing, "SLICE_STREAMS", 2)


def damage(backend: MemoryBackend, name: str, version: int) -> None:
    records = backend._streams[key(name)].records
    records[version - 1] = msgspec.structs.replace(records[version - 1], body=b"altered")


@pytest.mark.usefixtures("small")
def test_damage_at_the_source_is_named_and_all_else_is_copied(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    many(on(source), 5)
    damage(source, "s-0002", 4)
    with pytest.raises(CorruptRecord, match=r"'s-0002' \(version 4\)"):
        holdfast.copy(source, target)
    for name in ("s-0000", "s-0001", "s-0003", "s-0004"):
        assert bodies(target, name) == bodies(source, name)
    assert b"altered" not in bodies(target, "s-0002")


def test_damage_that_appears_after_a_first_copy_is_not_taken_for_another_stream(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    many(on(source), 1, 2)
    holdfast.copy(source, target)
    on(source).stream("s-0000").append(("noted", 1))
    damage(source, "s-0000", 5)
    with pytest.raises(CorruptRecord, match=r"\(version 5\)"):
        holdfast.copy(source, target)


def test_damage_at_the_destination_is_found_by_reading_it_back(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    many(on(source), 3)
    holdfast.copy(source, target)
    damage(target, "s-0001", 2)
    assert holdfast.copy(source, target, verify=False).verified == 0
    with pytest.raises(
        CorruptRecord, match=r"'s-0001' \(version 2\) is damaged: at the destination"
    ):
        holdfast.copy(source, target)


def test_a_destination_that_forgets_is_found_out(source: MemoryBackend) -> None:
    many(on(source), 3)

    class Forgetful(MemoryBackend):
        def heads(self, **options: Any) -> Sequence[Head]:  # type: ignore[override]
            self._streams.pop(key("s-0001"), None)
            return super().heads(**options)

    with pytest.raises(CorruptRecord, match="1 of its streams of kind stream"):
        holdfast.copy(source, Forgetful(), verify=False)


def test_heads_that_are_right_do_not_hide_records_that_are_not(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    many(on(source), 1)
    holdfast.copy(source, target)
    on(source).stream("s-0000").append(("ours", 1))
    on(target).stream("s-0000").append(("theirs", 1))

    class Deceived(Wrapper):
        def head(self, stream: StreamKey) -> Head | None:
            return source.head(stream)

        def heads(self, **options: Any) -> Sequence[Head]:  # type: ignore[override]
            return source.heads(**options)

    assert holdfast.copy(source, Deceived(target), verify=False).skipped == 2
    with pytest.raises(
        CorruptRecord, match=r"'s-0000' \(version 7\) is damaged: at the destination"
    ):
        holdfast.copy(source, Deceived(target))


def test_a_destination_that_stores_other_fields_is_found_out(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    class Careless(Wrapper):
        def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
            return target.append(
                [msgspec.structs.replace(one, fields=HeadFields(status="?")) for one in batch]
            )

    many(on(source), 1)
    with pytest.raises(CorruptRecord, match="differs from the source"):
        holdfast.copy(source, Careless(target), verify=False)


def test_a_stream_that_cannot_be_stored_does_not_keep_the_others_back(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    many(on(source), 5)

    class Narrow(Wrapper):
        def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
            if any(one.stream.id == "s-0002" and one.expected == 2 for one in batch):
                raise TooLarge("a record of stream 's-0002' is too large here")
            return target.append(batch)

    with pytest.raises(TooLarge, match="s-0002"):
        holdfast.copy(source, Narrow(target))
    for name in ("s-0000", "s-0001", "s-0003", "s-0004"):
        assert bodies(target, name) == bodies(source, name)
    assert len(bodies(target, "s-0002")) == 2


def test_a_source_that_cannot_be_read_in_one_place_is_read_in_all_others(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    many(on(source), 5)

    class Broken(Wrapper):
        def read(
            self,
            stream: StreamKey,
            *,
            after: int = 0,
            limit: int | None = None,
            reverse: bool = False,
        ) -> Sequence[Record]:
            if stream.id == "s-0003":
                raise CorruptRecord(str(stream), what="a page of the file cannot be read")
            return super().read(stream, after=after, limit=limit, reverse=reverse)

    with pytest.raises(CorruptRecord, match="s-0003"):
        holdfast.copy(Broken(source), target)
    assert [name for name in range(5) if bodies(target, f"s-000{name}")] == [0, 1, 2, 4]


# -- up to the damage ------------------------------------------------------------------------------


def rescued(source: Backend, target: MemoryBackend, name: str) -> int:
    """How many records of a damaged stream arrive."""
    with pytest.raises(CorruptRecord, match=name):
        holdfast.copy(source, target)
    head = target.head(key(name))
    return head.version if head else 0


@pytest.mark.slow
@pytest.mark.parametrize("bad", range(1, 11))
@pytest.mark.parametrize("page", [200, 700, 8 * 1024 * 1024])
def test_a_damaged_stream_is_copied_up_to_the_damage(
    bad: int,
    page: int,
    source: MemoryBackend,
    target: MemoryBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "PAGE_BYTES", page)
    for number in range(10):
        on(source).stream("s").append(("noted", number))
    damage(source, "s", bad)
    for _ in range(2):
        assert rescued(source, target, "s") == bad - 1
    assert [event.data for event in on(target).stream("s").read()] == list(range(bad - 1))


@pytest.mark.parametrize(("bad", "whole"), [(1, 0), (3, 2), (4, 2), (5, 2), (6, 5)])
def test_of_an_append_with_damage_in_it_nothing_is_copied(
    bad: int, whole: int, source: MemoryBackend, target: MemoryBackend
) -> None:
    for size in (2, 3, 1):
        on(source).stream("s").append(*[("noted", size)] * size)
    damage(source, "s", bad)
    assert rescued(source, target, "s") == whole


def test_before_a_record_that_is_missing_an_append_may_not_be_whole(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    for number in range(4):
        on(source).stream("s").append(("noted", number))

    class Gap(Wrapper):
        def read(
            self,
            stream: StreamKey,
            *,
            after: int = 0,
            limit: int | None = None,
            reverse: bool = False,
        ) -> Sequence[Record]:
            page = super().read(stream, after=after, limit=limit, reverse=reverse)
            return [record for record in page if (stream, record.version) != (key("s"), 3)]

    assert rescued(Gap(source), target, "s") == 1


@pytest.mark.parametrize("records", [1, 2, 700, 1500])
def test_what_comes_before_a_place_that_cannot_be_read_is_copied(
    records: int, source: MemoryBackend, target: MemoryBackend
) -> None:
    class Unreadable(Wrapper):
        """Refuses a page with a certain record in it, as an engine does that checks what it
        reads."""

        def read(
            self,
            stream: StreamKey,
            *,
            after: int = 0,
            limit: int | None = None,
            reverse: bool = False,
        ) -> Sequence[Record]:
            page = super().read(stream, after=after, limit=limit, reverse=reverse)
            if stream.id == "s" and any(record.version > records for record in page):
                raise CorruptRecord(
                    str(stream), version=records + 1, what="a page of the file cannot be read"
                )
            return page

    for _ in range(records + 2):
        on(source).stream("s").append(("noted", 1))
    assert (
        rescued(Unreadable(source), target, "s") == records - 1
    )  # the last of them may be half of an append


class Hiding(Wrapper):
    """Leaves a stream that it cannot read out of its lists, and names it."""

    def __init__(self, inner: Backend, hidden: StreamKey, *, lost: bool = False) -> None:
        super().__init__(inner)
        self._hidden, self._lost = hidden, lost

    def head(self, stream: StreamKey) -> Head | None:
        if stream == self._hidden:
            if self._lost:
                return None
            raise CorruptRecord(str(stream), what="an object does not match its digest")
        return super().head(stream)

    def heads(self, **options: Any) -> Sequence[Head]:  # type: ignore[override]
        return [head for head in self.inner.heads(**options) if head.stream != self._hidden]

    def list_damaged(self, tenant: str, kind: str) -> Sequence[StreamKey]:
        return [self._hidden] if self._hidden[:2] == (tenant, kind) else []


@pytest.mark.parametrize("delete", [False, True])
def test_a_stream_that_lists_leave_out_is_named_and_not_taken_for_deleted(
    delete: bool, source: MemoryBackend, target: MemoryBackend
) -> None:
    many(on(source), 2)
    holdfast.copy(source, target)
    many(on(source), 4)
    on(source).stream("s-0003").delete()
    before = bodies(target, "s-0001")
    with pytest.raises(
        CorruptRecord, match=r"stream 's-0001' is damaged: an object does not match its digest"
    ):
        holdfast.copy(Hiding(source, key("s-0001")), target, delete=delete)
    assert bodies(target, "s-0001") == before
    assert bodies(target, "s-0002") == bodies(source, "s-0002")


def test_a_stream_whose_head_is_lost_is_not_taken_for_deleted(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    store = on(source)
    many(store, 2)
    holdfast.copy(source, target)
    head = source.head(key("s-0001"))
    assert head is not None
    ops.run(store._log, append_audit_event(head, new_append_context(), "cut off"))
    with pytest.raises(
        CorruptRecord, match=r"stream 's-0001' is damaged: nothing is left of it but its name"
    ):
        holdfast.copy(Hiding(source, key("s-0001"), lost=True), target, delete=True)
    assert bodies(target, "s-0001") == bodies(source, "s-0001")


def test_what_cannot_be_told_of_deletions_keeps_nothing_from_being_verified(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    many(on(source), 3)
    on(source).stream("gone").append(("noted", 1))
    holdfast.copy(source, target)
    on(source).stream("gone").delete()

    class Broken(Wrapper):
        def read(
            self,
            stream: StreamKey,
            *,
            after: int = 0,
            limit: int | None = None,
            reverse: bool = False,
        ) -> Sequence[Record]:
            if stream.kind == "audit":
                raise CorruptRecord(str(stream), what="a page of the file cannot be read")
            return super().read(stream, after=after, limit=limit, reverse=reverse)

    told: list[CopyProgress] = []
    with pytest.raises(CorruptRecord, match="audit 'log'"):
        holdfast.copy(Broken(source), target, delete=True, progress=told.append)
    assert (told[-1].phase, told[-1].streams) == ("verifying", 5)
    assert bodies(target, "gone")


def test_a_tenant_whose_registration_is_damaged_is_copied_all_the_same(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    many(on(source), 2)
    with pytest.raises(CorruptRecord, match="tenant 'default'"):
        holdfast.copy(Hiding(source, StreamKey("$system", "tenant", "default")), target)
    assert bodies(target, "s-0001") == bodies(source, "s-0001")


@pytest.mark.parametrize("left", [b"garbage", None])
def test_on_an_object_store_one_damaged_stream_keeps_no_other_back(
    left: bytes | None, target: MemoryBackend
) -> None:
    space = MemorySpace()
    many(on(ObjectsBackend(space)), 4)
    place = root_partition(key("s-0001"))
    [root] = space.objects[place]
    space.objects[place] = {root: (left, 0)} if left else {}
    with pytest.raises(CorruptRecord, match="stream 's-0001' is damaged"):
        holdfast.copy(ObjectsBackend(space), target)
    assert [len(bodies(target, f"s-000{number}")) for number in range(4)] == [6, 0, 6, 6]


def test_on_an_object_store_a_stream_is_copied_up_to_a_damaged_commit(
    target: MemoryBackend,
) -> None:
    space = MemorySpace()
    for _ in range(9):
        on(ObjectsBackend(space)).stream("s").append(("noted", "word " * 2000))
    [place] = [
        name for name in space.objects if name.startswith("c/") and len(space.objects[name]) > 5
    ]
    newest_first = sorted(space.objects[place])
    space.objects[place][newest_first[4]] = b"garbage", 0  # version 5
    assert rescued(ObjectsBackend(space), target, "s") == 3  # the fourth may be half of an append
