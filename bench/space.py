"""Bytes on disk for each byte of the messages' JSON, when 20 streams grow by turns."""

from __future__ import annotations

from pathlib import Path

import holdfast

from . import _raw
from ._measure import Bar, Lab, compact, pair

STREAMS = 20


def run(lab: Lab) -> None:
    turns = lab.choose(100, 25)
    names = [f"agent-{n}" for n in range(STREAMS)]
    for size, limit in ((600, 1.6), (1_500, 1.5)):
        messages = pair(size)
        payload = STREAMS * turns * sum(len(compact(message)) for message in messages)
        events = [("message", message) for message in messages]
        with lab.place() as place:
            with holdfast.open(place / "ours.db") as store:
                for name in names * turns:
                    store.stream(name).append(*events)
            table = _raw.Single(place / "raw.db")
            for name in names * turns:
                table.append(name, messages)
            table.close()
            ours, raw = bytes_of(place / "ours.db") / payload, bytes_of(place / "raw.db") / payload
        note = f"raw {raw:.2f}; {payload / 1e6:.1f} MB of messages"
        lab.report(f"bytes on disk per byte at {size:,} B", ours, bar=Bar(limit), note=note)


def bytes_of(database: Path) -> int:
    """All files of a database: after the last close there should be only one."""
    return sum(path.stat().st_size for path in database.parent.glob(database.name + "*"))
