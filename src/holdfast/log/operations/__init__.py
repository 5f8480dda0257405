"""Operations: I/O-free generators that yield storage requests, and the functions that run them.

An operation yields requests (only through `yield from read(...)`, `yield from append(...)`, ...)
and returns its result. The drivers run it, alone or as a part of a generator with effects.

An operation can be run again from the start after a conflict, because it follows these rules:

- It makes one decisive append. Everything it writes before that is harmless if orphaned.
- It contains no user code and reads no clock, randomness or context variable. Ids, time and
  correlation id are arguments.
- It does not yield in `finally`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar, cast

import msgspec

from ...backends import (
    AppendResult,
    Cursor,
    Head,
    HeadFields,
    HeadSummary,
    Record,
    StreamKey,
    deadline,
)
from ...errors import Conflict
from ..drivers import ConflictLock, EffectGen, Handler, drive, drive_async
from ..events import AppendContext, StoredEvent

T = TypeVar("T")

MAX_RERUNS = 100
"""How many times to run an operation before its `Conflict` reaches the caller."""


class Read(msgspec.Struct, frozen=True):
    """Read one page of verified events; see `Backend.read`.

    With `decoded`, the data is decoded to JSON-native values. With `allow_erased`, a record whose
    own key was erased is returned as an event of type `erased` without data; otherwise it raises.
    """

    stream: StreamKey
    after: int = 0
    limit: int | None = None
    reverse: bool = False
    decoded: bool = False
    allow_erased: bool = False


class ReadRecords(msgspec.Struct, frozen=True):
    """Read one page of verified records without decoding their bodies; see `Backend.read`."""

    stream: StreamKey
    after: int = 0
    limit: int | None = None
    reverse: bool = False


class GetHead(msgspec.Struct, frozen=True):
    """Return the head of a stream.

    With `damaged`, a head whose fields were altered is returned without them; otherwise it raises.
    With `upto`, an older head with this version is enough if the newest record is damaged.
    """

    stream: StreamKey
    damaged: bool = False
    upto: int | None = None


class GetFirstHead(msgspec.Struct, frozen=True):
    """Return the head of the first of these streams that exists; see `SupportsFirstHead`."""

    streams: tuple[StreamKey, ...]


class FindAppend(msgspec.Struct, frozen=True):
    """Look up an append by the id that its caller gave it."""

    stream: StreamKey
    id: str


class ListHeads(msgspec.Struct, frozen=True):
    """List streams.

    Some backends list streams without version and hash. With `with_position`, every stream that
    still exists and is readable is returned as a full `Head`. With `damaged`, a stream whose fields
    were altered is listed without them; otherwise it is left out.
    """

    tenant: str
    kind: str
    status: str | None = None
    after: str = ""
    limit: int = 500
    with_position: bool = False
    damaged: bool = False


class ListDue(msgspec.Struct, frozen=True):
    tenant: str
    kind: str
    before: float | None = None
    after: Cursor | None = None
    limit: int = 100


class AppendRecords(msgspec.Struct, frozen=True, gc=False):
    """Append records to a stream.

    `expected=n` appends at exactly version n. `seen=n` appends at the end of the stream if all
    records after version n come from this process. Otherwise both raise `Conflict`. With neither,
    the records are appended at the end.

    `incarnation`: append only to this incarnation of the stream; a stream that does not exist is
    created with it. `exclusive`: later appends must have `seen` this one, in this process too. It
    takes a lease, or does something that the lease owner has to know about. `keys`: in an encrypted
    store, the name of the key for each record; "" is the stream's own key.
    """

    stream: StreamKey
    bodies: Sequence[bytes]
    stamp: AppendContext
    id: str | None = None
    expected: int | None = None
    seen: int | None = None
    fields: HeadFields | None = None
    incarnation: bytes | None = None
    exclusive: bool = False
    keys: Sequence[str] = ()


class Delete(msgspec.Struct, frozen=True):
    stream: StreamKey
    expected: Head


class Discard(msgspec.Struct, frozen=True):
    """Delete a stream whose head cannot be read. Return False if it can be read, or is gone."""

    stream: StreamKey


class Pause(msgspec.Struct, frozen=True):
    """Wait before a retry."""

    seconds: float


Request = (
    Read
    | ReadRecords
    | GetHead
    | GetFirstHead
    | FindAppend
    | ListHeads
    | ListDue
    | AppendRecords
    | Delete
    | Discard
    | Pause
)
Operation = Generator[Request, Any, T]


def read(
    stream: StreamKey,
    *,
    after: int = 0,
    limit: int | None = None,
    reverse: bool = False,
    decoded: bool = False,
    allow_erased: bool = False,
) -> Operation[list[StoredEvent]]:
    """Read one page of events. It may be shorter than `limit`; it is empty only at the end."""
    return cast(
        "list[StoredEvent]", (yield Read(stream, after, limit, reverse, decoded, allow_erased))
    )


def read_records(
    stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
) -> Operation[Sequence[Record]]:
    return cast("Sequence[Record]", (yield ReadRecords(stream, after, limit, reverse)))


def head(
    stream: StreamKey, *, damaged: bool = False, upto: int | None = None
) -> Operation[Head | None]:
    return cast("Head | None", (yield GetHead(stream, damaged, upto)))


def first_head(*streams: StreamKey) -> Operation[Head | None]:
    """Return the head of the first of these streams that exists, looked at in this order."""
    return cast("Head | None", (yield GetFirstHead(streams)))


def find_append(stream: StreamKey, id: str) -> Operation[AppendResult | None]:
    """Return the result of the append with this id, however old it is; None if there is none."""
    return cast("AppendResult | None", (yield FindAppend(stream, id)))


def heads(
    tenant: str,
    kind: str,
    *,
    status: str | None = None,
    after: str = "",
    limit: int = 500,
    with_position: bool = False,
    damaged: bool = False,
) -> Operation[Sequence[HeadSummary]]:
    return cast(
        "Sequence[HeadSummary]",
        (yield ListHeads(tenant, kind, status, after, limit, with_position, damaged)),
    )


def due(
    tenant: str,
    kind: str,
    *,
    before: float | None = None,
    after: Cursor | None = None,
    limit: int = 100,
) -> Operation[Sequence[HeadSummary]]:
    return cast("Sequence[HeadSummary]", (yield ListDue(tenant, kind, before, after, limit)))


def append(request: AppendRecords) -> Operation[AppendResult]:
    return cast("AppendResult", (yield request))


def delete(stream: StreamKey, *, expected: Head) -> Operation[bool]:
    return cast("bool", (yield Delete(stream, expected)))


def discard(stream: StreamKey) -> Operation[bool]:
    return cast("bool", (yield Discard(stream)))


def pause(seconds: float) -> Operation[None]:
    yield Pause(seconds)


def settle(make: Callable[[], Operation[T]]) -> EffectGen[T]:
    """Run an operation, and run it again from the start whenever another writer appended first.

    Retries take turns within this process: run at the same time, they would keep conflicting. They
    end at the deadline of the call.
    """
    try:
        return (yield from make())
    except Conflict:
        pass
    with (yield ConflictLock()):
        for _ in range(MAX_RERUNS - 2):
            try:
                return (yield from make())
            except Conflict:
                if deadline.remaining() <= 0:
                    raise
        return (yield from make())


def run(log: Handler, operation: Operation[T]) -> T:
    """Run an operation."""
    return drive(log, operation)


async def run_async(log: Handler, operation: Operation[T]) -> T:
    """`run`, awaited."""
    return await drive_async(log, operation)


def run_until_settled(log: Handler, make: Callable[[], Operation[T]]) -> T:
    """Run an operation until no other writer comes first; see `settle`."""
    return drive(log, settle(make))


async def run_until_settled_async(log: Handler, make: Callable[[], Operation[T]]) -> T:
    """`run_until_settled`, awaited."""
    return await drive_async(log, settle(make))
