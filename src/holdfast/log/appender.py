"""Pending appends: assign versions, handle conflicts, and resolve appends without an answer.

The committer's leader runs this, one batch at a time. Every append ends as stored, as not stored,
or as `OutcomeUnknown`. After a missing answer the same bytes are sent again for the same version,
so nothing is stored twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from ..backends import Append, AppendResult, Backend, Head, StreamKey, VersionMismatch
from ..backends.interface import IncarnationLost, StreamBlocked
from ..errors import Conflict as ConflictError
from ..errors import HeadRegressed, OutcomeUnknown, Unavailable
from . import chain
from . import operations as ops
from .committer import PendingCommit
from .ids import append_id, format_ids, new_secret
from .retry_commit import (
    IMPOSSIBLE_HASH,
    UNKNOWN_OUTCOME,
    Answer,
    CommitSender,
    PredecessorMissing,
    describe_error,
    is_in_doubt,
)

if TYPE_CHECKING:
    from ..encryption.cipher import Cipher, EncryptingWriter

MAX_DOUBTS: Final = 1_000

_LOCKED: Final = (
    "another session on the server has locked {} for {:.0f} s; nothing was written; retry later"
)
_NO_KEY: Final = "the key for {} could not be stored; nothing was written; retry"

logger = logging.getLogger("holdfast")


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

    __slots__ = ("basis", "ghosts", "prepared", "request", "started")

    def __init__(self, request: ops.AppendRecords) -> None:
        # No super(): this runs for every append.
        self.result = self.error = self._wake = self._loop = self._future = None
        self.done = self._leads = self._abandoned = False
        self.request = request
        self.prepared: Append | None = None
        self.basis: StreamPosition | None = None
        self.ghosts: list[Append] = []
        self.started = time.perf_counter()

    @property
    def id(self) -> str:
        own = self.request.id
        return format_ids(self.request.stamp.id, 1)[0] if own is None else own


class Appender(CommitSender):
    """Sends batches of appends to a backend. `known` holds the last known stream positions."""

    cipher: Cipher | None = None
    """Set in an encrypted store."""

    def __init__(
        self, backend: Backend, *, settle_seconds: float, pause: Callable[[float], None]
    ) -> None:
        super().__init__(backend, settle_seconds=settle_seconds, pause=pause)
        self.known: dict[StreamKey, StreamPosition] = {}
        self._doubts: dict[tuple[StreamKey, str], list[Append]] = {}
        self._regressed: dict[StreamKey, HeadRegressed] = {}

    def commit(self, batch: Sequence[PendingCommit]) -> None:
        """Commit a batch. An append that must be retried at another version gets no outcome."""
        entries = cast("Sequence[PendingAppend]", batch)
        try:
            ready = [entry for entry in entries if self._prepare(entry)]
            if ready and self.cipher is not None:
                ready = self._store_new_keys(ready)
            if ready:
                answers = self._send([cast("Append", entry.prepared) for entry in ready])
                for entry, answer in zip(ready, answers, strict=True):
                    self._handle_answer(entry, answer)
        except BaseException:
            # An interrupt, or a bug: the known positions may be ahead of what was sent.
            for entry in entries:
                self.known.pop(entry.request.stream, None)
            raise

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
        answers = self._send([cast("Append", writer.key_append) for writer in new.values()])
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
        if request.stream in self._regressed:
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
            # One statement: an interrupt in between must not leave a position that never existed.
            known.version, known.hash = known.version + len(request.bodies), prepared.records[-1][0]
            entry.prepared = prepared
            if request.exclusive:
                known.foreign = known.version
            return True
        if request.id is None:
            self._refuse(entry, _conflict(request, known))
            return False
        entry.basis = None
        entry.prepared = build_lookup(request.stream, known.version, known.incarnation, request.id)
        return True

    def _build_append(self, request: ops.AppendRecords, known: StreamPosition) -> Append:
        """Build the append that follows the known position, encrypted in an encrypted store."""
        name = append_id(request.stamp.id if request.id is None else request.id)
        fields, writer = request.fields, None
        digest = known.hash if known.version else b""
        if self.cipher is not None:
            writer = known.writer
            if self.cipher.is_erasure(request.keys):
                writer = self.cipher.make_erasure_writer(request.stream, known.incarnation)
            elif writer is None:
                writer = known.writer = self.cipher.make_writer(
                    request.stream, known.incarnation, new=known.version == 0
                )
            if writer is not None:
                fields = self.cipher.encrypt_fields(request.stream, known.incarnation, fields)
        previous, bodies = digest or chain.GENESIS, request.bodies
        if writer is None:
            links = chain.extend(known.seed, previous, known.version, bodies)
        else:
            links = writer.encrypt(known.seed, previous, known.version, name, bodies, request.keys)
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

    def _refresh_position(
        self, known: StreamPosition, request: ops.AppendRecords
    ) -> StreamPosition:
        """Return the current position of a stream: the caller may have read what others appended.

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
            return self._handle_answer(entry, self._send_alone(entry.prepared, in_doubt=True))
        if request.id is None or (request.stream, request.id) not in self._doubts:
            return True
        # The caller repeats an append whose outcome was unknown. Resolve that one first, with the
        # same bytes and version. If it is stored, it stays in `_doubts`: an id generated by the log
        # is in no index, and the caller may repeat the call again.
        *entry.ghosts, entry.prepared = self._doubts[request.stream, request.id]
        answer = self._send_alone(entry.prepared, in_doubt=True)
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
                    ghost.expected + 1, ghost.expected + len(ghost.records), repeated, time.time()
                )
                if repeated:
                    self._remember_doubt(entry, [ghost])
                return True
        return False

    def _refuse(self, entry: PendingAppend, error: Exception) -> None:
        """End an append with an error; with `OutcomeUnknown` if a ghost of it may still arrive."""
        if entry.ghosts and not isinstance(error, OutcomeUnknown):
            error = OutcomeUnknown(
                UNKNOWN_OUTCOME.format(
                    entry.request.stream, self._settle_seconds, describe_error(error)
                )
            )
        if isinstance(error, OutcomeUnknown):
            error.stream, error.id = str(entry.request.stream), entry.id
            logger.error(
                "the outcome of an append to %s is unknown (id %s)", entry.request.stream, entry.id
            )
            self._remember_doubt(entry, entry.ghosts)
        entry.error = error

    def _handle_answer(self, entry: PendingAppend, answer: Answer) -> bool:
        """Handle the backend's answer. Return True if the append must be retried."""
        request = entry.request
        prepared = cast("Append", entry.prepared)
        if isinstance(answer, AppendResult):
            known = self.known.get(request.stream)
            if answer.duplicate:
                self.known.pop(request.stream, None)
            elif known is not None and known.incarnation == prepared.incarnation:
                known.acknowledged = answer.last
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
            return True
        self._refuse(entry, _conflict(request, fresh))
        return False

    def _retry_or_refuse(self, entry: PendingAppend) -> bool:
        """Return True to retry an append whose stream is locked. Refuse it after the deadline."""
        waited = time.perf_counter() - entry.started
        if waited < self._settle_seconds and not entry._abandoned:
            return True
        self._refuse(entry, Unavailable(_LOCKED.format(entry.request.stream, waited)))
        return False

    def _remember_doubt(self, entry: PendingAppend, ghosts: list[Append]) -> None:
        if not ghosts:
            return
        if len(self._doubts) >= MAX_DOUBTS:
            del self._doubts[next(iter(self._doubts))]
        self._doubts[entry.request.stream, entry.id] = ghosts


def build_lookup(stream: StreamKey, version: int, incarnation: bytes, id: str) -> Append:
    """Return an append that only looks up an id.

    Backends check the id before the version, and its impossible hash keeps it from being stored.
    """
    return Append(
        stream,
        version or 1,
        IMPOSSIBLE_HASH,
        incarnation,
        append_id(id),
        [(IMPOSSIBLE_HASH, b"")],
        True,
    )


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
