"""The share of a store that a sweep may take: at most half within 24 hours, so that a wrong clock cannot empty it.

What went lately is in the audit stream, with the engine's time; what is there is counted, but only as far as it matters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from . import _operations as ops
from ._blobs import life_of
from ._events import Stored
from ._operations import Operation
from ._stream_ops import audit_of, deletion_of
from .backends import Head, Listed

DAY: Final = 24 * 3600.0
PAGE: Final = 500
OLD_ENOUGH: Final = 1000
"""After so many entries in a row from another day, older ones are not looked at. Not after the first: clocks go back too."""

Life = tuple[str, str, str]
"""Kind, id and life of a stream."""


class Share:
    """How much of a tenant's store has gone within a day, and whether one more may go."""

    def __init__(self, tenant: str, kinds: Iterable[str]) -> None:
        self._tenant, self._kinds = tenant, frozenset(kinds)
        self._heard: int | None = None
        self._recent: set[Life] = set()
        self._counted = 0
        self._counting: deque[tuple[str, str]] = deque((kind, "") for kind in sorted(self._kinds))
        self._done: set[str] = set()
        self._died: set[Life] = set()  # of those that were counted, the ones that count as gone

    def has_room(self, head: Head, told: int | None = None) -> Operation[bool]:
        """Whether this stream may go. `told`: the version at which the audit stream was told of it, last of all."""
        if self._heard is None:
            yield from self._look_back(head.now)
        elif told is not None:
            yield from self._listen(head.now, told)
        life = _life(head)
        self._recent.discard(life)  # it was to be deleted before, and is still there
        self._died.discard(life)
        while not self._enough() and self._counting:
            yield from self._count()
        return self._enough()

    def take(self, head: Head) -> None:
        """This stream is gone."""
        self._gone(_life(head))

    def _enough(self) -> bool:
        return len(self._recent) + 1 <= (self._counted - len(self._died) + len(self._recent)) // 2

    def _gone(self, life: Life) -> None:
        self._recent.add(life)
        counted_to = dict(self._counting).get(life[0], "")
        if life[0] in self._done or life[1] <= counted_to:
            self._died.add(life)

    def _count(self) -> Operation[None]:
        kind, after = self._counting.popleft()
        page = yield from ops.heads(self._tenant, kind, after=after, limit=PAGE)
        self._counted += len(page)
        self._died.update(self._recent.intersection(map(_life, page)))  # gone only in name: a dry run, or cut off
        if page:
            self._counting.appendleft((kind, page[-1].stream.id))
        else:
            self._done.add(kind)

    def _look_back(self, now: float) -> Operation[None]:
        """What the audit stream says was swept within a day."""
        self._heard, before, old = 0, 0, 0
        while old < OLD_ENOUGH and before != 1:
            page = yield from ops.read(audit_of(self._tenant), after=before, limit=PAGE, reverse=True, plain=True)
            if not page:
                return
            self._heard, before = max(self._heard, page[0].version), page[-1].version
            for stored in page:
                old = 0 if self._hear(stored, now) else old + 1

    def _listen(self, now: float, told: int) -> Operation[None]:
        """What others have told the audit stream since, up to what was told last."""
        heard = self._heard or 0
        while heard < told - 1:
            page = yield from ops.read(
                audit_of(self._tenant), after=heard, limit=min(PAGE, told - 1 - heard), plain=True
            )
            if not page:
                break
            for stored in page:
                self._hear(stored, now)
            heard = page[-1].version
        self._heard = told

    def _hear(self, stored: Stored, now: float) -> bool:
        """Take note of an entry of the audit stream. Whether it is of this day."""
        deletion = deletion_of(stored)
        at = deletion.at if deletion else None
        if abs(now - (stored.envelope.at if at is None else at)) >= DAY:
            return False
        if deletion and at is not None and deletion.kind in self._kinds:
            self._gone((deletion.kind, deletion.id, deletion.life))
        return True


def _life(head: Listed) -> Life:
    return head.stream.kind, head.stream.id, life_of(head.incarnation)
