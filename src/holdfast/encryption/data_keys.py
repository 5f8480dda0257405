"""Data keys: one per stream, each stored in its own stream of kind `key`, wrapped by a master key.

    conversation "support-42"  ->  key "<digest of kind and id>-<incarnation>.<master key>"

A data key is durable before the first record is encrypted with it. It is never overwritten: a new
master key wraps it again in a second stream, and then the first stream is deleted. An erased key is
replaced with a marker.
"""

from __future__ import annotations

import hmac
import os
from collections import OrderedDict
from hashlib import sha256
from typing import Any, Final

import msgspec

from ..backends import Append, Backend, CacheSize, StreamKey, clock
from ..errors import CorruptRecord, Erased, TamperDetected, Unavailable, UnknownKey
from ..keys import KEY_BYTES, make_aes
from ..log import chain
from ..log.codec import Undecodable
from ..log.events import (
    AppendContext,
    NewEvent,
    decode_envelope,
    encode_envelopes,
    new_append_context,
)
from ..log.head_fields import NO_FIELDS, encode_fields
from ..log.ids import append_id, new_id
from ..log.operations.blobs import blob_prefix
from .keyring import Keyring, MasterKey, store_append

TENANT_KEY: Final = "house"
"""The key of a whole tenant: for labels, the audit stream and erasure markers."""
ERASED_SUFFIX: Final = ".erased"
SUBJECT_PREFIX: Final = b"subject-"
"""The prefix of the names of subject keys."""
PLAINTEXT_KINDS: Final = frozenset({"tenant", "key"})
"""Kinds of streams that are not encrypted: the registered tenants and the wrapped keys."""
TENANT_KEY_KINDS: Final = frozenset(
    {"audit", "closed", "hook", "notification", "subject", "worker"}
)
"""Kinds of streams that use the tenant's key."""
PROOF_BYTES: Final = 16
KEY_WRAPPED: Final = "key.wrapped"
KEY_ERASED: Final = "key.erased"
MAX_CACHED_KEYS: Final = 10_000
DELETE_ATTEMPTS: Final = 5
MAX_PROBED_MASTERS: Final = 2
"""Up to this many former master keys are tried one by one; with more, the wrappings are listed."""
CACHE_SECONDS: Final = 60.0
"""How long reads use a cached key before they load it again: another process may have erased it."""


def data_key_name(stream: StreamKey, incarnation: bytes) -> str:
    """Return the name of a stream's key. Blobs use the key of the stream they belong to."""
    if stream.kind in TENANT_KEY_KINDS:
        return TENANT_KEY
    if stream.kind == "blob":
        return stream.id[:65]  # see `blob_prefix`: a digest of the owner, and its incarnation
    return blob_prefix(stream, incarnation.hex())[:-1]


def subject_key_name(subject: str, incarnation: str) -> str:
    """Return the name of the key for records about a subject, in this incarnation of its stream."""
    return f"{SUBJECT_PREFIX.decode()}{sha256(subject.encode()).hexdigest()[:32]}-{incarnation}"


class DataKey:
    """A data key, in memory."""

    __slots__ = ("_secret", "aes", "until")

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.aes: Any = make_aes(secret)
        self.until = clock.monotonic() + CACHE_SECONDS

    def __repr__(self) -> str:
        return "<data key>"

    def digest(self, text: str) -> str:
        """Return a digest that cannot be computed without the key."""
        return hmac.digest(self._secret, b"holdfast names 1\0" + text.encode(), "sha256").hex()

    def join(self, other: DataKey) -> DataKey:
        """Return a key derived from both: destroying either one destroys it."""
        return DataKey(hmac.digest(self._secret, b"holdfast joined 1\0" + other._secret, "sha256"))

    def proof(self, encrypted: bytes) -> bytes:
        """Return a proof that a writer with this key stored some encrypted data.

        It can be checked even if the key that encrypted the data is gone.
        """
        return hmac.digest(self._secret, b"holdfast proof 1\0" + encrypted, "sha256")[:PROOF_BYTES]

    def derive_label_key(self, about: bytes) -> Any:
        """Return the key for the label of one stream.

        It is derived per stream: with random nonces, one key must not encrypt too many labels.
        """
        return make_aes(hmac.digest(self._secret, b"holdfast label 1\0" + about, "sha256"))

    def wrap_with(self, master: MasterKey, tenant: str, name: str) -> bytes:
        return master.wrap(self._secret, wrapping_data(tenant, name, master.id))


def wrapping_data(tenant: str, name: str, master: str) -> bytes:
    """Return the associated data of a wrapped data key."""
    parts = [b"holdfast data key 1", tenant.encode(), name.encode(), master.encode()]
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


class _WrappedDataKey(msgspec.Struct, frozen=True):
    wrapped: bytes


class DataKeys:
    """Loads, creates, caches and destroys the data keys of a store."""

    def __init__(self, backend: Backend, ring: Keyring) -> None:
        self._backend, self.ring = backend, ring
        self._known: OrderedDict[tuple[str, str], DataKey] = OrderedDict()

    def find(self, tenant: str, name: str) -> DataKey:
        """Return a key from the cache, or load it."""
        key = self._known.get((tenant, name))
        return key if key is not None and key.until > clock.monotonic() else self.load(tenant, name)

    def load(self, tenant: str, name: str) -> DataKey:
        """Load a key from the store. Raise `Erased` or `UnknownKey` if it is not there."""
        seen = self.ring.version
        key = self._load(tenant, name)
        if key is None:
            self.ring.reload()
            # Also retry if another thread has reloaded the keyring. During a rotation, the next
            # master key may just have wrapped the key.
            if self.ring.version != seen or self.ring.state.retiring:
                key = self._load(tenant, name)
        if key is None:
            self.forget(tenant, name)
            if self.is_erased(tenant, name):
                raise Erased(f"the data under key {name!r}")
            raise UnknownKey(
                f"data key {name!r} is not in the store, or the store was rekeyed after it was "
                "opened; open it again with the new key",
                key=name,
            )
        self.cache(tenant, name, key)
        return key

    def _load(self, tenant: str, name: str) -> DataKey | None:
        current, masters = self.ring.state.current, self.ring.masters
        if current in masters and (key := self.read(tenant, name, masters[current])) is not None:
            return key
        former = [master for master in masters.values() if master.id != current]
        for master in self._filter_wrapping(tenant, name, former):
            if (key := self.read(tenant, name, master)) is not None:
                return key
        return None

    def _filter_wrapping(self, tenant: str, name: str, masters: list[MasterKey]) -> list[MasterKey]:
        """Return the master keys that may have wrapped a key.

        If there are many, list the stored wrappings: every new stream looks for its key, and one
        read per master key would get slower with each rotation. The listing is complete.
        """
        if len(masters) <= MAX_PROBED_MASTERS:
            return masters
        prefix, found = name + ".", set[str]()
        after = prefix
        while page := self._backend.heads(tenant=tenant, kind="key", after=after, limit=1):
            after = page[0].stream.id
            if not after.startswith(prefix):
                break
            found.add(after.removeprefix(prefix))
        return [master for master in masters if master.id in found]

    def read(self, tenant: str, name: str, master: MasterKey) -> DataKey | None:
        """Read a data key that this master key has wrapped; None if it hasn't."""
        stream = wrapped_key_stream(tenant, name, master.id)
        page = self._backend.read(stream, limit=1)
        if not page:
            return None
        try:
            envelope = decode_envelope(page[0].body)
            wrapped = msgspec.json.decode(envelope.data, type=_WrappedDataKey).wrapped
        except (Undecodable, msgspec.DecodeError, ValueError):
            raise CorruptRecord(str(stream), version=1, what="it is not a wrapped key") from None
        secret = master.unwrap(wrapped, wrapping_data(tenant, name, master.id))
        if len(secret) != KEY_BYTES:
            raise TamperDetected(str(stream), version=1, what="the key has the wrong length")
        return DataKey(secret)

    def create(self, tenant: str, name: str) -> tuple[DataKey, Append]:
        """Return a new key, and the append that stores it."""
        key = DataKey(os.urandom(KEY_BYTES))
        return key, self.build_wrap_append(tenant, name, key, self.get_wrapping_master())

    def build_wrap_append(self, tenant: str, name: str, key: DataKey, master: MasterKey) -> Append:
        """Return the append that stores a key wrapped by this master key."""
        stream, stamp = (
            wrapped_key_stream(tenant, name, master.id),
            AppendContext(new_id(), clock.time()),
        )
        data = msgspec.json.encode(_WrappedDataKey(key.wrap_with(master, tenant, name)))
        return build_first_append(
            stream, encode_envelopes([NewEvent(KEY_WRAPPED, data)], stamp, {}), stamp
        )

    def get_wrapping_master(self) -> MasterKey:
        """Return the master key that wraps new keys."""
        state = self.ring.state
        if state.current not in self.ring.masters:
            raise UnknownKey(
                "the store was rekeyed after it was opened; open it again with the new key",
                key=state.current,
            )
        return self.ring.current

    def tenant_key(self, tenant: str, *, create: bool = False) -> DataKey:
        """Return the key of a tenant. With `create`, create it if the tenant has no keys at all.

        A tenant that has other keys but not this one has lost it: that raises `UnknownKey`.
        """
        found = self._known.get((tenant, TENANT_KEY))  # it is never erased
        if found is not None:
            return found
        try:
            return self.load(tenant, TENANT_KEY)
        except UnknownKey:
            if not create or self._backend.heads(tenant=tenant, kind="key", limit=1):
                # Another process may have created it, and other keys, in the meantime.
                return self.load(tenant, TENANT_KEY)
        return self.ensure(tenant, TENANT_KEY)

    def ensure(self, tenant: str, name: str) -> DataKey:
        """Load a key, or create it if there is none."""
        try:
            return self.load(tenant, name)
        except UnknownKey:
            pass
        key, append = self.create(tenant, name)
        if store_append(self._backend, append):
            self.cache(tenant, name, key)
            return key
        return self.load(tenant, name)

    def cache_size(self) -> CacheSize:
        """Return how many keys are cached."""
        return CacheSize(len(self._known), MAX_CACHED_KEYS)

    def cache(self, tenant: str, name: str, key: DataKey) -> None:
        """Cache a key that is durable."""
        self._known[tenant, name] = key
        while len(self._known) > MAX_CACHED_KEYS:
            self._known.popitem(last=False)

    def mark_erased(self, tenant: str, name: str) -> None:
        """Record permanently that a key was erased, with a digest that needs the tenant's key."""
        stamp = new_append_context()
        data = msgspec.json.encode({"proof": self.tenant_key(tenant).digest("erased " + name)})
        append = build_first_append(
            StreamKey(tenant, "key", name + ERASED_SUFFIX),
            encode_envelopes([NewEvent(KEY_ERASED, data)], stamp, {}),
            stamp,
        )
        store_append(self._backend, append)  # False if it is stored already

    def is_erased(self, tenant: str, name: str) -> bool:
        marker = StreamKey(tenant, "key", name + ERASED_SUFFIX)
        page = self._backend.read(marker, limit=1)
        if not page:
            return False
        if self.tenant_key(tenant).digest("erased " + name).encode() not in page[0].body:
            raise TamperDetected(
                str(marker), version=1, what="a writer without the key marked a key as erased"
            )
        return True

    def destroy(self, tenant: str, name: str) -> None:
        """Delete every wrapping of a key from the store, and the key from memory."""
        self.forget(tenant, name)
        after = name + "."
        while page := self._backend.heads(tenant=tenant, kind="key", after=after, limit=10):
            for head in page:
                if not head.stream.id.startswith(name + "."):
                    return
                if not head.stream.id.endswith(ERASED_SUFFIX):
                    self._delete(head.stream)
                after = head.stream.id

    def destroy_all(self, tenant: str, prefix: str) -> None:
        """Destroy the keys whose names start with this prefix."""
        after, names = prefix, set[str]()
        while page := self._backend.heads(tenant=tenant, kind="key", after=after, limit=100):
            found = [head.stream.id for head in page if head.stream.id.startswith(prefix)]
            names.update(name.partition(".")[0] for name in found)
            if len(found) < len(page):
                break
            after = found[-1]
        for name in names:
            self.destroy(tenant, name)

    def _delete(self, stream: StreamKey) -> None:
        """Delete a wrapped key at its current version: a listing may be outdated."""
        for _ in range(DELETE_ATTEMPTS):
            head = self._backend.head(stream)
            if head is None or self._backend.delete(stream, expected=head):
                return
        raise Unavailable(
            f"{stream} was not deleted: other processes keep changing it; run it again"
        )

    def forget(self, tenant: str, name: str) -> None:
        self._known.pop((tenant, name), None)


def wrapped_key_stream(tenant: str, name: str, master: str) -> StreamKey:
    return StreamKey(tenant, "key", f"{name}.{master}")


def build_first_append(stream: StreamKey, bodies: list[bytes], stamp: AppendContext) -> Append:
    """Return the append that creates a stream with these records."""
    incarnation, name = os.urandom(16), append_id(stamp.id)
    seed = chain.seed(stream, incarnation)
    links = chain.extend(seed, chain.GENESIS, 0, name, bodies)
    return Append(stream, 0, b"", incarnation, name, links, encode_fields(seed, NO_FIELDS))
