"""What is gone at the source of a transcription that is run again: it goes at the destination too, or nobody would ever look for it there.

Only what the source's audit stream tells of, in that very life, and that has not gone on at the destination: what somebody else has
written there stays.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from .. import _operations as ops
from .._blobs import delete_blobs, life_of
from .._log import Log
from .._stream_ops import audit_of
from .._subjects import uses
from .._verify_deletions import DELETED
from ..backends import Head, StreamKey
from ..errors import AlreadyExists
from ._cipher import ERASED
from ._erasure import SUBJECT_ERASED


class _Told(msgspec.Struct, frozen=True):
    """A deletion or an erasure, as the audit stream tells it."""

    kind: str
    id: str
    life: str
    version: int


def delete_gone(source: Log, target: Log, tenant: str) -> None:
    """Delete what was written to the destination before, and was deleted or erased at the source since."""
    kept = None
    for what, told in _told(source, tenant):
        stream = StreamKey(tenant, told.kind, told.id)
        copied = target.backend.head(stream)
        if copied is None or life_of(copied.incarnation) != told.life or copied.version > told.version:
            continue
        here = source.backend.head(stream)
        if what != ERASED and here is not None and here.incarnation == copied.incarnation:
            continue  # told, and then not done
        space = _memories(target, copied) if what == SUBJECT_ERASED else None
        if space is None:
            _delete(target, copied)
        kept = kept or space
    if kept is not None:
        raise AlreadyExists(
            f"{kept} has memories at the destination that were erased at the source since, because of whom they are about; "
            "delete the destination, and begin with an empty one"
        )


def _memories(target: Log, subject: Head) -> StreamKey | None:
    """A namespace at the destination that has memories about a subject. They cannot be taken out of it: nobody writes a stream anew."""
    for use in ops.run(target, uses(subject)):
        space = StreamKey(subject.stream.tenant, "memory", use.id)
        copied = target.backend.head(space) if use.kind == "memory" else None
        if copied is not None and life_of(copied.incarnation) == use.life:
            return space
    return None


def _delete(target: Log, copied: Head) -> None:
    ops.run(target, ops.delete(copied.stream, expected=copied))
    ops.run(target, delete_blobs(copied.stream, life_of(copied.incarnation)))


def _told(source: Log, tenant: str) -> Iterator[tuple[str, _Told]]:
    """What the audit stream tells of."""
    after = 0
    while page := ops.run(source, ops.read(audit_of(tenant), after=after, plain=True)):
        after = page[-1].version
        for stored in page:
            if (what := stored.envelope.type) in (DELETED, ERASED, SUBJECT_ERASED):
                try:
                    yield what, msgspec.convert(stored.envelope.data, _Told)
                except msgspec.ValidationError:
                    continue  # it tells of nothing
