"""Effects: what the program does to the world outside, told to the crash matrix."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ..tasks.run.frames import current_frame


class Notes:
    """What a run says of itself, outside of its store: one line each, written at once, so that a kill loses none."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, what: str, **facts: object) -> None:
        # A newline on both sides: a line that a kill has cut short does not spoil the next.
        os.write(self._file, b"\n" + msgspec.json.encode({"what": what, **facts}) + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read_notes(path: Path) -> Iterator[dict[str, Any]]:
    """All notes in order, but for those that were cut short."""
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        if line:
            try:
                yield msgspec.json.decode(line)
            except msgspec.DecodeError:
                continue


notes: Notes | None = None
"""Where effects are noted; only inside the crash matrix."""


def effect(what: str, *, key: str | None = None) -> None:
    """Say that the program does something to the world outside; call it where it is done, or in the stand-in for the service.

    Inside `crash_matrix` it is counted: an effect that happens more often, or less often, than without crashes is a
    violation. With `key`, what has the same key counts once, because the other side sees to that. Elsewhere it does nothing.
    """
    if notes is None:
        return
    frame = current_frame()
    step, mode = (None, "") if frame is None or frame.run is None else (frame.path, frame.run.mode)
    task = None if frame is None else frame.session.key.id
    notes.write("effect", effect=what, key=key, task=task, step=step, mode=mode)
