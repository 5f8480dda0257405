"""A wrapper that retries the calls of a backend, for copying, verifying and anchoring."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, TypeVar

from ..errors import CorruptRecord, OutcomeUnknown, Unavailable
from . import clock, deadline
from .interface import (
    Append,
    AppendResult,
    Backend,
    BackendProblem,
    Head,
    HeadSummary,
    Record,
    StreamBlocked,
    StreamKey,
    SupportsCheck,
    SupportsDamageListing,
    VersionMismatch,
)

MAX_ATTEMPTS: Final = 8
"""Attempts for a call that gets no answer, with growing pauses from 0.05 to 3.2 s in between."""

SALVAGE_RECORDS: Final = 512
"""Records to request after a damaged page. Then half as many, and so on, up to the damage."""

T = TypeVar("T")


class RetryingBackend:
    """Retries calls while the backend is unreachable.

    Appends may be repeated too: the backend recognizes a stored one by its id at its version. No
    call takes longer than `timeout`, in seconds. Set `stopped` to end the retries.
    """

    def __init__(self, backend: Backend, timeout: float = deadline.DEFAULT_TIMEOUT) -> None:
        self._backend, self._timeout = backend, timeout
        self.stopped = False

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        def call() -> Sequence[AppendResult | VersionMismatch]:
            answers = self._backend.append(batch)
            if any(isinstance(answer, StreamBlocked) for answer in answers):
                raise Unavailable(
                    "another session has locked a stream on the target server; nothing was "
                    "written to it. Retry later"
                )
            return answers

        return self._retry(call)

    def read(self, stream: StreamKey, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        return self._retry(lambda: self._backend.read(stream, after=after, limit=limit))

    def head(self, stream: StreamKey) -> Head | None:
        return self._retry(lambda: self._backend.head(stream))

    def resolve_head(self, entry: HeadSummary) -> Head | None:
        """Return the head of a listed stream; look it up if the entry is only a summary."""
        return entry if isinstance(entry, Head) else self.head(entry.stream)

    def list_heads(self, tenant: str, kind: str) -> Iterator[HeadSummary]:
        """Yield all streams of a kind in the order of their ids. They are hints."""
        after = ""
        heads = self._backend.heads
        while page := self._retry(partial(heads, tenant=tenant, kind=kind, after=after)):
            yield from page
            if page[-1].stream.id <= after:
                raise CorruptRecord(str(page[-1].stream), what="the backend lists it repeatedly")
            after = page[-1].stream.id

    def list_damaged(self, tenant: str, kind: str) -> Sequence[StreamKey]:
        """Return the streams that `list_heads` leaves out because they are damaged."""
        if not isinstance(self._backend, SupportsDamageListing):
            return ()
        return self._retry(partial(self._backend.list_damaged, tenant, kind))

    def list_scopes(self) -> Sequence[tuple[str, str]] | None:
        """Return (tenant, kind) of all stored streams; None if the backend cannot tell."""
        if not isinstance(self._backend, SupportsCheck):
            return None
        return self._retry(self._backend.list_scopes)

    def check(self) -> Iterator[BackendProblem]:
        """Yield everything that contradicts the records, if the backend can check that."""
        if isinstance(self._backend, SupportsCheck):
            yield from self._backend.check()

    def delete(self, head: Head) -> bool:
        """Delete a stream that is still at `head`. Return whether it is gone."""
        done = self._retry(lambda: self._backend.delete(head.stream, expected=head))
        return done or self.head(head.stream) is None

    def has_head(self, head: Head) -> bool:
        """Return whether the stream has the record at this head, as its newest or an older one."""
        page = self.read(head.stream, after=head.version - 1, limit=1)
        return bool(page) and (page[0].version, page[0].hash) == (head.version, head.hash)

    def _retry(self, call: Callable[[], T]) -> T:
        pause = 0.05
        with deadline.until(deadline.start(self._timeout)):
            for _ in range(MAX_ATTEMPTS - 1):
                try:
                    return call()
                except (Unavailable, OutcomeUnknown):
                    if self.stopped or deadline.remaining() <= pause:
                        raise
                    clock.sleep(random.uniform(pause / 2, pause))  # noqa: S311  jitter, no secret
                    pause *= 2
            return call()


class PageReader:
    """Reads a stream up to a damaged record: requests smaller pages if one cannot be read."""

    def __init__(
        self, store: RetryingBackend, stream: StreamKey, damage: tuple[type[Exception], ...]
    ) -> None:
        self._store, self._stream, self._damage = store, stream, damage
        self._limit: int | None = None

    def read(self, after: int) -> Sequence[Record]:
        """Return a page. If it is damaged, return the records before the damage."""
        while True:
            limit = self._limit
            try:
                page = self._store.read(self._stream, after=after, limit=limit)
            except self._damage:
                if limit == 1:
                    raise
                self._limit = (limit or 2 * SALVAGE_RECORDS) // 2
            else:
                self._limit = None if limit is None or limit >= SALVAGE_RECORDS else 4 * limit
                return page
