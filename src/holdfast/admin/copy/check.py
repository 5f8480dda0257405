"""The final check of a copy: every stream arrived intact, and extra streams are found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Final

from ...backends import Head, HeadSummary, StreamKey
from ...backends.retrying import RetryingBackend
from ...errors import CorruptRecord, DataProblem
from .reader import (
    EndedIncarnations,
    HeadPair,
    StreamMoved,
    StreamPages,
    is_same,
    is_same_blob,
    map_ahead,
    pair_heads,
    slice_items,
)
from .writer import MAX_MOVES, SLICE_STREAMS, CopyTally

MAX_EXTRA_NAMES: Final = 20

_Outcome = bool | DataProblem


class CopyChecker:
    """Compares the two stores head by head, and with `verify` reads the destination back."""

    def __init__(
        self,
        source: RetryingBackend,
        target: RetryingBackend,
        ended: EndedIncarnations,
        tally: CopyTally,
        pool: Executor,
        report: Callable[[], None],
        *,
        verify: bool,
        delete: bool,
    ) -> None:
        self._source, self._target, self._ended = source, target, ended
        self._tally, self._pool, self._report = tally, pool, report
        self._verify, self._delete = verify, delete
        self.extra_names: list[str] = []

    def check(self, tenant: str, kind: str) -> None:
        """Check all streams of a kind."""
        present, count = 0, self._tally.count
        pairs = pair_heads(
            self._source.list_heads(tenant, kind), self._target.list_heads(tenant, kind)
        )
        for checked in map_ahead(self._pool, self._check_pairs, slice_items(pairs, SLICE_STREAMS)):
            for (mine, theirs), outcome in checked:
                present += theirs is not None
                count["checked"] += mine is not None
                if mine is None and theirs is not None:
                    self._check_extra(theirs.stream)
                elif mine is not None and isinstance(outcome, DataProblem):
                    self._tally.refuse(mine.stream, outcome)
                else:
                    count["verified"] += outcome is True
            self._report()
        lost = self._tally.there[tenant, kind] - present
        if lost > 0:
            what = f"{lost} of its streams of kind {kind} were copied and are missing now"
            self._tally.refuse(
                StreamKey(tenant, kind, ""),
                CorruptRecord(f"the copy of tenant {tenant!r}", what=what),
            )

    def _check_pairs(self, pairs: Sequence[HeadPair]) -> list[tuple[HeadPair, _Outcome]]:
        """Check several streams, in a thread of the pool."""
        checked = list[tuple[HeadPair, _Outcome]]()
        for mine, theirs in pairs:
            outcome: _Outcome = False
            if mine and theirs and mine.stream not in self._tally.refused:
                try:
                    outcome = self._check_stream(mine, theirs)
                except DataProblem as error:
                    outcome = error
            checked.append(((mine, theirs), outcome))
        return checked

    def _check_stream(self, mine: HeadSummary, theirs: HeadSummary) -> bool:
        """Return True if the copy was read back and matches the source, False if that is unclear.

        Raises `CorruptRecord` if it differs.
        """
        stream = mine.stream
        now, there = self._source.resolve_head(mine), self._target.resolve_head(theirs)
        if now is None or there is None or not is_same(now, there):
            return self._check_current(stream)
        try:
            return self._read_back(there)
        except StreamMoved:
            return self._check_current(stream)  # the listed head was early or old

    def _check_current(self, stream: StreamKey) -> bool:
        for _ in range(MAX_MOVES):
            now, there = self._source.head(stream), self._target.head(stream)
            if now is None or (
                there and now.incarnation != there.incarnation and not is_same_blob(now, there)
            ):
                return False  # deleted since; or a tenant, of which only the registration matters
            try:
                if there and self._is_copy(now, there):
                    return self._read_back(there)
            except StreamMoved:
                continue
            if _is_unchanged(now, self._source.head(stream)) and _is_unchanged(
                there, self._target.head(stream)
            ):
                raise CorruptRecord(str(stream), what="the destination differs from the source")
        raise CorruptRecord(str(stream), what="it changes at the destination while it is verified")

    def _is_copy(self, now: Head, there: Head) -> bool:
        if now.version > there.version:
            return self._source.has_head(there)  # the source may have been written to since
        return is_same(now, there) or is_same_blob(now, there)

    def _read_back(self, there: Head) -> bool:
        if not self._verify:
            return False
        pages = StreamPages(self._target, there, 0, b"")
        try:
            for _ in pages.pages(pages.read_next()):
                pass
        except CorruptRecord as error:
            what = f"at the destination, {error.what}"
            raise CorruptRecord(str(there.stream), version=error.version, what=what) from None
        return True

    def _check_extra(self, stream: StreamKey) -> None:
        """Count, or delete, a stream that only the destination seems to have."""
        try:
            there = self._target.head(stream)
            if (
                there is None
                or stream in self._tally.refused
                or self._source.head(stream) is not None
            ):
                return  # gone, or at the source after all
            if self._delete and self._ended.includes(there) and self._target.delete(there):
                self._tally.count["deleted"] += 1
                return
        except DataProblem as error:  # damaged at the source, or its audit stream is
            self._tally.refuse(stream, error)
            return
        self._tally.count["extra"] += 1
        if len(self.extra_names) < MAX_EXTRA_NAMES:
            self.extra_names.append(str(stream))


def _is_unchanged(before: Head | None, now: Head | None) -> bool:
    return is_same(before, now) if before and now else before is now
