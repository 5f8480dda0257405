"""Large values: kept in streams of their own, named by owner and digest, written before the event that names them.

A blob is one atomic append of chunks, so it is there whole or not at all; an orphan (the process died before
the event was appended) is harmless, found again by the retry, and deleted with its owner. A blob belongs to one life
of its owner: whoever deletes the stream while a large value is on its way makes that append begin again.
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


def life_of(incarnation: bytes) -> str:
    return incarnation.hex()


def blob_prefix(owner: StreamKey, life: str) -> str:
    """How the ids of all blobs of one life of a stream begin. With a digest, because an id may be as long as an id can be."""
    text = f"{len(owner.kind)}:{owner.kind}{owner.id}"
    return f"{sha256(text.encode()).hexdigest()[:32]}-{life}-"


def blob_key(owner: StreamKey, blob: Blob) -> StreamKey:
    return StreamKey(owner.tenant, "blob", blob_prefix(owner, blob.life) + blob.digest)


def put_blob(owner: StreamKey, life: str, value: bytes, stamp: Stamp) -> Operation[Blob]:
    """Store a value beside its owner, once for the same content."""
    blob = Blob(sha256(value).hexdigest(), len(value), life)
    key = blob_key(owner, blob)
    if (yield from head(key)) is None:
        chunks = [_RAW + value[at : at + CHUNK_BYTES] for at in range(0, len(value), CHUNK_BYTES)]
        try:
            yield from append(Append(key, chunks, stamp, expected=0))
        except Conflict:
            pass  # somebody else stored the same content in the meantime
        except OutcomeUnknown as error:
            # Not the caller's doubt: the event that names the blob has not been sent.
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
        now = yield from head(owner)
        if now is None or life_of(now.incarnation) != blob.life:
            raise Unavailable(f"{owner} was deleted while it was read; read it again")
        raise CorruptRecord(str(owner), what=f"its large value {blob.digest[:12]}… is missing or altered")
    return value


def delete_blobs(owner: StreamKey, life: str) -> Operation[int]:
    """Delete every blob of a life of a stream; how many."""
    prefix, count = blob_prefix(owner, life), 0
    after = prefix
    while True:
        found = yield from heads(owner.tenant, "blob", after=after)
        mine = [entry for entry in found if entry.stream.id.startswith(prefix)]
        for entry in mine:
            count += yield from delete(entry.stream, expected=entry)
            after = entry.stream.id
        if not mine or len(mine) < len(found):
            return count
