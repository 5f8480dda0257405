"""Blobs: large values and files, each in its own stream, named by owner and digest.

A value is one atomic append of chunks, written before the event that refers to it. If the process
dies before that event is appended, the orphan is harmless: a retry finds it, and it is deleted with
its owner. A blob belongs to one incarnation of its owner. If the owner is deleted while a value is
being written, the append starts again.

A file may be larger than memory. It is written and read chunk by chunk, in several appends, and a
file that a killed process left incomplete is continued. It is complete when all chunks are stored:
the writer of the last ones has checked the digest.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from ...backends import Head, HeadSummary, StreamKey
from ...errors import (
    Conflict,
    CorruptRecord,
    DataProblem,
    NotFound,
    OutcomeUnknown,
    TooLarge,
    Unavailable,
)
from ..codec import MAX_STORED_BYTES
from ..events import AppendContext, Blob
from ..ids import append_id
from . import AppendRecords, Operation, append, delete, discard, head, heads, read_records

CHUNK_BYTES: Final = 1024 * 1024
FILE: Final = "file"
FILE_EVENT: Final = "task.attached"
"""The type of the event whose blob is a file; the blobs of all other events are values."""
_CHUNK_PREFIX: Final = b"\0"
"""The first byte of a chunk's record, so that it is never mistaken for an envelope."""


def blob_prefix(owner: StreamKey, incarnation: str) -> str:
    """Return the prefix of the ids of all blobs of one incarnation of a stream.

    It has a digest of the owner's id, which may itself have the maximum length of an id.
    """
    text = f"{len(owner.kind)}:{owner.kind}{owner.id}"
    return f"{sha256(text.encode()).hexdigest()[:32]}-{incarnation}-"


def blob_key(owner: StreamKey, blob: Blob) -> StreamKey:
    return StreamKey(owner.tenant, "blob", blob_prefix(owner, blob.incarnation) + blob.digest)


def file_key(owner: StreamKey, blob: Blob) -> StreamKey:
    """Return the key of a file. A value with the same content has another key."""
    return StreamKey(
        owner.tenant, "blob", f"{blob_prefix(owner, blob.incarnation)}file-{blob.digest}"
    )


def referenced_key(owner: StreamKey, event_type: str, blob: Blob) -> StreamKey:
    """Return the stream of the blob that an event refers to in its data."""
    return (file_key if event_type == FILE_EVENT else blob_key)(owner, blob)


def is_file_id(id: str) -> bool:
    """Return whether a blob id is that of a file; see `file_key`."""
    return id[66:].startswith("file-")


def count_chunks(blob: Blob) -> int:
    return -(-blob.size // CHUNK_BYTES)


def put_blob(
    owner: StreamKey, incarnation: str, value: bytes, stamp: AppendContext
) -> Operation[Blob]:
    """Store a value as a blob of its owner, unless the same content is stored already."""
    if len(value) > MAX_STORED_BYTES:
        raise TooLarge(
            f"an event must be at most {MAX_STORED_BYTES} bytes as JSON, got {len(value)}"
        )
    blob = Blob(sha256(value).hexdigest(), len(value), incarnation)
    key = blob_key(owner, blob)
    if (yield from head(key)) is None:
        chunks = [
            _CHUNK_PREFIX + value[at : at + CHUNK_BYTES] for at in range(0, len(value), CHUNK_BYTES)
        ]
        try:
            yield from append(AppendRecords(key, chunks, stamp, expected=0))
        except Conflict:
            pass  # another writer stored the same content first
        except OutcomeUnknown as error:
            # The event that refers to the blob has not been sent, so its outcome is known.
            raise Unavailable(
                f"a large value of {owner} could not be stored; nothing was written; retry"
            ) from error
    return blob


def get_blob(owner: StreamKey, blob: Blob) -> Operation[bytes]:
    """Return the value, checked against its digest. Read no more bytes than its size."""
    if blob.size > MAX_STORED_BYTES:
        raise CorruptRecord(
            str(owner),
            what=f"its large value has {blob.size} bytes, over the limit of {MAX_STORED_BYTES}",
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
        raise (yield from _explain_damage(owner, blob, "large value"))
    return value


def _explain_damage(
    owner: StreamKey, blob: Blob, what: str
) -> Operation[CorruptRecord | NotFound | Unavailable]:
    """Return the error for a blob that does not match its digest."""
    if (yield from _is_gone(owner, blob.incarnation)):
        if what == FILE:
            return NotFound(f"{owner} and its files were deleted")
        return Unavailable(f"{owner} was deleted during the read; read it again")
    return CorruptRecord(str(owner), what=f"its {what} {blob.digest[:12]}… is missing or altered")


def _is_gone(owner: StreamKey, incarnation: str) -> Operation[bool]:
    now = yield from head(owner)
    return now is None or now.incarnation.hex() != incarnation


# -- files -----------------------------------------------------------------------------------------


def is_stored(owner: StreamKey, blob: Blob) -> Operation[bool]:
    """Return whether a file is stored completely."""
    stored = yield from head(file_key(owner, blob))
    return (stored.version if stored else 0) >= count_chunks(blob)


def put_chunks(
    owner: StreamKey,
    blob: Blob,
    place: int,
    chunks: Sequence[bytes],
    incarnation: bytes | None,
    stamp: AppendContext,
) -> Operation[bytes | None]:
    """Write the chunks that are not stored yet. The first one has the number `place`.

    `incarnation` is that of the file's stream, which has the chunks before them; None at the start.
    Return the incarnation that holds the chunks. Return None if the given one is gone, or if other
    chunks are stored: the caller then writes the file again from the start. Raise `Conflict` if
    another writer appended first; the caller then runs the operation again.
    """
    key = file_key(owner, blob)
    stored = yield from head(key)
    if stored is not None and stored.version >= count_chunks(blob):
        return stored.incarnation  # another writer has completed the file
    current, version = append_id(stamp.id), 0
    if stored is not None:
        current, version = stored.incarnation, stored.version
    if version < place or incarnation not in (None, current):
        return None
    known = yield from _count_stored(key, place, chunks[: version - place])
    if known < min(len(chunks), version - place):
        return None
    if known < len(chunks):
        bodies = [_CHUNK_PREFIX + chunk for chunk in chunks[known:]]
        try:
            yield from append(
                AppendRecords(key, bodies, stamp, expected=place + known, incarnation=current)
            )
        except OutcomeUnknown as error:
            raise Unavailable(
                f"a file of {owner} could not be stored; nothing was attached; retry"
            ) from error
    return current


def _count_stored(key: StreamKey, place: int, chunks: Sequence[bytes]) -> Operation[int]:
    """Count how many of the chunks are stored, from chunk number `place` on."""
    known = 0
    while known < len(chunks):
        try:
            page = yield from read_records(key, after=place + known)
        except CorruptRecord:
            return known
        for record in page:
            if known == len(chunks) or record.body != _CHUNK_PREFIX + chunks[known]:
                return known
            known += 1
        if not page:
            break
    return known


def delete_partial_file(owner: StreamKey, blob: Blob) -> Operation[None]:
    """Delete the stored chunks of a file unless it is complete."""
    stored = yield from head(file_key(owner, blob))
    if stored is not None and stored.version < count_chunks(blob):
        yield from delete(stored.stream, expected=stored)


def delete_orphans(owner: StreamKey, incarnation: str) -> Operation[None]:
    """Delete the blobs of an incarnation that was deleted while they were written."""
    if (yield from _is_gone(owner, incarnation)):
        yield from delete_blobs(owner, incarnation)


class FileReader:
    """Reads a file page by page.

    If it is read from the start, its digest is checked before the last chunk is returned.
    """

    def __init__(self, owner: StreamKey, blob: Blob) -> None:
        self._owner, self._blob = owner, blob
        self._digest, self._hashed = sha256(), 0

    def read_page(self, place: int) -> Operation[list[bytes]]:
        """Return one page of chunks from number `place` on; empty at the end."""
        blob, count = self._blob, count_chunks(self._blob)
        chunks: list[bytes] = []
        if place < count:
            records = yield from read_records(file_key(self._owner, blob), after=place)
            chunks = [record.body[1:] for record in records]
            sizes = [
                min(CHUNK_BYTES, blob.size - at * CHUNK_BYTES)
                for at in range(place, place + len(chunks))
            ]
            if not chunks or list(map(len, chunks)) != sizes:
                raise (yield from _explain_damage(self._owner, blob, FILE))
        if place <= self._hashed:
            for chunk in chunks[self._hashed - place :]:
                self._digest.update(chunk)
                self._hashed += 1
        if self._hashed == count and self._digest.hexdigest() != blob.digest:
            raise (yield from _explain_damage(self._owner, blob, FILE))
        return chunks


def delete_blobs(owner: StreamKey, incarnation: str) -> Operation[int]:
    """Delete every blob of one incarnation of a stream. Return the number of deleted blobs.

    With an empty incarnation, delete those of all incarnations.
    """
    prefix, count = blob_prefix(owner, incarnation), 0
    after = prefix = prefix if incarnation else prefix[:-1]
    while True:
        found = yield from heads(owner.tenant, "blob", after=after, damaged=True)
        mine = [entry for entry in found if entry.stream.id.startswith(prefix)]
        for entry in mine:
            current: HeadSummary | None = entry
            if not isinstance(entry, Head):
                try:
                    current = yield from head(entry.stream, damaged=True)
                except DataProblem:
                    yield from discard(entry.stream)
                    continue
            if isinstance(current, Head):
                count += yield from delete(entry.stream, expected=current)
            after = entry.stream.id
        if not mine or len(mine) < len(found):
            return count
