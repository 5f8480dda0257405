"""Streams on an object store: find the position of a stream and finish interrupted deletions.

The rules that make this safe, with their reasons, are in docs/explanation/objects.md. In short: a
name is used once, so the writer that creates the object there decides the version. The root is
changed before anything is removed, so a reader that checks the root last knows whether the objects
that it read before are live.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

import msgspec

from ...errors import CorruptRecord, HoldfastError, OutcomeUnknown, Unavailable
from .. import clock
from ..interface import CacheSize, Head, HeadFields, StreamKey
from . import format as form
from .format import ROOT, Commit, StreamRoot, commits_partition, ids_partition, version_name
from .index import ObjectIndex
from .request_pool import RequestPool
from .space import NamedBytes, Space

MAX_ATTEMPTS: Final = 40
"""How many times to start over because other writers change the same stream."""
MAX_STEPS: Final = 2
"""After this number of new commits, read one by one, ask for the newest."""
MAX_CACHED: Final = 10_000
PAGE_NAMES: Final = 1_000


class CommitPosition(msgspec.Struct, frozen=True):
    """A position that a stream has certainly reached: the end of one of its commits."""

    incarnation: bytes
    lineage: bytes
    first: int
    version: int
    hash: bytes
    fields: HeadFields
    status_version: int
    due_version: int

    @classmethod
    def after(cls, incarnation: bytes, lineage: bytes, commit: Commit) -> CommitPosition:
        newest = commit.records[-1][0]
        status, due = commit.status_version, commit.due_version
        return cls(
            incarnation, lineage, commit.first, commit.last, newest, commit.fields, status, due
        )

    def is_at(self, version: int, digest: bytes, incarnation: bytes) -> bool:
        return (self.version, self.hash, self.incarnation) == (version, digest, incarnation)


class StreamSnapshot(NamedTuple):
    """A stream as it was read: its root, and its newest position if it exists."""

    root: StreamRoot | None
    tag: str
    position: CommitPosition | None


class ObjectStreams:
    """Reads the streams of one space, caches their positions and finishes deletions."""

    def __init__(self, space: Space, pool: RequestPool) -> None:
        self.space, self.pool = space, pool
        self.index = ObjectIndex(space, pool)
        self._positions: OrderedDict[StreamKey, CommitPosition] = OrderedDict()
        self._absent: set[StreamKey] = set()
        self._lock = threading.Lock()

    # -- cached positions --------------------------------------------------------------------------

    def get_cached(self, stream: StreamKey) -> CommitPosition | None:
        with self._lock:
            position = self._positions.get(stream)
            if position is not None:
                self._positions.move_to_end(stream)
            return position

    def remember(self, stream: StreamKey, position: CommitPosition) -> None:
        with self._lock:
            self._positions[stream] = position
            self._positions.move_to_end(stream)
            if len(self._positions) > MAX_CACHED:
                self._positions.popitem(last=False)

    def forget(self, stream: StreamKey) -> None:
        with self._lock:
            self._positions.pop(stream, None)

    def cache_size(self) -> CacheSize:
        return CacheSize(len(self._positions), MAX_CACHED)

    def now(self) -> float:
        return clock.adjust_server_time(self.space.now())

    def head(self, stream: StreamKey, position: CommitPosition | None) -> Head | None:
        if position is None:
            return None
        return Head(
            stream,
            position.incarnation,
            position.fields,
            self.now(),
            position.version,
            position.hash,
        )

    def read_head(self, stream: StreamKey) -> Head | None:
        """Read the current head. If the stream never existed, note it for the append to come."""
        seen = self.load(stream)
        if seen.root is None:
            with self._lock:
                if len(self._absent) >= MAX_CACHED:
                    self._absent.clear()
                self._absent.add(stream)
        return self.head(stream, seen.position)

    def was_just_absent(self, stream: StreamKey) -> bool:
        """Return whether `read_head` just found that the stream never existed, and forget it."""
        with self._lock:
            absent = stream in self._absent
            self._absent.discard(stream)
            return absent

    # -- reading ----------------------------------------------------------------------------------

    def read_root(self, stream: StreamKey) -> tuple[StreamRoot | None, str]:
        partition = form.root_partition(stream)
        named = self.get(stream, partition, ROOT)
        if named is None:
            return None, ""
        root = form.decode_object(partition, ROOT, named.data, StreamRoot, stream)
        if (root.tenant, root.kind, root.id) != stream:
            raise CorruptRecord(str(stream), what="its root belongs to another stream")
        if not root.is_sound:
            raise CorruptRecord(str(stream), what="its root contradicts itself")
        return root, named.tag

    def read_commit(
        self, stream: StreamKey, lineage: bytes, first: int, root: StreamRoot | None = None
    ) -> Commit | None:
        """Return the commit that starts with this version."""
        if root is not None and root.first is not None and first == 1:
            return root.first
        name = version_name(first)
        named = self.get(stream, commits_partition(lineage), name)
        return None if named is None else self.decode_commit(stream, lineage, name, named.data)

    def get(self, stream: StreamKey, partition: str, name: bytes) -> NamedBytes | None:
        """Call `Space.get` and report damage under the name of this stream."""
        with _report_as(stream):
            return self.space.get(partition, name)

    def decode_commit(self, stream: StreamKey, lineage: bytes, name: bytes, data: bytes) -> Commit:
        commit = form.decode_object(commits_partition(lineage), name, data, Commit, stream)
        if version_name(commit.first) != name:
            raise CorruptRecord(str(stream), what="a commit has the name of another version")
        return commit

    def load(self, stream: StreamKey) -> StreamSnapshot:
        """Return the exact position of the stream. Finish a deletion that was interrupted."""
        suspect_tag: str | None = None
        for _ in range(MAX_ATTEMPTS):
            try:
                seen = self._try_load(stream)
            except CorruptRecord:
                # The cached position may be of a deleted incarnation, or a deletion may have come
                # between two requests. It is damage only if the root was the same before and after.
                self.forget(stream)
                _root, tag = self.read_root(stream)
                if tag == suspect_tag:
                    raise
                suspect_tag = tag
                continue
            if seen is not None:
                return seen
        raise Unavailable(f"{stream} keeps being changed by other writers; retry")

    def _try_load(self, stream: StreamKey) -> StreamSnapshot | None:
        """Load a stream. Return None to retry: it changed, or a deletion had to be finished."""
        position = self.get_cached(stream)
        end: tuple[bytes, int] | None = None
        if position is None:
            root, tag = self.read_root(stream)
            if root is None or root.incarnation is None:
                if root is None or not root.dirty:
                    return StreamSnapshot(root, tag, None)
                self.finish_deletion(stream, root, tag)
                return None
            lineage = form.lineage_of(stream, root.incarnation)
            newest = self._read_newest(stream, lineage, root)
            if newest.ends:
                end = lineage, newest.first
            else:
                position = CommitPosition.after(root.incarnation, lineage, newest)
        steps = 0
        while (
            position is not None
            and (commit := self.read_commit(stream, position.lineage, position.version + 1))
            is not None
        ):
            steps += 1
            if steps == MAX_STEPS:
                commit = self._skip_to_newest(stream, position.lineage, commit)
            if commit.ends:
                end = position.lineage, commit.first
                break
            position = CommitPosition.after(position.incarnation, position.lineage, commit)
        # Read the root last: a deletion marks it before it removes anything.
        root, tag = self.read_root(stream)
        if root is not None and end is not None and self.is_live(stream, root, end[0]):
            self.mark_deleted(stream, root, tag, end[0])
        elif (
            root is not None
            and position is not None
            and self.is_live(stream, root, position.lineage)
        ):
            self.remember(stream, position)
            if not root.dirty:
                return StreamSnapshot(root, tag, position)
            self.finish_deletion(stream, root, tag)
            return None
        self.forget(stream)
        return None

    def is_current(self, stream: StreamKey, root: StreamRoot) -> bool:
        """Return whether the incarnation is still the same: then commits read since are live."""
        again, _tag = self.read_root(stream)
        return again is not None and again.incarnation == root.incarnation

    @staticmethod
    def is_live(stream: StreamKey, root: StreamRoot, lineage: bytes) -> bool:
        """Return whether this lineage is that of the current incarnation."""
        return root.incarnation is not None and form.lineage_of(stream, root.incarnation) == lineage

    def _skip_to_newest(self, stream: StreamKey, lineage: bytes, commit: Commit) -> Commit:
        """Return the newest commit that the listing has, or this one if the listing lags behind."""
        for named in self.scan(stream, lineage, after=b"", limit=1):
            newest = self.decode_commit(stream, lineage, named.name, named.data)
            if newest.first > commit.first:
                return newest
        return commit

    def _read_newest(self, stream: StreamKey, lineage: bytes, root: StreamRoot) -> Commit:
        """Return the newest commit that the listing has.

        Raise `CorruptRecord` if there is none: it is lost, or was removed after the root was read.
        """
        names = self.space.list(commits_partition(lineage), limit=1)
        if names and names[0] <= version_name(1):
            named = self.get(stream, commits_partition(lineage), names[0])
            newest = (
                None
                if named is None
                else self.decode_commit(stream, lineage, named.name, named.data)
            )
        else:
            newest = self.read_commit(stream, lineage, 1, root)
        if newest is None:
            raise CorruptRecord(str(stream), version=1, what="a commit is missing")
        return newest

    # -- writing, with a definite answer ----------------------------------------------------------

    def create(self, partition: str, name: bytes, data: bytes) -> bool:
        """Create an object, and return whether exactly these bytes are stored now.

        Any error except `OutcomeUnknown` means that they are not.
        """
        return self.create_or_read(partition, name, data) == data

    def create_or_read(self, partition: str, name: bytes, data: bytes) -> bytes:
        """Create an object, and return the bytes that are stored now: these, or another writer's.

        Any error except `OutcomeUnknown` means that these are not.
        """
        for _ in range(MAX_ATTEMPTS):
            try:
                if self.space.create(partition, name, data):
                    return data
                unknown = None
            except OutcomeUnknown as error:
                unknown = error
            found = self._read_back(partition, name)
            if found is not None:
                return found
            if unknown is not None:
                raise unknown
            # Another writer's object was there and has been removed: the name is free.
        raise OutcomeUnknown("an object kept changing during a write; retry with the same id")

    def replace(self, partition: str, name: bytes, data: bytes, tag: str) -> bool:
        """Replace the object with this tag; return whether the new bytes are stored now."""
        try:
            if self.space.replace(partition, name, data, tag):
                return True
        except OutcomeUnknown:
            if self._read_back(partition, name) != data:
                raise
            return True
        return self._read_back(partition, name) == data

    def _read_back(self, partition: str, name: bytes) -> bytes | None:
        try:
            named = self.space.get(partition, name)
        except HoldfastError as error:
            raise OutcomeUnknown(
                "no response to a write, and it could not be verified; retry with the same id"
            ) from error
        return None if named is None else named.data

    def replace_root(self, stream: StreamKey, root: StreamRoot, tag: str) -> bool:
        partition = form.root_partition(stream)
        return self.replace(partition, ROOT, form.encode_object(partition, ROOT, root), tag)

    # -- finishing deletions ----------------------------------------------------------------------

    def mark_deleted(self, stream: StreamKey, root: StreamRoot, tag: str, lineage: bytes) -> bool:
        """Mark the incarnation as deleted in the root, after the commit that ends it was stored."""
        self.forget(stream)
        revised = root.revise(
            incarnation=None,
            first=None,
            former=(*root.former, lineage),
            dirty=(*root.dirty, lineage),
        )
        return self.replace_root(stream, revised, tag)

    def finish_deletion(self, stream: StreamKey, root: StreamRoot, tag: str) -> None:
        """Remove the objects of deleted incarnations, then note in the root that they are gone."""
        if not root.dirty:
            return
        ends = [self._remove_lineage(stream, lineage) for lineage in root.dirty]
        if self.replace_root(stream, root.revise(dirty=()), tag):
            # The end commit goes last: until then, no writer can take its name.
            for partition, name in filter(None, ends):
                self.space.remove(partition, [name])

    def _remove_lineage(self, stream: StreamKey, lineage: bytes) -> tuple[str, bytes] | None:
        """Remove all objects of a lineage but the commit that ends it; return its key."""
        partition = commits_partition(lineage)
        names = self.space.list(partition, limit=1)
        if names:
            # If the commit is damaged, readers remove the obsolete entries.
            with suppress(CorruptRecord):
                end = self.get(stream, partition, names[0])
                if end is not None:
                    commit = self.decode_commit(stream, lineage, end.name, end.data)
                    self.index.remove(
                        stream, lineage, commit.fields, commit.status_version, commit.due_version
                    )
            self._remove_names(partition, after=names[0])
        self._remove_names(ids_partition(lineage))
        self.index.unlist(stream, lineage)
        return (partition, names[0]) if names else None

    def _remove_names(self, partition: str, *, after: bytes = b"") -> None:
        while names := self.space.list(partition, after=after, limit=PAGE_NAMES):
            self.space.remove(partition, names)
            if len(names) < PAGE_NAMES:
                return

    def scan(
        self,
        stream: StreamKey,
        lineage: bytes,
        *,
        after: bytes,
        until: bytes | None = None,
        limit: int,
        reverse: bool = False,
    ) -> Sequence[NamedBytes]:
        """Call `Space.scan` for the commits of this stream."""
        with _report_as(stream):
            return self.space.scan(
                commits_partition(lineage), after=after, until=until, limit=limit, reverse=reverse
            )

    def commits_below(
        self, stream: StreamKey, lineage: bytes, start: int, limit: int = PAGE_NAMES
    ) -> Iterator[Commit]:
        """Yield the commits that start before this version, newest first, `limit` per request."""
        after = version_name(start)
        while page := self.scan(stream, lineage, after=after, limit=limit):
            for named in page:
                yield self.decode_commit(stream, lineage, named.name, named.data)
            after = page[-1].name


@contextmanager
def _report_as(stream: StreamKey) -> Iterator[None]:
    """Report damage under the name of the stream, which the space does not know."""
    try:
        yield
    except CorruptRecord as error:
        raise CorruptRecord(str(stream), what=error.what, place=error.place) from error
