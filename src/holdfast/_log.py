"""The log: the one way in and out of a backend.

On the way in: an append waits in the committer's queue, gets its version and hashes when it leaves it, and is
committed together with everybody else's. On the way out: records are checked against the chain before
anything sees them. Lost answers are settled here, so that every append ends as done, not done,
or `OutcomeUnknown`.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from . import _chain
from . import _operations as ops
from ._codec import Undecodable
from ._committer import Committer, Waiting
from ._events import NewEvent, Stamp, Stored, open_envelope, open_plain, seal
from ._ids import SYSTEM_TENANT, append_id, id_texts, new_id
from .backends import Append, Appended, Backend, Conflict, Description, Head, Record, StreamKey
from .backends._fork import register
from .errors import (
    Closed,
    CorruptRecord,
    DataProblem,
    HeadRegressed,
    HoldfastError,
    IdReused,
    OutcomeUnknown,
    ReadOnly,
    Unavailable,
)
from .errors import Conflict as ConflictError

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

KNOWN_STREAMS: Final = 10_000
KNOWN_DOUBTS: Final = 1_000
READER_THREADS: Final = 4
SETTLE_SECONDS: Final = 30.0
REREADS: Final = 3
NOWHERE: Final = bytes(32)
"""A hash that no record has."""

T = TypeVar("T")
_Answer = Appended | Conflict | Exception

_UNKNOWN: Final = "{} did not get a certain answer within {:.0f} s (last: {}); repeat the call with id=error.id"

logger = logging.getLogger("holdfast")


class _Known:
    """Where this process last knew a stream to be. `foreign` is the newest version that it did not append itself."""

    __slots__ = ("acknowledged", "foreign", "hash", "incarnation", "seed", "version")

    def __init__(self, stream: StreamKey, head: Head | None) -> None:
        if head is None:
            self.version, self.hash, self.incarnation = 0, _chain.GENESIS, os.urandom(16)
        else:
            self.version, self.hash, self.incarnation = head.version, head.hash, head.incarnation
        self.foreign = self.acknowledged = self.version
        self.seed = _chain.seed(stream, self.incarnation)


class _Behind(Conflict, frozen=True):
    """A conflict with a stream that is not yet where an append in doubt expects it: together with its predecessor,
    of whom nothing certain is known either, the append may still arrive."""


class _Entry(Waiting):
    """An append on its way.

    `prepared` is what was last sent to the backend without a certain answer, `basis` what it rests on. `ghosts` are
    former places of it that may still be taken by what is in flight.
    """

    __slots__ = ("basis", "ghosts", "prepared", "request", "started")

    def __init__(self, request: ops.Append) -> None:
        super().__init__()
        self.request = request
        self.prepared: Append | None = None
        self.basis: _Known | None = None
        self.ghosts: list[Append] = []
        self.started = time.perf_counter()

    @property
    def id(self) -> str:
        return self.request.id if self.request.id is not None else id_texts(self.request.stamp.id, 1)[0]


class Log:
    """One backend, its queue, and what is known of its streams. Used by any number of threads and event loops."""

    def __init__(
        self,
        backend: Backend,
        *,
        settle_seconds: float = SETTLE_SECONDS,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.backend = backend
        self._settle_seconds, self._pause = settle_seconds, pause
        self._closed = False
        self._reset()
        register(self)

    def _reset(self) -> None:
        """Queues, locks, threads and knowledge, new: at the start and in a forked child."""
        self._committer = Committer(self._commit)
        self._known: dict[StreamKey, _Known] = {}
        self._doubts: dict[tuple[StreamKey, str], list[Append]] = {}
        self._learning: dict[tuple[asyncio.AbstractEventLoop, StreamKey], asyncio.Future[None]] = {}
        self._tenants: set[str] = set()
        self._readers: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        """Let what is in flight finish, then release the backend."""
        self._closed = True
        self._committer.close()
        readers, self._readers = self._readers, None
        if readers is not None:
            readers.shutdown()
        self.backend.close()

    async def close_async(self) -> None:
        import asyncio

        await asyncio.to_thread(self.close)

    def describe(self) -> Description:
        return self.backend.describe()

    def before_fork(self) -> None:
        """Nothing: what other threads are in the middle of goes on in the parent."""

    def after_fork_in_parent(self) -> None:
        """Nothing."""

    def after_fork_in_child(self) -> None:
        self._reset()

    # -- requests --------------------------------------------------------------------------------

    def handle(self, request: ops.Request) -> Any:
        """Do what an operation asks for."""
        if isinstance(request, ops.Append):
            return self._append(request)
        if self._closed:
            raise Closed("the store was closed; open it again")
        return _HANDLERS[type(request)](self, request)

    async def handle_async(self, request: ops.Request) -> Any:
        """Do what an operation asks for, without holding up the event loop."""
        if isinstance(request, ops.Append):
            return await self._append_async(request)
        return await self.in_thread(self.handle, request)

    async def in_thread(self, function: Callable[..., T], *args: Any) -> T:
        """Call something that blocks in one of the reader threads."""
        if self._closed:
            raise Closed("the store was closed; open it again")
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        with self._lock:
            if self._readers is None:
                self._readers = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="holdfast-read")
        return await asyncio.get_running_loop().run_in_executor(self._readers, function, *args)

    def _head(self, request: ops.GetHead) -> Head | None:
        return self.backend.head(request.stream)

    def _heads(self, request: ops.ListHeads) -> Sequence[Head]:
        return self.backend.heads(
            tenant=request.tenant, kind=request.kind, status=request.status, after=request.after, limit=request.limit
        )

    def _due(self, request: ops.ListDue) -> Sequence[Head]:
        return self.backend.due(
            tenant=request.tenant, kind=request.kind, before=request.before, after=request.after, limit=request.limit
        )

    def _delete(self, request: ops.Delete) -> bool:
        deleted = self.backend.delete(request.stream, expected=request.expected, upto=request.upto)
        self._known.pop(request.stream, None)
        if deleted and logger.isEnabledFor(logging.INFO):
            logger.info("deleted %s", request.stream, extra={"stream": str(request.stream), "upto": request.upto})
        return deleted

    # -- reading ---------------------------------------------------------------------------------

    def _read(self, request: ops.Read) -> list[Stored]:
        records = self._records(request.stream, request.after, request.limit, request.reverse)
        stored: list[Stored] = []
        open_body = open_plain if request.plain else open_envelope
        try:
            for record in records:
                stored.append(Stored(record.version, open_body(record.body)))
        except Undecodable as error:
            version = records[len(stored)].version
            raise CorruptRecord(str(request.stream), version=version, what=str(error)) from None
        return stored

    def _read_records(self, request: ops.ReadRecords) -> Sequence[Record]:
        return self._records(request.stream, request.after, None, False)

    def _records(self, stream: StreamKey, after: int, limit: int | None, reverse: bool) -> Sequence[Record]:
        """One verified page, ascending or descending."""
        known = self._known.get(stream) or _Known(stream, self.backend.head(stream))
        for _ in range(REREADS):
            # Taken before the page is read: what is acknowledged meanwhile may be missing from it.
            acknowledged = known.acknowledged
            page, anchor = self._anchored_page(stream, after, limit, reverse)
            bad = _chain.first_bad(known.seed, anchor, page)
            if bad is None:
                bad = _first_missing(page, anchor, after, reverse, acknowledged)
            if bad is None:
                return page[::-1] if reverse else page
            # The stream may have been deleted and begun anew since we learned of it: look again before crying wolf.
            fresh = _Known(stream, self.backend.head(stream))
            if fresh.incarnation == known.incarnation:
                break
            known = fresh
            self._known.pop(stream, None)
        raise CorruptRecord(str(stream), version=bad, what="the record is missing, altered or out of place")

    def _anchored_page(
        self, stream: StreamKey, after: int, limit: int | None, reverse: bool
    ) -> tuple[list[Record], Record | None]:
        """A page, ascending, and the record before it: checking a record's hash needs the hash before it."""
        read = self.backend.read
        more = None if limit is None else limit + 1
        if reverse:
            page = list(read(stream, after=after, limit=more, reverse=True))[::-1]
            if len(page) == 1 and page[0].version > 1:
                page[:0] = read(stream, after=page[0].version, limit=1, reverse=True)
            whole = bool(page) and page[0].version == 1 and (limit is None or len(page) <= limit)
            return (page, None) if whole or not page else (page[1:], page[0])
        if after == 0:
            return list(read(stream, limit=limit)), None
        page = list(read(stream, after=after - 1, limit=more))
        if len(page) == 1:
            page += read(stream, after=after, limit=limit)
        return page[1:], page[0] if page else None

    # -- appending -------------------------------------------------------------------------------

    def _append(self, request: ops.Append) -> Appended:
        if request.stream not in self._known:
            self._learn(request.stream)
        entry = _Entry(request)
        self._committer.submit(entry)
        answer = _outcome(entry)
        if answer.duplicate and request.id is not None:
            try:
                self._compare(request, answer)
            except DataProblem:
                raise
            except Exception as error:
                raise _not_compared(request, error) from error
        return answer

    async def _append_async(self, request: ops.Append) -> Appended:
        if request.stream not in self._known:
            await self._learn_async(request.stream)
        entry = _Entry(request)
        await self._committer.submit_async(entry)
        answer = _outcome(entry)
        if answer.duplicate and request.id is not None:
            try:
                await self.in_thread(self._compare, request, answer)
            except DataProblem:
                raise
            except Exception as error:
                raise _not_compared(request, error) from error
        return answer

    def _learn(self, stream: StreamKey) -> None:
        """Where a stream is, asked once; its tenant is registered before its first stream."""
        if self._closed:
            raise Closed("the store was closed; open it again")
        if stream.tenant not in self._tenants:
            if stream.tenant != SYSTEM_TENANT:
                self._register(stream.tenant)
            self._tenants.add(stream.tenant)  # not before: if registering failed, the next append has to do it
        known = _Known(stream, self.backend.head(stream))
        with self._lock:
            if len(self._known) >= KNOWN_STREAMS:
                for old in list(self._known)[: KNOWN_STREAMS // 10]:
                    del self._known[old]
            self._known.setdefault(stream, known)

    async def _learn_async(self, stream: StreamKey) -> None:
        """`_learn` once for all who ask in this loop, who then go on in the order in which they came."""
        import asyncio

        loop = asyncio.get_running_loop()
        learning = self._learning.get((loop, stream))
        if learning is None:
            learning = self._learning[loop, stream] = asyncio.ensure_future(self.in_thread(self._learn, stream))
            learning.add_done_callback(lambda _: self._learning.pop((loop, stream), None))
        await asyncio.shield(learning)

    def _register(self, tenant: str) -> None:
        stream = StreamKey(SYSTEM_TENANT, "tenant", tenant)
        if self.backend.head(stream) is None:
            stamp = Stamp(new_id(), time.time())
            events = [NewEvent("tenant.registered", b"null")]
            try:
                self._append(ops.Append(stream, seal(events, stamp, {}), stamp, expected=0))
            except ConflictError:
                pass  # another process was faster
            except OutcomeUnknown as error:
                # Not the caller's doubt: its own append has not been sent.
                raise Unavailable(f"tenant {tenant!r} could not be registered; nothing was written") from error

    def _compare(self, request: ops.Append, answer: Appended) -> None:
        """A repeated id must mean the same events: same types, same data. The envelope may differ."""
        stored: list[Stored] = []
        while len(stored) < answer.last - answer.first + 1:
            after = stored[-1].version if stored else answer.first - 1
            page = self._read(ops.Read(request.stream, after, answer.last - after))
            if not page:
                break
            stored += page
        found = [(s.envelope.type, s.envelope.blob or bytes(s.envelope.data)) for s in stored]
        asked = [(e.type, e.blob or bytes(e.data)) for e in map(open_envelope, request.bodies)]
        if found != asked:
            raise IdReused(str(request.stream), id=str(request.id))

    # -- committing (one leader at a time) -------------------------------------------------------

    def _commit(self, batch: Sequence[Waiting]) -> Sequence[Waiting]:
        """Commit a batch; returns the members to try again, at another version."""
        ready = [entry for entry in cast("Sequence[_Entry]", batch) if self._prepare(entry)]
        if not ready:
            return []
        answers = self._send([cast("Append", entry.prepared) for entry in ready])
        return [entry for entry, answer in zip(ready, answers, strict=True) if self._take(entry, answer)]

    def _prepare(self, entry: _Entry) -> bool:
        """Give an append its place. False if its outcome is already decided."""
        request = entry.request
        if not self._must_be_sent(entry):
            return False
        try:
            known = self._known.get(request.stream)
            if known is None:
                known = self._known[request.stream] = _Known(request.stream, self.backend.head(request.stream))
            # Looked for after the head is known: a ghost that arrives later makes this place a conflict.
            if entry.ghosts and self._arrived(entry):
                return False
        except Exception as error:
            self._refuse(entry, error)
            return False
        if _fits(request, known):
            entry.basis = known
            entry.prepared = _placed(request, known, known.version, known.hash if known.version else b"")
            known.version += len(request.bodies)
            known.hash = entry.prepared.records[-1][0]
            return True
        if request.id is None:
            self._refuse(entry, _conflict(request, known))
            return False
        # An id is looked at before the version: ask for it, at a place where nothing can be stored.
        entry.basis = None
        entry.prepared = _placed(request, known, known.version or 1, NOWHERE)
        return True

    def _must_be_sent(self, entry: _Entry) -> bool:
        """Settle what is in doubt about this append from before. True if it still has to be sent, at a new place."""
        request = entry.request
        if entry.prepared is not None:
            # The leader was interrupted before the answer came.
            return self._take(entry, self._send_alone(entry.prepared, in_doubt=True))
        if request.id is None or (request.stream, request.id) not in self._doubts:
            return True
        # The caller repeats an append whose outcome was unknown: settle that one first, same bytes, same version.
        # What turns out to be stored stays remembered: an id made by the log is in no index, and the caller may repeat again.
        *entry.ghosts, entry.prepared = self._doubts[request.stream, request.id]
        answer = self._send_alone(entry.prepared, in_doubt=True)
        if isinstance(answer, Appended):
            answer = Appended(answer.first, answer.last, True, answer.now)
        elif isinstance(answer, Conflict):
            del self._doubts[request.stream, request.id]
        return self._take(entry, answer)

    def _arrived(self, entry: _Entry) -> bool:
        """Whether one of the ghosts has been stored after all."""
        for ghost in entry.ghosts:
            stored = self.backend.read(ghost.stream, after=ghost.expected, limit=1)
            if stored and stored[0].append_id == ghost.id:
                self._known.pop(ghost.stream, None)
                repeated = entry.request.id is not None
                entry.result = Appended(ghost.expected + 1, ghost.expected + len(ghost.records), repeated, time.time())
                if repeated:
                    self._remember_doubt(entry, [ghost])
                return True
        return False

    def _refuse(self, entry: _Entry, error: Exception) -> None:
        """End an append with an error, unless a ghost of it may still arrive: then nobody knows."""
        if entry.ghosts and not isinstance(error, OutcomeUnknown):
            error = OutcomeUnknown(_UNKNOWN.format(entry.request.stream, self._settle_seconds, _name(error)))
        if isinstance(error, OutcomeUnknown):
            error.stream, error.id = str(entry.request.stream), entry.id
            logger.error("the outcome of an append to %s is unknown (id %s)", entry.request.stream, entry.id)
            self._remember_doubt(entry, entry.ghosts)
        entry.error = error

    def _send(self, appends: Sequence[Append]) -> Sequence[_Answer]:
        """One commit for all. If it surely rolled back, members are tried singly; in doubt, each is settled by its id."""
        try:
            return self.backend.append(appends)
        except Exception as error:
            doubt = _in_doubt(error)
            if not doubt and (len(appends) == 1 or isinstance(error, (Unavailable, ReadOnly, Closed))):
                return [error] * len(appends)
            logger.warning("a commit of %d appends failed (%s); settling them one by one", len(appends), _name(error))
            deadline = time.monotonic() + self._settle_seconds  # one for all: they wait in line for each other
            return [self._send_alone(append, in_doubt=doubt, deadline=deadline) for append in appends]

    def _send_alone(self, append: Append, *, in_doubt: bool, deadline: float | None = None) -> _Answer:
        """Send one append until its outcome is certain or time is up.

        Absent is never taken for not done: the same bytes are sent again for the same version. Not done is certain only
        when that version holds another append, or the engine refuses.
        """
        deadline = time.monotonic() + self._settle_seconds if deadline is None else deadline
        pause = 0.002
        while True:
            try:
                if in_doubt and (stored := self.backend.read(append.stream, after=append.expected, limit=1)):
                    if (stored[0].append_id, stored[0].hash) == (append.id, append.records[0][0]):
                        return Appended(append.expected + 1, append.expected + len(append.records), now=time.time())
                    return Conflict(self.backend.head(append.stream))
                answer = self.backend.append([append])[0]
                if in_doubt and isinstance(answer, Conflict) and _is_behind(append, answer.head):
                    return _Behind(answer.head)
                return answer
            except Exception as error:
                if not in_doubt and not _in_doubt(error):
                    return error
                in_doubt = True
                if time.monotonic() > deadline:
                    return OutcomeUnknown(_UNKNOWN.format(append.stream, self._settle_seconds, _name(error)))
            self._pause(random.uniform(pause / 2, pause))  # noqa: S311  jitter, not a secret
            pause = min(pause * 2, 1.0)

    def _take(self, entry: _Entry, answer: _Answer) -> bool:
        """Take an answer. True if the append must be tried again at another version."""
        request, prepared, entry.prepared = entry.request, cast("Append", entry.prepared), None
        if isinstance(answer, Appended):
            known = self._known.get(request.stream)
            if answer.duplicate:
                self._known.pop(request.stream, None)
            elif known is not None and known.incarnation == prepared.incarnation:
                known.acknowledged = answer.last
            entry.result = answer
            if logger.isEnabledFor(logging.INFO):
                _report(entry, answer)
            return False
        known = self._known.pop(request.stream, None)
        if isinstance(answer, OutcomeUnknown | _Behind):
            entry.ghosts.append(prepared)
        if isinstance(answer, Exception):
            self._refuse(entry, answer)
            return False
        # Only what this append was prepared on can have regressed: an earlier member of the batch may have met
        # the same conflict and learned the stream anew.
        if known is not None and known is entry.basis and _regressed(known, prepared, answer.head):
            actual = answer.head.version if answer.head else 0
            entry.error = HeadRegressed(str(request.stream), acknowledged=known.acknowledged, actual=actual)
            return False
        fresh = self._known[request.stream] = _Known(request.stream, answer.head)
        # With `expected`, an append that was sent to that very version met another record there: the caller has to look.
        if _fits(request, fresh) and (request.expected is None or entry.basis is None):
            return True
        self._refuse(entry, _conflict(request, fresh))
        return False

    def _remember_doubt(self, entry: _Entry, ghosts: list[Append]) -> None:
        if len(self._doubts) >= KNOWN_DOUBTS:
            del self._doubts[next(iter(self._doubts))]
        self._doubts[entry.request.stream, entry.id] = ghosts


def _first_missing(
    page: Sequence[Record], anchor: Record | None, after: int, reverse: bool, acknowledged: int
) -> int | None:
    """The first version that a page ought to have and has not, at its two ends; None if it is complete."""
    newest = page[-1].version if page else 0
    if reverse:
        before = after - 1 if after else max(newest, acknowledged)
        return newest + 1 if newest > before or newest < min(before, acknowledged) else None
    if after and anchor and anchor.version != after:
        return after
    return after + 1 if not page and after < acknowledged else None


def _placed(request: ops.Append, known: _Known, version: int, digest: bytes) -> Append:
    """An append at its place: after that version, whose hash is `digest`."""
    return Append(
        request.stream,
        version,
        digest,
        known.incarnation,
        append_id(request.stamp.id if request.id is None else request.id),
        _chain.extend(known.seed, digest or _chain.GENESIS, version, request.bodies),
        request.id is not None,
        request.fields,
    )


def _fits(request: ops.Append, known: _Known) -> bool:
    """Whether the append may follow what is known of the stream."""
    if request.expected is not None:
        return request.expected == known.version
    return request.seen is None or request.seen >= known.foreign


def _conflict(request: ops.Append, known: _Known) -> ConflictError:
    expected = request.expected if request.expected is not None else request.seen
    return ConflictError(str(request.stream), expected=expected or 0, actual=known.version)


def _regressed(known: _Known, prepared: Append, head: Head | None) -> bool:
    """Whether the engine no longer has what it had told us: a lower version, or another record at the same one."""
    if head is None or head.incarnation != known.incarnation:
        return False  # deleted, or begun anew
    if head.version == known.acknowledged == prepared.expected:
        return head.hash != prepared.expected_hash
    return head.version < known.acknowledged


def _is_behind(append: Append, head: Head | None) -> bool:
    """Whether a stream has not yet reached the version that an append expects, and may still do so."""
    return append.expected_hash != NOWHERE and append.expected > (head.version if head else 0)


def _in_doubt(error: Exception) -> bool:
    """Whether an append that raised this may have been stored. An error that is not ours says nothing either way."""
    return isinstance(error, OutcomeUnknown) or not isinstance(error, HoldfastError)


def _name(error: Exception) -> str:
    # The type only: a driver's message may hold content.
    return type(error).__name__


def _not_compared(request: ops.Append, error: Exception) -> OutcomeUnknown:
    """A repeated id could not be compared with what is stored under it: `error` would say that nothing is stored."""
    problem = (
        f"an append to {request.stream} with this id is stored, but could not be compared ({_name(error)}); repeat it"
    )
    return OutcomeUnknown(problem, stream=str(request.stream), id=request.id)


def _outcome(entry: _Entry) -> Appended:
    if entry.error is not None:
        raise entry.error
    return cast("Appended", entry.result)


def _report(entry: _Entry, answer: Appended) -> None:
    """The persistence event: where, how much, how long, for whom. Never content."""
    request = entry.request
    size = sum(map(len, request.bodies))
    milliseconds = (time.perf_counter() - entry.started) * 1000
    logger.info(
        "appended %s version %d-%d, %d bytes, %.2f ms, correlation %s",
        request.stream,
        answer.first,
        answer.last,
        size,
        milliseconds,
        request.stamp.correlation,
        extra={
            "event": "appended",
            "tenant": request.stream.tenant,
            "kind": request.stream.kind,
            "stream": request.stream.id,
            "version": answer.last,
            "bytes": size,
            "milliseconds": milliseconds,
            "correlation": request.stamp.correlation,
            "duplicate": answer.duplicate,
        },
    )


_HANDLERS: dict[type, Callable[[Log, Any], Any]] = {
    ops.Read: Log._read,
    ops.ReadRecords: Log._read_records,
    ops.GetHead: Log._head,
    ops.ListHeads: Log._heads,
    ops.ListDue: Log._due,
    ops.Delete: Log._delete,
}
