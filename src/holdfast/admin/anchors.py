"""Anchors: signed snapshots of all stream heads, to be kept apart from the store.

A chain shows that records were changed. It cannot show that the newest records are gone, that an
old backup was restored, or that the whole store was rewritten: the result is a valid chain too. An
anchor shows it.

An anchor is a file of JSON Lines: a header with time and tenant, one line per stream, in order, and
a footer with their digest and its signature. Writing and reading need memory for a few lines only.
Blobs are not in it: their names are digests of their content, and are in records that are covered.
Nor are data keys, which are rotated and destroyed: without its key a record cannot be decrypted.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from hashlib import sha256
from typing import IO, Any, Final, Literal, Protocol

import msgspec

from ..backends import Head, StreamKey, clock
from ..backends.clock import to_datetime
from ..backends.retrying import RetryingBackend
from ..conversations.json_files import write_atomically
from ..errors import AlreadyExists, AnchorRefused, CorruptRecord, MissingExtra, Unavailable
from ..log.ids import KINDS, SYSTEM_TENANT
from ..log.tenants import list_scopes
from .copy.reader import THREADS, map_ahead, slice_items

SignatureKind = Literal["unsigned", "hmac-sha256", "ed25519"]

ANCHORED_KINDS: Final = tuple(sorted(set(KINDS) - {"blob", "key"}))
"""The kinds of streams in an anchor, in order. A tenant's audit stream comes first."""

FORMAT: Final = "holdfast anchor 1"
MAX_TIME_SECONDS: Final = 253_402_300_800.0
"""The end of the year 9999."""

MAX_LINE_BYTES: Final = 64 * 1024
SLICE_STREAMS: Final = 64


class AnchorEntry(msgspec.Struct, frozen=True, gc=False):
    """The state of a stream: its incarnation, its version, and the hash there."""

    tenant: str
    kind: str
    id: str
    incarnation: str
    version: int
    hash: str

    @property
    def stream(self) -> StreamKey:
        return StreamKey(self.tenant, self.kind, self.id)


class Anchor(msgspec.Struct, frozen=True):
    """An anchor: its time, tenant (None: all), number of streams, digest and kind of signature."""

    at: datetime
    tenant: str | None
    streams: int
    digest: str
    signed: SignatureKind


class _AnchorHeader(msgspec.Struct, frozen=True):
    format: str
    at: float
    tenant: str | None


class _AnchorFooter(msgspec.Struct, frozen=True):
    streams: int
    sha256: str
    signed: SignatureKind
    signature: str = ""


_encode = msgspec.json.Encoder().encode
_ENTRY_DECODER = msgspec.json.Decoder(AnchorEntry)


def order_key(stream: StreamKey) -> tuple[bool, str, str, str]:
    """Return the sort key of streams in an anchor and in a verification."""
    return (stream.tenant != SYSTEM_TENANT, *stream)


def tenant_stream(tenant: str) -> StreamKey:
    """Return the key of the stream that registers a tenant."""
    return StreamKey(SYSTEM_TENANT, "tenant", tenant)


# -- writing ---------------------------------------------------------------------------------------


def write_anchor(
    store: RetryingBackend,
    tenant: str | None,
    key: AnchorKey | None,
    to: str | os.PathLike[str] | IO[str],
    *,
    overwrite: bool,
) -> Anchor:
    """Write the head of every stream, each as of the moment when its line is written."""
    writer = _AnchorWriter(store, tenant, None if key is None else load_signer(key))
    if isinstance(to, str | os.PathLike):
        path = os.fspath(to)
        if not overwrite and os.path.exists(path):
            raise AlreadyExists(
                f"{path} already exists; choose another path, or replace it with overwrite=True"
            )
        try:
            write_atomically(path, writer.write_lines())
        except OSError as error:
            raise Unavailable(
                f"cannot write {path}: {error.strerror}; no anchor was written"
            ) from error
    elif hasattr(to, "write"):
        for line in writer.write_lines():
            to.write(line.decode())
        to.flush()
    else:
        raise TypeError(
            f"file must be a path or a writable text file like sys.stdout, got {type(to).__name__}"
        )
    return writer.anchor


class _AnchorWriter:
    """Writes an anchor. `anchor` is set after the last line."""

    anchor: Anchor

    def __init__(
        self, store: RetryingBackend, tenant: str | None, key: AnchorSigner | None
    ) -> None:
        self._store, self._tenant, self._key = store, tenant, key
        if key is not None:
            key.sign(b"")  # reject a key that cannot sign before anything is written

    def write_lines(self) -> Iterator[bytes]:
        store, digest, count, at = self._store, sha256(), 0, clock.time()
        head = _encode(_AnchorHeader(FORMAT, at, self._tenant)) + b"\n"
        digest.update(head)
        yield head
        with ThreadPoolExecutor(THREADS, thread_name_prefix="holdfast-anchor") as pool:
            try:
                for entry in _read_entries(store, self._tenant, pool):
                    line = _encode(entry) + b"\n"
                    digest.update(line)
                    count += 1
                    yield line
            finally:
                store.stopped = True
        signed: SignatureKind = "unsigned" if self._key is None else self._key.algorithm
        signature = (
            ""
            if self._key is None
            else self._key.sign(_signed_message(signed, count, digest.digest())).hex()
        )
        yield _encode(_AnchorFooter(count, digest.hexdigest(), signed, signature)) + b"\n"
        self.anchor = Anchor(to_datetime(at), self._tenant, count, digest.hexdigest(), signed)


def _read_entries(
    store: RetryingBackend, tenant: str | None, pool: ThreadPoolExecutor
) -> Iterator[AnchorEntry]:
    if tenant is not None:
        yield from _read_exact(store, [tenant_stream(tenant)])
    for name, kind in list_scopes(store, tenant):
        if kind not in ANCHORED_KINDS:
            continue
        for stream in store.list_damaged(name, kind):
            raise CorruptRecord(str(stream), what="it cannot be read, so no anchor can be written")
        streams = (head.stream for head in store.list_heads(name, kind))
        slices = slice_items(streams, SLICE_STREAMS)
        for entries in map_ahead(pool, lambda some: _read_exact(store, some), slices):
            yield from entries


def _read_exact(store: RetryingBackend, streams: Sequence[StreamKey]) -> list[AnchorEntry]:
    """Return the exact heads of streams. A listing may be early or late; an anchor must not be."""
    heads = map(store.head, streams)
    return [new_entry(head) for head in heads if head is not None]


def new_entry(head: Head) -> AnchorEntry:
    return AnchorEntry(*head.stream, head.incarnation.hex(), head.version, head.hash.hex())


def _signed_message(signed: str, count: int, digest: bytes) -> bytes:
    """Return the bytes to sign. Line ends and fixed lengths make the parts unambiguous."""
    return f"{FORMAT}\n{signed}\n".encode() + count.to_bytes(8, "big") + digest


# -- reading ---------------------------------------------------------------------------------------


class AnchorFile:
    """An anchor in a file. Its signature is checked before anything else is used."""

    def __init__(self, path: str | os.PathLike[str], key: AnchorKey | None) -> None:
        self._path = os.fspath(path)
        lines, digest = 0, sha256()
        first = last = b""
        for line in self._read_lines():
            if lines == 1:
                first = last
            if lines:
                digest.update(last)
            last, lines = line, lines + 1
        if lines < 2:
            raise self._refusal("it is empty or truncated")
        footer = self._decode(_AnchorFooter, last)
        self._digest, self._count = digest.digest(), lines - 2
        self._check(footer, None if key is None else load_signer(key))
        header = self._decode(_AnchorHeader, first if lines > 2 else next(self._read_lines(), b""))
        if header.format != FORMAT or not 0 <= header.at < MAX_TIME_SECONDS:
            raise self._refusal("this version of Holdfast does not know its format")
        self.anchor = Anchor(
            to_datetime(header.at), header.tenant, footer.streams, footer.sha256, footer.signed
        )

    def read_entries(self) -> Iterator[AnchorEntry]:
        """Yield the entry of each stream, in order.

        The file is read again: raises `AnchorRefused` at the end if it has changed.
        """
        digest, before, number = sha256(), None, 0
        for number, line in enumerate(self._read_lines()):
            if number <= self._count:
                digest.update(line)
            if not 1 <= number <= self._count:
                continue
            try:
                entry = _ENTRY_DECODER.decode(line)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                raise self._refusal(f"line {number + 1} is not a stream") from None
            if entry.kind not in ANCHORED_KINDS or not 1 <= entry.version < 1 << 63:
                raise self._refusal(f"line {number + 1} is not a stream of an anchor")
            now = order_key(entry.stream)
            if before is not None and now <= before:
                raise self._refusal(f"line {number + 1} is out of order")
            before = now
            yield entry
        if number != self._count + 1 or digest.digest() != self._digest:
            raise self._refusal("it was changed while it was read")

    def _check(self, footer: _AnchorFooter, key: AnchorSigner | None) -> None:
        if footer.sha256 != self._digest.hex() or footer.streams != self._count:
            raise self._refusal("it was altered: its lines do not match its digest")
        if key is None:
            if footer.signed != "unsigned":
                raise self._refusal(
                    f"it is signed ({footer.signed}); pass the key: anchor_key=, or --anchor-key"
                )
            return
        if footer.signed != key.algorithm:
            raise self._refusal(f"it is {footer.signed}, but the given key is for {key.algorithm}")
        try:
            signature = bytes.fromhex(footer.signature)
        except ValueError:
            signature = b""
        if signature.hex() != footer.signature or not key.verify(
            signature, _signed_message(footer.signed, footer.streams, self._digest)
        ):
            raise self._refusal("it was altered, or signed with another key")

    def _read_lines(self) -> Iterator[bytes]:
        try:
            with open(self._path, "rb") as file:
                while line := file.readline(MAX_LINE_BYTES):
                    if not line.endswith(b"\n"):
                        raise self._refusal("it is truncated, or not an anchor")
                    yield line
        except OSError as error:
            raise self._refusal(f"it cannot be read ({error.strerror})") from None

    def _decode(self, type: Any, line: bytes) -> Any:
        try:
            return msgspec.json.decode(line, type=type)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise self._refusal("it is truncated, or not an anchor") from None

    def _refusal(self, what: str) -> AnchorRefused:
        return AnchorRefused(self._path, what=what)


# -- keys: a shared secret (HMAC-SHA256), or a private key that signs and its public key (Ed25519) -


Algorithm = Literal["hmac-sha256", "ed25519"]
AnchorKey = Any
"""At least 32 random bytes, an Ed25519 key (of `cryptography`, or PEM), or a path to either."""

MIN_SECRET_BYTES: Final = 32
MAX_KEY_FILE_BYTES: Final = 16 * 1024
_PEM_START: Final = b"-----BEGIN"
_KEY_FORMS: Final = (
    "the key of an anchor must be at least 32 random bytes, an Ed25519 key as PEM, or the path of"
    " a file with one of them (openssl rand -hex 32 > anchor.key)"
)


class AnchorSigner(Protocol):
    """A key that signs and verifies. Its repr does not show it."""

    algorithm: Algorithm

    def sign(self, message: bytes) -> bytes:
        """Return the signature; `ValueError` for a public key."""
        ...

    def verify(self, signature: bytes, message: bytes) -> bool:
        """Return whether this key made the signature."""
        ...


def load_signer(key: AnchorKey) -> AnchorSigner:
    """Return the signer of a key, or of a key file."""
    if isinstance(key, str | os.PathLike):
        return _load_key_file(os.fspath(key))
    if isinstance(key, bytes | bytearray):
        return _new_signer(bytes(key))
    if type(key).__module__.partition(".")[0] == "cryptography":
        return _Ed25519Signer(key)
    raise TypeError(_KEY_FORMS)


def _load_key_file(path: str | bytes) -> AnchorSigner:
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_KEY_FILE_BYTES + 1)
    except OSError as error:
        raise ValueError(
            f"cannot read the key file of the anchor ({error.strerror}); check its path"
        ) from None
    if content.lstrip().startswith(_PEM_START) or len(content) == MIN_SECRET_BYTES:
        return _new_signer(content)
    text = content.strip()
    for decode in (binascii.unhexlify, partial(base64.b64decode, validate=True)):
        try:
            return _new_signer(decode(text))
        except ValueError:
            continue
    raise ValueError(f"the key file of the anchor is not valid: {_KEY_FORMS}")


def _new_signer(secret: bytes) -> AnchorSigner:
    if secret.lstrip().startswith(_PEM_START):
        return _Ed25519Signer(_load_pem(secret))
    if len(secret) < MIN_SECRET_BYTES or len(set(secret)) == 1:
        raise ValueError(_KEY_FORMS)
    return _HmacSigner(secret)


class _HmacSigner:
    """A secret that signers and verifiers share."""

    algorithm: Algorithm = "hmac-sha256"

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def __repr__(self) -> str:
        return "<key of an anchor>"

    def sign(self, message: bytes) -> bytes:
        return hmac.new(self._secret, message, sha256).digest()

    def verify(self, signature: bytes, message: bytes) -> bool:
        return hmac.compare_digest(signature, self.sign(message))


class _Ed25519Signer:
    """An Ed25519 key: the private key signs and verifies, the public key verifies."""

    algorithm: Algorithm = "ed25519"

    def __init__(self, key: Any) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import (
            Ed25519PrivateKey,
            Ed25519PublicKey,
        )

        if isinstance(key, Ed25519PrivateKey):
            self._private: Ed25519PrivateKey | None = key
            self._public = key.public_key()
        elif isinstance(key, Ed25519PublicKey):
            self._private, self._public = None, key
        else:
            raise ValueError(
                f"the key of an anchor must be an Ed25519 key, got {type(key).__name__}"
            )

    def __repr__(self) -> str:
        return "<key of an anchor>"

    def sign(self, message: bytes) -> bytes:
        if self._private is None:
            raise ValueError("the key must be private to sign an anchor, got a public key")
        return self._private.sign(message)

    def verify(self, signature: bytes, message: bytes) -> bool:
        from cryptography.exceptions import InvalidSignature

        try:
            self._public.verify(signature, message)
        except InvalidSignature:
            return False
        return True


def _load_pem(text: bytes) -> Any:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
    except ImportError:
        raise MissingExtra("an Ed25519 key", "crypto") from None
    try:
        if b"PRIVATE KEY" in text:
            return serialization.load_pem_private_key(text, password=None)
        return serialization.load_pem_public_key(text)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # Without the original error: it may quote the key.
        raise ValueError(
            "the PEM text must be an Ed25519 key without a password; it cannot be read"
        ) from None
