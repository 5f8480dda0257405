"""What has to happen around `os.fork`.

SQLite keeps its file locks in tables of the process, and the kernel does not give them to a child: a
child that merely opened connections of its own would believe in locks it does not hold, and the parent
could remove the write-ahead log under it. So before a fork everything is brought to rest and every
connection is closed; parent and child then open new ones when they need them.
"""

from __future__ import annotations

import os
import threading
import weakref


class Forkable:
    """Something that has to start anew in a forked child; what other threads are in the middle of goes on in the parent."""

    def before_fork(self) -> None:
        """Wait until no thread is inside, keep others out, and let go of what must not be shared, if there is any of that."""

    def after_fork_in_parent(self) -> None:
        """Let the others in again."""

    def after_fork_in_child(self) -> None:
        """Start anew: no thread but this one has survived."""


_registered: weakref.WeakSet[Forkable] = weakref.WeakSet()
_held: list[Forkable] = []
_forking = threading.Lock()


def register(thing: Forkable) -> None:
    """Have `thing` told of every fork for as long as it lives."""
    with _forking:
        _registered.add(thing)


def _before() -> None:
    _forking.acquire()
    for thing in list(_registered):
        thing.before_fork()
        _held.append(thing)


def _after_in_parent() -> None:
    while _held:
        _held.pop().after_fork_in_parent()
    _forking.release()


def _after_in_child() -> None:
    global _forking
    while _held:
        _held.pop().after_fork_in_child()
    _forking = threading.Lock()


os.register_at_fork(
    before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
)
