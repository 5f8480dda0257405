"""The backend seam: opaque bytes in streams, and the one hard operation on them.

A backend has never heard of a message or a task. It keeps, for each stream, records with
contiguous versions 1, 2, 3, … and one head, and it can *append if the stream is still at
version n*. Encoding, encryption, hashing and retries sit above it, in the log.

To write a backend, implement `Backend` from the docstrings here and run
`holdfast.conformance` against it: the suite is the proof of the contract.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec

Durability = Literal["disk", "process", "memory"]
"""What an acknowledged append survives: power loss, the death of the process, or neither."""

Cursor = tuple[float, str]
"""A place in the order of `due()`: the due time and the id of the last head seen."""

T = TypeVar("T")


class StreamKey(NamedTuple):
    """The name of a stream. Any text works as an id; two ids that differ in one code point are two streams."""

    tenant: str
    kind: str
    id: str

    def __str__(self) -> str:
        whose = "" if self.tenant == "default" else f" of tenant {self.tenant!r}"
        return f"{self.kind} {self.id!r}{whose}"


class HeadFields(msgspec.Struct, frozen=True):
    """The part of a head that appends may change. Opaque to the backend except for the two times (Unix seconds)."""

    status: str | None = None
    label: bytes | None = None
    owner: str | None = None
    due_at: float | None = None
    expires_at: float | None = None

    @property
    def due(self) -> float | None:
        """When the stream needs attention: the earlier of `due_at` and `expires_at`."""
        times = [time for time in (self.due_at, self.expires_at) if time is not None]
        return min(times, default=None)


class HeadSummary(msgspec.Struct, frozen=True):
    """A stream as lists have it: its incarnation, its fields, and the engine's clock. Where it stands, `head` tells."""

    stream: StreamKey
    incarnation: bytes
    fields: HeadFields
    now: float


class Head(HeadSummary, frozen=True):
    """Where a stream stands: its newest version and hash, beside its incarnation, its fields, and the engine's clock."""

    version: int
    hash: bytes

    @property
    def place(self) -> tuple[int, bytes, bytes]:
        """What `delete` compares: version, hash and incarnation."""
        return self.version, self.hash, self.incarnation


class Record(msgspec.Struct, frozen=True, gc=False):
    """One stored record, exactly as it was appended."""

    version: int
    append_id: bytes
    hash: bytes
    body: bytes


class Append(msgspec.Struct, frozen=True, gc=False):
    """Append `records` if the stream is still at `expected`; all of them or none.

    `expected` is the version the stream must be at, 0 for a stream that must not exist; `expected_hash`
    is the hash at that version (b"" at 0), so that an engine that went back in time is noticed.
    `incarnation` names the incarnation of the stream: the one it has, or at 0 the one it gets.
    `records` are (hash, body) pairs and get versions expected+1, expected+2, …; there is at least one.
    `id` identifies the append. With `indexed` it is found wherever it is in the stream, for the
    incarnation of the stream; without, only at expected+1. `fields=None` keeps the head's fields as they are.
    """

    stream: StreamKey
    expected: int
    expected_hash: bytes
    incarnation: bytes
    id: bytes
    records: Sequence[tuple[bytes, bytes]]
    indexed: bool = False
    fields: HeadFields | None = None


class AppendResult(msgspec.Struct, frozen=True, gc=False):
    """The append is stored as versions `first` to `last`. `duplicate`: it already was; nothing was written now."""

    first: int
    last: int
    duplicate: bool = False
    now: float = 0.0


class VersionMismatch(msgspec.Struct, frozen=True):
    """The stream is not at the expected version. Nothing was written. `head` is the true one, None if there is none."""

    head: Head | None


class StreamBlocked(VersionMismatch, frozen=True):
    """The stream may well be where it was expected, but somebody has a lock on it. Nothing was written: try it again.

    For engines whose locks others can hold: rather than keep a whole batch waiting for one stream, they answer this.
    """


class IncarnationLost(VersionMismatch, frozen=True):
    """The engine knows nothing of the incarnation that the append belongs to, and that was not deleted.

    For engines that keep apart what was deleted and what is gone after a failover, or a restored backup.
    """


class Description(msgspec.Struct, frozen=True):
    """What an engine is and promises. `limits` and `sizes` are in bytes, by name."""

    engine: str
    version: str
    location: str
    durability: Durability
    limits: Mapping[str, int] = {}
    sizes: Mapping[str, int] = {}
    warnings: Sequence[str] = ()


@runtime_checkable
class Backend(Protocol):
    """Opaque bytes in streams. Methods are synchronous and may be called from any thread at any time.

    Errors: `append` and `delete` raise `OutcomeUnknown` if the engine did not say whether it stored; any other
    `HoldfastError` means that nothing of the call was stored. After `fork`, a backend works in the child
    as in the parent. Calls after `close` raise `StoreClosed`.
    """

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        """Store each member of the batch atomically, in order, and answer each; one durable commit for all if it can.

        For each member: (1) the id is checked before the version. If `indexed` and the id is known in this incarnation of
        the stream, or if the record at expected+1 has this id, the answer is `AppendResult(..., duplicate=True)`
        with the versions it has; bodies are not compared. (2) If version, hash or incarnation differ from the
        head, the answer is `Conflict` with the true head. At expected 0 the stream must not exist, and
        `incarnation` must not be that of any that was deleted. (3) Otherwise records, head, and id (if
        `indexed`) are stored, visible all at once to every reader, and durable when this returns.
        Two members may be on the same stream; the second then expects what the first leaves. A conflict
        of one member does not affect the others.
        """
        ...

    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        """One page of records, ascending from `after` + 1.

        With `reverse`, descending from `after` - 1 (0 means: from the newest). A page holds at most `limit` records
        and may be shorter (about 8 MiB); only an empty page means the end. A missing stream reads as empty.
        """
        ...

    def head(self, stream: StreamKey) -> Head | None:
        """The exact head, None if the stream does not exist or was deleted."""
        ...

    def heads(
        self,
        *,
        tenant: str,
        kind: str,
        status: str | None = None,
        after: str = "",
        limit: int = 500,
    ) -> Sequence[HeadSummary]:
        """Streams of a kind with ids beyond `after`, ordered by the UTF-8 bytes of their ids; only an empty page means the end.

        A hint: an entry may be early or stale, but no stream whose append was acknowledged is omitted, unless it is damaged (see
        `Damaged`). An engine that finds version and hash beside the rest gives whole heads; one for which they lie elsewhere
        does not look for them.
        """
        ...

    def due(
        self,
        *,
        tenant: str,
        kind: str,
        before: float | None = None,
        after: Cursor | None = None,
        limit: int = 100,
    ) -> Sequence[HeadSummary]:
        """Streams that have a due time (`Fields.due`), up to and including `before`, ordered by (due, id). A hint, like `heads`."""
        ...

    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        """Delete the stream. False, and nothing done, if the head moved.

        `expected` is compared by version, hash and incarnation. What remains is a tombstone that refuses an append of the
        deleted incarnation.
        """
        ...

    def describe(self) -> Description:
        """What the engine is, where, what it promises, and how large it is. Never a password."""
        ...

    def close(self) -> None:
        """Release everything. Closing twice is harmless."""
        ...


@runtime_checkable
class BillsRequests(Protocol):
    """What a backend may have beside the eight methods: a wish not to be asked too often, because each answer is paid for."""

    look_seconds: float
    """Whoever waits for something to change looks no more often than this."""


@runtime_checkable
class SupportsDamageListing(Protocol):
    """What a backend may have beside the eight methods: a way to ask for the streams that its lists leave out.

    For an engine that reads a stream in order to list it. One stream that is damaged must not end the list of all the others,
    and nobody may take it for deleted: so it is left out there, and named here.
    """

    def damaged(self, tenant: str, kind: str) -> Sequence[StreamKey]:
        """The streams of a kind that `heads` and `due` leave out because they cannot be read, ordered by id.

        `head` and `read` of each raise `CorruptRecord`, or find nothing where something was. A hint, like `heads`; asking costs
        as much as listing all of them.
        """
        ...


@runtime_checkable
class SupportsWriteCheck(Protocol):
    """What a backend may have beside the eight methods: a way to tell that it may only read, before anything is written."""

    def refuse_reader(self) -> None:
        """Raise `AccessDenied`, with the rights that are missing, if nothing can be appended for want of them."""
        ...


class IndexFile(NamedTuple):
    """An SQLite file for the index of memories. `shared`: the file has the backend's own tables as well."""

    path: str
    shared: bool = False


class IndexDatabase(Protocol):
    """A PostgreSQL database for the index of memories, reached through psycopg."""

    schema: str
    """Where the tables of the index go."""

    def rows(self, statement: str, values: Sequence[Any] | Mapping[str, Any]) -> list[Any]:
        """The rows that a statement gives."""
        ...

    def transact(self, work: Callable[[Any], T]) -> T:
        """Call `work` with a connection, in a transaction. It may be called again: a failure that passes is not told."""
        ...


IndexPlace = IndexFile | IndexDatabase | Literal["cache"]


@runtime_checkable
class IndexHost(Protocol):
    """Optional: says where the index of a store's memories can be kept.

    The index is derived from streams and can be made anew at any time. A backend without this capability has its index in
    the memory of each process that uses it.
    """

    def index_places(self) -> Sequence[IndexPlace]:
        """Places to try, the best first. `"cache"` is a file in the cache of the user, on this machine."""
        ...


@runtime_checkable
class SupportsPeek(Protocol):
    """What a backend may have beside the eight methods: a way to tell that a stream is not there without waiting for a lock."""

    def exists(self, stream: StreamKey) -> bool:
        """Whether there may be such a stream. False is certain."""
        ...


@runtime_checkable
class SupportsScrub(Protocol):
    """What a backend may have beside the eight methods: a way to get rid of what is deleted and still on disk."""

    def scrub(self) -> None:
        """Overwrite or cut off what was deleted, where the engine keeps it a while longer (a write-ahead log, free pages)."""
        ...


@runtime_checkable
class SupportsWatch(Protocol):
    """What a backend may have beside the eight methods: a way to hear of appends without asking again and again."""

    def watch(self, stream: StreamKey, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed`, in any thread, when somebody may have appended to the stream, until the returned function is called.

        A hint: a call may come late, for nothing, or not at all (the connection was lost), so whoever waits looks now and
        then all the same. Does not wait for the engine. Nothing of it is left in a forked child.
        """
        ...
