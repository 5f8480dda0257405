"""Driving a completion: an answer as an iterator of the pieces in which it arrives, sync and async.

What the steps of a completion yield is a piece of text, for whoever listens, or something to give back to them: as it is,
or awaited.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from typing import Any

from .loop import Piece, Steps, Stopped, TurnAnswer


class _End:
    """The end of a stream: the answer, once it is there."""

    _end: list[TurnAnswer]

    @property
    def answer(self) -> TurnAnswer:
        """The whole answer. Only when the stream has come to its end: a `RuntimeError` before."""
        if not self._end:
            raise RuntimeError(
                "the answer has not come to its end; iterate to the last piece first"
            )
        return self._end[0]


class AnswerStream(_End, Iterator[str]):
    """An answer as it arrives: an iterator of pieces of text, and, at its end, the `answer`.

    Nothing is asked before the first piece is. Whoever stops early keeps what came so far, as a message whose `meta` says
    `interrupted`; that happens when the iterator is closed or dropped, so close it (`with`) if its end matters.
    """

    def __init__(self, steps: Steps) -> None:
        self._end = []
        self._pieces = _drive(steps, self._end)

    def __next__(self) -> str:
        return next(self._pieces)

    def to_the_end(self) -> TurnAnswer:
        """Let all pieces pass; the answer."""
        for _ in self:
            pass
        return self.answer

    def close(self) -> None:
        """Stop here."""
        self._pieces.close()

    def __enter__(self) -> AnswerStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncAnswerStream(_End, AsyncIterator[str]):
    """`Pieces` for `async for`. To stop early, use `async with`: what is merely dropped is closed when the loop gets to it."""

    def __init__(self, steps: Steps) -> None:
        self._end = []
        self._pieces = _drive_async(steps, self._end)

    async def __anext__(self) -> str:
        return await anext(self._pieces)

    async def to_the_end(self) -> TurnAnswer:
        """Let all pieces pass; the answer."""
        async for _ in self:
            pass
        return self.answer

    async def close(self) -> None:
        """Stop here."""
        await self._pieces.aclose()

    async def __aenter__(self) -> AsyncAnswerStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _drive(steps: Steps, end: list[TurnAnswer]) -> Generator[str, None, None]:
    step: Any = None
    while True:
        try:
            step = steps.send(step)
        except StopIteration as done:
            end.append(done.value)
            return
        if isinstance(step, Piece):
            try:
                yield step.text
            except GeneratorExit:
                _stop(steps)
                raise


def _stop(steps: Steps) -> None:
    """Let the steps end properly now that nobody listens."""
    try:
        step = steps.throw(Stopped())
        while True:
            step = steps.send(step)
    except Stopped:
        pass


async def _drive_async(steps: Steps, end: list[TurnAnswer]) -> AsyncGenerator[str, None]:
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = steps.send(value) if error is None else steps.throw(error)
        except StopIteration as done:
            end.append(done.value)
            return
        value = error = None
        if isinstance(step, Piece):
            try:
                yield step.text
            except GeneratorExit:
                await _stop_async(steps)
                raise
        else:
            value, error = await _outcome(step)


async def _stop_async(steps: Steps) -> None:
    value: Any = None
    error: BaseException | None = Stopped()
    try:
        while True:
            value, error = await _outcome(
                steps.send(value) if error is None else steps.throw(error)
            )
    except Stopped:
        pass


async def _outcome(step: Any) -> tuple[Any, BaseException | None]:
    """What came of a step: errors and cancellation too, for the steps to see to."""
    try:
        return (await step) if inspect.isawaitable(step) else step, None
    except GeneratorExit:
        raise
    except BaseException as error:
        return None, error
