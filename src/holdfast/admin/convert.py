"""A store in clear becomes an encrypted one, and the reverse: into another place, record by record.

Versions, lives and append ids stay; bytes and hashes are new. How far it has got, the heads at the destination say: killed at any
instant, the same call goes on. At its end everything is read on both sides and compared.
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
from ..encryption.cipher import ERASED, Cipher
from ..encryption.data_keys import CLEAR, subject_key
from ..encryption.detect import is_encrypted, missing_key
from ..encryption.keyring import open_keyring, stored_keyring
from ..errors import AlreadyExists, CorruptRecord, Erased, NotEncrypted, OutcomeUnknown, Unavailable
from ..keys import KeyLike, given
from ..log import chain
from ..log import operations as ops
from ..log.blobs import delete_blobs, incarnation_hex, is_file_name
from ..log.codec import Undecodable
from ..log.events import open_plain
from ..log.ids import KINDS, SYSTEM_TENANT
from ..log.log import Log
from ..log.stream_ops import audit_of
from ..log.subjects import subject_stream, uses
from .copy.copy import Place, opened
from .erasure import SUBJECT_ERASED
from .verify.deletions import DELETED

TRIES: Final = 5


class ConvertResult(msgspec.Struct, frozen=True):
    """What was written: streams and records; `skipped` streams were there already. `erased` ones cannot be read, and were left out."""

    streams: int
    records: int
    skipped: int
    erased: int


Progress = Callable[[int], object]


def encrypt(
    src: Place, dst: Place, *, key: KeyLike, progress: Callable[[int], object] | None = None
) -> ConvertResult:
    """Write a store that is in clear to another place, encrypted with `key`. Interrupted, run it again: it goes on.

    Both are URLs, paths or open stores; the destination is made if it is not there. When it is done, everything has been read on
    both sides and compared. The source stays as it is: delete it, and its backups, when you have seen that the copy works.
    `progress` is called with the number of streams done.
    """
    with ExitStack() as stack:
        source, keys = opened(src, stack, create=False), given(key)
        if is_encrypted(source):
            raise NotEncrypted(
                "the source is encrypted already; to give it another key: store.rekey(…), holdfast rekey"
            )
        target = opened(dst, stack, create=True)
        cipher = Cipher(target, open_keyring(target, keys))
        return _Conversion(Log(source), Log(target, cipher=cipher), progress).run()


def decrypt(
    src: Place,
    dst: Place,
    *,
    key: KeyLike | None = None,
    progress: Callable[[int], object] | None = None,
) -> ConvertResult:
    """Write an encrypted store to another place, in clear. Interrupted, run it again: it goes on. `key` opens the source."""
    with ExitStack() as stack:
        source = opened(src, stack, create=False)
        if not is_encrypted(source):
            raise NotEncrypted("the source is in clear already; holdfast copy copies it")
        if key is not None:
            cipher: Cipher | None = Cipher(source, open_keyring(source, key, create=False))
        else:
            cipher = src._log.cipher if isinstance(src, Store | AsyncStore) else None
        if cipher is None:
            raise missing_key()
        target = opened(dst, stack, create=True)
        if is_encrypted(target):
            raise NotEncrypted("the destination is encrypted; name an empty one")
        return _Conversion(Log(source, cipher=cipher), Log(target), progress).run()


class _Conversion:
    """A transcription on its way."""

    def __init__(self, source: Log, target: Log, progress: Progress | None) -> None:
        self._source, self._target, self._progress = source, target, progress
        self._streams = self._records = self._skipped = self._erased = 0

    def run(self) -> ConvertResult:
        for tenant in self._tenants():
            self._target.register(tenant)
            delete_gone(self._source, self._target, tenant)
            for kind in KINDS:
                if kind not in CLEAR:
                    for head in self._heads(tenant, kind):
                        self._stream(head)
        return ConvertResult(self._streams, self._records, self._skipped, self._erased)

    def _tenants(self) -> list[str]:
        return [head.stream.id for head in self._heads(SYSTEM_TENANT, "tenant")]

    def _heads(self, tenant: str, kind: str) -> Iterator[HeadSummary]:
        return RetryingBackend(self._source.backend).listed(tenant, kind)

    def _stream(self, listed: HeadSummary) -> None:
        head = self._source.backend.head(listed.stream)  # exact: what was listed may be old
        if head is None:
            return
        try:
            name = self._name(head)
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
                f"{name} is at the destination, and is not a copy of the source's; choose another destination"
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

    def _name(self, head: Head) -> StreamKey | None:
        """What the stream is called at the destination; None if that cannot be known: a file of which only a part was written."""
        stream = head.stream
        if stream.kind != "blob":
            return stream
        cipher = self._target.cipher
        if cipher is not None:
            return cipher.stored_as(stream)
        digest = sha256()
        for page in self._pages(self._source, stream, 0, head.version):
            for record in page:
                digest.update(record.body[1:])
        front = stream.id[:65]
        name = f"{front}-{'file-' if is_file_name(stream.id) else ''}{digest.hexdigest()}"
        source: Cipher | None = self._source.cipher
        whole = stream._replace(id=name)
        return whole if source is not None and source.stored_as(whole) == stream else None

    # -- records ---------------------------------------------------------------------------------

    def _pages(
        self, log: Log, stream: StreamKey, after: int, upto: int
    ) -> Iterator[Sequence[Record]]:
        """The records of a stream, opened, up to a version."""
        while after < upto:
            page = [record for record in log.records(stream, after) if record.version <= upto]
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
        """Append what was one append. The hash of its last record."""
        first, append_id = group[0].version, group[0].append_id
        bodies: Sequence[bytes] = [record.body for record in group]
        fields = None
        if group[-1].version == head.version:
            fields = (
                head.fields
                if self._source.cipher is None
                else self._source.cipher.head(head).fields
            )
        cipher, writer = self._target.cipher, None
        if cipher is not None:
            writer = cipher.writer(name, head.incarnation, new=first == 1)
            if writer is not None:
                if writer.fresh is not None:
                    stored_keyring(self._target.backend, writer.fresh)
                    writer = cipher.writer(name, head.incarnation, new=False)
                    assert writer is not None
                fields = cipher.fields(name, head.incarnation, fields)
        seed, before = chain.seed(name, head.incarnation), previous or chain.GENESIS
        if writer is None:
            links = chain.extend(seed, before, first - 1, bodies)
        else:
            keys = [self._subject_key(name, body) for body in bodies]
            links = writer.seal(seed, before, first - 1, append_id, bodies, keys)
        append = Append(
            name,
            first - 1,
            previous,
            head.incarnation,
            append_id,
            links,
            name.kind != "blob",
            fields,
        )
        self._send(append)
        self._records += len(group)
        return links[-1][0]

    def _send(self, append: Append) -> None:
        for _ in range(TRIES):
            try:
                answer = self._target.backend.append([append])[0]
            except OutcomeUnknown:
                continue
            if not isinstance(answer, AppendResult):
                raise AlreadyExists(
                    f"{append.stream} is written to at the destination by somebody else; nothing was overwritten"
                )
            return
        raise Unavailable(
            f"{append.stream} could not be written at the destination; run it again, and it goes on"
        )

    def _subject_key(self, stream: StreamKey, body: bytes) -> str:
        """The key that a memory about a subject is sealed with."""
        if stream.kind != "memory" or b'"subject"' not in body:
            return ""
        try:
            data = open_plain(body).data
        except Undecodable:
            return ""
        said = data.get("by", data) if isinstance(data, dict) else {}
        subject = said.get("subject") if isinstance(said, dict) else None
        if not isinstance(subject, str):
            return ""
        head = self._target.backend.head(subject_stream(stream.tenant, subject))
        return "" if head is None else subject_key(subject, head.incarnation.hex())

    def _compare(self, head: Head, name: StreamKey) -> None:
        """Read both, and compare."""
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
                    f"{name} was written to at the destination meanwhile; choose another destination"
                )
            if (one.version, one.body) != (other.version, other.body):
                raise CorruptRecord(
                    str(name), version=one.version, what="it is not what the source has"
                )


# What is gone at the source of a transcription that is run again: it goes at the destination too, or nobody would ever look for it there.


class _AuditedRemoval(msgspec.Struct, frozen=True):
    """A deletion or an erasure, as the audit stream tells it."""

    kind: str
    id: str
    incarnation: str = msgspec.field(name="life")
    version: int


def delete_gone(source: Log, target: Log, tenant: str) -> None:
    """Delete what was written to the destination before, and was deleted or erased at the source since."""
    kept = None
    for what, told in _told(source, tenant):
        stream = StreamKey(tenant, told.kind, told.id)
        copied = target.backend.head(stream)
        if (
            copied is None
            or incarnation_hex(copied.incarnation) != told.incarnation
            or copied.version > told.version
        ):
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
        if copied is not None and incarnation_hex(copied.incarnation) == use.incarnation:
            return space
    return None


def _delete(target: Log, copied: Head) -> None:
    ops.run(target, ops.delete(copied.stream, expected=copied))
    ops.run(target, delete_blobs(copied.stream, incarnation_hex(copied.incarnation)))


def _told(source: Log, tenant: str) -> Iterator[tuple[str, _AuditedRemoval]]:
    """What the audit stream tells of."""
    after = 0
    while page := ops.run(source, ops.read(audit_of(tenant), after=after, plain=True)):
        after = page[-1].version
        for stored in page:
            if (what := stored.envelope.type) in (DELETED, ERASED, SUBJECT_ERASED):
                try:
                    yield what, msgspec.convert(stored.envelope.data, _AuditedRemoval)
                except msgspec.ValidationError:
                    continue  # it tells of nothing
