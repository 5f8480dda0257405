"""Store appends in PostgreSQL: one statement for one append or for many. The SQL is in append_sql.

A client that keeps a transaction open over several messages also keeps its locks: if it froze or
its machine died, its streams would be blocked for everyone else. A single statement starts once the
server has all of it, and commits by itself. A statement for a batch skips streams that another
session has locked, instead of waiting for them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

from ...errors import CorruptRecord, OutcomeUnknown, TooLarge
from .. import clock
from ..interface import (
    Append,
    AppendResult,
    Head,
    IncarnationLost,
    StreamBlocked,
    StreamKey,
    VersionMismatch,
)
from . import query_sql
from .append_sql import AppendStatements
from .errors import psycopg
from .pool import PostgresConnection, fetch_rows
from .query_sql import QueryStatements, decode_head

MAX_APPEND_BYTES: Final = 128 * 1024 * 1024
"""The limit for one append. Above it, the driver gets slower and slower. The server's is 1 GB."""
STATEMENT_BYTES: Final = 16 * 1024 * 1024
"""The approximate size of the bodies in one statement, all of which the server holds in memory. One
append may be larger."""
MIN_BYTES_PER_SECOND: Final = 1024 * 1024
"""The assumed bandwidth of a slow network. A larger append gets a longer timeout."""
LOCK_SECONDS: Final = 0.5
"""How long an append waits for a locked stream before it returns `StreamBlocked`."""


def count_bytes(append: Append) -> int:
    return sum(len(body) for _, body in append.records)


class PostgresAppender:
    """Runs the appends of a batch on a connection and finds out why one was not stored."""

    def __init__(self, statements: AppendStatements, queries: QueryStatements, lock_seconds: float):
        self._statements, self._queries, self._lock_seconds = statements, queries, lock_seconds

    def append(
        self, connection: PostgresConnection, batch: Sequence[Append]
    ) -> list[AppendResult | VersionMismatch]:
        """Store a batch and return its answers. Each statement commits by itself."""
        connection.answer_timeout += sum(map(count_bytes, batch)) / MIN_BYTES_PER_SECOND
        if len(batch) == 1:
            return [self._append_one(connection, batch[0])]
        return self._append_many(connection, batch)

    def _append_one(
        self, connection: PostgresConnection, append: Append
    ) -> AppendResult | VersionMismatch:
        started = time.monotonic()
        try:
            text, values = self._statements.build_append(append)
            row = connection.execute(text, values, binary=True).fetchone()
        except psycopg.errors.LockNotAvailable:
            if time.monotonic() - started < self._lock_seconds / 2:
                raise  # it is not the stream that is locked; the caller would retry forever
            return StreamBlocked(self._read_head(connection, append.stream))
        return _stored(append, row[0]) if row else self._explain(connection, append)

    def _append_many(
        self, connection: PostgresConnection, batch: Sequence[Append]
    ) -> list[AppendResult | VersionMismatch]:
        """Store as many appends as possible in one statement, then the rest one by one.

        The rest are appends whose streams have moved or are locked by another session.
        """
        answers: dict[int, AppendResult | VersionMismatch] = {}
        unseen: set[int] = set()
        try:
            for groups in split_groups(group_by_stream(batch)):
                self._append_groups(connection, groups, answers, unseen)
            # Wait for a locked stream only if nothing is stored yet, and only for one of them: the
            # callers of the other appends are waiting too.
            wait = not answers
            last: dict[StreamKey, AppendResult | VersionMismatch] = {}
            for index, append in enumerate(batch):
                if isinstance(last.get(append.stream), StreamBlocked):
                    answers[index] = last[append.stream]
                elif index not in answers:
                    if index in unseen and not wait:
                        answers[index] = self._explain_unseen(connection, append)
                    else:
                        answers[index] = self._append_one(connection, append)
                    wait = wait and not isinstance(answers[index], StreamBlocked)
                last[append.stream] = answers[index]
        except (psycopg.Error, CorruptRecord) as error:
            if any(isinstance(answer, AppendResult) for answer in answers.values()):
                raise OutcomeUnknown(
                    "PostgreSQL stored a part of a batch before it failed; retry with the same ids"
                ) from error
            raise
        return [answers[index] for index in range(len(batch))]

    def _append_groups(
        self,
        connection: PostgresConnection,
        groups: list[StreamGroup],
        answers: dict[int, AppendResult | VersionMismatch],
        unseen: set[int],
    ) -> None:
        """Run one statement for these groups and fill in the answers of those that it stored.

        Add to `unseen` the first index of each group whose stream is locked or does not exist.
        """
        text, values = self._statements.build_batch([group.appends for group in groups])
        try:
            rows = connection.execute(text, values, binary=True).fetchall()
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DivisionByZero):
            return  # another session is creating one of these streams
        for number, now, *_ in rows:
            group = groups[number - 1]
            if now is None:
                unseen.add(group.indexes[0])
            else:
                for index, append in zip(group.indexes, group.appends, strict=True):
                    answers[index] = _stored(append, now)

    def _explain(
        self, connection: PostgresConnection, append: Append
    ) -> AppendResult | VersionMismatch:
        """Return why an append was not stored: it already is, or the position does not match."""
        stream, queries = append.stream, self._queries
        head = self._read_head(connection, stream)
        if head is not None and append.indexed:
            for first, last in fetch_rows(
                connection, queries.find_id, (*stream, append.id), query_sql.VERSIONS
            ):
                return AppendResult(first, last, True, head.now)
        same_incarnation = head is not None and head.incarnation == append.incarnation
        if head is not None and same_incarnation and head.version > append.expected:
            key = (*stream, append.expected + 1)
            if [(append.id,)] == fetch_rows(
                connection, queries.append_id, key, query_sql.APPEND_ID
            ):
                other = fetch_rows(
                    connection, queries.next_other_append, (*key, append.id), query_sql.ONE_NUMBER
                )
                last = other[0][0] - 1 if other else head.version
                return AppendResult(append.expected + 1, last, True, head.now)
        if append.expected and not same_incarnation:
            row = connection.execute(
                queries.was_deleted, (append.incarnation, *stream), binary=True
            ).fetchone()
            return VersionMismatch(head) if row and row[0] else IncarnationLost(head)
        return VersionMismatch(head)

    def _explain_unseen(
        self, connection: PostgresConnection, append: Append
    ) -> AppendResult | VersionMismatch:
        """Explain an append whose stream the batch skipped: it is locked if it has not moved."""
        answer = self._explain(connection, append)
        if isinstance(answer, VersionMismatch) and _is_at_expected(answer.head, append):
            return StreamBlocked(answer.head)
        return answer

    def _read_head(self, connection: PostgresConnection, stream: StreamKey) -> Head | None:
        rows = fetch_rows(connection, self._queries.head, stream, query_sql.HEADS)
        return decode_head(stream, rows[0]) if rows else None


def refuse_large_appends(batch: Sequence[Append]) -> None:
    """Raise `TooLarge` if a member of the batch exceeds `MAX_APPEND_BYTES`."""
    size = max(map(count_bytes, batch), default=0)
    if size > MAX_APPEND_BYTES:
        raise TooLarge(
            f"an append to PostgreSQL must have at most {MAX_APPEND_BYTES} bytes, got {size}; "
            "attach large values as files"
        )


class StreamGroup:
    """Appends to one stream, each of which expects the position that the one before it leaves.

    They are stored atomically. `indexes` are their indexes in the batch.
    """

    def __init__(self, append: Append, index: int) -> None:
        self.appends, self.indexes, self.size = [append], [index], count_bytes(append)
        self._ids = {append.id} if append.indexed else set()
        self._ended = False

    def add(self, append: Append, index: int) -> None:
        """Add an append if it follows the last one. After one that doesn't, add no more."""
        if self._ended or not self._is_followed_by(append):
            self._ended = True
            return
        self.appends.append(append)
        self.indexes.append(index)
        self.size += count_bytes(append)
        if append.indexed:
            self._ids.add(append.id)

    def _is_followed_by(self, append: Append) -> bool:
        last = self.appends[-1]
        return (
            append.expected == last.expected + len(last.records)
            and append.expected_hash == last.records[-1][0]
            and append.incarnation == last.incarnation
            and not (append.indexed and append.id in self._ids)
            and self.size + count_bytes(append) <= STATEMENT_BYTES
        )


def group_by_stream(batch: Sequence[Append]) -> list[StreamGroup]:
    """Return one group for each stream, without the appends that do not follow.

    The groups are in the order of their keys, so that two batches cannot deadlock.
    """
    groups: dict[StreamKey, StreamGroup] = {}
    for index, append in enumerate(batch):
        group = groups.get(append.stream)
        if group is None:
            groups[append.stream] = StreamGroup(append, index)
        else:
            group.add(append, index)
    return [groups[stream] for stream in sorted(groups)]


def split_groups(groups: list[StreamGroup]) -> Iterator[list[StreamGroup]]:
    """Yield the groups in lists of about `STATEMENT_BYTES`, one for each statement."""
    part: list[StreamGroup] = []
    size = 0
    for group in groups:
        if part and size + group.size > STATEMENT_BYTES:
            yield part
            part, size = [], 0
        part.append(group)
        size += group.size
    if part:
        yield part


def _stored(append: Append, now: float) -> AppendResult:
    return AppendResult(
        append.expected + 1,
        append.expected + len(append.records),
        False,
        clock.adjust_server_time(now),
    )


def _is_at_expected(head: Head | None, append: Append) -> bool:
    expected = append.expected, append.expected_hash, append.incarnation
    return head is not None and head.position == expected
