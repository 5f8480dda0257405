"""A backend that notes which of its methods are called."""

from __future__ import annotations

import threading
from collections.abc import Sequence

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
    SupportsFirstHead,
    VersionMismatch,
)


class CountedCalls:
    """Passes every call on to `inner`, but for `close`: several stores share it, one after another,
    as processes do."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self._lock = threading.Lock()
        self._called: list[str] = []

    def take(self) -> list[str]:
        """The names of the methods that were called since the last time."""
        with self._lock:
            called, self._called = self._called, []
        return called

    def _note(self, name: str) -> None:
        with self._lock:
            self._called.append(name)

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        self._note("append")
        return self.inner.append(batch)

    def find_append(self, stream: StreamKey, id: bytes) -> AppendResult | None:
        self._note("find_append")
        return self.inner.find_append(stream, id)

    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        self._note("read")
        return self.inner.read(stream, after=after, limit=limit, reverse=reverse)

    def head(self, stream: StreamKey) -> Head | None:
        self._note("head")
        return self.inner.head(stream)

    def first_head(self, streams: Sequence[StreamKey]) -> Head | None:
        self._note("first_head")
        assert isinstance(self.inner, SupportsFirstHead)
        return self.inner.first_head(streams)

    def heads(
        self,
        *,
        tenant: str,
        kind: str,
        status: str | None = None,
        after: str = "",
        limit: int = 500,
    ) -> Sequence[HeadSummary]:
        self._note("heads")
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
        self._note("due")
        return self.inner.due(tenant=tenant, kind=kind, before=before, after=after, limit=limit)

    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        self._note("delete")
        return self.inner.delete(stream, expected=expected)

    def describe(self) -> Description:
        return self.inner.describe()

    def close(self) -> None:
        pass
