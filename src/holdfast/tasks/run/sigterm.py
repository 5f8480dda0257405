"""Handle SIGTERM in a task's block: raise `Terminated`, to store progress and release the lease.

The handler is installed only in the main thread, and only if the application has none of its own.
"""

from __future__ import annotations

import os
import threading
from types import FrameType

from ...log.leases import WithStatement

_blocks: dict[str, WithStatement] = {}
"""The statements of the blocks that want the handler, by lease owner. An interrupt may have kept a
block that was left from calling `uninstall`."""


class Terminated(SystemExit):
    """SIGTERM arrived while a task's block was open."""


def is_interrupt(error: BaseException | None) -> bool:
    """Return whether a signal ended a run, and not the program itself."""
    if isinstance(error, KeyboardInterrupt):  # Python raises it only in the main thread
        return threading.current_thread() is threading.main_thread()
    return isinstance(error, Terminated)


def _exit(number: int, _frame: FrameType | None) -> None:
    import signal

    if any(statement.guard() is not None for statement in list(_blocks.values())):
        raise Terminated(128 + number)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def install(owner: str, statement: WithStatement) -> None:
    """Install the handler for a block."""
    if threading.current_thread() is not threading.main_thread():
        return
    import signal  # here: the import is slow, and not every application opens tasks

    if not _blocks:
        if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, _exit):
            return
        _blocks[owner] = statement  # before the handler is there, so that `uninstall` removes it
        signal.signal(signal.SIGTERM, _exit)
    _blocks[owner] = statement


def uninstall(owner: str) -> None:
    """Remove the handler when the last block is left."""
    if _blocks.pop(owner, None) is None:
        return
    import signal

    for other, statement in list(_blocks.items()):
        if statement.guard() is None:
            _blocks.pop(other, None)
    main = threading.current_thread() is threading.main_thread()
    if not _blocks and main and signal.getsignal(signal.SIGTERM) is _exit:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
