"""Subjects: who it is about. A stream of kind `subject` lists every stream that holds something about one, so that all of it
can be found when that has to go: `store.erase(subject="person-7")`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from ..backends import Head, StreamKey
from ..errors import CorruptRecord, HoldfastError
from . import operations as ops
from .blobs import incarnation_hex
from .codec import encode
from .events import AppendContext, NewEvent, encode_envelopes
from .ids import append_id, checked_id
from .operations import Operation
from .stream_ops import new_append_context

USED: Final = "subject.used"

T = TypeVar("T")


class SubjectUse(msgspec.Struct, frozen=True):
    """A stream that holds something about a subject, and the life of it that does."""

    kind: str
    id: str
    incarnation: str = msgspec.field(name="life")


def subject_stream(tenant: str, subject: str) -> StreamKey:
    return StreamKey(tenant, "subject", subject)


def note_subject(
    stream: StreamKey, incarnation: bytes, subject: str, stamp: AppendContext
) -> Operation[str]:
    """List a stream, before it holds anything about the subject. The life of the subject's own stream; again: nothing is written."""
    key = subject_stream(stream.tenant, subject)
    head = yield from ops.head(key)
    use = SubjectUse(stream.kind, stream.id, incarnation_hex(incarnation))
    incarnation = append_id(stamp.id) if head is None else head.incarnation
    bodies = encode_envelopes([NewEvent(USED, encode(msgspec.to_builtins(use)))], stamp, {})
    once = f"{use.kind}/{use.incarnation}"
    if head is None or (yield from ops.find(key, once)) is None:
        yield from ops.append(ops.AppendRecords(key, bodies, stamp, once, incarnation=incarnation))
    return incarnation_hex(incarnation)


class SubjectRegistrar:
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
                    if isinstance(request, ops.AppendRecords):
                        yield from self._note(request)
                    step, value = operation.send, (yield request)
                except HoldfastError as error:
                    step, value = operation.throw, error
        finally:
            operation.close()

    def _note(self, request: ops.AppendRecords) -> Operation[None]:
        incarnation = request.incarnation
        if request.stream.kind == "blob":
            incarnation = bytes.fromhex(
                request.stream.id[33:65]
            )  # a large value comes before what names it
        elif request.stream != self._stream:
            return
        if incarnation is None:
            head = yield from ops.head(self._stream)
            incarnation = head.incarnation if head else None
        if incarnation is not None and incarnation != self._listed:
            yield from note_subject(self._stream, incarnation, self._subject, new_append_context())
            self._listed = incarnation


def uses(head: Head) -> Operation[list[SubjectUse]]:
    """The streams that hold something about a subject."""
    found: dict[SubjectUse, None] = {}
    after = 0
    while page := (yield from ops.read(head.stream, after=after, plain=True)):
        for stored in page:
            try:
                use = msgspec.convert(stored.envelope.data, SubjectUse)
                bytes.fromhex(use.incarnation)
                found[use] = None
            except (msgspec.ValidationError, ValueError):
                what = "it does not say which stream is about the subject"
                raise CorruptRecord(str(head.stream), version=stored.version, what=what) from None
        after = page[-1].version
    return list(found)
