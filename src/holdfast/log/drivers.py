"""Logic that is written once for plain and async code: a generator yields what it needs done, and is sent what came of it.

It is driven by one of these two. What goes wrong is raised inside it, where it may be caught, and decided again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

E = TypeVar("E")
T = TypeVar("T")


def drive(
    script: Generator[E, Any, T], perform: Callable[[E], Any], caught: type[BaseException]
) -> T:
    """Run a script, doing what it yields. Errors of other kinds than `caught` end it."""
    step: Callable[[Any], E] = script.send
    value: Any = None
    try:
        while True:
            try:
                effect = step(value)
            except StopIteration as done:
                result: T = done.value
                return result
            try:
                step, value = script.send, perform(effect)
            except caught as error:
                step, value = script.throw, error
    finally:
        script.close()


async def drive_async(
    script: Generator[E, Any, T],
    perform: Callable[[E], Awaitable[Any]],
    caught: type[BaseException],
) -> T:
    """`drive`, awaiting what is done."""
    step: Callable[[Any], E] = script.send
    value: Any = None
    try:
        while True:
            try:
                effect = step(value)
            except StopIteration as done:
                result: T = done.value
                return result
            try:
                step, value = script.send, await perform(effect)
            except caught as error:
                step, value = script.throw, error
    finally:
        script.close()
