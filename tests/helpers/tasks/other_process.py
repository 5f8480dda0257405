"""Another process that enters tasks, one after the other, as they are named to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import TracebackType

import holdfast
from helpers.interrupts import Interrupts, list_places
from helpers.programs import program

WAIT = 30
"""How long it waits for a task, in seconds: far less than the leases in these tests."""


class OtherProcess:
    """A process that has the store open. Use it in a `with` block."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> OtherProcess:
        self._process = subprocess.Popen(
            program("helpers.tasks.other_process", self._url),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.__exit__(kind, error, trace)

    def enter(self, id: str) -> None:
        """Have it enter a task, and leave it again."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(id, file=self._process.stdin, flush=True)
        assert self._process.stdout.readline() == "entered\n"


def main() -> None:
    with holdfast.open(sys.argv[1]) as store:
        for line in sys.stdin:
            with store.task(line.rstrip("\n"), wait=WAIT):
                pass
            print("entered", flush=True)


def end_by_sigterm() -> None:
    """Be interrupted before the handler of SIGTERM is removed, and get SIGTERM after the block."""
    store = holdfast.open("memory://")

    def work(at: Interrupts) -> None:
        with store.task("t"):
            at.phase = "leaving"

    places = list_places(work)
    place = next(place for place in places if "sigterm.py uninstall" in str(place))
    assert Interrupts(place).run(work)
    print("interrupted", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
