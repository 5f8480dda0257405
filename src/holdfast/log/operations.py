"""Operations: decide without I/O, say what to read or append next; and the two drivers that run any of them.

An operation is a generator. It yields requests (`yield from read(...)`, `yield from append(...)`, … are the only
yields) and returns its result. `run` calls the log for each request, `run_async` awaits it. Rules that keep this
simple: one decisive append each, everything before it harmless if orphaned; no user code, clock, randomness or
context variable inside (ids, time and correlation id come in as arguments), so that a conflict simply runs it
again; no yield in `finally`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol, TypeVar, cast

import msgspec

from ..backends import AppendResult, Cursor, Head, HeadFields, HeadSummary, Record, StreamKey
from ..errors import Conflict, HoldfastError
from .drivers import drive, drive_async
from .events import AppendContext, StoredEvent

T = TypeVar("T")

RERUNS = 100
"""How often an operation is run again after conflicts before the caller gets the Conflict."""


class Read(msgspec.Struct, frozen=True):
    """One page of verified events; see `Backend.read`. `plain`: with their data decoded as JSON-native values.

    `spare`: a record whose own key was erased is given as an event of type `erased`, without data, instead of an error.
    """

    stream: StreamKey
    after: int = 0
    limit: int | None = None
    reverse: bool = False
    plain: bool = False
    spare: bool = False


class ReadRecords(msgspec.Struct, frozen=True):
    """One page of verified records, their bodies as stored (blob chunks)."""

    stream: StreamKey
    after: int = 0


class GetHead(msgspec.Struct, frozen=True):
    stream: StreamKey


class Find(msgspec.Struct, frozen=True):
    """Whether an append with an id of its caller's is in a stream."""

    stream: StreamKey
    id: str


class ListHeads(msgspec.Struct, frozen=True):
    """With `places`, those that are there and whole come as heads, also from an engine that does not list their places."""

    tenant: str
    kind: str
    status: str | None = None
    after: str = ""
    limit: int = 500
    places: bool = False


class ListDue(msgspec.Struct, frozen=True):
    tenant: str
    kind: str
    before: float | None = None
    after: Cursor | None = None
    limit: int = 100


class AppendRecords(msgspec.Struct, frozen=True, gc=False):
    """Append records to a stream. Where, is said in one of three ways:

    `expected=n`: at version n exactly, else `Conflict`. `seen=n`: wherever the stream is now, provided that all records after
    version n are this process's own, else `Conflict`. Neither: wherever it is. With `incarnation`, only in that
    life of the stream: the one it has, or the one it gets if it does not exist. After an `exclusive` one, `seen` must
    include it, in this process too: a lease was taken, or something was done that its holder has to know of.
    `keys`: in an encrypted store, the names of the keys that the records are sealed with; "" for the stream's own.
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


class Pause(msgspec.Struct, frozen=True):
    """Time to pass, before something is tried again."""

    seconds: float


Request = Read | ReadRecords | GetHead | Find | ListHeads | ListDue | AppendRecords | Delete | Pause
Operation = Generator[Request, Any, T]


def read(
    stream: StreamKey,
    *,
    after: int = 0,
    limit: int | None = None,
    reverse: bool = False,
    plain: bool = False,
    spare: bool = False,
) -> Operation[list[StoredEvent]]:
    """One page of events. May be shorter than `limit`; empty only at the end."""
    return cast("list[StoredEvent]", (yield Read(stream, after, limit, reverse, plain, spare)))


def read_records(stream: StreamKey, *, after: int = 0) -> Operation[Sequence[Record]]:
    return cast("Sequence[Record]", (yield ReadRecords(stream, after)))


def head(stream: StreamKey) -> Operation[Head | None]:
    return cast("Head | None", (yield GetHead(stream)))


def find(stream: StreamKey, id: str) -> Operation[AppendResult | None]:
    """The versions of the append with this id, however long ago; None if there is none."""
    return cast("AppendResult | None", (yield Find(stream, id)))


def heads(
    tenant: str,
    kind: str,
    *,
    status: str | None = None,
    after: str = "",
    limit: int = 500,
    places: bool = False,
) -> Operation[Sequence[HeadSummary]]:
    return cast(
        "Sequence[HeadSummary]", (yield ListHeads(tenant, kind, status, after, limit, places))
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


def pause(seconds: float) -> Operation[None]:
    yield Pause(seconds)


class Handler(Protocol):
    """What the drivers need of a log."""

    def handle(self, request: Request) -> Any: ...

    async def handle_async(self, request: Request) -> Any: ...

    def in_line(self) -> AbstractContextManager[Any]:
        """A block in which only one thread is at a time."""

    def in_line_async(self) -> AbstractAsyncContextManager[Any]:
        """A block in which only one task of the running loop is at a time."""


def run(handler: Handler, operation: Operation[T]) -> T:
    """Run an operation, calling the log for each request."""
    return drive(operation, handler.handle, HoldfastError)


async def run_async(handler: Handler, operation: Operation[T]) -> T:
    """Run an operation, awaiting the log for each request."""
    return await drive_async(operation, handler.handle_async, HoldfastError)


def run_until_settled(handler: Handler, make: Callable[[], Operation[T]]) -> T:
    """Run an operation, and run it again from the start when another writer came first.

    Those of one process who met a conflict go on one after the other, or many at once would keep refusing each other.
    """
    try:
        return run(handler, make())
    except Conflict:
        pass
    with handler.in_line():
        for _ in range(RERUNS - 2):
            try:
                return run(handler, make())
            except Conflict:
                continue
        return run(handler, make())


async def run_until_settled_async(handler: Handler, make: Callable[[], Operation[T]]) -> T:
    """`run_until_settled`, awaited."""
    try:
        return await run_async(handler, make())
    except Conflict:
        pass
    async with handler.in_line_async():
        for _ in range(RERUNS - 2):
            try:
                return await run_async(handler, make())
            except Conflict:
                continue
        return await run_async(handler, make())
