"""The keyring: the store's master keys, in one stream per store.

Every version is complete: it has the current master key, wrapped by a key of the owner, and the
former master keys, wrapped by the current one. So the owner's key, which may be slow, is used only
once, even after many rotations. During a rotation the keyring has wrappings by the owner's old and
new key, and either of them opens the store.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from ..backends import Append, AppendResult, Backend, HeadSummary
from ..errors import (
    CorruptRecord,
    HoldfastError,
    NotEncrypted,
    OutcomeUnknown,
    TamperDetected,
    Unavailable,
    UnknownKey,
    WrongKey,
)
from ..keys import KEY_BYTES, Key, KeyLike, Wrapping, decrypt_secret, encrypt_secret, parse_keys
from ..log import chain
from ..log.codec import Undecodable
from ..log.events import NewEvent, decode_envelope, encode_envelopes, new_append_context
from ..log.head_fields import NO_FIELDS, encode_fields
from ..log.ids import SYSTEM_TENANT, append_id
from .detect import KEYRING_STREAM, TENANT_ENCRYPTED, is_encrypted

KEYRING_EVENT: Final = "keyring.set"
MAX_MASTERS: Final = 2_000
MAX_OWNER_WRAPPED: Final = 8
"""A keyring with more master keys, or more of them wrapped by the owner's keys, is rejected.

Unwrapping one of the latter takes a KMS call or a run of scrypt, and an attacker could have added
many.
"""
BY_MASTER: Final = "master"
"""The `how` of a former master key, which the current master key wraps."""


class WrappedMaster(msgspec.Struct, frozen=True):
    """A stored master key."""

    id: str
    by: Wrapping


class KeyringState(msgspec.Struct, frozen=True):
    """The id of the current master key, all master keys, and the ids of those being replaced."""

    current: str
    masters: list[WrappedMaster]
    retiring: list[str] = []


class MasterKey:
    """A master key."""

    __slots__ = ("_secret", "id")

    def __init__(self, id: str, secret: bytes) -> None:
        self.id, self._secret = id, secret

    def __repr__(self) -> str:
        return f"<master key {self.id}>"

    def wrap(self, secret: bytes, about: bytes) -> bytes:
        return encrypt_secret(self._secret, secret, about)

    def unwrap(self, wrapped: bytes, about: bytes) -> bytes:
        return decrypt_secret(self._secret, wrapped, about)

    def wrap_with(self, key: Key) -> WrappedMaster:
        return WrappedMaster(self.id, key.wrap(self._secret, master_data(self.id)))

    def wrap_with_master(self, current: MasterKey) -> WrappedMaster:
        """Wrap this former master key with the current one."""
        wrapped = current.wrap(self._secret, master_data(self.id))
        return WrappedMaster(self.id, Wrapping(BY_MASTER, current.id, "", {}, wrapped))


def generate_master() -> MasterKey:
    return MasterKey(os.urandom(8).hex(), os.urandom(KEY_BYTES))


def master_data(master: str) -> bytes:
    """Return the associated data of a wrapped master key."""
    return b"holdfast master 1\0" + master.encode()


class Keyring:
    """The master keys that the owner's keys unwrap."""

    def __init__(self, backend: Backend, keys: Sequence[Key]) -> None:
        self._backend, self.keys = backend, keys
        self.version, self._hash, self._incarnation = 0, b"", os.urandom(16)
        self.state = KeyringState("", [])
        self.masters: dict[str, MasterKey] = {}

    def __repr__(self) -> str:
        return f"<Keyring of {len(self.masters)} master keys>"

    @property
    def current(self) -> MasterKey:
        return self.masters[self.state.current]

    def reload(self) -> bool:
        """Read the keyring again. Return whether it has changed."""
        found = _read_newest(self._backend)
        if found is None or found.version == self.version:
            return False
        state = found.state
        masters = self._unwrap_masters(state)
        if not masters:
            raise self._explain_failure(state)
        if state.current not in masters:
            # Another key of the owner wrapped it: old records stay readable, writing fails.
            masters = {**self.masters, **masters}
        # In this order: another thread that sees the version must also see its state.
        self.masters = masters
        self.state = state
        self.version, self._hash, self._incarnation = found.version, found.hash, found.incarnation
        return True

    def _unwrap_masters(self, state: KeyringState) -> dict[str, MasterKey]:
        """Return the master keys that can be unwrapped, the newest first."""
        masters: dict[str, MasterKey] = {}
        for wrapped in state.masters:
            if wrapped.by.how != BY_MASTER and wrapped.id not in masters:
                secret = self._unwrap_with_owner_keys(wrapped)
                if secret is not None:
                    masters[wrapped.id] = _check_master(wrapped.id, secret)
        for wrapped in state.masters:
            by = masters.get(wrapped.by.key) if wrapped.by.how == BY_MASTER else None
            if by is not None and wrapped.id not in masters:
                masters[wrapped.id] = _check_master(
                    wrapped.id, by.unwrap(wrapped.by.wrapped, master_data(wrapped.id))
                )
        return masters

    def _unwrap_with_owner_keys(self, wrapped: WrappedMaster) -> bytes | None:
        """Return the master key if one of the owner's keys unwraps it."""
        secrets = (key.unwrap(wrapped.by, master_data(wrapped.id)) for key in self.keys)
        return next((secret for secret in secrets if secret is not None), None)

    def _explain_failure(self, state: KeyringState) -> WrongKey | UnknownKey:
        wanted = sorted(
            {wrapped.by.key for wrapped in state.masters if wrapped.by.how != BY_MASTER}
        )
        named = [key.id for key in self.keys if key.id is not None]
        if named and not set(named) & set(wanted):
            return UnknownKey(
                f"the store is encrypted with key {wanted[0]!r}; no given key has this id",
                key=wanted[0],
            )
        return WrongKey(
            "this key does not open the store; use the key it was encrypted with or rekeyed to"
        )

    def set(self, state: KeyringState) -> bool:
        """Write a new version.

        Return False, and write nothing, if the keyring changed since it was read.
        """
        stamp = new_append_context()
        bodies = encode_envelopes([NewEvent(KEYRING_EVENT, msgspec.json.encode(state))], stamp, {})
        name = append_id(stamp.id)
        seed = chain.seed(KEYRING_STREAM, self._incarnation)
        links = chain.extend(seed, self._hash or chain.GENESIS, self.version, name, bodies)
        fields = None if self.version else encode_fields(seed, NO_FIELDS)
        append = Append(
            KEYRING_STREAM, self.version, self._hash, self._incarnation, name, links, fields
        )
        return store_append(self._backend, append)


def _check_master(id: str, secret: bytes) -> MasterKey:
    if len(secret) != KEY_BYTES:
        raise TamperDetected("the store's keyring", what="a master key has the wrong length")
    return MasterKey(id, secret)


def store_append(backend: Backend, append: Append) -> bool:
    """Store an append. Return False if that version already has other content."""
    for _ in range(3):
        try:
            return isinstance(backend.append([append])[0], AppendResult)
        except Exception as error:
            # A driver's error leaves the outcome open. The same bytes for the same version are
            # stored at most once.
            if isinstance(error, HoldfastError) and not isinstance(error, OutcomeUnknown):
                raise
    raise Unavailable("a key could not be stored; nothing was written with it; retry")


class _StoredKeyring(msgspec.Struct, frozen=True):
    version: int
    hash: bytes
    incarnation: bytes
    state: KeyringState


def _read_newest(backend: Backend) -> _StoredKeyring | None:
    head = backend.head(KEYRING_STREAM)
    if head is None:
        return None
    page = backend.read(KEYRING_STREAM, after=head.version - 1, limit=1)
    try:
        envelope = decode_envelope(page[0].body)
        state = msgspec.json.decode(envelope.data, type=KeyringState)
    except (IndexError, Undecodable, msgspec.DecodeError, ValueError):
        raise CorruptRecord(
            "the store's keyring", version=head.version, what="it cannot be read"
        ) from None
    owned = [wrapped.id for wrapped in state.masters if wrapped.by.how != BY_MASTER]
    too_many = len(state.masters) > MAX_MASTERS or len(owned) > MAX_OWNER_WRAPPED
    if envelope.type != KEYRING_EVENT or state.current not in owned or too_many:
        raise CorruptRecord("the store's keyring", version=head.version, what="it is not a keyring")
    return _StoredKeyring(page[0].version, page[0].hash, head.incarnation, state)


def open_keyring(backend: Backend, key: KeyLike, *, create: bool = True) -> Keyring:
    """Open the keyring of a store, or create it in an empty store."""
    ring = Keyring(backend, parse_keys(key))
    if not is_encrypted(backend):
        if not create or has_tenants(backend):
            raise not_encrypted_error()
        master = generate_master()
        # If another process was faster, its keyring counts.
        ring.set(KeyringState(master.id, [master.wrap_with(ring.keys[0])]))
        if has_tenants(backend, plaintext=True):
            raise not_encrypted_error()
    ring.reload()
    return ring


def not_encrypted_error() -> NotEncrypted:
    return NotEncrypted(
        "a key was given, but the store is unencrypted; open it without a key, or copy it into an "
        "encrypted store: holdfast encrypt SRC DST --to KEY"
    )


def has_tenants(backend: Backend, *, plaintext: bool = False) -> bool:
    """Return whether the store has tenants; with `plaintext`, whether it has unencrypted ones."""
    for head in iter_heads(backend, SYSTEM_TENANT, "tenant"):
        first = backend.read(head.stream, limit=1) if plaintext else ()
        if not plaintext or (first and TENANT_ENCRYPTED not in first[0].body):
            return True
    return False


def iter_heads(backend: Backend, tenant: str, kind: str) -> Iterator[HeadSummary]:
    """Yield the heads of all streams of a kind, page by page."""
    after = ""
    while page := backend.heads(tenant=tenant, kind=kind, after=after):
        yield from page
        if page[-1].stream.id <= after:
            raise CorruptRecord(str(page[-1].stream), what="the backend lists it repeatedly")
        after = page[-1].stream.id
