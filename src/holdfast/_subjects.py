"""Subjects: who it is about. A stream of kind `subject` lists every stream that holds something about one, so that all of it
can be found when that has to go: `store.erase(subject="person-7")`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from . import _operations as ops
from ._blobs import life_of
from ._codec import encode
from ._events import NewEvent, Stamp, seal
from ._ids import append_id, checked_id
from ._operations import Operation
from ._stream_ops import new_stamp
from .backends import Head, StreamKey
from .errors import CorruptRecord, HoldfastError

USED: Final = "subject.used"

T = TypeVar("T")


class Use(msgspec.Struct, frozen=True):
    """A stream that holds something about a subject, and the life of it that does."""

    kind: str
    id: str
    life: str


def subject_stream(tenant: str, subject: str) -> StreamKey:
    return StreamKey(tenant, "subject", subject)


def note_subject(stream: StreamKey, incarnation: bytes, subject: str, stamp: Stamp) -> Operation[str]:
    """List a stream, before it holds anything about the subject. The life of the subject's own stream; again: nothing is written."""
    key = subject_stream(stream.tenant, subject)
    head = yield from ops.head(key)
    use = Use(stream.kind, stream.id, life_of(incarnation))
    incarnation = append_id(stamp.id) if head is None else head.incarnation
    bodies = seal([NewEvent(USED, encode(msgspec.to_builtins(use)))], stamp, {})
    once = f"{use.kind}/{use.life}"
    if head is None or (yield from ops.find(key, once)) is None:
        yield from ops.append(ops.Append(key, bodies, stamp, once, incarnation=incarnation))
    return life_of(incarnation)


class About:
    """Lists a stream before anything is appended to it, in whatever an operation does. For one handle of the stream."""

    def __init__(self, stream: StreamKey, subject: str) -> None:
        self._stream, self._subject = stream, checked_id(subject, "subject")
        self._listed: bytes | None = None  # the life of the stream that is listed

    def __call__(self, operation: Operation[T]) -> Operation[T]:
        """The operation, and before its first append the note that its stream is about the subject."""
        step: Callable[[Any], ops.Request] = operation.send
        value: Any = None
        try:
            while True:
                try:
                    request = step(value)
                except StopIteration as done:
                    result: T = done.value
                    return result
                try:
                    if isinstance(request, ops.Append):
                        yield from self._note(request)
                    step, value = operation.send, (yield request)
                except HoldfastError as error:
                    step, value = operation.throw, error
        finally:
            operation.close()

    def _note(self, request: ops.Append) -> Operation[None]:
        life = request.incarnation
        if request.stream.kind == "blob":
            life = bytes.fromhex(request.stream.id[33:65])  # a large value comes before what names it
        elif request.stream != self._stream:
            return
        if life is None:
            head = yield from ops.head(self._stream)
            life = head.incarnation if head else None
        if life is not None and life != self._listed:
            yield from note_subject(self._stream, life, self._subject, new_stamp())
            self._listed = life


def uses(head: Head) -> Operation[list[Use]]:
    """The streams that hold something about a subject."""
    found: dict[Use, None] = {}
    after = 0
    while page := (yield from ops.read(head.stream, after=after, plain=True)):
        for stored in page:
            try:
                use = msgspec.convert(stored.envelope.data, Use)
                bytes.fromhex(use.life)
                found[use] = None
            except (msgspec.ValidationError, ValueError):
                what = "it does not say which stream is about the subject"
                raise CorruptRecord(str(head.stream), version=stored.version, what=what) from None
        after = page[-1].version
    return list(found)
