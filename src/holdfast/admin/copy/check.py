"""What a copy looks at in the end: whether all that was copied is there, whole, and what else is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Final

from ...backends import Head, HeadSummary, StreamKey
from ...backends.retrying import RetryingBackend
from ...errors import CorruptRecord, DataProblem
from .reader import (
    EndedIncarnations,
    Moved,
    Pair,
    Reading,
    ahead,
    is_same_blob,
    same,
    side_by_side,
    sliced,
)
from .writer import MOVES, SLICE, Tally

NAMED: Final = 20

_Outcome = bool | DataProblem


class Checker:
    """Compares the two stores head by head, and with `verify` reads back what the destination has."""

    def __init__(
        self,
        source: RetryingBackend,
        target: RetryingBackend,
        ended: EndedIncarnations,
        tally: Tally,
        pool: Executor,
        tell: Callable[[], None],
        *,
        verify: bool,
        delete: bool,
    ) -> None:
        self._source, self._target, self._ended = source, target, ended
        self._tally, self._pool, self._tell = tally, pool, tell
        self._verify, self._delete = verify, delete
        self.extra_names: list[str] = []

    def check(self, tenant: str, kind: str) -> None:
        """All streams of a kind."""
        present, count = 0, self._tally.count
        pairs = side_by_side(self._source.listed(tenant, kind), self._target.listed(tenant, kind))
        for checked in ahead(self._pool, self._check, sliced(pairs, SLICE)):
            for (mine, theirs), outcome in checked:
                present += theirs is not None
                count["checked"] += mine is not None
                if mine is None and theirs is not None:
                    self._look_at_extra(theirs.stream)
                elif mine is not None and isinstance(outcome, DataProblem):
                    self._tally.refuse(mine.stream, outcome)
                else:
                    count["verified"] += outcome is True
            self._tell()
        lost = self._tally.there[tenant, kind] - present
        if lost > 0:
            what = f"{lost} of its streams of kind {kind} were copied and are not there any more"
            self._tally.refuse(
                StreamKey(tenant, kind, ""),
                CorruptRecord(f"the copy of tenant {tenant!r}", what=what),
            )

    def _check(self, pairs: Sequence[Pair]) -> list[tuple[Pair, _Outcome]]:
        """In a thread of the pool."""
        checked = list[tuple[Pair, _Outcome]]()
        for mine, theirs in pairs:
            outcome: _Outcome = False
            if mine and theirs and mine.stream not in self._tally.refused:
                try:
                    outcome = self._is_right(mine, theirs)
                except DataProblem as error:
                    outcome = error
            checked.append(((mine, theirs), outcome))
        return checked

    def _is_right(self, mine: HeadSummary, theirs: HeadSummary) -> bool:
        """True if what is there was read back, and is what the source has or had. False if nobody can say that now."""
        stream = mine.stream
        now, there = self._source.placed(mine), self._target.placed(theirs)
        if now is None or there is None or not same(now, there):
            return self._is_right_now(stream)
        try:
            return self._read_back(there)
        except Moved:
            return self._is_right_now(stream)  # what was listed was early or old

    def _is_right_now(self, stream: StreamKey) -> bool:
        for _ in range(MOVES):
            now, there = self._source.head(stream), self._target.head(stream)
            if now is None or (
                there and now.incarnation != there.incarnation and not is_same_blob(now, there)
            ):
                return False  # it was deleted since; or it is a tenant, which is registered and no more
            try:
                if there and self._fits(now, there):
                    return self._read_back(there)
            except Moved:
                continue
            if _still(now, self._source.head(stream)) and _still(there, self._target.head(stream)):
                raise CorruptRecord(
                    str(stream), what="the destination has something else than the source"
                )
        raise CorruptRecord(str(stream), what="it changes at the destination while it is verified")

    def _fits(self, now: Head, there: Head) -> bool:
        if now.version > there.version:
            return self._source.has(there)  # the source may have gone on since
        return same(now, there) or is_same_blob(now, there)

    def _read_back(self, there: Head) -> bool:
        if not self._verify:
            return False
        reading = Reading(self._target, there, 0, b"")
        try:
            for _ in reading.pages(reading.first()):
                pass
        except CorruptRecord as error:
            what = f"at the destination, {error.what}"
            raise CorruptRecord(str(there.stream), version=error.version, what=what) from None
        return True

    def _look_at_extra(self, stream: StreamKey) -> None:
        """A stream that only the destination has, it seems."""
        try:
            there = self._target.head(stream)
            if (
                there is None
                or stream in self._tally.refused
                or self._source.head(stream) is not None
            ):
                return  # gone, or at the source all the same
            if self._delete and self._ended.has(there) and self._target.delete(there):
                self._tally.count["deleted"] += 1
                return
        except DataProblem as error:  # the source has it, damaged; or what it tells of deletions is
            self._tally.refuse(stream, error)
            return
        self._tally.count["extra"] += 1
        if len(self.extra_names) < NAMED:
            self.extra_names.append(str(stream))


def _still(before: Head | None, now: Head | None) -> bool:
    return same(before, now) if before and now else before is now
