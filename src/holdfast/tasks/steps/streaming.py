"""Generator steps: chunks are passed on as they come, and recorded together at the end."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Generator
from typing import TYPE_CHECKING, Any, Final

from ...errors import TooLarge
from ...log.codec import MAX_BYTES, encode
from ..run.effects import CallFunction, Emit, TaskGen
from ..run.frames import Frame, frame

if TYPE_CHECKING:
    from .run import StepExecution

_END: Final = object()


def stream_chunks_gen(running: StepExecution, source: Any) -> TaskGen[tuple[bytes, list[Any], Any]]:
    """Emit the chunks of a generator.

    Returns all chunks, encoded and as they are read back, and the original of the last one.
    """
    ask, close = _generator_calls(source, running.frame)
    raws, chunks, size, last = list[bytes](), list[Any](), 0, None
    try:
        while (chunk := (yield ask)) is not _END:
            raw, back = running.encode_result(chunk, running.call.declared.chunk)
            size += len(raw) + 1
            if size > MAX_BYTES:
                raise TooLarge(
                    f"the chunks of a step are larger than {MAX_BYTES} bytes as JSON, the limit"
                )
            raws.append(raw)
            chunks.append(back)
            last = chunk
            yield Emit(back, running.session, running.call.path, close)
    except Exception:
        if close is not None:
            yield close
        raise
    finally:
        if close is None:
            _close(source, running.frame)
    if (text := _redact_joined(running, chunks)) is not None:
        raws, chunks = [encode(text)], [text]
    return b"[" + b",".join(raws) + b"]", chunks, last


def _redact_joined(running: StepExecution, chunks: list[Any]) -> str | None:
    """Redact the joined chunks. Return the text if redaction changed it, else None."""
    if running.session.log.redactor is None or not all(type(chunk) is str for chunk in chunks):
        return None
    text = "".join(chunks)
    redacted = running.session.log.redaction.redact_text(text)
    return None if redacted == text else redacted


def _generator_calls(source: Any, inside: Frame) -> tuple[CallFunction, CallFunction | None]:
    """Return the call for the next chunk, and the call that closes an async generator."""
    if inspect.isasyncgen(source):
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
    token = frame.set(inside)
    try:
        source.close()
    finally:
        frame.reset(token)
