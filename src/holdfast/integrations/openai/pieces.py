"""Drive a completion and expose its answer as an iterator of text pieces, sync and async.

A completion yields pieces of text for the caller, and values to send back to it, awaited if needed.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from typing import Any

from .loop import Piece, Steps, Stopped, TurnAnswer


class _End:
    """Holds the answer at the end of a stream."""

    _end: list[TurnAnswer]

    @property
    def answer(self) -> TurnAnswer:
        """The complete answer; RuntimeError before the stream has ended."""
        if not self._end:
            raise RuntimeError("the answer is incomplete; iterate to the last piece first")
        return self._end[0]


class AnswerStream(_End, Iterator[str]):
    """An answer as it arrives: an iterator of text pieces, with the `answer` at its end.

    The model is called when the first piece is requested. If you stop early, the text so far is
    stored as a message with `interrupted` in its `meta`. That happens when the iterator is closed
    or garbage-collected, so use `with` to control when.
    """

    def __init__(self, steps: Steps) -> None:
        self._end = []
        self._pieces = _drive(steps, self._end)

    def __next__(self) -> str:
        return next(self._pieces)

    def drain(self) -> TurnAnswer:
        """Consume all pieces and return the answer."""
        for _ in self:
            pass
        return self.answer

    def close(self) -> None:
        """Stop the stream."""
        self._pieces.close()

    def __enter__(self) -> AnswerStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncAnswerStream(_End, AsyncIterator[str]):
    """`AnswerStream` for `async for`. Use `async with` if you may stop early."""

    def __init__(self, steps: Steps) -> None:
        self._end = []
        self._pieces = _drive_async(steps, self._end)

    async def __anext__(self) -> str:
        return await anext(self._pieces)

    async def drain(self) -> TurnAnswer:
        """Consume all pieces and return the answer."""
        async for _ in self:
            pass
        return self.answer

    async def close(self) -> None:
        """Stop the stream."""
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
    """Let the completion end properly after the caller stopped listening."""
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
    """Return the value of a step, or its error or cancellation."""
    try:
        return (await step) if inspect.isawaitable(step) else step, None
    except GeneratorExit:
        raise
    except BaseException as error:
        return None, error
