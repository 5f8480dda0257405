"""Forking: the order of fork hooks."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os
import holdfast
from concurrent.futures import ThreadPoolExecutor
from holdfast.backends.fork import Forkable, register_forkable

class Busy(Forkable):
    def before_fork(self):
        with ThreadPoolExecutor(1) as pool:
            print(pool.submit(int, "7").result(), flush=True)

busy = Busy()
register_forkable(busy)
if os.fork() == 0:
    os._exit(0)
os.wait()
"""


def test_what_is_waited_for_before_a_fork_can_still_use_a_thread_pool() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "7\n"
