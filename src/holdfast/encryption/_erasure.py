"""Erasure: the key goes, and with it what was sealed, wherever copies of the records may be.

For each stream, in this order, so that whoever is killed in between can simply do it again:

    1  the audit stream is told
    2  a grave is put beside the key: from now on, whoever looks for the key learns why it is not there
    3  the stream gets its last record: writers meet a conflict, look again, and are refused
    4  the key is deleted, from memory and from the store; then large values, and what the index knows

The records stay, as ciphertext that nobody can open: the chain still verifies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from .. import _operations as ops
from .._blobs import delete_blobs, life_of
from .._codec import encode
from .._events import NewEvent, seal
from .._ids import checked_id
from .._operations import Operation
from .._streams import append_events, audit_of, new_stamp
from .._subjects import subject_stream, uses
from ..backends import Fields, Head, Scrubbing, StreamKey
from ..errors import Erased, NotEncrypted, NotFound
from ._cipher import ERASED, Cipher
from ._data_keys import HOUSE, name_of, subject_key

if TYPE_CHECKING:
    from .._log import Log


class Erasure(msgspec.Struct, frozen=True):
    """What was erased: streams as (kind, id), and namespaces in which single memories were."""

    streams: list[tuple[str, str]]
    memories: list[str]


class Erasable(Protocol):
    """A conversation, a task, a memory, a document or a stream; plain or async."""

    _key: StreamKey


def erase(log: Log, tenant: str, what: Erasable | None, subject: str | None, reason: str) -> Erasure:
    """Erase one stream, or all that is about a subject."""
    if (what is None) == (subject is None):
        raise TypeError("say what to erase: erase(store.conversation(id)), or erase(subject=…)")
    reason = log.redacted_text(reason)
    if subject is not None:
        return erase_subject(log, tenant, checked_id(subject, "subject"), reason)
    key = getattr(what, "_key", None)
    if not isinstance(key, StreamKey) or key.tenant != tenant:
        raise TypeError("erase takes a conversation, task, memory, document or stream of this store")
    return erase_stream(log, key, reason)


def erase_stream(log: Log, key: StreamKey, reason: str) -> Erasure:
    """Erase one stream. Again: what a former call has left."""
    cipher = _cipher(log)
    head = ops.run(log, ops.head(key))
    if head is None:
        raise NotFound(f"there is no {key}; it may have been deleted")
    _erase(log, cipher, key, head.incarnation, head, reason)
    _scrub(log)
    return Erasure([(key.kind, key.id)], [])


def erase_subject(log: Log, tenant: str, subject: str, reason: str) -> Erasure:
    """Erase everything that is about a subject."""
    cipher = _cipher(log)
    stream = subject_stream(tenant, subject)
    found = Erasure([], [])
    while (head := ops.run(log, ops.head(stream))) is not None:
        listed = ops.run(log, uses(head))
        for use in listed:
            key = StreamKey(tenant, use.kind, use.id)
            if use.kind == "memory":
                _forget(log, key, subject)
                found.memories.append(use.id)
            else:
                standing = ops.run(log, ops.head(key))
                life = bytes.fromhex(use.life)
                _erase(log, cipher, key, life, standing if standing and standing.incarnation == life else None, reason)
                found.streams.append((use.kind, use.id))
        name = subject_key(subject, life_of(head.incarnation))
        cipher.keys.bury(tenant, name)
        for namespace in found.memories:
            _mark(log, StreamKey(tenant, "memory", namespace))
        cipher.keys.destroy(tenant, name)
        ops.run(log, _told(head, "subject.erased", reason))
        if ops.run(log, ops.delete(stream, expected=head)):
            break
    _scrub(log)
    return found


def _cipher(log: Log) -> Cipher:
    if log.cipher is None:
        raise NotEncrypted("only an encrypted store can erase: there is no key to destroy; delete() deletes")
    return log.cipher


def _erase(log: Log, cipher: Cipher, key: StreamKey, incarnation: bytes, head: Head | None, reason: str) -> None:
    """Erase one life of a stream, whether or not it has begun."""
    if head is not None:
        ops.run(log, _told(head, ERASED, reason))
    name = name_of(key, incarnation)
    cipher.keys.bury(key.tenant, name)
    if head is not None:
        try:
            ops.run(log, _last(key, incarnation))
        except Erased:
            pass  # it has its last record already, and its key is gone
    cipher.keys.destroy(key.tenant, name)
    log.forget(key)
    ops.run(log, delete_blobs(key, life_of(incarnation)))


def _told(head: Head, type: str, reason: str) -> Operation[None]:
    facts = {
        "kind": head.stream.kind,
        "id": head.stream.id,
        "version": head.version,
        "hash": head.hash.hex(),
        "life": life_of(head.incarnation),
        "reason": reason,
    }
    yield from append_events(audit_of(head.stream.tenant), [NewEvent(type, encode(facts))], new_stamp())


def _last(key: StreamKey, incarnation: bytes) -> Operation[None]:
    """The last record of a stream: sealed with the tenant's key, because its own is about to go. Its label goes too."""
    stamp = new_stamp()
    bodies = seal([NewEvent(ERASED, b"null")], stamp, {})
    yield from ops.append(
        ops.Append(key, bodies, stamp, fields=Fields("erased"), incarnation=incarnation, exclusive=True, keys=(HOUSE,))
    )


def _forget(log: Log, namespace: StreamKey, subject: str) -> None:
    """Take what is about a subject out of the index of memories, here and wherever else it is followed."""
    from ..memory._memory import Memory

    Memory(log, namespace, None).forget_where(subject=subject)


def _mark(log: Log, namespace: StreamKey) -> None:
    """Make everybody who writes to a namespace meet a conflict, and look again."""
    from ..memory._model import FORGOTTEN, Forgotten

    event = NewEvent(FORGOTTEN, msgspec.json.encode(Forgotten([])))
    ops.run(log, append_events(namespace, [event], new_stamp()))
    log.forget(namespace)


def _scrub(log: Log) -> None:
    if isinstance(log.backend, Scrubbing):
        log.backend.scrub()
