"""Pending appends: assign versions, handle conflicts, and resolve appends without an answer.

The committer's leader runs this, one batch at a time. Every append ends as stored, as not stored,
or as `OutcomeUnknown`. After a missing answer the same bytes are sent again for the same version,
so nothing is stored twice.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import ref

from ..backends import Append, AppendResult, Backend, Head, StreamKey, VersionMismatch, deadline
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
from . import chain, telemetry
from . import operations as ops
from .committer import PendingCommit
from .contention import ContendedStreams, jitter
from .head_fields import NO_FIELDS, encode_fields
from .ids import append_id, format_ids, new_secret
from .repeated_warning import RepeatedWarning

if TYPE_CHECKING:
    from ..encryption.cipher import Cipher, EncryptingWriter

MAX_DOUBTS: Final = 1_000
TURN_PAUSE: Final = 0.02
"""How long appends wait at most, in seconds, while others of the process wait for their turn."""
LOCKED_SECONDS: Final = 1.0
"""How long a server may take to answer that a stream is locked."""
MIN_CONFLICTS: Final = 10
"""How often to retry an append after a conflict, even if its deadline has passed."""

_LOCKED: Final = (
    "another session on the server has locked {} for {:.0f} s; nothing was written; retry later"
)
_OUTPACED: Final = (
    "other writers changed {} again and again for {:.0f} s; nothing was written; retry later"
)
_NO_KEY: Final = "the key for {} could not be stored; nothing was written; retry"

logger = logging.getLogger("holdfast")

Answer = AppendResult | VersionMismatch | Exception

UNKNOWN_OUTCOME: Final = (
    "the outcome of an append to {} was still unknown after {:.0f} s (last error: {}); "
    "repeat the call with id=error.id"
)


class StreamPosition:
    """The last position of a stream that this process knows.

    `foreign` is the newest version that an append must have `seen`: another process appended it,
    or it was exclusive.
    """

    __slots__ = ("acknowledged", "foreign", "hash", "incarnation", "seed", "version", "writer")

    def __init__(
        self, stream: StreamKey, head: Head | None, incarnation: bytes | None = None
    ) -> None:
        if head is None:
            self.version, self.hash = 0, chain.GENESIS
            self.incarnation = incarnation or new_secret()
        else:
            self.version, self.hash, self.incarnation = head.version, head.hash, head.incarnation
        self.foreign = self.acknowledged = self.version
        self.seed = chain.seed(stream, self.incarnation)
        # Set in an encrypted store by the first append.
        self.writer: EncryptingWriter | None = None


class PendingAppend(PendingCommit):
    """A queued append.

    `prepared` was last sent to the backend and has no certain answer yet; it builds on the position
    `basis`. `ghosts` are earlier attempts, at other versions, that may still arrive.
    """

    __slots__ = ("basis", "conflicts", "deadline", "ghosts", "prepared", "request", "started")

    def __init__(self, request: ops.AppendRecords, timeout: float) -> None:
        """`timeout` counts if the append is not part of a call with a deadline."""
        # No super(): this runs for every append.
        self.result = self.error = self._wake = self._loop = self._future = None
        self.done = self._leads = self._abandoned = False
        self.request = request
        self.prepared: Append | None = None
        self.basis: StreamPosition | None = None
        self.ghosts: list[Append] = []
        limit = deadline.current.get()
        call = None if limit is None else limit()
        self.deadline = deadline.monotonic() + timeout if call is None else call.at
        self.started = time.perf_counter()
        self.conflicts = 0

    @property
    def id(self) -> str:
        own = self.request.id
        return format_ids(self.request.stamp.id, 1)[0] if own is None else own


class PredecessorMissing(VersionMismatch, frozen=True):
    """A stream has not reached the version that an append in doubt expects.

    The append before it is in doubt too. Both may still arrive.
    """


class CommitSender:
    """Sends batches of appends to a backend and resolves those without an answer."""

    def __init__(self, backend: Backend, *, timeout: float, pause: Callable[[float], None]) -> None:
        self.backend = backend
        self._timeout, self._pause = timeout, pause
        self.failures = RepeatedWarning("writes succeed again")
        """The failures of writes that are retried."""

    def _send(self, appends: Sequence[Append], deadlines: Sequence[float]) -> Sequence[Answer]:
        """Send a batch in one commit.

        If it was rolled back, send the appends one by one. If its outcome is unknown, resolve each
        until its own deadline.
        """
        try:
            answers = self.backend.append(appends)
            if self.failures.active:
                self.failures.note_success()
            return answers
        except Exception as error:
            doubt = is_in_doubt(error)
            if not doubt and (
                len(appends) == 1 or isinstance(error, (Unavailable, ReadOnly, StoreClosed))
            ):
                return [copy.copy(error) for _ in appends]  # each is raised in its own thread
            count = "1 append" if len(appends) == 1 else f"{len(appends)} appends, one by one"
            self.failures.note_failure(
                f"a write failed ({describe_error(error)}); retrying {count}"
            )
            return [
                self._send_alone(append, in_doubt=doubt, until=until)
                for append, until in zip(appends, deadlines, strict=True)
            ]

    def _send_alone(self, append: Append, *, in_doubt: bool, until: float) -> Answer:
        """Send one append until its outcome is certain or its deadline has passed.

        A record that is absent may still arrive, so the same bytes are sent again for the same
        version. The append certainly failed only if that version holds another append, or if the
        backend refuses it.
        """
        with deadline.until(deadline.Deadline(until)):
            return self._resolve_append(append, in_doubt)

    def _resolve_append(self, append: Append, in_doubt: bool) -> Answer:
        pause = 0.002
        while True:
            try:
                if in_doubt and (
                    stored := self.backend.read(append.stream, after=append.expected, limit=1)
                ):
                    if (stored[0].append_id, stored[0].hash) == (append.id, append.records[0][0]):
                        return AppendResult(
                            append.expected + 1, append.expected + len(append.records)
                        )
                    return VersionMismatch(self.backend.head(append.stream))
                answer = self.backend.append([append])[0]
                if (
                    in_doubt
                    and isinstance(answer, VersionMismatch)
                    and may_still_arrive(append, answer)
                ):
                    return PredecessorMissing(answer.head)
                return answer
            except Exception as error:
                if not in_doubt and not is_in_doubt(error):
                    return error
                in_doubt = True
                if deadline.remaining() <= pause:
                    return OutcomeUnknown(
                        UNKNOWN_OUTCOME.format(append.stream, self._timeout, describe_error(error))
                    )
            self._pause(jitter(pause / 2, pause))
            pause = min(pause * 2, 1.0)


class Appender(CommitSender):
    """Sends batches of appends to a backend. `known` holds the last known stream positions."""

    cipher: Cipher | None = None
    """Set in an encrypted store."""

    def __init__(self, backend: Backend, *, timeout: float, pause: Callable[[float], None]) -> None:
        super().__init__(backend, timeout=timeout, pause=pause)
        self.known: dict[StreamKey, StreamPosition] = {}
        self._doubts: dict[tuple[StreamKey, str], list[Append]] = {}
        self._regressed: dict[StreamKey, HeadRegressed] = {}
        self._contended = ContendedStreams()
        self._sent_seconds = 0.0

    def commit(self, batch: Sequence[PendingCommit]) -> None:
        """Commit a batch. An append that must be retried at another version gets no outcome."""
        entries: Any = batch
        if self._contended.streams and not (entries := self._take_turns(entries)):
            return
        # The leader may be in another thread than the callers: their deadline counts, not its own.
        until = entries[0].deadline
        for entry in entries:  # no comprehensions here: each would be one more call
            if entry.deadline < until:
                until = entry.deadline
        limit = deadline.Deadline(until)
        token = deadline.current.set(ref(limit))
        try:
            ready, appends, deadlines = [], [], []
            for entry in entries:
                if self._prepare(entry):
                    ready.append(entry)
            if ready and self.cipher is not None:
                ready = self._store_new_keys(ready)
            if ready:
                for entry in ready:
                    appends.append(entry.prepared)
                    deadlines.append(entry.deadline)
                started = time.monotonic()
                answers = self._send(appends, deadlines)
                self._sent_seconds = time.monotonic() - started
                for entry, answer in zip(ready, answers, strict=True):
                    self._handle_answer(entry, answer)
        except BaseException:
            # An interrupt, or a bug: the known positions may be ahead of what was sent.
            for entry in entries:
                self.known.pop(entry.request.stream, None)
            raise
        finally:
            deadline.current.reset(token)

    def _take_turns(self, entries: Sequence[PendingAppend]) -> Sequence[PendingAppend]:
        """Return the appends whose turn it is. If there are none, wait for a moment."""
        ready, wait = [], TURN_PAUSE
        for entry in entries:
            request, seconds = entry.request, 0.0
            if request.expected is None and request.seen is None:
                seconds = self._contended.seconds_to_turn(request.stream)
                if not seconds and self._contended.start_turn(request.stream):
                    # Others have moved the stream meanwhile: to look is cheaper than to lose.
                    self.known.pop(request.stream, None)
            if seconds and time.monotonic() + seconds < entry.deadline:
                wait = min(wait, seconds)
            else:
                ready.append(entry)
        if not ready:
            self._pause(wait)
        return ready

    def _store_new_keys(self, entries: list[PendingAppend]) -> list[PendingAppend]:
        """Store the new keys of appends. Return the appends whose key is stored.

        The others are refused, or retried with the key that another process has stored.
        """
        new = {
            id(w): w
            for e in entries
            if e.basis is not None
            and (w := e.basis.writer) is not None
            and w.key_append is not None
        }
        if not new:
            return entries
        cipher: Any = self.cipher
        limit = min(entry.deadline for entry in entries)
        answers = self._send(
            [cast("Append", writer.key_append) for writer in new.values()], [limit] * len(new)
        )
        bad = {
            key: answer
            for (key, writer), answer in zip(new.items(), answers, strict=True)
            if not cipher.accept_key(writer, answer)
        }
        good = []
        for entry in entries:
            answer = bad.get(id(entry.basis.writer)) if entry.basis is not None else None
            if answer is None:
                good.append(entry)
                continue
            stream = entry.request.stream
            entry.prepared = None
            self.known.pop(stream, None)
            if isinstance(answer, Exception):
                doubt = is_in_doubt(answer)
                self._refuse(entry, Unavailable(_NO_KEY.format(stream)) if doubt else answer)
        return good

    def _prepare(self, entry: PendingAppend) -> bool:
        """Assign a version to an append. Return False if it need not be sent now."""
        request = entry.request
        if self._regressed and request.stream in self._regressed:
            entry.error = self._regressed[request.stream]
            return False
        if (entry.prepared is not None or request.id is not None) and not self._settle_doubt(entry):
            return False
        try:
            known = self.known.get(request.stream)
            if known is None:
                known = self.known[request.stream] = StreamPosition(
                    request.stream, self.backend.head(request.stream)
                )
            # After the head is known: a ghost that arrives later makes this version a conflict.
            if entry.ghosts and self._resolve_ghost(entry):
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
        """Prepare an append for the version after the known one. Return False if it conflicts."""
        request = entry.request
        fits = _fits(request, known)
        if not fits:
            known = self._refresh_position(known, request)
            fits = _fits(request, known)
        if fits:
            entry.basis = known
            prepared = self._build_append(request, known)
            version, digest = known.version + len(request.bodies), prepared.records[-1][0]
            # One statement: an interrupt in between must not leave a position that never existed.
            known.version, known.hash = version, digest
            entry.prepared = prepared
            if request.exclusive:
                known.foreign = known.version
            return True
        if request.id is not None:
            if known.version != known.acknowledged:
                # An append of this batch may have the same id: try again after it.
                self._may_retry(entry)
                return False
            found = self.backend.find_append(request.stream, append_id(request.id))
            if found is not None:
                entry.result = AppendResult(*found, duplicate=True)
                return False
        self._refuse(entry, _conflict(request, known))
        return False

    def _build_append(self, request: ops.AppendRecords, known: StreamPosition) -> Append:
        """Build the append that follows the known position, encrypted in an encrypted store."""
        name = request.stamp.id.to_bytes(16, "big") if request.id is None else append_id(request.id)
        version, fields = known.version, request.fields
        if fields is None and version == 0:
            fields = NO_FIELDS
        digest = known.hash if version else b""
        previous, bodies = digest or chain.GENESIS, request.bodies
        writer = None if self.cipher is None else self._get_writer(request, known, self.cipher)
        if writer is None:
            links = chain.extend(known.seed, previous, version, name, bodies)
        else:
            links = writer.encrypt(known.seed, previous, version, name, bodies, request.keys)
        if fields is not None:
            if writer is None or self.cipher is None:
                fields = encode_fields(known.seed, fields)
            else:
                fields = self.cipher.encrypt_fields(request.stream, known.incarnation, fields)
        return Append(request.stream, version, digest, known.incarnation, name, links, fields)

    def _get_writer(
        self, request: ops.AppendRecords, known: StreamPosition, cipher: Cipher
    ) -> EncryptingWriter | None:
        """Return what encrypts the records of an append; None if its stream is not encrypted."""
        if cipher.is_erasure(request.keys):
            return cipher.make_erasure_writer(request.stream, known.incarnation)
        if known.writer is None:
            known.writer = cipher.make_writer(
                request.stream, known.incarnation, new=known.version == 0
            )
        return known.writer

    def _refresh_position(
        self, known: StreamPosition, request: ops.AppendRecords
    ) -> StreamPosition:
        """Return the current position of a stream: the caller may have read others' appends.

        The known one is kept while an append of this process is in flight, and if the backend went
        back, which the append itself detects.
        """
        if known.version != known.acknowledged:
            return known
        # If the stream is gone, the append belongs to the incarnation that the caller names.
        fresh = StreamPosition(
            request.stream, self.backend.head(request.stream), request.incarnation
        )
        if fresh.incarnation == known.incarnation and fresh.version <= known.version:
            return known
        self.known[request.stream] = fresh
        return fresh

    def _settle_doubt(self, entry: PendingAppend) -> bool:
        """Resolve earlier attempts of an append. Return True if it must be sent again."""
        request = entry.request
        if _lacks_key(entry):
            entry.prepared = None  # the leader was interrupted before it sent the append
        if entry.prepared is not None:
            # The leader was interrupted before it got the answer.
            answer = self._send_alone(entry.prepared, in_doubt=True, until=entry.deadline)
            return self._handle_answer(entry, answer)
        if request.id is None or (request.stream, request.id) not in self._doubts:
            return True
        # The caller repeats an append whose outcome was unknown. Resolve that one first, with the
        # same bytes and version. If it is stored, it stays in `_doubts`: an id generated by the log
        # is in no index, and the caller may repeat the call again.
        *entry.ghosts, entry.prepared = self._doubts[request.stream, request.id]
        answer = self._send_alone(entry.prepared, in_doubt=True, until=entry.deadline)
        if isinstance(answer, AppendResult):
            answer = AppendResult(answer.first, answer.last, True, answer.now)
        elif isinstance(answer, VersionMismatch):
            del self._doubts[request.stream, request.id]
        return self._handle_answer(entry, answer)

    def _resolve_ghost(self, entry: PendingAppend) -> bool:
        """Set the result of an append if one of its ghosts was stored. Return whether it was."""
        for ghost in entry.ghosts:
            stored = self.backend.read(ghost.stream, after=ghost.expected, limit=1)
            if stored and stored[0].append_id == ghost.id:
                self.known.pop(ghost.stream, None)
                repeated = entry.request.id is not None
                entry.result = AppendResult(
                    ghost.expected + 1, ghost.expected + len(ghost.records), repeated
                )
                if repeated:
                    self._remember_doubt(entry, [ghost])
                return True
        return False

    def _refuse(self, entry: PendingAppend, error: Exception) -> None:
        """End an append with an error; with `OutcomeUnknown` if a ghost of it may still arrive."""
        if entry.ghosts and not isinstance(error, OutcomeUnknown):
            error = OutcomeUnknown(
                UNKNOWN_OUTCOME.format(entry.request.stream, self._timeout, describe_error(error))
            )
        if isinstance(error, OutcomeUnknown):
            error.stream, error.id = str(entry.request.stream), entry.id
            logger.error(
                "the outcome of an append to %s is unknown (id %s)",
                entry.request.stream,
                entry.id,
                # The correlation id of this append, not of the caller that commits for others.
                extra={"correlation": entry.request.stamp.correlation},
            )
            self._remember_doubt(entry, entry.ghosts)
        entry.error = error

    def _handle_answer(self, entry: PendingAppend, answer: Answer) -> bool:
        """Handle the backend's answer. Return True if the append must be retried."""
        request = entry.request
        prepared: Any = entry.prepared
        if isinstance(answer, AppendResult):
            known = self.known.get(request.stream)
            if answer.duplicate or known is None or known is not entry.basis:
                self.known.pop(request.stream, None)  # it may be older than this answer
            else:
                known.acknowledged = answer.last
                if self._contended.streams:
                    self._contended.note_success(
                        request.stream, answer.first, answer.last, self._sent_seconds
                    )
            # Last: after an interrupt before this line, `prepared` is still set and resolved again.
            entry.result = answer
            return False
        entry.prepared = None
        known = self.known.pop(request.stream, None)
        if isinstance(answer, OutcomeUnknown | PredecessorMissing):
            entry.ghosts.append(prepared)
        if isinstance(answer, Exception):
            self._refuse(entry, answer)
            return False
        if isinstance(answer, StreamBlocked):
            return self._retry_or_refuse(entry)
        # Compare only with the position this append was prepared on: an earlier append of the batch
        # may have had the same conflict and loaded the position again.
        if known is not None and known is entry.basis and _has_regressed(known, prepared, answer):
            actual = answer.head.version if answer.head else 0
            entry.error = HeadRegressed(
                str(request.stream), acknowledged=known.acknowledged, actual=actual
            )
            # Permanently: a caller that simply retries must not build on a history with a gap.
            self._regressed[request.stream] = entry.error
            return False
        fresh = self.known[request.stream] = StreamPosition(request.stream, answer.head)
        # An append sent to its `expected` version found another record there: the caller must read.
        # If the stream is gone, so is the `incarnation` that the caller named.
        retryable = request.expected is None or entry.basis is None
        if _fits(request, fresh) and retryable and (request.incarnation is None or fresh.version):
            if not self._may_retry(entry):
                return False
            if request.seen is None:
                self._contended.note_conflict(request.stream, fresh.version, self._sent_seconds)
            return True
        self._refuse(entry, _conflict(request, fresh))
        return False

    def _may_retry(self, entry: PendingAppend) -> bool:
        """Count a conflict. Return True to retry the append; refuse it after the deadline."""
        entry.conflicts += 1
        if entry.conflicts <= MIN_CONFLICTS or deadline.monotonic() < entry.deadline:
            return True
        waited = time.perf_counter() - entry.started
        self._refuse(entry, Unavailable(_OUTPACED.format(entry.request.stream, waited)))
        return False

    def _retry_or_refuse(self, entry: PendingAppend) -> bool:
        """Return True to retry an append whose stream is locked. Refuse it after the deadline."""
        # Not in the last moments: an answer that comes too late would leave it in doubt.
        if time.monotonic() + LOCKED_SECONDS < entry.deadline and not entry._abandoned:
            return True
        waited = time.perf_counter() - entry.started
        self._refuse(entry, Unavailable(_LOCKED.format(entry.request.stream, waited)))
        return False

    def _remember_doubt(self, entry: PendingAppend, ghosts: list[Append]) -> None:
        if not ghosts:
            return
        if len(self._doubts) >= MAX_DOUBTS:
            del self._doubts[next(iter(self._doubts))]
        self._doubts[entry.request.stream, entry.id] = ghosts


def may_still_arrive(append: Append, answer: VersionMismatch) -> bool:
    """Return whether an append in doubt may still be stored by a request in flight.

    It may if the stream has not reached the expected version, or is locked, perhaps by this append.
    """
    if isinstance(answer, StreamBlocked):
        return True
    return append.expected > (answer.head.version if answer.head else 0)


def is_in_doubt(error: Exception) -> bool:
    """Return whether an append that raised this may be stored. Unknown errors leave that open."""
    return isinstance(error, OutcomeUnknown) or not isinstance(error, HoldfastError)


def describe_error(error: Exception) -> str:
    """Return an error as text. A driver's message may contain content, so show only its type."""
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, HoldfastError) else name


def _lacks_key(entry: PendingAppend) -> bool:
    """Return whether an append uses a new key that is not stored yet, so that it was not sent."""
    writer = None if entry.basis is None else entry.basis.writer
    return writer is not None and writer.key_append is not None


def _fits(request: ops.AppendRecords, known: StreamPosition) -> bool:
    """Return whether the append may follow the known position of the stream."""
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
    if telemetry.listeners:
        telemetry.emit(telemetry.AppendConflicted(request.stream))
    return ConflictError(str(request.stream), expected=expected or 0, actual=known.version)


def _has_regressed(known: StreamPosition, prepared: Append, answer: VersionMismatch) -> bool:
    """Return whether the backend lost acknowledged records: it has fewer, others, or none."""
    head = answer.head
    if isinstance(answer, IncarnationLost):
        return prepared.expected > 0 and known.acknowledged > 0
    if head is None or head.incarnation != known.incarnation:
        return False  # deleted, or deleted and created again
    if head.version == known.acknowledged == prepared.expected:
        return head.hash != prepared.expected_hash
    return head.version < known.acknowledged
