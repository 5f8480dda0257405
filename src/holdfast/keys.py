"""Keys that open an encrypted store: `holdfast.open(url, key=…)`.

    key=secret                                    32 bytes
    key=keys.from_file("master.key")              a key file, created by: holdfast key master.key
    key=keys.passphrase("correct horse …")        scrypt; the store keeps its parameters
    key=keys.kms("alias/agents")                  AWS KMS; one call when the store is opened
    key=keys.from_function(fetch, id="2026-07")   your vault; fetch("2026-07") returns 32 bytes
    key=[new, old]                                several; the one that fits is used
    key="file:master.key"                         text, as on the command line; also env:,
                                                  passphrase:, base64:, kms:

Your key encrypts only the store's master key, so `store.rekey(new)` replaces it without rewriting
a record.
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

from .backends.objects.aws_logs import hide_bodies
from .errors import AccessDenied, InvalidKey, MissingExtra, TamperDetected, Unavailable

KEY_BYTES: Final = 32
MAX_KEY_FILE_BYTES: Final = 4096
MAX_SCRYPT_BYTES: Final = 1 << 30
"""scrypt parameters that need more memory are refused: an attacker may have written them."""

_FORMS: Final = "file:PATH, passphrase:TEXT, base64:TEXT or kms:KEY"

logger = logging.getLogger("holdfast")


class Wrapping(msgspec.Struct, frozen=True):
    """A secret encrypted with an owner's key.

    `how` is the method, `key` the name of the key, `check` a digest of the key, `facts` the
    parameters of the method.
    """

    how: str
    key: str
    check: str
    facts: Mapping[str, str | int]
    wrapped: bytes


class Key(Protocol):
    """A key that can wrap and unwrap a secret. Implement it for a vault that never exports keys."""

    @property
    def id(self) -> str | None:
        """The owner's name for the key, if it has one."""
        ...

    def wrap(self, secret: bytes, about: bytes) -> Wrapping:
        """Encrypt a secret and authenticate `about` with it."""
        ...

    def unwrap(self, wrapping: Wrapping, about: bytes) -> bytes | None:
        """Decrypt a wrapped secret. Return None if another key wrapped it.

        Raise `TamperDetected` if it was altered, or if `about` differs.
        """
        ...


KeyLike = Union[bytes, str, "os.PathLike[str]", Key, Callable[[], bytes], Sequence["KeyLike"]]
"""The types that `key=` accepts."""


def generate() -> bytes:
    """Return a new key: 32 random bytes. Keep it apart from the store."""
    return os.urandom(KEY_BYTES)


def raw(secret: bytes, *, id: str | None = None) -> Key:
    """Return a key of 32 bytes. Errors name the key by its `id` or, without one, by a digest."""
    return _RawKey(secret, id)


def from_file(path: str | os.PathLike[str], *, id: str | None = None) -> Key:
    """Return a key from a file: 32 bytes, or their base64 or hexadecimal text."""
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                logger.warning("other users can read the key file %s; run chmod 600 on it", name)
            content = file.read(MAX_KEY_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidKey(f"the key file {name} cannot be read ({error.strerror})") from None
    return _RawKey(_decode_key(content, f"the key file {name}"), id)


def from_function(fetch: Callable[..., bytes], *, id: str | None = None) -> Key:
    """Return a key that a function of yours provides when a store is opened.

    The function is called as `fetch(id)`, or as `fetch()` without an id.
    """
    return _FunctionKey(fetch, id)


def passphrase(text: str, *, n: int = 1 << 17, r: int = 8, p: int = 1) -> Key:
    """Return a key derived from a passphrase by scrypt.

    `n`, `r` and `p` are used to wrap; the parameters to unwrap with are in the store.
    """
    return _PassphraseKey(text, n, r, p)


def kms(
    key: str, *, region: str | None = None, endpoint: str | None = None, client: Any = None
) -> Key:
    """Return a key in AWS KMS, by id, ARN or alias.

    The key never leaves KMS. Opening the store sends the wrapped master key to KMS.
    """
    return _KMSKey(key, region, endpoint, client)


def parse_keys(key: Any) -> list[Key]:
    """Return the keys described by a value of `key=`. The first key wraps new master keys.

    Raises `MissingExtra`, before a store is created, if encryption is not installed.
    """
    _primitives("aes")
    if isinstance(key, bytes | bytearray):
        return [_RawKey(bytes(key), None)]
    if isinstance(key, str):
        return [_parse_key_text(key)]
    if isinstance(key, os.PathLike):
        return [from_file(key)]
    if hasattr(key, "wrap") and hasattr(key, "unwrap"):
        return [key]
    if callable(key):
        return [_FunctionKey(key, None)]
    if isinstance(key, Sequence) and key:
        return [each for part in key for each in parse_keys(part)]
    raise TypeError(
        "key must be 32 bytes, a key of holdfast.keys, a function, or a list of them, "
        f"got {type(key).__name__}"
    )


def _parse_key_text(text: str) -> Key:
    """Parse a key given as text. The text may be a secret, so no message shows it."""
    form, colon, rest = text.partition(":")
    match form if colon else "":
        case "env":
            return _read_environment(rest)
        case "file":
            return from_file(rest)
        case "passphrase":
            return passphrase(rest)
        case "base64":
            return _RawKey(_decode_key(os.fsencode(rest), "the text after base64:"), None)
        case "kms":
            return kms(rest)
    raise InvalidKey(f"a key as text must be env:NAME, {_FORMS}")


def _read_environment(name: str) -> Key:
    """Return the key in an environment variable: a key as text, or its bare base64 or hex form."""
    value = os.environ.get(name)
    if not value:
        raise InvalidKey(f"the environment variable {name} is not set; set it to a key: {_FORMS}")
    if value.startswith("env:"):
        raise InvalidKey(f"the environment variable {name} names another variable; set it to a key")
    secret = _decode_key_text(os.fsencode(value))
    if secret is None and not value.startswith(("file:", "passphrase:", "base64:", "kms:")):
        raise InvalidKey(
            f"the environment variable {name} does not contain a key; set it to {KEY_BYTES} bytes "
            f"in base64 or hexadecimal, or {_FORMS}"
        )
    try:
        return _parse_key_text(value) if secret is None else _RawKey(secret, None)
    except InvalidKey as error:
        raise InvalidKey(
            f"the environment variable {name} does not contain a key: {error}"
        ) from None


def _decode_key(content: bytes, where: str) -> bytes:
    """Return the key in some bytes: raw, or as text."""
    secret = content if len(content) == KEY_BYTES else _decode_key_text(content)
    if secret is None:
        raise InvalidKey(
            f"{where} does not contain a key of {KEY_BYTES} bytes; create one: holdfast key FILE"
        )
    return secret


def _decode_key_text(content: bytes) -> bytes | None:
    """Return the key in a hexadecimal or base64 text; None if it is not one."""
    text = content.strip()
    altchars = b"-_" if b"-" in text or b"_" in text else None
    decode_base64 = functools.partial(base64.b64decode, altchars=altchars, validate=True)
    for decode in (binascii.unhexlify, decode_base64):
        try:
            secret = decode(text)
        except binascii.Error:
            continue
        if len(secret) == KEY_BYTES:
            return secret
    return None


def key_check(secret: bytes) -> str:
    """Return a digest that distinguishes keys and reveals nothing about them."""
    return hmac.new(secret, b"holdfast key check 1", sha256).hexdigest()[:32]


class _RawKey:
    """A key in memory."""

    def __init__(self, secret: bytes, id: str | None) -> None:
        if len(secret) != KEY_BYTES:
            raise InvalidKey(
                f"key must be {KEY_BYTES} random bytes, got {len(secret)} bytes; generate one with "
                "holdfast.keys.generate(), or use keys.passphrase(…) for words"
            )
        if len(set(secret)) == 1:
            raise InvalidKey(
                "the key repeats a single byte; generate one with holdfast.keys.generate()"
            )
        if all(32 <= byte < 127 for byte in secret):  # true of one random key in 10^13
            raise InvalidKey(
                "the key looks like text, which can be guessed; generate one with "
                "holdfast.keys.generate() or holdfast key FILE, or use keys.passphrase(…) for words"
            )
        self._secret, self.id = secret, id

    def __repr__(self) -> str:
        return "<key of 32 bytes>" if self.id is None else f"<key {self.id!r}>"

    def wrap(self, secret: bytes, about: bytes) -> Wrapping:
        check = key_check(self._secret)
        return Wrapping(
            "raw", self.id or check, check, {}, encrypt_secret(self._secret, secret, about)
        )

    def unwrap(self, wrapping: Wrapping, about: bytes) -> bytes | None:
        if wrapping.how != "raw" or wrapping.check != key_check(self._secret):
            return None
        return decrypt_secret(self._secret, wrapping.wrapped, about)


class _FunctionKey:
    """A key that a function returns when the key is needed."""

    def __init__(self, fetch: Callable[..., bytes], id: str | None) -> None:
        self._fetch, self.id = fetch, id

    def __repr__(self) -> str:
        name = "" if self.id is None else f" {self.id!r}"
        return f"<key{name} from a function>"

    def _key(self) -> _RawKey:
        secret = self._fetch() if self.id is None else self._fetch(self.id)
        if not isinstance(secret, bytes):
            raise InvalidKey(
                f"the key function must return {KEY_BYTES} bytes, got {type(secret).__name__}"
            )
        return _RawKey(secret, self.id)

    def wrap(self, secret: bytes, about: bytes) -> Wrapping:
        return self._key().wrap(secret, about)

    def unwrap(self, wrapping: Wrapping, about: bytes) -> bytes | None:
        if wrapping.how != "raw" or (self.id is not None and wrapping.key != self.id):
            return None
        return self._key().unwrap(wrapping, about)


class _PassphraseKey:
    """A key derived from a passphrase."""

    id = None

    def __init__(self, text: str, n: int, r: int, p: int) -> None:
        if len(text) < 8:
            raise InvalidKey("a passphrase must have at least 8 characters; use several words")
        self._text, self._parameters = text, (n, r, p)
        _check_scrypt(n, r, p)

    def __repr__(self) -> str:
        return "<passphrase>"

    def wrap(self, secret: bytes, about: bytes) -> Wrapping:
        n, r, p = self._parameters
        salt = os.urandom(16)
        key = self._derive_key(salt, n, r, p)
        facts: dict[str, str | int] = {"salt": salt.hex(), "n": n, "r": r, "p": p}
        return Wrapping(
            "scrypt", "passphrase", key_check(key), facts, encrypt_secret(key, secret, about)
        )

    def unwrap(self, wrapping: Wrapping, about: bytes) -> bytes | None:
        if wrapping.how != "scrypt":
            return None
        salt, n, r, p = (wrapping.facts.get(name) for name in ("salt", "n", "r", "p"))
        try:
            if not (isinstance(n, int) and isinstance(r, int) and isinstance(p, int)):
                raise ValueError
            _check_scrypt(n, r, p)
            key = self._derive_key(bytes.fromhex(str(salt)), n, r, p)
        except (ValueError, InvalidKey):
            raise TamperDetected(
                "the store's keyring", what="its scrypt parameters are not valid"
            ) from None
        return (
            decrypt_secret(key, wrapping.wrapped, about)
            if wrapping.check == key_check(key)
            else None
        )

    def _derive_key(self, salt: bytes, n: int, r: int, p: int) -> bytes:
        scrypt = _primitives("scrypt")
        derived: bytes = scrypt(salt=salt, length=KEY_BYTES, n=n, r=r, p=p).derive(
            self._text.encode()
        )
        return derived


def _check_scrypt(n: int, r: int, p: int) -> None:
    good = n >= 1 << 14 and n & (n - 1) == 0 and r >= 8 and p >= 1
    if not good or 128 * n * r * p > MAX_SCRYPT_BYTES:
        raise InvalidKey(
            "n must be a power of 2 >= 16384, r >= 8, p >= 1, and 128 * n * r * p at most 1 GiB, "
            f"got n={n}, r={r}, p={p}"
        )


class _KMSKey:
    """A key in AWS KMS."""

    id = None

    def __init__(self, key: str, region: str | None, endpoint: str | None, client: Any) -> None:
        if not key:
            raise InvalidKey("key must be the id, ARN or alias/… of a KMS key, got an empty str")
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
            with hide_bodies():
                return getattr(self._client(), name)(**arguments)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code == "IncorrectKeyException":
                return None
            if code == "InvalidCiphertextException":
                raise TamperDetected(
                    "the store's keyring", what="KMS did not encrypt its master key"
                ) from None
            if code in (
                "AccessDeniedException",
                "NotFoundException",
                "DisabledException",
                "KMSInvalidStateException",
            ):
                raise AccessDenied(
                    f"KMS refused to use the key ({code}); check its name, state and policy"
                ) from None
            raise Unavailable(
                f"KMS is not available ({code}); nothing was written; retry later"
            ) from None
        except NoRegionError:
            raise InvalidKey(
                "the KMS key has no region; use keys.kms(…, region=…), or set AWS_DEFAULT_REGION"
            ) from None
        except BotoCoreError as error:
            raise Unavailable(
                f"KMS is unreachable ({type(error).__name__}); nothing was written; retry later"
            ) from None


def _context(about: bytes) -> dict[str, str]:
    return {"holdfast": base64.urlsafe_b64encode(about).decode()}


# -- AES-256-GCM -----------------------------------------------------------------------------------

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


def make_aes(secret: bytes) -> Any:
    """Return AES-256-GCM with this key."""
    return _primitives("aes")(secret)


def encrypt_secret(key: bytes, secret: bytes, about: bytes) -> bytes:
    """Encrypt a secret and authenticate `about` with it."""
    nonce = os.urandom(NONCE_BYTES)
    return nonce + bytes(make_aes(key).encrypt(nonce, secret, about))


def decrypt_secret(key: bytes, encrypted: bytes, about: bytes) -> bytes:
    """Decrypt a secret. Raise `TamperDetected` if it or `about` was altered."""
    from cryptography.exceptions import InvalidTag

    if len(encrypted) < NONCE_BYTES + TAG_BYTES:
        raise TamperDetected("a wrapped key", what="it is too short")
    try:
        return bytes(make_aes(key).decrypt(encrypted[:NONCE_BYTES], encrypted[NONCE_BYTES:], about))
    except InvalidTag:
        raise TamperDetected("a wrapped key", what="it was altered, or belongs elsewhere") from None
