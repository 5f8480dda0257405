"""What a copy reads: both stores side by side, and a stream page by page, checked against its chain."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from itertools import islice
from typing import Any, Final, NoReturn, TypeVar

from . import _chain, _clock
from ._blobs import blob_prefix, life_of
from ._codec import Undecodable
from ._events import Stored, open_plain
from ._streams import audit_of, deletion_of
from .backends import Append, Appended, Backend, Conflict, Head, Record, StreamKey
from .errors import CorruptRecord, OutcomeUnknown, Unavailable

TRIES: Final = 8
"""How often a call is made that gets no answer, with growing pauses of 0.05 to 3.2 s between."""

THREADS: Final = 4

Pair = tuple[Head | None, Head | None]
"""The same stream at the source and at the destination."""

S = TypeVar("S")
T = TypeVar("T")


class Steady:
    """A backend whose calls are repeated while it is not to be reached.

    All that a copy asks for may be repeated: an append that has arrived is known by its id at its version.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.stopped = False

    def append(self, batch: Sequence[Append]) -> Sequence[Appended | Conflict]:
        return self._steadily(lambda: self._backend.append(batch))

    def read(self, stream: StreamKey, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        return self._steadily(lambda: self._backend.read(stream, after=after, limit=limit))

    def head(self, stream: StreamKey) -> Head | None:
        return self._steadily(lambda: self._backend.head(stream))

    def listed(self, tenant: str, kind: str) -> Iterator[Head]:
        """The heads of all streams of a kind, ordered by id: hints, as `Backend.heads` gives them."""
        page: Sequence[Head] = ()
        while page := self._heads(tenant, kind, page[-1].stream.id if page else ""):
            yield from page

    def _heads(self, tenant: str, kind: str, after: str) -> Sequence[Head]:
        return self._steadily(lambda: self._backend.heads(tenant=tenant, kind=kind, after=after))

    def delete(self, head: Head) -> bool:
        """Delete a stream that is as `head` says. True if it is gone."""
        done = self._steadily(lambda: self._backend.delete(head.stream, expected=head))
        return done or self.head(head.stream) is None

    def has(self, head: Head) -> bool:
        """Whether this is, or was, the head of what the store has."""
        page = self.read(head.stream, after=head.version - 1, limit=1)
        return bool(page) and (page[0].version, page[0].hash) == (head.version, head.hash)

    def _steadily(self, call: Callable[[], T]) -> T:
        pause = 0.05
        for _ in range(TRIES - 1):
            try:
                return call()
            except (Unavailable, OutcomeUnknown):
                if self.stopped:
                    raise
                _clock.sleep(random.uniform(pause / 2, pause))  # noqa: S311  jitter, not a secret
                pause *= 2
        return call()


def side_by_side(source: Iterator[Head], target: Iterator[Head]) -> Iterator[Pair]:
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


def same(one: Head, other: Head) -> bool:
    """Whether two heads are of the same records and say the same."""
    return same_place(one, other) and one.fields == other.fields


def same_place(one: Head, other: Head) -> bool:
    return (one.incarnation, one.version, one.hash) == (other.incarnation, other.version, other.hash)


class Moved(Exception):
    """The stream is no longer what its head said."""

    def __init__(self, now: Head | None) -> None:
        self.now = now


class Reading:
    """The records of one life of a stream after version `after`, up to where its head stands: page by page, the chain checked.

    `previous` is the hash at `after`. With a pool, the next page is read while the caller works on the last one.
    """

    def __init__(self, store: Steady, head: Head, after: int, previous: bytes) -> None:
        self._store, self._head, self._after = store, head, after
        self._previous = previous if after else _chain.GENESIS
        self._seed = _chain.seed(head.stream, head.incarnation)

    def first(self) -> Sequence[Record]:
        return self._store.read(self._head.stream, after=self._after)

    def pages(self, page: Sequence[Record], pool: Executor | None = None) -> Iterator[Sequence[Record]]:
        """All pages, from the first on."""
        end = self._head.version
        while self._after < end:
            wanted = [record for record in page if record.version <= end]
            self._check(wanted)
            self._after, self._previous = wanted[-1].version, wanted[-1].hash
            more = self._after < end
            following = pool.submit(self.first).result if pool and more else self.first
            yield wanted
            page = following() if more else ()
        if self._previous != self._head.hash:
            self._doubt(end)

    def _check(self, page: Sequence[Record]) -> None:
        anchor = Record(self._after, b"", self._previous, b"") if self._after else None
        bad = _chain.first_bad(self._seed, anchor, page) if page else self._after + 1
        if bad is not None:
            self._doubt(bad)

    def _doubt(self, version: int) -> NoReturn:
        """The records are not those of the head: it was an early or an old one, or they are damaged."""
        now = self._store.head(self._head.stream)
        if now is None or not same_place(now, self._head):
            raise Moved(now)
        raise CorruptRecord(
            str(self._head.stream), version=version, what="the record is missing, altered or out of place"
        )


class Ended:
    """Which lives are over at the source: its audit streams tell, and a blob's life is that of its owner."""

    def __init__(self, source: Steady) -> None:
        self._source = source
        self._lives: dict[tuple[StreamKey, str], int] = {}
        self._blobs: set[tuple[str, str]] = set()
        self._known: set[str] = set()

    def has(self, head: Head) -> bool:
        """Whether the source had what is under this head, and deleted it. Ask only if it has no such life now."""
        stream = head.stream
        if stream.tenant not in self._known:
            self._read(stream.tenant)
            self._known.add(stream.tenant)
        if stream.kind == "blob":
            return (stream.tenant, "-".join(stream.id.split("-", 2)[:2]) + "-") in self._blobs
        # One that went on elsewhere, after it was copied, is not what was deleted.
        return head.version <= self._lives.get((stream, life_of(head.incarnation)), 0)

    def look_again(self, tenant: str) -> None:
        """Something has happened since."""
        self._known.discard(tenant)

    def _read(self, tenant: str) -> None:
        page: Sequence[Record] = ()
        while page := self._source.read(audit_of(tenant), after=page[-1].version if page else 0):
            for record in page:
                try:
                    stored = Stored(record.version, open_plain(record.body))
                except Undecodable:
                    continue  # it proves nothing
                deletion = deletion_of(stored)
                if deletion is not None:
                    stream, life = StreamKey(tenant, deletion.kind, deletion.id), deletion.life
                    data: Any = stored.envelope.data
                    version = data.get("version", 0)
                    self._lives[stream, life] = max(version, self._lives.get((stream, life), 0))
                    self._blobs.add((tenant, blob_prefix(stream, life)))


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
