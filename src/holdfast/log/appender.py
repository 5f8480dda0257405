"""Appends on their way: which place each gets, what a conflict means for it, and how a lost answer is settled.

Everything here runs in the committer's leader, one batch at a time. Every append ends as done, as not done, or as
`OutcomeUnknown`; in doubt the same bytes are sent again for the same version, so nothing is ever stored twice.
"""

from __future__ import annotations

import copy
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from ..backends import Append, AppendResult, Backend, Head, StreamKey, VersionMismatch
from ..backends.interface import IncarnationLost, StreamBlocked
from ..errors import Conflict as ConflictError
from ..errors import (
    HeadRegressed,
    HoldfastError,
    OutcomeUnknown,
    ReadOnly,
    StoreClosed,
    Unavailable,
)
from . import chain
from . import operations as ops
from .committer import PendingCommit
from .ids import append_id, id_texts, new_secret

if TYPE_CHECKING:
    from ..encryption.cipher import Cipher, EncryptingWriter

KNOWN_DOUBTS: Final = 1_000
NOWHERE: Final = bytes(32)
"""A hash that no record has."""

Answer = AppendResult | VersionMismatch | Exception

_LOCKED: Final = "{} is locked by somebody else on the server, for {:.0f} s now; nothing was written; try it again later"
_NO_KEY: Final = "the key for {} could not be stored; nothing was written"
_UNKNOWN: Final = (
    "{} did not get a certain answer within {:.0f} s (last: {}); repeat the call with id=error.id"
)

logger = logging.getLogger("holdfast")


class StreamPosition:
    """Where this process last knew a stream to be. `foreign` is the newest version that an append must have `seen`:
    one that the process did not append itself, or an exclusive one."""

    __slots__ = ("acknowledged", "foreign", "hash", "incarnation", "seed", "version", "writer")

    def __init__(
        self, stream: StreamKey, head: Head | None, incarnation: bytes | None = None
    ) -> None:
        if head is None:
            self.version, self.hash, self.incarnation = (
                0,
                chain.GENESIS,
                incarnation or new_secret(),
            )
        else:
            self.version, self.hash, self.incarnation = head.version, head.hash, head.incarnation
        self.foreign = self.acknowledged = self.version
        self.seed = chain.seed(stream, self.incarnation)
        self.writer: EncryptingWriter | None = (
            None  # in an encrypted store, once something was sealed
        )


class _PredecessorMissing(VersionMismatch, frozen=True):
    """A conflict with a stream that is not yet where an append in doubt expects it: together with its predecessor,
    of whom nothing certain is known either, the append may still arrive."""


class PendingAppend(PendingCommit):
    """An append on its way.

    `prepared` is what was last sent to the backend without a certain answer, `basis` what it rests on. `ghosts` are
    former places of it that may still be taken by what is in flight.
    """

    __slots__ = ("basis", "ghosts", "prepared", "request", "started")

    def __init__(self, request: ops.AppendRecords) -> None:
        # Not by super(): this is made for every append.
        self.result = self.error = self._wake = self._loop = self._future = None
        self.done = self._leads = self._abandoned = False
        self.request = request
        self.prepared: Append | None = None
        self.basis: StreamPosition | None = None
        self.ghosts: list[Append] = []
        self.started = time.perf_counter()

    @property
    def id(self) -> str:
        return (
            self.request.id
            if self.request.id is not None
            else id_texts(self.request.stamp.id, 1)[0]
        )


class Appender:
    """Sends batches to a backend. `known` is where this process believes the streams to be."""

    cipher: Cipher | None = None
    """In an encrypted store."""

    def __init__(
        self, backend: Backend, *, settle_seconds: float, pause: Callable[[float], None]
    ) -> None:
        self.backend = backend
        self.known: dict[StreamKey, StreamPosition] = {}
        self._doubts: dict[tuple[StreamKey, str], list[Append]] = {}
        self._regressed: dict[StreamKey, HeadRegressed] = {}
        self._settle_seconds, self._pause = settle_seconds, pause

    def commit(self, batch: Sequence[PendingCommit]) -> None:
        """Commit a batch. Members that must be tried again, at another version, are left without an outcome."""
        entries: Sequence[Any] = batch  # of Entry, as they were submitted
        try:
            ready: list[PendingAppend] = []
            prepared: list[Any] = []
            for entry in entries:
                if self._prepare(entry):
                    ready.append(entry)
                    prepared.append(entry.prepared)
            if ready and self.cipher is not None:
                ready = self._with_keys(ready)
                prepared = [entry.prepared for entry in ready]
            if ready:
                answers = self._send(prepared)
                for entry, answer in zip(ready, answers, strict=True):
                    self._take(entry, answer)
        except BaseException:
            # An interrupt, or a bug: what was believed may be ahead of what was sent.
            for entry in cast("Sequence[PendingAppend]", batch):
                self.known.pop(entry.request.stream, None)
            raise

    def _with_keys(self, entries: list[PendingAppend]) -> list[PendingAppend]:
        """Those whose key is stored; new keys are stored first. The others are refused, or tried again with the key that is there."""
        new = {
            id(w): w
            for e in entries
            if e.basis is not None and (w := e.basis.writer) is not None and w.fresh is not None
        }
        if not new:
            return entries
        cipher: Any = self.cipher
        answers = self._send([cast("Append", writer.fresh) for writer in new.values()])
        bad = {
            key: answer
            for (key, writer), answer in zip(new.items(), answers, strict=True)
            if not cipher.take(writer, answer)
        }
        good = []
        for entry in entries:
            answer = bad.get(id(entry.basis.writer)) if entry.basis is not None else None
            if answer is None:
                good.append(entry)
                continue
            entry.prepared = None
            self.known.pop(entry.request.stream, None)
            if isinstance(answer, Exception):
                kind = Unavailable if _in_doubt(answer) else None
                self._refuse(entry, kind(_NO_KEY.format(entry.request.stream)) if kind else answer)
        return good

    def _prepare(self, entry: PendingAppend) -> bool:
        """Give an append its place. False if its outcome is already decided."""
        request = entry.request
        if request.stream in self._regressed:
            entry.error = self._regressed[request.stream]
            return False
        if (entry.prepared is not None or request.id is not None) and not self._must_be_sent(entry):
            return False
        try:
            known = self.known.get(request.stream)
            if known is None:
                known = self.known[request.stream] = StreamPosition(
                    request.stream, self.backend.head(request.stream)
                )
            # Looked for after the head is known: a ghost that arrives later makes this place a conflict.
            if entry.ghosts and self._arrived(entry):
                return False
            if request.incarnation is not None and known.version == 0:
                known = self.known[request.stream] = StreamPosition(
                    request.stream, None, request.incarnation
                )
            return self._place(entry, known)
        except Exception as error:
            self._refuse(entry, error)
            return False

    def _place(self, entry: PendingAppend, known: StreamPosition) -> bool:
        """Prepare an append for the place after what is known. False if it cannot go there."""
        request = entry.request
        fits = _fits(request, known)
        if not fits:
            known = self._looked_again(known, request)
            fits = _fits(request, known)
        if fits:
            entry.basis = known
            placed = self._placed(request, known)
            # Together: an interrupt in between must not leave a place that never was.
            known.version, known.hash = known.version + len(request.bodies), placed.records[-1][0]
            entry.prepared = placed
            if request.exclusive:
                known.foreign = known.version
            return True
        if request.id is None:
            self._refuse(entry, _conflict(request, known))
            return False
        # An id is looked at before the version: ask for it, at a place where nothing can be stored.
        entry.basis = None
        entry.prepared = Append(
            request.stream,
            known.version or 1,
            NOWHERE,
            known.incarnation,
            append_id(request.id),
            [(NOWHERE, b"")],
            True,
        )
        return True

    def _placed(self, request: ops.AppendRecords, known: StreamPosition) -> Append:
        """An append at its place, after what is known; sealed for it, in an encrypted store."""
        name = append_id(request.stamp.id if request.id is None else request.id)
        fields, writer = request.fields, None
        digest = known.hash if known.version else b""
        if self.cipher is not None:
            writer = known.writer
            if self.cipher.is_last(request.keys):
                writer = self.cipher.writer_without_key(request.stream, known.incarnation)
            elif writer is None:
                writer = known.writer = self.cipher.writer(
                    request.stream, known.incarnation, new=known.version == 0
                )
            if writer is not None:
                fields = self.cipher.fields(request.stream, known.incarnation, fields)
        previous, bodies = digest or chain.GENESIS, request.bodies
        if writer is None:
            links = chain.extend(known.seed, previous, known.version, bodies)
        else:
            links = writer.seal(known.seed, previous, known.version, name, bodies, request.keys)
        return Append(
            request.stream,
            known.version,
            digest,
            known.incarnation,
            name,
            links,
            request.id is not None,
            fields,
        )

    def _looked_again(self, known: StreamPosition, request: ops.AppendRecords) -> StreamPosition:
        """What the engine says of a stream, if it is further than we knew: the caller may have read what others appended.

        Not while something of ours is on its way there; and an engine that went back is found out by the append itself.
        """
        if known.version != known.acknowledged:
            return known
        # If the stream is gone, what is appended belongs to the life that the caller names, and to no other.
        fresh = StreamPosition(
            request.stream, self.backend.head(request.stream), request.incarnation
        )
        if fresh.incarnation == known.incarnation and fresh.version <= known.version:
            return known
        self.known[request.stream] = fresh
        return fresh

    def _must_be_sent(self, entry: PendingAppend) -> bool:
        """Settle what is in doubt about this append from before. True if it still has to be sent, at a new place."""
        request = entry.request
        if _lacks_key(entry):
            entry.prepared = None  # the leader was interrupted before it could send it
        if entry.prepared is not None:
            # The leader was interrupted before the answer came.
            return self._take(entry, self._send_alone(entry.prepared, in_doubt=True))
        if request.id is None or (request.stream, request.id) not in self._doubts:
            return True
        # The caller repeats an append whose outcome was unknown: settle that one first, same bytes, same version.
        # What turns out to be stored stays remembered: an id made by the log is in no index, and the caller may repeat again.
        *entry.ghosts, entry.prepared = self._doubts[request.stream, request.id]
        answer = self._send_alone(entry.prepared, in_doubt=True)
        if isinstance(answer, AppendResult):
            answer = AppendResult(answer.first, answer.last, True, answer.now)
        elif isinstance(answer, VersionMismatch):
            del self._doubts[request.stream, request.id]
        return self._take(entry, answer)

    def _arrived(self, entry: PendingAppend) -> bool:
        """Whether one of the ghosts has been stored after all."""
        for ghost in entry.ghosts:
            stored = self.backend.read(ghost.stream, after=ghost.expected, limit=1)
            if stored and stored[0].append_id == ghost.id:
                self.known.pop(ghost.stream, None)
                repeated = entry.request.id is not None
                entry.result = AppendResult(
                    ghost.expected + 1, ghost.expected + len(ghost.records), repeated, time.time()
                )
                if repeated:
                    self._remember_doubt(entry, [ghost])
                return True
        return False

    def _refuse(self, entry: PendingAppend, error: Exception) -> None:
        """End an append with an error, unless a ghost of it may still arrive: then nobody knows."""
        if entry.ghosts and not isinstance(error, OutcomeUnknown):
            error = OutcomeUnknown(
                _UNKNOWN.format(entry.request.stream, self._settle_seconds, reason(error))
            )
        if isinstance(error, OutcomeUnknown):
            error.stream, error.id = str(entry.request.stream), entry.id
            logger.error(
                "the outcome of an append to %s is unknown (id %s)", entry.request.stream, entry.id
            )
            self._remember_doubt(entry, entry.ghosts)
        entry.error = error

    def _send(self, appends: Sequence[Append]) -> Sequence[Answer]:
        """One commit for all. If it surely rolled back, members are tried singly; in doubt, each is settled by its id."""
        try:
            return self.backend.append(appends)
        except Exception as error:
            doubt = _in_doubt(error)
            if not doubt and (
                len(appends) == 1 or isinstance(error, (Unavailable, ReadOnly, StoreClosed))
            ):
                return [copy.copy(error) for _ in appends]  # each is raised in a thread of its own
            logger.warning(
                "a commit of %d appends failed (%s); settling them one by one",
                len(appends),
                reason(error),
            )
            deadline = (
                time.monotonic() + self._settle_seconds
            )  # one for all: they wait in line for each other
            return [
                self._send_alone(append, in_doubt=doubt, deadline=deadline) for append in appends
            ]

    def _send_alone(
        self, append: Append, *, in_doubt: bool, deadline: float | None = None
    ) -> Answer:
        """Send one append until its outcome is certain or time is up.

        Absent is never taken for not done: the same bytes are sent again for the same version. Not done is certain only
        when that version holds another append, or the engine refuses.
        """
        deadline = time.monotonic() + self._settle_seconds if deadline is None else deadline
        pause = 0.002
        while True:
            try:
                if in_doubt and (
                    stored := self.backend.read(append.stream, after=append.expected, limit=1)
                ):
                    if (stored[0].append_id, stored[0].hash) == (append.id, append.records[0][0]):
                        return AppendResult(
                            append.expected + 1,
                            append.expected + len(append.records),
                            now=time.time(),
                        )
                    return VersionMismatch(self.backend.head(append.stream))
                answer = self.backend.append([append])[0]
                if (
                    in_doubt
                    and isinstance(answer, VersionMismatch)
                    and _may_still_arrive(append, answer)
                ):
                    return _PredecessorMissing(answer.head)
                return answer
            except Exception as error:
                if not in_doubt and not _in_doubt(error):
                    return error
                in_doubt = True
                if time.monotonic() > deadline:
                    return OutcomeUnknown(
                        _UNKNOWN.format(append.stream, self._settle_seconds, reason(error))
                    )
            self._pause(random.uniform(pause / 2, pause))  # noqa: S311  jitter, not a secret
            pause = min(pause * 2, 1.0)

    def _take(self, entry: PendingAppend, answer: Answer) -> bool:
        """Take an answer. True if the append must be tried again at another version."""
        request = entry.request
        prepared: Any = entry.prepared  # there is one: it is what was sent
        if isinstance(answer, AppendResult):
            known = self.known.get(request.stream)
            if answer.duplicate:
                self.known.pop(request.stream, None)
            elif known is not None and known.incarnation == prepared.incarnation:
                known.acknowledged = answer.last
            # Last: if we are interrupted before, what was sent is still known, and is settled again.
            entry.result = answer
            return False
        entry.prepared = None
        known = self.known.pop(request.stream, None)
        if isinstance(answer, OutcomeUnknown | _PredecessorMissing):
            entry.ghosts.append(prepared)
        if isinstance(answer, Exception):
            self._refuse(entry, answer)
            return False
        if isinstance(answer, StreamBlocked):
            return self._may_wait(entry)
        # Only what this append was prepared on can have regressed: an earlier member of the batch may have met
        # the same conflict and learned the stream anew.
        if known is not None and known is entry.basis and _regressed(known, prepared, answer):
            actual = answer.head.version if answer.head else 0
            entry.error = HeadRegressed(
                str(request.stream), acknowledged=known.acknowledged, actual=actual
            )
            # For good: a program that simply tries again must not build on a history that was lost.
            self._regressed[request.stream] = entry.error
            return False
        fresh = self.known[request.stream] = StreamPosition(request.stream, answer.head)
        # With `expected`, an append that was sent to that very version met another record there: the caller has to look.
        # With `incarnation`, that life is over if there is no stream.
        looked = request.expected is None or entry.basis is None
        if _fits(request, fresh) and looked and (request.incarnation is None or fresh.version):
            return True
        self._refuse(entry, _conflict(request, fresh))
        return False

    def _may_wait(self, entry: PendingAppend) -> bool:
        """Whether an append whose stream is locked is tried again, with whoever else is there by then."""
        waited = time.perf_counter() - entry.started
        if waited < self._settle_seconds and not entry._abandoned:
            return True
        self._refuse(entry, Unavailable(_LOCKED.format(entry.request.stream, waited)))
        return False

    def _remember_doubt(self, entry: PendingAppend, ghosts: list[Append]) -> None:
        if not ghosts:
            return
        if len(self._doubts) >= KNOWN_DOUBTS:
            del self._doubts[next(iter(self._doubts))]
        self._doubts[entry.request.stream, entry.id] = ghosts


def _lacks_key(entry: PendingAppend) -> bool:
    """Whether an append is sealed with a new key that is not known to be stored: then it was not sent, and must not be."""
    writer = None if entry.basis is None else entry.basis.writer
    return writer is not None and writer.fresh is not None


def _fits(request: ops.AppendRecords, known: StreamPosition) -> bool:
    """Whether the append may follow what is known of the stream."""
    if (
        request.incarnation is not None
        and known.version
        and request.incarnation != known.incarnation
    ):
        return False
    if request.expected is not None:
        return request.expected == known.version
    return request.seen is None or request.seen >= known.foreign


def _conflict(request: ops.AppendRecords, known: StreamPosition) -> ConflictError:
    expected = request.expected if request.expected is not None else request.seen
    return ConflictError(str(request.stream), expected=expected or 0, actual=known.version)


def _regressed(known: StreamPosition, prepared: Append, answer: VersionMismatch) -> bool:
    """Whether the engine no longer has what it had told us: a lower version, another record at the same one, or nothing at all."""
    head = answer.head
    if isinstance(answer, IncarnationLost):
        return prepared.expected > 0 and known.acknowledged > 0
    if head is None or head.incarnation != known.incarnation:
        return False  # deleted, or begun anew
    if head.version == known.acknowledged == prepared.expected:
        return head.hash != prepared.expected_hash
    return head.version < known.acknowledged


def _may_still_arrive(append: Append, answer: VersionMismatch) -> bool:
    """Whether an append in doubt may yet be stored by what is in flight: the stream has not reached the version that it expects, or
    is locked, perhaps by that very append."""
    if isinstance(answer, StreamBlocked):
        return True
    return append.expected_hash != NOWHERE and append.expected > (
        answer.head.version if answer.head else 0
    )


def _in_doubt(error: Exception) -> bool:
    """Whether an append that raised this may have been stored. An error that is not ours says nothing either way."""
    return isinstance(error, OutcomeUnknown) or not isinstance(error, HoldfastError)


def reason(error: Exception) -> str:
    """What went wrong. Of an error that is not ours, its name: a driver's message may hold content."""
    return (
        f"{type(error).__name__}: {error}"
        if isinstance(error, HoldfastError)
        else type(error).__name__
    )
