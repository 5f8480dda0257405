"""Verifying one stream: its chain, its head, what its records hold, and where an anchor says that it stood."""

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
from ...log.blobs import FILE, blob_key, chunks_of, incarnation_hex, referenced_key
from ...log.codec import Undecodable
from ...log.events import Blob, Envelope, open_envelope
from ...log.log import Log
from ..anchors import AnchorEntry
from .chain import FAULTS, ChainFault, ChainWalk, ProblemKind

TRIES: Final = 5
"""How often a stream that is deleted and begun anew while it is read is begun with again."""

UNREADABLE: Final = 3
"""After so many records in a row that the engine cannot read, the rest of the stream is left."""

CHUNK: Final = b"\0"
"""How a part of a large value begins."""

Damage = (DataProblem, UnsupportedVersion)
"""What an engine, or the log, says of stored bytes that are not what they should be."""


class StreamVerdict(msgspec.Struct):
    """What there is to say about a stream. `head` is None if there is no such stream."""

    head: Head | None = None
    faults: list[ChainFault] = []
    bytes: int = 0
    records: int = 0
    erased: bool = False


class Verifier:
    """Verifies streams, from any number of threads. `count(records, bytes)` is called for each page.

    With `since`, records up to the anchor are not read: only that the hash there is still the same. Large values are then read when
    a record is that names them; else all of them are read anyway, and it is only looked whether they are there.
    """

    def __init__(
        self, log: Log, store: RetryingBackend, *, since: bool, count: Callable[[int, int], None]
    ) -> None:
        self.log, self.store, self.since, self.count = log, store, since, count
        self.unfinished: set[StreamKey] = set()
        """Files whose content is not that of their name, and large values that cannot be opened: nobody has finished writing them, or nobody has
        deleted them, unless a record names them."""

    def verify(self, stream: StreamKey, anchored: AnchorEntry | None = None) -> StreamVerdict:
        """Everything about a stream, as it is now. Never raises for what is stored."""
        before: bytes | None = None
        for _ in range(TRIES):
            verdict = _Reading(self, stream, anchored).run()
            incarnation = verdict.head.incarnation if verdict.head else b""
            if not verdict.faults or incarnation == before:
                break
            before = incarnation  # it may have been deleted and begun anew while it was read: what is wrong is so twice
        return verdict

    def stored_as(self, stream: StreamKey) -> StreamKey:
        cipher = self.log.cipher
        return stream if cipher is None else cipher.stored_as(stream)


class _Reading:
    """One attempt to read a stream."""

    def __init__(self, verifier: Verifier, stream: StreamKey, anchored: AnchorEntry | None) -> None:
        self._verifier, self._store, self._log, self._stream = (
            verifier,
            verifier.store,
            verifier.log,
            stream,
        )
        self._anchored = anchored
        self._found = StreamVerdict(faults=[])
        self._reader = PageReader(verifier.store, stream, Damage)
        self._digest = sha256()
        self._last: tuple[int, bytes | None] = (0, chain.GENESIS)
        """The version of the record that was looked at last, and its hash, if that is right."""
        self._torn = False

    def run(self) -> StreamVerdict:
        found = self._found
        try:
            # The page first: what it holds, the head has to know of.
            page = self._reader.read(0) if self._trusted is None else None
        except Damage:
            page = None  # it is read again, and told then
        try:
            head = found.head = self._store.head(self._stream)
        except Damage as error:
            self._add(None, "unreadable", _words(error))
            return found
        if head is None:
            if page:
                self._add(None, "head", "there are records, and no head")
            return found
        if not self._label_opens(head):
            self._add(
                None, "head", "its label was altered, or put there by somebody without the key"
            )
        walk = self._begin(head)
        whole = self._walk(head, walk, page)
        found.faults += walk.faults
        if whole and not walk.gave_up:
            self._look_at_end(head, walk)
        return found

    # -- the chain -----------------------------------------------------------------------------------------------------

    @property
    def _trusted(self) -> AnchorEntry | None:
        """From where on to read, because an anchor says what is right there."""
        return self._anchored if self._verifier.since else None

    def _begin(self, head: Head) -> ChainWalk:
        seed = chain.seed(head.stream, head.incarnation)
        place = self._anchored
        if place is not None and place.incarnation == incarnation_hex(head.incarnation):
            if head.version < place.version:
                what = f"it ends at version {head.version}, and the anchor has seen version {place.version}"
                self._add(head.version, "truncated", what)
            elif self._trusted is not None and self._is_at(place):
                return ChainWalk(seed, place.version, bytes.fromhex(place.hash))
        return ChainWalk(seed)

    def _is_at(self, place: AnchorEntry) -> bool:
        try:
            page = self._store.read(self._stream, after=place.version - 1, limit=1)
        except Damage:
            return False
        return bool(page) and (page[0].version, page[0].hash.hex()) == (place.version, place.hash)

    def _walk(self, head: Head, walk: ChainWalk, page: Sequence[Record] | None) -> bool:
        """Read and judge all records up to where the head stands. False if not all that is there could be read."""
        after, failures, rest = walk.version, 0, list[Record]()
        self._last = walk.version, walk.previous
        while after < head.version and not walk.gave_up:
            if page is None:
                try:
                    page = self._reader.read(after)
                except Damage as error:
                    self._judge(head, walk, rest, more=False)
                    after, failures, rest = after + 1, failures + 1, []
                    walk.unreadable(after, _words(error))
                    if failures == UNREADABLE:
                        return False
                    continue
            if not page or page[-1].version <= after:
                break
            after, failures = page[-1].version, 0
            if after > head.version:
                self._look_beyond(head, page[-1])
            rest += [record for record in page if record.version <= head.version]
            rest = rest[self._judge(head, walk, rest, more=after < head.version) :]
            page = None
        self._judge(head, walk, rest, more=False)
        return True

    def _judge(self, head: Head, walk: ChainWalk, records: Sequence[Record], *, more: bool) -> int:
        """Judge records and look at what they hold; how many, for the last may have to wait for what follows."""
        if not records:
            return 0
        taken = walk.take(records, more=more)
        judged = records if taken == len(records) else records[:taken]
        bad = {fault.version for fault in walk.faults}
        place, size = self._anchored, 0
        if place is not None and place.incarnation != incarnation_hex(head.incarnation):
            place = None
        for record in judged:
            size += len(record.body)
            previous = self._last[1] if self._last[0] + 1 == record.version else None
            self._last = record.version, None if record.version in bad else record.hash
            if record.version not in bad:
                if (
                    place is not None
                    and record.version == place.version
                    and record.hash.hex() != place.hash
                ):
                    self._add(record.version, "forked", "the anchor has seen another record here")
                self._look_inside(head, record, previous)
        self._found.records += taken
        self._found.bytes += size
        self._verifier.count(taken, size)
        return taken

    def _look_beyond(self, head: Head, newest: Record) -> None:
        """Records after the head: somebody has appended since, or has put them there."""
        now = self._store.head(self._stream)
        if now is not None and now.incarnation == head.incarnation and now.version < newest.version:
            self._add(
                now.version,
                "head",
                f"the head is at version {now.version}, and there are records after it",
            )

    def _look_at_end(self, head: Head, walk: ChainWalk) -> None:
        reached, found = walk.stored_version, self._found
        if reached < head.version:
            which = (
                f"version {head.version} is"
                if reached + 1 == head.version
                else f"versions to {head.version} are"
            )
            self._add(
                reached + 1, "missing", f"{which} not there, and the head says that there are"
            )
        elif walk.previous is not None and head.hash not in (walk.previous, walk.recomputed):
            self._add(head.version, "head", "the head has another hash than the newest record")
        if (
            self._stream.kind == "blob"
            and not found.faults
            and not found.erased
            and not self._names_its_content()
        ):
            if _is_file(self._stream):
                self._verifier.unfinished.add(self._stream)
            else:
                self._add(None, "value", "the content is not that of its name")

    def _label_opens(self, head: Head) -> bool:
        """In an encrypted store, whether the label in a head is one that was sealed for it. In another, whoever reads it judges."""
        cipher = self._log.cipher
        return cipher is None or cipher.opens_label(head)

    # -- what records hold ---------------------------------------------------------------------------------------------

    def _look_inside(self, head: Head, record: Record, previous: bytes | None) -> None:
        """What is sealed is bound to the record before it: where that is damaged, which was told, it cannot be opened either."""
        cipher = self._log.cipher
        if (previous is None or self._torn) and cipher is not None and cipher.seals(self._stream):
            return
        try:
            body = self._log.opened(self._stream, head.incarnation, record, previous or b"")
            if self._stream.kind == "blob":
                if body[:1] != CHUNK:
                    raise Undecodable("it is no part of a large value")
                self._digest.update(body[1:])
                return
            envelope = open_envelope(body)
        except Erased:
            self._found.erased = True
            if cipher is not None and cipher.is_mark(self._stream, record.body):
                # Records before it may have been read with a key that was not forgotten yet, when large values were gone already.
                self._found.faults = [
                    fault for fault in self._found.faults if fault.what != "value"
                ]
        except Damage as error:
            if self._stream.kind == "blob" and isinstance(error, UnknownKey | TamperDetected):
                # It may be left of an owner that was deleted, and its key with it. If a record names it, that tells of it.
                self._torn = self._found.erased = True
                self._verifier.unfinished.add(self._stream)
                return
            self._torn = isinstance(error, NotEncrypted | TamperDetected)
            rest = (
                "; nor can what follows it be opened"
                if self._torn and record.version < head.version
                else ""
            )
            self._add(record.version, "undecodable", _words(error) + rest)
        else:
            if envelope.blob is not None:
                self._look_for(record.version, blob_key(self._stream, envelope.blob), envelope.blob)
            elif self._stream.kind == "task":
                self._look_for_results(record.version, envelope)

    def _look_for_results(self, version: int, envelope: Envelope) -> None:
        """Large results and files are named within the data of a task's events."""
        if b'"blob"' not in bytes(envelope.data):
            return
        try:
            blob = msgspec.json.decode(envelope.data, type=_Naming).blob
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return  # of a form that whoever reads the task judges
        if blob is not None:
            self._look_for(version, referenced_key(self._stream, envelope.type, blob), blob)

    def _look_for(self, version: int, key: StreamKey, blob: Blob) -> None:
        """Whether a large value is there. Its content was looked at before, unless it was unfinished or only news are looked at."""
        verifier, stream = self._verifier, key
        try:
            stream = verifier.stored_as(key)
            head = self._store.head(stream)
            there = (head.version if head else 0) >= chunks_of(blob)
        except Damage:
            there = False
        if there and (verifier.since or stream in verifier.unfinished):
            verifier.unfinished.discard(stream)
            there = not verifier.verify(stream).faults and stream not in verifier.unfinished
        if not there:
            what = "file" if _is_file(key) else "large value"
            self._add(
                version, "value", f"its {what} {blob.digest[:12]}… is missing, cut off or altered"
            )

    def _names_its_content(self) -> bool:
        """Whether the digest in the name of a large value is that of what it holds."""
        front = self._stream.id.split("-", 2)[:2] + ([FILE] if _is_file(self._stream) else [])
        plain = self._stream._replace(id="-".join([*front, self._digest.hexdigest()]))
        try:
            return self._verifier.stored_as(plain) == self._stream
        except Damage:
            return False  # the key that such names are made with is not there

    def _add(self, version: int | None, what: ProblemKind, details: str) -> None:
        if len(self._found.faults) < FAULTS:
            self._found.faults.append(ChainFault(version, what, details))


class _Naming(msgspec.Struct):
    """The part of an event's data that names a large value."""

    blob: Blob | None = None


def _is_file(blob: StreamKey) -> bool:
    return blob.id.split("-", 2)[-1].startswith(f"{FILE}-")


def _words(error: Exception) -> str:
    """What is wrong, without the advice."""
    return str(getattr(error, "what", None) or f"it cannot be read ({type(error).__name__})")
