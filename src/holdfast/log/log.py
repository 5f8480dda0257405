"""The log: every read and write of a backend goes through it.

An append waits in the committer's queue, gets its version and hashes when it leaves the queue, and
is committed together with the other appends of its batch (`committer`, `appender`). A read checks
records against the hash chain before it returns them (`reader`).
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import copy_context
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    NoReturn,
    Protocol,
    TypeVar,
    cast,
    runtime_checkable,
)
from weakref import WeakValueDictionary

import msgspec

from ..backends import (
    AppendResult,
    Backend,
    CacheSize,
    Description,
    StreamKey,
    SupportsDiscard,
    clock,
    deadline,
)
from ..backends.fork import Forkable, register_forkable
from ..encryption.detect import TENANT_ENCRYPTED, is_encrypted, missing_key_error
from ..errors import Conflict as ConflictError
from ..errors import CorruptRecord, DataProblem, IdReused, OutcomeUnknown, StoreClosed, Unavailable
from ..redaction.apply import Redaction
from . import context, telemetry
from . import operations as ops
from .appender import Appender, PendingAppend, StreamPosition, describe_error
from .committer import Committer
from .events import (
    Envelope,
    NewEvent,
    PlainEnvelope,
    StoredEvent,
    decode_plain_envelope,
    encode_envelopes,
    new_append_context,
)
from .ids import SYSTEM_TENANT
from .leases import Heartbeat
from .reader import MAX_KNOWN_STREAMS, READS, LogReader
from .repeated_warning import RepeatedWarning

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    from ..encryption.cipher import Cipher
    from ..redact import Redactor

MAX_KNOWN_TENANTS: Final = 10_000
READER_THREADS: Final = 4

T = TypeVar("T")
A = TypeVar("A", bound="StoreResource")

logger = logging.getLogger("holdfast")


class StoreResource(Protocol):
    """An object that belongs to a log.

    It is created on first use, created again after a process fork, and closed with the log.
    """

    def close(self) -> None: ...


@runtime_checkable
class CachingResource(Protocol):
    """A `StoreResource` that keeps things in memory, and says how many."""

    def describe_caches(self) -> Mapping[str, CacheSize]: ...


class Log(Forkable):
    """A backend with its append queue and the known positions of its streams.

    Any number of threads and event loops may use it.
    """

    appender: ClassVar[type[Appender]] = Appender

    def __init__(
        self,
        backend: Backend,
        *,
        timeout: float = deadline.DEFAULT_TIMEOUT,
        pause: Callable[[float], None] = time.sleep,
        cipher: Cipher | None = None,
        redactor: Redactor | None = None,
        tracebacks: bool = True,
    ) -> None:
        self.backend, self.cipher, self.tracebacks = backend, cipher, tracebacks
        self.redactor, self.redaction = redactor, Redaction(redactor)
        self._factories: dict[type[Any], Callable[[Log], Any]] = {}
        self.claim_hooks: list[Callable[[StreamKey, bytes], ops.Operation[None]]] = []
        """Operations to run when a task is claimed, with its key and incarnation."""
        self.timeout, self._pause = timeout, pause
        self._closed = False
        self._reset()
        register_forkable(self)

    def _reset(self) -> None:
        """Create queues, locks, threads and caches, at the start and in a forked child."""
        self._appender = self.appender(self.backend, timeout=self.timeout, pause=self._pause)
        self._appender.cipher = self.cipher
        self._committer = Committer(self._appender.commit)
        self.reader = LogReader(self.backend, self.cipher, self._appender.known)
        self._loading: dict[tuple[asyncio.AbstractEventLoop, StreamKey], asyncio.Future[None]] = {}
        self._tenants: set[str] = set()
        self._readers: ThreadPoolExecutor | None = None
        self.heartbeat = Heartbeat()
        self._attached: dict[type[Any], Any] = {}
        self._conflict_lock = threading.Lock()
        self._conflict_locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        self._lock = threading.Lock()

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled, and with it the store and all its handles."""
        raise TypeError(
            "a store and its handles cannot be pickled, for example to pass it to a spawned "
            "process; pass its URL and open it there: holdfast.open(url)"
        )

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

    @property
    def write_failures(self) -> RepeatedWarning:
        """The failures of writes that are retried, for one warning about all of them."""
        return self._appender.failures

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
        """Return what the backend is, with the caches of the backend and of this log."""
        description = self.backend.describe()
        caches = {
            "stream positions": CacheSize(len(self._appender.known), MAX_KNOWN_STREAMS),
            "tenants": CacheSize(len(self._tenants), MAX_KNOWN_TENANTS),
        }
        if self.cipher is not None:
            caches["data keys"] = self.cipher.keys.cache_size()
        with self._lock:
            attached = list(self._attached.values())
        for resource in attached:
            if isinstance(resource, CachingResource):
                caches.update(resource.describe_caches())
        caches.update(description.caches)
        return msgspec.structs.replace(description, caches=caches)

    def register_tenant(self, tenant: str) -> None:
        """Register a tenant in the store before its first stream is created."""
        if tenant in self._tenants:
            return
        if tenant != SYSTEM_TENANT:
            self._append_registration(tenant)
            if self.cipher is not None:
                self.cipher.keys.tenant_key(tenant, create=True)
        if len(self._tenants) >= MAX_KNOWN_TENANTS:
            self._tenants.clear()
        # Last: if registering fails, the next append has to try again.
        self._tenants.add(tenant)

    def knows_position(self, stream: StreamKey) -> bool:
        """Return whether an append to a stream need not read its head."""
        return stream in self._appender.known

    def forget_position(self, stream: StreamKey) -> None:
        """Drop the known position of a stream, so that the next append reads its head."""
        self._appender.known.pop(stream, None)

    def is_settling(self, stream: StreamKey) -> bool:
        """Return whether an append whose caller was interrupted has no outcome yet."""
        return any(
            isinstance(entry, PendingAppend) and entry.request.stream == stream
            for entry in self._committer.settle_abandoned()
        )

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
        kind: Any = type(request)
        read: Any = READS.get(kind)
        if read is None:
            return _WRITES[kind](self, request)
        answer = read(self.reader, request)
        if kind in _PAGES:
            deadline.extend(self.timeout)
        return answer

    async def handle_async(self, request: ops.Request) -> Any:
        """Perform a request of an operation without blocking the event loop."""
        if context.active_replays:
            _refuse_writes(request)
        if isinstance(request, ops.AppendRecords):
            if self.cipher is not None and request.stream.kind == "blob":
                request = await self.run_in_thread(self._with_stored_key, request)
            return await self._append_async(cast("ops.AppendRecords", request))
        if isinstance(request, ops.Pause):
            _check_time_for(request)
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
        """Call a blocking function in one of the reader threads, in the caller's context."""
        if self._closed:
            raise StoreClosed("the store was closed; open it again")
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        with self._lock:
            if self._readers is None:
                self._readers = ThreadPoolExecutor(
                    READER_THREADS, thread_name_prefix="holdfast-read"
                )
        return await asyncio.get_running_loop().run_in_executor(
            self._readers, copy_context().run, function, *args
        )

    def _wait(self, request: ops.Pause) -> None:
        _check_time_for(request)
        self._pause(request.seconds)

    def _delete(self, request: ops.Delete) -> bool:
        deleted = self.backend.delete(request.stream, expected=request.expected)
        self._appender.known.pop(request.stream, None)
        if deleted and self.cipher is not None:
            self.cipher.delete_key(request.stream, request.expected.incarnation)
        if deleted and _is_observed():
            telemetry.report_deletion(request)
        return deleted

    def _discard(self, request: ops.Discard) -> bool:
        if not isinstance(self.backend, SupportsDiscard):
            raise CorruptRecord(str(request.stream), what="this backend cannot delete it")
        discarded = self.backend.discard(request.stream)
        self._appender.known.pop(request.stream, None)
        if discarded and self.cipher is not None:
            self.cipher.delete_all_keys(request.stream)
        return discarded

    # -- appending -------------------------------------------------------------------------------

    def _append(self, request: ops.AppendRecords) -> AppendResult:
        if request.stream not in self._appender.known:
            self._load_position(request)
        entry = PendingAppend(request, self.timeout)
        self._committer.submit(entry)
        if entry.error is not None:
            raise entry.error
        if entry.result.duplicate and request.id is not None:
            self._check_same_events(request, entry.result)
        if _is_observed():
            telemetry.report_append(request, entry.result, time.perf_counter() - entry.started)
        result: AppendResult = entry.result
        return result

    async def _append_async(self, request: ops.AppendRecords) -> AppendResult:
        if request.stream not in self._appender.known:
            await self._load_position_async(request)
        entry = PendingAppend(request, self.timeout)
        await self._committer.submit_async(entry)
        if entry.error is not None:
            raise entry.error
        if entry.result.duplicate and request.id is not None:
            await self.run_in_thread(self._check_same_events, request, entry.result)
        if _is_observed():
            telemetry.report_append(request, entry.result, time.perf_counter() - entry.started)
        result: AppendResult = entry.result
        return result

    def _load_position(self, request: ops.AppendRecords) -> None:
        """Find the position of a stream, and register its tenant before its first stream."""
        if self._closed:
            raise StoreClosed("the store was closed; open it again")
        stream = request.stream
        # If the stream must not exist, the append itself shows whether it does.
        head = None if request.expected == 0 else self.backend.head(stream)
        if head is None or self.cipher is not None:  # otherwise the tenant was registered before
            self.register_tenant(stream.tenant)
        self.reader.remember_position(stream, StreamPosition(stream, head))

    async def _load_position_async(self, request: ops.AppendRecords) -> None:
        """`_load_position`, once for all callers in this loop, which then continue in order."""
        import asyncio

        loop, stream = asyncio.get_running_loop(), request.stream
        loading = self._loading.get((loop, stream))
        if loading is None:
            if request.expected == 0 and stream.tenant in self._tenants and not self._closed:
                self._load_position(request)  # it asks the backend nothing
                return
            loading = self._loading[loop, stream] = asyncio.ensure_future(
                self.run_in_thread(self._load_position, request)
            )
            loading.add_done_callback(lambda _: self._loading.pop((loop, stream), None))
        await asyncio.shield(loading)

    def _append_registration(self, tenant: str) -> None:
        stream = StreamKey(SYSTEM_TENANT, "tenant", tenant)
        if self.backend.head(stream) is None:
            stamp = new_append_context()
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
        """Raise `IdReused` unless the append stored under this id has the same types and data."""
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
            page = self.reader.read(
                ops.Read(request.stream, after, answer.last - after, decoded=True)
            )
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


def _is_observed() -> bool:
    """Return whether anybody would use the report of an append or a deletion."""
    return bool(
        telemetry.listeners or telemetry.TRACING in sys.modules or logger.isEnabledFor(logging.INFO)
    )


def _check_time_for(pause: ops.Pause) -> None:
    """Raise `Unavailable` if the deadline of the call comes before the end of a pause."""
    if deadline.remaining(pause.seconds) < pause.seconds:
        raise Unavailable("the database was unreachable until the deadline of the call")


def _refuse_writes(request: ops.Request) -> None:
    """Pass a write to the replay that is running in this context, which refuses it."""
    refuse = context.write_refuser.get()
    if refuse is not None and isinstance(request, ops.AppendRecords | ops.Delete | ops.Discard):
        refuse(request)


def _content(envelope: Envelope | PlainEnvelope) -> tuple[str, object]:
    """Return the type and data of an event; a blob counts by its digest, not by its location."""
    return envelope.type, (envelope.blob.digest,) if envelope.blob else envelope.data


_PAGES: Final = frozenset([ops.Read, ops.ReadRecords, ops.ListHeads, ops.ListDue])
"""Requests whose answers are progress: a call that reads many pages may take long."""

_WRITES: Final[dict[type, Callable[[Log, Any], Any]]] = {
    ops.Delete: Log._delete,
    ops.Discard: Log._discard,
    ops.Pause: Log._wait,
}
"""What performs the other requests. Appends are on the path of every call: see `Log.handle`."""
