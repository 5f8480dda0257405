"""What a million tasks a day cost on each engine: counted on real servers for a typical task, then
multiplied.

Run `python -m bench.costs`. A task has 20 steps with results of 1 KB and a chat of 30 messages of
600 bytes, and is kept for a week. Requests to AWS are counted where the client sends them, against
moto; what AWS asks for them is its list price in us-east-1. Nothing is timed, so nothing waits for
a disk.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from math import ceil
from pathlib import Path
from typing import Any

from botocore.client import BaseClient
from rich.console import Console
from rich.table import Table

import holdfast
from holdfast.backends import Append, AppendResult, VersionMismatch
from holdfast.backends.memory import MemoryBackend
from holdfast.testing import fake_clock

from ._measure import Lab, Message, message
from ._servers import from_tests, postgres

STEPS, MESSAGES = 20, 30
RESULT = message("tool", 1_000)
CHAT = [message("user", 600), message("assistant", 600)]
WEEK = timedelta(days=7)
A_DAY = 1_000_000
DAYS = 7
MONTH = 30

# List prices of AWS, us-east-1, in US dollars.
WRITE_UNITS, READ_UNITS = 0.625 / 1e6, 0.125 / 1e6
PUTS, GETS = 0.005 / 1e3, 0.0004 / 1e3
DYNAMODB_GB, S3_GB = 0.25, 0.023
ITEM_OVERHEAD = 100
"""Bytes that DynamoDB bills for each item beside its attributes."""
FREE = {"DescribeTable", "DescribeContinuousBackups", "HeadBucket", "GetBucketLocation"}
"""Asked once, when a store is opened."""

Row = tuple[str, str]


def result(number: int) -> Message:
    return RESULT


def task(store: holdfast.Store, name: str) -> None:
    """What a typical agent does for one task."""
    with store.task(name, goal="Draft the escalation checklist", ttl=WEEK) as running:
        chat = running.conversation(name)
        for number in range(STEPS):
            running.step("work", result, number)
        for number in range(MESSAGES):
            chat.append(CHAT[number % 2])
        chat.expire(WEEK)
        running.finish("done")


def tasks(store: holdfast.Store, count: int, prefix: str = "task") -> None:
    for number in range(count):
        task(store, f"{prefix}-{number}")


# -- what every engine has to do -------------------------------------------------------------------


class CountingBackend(MemoryBackend):
    """Counts what reaches a backend."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        for append in batch:
            self.counts["appends"] += 1
            self.counts["appends with an id to be found again"] += append.indexed
            self.counts["bytes"] += sum(len(body) for _, body in append.records)
        return super().append(batch)

    def head(self, *args: Any, **options: Any) -> Any:
        self.counts["heads read"] += 1
        return super().head(*args, **options)


def counted() -> list[Row]:
    backend = CountingBackend()
    with holdfast.open(backend) as store:
        tasks(store, 1, "first")
        backend.counts.clear()
        tasks(store, 1)
    counts = backend.counts
    rows = [(what, f"{count:,}") for what, count in counts.items()]
    return [
        *rows,
        ("a day: appends per second, on average", f"{counts['appends'] * A_DAY / 86_400:,.0f}"),
    ]


# -- engines of one's own --------------------------------------------------------------------------


def on_sqlite(lab: Lab, count: int) -> list[Row]:
    with lab.place() as place:
        with holdfast.open(place / "agents.db", durability="process") as store:
            tasks(store, count)
        size = (place / "agents.db").stat().st_size / count
    return [("bytes in the file", f"{size:,.0f}"), *kept(size)]


def on_postgres(lab: Lab, count: int) -> list[Row]:
    with postgres(lab) as server:
        with holdfast.open(server.url(), durability="process") as store:
            tasks(store, 10, "first")
            written, used = wal(server), size_of(store)
            tasks(store, count)
            written, used = (wal(server) - written) / count, (size_of(store) - used) / count
    return [
        ("bytes in tables and indexes", f"{used:,.0f}"),
        ("bytes written to the WAL", f"{written:,.0f}"),
        ("a day: to the WAL", gigabytes(written * A_DAY)),
        *kept(used),
    ]


def size_of(store: holdfast.Store) -> int:
    return store._log.backend.describe().sizes["database"]


def wal(server: Any) -> int:
    [(position,)] = server.sql("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint")
    return int(position)


def on_redis(lab: Lab, count: int) -> list[Row]:
    import redis

    servers = from_tests("helpers.servers")
    with lab.place() as place:
        port = servers.free_port()
        process = servers.start_redis(
            place, port, "--appendonly", "yes", "--appendfsync", "everysec"
        )
        url = f"redis://127.0.0.1:{port}/0"
        with holdfast.open(url, durability="process") as store, redis.Redis.from_url(url) as server:
            tasks(store, 10, "first")
            before = server.info()
            tasks(store, count)
            after = server.info()
        process.kill()
        process.wait()
    memory, file = (
        (after[name] - before[name]) / count for name in ("used_memory", "aof_current_size")
    )
    return [
        ("bytes of memory", f"{memory:,.0f}"),
        ("bytes written to the AOF", f"{file:,.0f}"),
        (f"kept for {DAYS} days: memory", gigabytes(memory * A_DAY * DAYS)),
    ]


def kept(size: float) -> list[Row]:
    return [(f"kept for {DAYS} days", gigabytes(size * A_DAY * DAYS))]


# -- engines by the request ------------------------------------------------------------------------


@dataclass
class Bill:
    """Requests as AWS counts them, and the bytes that are stored."""

    units: Counter[str] = field(default_factory=Counter)
    stored: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def add(
        self, operation: str, given: Mapping[str, Any], answer: Mapping[str, Any] | None
    ) -> None:
        """A request and its answer; None if it was refused, for that is billed too."""
        if operation in ("PutItem", "DeleteItem"):
            self._write(given.get("Item"), given.get("Key"), refused=answer is None)
        elif operation == "BatchWriteItem":
            for requests in given["RequestItems"].values():
                for request in requests:
                    put, delete = request.get("PutRequest", {}), request.get("DeleteRequest", {})
                    self._write(put.get("Item"), delete.get("Key"), refused=answer is None)
        elif operation == "UpdateItem":
            self.units["write units"] += max(
                1, ceil(self.stored.get(name_of(given["Key"]), 0) / 1024)
            )
        elif operation == "GetItem":
            self._read([name_of(given["Key"])])
        elif operation == "BatchGetItem":
            for asked in given["RequestItems"].values():
                for key in asked["Keys"]:
                    self._read([name_of(key)])
        elif operation == "Query":
            partition = {"p": given["ExpressionAttributeValues"][":p"]}
            self._read([name_of({**partition, **item}) for item in (answer or {}).get("Items", ())])
        elif operation in ("PutObject", "ListObjectsV2"):
            self.units["PUT and LIST"] += 1
            if operation == "PutObject" and answer is not None:
                self.stored[given["Key"],] = len(given["Body"])
        elif operation in ("GetObject", "HeadObject"):
            self.units["GET"] += 1
        elif operation in ("DeleteObject", "DeleteObjects"):
            self.units["DELETE (free)"] += 1
            for one in given["Delete"]["Objects"] if "Delete" in given else [given]:
                self.stored.pop((one["Key"],), None)
        elif operation not in FREE:
            raise ValueError(f"a request that is not in the price list here: {operation}")

    def _write(
        self, item: Mapping[str, Any] | None, key: Mapping[str, Any] | None, *, refused: bool
    ) -> None:
        name = name_of(item or key or {})
        size = sum(len(name) + size_of_value(value) for name, value in item.items()) if item else 0
        self.units["write units"] += max(1, ceil(max(size, self.stored.get(name, 0)) / 1024))
        if not refused:
            self.stored.pop(name, None)
            if item:
                self.stored[name] = size

    def _read(self, names: Sequence[tuple[Any, ...]]) -> None:
        self.units["read units"] += max(
            1, ceil(sum(self.stored.get(name, 0) for name in names) / 4096)
        )

    def copy(self) -> Bill:
        return Bill(Counter(self.units), dict(self.stored))


def name_of(item: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(next(iter(item[name].values())) for name in ("p", "n"))


def size_of_value(value: Mapping[str, Any]) -> int:
    [(kind, plain)] = value.items()
    return len(plain.encode()) if kind == "S" else len(plain)


@contextmanager
def billed() -> Iterator[Bill]:
    """Count every request that a client of AWS makes meanwhile."""
    bill, call = Bill(), BaseClient._make_api_call

    def counting(client: Any, operation: str, given: dict[str, Any]) -> Any:
        asked = dict(given)  # the client changes what it was given
        try:
            answer = call(client, operation, given)
        except Exception:
            bill.add(operation, asked, None)
            raise
        bill.add(operation, asked, answer)
        return answer

    BaseClient._make_api_call = counting
    try:
        yield bill
    finally:
        BaseClient._make_api_call = call


def on_aws(engine: str, count: int) -> list[Row]:
    url = from_tests("helpers.servers").url_on(engine, Path("costs"))
    with holdfast.open(url):
        pass  # the table is made
    with fake_clock() as clock, billed() as bill:
        with holdfast.open(url) as store:
            tasks(store, 1, "first")
        before = bill.copy()
        with holdfast.open(url) as store:
            tasks(store, count)
        done = bill.copy()
        clock.advance(WEEK + timedelta(days=2))
        with holdfast.open(url) as store:
            store.sweep(force=True)
    used = done.units - before.units
    swept = bill.units - done.units
    overhead = ITEM_OVERHEAD if engine == "dynamodb" else 0
    items = len(done.stored) - len(before.stored)
    size = (sum(done.stored.values()) - sum(before.stored.values()) + items * overhead) / count
    rows = [(what, f"{units / count:,.1f}") for what, units in used.items()]
    rows += [
        (f"{what} to sweep it", f"{units / (count + 1):,.1f}") for what, units in swept.items()
    ]
    per_task = price(used, count) + price(swept, count + 1)
    month = size * A_DAY * DAYS / 1e9 * (DYNAMODB_GB if engine == "dynamodb" else S3_GB)
    return [
        *rows,
        ("objects or items kept", f"{items / count:,.1f}"),
        ("bytes kept", f"{size:,.0f}"),
        *kept(size),
        ("a day: requests, $", f"{per_task * A_DAY:,.0f}"),
        (f"a month of {MONTH} days: requests, $", f"{per_task * A_DAY * MONTH:,.0f}"),
        ("a month: storage, $", f"{month:,.0f}"),
    ]


def price(units: Counter[str], count: int) -> float:
    prices = {
        "write units": WRITE_UNITS,
        "read units": READ_UNITS,
        "PUT and LIST": PUTS,
        "GET": GETS,
    }
    return sum(prices.get(what, 0.0) * number for what, number in units.items()) / count


def gigabytes(size: float) -> str:
    return f"{size / 1e9:,.0f} GB"


def main() -> None:
    console = Console()
    engines: dict[str, Callable[[Lab], list[Row]]] = {
        "every engine": lambda lab: counted(),
        "sqlite": lambda lab: on_sqlite(lab, 100),
        "postgres": lambda lab: on_postgres(lab, 100),
        "redis": lambda lab: on_redis(lab, 100),
        "dynamodb": lambda lab: on_aws("dynamodb", 4),
        "s3": lambda lab: on_aws("s3", 4),
    }
    with tempfile.TemporaryDirectory() as directory:
        lab = Lab(random.Random(), False, Path(directory))
        lab.remark = console.print
        console.rule(
            f"a task of {STEPS} steps and {MESSAGES} messages, and {A_DAY:,} of them a day"
        )
        for name, work in engines.items():
            table = Table(title=name, title_justify="left", show_header=False)
            table.add_column(width=44)
            table.add_column(width=14, justify="right")
            for row in work(lab):
                table.add_row(*row)
            console.print(table)


if __name__ == "__main__":
    main()
