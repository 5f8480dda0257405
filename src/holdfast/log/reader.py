"""Read from a backend: heads, listings, and records that are checked before they are returned.

A page of records is compared with the hash chain and with what this process knows of the stream.
Damaged, missing or altered records raise `CorruptRecord`; those before the damage can still be
read. In an encrypted store, records and heads are decrypted here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from ..backends import (
    AppendResult,
    Backend,
    Head,
    HeadFields,
    HeadSummary,
    Record,
    StreamKey,
    SupportsFirstHead,
    SupportsSalvage,
    find_first_head,
)
from ..errors import CorruptRecord, Erased, TamperDetected
from . import chain
from . import operations as ops
from .appender import StreamPosition
from .codec import Undecodable
from .events import StoredEvent, decode_envelope, decode_plain_envelope
from .head_fields import NO_FIELDS, decode_fields, encode_fields
from .ids import append_id

if TYPE_CHECKING:
    from ..encryption.cipher import Cipher

MAX_KNOWN_STREAMS: Final = 10_000
MAX_REREADS: Final = 3
SALVAGE_LIMITS: Final = (256, 32, 4, 1)
"""How many records to request when a page cannot be read, to get those before the damage."""
ERASED_BODY: Final = b'{"id":"","type":"erased","at":0}'
"""The body that replaces a record whose own key was erased."""
_ENDLESS_LISTING: Final = "it is listed out of order, so the listing would never end"

H = TypeVar("H", bound=HeadSummary)

logger = logging.getLogger("holdfast")


class LogReader:
    """Reads streams of a backend. `known` holds the positions of streams, which appends use too."""

    def __init__(
        self, backend: Backend, cipher: Cipher | None, known: dict[StreamKey, StreamPosition]
    ) -> None:
        self.backend, self._cipher, self._known = backend, cipher, known
        self._has_first_head = isinstance(backend, SupportsFirstHead)  # slow, so asked once
        self._left_out: set[StreamKey] = set()
        self._lock = threading.Lock()

    def remember_position(self, stream: StreamKey, position: StreamPosition) -> None:
        """Remember a position, unless a newer one is known. Forget some old ones if needed."""
        known = self._known
        with self._lock:
            if len(known) >= MAX_KNOWN_STREAMS:
                for old in list(known)[: MAX_KNOWN_STREAMS // 10]:
                    found = known.get(old)
                    # The position of a stream with an append in flight must stay.
                    if found is not None and found.version == found.acknowledged:
                        known.pop(old, None)
            known.setdefault(stream, position)

    def _read_position(self, stream: StreamKey) -> StreamPosition:
        """Read the position of a stream and remember it. If its end is damaged, return an older.

        No append may build on an older one, so that is not remembered.
        """
        try:
            head = self.backend.head(stream)
        except CorruptRecord:
            older = self._head_before_damage(stream)
            if older is None:
                raise
            return StreamPosition(stream, older)
        position = StreamPosition(stream, head)
        if head is not None:  # the tenant of a missing stream may have to be registered first
            self.remember_position(stream, position)
        return position

    def _head_before_damage(self, stream: StreamKey, upto: int = 1) -> Head | None:
        """Return the newest readable head of a damaged stream, at `upto` or later; or None."""
        if not isinstance(self.backend, SupportsSalvage):
            return None
        head = self.backend.head_before_damage(stream)
        return None if head is None or head.version < upto else head

    # -- heads ---------------------------------------------------------------------------------

    def head(self, request: ops.GetHead) -> Head | None:
        try:
            head = self.backend.head(request.stream)
        except CorruptRecord:
            if request.upto is None:
                raise
            head = self._head_before_damage(request.stream, request.upto)
            if head is None:
                raise
        else:
            if head is not None and head.stream not in self._known:
                self.remember_position(head.stream, StreamPosition(head.stream, head))
        return None if head is None else self._decode_or_strip(head, request.damaged)

    def first_head(self, request: ops.GetFirstHead) -> Head | None:
        backend: Any = self.backend
        if self._has_first_head:
            head: Head | None = backend.first_head(request.streams)
        else:
            head = find_first_head(backend.head, request.streams)
        if head is None:
            return None
        if head.stream not in self._known:
            self.remember_position(head.stream, StreamPosition(head.stream, head))
        return self.decode_head(head)

    def find_append(self, request: ops.FindAppend) -> AppendResult | None:
        found = self.backend.find_append(request.stream, append_id(request.id))
        return None if found is None else AppendResult(*found, duplicate=True)

    def heads(self, request: ops.ListHeads) -> Sequence[HeadSummary]:
        after = request.after
        # Only an empty page means the end, so a page of damaged entries must not look like one.
        while page := self.backend.heads(
            tenant=request.tenant,
            kind=request.kind,
            status=request.status,
            after=after,
            limit=request.limit,
        ):
            if page[-1].stream.id <= after:
                raise CorruptRecord(str(page[-1].stream), what=_ENDLESS_LISTING)
            after = page[-1].stream.id
            if request.with_position:
                page = [self._resolve_head(head) for head in page]
            if heads := list(self._decode_listed(page, request.damaged)):
                return heads
        return []

    def _resolve_head(self, listed: HeadSummary) -> HeadSummary:
        """Return the full head of a listed stream, or the entry itself if it is gone or damaged."""
        if isinstance(listed, Head):
            return listed
        try:
            return self.backend.head(listed.stream) or listed
        except CorruptRecord:
            return listed

    def due(self, request: ops.ListDue) -> Sequence[HeadSummary]:
        after = request.after
        while page := self.backend.due(
            tenant=request.tenant,
            kind=request.kind,
            before=request.before,
            after=after,
            limit=request.limit,
        ):
            last = page[-1].fields.due or 0.0, page[-1].stream.id
            if after is not None and not last > after:
                raise CorruptRecord(str(page[-1].stream), what=_ENDLESS_LISTING)
            after = last
            if heads := list(self._decode_listed(page)):
                return heads
        return []

    def encode_fields(
        self, stream: StreamKey, incarnation: bytes, fields: HeadFields
    ) -> HeadFields:
        """Return the fields of a head as they are stored."""
        if self._cipher is not None and self._cipher.encrypts(stream):
            return self._cipher.encrypt_fields(stream, incarnation, fields)
        return encode_fields(chain.seed(stream, incarnation), fields)

    def decode_head(self, head: H) -> H:
        """Return a stored head with its fields as they were appended.

        Raise `CorruptRecord` or `TamperDetected` if one of them was altered.
        """
        if self._cipher is not None and self._cipher.encrypts(head.stream):
            fields = self._cipher.decrypt_fields(head)
        else:
            fields = decode_fields(head)
        return msgspec.structs.replace(head, fields=fields)

    def _decode_or_strip(self, head: H, damaged: bool) -> H:
        """Return a decoded head. With `damaged`, drop its fields if they were altered."""
        try:
            return self.decode_head(head)
        except (CorruptRecord, TamperDetected):
            if not damaged:
                raise
            return msgspec.structs.replace(head, fields=NO_FIELDS)

    def _decode_listed(self, heads: Iterable[H], damaged: bool = False) -> Iterator[H]:
        """Yield the entries of a listing, without those that were altered (see `verify`)."""
        for head in heads:
            try:
                yield self._decode_or_strip(head, damaged)
            except (CorruptRecord, TamperDetected) as error:
                if head.stream not in self._left_out:
                    if len(self._left_out) >= MAX_KNOWN_STREAMS:
                        self._left_out.clear()
                    self._left_out.add(head.stream)
                    logger.error("left out of a listing: %s", error)

    # -- records -------------------------------------------------------------------------------

    def read(self, request: ops.Read) -> list[StoredEvent]:
        records = self._records(
            request.stream, request.after, request.limit, request.reverse, request.allow_erased
        )
        stored: list[StoredEvent] = []
        open_body = decode_plain_envelope if request.decoded else decode_envelope
        append = stored.append
        try:
            for record in records:
                body = record.body
                append(StoredEvent(record.version, open_body(body), record.hash, len(body)))
        except Undecodable as error:
            version = records[len(stored)].version
            raise CorruptRecord(str(request.stream), version=version, what=str(error)) from None
        return stored

    def read_stored(self, request: ops.ReadRecords) -> Sequence[Record]:
        return self._records(request.stream, request.after, request.limit, request.reverse)

    def read_page(self, stream: StreamKey, after: int = 0) -> Sequence[Record]:
        """Return one page of verified, decrypted records, with `ERASED_BODY` for erased ones."""
        return self._records(stream, after, None, False, allow_erased=True)

    def _records(
        self,
        stream: StreamKey,
        after: int,
        limit: int | None,
        reverse: bool,
        allow_erased: bool = False,
    ) -> Sequence[Record]:
        """Return one verified and decrypted page, ascending or descending."""
        known = self._known.get(stream) or self._read_position(stream)
        for _ in range(MAX_REREADS):
            # Taken before the page is read, which may lack records acknowledged during the read.
            acknowledged = known.acknowledged
            page, anchor = self._read_salvaged_page(stream, after, limit, reverse)
            bad = chain.find_first_bad(known.seed, anchor, page)
            intact = 0 if bad is None else bad - 1 - (anchor.version if anchor else 0)
            if intact > 0 and not reverse:
                # Records before the damage can still be read. A damaged index may return any
                # version for those after it, so the page is cut by position.
                page, bad = page[:intact], None
            if bad is None:
                bad = _find_first_missing(page, anchor, after, reverse, acknowledged)
            if bad is None:
                if self._cipher is not None:
                    before = [
                        anchor.hash if anchor else chain.GENESIS,
                        *(record.hash for record in page),
                    ]
                    page = [
                        self._decrypt_or_replace(
                            stream, known.incarnation, record, previous, allow_erased
                        )
                        for record, previous in zip(page, before, strict=False)
                    ]
                return page[::-1] if reverse else page
            # The stream may have been deleted and created again since its position was loaded.
            fresh = self._read_position(stream)
            if fresh.incarnation == known.incarnation:
                break
            known = fresh
            self._known.pop(stream, None)
        raise CorruptRecord(
            str(stream),
            version=bad,
            what="the record is missing, altered or out of place",
            rescue=_describe_rescue(stream, bad),
        )

    def _decrypt_or_replace(
        self,
        stream: StreamKey,
        incarnation: bytes,
        record: Record,
        previous: bytes,
        allow_erased: bool,
    ) -> Record:
        try:
            body = self.decrypt_record(stream, incarnation, record, previous)
        except Erased:
            if (
                not allow_erased
                or self._cipher is None
                or not self._cipher.is_about_subject(record.body)
            ):
                raise  # the whole stream was erased, not this record
            body = ERASED_BODY
        return Record(record.version, record.append_id, record.hash, body)

    def decrypt_record(
        self, stream: StreamKey, incarnation: bytes, record: Record, previous: bytes
    ) -> bytes:
        """Return the body of a record as it was appended. `previous` is the hash before it."""
        if self._cipher is None:
            return record.body
        body = self._cipher.decrypt(stream, incarnation, record, previous)
        if self._cipher.is_erasure_record(stream, record.body):
            self._cipher.forget_key(stream, incarnation)
            raise Erased(str(stream))
        return body

    def _read_salvaged_page(
        self, stream: StreamKey, after: int, limit: int | None, reverse: bool
    ) -> tuple[list[Record], Record | None]:
        """Return a page and the record before it. If it cannot be read, return a shorter one."""
        for few in (limit, *SALVAGE_LIMITS):
            try:
                return self._read_anchored_page(stream, after, few, reverse)
            except CorruptRecord:
                if reverse or few == 1 or (limit is not None and limit <= 1):
                    raise
        raise AssertionError("the last limit is 1")

    def _read_anchored_page(
        self, stream: StreamKey, after: int, limit: int | None, reverse: bool
    ) -> tuple[list[Record], Record | None]:
        """Return an ascending page and the record before it, whose hash the page builds on."""
        read = self.backend.read
        more = None if limit is None else limit + 1
        if reverse:
            page = list(read(stream, after=after, limit=more, reverse=True))[::-1]
            if len(page) == 1 and page[0].version > 1:
                page[:0] = read(stream, after=page[0].version, limit=1, reverse=True)
            whole = bool(page) and page[0].version == 1 and (limit is None or len(page) <= limit)
            return (page, None) if whole or not page else (page[1:], page[0])
        if after == 0:
            return list(read(stream, limit=limit)), None
        page = list(read(stream, after=after - 1, limit=more))
        if len(page) == 1:
            page += read(stream, after=after, limit=limit)
        return page[1:], page[0] if page else None


def _find_first_missing(
    page: Sequence[Record], anchor: Record | None, after: int, reverse: bool, acknowledged: int
) -> int | None:
    """Return the first version missing at either end of a page; None if it is complete."""
    newest = page[-1].version if page else 0
    if reverse:
        before = after - 1 if after else max(newest, acknowledged)
        return newest + 1 if newest > before or newest < min(before, acknowledged) else None
    if after and anchor and anchor.version != after:
        return after
    return after + 1 if not page and after < acknowledged else None


def _describe_rescue(stream: StreamKey, bad: int | None) -> str:
    """Return advice on rescuing the records before the damage, as the end of a sentence."""
    if bad is None or bad < 2:
        return ""
    copy = "`holdfast copy URL NEW_URL` rescues the records before it"
    if stream.kind not in _RESCUES:
        return f"; {copy}"
    call = _RESCUES[stream.kind].format(id=stream.id, version=bad - 1)
    return f"; {copy}, and so does {call}"


_RESCUES: Final = {
    "conversation": "store.conversation({id!r}).fork(new_id, version={version})",
    "task": "store.task({id!r}).fork(new_id, version={version})",
    "state": "store.state({id!r}).load(version={version})",
}

READS: Final = {
    ops.Read: LogReader.read,
    ops.ReadRecords: LogReader.read_stored,
    ops.GetHead: LogReader.head,
    ops.GetFirstHead: LogReader.first_head,
    ops.FindAppend: LogReader.find_append,
    ops.ListHeads: LogReader.heads,
    ops.ListDue: LogReader.due,
}
"""What answers each request that only reads."""
