"""What a copy reads: both stores side by side, and a stream page by page, checked against its chain."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from itertools import islice
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from . import _chain, _clock
from ._blobs import blob_prefix, life_of
from ._codec import Undecodable
from ._events import Stored, open_plain
from ._streams import audit_of, deletion_of
from .backends import Append, Appended, Backend, Conflict, Damaged, Head, Listed, Record, StreamKey
from .backends._seam import Blocked
from .errors import CorruptRecord, DataProblem, OutcomeUnknown, Unavailable

TRIES: Final = 8
"""How often a call is made that gets no answer, with growing pauses of 0.05 to 3.2 s between."""

THREADS: Final = 4

NEAR: Final = 512
"""How many records are asked for after a page that cannot be read; then half as many, and so on, up to the damage."""

Pair = tuple[Listed | None, Listed | None]
"""The same stream at the source and at the destination."""

Opens = Callable[[StreamKey, bytes, Record, bytes], bytes]
"""What opens a sealed record, of a stream and its life, after a hash."""

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
        def call() -> Sequence[Appended | Conflict]:
            answers = self._backend.append(batch)
            if any(isinstance(answer, Blocked) for answer in answers):
                raise Unavailable("somebody has locked a stream of the target on its server; nothing was written to it")
            return answers

        return self._steadily(call)

    def read(self, stream: StreamKey, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        return self._steadily(lambda: self._backend.read(stream, after=after, limit=limit))

    def head(self, stream: StreamKey) -> Head | None:
        return self._steadily(lambda: self._backend.head(stream))

    def placed(self, listed: Listed) -> Head | None:
        """Where a listed stream stands; only an engine that does not list places is asked for it."""
        return listed if isinstance(listed, Head) else self.head(listed.stream)

    def listed(self, tenant: str, kind: str) -> Iterator[Listed]:
        """All streams of a kind, ordered by id: hints, as `Backend.heads` gives them."""
        after = ""
        while page := self._heads(tenant, kind, after):
            yield from page
            if page[-1].stream.id <= after:
                raise CorruptRecord(str(page[-1].stream), what="the engine lists it again and again")
            after = page[-1].stream.id

    def _heads(self, tenant: str, kind: str, after: str) -> Sequence[Listed]:
        return self._steadily(lambda: self._backend.heads(tenant=tenant, kind=kind, after=after))

    def damaged(self, tenant: str, kind: str) -> Sequence[StreamKey]:
        """What `listed` leaves out because it cannot be read."""
        backend = self._backend
        return self._steadily(lambda: backend.damaged(tenant, kind)) if isinstance(backend, Damaged) else ()

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


def side_by_side(source: Iterator[Listed], target: Iterator[Listed]) -> Iterator[Pair]:
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


def same(one: Listed, other: Listed) -> bool:
    """Whether two heads are of the same records and say the same. What is listed without its place may be of others."""
    if not isinstance(one, Head) or not isinstance(other, Head):
        return False
    return same_place(one, other) and one.fields == other.fields


def same_place(one: Head, other: Head) -> bool:
    return (one.incarnation, one.version, one.hash) == (other.incarnation, other.version, other.hash)


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

    def __init__(self, store: Steady, head: Head, after: int, previous: bytes) -> None:
        self._store, self._head, self._after = store, head, after
        self._previous = previous if after else _chain.GENESIS
        self._seed = _chain.seed(head.stream, head.incarnation)
        self._limit: int | None = None
        self.following: bytes | None = None

    def first(self) -> Sequence[Record]:
        while True:
            try:
                return self._store.read(self._head.stream, after=self._after, limit=self._limit)
            except CorruptRecord:
                if self._limit == 1:
                    raise
                self._limit = (self._limit or 2 * NEAR) // 2

    def pages(self, page: Sequence[Record], pool: Executor | None = None) -> Iterator[Sequence[Record]]:
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
        return _chain.first_bad(self._seed, anchor, page) if page else self._after + 1

    def _doubt(self, version: int) -> NoReturn:
        """The records are not those of the head: it was an early or an old one, or they are damaged."""
        now = self._store.head(self._head.stream)
        if now is None or not same_place(now, self._head):
            raise Moved(now)
        raise CorruptRecord(
            str(self._head.stream), version=version, what="the record is missing, altered or out of place"
        )


class _Life(NamedTuple):
    """A life of a stream that was deleted: the hash at each version at which a deletion was told."""

    owner: StreamKey
    ends: dict[int, str]


class Ended:
    """Which lives are over at the source, and so what of the destination may go: the source's audit streams tell.

    They tell where a stream stood when it was deleted. A copy that stands there is one. Whether a shorter one is a copy that was
    left behind, or has records of its own, nobody can say any more: it goes only if `delete` says that the destination is to follow.
    """

    def __init__(self, source: Steady, target: Steady, *, delete: bool, opens: Opens | None = None) -> None:
        self._source, self._target, self._delete, self._opens = source, target, delete, opens
        self._lives: dict[tuple[str, str], _Life] = {}
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
        life = self._told(blob.tenant).get((blob.tenant, "-".join(parts[:2]) + "-"))
        if life is None:
            return False
        owner = self._target.head(life.owner)
        return owner is None or life_of(owner.incarnation) != parts[1]

    def _ends(self, head: Head) -> dict[int, str]:
        tenant = head.stream.tenant
        life = self._told(tenant).get((tenant, blob_prefix(head.stream, life_of(head.incarnation))))
        return life.ends if life else {}

    def _told(self, tenant: str) -> dict[tuple[str, str], _Life]:
        """What the audit stream tells, by how the ids of a life's blobs begin."""
        if tenant not in self._known:
            self._read(tenant)
            self._known.add(tenant)
        return self._lives

    def _read(self, tenant: str) -> None:
        page: Sequence[Record] = ()
        audit, last = audit_of(tenant), _chain.GENESIS
        head = self._source.head(audit) if self._opens else None
        while page := self._source.read(audit, after=page[-1].version if page else 0):
            for record in page:
                previous, last = last, record.hash
                try:
                    body = (
                        self._opens(audit, head.incarnation, record, previous) if self._opens and head else record.body
                    )
                    stored = Stored(record.version, open_plain(body))
                except (Undecodable, DataProblem):
                    continue  # it proves nothing
                deletion = deletion_of(stored)
                if deletion is not None:
                    owner = StreamKey(tenant, deletion.kind, deletion.id)
                    life = self._lives.setdefault((tenant, blob_prefix(owner, deletion.life)), _Life(owner, {}))
                    data: Any = stored.envelope.data
                    life.ends[data.get("version", 0)] = data.get("hash", "")


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
