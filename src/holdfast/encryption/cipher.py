"""The cipher: seals what is appended, opens what is read.

A sealed record names the key that it is under, and is bound to its place: tenant, kind, id, life of the stream, version, append id,
name of the key and the hash of the record before it are associated data. So it cannot be moved, replayed, swapped or taken from another
stream, even by somebody who computes the hash chain anew; and of two histories that a stream has had, because a backup was restored or a
copy went on, only one as a whole can be read, never a mixture.

    1 | length of name | name of the key ("" for the stream's own) | nonce | ciphertext and tag | proof, of single memories

Single memories, under the key of a subject, need that of their stream as well: each of the two can be destroyed by itself. They have a proof
by the tenant's key: once one is destroyed, nothing else could tell them from bytes that somebody has put in their place.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from hmac import compare_digest
from typing import Any, Final, TypeVar

import msgspec

from ..backends import (
    Append,
    AppendResult,
    Backend,
    Head,
    HeadFields,
    HeadSummary,
    Record,
    StreamKey,
    VersionMismatch,
)
from ..errors import Erased, NotEncrypted, TamperDetected, UnknownKey
from ..keys import NONCE_BYTES, TAG_BYTES
from ..log.chain import link
from .data_keys import CLEAR, HOUSE, OF_HOUSE, PROOF_BYTES, SUBJECT, DataKey, DataKeys, name_of
from .keyring import Keyring

SEALED: Final = 1
"""The first byte of a sealed record: no record in clear begins so."""
ERASED: Final = "stream.erased"
"""The type of the event that is the last of an erased stream."""
BAD_LABEL: Final = b"\xff"
"""What stands for a label that does not open: no label."""
_LABEL: Final = b"holdfast label 1"
_RECORD: Final = b"holdfast record 1"
_DIGEST: Final = 64
_ALTERED: Final = "it was altered, moved, or sealed with another key"
_MARK: Final = "~"


L = TypeVar("L", bound=HeadSummary)


class EncryptingWriter:
    """How one process seals what it appends to one life of a stream."""

    __slots__ = ("_others", "cipher", "fresh", "front", "incarnation", "key", "stream")

    def __init__(
        self,
        cipher: Cipher,
        stream: StreamKey,
        incarnation: bytes,
        key: DataKey | None,
        fresh: Append | None,
    ) -> None:
        self.cipher, self.stream, self.incarnation, self.key = cipher, stream, incarnation, key
        self.front = _bound(stream, incarnation, b"")
        self._others: dict[str, DataKey] = {}
        self.fresh = fresh
        """The append that stores the key, if it is not stored yet."""

    def seal(
        self,
        seed: bytes,
        previous: bytes,
        version: int,
        append_id: bytes,
        bodies: Sequence[bytes],
        names: Sequence[str] = (),
    ) -> list[tuple[bytes, bytes]]:
        """(hash, body) of new records that follow `version`, whose hash is `previous`. `names`: the keys that they are sealed with, if
        not the stream's own."""
        links = []
        encrypt, front = None if self.key is None else self.key.aes.encrypt, self.front
        for index, body in enumerate(bodies):
            version += 1
            place, nonce = _place(previous, version, append_id), os.urandom(NONCE_BYTES)
            if encrypt is None or (names and names[index]):
                sealed = self._with(names[index], nonce, place, body)
            else:
                sealed = b"\1\0" + nonce + encrypt(nonce, body, front + place)
            previous = link(seed, previous, version, sealed)
            links.append((previous, sealed))
        return links

    def _with(self, name: str, nonce: bytes, place: bytes, body: bytes) -> bytes:
        key = self._others.get(name)
        if key is None:
            try:
                key = self.cipher.keys.ensure(self.stream.tenant, name)
                if name != HOUSE and self.cipher.keys.is_buried(self.stream.tenant, name):
                    raise Erased(name)
            except Erased:
                raise Erased(
                    f"what is about this subject in {self.stream}"
                ) from None  # not by the name of its key
            if name != HOUSE and self.key is not None:
                key = self.key.joined(key)
            self._others[name] = key  # not before: who asks again must be refused again
        raw = name.encode()
        about = _bound(self.stream, self.incarnation, raw) + place
        sealed = bytes(key.aes.encrypt(nonce, body, about))
        if raw.startswith(SUBJECT):
            sealed += self.cipher.keys.house(self.stream.tenant).proof(about + nonce + sealed)
        return bytes((SEALED, len(raw))) + raw + nonce + sealed


class Cipher:
    """Seals and opens for one store."""

    def __init__(self, backend: Backend, ring: Keyring) -> None:
        self.keys = DataKeys(backend, ring)

    def __repr__(self) -> str:
        return "<Cipher>"

    # -- writing ---------------------------------------------------------------------------------

    def writer(
        self, stream: StreamKey, incarnation: bytes, *, new: bool
    ) -> EncryptingWriter | None:
        """How to write to a stream; None if it is kept in clear. `new`: it does not exist yet.

        The key is looked at anew: whoever has met a conflict may have met an erasure.
        """
        if stream.kind in CLEAR:
            return None
        name = name_of(stream, incarnation)
        if name == HOUSE:
            return EncryptingWriter(self, stream, incarnation, self.keys.house(stream.tenant), None)
        try:
            key = self.keys.load(stream.tenant, name)
            if self.keys.is_buried(
                stream.tenant, name
            ):  # it is about to go, and what is written under it would go too
                raise Erased(str(stream))
            return EncryptingWriter(self, stream, incarnation, key, None)
        except Erased:
            raise Erased(str(stream)) from None  # by its name, not by that of its key
        except UnknownKey:
            if not new:
                raise
        key, fresh = self.keys.make(stream.tenant, name)
        return EncryptingWriter(self, stream, incarnation, key, fresh)

    def is_last(self, names: Sequence[str]) -> bool:
        """Whether records under these keys are the last of a stream that is erased."""
        return HOUSE in names

    def writer_without_key(self, stream: StreamKey, incarnation: bytes) -> EncryptingWriter:
        """How to write the last record of a stream: its own key may be gone."""
        return EncryptingWriter(self, stream, incarnation, None, None)

    def take(
        self, writer: EncryptingWriter, answer: AppendResult | VersionMismatch | Exception
    ) -> bool:
        """Take the answer to storing a writer's new key. True if the key can be used."""
        if not isinstance(answer, AppendResult) or writer.key is None:
            return False
        self.keys.keep(writer.stream.tenant, name_of(writer.stream, writer.incarnation), writer.key)
        writer.fresh = None
        return True

    def fields(
        self, stream: StreamKey, incarnation: bytes, fields: HeadFields | None
    ) -> HeadFields | None:
        """A head's fields as they are stored."""
        if fields is None or fields.label is None or stream.kind in CLEAR:
            return fields
        nonce, about = os.urandom(NONCE_BYTES), _label_bound(stream, incarnation)
        sealed: bytes = (
            self.keys.house(stream.tenant).for_label(about).encrypt(nonce, fields.label, about)
        )
        return msgspec.structs.replace(fields, label=bytes((SEALED,)) + nonce + sealed)

    # -- reading ---------------------------------------------------------------------------------

    def seals(self, stream: StreamKey) -> bool:
        """Whether the records of a stream are sealed: those by which the store is opened are not."""
        return stream.kind not in CLEAR

    def open(self, stream: StreamKey, incarnation: bytes, record: Record, previous: bytes) -> bytes:
        """The body of a record, as it was appended. `previous`: the hash of the record before it."""
        if stream.kind in CLEAR:
            return record.body
        body = record.body
        if len(body) < 2 or body[0] != SEALED:
            raise NotEncrypted(
                f"{stream} (version {record.version}) is in clear, in an encrypted store: somebody without the key wrote it; "
                "restore it from a backup or a copy"
            )
        start = 2 + body[1]
        raw, nonce, sealed = (
            body[2:start],
            body[start : start + NONCE_BYTES],
            body[start + NONCE_BYTES :],
        )
        if len(sealed) < TAG_BYTES:
            raise TamperDetected(str(stream), version=record.version, what="it is too short")
        if not _may_name(stream, raw):
            raise TamperDetected(
                str(stream), version=record.version, what="the name of its key is none"
            )
        about = _bound(stream, incarnation, raw) + _place(
            previous, record.version, record.append_id
        )
        if raw.startswith(SUBJECT):
            sealed, proof = sealed[:-PROOF_BYTES], sealed[-PROOF_BYTES:]
            if not compare_digest(
                proof, self.keys.house(stream.tenant).proof(about + nonce + sealed)
            ):
                raise TamperDetected(str(stream), version=record.version, what=_ALTERED)
        key = self._key(stream, incarnation, raw, record.version)
        return _opened(key.aes, nonce, sealed, about, stream, record.version)

    def _key(self, stream: StreamKey, incarnation: bytes, raw: bytes, version: int) -> DataKey:
        try:
            if not raw.startswith(SUBJECT):
                return self.keys.find(
                    stream.tenant, raw.decode("ascii") or name_of(stream, incarnation)
                )
            subject = self.keys.find(stream.tenant, raw.decode("ascii"))
            return self.keys.find(stream.tenant, name_of(stream, incarnation)).joined(subject)
        except UnicodeDecodeError:
            raise TamperDetected(
                str(stream), version=version, what="the name of its key is none"
            ) from None
        except Erased:
            raise Erased(str(stream), version=version) from None
        except UnknownKey as error:
            raise UnknownKey(f"{stream} (version {version}): {error}", key=error.key) from None

    def forget(self, stream: StreamKey, incarnation: bytes) -> None:
        """The stream was erased: its key must not stay in memory."""
        self.keys.forget(stream.tenant, name_of(stream, incarnation))

    def drop(self, stream: StreamKey, incarnation: bytes) -> None:
        """The stream was deleted: its key goes with it, and so does what others have copied of it."""
        if stream.kind not in CLEAR and stream.kind not in OF_HOUSE and stream.kind != "blob":
            self.keys.destroy(stream.tenant, name_of(stream, incarnation))

    def is_mark(self, stream: StreamKey, body: bytes) -> bool:
        """Whether a record, that has been opened, says that its stream was erased."""
        if stream.kind in OF_HOUSE or stream.kind in CLEAR:
            return False
        return body[1] == len(HOUSE) and body[2 : 2 + len(HOUSE)] == HOUSE.encode()

    def is_about_subject(self, body: bytes) -> bool:
        """Whether a record is sealed with the key of a subject, not with that of its stream."""
        return body[2 : 2 + body[1]].startswith(SUBJECT)

    def head(self, head: L) -> L:
        """A head, or what is listed, with its label opened. One that does not open is no label: whoever needs it says so."""
        label = head.fields.label
        if label is None or head.stream.kind in CLEAR:
            return head
        if len(label) < 1 + NONCE_BYTES + TAG_BYTES or label[0] != SEALED:
            opened = BAD_LABEL
        else:
            nonce, rest = label[1 : 1 + NONCE_BYTES], label[1 + NONCE_BYTES :]
            about = _label_bound(head.stream, head.incarnation)
            try:
                key = self.keys.house(head.stream.tenant).for_label(about)
                opened = _opened(key, nonce, rest, about, head.stream)
            except (TamperDetected, UnknownKey):
                opened = BAD_LABEL
        return msgspec.structs.replace(
            head, fields=msgspec.structs.replace(head.fields, label=opened)
        )

    def opens_label(self, head: Head) -> bool:
        """Whether the label of a head, as it is stored, is one of ours; a head without one has nothing to hide."""
        return self.head(head).fields.label != BAD_LABEL

    def heads(self, heads: Iterable[HeadSummary]) -> list[HeadSummary]:
        return [self.head(head) for head in heads]

    # -- names -----------------------------------------------------------------------------------

    def stored_as(self, stream: StreamKey) -> StreamKey:
        """The name that a stream has in the store. That of a large value has a digest of its content in it: not of the bare content."""
        if stream.kind != "blob" or _MARK in stream.id:
            return stream
        front, digest = stream.id[:-_DIGEST], stream.id[-_DIGEST:]
        house = self.keys.house(stream.tenant, make=True)
        return stream._replace(id=f"{front}{_MARK}{house.digest(digest)}")


def _bound(stream: StreamKey, incarnation: bytes, name: bytes) -> bytes:
    """The part of the associated data that is the same for all records of a stream under one key. Length-prefixed."""
    parts = [_RECORD, *(part.encode() for part in stream), incarnation, name]
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _place(previous: bytes, version: int, append_id: bytes) -> bytes:
    """The part that is another one for each record. All of it has a fixed length."""
    return previous + version.to_bytes(8, "big") + append_id


def _label_bound(stream: StreamKey, incarnation: bytes) -> bytes:
    parts = [_LABEL, *(part.encode() for part in stream), incarnation]
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _may_name(stream: StreamKey, raw: bytes) -> bool:
    """Whether a record of this stream can be under a key of this name: its own, the tenant's (of the mark of its erasure), or, of memories,
    a subject's. Else whoever names a key that was erased could have anything taken for erased."""
    return not raw or raw == HOUSE.encode() or (stream.kind == "memory" and raw.startswith(SUBJECT))


def _opened(
    aes: Any,
    nonce: bytes,
    sealed: bytes,
    about: bytes,
    stream: StreamKey,
    version: int | None = None,
) -> bytes:
    from cryptography.exceptions import InvalidTag

    try:
        return bytes(aes.decrypt(nonce, sealed, about))
    except InvalidTag:
        raise TamperDetected(str(stream), version=version, what=_ALTERED) from None
