"""Side effects that a program reports to the crash matrix."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ..tasks.run.frames import current_frame


class Notes:
    """A file of notes that a run keeps outside its store, one per line. A kill loses none."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, what: str, **facts: object) -> None:
        # A newline on both sides, so that a truncated line does not spoil the next one.
        os.write(self._file, b"\n" + msgspec.json.encode({"what": what, **facts}) + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read_notes(path: Path) -> Iterator[dict[str, Any]]:
    """Yield all complete notes in order."""
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        if line:
            try:
                yield msgspec.json.decode(line)
            except msgspec.DecodeError:
                continue


notes: Notes | None = None
"""Where side effects are recorded; set only inside the crash matrix."""


def effect(what: str, *, key: str | None = None) -> None:
    """Report a side effect on an external service. Call it where the effect happens.

    Inside `crash_matrix`, effects are counted: an effect that happens more or less often than
    without crashes is a violation. Effects with the same `key` count once, because the external
    service deduplicates them. Elsewhere this does nothing.
    """
    if notes is None:
        return
    frame = current_frame()
    step, mode = (None, "") if frame is None or frame.run is None else (frame.path, frame.run.mode)
    task = None if frame is None else frame.session.key.id
    notes.write("effect", effect=what, key=key, task=task, step=step, mode=mode)
