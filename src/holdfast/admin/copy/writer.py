"""What a copy writes: streams as they are at the source, many to a batch, in whatever state the destination is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Final, NamedTuple

from ...backends import Append, AppendResult, Head, HeadSummary, Record, StreamKey, VersionMismatch
from ...backends.retrying import RetryingBackend
from ...errors import AlreadyExists, CorruptRecord, DataProblem, HoldfastError, Unavailable
from ...log.ids import id_texts
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

BATCH_APPENDS: Final = 1000
BATCH_BYTES: Final = 4 * 1024 * 1024
SLICE: Final = 32
"""How many streams a thread reads in one go."""
SLICE_BYTES: Final = 8 * 1024 * 1024
MOVES: Final = 10
"""How often a stream may be deleted and begun anew while it is copied."""

_FOREIGN: Final = (
    "{} is at the destination, and is not a copy of the source's; nothing of it was overwritten. "
    "Delete it there, or choose another destination"
)
_FORMER: Final = (
    "{} was begun anew at the source, and a shorter form of its former life is at the destination: a copy that was left behind, "
    "or one with records of its own. Nothing of it was overwritten; copy with delete=True (--delete) to replace it"
)
_FURTHER: Final = "{} is further at the destination than at the source: somebody has gone on with the copy; nothing was overwritten"
_GONE: Final = "{} was deleted at the destination after it had been copied; the same life of it cannot begin again there"


class Tally:
    """What was done. `there` is how many streams of a tenant and kind the destination must have by now."""

    def __init__(self) -> None:
        self.count = Counter[str]()
        self.there = Counter[tuple[str, str]]()
        self.refused: dict[StreamKey, HoldfastError] = {}

    def refuse(self, stream: StreamKey, error: HoldfastError) -> None:
        self.refused.setdefault(stream, error)


class _Job(NamedTuple):
    """A stream to copy: its head at the source, what is there at the destination, and its first page if that was read.

    Without a head it is gone from the source, or cannot be read there.
    """

    stream: StreamKey
    head: Head | None
    there: Head | None
    page: Sequence[Record] | None = None


class Copier:
    """Copies what the destination has not yet. `tell` is called after each batch."""

    def __init__(
        self,
        source: RetryingBackend,
        target: RetryingBackend,
        ended: EndedIncarnations,
        tally: Tally,
        pool: Executor,
        tell: Callable[[], None],
    ) -> None:
        self._source, self._target, self._ended = source, target, ended
        self._tally, self._pool, self._tell = tally, pool, tell
        self._batch: list[Append] = []
        self._size = 0
        self._again = False
        # Life, version and hash that the stream in hand has had at the source, as was seen when it was read, and now has here.
        self._proved: tuple[bytes, int, bytes] | None = None

    def copy(self, tenant: str, kind: str, *, again: bool = False) -> None:
        """All streams of a kind. `again`: what is there by now was counted before."""
        self._tally.there[tenant, kind] = 0
        self._again = again
        pairs = side_by_side(self._source.listed(tenant, kind), self._target.listed(tenant, kind))
        for jobs in ahead(self._pool, self._fetch, sliced(self._wanted(pairs), SLICE)):
            for job in jobs:
                try:
                    self._copy_stream(job)
                except (AlreadyExists, DataProblem) as error:
                    self._tally.refuse(job.stream, error)
        if not again:
            self._copy_damaged(tenant, kind)
        self._flush()

    def _copy_damaged(self, tenant: str, kind: str) -> None:
        """What was not listed because it cannot be read: it says itself why, or can be read by now, or is gone."""
        gone = set[StreamKey]()
        for stream in self._source.damaged(tenant, kind):
            try:
                head = self._source.head(stream)
                if head is None:
                    gone.add(stream)
                else:
                    self._copy_stream(_Job(stream, head, self._target.head(stream)))
            except (AlreadyExists, DataProblem) as error:
                self._tally.refuse(stream, error)
        # Deleted since; or its head is lost, and then it is still named.
        for stream in gone.intersection(self._source.damaged(tenant, kind)) if gone else ():
            self._tally.refuse(
                stream, CorruptRecord(str(stream), what="there is nothing but its name")
            )

    def _wanted(self, pairs: Iterable[Pair]) -> Iterator[tuple[HeadSummary, HeadSummary | None]]:
        """What is not there yet, or not whole."""
        for mine, theirs in pairs:
            if mine is None:
                assert theirs is not None
                self._tally.there[theirs.stream[:2]] += 1
            elif theirs is None or not same(mine, theirs):
                yield mine, theirs
            else:
                self._skip(mine)

    def _fetch(self, pairs: Sequence[tuple[HeadSummary, HeadSummary | None]]) -> list[_Job]:
        """In a thread of the pool: what is there, and the first page of each stream as long as there is room for it."""
        jobs, room = list[_Job](), SLICE_BYTES
        for mine, theirs in pairs:
            head, there, page = None, None, None
            try:
                head = self._source.placed(mine)
                if head and theirs and same(head, theirs):
                    there = head
                elif theirs:
                    there = self._target.head(mine.stream)
                if head and room > 0 and (there is None or _may_go_on(head, there)):
                    page = self._source.read(mine.stream, after=there.version if there else 0)
                    room -= sum(len(record.body) for record in page)
            except DataProblem:
                pass  # whoever takes the job finds the same
            jobs.append(_Job(mine.stream, head, there, page))
        return jobs

    def _copy_stream(self, job: _Job) -> None:
        """Copy a stream, whatever happens to it meanwhile."""
        stream, self._proved = job.stream, None
        for _ in range(MOVES):
            try:
                return self._copy_life(job)
            except Moved as moved:
                self._flush()
                self._ended.look_again(stream.tenant)
                there = self._target.head(stream)
                if moved.now is None:
                    if there and self._is_over(there):
                        self._target.delete(there)  # the beginning of what is no more
                    return None
                job = _Job(stream, moved.now, there)
        raise Unavailable(
            f"{stream} is deleted and begun anew all the time; copy it when nobody does that"
        )

    def _copy_life(self, job: _Job) -> None:
        stream, head, there, page = job
        if head is None:
            raise Moved(self._source.head(stream))
        if there and head.stream.kind == "tenant":
            return self._skip(head)  # that it is registered is all it says
        if there and is_same_blob(head, there):
            return self._skip(head)
        if there and there.incarnation != head.incarnation:
            self._make_room(there)
            there = None
        if there and there.version >= head.version:
            return self._settle(head, there)
        reading = Reading(
            self._source, head, there.version if there else 0, there.hash if there else b""
        )
        try:
            self._append(head, there, reading, reading.first() if page is None else page)
        except CorruptRecord:
            if there and not self._source.has(there):
                raise AlreadyExists(_FOREIGN.format(head.stream)) from None
            raise

    def _make_room(self, there: Head) -> None:
        """Delete another life of a stream than the source has, if it is a copy of one that is over there."""
        over = there.stream.kind == "blob" or self._is_over(
            there
        )  # of a file, there is less than the source has
        if not over or not self._target.delete(there):
            text = _FORMER if not over and self._ended.perhaps(there) else _FOREIGN
            raise AlreadyExists(text.format(there.stream))

    def _is_over(self, there: Head) -> bool:
        """Whether the source had what is there, and deleted it."""
        proved = self._proved == (there.incarnation, there.version, there.hash)
        return self._ended.has(there) or (proved and self._ended.perhaps(there))

    def _settle(self, head: Head, there: Head) -> None:
        """The destination is at the source's version, or further."""
        if not same(head, there):
            now = self._source.head(head.stream)
            if now is None or not same(now, head):
                raise Moved(now)  # what was listed was old
            raise AlreadyExists(
                (_FURTHER if there.version > now.version else _FOREIGN).format(head.stream)
            )
        self._skip(head)

    def _skip(self, head: HeadSummary) -> None:
        self._tally.there[head.stream[:2]] += 1
        self._tally.count["skipped"] += not self._again

    def _append(
        self, head: Head, there: Head | None, reading: Reading, first: Sequence[Record]
    ) -> None:
        """Append what is read, append by append: the records of one id stay together, whatever the pages are."""
        previous, group = there.hash if there else b"", list[Record]()
        try:
            for page in reading.pages(first, self._pool):
                if there and page[0].version == there.version + 1:
                    self._proved = (
                        there.incarnation,
                        there.version,
                        there.hash,
                    )  # the chain goes on from it
                for record in page:
                    if group and record.append_id != group[0].append_id:
                        self._put(head, previous, group)
                        previous, group = group[-1].hash, []
                    group.append(record)
        except CorruptRecord:
            # Of an append that was cut off by the damage nothing is taken.
            if group and reading.following not in (None, group[0].append_id):
                self._put(head, previous, group)
            raise
        self._put(head, previous, group)

    def _put(self, head: Head, previous: bytes, group: Sequence[Record]) -> None:
        # The fields come with the last append: until then nobody takes the stream for what it will be.
        append = Append(
            head.stream,
            group[0].version - 1,
            previous,
            head.incarnation,
            group[0].append_id,
            [(record.hash, record.body) for record in group],
            _may_be_repeated(head.stream.kind, group),
            head.fields if group[-1].version == head.version else None,
        )
        self._proved = head.incarnation, group[-1].version, group[-1].hash
        self._batch.append(append)
        self._size += sum(len(record.body) for record in group)
        if len(self._batch) >= BATCH_APPENDS or self._size >= BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        batch, self._batch, self._size = self._batch, [], 0
        if not batch:
            return
        try:
            answers = self._target.append(batch)
        except DataProblem:
            for append in batch:
                self._append_alone(append)
        else:
            for append, answer in zip(batch, answers, strict=True):
                self._take(append, answer)
        self._tell()

    def _append_alone(self, append: Append) -> None:
        """After a batch was refused: whose fault was it?"""
        if append.stream not in self._tally.refused:
            try:
                self._take(append, self._target.append([append])[0])
            except DataProblem as error:
                self._tally.refuse(append.stream, error)

    def _take(self, append: Append, answer: AppendResult | VersionMismatch) -> None:
        stream, count = append.stream, self._tally.count
        if isinstance(answer, VersionMismatch):
            if stream.kind != "tenant":  # somebody else has registered it meanwhile
                text = _GONE if answer.head is None else _FOREIGN
                self._tally.refuse(stream, AlreadyExists(text.format(stream)))
        elif (answer.first, answer.last) != (
            append.expected + 1,
            append.expected + len(append.records),
        ):
            self._tally.refuse(stream, AlreadyExists(_FOREIGN.format(stream)))
        else:
            count["records"] += len(append.records)
            count["bytes"] += sum(len(body) for _, body in append.records)
            if append.fields is not None:
                count["streams"] += 1
                self._tally.there[stream[:2]] += 1


def _may_go_on(head: Head, there: Head) -> bool:
    """Whether there is more to read at the source of what is there."""
    return there.incarnation == head.incarnation and there.version < head.version


def _may_be_repeated(kind: str, group: Sequence[Record]) -> bool:
    """Whether the append may have an id of its caller's, which must be found wherever it is; in doubt it may.

    An id that the log made is also that of an event in the append. Blobs are appended under no others.
    """
    if kind == "blob":
        return False
    [text] = id_texts(int.from_bytes(group[0].append_id, "big"), 1)
    start = b'{"id":"%b"' % text.encode()
    return not any(record.body.startswith(start) for record in group)
