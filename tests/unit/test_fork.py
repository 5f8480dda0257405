"""Forking: the order of fork hooks, and what a child can do while a thread was busy."""

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


STEMMING = """
import os, signal, threading
import Stemmer
from holdfast.memory.text import stemming

inside, go = threading.Event(), threading.Event()

class Slow:
    def __init__(self, language, size):
        self.inner = inner(language, size)

    def stemWord(self, word):
        if threading.current_thread() is busy:
            inside.set()
            go.wait()
        return self.inner.stemWord(word)

inner, Stemmer.Stemmer = Stemmer.Stemmer, Slow
busy = threading.Thread(target=stemming.stem, args=("walking",))
busy.start()
inside.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)  # ends a child that waits forever
    print(stemming.stem("planning"), flush=True)
    os._exit(0)
status = os.waitpid(child, 0)[1]
go.set()
busy.join()
print(status)
"""


def test_a_child_can_read_words_although_a_thread_of_its_parent_was_reading_some() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STEMMING], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "plan\n0\n"
