"""Verify a store: all chains, heads and blobs. With an anchor, find missing data too.

It reads from the backend directly, page by page, several streams at a time, and reports damage
instead of raising. Other processes may keep writing: each stream is verified up to the version
it had when its check started.
"""

from __future__ import annotations

import heapq
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Final

from ...backends import BackendProblem, BillsRequests, Head, HeadSummary, StreamKey
from ...backends.retrying import RetryingBackend
from ...errors import AnchorRefused
from ...log.log import Log
from ...log.tenants import list_scopes, list_unregistered_tenants
from ...memory.resources import get_resources
from ..anchors import AnchorEntry, AnchorFile, AnchorKey, order_key, tenant_stream
from .chain import ChainFault, ProblemKind
from .deletions import Deletions
from .report import StreamProblem, VerifyProgress, VerifyResult
from .stream import DAMAGE_ERRORS, StreamVerdict, StreamVerifier, describe_damage

THREADS: Final = 4
REMOTE_THREADS: Final = 16
"""For databases with high latency. Others don't gain from more threads: Python is the limit."""

SLICE_STREAMS: Final = 16
SLICE_RECORDS: Final = 2000
"""A thread gets several short streams at once, or a long one, if their lengths are listed."""

MAX_PROBLEMS: Final = 1000
"""Maximum number of problems to list; all are counted."""

MAX_GONE: Final = 50_000
"""Maximum number of missing streams of an anchor to look up in the audit stream at once."""

PROGRESS_SECONDS: Final = 0.2
"""How often to report progress on a long stream."""

StreamWork = tuple[StreamKey, AnchorEntry | None, int]
"""A stream, its entry in the anchor, and the estimated number of its records."""


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
            "pass anchor= to read everything, or since= to read only newer records, not both"
        )
    path = since if anchor is None else anchor
    if path is None and anchor_key is not None:
        raise ValueError("anchor_key needs an anchor: pass anchor= or since= too")
    file = None if path is None else AnchorFile(path, anchor_key)
    if file is not None and file.anchor.tenant not in (None, tenant):
        raise AnchorRefused(
            os.fspath(path or ""),
            what=f"it covers only tenant {file.anchor.tenant!r}; verify that tenant",
        )
    run = _Verification(
        log,
        tenant,
        file,
        since=since is not None,
        progress=progress,
        stop=stop or threading.Event(),
    )
    return run.run()


async def verify_async(
    log: Log,
    tenant: str | None,
    *,
    anchor: str | os.PathLike[str] | None,
    anchor_key: AnchorKey | None,
    since: str | os.PathLike[str] | None,
    progress: Callable[[VerifyProgress], object] | None,
) -> VerifyResult:
    """`verify` in a thread. If it is cancelled, the threads end after their current page."""
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
    """The state of a running verification."""

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
        self._log, self._backend = log, log.backend
        self._store = RetryingBackend(log.backend, log.timeout)
        self._verifier = StreamVerifier(log, self._store, since=since, count=self._count)
        self._lock, self._counting = threading.Lock(), threading.Lock()
        self._read, self._size = 0, 0
        self._tally: Counter[str] = Counter()
        self._problems: list[StreamProblem] = []
        self._of: int | None = None
        self._deletions = Deletions(log, self._store)
        self._gone: list[tuple[AnchorEntry, bool]] = []
        self._damaged: set[StreamKey] = set()
        self._entries = iter(()) if file is None else filter(self._is_in_scope, file.read_entries())
        self._entry = next(self._entries, None)

    def run(self) -> VerifyResult:
        threads = REMOTE_THREADS if isinstance(self._backend, BillsRequests) else THREADS
        pool = ThreadPoolExecutor(
            threads + bool(self._progress), thread_name_prefix="holdfast-verify"
        )
        try:
            if self._progress:
                pool.submit(self._count_streams)
            waiting: set[Future[None]] = set()
            if not self._since:
                waiting.add(pool.submit(self._check_backend))
            for tenant, work in self._list_work():
                for some in _slice_work(work):
                    if self._stop.is_set():
                        break
                    waiting.add(pool.submit(self._verify_some, some))
                    while len(waiting) >= 2 * threads:
                        waiting = self._wait(waiting)
                # Blobs come before the records that refer to them, deletions before the streams.
                while waiting:
                    waiting = self._wait(waiting)
                if tenant is None or len(self._gone) > MAX_GONE:
                    self._check_gone()
        finally:
            self._store.stopped = True
            self._stop.set()
            pool.shutdown(cancel_futures=True)
        self._report()
        return self._result()

    def _result(self) -> VerifyResult:
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

    # -- the streams to verify ---------------------------------------------------------------------

    def _list_work(self) -> Iterator[tuple[str | None, Iterator[StreamWork]]]:
        """Yield all streams, kind by kind. After each tenant, yield None: check missing streams."""
        if self._tenant is not None:
            yield self._tenant, self._with_entries([(tenant_stream(self._tenant), 1)])
        before: str | None = None
        scopes: list[tuple[str, str]] = []
        with self._reporting():
            scopes = list_scopes(self._store, self._tenant)
        for tenant, kind in scopes:
            if before not in (None, tenant):
                yield None, iter(())
            before = tenant
            # With `since`, blobs are read with the records that refer to them.
            if kind != "blob" or not self._since:
                yield tenant, self._with_entries(self._list_streams(tenant, kind))
        yield None, self._take_remaining_entries()

    def _list_streams(self, tenant: str, kind: str) -> Iterator[tuple[StreamKey, int]]:
        """Yield listed and damaged streams, in order, with the estimated number of records."""
        with self._reporting():
            damaged = self._store.list_damaged(tenant, kind)
            self._damaged.update(damaged)
            heads = self._store.list_heads(tenant, kind)
            listed = ((head.stream, _estimate_records(head)) for head in heads)
            before: StreamKey | None = None
            for stream, version in heapq.merge(listed, ((stream, 0) for stream in damaged)):
                if stream != before:
                    yield stream, version
                before = stream

    def _with_entries(self, streams: Iterable[tuple[StreamKey, int]]) -> Iterator[StreamWork]:
        """Yield streams with their anchor entries, in order, including those only in the anchor."""
        for stream, version in streams:
            here = order_key(stream)
            while self._entry is not None and order_key(self._entry.stream) < here:
                yield self._entry.stream, self._take_entry(), 0
            anchored = self._entry is not None and self._entry.stream == stream
            yield stream, self._take_entry() if anchored else None, version

    def _take_remaining_entries(self) -> Iterator[StreamWork]:
        while self._entry is not None:
            yield self._entry.stream, self._take_entry(), 0

    def _take_entry(self) -> AnchorEntry | None:
        entry, self._entry = self._entry, next(self._entries, None)
        return entry

    def _is_in_scope(self, entry: AnchorEntry) -> bool:
        return self._tenant in (None, entry.tenant) or entry.stream == tenant_stream(
            self._tenant or ""
        )

    def _count_streams(self) -> None:
        """Count the streams, in a thread of the pool."""
        count = int(self._tenant is not None)
        try:
            for tenant, kind in list_scopes(self._store, self._tenant):
                for _ in self._store.list_heads(tenant, kind):
                    if self._stop.is_set():
                        return
                    count += 1
        except DAMAGE_ERRORS:
            return  # reported by the verification itself
        self._of = count

    # -- verification ------------------------------------------------------------------------------

    def _verify_some(self, some: list[StreamWork]) -> None:
        """Verify several streams, in a thread of the pool."""
        for stream, entry, _ in some:
            if self._stop.is_set():
                return
            verdict = self._verifier.verify(stream, entry)
            if verdict.head is None and not verdict.faults and self._is_damaged(stream):
                what = "the database finds only parts of it"
                verdict.faults.append(ChainFault(None, "unreadable", what))
            with self._lock:
                self._add_verdict(stream, entry, verdict)

    def _check_backend(self) -> None:
        """Compare the backend's indexes and counters with the records, in a thread of the pool."""
        with self._reporting():
            self._check_registrations()
        with self._reporting():
            for problem in self._store.check():
                if self._stop.is_set():
                    return
                self._add_backend_problem(problem)
        with self._reporting():
            for space, what in get_resources(self._log).check(self._list_namespaces()):
                if self._stop.is_set():
                    return
                self._add_backend_problem(BackendProblem(what, space, derived=True))

    def _list_namespaces(self) -> list[StreamKey]:
        """Return the streams of all memory namespaces to verify."""
        return [
            head.stream
            for tenant, kind in list_scopes(self._store, self._tenant)
            if kind == "memory"
            for head in self._store.list_heads(tenant, kind)
        ]

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Report damage found in the block as a problem of the whole store."""
        try:
            yield
        except DAMAGE_ERRORS as error:
            self._add_backend_problem(BackendProblem(describe_damage(error)))

    def _check_registrations(self) -> None:
        for tenant in list_unregistered_tenants(self._store):
            what = "streams are stored for a tenant that was never registered"
            if self._tenant is not None and tenant != self._tenant:
                tenant, what = "", f"{what}; verify all tenants"
            with self._lock:
                self._add_problem(StreamKey(tenant, "", ""), ChainFault(None, "storage", what))

    def _add_backend_problem(self, problem: BackendProblem) -> None:
        stream = problem.stream or StreamKey("", "", "")
        if self._tenant in (None, stream.tenant) or not stream.tenant:
            kind: ProblemKind = "index" if problem.derived else "storage"
            with self._lock:
                self._add_problem(stream, ChainFault(None, kind, problem.what))

    def _is_damaged(self, stream: StreamKey) -> bool:
        """Return whether a missing stream is still listed as damaged. If not, it was deleted."""
        return stream in self._damaged and stream in self._store.list_damaged(
            stream.tenant, stream.kind
        )

    def _add_verdict(
        self, stream: StreamKey, entry: AnchorEntry | None, verdict: StreamVerdict
    ) -> None:
        tally = self._tally
        tally["streams"] += verdict.head is not None
        tally["records"] += verdict.records
        tally["bytes"] += verdict.bytes
        tally["erased"] += verdict.erased
        for fault in verdict.faults:
            self._add_problem(stream, fault)
        if stream.kind == "audit" and verdict.faults:
            self._deletions.distrust(stream.tenant, [fault.version for fault in verdict.faults])
        if entry is not None:
            if verdict.head is None and not verdict.faults:
                self._gone.append((entry, False))
            elif verdict.head is not None and verdict.head.incarnation.hex() != entry.incarnation:
                self._gone.append((entry, True))

    def _add_problem(self, stream: StreamKey, fault: ChainFault) -> None:
        self._tally["found"] += 1
        if len(self._problems) < MAX_PROBLEMS:
            self._problems.append(StreamProblem(*stream, *fault))

    def _check_gone(self) -> None:
        """Report streams of the anchor that are gone without a recorded deletion."""
        gone, self._gone = self._gone, []
        for tenant in sorted({entry.tenant for entry, _ in gone}):
            mine = [(entry, is_other) for entry, is_other in gone if entry.tenant == tenant]
            recorded = self._deletions.find_recorded(tenant, [entry for entry, _ in mine])
            for entry, is_other in mine:
                if (entry.kind, entry.id, entry.incarnation) in recorded:
                    self._tally["deleted"] += 1
                elif is_other:
                    what = "it is not the incarnation in the anchor; no deletion is recorded"
                    self._add_problem(entry.stream, ChainFault(None, "rolled_back", what))
                else:
                    what = (
                        f"it is at version {entry.version} in the anchor; no deletion is recorded"
                    )
                    self._add_problem(entry.stream, ChainFault(None, "stream_missing", what))

    # -- progress ----------------------------------------------------------------------------------

    def _wait(self, waiting: set[Future[None]]) -> set[Future[None]]:
        done, waiting = wait(waiting, PROGRESS_SECONDS, FIRST_COMPLETED)
        for future in done:
            future.result()
        self._report()
        return waiting

    def _count(self, records: int, size: int) -> None:
        with self._counting:
            self._read, self._size = self._read + records, self._size + size

    def _report(self) -> None:
        if self._progress:
            tally = self._tally
            self._progress(
                VerifyProgress(tally["streams"], self._read, self._size, tally["found"], self._of)
            )


def _estimate_records(listed: HeadSummary) -> int:
    """Return the number of records of a stream, if it was listed; else 1."""
    return listed.version if isinstance(listed, Head) else 1


def _slice_work(work: Iterable[StreamWork]) -> Iterator[list[StreamWork]]:
    some, records = list[StreamWork](), 0
    for each in work:
        some.append(each)
        records += each[2]
        if len(some) == SLICE_STREAMS or records >= SLICE_RECORDS:
            yield some
            some, records = [], 0
    if some:
        yield some
