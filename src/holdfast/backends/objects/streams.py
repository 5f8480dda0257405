"""One stream on an object store: where it stands, and how a deletion that was begun is brought to its end.

The rules that make it safe, with their reasons, are in docs/explanation/objects.md. In short: a name is used once, so the one
who creates an object there has decided what the version is; the root is changed before anything is removed, so that whoever
read the root last knows whether what was seen before still counts.
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
from ..interface import Head, HeadFields, StreamKey
from . import format as form
from .format import ROOT, Commit, StreamRoot, commits_partition, ids_partition, version_name
from .index import ObjectIndex
from .request_pool import RequestPool
from .space import NamedBytes, Space

MAX_ATTEMPTS: Final = 40
"""How often we begin again because others change the same stream."""
MAX_CACHED: Final = 10_000
PAGE_NAMES: Final = 1_000


class CommitPosition(msgspec.Struct, frozen=True):
    """A point that a stream has certainly reached: the end of one commit of a lineage."""

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
    """A stream as it was found: its root, and its newest position if it exists."""

    root: StreamRoot | None
    tag: str
    position: CommitPosition | None


class ObjectStreams:
    """The streams of one space."""

    def __init__(self, space: Space, pool: RequestPool) -> None:
        self.space, self.pool = space, pool
        self.index = ObjectIndex(space, pool)
        self._positions: OrderedDict[StreamKey, CommitPosition] = OrderedDict()
        self._lock = threading.Lock()

    # -- what this process knows ------------------------------------------------------------------

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

    # -- looking ----------------------------------------------------------------------------------

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
        """The commit that begins with this version."""
        if root is not None and root.first is not None and first == 1:
            return root.first
        name = version_name(first)
        named = self.get(stream, commits_partition(lineage), name)
        return None if named is None else self.decode_commit(stream, lineage, name, named.data)

    def get(self, stream: StreamKey, partition: str, name: bytes) -> NamedBytes | None:
        """`Space.get` for this stream: what is damaged is reported under its name."""
        with _report_as(stream):
            return self.space.get(partition, name)

    def decode_commit(self, stream: StreamKey, lineage: bytes, name: bytes, data: bytes) -> Commit:
        commit = form.decode_object(commits_partition(lineage), name, data, Commit, stream)
        if version_name(commit.first) != name:
            raise CorruptRecord(str(stream), what="a commit is not where it belongs")
        return commit

    def load(self, stream: StreamKey) -> StreamSnapshot:
        """Where the stream stands, exactly. A deletion that was decided and not finished is finished."""
        doubted: str | None = None
        for _ in range(MAX_ATTEMPTS):
            try:
                seen = self._try_load(stream)
            except CorruptRecord:
                # What was remembered may be of a lineage that is over, and a deletion may have come between two requests: what
                # is there then does not count. It is damage if the root was the same before and after.
                self.forget(stream)
                _root, tag = self.read_root(stream)
                if tag == doubted:
                    raise
                doubted = tag
                continue
            if seen is not None:
                return seen
        raise Unavailable(f"{stream} keeps being changed by other writers; retry")

    def _try_load(self, stream: StreamKey) -> StreamSnapshot | None:
        """None if it is to be looked at again, because others have changed it or there was something to finish."""
        position = self.get_cached(stream)
        end: tuple[bytes, int] | None = None
        if position is None:
            root, tag = self.read_root(stream)
            if root is None or root.incarnation is None:
                if root is None or _is_finished(root):
                    return StreamSnapshot(root, tag, None)
                self.finish_deletion(stream, root, tag)
                return None
            lineage = form.lineage_of(stream, root.incarnation)
            newest = self._read_newest(stream, lineage, root)
            if newest.ends:
                end = lineage, newest.first
            else:
                position = CommitPosition.after(root.incarnation, lineage, newest)
        while (
            position is not None
            and (commit := self.read_commit(stream, position.lineage, position.version + 1))
            is not None
        ):
            if commit.ends:
                end = position.lineage, commit.first
                break
            position = CommitPosition.after(position.incarnation, position.lineage, commit)
        # Read after all that: what a deletion removed, it had first written into the root.
        root, tag = self.read_root(stream)
        if root is not None and end is not None and self.is_live(stream, root, end[0]):
            self.mark_deleted(stream, root, tag, end[0])
        elif (
            root is not None
            and position is not None
            and self.is_live(stream, root, position.lineage)
        ):
            self.remember(stream, position)
            if _is_finished(root):
                return StreamSnapshot(root, tag, position)
            self.finish_deletion(stream, root, tag)
            return None
        self.forget(stream)
        return None

    def is_current(self, stream: StreamKey, root: StreamRoot) -> bool:
        """Whether the commits that counted by this root count still: then what was read after it was no commit astray."""
        again, _tag = self.read_root(stream)
        return again is not None and again.incarnation == root.incarnation

    @staticmethod
    def is_live(stream: StreamKey, root: StreamRoot, lineage: bytes) -> bool:
        """Whether a commit that was seen before the root was read is one of the living stream."""
        return root.incarnation is not None and form.lineage_of(stream, root.incarnation) == lineage

    def _read_newest(self, stream: StreamKey, lineage: bytes, root: StreamRoot) -> Commit:
        """The newest commit that a list shows; there is one, unless it was removed since the root was read, or lost."""
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

    # -- writing, with a certain answer -----------------------------------------------------------

    def create(self, partition: str, name: bytes, data: bytes) -> bool:
        """Whether these very bytes are there now. Any error but `OutcomeUnknown` means that they are not."""
        for _ in range(MAX_ATTEMPTS):
            try:
                if self.space.create(partition, name, data):
                    return True
                sent = None
            except OutcomeUnknown as error:
                sent = error
            found = self._read_back(partition, name)
            if found is not None:
                return found == data
            if sent is not None:
                raise sent
            # Somebody's object was there, and is removed by now: the position may be taken.
        raise OutcomeUnknown("a position in the store is being changed too often at the moment")

    def replace(self, partition: str, name: bytes, data: bytes, tag: str) -> bool:
        """Whether these bytes took the position of those with the tag and are still there."""
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
            raise OutcomeUnknown("a put was not answered, and could not be looked at") from error
        return None if named is None else named.data

    def replace_root(self, stream: StreamKey, root: StreamRoot, tag: str) -> bool:
        partition = form.root_partition(stream)
        return self.replace(partition, ROOT, form.encode_object(partition, ROOT, root), tag)

    # -- bringing deletions to an end -------------------------------------------------------------

    def mark_deleted(self, stream: StreamKey, root: StreamRoot, tag: str, lineage: bytes) -> bool:
        """Write into the root that this lineage is over. The commit that ends it is there."""
        self.forget(stream)
        over = root.revise(
            incarnation=None,
            first=None,
            former=(*root.former, lineage),
            dirty=(*root.dirty, lineage),
        )
        return self.replace_root(stream, over, tag)

    def finish_deletion(self, stream: StreamKey, root: StreamRoot, tag: str) -> None:
        """Remove what the root says is deleted, and write into the root that it is gone."""
        if _is_finished(root):
            return
        ends = [self._remove_lineage(stream, lineage) for lineage in root.dirty]
        if self.replace_root(stream, root.revise(dirty=()), tag):
            # Last, so that until then nobody can put a commit into its position.
            for partition, name in filter(None, ends):
                self.space.remove(partition, [name])

    def _remove_lineage(self, stream: StreamKey, lineage: bytes) -> tuple[str, bytes] | None:
        """Remove everything of a lineage but the commit that ends it; returns where that is."""
        partition = commits_partition(lineage)
        names = self.space.list(partition, limit=1)
        if names:
            with suppress(
                CorruptRecord
            ):  # without it, readers remove the entries of a lineage that is over
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
        """`Space.scan` for the commits of this stream."""
        with _report_as(stream):
            return self.space.scan(
                commits_partition(lineage), after=after, until=until, limit=limit, reverse=reverse
            )

    def commits_below(
        self, stream: StreamKey, lineage: bytes, start: int, limit: int = PAGE_NAMES
    ) -> Iterator[Commit]:
        """The commits that begin before this version, newest first; so many are asked for at once."""
        after = version_name(start)
        while page := self.scan(stream, lineage, after=after, limit=limit):
            for named in page:
                yield self.decode_commit(stream, lineage, named.name, named.data)
            after = page[-1].name


def _is_finished(root: StreamRoot) -> bool:
    return not root.dirty


@contextmanager
def _report_as(stream: StreamKey) -> Iterator[None]:
    """A space knows places only, and people know streams."""
    try:
        yield
    except CorruptRecord as error:
        raise CorruptRecord(str(stream), what=error.what, place=error.place) from error
