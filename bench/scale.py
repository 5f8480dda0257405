"""From 1,000 to 1,000,000 streams in one store: does an append, a look or a page of a list cost
more when there are more?

Run as `python -m bench.scale`; it takes a while, so `make bench` leaves it out. All stores are
filled first, then measured in turns, on SQLite and on PostgreSQL. Half of the streams have names in
the order of their making and fall due in it, as those that are counted or named by time; half have
random names and fall due at random times, so that each entry of a page leads to another place of
the table. Which stream is used and where a page begins is random. Memory holds all of it, the
operating system's or the server's: what grows here is tables and indexes, not the wait for a disk.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from statistics import median, quantiles
from time import perf_counter

from holdfast.backends import Append, AppendResult, Backend, HeadFields, StreamKey
from holdfast.backends.postgres import PostgresBackend
from holdfast.backends.sqlite import SQLiteBackend

from ._measure import Bar, Lab, Spread, ratio, settle
from ._servers import postgres

SIZES = (1_000, 10_000, 100_000, 1_000_000)
BATCH = 1_000
BODY = b"x" * 600
PARTITIONS = 16
PAGE = 100
EARLIEST, SPAN = 1.8e9, 1e6
"""When the streams fall due, in seconds since 1970."""
MEMORY = "4GB"
"""What the server may keep in memory; its default of 128 MB would not hold the indexes."""
USED = 64
"""How many streams a process has in use when it appends to the same ones again."""
BAR = Bar(1.5)

Place = tuple[str, int]
"""An engine, and how many streams are in the store."""


class Streams:
    """A store with that many streams of one record. Every second one is a task, named and due in
    order; half are "running"."""

    def __init__(self, backend: Backend, size: int, rng: random.Random) -> None:
        self.backend, self.size, self.rng = backend, size, rng
        self._versions: dict[int, int] = {}
        self._untouched: Iterator[int] = iter(rng.sample(range(size), min(size, 5_000)))
        self._used = rng.sample(range(size), USED)

    def fill(self) -> None:
        for start in range(0, self.size, BATCH):
            batch = [
                Append(
                    key(number),
                    expected=0,
                    expected_hash=b"",
                    incarnation=digest(number)[:16],
                    id=os.urandom(16),
                    records=[(digest(number, 1), BODY)],
                    fields=HeadFields(
                        status="running" if number % 4 < 2 else "pending", due_at=self._due(number)
                    ),
                )
                for number in range(start, min(start + BATCH, self.size))
            ]
            batch.sort(key=lambda append: append.stream)  # as the log does
            if not all(isinstance(answer, AppendResult) for answer in self.backend.append(batch)):
                raise RuntimeError("a stream was not stored")

    def append_to_another(self) -> float:
        """To a stream that this process has not used before."""
        return self._append(next(self._untouched))

    def append_to_used(self) -> float:
        return self._append(self.rng.choice(self._used))

    def _append(self, number: int) -> float:
        version = self._versions.get(number, 1)
        append = Append(
            key(number),
            expected=version,
            expected_hash=digest(number, version),
            incarnation=digest(number)[:16],
            id=os.urandom(16),
            records=[(digest(number, version + 1), BODY)],
        )
        start = perf_counter()
        [answer] = self.backend.append([append])
        elapsed = perf_counter() - start
        if not isinstance(answer, AppendResult):
            raise RuntimeError("the stream was not where it should be")
        self._versions[number] = version + 1
        return elapsed

    def head(self) -> float:
        stream = key(self.rng.randrange(self.size))
        start = perf_counter()
        found = self.backend.head(stream)
        elapsed = perf_counter() - start
        assert found is not None
        return elapsed

    def heads_in_order(self) -> float:
        return self._heads("task", key(2 * self.rng.randrange(self.size // 4)).id, "running")

    def heads_at_random(self) -> float:
        return self._heads("conversation", self._random_name(), "running")

    def all_at_random(self) -> float:
        return self._heads("conversation", self._random_name(), None)

    def _random_name(self) -> str:
        return f"{self.rng.randrange(int(0.4 * 16**8)):08x}"

    def _heads(self, kind: str, after: str, status: str | None) -> float:
        start = perf_counter()
        found = self.backend.heads(
            tenant="default", kind=kind, status=status, after=after, limit=PAGE
        )
        elapsed = perf_counter() - start
        assert len(found) == PAGE
        return elapsed

    def due_in_order(self) -> float:
        return self._page_of_due("task")

    def due_at_random(self) -> float:
        return self._page_of_due("conversation")

    def _page_of_due(self, kind: str) -> float:
        after = EARLIEST + self.rng.random() * SPAN / 2, ""
        start = perf_counter()
        found = self.backend.due(
            tenant="default", kind=kind, before=EARLIEST + SPAN, after=after, limit=PAGE
        )
        elapsed = perf_counter() - start
        assert len(found) == PAGE
        return elapsed

    def _due(self, number: int) -> float:
        """Within the same time, whatever the number of streams."""
        part = (
            number / self.size
            if number % 2 == 0
            else int.from_bytes(digest(number, -1)[:6], "big") / 2**48
        )
        return EARLIEST + SPAN * part


OPERATIONS: dict[str, Callable[[Streams], float]] = {
    "append to another stream": Streams.append_to_another,
    "append to one of 64 streams": Streams.append_to_used,
    "head": Streams.head,
    f"heads(status=…), {PAGE} in the order of their making": Streams.heads_in_order,
    f"heads(status=…), {PAGE} with random names": Streams.heads_at_random,
    f"heads(), {PAGE} with random names": Streams.all_at_random,
    f"due(before=…), {PAGE} in the order of their making": Streams.due_in_order,
    f"due(before=…), {PAGE} at random": Streams.due_at_random,
}


def key(number: int) -> StreamKey:
    if number % 2 == 0:
        return StreamKey("default", "task", f"task-{number:08}")
    return StreamKey("default", "conversation", digest(number).hex()[:16])


def digest(number: int, version: int = 0) -> bytes:
    return hashlib.blake2b(f"{number}.{version}".encode(), digest_size=32).digest()


def run(lab: Lab) -> None:
    sizes = SIZES[: lab.choose(4, 3)]
    largest = sizes[-1]
    with lab.place() as place, postgres(lab, shared_buffers=MEMORY) as server, ExitStack() as stack:

        def opened(engine: str, size: int) -> Backend:
            if engine == "sqlite":
                return SQLiteBackend(place / f"{size}.db")
            pieces = PARTITIONS if "partitions" in engine else 0
            return PostgresBackend(f"{server.url()}&schema=s{size}_{pieces}&partitions={pieces}")

        partitioned = f"postgres, {PARTITIONS} partitions"
        stores: dict[Place, Streams] = {}
        for where in (
            [("sqlite", size) for size in sizes]
            + [("postgres", size) for size in sizes]
            + [(partitioned, largest)]
        ):
            fill(lab, where, partial(opened, *where))
            backend = opened(*where)
            stack.callback(backend.close)
            stores[where] = Streams(backend, where[1], lab.rng)
        server.sql(
            "VACUUM ANALYZE", "CHECKPOINT"
        )  # what the server would do later by itself, and in the midst of it
        settle()
        for file in place.iterdir():
            # Into the cache of the operating system; by another process, for SQLite's locks belong
            # to this one.
            subprocess.run(["cat", file], stdout=subprocess.DEVNULL, check=True)
        values = measure(stores, lab)
        for operation in OPERATIONS:
            for engine in ("sqlite", "postgres"):
                for size in sizes[1:]:
                    report(
                        lab,
                        values,
                        operation,
                        (engine, size),
                        (engine, sizes[0]),
                        BAR if size == largest else None,
                    )
            report(lab, values, operation, (partitioned, largest), ("postgres", largest), None)
        [(moved, hot)] = server.sql(
            "SELECT sum(n_tup_upd)::bigint, sum(n_tup_hot_upd)::bigint"
            " FROM pg_stat_user_tables WHERE relname ~ '^streams'"
        )
        lab.report(
            "heads moved within their page, postgres",
            hot / moved,
            note=f"{hot:,} of {moved:,}: no index was written",
        )


def fill(lab: Lab, where: Place, opened: Callable[[], Backend]) -> None:
    engine, size = where
    backend = opened()
    start = perf_counter()
    Streams(backend, size, lab.rng).fill()
    elapsed = perf_counter() - start
    backend.close()
    backend = opened()
    used = backend.describe().sizes["database"]
    backend.close()
    note = f"filled in {elapsed:.1f} s; one record of {len(BODY)} bytes in each"
    lab.report(f"bytes per stream at {size:,} streams, {engine}", round(used / size), note=note)


def measure(stores: dict[Place, Streams], lab: Lab) -> dict[tuple[str, Place], list[list[float]]]:
    """Seconds of every operation on every store, round by round; each is done once before any is
    done again."""
    rounds, repeats = lab.choose(15, 5), 50
    arms = [(operation, place) for operation in OPERATIONS for place in stores]
    for operation, place in arms * 6:  # connections are made and statements prepared
        OPERATIONS[operation](stores[place])
    values: dict[tuple[str, Place], list[list[float]]] = {arm: [] for arm in arms}
    for _ in range(rounds):
        for samples in values.values():
            samples.append([])
        for _ in range(repeats):
            lab.rng.shuffle(arms)
            for operation, place in arms:
                values[operation, place][-1].append(OPERATIONS[operation](stores[place]))
    return values


def report(
    lab: Lab,
    values: dict[tuple[str, Place], list[list[float]]],
    operation: str,
    place: Place,
    other: Place,
    bar: Bar | None,
) -> None:
    (engine, size), few = place, values[operation, other]
    many = values[operation, place]
    what = f"{other[1]:,}" if engine == other[0] else "whole tables"
    lab.report(
        f"{operation}: {size:,} streams / {what}, {engine}, p50",
        ratio([median(samples) for samples in many], [median(samples) for samples in few]),
        bar=bar,
        note=f"{told(many)}; beside {told(few)}",
    )
    if engine == other[0]:
        for where, samples in ((place, many), *([(other, few)] if size == SIZES[1] else [])):
            middle = Spread.of([median(those) for those in samples]).middle
            lab.plot(f"scale: {operation}", engine, where[1], middle * 1e6)


def told(rounds: list[list[float]]) -> str:
    samples = [sample for those in rounds for sample in those]
    return f"p50 {median(samples) * 1e6:,.0f} µs, p99 {quantiles(samples, n=100)[98] * 1e6:,.0f} µs"


if __name__ == "__main__":
    import sys

    from .__main__ import main

    sys.argv[1:1] = ["--only", "scale"]
    main()
