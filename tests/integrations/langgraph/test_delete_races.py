"""A thread that is deleted while another process prunes it is gone, whichever process is faster.

The requests of one operation are handled one at a time. Between two of them, after each number of
requests, the other operation runs as a whole, with what another process would remember: nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.integrations.langgraph import HoldfastSaver

from .graphs import Writer, thread

Act = Callable[[HoldfastSaver], None]
MOST_REQUESTS = 100


class Interrupted(Exception):
    """What a process raises that dies between two requests."""


@contextmanager
def after_requests(saver: HoldfastSaver, number: int, act: Callable[[], None]) -> Iterator[Any]:
    """Run `act` once, before the log handles the request of this number. Yield what was run."""
    log, handled, ran = saver._log, count(), []
    handle = log.handle

    def handle_one(request: Any) -> Any:
        if next(handled) == number and not ran:
            ran.append(number)
            act()
        return handle(request)

    log.handle = handle_one  # type: ignore[method-assign]
    try:
        yield ran
    finally:
        log.handle = handle  # type: ignore[method-assign]


def fill(store: holdfast.Store) -> None:
    writer = Writer(HoldfastSaver(store))
    for n in range(4):
        writer.save({"n": n})


def prune(saver: HoldfastSaver) -> None:
    saver.prune(["t"])


def delete(saver: HoldfastSaver) -> None:
    saver.delete_thread("t")


@pytest.mark.parametrize("dies", [False, True], ids=["lives", "dies"])
@pytest.mark.parametrize(("first", "second"), [(prune, delete), (delete, prune)])
def test_a_thread_that_is_deleted_while_it_is_pruned_is_gone(
    tmp_path: Path, first: Act, second: Act, dies: bool
) -> None:
    for number in range(MOST_REQUESTS):
        url = tmp_path / f"{number}.db"
        with holdfast.open(url) as one, holdfast.open(url) as other:
            fill(one)

            def act(other: holdfast.Store = other) -> None:
                second(HoldfastSaver(other))
                if dies:
                    raise Interrupted

            saver = HoldfastSaver(one)
            with after_requests(saver, number, act) as ran:
                try:
                    first(saver)
                except Interrupted:
                    if first is delete:  # it did not say that the thread is deleted
                        delete(HoldfastSaver(other))
            if not ran:
                break
            with holdfast.open(url) as later:
                assert HoldfastSaver(later).get_tuple(thread()) is None, number
                assert list(HoldfastSaver(later).list(None)) == []
                assert later.verify().ok
    else:
        raise AssertionError("the operation never ended")
    assert number > 5
