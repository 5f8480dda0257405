"""The conformance suite notices what is missing: each mutant lacks one protection, and a named test
turns red.

The names in `MUTANTS` are the proof that these tests do not pass by accident.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import Phase, settings

from holdfast.backends import (
    Append,
    AppendResult,
    Backend,
    Cursor,
    Head,
    HeadFields,
    Record,
    StreamKey,
    VersionMismatch,
)
from holdfast.backends.memory import MemoryBackend, _Stream
from holdfast.conformance import BackendConformance
from holdfast.errors import HoldfastError


class NoVersionCheck(MemoryBackend):
    """A stale append is stored at the end."""

    def _append(self, append: Append, now: float) -> AppendResult | VersionMismatch:
        stream = self._streams.get(append.stream)
        if stream and append.expected < stream.version and not self._find_repeated(stream, append):
            append = msgspec.structs.replace(
                append, expected=stream.version, expected_hash=stream.hash
            )
        return super()._append(append, now)


class NoHashCheck(MemoryBackend):
    def _append(self, append: Append, now: float) -> AppendResult | VersionMismatch:
        stream = self._streams.get(append.stream)
        return super()._append(
            msgspec.structs.replace(append, expected_hash=stream.hash if stream else b""), now
        )


class NoIncarnationCheck(MemoryBackend):
    def _append(self, append: Append, now: float) -> AppendResult | VersionMismatch:
        stream = self._streams.get(append.stream)
        if stream:
            append = msgspec.structs.replace(append, incarnation=stream.incarnation)
        return super()._append(append, now)


class NoIdCheckAtItsPlace(MemoryBackend):
    @staticmethod
    def _find_repeated(stream: _Stream, append: Append) -> tuple[int, int] | None:
        return stream.ids.get(append.id) if append.indexed else None


class NoIdIndex(MemoryBackend):
    @staticmethod
    def _find_repeated(stream: _Stream, append: Append) -> tuple[int, int] | None:
        hidden, stream.ids = stream.ids, {}
        try:
            return MemoryBackend._find_repeated(stream, append)
        finally:
            stream.ids = hidden


class EveryIdIsIndexed(MemoryBackend):
    def _append(self, append: Append, now: float) -> AppendResult | VersionMismatch:
        stream = self._streams.get(append.stream)
        known = [r.version for r in stream.records if r.append_id == append.id] if stream else []
        if known:
            return AppendResult(known[0], known[0], duplicate=True, now=now)
        return super()._append(append, now)


class NothingIsFoundByItsId(MemoryBackend):
    def find_append(self, stream: StreamKey, id: bytes) -> tuple[int, int] | None:
        return None


class TheLastHeadComesFirst(MemoryBackend):
    def first_head(self, streams: Sequence[StreamKey]) -> Head | None:
        return super().first_head(streams[::-1])


class EveryIdIsFound(MemoryBackend):
    def find_append(self, stream: StreamKey, id: bytes) -> tuple[int, int] | None:
        found = self._streams.get(stream)
        records = found.records if found else []
        versions = [record.version for record in records if record.append_id == id]
        return (versions[0], versions[-1]) if versions else None


class FoundInAFormerIncarnation(MemoryBackend):
    def __init__(self, name: str = "") -> None:
        super().__init__(name)
        self._found: dict[tuple[StreamKey, bytes], tuple[int, int]] = {}

    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        self._found.update({(stream, known): at for known, at in self._streams[stream].ids.items()})
        return super().delete(stream, expected=expected)

    def find_append(self, stream: StreamKey, id: bytes) -> tuple[int, int] | None:
        return super().find_append(stream, id) or self._found.get((stream, id))


class IdCheckedAfterTheVersion(MemoryBackend):
    def _append(self, append: Append, now: float) -> AppendResult | VersionMismatch:
        stream = self._streams.get(append.stream)
        if stream and stream.version > append.expected + len(append.records):
            return VersionMismatch(self._head(append.stream, stream, now))
        return super()._append(append, now)


class IdsSharedByAllStreams(MemoryBackend):
    def __init__(self, name: str = "") -> None:
        super().__init__(name)
        self._ids: dict[bytes, tuple[int, int]] = {}

    def _append(self, append: Append, now: float) -> AppendResult | VersionMismatch:
        if append.indexed and append.id in self._ids:
            return AppendResult(*self._ids[append.id], duplicate=True, now=now)
        answer = super()._append(append, now)
        if append.indexed and isinstance(answer, AppendResult):
            self._ids[append.id] = answer.first, answer.last
        return answer


class IdsOutliveTheirStream(MemoryBackend):
    def __init__(self, name: str = "") -> None:
        super().__init__(name)
        self._ids: dict[StreamKey, dict[bytes, tuple[int, int]]] = {}

    def _append(self, append: Append, now: float) -> AppendResult | VersionMismatch:
        known = append.stream in self._streams
        answer = super()._append(append, now)
        if append.stream in self._streams and not known:
            ids = self._ids.setdefault(append.stream, {})
            ids.update(self._streams[append.stream].ids)
            self._streams[append.stream].ids = ids
        return answer


class RefusedIdsAreRemembered(MemoryBackend):
    def _append(self, append: Append, now: float) -> AppendResult | VersionMismatch:
        answer = super()._append(append, now)
        if (
            isinstance(answer, VersionMismatch)
            and append.stream in self._streams
            and append.indexed
        ):
            self._streams[append.stream].ids[append.id] = append.expected + 1, append.expected + 1
        return answer


class LengthOfTheRetry(MemoryBackend):
    def _append(self, append: Append, now: float) -> AppendResult | VersionMismatch:
        answer = super()._append(append, now)
        if isinstance(answer, AppendResult) and answer.duplicate:
            return msgspec.structs.replace(answer, last=answer.first + len(append.records) - 1)
        return answer


class HalfAnAppendIsVisible(MemoryBackend):
    """Records are stored one by one, and between two of them a reader gets its turn."""

    def __init__(self, name: str = "") -> None:
        super().__init__(name)
        self._was_read = threading.Event()

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        answers: list[AppendResult | VersionMismatch] = []
        for append in batch:
            if append.expected == 0 or len(append.records) == 1:
                answers += super().append([append])
                continue
            for record in append.records:
                stream = self._streams[append.stream]
                one = msgspec.structs.replace(
                    append, expected=stream.version, expected_hash=stream.hash, records=[record]
                )
                super().append([one])
                self._was_read.clear()
                self._was_read.wait(0.1)
            answers.append(AppendResult(append.expected + 1, append.expected + len(append.records)))
        return answers

    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        found = super().read(stream, after=after, limit=limit, reverse=reverse)
        self._was_read.set()
        return found


class ConflictStopsTheBatch(MemoryBackend):
    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        answers: list[AppendResult | VersionMismatch] = []
        for append in batch:
            answers += (
                [answers[-1]]
                if any(isinstance(a, VersionMismatch) for a in answers)
                else super().append([append])
            )
        return answers


class BatchSeesOnlyWhatWasBefore(MemoryBackend):
    """All members are checked against the heads before the batch."""

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        last = {append.stream: append for append in batch}
        return [
            a
            for one in batch
            if last[one.stream] is one
            for a in super(type(self), self).append([one])
        ]


class ConflictWithoutHead(MemoryBackend):
    def _append(self, append: Append, now: float) -> AppendResult | VersionMismatch:
        answer = super()._append(append, now)
        return VersionMismatch(None) if isinstance(answer, VersionMismatch) else answer


class NoLock(MemoryBackend):
    """Check and write are two steps, and between them a second thread makes its check."""

    def __init__(self, name: str = "") -> None:
        super().__init__(name)
        self._checks = itertools.count(1)
        self._second = threading.Event()

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        [append] = batch
        stream = self._streams.get(append.stream)
        fits = (stream.version if stream else 0) == append.expected
        if next(self._checks) == 2:
            self._second.set()
        self._second.wait(1)
        stream = self._streams.get(append.stream)
        if fits and stream:
            append = msgspec.structs.replace(
                append,
                expected=stream.version,
                expected_hash=stream.hash,
                incarnation=stream.incarnation,
            )
        return super().append([append])


class FieldsAreNotKept(MemoryBackend):
    def _append(self, append: Append, now: float) -> AppendResult | VersionMismatch:
        return super()._append(
            msgspec.structs.replace(append, fields=append.fields or HeadFields()), now
        )


class FieldsAreMerged(MemoryBackend):
    def _append(self, append: Append, now: float) -> AppendResult | VersionMismatch:
        stream = self._streams.get(append.stream)
        if stream and append.fields:
            new = {
                name: value
                for name, value in msgspec.structs.asdict(append.fields).items()
                if value is not None
            }
            append = msgspec.structs.replace(
                append, fields=msgspec.structs.replace(stream.fields, **new)
            )
        return super()._append(append, now)


class DuplicatesChangeFields(MemoryBackend):
    def _append(self, append: Append, now: float) -> AppendResult | VersionMismatch:
        answer = super()._append(append, now)
        if isinstance(answer, AppendResult) and answer.duplicate and append.fields:
            self._streams[append.stream].fields = append.fields
        return answer


class ZeroIsNoTime(MemoryBackend):
    def due(
        self,
        *,
        tenant: str,
        kind: str,
        before: float | None = None,
        after: Cursor | None = None,
        limit: int = 100,
    ) -> Sequence[Head]:
        found = super().due(tenant=tenant, kind=kind, before=before, after=after, limit=limit)
        return [head for head in found if head.fields.due]


class NoTenantIsolation(MemoryBackend):
    def _list_heads(self, tenant: str, kind: str) -> list[Head]:
        return [
            head
            for other in {key.tenant for key in self._streams}
            for head in super(type(self), self)._list_heads(other, kind)
        ]


class NoKindIsolation(MemoryBackend):
    def _list_heads(self, tenant: str, kind: str) -> list[Head]:
        return [
            head
            for other in {key.kind for key in self._streams}
            for head in super(type(self), self)._list_heads(tenant, other)
        ]


class CaseDoesNotMatter(MemoryBackend):
    def head(self, stream: StreamKey) -> Head | None:
        return super().head(stream) or super().head(stream._replace(id=stream.id.lower()))


class OrderedByUtf16(MemoryBackend):
    def heads(
        self,
        *,
        tenant: str,
        kind: str,
        status: str | None = None,
        after: str = "",
        limit: int = 500,
    ) -> Sequence[Head]:
        found = super().heads(tenant=tenant, kind=kind, status=status, after=after, limit=1_000_000)
        return sorted(found, key=lambda head: head.stream.id.encode("utf-16-be"))[:limit]


class StatusIsIgnored(MemoryBackend):
    def heads(
        self,
        *,
        tenant: str,
        kind: str,
        status: str | None = None,
        after: str = "",
        limit: int = 500,
    ) -> Sequence[Head]:
        return super().heads(tenant=tenant, kind=kind, after=after, limit=limit)


class CursorSkipsTies(MemoryBackend):
    def due(
        self,
        *,
        tenant: str,
        kind: str,
        before: float | None = None,
        after: Cursor | None = None,
        limit: int = 100,
    ) -> Sequence[Head]:
        beyond = (after[0], "\U0010ffff") if after else None
        return super().due(tenant=tenant, kind=kind, before=before, after=beyond, limit=limit)


class BeforeIsExclusive(MemoryBackend):
    def due(
        self,
        *,
        tenant: str,
        kind: str,
        before: float | None = None,
        after: Cursor | None = None,
        limit: int = 100,
    ) -> Sequence[Head]:
        found = super().due(tenant=tenant, kind=kind, before=before, after=after, limit=limit)
        return [head for head in found if before is None or head.fields.due != before]


class LimitIsIgnored(MemoryBackend):
    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        return super().read(stream, after=after, reverse=reverse)


class AfterIsInclusive(MemoryBackend):
    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        return super().read(
            stream,
            after=after - 1 if after and not reverse else after,
            limit=limit,
            reverse=reverse,
        )


class PagesHaveNoEnd(MemoryBackend):
    """A page holds the whole stream, however large."""

    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        found = self._streams.get(stream)
        records = found.records[after:] if found and not reverse else []
        return (
            records[:limit]
            if records
            else super().read(stream, after=after, limit=limit, reverse=reverse)
        )


class BodiesAreText(MemoryBackend):
    def _append(self, append: Append, now: float) -> AppendResult | VersionMismatch:
        records = [
            (digest, body.decode("utf-8", "replace").encode()) for digest, body in append.records
        ]
        return super()._append(msgspec.structs.replace(append, records=records), now)


class BodiesAreLines(MemoryBackend):
    def _append(self, append: Append, now: float) -> AppendResult | VersionMismatch:
        records = [(digest, body.rstrip(b"\n")) for digest, body in append.records]
        return super()._append(msgspec.structs.replace(append, records=records), now)


class NoTombstone(MemoryBackend):
    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        done = super().delete(stream, expected=expected)
        self._tombstones.clear()
        return done


class OnlyTheLastTombstone(MemoryBackend):
    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        done = super().delete(stream, expected=expected)
        if done:
            self._tombstones[stream] = {expected.incarnation}
        return done


class DeletesAMovedHead(MemoryBackend):
    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        return super().delete(stream, expected=self.head(stream) or expected)


class DeletesTheNextIncarnation(MemoryBackend):
    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        head = self.head(stream)
        if head:
            expected = msgspec.structs.replace(expected, incarnation=head.incarnation)
        return super().delete(stream, expected=expected)


class FieldsOutliveTheirStream(MemoryBackend):
    def __init__(self, name: str = "") -> None:
        super().__init__(name)
        self._former: dict[StreamKey, HeadFields] = {}

    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        self._former[stream] = expected.fields
        return super().delete(stream, expected=expected)

    def _append(self, append: Append, now: float) -> AppendResult | VersionMismatch:
        answer = super()._append(append, now)
        if append.expected == 0 and append.fields is None and append.stream in self._former:
            self._streams[append.stream].fields = self._former[append.stream]
        return answer


class StillListedWhenDeleted(MemoryBackend):
    def __init__(self, name: str = "") -> None:
        super().__init__(name)
        self._gone: list[Head] = []

    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        done = super().delete(stream, expected=expected)
        if done:
            self._gone.append(expected)
        return done

    def _list_heads(self, tenant: str, kind: str) -> list[Head]:
        return super()._list_heads(tenant, kind) + self._gone


class NeverClosed(MemoryBackend):
    def close(self) -> None:
        pass


class ClosedOnlyOnce(MemoryBackend):
    def close(self) -> None:
        self._check_open()
        super().close()


class ClockStandsStill(MemoryBackend):
    def head(self, stream: StreamKey) -> Head | None:
        head = super().head(stream)
        return msgspec.structs.replace(head, now=0.0) if head else None


class OnlyTheParentWorks(MemoryBackend):
    def __init__(self, name: str = "") -> None:
        super().__init__(name)
        self._thread = threading.get_native_id()

    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        assert self._thread == threading.get_native_id()
        return super().read(stream, after=after, limit=limit, reverse=reverse)


MUTANTS: list[tuple[type[MemoryBackend], str]] = [
    (NoVersionCheck, "a_stale_append_writes_nothing_and_says_the_true_head"),
    (NoHashCheck, "the_right_version_with_another_hash_conflicts"),
    (NoIncarnationCheck, "the_right_version_and_hash_with_another_incarnation_conflicts"),
    (NoIncarnationCheck, "a_late_append_of_a_former_incarnation_cannot_enter_the_new_one"),
    (NoIdCheckAtItsPlace, "a_repeated_append_is_answered_as_a_duplicate_and_writes_nothing"),
    (NoIdCheckAtItsPlace, "a_duplicate_within_one_batch_is_found"),
    (NoIdIndex, "an_indexed_id_is_found_anywhere_whatever_version_is_expected"),
    (NoIdIndex, "an_indexed_id_is_found_later_in_the_batch_that_stores_it"),
    (EveryIdIsIndexed, "an_id_that_is_not_indexed_is_found_only_at_its_place"),
    (TheLastHeadComesFirst, "the_first_head_is_of_the_first_stream_that_exists"),
    (NothingIsFoundByItsId, "an_indexed_append_is_found_by_its_id"),
    (EveryIdIsFound, "an_indexed_append_is_found_by_its_id"),
    (FoundInAFormerIncarnation, "an_append_to_a_former_incarnation_is_not_found_by_its_id"),
    (IdCheckedAfterTheVersion, "the_id_is_checked_before_the_version"),
    (IdsSharedByAllStreams, "the_same_id_on_another_stream_is_another_append"),
    (IdsOutliveTheirStream, "indexed_ids_of_a_former_incarnation_are_forgotten"),
    (RefusedIdsAreRemembered, "the_id_of_a_refused_append_is_not_remembered"),
    (
        LengthOfTheRetry,
        "a_duplicate_is_answered_with_the_versions_it_has_and_not_those_of_the_retry",
    ),
    (
        HalfAnAppendIsVisible,
        "a_reader_beside_a_writer_sees_no_gap_no_half_append_and_nothing_vanish",
    ),
    (ConflictStopsTheBatch, "a_conflict_of_one_member_does_not_affect_the_others"),
    (BatchSeesOnlyWhatWasBefore, "two_members_may_follow_each_other_on_one_stream"),
    (ConflictWithoutHead, "a_stale_append_writes_nothing_and_says_the_true_head"),
    (NoLock, "of_many_writers_with_the_same_expectation_exactly_one_wins"),
    (FieldsAreNotKept, "an_append_without_fields_keeps_those_of_the_head"),
    (FieldsAreMerged, "an_append_with_fields_replaces_all_of_them"),
    (DuplicatesChangeFields, "a_duplicate_leaves_the_fields_as_they_are_now"),
    (ZeroIsNoTime, "a_due_time_of_zero_or_before_1970_is_a_time"),
    (NoTenantIsolation, "only_the_tenant_and_kind_that_were_asked_for_are_listed"),
    (NoKindIsolation, "only_the_tenant_and_kind_that_were_asked_for_are_listed"),
    (CaseDoesNotMatter, "deleting_one_odd_id_leaves_all_others"),
    (OrderedByUtf16, "heads_are_ordered_by_the_utf8_bytes_of_their_ids"),
    (StatusIsIgnored, "heads_are_filtered_by_status"),
    (CursorSkipsTies, "odd_ids_break_ties_of_due_in_order"),
    (BeforeIsExclusive, "due_includes_the_moment_itself_and_nothing_later"),
    (LimitIsIgnored, "a_page_holds_at_most_limit_records"),
    (AfterIsInclusive, "reading_starts_behind_after"),
    (PagesHaveNoEnd, "a_page_is_bounded_in_bytes_and_only_an_empty_one_is_the_end"),
    (BodiesAreText, "a_body_of_any_bytes_comes_back_as_it_was"),
    (BodiesAreLines, "odd_bodies_side_by_side_in_one_append_stay_apart"),
    (NoTombstone, "an_append_of_the_deleted_incarnation_is_refused"),
    (OnlyTheLastTombstone, "every_former_incarnation_stays_refused"),
    (DeletesAMovedHead, "a_moved_head_refuses_the_deletion_and_nothing_is_done"),
    (DeletesTheNextIncarnation, "the_head_of_a_former_incarnation_cannot_delete_the_new_one"),
    (FieldsOutliveTheirStream, "a_new_incarnation_starts_at_one_with_nothing_of_the_former"),
    (StillListedWhenDeleted, "a_deleted_stream_is_not_listed"),
    (NeverClosed, "every_call_after_close_says_closed"),
    (ClosedOnlyOnce, "closing_twice_is_harmless"),
    (ClockStandsStill, "now_is_the_present_in_every_answer"),
    (OnlyTheParentWorks, "it_works_in_a_forked_child_and_afterwards_in_the_parent"),
]

# What a single thread can see must also be found by random sequences of calls.
FOUND_BY_THE_MODEL = [
    NoVersionCheck,
    NoHashCheck,
    NoIncarnationCheck,
    NoIdCheckAtItsPlace,
    NoIdIndex,
    ConflictStopsTheBatch,
    FieldsAreNotKept,
    FieldsAreMerged,
    NoTenantIsolation,
    OrderedByUtf16,
    StatusIsIgnored,
    AfterIsInclusive,
    NoTombstone,
    DeletesAMovedHead,
    StillListedWhenDeleted,
]


def suite_over(backend: type[MemoryBackend]) -> BackendConformance:
    class Suite(BackendConformance):
        model_examples = 300

        def open_backend(self, place: Path) -> Backend:
            return backend()

    return Suite()


def run(backend: type[MemoryBackend], test: str) -> None:
    suite = suite_over(backend)
    getattr(suite, f"test_{test}")(suite.open_backend(Path()))


@pytest.mark.parametrize(
    ("mutant", "test"), MUTANTS, ids=[f"{mutant.__name__}-{test}" for mutant, test in MUTANTS]
)
def test_a_missing_protection_turns_its_test_red(mutant: type[MemoryBackend], test: str) -> None:
    run(MemoryBackend, test)  # or red would mean nothing
    with pytest.raises((AssertionError, pytest.fail.Exception, HoldfastError)):
        run(mutant, test)


@pytest.fixture
def without_shrinking() -> Iterator[None]:
    """Finding is enough here, and the same examples each time."""
    before = settings.get_current_profile_name()
    settings.register_profile("find", phases=[Phase.generate], derandomize=True, database=None)
    settings.load_profile("find")
    yield
    settings.load_profile(before)


@pytest.mark.usefixtures("without_shrinking")
@pytest.mark.parametrize("mutant", FOUND_BY_THE_MODEL)
def test_a_missing_protection_is_found_by_the_model(mutant: type[MemoryBackend]) -> None:
    with pytest.raises(AssertionError):
        suite_over(mutant).test_any_sequence_of_calls_answers_like_plain_lists()
