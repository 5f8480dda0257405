"""The log: the one way in and out of a backend.

On the way in: an append waits in the committer's queue, gets its version and hashes when it leaves it, and is
committed together with everybody else's (`_committer`, `_appender`). On the way out: records are checked
against the chain before anything sees them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar, cast
from weakref import WeakValueDictionary

import msgspec

from ..backends import (
    Append,
    AppendResult,
    Backend,
    Description,
    Head,
    HeadSummary,
    Record,
    StreamKey,
    clock,
)
from ..backends.fork import Forkable, register
from ..encryption.detect import TENANT_SEALED, is_encrypted, missing_key
from ..errors import Conflict as ConflictError
from ..errors import (
    CorruptRecord,
    DataProblem,
    Erased,
    IdReused,
    OutcomeUnknown,
    StoreClosed,
    Unavailable,
)
from ..redaction.apply import Redaction
from . import chain, context, telemetry
from . import operations as ops
from .appender import NOWHERE, Appender, PendingAppend, StreamPosition, reason
from .codec import Undecodable
from .committer import Committer
from .events import (
    AppendContext,
    Envelope,
    NewEvent,
    PlainEnvelope,
    StoredEvent,
    encode_envelopes,
    open_envelope,
    open_plain,
)
from .ids import SYSTEM_TENANT, append_id, new_id
from .leases import Heartbeat

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    from ..encryption.cipher import Cipher
    from ..redact import Redactor

KNOWN_STREAMS: Final = 10_000
READER_THREADS: Final = 4
SETTLE_SECONDS: Final = 30.0
REREADS: Final = 3
ERASED: Final = b'{"id":"","type":"erased","at":0}'
"""What stands for a record whose own key was erased."""

T = TypeVar("T")
A = TypeVar("A", bound="Attachment")

logger = logging.getLogger("holdfast")


class Attachment(Protocol):
    """What may belong to a log: made for it when it is first needed, anew after a fork, and closed with it."""

    def close(self) -> None: ...


class Log(Forkable):
    """One backend, its queue, and what is known of its streams. Used by any number of threads and event loops."""

    appender: ClassVar[type[Appender]] = Appender

    def __init__(
        self,
        backend: Backend,
        *,
        settle_seconds: float = SETTLE_SECONDS,
        pause: Callable[[float], None] = time.sleep,
        cipher: Cipher | None = None,
        redactor: Redactor | None = None,
    ) -> None:
        self.backend, self.cipher = backend, cipher
        self.redactor, self.redaction = redactor, Redaction(redactor)
        self._makers: dict[type[Any], Callable[[Log], Any]] = {}
        self._settle_seconds, self._pause = settle_seconds, pause
        self._closed = False
        self._reset()
        register(self)

    def _reset(self) -> None:
        """Queues, locks, threads and knowledge, new: at the start and in a forked child."""
        self._appender = self.appender(
            self.backend, settle_seconds=self._settle_seconds, pause=self._pause
        )
        self._appender.cipher = self.cipher
        self._committer = Committer(self._appender.commit)
        self._learning: dict[tuple[asyncio.AbstractEventLoop, StreamKey], asyncio.Future[None]] = {}
        self._tenants: set[str] = set()
        self._readers: ThreadPoolExecutor | None = None
        self.heartbeat = Heartbeat()
        self._attached: dict[type[Any], Any] = {}
        self._line = threading.Lock()
        self._lines: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Let what is in flight finish, then release the backend."""
        self.heartbeat.stop()
        self._closed = True
        self._committer.close()
        readers, self._readers = self._readers, None
        if readers is not None:
            readers.shutdown()
        for attached in self._attached.values():
            attached.close()
        self.backend.close()

    def attach(self, kind: type[A], make: Callable[[Log], A]) -> None:
        """Say how the `attachment` of a kind is made, where `kind(log)` is not enough."""
        self._makers[kind] = make

    def attachment(self, kind: type[A]) -> A:
        """The one object of this kind that belongs to the log and is closed with it; made when it is first asked for."""
        with self._lock:
            if kind not in self._attached:
                self._attached[kind] = self._makers.get(kind, kind)(self)
            return cast("A", self._attached[kind])

    async def close_async(self) -> None:
        import asyncio

        await asyncio.to_thread(self.close)

    def describe(self) -> Description:
        return self.backend.describe()

    def register(self, tenant: str) -> None:
        """Make sure that a tenant is known before its first stream."""
        if tenant not in self._tenants:
            if tenant != SYSTEM_TENANT:
                self._register(tenant)
                if self.cipher is not None:
                    self.cipher.keys.house(tenant, make=True)
            self._tenants.add(
                tenant
            )  # not before: if registering failed, the next append has to do it

    def records(self, stream: StreamKey, after: int = 0) -> Sequence[Record]:
        """One page of verified records, opened; of single ones that were erased, what stands for them."""
        return self._records(stream, after, None, False, spare=True)

    def forget(self, stream: StreamKey) -> None:
        """Look at a stream again before the next append."""
        self._appender.known.pop(stream, None)

    def after_fork_in_child(self) -> None:
        self._reset()

    # -- requests --------------------------------------------------------------------------------

    def handle(self, request: ops.Request) -> Any:
        """Do what an operation asks for."""
        if context.replays:
            _refuse_writes(request)
        if self.cipher is not None:
            request = self._renamed(request)
        if type(request) is ops.AppendRecords:
            return self._append(request)
        if self._closed:
            raise StoreClosed("the store was closed; open it again")
        return _HANDLERS[type(request)](self, request)

    async def handle_async(self, request: ops.Request) -> Any:
        """Do what an operation asks for, without holding up the event loop."""
        if context.replays:
            _refuse_writes(request)
        if isinstance(request, ops.AppendRecords):
            if self.cipher is not None and request.stream.kind == "blob":
                request = await self.in_thread(self._renamed, request)
            return await self._append_async(cast("ops.AppendRecords", request))
        if isinstance(request, ops.Pause):
            return await clock.sleep_async(request.seconds)
        return await self.in_thread(self.handle, request)

    def _renamed(self, request: ops.Request) -> ops.Request:
        """A request with the name that its stream has in an encrypted store."""
        stream = getattr(request, "stream", None)
        if self.cipher is None or stream is None or stream.kind != "blob":
            return request
        return msgspec.structs.replace(request, stream=self.cipher.stored_as(stream))

    def in_line(self) -> threading.Lock:
        return self._line

    def in_line_async(self) -> asyncio.Lock:
        import asyncio

        loop = id(asyncio.get_running_loop())
        line = self._lines.get(loop)
        if line is None:
            line = self._lines[loop] = asyncio.Lock()
        return line

    async def in_thread(self, function: Callable[..., T], *args: Any) -> T:
        """Call something that blocks in one of the reader threads."""
        if self._closed:
            raise StoreClosed("the store was closed; open it again")
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        with self._lock:
            if self._readers is None:
                self._readers = ThreadPoolExecutor(
                    READER_THREADS, thread_name_prefix="holdfast-read"
                )
        return await asyncio.get_running_loop().run_in_executor(self._readers, function, *args)

    def _wait(self, request: ops.Pause) -> None:
        self._pause(request.seconds)

    def _head(self, request: ops.GetHead) -> Head | None:
        head = self.backend.head(request.stream)
        return head if head is None or self.cipher is None else self.cipher.head(head)

    def _find(self, request: ops.Find) -> AppendResult | None:
        head = self.backend.head(request.stream)
        if head is None:
            return None
        # An id is looked at before the version: ask for it, at a place where nothing can be stored.
        question = Append(
            request.stream,
            head.version,
            NOWHERE,
            head.incarnation,
            append_id(request.id),
            [(NOWHERE, b"")],
            True,
        )
        try:
            [answer] = self.backend.append([question])
        except OutcomeUnknown as error:
            raise Unavailable(
                f"{request.stream} could not be asked for an append; nothing was written"
            ) from error
        return answer if isinstance(answer, AppendResult) else None

    def _heads(self, request: ops.ListHeads) -> Sequence[HeadSummary]:
        heads = self.backend.heads(
            tenant=request.tenant,
            kind=request.kind,
            status=request.status,
            after=request.after,
            limit=request.limit,
        )
        if heads and heads[-1].stream.id <= request.after:
            raise CorruptRecord(str(heads[-1].stream), what=_NO_END)
        if request.places:
            heads = [self._with_place(head) for head in heads]
        return heads if self.cipher is None else self.cipher.heads(heads)

    def _with_place(self, listed: HeadSummary) -> HeadSummary:
        """The head of what is listed; as it was listed if it is gone by now, or damaged: the others are listed all the same."""
        if isinstance(listed, Head):
            return listed
        try:
            return self.backend.head(listed.stream) or listed
        except CorruptRecord:
            return listed

    def _due(self, request: ops.ListDue) -> Sequence[HeadSummary]:
        heads = self.backend.due(
            tenant=request.tenant,
            kind=request.kind,
            before=request.before,
            after=request.after,
            limit=request.limit,
        )
        if (
            heads
            and request.after is not None
            and not (heads[-1].fields.due or 0.0, heads[-1].stream.id) > request.after
        ):
            raise CorruptRecord(str(heads[-1].stream), what=_NO_END)
        return heads if self.cipher is None else self.cipher.heads(heads)

    def _delete(self, request: ops.Delete) -> bool:
        deleted = self.backend.delete(request.stream, expected=request.expected)
        self._appender.known.pop(request.stream, None)
        if deleted and self.cipher is not None:
            self.cipher.drop(request.stream, request.expected.incarnation)
        if deleted and telemetry.wanted():
            telemetry.deleted(request)
        return deleted

    # -- reading ---------------------------------------------------------------------------------

    def _read(self, request: ops.Read) -> list[StoredEvent]:
        records = self._records(
            request.stream, request.after, request.limit, request.reverse, request.spare
        )
        stored: list[StoredEvent] = []
        open_body = open_plain if request.plain else open_envelope
        try:
            for record in records:
                stored.append(StoredEvent(record.version, open_body(record.body), record.hash))
        except Undecodable as error:
            version = records[len(stored)].version
            raise CorruptRecord(str(request.stream), version=version, what=str(error)) from None
        return stored

    def _read_records(self, request: ops.ReadRecords) -> Sequence[Record]:
        return self._records(request.stream, request.after, None, False)

    def _records(
        self, stream: StreamKey, after: int, limit: int | None, reverse: bool, spare: bool = False
    ) -> Sequence[Record]:
        """One verified page, ascending or descending; opened, in an encrypted store."""
        known = self._appender.known.get(stream) or StreamPosition(
            stream, self.backend.head(stream)
        )
        for _ in range(REREADS):
            # Taken before the page is read: what is acknowledged meanwhile may be missing from it.
            acknowledged = known.acknowledged
            page, anchor = self._anchored_page(stream, after, limit, reverse)
            bad = chain.first_bad(known.seed, anchor, page)
            if bad is None:
                bad = _first_missing(page, anchor, after, reverse, acknowledged)
            if bad is None:
                if self.cipher is not None:
                    before = [
                        anchor.hash if anchor else chain.GENESIS,
                        *(record.hash for record in page),
                    ]
                    page = [
                        self._opened(stream, known.incarnation, record, previous, spare)
                        for record, previous in zip(page, before, strict=False)
                    ]
                return page[::-1] if reverse else page
            # The stream may have been deleted and begun anew since we learned of it: look again before crying wolf.
            fresh = StreamPosition(stream, self.backend.head(stream))
            if fresh.incarnation == known.incarnation:
                break
            known = fresh
            self._appender.known.pop(stream, None)
        raise CorruptRecord(
            str(stream), version=bad, what="the record is missing, altered or out of place"
        )

    def _opened(
        self, stream: StreamKey, incarnation: bytes, record: Record, previous: bytes, spare: bool
    ) -> Record:
        try:
            body = self.opened(stream, incarnation, record, previous)
        except Erased:
            if not spare or self.cipher is None or not self.cipher.is_about_subject(record.body):
                raise  # not a single record, but the whole stream
            body = ERASED
        return Record(record.version, record.append_id, record.hash, body)

    def opened(
        self, stream: StreamKey, incarnation: bytes, record: Record, previous: bytes
    ) -> bytes:
        """The body of a stored record, as it was appended. `previous`: the hash of the record before it."""
        if self.cipher is None:
            return record.body
        body = self.cipher.open(stream, incarnation, record, previous)
        if self.cipher.is_mark(stream, record.body):
            self.cipher.forget(stream, incarnation)
            raise Erased(str(stream))
        return body

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

    def _append(self, request: ops.AppendRecords) -> AppendResult:
        if request.stream not in self._appender.known:
            self._learn(request.stream)
        entry = PendingAppend(request)
        self._committer.submit(entry)
        if entry.error is not None:
            raise entry.error
        if entry.result.duplicate and request.id is not None:
            self._compare(request, entry.result)
        return _reported(entry)

    async def _append_async(self, request: ops.AppendRecords) -> AppendResult:
        if request.stream not in self._appender.known:
            await self._learn_async(request.stream)
        entry = PendingAppend(request)
        await self._committer.submit_async(entry)
        if entry.error is not None:
            raise entry.error
        if entry.result.duplicate and request.id is not None:
            await self.in_thread(self._compare, request, entry.result)
        return _reported(entry)

    def _learn(self, stream: StreamKey) -> None:
        """Where a stream is, asked once; its tenant is registered before its first stream."""
        if self._closed:
            raise StoreClosed("the store was closed; open it again")
        self.register(stream.tenant)
        known = StreamPosition(stream, self.backend.head(stream))
        with self._lock:
            if len(self._appender.known) >= KNOWN_STREAMS:
                for old in list(self._appender.known)[: KNOWN_STREAMS // 10]:
                    self._appender.known.pop(old, None)
            self._appender.known.setdefault(stream, known)

    async def _learn_async(self, stream: StreamKey) -> None:
        """`_learn` once for all who ask in this loop, who then go on in the order in which they came."""
        import asyncio

        loop = asyncio.get_running_loop()
        learning = self._learning.get((loop, stream))
        if learning is None:
            learning = self._learning[loop, stream] = asyncio.ensure_future(
                self.in_thread(self._learn, stream)
            )
            learning.add_done_callback(lambda _: self._learning.pop((loop, stream), None))
        await asyncio.shield(learning)

    def _register(self, tenant: str) -> None:
        stream = StreamKey(SYSTEM_TENANT, "tenant", tenant)
        if self.backend.head(stream) is None:
            stamp = AppendContext(new_id(), clock.time())
            events = [
                NewEvent("tenant.registered", b"null" if self.cipher is None else TENANT_SEALED)
            ]
            try:
                self._append(
                    ops.AppendRecords(
                        stream, encode_envelopes(events, stamp, {}), stamp, expected=0
                    )
                )
            except ConflictError:
                pass  # another process was faster
            except OutcomeUnknown as error:
                # Not the caller's doubt: its own append has not been sent.
                raise Unavailable(
                    f"tenant {tenant!r} could not be registered; nothing was written"
                ) from error
            if self.cipher is None and is_encrypted(self.backend):
                raise missing_key()  # since this store was opened, somebody has begun to encrypt it

    def _compare(self, request: ops.AppendRecords, answer: AppendResult) -> None:
        """A repeated id must mean the same events: same types, same data. The envelope may differ."""
        try:
            same = self._is_same(request, answer)
        except DataProblem:
            raise
        except Exception as error:  # which would say that nothing is stored
            problem = (
                f"an append to {request.stream} with this id is stored, but could not be compared"
            )
            raise OutcomeUnknown(
                f"{problem} ({reason(error)}); repeat it", stream=str(request.stream), id=request.id
            ) from error
        if not same:
            raise IdReused(str(request.stream), id=str(request.id))

    def _is_same(self, request: ops.AppendRecords, answer: AppendResult) -> bool:
        stored: list[StoredEvent] = []
        while len(stored) < answer.last - answer.first + 1:
            after = stored[-1].version if stored else answer.first - 1
            page = self._read(ops.Read(request.stream, after, answer.last - after, plain=True))
            if not page:
                break
            stored += page
        found = [_content(event.envelope) for event in stored]
        given = [_content(open_plain(body)) for body in request.bodies]
        if (
            found != given and self.redactor is not None
        ):  # it may have been stored before anything was redacted
            found = [
                (name, self.redactor.value(data) if type(data) is not tuple else data)
                for name, data in found
            ]
        return found == given


_NO_END: Final = "the engine lists it where it is not, so that the list would never come to an end"


def _refuse_writes(request: ops.Request) -> None:
    """Where a task is replayed, nothing is written."""
    refuse = context.refusing.get()
    if refuse is not None and isinstance(request, ops.AppendRecords | ops.Delete):
        refuse(request)


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


def _reported(entry: PendingAppend) -> AppendResult:
    if telemetry.wanted():
        telemetry.appended(entry.request, entry.result, time.perf_counter() - entry.started)
    answer: AppendResult = entry.result
    return answer


def _content(envelope: Envelope | PlainEnvelope) -> tuple[str, object]:
    """What an event says, as far as the user is concerned. Where a large value is kept is our own affair."""
    return envelope.type, (envelope.blob.digest,) if envelope.blob else envelope.data


_HANDLERS: dict[type, Callable[[Log, Any], Any]] = {
    ops.Read: Log._read,
    ops.ReadRecords: Log._read_records,
    ops.GetHead: Log._head,
    ops.Find: Log._find,
    ops.ListHeads: Log._heads,
    ops.ListDue: Log._due,
    ops.Delete: Log._delete,
    ops.Pause: Log._wait,
}
