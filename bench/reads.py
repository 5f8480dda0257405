"""Opening a store and reading a stream of 10,000 records, as a process that was just started does.

Beside it: a connection, a SELECT and json.loads by hand. Ours also checks every record against the
chain. The file is in the page cache in both cases: it is the work that is compared, not the disk.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from time import perf_counter

import holdfast

from . import _raw
from ._measure import Bar, Lab, Spread, interleave, pair, ratio, settle

RECORDS = 10_000
BATCH = 2_000
LAST = 20


def run(lab: Lab) -> None:
    rounds, repeats = lab.choose(9, 3), lab.choose(3, 2)
    with lab.place() as place:
        for size in (600, 1_500):
            ours, raw = place / f"ours-{size}.db", place / f"raw-{size}.db"
            fill(ours, raw, size)
            settle()
            arms = {"ours": partial(read, ours), "raw": partial(raw_read, raw)}
            values = interleave(arms, lab.rng, rounds=rounds, repeats=repeats)
            lab.report(
                f"open and read {RECORDS:,} x {size:,} B, ours / raw",
                ratio(values["ours"], values["raw"]),
                bar=Bar(1.5),
                note=f"{Spread.of(values['ours']).middle * 1e3:.1f} ms, "
                f"raw {Spread.of(values['raw']).middle * 1e3:.1f} ms",
            )
            tails = interleave({"ours": partial(last, ours)}, lab.rng, rounds=rounds, repeats=10)
            milliseconds = Spread.of([seconds * 1e3 for seconds in tails["ours"]])
            lab.report(
                f"open and last({LAST}) of {RECORDS:,} x {size:,} B",
                milliseconds,
                unit="ms",
                bar=Bar(2.0),
            )


def fill(ours: Path, raw: Path, size: int) -> None:
    messages = list(pair(size)) * (BATCH // 2)
    with holdfast.open(ours) as store:
        for _ in range(RECORDS // BATCH):
            store.stream("s").append(*(("message", message) for message in messages))
    connection = _raw.create(raw)
    for _ in range(RECORDS // BATCH):
        _raw.insert(connection, _raw.encode("s", messages))
    connection.close()


def read(path: Path) -> float:
    start = perf_counter()
    store = holdfast.open(path)
    events = list(store.stream("s").read())
    elapsed = perf_counter() - start
    store.close()
    assert len(events) == RECORDS
    return elapsed


def raw_read(path: Path) -> float:
    start = perf_counter()
    connection = _raw.connect(path)
    messages = [json.loads(body) for (body,) in connection.execute(_raw.SELECT, ("s",))]
    elapsed = perf_counter() - start
    connection.close()
    assert len(messages) == RECORDS
    return elapsed


def last(path: Path) -> float:
    start = perf_counter()
    store = holdfast.open(path)
    events = store.stream("s").last(LAST)
    elapsed = perf_counter() - start
    store.close()
    assert len(events) == LAST
    return elapsed
