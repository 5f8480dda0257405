"""The cipher: encrypts appended records and decrypts records that are read.

An encrypted record names its key and is bound to its position: tenant, kind, id, incarnation,
version, append id, the name of the key, and the hash of the record before it are associated data.
So a record cannot be moved, replayed, swapped or taken from another stream, even by an attacker who
recomputes the hash chain. If a stream has two histories, because a backup was restored or a copy
was used, a reader gets one of them, never a mixture.

    1 | length of name | name of the key ("": the stream's own) | nonce | ciphertext and tag | proof

A memory about a subject needs two keys, the subject's and the stream's, and each can be destroyed
on its own. Only such a record has a proof, made with the tenant's key: once one of its keys is
destroyed, nothing else distinguishes the record from forged bytes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from hmac import compare_digest
from typing import Any, Final

import msgspec

from ..backends import (
    Append,
    AppendResult,
    Backend,
    HeadFields,
    HeadSummary,
    Record,
    StreamKey,
    VersionMismatch,
)
from ..errors import Erased, NotEncrypted, TamperDetected, UnknownKey
from ..keys import NONCE_BYTES, TAG_BYTES
from ..log.chain import link
from ..log.head_fields import ALTERED, NO_FIELDS, pack_fields, pack_label, unpack_label
from ..log.operations.blobs import blob_prefix
from .data_keys import (
    PLAINTEXT_KINDS,
    PROOF_BYTES,
    SUBJECT_PREFIX,
    TENANT_KEY,
    TENANT_KEY_KINDS,
    DataKey,
    DataKeys,
    data_key_name,
)
from .keyring import Keyring

ENCRYPTED_MARKER: Final = 1
"""The first byte of an encrypted record; no unencrypted record starts with it."""
STREAM_ERASED: Final = "stream.erased"
"""The type of the last event of an erased stream."""
_LABEL: Final = b"holdfast label 1"
_RECORD: Final = b"holdfast record 1"
_DIGEST_CHARS: Final = 64
_ALTERED: Final = "it was altered, moved, or encrypted with another key"
_BAD_KEY_NAME: Final = "the name of its key is not valid"
_BLOB_MARK: Final = "~"


class EncryptingWriter:
    """Encrypts what one process appends to one incarnation of a stream."""

    __slots__ = ("_others", "cipher", "incarnation", "key", "key_append", "stream", "stream_data")

    def __init__(
        self,
        cipher: Cipher,
        stream: StreamKey,
        incarnation: bytes,
        key: DataKey | None,
        key_append: Append | None,
    ) -> None:
        self.cipher, self.stream, self.incarnation, self.key = cipher, stream, incarnation, key
        self.stream_data = _stream_data(stream, incarnation, b"")
        self._others: dict[str, DataKey] = {}
        self.key_append = key_append
        """The append that stores the key; None once it is stored."""

    def encrypt(
        self,
        seed: bytes,
        previous: bytes,
        version: int,
        append_id: bytes,
        bodies: Sequence[bytes],
        names: Sequence[str] = (),
    ) -> list[tuple[bytes, bytes]]:
        """Return (hash, body) of new records that follow `version`, whose hash is `previous`.

        `names` has the name of the key for each record; "" is the stream's own.
        """
        links = []
        encrypt, stream_data = None if self.key is None else self.key.aes.encrypt, self.stream_data
        for index, body in enumerate(bodies):
            version += 1
            record_data, nonce = _record_data(previous, version, append_id), os.urandom(NONCE_BYTES)
            if encrypt is None or (names and names[index]):
                encrypted = self._encrypt_with(names[index], nonce, record_data, body)
            else:
                encrypted = b"\1\0" + nonce + encrypt(nonce, body, stream_data + record_data)
            previous = link(seed, previous, version, append_id, encrypted)
            links.append((previous, encrypted))
        return links

    def _encrypt_with(self, name: str, nonce: bytes, record_data: bytes, body: bytes) -> bytes:
        key = self._others.get(name)
        if key is None:
            try:
                key = self.cipher.keys.ensure(self.stream.tenant, name)
                if name != TENANT_KEY and self.cipher.keys.is_erased(self.stream.tenant, name):
                    raise Erased(name)
            except Erased:
                # Name the stream instead of the key.
                raise Erased(f"the data about this subject in {self.stream}") from None
            if name != TENANT_KEY and self.key is not None:
                key = self.key.join(key)
            self._others[name] = key  # only now: a second call must raise `Erased` again
        raw = name.encode()
        about = _stream_data(self.stream, self.incarnation, raw) + record_data
        encrypted = bytes(key.aes.encrypt(nonce, body, about))
        if raw.startswith(SUBJECT_PREFIX):
            encrypted += self.cipher.keys.tenant_key(self.stream.tenant).proof(
                about + nonce + encrypted
            )
        return bytes((ENCRYPTED_MARKER, len(raw))) + raw + nonce + encrypted


class Cipher:
    """Encrypts and decrypts the records and labels of one store."""

    def __init__(self, backend: Backend, ring: Keyring) -> None:
        self.keys = DataKeys(backend, ring)

    def __repr__(self) -> str:
        return "<Cipher>"

    # -- writing ---------------------------------------------------------------------------------

    def make_writer(
        self, stream: StreamKey, incarnation: bytes, *, new: bool
    ) -> EncryptingWriter | None:
        """Return a writer for a stream; None for a kind that isn't encrypted.

        `new` means that the stream does not exist yet. The key is loaded again, because the caller
        may have had a conflict with an erasure.
        """
        if stream.kind in PLAINTEXT_KINDS:
            return None
        name = data_key_name(stream, incarnation)
        if name == TENANT_KEY:
            return EncryptingWriter(
                self, stream, incarnation, self.keys.tenant_key(stream.tenant), None
            )
        try:
            key = self.keys.load(stream.tenant, name)
            if self.keys.is_erased(stream.tenant, name):
                raise Erased(str(stream))  # the key is about to be destroyed
            return EncryptingWriter(self, stream, incarnation, key, None)
        except Erased:
            raise Erased(str(stream)) from None  # name the stream instead of the key
        except UnknownKey:
            if not new:
                raise
        key, key_append = self.keys.create(stream.tenant, name)
        return EncryptingWriter(self, stream, incarnation, key, key_append)

    def is_erasure(self, names: Sequence[str]) -> bool:
        """Return whether an append with these key names marks its stream as erased."""
        return TENANT_KEY in names

    def make_erasure_writer(self, stream: StreamKey, incarnation: bytes) -> EncryptingWriter:
        """Return a writer for the last record of an erased stream, whose own key may be gone."""
        return EncryptingWriter(self, stream, incarnation, None, None)

    def accept_key(
        self, writer: EncryptingWriter, answer: AppendResult | VersionMismatch | Exception
    ) -> bool:
        """Handle the backend's answer to storing a new key. Return whether the key can be used."""
        if not isinstance(answer, AppendResult) or writer.key is None:
            return False
        self.keys.cache(
            writer.stream.tenant, data_key_name(writer.stream, writer.incarnation), writer.key
        )
        writer.key_append = None
        return True

    def encrypt_fields(
        self, stream: StreamKey, incarnation: bytes, fields: HeadFields
    ) -> HeadFields:
        """Return a head's fields with the label encrypted and bound to the other fields."""
        nonce, about = os.urandom(NONCE_BYTES), _label_data(stream, incarnation)
        key = self.keys.tenant_key(stream.tenant).derive_label_key(about)
        encrypted: bytes = key.encrypt(nonce, pack_label(fields.label), about + pack_fields(fields))
        return msgspec.structs.replace(fields, label=bytes((ENCRYPTED_MARKER,)) + nonce + encrypted)

    # -- reading ---------------------------------------------------------------------------------

    def encrypts(self, stream: StreamKey) -> bool:
        """Return whether the records of a stream are encrypted."""
        return stream.kind not in PLAINTEXT_KINDS

    def decrypt(
        self, stream: StreamKey, incarnation: bytes, record: Record, previous: bytes
    ) -> bytes:
        """Return the body of a record as it was appended.

        `previous` is the hash of the record before it.
        """
        if stream.kind in PLAINTEXT_KINDS:
            return record.body
        body = record.body
        if len(body) < 2 or body[0] != ENCRYPTED_MARKER:
            raise NotEncrypted(
                f"{stream} (version {record.version}) is unencrypted in an encrypted store; a "
                "writer without the key wrote it; restore it from a backup or a copy"
            )
        start = 2 + body[1]
        raw, nonce, encrypted = (
            body[2:start],
            body[start : start + NONCE_BYTES],
            body[start + NONCE_BYTES :],
        )
        if len(encrypted) < TAG_BYTES:
            raise TamperDetected(str(stream), version=record.version, what="it is too short")
        if not _is_allowed_key(stream, raw):
            raise TamperDetected(str(stream), version=record.version, what=_BAD_KEY_NAME)
        about = _stream_data(stream, incarnation, raw) + _record_data(
            previous, record.version, record.append_id
        )
        if raw.startswith(SUBJECT_PREFIX):
            encrypted, proof = encrypted[:-PROOF_BYTES], encrypted[-PROOF_BYTES:]
            if not compare_digest(
                proof, self.keys.tenant_key(stream.tenant).proof(about + nonce + encrypted)
            ):
                raise TamperDetected(str(stream), version=record.version, what=_ALTERED)
        key = self._find_key(stream, incarnation, raw, record.version)
        return _decrypt(key.aes, nonce, encrypted, about, stream, record.version)

    def _find_key(self, stream: StreamKey, incarnation: bytes, raw: bytes, version: int) -> DataKey:
        try:
            if not raw.startswith(SUBJECT_PREFIX):
                return self.keys.find(
                    stream.tenant, raw.decode("ascii") or data_key_name(stream, incarnation)
                )
            subject = self.keys.find(stream.tenant, raw.decode("ascii"))
            return self.keys.find(stream.tenant, data_key_name(stream, incarnation)).join(subject)
        except UnicodeDecodeError:
            raise TamperDetected(str(stream), version=version, what=_BAD_KEY_NAME) from None
        except Erased:
            raise Erased(str(stream), version=version) from None
        except UnknownKey as error:
            raise UnknownKey(f"{stream} (version {version}): {error}", key=error.key) from None

    def forget_key(self, stream: StreamKey, incarnation: bytes) -> None:
        """Remove the key of an erased stream from memory."""
        self.keys.forget(stream.tenant, data_key_name(stream, incarnation))

    def delete_key(self, stream: StreamKey, incarnation: bytes) -> None:
        """Destroy the key of a deleted stream, which makes copies of the stream unreadable too."""
        if (
            stream.kind not in PLAINTEXT_KINDS
            and stream.kind not in TENANT_KEY_KINDS
            and stream.kind != "blob"
        ):
            self.keys.destroy(stream.tenant, data_key_name(stream, incarnation))

    def delete_all_keys(self, stream: StreamKey) -> None:
        """Destroy the keys of all incarnations of a deleted stream."""
        if (
            stream.kind not in PLAINTEXT_KINDS
            and stream.kind not in TENANT_KEY_KINDS
            and stream.kind != "blob"
        ):
            self.keys.destroy_all(stream.tenant, blob_prefix(stream, "")[:-1])

    def is_erasure_record(self, stream: StreamKey, body: bytes) -> bool:
        """Return whether an authentic record marks its stream as erased."""
        if stream.kind in TENANT_KEY_KINDS or stream.kind in PLAINTEXT_KINDS:
            return False
        return body[1] == len(TENANT_KEY) and body[2 : 2 + len(TENANT_KEY)] == TENANT_KEY.encode()

    def is_about_subject(self, body: bytes) -> bool:
        """Return whether a record is encrypted with a subject's key."""
        return body[2 : 2 + body[1]].startswith(SUBJECT_PREFIX)

    def decrypt_fields(self, head: HeadSummary) -> HeadFields:
        """Return the fields of a stored, encrypted head.

        Raise `TamperDetected` if any of them was altered, or written without the key.
        """
        if head.fields == NO_FIELDS:
            return NO_FIELDS
        label = head.fields.label or b""
        if len(label) < 1 + NONCE_BYTES + TAG_BYTES or label[0] != ENCRYPTED_MARKER:
            raise TamperDetected(str(head.stream), what=ALTERED)
        nonce, rest = label[1 : 1 + NONCE_BYTES], label[1 + NONCE_BYTES :]
        about = _label_data(head.stream, head.incarnation)
        key = self.keys.tenant_key(head.stream.tenant).derive_label_key(about)
        about += pack_fields(head.fields)
        packed = _decrypt(key, nonce, rest, about, head.stream, what=ALTERED)
        return msgspec.structs.replace(head.fields, label=unpack_label(packed))

    # -- names -----------------------------------------------------------------------------------

    def stored_key(self, stream: StreamKey) -> StreamKey:
        """Return the `StreamKey` under which a stream is stored.

        The id of a blob ends with a digest of its content, which is replaced with a keyed digest.
        """
        if stream.kind != "blob" or _BLOB_MARK in stream.id:
            return stream
        prefix, digest = stream.id[:-_DIGEST_CHARS], stream.id[-_DIGEST_CHARS:]
        tenant_key = self.keys.tenant_key(stream.tenant, create=True)
        return stream._replace(id=f"{prefix}{_BLOB_MARK}{tenant_key.digest(digest)}")


def _stream_data(stream: StreamKey, incarnation: bytes, name: bytes) -> bytes:
    """Return the associated data that all records of a stream under one key share."""
    return _join(_RECORD, *(part.encode() for part in stream), incarnation, name)


def _record_data(previous: bytes, version: int, append_id: bytes) -> bytes:
    """Return the associated data of a single record. All parts have a fixed length."""
    return previous + version.to_bytes(8, "big") + append_id


def _label_data(stream: StreamKey, incarnation: bytes) -> bytes:
    return _join(_LABEL, *(part.encode() for part in stream), incarnation)


def _join(*parts: bytes) -> bytes:
    """Join parts, each preceded by its length, so that no two lists give the same bytes."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _is_allowed_key(stream: StreamKey, raw: bytes) -> bool:
    """Return whether a record of this stream may use the key with this name.

    Allowed are the stream's own key, the tenant's (for the erasure record) and, for memories, a
    subject's. Without this check, an attacker could name an erased key to make any record look
    erased.
    """
    return (
        not raw
        or raw == TENANT_KEY.encode()
        or (stream.kind == "memory" and raw.startswith(SUBJECT_PREFIX))
    )


def _decrypt(
    aes: Any,
    nonce: bytes,
    encrypted: bytes,
    about: bytes,
    stream: StreamKey,
    version: int | None = None,
    what: str = _ALTERED,
) -> bytes:
    from cryptography.exceptions import InvalidTag

    try:
        return bytes(aes.decrypt(nonce, encrypted, about))
    except InvalidTag:
        raise TamperDetected(str(stream), version=version, what=what) from None
