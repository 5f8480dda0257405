"""Verify one stream: its chain, its head, the content of its records, and its anchor entry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Final

import msgspec

from ...backends import Head, Record, StreamKey
from ...backends.retrying import PageReader, RetryingBackend
from ...errors import (
    DataProblem,
    Erased,
    NotEncrypted,
    TamperDetected,
    UnknownKey,
    UnsupportedVersion,
)
from ...log import chain
from ...log.codec import Undecodable
from ...log.events import Blob, Envelope, decode_envelope
from ...log.head_fields import NO_CHECKSUM, NO_FIELDS
from ...log.log import Log
from ...log.operations.blobs import FILE, blob_key, count_chunks, referenced_key
from ..anchors import AnchorEntry
from .chain import MAX_FAULTS, ChainFault, ChainWalk, ProblemKind

READ_ATTEMPTS: Final = 5
"""How often to restart a stream that is deleted and recreated while it is read."""

MAX_UNREADABLE: Final = 3
"""Stop reading a stream after this many unreadable records in a row."""

CHUNK_MARK: Final = b"\0"
"""The first byte of a part of a blob."""

DAMAGE_ERRORS = (DataProblem, UnsupportedVersion)
"""The errors of a backend or the event log for damaged data."""


class StreamVerdict(msgspec.Struct):
    """The result for a stream. `head` is None if there is no such stream."""

    head: Head | None = None
    faults: list[ChainFault] = []
    bytes: int = 0
    records: int = 0
    erased: bool = False


class StreamVerifier:
    """Verifies streams, from any number of threads. Calls `count(records, bytes)` for each page.

    With `since`, records up to the anchor are not read: only the hash there is compared. A blob is
    then read if a newly read record refers to it. In a full run every blob stream is verified on
    its own, so for a reference only its existence is checked.
    """

    def __init__(
        self, log: Log, store: RetryingBackend, *, since: bool, count: Callable[[int, int], None]
    ) -> None:
        self.log, self.store, self.since, self.count = log, store, since, count
        self.unfinished: set[StreamKey] = set()
        """Files whose content does not match their name, and blobs that cannot be decrypted.

        They are only leftovers, partially written or not deleted, unless a record refers to them.
        """

    def verify(self, stream: StreamKey, anchored: AnchorEntry | None = None) -> StreamVerdict:
        """Verify the current state of a stream. Never raises for stored data."""
        before: bytes | None = None
        for _ in range(READ_ATTEMPTS):
            verdict = _StreamCheck(self, stream, anchored).run()
            incarnation = verdict.head.incarnation if verdict.head else b""
            if not verdict.faults or incarnation == before:
                break
            # It may have been recreated while it was read, so faults count only if found twice.
            before = incarnation
        return verdict

    def stored_as(self, stream: StreamKey) -> StreamKey:
        cipher = self.log.cipher
        return stream if cipher is None else cipher.stored_key(stream)


class _StreamCheck:
    """One attempt to read a stream."""

    def __init__(
        self, verifier: StreamVerifier, stream: StreamKey, anchored: AnchorEntry | None
    ) -> None:
        self._verifier, self._store, self._log, self._stream = (
            verifier,
            verifier.store,
            verifier.log,
            stream,
        )
        self._anchored = anchored
        self._found = StreamVerdict(faults=[])
        self._reader = PageReader(verifier.store, stream, DAMAGE_ERRORS)
        self._digest = sha256()
        self._last: tuple[int, bytes | None] = (0, chain.GENESIS)
        """The version of the last record checked, and its hash, if that is correct."""
        self._broken = False

    def run(self) -> StreamVerdict:
        found = self._found
        try:
            # Read the first page before the head, so that the head must cover its records.
            page = self._reader.read(0) if self._trusted is None else None
        except DAMAGE_ERRORS:
            page = None  # it will be read again, and reported then
        try:
            head = found.head = self._store.head(self._stream)
        except DAMAGE_ERRORS as error:
            self._add(None, "unreadable", describe_damage(error))
            return found
        if head is None:
            if page:
                self._add(None, "head", "there are records, but no head")
            return found
        if head.fields == NO_FIELDS:
            self._add(None, "head", NO_CHECKSUM)
        try:
            self._log.reader.decode_head(head)
        except DAMAGE_ERRORS as error:
            self._add(None, "head", describe_damage(error))
        walk = self._start_walk(head)
        complete = self._walk(head, walk, page)
        found.faults += walk.faults
        if complete and not walk.gave_up:
            self._check_end(head, walk)
        return found

    # -- the chain ---------------------------------------------------------------------------------

    @property
    def _trusted(self) -> AnchorEntry | None:
        """The anchor entry to start reading from."""
        return self._anchored if self._verifier.since else None

    def _start_walk(self, head: Head) -> ChainWalk:
        seed = chain.seed(head.stream, head.incarnation)
        entry = self._anchored
        if entry is not None and entry.incarnation == head.incarnation.hex():
            if head.version < entry.version:
                what = f"it ends at version {head.version}, the anchor has version {entry.version}"
                self._add(head.version, "truncated", what)
            elif self._trusted is not None and self._has_entry(entry):
                return ChainWalk(seed, entry.version, bytes.fromhex(entry.hash))
        return ChainWalk(seed)

    def _has_entry(self, entry: AnchorEntry) -> bool:
        try:
            page = self._store.read(self._stream, after=entry.version - 1, limit=1)
        except DAMAGE_ERRORS:
            return False
        return bool(page) and (page[0].version, page[0].hash.hex()) == (entry.version, entry.hash)

    def _walk(self, head: Head, walk: ChainWalk, page: Sequence[Record] | None) -> bool:
        """Read and check all records up to the head. Return False if some are unreadable."""
        after, failures, rest = walk.version, 0, list[Record]()
        self._last = walk.version, walk.previous
        while after < head.version and not walk.gave_up:
            if page is None:
                try:
                    page = self._reader.read(after)
                except DAMAGE_ERRORS as error:
                    self._check_records(head, walk, rest, more=False)
                    after, failures, rest = after + 1, failures + 1, []
                    walk.add_unreadable(after, describe_damage(error))
                    if failures == MAX_UNREADABLE:
                        return False
                    continue
            if not page or page[-1].version <= after:
                break
            after, failures = page[-1].version, 0
            if after > head.version:
                self._check_beyond(head, page[-1])
            rest += [record for record in page if record.version <= head.version]
            rest = rest[self._check_records(head, walk, rest, more=after < head.version) :]
            page = None
        self._check_records(head, walk, rest, more=False)
        return True

    def _check_records(
        self, head: Head, walk: ChainWalk, records: Sequence[Record], *, more: bool
    ) -> int:
        """Check records and their content. Return how many; the last may wait for the next page."""
        if not records:
            return 0
        taken = walk.take(records, more=more)
        checked = records if taken == len(records) else records[:taken]
        bad = {fault.version for fault in walk.faults}
        entry, size = self._anchored, 0
        if entry is not None and entry.incarnation != head.incarnation.hex():
            entry = None
        for record in checked:
            size += len(record.body)
            previous = self._last[1] if self._last[0] + 1 == record.version else None
            self._last = record.version, None if record.version in bad else record.hash
            if record.version not in bad:
                if (
                    entry is not None
                    and record.version == entry.version
                    and record.hash.hex() != entry.hash
                ):
                    self._add(record.version, "forked", "the anchor has a different record here")
                self._check_content(head, record, previous)
        self._found.records += taken
        self._found.bytes += size
        self._verifier.count(taken, size)
        return taken

    def _check_beyond(self, head: Head, newest: Record) -> None:
        """Report records after the head, unless they were appended since."""
        now = self._store.head(self._stream)
        if now is not None and now.incarnation == head.incarnation and now.version < newest.version:
            self._add(
                now.version,
                "head",
                f"the head is at version {now.version}, but there are records after it",
            )

    def _check_end(self, head: Head, walk: ChainWalk) -> None:
        reached, found = walk.stored_version, self._found
        if reached < head.version:
            which = (
                f"version {head.version} is"
                if reached + 1 == head.version
                else f"versions to {head.version} are"
            )
            self._add(reached + 1, "missing", f"{which} missing, according to the head")
        elif walk.previous is not None and head.hash not in (walk.previous, walk.recomputed):
            self._add(head.version, "head", "the head has a different hash than the newest record")
        if (
            self._stream.kind == "blob"
            and not found.faults
            and not found.erased
            and not self._is_name_valid()
        ):
            if _is_file(self._stream):
                self._verifier.unfinished.add(self._stream)
            else:
                self._add(None, "value", "its content does not match its name")

    # -- the content of records --------------------------------------------------------------------

    def _check_content(self, head: Head, record: Record, previous: bytes | None) -> None:
        """Check that a record is an event, and that its blobs exist.

        Encryption binds a record to the one before it. If that one is damaged (which was reported),
        this one cannot be decrypted either.
        """
        cipher = self._log.cipher
        if (
            (previous is None or self._broken)
            and cipher is not None
            and cipher.encrypts(self._stream)
        ):
            return
        try:
            body = self._log.reader.decrypt_record(
                self._stream, head.incarnation, record, previous or b""
            )
            if self._stream.kind == "blob":
                if body[:1] != CHUNK_MARK:
                    raise Undecodable("it is not a part of a blob")
                self._digest.update(body[1:])
                return
            envelope = decode_envelope(body)
        except Erased:
            self._found.erased = True
            if cipher is not None and cipher.is_erasure_record(self._stream, record.body):
                # Earlier records may have been read with a cached key, after blobs were deleted.
                self._found.faults = [
                    fault for fault in self._found.faults if fault.what != "value"
                ]
        except DAMAGE_ERRORS as error:
            if self._stream.kind == "blob" and isinstance(error, UnknownKey | TamperDetected):
                # It may be a leftover of a deleted owner, whose key is gone. If a record still
                # refers to it, the check of that record reports it.
                self._broken = self._found.erased = True
                self._verifier.unfinished.add(self._stream)
                return
            self._broken = isinstance(error, NotEncrypted | TamperDetected)
            rest = (
                "; the following records cannot be decrypted either"
                if self._broken and record.version < head.version
                else ""
            )
            self._add(record.version, "undecodable", describe_damage(error) + rest)
        else:
            if envelope.blob is not None:
                key = blob_key(self._stream, envelope.blob)
                self._check_blob(record.version, key, envelope.blob)
            elif self._stream.kind == "task":
                self._check_task_blob(record.version, envelope)

    def _check_task_blob(self, version: int, envelope: Envelope) -> None:
        """Check the large result or file that the data of a task's event refers to."""
        if b'"blob"' not in bytes(envelope.data):
            return
        try:
            blob = msgspec.json.decode(envelope.data, type=_BlobReference).blob
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return  # reported by the reader of the task
        if blob is not None:
            self._check_blob(version, referenced_key(self._stream, envelope.type, blob), blob)

    def _check_blob(self, version: int, key: StreamKey, blob: Blob) -> None:
        """Check that a blob exists. Verify its content unless the blob is verified separately."""
        verifier, stream = self._verifier, key
        try:
            stream = verifier.stored_as(key)
            head = self._store.head(stream)
            valid = (head.version if head else 0) >= count_chunks(blob)
        except DAMAGE_ERRORS:
            valid = False
        if valid and (verifier.since or stream in verifier.unfinished):
            verifier.unfinished.discard(stream)
            valid = not verifier.verify(stream).faults and stream not in verifier.unfinished
        if not valid:
            what = "file" if _is_file(key) else "blob"
            self._add(
                version, "value", f"its {what} {blob.digest[:12]}… is missing, truncated or altered"
            )

    def _is_name_valid(self) -> bool:
        """Return whether the digest in a blob's name matches its content."""
        front = self._stream.id.split("-", 2)[:2] + ([FILE] if _is_file(self._stream) else [])
        plain = self._stream._replace(id="-".join([*front, self._digest.hexdigest()]))
        try:
            return self._verifier.stored_as(plain) == self._stream
        except DAMAGE_ERRORS:
            return False  # the key for such names is missing

    def _add(self, version: int | None, what: ProblemKind, details: str) -> None:
        if len(self._found.faults) < MAX_FAULTS:
            self._found.faults.append(ChainFault(version, what, details))


class _BlobReference(msgspec.Struct):
    """The part of an event's data that refers to a blob."""

    blob: Blob | None = None


def _is_file(blob: StreamKey) -> bool:
    return blob.id.split("-", 2)[-1].startswith(f"{FILE}-")


def describe_damage(error: Exception) -> str:
    """Return the problem that an error describes, without its advice."""
    return str(getattr(error, "what", None) or f"it cannot be read ({type(error).__name__})")
