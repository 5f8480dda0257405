"""Large values: kept in streams of their own, named by owner and digest, written before the event that names them.

A blob is one atomic append of chunks, so it is there whole or not at all; an orphan (the process died before
the event was appended) is harmless, found again by the retry, and deleted with its owner. A blob belongs to one life
of its owner: whoever deletes the stream while a large value is on its way makes that append begin again.

A file may be larger than memory: it is written and read chunk by chunk, in several appends, and what a killed process has
written of it is continued. It is whole when all of its chunks are there: whoever writes the last ones has seen that the digest fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from ..backends import Head, StreamKey
from ..errors import Conflict, CorruptRecord, NotFound, OutcomeUnknown, TooLarge, Unavailable
from .codec import MAX_STORED
from .events import AppendContext, Blob
from .ids import append_id
from .operations import AppendRecords, Operation, append, delete, head, heads, read_records

CHUNK_BYTES: Final = 1024 * 1024
FILE: Final = "file"
FILE_EVENT: Final = "task.attached"
"""The type of the event whose blob is a file; the blobs of all others are values."""
_RAW: Final = b"\0"
"""First byte of a chunk's record, so that it can never be taken for an envelope."""


def incarnation_hex(incarnation: bytes) -> str:
    return incarnation.hex()


def blob_prefix(owner: StreamKey, incarnation: str) -> str:
    """How the ids of all blobs of one life of a stream begin. With a digest, because an id may be as long as an id can be."""
    text = f"{len(owner.kind)}:{owner.kind}{owner.id}"
    return f"{sha256(text.encode()).hexdigest()[:32]}-{incarnation}-"


def blob_key(owner: StreamKey, blob: Blob) -> StreamKey:
    return StreamKey(owner.tenant, "blob", blob_prefix(owner, blob.incarnation) + blob.digest)


def file_key(owner: StreamKey, blob: Blob) -> StreamKey:
    """Not that of a value with the same content: a value that is there is whole."""
    return StreamKey(owner.tenant, "blob", f"{blob_prefix(owner, blob.incarnation)}file-{blob.digest}")


def referenced_key(owner: StreamKey, event_type: str, blob: Blob) -> StreamKey:
    """The stream of the blob that an event names within its data."""
    return (file_key if event_type == FILE_EVENT else blob_key)(owner, blob)


def is_file_name(id: str) -> bool:
    """Whether the stream of that id is a file's, not a value's. See `file_key`."""
    return id[66:].startswith("file-")


def chunks_of(blob: Blob) -> int:
    """How many chunks it has."""
    return -(-blob.size // CHUNK_BYTES)


def put_blob(
    owner: StreamKey, incarnation: str, value: bytes, stamp: AppendContext
) -> Operation[Blob]:
    """Store a value beside its owner, once for the same content."""
    if len(value) > MAX_STORED:
        raise TooLarge(f"{len(value)} bytes as JSON in one event, over the limit of {MAX_STORED}")
    blob = Blob(sha256(value).hexdigest(), len(value), incarnation)
    key = blob_key(owner, blob)
    if (yield from head(key)) is None:
        chunks = [_RAW + value[at : at + CHUNK_BYTES] for at in range(0, len(value), CHUNK_BYTES)]
        try:
            yield from append(AppendRecords(key, chunks, stamp, expected=0))
        except Conflict:
            pass  # somebody else stored the same content in the meantime
        except OutcomeUnknown as error:
            # Not the caller's doubt: the event that names the blob has not been sent.
            raise Unavailable(
                f"a large value of {owner} could not be stored; nothing was written"
            ) from error
    return blob


def get_blob(owner: StreamKey, blob: Blob) -> Operation[bytes]:
    """The value, checked against the digest that names it. Not more of it than it is said to have, nor than a value can have."""
    if blob.size > MAX_STORED:
        raise CorruptRecord(
            str(owner), what=f"its large value has {blob.size} bytes, which no value has"
        )
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
        raise (yield from _damage(owner, blob, "large value"))
    return value


def _damage(
    owner: StreamKey, blob: Blob, what: str
) -> Operation[CorruptRecord | NotFound | Unavailable]:
    """Why a blob is not what it should be."""
    if (yield from _is_gone(owner, blob.incarnation)):
        if what == FILE:
            return NotFound(f"{owner} was deleted, and its files with it")
        return Unavailable(f"{owner} was deleted while it was read; read it again")
    return CorruptRecord(str(owner), what=f"its {what} {blob.digest[:12]}… is missing or altered")


def _is_gone(owner: StreamKey, incarnation: str) -> Operation[bool]:
    now = yield from head(owner)
    return now is None or incarnation_hex(now.incarnation) != incarnation


# -- files -------------------------------------------------------------------------------------------------------------


def is_stored(owner: StreamKey, blob: Blob) -> Operation[bool]:
    """Whether a file is there, whole."""
    standing = yield from head(file_key(owner, blob))
    return (standing.version if standing else 0) >= chunks_of(blob)


def put_chunks(
    owner: StreamKey,
    blob: Blob,
    place: int,
    chunks: Sequence[bytes],
    incarnation: bytes | None,
    stamp: AppendContext,
) -> Operation[bytes | None]:
    """Write chunks at their place in a file, as far as they are not there. `Conflict` if another writer came first: run it again.

    `incarnation` is the life of the file's stream that its former chunks are in, and what is returned. None if this is
    over, or if other chunks are there: then the file has to be begun again.
    """
    key = file_key(owner, blob)
    standing = yield from head(key)
    if standing is not None and standing.version >= chunks_of(blob):
        return standing.incarnation  # another writer has finished it
    if standing is None:
        life, version = append_id(stamp.id), 0
    else:
        life, version = standing.incarnation, standing.version
    if version < place or incarnation not in (None, life):
        return None
    known = yield from _same(key, place, chunks[: version - place])
    if known < min(len(chunks), version - place):
        return None
    if known < len(chunks):
        bodies = [_RAW + chunk for chunk in chunks[known:]]
        try:
            yield from append(
                AppendRecords(key, bodies, stamp, expected=place + known, incarnation=life)
            )
        except OutcomeUnknown as error:
            raise Unavailable(
                f"a file of {owner} could not be stored; nothing was attached"
            ) from error
    return life


def _same(key: StreamKey, place: int, chunks: Sequence[bytes]) -> Operation[int]:
    """How many of the chunks are stored, from that place on."""
    known = 0
    while known < len(chunks):
        try:
            page = yield from read_records(key, after=place + known)
        except CorruptRecord:
            return known
        for record in page:
            if known == len(chunks) or record.body != _RAW + chunks[known]:
                return known
            known += 1
        if not page:
            break
    return known


def drop_half(owner: StreamKey, blob: Blob) -> Operation[None]:
    """Delete what there is of a file, unless it is whole."""
    standing = yield from head(file_key(owner, blob))
    if standing is not None and standing.version < chunks_of(blob):
        yield from delete(standing.stream, expected=standing)


def drop_orphans(owner: StreamKey, incarnation: str) -> Operation[None]:
    """Delete what was written for a stream that has been deleted meanwhile."""
    if (yield from _is_gone(owner, incarnation)):
        yield from delete_blobs(owner, incarnation)


class FileReader:
    """A file, page by page. Read from its beginning, it is checked against its digest before its last chunk is given."""

    def __init__(self, owner: StreamKey, blob: Blob) -> None:
        self._owner, self._blob = owner, blob
        self._digest, self._hashed = sha256(), 0

    def page(self, place: int) -> Operation[list[bytes]]:
        """The chunks from a place on, as many as come at once; none at the end."""
        blob, count = self._blob, chunks_of(self._blob)
        chunks: list[bytes] = []
        if place < count:
            records = yield from read_records(file_key(self._owner, blob), after=place)
            chunks = [record.body[1:] for record in records]
            sizes = [
                min(CHUNK_BYTES, blob.size - at * CHUNK_BYTES)
                for at in range(place, place + len(chunks))
            ]
            if not chunks or list(map(len, chunks)) != sizes:
                raise (yield from _damage(self._owner, blob, FILE))
        if place <= self._hashed:
            for chunk in chunks[self._hashed - place :]:
                self._digest.update(chunk)
                self._hashed += 1
        if self._hashed == count and self._digest.hexdigest() != blob.digest:
            raise (yield from _damage(self._owner, blob, FILE))
        return chunks


def delete_blobs(owner: StreamKey, incarnation: str) -> Operation[int]:
    """Delete every blob of a life of a stream; how many."""
    prefix, count = blob_prefix(owner, incarnation), 0
    after = prefix
    while True:
        found = yield from heads(owner.tenant, "blob", after=after)
        mine = [entry for entry in found if entry.stream.id.startswith(prefix)]
        for entry in mine:
            there = entry if isinstance(entry, Head) else (yield from head(entry.stream))
            if there is not None:
                count += yield from delete(entry.stream, expected=there)
            after = entry.stream.id
        if not mine or len(mine) < len(found):
            return count
