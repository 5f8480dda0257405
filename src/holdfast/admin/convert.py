"""Copy a store to another place and encrypt or decrypt it, record by record.

Versions, incarnations and append ids stay; bytes and hashes are new. The heads at the destination
show the progress: if the process dies, the same call resumes. Every stream is then read on both
sides and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from hashlib import sha256
from typing import Final

import msgspec

from .._store import AsyncStore, Store
from ..backends import Append, AppendResult, Head, HeadSummary, Record, StreamKey
from ..backends.retrying import RetryingBackend
from ..encryption.cipher import STREAM_ERASED, Cipher
from ..encryption.data_keys import PLAINTEXT_KINDS, subject_key_name
from ..encryption.detect import is_encrypted, missing_key_error
from ..encryption.keyring import open_keyring, store_append
from ..errors import AlreadyExists, CorruptRecord, Erased, NotEncrypted, OutcomeUnknown, Unavailable
from ..keys import KeyLike, parse_keys
from ..log import chain
from ..log import operations as ops
from ..log.codec import Undecodable
from ..log.events import decode_plain_envelope
from ..log.ids import KINDS
from ..log.log import Log
from ..log.operations.blobs import delete_blobs, is_file_id
from ..log.operations.stream_ops import audit_key
from ..log.operations.subjects import list_uses, subject_stream
from ..log.tenants import list_tenants
from .copy.copy import StorePlace, open_place
from .erasure import SUBJECT_ERASED
from .verify.deletions import DELETED

APPEND_ATTEMPTS: Final = 5


class ConvertResult(msgspec.Struct, frozen=True):
    """The number of streams and records written.

    `skipped` streams were there already. `erased` ones cannot be read, and were left out.
    """

    streams: int
    records: int
    skipped: int
    erased: int


Progress = Callable[[int], object]


def encrypt(
    src: StorePlace,
    dst: StorePlace,
    *,
    key: KeyLike,
    progress: Callable[[int], object] | None = None,
) -> ConvertResult:
    """Copy an unencrypted store to another place, encrypted with `key`.

    Both are URLs, paths or open stores; the destination is created if it does not exist. If the
    process dies, call it again to resume. When it returns, everything has been read on both sides
    and compared. The source is unchanged: delete it, and its backups, once you have checked the
    copy. `progress` is called with the number of streams done.
    """
    with ExitStack() as stack:
        source, keys = open_place(src, stack, create=False), parse_keys(key)
        if is_encrypted(source):
            raise NotEncrypted(
                "the source is already encrypted; rotate its key with store.rekey(…) or"
                " holdfast rekey"
            )
        target = open_place(dst, stack, create=True)
        cipher = Cipher(target, open_keyring(target, keys))
        return _Conversion(Log(source), Log(target, cipher=cipher), progress).run()


def decrypt(
    src: StorePlace,
    dst: StorePlace,
    *,
    key: KeyLike | None = None,
    progress: Callable[[int], object] | None = None,
) -> ConvertResult:
    """Copy an encrypted store to another place, unencrypted. `key` is that of the source.

    If the process dies, call it again to resume.
    """
    with ExitStack() as stack:
        source = open_place(src, stack, create=False)
        if not is_encrypted(source):
            raise NotEncrypted("the source is not encrypted; copy it with holdfast copy")
        if key is not None:
            cipher: Cipher | None = Cipher(source, open_keyring(source, key, create=False))
        else:
            cipher = src._log.cipher if isinstance(src, Store | AsyncStore) else None
        if cipher is None:
            raise missing_key_error()
        target = open_place(dst, stack, create=True)
        if is_encrypted(target):
            raise NotEncrypted("the destination is encrypted; choose an empty one")
        return _Conversion(Log(source, cipher=cipher), Log(target), progress).run()


class _Conversion:
    """The state of a running conversion."""

    def __init__(self, source: Log, target: Log, progress: Progress | None) -> None:
        self._source, self._target, self._progress = source, target, progress
        self._streams = self._records = self._skipped = self._erased = 0

    def run(self) -> ConvertResult:
        source = RetryingBackend(self._source.backend, self._source.timeout)
        for tenant in list_tenants(source):
            self._target.register_tenant(tenant)
            delete_removed(self._source, self._target, tenant)
            for kind in KINDS:
                if kind not in PLAINTEXT_KINDS:
                    for head in source.list_heads(tenant, kind):
                        self._convert_stream(head)
        return ConvertResult(self._streams, self._records, self._skipped, self._erased)

    def _convert_stream(self, listed: HeadSummary) -> None:
        head = self._source.backend.head(listed.stream)  # exact: the listed head may be old
        if head is None:
            return
        try:
            name = self._find_target_key(head)
        except Erased:
            name = None
        if name is None:
            self._erased += 1
            return
        there = self._target.backend.head(name)
        if there is not None and (
            there.incarnation != head.incarnation or there.version > head.version
        ):
            raise AlreadyExists(
                f"{name} at the destination is not a copy of the source's; choose another"
                " destination"
            )
        done = there is not None and there.version == head.version
        try:
            if not done:
                self._write(head, name, there)
        except Erased:
            self._erased += 1
            return
        self._compare(head, name)
        if done:
            self._skipped += 1
        else:
            self._streams += 1
        if self._progress is not None:
            self._progress(self._streams + self._skipped + self._erased)

    # -- names -----------------------------------------------------------------------------------

    def _find_target_key(self, head: Head) -> StreamKey | None:
        """Return the key of the stream at the destination; None for a partially written file."""
        stream = head.stream
        if stream.kind != "blob":
            return stream
        cipher = self._target.cipher
        if cipher is not None:
            return cipher.stored_key(stream)
        digest = sha256()
        for page in self._pages(self._source, stream, 0, head.version):
            for record in page:
                digest.update(record.body[1:])
        front = stream.id[:65]
        name = f"{front}-{'file-' if is_file_id(stream.id) else ''}{digest.hexdigest()}"
        source: Cipher | None = self._source.cipher
        whole = stream._replace(id=name)
        return whole if source is not None and source.stored_key(whole) == stream else None

    # -- records ---------------------------------------------------------------------------------

    def _pages(
        self, log: Log, stream: StreamKey, after: int, upto: int
    ) -> Iterator[Sequence[Record]]:
        """Yield the decrypted records of a stream up to a version."""
        while after < upto:
            page = [
                record for record in log.reader.read_page(stream, after) if record.version <= upto
            ]
            if not page:
                raise CorruptRecord(str(stream), version=after + 1, what="the record is missing")
            yield page
            after = page[-1].version

    def _write(self, head: Head, name: StreamKey, there: Head | None) -> None:
        version, previous = (there.version, there.hash) if there else (0, b"")
        group: list[Record] = []
        for page in self._pages(self._source, head.stream, version, head.version):
            for record in page:
                if group and record.append_id != group[0].append_id:
                    previous = self._put(head, name, previous, group)
                    group = []
                group.append(record)
        self._put(head, name, previous, group)

    def _put(self, head: Head, name: StreamKey, previous: bytes, group: Sequence[Record]) -> bytes:
        """Append the records of one append. Return the hash of the last."""
        first, append_id = group[0].version, group[0].append_id
        bodies: Sequence[bytes] = [record.body for record in group]
        fields = None
        if group[-1].version == head.version:
            fields = self._source.reader.decode_head(head).fields
        cipher, writer = self._target.cipher, None
        if cipher is not None:
            writer = cipher.make_writer(name, head.incarnation, new=first == 1)
            if writer is not None and writer.key_append is not None:
                store_append(self._target.backend, writer.key_append)
                writer = cipher.make_writer(name, head.incarnation, new=False)
                assert writer is not None
        seed, before = chain.seed(name, head.incarnation), previous or chain.GENESIS
        if fields is not None:
            fields = self._target.reader.encode_fields(name, head.incarnation, fields)
        if writer is None:
            links = chain.extend(seed, before, first - 1, append_id, bodies)
        else:
            keys = [self._subject_key(name, body) for body in bodies]
            links = writer.encrypt(seed, before, first - 1, append_id, bodies, keys)
        append = Append(name, first - 1, previous, head.incarnation, append_id, links, fields)
        self._send(append)
        self._records += len(group)
        return links[-1][0]

    def _send(self, append: Append) -> None:
        for _ in range(APPEND_ATTEMPTS):
            try:
                answer = self._target.backend.append([append])[0]
            except OutcomeUnknown:
                continue
            if not isinstance(answer, AppendResult):
                raise AlreadyExists(
                    f"another process writes to {append.stream} at the destination;"
                    " nothing was overwritten"
                )
            return
        raise Unavailable(
            f"cannot write {append.stream} at the destination; run it again to resume"
        )

    def _subject_key(self, stream: StreamKey, body: bytes) -> str:
        """Return the name of the key that encrypts a memory about a subject."""
        if stream.kind != "memory" or b'"subject"' not in body:
            return ""
        try:
            data = decode_plain_envelope(body).data
        except Undecodable:
            return ""
        memory = data.get("by", data) if isinstance(data, dict) else {}
        subject = memory.get("subject") if isinstance(memory, dict) else None
        if not isinstance(subject, str):
            return ""
        head = self._target.backend.head(subject_stream(stream.tenant, subject))
        return "" if head is None else subject_key_name(subject, head.incarnation.hex())

    def _compare(self, head: Head, name: StreamKey) -> None:
        """Read both streams and compare them."""
        mine = (
            record
            for page in self._pages(self._source, head.stream, 0, head.version)
            for record in page
        )
        theirs = (
            record for page in self._pages(self._target, name, 0, head.version) for record in page
        )
        for one, other in zip(mine, theirs, strict=True):
            if one.append_id != other.append_id:
                raise AlreadyExists(
                    f"another process wrote to {name} at the destination; choose another"
                    " destination"
                )
            if (one.version, one.body) != (other.version, other.body):
                raise CorruptRecord(
                    str(name), version=one.version, what="it differs from the source"
                )


# -- streams that were removed at the source between two runs --------------------------------------


class _AuditedRemoval(msgspec.Struct, frozen=True):
    """A deletion or an erasure in the audit stream."""

    kind: str
    id: str
    incarnation: str
    version: int


def delete_removed(source: Log, target: Log, tenant: str) -> None:
    """Delete copies of streams that were deleted or erased at the source since an earlier run."""
    kept = None
    for event, removal in _list_removals(source, tenant):
        stream = StreamKey(tenant, removal.kind, removal.id)
        copied = target.backend.head(stream)
        if (
            copied is None
            or copied.incarnation.hex() != removal.incarnation
            or copied.version > removal.version
        ):
            continue
        here = source.backend.head(stream)
        exists = here is not None and here.incarnation == copied.incarnation
        if exists and event != STREAM_ERASED:
            continue  # recorded, but not deleted
        space = _find_memories(target, copied) if event == SUBJECT_ERASED else None
        if space is None:
            ops.run(target, ops.delete(stream, expected=copied))
            ops.run(target, delete_blobs(stream, copied.incarnation.hex()))
        kept = kept or space
    if kept is not None:
        raise AlreadyExists(
            f"{kept} has memories at the destination whose subject was erased at the source;"
            " delete the destination, and start with an empty one"
        )


def _find_memories(target: Log, subject: Head) -> StreamKey | None:
    """Return a namespace at the destination that has memories about a subject.

    They cannot be removed from it: a stream is never rewritten.
    """
    for use in ops.run(target, list_uses(subject)):
        space = StreamKey(subject.stream.tenant, "memory", use.id)
        copied = target.backend.head(space) if use.kind == "memory" else None
        if copied is not None and copied.incarnation.hex() == use.incarnation:
            return space
    return None


def _list_removals(source: Log, tenant: str) -> Iterator[tuple[str, _AuditedRemoval]]:
    """Yield the deletions and erasures in the audit stream, with the event type."""
    after = 0
    while page := ops.run(source, ops.read(audit_key(tenant), after=after, decoded=True)):
        after = page[-1].version
        for stored in page:
            if (event := stored.envelope.type) in (DELETED, STREAM_ERASED, SUBJECT_ERASED):
                try:
                    yield event, msgspec.convert(stored.envelope.data, _AuditedRemoval)
                except msgspec.ValidationError:
                    continue  # not an entry of ours
