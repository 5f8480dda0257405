"""SIGTERM inside a task's block: raise `SystemExit`, to store progress and release the lease.

Only in the main thread, and only if the application has no handler of its own.
"""

from __future__ import annotations

import threading
from types import FrameType
from typing import NoReturn

_inside = 0


def _exit(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def install() -> bool:
    """Install the handler for a block. Return whether `uninstall` must be called after it."""
    global _inside
    if threading.current_thread() is not threading.main_thread():
        return False
    import signal  # here: the import is slow, and not every application opens tasks

    if _inside == 0:
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return False
        signal.signal(signal.SIGTERM, _exit)
    _inside += 1
    return True


def uninstall() -> None:
    """Remove the handler when the last block is left."""
    global _inside
    import signal

    _inside -= 1
    main = threading.current_thread() is threading.main_thread()
    if _inside == 0 and main and signal.getsignal(signal.SIGTERM) is _exit:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
