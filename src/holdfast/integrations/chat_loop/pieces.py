"""Drive a completion and expose its answer as an iterator of text pieces, sync and async."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import suppress

from ...log.drivers import EffectGen, Handler, drive, drive_async, run_to
from .loop import Piece, Stopped, TurnAnswer


class _End:
    """Holds the answer at the end of a stream."""

    _end: list[TurnAnswer]

    @property
    def answer(self) -> TurnAnswer:
        """The complete answer. Raises RuntimeError before the stream has ended."""
        if not self._end:
            raise RuntimeError("the answer is incomplete; iterate to the last piece first")
        return self._end[0]


class AnswerStream(_End, Iterator[str]):
    """An answer as it arrives: an iterator of text pieces, with the full `answer` at the end.

    The model is called when the first piece is requested. If you stop early, the text so far is
    stored as a message with `interrupted` in its `meta`. That happens when the iterator is closed
    or garbage-collected, so use `with` to control when.
    """

    def __init__(self, log: Handler, steps: EffectGen[TurnAnswer]) -> None:
        self._end = []
        self._pieces = _pass_pieces(log, steps, self._end)

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

    def __init__(self, log: Handler, steps: EffectGen[TurnAnswer]) -> None:
        self._end = []
        self._pieces = _pass_pieces_async(log, steps, self._end)

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


def _pass_pieces(
    log: Handler, steps: EffectGen[TurnAnswer], end: list[TurnAnswer]
) -> Generator[str, None, None]:
    while isinstance(found := drive(log, run_to(Piece, steps, steps.send)), Piece):
        try:
            yield found.text
        except GeneratorExit:  # let the completion end properly
            with suppress(Stopped):
                drive(log, run_to(Piece, steps, steps.throw, Stopped()))
            raise
    end.append(found.value)


async def _pass_pieces_async(
    log: Handler, steps: EffectGen[TurnAnswer], end: list[TurnAnswer]
) -> AsyncGenerator[str, None]:
    while isinstance(found := await drive_async(log, run_to(Piece, steps, steps.send)), Piece):
        try:
            yield found.text
        except GeneratorExit:
            with suppress(Stopped):
                await drive_async(log, run_to(Piece, steps, steps.throw, Stopped()))
            raise
    end.append(found.value)
