"""Anchors: what the chains of a store ended in at some time, signed, and kept where the store is not.

A chain shows that records were changed. It cannot show that the newest are gone, that a whole store was put back to an old backup, or
that somebody wrote all of it anew: what is left then is a chain too. An anchor knows better.

It is a file of JSON Lines: one that says when and of whom, one for each stream, ordered, and one with their digest and its signature.
Neither writing nor reading it needs memory for more than a few lines. Large values are not in it: their names are digests of
what they hold, and stand in records that are. Nor are data keys, which are replaced and destroyed: without its key a record does not open.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from hashlib import sha256
from typing import IO, Any, Final, Literal, Protocol

import msgspec

from ..backends import Head, StreamKey, clock
from ..backends.clock import moment
from ..backends.retrying import RetryingBackend
from ..conversations.json_files import write_atomically
from ..errors import AlreadyExists, AnchorRefused, CorruptRecord, MissingExtra, Unavailable
from ..log.blobs import incarnation_hex
from ..log.ids import KINDS, SYSTEM_TENANT
from .copy.reader import THREADS, ahead, sliced

Signed = Literal["unsigned", "hmac-sha256", "ed25519"]

ANCHORED: Final = tuple(sorted(set(KINDS) - {"blob", "key"}))
"""The kinds of streams that are in an anchor, in the order in which they are there. Of each tenant, what it has deleted comes first."""

FORMAT: Final = "holdfast anchor 1"
LAST_TIME: Final = 253_402_300_800.0
"""No calendar goes further: the end of the year 9999."""

MAX_LINE: Final = 64 * 1024
SLICE: Final = 64


class AnchorEntry(msgspec.Struct, frozen=True, gc=False):
    """Where a stream stood: which life of it, its version, and the hash there."""

    tenant: str
    kind: str
    id: str
    incarnation: str = msgspec.field(name="life")
    version: int
    hash: str

    @property
    def stream(self) -> StreamKey:
        return StreamKey(self.tenant, self.kind, self.id)


class Anchor(msgspec.Struct, frozen=True):
    """An anchor: when it was made, of which tenant (None: of all), of how many streams, and how it is signed."""

    at: datetime
    tenant: str | None
    streams: int
    digest: str
    signed: Signed


class _Header(msgspec.Struct, frozen=True):
    format: str
    at: float
    tenant: str | None


class _Seal(msgspec.Struct, frozen=True):
    streams: int
    sha256: str
    signed: Signed
    signature: str = ""


_encode = msgspec.json.Encoder().encode
_places = msgspec.json.Decoder(AnchorEntry)


def order(stream: StreamKey) -> tuple[bool, str, str, str]:
    """The order of streams in an anchor, and of a walk through a store."""
    return (stream.tenant != SYSTEM_TENANT, *stream)


def scope(store: RetryingBackend, tenant: str | None) -> Iterator[tuple[str, str]]:
    """The tenants and kinds to walk through, in order. Of one tenant, all but that it is registered: see `registered`."""
    tenants = [tenant] if tenant is not None else [SYSTEM_TENANT, *all_tenants(store)]
    for name in tenants:
        for kind in sorted(KINDS):
            yield name, kind


def registered(tenant: str) -> StreamKey:
    return StreamKey(SYSTEM_TENANT, "tenant", tenant)


def all_tenants(store: RetryingBackend) -> list[str]:
    listed = [head.stream.id for head in store.listed(SYSTEM_TENANT, "tenant")]
    return sorted({*listed, *(stream.id for stream in store.damaged(SYSTEM_TENANT, "tenant"))})


# -- writing -----------------------------------------------------------------------------------------------------------


def write_anchor(
    store: RetryingBackend,
    tenant: str | None,
    key: AnchorKey | None,
    to: str | os.PathLike[str] | IO[str],
    *,
    overwrite: bool,
) -> Anchor:
    """Write where every stream stands now. Streams that go on meanwhile are in it as they were when it came to them."""
    writing = _AnchorWriter(store, tenant, None if key is None else signing(key))
    if isinstance(to, str | os.PathLike):
        path = os.fspath(to)
        if not overwrite and os.path.exists(path):
            raise AlreadyExists(
                f"there is something at {path}; choose another path, or say that it may be replaced: overwrite=True, or --overwrite"
            )
        try:
            write_atomically(path, writing.lines())
        except OSError as error:
            raise Unavailable(
                f"cannot write {path}: {error.strerror}; there is no anchor"
            ) from error
    elif hasattr(to, "write"):
        for line in writing.lines():
            to.write(line.decode())
        to.flush()
    else:
        raise TypeError(
            "file must be a path, or a text file that is open for writing, like sys.stdout"
        )
    return writing.anchor


class _AnchorWriter:
    """An anchor that is being written."""

    anchor: Anchor

    def __init__(self, store: RetryingBackend, tenant: str | None, key: Signing | None) -> None:
        self._store, self._tenant, self._key = store, tenant, key
        if key is not None:
            key.sign(b"")  # a key that cannot sign is noticed before anything is written

    def lines(self) -> Iterator[bytes]:
        store, digest, count, at = self._store, sha256(), 0, clock.time()
        head = _encode(_Header(FORMAT, at, self._tenant)) + b"\n"
        digest.update(head)
        yield head
        with ThreadPoolExecutor(THREADS, thread_name_prefix="holdfast-anchor") as pool:
            try:
                for place in _stood(store, self._tenant, pool):
                    line = _encode(place) + b"\n"
                    digest.update(line)
                    count += 1
                    yield line
            finally:
                store.stopped = True
        signed: Signed = "unsigned" if self._key is None else self._key.algorithm
        signature = (
            ""
            if self._key is None
            else self._key.sign(_message(signed, count, digest.digest())).hex()
        )
        yield _encode(_Seal(count, digest.hexdigest(), signed, signature)) + b"\n"
        self.anchor = Anchor(moment(at), self._tenant, count, digest.hexdigest(), signed)


def _stood(
    store: RetryingBackend, tenant: str | None, pool: ThreadPoolExecutor
) -> Iterator[AnchorEntry]:
    if tenant is not None:
        yield from _exact(store, [registered(tenant)])
    for name, kind in scope(store, tenant):
        if kind not in ANCHORED:
            continue
        for stream in store.damaged(name, kind):
            raise CorruptRecord(
                str(stream), what="it cannot be read, so that no anchor can be made"
            )
        listed = (head.stream for head in store.listed(name, kind))
        for some in ahead(pool, lambda streams: _exact(store, streams), sliced(listed, SLICE)):
            yield from some


def _exact(store: RetryingBackend, streams: Sequence[StreamKey]) -> list[AnchorEntry]:
    """Where streams stand. A list may be early or late, and an anchor must not say what was not so."""
    heads = map(store.head, streams)
    return [place_of(head) for head in heads if head is not None]


def place_of(head: Head) -> AnchorEntry:
    return AnchorEntry(
        *head.stream, incarnation_hex(head.incarnation), head.version, head.hash.hex()
    )


def _message(signed: str, count: int, digest: bytes) -> bytes:
    """What is signed: all of these have a fixed length, or come first and end with a line."""
    return f"{FORMAT}\n{signed}\n".encode() + count.to_bytes(8, "big") + digest


# -- reading -----------------------------------------------------------------------------------------------------------


class AnchorFile:
    """An anchor that was written before. Its signature is checked first; nothing of one that does not fit is looked at."""

    def __init__(self, path: str | os.PathLike[str], key: AnchorKey | None) -> None:
        self._path = os.fspath(path)
        lines, digest = 0, sha256()
        first = last = b""
        for line in self._lines():
            if lines == 1:
                first = last
            if lines:
                digest.update(last)
            last, lines = line, lines + 1
        if lines < 2:
            raise self._refused("it is empty or cut off")
        seal = self._as(_Seal, last)
        self._digest, self._count = digest.digest(), lines - 2
        self._check(seal, None if key is None else signing(key))
        header = self._as(_Header, first if lines > 2 else self._first())
        if header.format != FORMAT or not 0 <= header.at < LAST_TIME:
            raise self._refused("it is of a form that this Holdfast does not know")
        self.anchor = Anchor(
            moment(header.at), header.tenant, seal.streams, seal.sha256, seal.signed
        )

    def places(self) -> Iterator[AnchorEntry]:
        """Where each stream stood, in order. The file is read once more for it: `AnchorRefused` in the end if it is another by then."""
        digest, before, number = sha256(), None, 0
        for number, line in enumerate(self._lines()):
            if number <= self._count:
                digest.update(line)
            if not 1 <= number <= self._count:
                continue
            try:
                place = _places.decode(line)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                raise self._refused(f"line {number + 1} is no stream") from None
            if place.kind not in ANCHORED or not 1 <= place.version < 1 << 63:
                raise self._refused(f"line {number + 1} is no stream that an anchor can have")
            now = order(place.stream)
            if before is not None and now <= before:
                raise self._refused(f"line {number + 1} is out of order")
            before = now
            yield place
        if number != self._count + 1 or digest.digest() != self._digest:
            raise self._refused("it was changed while it was read")

    def _check(self, seal: _Seal, key: Signing | None) -> None:
        if seal.sha256 != self._digest.hex() or seal.streams != self._count:
            raise self._refused("it was altered: its lines are not those that were written")
        if key is None:
            if seal.signed != "unsigned":
                raise self._refused(
                    f"it is signed ({seal.signed}); give the key: anchor_key=, or --anchor-key"
                )
            return
        if seal.signed != key.algorithm:
            raise self._refused(
                f"it is {seal.signed}, and the key that was given is for {key.algorithm}"
            )
        try:
            signature = bytes.fromhex(seal.signature)
        except ValueError:
            signature = b""
        if signature.hex() != seal.signature or not key.fits(
            signature, _message(seal.signed, seal.streams, self._digest)
        ):
            raise self._refused("it was altered, or signed with another key")

    def _first(self) -> bytes:
        return next(self._lines(), b"")

    def _lines(self) -> Iterator[bytes]:
        try:
            with open(self._path, "rb") as file:
                while line := file.readline(MAX_LINE):
                    if not line.endswith(b"\n"):
                        raise self._refused("it is cut off, or no anchor at all")
                    yield line
        except OSError as error:
            raise self._refused(f"it cannot be read ({error.strerror})") from None

    def _as(self, type: Any, line: bytes) -> Any:
        try:
            return msgspec.json.decode(line, type=type)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise self._refused("it is no anchor, or cut off") from None

    def _refused(self, what: str) -> AnchorRefused:
        return AnchorRefused(self._path, what=what)


# Keys of anchors: a shared secret (HMAC-SHA256), or a pair of which one half signs and the other only checks (Ed25519).


Algorithm = Literal["hmac-sha256", "ed25519"]
AnchorKey = Any
"""What `key=` takes: at least 32 random bytes, the path of a file that holds them, or an Ed25519 key (an object of `cryptography`, or PEM)."""

SECRET_BYTES: Final = 32
MAX_FILE: Final = 16 * 1024
_PEM: Final = b"-----BEGIN"
_WANTED: Final = (
    "an anchor's key is at least 32 random bytes, an Ed25519 key as PEM, or the path of a file that holds one of them "
    "(openssl rand -hex 32 > anchor.key)"
)


class Signing(Protocol):
    """A key that is ready to be used. Its repr shows nothing of it."""

    algorithm: Algorithm

    def sign(self, message: bytes) -> bytes:
        """The signature; `ValueError` if this half of the key can only check."""
        ...

    def fits(self, signature: bytes, message: bytes) -> bool:
        """Whether this key has signed that."""
        ...


def signing(key: AnchorKey) -> Signing:
    """The key that was given, by itself or by the path of its file."""
    if isinstance(key, str | os.PathLike):
        return _from_file(os.fspath(key))
    if isinstance(key, bytes | bytearray):
        return _from_bytes(bytes(key))
    if type(key).__module__.partition(".")[0] == "cryptography":
        return _Pair(key)
    raise TypeError(_WANTED)


def _from_file(path: str | bytes) -> Signing:
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_FILE + 1)
    except OSError as error:
        raise ValueError(
            f"the anchor's key file cannot be read ({error.strerror}); check its path"
        ) from None
    if content.lstrip().startswith(_PEM) or len(content) == SECRET_BYTES:
        return _from_bytes(content)
    text = content.strip()
    for decode in (binascii.unhexlify, _base64):
        try:
            return _from_bytes(decode(text))
        except ValueError:
            continue
    raise ValueError(f"the file holds no key of an anchor: {_WANTED}")


def _base64(text: bytes) -> bytes:
    return base64.b64decode(text, validate=True)


def _from_bytes(secret: bytes) -> Signing:
    if secret.lstrip().startswith(_PEM):
        return _Pair(_from_pem(secret))
    if len(secret) < SECRET_BYTES or len(set(secret)) == 1:
        raise ValueError(_WANTED)
    return _Shared(secret)


class _Shared:
    """A secret that those who sign and those who check have in common."""

    algorithm: Algorithm = "hmac-sha256"

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def __repr__(self) -> str:
        return "<key of an anchor>"

    def sign(self, message: bytes) -> bytes:
        return hmac.new(self._secret, message, sha256).digest()

    def fits(self, signature: bytes, message: bytes) -> bool:
        return hmac.compare_digest(signature, self.sign(message))


class _Pair:
    """An Ed25519 key: the private half signs, either half checks."""

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
            raise ValueError("anchors are signed with Ed25519, and this is a key of another kind")

    def __repr__(self) -> str:
        return "<key of an anchor>"

    def sign(self, message: bytes) -> bytes:
        if self._private is None:
            raise ValueError("a public key can check an anchor, not sign one; give the private key")
        return self._private.sign(message)

    def fits(self, signature: bytes, message: bytes) -> bool:
        from cryptography.exceptions import InvalidSignature

        try:
            self._public.verify(signature, message)
        except InvalidSignature:
            return False
        return True


def _from_pem(text: bytes) -> Any:
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
        # Nothing of the error: it may quote what it could not read.
        raise ValueError(
            "this PEM text is no Ed25519 key that can be read without a password"
        ) from None
