"""A store to sweep, and a program in which the sweep is killed at each of its writes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from typing import cast

import pytest

import holdfast
from helpers.stored.expiring_streams import LARGE, Wrapped, audited, closed, plant, there, user
from holdfast import Store
from holdfast.backends import Backend
from holdfast.errors import Expired

EXPIRED, LIVING = ("a", "b", "c"), ("d", "e", "f", "g")


def prepare(store: Store) -> None:
    for name in (*EXPIRED, *LIVING):
        store.conversation(name).append(
            user(LARGE + name), user("y" * 70_000 + name) if name < "c" else user(name)
        )
    plant(store, "task", "t", -1, ("task.created", LARGE))
    plant(store, "task", "u", None, ("task.created", LARGE))
    for name in EXPIRED:
        store.conversation(name).expire(0)


def judge(store: Store) -> None:
    """All is as after a sweep that nothing disturbed. Run it on a store that was swept again after
    the fault."""
    assert there(store) == {*LIVING, "u"}
    assert len(there(store, "blob")) == len(LIVING) + 1, "large values of what is gone are gone"
    for name in LIVING:
        assert store.conversation(name).messages() == [user(LARGE + name), user(name)]
    assert closed(store, "task", "t") is not None
    for name in EXPIRED:
        with pytest.raises(Expired):
            store.conversation(name).append(user("b"))
        assert store.conversation(name).delete()
        assert store.conversation(name).messages() == []
    assert set(audited(store)) >= {(name, "expired") for name in (*EXPIRED, "t")}


class Countdown:
    """Does something at the n-th pass."""

    def __init__(self, passes: int, do: Callable[[], None]) -> None:
        self.left, self.do = passes, do

    def __call__(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.do()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Kill a sweep at each of its writes, each time in a new process on a new copy of the store;
    then judge."""
    kind, folder = sys.argv[1:]
    place = {"sqlite": lambda at: f"{at}/agents.db", "files": lambda at: f"file://{at}/agents"}[
        kind
    ]
    os.makedirs(f"{folder}/first")
    with holdfast.open(place(f"{folder}/first")) as store:
        prepare(store)
    for when in ("before", "after"):
        passes, died = 0, True
        while died:
            passes += 1
            copy = f"{folder}/{when} {passes}"
            shutil.copytree(f"{folder}/first", copy)
            child = os.fork()
            if child == 0:
                with contextlib.suppress(BaseException):
                    backend = Wrapped(holdfast.open(place(copy))._log.backend)
                    setattr(backend, when, Countdown(passes, die))
                    holdfast.open(cast(Backend, backend)).sweep(grace=0)
                    os._exit(0)
                os._exit(1)
            status = os.waitpid(child, 0)[1]
            died = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            assert died or status == 0
            with holdfast.open(place(copy)) as store:
                swept = store.sweep(grace=0)
                assert not swept.held_back
                judge(store)
            shutil.rmtree(copy)
        print(json.dumps({"when": when, "killed": passes - 1}))
