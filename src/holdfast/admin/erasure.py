"""Erasure: the key goes, and with it what was sealed, wherever copies of the records may be.

For each stream, in this order, so that whoever is killed in between can simply do it again:

    1  the audit stream is told
    2  a grave is put beside the key: from now on, whoever looks for the key learns why it is not there
    3  the stream gets its last record: writers meet a conflict, look again, and are refused
    4  the key is deleted, from memory and from the store; then large values, and what the index knows

The records stay, as ciphertext that nobody can open: the chain still verifies. Forks go first: without what they begin with nobody
can read them, and they go on to tell of it. Single memories about a subject are forgotten between 3 and 4: after 3 no more can
come, and before 4 every index that follows the stream can read which ones go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from ..backends import Head, HeadFields, StreamKey
from ..encryption.cipher import ERASED, Cipher
from ..encryption.data_keys import HOUSE, name_of, subject_key
from ..encryption.detect import scrub
from ..errors import Conflict, DataProblem, Erased, NotEncrypted, NotFound
from ..log import operations as ops
from ..log.blobs import delete_blobs, incarnation_hex
from ..log.events import NewEvent, encode_envelopes
from ..log.forks import ForkAncestor, ForkTaken, begins_with, data_of
from ..log.ids import checked_id
from ..log.operations import Operation
from ..log.stream_ops import append_events, new_append_context, tell_audit
from ..log.subjects import subject_stream, uses

if TYPE_CHECKING:
    from ..log.log import Log

SUBJECT_ERASED: Final = "subject.erased"
"""What the audit stream is told when the list of what is about a subject is deleted."""


class EraseResult(msgspec.Struct, frozen=True):
    """What was erased: streams as (kind, id), forks among them, and namespaces in which single memories were."""

    streams: list[tuple[str, str]]
    memories: list[str]


class Erasable(Protocol):
    """A conversation, a task, a memory, a document or a stream; plain or async."""

    _key: StreamKey


def erase(
    log: Log, tenant: str, what: Erasable | None, subject: str | None, reason: str
) -> EraseResult:
    """Erase one stream, or all that is about a subject."""
    if (what is None) == (subject is None):
        raise TypeError(
            "erase() takes either what to erase, like store.conversation(id), or subject=…"
        )
    reason = log.redaction.text(reason)
    if subject is not None:
        return erase_subject(log, tenant, checked_id(subject, "subject"), reason)
    key = getattr(what, "_key", None)
    if not isinstance(key, StreamKey) or key.tenant != tenant:
        raise TypeError("what must be a conversation, task, memory, state or stream of this store")
    return erase_stream(log, key, reason)


def erase_stream(log: Log, key: StreamKey, reason: str) -> EraseResult:
    """Erase one stream, and its forks. Again: what a former call has left."""
    cipher = _cipher(log)
    head = ops.run(log, ops.head(key))
    if head is None:
        raise NotFound(f"there is no {key}; it may have been deleted")
    found = EraseResult([], [])
    _erase_all(log, cipher, head, reason, found)
    scrub(log.backend)
    return found


def erase_subject(log: Log, tenant: str, subject: str, reason: str) -> EraseResult:
    """Erase everything that is about a subject."""
    cipher = _cipher(log)
    stream = subject_stream(tenant, subject)
    found = EraseResult([], [])
    while (head := ops.run(log, ops.head(stream))) is not None:
        spaces = []
        for use in ops.run(log, uses(head)):
            key = StreamKey(tenant, use.kind, use.id)
            if use.kind == "memory":
                spaces.append(key)
            else:
                _erase_use(log, cipher, key, bytes.fromhex(use.incarnation), reason, found)
        name = subject_key(subject, incarnation_hex(head.incarnation))
        cipher.keys.bury(tenant, name)
        damaged = _forget_all(log, spaces, subject)
        cipher.keys.destroy(tenant, name)
        if damaged is not None:
            raise damaged  # not before: what cannot be read here may be read by somebody else, as long as there is a key
        found.memories.extend(space.id for space in spaces if space.id not in found.memories)
        ops.run(log, tell_audit(head, new_append_context(), reason, type=SUBJECT_ERASED))
        if ops.run(log, ops.delete(stream, expected=head)):
            break
    scrub(log.backend)
    return found


def _cipher(log: Log) -> Cipher:
    if log.cipher is None:
        raise NotEncrypted(
            "only an encrypted store can erase: there is no key to destroy; delete() deletes"
        )
    return log.cipher


def _erase_use(
    log: Log, cipher: Cipher, key: StreamKey, incarnation: bytes, reason: str, found: EraseResult
) -> None:
    """Erase a stream that is listed with a subject, in that life of it, whether or not it has begun or is still there."""
    head = ops.run(log, ops.head(key))
    if head is not None and head.incarnation == incarnation:
        _erase_all(log, cipher, head, reason, found)
    else:
        _erase(log, cipher, key, incarnation, None, reason)
        _add(found, key)


def _erase_all(log: Log, cipher: Cipher, head: Head, reason: str, found: EraseResult) -> None:
    """Erase a stream, and before it all that begins with it."""
    family = {head.stream: head}
    for parent in (waiting := [head]):
        for child in _forks(log, parent):
            if child.stream not in family:
                family[child.stream] = child
                waiting.append(child)
    for member in reversed(waiting):
        _erase(log, cipher, member.stream, member.incarnation, member, reason)
        _add(found, member.stream)


def _add(found: EraseResult, key: StreamKey) -> None:
    if (key.kind, key.id) not in found.streams:
        found.streams.append((key.kind, key.id))


def _forks(log: Log, head: Head) -> list[Head]:
    """The streams that begin with this one."""
    key, after, names = head.stream, 0, dict[str, None]()
    if key.kind not in ("conversation", "task"):
        return []
    try:
        while page := ops.run(log, ops.read(key, after=after, plain=True)):
            after = page[-1].version
            forked = (stored for stored in page if stored.envelope.type == f"{key.kind}.forked")
            names.update(
                (told.child, None)
                for told in (data_of(key, stored, ForkTaken) for stored in forked)
            )
    except DataProblem:
        pass  # it was erased before, and they before it; or it is damaged, and goes all the same
    children = (ops.run(log, ops.head(key._replace(id=name))) for name in names)
    return [child for child in children if child is not None and _begins_with(log, child, head)]


def _begins_with(log: Log, child: Head, parent: Head) -> bool:
    try:
        return ops.run(
            log,
            begins_with(
                child.stream, ForkAncestor(parent.stream.id, incarnation_hex(parent.incarnation))
            ),
        )
    except DataProblem:
        return False  # it was erased before, or nobody knows


def _erase(
    log: Log, cipher: Cipher, key: StreamKey, incarnation: bytes, head: Head | None, reason: str
) -> None:
    """Erase one life of a stream, whether or not it has begun."""
    if head is not None:
        ops.run(log, tell_audit(head, new_append_context(), reason, type=ERASED))
    name = name_of(key, incarnation)
    cipher.keys.bury(key.tenant, name)
    log.forget(
        key
    )  # and with it the key that this process writes with: for others the last record is enough
    try:
        ops.run(log, _last(key, incarnation))
    except Erased:
        pass  # it has its last record already, and its key is gone
    except Conflict:
        if head is not None:
            raise
        # It has another life by now: this one is over.
    else:
        if head is None:
            _end_before_it_begins(log, key)
    cipher.keys.destroy(key.tenant, name)
    ops.run(log, delete_blobs(key, incarnation_hex(incarnation)))
    if key.kind == "memory":
        from ..memory.about import clear_index

        clear_index(log, key)


def _end_before_it_begins(log: Log, key: StreamKey) -> None:
    """Delete a stream that has nothing but its last record. Whoever was about to begin it cannot any more: a life that was deleted is over."""
    head = ops.run(log, ops.head(key))
    if head is not None and head.version == 1:
        ops.run(log, ops.delete(key, expected=head))


def _last(key: StreamKey, incarnation: bytes) -> Operation[None]:
    """The last record of a stream: sealed with the tenant's key, because its own is about to go. Its label goes too."""
    stamp = new_append_context()
    bodies = encode_envelopes([NewEvent(ERASED, b"null")], stamp, {})
    yield from ops.append(
        ops.AppendRecords(
            key,
            bodies,
            stamp,
            fields=HeadFields("erased"),
            incarnation=incarnation,
            exclusive=True,
            keys=(HOUSE,),
        )
    )


def _forget_all(log: Log, spaces: Sequence[StreamKey], subject: str) -> DataProblem | None:
    """Take what is about a subject out of these namespaces. What is wrong with one of them, if it cannot be read."""
    problem = None
    for space in spaces:
        try:
            if (
                ops.run(log, ops.head(space)) is not None
            ):  # else it was deleted, and must not begin anew by us
                _mark(log, space)
                _forget(log, space, subject)
        except Erased:
            pass  # as a whole, before
        except DataProblem as error:
            problem = error
    return problem


def _mark(log: Log, namespace: StreamKey) -> None:
    """Make everybody who writes to a namespace meet a conflict, and look again."""
    from ..memory.model import FORGOTTEN, Forgotten

    event = NewEvent(FORGOTTEN, msgspec.json.encode(Forgotten([])))
    log.forget(namespace)
    ops.run(log, append_events(namespace, [event], new_append_context()))


def _forget(log: Log, namespace: StreamKey, subject: str) -> None:
    """Take what is about a subject out of the index of memories, here and wherever else it is followed."""
    from ..memory.about import take_out
    from ..memory.memory import Memory

    Memory(log, namespace, None).forget_where(subject=subject)
    take_out(log, namespace)
