"""What the tests of copying share: stores with something of everything, and readers that know
nothing of the library."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import holdfast
from holdfast.backends import (
    Append,
    AppendResult,
    Backend,
    Cursor,
    Description,
    Head,
    HeadSummary,
    Record,
    StreamKey,
    VersionMismatch,
)

LARGE = "x" * 100_000


def on(backend: Backend) -> holdfast.Store:
    return holdfast.open(backend)


def key(name: str, kind: str = "stream") -> StreamKey:
    return StreamKey("default", kind, name)


def bodies(backend: Backend, name: str) -> list[bytes]:
    return [record.body for record in backend.read(key(name))]


@holdfast.step
def double(number: int) -> int:
    return 2 * number


def populate(store: holdfast.Store) -> None:
    """Something of everything that a store can hold."""
    orders = store.stream("orders-7")
    orders.append(("order.placed", {"number": 1}), id="req-1")
    orders.append(("order.placed", {"number": 2}), ("order.paid", None), ("order.sent", LARGE))
    orders.append(("order.closed", {"text": "ä\u2028\U0001f600"}), id="req-2")
    for name in ("ä/ö", "\U0001f600", "%41", "A", "a", "z" * 500):
        store.stream(name).append(("named", name))
    chat = store.conversation("support-42")
    chat.append({"role": "user", "content": "Hello"}, id="m-1")
    chat.append({"role": "assistant", "content": "Hi"})
    chat.fork("support-42b").append({"role": "user", "content": LARGE})
    document = store.state("team-1")
    for version in range(5):
        document.save({"round": version, "text": "word " * 50})
    with store.task("claim-42", goal="Settle it") as task:
        double(4)
        task.attach("claims.bin", b"claim" * 500_000)
        task.finish("done")
    with store.task("claim-43", goal="Settle that too"):
        double(5)
    store.stream("gone").append(("kept", LARGE))
    store.stream("gone").delete()
    for number in range(4):
        store.conversation(f"old-{number}").append({"role": "user", "content": "Bye"})
    store.conversation("old-1").expire(0)
    store.sweep(grace=0)
    other = store.for_tenant("acme ä")
    other.stream("orders-7").append(("order.placed", {"number": 9}), id="req-1")


def many(store: holdfast.Store, streams: int, appends: int = 3) -> None:
    for number in range(streams):
        stream = store.stream(f"s-{number:04}")
        for version in range(appends):
            stream.append(
                ("noted", version), ("noted", "more"), id=f"id-{version}" if version % 2 else None
            )


def dump(path: str | Path) -> dict[tuple[str, str, str], Any]:
    """All that an SQLite store holds, read with Python's own sqlite3 and no word of ours."""
    database = sqlite3.connect(path)
    try:
        found: dict[tuple[str, str, str], Any] = {}
        fields = "incarnation, status, label, owner, due_at, expires_at, due"
        for row, *key in database.execute(
            "SELECT stream, tenant, kind, id FROM streams"
        ).fetchall():
            found[key[0], key[1], key[2]] = (
                database.execute(
                    f"SELECT {fields} FROM streams WHERE stream = ?", (row,)
                ).fetchone(),
                database.execute(
                    "SELECT version, append_id, hash, body FROM records WHERE stream = ? ORDER BY "
                    "version",
                    (row,),
                ).fetchall(),
            )
        return found
    finally:
        database.close()


class Wrapper:
    """A backend that does as another one does, for tests to change."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        return self.inner.append(batch)

    def find_append(self, stream: StreamKey, id: bytes) -> tuple[int, int] | None:
        return self.inner.find_append(stream, id)

    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        return self.inner.read(stream, after=after, limit=limit, reverse=reverse)

    def head(self, stream: StreamKey) -> Head | None:
        return self.inner.head(stream)

    def heads(
        self,
        *,
        tenant: str,
        kind: str,
        status: str | None = None,
        after: str = "",
        limit: int = 500,
    ) -> Sequence[HeadSummary]:
        return self.inner.heads(tenant=tenant, kind=kind, status=status, after=after, limit=limit)

    def due(
        self,
        *,
        tenant: str,
        kind: str,
        before: float | None = None,
        after: Cursor | None = None,
        limit: int = 100,
    ) -> Sequence[HeadSummary]:
        return self.inner.due(tenant=tenant, kind=kind, before=before, after=after, limit=limit)

    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        return self.inner.delete(stream, expected=expected)

    def describe(self) -> Description:
        return self.inner.describe()

    def close(self) -> None:
        self.inner.close()


class Recorder(Wrapper):
    """Keeps every append that was stored, in order."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.stored: list[Append] = []

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        answers = self.inner.append(batch)
        for append, answer in zip(batch, answers, strict=True):
            if isinstance(answer, AppendResult) and not answer.duplicate:
                self.stored.append(append)
        return answers

    def by_stream(
        self,
    ) -> dict[StreamKey, list[tuple[int, bytes, bytes, list[tuple[bytes, bytes]], bool]]]:
        """What each stream was made of, append by append; not of streams that were deleted."""
        found: dict[StreamKey, Any] = {}
        for append in self.stored:
            head = self.inner.head(append.stream)
            if head is not None and head.incarnation == append.incarnation:
                facts = (
                    append.expected,
                    append.expected_hash,
                    append.id,
                    list(append.records),
                    append.indexed,
                )
                found.setdefault(append.stream, []).append(facts)
        return found


class Meddler(Wrapper):
    """Calls `meddle` once, before the first read of a stream of this name after so many records."""

    def __init__(self, inner: Backend, name: str, after: int, meddle: Callable[[], object]) -> None:
        super().__init__(inner)
        self._name, self._after, self._meddle = name, after, meddle
        self.meddled = False

    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        if not self.meddled and stream.id == self._name and after >= self._after:
            self.meddled = True
            self._meddle()
        return self.inner.read(stream, after=after, limit=limit, reverse=reverse)
