"""State documents: what one that grows by a message per save takes on disk, and what a save and a
load cost.

A save hands over the whole document, so its price is that of looking at all of it: reported,
without a bar. Beside it, what comes first to mind: the whole document as JSON, inserted and
committed by hand each time.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

import apsw

import holdfast

from ._measure import Bar, Lab, Spread, compact, interleave, message, ratio, settle
from .space import bytes_of

SHORT, LONG = 10, 10_000
SAVES = 10


def run(lab: Lab) -> None:
    saves = lab.choose(2_000, 400)
    for size in (300, 600, 1_500):
        with lab.place() as place:
            document = grow(place / "ours.db", saves, size)
            payload = len(compact(document))
            note = (
                f"{payload / 1e6:.1f} MB in the end; whole each time it would be {saves / 2:,.0f}"
            )
            what = f"bytes on disk per byte, {saves:,} saves that add {size:,} B"
            lab.report(what, bytes_of(place / "ours.db") / payload, bar=Bar(3.0), note=note)
            settle()
            loads = interleave(
                {"ours": partial(load, place / "ours.db", document)}, lab.rng, rounds=5
            )
            lab.report(
                f"open and load after {saves:,} such saves", milliseconds(loads["ours"]), unit="ms"
            )
    cost_of_a_save(lab)


def grow(path: Path, saves: int, size: int) -> dict[str, list[dict[str, str]]]:
    document: dict[str, list[dict[str, str]]] = {"messages": []}
    with holdfast.open(path, durability="process") as store:
        state = store.state("team")
        for _ in range(saves):
            document["messages"].append(message("user", size))
            state.save(document)
    return document


def load(path: Path, document: object) -> float:
    start = perf_counter()
    store = holdfast.open(path)
    loaded = store.state("team").load()
    elapsed = perf_counter() - start
    store.close()
    assert loaded == document
    return elapsed


def cost_of_a_save(lab: Lab) -> None:
    names = map(str, itertools.count())
    with lab.place() as place, holdfast.open(place / "agents.db") as store:
        table = apsw.Connection(str(place / "raw.db"))
        for statement in (
            "PRAGMA journal_mode=WAL",
            "PRAGMA synchronous=FULL",
            "CREATE TABLE states(body)",
        ):
            table.execute(statement)
        settle()
        arms: dict[str, Callable[[], float]] = {}
        for count in (SHORT, LONG):
            arms[f"ours {count}"] = partial(saves_of, store, names, count)
            arms[f"raw {count}"] = partial(raw_saves_of, table, count)
        values = interleave(arms, lab.rng, rounds=lab.choose(9, 3))
        table.close()
    ours, raw = (values[f"ours {LONG}"], values[f"raw {LONG}"])
    note = ", ".join(
        f"at {count:,} {milliseconds(values[f'ours {count}']).middle:.2f} ms"
        for count in (SHORT, LONG)
    )
    lab.report(
        f"a save at {LONG:,} messages / one at {SHORT}",
        ratio(ours, values[f"ours {SHORT}"]),
        note=note,
    )
    note = f"raw {milliseconds(raw).middle:.2f} ms"
    lab.report(f"a save at {LONG:,} messages / all of it as JSON, raw", ratio(ours, raw), note=note)


def saves_of(store: holdfast.Store, names: itertools.count[int], count: int) -> float:
    """Seconds of one save that adds a message to `count` others."""
    state = store.state(f"team-{next(names)}")
    document = {"messages": [message("user", 600)] * count}
    state.save(document)
    start = perf_counter()
    for _ in range(SAVES):
        document["messages"].append(message("assistant", 600))
        state.save(document)
    return (perf_counter() - start) / SAVES


def raw_saves_of(table: apsw.Connection, count: int) -> float:
    document = {"messages": [message("user", 600)] * count}
    start = perf_counter()
    for _ in range(SAVES):
        document["messages"].append(message("assistant", 600))
        table.execute("INSERT INTO states VALUES(?)", (json.dumps(document),))
    return (perf_counter() - start) / SAVES


def milliseconds(seconds: list[float]) -> Spread:
    return Spread.of([value * 1e3 for value in seconds])
