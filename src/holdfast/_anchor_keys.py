"""Keys of anchors: a shared secret (HMAC-SHA256), or a pair of which one half signs and the other only checks (Ed25519).

What a key is decides which signature is made and which one is accepted, never what an anchor says of itself: else a public key, which
anybody may know, could be taken for a shared secret.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
from hashlib import sha256
from typing import Any, Final, Literal, Protocol

from .errors import MissingExtra

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
        raise ValueError(f"the anchor's key file cannot be read ({error.strerror}); check its path") from None
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
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

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
        raise ValueError("this PEM text is no Ed25519 key that can be read without a password") from None
