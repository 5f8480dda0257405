"""The backend interface: what a storage backend must do, written so that you can implement it.

A backend stores opaque bytes in order. It knows nothing about messages, tasks or encryption. For
each stream it keeps records with contiguous versions 1, 2, 3, … and one head, and it can *append
if the stream is still at version n*. Encoding, hashing, encryption and retries happen above it, in
`holdfast.log`.

To write a backend, implement the nine methods of `Backend` from the docstrings in this file and
run `holdfast.conformance` against it; the suite checks the contract. `memory.py` is the shortest
implementation. A backend may also implement any of the optional protocols at the end of this file;
callers test for them with `isinstance`.

Vocabulary:

- A *stream* is named by a `StreamKey`. The caller chooses its *incarnation*, a random value, when
  it creates the stream. A stream that is deleted and created again has a new incarnation.
- The *version* of a stream is the version of its newest record. A stream that does not exist is at
  version 0.
- The *head* of a stream is its position (version, hash, incarnation) and its `HeadFields`.
- A *hint* is an answer that may be out of date. The caller confirms it with `head` or `read`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec

PAGE_BYTES: Final = 8 * 1024 * 1024
"""The size of a page of records. A page may exceed it only if it has a single record."""

Durability = Literal["disk", "process", "memory"]
"""What an acknowledged append survives: power loss, the death of the process, or neither."""

Cursor = tuple[float, str]
"""A position in the order of `Backend.due`: the due time and the id of the last entry seen."""

T = TypeVar("T")


class StreamKey(NamedTuple):
    """The name of a stream.

    Each part is any text without surrogates. Two ids that differ in one code point name two
    streams: a backend must not normalize, fold case or truncate.
    """

    tenant: str
    kind: str
    id: str

    def __str__(self) -> str:
        tenant = "" if self.tenant == "default" else f" of tenant {self.tenant!r}"
        return f"{self.kind} {self.id!r}{tenant}"


class HeadFields(msgspec.Struct, frozen=True):
    """The part of a head that an append may replace.

    The backend returns all fields unchanged. It interprets only `status` (`Backend.heads` filters
    by it) and the two times, which are Unix seconds (`Backend.due` orders by them). The log puts a
    checksum of all fields into `label`, so a backend need not protect them.
    """

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
    """An entry of a listing. `now` is the server's clock, or the local clock if there is no server.

    It has no version and hash, because some backends store those elsewhere; call `Backend.head`
    to get them.
    """

    stream: StreamKey
    incarnation: bytes
    fields: HeadFields
    now: float


class Head(HeadSummary, frozen=True):
    """The head of a stream: its newest version and the hash of that record, and its summary."""

    version: int
    hash: bytes

    @property
    def position(self) -> tuple[int, bytes, bytes]:
        """Version, hash and incarnation: what `append` and `delete` compare."""
        return self.version, self.hash, self.incarnation


class Record(msgspec.Struct, frozen=True, gc=False):
    """One stored record, exactly as it was appended. `append_id` is the `id` of its append."""

    version: int
    append_id: bytes
    hash: bytes
    body: bytes


def is_indexed(append_id: bytes) -> bool:
    """Return whether an append with this id is found at any version: its first bit is set."""
    return append_id[0] >= 0x80


class Append(msgspec.Struct, frozen=True, gc=False):
    """A request to append `records` atomically if the stream is still at the expected position.

    Attributes:
        stream: The stream to append to.
        expected: The version the stream must be at; 0 if the stream must not exist.
        expected_hash: The hash of the record at that version, b"" at version 0. It differs if the
            server lost acknowledged writes and others took their versions.
        incarnation: The incarnation of the stream. At version 0, the one that it gets.
        id: Identifies the append, so that the caller can repeat it after a lost answer. At least
            one byte.
        records: At least one (hash, body) pair. They get the versions expected+1, expected+2, …
        fields: The new fields of the head; None keeps the current ones.
    """

    stream: StreamKey
    expected: int
    expected_hash: bytes
    incarnation: bytes
    id: bytes
    records: Sequence[tuple[bytes, bytes]]
    fields: HeadFields | None = None

    @property
    def indexed(self) -> bool:
        """Whether the id must be found anywhere in this incarnation of the stream.

        If false, a repeat is recognized only at version expected+1. The id itself encodes this, so
        that an index of the ids can be recomputed from the records.
        """
        return is_indexed(self.id)


class AppendResult(msgspec.Struct, frozen=True, gc=False):
    """The append is stored as versions `first` to `last`.

    If `duplicate` is true, an earlier call stored it and this call wrote nothing. `now` is the
    server's clock, or the local clock if there is no server; 0.0 if it is not known, because the
    answer was lost.
    """

    first: int
    last: int
    duplicate: bool = False
    now: float = 0.0


class VersionMismatch(msgspec.Struct, frozen=True):
    """The stream is not at the expected position. Nothing was written.

    `head` is the current head, None if the stream does not exist.
    """

    head: Head | None


class StreamBlocked(VersionMismatch, frozen=True):
    """Another session has locked the stream. Nothing was written; the caller retries the append.

    For servers on which clients can lock rows: a backend returns this for one stream instead of
    making the whole batch wait. The stream may well be at the expected position.
    """


class IncarnationLost(VersionMismatch, frozen=True):
    """The server has no trace of this incarnation, neither as a stream nor as a tombstone.

    For backends that can tell a deleted stream from one that was lost in a failover or by restoring
    an old backup.
    """


class CacheSize(msgspec.Struct, frozen=True):
    """How much a cache of this process has, and how much it may have. `unit` is what is counted."""

    used: int
    limit: int
    unit: Literal["entries", "bytes"] = "entries"


class Description(msgspec.Struct, frozen=True):
    """The kind, version and location of a backend, and what it guarantees.

    `limits` and `sizes` are in bytes, by name. `warnings` are sentences for an operator. `caches`
    are those that this process keeps in memory. Nothing here contains a password.
    """

    engine: str
    version: str
    location: str
    durability: Durability
    limits: Mapping[str, int] = {}
    sizes: Mapping[str, int] = {}
    warnings: Sequence[str] = ()
    caches: Mapping[str, CacheSize] = {}


@runtime_checkable
class Backend(Protocol):
    """Stores opaque bytes in streams.

    Threads: methods are synchronous, and any thread may call any of them at any time.

    Errors: `append` and `delete` raise `OutcomeUnknown` if the backend cannot tell whether the
    change was stored, for example because the connection broke before the answer to a COMMIT
    arrived. The caller then repeats the same append. Any other `HoldfastError` guarantees that
    nothing of the call was stored. A backend translates the errors of its driver; it never repeats
    a call that may have been stored.

    Fork: after `os.fork`, the backend works in the child as in the parent (see `fork.Forkable`).

    Close: any call after `close` raises `StoreClosed`.
    """

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        """Process the members of a batch in order, each atomically, and return one answer for each.

        Store as many members as possible with one durable commit. For each member:

        1. Look for the id before comparing the version. If `indexed` is set and the id is known in
           this incarnation of the stream, or if the record at expected+1 has this id, return
           `AppendResult(..., duplicate=True)` with the versions under which it is stored. Do not
           compare bodies.
        2. If version, hash or incarnation differ from the head, return `VersionMismatch` with the
           current head. At `expected` 0 the stream must not exist, and `incarnation` must not be
           one that was deleted under this key.
        3. Otherwise store the records, the head and, if `indexed`, the id. Every reader sees all
           of it or nothing, and it is durable when this method returns.

        Two members may name the same stream; the second one then expects the position that the
        first one leaves. A mismatch of one member does not affect the others.

        Raises:
            OutcomeUnknown: some or all members may have been stored.
            TooLarge: a member exceeds a limit of the backend. Nothing was stored.
        """
        ...

    def find_append(self, stream: StreamKey, id: bytes) -> tuple[int, int] | None:
        """Return the first and last version of the append with this id; None if there is none.

        Look only for indexed ids (`is_indexed`), anywhere in the current incarnation of the stream.
        What is found is as durable as an acknowledged append.
        """
        ...

    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        """Return one page of records, in ascending order from version `after` + 1.

        With `reverse`, the page is in descending order from version `after` - 1; `after` 0 then
        means from the newest record. A page has at most `limit` records and about `PAGE_BYTES`
        bytes, so it may be shorter than `limit`. Only an empty page means the end. A stream that
        does not exist has no records.
        """
        ...

    def head(self, stream: StreamKey) -> Head | None:
        """Return the current head; None if the stream does not exist. This is not a hint."""
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
        """Return a page of the streams of a kind whose ids are greater than `after`.

        Order by the UTF-8 bytes of the ids. With `status`, return only streams with that status.
        Only an empty page means the end.

        The entries are hints: one may be stale, or show an append that is not yet durable. But
        every stream whose append was acknowledged must be in the listing, unless it is damaged
        (see `SupportsDamageListing`). Return `Head` objects if version and hash are stored with
        the rest; otherwise don't look them up.
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
        """Return a page of the streams that have a due time (`HeadFields.due`).

        Order by (due time, id), from after `after` to the due time `before`, which is included.
        The entries are hints, as in `heads`.
        """
        ...

    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        """Delete the stream; return False and do nothing if its position is not that of `expected`.

        Keep a tombstone: the incarnation must never be created again under this key.
        """
        ...

    def describe(self) -> Description:
        """Return the kind, location, guarantees and size of the backend."""
        ...

    def close(self) -> None:
        """Release connections, files and threads. Closing twice is harmless."""
        ...


# -- optional capabilities -------------------------------------------------------------------------


@runtime_checkable
class BillsRequests(Protocol):
    """Optional: the server bills each request, so callers should poll less often."""

    min_poll_seconds: float
    """The shortest pause between two polls for a change."""


@runtime_checkable
class SupportsDamageListing(Protocol):
    """Optional: names the damaged streams that the listings leave out.

    For backends that read a stream in order to list it. One damaged stream must not end the listing
    of all others, and callers must not mistake it for a deleted one.
    """

    def list_damaged(self, tenant: str, kind: str) -> Sequence[StreamKey]:
        """Return the streams that `heads` and `due` leave out because they are damaged, by id.

        `head` and `read` of each raise `CorruptRecord`, or find nothing where records were. The
        result is a hint, as in `heads`, and costs as much as listing all streams.
        """
        ...


class BackendProblem(msgspec.Struct, frozen=True):
    """Stored data that contradicts the records, found by `SupportsCheck.check`.

    `what` is a sentence part for an operator, without content. `stream` is None if it concerns no
    single stream. `derived` data can be rebuilt from the records, with `SupportsCheck.rebuild`.
    """

    what: str
    stream: StreamKey | None = None
    derived: bool = False


@runtime_checkable
class SupportsCheck(Protocol):
    """Optional: compares the records with everything else that the backend stores.

    The log checks the records (`Record`) and the fields of heads by their hashes. Only the backend
    knows what it derives from them or stores beside them: names, heads, counters, indexes of ids,
    statuses and due times, and its own files or tables.

    Other processes may keep writing. Before a difference that could be an append in progress is
    reported, it must be confirmed by a second read or within one snapshot.
    """

    def list_scopes(self) -> Sequence[tuple[str, str]]:
        """Return (tenant, kind) of all stored streams, sorted, each once.

        Read them from the streams themselves, not from an index or from what the caller registered:
        a stream whose name was altered must be found under its new name.
        """
        ...

    def check(self) -> Iterator[BackendProblem]:
        """Yield every difference between the records and the other stored data.

        It changes nothing, and never raises for damaged data: damage is a problem to yield. Reading
        everything once is acceptable.
        """
        ...

    def rebuild(self) -> int:
        """Rebuild all derived data from the records, and return how many entries were wrong.

        Records and fields of heads are never changed. A stream that is damaged is left as it is.
        """
        ...


@runtime_checkable
class SupportsDiscard(Protocol):
    """Optional: can delete a stream that is so damaged that it has no readable head."""

    def discard(self, stream: StreamKey) -> bool:
        """Delete what is left of a stream; return False and do nothing if its head is readable.

        Keep a tombstone of its incarnation, as `Backend.delete` does, if it is still known.
        """
        ...


@runtime_checkable
class SupportsSalvage(Protocol):
    """Optional: can return the head that a stream had before its end was damaged.

    For backends that store the head with the newest record, so that both are damaged together.
    """

    def head_before_damage(self, stream: StreamKey) -> Head | None:
        """Return the newest head that can be read, perhaps an old one; None if there is none.

        It is for reading older records only: no append may build on it.
        """
        ...


@runtime_checkable
class SupportsFieldRepair(Protocol):
    """Optional: can replace the fields of a head without an append, to repair damaged ones.

    For backends that store the fields apart from the records.
    """

    def replace_fields(self, expected: Head, fields: HeadFields) -> bool:
        """Replace the fields; return False and do nothing if the stream has another position."""
        ...


@runtime_checkable
class SupportsWriteCheck(Protocol):
    """Optional: checks that the user may write before anything is written."""

    def check_writable(self) -> None:
        """Raise `ReadOnly`, or `AccessDenied` with the missing privilege, if no append can work."""
        ...


class IndexFile(NamedTuple):
    """An SQLite file for the memory index. `shared`: the file also has the backend's own tables."""

    path: str
    shared: bool = False


class IndexDatabase(Protocol):
    """A PostgreSQL database for the memory index, reached through psycopg."""

    schema: str
    """The schema for the tables of the index."""

    def rows(self, statement: str, values: Sequence[Any] | Mapping[str, Any]) -> list[Any]:
        """Run a statement that only reads and return its rows."""
        ...

    def transact(self, work: Callable[[Any], T]) -> T:
        """Call `work(connection)`, which commits; if the server rolls back, call it again."""
        ...


IndexLocation = IndexFile | IndexDatabase | Literal["cache"]


@runtime_checkable
class IndexHost(Protocol):
    """Optional: provides places for the memory index of a store.

    The index is derived from streams and can be rebuilt at any time. Without this capability, each
    process keeps its own index in memory.
    """

    def index_locations(self) -> Sequence[IndexLocation]:
        """Return the locations to try, the best first.

        `"cache"` is a file in the user's cache directory on this machine.
        """
        ...


@runtime_checkable
class SupportsFirstHead(Protocol):
    """Optional: finds the first of several streams that exists with one request.

    Without this capability, callers ask for one head after the other.
    """

    def first_head(self, streams: Sequence[StreamKey]) -> Head | None:
        """Return the head of the first of these streams that exists; None if none of them does.

        The heads are read in the given order, or all at one moment: when a later one is read, those
        before it did not exist. This is not a hint.
        """
        ...


def find_first_head(
    get_head: Callable[[StreamKey], Head | None], streams: Sequence[StreamKey]
) -> Head | None:
    """Find the first stream that exists, with one request for each."""
    for stream in streams:
        if (head := get_head(stream)) is not None:
            return head
    return None


@runtime_checkable
class SupportsPeek(Protocol):
    """Optional: can tell that a stream does not exist without waiting for a lock."""

    def may_exist(self, stream: StreamKey) -> bool:
        """Return False if the stream certainly does not exist."""
        ...


@runtime_checkable
class SupportsScrub(Protocol):
    """Optional: can remove deleted data that is still on disk."""

    def scrub(self) -> None:
        """Overwrite or truncate deleted data, for example in a write-ahead log or free pages."""
        ...


@runtime_checkable
class SupportsWatch(Protocol):
    """Optional: reports appends by other processes, so that callers poll less often."""

    def watch(self, stream: StreamKey, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed`, in any thread, when the stream may have changed.

        Return a function that ends the watch. The calls are hints: one may come late, without a
        change, or not at all if the connection broke, so the caller keeps polling at a low rate.
        This method does not wait for the server. A forked child inherits no watches.
        """
        ...
