"""The ring: the store's master keys. One stream of the store as a whole.

Every version of it says everything: the master key that is in use, wrapped by a key of the owner's, and the former ones, wrapped by that
one; so the owner's key, which may be slow, is asked once, however often there was a new one. While the store gets a new key, the ring
has both, and whoever has either of the owner's keys can open the store.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import msgspec

from ..backends import Append, AppendResult, Backend, clock
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
from ..keys import KEY_BYTES, Key, KeyLike, Wrapping, given, opened_by, sealed_by
from ..log import chain
from ..log.codec import Undecodable
from ..log.events import AppendContext, NewEvent, encode_envelopes, open_envelope
from ..log.ids import SYSTEM_TENANT, append_id, new_id
from .detect import RING, TENANT_SEALED, is_encrypted

EVENT: Final = "ring.set"
MASTERS: Final = 2_000
OWNED: Final = 8
"""More than these, and of them more that are wrapped by keys of the owner's, are not the ring of a store: each of the latter costs a call
of KMS or a run of scrypt, and whoever can write to the store could make that many."""
BY_MASTER: Final = "master"
"""How a former master key is wrapped: by the one in use, and not by a key of the owner's."""


class WrappedMaster(msgspec.Struct, frozen=True):
    """A master key as it is stored."""

    id: str
    by: Wrapping


class KeyringState(msgspec.Struct, frozen=True):
    """What the ring says: the master key that is in use, and all that are known. `retiring`: those being replaced."""

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
        return sealed_by(self._secret, secret, about)

    def unwrap(self, wrapped: bytes, about: bytes) -> bytes:
        return opened_by(self._secret, wrapped, about)

    def wrapped_by(self, key: Key) -> WrappedMaster:
        return WrappedMaster(self.id, key.wrap(self._secret, about(self.id)))

    def wrapped_beside(self, current: MasterKey) -> WrappedMaster:
        """As a former one, by the one that is in use."""
        wrapped = current.wrap(self._secret, about(self.id))
        return WrappedMaster(self.id, Wrapping(BY_MASTER, current.id, "", {}, wrapped))


def new_master() -> MasterKey:
    return MasterKey(os.urandom(8).hex(), os.urandom(KEY_BYTES))


def about(master: str) -> bytes:
    """What a wrapped master key is bound to."""
    return b"holdfast master 1\0" + master.encode()


class Keyring:
    """The master keys that the owner's keys open."""

    def __init__(self, backend: Backend, keys: Sequence[Key]) -> None:
        self._backend, self.keys = backend, keys
        self.version, self._hash, self._incarnation = 0, b"", os.urandom(16)
        self.standing = KeyringState("", [])
        self.masters: dict[str, MasterKey] = {}

    def __repr__(self) -> str:
        return f"<Ring of {len(self.masters)} master keys>"

    @property
    def current(self) -> MasterKey:
        return self.masters[self.standing.current]

    def reload(self) -> bool:
        """Look again. True if it has changed since."""
        found = _newest(self._backend)
        if found is None or found.version == self.version:
            return False
        standing = found.standing
        opened = self._opened(standing)
        if not opened:
            raise self._no_key(standing)
        if standing.current not in opened:
            # Another key of the owner's has wrapped it: what was sealed before can still be read, nothing new can be written.
            opened = {**self.masters, **opened}
        # In this order: other threads look at it meanwhile. Who sees a version has what it says.
        self.masters = opened
        self.standing = standing
        self.version, self._hash, self._incarnation = found.version, found.hash, found.incarnation
        return True

    def _opened(self, standing: KeyringState) -> dict[str, MasterKey]:
        """The master keys that can be opened, the newest first."""
        opened: dict[str, MasterKey] = {}
        for wrapped in standing.masters:
            if wrapped.by.how != BY_MASTER and wrapped.id not in opened:
                secret = self._asked(wrapped)
                if secret is not None:
                    opened[wrapped.id] = _master(wrapped.id, secret)
        for wrapped in standing.masters:
            by = opened.get(wrapped.by.key) if wrapped.by.how == BY_MASTER else None
            if by is not None and wrapped.id not in opened:
                opened[wrapped.id] = _master(
                    wrapped.id, by.unwrap(wrapped.by.wrapped, about(wrapped.id))
                )
        return opened

    def _asked(self, wrapped: WrappedMaster) -> bytes | None:
        """What one of the owner's keys makes of it."""
        unwrapped = (key.unwrap(wrapped.by, about(wrapped.id)) for key in self.keys)
        return next((secret for secret in unwrapped if secret is not None), None)

    def _no_key(self, standing: KeyringState) -> WrongKey | UnknownKey:
        wanted = sorted(
            {wrapped.by.key for wrapped in standing.masters if wrapped.by.how != BY_MASTER}
        )
        named = [key.id for key in self.keys if key.id is not None]
        if named and not set(named) & set(wanted):
            return UnknownKey(
                f"the store is encrypted with key {wanted[0]!r}; none of the keys that were given has this id",
                key=wanted[0],
            )
        return WrongKey(
            "this key does not open the store; give the one that it was encrypted with, or rekeyed to"
        )

    def set(self, standing: KeyringState) -> bool:
        """Say something new. False, and nothing was written, if somebody else did since we looked."""
        stamp = AppendContext(new_id(), clock.time())
        bodies = encode_envelopes([NewEvent(EVENT, msgspec.json.encode(standing))], stamp, {})
        links = chain.extend(
            chain.seed(RING, self._incarnation), self._hash or chain.GENESIS, self.version, bodies
        )
        append = Append(
            RING, self.version, self._hash, self._incarnation, append_id(stamp.id), links
        )
        return stored_keyring(self._backend, append)


def _master(id: str, secret: bytes) -> MasterKey:
    if len(secret) != KEY_BYTES:
        raise TamperDetected("the store's key ring", what="a master key has the wrong length")
    return MasterKey(id, secret)


def stored_keyring(backend: Backend, append: Append) -> bool:
    """Store an append that everything else waits for. False if something else is in its place."""
    for _ in range(3):
        try:
            return isinstance(backend.append([append])[0], AppendResult)
        except Exception as error:
            # An error of a driver's says nothing either way. The same bytes at the same place: it is stored once.
            if isinstance(error, HoldfastError) and not isinstance(error, OutcomeUnknown):
                raise
    raise Unavailable("a key could not be stored; nothing was written with it")


class _StoredKeyring(msgspec.Struct, frozen=True):
    version: int
    hash: bytes
    incarnation: bytes
    standing: KeyringState


def _newest(backend: Backend) -> _StoredKeyring | None:
    head = backend.head(RING)
    if head is None:
        return None
    page = backend.read(RING, after=head.version - 1, limit=1)
    try:
        envelope = open_envelope(page[0].body)
        standing = msgspec.json.decode(envelope.data, type=KeyringState)
    except (IndexError, Undecodable, msgspec.DecodeError, ValueError):
        raise CorruptRecord(
            "the store's key ring", version=head.version, what="it cannot be read"
        ) from None
    owned = [wrapped.id for wrapped in standing.masters if wrapped.by.how != BY_MASTER]
    too_many = len(standing.masters) > MASTERS or len(owned) > OWNED
    if envelope.type != EVENT or standing.current not in owned or too_many:
        raise CorruptRecord("the store's key ring", version=head.version, what="it is not a ring")
    return _StoredKeyring(page[0].version, page[0].hash, head.incarnation, standing)


def open_keyring(backend: Backend, key: KeyLike, *, create: bool = True) -> Keyring:
    """The ring of a store, opened. Makes one in a store that is empty."""
    ring = Keyring(backend, given(key))
    if not is_encrypted(backend):
        if not create or has_tenants(backend):
            raise not_encrypted()
        master = new_master()
        # If somebody else was faster, theirs counts.
        ring.set(KeyringState(master.id, [master.wrapped_by(ring.keys[0])]))
        if has_tenants(backend, plaintext=True):
            raise not_encrypted()
    ring.reload()
    return ring


def not_encrypted() -> NotEncrypted:
    return NotEncrypted(
        "a key was given, but what this store holds is in clear; copy it into an encrypted one: "
        "holdfast encrypt SRC DST --to KEY, or open it without a key"
    )


def has_tenants(backend: Backend, *, plaintext: bool = False) -> bool:
    """Whether anybody has stored anything; `plaintext`: without a key."""
    after = ""
    while page := backend.heads(tenant=SYSTEM_TENANT, kind="tenant", after=after):
        if not plaintext:
            return True
        for head in page:
            first = backend.read(head.stream, limit=1)
            if first and TENANT_SEALED not in first[0].body:
                return True
        after = page[-1].stream.id
    return False
