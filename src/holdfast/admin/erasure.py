"""Erasure: destroy the key, and with it the encrypted data, in every copy of the records.

For each stream, in this order, so that a call that dies in between can be repeated:

    1  Record it in the audit stream.
    2  Mark the key as erased: from now on, a reader of the key learns why it is missing.
    3  Append the last record of the stream: other writers get a conflict, reread, and are rejected.
    4  Delete the key, from memory and from the store; then blobs and index entries.

The records stay, as ciphertext that cannot be decrypted: the chain still verifies. Forks are erased
first: they are unreadable without their parent, but still name it. Single memories about a subject
are forgotten between 3 and 4: after 3 none can be added, and before 4 every index that follows the
stream can read which ones to remove.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from ..backends import Head, HeadFields, StreamKey
from ..encryption.cipher import STREAM_ERASED, Cipher
from ..encryption.data_keys import TENANT_KEY, data_key_name, subject_key_name
from ..encryption.detect import scrub
from ..errors import Conflict, DataProblem, Erased, NotEncrypted, NotFound
from ..log import operations as ops
from ..log.context import act_as
from ..log.events import NewEvent, encode_envelopes, new_append_context
from ..log.ids import check_id
from ..log.operations import Operation
from ..log.operations.blobs import delete_blobs
from ..log.operations.forks import ForkAncestor, ForkTaken, convert_data, is_fork_of
from ..log.operations.stream_ops import append_audit_event, append_events
from ..log.operations.subjects import list_uses, subject_stream

if TYPE_CHECKING:
    from ..log.log import Log

SUBJECT_ERASED: Final = "subject.erased"
"""The audit event for the deletion of the list of a subject's streams."""


class EraseResult(msgspec.Struct, frozen=True):
    """The erased streams as (kind, id), including forks, and namespaces with erased memories."""

    streams: list[tuple[str, str]]
    memories: list[str]


class Erasable(Protocol):
    """A conversation, a task, a memory, a document or a stream; synchronous or async."""

    _key: StreamKey


def erase(
    log: Log,
    tenant: str,
    what: Erasable | None,
    subject: str | None,
    reason: str,
    by: str | None = None,
) -> EraseResult:
    """Erase one stream, or everything about a subject. `by` is who does it."""
    with act_as(by):
        return _erase(log, tenant, what, subject, reason)


def _erase(
    log: Log, tenant: str, what: Erasable | None, subject: str | None, reason: str
) -> EraseResult:
    if (what is None) == (subject is None):
        raise TypeError(
            "erase() takes either the thing to erase, like store.conversation(id), or subject=…"
        )
    reason = log.redaction.redact_text(reason)
    if subject is not None:
        return erase_subject(log, tenant, check_id(subject, "subject"), reason)
    key = getattr(what, "_key", None)
    if not isinstance(key, StreamKey) or key.tenant != tenant:
        raise TypeError("what must be a conversation, task, memory, state or stream of this store")
    return erase_stream(log, key, reason)


def erase_stream(log: Log, key: StreamKey, reason: str) -> EraseResult:
    """Erase one stream and its forks. Also finishes an interrupted call."""
    cipher = _require_cipher(log)
    head = ops.run(log, ops.head(key, damaged=True))
    if head is None:
        raise NotFound(f"there is no {key}; it may have been deleted")
    found = EraseResult([], [])
    _erase_with_forks(log, cipher, head, reason, found)
    scrub(log.backend)
    return found


def erase_subject(log: Log, tenant: str, subject: str, reason: str) -> EraseResult:
    """Erase everything about a subject."""
    cipher = _require_cipher(log)
    stream = subject_stream(tenant, subject)
    found = EraseResult([], [])
    while (head := ops.run(log, ops.head(stream, damaged=True))) is not None:
        spaces = []
        for use in ops.run(log, list_uses(head)):
            key = StreamKey(tenant, use.kind, use.id)
            if use.kind == "memory":
                spaces.append(key)
            else:
                _erase_use(log, cipher, key, bytes.fromhex(use.incarnation), reason, found)
        name = subject_key_name(subject, head.incarnation.hex())
        cipher.keys.mark_erased(tenant, name)
        damaged = _forget_memories(log, spaces, subject)
        cipher.keys.destroy(tenant, name)
        if damaged is not None:
            raise damaged  # only now: another copy may be readable as long as there is a key
        found.memories.extend(space.id for space in spaces if space.id not in found.memories)
        ops.run(log, append_audit_event(head, new_append_context(), reason, type=SUBJECT_ERASED))
        if ops.run(log, ops.delete(stream, expected=head)):
            break
    scrub(log.backend)
    return found


def _require_cipher(log: Log) -> Cipher:
    if log.cipher is None:
        raise NotEncrypted(
            "the store is unencrypted, so there is no key to destroy; use delete() instead"
        )
    return log.cipher


def _erase_use(
    log: Log, cipher: Cipher, key: StreamKey, incarnation: bytes, reason: str, found: EraseResult
) -> None:
    """Erase an incarnation of a subject's stream, even if it has not started or is gone."""
    head = ops.run(log, ops.head(key, damaged=True))
    if head is not None and head.incarnation == incarnation:
        _erase_with_forks(log, cipher, head, reason, found)
    else:
        _erase_incarnation(log, cipher, key, incarnation, None, reason)
        _note_erased(found, key)


def _erase_with_forks(
    log: Log, cipher: Cipher, head: Head, reason: str, found: EraseResult
) -> None:
    """Erase a stream, and before it its forks and their forks."""
    family = {head.stream: head}
    for parent in (members := [head]):
        for child in _list_forks(log, parent):
            if child.stream not in family:
                family[child.stream] = child
                members.append(child)
    for member in reversed(members):
        _erase_incarnation(log, cipher, member.stream, member.incarnation, member, reason)
        _note_erased(found, member.stream)


def _note_erased(found: EraseResult, key: StreamKey) -> None:
    if (key.kind, key.id) not in found.streams:
        found.streams.append((key.kind, key.id))


def _list_forks(log: Log, head: Head) -> list[Head]:
    """Return the forks of a stream."""
    key, after, names = head.stream, 0, dict[str, None]()
    if key.kind not in ("conversation", "task"):
        return []
    try:
        while page := ops.run(log, ops.read(key, after=after, decoded=True)):
            after = page[-1].version
            forked = (stored for stored in page if stored.envelope.type == f"{key.kind}.forked")
            names.update(
                (fork.child, None)
                for fork in (convert_data(key, stored, ForkTaken) for stored in forked)
            )
    except DataProblem:
        pass  # erased before, after its forks; or damaged, and erased anyway
    children = (ops.run(log, ops.head(key._replace(id=name), damaged=True)) for name in names)
    return [child for child in children if child is not None and _is_fork(log, child, head)]


def _is_fork(log: Log, child: Head, parent: Head) -> bool:
    try:
        return ops.run(
            log, is_fork_of(child.stream, ForkAncestor(parent.stream.id, parent.incarnation.hex()))
        )
    except DataProblem:
        return False  # erased before, or damaged


def _erase_incarnation(
    log: Log, cipher: Cipher, key: StreamKey, incarnation: bytes, head: Head | None, reason: str
) -> None:
    """Erase one incarnation of a stream, even if it has not started."""
    if head is not None:
        ops.run(log, append_audit_event(head, new_append_context(), reason, type=STREAM_ERASED))
    name = data_key_name(key, incarnation)
    cipher.keys.mark_erased(key.tenant, name)
    # This drops the key that this process writes with; other processes notice the last record.
    log.forget_position(key)
    try:
        ops.run(log, _append_last_record(key, incarnation))
    except Erased:
        pass  # it has its last record already, and no key
    except Conflict:
        if head is not None:
            raise
        # There is a new incarnation by now: this one has ended.
    else:
        if head is None:
            _delete_unstarted(log, key)
    cipher.keys.destroy(key.tenant, name)
    ops.run(log, delete_blobs(key, incarnation.hex()))
    if key.kind == "memory":
        from ..memory.subjects import clear_index

        clear_index(log, key)


def _delete_unstarted(log: Log, key: StreamKey) -> None:
    """Delete a stream that has only its last record. A deleted incarnation cannot be started."""
    head = ops.run(log, ops.head(key, damaged=True))
    if head is not None and head.version == 1:
        ops.run(log, ops.delete(key, expected=head))


def _append_last_record(key: StreamKey, incarnation: bytes) -> Operation[None]:
    """Append the last record, encrypted with the tenant's key, and clear the head's label."""
    stamp = new_append_context()
    bodies = encode_envelopes([NewEvent(STREAM_ERASED, b"null")], stamp, {})
    yield from ops.append(
        ops.AppendRecords(
            key,
            bodies,
            stamp,
            fields=HeadFields("erased"),
            incarnation=incarnation,
            exclusive=True,
            keys=(TENANT_KEY,),
        )
    )


def _forget_memories(log: Log, spaces: Sequence[StreamKey], subject: str) -> DataProblem | None:
    """Forget a subject's memories in these namespaces. Return the problem if one is unreadable."""
    problem = None
    for space in spaces:
        try:
            # Without this check, the append would recreate a deleted namespace.
            if ops.run(log, ops.head(space, damaged=True)) is not None:
                _force_conflicts(log, space)
                _forget_subject(log, space, subject)
        except Erased:
            pass  # the whole namespace was erased before
        except DataProblem as error:
            problem = error
    return problem


def _force_conflicts(log: Log, namespace: StreamKey) -> None:
    """Append an empty event, so that concurrent writers get a conflict and reread."""
    from ..memory.model import FORGOTTEN, Forgotten

    event = NewEvent(FORGOTTEN, msgspec.json.encode(Forgotten([])))
    log.forget_position(namespace)
    ops.run(log, append_events(namespace, [event], new_append_context()))


def _forget_subject(log: Log, namespace: StreamKey, subject: str) -> None:
    """Forget a subject's memories, and remove them from the index here and elsewhere."""
    from ..memory.memory import Memory
    from ..memory.subjects import purge_index

    Memory(log, namespace, None).forget_where(subject=subject)
    purge_index(log, namespace)
