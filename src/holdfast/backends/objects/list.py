"""`heads()` and `due()` on an object store: entries are listed in order, and each is confirmed by its stream's head.

A stream that cannot be read is left out, and said so once: it must not hide all others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from ...errors import CorruptRecord, HoldfastError
from ..interface import Cursor, Head, StreamKey
from . import format as form
from .discard import is_without_root
from .format import ROOT, StreamRoot, commits_place
from .index import BEHIND, IndexEntry, all_partition, due_partition, entries, status_partition
from .streams import PAGE, CommitPosition, ObjectStreams, StreamSnapshot

ABANDONED: Final = 3600.0
"""After so many seconds, a stream that was announced and never begun is refused, so that its entries can be removed."""

logger = logging.getLogger("holdfast")


class ObjectLister:
    """Lists streams, and removes the entries of the past that it meets."""

    def __init__(self, streams: ObjectStreams) -> None:
        self._streams, self._space = streams, streams.space
        self._told: set[StreamKey] = set()
        self._lock = threading.Lock()

    def heads(
        self, tenant: str, kind: str, status: str | None, after: str, limit: int
    ) -> Sequence[Head]:
        everything = status is None
        partition = (
            all_partition(tenant, kind)
            if status is None
            else status_partition(tenant, kind, status)
        )
        cursor = after.encode() + BEHIND if after else b""
        found: dict[str, Head] = {}

        def in_force(place: CommitPosition, one: IndexEntry) -> bool:
            return everything or (
                one.version == place.status_version and place.fields.status == status
            )

        while True:
            wanted = limit - len(found)
            names = self._space.list(partition, after=cursor, limit=wanted)
            listed = entries(names, version=not everything)
            for head in self._confirmed(tenant, kind, partition, listed, in_force):
                if status is None or head.fields.status == status:
                    found[head.stream.id] = head
            if len(names) < wanted or len(found) >= limit:
                return list(found.values())
            cursor = names[-1]

    def due(
        self, tenant: str, kind: str, before: float | None, after: Cursor | None, limit: int
    ) -> Sequence[Head]:
        partition = due_partition(tenant, kind)
        begin = (form.time_name(after[0]), after[1].encode()) if after is not None else (b"", b"")
        until = None if before is None else form.time_name(before) + b"\xff" * 550
        cursor = b"".join(begin) + BEHIND if after is not None else b""
        found: dict[str, tuple[tuple[bytes, bytes], Head]] = {}

        def in_force(place: CommitPosition, one: IndexEntry) -> bool:
            due = place.fields.due
            return (
                due is not None
                and one.version == place.due_version
                and form.time_name(due) == one.due
            )

        while True:
            wanted = limit - len(found)
            names = self._space.list(partition, after=cursor, until=until, limit=wanted)
            listed = entries(names, due=True)
            at_end = len(names) < wanted
            for head in self._confirmed(tenant, kind, partition, listed, in_force):
                due = head.fields.due
                if due is None or (before is not None and due > before):
                    continue
                at = form.time_name(due), head.stream.id.encode()
                # A stream whose time was moved meanwhile is listed where it is now, if that is on this page: its new
                # entry may have been put after we listed.
                if at > begin and (at_end or at <= listed[-1].at):
                    found[head.stream.id] = at, head
            if at_end or len(found) >= limit:
                return [head for _, head in sorted(found.values(), key=lambda one: one[0])[:limit]]
            cursor = names[-1]

    def list_damaged(self, tenant: str, kind: str) -> Sequence[StreamKey]:
        """The streams that lists leave out."""
        partition, cursor = all_partition(tenant, kind), b""
        found: list[StreamKey] = []
        while names := self._space.list(partition, after=cursor, limit=PAGE):
            looks = self._looks(tenant, kind, entries(names, version=False))
            found += [key for key, seen in looks.items() if seen is None]
            cursor = names[-1]
        return list(dict.fromkeys(found))

    def _looks(
        self, tenant: str, kind: str, listed: Iterable[IndexEntry]
    ) -> dict[StreamKey, StreamSnapshot | None]:
        """Where the streams of these entries stand; None for one that is damaged."""
        lives: dict[StreamKey, list[bytes]] = {}
        for one in listed:
            lives.setdefault(StreamKey(tenant, kind, one.id), []).append(one.life)
        looks = self._streams.lanes.all([partial(self._look, *one) for one in lives.items()])
        return dict(zip(lives, looks, strict=True))

    def _look(self, stream: StreamKey, lives: Sequence[bytes]) -> StreamSnapshot | None:
        try:
            seen = self._streams.look(stream)
            if is_without_root(self._streams, stream, seen, lives):
                raise CorruptRecord(str(stream), what="its root is missing")
            return seen
        except CorruptRecord as error:
            with self._lock:
                told = stream in self._told
                self._told.add(stream)
            if not told:
                logger.warning("left out of lists: %s", error)
            return None

    def _confirmed(
        self,
        tenant: str,
        kind: str,
        partition: str,
        listed: Sequence[IndexEntry],
        in_force: Callable[[CommitPosition, IndexEntry], bool],
    ) -> Iterator[Head]:
        """The heads of the streams that exist, in the order of their entries."""
        looks = self._looks(tenant, kind, listed)
        past = []
        for one in listed:
            key = StreamKey(tenant, kind, one.id)
            seen = looks[key]
            if seen is not None and self._is_past(partition, one, key, seen, in_force):
                past.append(one.name)
        if past:
            self._streams.lanes.later(partial(self._streams.index.drop, partition, past))
        for key, seen in looks.items():
            head = None if seen is None else self._streams.head(key, seen.place)
            if head is not None:
                yield head

    def _is_past(
        self,
        partition: str,
        one: IndexEntry,
        stream: StreamKey,
        seen: StreamSnapshot,
        in_force: Callable[[CommitPosition, IndexEntry], bool],
    ) -> bool:
        """Whether an entry can never come true again. If in doubt, it stays."""
        if seen.root is not None and one.life in seen.root.former:
            return True
        if seen.place is not None and one.life == seen.place.life:
            return one.version <= seen.place.version and not in_force(seen.place, one)
        if self._space.now() - self._streams.index.announced(partition, one.name) < ABANDONED:
            return False
        return self._refuse(stream, one.life, seen)

    def _refuse(self, stream: StreamKey, life: bytes, seen: StreamSnapshot) -> bool:
        """See to it that a life that was announced long ago and never began never will."""
        if self._space.list(commits_place(life), limit=1):
            return False  # it had begun: its root was lost, and what is left of it is not ours to remove
        before = seen.root or StreamRoot(*stream)
        root = before.changed(former=(*before.former, life), dirty=(*before.dirty, life))
        try:
            if seen.root is not None:
                return self._streams.replace_root(stream, root, seen.tag)
            partition = form.root_place(stream)
            return self._streams.create(partition, ROOT, form.seal(partition, ROOT, root))
        except HoldfastError:
            return False
