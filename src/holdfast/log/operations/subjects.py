"""Subjects: the people or things that stored data is about.

A stream of kind `subject` lists every stream with data about one subject, so that
`store.erase(subject="person-7")` finds all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from ...backends import Head, StreamKey
from ...errors import CorruptRecord, HoldfastError
from .. import operations as ops
from ..codec import encode
from ..drivers import Ended, run_to
from ..events import AppendContext, NewEvent, encode_envelopes, new_append_context
from ..ids import append_id, check_id
from . import Operation
from .forks import list_ancestors

SUBJECT_USED: Final = "subject.used"

T = TypeVar("T")


class SubjectUse(msgspec.Struct, frozen=True):
    """A stream, with its incarnation, that has data about a subject."""

    kind: str
    id: str
    incarnation: str


def subject_stream(tenant: str, subject: str) -> StreamKey:
    return StreamKey(tenant, "subject", subject)


def register_use(
    stream: StreamKey, incarnation: bytes, subject: str, stamp: AppendContext
) -> Operation[str]:
    """List a stream under a subject, before it has data about it. A second call writes nothing.

    Return the incarnation of the subject's own stream.
    """
    key = subject_stream(stream.tenant, subject)
    head = yield from ops.head(key)
    use = SubjectUse(stream.kind, stream.id, incarnation.hex())
    incarnation = append_id(stamp.id) if head is None else head.incarnation
    bodies = encode_envelopes([NewEvent(SUBJECT_USED, encode(msgspec.to_builtins(use)))], stamp, {})
    once = _use_id(use.kind, use.incarnation)
    if head is None or (yield from ops.find_append(key, once)) is None:
        yield from ops.append(ops.AppendRecords(key, bodies, stamp, once, incarnation=incarnation))
    return incarnation.hex()


def _use_id(kind: str, incarnation: str) -> str:
    """Return the id of the append that lists a stream under a subject."""
    return f"{kind}/{incarnation}"


def find_subjects(stream: StreamKey) -> Operation[list[str]]:
    """Return the subjects under which a stream is listed, or one that it was forked from.

    A stream does not name its subjects, so this looks it up under each subject of the tenant.
    """
    head = yield from ops.head(stream)
    if head is None:
        return []
    found: list[str] = []
    uses: list[str] = []
    after = ""
    while page := (yield from ops.heads(stream.tenant, "subject", after=after)):
        after = page[-1].stream.id
        if not uses:
            family = [one.incarnation for one in (yield from list_ancestors(stream))]
            uses = [_use_id(stream.kind, one) for one in (head.incarnation.hex(), *family)]
        for entry in page:
            for use in uses:
                if (yield from ops.find_append(entry.stream, use)) is not None:
                    found.append(entry.stream.id)
                    break
    return found


class SubjectRegistrar:
    """Lists a stream under a subject before an operation first appends to it.

    Each handle of a stream has its own.
    """

    def __init__(self, stream: StreamKey, subject: str) -> None:
        self._stream, self.subject = stream, check_id(subject, "subject")
        self._listed: bytes | None = None  # the incarnation of the stream that is listed

    def __call__(self, operation: Operation[T]) -> Operation[T]:
        """Return the operation, with the registration before its first append."""
        send: Callable[[Any], Any] = operation.send
        value: Any = None
        try:
            while True:
                found = yield from run_to(ops.AppendRecords, operation, send, value)
                if isinstance(found, Ended):
                    result: T = found.value
                    return result
                try:
                    yield from self._register(found)
                    value = yield found
                    send = operation.send
                except HoldfastError as error:
                    send, value = operation.throw, error
        finally:
            operation.close()

    def _register(self, request: ops.AppendRecords) -> Operation[None]:
        incarnation = request.incarnation
        if request.stream.kind == "blob":
            # A blob is stored before the event that refers to it; see `blob_prefix`.
            incarnation = bytes.fromhex(request.stream.id[33:65])
        elif request.stream != self._stream:
            return
        if incarnation is None:
            head = yield from ops.head(self._stream)
            incarnation = head.incarnation if head else None
        if incarnation is not None and incarnation != self._listed:
            yield from register_use(self._stream, incarnation, self.subject, new_append_context())
            self._listed = incarnation


def list_uses(head: Head) -> Operation[list[SubjectUse]]:
    """Return the streams that have data about a subject."""
    found: dict[SubjectUse, None] = {}
    after = 0
    while page := (yield from ops.read(head.stream, after=after, decoded=True)):
        for stored in page:
            try:
                use = msgspec.convert(stored.envelope.data, SubjectUse)
                bytes.fromhex(use.incarnation)
                found[use] = None
            except (msgspec.ValidationError, ValueError):
                what = "it does not name a stream about the subject"
                raise CorruptRecord(str(head.stream), version=stored.version, what=what) from None
        after = page[-1].version
    return list(found)
