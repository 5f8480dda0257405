"""SIGTERM while a task is worked on: leave its block in order, instead of being cut off in the middle.

Only where the program has no handler of its own, and only in the main thread: the signal then raises `SystemExit`, so
that progress is stored and the lease is given back.
"""

from __future__ import annotations

import threading
from types import FrameType
from typing import NoReturn

_inside = 0


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def entered() -> bool:
    """A block is entered. Whether `left` has to be called."""
    global _inside
    if threading.current_thread() is not threading.main_thread():
        return False
    import signal  # here: it takes a while, and not every program works on tasks

    if _inside == 0:
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return False
        signal.signal(signal.SIGTERM, _leave)
    _inside += 1
    return True


def left() -> None:
    """A block is left."""
    global _inside
    import signal

    _inside -= 1
    main = threading.current_thread() is threading.main_thread()
    if _inside == 0 and main and signal.getsignal(signal.SIGTERM) is _leave:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
