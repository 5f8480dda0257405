"""What a copy reads: both stores side by side, and a stream page by page, checked against its chain."""

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
from ...log.blobs import blob_prefix, incarnation_hex
from ...log.codec import Undecodable
from ...log.events import StoredEvent, open_plain
from ...log.stream_ops import audit_of, deletion_of

THREADS: Final = 4

Pair = tuple[HeadSummary | None, HeadSummary | None]
"""The same stream at the source and at the destination."""

Opens = Callable[[StreamKey, bytes, Record, bytes], bytes]
"""What opens a sealed record, of a stream and its life, after a hash."""

S = TypeVar("S")
T = TypeVar("T")


def side_by_side(source: Iterator[HeadSummary], target: Iterator[HeadSummary]) -> Iterator[Pair]:
    """Streams with the same id together; None for the one who has none. Both are ordered by id."""
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


def same(one: HeadSummary, other: HeadSummary) -> bool:
    """Whether two heads are of the same records and say the same. What is listed without its place may be of others."""
    if not isinstance(one, Head) or not isinstance(other, Head):
        return False
    return same_place(one, other) and one.fields == other.fields


def same_place(one: Head, other: Head) -> bool:
    return one.place == other.place


def is_same_blob(mine: Head, theirs: Head) -> bool:
    """Whether both have written the same large value, the destination as much of it as the source: its name is its content."""
    apart = mine.incarnation != theirs.incarnation
    return apart and mine.stream.kind == "blob" and theirs.version >= mine.version


class Moved(Exception):
    """The stream is no longer what its head said."""

    def __init__(self, now: Head | None) -> None:
        self.now = now


class Reading:
    """The records of one life of a stream after version `after`, up to where its head stands: page by page, the chain checked.

    `previous` is the hash at `after`. With a pool, the next page is read while the caller works on the last one. What is whole
    before a damage is given before that is raised; `following` is then the append id of the damaged record, if it is there.
    """

    def __init__(self, store: RetryingBackend, head: Head, after: int, previous: bytes) -> None:
        self._store, self._head, self._after = store, head, after
        self._previous = previous if after else chain.GENESIS
        self._seed = chain.seed(head.stream, head.incarnation)
        self._reader = PageReader(store, head.stream, (CorruptRecord,))
        self.following: bytes | None = None

    def first(self) -> Sequence[Record]:
        return self._reader.read(self._after)

    def pages(
        self, page: Sequence[Record], pool: Executor | None = None
    ) -> Iterator[Sequence[Record]]:
        """All pages, from the first on."""
        end = self._head.version
        while self._after < end:
            wanted = [record for record in page if record.version <= end]
            bad = self._first_bad(wanted)
            if bad is not None:
                place = bad - self._after - 1
                whole, rest = wanted[:place], wanted[place:]
                self.following = rest[0].append_id if rest and rest[0].version == bad else None
                if whole:
                    yield whole
                self._doubt(bad)
            self._after, self._previous = wanted[-1].version, wanted[-1].hash
            more = self._after < end
            following = pool.submit(self.first).result if pool and more else self.first
            yield wanted
            page = following() if more else ()
        if self._previous != self._head.hash:
            self._doubt(end)

    def _first_bad(self, page: Sequence[Record]) -> int | None:
        anchor = Record(self._after, b"", self._previous, b"") if self._after else None
        return chain.first_bad(self._seed, anchor, page) if page else self._after + 1

    def _doubt(self, version: int) -> NoReturn:
        """The records are not those of the head: it was an early or an old one, or they are damaged."""
        now = self._store.head(self._head.stream)
        if now is None or not same_place(now, self._head):
            raise Moved(now)
        raise CorruptRecord(
            str(self._head.stream),
            version=version,
            what="the record is missing, altered or out of place",
        )


class _EndedIncarnation(NamedTuple):
    """A life of a stream that was deleted: the hash at each version at which a deletion was told."""

    owner: StreamKey
    ends: dict[int, str]


class EndedIncarnations:
    """Which lives are over at the source, and so what of the destination may go: the source's audit streams tell.

    They tell where a stream stood when it was deleted. A copy that stands there is one. Whether a shorter one is a copy that was
    left behind, or has records of its own, nobody can say any more: it goes only if `delete` says that the destination is to follow.
    """

    def __init__(
        self,
        source: RetryingBackend,
        target: RetryingBackend,
        *,
        delete: bool,
        opens: Opens | None = None,
    ) -> None:
        self._source, self._target, self._delete, self._opens = source, target, delete, opens
        self._incarnations: dict[tuple[str, str], _EndedIncarnation] = {}
        self._known: set[str] = set()

    def has(self, head: Head) -> bool:
        """Whether the source had what is under this head, and deleted it. Ask only if it has no such life now."""
        stream = head.stream
        if stream.kind == "blob":
            return self._has_blob(stream)
        ends = self._ends(head)
        if head.version in ends:
            return ends[head.version] == head.hash.hex()
        return self._delete and self.perhaps(head)

    def perhaps(self, head: Head) -> bool:
        """Whether this life is over, and was longer at the source: then there is no proof for it, and none against it."""
        ends = self._ends(head)
        return head.version not in ends and head.version < max(ends, default=0)

    def look_again(self, tenant: str) -> None:
        """Something has happened since."""
        self._known.discard(tenant)

    def _has_blob(self, blob: StreamKey) -> bool:
        """A blob goes when the destination has that life of its owner no more. Ask after all owners were looked at."""
        parts = blob.id.split("-", 2)
        incarnation = self._told(blob.tenant).get((blob.tenant, "-".join(parts[:2]) + "-"))
        if incarnation is None:
            return False
        owner = self._target.head(incarnation.owner)
        return owner is None or incarnation_hex(owner.incarnation) != parts[1]

    def _ends(self, head: Head) -> dict[int, str]:
        tenant = head.stream.tenant
        incarnation = self._told(tenant).get(
            (tenant, blob_prefix(head.stream, incarnation_hex(head.incarnation)))
        )
        return incarnation.ends if incarnation else {}

    def _told(self, tenant: str) -> dict[tuple[str, str], _EndedIncarnation]:
        """What the audit stream tells, by how the ids of a life's blobs begin."""
        if tenant not in self._known:
            self._read(tenant)
            self._known.add(tenant)
        return self._incarnations

    def _read(self, tenant: str) -> None:
        page: Sequence[Record] = ()
        audit, last = audit_of(tenant), chain.GENESIS
        head = self._source.head(audit) if self._opens else None
        while page := self._source.read(audit, after=page[-1].version if page else 0):
            for record in page:
                previous, last = last, record.hash
                try:
                    body = (
                        self._opens(audit, head.incarnation, record, previous)
                        if self._opens and head
                        else record.body
                    )
                    stored = StoredEvent(record.version, open_plain(body))
                except (Undecodable, DataProblem):
                    continue  # it proves nothing
                deletion = deletion_of(stored)
                if deletion is not None:
                    owner = StreamKey(tenant, deletion.kind, deletion.id)
                    incarnation = self._incarnations.setdefault(
                        (tenant, blob_prefix(owner, deletion.incarnation)),
                        _EndedIncarnation(owner, {}),
                    )
                    data: Any = stored.envelope.data
                    incarnation.ends[data.get("version", 0)] = data.get("hash", "")


def sliced(items: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some


def ahead(pool: Executor, work: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
    """Results in order, a few of them made in advance."""
    rest = iter(items)
    waiting = deque(pool.submit(work, item) for item in islice(rest, THREADS))
    while waiting:
        result = waiting.popleft().result()
        waiting.extend(pool.submit(work, item) for item in islice(rest, 1))
        yield result
