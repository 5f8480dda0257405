"""Large values: kept in streams of their own, named by owner and digest, written before the event that names them.

A blob is one atomic append of chunks, so it is there whole or not at all; an orphan (the process died before
the event was appended) is harmless, found again by the retry, and deleted with its owner.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from ._events import Blob, Stamp
from ._operations import Append, Operation, append, delete, head, heads, read_records
from .backends import StreamKey
from .errors import Conflict, CorruptRecord, OutcomeUnknown, Unavailable

CHUNK_BYTES: Final = 1024 * 1024
_RAW: Final = b"\0"
"""First byte of a chunk's record, so that it can never be taken for an envelope."""


def owner_prefix(owner: StreamKey) -> str:
    """How the ids of all blobs of a stream begin. A digest, because an owner's id may be as long as an id can be."""
    text = f"{len(owner.kind)}:{owner.kind}{owner.id}"
    return sha256(text.encode()).hexdigest()[:32] + "-"


def blob_key(owner: StreamKey, blob: Blob) -> StreamKey:
    return StreamKey(owner.tenant, "blob", owner_prefix(owner) + blob.digest)


def put_blob(owner: StreamKey, value: bytes, stamp: Stamp) -> Operation[Blob]:
    """Store a value beside its owner, once for the same content."""
    blob = Blob(sha256(value).hexdigest(), len(value))
    key = blob_key(owner, blob)
    if (yield from head(key)) is None:
        chunks = [_RAW + value[at : at + CHUNK_BYTES] for at in range(0, len(value), CHUNK_BYTES)]
        try:
            yield from append(Append(key, chunks, stamp, expected=0))
        except Conflict:
            pass  # somebody else stored the same content in the meantime
        except OutcomeUnknown as error:
            # Not the caller's doubt: the event that names the value has not been sent, and an orphan is harmless.
            raise Unavailable(f"a large value of {owner} could not be stored; nothing was written") from error
    return blob


def get_blob(owner: StreamKey, blob: Blob) -> Operation[bytes]:
    """The value, checked against the digest that names it."""
    key = blob_key(owner, blob)
    chunks: list[bytes] = []
    size, version = 0, 0
    while size < blob.size:
        page = yield from read_records(key, after=version)
        if not page:
            break
        for record in page:
            chunks.append(record.body[1:])
            size += len(record.body) - 1
            version = record.version
    value = b"".join(chunks)
    if sha256(value).hexdigest() != blob.digest:
        raise CorruptRecord(str(owner), what=f"its large value {blob.digest[:12]}… is missing or altered")
    return value


def delete_blobs(owner: StreamKey) -> Operation[int]:
    """Delete every blob of a stream; how many."""
    prefix, count = owner_prefix(owner), 0
    after = prefix
    while True:
        found = yield from heads(owner.tenant, "blob", after=after)
        mine = [entry for entry in found if entry.stream.id.startswith(prefix)]
        for entry in mine:
            count += yield from delete(entry.stream, expected=entry)
            after = entry.stream.id
        if not mine or len(mine) < len(found):
            return count
