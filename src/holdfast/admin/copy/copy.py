"""Copy a store: every stream of every tenant, byte for byte, from any backend to any other.

It uses the backend interface directly, not the event log: records are appended unchanged, with
their versions, hashes, append ids and incarnation. So at the destination the chain holds, and a
repeated append is recognized. The heads at the destination show the progress: if the process dies,
the next copy resumes. Nothing is overwritten; a stream at the destination that is not a prefix of
the source's is left alone and reported.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal

import msgspec

from ..._open import open_backend, split_timeout
from ..._store import AsyncStore, Store
from ...backends import Backend, StreamKey
from ...backends.retrying import RetryingBackend
from ...encryption.detect import KEYRING_STREAM, TENANT_ENCRYPTED, missing_key_error
from ...errors import AlreadyExists, NotEncrypted
from ...log.ids import KINDS, SYSTEM_TENANT
from ...log.tenants import list_tenants
from .check import CopyChecker
from .reader import THREADS, Decrypter, EndedIncarnations
from .writer import CopyTally, StreamCopier

if TYPE_CHECKING:
    from ...keys import KeyLike

StorePlace = str | os.PathLike[str] | Store | AsyncStore | Backend

logger = logging.getLogger("holdfast")


class CopyResult(msgspec.Struct, frozen=True):
    """The result of a copy.

    `streams`, `records` and `bytes` were appended at the destination; `skipped` streams were there
    already. `verified` streams were read back completely. `extra` streams are at the destination
    only (`extra_names` has the first of them): deleted at the source since an earlier copy, or
    never there. With `delete=True`, `deleted` counts those of the first kind that were deleted.
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
    """The progress of a copy: the streams copied (or already there), or verified.

    `of` is the number of streams at the source; None until they are counted.
    """

    phase: Literal["copying", "verifying"]
    streams: int
    records: int
    bytes: int
    of: int | None


def copy(
    src: StorePlace,
    dst: StorePlace,
    *,
    progress: Callable[[CopyProgress], object] | None = None,
    verify: bool = True,
    delete: bool = False,
    key: KeyLike | None = None,
) -> CopyResult:
    """Copy every stream of a store, of all tenants, to another store, byte for byte.

    If it is interrupted, run it again to resume. If the source is written to during the copy, run
    it again to copy the rest. Nothing at the destination is overwritten. An encrypted store is
    copied unchanged, with its keys. From async code: `await asyncio.to_thread(holdfast.copy, ...)`.

    Args:
        src: A URL, a path or an open store, which must exist.
        dst: Likewise; it is created if it does not exist.
        progress: Called from time to time with a `CopyProgress`.
        verify: Read the copy back. False compares heads only.
        delete: Delete copies of streams that were deleted at the source since. The destination must
            then have no other writers.
        key: The key of an encrypted source, only needed with `delete`.

    Returns:
        The numbers of streams and records copied.

    Raises:
        AlreadyExists: A stream at the destination is not a copy of the source's. All others were
            copied.
        MissingKey: `delete` needs the key of the source.

    Example:
        >>> holdfast.copy("agents.db", "postgresql://host/agents").records
    """
    with ExitStack() as stack:
        src_backend = open_place(src, stack, create=False)
        dst_backend = open_place(dst, stack, create=True)
        if _is_same_store(src_backend, dst_backend):
            raise AlreadyExists(
                "the source and the destination are the same store; nothing was copied,"
                " choose another destination"
            )
        source = RetryingBackend(src_backend, _get_timeout(src))
        target = RetryingBackend(dst_backend, _get_timeout(dst))
        _check_keys(source, target)
        decrypt = _find_decrypter(src, src_backend, key)
        if delete and decrypt is None and source.head(KEYRING_STREAM) is not None:
            raise missing_key_error()
        run = _CopyRun(source, target, progress, verify=verify, delete=delete, decrypt=decrypt)
        stack.callback(run.stop)
        return run.run()


def _get_timeout(place: StorePlace) -> float:
    """Return how long a call of this store may take."""
    if isinstance(place, Store | AsyncStore):
        return place._log.timeout
    return split_timeout(place, None)[1]


def _is_same_store(one: Backend, other: Backend) -> bool:
    mine, theirs = one.describe(), other.describe()
    if mine.engine == "memory":  # several stores may have the same name
        return one is other
    return (mine.engine, mine.location) == (theirs.engine, theirs.location)


def _check_keys(source: RetryingBackend, target: RetryingBackend) -> None:
    """Refuse to mix encrypted with unencrypted data, or data under different keyrings."""
    source_keys, target_keys = source.head(KEYRING_STREAM), target.head(KEYRING_STREAM)
    if source_keys is None:
        if target_keys is not None:
            raise NotEncrypted(
                "the source is unencrypted and the destination is encrypted;"
                " use holdfast.encrypt(SRC, DST, key=…)"
            )
    elif target_keys is not None:
        if target_keys.incarnation != source_keys.incarnation:
            raise AlreadyExists(
                "the destination is an encrypted store with its own keys; choose an empty one"
            )
    elif any(
        _is_unencrypted_tenant(target, head.stream)
        for head in target.list_heads(SYSTEM_TENANT, "tenant")
    ):
        raise AlreadyExists(
            "the source is encrypted and the destination has unencrypted data; choose an empty one"
        )


def _is_unencrypted_tenant(store: RetryingBackend, tenant: StreamKey) -> bool:
    first = store.read(tenant, limit=1)
    return bool(first) and TENANT_ENCRYPTED not in first[0].body


def open_place(place: StorePlace, stack: ExitStack, *, create: bool) -> Backend:
    """Return the backend of a store. A backend opened here is closed with the stack."""
    if isinstance(place, Store | AsyncStore):
        return place._log.backend
    backend = open_backend(place, create=create)
    if backend is not place:
        stack.callback(backend.close)
    return backend


def _find_decrypter(src: StorePlace, source: Backend, key: KeyLike | None) -> Decrypter | None:
    """Return the function that decrypts records of an encrypted source, if its key is known."""
    if isinstance(src, Store | AsyncStore) and src._log.cipher is not None:
        return src._log.cipher.decrypt
    if key is None:
        return None
    from ...encryption.cipher import Cipher
    from ...encryption.keyring import open_keyring

    return Cipher(source, open_keyring(source, key, create=False)).decrypt


class _CopyRun:
    """The state of a running copy."""

    def __init__(
        self,
        source: RetryingBackend,
        target: RetryingBackend,
        progress: Callable[[CopyProgress], object] | None,
        *,
        verify: bool,
        delete: bool,
        decrypt: Decrypter | None,
    ) -> None:
        self._source, self._target, self._progress = source, target, progress
        self._of: int | None = None
        self._pool = ThreadPoolExecutor(THREADS + 1, thread_name_prefix="holdfast-copy")
        self._tally = CopyTally()
        ended = EndedIncarnations(source, target, delete=delete, decrypt=decrypt)
        self._copier = StreamCopier(
            source, target, ended, self._tally, self._pool, lambda: self._report("copying")
        )
        self._checker = CopyChecker(
            source,
            target,
            ended,
            self._tally,
            self._pool,
            lambda: self._report("verifying"),
            verify=verify,
            delete=delete,
        )

    def stop(self) -> None:
        self._source.stopped = self._target.stopped = True
        self._pool.shutdown(cancel_futures=True)

    def run(self) -> CopyResult:
        tenants = [SYSTEM_TENANT, *list_tenants(self._source)]
        if self._progress:
            self._pool.submit(self._count_streams, tenants)
        for tenant in tenants:
            for kind in KINDS:
                self._copier.copy(tenant, kind)
            # Blobs again: the streams may refer to blobs that were written while they were copied.
            self._copier.copy(tenant, "blob", again=True)
        # Keys again, for streams started during the copy. The keyring is last: it opens them all.
        for tenant in reversed(tenants):
            self._copier.copy(tenant, "key", again=True)
        for tenant in tenants:
            # Blobs last: they are deleted with the streams that refer to them.
            for kind in sorted(KINDS, key=lambda kind: kind == "blob"):
                self._checker.check(tenant, kind)
        self._raise_problems()
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

    def _raise_problems(self) -> None:
        """Raise the first problem; log the others."""
        problems = list(self._tally.refused.values())
        for problem in problems[1:]:
            logger.error("not copied: %s", problem)
        if problems:
            raise problems[0]

    def _report(self, phase: Literal["copying", "verifying"]) -> None:
        if self._progress:
            count = self._tally.count
            streams = (
                count["checked"] if phase == "verifying" else count["streams"] + count["skipped"]
            )
            self._progress(CopyProgress(phase, streams, count["records"], count["bytes"], self._of))

    def _count_streams(self, tenants: Sequence[str]) -> None:
        """Count the streams of the source, in a thread of the pool."""
        count = 0
        for tenant in tenants:
            for kind in KINDS:
                for _ in self._source.list_heads(tenant, kind):
                    if self._source.stopped:
                        return
                    count += 1
        self._of = count
