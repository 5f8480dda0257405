"""Programs that write until they are killed, and a look at what they leave."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import msgspec

from helpers import programs
from helpers.servers import SERVERS, url_on
from helpers.stored.checker import Verdict

PATIENCE_SECONDS = 30.0
"""Longer than anything should take: who waits for a dead process's lock has failed by then."""


def url_of(engine: str, folder: Path) -> str:
    if engine in SERVERS:
        return url_on(engine, folder)
    return (
        f"sqlite:///{folder / 'store.db'}" if engine == "sqlite" else f"file://{folder / 'store'}"
    )


def program(module: str, *args: object) -> list[str]:
    return programs.program(f"crash.{module}", *args)


class Crew:
    """A running workload: reads what its processes say, and kills them."""

    module = "workload"

    def __init__(self, *args: object) -> None:
        self.main = subprocess.Popen(program(self.module, *args), stdout=subprocess.PIPE)
        assert self.main.stdout is not None
        self.output = self.main.stdout
        os.set_blocking(self.output.fileno(), False)
        self.alive: set[int] = set()
        self.acks: Counter[int] = Counter()

    def listen(self, seconds: float) -> None:
        """Take in what was said; wait up to that long for something."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.output, selectors.EVENT_READ)
            selector.select(seconds)
        for line in (self.output.read() or b"").split(b"\n"):
            word, _, pid = line.partition(b" ")
            self.hear(word, pid)

    def hear(self, word: bytes, pid: bytes) -> None:
        if word == b"start":
            self.alive.add(int(pid))
        elif word == b"ack" and int(pid) in self.alive:
            self.acks[int(pid)] += 1

    def wait_for(self, acks: int, *, processes: int | None = None) -> None:
        """Until the living have that many more acknowledgements among them."""
        before, deadline = self.acks.total(), time.monotonic() + PATIENCE_SECONDS
        while (
            processes is not None and len(self.alive) < processes
        ) or self.acks.total() < before + acks:
            self.listen(1.0)
            assert time.monotonic() < deadline, "the writers are stuck"
            assert self.main.poll() is None, "the writers ended by themselves"

    def kill(self, pid: int) -> None:
        self.alive.discard(pid)
        os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        for pid in list(self.alive):
            self.kill(pid)
        self.main.wait(PATIENCE_SECONDS)
        self.output.close()


def checked(url: str, notes: Path, seen: Path) -> Verdict:
    done = subprocess.run(
        programs.program("helpers.stored.checker", url, notes, seen),
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return msgspec.json.decode(done.stdout, type=Verdict)
