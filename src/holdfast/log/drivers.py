"""Sync and async drivers for generators that yield effects and receive the results.

The same generator holds the logic of sync and async code. An effect that fails raises its error
inside the generator, which may handle it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

E = TypeVar("E")
T = TypeVar("T")


def drive(
    generator: Generator[E, Any, T], perform: Callable[[E], Any], caught: type[BaseException]
) -> T:
    """Run a generator, performing each effect it yields. `caught` errors are thrown into it."""
    step: Callable[[Any], E] = generator.send
    value: Any = None
    try:
        while True:
            try:
                effect = step(value)
            except StopIteration as done:
                result: T = done.value
                return result
            try:
                step, value = generator.send, perform(effect)
            except caught as error:
                step, value = generator.throw, error
    finally:
        generator.close()


async def drive_async(
    generator: Generator[E, Any, T],
    perform: Callable[[E], Awaitable[Any]],
    caught: type[BaseException],
) -> T:
    """`drive`, awaiting each effect."""
    step: Callable[[Any], E] = generator.send
    value: Any = None
    try:
        while True:
            try:
                effect = step(value)
            except StopIteration as done:
                result: T = done.value
                return result
            try:
                step, value = generator.send, await perform(effect)
            except caught as error:
                step, value = generator.throw, error
    finally:
        generator.close()
