"""Generator functions as steps: their chunks pass through as they come, and are recorded together at the end."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Generator
from typing import TYPE_CHECKING, Any, Final

from ...errors import TooLarge
from ...log.codec import MAX_BYTES, encode
from ..run.effects import CallFunction, Emit, Script
from ..run.frames import Frame, frame

if TYPE_CHECKING:
    from .run import StepExecution

END: Final = object()


def pass_on(running: StepExecution, source: Any) -> Script[tuple[bytes, list[Any], Any]]:
    """Hand on the chunks of a generator; then all of them, as they are stored and as they come back, and the last as it was."""
    ask, closing = _ways(source, running.frame)
    raws, chunks, size, last = list[bytes](), list[Any](), 0, None
    try:
        while (chunk := (yield ask)) is not END:
            raw, back = running.stored(chunk, running.call.declared.chunk)
            size += len(raw) + 1
            if size > MAX_BYTES:
                raise TooLarge(
                    f"the chunks of a step take more than {MAX_BYTES} bytes as JSON, which is the limit"
                )
            raws.append(raw)
            chunks.append(back)
            last = chunk
            yield Emit(back, running.session, running.call.path, closing)
    except Exception:
        if closing is not None:
            yield closing
        raise
    finally:
        if closing is None:
            _close(source, running.frame)
    if (whole := _redacted_across(running, chunks)) is not None:
        raws, chunks = [encode(whole)], [whole]
    return b"[" + b",".join(raws) + b"]", chunks, last


def _redacted_across(running: StepExecution, chunks: list[Any]) -> str | None:
    """All pieces of a text as one, if there is something to redact that no piece has alone."""
    if running.session.log.redactor is None or not all(type(chunk) is str for chunk in chunks):
        return None
    text = "".join(chunks)
    new = running.session.log.redaction.text(text)
    return None if new == text else new


def _ways(source: Any, inside: Frame) -> tuple[CallFunction, CallFunction | None]:
    """How to ask a generator for its next chunk; and how to close it, if that has to be awaited."""
    if inspect.isasyncgen(source):
        return CallFunction(_next, (source,), {}, inside, True), CallFunction(
            source.aclose, (), {}, inside, True
        )
    return CallFunction(next, (source, END), {}, inside), None


async def _next(source: AsyncGenerator[Any, Any]) -> Any:
    try:
        return await source.__anext__()
    except StopAsyncIteration:
        return END


def _close(source: Generator[Any, Any, Any], inside: Frame) -> None:
    token = frame.set(inside)
    try:
        source.close()
    finally:
        frame.reset(token)
