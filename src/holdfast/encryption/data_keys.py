"""Data keys: one for each stream, each in a stream of its own of kind `key`, wrapped by the master key that its name ends with.

    conversation "support-42"  ->  key "<digest of kind and id>-<life>.<master>"

A data key is durable before the first record under it. It is never written over: a new master key wraps it again in a stream beside
the old one, which is then deleted. If it is erased, a grave in its place says so.
"""

from __future__ import annotations

import hmac
import os
from collections import OrderedDict
from hashlib import sha256
from typing import Any, Final

import msgspec

from ..backends import Append, Backend, StreamKey, clock
from ..errors import CorruptRecord, Erased, TamperDetected, Unavailable, UnknownKey
from ..keys import KEY_BYTES, aes
from ..log import chain
from ..log.blobs import blob_prefix, incarnation_hex
from ..log.codec import Undecodable
from ..log.events import AppendContext, NewEvent, encode_envelopes, open_envelope
from ..log.ids import append_id, new_id
from .keyring import Keyring, MasterKey, stored_keyring

HOUSE: Final = "house"
"""The key of a tenant as a whole: labels, the audit stream, graves."""
GRAVE: Final = ".erased"
SUBJECT: Final = b"subject-"
"""How the names of keys of subjects begin."""
CLEAR: Final = frozenset({"tenant", "key"})
"""Kinds of streams that are not sealed: they say which tenants and which keys there are."""
OF_HOUSE: Final = frozenset({"audit", "closed", "subject"})
"""Kinds of streams that have no key of their own."""
PROOF_BYTES: Final = 16
WRAPPED: Final = "key.wrapped"
BURIED: Final = "key.erased"
CACHED: Final = 10_000
TRIES: Final = 5
FEW: Final = 2
"""So many former master keys are asked one by one whether they have wrapped a key."""
FRESH_SECONDS: Final = 60.0
"""So long a key is used for reading before it is looked at again: another process may have erased it."""


def name_of(stream: StreamKey, incarnation: bytes) -> str:
    """The name of a stream's own key. Large values have the key of the stream that they belong to."""
    if stream.kind in OF_HOUSE:
        return HOUSE
    if stream.kind == "blob":
        return stream.id[:65]  # as `blob_prefix` begins it: a digest of the owner, and its life
    return blob_prefix(stream, incarnation_hex(incarnation))[:-1]


def subject_key(subject: str, incarnation: str) -> str:
    """The name of the key for single records that are about a subject, in this life of its stream."""
    return f"{SUBJECT.decode()}{sha256(subject.encode()).hexdigest()[:32]}-{incarnation}"


class DataKey:
    """A data key, in memory."""

    __slots__ = ("_secret", "aes", "until")

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.aes: Any = aes(secret)
        self.until = clock.monotonic() + FRESH_SECONDS

    def __repr__(self) -> str:
        return "<data key>"

    def digest(self, text: str) -> str:
        """A digest that nobody can compute without the key."""
        return hmac.digest(self._secret, b"holdfast names 1\0" + text.encode(), "sha256").hex()

    def joined(self, other: DataKey) -> DataKey:
        """The key that only those have who have both: whichever of them is destroyed, it goes."""
        return DataKey(hmac.digest(self._secret, b"holdfast joined 1\0" + other._secret, "sha256"))

    def proof(self, sealed: bytes) -> bytes:
        """What shows, also when the key that has sealed something is gone, that it was stored by somebody who has this one."""
        return hmac.digest(self._secret, b"holdfast proof 1\0" + sealed, "sha256")[:PROOF_BYTES]

    def for_label(self, about: bytes) -> Any:
        """The key for the label of one stream. Derived: one for all of them would seal more than a key may, with random nonces."""
        return aes(hmac.digest(self._secret, b"holdfast label 1\0" + about, "sha256"))

    def wrapped_by(self, master: MasterKey, tenant: str, name: str) -> bytes:
        return master.wrap(self._secret, about(tenant, name, master.id))


def about(tenant: str, name: str, master: str) -> bytes:
    """What a wrapped data key is bound to."""
    parts = [b"holdfast data key 1", tenant.encode(), name.encode(), master.encode()]
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


class _Wrapped(msgspec.Struct, frozen=True):
    wrapped: bytes


class DataKeys:
    """The data keys of a store."""

    def __init__(self, backend: Backend, ring: Keyring) -> None:
        self._backend, self.ring = backend, ring
        self._known: OrderedDict[tuple[str, str], DataKey] = OrderedDict()

    def find(self, tenant: str, name: str) -> DataKey:
        """A key that is there: as it was lately, or as it is now."""
        key = self._known.get((tenant, name))
        return key if key is not None and key.until > clock.monotonic() else self.load(tenant, name)

    def load(self, tenant: str, name: str) -> DataKey:
        """A key as it is now; `Erased` or `UnknownKey` if it is not there."""
        seen = self.ring.version
        key = self._load(tenant, name)
        if key is None:
            self.ring.reload()
            # Also if another thread has reloaded it; and while keys move from one master key to the next, this one may just have moved.
            if self.ring.version != seen or self.ring.standing.retiring:
                key = self._load(tenant, name)
        if key is None:
            self.forget(tenant, name)
            if self.is_buried(tenant, name):
                raise Erased(f"what key {name!r} had sealed")
            raise UnknownKey(
                f"data key {name!r} is not in the store, or the store has got a new key since it was opened: "
                "open it again with that one",
                key=name,
            )
        self.keep(tenant, name, key)
        return key

    def _load(self, tenant: str, name: str) -> DataKey | None:
        current, masters = self.ring.standing.current, self.ring.masters
        if current in masters and (key := self.read(tenant, name, masters[current])) is not None:
            return key
        for master in self._former(
            tenant, name, [each for each in masters.values() if each.id != current]
        ):
            if (key := self.read(tenant, name, master)) is not None:
                return key
        return None

    def _former(self, tenant: str, name: str, masters: list[MasterKey]) -> list[MasterKey]:
        """Those of the former master keys that may have wrapped a key. If there are many, a list tells: each new stream asks for its key, and
        one question for each would cost more the older a store is. No key that is stored is missing from such a list."""
        if len(masters) <= FEW:
            return masters
        front, found = name + ".", set[str]()
        after = front
        while page := self._backend.heads(tenant=tenant, kind="key", after=after, limit=1):
            after = page[0].stream.id
            if not after.startswith(front):
                break
            found.add(after.removeprefix(front))
        return [master for master in masters if master.id in found]

    def read(self, tenant: str, name: str, master: MasterKey) -> DataKey | None:
        """The key as this master key has wrapped it; None if it has not."""
        stream = stream_of(tenant, name, master.id)
        page = self._backend.read(stream, limit=1)
        if not page:
            return None
        try:
            envelope = open_envelope(page[0].body)
            wrapped = msgspec.json.decode(envelope.data, type=_Wrapped).wrapped
        except (Undecodable, msgspec.DecodeError, ValueError):
            raise CorruptRecord(str(stream), version=1, what="it is not a wrapped key") from None
        secret = master.unwrap(wrapped, about(tenant, name, master.id))
        if len(secret) != KEY_BYTES:
            raise TamperDetected(str(stream), version=1, what="the key has the wrong length")
        return DataKey(secret)

    def make(self, tenant: str, name: str) -> tuple[DataKey, Append]:
        """A new key, and the append that stores it."""
        key = DataKey(os.urandom(KEY_BYTES))
        return key, self.wrapping(tenant, name, key, self.writing_master())

    def wrapping(self, tenant: str, name: str, key: DataKey, master: MasterKey) -> Append:
        """The append that stores a key as this master key wraps it."""
        stream, stamp = stream_of(tenant, name, master.id), AppendContext(new_id(), clock.time())
        data = msgspec.json.encode(_Wrapped(key.wrapped_by(master, tenant, name)))
        return first_append(stream, encode_envelopes([NewEvent(WRAPPED, data)], stamp, {}), stamp)

    def writing_master(self) -> MasterKey:
        """The master key that new keys are wrapped by."""
        standing = self.ring.standing
        if standing.current not in self.ring.masters:
            raise UnknownKey(
                "the store has got a new key since it was opened: open it again with that one",
                key=standing.current,
            )
        return self.ring.current

    def house(self, tenant: str, *, make: bool = False) -> DataKey:
        """The key of a tenant; made if it is not there and `make` says so, unless there are others: then somebody has taken it away."""
        found = self._known.get((tenant, HOUSE))  # it is never erased
        if found is not None:
            return found
        try:
            return self.load(tenant, HOUSE)
        except UnknownKey:
            if not make or self._backend.heads(tenant=tenant, kind="key", limit=1):
                return self.load(
                    tenant, HOUSE
                )  # another process may have made it, and others, since
        return self.ensure(tenant, HOUSE)

    def ensure(self, tenant: str, name: str) -> DataKey:
        """A key as it is now; made if it is not there."""
        try:
            return self.load(tenant, name)
        except UnknownKey:
            pass
        key, append = self.make(tenant, name)
        if stored_keyring(self._backend, append):
            self.keep(tenant, name, key)
            return key
        return self.load(tenant, name)

    def keep(self, tenant: str, name: str, key: DataKey) -> None:
        """A key that is durable."""
        self._known[tenant, name] = key
        while len(self._known) > CACHED:
            self._known.popitem(last=False)

    def bury(self, tenant: str, name: str) -> None:
        """Say, for good, that a key was erased: with a digest that only this store's owner can make."""
        stamp = AppendContext(new_id(), clock.time())
        data = msgspec.json.encode({"proof": self.house(tenant).digest("erased " + name)})
        append = first_append(
            StreamKey(tenant, "key", name + GRAVE),
            encode_envelopes([NewEvent(BURIED, data)], stamp, {}),
            stamp,
        )
        stored_keyring(self._backend, append)  # or it is there

    def is_buried(self, tenant: str, name: str) -> bool:
        grave = StreamKey(tenant, "key", name + GRAVE)
        page = self._backend.read(grave, limit=1)
        if not page:
            return False
        if self.house(tenant).digest("erased " + name).encode() not in page[0].body:
            raise TamperDetected(
                str(grave), version=1, what="somebody without the key says that a key was erased"
            )
        return True

    def destroy(self, tenant: str, name: str) -> None:
        """Delete a key, however it is wrapped, from memory and from the store."""
        self.forget(tenant, name)
        after = name + "."
        while page := self._backend.heads(tenant=tenant, kind="key", after=after, limit=10):
            for head in page:
                if not head.stream.id.startswith(name + "."):
                    return
                if not head.stream.id.endswith(GRAVE):
                    self._delete(head.stream)
                after = head.stream.id

    def _delete(self, stream: StreamKey) -> None:
        """Delete a wrapped key, as it is now: a list may be old, and a key that stayed would be no erasure."""
        for _ in range(TRIES):
            head = self._backend.head(stream)
            if head is None or self._backend.delete(stream, expected=head):
                return
        raise Unavailable(
            f"{stream} is changed by somebody all the time; it is still there: run it again"
        )

    def forget(self, tenant: str, name: str) -> None:
        self._known.pop((tenant, name), None)


def stream_of(tenant: str, name: str, master: str) -> StreamKey:
    return StreamKey(tenant, "key", f"{name}.{master}")


def first_append(stream: StreamKey, bodies: list[bytes], stamp: AppendContext) -> Append:
    """The append that begins a stream with these."""
    incarnation = os.urandom(16)
    links = chain.extend(chain.seed(stream, incarnation), chain.GENESIS, 0, bodies)
    return Append(stream, 0, b"", incarnation, append_id(stamp.id), links)
