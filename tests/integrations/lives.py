"""Programs that are killed again and again: every life is a process of its own, and all but the
last end by kill -9.

A life is a fork of a process that has imported the frameworks and done nothing else, so that a
hundred lives cost little more than one. It kills itself at the first point where none before it was
killed; so each point is hit once, and the work gets on by at least one step per life. What was
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
from collections.abc import Callable
from typing import Any
from urllib.request import urlopen

from helpers.stored.notes import Notes, read_notes

LIFETIME_SECONDS = 60
"""Longer than any life should take; then the alarm ends it, and the program fails."""


REHEARSAL = "rehearsal"
"""The model that is asked in a rehearsal; those requests are no evidence of anything."""


class Life:
    """One life of the program: where it is to end, and what it notes."""

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
        """End here, if no life has."""
        if name not in self.past:
            self._die(name)

    def die_in_flight(self, name: str, *, after: int = 0) -> bool:
        """End when the next call has reached the model and is unanswered, or answered with so many
        pieces, if no life has."""
        if name in self.past:
            return False
        self._control("/_hold", {"after": after})
        threading.Thread(target=self._die_when_held, args=(name,), daemon=True).start()
        return True

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


def live(
    run: Callable[[Life], None], notes: str, server: str, rehearse: Callable[[], None]
) -> None:
    """Run the program life after life, until one gets to the end.

    The rehearsal comes first: frameworks import and build a good deal at their first answer, and
    all lives inherit that.
    """
    rehearse()
    assert threading.active_count() == 1, "a fork has only one thread"
    gc.freeze()
    while True:
        process = os.fork()
        if process == 0:
            _one_life(run, Life(notes, server))
        status = os.waitpid(process, 0)[1]
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            sys.exit(os.waitstatus_to_exitcode(status))


def _one_life(run: Callable[[Life], None], life: Life) -> None:
    signal.alarm(LIFETIME_SECONDS)
    code = 1
    try:
        run(life)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
