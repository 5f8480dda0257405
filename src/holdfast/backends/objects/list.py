"""Implement `heads` and `due`: list index entries and confirm each with the head of its stream.

A damaged stream is left out and logged once, so that it does not hide all others.
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
from .discard import has_lost_root
from .format import ROOT, StreamRoot, commits_partition
from .index import (
    AFTER_ENTRIES,
    IndexEntry,
    all_partition,
    due_partition,
    parse_entries,
    status_partition,
)
from .streams import PAGE_NAMES, CommitPosition, ObjectStreams, StreamSnapshot

ABANDONED_SECONDS: Final = 3600.0
"""The age at which the entries of an incarnation that was never created can be removed."""

logger = logging.getLogger("holdfast")


class ObjectLister:
    """Lists streams, and removes the obsolete entries that it finds."""

    def __init__(self, streams: ObjectStreams) -> None:
        self._streams, self._space = streams, streams.space
        self._reported: set[StreamKey] = set()
        self._lock = threading.Lock()

    def heads(
        self, tenant: str, kind: str, status: str | None, after: str, limit: int
    ) -> Sequence[Head]:
        all_streams = status is None
        partition = (
            all_partition(tenant, kind)
            if status is None
            else status_partition(tenant, kind, status)
        )
        cursor = after.encode() + AFTER_ENTRIES if after else b""
        found: dict[str, Head] = {}

        def is_valid(position: CommitPosition, entry: IndexEntry) -> bool:
            return all_streams or (
                entry.version == position.status_version and position.fields.status == status
            )

        while True:
            wanted = limit - len(found)
            names = self._space.list(partition, after=cursor, limit=wanted)
            listed = parse_entries(names, version=not all_streams)
            for head in self._confirm(tenant, kind, partition, listed, is_valid):
                if status is None or head.fields.status == status:
                    found[head.stream.id] = head
            if len(names) < wanted or len(found) >= limit:
                return list(found.values())
            cursor = names[-1]

    def due(
        self, tenant: str, kind: str, before: float | None, after: Cursor | None, limit: int
    ) -> Sequence[Head]:
        partition = due_partition(tenant, kind)
        begin = (form.encode_time(after[0]), after[1].encode()) if after is not None else (b"", b"")
        until = None if before is None else form.encode_time(before) + b"\xff" * 550
        cursor = b"".join(begin) + AFTER_ENTRIES if after is not None else b""
        found: dict[str, tuple[tuple[bytes, bytes], Head]] = {}

        def is_valid(position: CommitPosition, entry: IndexEntry) -> bool:
            due = position.fields.due
            return (
                due is not None
                and entry.version == position.due_version
                and form.encode_time(due) == entry.due
            )

        while True:
            wanted = limit - len(found)
            names = self._space.list(partition, after=cursor, until=until, limit=wanted)
            listed = parse_entries(names, due=True)
            at_end = len(names) < wanted
            for head in self._confirm(tenant, kind, partition, listed, is_valid):
                due = head.fields.due
                if due is None or (before is not None and due > before):
                    continue
                at = form.encode_time(due), head.stream.id.encode()
                # If the due time has changed, list the stream at its new place if that is on this
                # page: the new entry may have been stored after the names were listed.
                if at > begin and (at_end or at <= listed[-1].sort_key):
                    found[head.stream.id] = at, head
            if at_end or len(found) >= limit:
                return [head for _, head in sorted(found.values(), key=lambda one: one[0])[:limit]]
            cursor = names[-1]

    def list_damaged(self, tenant: str, kind: str) -> Sequence[StreamKey]:
        """Return the damaged streams, which the listings leave out."""
        partition, cursor = all_partition(tenant, kind), b""
        found: list[StreamKey] = []
        while names := self._space.list(partition, after=cursor, limit=PAGE_NAMES):
            snapshots = self._load_all(tenant, kind, parse_entries(names, version=False))
            found += [key for key, seen in snapshots.items() if seen is None]
            cursor = names[-1]
        return list(dict.fromkeys(found))

    def _load_all(
        self, tenant: str, kind: str, listed: Iterable[IndexEntry]
    ) -> dict[StreamKey, StreamSnapshot | None]:
        """Load the streams of these entries; the snapshot of a damaged one is None."""
        lineages: dict[StreamKey, list[bytes]] = {}
        for entry in listed:
            lineages.setdefault(StreamKey(tenant, kind, entry.id), []).append(entry.lineage)
        snapshots = self._streams.pool.run_all(
            [partial(self._load_snapshot, *one) for one in lineages.items()]
        )
        return dict(zip(lineages, snapshots, strict=True))

    def _load_snapshot(self, stream: StreamKey, lineages: Sequence[bytes]) -> StreamSnapshot | None:
        try:
            seen = self._streams.load(stream)
            if has_lost_root(self._streams, stream, seen, lineages):
                raise CorruptRecord(str(stream), what="its root is missing")
            return seen
        except CorruptRecord as error:
            with self._lock:
                reported = stream in self._reported
                self._reported.add(stream)
            if not reported:
                logger.warning("damaged stream is left out of listings: %s", error)
            return None

    def _confirm(
        self,
        tenant: str,
        kind: str,
        partition: str,
        listed: Sequence[IndexEntry],
        is_valid: Callable[[CommitPosition, IndexEntry], bool],
    ) -> Iterator[Head]:
        """Yield the heads of the streams that exist, in the order of their entries."""
        snapshots = self._load_all(tenant, kind, listed)
        obsolete = []
        for entry in listed:
            key = StreamKey(tenant, kind, entry.id)
            seen = snapshots[key]
            if seen is not None and self._can_remove(partition, entry, key, seen, is_valid):
                obsolete.append(entry.name)
        if obsolete:
            self._streams.pool.run_later(
                partial(self._streams.index.try_remove, partition, obsolete)
            )
        for key, seen in snapshots.items():
            head = None if seen is None else self._streams.head(key, seen.position)
            if head is not None:
                yield head

    def _can_remove(
        self,
        partition: str,
        entry: IndexEntry,
        stream: StreamKey,
        seen: StreamSnapshot,
        is_valid: Callable[[CommitPosition, IndexEntry], bool],
    ) -> bool:
        """Return whether an entry can be removed, because it will never be valid again."""
        if seen.root is not None and entry.lineage in seen.root.former:
            return True
        if seen.position is not None and entry.lineage == seen.position.lineage:
            return entry.version <= seen.position.version and not is_valid(seen.position, entry)
        if (
            self._space.now() - self._streams.index.read_announce_time(partition, entry.name)
            < ABANDONED_SECONDS
        ):
            return False
        return self._ban_lineage(stream, entry.lineage, seen)

    def _ban_lineage(self, stream: StreamKey, lineage: bytes, seen: StreamSnapshot) -> bool:
        """Ensure that an incarnation that was announced long ago can't be created any more."""
        if self._space.list(commits_partition(lineage), limit=1):
            return False  # the stream existed and its root was lost: keep what is left
        before = seen.root or StreamRoot(*stream)
        root = before.revise(former=(*before.former, lineage), dirty=(*before.dirty, lineage))
        try:
            if seen.root is not None:
                return self._streams.replace_root(stream, root, seen.tag)
            partition = form.root_partition(stream)
            return self._streams.create(partition, ROOT, form.encode_object(partition, ROOT, root))
        except HoldfastError:
            return False
