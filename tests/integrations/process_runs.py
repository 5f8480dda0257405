"""Run a program again and again, each time in its own process. All but the last end by kill -9.

Each process is a fork of one that has imported the frameworks and done nothing else, so a hundred
of them cost little more than one. It kills itself at the first point where none before it was
killed, so each point is hit once, and each process makes at least one step of progress. What was
acknowledged is noted outside the store.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from helpers.stored.notes import Notes, read_notes

LIFETIME_SECONDS = 60
"""Longer than any process should take; then the alarm ends it, and the program fails."""


REHEARSAL = "rehearsal"
"""The model that is asked in a rehearsal; those requests are no evidence of anything."""


class ProcessRun:
    """One process of the program: where it is killed, and what it notes."""

    def __init__(self, notes: str, server: str) -> None:
        self.past = (
            {note["point"] for note in read_notes(notes) if note["what"] == "kill"}
            if os.path.exists(notes)
            else set()
        )
        self._notes, self._server = Notes(notes), server.removesuffix("/v1")

    def note(self, what: str, **facts: object) -> None:
        self._notes.write(what=what, **facts)

    def point(self, name: str) -> None:
        """Die here, unless an earlier process has."""
        if name not in self.past:
            self._die(name)

    def die_in_flight(self, name: str, *, after: int = 0) -> bool:
        """Die when the next call has reached the model, after this many pieces of the answer.
        Return False if an earlier process died there."""
        if name in self.past:
            return False
        self._control("/_hold", {"after": after})
        threading.Thread(target=self._die_when_held, args=(name,), daemon=True).start()
        return True

    def release_calls(self) -> None:
        """Let go of a call that a process asked to be held, if that process died before it."""
        try:
            self._control("/_release", {})
        except HTTPError:
            pass  # none was ever held

    def _die_when_held(self, name: str) -> None:
        self._control("/_held")
        self._die(name)

    def _die(self, name: str) -> None:
        self.note("kill", point=name)
        os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()

    def _control(self, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urlopen(self._server + path, data=data) as answer:
            return json.load(answer)


class MortalBackend:
    """Replaces the `append` of a backend: dies before or after the next write that none died at."""

    def __init__(self, process: ProcessRun, backend: Any) -> None:
        self._process, self._append = process, backend.append
        backend.append = self

    def __call__(self, batch: Sequence[Any]) -> Any:
        names = [f"{append.stream.id} at {append.expected}" for append in batch]
        for name in names:
            self._process.point(f"before {name}")
        answers = self._append(batch)
        for name in names:
            self._process.point(f"after {name}")
        return answers


def run_until_finished(
    run: Callable[[ProcessRun], None], notes: str, server: str, rehearse: Callable[[], None]
) -> None:
    """Run the program, process after process, until one gets to the end.

    The rehearsal comes first: frameworks import and build a good deal at their first answer, and
    all forks inherit that.
    """
    rehearse()
    assert threading.active_count() == 1, "a fork has only one thread"
    gc.freeze()
    while True:
        pid = os.fork()
        if pid == 0:
            _run_once(run, ProcessRun(notes, server))
        status = os.waitpid(pid, 0)[1]
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            sys.exit(os.waitstatus_to_exitcode(status))


def _run_once(run: Callable[[ProcessRun], None], process: ProcessRun) -> None:
    signal.alarm(LIFETIME_SECONDS)
    code = 1
    try:
        run(process)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
