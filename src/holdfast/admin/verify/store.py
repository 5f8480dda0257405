"""Verifying a store: every chain walked, every head compared, every large value looked for; with an anchor, also what is no longer there.

It reads straight from the backend, page by page, several streams at a time, and never raises for what it finds: that is what it is for.
What goes on meanwhile is left alone: each stream is verified as far as it stood when its turn came.
"""

from __future__ import annotations

import heapq
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final

from ...backends import BillsRequests, Head, HeadSummary, StreamKey
from ...backends.retrying import RetryingBackend
from ...errors import AnchorRefused
from ...log.blobs import incarnation_hex
from ...log.log import Log
from ..anchors import AnchorEntry, AnchorFile, AnchorKey, order, registered, scope
from .chain import ChainFault
from .deletions import Deletions
from .report import StreamProblem, VerifyProgress, VerifyResult
from .stream import StreamVerdict, Verifier

THREADS: Final = 4
FAR_THREADS: Final = 16
"""For an engine that answers slowly. Elsewhere more threads than a few gain nothing: the work is Python's."""

SLICE: Final = 16
SLICE_RECORDS: Final = 2000
"""Short streams are handed to a thread together, long ones alone if the engine lists how long they are."""

NAMED: Final = 1000
"""So many problems are listed; all are counted."""

GONE: Final = 50_000
"""Streams that an anchor knows and that are gone are looked up in the audit stream together, at most so many at a time."""

TELL_SECONDS: Final = 0.2
"""How often a caller who wants to know hears how far a long stream has got."""

Work = tuple[StreamKey, AnchorEntry | None, int]
"""A stream, where the anchor has seen it, and about how many records it has."""


def verify(
    log: Log,
    tenant: str | None,
    *,
    anchor: str | os.PathLike[str] | None,
    anchor_key: AnchorKey | None,
    since: str | os.PathLike[str] | None,
    progress: Callable[[VerifyProgress], object] | None,
    stop: threading.Event | None = None,
) -> VerifyResult:
    """Verify all streams of a tenant, or of all tenants. `Store.verify`."""
    if anchor is not None and since is not None:
        raise ValueError(
            "give anchor= to read everything, or since= to read what came after it, not both"
        )
    path = since if anchor is None else anchor
    if path is None and anchor_key is not None:
        raise ValueError("anchor_key is the key of an anchor; give that too: anchor=, or since=")
    file = None if path is None else AnchorFile(path, anchor_key)
    if file is not None and file.anchor.tenant not in (None, tenant):
        raise AnchorRefused(
            os.fspath(path or ""), what=f"it is of tenant {file.anchor.tenant!r} alone; verify that"
        )
    work = _Verification(
        log,
        tenant,
        file,
        since=since is not None,
        progress=progress,
        stop=stop or threading.Event(),
    )
    return work.run()


async def verify_async(
    log: Log,
    tenant: str | None,
    *,
    anchor: str | os.PathLike[str] | None,
    anchor_key: AnchorKey | None,
    since: str | os.PathLike[str] | None,
    progress: Callable[[VerifyProgress], object] | None,
) -> VerifyResult:
    """`verify` in a thread. If it is cancelled, the threads end after the page that they are at."""
    import asyncio

    stop = threading.Event()
    try:
        return await asyncio.to_thread(
            verify,
            log,
            tenant,
            anchor=anchor,
            anchor_key=anchor_key,
            since=since,
            progress=progress,
            stop=stop,
        )
    finally:
        stop.set()


class _Verification:
    """A verification on its way."""

    def __init__(
        self,
        log: Log,
        tenant: str | None,
        file: AnchorFile | None,
        *,
        since: bool,
        progress: Callable[[VerifyProgress], object] | None,
        stop: threading.Event,
    ) -> None:
        self._tenant, self._file, self._since, self._progress, self._stop = (
            tenant,
            file,
            since,
            progress,
            stop,
        )
        self._backend = log.backend
        self._store = RetryingBackend(log.backend)
        self._verifier = Verifier(log, self._store, since=since, count=self._count)
        self._lock, self._counting = threading.Lock(), threading.Lock()
        self._read, self._size = 0, 0
        self._tally: Counter[str] = Counter()
        self._problems: list[StreamProblem] = []
        self._of: int | None = None
        self._deletions = Deletions(log, self._store)
        self._gone: list[tuple[AnchorEntry, bool]] = []
        self._left_out: set[StreamKey] = set()
        self._places = iter(()) if file is None else filter(self._is_wanted, file.places())
        self._place = next(self._places, None)

    def run(self) -> VerifyResult:
        threads = FAR_THREADS if isinstance(self._backend, BillsRequests) else THREADS
        pool = ThreadPoolExecutor(
            threads + bool(self._progress), thread_name_prefix="holdfast-verify"
        )
        try:
            if self._progress:
                pool.submit(self._count_streams)
            waiting: set[Future[None]] = set()
            for tenant, work in self._parts():
                for some in _sliced(work):
                    if self._stop.is_set():
                        break
                    waiting.add(pool.submit(self._verify_some, some))
                    while len(waiting) >= 2 * threads:
                        waiting = self._wait(waiting)
                while waiting:  # large values come before what names them, and deletions before what was deleted
                    waiting = self._wait(waiting)
                if tenant is None or len(self._gone) > GONE:
                    self._settle()
        finally:
            self._store.stopped = True
            self._stop.set()
            pool.shutdown(cancel_futures=True)
        self._tell()
        return self._report()

    def _report(self) -> VerifyResult:
        tally, anchor = self._tally, None if self._file is None else self._file.anchor
        self._problems.sort(
            key=lambda problem: (problem.tenant, problem.kind, problem.id, problem.version or 0)
        )
        return VerifyResult(
            self._problems,
            tally["found"],
            tally["streams"],
            tally["records"],
            tally["bytes"],
            tally["deleted"],
            tally["erased"],
            "unanchored" if anchor is None else anchor.signed,
            None if anchor is None else anchor.at,
            not self._since,
        )

    # -- what there is to do -------------------------------------------------------------------------------------------

    def _parts(self) -> Iterator[tuple[str | None, Iterator[Work]]]:
        """All streams, kind by kind, and after each tenant, and in the end, None: what is gone can be settled."""
        if self._tenant is not None:
            yield self._tenant, self._with_places([(registered(self._tenant), 1)])
        before: str | None = None
        for tenant, kind in scope(self._store, self._tenant):
            if before not in (None, tenant):
                yield None, iter(())
            before = tenant
            if (
                kind != "blob" or not self._since
            ):  # else they are read with the records that name them
                yield tenant, self._with_places(self._all_of(tenant, kind))
        yield None, self._rest_of_places()

    def _all_of(self, tenant: str, kind: str) -> Iterator[tuple[StreamKey, int]]:
        """What is listed, and what the lists leave out; ordered, with about how many records each has."""
        left_out = self._store.damaged(tenant, kind)
        self._left_out.update(left_out)
        listed = ((each.stream, _records_of(each)) for each in self._store.listed(tenant, kind))
        before: StreamKey | None = None
        for stream, version in heapq.merge(listed, ((stream, 0) for stream in left_out)):
            if stream != before:
                yield stream, version
            before = stream

    def _with_places(self, streams: Iterable[tuple[StreamKey, int]]) -> Iterator[Work]:
        """Streams, each with where the anchor has seen it, and before them those that only the anchor knows."""
        for stream, version in streams:
            here = order(stream)
            while self._place is not None and order(self._place.stream) < here:
                yield self._place.stream, self._taken(), 0
            mine = self._place is not None and self._place.stream == stream
            yield stream, self._taken() if mine else None, version

    def _rest_of_places(self) -> Iterator[Work]:
        while self._place is not None:
            yield self._place.stream, self._taken(), 0

    def _taken(self) -> AnchorEntry | None:
        place, self._place = self._place, next(self._places, None)
        return place

    def _is_wanted(self, place: AnchorEntry) -> bool:
        return self._tenant in (None, place.tenant) or place.stream == registered(
            self._tenant or ""
        )

    def _count_streams(self) -> None:
        """In a thread of the pool: how much there is to do."""
        count = int(self._tenant is not None)
        for tenant, kind in scope(self._store, self._tenant):
            for _ in self._store.listed(tenant, kind):
                if self._stop.is_set():
                    return
                count += 1
        self._of = count

    # -- doing it ------------------------------------------------------------------------------------------------------

    def _verify_some(self, some: list[Work]) -> None:
        """In a thread of the pool."""
        for stream, place, _ in some:
            if self._stop.is_set():
                return
            verdict = self._verifier.verify(stream, place)
            if verdict.head is None and not verdict.faults and self._is_left_out(stream):
                verdict.faults.append(
                    ChainFault(
                        None, "unreadable", "the engine finds parts of it, and not the whole"
                    )
                )
            with self._lock:
                self._note(stream, place, verdict)

    def _is_left_out(self, stream: StreamKey) -> bool:
        """Whether the engine still says that it cannot read a stream that is not there: else it was deleted meanwhile."""
        return stream in self._left_out and stream in self._store.damaged(
            stream.tenant, stream.kind
        )

    def _note(self, stream: StreamKey, place: AnchorEntry | None, verdict: StreamVerdict) -> None:
        tally = self._tally
        tally["streams"] += verdict.head is not None
        tally["records"] += verdict.records
        tally["bytes"] += verdict.bytes
        tally["erased"] += verdict.erased
        for fault in verdict.faults:
            self._add(stream, fault)
        if stream.kind == "audit" and verdict.faults:
            self._deletions.distrust(stream.tenant, [fault.version for fault in verdict.faults])
        if place is not None:
            if verdict.head is None and not verdict.faults:
                self._gone.append((place, False))
            elif (
                verdict.head is not None
                and incarnation_hex(verdict.head.incarnation) != place.incarnation
            ):
                self._gone.append((place, True))

    def _add(self, stream: StreamKey, fault: ChainFault) -> None:
        self._tally["found"] += 1
        if len(self._problems) < NAMED:
            self._problems.append(StreamProblem(*stream, *fault))

    def _settle(self) -> None:
        """Of the streams that the anchor has seen and that are gone: which were deleted as they should be?"""
        gone, self._gone = self._gone, []
        for tenant in sorted({place.tenant for place, _ in gone}):
            mine = [(place, is_other) for place, is_other in gone if place.tenant == tenant]
            noted = self._deletions.noted(tenant, [place for place, _ in mine])
            for place, is_other in mine:
                if (place.kind, place.id, place.incarnation) in noted:
                    self._tally["deleted"] += 1
                elif is_other:
                    what = "it was begun anew since the anchor, or is one from before, and no deletion was noted"
                    self._add(place.stream, ChainFault(None, "rolled_back", what))
                else:
                    what = f"the anchor has seen it at version {place.version}, and no deletion was noted"
                    self._add(place.stream, ChainFault(None, "stream_missing", what))

    # -- telling -------------------------------------------------------------------------------------------------------

    def _wait(self, waiting: set[Future[None]]) -> set[Future[None]]:
        done, waiting = wait(waiting, TELL_SECONDS, FIRST_COMPLETED)
        for future in done:
            future.result()
        self._tell()
        return waiting

    def _count(self, records: int, size: int) -> None:
        with self._counting:
            self._read, self._size = self._read + records, self._size + size

    def _tell(self) -> None:
        if self._progress:
            tally = self._tally
            self._progress(
                VerifyProgress(tally["streams"], self._read, self._size, tally["found"], self._of)
            )


def _records_of(listed: HeadSummary) -> int:
    """About how many records a stream has, if that was listed with it."""
    return listed.version if isinstance(listed, Head) else 1


def _sliced(work: Iterable[Work]) -> Iterator[list[Work]]:
    some, records = list[Work](), 0
    for each in work:
        some.append(each)
        records += each[2]
        if len(some) == SLICE or records >= SLICE_RECORDS:
            yield some
            some, records = [], 0
    if some:
        yield some
