"""A backend whose calls are repeated while the engine is not to be reached: for copying, verifying and anchoring."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from ..errors import CorruptRecord, OutcomeUnknown, Unavailable
from . import clock
from .interface import (
    Append,
    AppendResult,
    Backend,
    Head,
    HeadSummary,
    Record,
    StreamBlocked,
    StreamKey,
    SupportsDamageListing,
    VersionMismatch,
)

TRIES: Final = 8
"""How often a call is made that gets no answer, with growing pauses of 0.05 to 3.2 s between."""

NEAR: Final = 512
"""Records asked for after a page that cannot be read; then half as many, and so on, up to the damage."""

T = TypeVar("T")


class RetryingBackend:
    """A backend whose calls are repeated while it is not to be reached.

    All that a copy asks for may be repeated: an append that has arrived is known by its id at its version.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.stopped = False

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        def call() -> Sequence[AppendResult | VersionMismatch]:
            answers = self._backend.append(batch)
            if any(isinstance(answer, StreamBlocked) for answer in answers):
                raise Unavailable(
                    "somebody has locked a stream of the target on its server; nothing was written to it"
                )
            return answers

        return self._retry(call)

    def read(self, stream: StreamKey, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        return self._retry(lambda: self._backend.read(stream, after=after, limit=limit))

    def head(self, stream: StreamKey) -> Head | None:
        return self._retry(lambda: self._backend.head(stream))

    def placed(self, listed: HeadSummary) -> Head | None:
        """Where a listed stream stands; only an engine that does not list places is asked for it."""
        return listed if isinstance(listed, Head) else self.head(listed.stream)

    def listed(self, tenant: str, kind: str) -> Iterator[HeadSummary]:
        """All streams of a kind, ordered by id: hints, as `Backend.heads` gives them."""
        after = ""
        while page := self._heads(tenant, kind, after):
            yield from page
            if page[-1].stream.id <= after:
                raise CorruptRecord(
                    str(page[-1].stream), what="the engine lists it again and again"
                )
            after = page[-1].stream.id

    def _heads(self, tenant: str, kind: str, after: str) -> Sequence[HeadSummary]:
        return self._retry(lambda: self._backend.heads(tenant=tenant, kind=kind, after=after))

    def damaged(self, tenant: str, kind: str) -> Sequence[StreamKey]:
        """What `listed` leaves out because it cannot be read."""
        backend = self._backend
        return (
            self._retry(lambda: backend.damaged(tenant, kind))
            if isinstance(backend, SupportsDamageListing)
            else ()
        )

    def delete(self, head: Head) -> bool:
        """Delete a stream that is as `head` says. True if it is gone."""
        done = self._retry(lambda: self._backend.delete(head.stream, expected=head))
        return done or self.head(head.stream) is None

    def has(self, head: Head) -> bool:
        """Whether this is, or was, the head of what the store has."""
        page = self.read(head.stream, after=head.version - 1, limit=1)
        return bool(page) and (page[0].version, page[0].hash) == (head.version, head.hash)

    def _retry(self, call: Callable[[], T]) -> T:
        pause = 0.05
        for _ in range(TRIES - 1):
            try:
                return call()
            except (Unavailable, OutcomeUnknown):
                if self.stopped:
                    raise
                clock.sleep(random.uniform(pause / 2, pause))  # noqa: S311  jitter, not a secret
                pause *= 2
        return call()


class PageReader:
    """Reads a stream page by page, up to a damaged record: smaller and smaller pages where one cannot be read."""

    def __init__(
        self, store: RetryingBackend, stream: StreamKey, damage: tuple[type[Exception], ...]
    ) -> None:
        self._store, self._stream, self._damage = store, stream, damage
        self._limit: int | None = None

    def read(self, after: int) -> Sequence[Record]:
        """A page. If it cannot be read as a whole, as much of it as comes before the damage."""
        while True:
            limit = self._limit
            try:
                page = self._store.read(self._stream, after=after, limit=limit)
            except self._damage:
                if limit == 1:
                    raise
                self._limit = (limit or 2 * NEAR) // 2
            else:
                self._limit = None if limit is None or limit >= NEAR else 4 * limit
                return page
