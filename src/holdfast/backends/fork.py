"""Make backends survive `os.fork`.

SQLite tracks its file locks in process memory, and a child does not inherit the locks themselves: a
child that merely opened its own connections would rely on locks that it doesn't have, and the
parent could remove the write-ahead log that the child uses. So before a fork, registered objects
wait until they are idle and close such connections; parent and child reconnect when needed.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401
import logging  # noqa: F401
import os
import threading
import weakref

# These two lock themselves before a fork. Handlers run in reverse order of registration: if they
# were imported after ours was registered, they would be locked while we wait below for calls that
# need them.


class Forkable:
    """Base of objects that must be reset in a forked child, where no other thread survives."""

    def before_fork(self) -> None:
        """Wait until no thread is inside, keep others out, and release what must not be shared."""

    def after_fork_in_parent(self) -> None:
        """Let other threads in again."""

    def after_fork_in_child(self) -> None:
        """Reset locks, connections and threads: only the forking thread survives in the child."""


_registered: weakref.WeakSet[Forkable] = weakref.WeakSet()
_paused: list[Forkable] = []
_forking = threading.Lock()


def register_forkable(thing: Forkable) -> None:
    """Call the methods of `thing` around every fork, until it is garbage collected."""
    with _forking:
        _registered.add(thing)


def _before() -> None:
    _forking.acquire()
    for thing in list(_registered):
        thing.before_fork()
        _paused.append(thing)


def _after_in_parent() -> None:
    while _paused:
        _paused.pop().after_fork_in_parent()
    _forking.release()


def _after_in_child() -> None:
    global _forking
    while _paused:
        _paused.pop().after_fork_in_child()
    _forking = threading.Lock()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(
        before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
    )
