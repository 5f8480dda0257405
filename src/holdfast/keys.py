"""Keys to open an encrypted store with: `holdfast.open(url, key=…)`.

    key=secret                                    32 bytes
    key=keys.from_file("master.key")              a file with a key: holdfast key master.key
    key=keys.passphrase("correct horse …")        scrypt; its parameters are kept in the store
    key=keys.kms("alias/agents")                  AWS KMS: one call when the store is opened
    key=keys.from_function(fetch, id="2026-07")   your vault: fetch("2026-07") returns 32 bytes
    key=[new, old]                                several: the store says which one it needs
    key="file:master.key"                         a text, as on the command line; also env:, passphrase:, base64:, kms:

Your key protects the store's master key and nothing else, so it can be replaced without rewriting a record: `store.rekey(new)`.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hmac
import logging
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, Protocol, Union

import msgspec

from .backends.objects.aws_logs import bodies_unsaid
from .errors import AccessDenied, InvalidKey, MissingExtra, TamperDetected, Unavailable

KEY_BYTES: Final = 32
MAX_KEY_FILE: Final = 4096
SCRYPT_BYTES: Final = 1 << 30
"""Parameters of a store that would need more memory than this are refused: whoever can write to it can write anything."""

_FORMS: Final = "file:PATH, passphrase:TEXT, base64:TEXT or kms:KEY"

logger = logging.getLogger("holdfast")


class Wrapping(msgspec.Struct, frozen=True):
    """A secret, encrypted by somebody's key: how, by which one, and what is needed to do it again."""

    how: str
    key: str
    check: str
    facts: Mapping[str, str | int]
    wrapped: bytes


class Key(Protocol):
    """What can wrap a secret, and unwrap what it has wrapped. Write one of your own for a vault that never gives its keys away."""

    @property
    def id(self) -> str | None:
        """The name by which its owner knows it, if it has one."""
        ...

    def wrap(self, secret: bytes, about: bytes) -> Wrapping:
        """Encrypt a secret, bound to `about`."""
        ...

    def unwrap(self, wrapping: Wrapping, about: bytes) -> bytes | None:
        """Decrypt it; None if another key has wrapped it. `TamperDetected` if it was altered, or is about something else."""
        ...


KeyLike = Union[bytes, str, "os.PathLike[str]", Key, Callable[[], bytes], Sequence["KeyLike"]]
"""What `key=` takes."""


def generate() -> bytes:
    """A new key: 32 random bytes. Keep it where the store is not."""
    return os.urandom(KEY_BYTES)


def raw(secret: bytes, *, id: str | None = None) -> Key:
    """A key of 32 bytes. `id`: a name of yours, by which a store says which one it needs; else it goes by a digest."""
    return _Raw(secret, id)


def from_file(path: str | os.PathLike[str], *, id: str | None = None) -> Key:
    """A key from a file: 32 bytes, or their base64 or hexadecimal text."""
    place = os.fspath(path)
    try:
        with open(place, "rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                logger.warning("the key file %s can be read by others; chmod 600 it", place)
            content = file.read(MAX_KEY_FILE + 1)
    except OSError as error:
        raise InvalidKey(f"the key file {place} cannot be read ({error.strerror})") from None
    return _Raw(_key_in(content, f"the key file {place}"), id)


def from_function(fetch: Callable[..., bytes], *, id: str | None = None) -> Key:
    """A key that a function of yours returns when a store is opened: `fetch(id)`, or `fetch()` without an id."""
    return _Fetched(fetch, id)


def passphrase(text: str, *, n: int = 1 << 17, r: int = 8, p: int = 1) -> Key:
    """A key made from a passphrase by scrypt. `n`, `r`, `p` are used when it wraps; what is needed to unwrap is in the store."""
    return _Passphrase(text, n, r, p)


def kms(
    key: str, *, region: str | None = None, endpoint: str | None = None, client: Any = None
) -> Key:
    """A key in AWS KMS, by id, ARN or alias. It never leaves KMS; the store's master key is sent there when it is opened."""
    return _KMS(key, region, endpoint, client)


def given(key: Any) -> list[Key]:
    """The keys that a value of `key=` means; the first is the one to wrap with."""
    if isinstance(key, bytes | bytearray):
        return [_Raw(bytes(key), None)]
    if isinstance(key, str):
        return [_told(key)]
    if isinstance(key, os.PathLike):
        return [from_file(key)]
    if hasattr(key, "wrap") and hasattr(key, "unwrap"):
        return [key]
    if callable(key):
        return [_Fetched(key, None)]
    if isinstance(key, Sequence) and key:
        return [each for part in key for each in given(part)]
    raise TypeError(
        f"key must be 32 bytes, a key of holdfast.keys, a function, or a list of them, got {type(key).__name__}"
    )


def _told(text: str) -> Key:
    """What a text means. It may be a secret: no message shows it."""
    form, colon, rest = text.partition(":")
    if colon and form == "env":
        return _in_environment(rest)
    if colon and form == "file":
        return from_file(rest)
    if colon and form == "passphrase":
        return passphrase(rest)
    if colon and form == "base64":
        return _Raw(_key_in(os.fsencode(rest), "the text after base64:"), None)
    if colon and form == "kms":
        return kms(rest)
    raise InvalidKey(f"a key as text is env:NAME, {_FORMS}")


def _in_environment(name: str) -> Key:
    """The key in a variable: one of the texts above, or, as platforms supply it, nothing but the key as text."""
    value = os.environ.get(name)
    if not value:
        raise InvalidKey(f"the environment has no variable {name}; set it to a key: {_FORMS}")
    if value.startswith("env:"):
        raise InvalidKey(f"the variable {name} names another variable; set it to a key")
    secret = _key_as_text(os.fsencode(value))
    if secret is None and not value.startswith(("file:", "passphrase:", "base64:", "kms:")):
        raise InvalidKey(
            f"the variable {name} holds no key; set it to {KEY_BYTES} bytes in base64 or hexadecimal, or {_FORMS}"
        )
    try:
        return _told(value) if secret is None else _Raw(secret, None)
    except InvalidKey as error:
        raise InvalidKey(f"the variable {name} holds no key: {error}") from None


def _key_in(content: bytes, where: str) -> bytes:
    """The key that some bytes are, or say."""
    secret = content if len(content) == KEY_BYTES else _key_as_text(content)
    if secret is None:
        raise InvalidKey(
            f"{where} holds no key of {KEY_BYTES} bytes; make one with: holdfast key FILE"
        )
    return secret


def _key_as_text(content: bytes) -> bytes | None:
    """The key that is written here, in hexadecimal or base64; None if there is none."""
    text = content.strip()
    for decode in (_hexadecimal, _base64):
        secret = decode(text)
        if secret is not None and len(secret) == KEY_BYTES:
            return secret
    return None


def _hexadecimal(text: bytes) -> bytes | None:
    try:
        return binascii.unhexlify(text)
    except binascii.Error:
        return None


def _base64(text: bytes) -> bytes | None:
    try:
        return base64.b64decode(
            text, altchars=b"-_" if b"-" in text or b"_" in text else None, validate=True
        )
    except binascii.Error:
        return None


def check_of(secret: bytes) -> str:
    """A digest that tells keys apart and says nothing of them."""
    return hmac.new(secret, b"holdfast key check 1", sha256).hexdigest()[:32]


class _Raw:
    """A key that is here."""

    def __init__(self, secret: bytes, id: str | None) -> None:
        if len(secret) != KEY_BYTES:
            raise InvalidKey(
                f"a key is {KEY_BYTES} random bytes: holdfast.keys.generate(); for words use keys.passphrase"
            )
        if len(set(secret)) == 1:
            raise InvalidKey(
                "the key is the same byte again and again; make one with holdfast.keys.generate()"
            )
        if all(32 <= byte < 127 for byte in secret):  # of random keys, one in 10^13 is
            raise InvalidKey(
                "the key is text, and text is guessed: make one with holdfast.keys.generate() or holdfast key FILE, "
                "or for words use keys.passphrase"
            )
        self._secret, self._id = secret, id

    @property
    def id(self) -> str | None:
        return self._id

    def __repr__(self) -> str:
        return "<key of 32 bytes>" if self._id is None else f"<key {self._id!r}>"

    def wrap(self, secret: bytes, about: bytes) -> Wrapping:
        check = check_of(self._secret)
        return Wrapping("raw", self._id or check, check, {}, sealed_by(self._secret, secret, about))

    def unwrap(self, wrapping: Wrapping, about: bytes) -> bytes | None:
        if wrapping.how != "raw" or wrapping.check != check_of(self._secret):
            return None
        return opened_by(self._secret, wrapping.wrapped, about)


class _Fetched:
    """A key that a function returns when it is needed."""

    def __init__(self, fetch: Callable[..., bytes], id: str | None) -> None:
        self._fetch, self._id = fetch, id

    @property
    def id(self) -> str | None:
        return self._id

    def __repr__(self) -> str:
        return (
            "<key from a function>" if self._id is None else f"<key {self._id!r} from a function>"
        )

    def _key(self) -> _Raw:
        secret = self._fetch() if self._id is None else self._fetch(self._id)
        if not isinstance(secret, bytes):
            raise InvalidKey(
                f"the function for the key returned {type(secret).__name__}, not {KEY_BYTES} bytes"
            )
        return _Raw(secret, self._id)

    def wrap(self, secret: bytes, about: bytes) -> Wrapping:
        return self._key().wrap(secret, about)

    def unwrap(self, wrapping: Wrapping, about: bytes) -> bytes | None:
        if wrapping.how != "raw" or (self._id is not None and wrapping.key != self._id):
            return None
        return self._key().unwrap(wrapping, about)


class _Passphrase:
    """A key that is derived from words."""

    id = None

    def __init__(self, text: str, n: int, r: int, p: int) -> None:
        if len(text) < 8:
            raise InvalidKey("a passphrase has at least 8 characters; better, several words")
        self._text, self._parameters = text, (n, r, p)
        _check_scrypt(n, r, p)

    def __repr__(self) -> str:
        return "<passphrase>"

    def wrap(self, secret: bytes, about: bytes) -> Wrapping:
        n, r, p = self._parameters
        salt = os.urandom(16)
        key = self._derived(salt, n, r, p)
        facts: dict[str, str | int] = {"salt": salt.hex(), "n": n, "r": r, "p": p}
        return Wrapping("scrypt", "passphrase", check_of(key), facts, sealed_by(key, secret, about))

    def unwrap(self, wrapping: Wrapping, about: bytes) -> bytes | None:
        if wrapping.how != "scrypt":
            return None
        salt, n, r, p = (wrapping.facts.get(name) for name in ("salt", "n", "r", "p"))
        try:
            if not (isinstance(n, int) and isinstance(r, int) and isinstance(p, int)):
                raise ValueError
            _check_scrypt(n, r, p)
            key = self._derived(bytes.fromhex(str(salt)), n, r, p)
        except (ValueError, InvalidKey):
            raise TamperDetected(
                "the store's key ring", what="its parameters for the passphrase are none"
            ) from None
        return opened_by(key, wrapping.wrapped, about) if wrapping.check == check_of(key) else None

    def _derived(self, salt: bytes, n: int, r: int, p: int) -> bytes:
        scrypt = _primitives("scrypt")
        derived: bytes = scrypt(salt=salt, length=KEY_BYTES, n=n, r=r, p=p).derive(
            self._text.encode()
        )
        return derived


def _check_scrypt(n: int, r: int, p: int) -> None:
    good = n >= 1 << 14 and n & (n - 1) == 0 and r >= 8 and p >= 1
    if not good or 128 * n * r * p > SCRYPT_BYTES:
        raise InvalidKey(
            "scrypt takes n, a power of 2 from 16384 on, r from 8 and p from 1, and at most 1 GiB: 128 * n * r * p"
        )


class _KMS:
    """A key in AWS KMS."""

    id = None

    def __init__(self, key: str, region: str | None, endpoint: str | None, client: Any) -> None:
        if not key:
            raise InvalidKey("name a KMS key: its id, ARN or alias/…")
        self._key, self._region, self._endpoint, self._own = key, region, endpoint, client

    def __repr__(self) -> str:
        return f"<KMS key {self._key!r}>"

    def _client(self) -> Any:
        if self._own is None:
            try:
                import boto3  # type: ignore[import-untyped]
            except ImportError:
                raise MissingExtra("a key in KMS", "aws,crypto") from None
            self._own = boto3.client("kms", region_name=self._region, endpoint_url=self._endpoint)
        return self._own

    def wrap(self, secret: bytes, about: bytes) -> Wrapping:
        answer = self._call(
            "encrypt", KeyId=self._key, Plaintext=secret, EncryptionContext=_context(about)
        )
        return Wrapping("kms", str(answer["KeyId"]), "", {}, bytes(answer["CiphertextBlob"]))

    def unwrap(self, wrapping: Wrapping, about: bytes) -> bytes | None:
        if wrapping.how != "kms":
            return None
        answer = self._call(
            "decrypt",
            KeyId=self._key,
            CiphertextBlob=wrapping.wrapped,
            EncryptionContext=_context(about),
        )
        return None if answer is None else bytes(answer["Plaintext"])

    def _call(self, name: str, **arguments: Any) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError, NoRegionError  # type: ignore[import-untyped]

        try:
            with bodies_unsaid():
                return getattr(self._client(), name)(**arguments)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code == "IncorrectKeyException":
                return None
            if code == "InvalidCiphertextException":
                raise TamperDetected(
                    "the store's key ring", what="KMS does not know it as its own"
                ) from None
            if code in (
                "AccessDeniedException",
                "NotFoundException",
                "DisabledException",
                "KMSInvalidStateException",
            ):
                raise AccessDenied(
                    f"KMS refuses the key: {code}; check its name, state and policy"
                ) from None
            raise Unavailable(f"KMS cannot be used now ({code}); nothing was written") from None
        except NoRegionError:
            raise InvalidKey(
                "the key in KMS names no region: keys.kms(…, region=…), or set AWS_DEFAULT_REGION, like eu-central-1"
            ) from None
        except BotoCoreError as error:
            raise Unavailable(
                f"KMS cannot be reached ({type(error).__name__}); nothing was written"
            ) from None


def _context(about: bytes) -> dict[str, str]:
    return {"holdfast": base64.urlsafe_b64encode(about).decode()}


# -- AES-256-GCM -----------------------------------------------------------------------------------------------------------

NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16


@functools.cache
def _primitives(name: str) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
    except ImportError:
        raise MissingExtra("encryption", "crypto") from None
    return Scrypt if name == "scrypt" else AESGCM


def aes(secret: bytes) -> Any:
    """AES-256-GCM with a key."""
    return _primitives("aes")(secret)


def sealed_by(key: bytes, secret: bytes, about: bytes) -> bytes:
    """A secret, encrypted under a key and bound to what it is about."""
    nonce = os.urandom(NONCE_BYTES)
    return nonce + bytes(aes(key).encrypt(nonce, secret, about))


def opened_by(key: bytes, sealed: bytes, about: bytes) -> bytes:
    """The secret again; `TamperDetected` if it was altered, or is about something else."""
    from cryptography.exceptions import InvalidTag

    if len(sealed) < NONCE_BYTES + TAG_BYTES:
        raise TamperDetected("a wrapped key", what="it is too short")
    try:
        return bytes(aes(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], about))
    except InvalidTag:
        raise TamperDetected("a wrapped key", what="it was altered, or belongs elsewhere") from None
