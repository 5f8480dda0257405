"""Start the processes of an agent for the crash matrix.

Importing an application with a large SDK may take longer than the whole run of a process. So two
processes import it once, and each process of the agent is a fork of one of them. They have
different hash seeds, so that an order that depends on them is noticed.

If the import starts threads, opens connections, writes files or has effects, a fork would not be
like a new process, and every process of the agent imports the application itself.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

from ..backends import clock

HUNG: Final = None
"""The exit code of a process that had to be stopped."""
HASH_SEEDS: Final = ("1", "2")
IMPORT_SECONDS: Final = 300.0

_PROGRAM: Final = """
import json, sys
raw = open(sys.argv[1], "rb").read()
sys.path[:] = json.loads(raw)["path"]
from holdfast.testing.agent_process import {function}
{function}(raw)
"""


class Launcher:
    """Starts processes of the agent, each for a spec in a file."""

    def __init__(self, spec: Path, folder: Path) -> None:
        """`spec` has the agent to import; `folder` is an empty folder for the imports."""
        warm = [WarmProcess(spec, folder / seed, seed) for seed in HASH_SEEDS]
        self._warm = warm if all(each.is_ready() for each in warm) else []
        if not self._warm:
            for each in warm:
                each.close()

    def run(self, number: int, spec: Path, work: Path, timeout: float) -> int | None:
        """Run a process in the folder `work`, and return its exit code; `HUNG` if it doesn't end.

        Processes with an even and an odd `number` have different hash seeds.
        """
        if self._warm:
            return self._warm[number % len(self._warm)].run(spec, work, timeout)
        with _output(spec).open("wb") as output:
            try:
                return subprocess.run(  # noqa: S603  our own program
                    [sys.executable, "-c", _PROGRAM.format(function="main"), str(spec)],
                    cwd=work,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=timeout,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                return HUNG

    def close(self) -> None:
        for each in self._warm:
            each.close()


class WarmProcess:
    """A process that has imported the application, and forks for each process of the agent."""

    def __init__(self, spec: Path, folder: Path, seed: str) -> None:
        folder.mkdir(parents=True)
        self._lock = threading.Lock()
        self._unread = b""
        with (folder.parent / f"output {seed}").open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603  our own program
                [sys.executable, "-c", _PROGRAM.format(function="serve"), str(spec)],
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**os.environ, "PYTHONHASHSEED": seed},
                bufsize=0,
            )

    def is_ready(self) -> bool:
        """Return whether its forks are like new processes. Waits for the import."""
        return self._read_line(IMPORT_SECONDS) == "ready"

    def run(self, spec: Path, work: Path, timeout: float) -> int | None:
        """Run a process of the agent, and return its exit code; `HUNG` if it doesn't end."""
        with self._lock:
            job = json.dumps([str(spec), str(work), str(_output(spec))])
            assert self._process.stdin is not None
            self._process.stdin.write(job.encode() + b"\n")
            pid = self._read_line(timeout)
            code = self._read_line(timeout) if pid is not None else None
            if pid is not None and code is None:
                os.kill(int(pid), signal.SIGKILL)
                self._read_line(timeout)
                return HUNG
            return -signal.SIGKILL if code is None else int(code)

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.kill()  # it may hang in the import
        self._process.wait()

    def _read_line(self, timeout: float) -> str | None:
        """Return the next line; None if there is none in time, or the process has died."""
        assert self._process.stdout is not None
        deadline = clock.monotonic() + timeout
        while b"\n" not in self._unread:
            left = deadline - clock.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                return None
            read = os.read(self._process.stdout.fileno(), 4096)
            if not read:
                return None
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()


def _output(spec: Path) -> Path:
    return spec.parent / "output"
