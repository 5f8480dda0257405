"""Copying a store: every stream of every tenant, byte for byte, from any engine to any other.

It works at the seam, beside the log: what is read is appended as it is, with its versions, hashes, append ids and the life it
has, so that at the destination the chain holds and a repeated append is known. How far a copy has got, the destination's
heads say: killed at any instant, the next one goes on. Nothing is overwritten; what is not a beginning of the
source's stream is left alone and reported.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal

import msgspec

from ..._open import _backend
from ..._store import AsyncStore, Store
from ...backends import Backend, HeadSummary, StreamKey
from ...backends.retrying import RetryingBackend
from ...encryption.detect import RING, TENANT_SEALED, missing_key
from ...errors import AlreadyExists, NotEncrypted
from ...log.ids import KINDS, SYSTEM_TENANT
from .check import Checker
from .reader import THREADS, EndedIncarnations, Opens
from .writer import Copier, Tally

if TYPE_CHECKING:
    from ...keys import KeyLike

Place = str | os.PathLike[str] | Store | AsyncStore | Backend

logger = logging.getLogger("holdfast")


class CopyResult(msgspec.Struct, frozen=True):
    """What a copy did.

    `streams`, `records` and `bytes` were appended at the destination; `skipped` streams were there already. `verified` streams
    were read back, whole. `extra` streams are at the destination only (`extra_names` has the first of them): deleted at
    the source since an earlier copy, or never there. With `delete=True`, `deleted` counts those of the former kind that
    were deleted at the destination too.
    """

    streams: int = 0
    records: int = 0
    bytes: int = 0
    skipped: int = 0
    verified: int = 0
    extra: int = 0
    deleted: int = 0
    extra_names: list[str] = []


class CopyProgress(msgspec.Struct, frozen=True):
    """How far a copy has got: so many of the source's streams are copied (or were there), or verified.

    `of` is how many the source has, None as long as they are not counted.
    """

    phase: Literal["copying", "verifying"]
    streams: int
    records: int
    bytes: int
    of: int | None


def copy(
    src: Place,
    dst: Place,
    *,
    progress: Callable[[CopyProgress], object] | None = None,
    verify: bool = True,
    delete: bool = False,
    key: KeyLike | None = None,
) -> CopyResult:
    """Copy every stream of a store, of all tenants, to another store, byte for byte.

    If it is interrupted, run it again: it continues. Of a source that is written to meanwhile, run
    it again for the rest. Nothing at the destination is overwritten. An encrypted store is copied
    as it is, with its keys. From async code: `await asyncio.to_thread(holdfast.copy, ...)`.

    Args:
        src: A URL, a path or an open store, which must exist.
        dst: The same; it is created if it does not exist.
        progress: Called now and then with a `CopyProgress`.
        verify: Read back what was written. False compares heads only.
        delete: Delete copies of streams that were deleted at the source since. The destination must
            then have no other writers.
        key: The key of an encrypted source, only needed with `delete`.

    Returns:
        What was copied.

    Raises:
        AlreadyExists: A stream at the destination is not a copy of the source's. All others were
            copied.
        MissingKey: `delete` needs the key of the source.

    Example:
        >>> holdfast.copy("agents.db", "postgresql://host/agents").records
    """
    with ExitStack() as stack:
        backend, there = opened(src, stack, create=False), opened(dst, stack, create=True)
        if _same_store(backend, there):
            raise AlreadyExists(
                "the source and the destination are the same store; nothing was copied, choose another"
            )
        source, target = RetryingBackend(backend), RetryingBackend(there)
        _check_keys(source, target)
        opens = _opening(src, backend, key)
        if delete and opens is None and source.head(RING) is not None:
            raise missing_key()
        work = _CopyRun(source, target, progress, verify=verify, delete=delete, opens=opens)
        stack.callback(work.stop)
        return work.run()


def _same_store(one: Backend, other: Backend) -> bool:
    mine, theirs = one.describe(), other.describe()
    if mine.engine == "memory":  # any number of them have the same name
        return one is other
    return (mine.engine, mine.location) == (theirs.engine, theirs.location)


def _check_keys(source: RetryingBackend, target: RetryingBackend) -> None:
    """Refuse to mix what is encrypted with what is in clear, or is under other keys: nobody could read both."""
    ring, there = source.head(RING), target.head(RING)
    if ring is None and there is not None:
        raise NotEncrypted(
            "the source is in clear and the destination is encrypted: holdfast.encrypt(SRC, DST, key=…) does that"
        )
    if ring is not None and there is not None and there.incarnation != ring.incarnation:
        raise AlreadyExists(
            "the destination is an encrypted store with keys of its own; choose an empty one"
        )
    if (
        ring is not None
        and there is None
        and any(_holds_clear(target, head.stream) for head in _tenants(target))
    ):
        raise AlreadyExists(
            "the source is encrypted and the destination holds something in clear; choose an empty one"
        )


def _tenants(store: RetryingBackend) -> Iterable[HeadSummary]:
    return store.listed(SYSTEM_TENANT, "tenant")


def _holds_clear(store: RetryingBackend, tenant: StreamKey) -> bool:
    first = store.read(tenant, limit=1)
    return bool(first) and TENANT_SEALED not in first[0].body


def opened(place: Place, stack: ExitStack, *, create: bool) -> Backend:
    """The backend of a store. One that is opened here is closed with the stack."""
    if isinstance(place, Store | AsyncStore):
        return place._log.backend
    backend = _backend(place, create=create)
    if backend is not place:
        stack.callback(backend.close)
    return backend


def _opening(src: Place, source: Backend, key: KeyLike | None) -> Opens | None:
    """What opens the records of an encrypted source, if its key is known."""
    if isinstance(src, Store | AsyncStore) and src._log.cipher is not None:
        return src._log.cipher.open
    if key is None:
        return None
    from ...encryption.cipher import Cipher
    from ...encryption.keyring import open_keyring

    return Cipher(source, open_keyring(source, key, create=False)).open


class _CopyRun:
    """A copy on its way."""

    def __init__(
        self,
        source: RetryingBackend,
        target: RetryingBackend,
        progress: Callable[[CopyProgress], object] | None,
        *,
        verify: bool,
        delete: bool,
        opens: Opens | None,
    ) -> None:
        self._source, self._target, self._progress = source, target, progress
        self._of: int | None = None
        self._pool = ThreadPoolExecutor(THREADS + 1, thread_name_prefix="holdfast-copy")
        self._tally, ended = Tally(), EndedIncarnations(source, target, delete=delete, opens=opens)
        self._copier = Copier(
            source, target, ended, self._tally, self._pool, lambda: self._tell("copying")
        )
        self._checker = Checker(
            source,
            target,
            ended,
            self._tally,
            self._pool,
            lambda: self._tell("verifying"),
            verify=verify,
            delete=delete,
        )

    def stop(self) -> None:
        self._source.stopped = self._target.stopped = True
        self._pool.shutdown(cancel_futures=True)

    def run(self) -> CopyResult:
        tenants = [SYSTEM_TENANT, *(head.stream.id for head in _tenants(self._source))]
        tenants += [stream.id for stream in self._source.damaged(SYSTEM_TENANT, "tenant")]
        if self._progress:
            self._pool.submit(self._count, tenants)
        for tenant in tenants:
            for kind in KINDS:
                self._copier.copy(tenant, kind)
            # Once more: what was copied meanwhile may name blobs that were written meanwhile.
            self._copier.copy(tenant, "blob", again=True)
        # And the keys of what was begun and copied meanwhile; the ring last, because it has to open all of them.
        for tenant in reversed(tenants):
            self._copier.copy(tenant, "key", again=True)
        for tenant in tenants:
            for kind in sorted(
                KINDS, key=lambda kind: kind == "blob"
            ):  # they go with what names them, so after it
                self._checker.check(tenant, kind)
        self._report()
        count = self._tally.count
        return CopyResult(
            count["streams"],
            count["records"],
            count["bytes"],
            count["skipped"],
            count["verified"],
            count["extra"],
            count["deleted"],
            self._checker.extra_names,
        )

    def _report(self) -> None:
        """Raise the first thing that went wrong; the others are logged."""
        problems = list(self._tally.refused.values())
        for problem in problems[1:]:
            logger.error("not copied: %s", problem)
        if problems:
            raise problems[0]

    def _tell(self, phase: Literal["copying", "verifying"]) -> None:
        if self._progress:
            count = self._tally.count
            streams = (
                count["checked"] if phase == "verifying" else count["streams"] + count["skipped"]
            )
            self._progress(CopyProgress(phase, streams, count["records"], count["bytes"], self._of))

    def _count(self, tenants: Sequence[str]) -> None:
        """In a thread of the pool: how much there is to do."""
        count = 0
        for tenant in tenants:
            for kind in KINDS:
                for _ in self._source.listed(tenant, kind):
                    if self._source.stopped:
                        return
                    count += 1
        self._of = count
