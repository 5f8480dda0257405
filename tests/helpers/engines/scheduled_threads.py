"""Threads that take turns at the calls of a space, so that a run is decided by who comes next, and
can be repeated."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Protocol


class Hooked(Protocol):
    """A space that calls `before` with every operation and its partition."""

    before: Callable[[str, str], None]


class Turns:
    """`choose` says who is next, by a number below that of the threads that still run."""

    def __init__(self, space: Hooked, choose: Callable[[int], int]) -> None:
        self._choose = choose
        self._here = threading.local()
        self._main = threading.Semaphore(0)
        self._turns: list[threading.Semaphore] = []
        self._errors: list[BaseException] = []
        space.before = self._wait

    def _wait(self, operation: str, partition: str) -> None:
        number = getattr(self._here, "number", None)
        if number is not None:
            self._main.release()
            assert self._turns[number].acquire(timeout=60)

    def run(self, *works: Callable[[], object]) -> None:
        living = list(range(len(works)))
        self._turns = [threading.Semaphore(0) for _ in works]
        ended: set[int] = set()

        def start(number: int) -> None:
            self._here.number = number
            try:
                self._wait("", "")
                works[number]()
            except BaseException as error:
                self._errors.append(error)
            finally:
                ended.add(number)
                self._main.release()

        threads = [threading.Thread(target=start, args=(number,)) for number in living]
        for thread in threads:
            thread.start()
            assert self._main.acquire(timeout=60)
        while living:
            chosen = living[self._choose(len(living))]
            self._turns[chosen].release()
            assert self._main.acquire(timeout=60)
            living = [number for number in living if number not in ended]
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]


class Moods:
    """Chooses at random, but not evenly: for a while one is quick, and another stands almost
    still."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._weights = [1.0] * 16

    def __call__(self, count: int) -> int:
        if self._chance.random() < 0.05:
            self._weights = self._chance.choices([0.01, 1.0, 5.0], [1, 2, 1], k=16)
        return self._chance.choices(range(count), self._weights[:count])[0]
