"""The log: every read and write of a backend goes through it.

An append waits in the committer's queue, gets its version and hashes when it leaves the queue, and
is committed together with the other appends of its batch (`committer`, `appender`). A read checks
records against the hash chain before it returns them.
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
    AppendResult,
    Backend,
    Description,
    Head,
    HeadSummary,
    Record,
    StreamKey,
    clock,
)
from ..backends.fork import Forkable, register_forkable
from ..encryption.detect import TENANT_ENCRYPTED, is_encrypted, missing_key_error
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
from .appender import Appender, PendingAppend, StreamPosition, build_lookup
from .codec import Undecodable
from .committer import Committer
from .events import (
    AppendContext,
    Envelope,
    NewEvent,
    PlainEnvelope,
    StoredEvent,
    decode_envelope,
    decode_plain_envelope,
    encode_envelopes,
)
from .ids import SYSTEM_TENANT, new_id
from .leases import Heartbeat
from .retry_commit import describe_error

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    from ..encryption.cipher import Cipher
    from ..redact import Redactor

MAX_KNOWN_STREAMS: Final = 10_000
READER_THREADS: Final = 4
SETTLE_SECONDS: Final = 30.0
MAX_REREADS: Final = 3
ERASED_BODY: Final = b'{"id":"","type":"erased","at":0}'
"""The body that replaces a record whose own key was erased."""

T = TypeVar("T")
A = TypeVar("A", bound="StoreResource")

logger = logging.getLogger("holdfast")


class StoreResource(Protocol):
    """An object that belongs to a log.

    It is created on first use, created again after a process fork, and closed with the log.
    """

    def close(self) -> None: ...


class Log(Forkable):
    """A backend with its append queue and the known positions of its streams.

    Any number of threads and event loops may use it.
    """

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
        self._factories: dict[type[Any], Callable[[Log], Any]] = {}
        self._settle_seconds, self._pause = settle_seconds, pause
        self._closed = False
        self._reset()
        register_forkable(self)

    def _reset(self) -> None:
        """Create queues, locks, threads and caches, at the start and in a forked child."""
        self._appender = self.appender(
            self.backend, settle_seconds=self._settle_seconds, pause=self._pause
        )
        self._appender.cipher = self.cipher
        self._committer = Committer(self._appender.commit)
        self._loading: dict[tuple[asyncio.AbstractEventLoop, StreamKey], asyncio.Future[None]] = {}
        self._tenants: set[str] = set()
        self._readers: ThreadPoolExecutor | None = None
        self.heartbeat = Heartbeat()
        self._attached: dict[type[Any], Any] = {}
        self._conflict_lock = threading.Lock()
        self._conflict_locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Finish the appends in flight, then close the backend."""
        self.heartbeat.stop()
        self._closed = True
        self._committer.close()
        readers, self._readers = self._readers, None
        if readers is not None:
            readers.shutdown()
        for attached in self._attached.values():
            attached.close()
        self.backend.close()

    def attach(self, kind: type[A], factory: Callable[[Log], A]) -> None:
        """Set the factory for an `attachment` that `kind(log)` cannot create."""
        self._factories[kind] = factory

    def attachment(self, kind: type[A]) -> A:
        """Return the log's one object of this kind. Create it on first use."""
        with self._lock:
            if kind not in self._attached:
                self._attached[kind] = self._factories.get(kind, kind)(self)
            return cast("A", self._attached[kind])

    async def close_async(self) -> None:
        import asyncio

        await asyncio.to_thread(self.close)

    def describe(self) -> Description:
        return self.backend.describe()

    def register_tenant(self, tenant: str) -> None:
        """Register a tenant in the store before its first stream is created."""
        if tenant in self._tenants:
            return
        if tenant != SYSTEM_TENANT:
            self._append_registration(tenant)
            if self.cipher is not None:
                self.cipher.keys.tenant_key(tenant, create=True)
        # Last: if registering fails, the next append has to try again.
        self._tenants.add(tenant)

    def read_records(self, stream: StreamKey, after: int = 0) -> Sequence[Record]:
        """Return one page of verified, decrypted records, with `ERASED_BODY` for erased ones."""
        return self._records(stream, after, None, False, allow_erased=True)

    def forget_position(self, stream: StreamKey) -> None:
        """Drop the known position of a stream, so that the next append reads its head."""
        self._appender.known.pop(stream, None)

    def after_fork_in_child(self) -> None:
        self._reset()

    # -- requests --------------------------------------------------------------------------------

    def handle(self, request: ops.Request) -> Any:
        """Perform a request of an operation."""
        if context.active_replays:
            _refuse_writes(request)
        if self.cipher is not None:
            request = self._with_stored_key(request)
        if type(request) is ops.AppendRecords:
            return self._append(request)
        if self._closed:
            raise StoreClosed("the store was closed; open it again")
        return _HANDLERS[type(request)](self, request)

    async def handle_async(self, request: ops.Request) -> Any:
        """Perform a request of an operation without blocking the event loop."""
        if context.active_replays:
            _refuse_writes(request)
        if isinstance(request, ops.AppendRecords):
            if self.cipher is not None and request.stream.kind == "blob":
                request = await self.run_in_thread(self._with_stored_key, request)
            return await self._append_async(cast("ops.AppendRecords", request))
        if isinstance(request, ops.Pause):
            return await clock.sleep_async(request.seconds)
        return await self.run_in_thread(self.handle, request)

    def _with_stored_key(self, request: ops.Request) -> ops.Request:
        """Return the request with the blob id that an encrypted store uses."""
        stream = getattr(request, "stream", None)
        if self.cipher is None or stream is None or stream.kind != "blob":
            return request
        return msgspec.structs.replace(request, stream=self.cipher.stored_key(stream))

    def conflict_lock(self) -> threading.Lock:
        return self._conflict_lock

    def conflict_lock_async(self) -> asyncio.Lock:
        import asyncio

        loop = id(asyncio.get_running_loop())
        lock = self._conflict_locks.get(loop)
        if lock is None:
            lock = self._conflict_locks[loop] = asyncio.Lock()
        return lock

    async def run_in_thread(self, function: Callable[..., T], *args: Any) -> T:
        """Call a blocking function in one of the reader threads."""
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
        return head if head is None or self.cipher is None else self.cipher.decrypt_head(head)

    def _find_append(self, request: ops.FindAppend) -> AppendResult | None:
        head = self.backend.head(request.stream)
        if head is None:
            return None
        lookup = build_lookup(request.stream, head.version, head.incarnation, request.id)
        try:
            [answer] = self.backend.append([lookup])
        except OutcomeUnknown as error:
            raise Unavailable(
                f"could not look up an append in {request.stream}; nothing was written; retry"
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
            raise CorruptRecord(str(heads[-1].stream), what=_ENDLESS_LISTING)
        if request.with_position:
            heads = [self._resolve_head(head) for head in heads]
        return heads if self.cipher is None else self.cipher.decrypt_heads(heads)

    def _resolve_head(self, listed: HeadSummary) -> HeadSummary:
        """Return the full head of a listed stream, or the entry itself if it is gone or damaged."""
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
            raise CorruptRecord(str(heads[-1].stream), what=_ENDLESS_LISTING)
        return heads if self.cipher is None else self.cipher.decrypt_heads(heads)

    def _delete(self, request: ops.Delete) -> bool:
        deleted = self.backend.delete(request.stream, expected=request.expected)
        self._appender.known.pop(request.stream, None)
        if deleted and self.cipher is not None:
            self.cipher.delete_key(request.stream, request.expected.incarnation)
        if deleted and telemetry.is_enabled():
            telemetry.report_deletion(request)
        return deleted

    # -- reading ---------------------------------------------------------------------------------

    def _read(self, request: ops.Read) -> list[StoredEvent]:
        records = self._records(
            request.stream, request.after, request.limit, request.reverse, request.allow_erased
        )
        stored: list[StoredEvent] = []
        open_body = decode_plain_envelope if request.decoded else decode_envelope
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
        self,
        stream: StreamKey,
        after: int,
        limit: int | None,
        reverse: bool,
        allow_erased: bool = False,
    ) -> Sequence[Record]:
        """Return one verified and decrypted page, ascending or descending."""
        known = self._appender.known.get(stream) or StreamPosition(
            stream, self.backend.head(stream)
        )
        for _ in range(MAX_REREADS):
            # Before the page is read: it may lack what is acknowledged during the read.
            acknowledged = known.acknowledged
            page, anchor = self._read_anchored_page(stream, after, limit, reverse)
            bad = chain.find_first_bad(known.seed, anchor, page)
            if bad is None:
                bad = _find_first_missing(page, anchor, after, reverse, acknowledged)
            if bad is None:
                if self.cipher is not None:
                    before = [
                        anchor.hash if anchor else chain.GENESIS,
                        *(record.hash for record in page),
                    ]
                    page = [
                        self._decrypt_or_replace(
                            stream, known.incarnation, record, previous, allow_erased
                        )
                        for record, previous in zip(page, before, strict=False)
                    ]
                return page[::-1] if reverse else page
            # The stream may have been deleted and created again since its position was loaded.
            fresh = StreamPosition(stream, self.backend.head(stream))
            if fresh.incarnation == known.incarnation:
                break
            known = fresh
            self._appender.known.pop(stream, None)
        raise CorruptRecord(
            str(stream), version=bad, what="the record is missing, altered or out of place"
        )

    def _decrypt_or_replace(
        self,
        stream: StreamKey,
        incarnation: bytes,
        record: Record,
        previous: bytes,
        allow_erased: bool,
    ) -> Record:
        try:
            body = self.decrypt_record(stream, incarnation, record, previous)
        except Erased:
            if (
                not allow_erased
                or self.cipher is None
                or not self.cipher.is_about_subject(record.body)
            ):
                raise  # the whole stream was erased, not this record
            body = ERASED_BODY
        return Record(record.version, record.append_id, record.hash, body)

    def decrypt_record(
        self, stream: StreamKey, incarnation: bytes, record: Record, previous: bytes
    ) -> bytes:
        """Return the body of a record as it was appended. `previous` is the hash before it."""
        if self.cipher is None:
            return record.body
        body = self.cipher.decrypt(stream, incarnation, record, previous)
        if self.cipher.is_erasure_record(stream, record.body):
            self.cipher.forget_key(stream, incarnation)
            raise Erased(str(stream))
        return body

    def _read_anchored_page(
        self, stream: StreamKey, after: int, limit: int | None, reverse: bool
    ) -> tuple[list[Record], Record | None]:
        """Return an ascending page and the record before it, whose hash the page builds on."""
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
            self._load_position(request.stream)
        entry = PendingAppend(request)
        self._committer.submit(entry)
        if entry.error is not None:
            raise entry.error
        if entry.result.duplicate and request.id is not None:
            self._check_same_events(request, entry.result)
        return _report_append(entry)

    async def _append_async(self, request: ops.AppendRecords) -> AppendResult:
        if request.stream not in self._appender.known:
            await self._load_position_async(request.stream)
        entry = PendingAppend(request)
        await self._committer.submit_async(entry)
        if entry.error is not None:
            raise entry.error
        if entry.result.duplicate and request.id is not None:
            await self.run_in_thread(self._check_same_events, request, entry.result)
        return _report_append(entry)

    def _load_position(self, stream: StreamKey) -> None:
        """Load the position of a stream, and register its tenant before its first stream."""
        if self._closed:
            raise StoreClosed("the store was closed; open it again")
        self.register_tenant(stream.tenant)
        known = StreamPosition(stream, self.backend.head(stream))
        with self._lock:
            if len(self._appender.known) >= MAX_KNOWN_STREAMS:
                for old in list(self._appender.known)[: MAX_KNOWN_STREAMS // 10]:
                    self._appender.known.pop(old, None)
            self._appender.known.setdefault(stream, known)

    async def _load_position_async(self, stream: StreamKey) -> None:
        """`_load_position`, once for all callers in this loop, which then continue in order."""
        import asyncio

        loop = asyncio.get_running_loop()
        loading = self._loading.get((loop, stream))
        if loading is None:
            loading = self._loading[loop, stream] = asyncio.ensure_future(
                self.run_in_thread(self._load_position, stream)
            )
            loading.add_done_callback(lambda _: self._loading.pop((loop, stream), None))
        await asyncio.shield(loading)

    def _append_registration(self, tenant: str) -> None:
        stream = StreamKey(SYSTEM_TENANT, "tenant", tenant)
        if self.backend.head(stream) is None:
            stamp = AppendContext(new_id(), clock.time())
            events = [
                NewEvent("tenant.registered", b"null" if self.cipher is None else TENANT_ENCRYPTED)
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
                # The caller's own append has not been sent, so its outcome is known.
                raise Unavailable(
                    f"tenant {tenant!r} could not be registered; nothing was written; retry"
                ) from error
            if self.cipher is None and is_encrypted(self.backend):
                raise missing_key_error()  # another process encrypted the store after it was opened

    def _check_same_events(self, request: ops.AppendRecords, answer: AppendResult) -> None:
        """Raise `IdReused` unless a repeated id stands for events of the same types and data."""
        try:
            same = self._has_same_events(request, answer)
        except DataProblem:
            raise
        except Exception as error:  # other errors would mean that nothing is stored
            raise OutcomeUnknown(
                f"an append to {request.stream} with this id is stored, but could not be compared "
                f"({describe_error(error)}); repeat the call",
                stream=str(request.stream),
                id=request.id,
            ) from error
        if not same:
            raise IdReused(str(request.stream), id=str(request.id))

    def _has_same_events(self, request: ops.AppendRecords, answer: AppendResult) -> bool:
        stored: list[StoredEvent] = []
        while len(stored) < answer.last - answer.first + 1:
            after = stored[-1].version if stored else answer.first - 1
            page = self._read(ops.Read(request.stream, after, answer.last - after, decoded=True))
            if not page:
                break
            stored += page
        found = [_content(event.envelope) for event in stored]
        given = [_content(decode_plain_envelope(body)) for body in request.bodies]
        if found != given and self.redactor is not None:
            # The stored events may be older than the redaction.
            found = [
                (name, self.redactor.value(data) if type(data) is not tuple else data)
                for name, data in found
            ]
        return found == given


_ENDLESS_LISTING: Final = "it is listed out of order, so the listing would never end"


def _refuse_writes(request: ops.Request) -> None:
    """Pass a write to the replay that is running in this context, which refuses it."""
    refuse = context.write_refuser.get()
    if refuse is not None and isinstance(request, ops.AppendRecords | ops.Delete):
        refuse(request)


def _find_first_missing(
    page: Sequence[Record], anchor: Record | None, after: int, reverse: bool, acknowledged: int
) -> int | None:
    """Return the first version missing at either end of a page; None if it is complete."""
    newest = page[-1].version if page else 0
    if reverse:
        before = after - 1 if after else max(newest, acknowledged)
        return newest + 1 if newest > before or newest < min(before, acknowledged) else None
    if after and anchor and anchor.version != after:
        return after
    return after + 1 if not page and after < acknowledged else None


def _report_append(entry: PendingAppend) -> AppendResult:
    if telemetry.is_enabled():
        telemetry.report_append(entry.request, entry.result, time.perf_counter() - entry.started)
    result: AppendResult = entry.result
    return result


def _content(envelope: Envelope | PlainEnvelope) -> tuple[str, object]:
    """Return the type and data of an event; a blob counts by its digest, not by its location."""
    return envelope.type, (envelope.blob.digest,) if envelope.blob else envelope.data


_HANDLERS: dict[type, Callable[[Log, Any], Any]] = {
    ops.Read: Log._read,
    ops.ReadRecords: Log._read_records,
    ops.GetHead: Log._head,
    ops.FindAppend: Log._find_append,
    ops.ListHeads: Log._heads,
    ops.ListDue: Log._due,
    ops.Delete: Log._delete,
    ops.Pause: Log._wait,
}
