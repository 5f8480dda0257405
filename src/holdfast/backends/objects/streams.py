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
from .format import ROOT, Commit, StreamRoot, commits_place, ids_place, version_name
from .index import ObjectIndex
from .lanes import ThreadLanes
from .space import NamedBytes, Space

TRIES: Final = 40
"""How often we begin again because others change the same stream."""
KNOWN: Final = 10_000
PAGE: Final = 1_000


class CommitPosition(msgspec.Struct, frozen=True):
    """A point that a stream has certainly reached: the end of one commit of a life."""

    incarnation: bytes
    life: bytes
    first: int
    version: int
    hash: bytes
    fields: HeadFields
    status_version: int
    due_version: int

    @classmethod
    def after(cls, incarnation: bytes, life: bytes, commit: Commit) -> CommitPosition:
        newest = commit.records[-1][0]
        status, due = commit.status_version, commit.due_version
        return cls(incarnation, life, commit.first, commit.last, newest, commit.fields, status, due)

    def is_at(self, version: int, digest: bytes, incarnation: bytes) -> bool:
        return (self.version, self.hash, self.incarnation) == (version, digest, incarnation)


class StreamSnapshot(NamedTuple):
    """A stream as it was found: its root, and its newest place if it exists."""

    root: StreamRoot | None
    tag: str
    place: CommitPosition | None


class ObjectStreams:
    """The streams of one space."""

    def __init__(self, space: Space, lanes: ThreadLanes) -> None:
        self.space, self.lanes = space, lanes
        self.index = ObjectIndex(space, lanes)
        self._places: OrderedDict[StreamKey, CommitPosition] = OrderedDict()
        self._lock = threading.Lock()

    # -- what this process knows ------------------------------------------------------------------

    def known(self, stream: StreamKey) -> CommitPosition | None:
        with self._lock:
            place = self._places.get(stream)
            if place is not None:
                self._places.move_to_end(stream)
            return place

    def remember(self, stream: StreamKey, place: CommitPosition) -> None:
        with self._lock:
            self._places[stream] = place
            self._places.move_to_end(stream)
            if len(self._places) > KNOWN:
                self._places.popitem(last=False)

    def forget(self, stream: StreamKey) -> None:
        with self._lock:
            self._places.pop(stream, None)

    def now(self) -> float:
        return clock.adjust_server_time(self.space.now())

    def head(self, stream: StreamKey, place: CommitPosition | None) -> Head | None:
        if place is None:
            return None
        return Head(stream, place.incarnation, place.fields, self.now(), place.version, place.hash)

    # -- looking ----------------------------------------------------------------------------------

    def root(self, stream: StreamKey) -> tuple[StreamRoot | None, str]:
        partition = form.root_place(stream)
        named = self.get(stream, partition, ROOT)
        if named is None:
            return None, ""
        root = form.unseal(partition, ROOT, named.data, StreamRoot, stream)
        if (root.tenant, root.kind, root.id) != stream:
            raise CorruptRecord(str(stream), what="its root belongs to another stream")
        if not root.is_sound:
            raise CorruptRecord(str(stream), what="its root contradicts itself")
        return root, named.tag

    def commit(
        self, stream: StreamKey, life: bytes, first: int, root: StreamRoot | None = None
    ) -> Commit | None:
        """The commit that begins with this version."""
        if root is not None and root.first is not None and first == 1:
            return root.first
        name = version_name(first)
        named = self.get(stream, commits_place(life), name)
        return None if named is None else self.opened(stream, life, name, named.data)

    def get(self, stream: StreamKey, partition: str, name: bytes) -> NamedBytes | None:
        """`Space.get` for this stream: what is damaged is reported under its name."""
        with _named_after(stream):
            return self.space.get(partition, name)

    def opened(self, stream: StreamKey, life: bytes, name: bytes, data: bytes) -> Commit:
        commit = form.unseal(commits_place(life), name, data, Commit, stream)
        if version_name(commit.first) != name:
            raise CorruptRecord(str(stream), what="a commit is not where it belongs")
        return commit

    def look(self, stream: StreamKey) -> StreamSnapshot:
        """Where the stream stands, exactly. A deletion that was decided and not finished is finished."""
        doubted: str | None = None
        for _ in range(TRIES):
            try:
                seen = self._look(stream)
            except CorruptRecord:
                # What was remembered may be of a life that is over, and a deletion may have come between two requests: what
                # is there then does not count. It is damage if the root was the same before and after.
                self.forget(stream)
                _root, tag = self.root(stream)
                if tag == doubted:
                    raise
                doubted = tag
                continue
            if seen is not None:
                return seen
        raise Unavailable(f"{stream} is being changed too often at the moment; try again")

    def _look(self, stream: StreamKey) -> StreamSnapshot | None:
        """None if it is to be looked at again, because others have changed it or there was something to finish."""
        place = self.known(stream)
        end: tuple[bytes, int] | None = None
        if place is None:
            root, tag = self.root(stream)
            if root is None or root.life is None:
                if root is None or _is_finished(root):
                    return StreamSnapshot(root, tag, None)
                self.finish(stream, root, tag)
                return None
            life = form.life_id(stream, root.life)
            newest = self._newest(stream, life, root)
            if newest.ends:
                end = life, newest.first
            else:
                place = CommitPosition.after(root.life, life, newest)
        while (
            place is not None
            and (commit := self.commit(stream, place.life, place.version + 1)) is not None
        ):
            if commit.ends:
                end = place.life, commit.first
                break
            place = CommitPosition.after(place.incarnation, place.life, commit)
        # Read after all that: what a deletion removed, it had first written into the root.
        root, tag = self.root(stream)
        if root is not None and end is not None and self.counts(stream, root, end[0]):
            self.bury(stream, root, tag, end[0])
        elif root is not None and place is not None and self.counts(stream, root, place.life):
            self.remember(stream, place)
            if _is_finished(root):
                return StreamSnapshot(root, tag, place)
            self.finish(stream, root, tag)
            return None
        self.forget(stream)
        return None

    def is_still(self, stream: StreamKey, root: StreamRoot) -> bool:
        """Whether the commits that counted by this root count still: then what was read after it was no commit astray."""
        again, _tag = self.root(stream)
        return again is not None and again.life == root.life

    @staticmethod
    def counts(stream: StreamKey, root: StreamRoot, life: bytes) -> bool:
        """Whether a commit that was seen before the root was read is one of the living stream."""
        return root.life is not None and form.life_id(stream, root.life) == life

    def _newest(self, stream: StreamKey, life: bytes, root: StreamRoot) -> Commit:
        """The newest commit that a list shows; there is one, unless it was removed since the root was read, or lost."""
        names = self.space.list(commits_place(life), limit=1)
        if names and names[0] <= version_name(1):
            named = self.get(stream, commits_place(life), names[0])
            newest = None if named is None else self.opened(stream, life, named.name, named.data)
        else:
            newest = self.commit(stream, life, 1, root)
        if newest is None:
            raise CorruptRecord(str(stream), version=1, what="a commit is missing")
        return newest

    # -- writing, with a certain answer -----------------------------------------------------------

    def create(self, partition: str, name: bytes, data: bytes) -> bool:
        """Whether these very bytes are there now. Any error but `OutcomeUnknown` means that they are not."""
        for _ in range(TRIES):
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
            # Somebody's object was there, and is removed by now: the place may be taken.
        raise OutcomeUnknown("a place in the store is being changed too often at the moment")

    def replace(self, partition: str, name: bytes, data: bytes, tag: str) -> bool:
        """Whether these bytes took the place of those with the tag and are still there."""
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
        partition = form.root_place(stream)
        return self.replace(partition, ROOT, form.seal(partition, ROOT, root), tag)

    # -- bringing deletions to an end -------------------------------------------------------------

    def bury(self, stream: StreamKey, root: StreamRoot, tag: str, life: bytes) -> bool:
        """Write into the root that this life is over. The commit that ends it is there."""
        self.forget(stream)
        over = root.changed(
            life=None, first=None, former=(*root.former, life), dirty=(*root.dirty, life)
        )
        return self.replace_root(stream, over, tag)

    def finish(self, stream: StreamKey, root: StreamRoot, tag: str) -> None:
        """Remove what the root says is deleted, and write into the root that it is gone."""
        if _is_finished(root):
            return
        ends = [self._clean(stream, life) for life in root.dirty]
        if self.replace_root(stream, root.changed(dirty=()), tag):
            # Last, so that until then nobody can put a commit into its place.
            for partition, name in filter(None, ends):
                self.space.remove(partition, [name])

    def _clean(self, stream: StreamKey, life: bytes) -> tuple[str, bytes] | None:
        """Remove everything of a life but the commit that ends it; returns where that is."""
        partition = commits_place(life)
        names = self.space.list(partition, limit=1)
        if names:
            with suppress(
                CorruptRecord
            ):  # without it, readers remove the entries of a life that is over
                end = self.get(stream, partition, names[0])
                if end is not None:
                    commit = self.opened(stream, life, end.name, end.data)
                    self.index.remove(
                        stream, life, commit.fields, commit.status_version, commit.due_version
                    )
            self._remove(partition, after=names[0])
        self._remove(ids_place(life))
        self.index.unlist(stream, life)
        return (partition, names[0]) if names else None

    def _remove(self, partition: str, *, after: bytes = b"") -> None:
        while names := self.space.list(partition, after=after, limit=PAGE):
            self.space.remove(partition, names)
            if len(names) < PAGE:
                return

    def scan(
        self,
        stream: StreamKey,
        life: bytes,
        *,
        after: bytes,
        until: bytes | None = None,
        limit: int,
        reverse: bool = False,
    ) -> Sequence[NamedBytes]:
        """`Space.scan` for the commits of this stream."""
        with _named_after(stream):
            return self.space.scan(
                commits_place(life), after=after, until=until, limit=limit, reverse=reverse
            )

    def commits_below(
        self, stream: StreamKey, life: bytes, start: int, limit: int = PAGE
    ) -> Iterator[Commit]:
        """The commits that begin before this version, newest first; so many are asked for at once."""
        after = version_name(start)
        while page := self.scan(stream, life, after=after, limit=limit):
            for named in page:
                yield self.opened(stream, life, named.name, named.data)
            after = page[-1].name


def _is_finished(root: StreamRoot) -> bool:
    return not root.dirty


@contextmanager
def _named_after(stream: StreamKey) -> Iterator[None]:
    """A space knows places only, and people know streams."""
    try:
        yield
    except CorruptRecord as error:
        raise CorruptRecord(str(stream), what=error.what, place=error.place) from error
