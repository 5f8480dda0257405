"""One durable append of two 600-byte messages, to streams that are already long.

Beside it: two rows inserted and committed by hand into a table that is as long. The cost of a turn
must be near that of the bare commit, and must not depend on what came before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from time import perf_counter, thread_time
from urllib.parse import quote

import holdfast

from . import _raw
from ._measure import Bar, Lab, Message, Spread, interleave, pair, ratio, settle, warm
from .throughput import has_files_backend

SIZES = (10, 1_000, 10_000, 100_000)
BATCH = 2_000
OTHER_SIZES = (10, 10_000)

Append = Callable[[], object]


def run(lab: Lab) -> None:
    rounds = lab.choose(9, 3)
    values = measure(lab, ["sqlite"], SIZES, rounds, lab.choose(100, 30))
    for size in SIZES:
        report(lab, "sqlite", size, values, Bar(1.4))
        lab.plot("append", "raw", size, Spread.of(values["raw", size]).middle * 1e6)
    longest, shortest = SIZES[-1], SIZES[0]
    lab.report(
        f"append at {longest:,} records / at {shortest}",
        ratio(values["sqlite", longest], values["sqlite", shortest]),
        bar=Bar(1.15),
        note=f"raw {ratio(values['raw', longest], values['raw', shortest]).middle:.2f}",
    )
    # Without the disk: what the processor does for one append, which is all that a library can add
    # or save.
    used = measure(lab, ["sqlite"], [1_000], rounds, lab.choose(100, 30), clock=thread_time)
    report(lab, "sqlite", 1_000, used, None, "CPU time of an append")
    # Apart from the above, whose syncs would wait for theirs.
    others = ["files", "memory"] if has_files_backend() else ["memory"]
    values = measure(lab, others, OTHER_SIZES, lab.choose(5, 3), lab.choose(50, 20))
    for backend in others:
        for size in OTHER_SIZES:
            report(lab, backend, size, values, None)


def measure(
    lab: Lab,
    backends: Sequence[str],
    sizes: Sequence[int],
    rounds: int,
    repeats: int,
    clock: Callable[[], float] = perf_counter,
) -> dict[tuple[str, int], list[float]]:
    """Seconds of one append, by backend and length of the stream, round by round."""
    messages = pair(600)
    with lab.place() as place, ExitStack() as stack:
        arms: dict[tuple[str, int], Callable[[], float]] = {}
        for size in sizes:
            # Short streams would not stay short: enough of them that none grows by more than a
            # tenth, or ten records.
            names = [f"s{n}" for n in range(-(-2 * rounds * repeats // max(10, size // 10)))]
            arms["raw", size] = timed(
                raw_appends(place / f"raw-{size}.db", names, size, messages, stack), clock
            )
            urls = {
                "sqlite": str(place / f"ours-{size}.db"),
                "files": f"file://{quote(str(place / f'files-{size}'))}",
                "memory": f"memory://appends-{size}",
            }
            for backend in backends:
                arms[backend, size] = timed(
                    appends(urls[backend], names, size, messages, stack), clock
                )
        settle()
        return interleave(arms, lab.rng, rounds=rounds, repeats=repeats)


def report(
    lab: Lab,
    backend: str,
    size: int,
    values: dict[tuple[str, int], list[float]],
    bar: Bar | None,
    what: str = "append",
) -> None:
    ours, raw = values[backend, size], values["raw", size]
    middle, raw_middle = Spread.of(ours).middle * 1e6, Spread.of(raw).middle * 1e6
    note = f"{middle:.0f} µs, raw {raw_middle:.0f} µs"
    lab.report(f"{what} to {size:,} records, {backend} / raw", ratio(ours, raw), bar=bar, note=note)
    if what == "append":
        lab.plot("append", backend, size, middle)


def timed(append: Append, clock: Callable[[], float]) -> Callable[[], float]:
    def once() -> float:
        start = clock()
        append()
        return clock() - start

    return once


def appends(
    url: str, names: Sequence[str], size: int, messages: Sequence[Message], stack: ExitStack
) -> Append:
    """An append to the next of these streams, each of `size` records."""
    events = [("message", message) for message in messages]
    with holdfast.open(url) as store:
        for name in names:
            stream = store.stream(name)
            for length in batches(size):
                stream.append(*(events * (length // 2)))
        # Opened again before the first is closed: a named store in memory exists as long as it is
        # open.
        store = stack.enter_context(holdfast.open(url))
    streams = [store.stream(name) for name in names]
    for stream in streams:
        stream.append(*events)
    warm(lambda many: store.stream("warm").append(*(("message", message) for message in many)))
    turn = cycle(streams)
    return lambda: next(turn).append(*events)


def raw_appends(
    path: Path, names: Sequence[str], size: int, messages: Sequence[Message], stack: ExitStack
) -> Append:
    """The same by hand."""
    filled = _raw.create(path)
    for name in names:
        for length in batches(size):
            _raw.insert(filled, _raw.encode(name, list(messages) * (length // 2)))
    filled.close()
    table = _raw.Single(path)
    stack.callback(table.close)
    for name in names:
        table.append(name, messages)
    warm(lambda many: table.append("warm", many))
    turn = cycle(names)
    return lambda: table.append(next(turn), messages)


def batches(size: int) -> list[int]:
    return [min(BATCH, size - done) for done in range(0, size, BATCH)]
