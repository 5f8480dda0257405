"""The writing side of a copy: append, in batches, the records that the destination lacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Final, NamedTuple

from ...backends import Append, AppendResult, Head, HeadSummary, Record, StreamKey, VersionMismatch
from ...backends.retrying import RetryingBackend
from ...errors import AlreadyExists, CorruptRecord, DataProblem, HoldfastError, Unavailable
from .reader import (
    EndedIncarnations,
    HeadPair,
    StreamMoved,
    StreamPages,
    is_same,
    is_same_blob,
    map_ahead,
    pair_heads,
    slice_items,
)

BATCH_APPENDS: Final = 1000
BATCH_BYTES: Final = 4 * 1024 * 1024
SLICE_STREAMS: Final = 32
"""Number of streams that a thread reads at once."""
SLICE_BYTES: Final = 8 * 1024 * 1024
MAX_MOVES: Final = 10
"""How often a stream may be deleted and recreated while it is copied."""

_NOT_A_COPY: Final = (
    "{} at the destination is not a copy of the source's; nothing was overwritten. "
    "Delete it there, or choose another destination"
)
_OLD_INCARNATION: Final = (
    "{} was recreated at the source, and the destination has a shorter version of its previous"
    " incarnation: an outdated copy, or one with records of its own. Nothing was overwritten; copy"
    " with delete=True (--delete) to replace it"
)
_AHEAD_OF_SOURCE: Final = (
    "{} has a newer version at the destination than at the source: another process wrote to the"
    " copy; nothing was overwritten"
)
_DELETED_AFTER_COPY: Final = (
    "{} was deleted at the destination after it had been copied; the same incarnation cannot be"
    " created there again"
)


class CopyTally:
    """The counts of a copy. `there`: streams the destination must have, by tenant and kind."""

    def __init__(self) -> None:
        self.count = Counter[str]()
        self.there = Counter[tuple[str, str]]()
        self.refused: dict[StreamKey, HoldfastError] = {}

    def refuse(self, stream: StreamKey, error: HoldfastError) -> None:
        self.refused.setdefault(stream, error)


class _CopyJob(NamedTuple):
    """A stream to copy: its heads at the source and the destination, and its first page if read.

    Without `head`, it is gone from the source, or cannot be read there.
    """

    stream: StreamKey
    head: Head | None
    there: Head | None
    page: Sequence[Record] | None = None


class StreamCopier:
    """Copies streams that the destination does not have. Calls `report` after each batch."""

    def __init__(
        self,
        source: RetryingBackend,
        target: RetryingBackend,
        ended: EndedIncarnations,
        tally: CopyTally,
        pool: Executor,
        report: Callable[[], None],
    ) -> None:
        self._source, self._target, self._ended = source, target, ended
        self._tally, self._pool, self._report = tally, pool, report
        self._batch: list[Append] = []
        self._size = 0
        self._again = False
        # Incarnation, version and hash of the current stream's copied part, as in both stores.
        self._copied: tuple[bytes, int, bytes] | None = None

    def copy(self, tenant: str, kind: str, *, again: bool = False) -> None:
        """Copy all streams of a kind. With `again`, don't count existing ones a second time."""
        self._tally.there[tenant, kind] = 0
        self._again = again
        pairs = pair_heads(
            self._source.list_heads(tenant, kind), self._target.list_heads(tenant, kind)
        )
        for jobs in map_ahead(
            self._pool, self._fetch, slice_items(self._select_incomplete(pairs), SLICE_STREAMS)
        ):
            for job in jobs:
                try:
                    self._copy_stream(job)
                except (AlreadyExists, DataProblem) as error:
                    self._tally.refuse(job.stream, error)
        if not again:
            self._copy_damaged(tenant, kind)
        self._flush()

    def _copy_damaged(self, tenant: str, kind: str) -> None:
        """Copy damaged streams, which listings leave out. Report those that cannot be read."""
        gone = set[StreamKey]()
        for stream in self._source.list_damaged(tenant, kind):
            try:
                head = self._source.head(stream)
                if head is None:
                    gone.add(stream)
                else:
                    self._copy_stream(_CopyJob(stream, head, self._target.head(stream)))
            except (AlreadyExists, DataProblem) as error:
                self._tally.refuse(stream, error)
        # No head: it was deleted in the meantime, or the head is lost, and then it is still listed.
        for stream in gone.intersection(self._source.list_damaged(tenant, kind)) if gone else ():
            self._tally.refuse(
                stream, CorruptRecord(str(stream), what="nothing is left of it but its name")
            )

    def _select_incomplete(
        self, pairs: Iterable[HeadPair]
    ) -> Iterator[tuple[HeadSummary, HeadSummary | None]]:
        """Yield the streams that are missing or incomplete at the destination."""
        for mine, theirs in pairs:
            if mine is None:
                assert theirs is not None
                self._tally.there[theirs.stream[:2]] += 1
            elif theirs is None or not is_same(mine, theirs):
                yield mine, theirs
            else:
                self._skip(mine)

    def _fetch(self, pairs: Sequence[tuple[HeadSummary, HeadSummary | None]]) -> list[_CopyJob]:
        """Read heads and the first pages that fit the memory limit, in a thread of the pool."""
        jobs, room = list[_CopyJob](), SLICE_BYTES
        for mine, theirs in pairs:
            head, there, page = None, None, None
            try:
                head = self._source.resolve_head(mine)
                if head and theirs and is_same(head, theirs):
                    there = head
                elif theirs:
                    there = self._target.head(mine.stream)
                if head and room > 0 and (there is None or _has_more(head, there)):
                    page = self._source.read(mine.stream, after=there.version if there else 0)
                    room -= sum(len(record.body) for record in page)
            except DataProblem:
                pass  # raised again when the stream is copied
            jobs.append(_CopyJob(mine.stream, head, there, page))
        return jobs

    def _copy_stream(self, job: _CopyJob) -> None:
        """Copy a stream. If it changes in the meantime, start again from its new head."""
        stream, self._copied = job.stream, None
        for _ in range(MAX_MOVES):
            try:
                return self._copy_incarnation(job)
            except StreamMoved as moved:
                self._flush()
                self._ended.forget(stream.tenant)
                there = self._target.head(stream)
                if moved.now is None:
                    if there and self._was_deleted(there):
                        self._target.delete(there)  # the start of a deleted stream
                    return None
                job = _CopyJob(stream, moved.now, there)
        raise Unavailable(
            f"{stream} keeps being deleted and recreated; stop the process that does it, then retry"
        )

    def _copy_incarnation(self, job: _CopyJob) -> None:
        stream, head, there, page = job
        if head is None:
            raise StreamMoved(self._source.head(stream))
        if there and head.stream.kind == "tenant":
            return self._skip(head)  # only the registration matters
        if there and is_same_blob(head, there):
            return self._skip(head)
        if there and there.incarnation != head.incarnation:
            self._make_room(there)
            there = None
        if there and there.version >= head.version:
            return self._compare(head, there)
        pages = StreamPages(
            self._source, head, there.version if there else 0, there.hash if there else b""
        )
        try:
            self._append(head, there, pages, pages.read_next() if page is None else page)
        except CorruptRecord:
            if there and not self._source.has_head(there):
                raise AlreadyExists(_NOT_A_COPY.format(head.stream)) from None
            raise

    def _make_room(self, there: Head) -> None:
        """Delete another incarnation, if it is a copy of one that the source has deleted."""
        # A blob is deleted too: it has less of the content than the source's.
        deleted = there.stream.kind == "blob" or self._was_deleted(there)
        if not deleted or not self._target.delete(there):
            text = (
                _OLD_INCARNATION if not deleted and self._ended.may_include(there) else _NOT_A_COPY
            )
            raise AlreadyExists(text.format(there.stream))

    def _was_deleted(self, there: Head) -> bool:
        """Return whether the source had this stream, and deleted it."""
        copied = self._copied == (there.incarnation, there.version, there.hash)
        return self._ended.includes(there) or (copied and self._ended.may_include(there))

    def _compare(self, head: Head, there: Head) -> None:
        """Compare heads if the destination has the source's version, or a newer one."""
        if not is_same(head, there):
            now = self._source.head(head.stream)
            if now is None or not is_same(now, head):
                raise StreamMoved(now)  # the listed head was old
            raise AlreadyExists(
                (_AHEAD_OF_SOURCE if there.version > now.version else _NOT_A_COPY).format(
                    head.stream
                )
            )
        self._skip(head)

    def _skip(self, head: HeadSummary) -> None:
        self._tally.there[head.stream[:2]] += 1
        self._tally.count["skipped"] += not self._again

    def _append(
        self, head: Head, there: Head | None, pages: StreamPages, first: Sequence[Record]
    ) -> None:
        """Append the pages, append by append: records of one id stay together across pages."""
        previous, group = there.hash if there else b"", list[Record]()
        try:
            for page in pages.pages(first, self._pool):
                if there and page[0].version == there.version + 1:
                    # The source's chain continues from the copy.
                    self._copied = there.incarnation, there.version, there.hash
                for record in page:
                    if group and record.append_id != group[0].append_id:
                        self._put(head, previous, group)
                        previous, group = group[-1].hash, []
                    group.append(record)
        except CorruptRecord:
            # An append that is cut short by the damage is not copied at all.
            if group and pages.following not in (None, group[0].append_id):
                self._put(head, previous, group)
            raise
        self._put(head, previous, group)

    def _put(self, head: Head, previous: bytes, group: Sequence[Record]) -> None:
        # The fields come with the last append: until then the stream is not found by them.
        append = Append(
            head.stream,
            group[0].version - 1,
            previous,
            head.incarnation,
            group[0].append_id,
            [(record.hash, record.body) for record in group],
            head.fields if group[-1].version == head.version else None,
        )
        self._copied = head.incarnation, group[-1].version, group[-1].hash
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
                self._count(append, answer)
        self._report()

    def _append_alone(self, append: Append) -> None:
        """Append one stream of a rejected batch, to find the one that caused it."""
        if append.stream not in self._tally.refused:
            try:
                self._count(append, self._target.append([append])[0])
            except DataProblem as error:
                self._tally.refuse(append.stream, error)

    def _count(self, append: Append, answer: AppendResult | VersionMismatch) -> None:
        """Count an append, or record why it was rejected."""
        stream, count = append.stream, self._tally.count
        if isinstance(answer, VersionMismatch):
            if stream.kind != "tenant":  # another process has registered it
                text = _DELETED_AFTER_COPY if answer.head is None else _NOT_A_COPY
                self._tally.refuse(stream, AlreadyExists(text.format(stream)))
        elif (answer.first, answer.last) != (
            append.expected + 1,
            append.expected + len(append.records),
        ):
            self._tally.refuse(stream, AlreadyExists(_NOT_A_COPY.format(stream)))
        else:
            count["records"] += len(append.records)
            count["bytes"] += sum(len(body) for _, body in append.records)
            if append.fields is not None:
                count["streams"] += 1
                self._tally.there[stream[:2]] += 1


def _has_more(head: Head, there: Head) -> bool:
    """Return whether the source has more records of the stream than the destination."""
    return there.incarnation == head.incarnation and there.version < head.version
