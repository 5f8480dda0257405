"""Statements find what they need by an index, also in a process that saw its tables while they were
small."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.servers import url_on
from holdfast.backends import Append, AppendResult, HeadFields, StreamKey
from holdfast.backends.postgres import PostgresBackend
from holdfast.backends.postgres import pool as connections
from holdfast.backends.postgres.query_sql import limit_rows

STREAMS = 20_000
BATCH = 1_000
USES = 20
"""More often than the five times after which the server decides on a plan that it keeps."""


class Streams:
    """A backend that uses one connection, as its calls come one after the other, and what it has
    appended."""

    def __init__(self, url: str) -> None:
        self.backend = PostgresBackend(url)
        self.newest: list[Append] = []

    def fill(self, count: int) -> None:
        """Up to so many streams of one record."""
        while len(self.newest) < count:
            numbers = range(len(self.newest), min(len(self.newest) + BATCH, count))
            batch = [
                Append(
                    StreamKey("default", "task", f"s{number:06}"),
                    expected=0,
                    expected_hash=b"",
                    incarnation=os.urandom(16),
                    id=b"\xff" + os.urandom(15),
                    records=[(os.urandom(32), b"x" * 600)],
                    fields=HeadFields(status="open", due_at=float(number)),
                )
                for number in numbers
            ]
            assert all(isinstance(answer, AppendResult) for answer in self.backend.append(batch))
            self.newest += batch

    def use(self) -> None:
        """Every statement but those that delete, often, each on another stream."""
        for number in range(0, len(self.newest), len(self.newest) // USES):
            stream = self.newest[number].stream
            for indexed in (False, True):
                self.append(number, indexed=indexed)
            head = self.backend.head(stream)
            assert head is not None
            assert head.version == len(self.backend.read(stream))
            assert len(self.backend.read(stream, limit=1, reverse=True)) == 1
            self.backend.heads(tenant="default", kind="task", after=stream.id, limit=10)
            self.backend.heads(
                tenant="default", kind="task", status="open", after=stream.id, limit=10
            )
            self.backend.due(
                tenant="default",
                kind="task",
                before=number + 0.0,
                after=(number - 9.0, ""),
                limit=10,
            )

    def append(self, number: int, *, indexed: bool) -> None:
        last = self.newest[number]
        more = Append(
            last.stream,
            expected=last.expected + 1,
            expected_hash=last.records[0][0],
            incarnation=last.incarnation,
            id=(b"\xff" if indexed else b"\0") + os.urandom(15),
            records=[(os.urandom(32), b"y" * 600)],
        )
        [answer] = self.backend.append([more])
        assert isinstance(answer, AppendResult)
        self.newest[number] = more

    def delete(self) -> None:
        for number in range(0, len(self.newest), len(self.newest) // USES):
            stream = self.newest[number].stream
            head = self.backend.head(stream)
            assert head is not None
            assert self.backend.delete(stream, expected=head)

    def whole_reads(self) -> dict[str, int]:
        """How often each large table was read from end to end so far, by whomever."""
        with self.backend._pool.connection() as connection:
            connection.execute("SELECT pg_stat_force_next_flush()", prepare=False)
            rows = connection.execute(
                "SELECT relname, seq_scan FROM pg_stat_user_tables WHERE schemaname = %s"
                " AND relname ~ '^(streams|records|append_ids)'",
                (self.backend.schema,),
                prepare=False,
            ).fetchall()
        return dict(rows)

    def gather_statistics(self) -> None:
        """As the server does by itself now and then."""
        with self.backend._pool.connection() as connection:
            for table in ("streams", "records", "append_ids"):
                connection.execute(f"VACUUM ANALYZE {self.backend.schema}.{table}", prepare=False)


@pytest.fixture(params=["", "&partitions=4"], ids=["whole", "partitioned"])
def streams(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Streams]:
    made = Streams(url_on("postgres", tmp_path) + request.param)
    yield made
    made.backend.close()


def test_a_process_that_fills_an_empty_store_reads_no_table_from_end_to_end(
    streams: Streams,
) -> None:
    before = streams.whole_reads()
    streams.fill(STREAMS)
    streams.use()
    streams.delete()
    assert streams.whole_reads() == before


@pytest.mark.parametrize("before", [10.0, STREAMS / 2, float("inf")])
def test_a_page_of_what_is_due_is_read_in_order_however_much_is_due(
    streams: Streams, before: float
) -> None:
    """A server that takes few of them for wanted would read and sort all."""
    streams.fill(STREAMS)
    streams.gather_statistics()
    listed = "EXPLAIN " + limit_rows(100, streams.backend._queries.due)
    with streams.backend._pool.connection() as connection:
        plan = connection.execute(
            listed, ("default", "task", before, float("-inf"), ""), prepare=False
        ).fetchall()
    assert "->  Sort" not in str(plan), plan


def test_plans_made_for_small_tables_are_not_kept_when_they_have_grown(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.fill(USES)
    streams.gather_statistics()
    before = streams.whole_reads()
    streams.use()
    small = streams.whole_reads()
    assert sum(small.values()) > sum(
        before.values()
    )  # it is the right thing to do with a table of one page
    streams.fill(STREAMS)
    monkeypatch.setattr(connections, "MAX_PLAN_AGE", 0.0)
    grown = streams.whole_reads()
    streams.use()
    streams.delete()
    assert streams.whole_reads() == grown
