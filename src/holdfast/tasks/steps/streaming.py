"""Generator steps: chunks are passed on as they come, and recorded together at the end.

The generator of such a step yields `Emit` for each chunk. `stream` and `stream_async` drive it from
one chunk to the next.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Generator, Mapping
from types import AsyncGeneratorType
from typing import TYPE_CHECKING, Any, Final

from ...errors import NoTask, TooLarge
from ...log.codec import MAX_BYTES, encode
from ...log.drivers import Effect, EffectGen, drive, drive_async, run_to
from ..run.frames import CallFunction, Frame, frame
from .run import UnstorableResult, encode_returned

if TYPE_CHECKING:
    from ...log.log import Log
    from ..run.session import Session
    from .progress import StepRun
    from .run import StepCall

_END: Final = object()

logger = logging.getLogger("holdfast")


class Emit(Effect):
    """Pass a chunk of a step to its consumer. `run_to` finds it, so no driver performs it.

    The step at `path` is paused until the consumer requests the next chunk, which may be never.
    `closing` closes the source of the chunks, if that must be awaited.
    """

    __slots__ = ("chunk", "closing", "generator", "is_taken", "path", "session")

    def __init__(
        self, chunk: Any, session: Session, path: str, closing: CallFunction | None
    ) -> None:
        self.chunk, self.session, self.path, self.closing = chunk, session, path, closing
        self.generator: EffectGen[Any] | None = None
        self.is_taken = False
        """Whether the step is being ended, because its consumer may never return."""

    async def close_source(self, log: Log) -> None:
        """Close the source of a paused step's chunks, if that must be awaited."""
        if self.closing is not None:
            try:
                await self.closing.perform_async(log)
            except Exception as error:
                self._log_close_error(error)

    def close_generator(self) -> None:
        """End a paused step that will not be resumed."""
        try:
            if self.generator is not None:
                self.generator.close()
        except Exception as error:
            self._log_close_error(error)

    def _log_close_error(self, error: Exception) -> None:
        logger.warning(
            "could not close step %r of %s (%s)", self.path, self.session.key, type(error).__name__
        )

    def abandoned_error(self) -> NoTask:
        return NoTask(
            f"step {self.path!r} was ended before its last chunk; "
            "call task.step again inside the task's block"
        )


def stream(log: Log, generator: EffectGen[Any]) -> Generator[Any, None, None]:
    """Run a task generator and yield its chunks. For a recorded step, yield the recorded chunks."""
    live = abandoned = False
    try:
        while isinstance(found := drive(log, run_to(Emit, generator, generator.send)), Emit):
            live = True
            found.session.steps.pause(found, generator)
            try:
                yield found.chunk
            finally:
                abandoned = not found.session.steps.resume(found)
            if abandoned:
                raise found.abandoned_error()
        if not live:
            yield from found.value
    finally:
        if not abandoned:
            generator.close()


async def stream_async(log: Log, generator: EffectGen[Any]) -> AsyncGenerator[Any, None]:
    """`stream`, as an async iterator."""
    live = abandoned = False
    try:
        while isinstance(
            found := await drive_async(log, run_to(Emit, generator, generator.send)), Emit
        ):
            live = True
            found.session.steps.pause(found, generator)
            try:
                yield found.chunk
            except BaseException:
                abandoned = not found.session.steps.resume(found)
                if not abandoned:
                    await found.close_source(log)
                raise
            abandoned = not found.session.steps.resume(found)
            if abandoned:
                raise found.abandoned_error()
        if hasattr(found.value, "__aiter__"):
            async for chunk in found.value:
                yield chunk
        elif not live:
            for chunk in found.value:
                yield chunk
    finally:
        if not abandoned:
            generator.close()


def stream_chunks_gen(
    call: StepCall, run: StepRun, frame: Frame, kwargs: Mapping[str, Any]
) -> EffectGen[tuple[bytes, list[Any]]]:
    """Emit the chunks of a generator. Return all of them, encoded and as they will be read back."""
    log = call.session.log
    source: Any = call.declared.fn(*call.args, **kwargs)
    ask, close = _generator_calls(source, frame)
    raws, chunks, size, last = list[bytes](), list[Any](), 0, None
    try:
        while (chunk := (yield ask)) is not _END:
            raw, back = encode_returned(log, chunk, call.declared.chunk)
            size += len(raw) + 1
            if size > MAX_BYTES:
                raise UnstorableResult(
                    TooLarge(
                        f"the chunks of a step must be at most {MAX_BYTES} bytes as JSON, got more"
                    )
                )
            raws.append(raw)
            chunks.append(back)
            last = chunk
            yield Emit(back, call.session, call.path, close)
    except Exception:
        if close is not None:
            yield close
        raise
    finally:
        if close is None:
            _close(source, frame)
    if (text := _redact_joined(log, chunks)) is not None:
        raws, chunks = [encode(text)], [text]
    if run.meter is not None and call.declared.is_model:
        run.meter.count_result(last)
    return b"[" + b",".join(raws) + b"]", chunks


def _redact_joined(log: Log, chunks: list[Any]) -> str | None:
    """Redact the joined chunks. Return the text if redaction changed it, else None."""
    if log.redactor is None or not all(type(chunk) is str for chunk in chunks):
        return None
    text = "".join(chunks)
    redacted = log.redaction.redact_text(text)
    return None if redacted == text else redacted


def _generator_calls(source: Any, inside: Frame) -> tuple[CallFunction, CallFunction | None]:
    """Return the call for the next chunk, and the call that closes an async generator."""
    if isinstance(source, AsyncGeneratorType):
        return CallFunction(_next, (source,), {}, inside, True), CallFunction(
            source.aclose, (), {}, inside, True
        )
    return CallFunction(next, (source, _END), {}, inside), None


async def _next(source: AsyncGenerator[Any, Any]) -> Any:
    try:
        return await source.__anext__()
    except StopAsyncIteration:
        return _END


def _close(source: Generator[Any, Any, Any], inside: Frame) -> None:
    outer = frame.get()
    try:
        frame.set(inside)
        source.close()
    finally:
        frame.set(outer)
