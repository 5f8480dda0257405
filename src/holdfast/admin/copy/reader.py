"""The reading side of a copy: pair the heads of both stores, read streams, check their chains."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from itertools import islice
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from ...backends import Head, HeadSummary, Record, StreamKey
from ...backends.retrying import PageReader, RetryingBackend
from ...errors import CorruptRecord, DataProblem
from ...log import chain
from ...log.codec import Undecodable
from ...log.events import StoredEvent, decode_plain_envelope
from ...log.operations.blobs import blob_prefix
from ...log.operations.stream_ops import audit_key, decode_deletion

THREADS: Final = 4

HeadPair = tuple[HeadSummary | None, HeadSummary | None]
"""The same stream at the source and at the destination."""

Decrypter = Callable[[StreamKey, bytes, Record, bytes], bytes]
"""Decrypts a record, given its stream, incarnation and the previous hash."""

S = TypeVar("S")
T = TypeVar("T")


def pair_heads(source: Iterator[HeadSummary], target: Iterator[HeadSummary]) -> Iterator[HeadPair]:
    """Yield the heads of each id in both stores, None where one lacks it. Both are sorted by id."""
    mine, theirs = next(source, None), next(target, None)
    while mine is not None or theirs is not None:
        # Code points order like UTF-8 bytes, so comparing str is enough here.
        if theirs is None or (mine is not None and mine.stream.id < theirs.stream.id):
            yield mine, None
            mine = next(source, None)
        elif mine is None or theirs.stream.id < mine.stream.id:
            yield None, theirs
            theirs = next(target, None)
        else:
            yield mine, theirs
            mine, theirs = next(source, None), next(target, None)


def is_same(one: HeadSummary, other: HeadSummary) -> bool:
    """Return whether two heads have the same position and fields; False for mere summaries."""
    if not isinstance(one, Head) or not isinstance(other, Head):
        return False
    return is_same_position(one, other) and one.fields == other.fields


def is_same_position(one: Head, other: Head) -> bool:
    return one.position == other.position


def is_same_blob(mine: Head, theirs: Head) -> bool:
    """Return whether both stores wrote the same blob, whose name is the digest of its content.

    The destination must have at least as much of it as the source.
    """
    apart = mine.incarnation != theirs.incarnation
    return apart and mine.stream.kind == "blob" and theirs.version >= mine.version


class StreamMoved(Exception):
    """The stream changed since its head was read."""

    def __init__(self, now: Head | None) -> None:
        self.now = now


class StreamPages:
    """The records of an incarnation from version `after` to its head, with the chain checked.

    `previous` is the hash at `after`. With a pool, the next page is read while the caller works on
    the last one. At a damaged record, the intact ones before it are yielded, then the error is
    raised; `following` is the append id of the damaged record, if it has one.
    """

    def __init__(self, store: RetryingBackend, head: Head, after: int, previous: bytes) -> None:
        self._store, self._head, self._after = store, head, after
        self._previous = previous if after else chain.GENESIS
        self._seed = chain.seed(head.stream, head.incarnation)
        self._reader = PageReader(store, head.stream, (CorruptRecord,))
        self.following: bytes | None = None

    def read_next(self) -> Sequence[Record]:
        return self._reader.read(self._after)

    def pages(
        self, page: Sequence[Record], pool: Executor | None = None
    ) -> Iterator[Sequence[Record]]:
        """Yield all pages, starting with `page`, the first."""
        end = self._head.version
        while self._after < end:
            records = [record for record in page if record.version <= end]
            bad = self._find_first_bad(records)
            if bad is not None:
                index = bad - self._after - 1
                intact, rest = records[:index], records[index:]
                self.following = rest[0].append_id if rest and rest[0].version == bad else None
                if intact:
                    yield intact
                self._raise_damage(bad)
            self._after, self._previous = records[-1].version, records[-1].hash
            more = self._after < end
            get_next = pool.submit(self.read_next).result if pool and more else self.read_next
            yield records
            page = get_next() if more else ()
        if self._previous != self._head.hash:
            self._raise_damage(end)

    def _find_first_bad(self, page: Sequence[Record]) -> int | None:
        anchor = Record(self._after, b"", self._previous, b"") if self._after else None
        return chain.find_first_bad(self._seed, anchor, page) if page else self._after + 1

    def _raise_damage(self, version: int) -> NoReturn:
        """Raise `StreamMoved` if the head is outdated, else `CorruptRecord`."""
        now = self._store.head(self._head.stream)
        if now is None or not is_same_position(now, self._head):
            raise StreamMoved(now)
        raise CorruptRecord(
            str(self._head.stream),
            version=version,
            what="the record is missing, altered or out of place",
        )


class _EndedIncarnation(NamedTuple):
    """A deleted incarnation of a stream: the version and hash of each recorded deletion."""

    owner: StreamKey
    ends: dict[int, str]


class EndedIncarnations:
    """The incarnations that the source has deleted, so that their copies may be deleted too.

    The source's audit streams have the version and hash of each stream when it was deleted. A
    stream with both is a copy. A shorter one may be an outdated copy, or have records of its own:
    it is deleted only with `delete`, which makes the destination follow the source.
    """

    def __init__(
        self,
        source: RetryingBackend,
        target: RetryingBackend,
        *,
        delete: bool,
        decrypt: Decrypter | None = None,
    ) -> None:
        self._source, self._target, self._delete, self._decrypt = source, target, delete, decrypt
        self._incarnations: dict[tuple[str, str], _EndedIncarnation] = {}
        self._tenants_read: set[str] = set()

    def includes(self, head: Head) -> bool:
        """Return whether the source had and deleted this stream.

        Call it only if the source does not have this incarnation now.
        """
        stream = head.stream
        if stream.kind == "blob":
            return self._is_orphaned_blob(stream)
        ends = self._ends(head)
        if head.version in ends:
            return ends[head.version] == head.hash.hex()
        return self._delete and self.may_include(head)

    def may_include(self, head: Head) -> bool:
        """Return whether the source deleted this incarnation at a later version. Not a proof."""
        ends = self._ends(head)
        return head.version not in ends and head.version < max(ends, default=0)

    def forget(self, tenant: str) -> None:
        """Read the tenant's audit stream again on the next call."""
        self._tenants_read.discard(tenant)

    def _is_orphaned_blob(self, blob: StreamKey) -> bool:
        """Return whether the destination no longer has the blob's owner. Check all owners first."""
        parts = blob.id.split("-", 2)
        incarnation = self._load(blob.tenant).get((blob.tenant, "-".join(parts[:2]) + "-"))
        if incarnation is None:
            return False
        owner = self._target.head(incarnation.owner)
        return owner is None or owner.incarnation.hex() != parts[1]

    def _ends(self, head: Head) -> dict[int, str]:
        tenant = head.stream.tenant
        incarnation = self._load(tenant).get(
            (tenant, blob_prefix(head.stream, head.incarnation.hex()))
        )
        return incarnation.ends if incarnation else {}

    def _load(self, tenant: str) -> dict[tuple[str, str], _EndedIncarnation]:
        """Return the deletions in the audit stream, by tenant and prefix of the blob ids."""
        if tenant not in self._tenants_read:
            self._read(tenant)
            self._tenants_read.add(tenant)
        return self._incarnations

    def _read(self, tenant: str) -> None:
        page: Sequence[Record] = ()
        audit, last = audit_key(tenant), chain.GENESIS
        head = self._source.head(audit) if self._decrypt else None
        while page := self._source.read(audit, after=page[-1].version if page else 0):
            for record in page:
                previous, last = last, record.hash
                try:
                    body = (
                        self._decrypt(audit, head.incarnation, record, previous)
                        if self._decrypt and head
                        else record.body
                    )
                    stored = StoredEvent(record.version, decode_plain_envelope(body))
                except (Undecodable, DataProblem):
                    continue  # it proves nothing
                deletion = decode_deletion(stored)
                if deletion is not None:
                    owner = StreamKey(tenant, deletion.kind, deletion.id)
                    incarnation = self._incarnations.setdefault(
                        (tenant, blob_prefix(owner, deletion.incarnation)),
                        _EndedIncarnation(owner, {}),
                    )
                    data: Any = stored.envelope.data
                    incarnation.ends[data.get("version", 0)] = data.get("hash", "")


def slice_items(items: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some


def map_ahead(pool: Executor, work: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
    """Yield results in order, with a few computed in advance."""
    rest = iter(items)
    futures = deque(pool.submit(work, item) for item in islice(rest, THREADS))
    while futures:
        result = futures.popleft().result()
        futures.extend(pool.submit(work, item) for item in islice(rest, 1))
        yield result
