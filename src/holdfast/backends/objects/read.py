"""Reading a stream page by page, in both directions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NoReturn

from ...errors import CorruptRecord, Unavailable
from ..interface import Record, StreamKey
from . import format as form
from .format import Commit, StreamRoot, version_name
from .streams import TRIES, ObjectStreams

PAGE_BYTES: Final = 8 * 1024 * 1024
WINDOW: Final = 16
MOST: Final = 1_000


class ObjectReader:
    """Reads pages of records."""

    def __init__(self, streams: ObjectStreams) -> None:
        self._streams = streams

    def read(
        self, stream: StreamKey, after: int, limit: int | None, reverse: bool
    ) -> Sequence[Record]:
        place = self._streams.known(stream)
        if place is not None and not reverse and place.version <= after:
            # Somebody waits for what comes next: mostly nothing has.
            place = self._streams.look(stream).place
            if place is None or place.version <= after:
                return []
        for _ in range(TRIES):
            root, _tag = self._streams.root(stream)
            if root is None or root.life is None:
                return []
            life = form.life_id(stream, root.life)
            if reverse:
                low, high = 0, after or form.BIG
                commits = self._down(stream, life, root, high - 1)
            else:
                low, high = after, form.BIG
                commits = self._up(stream, life, root, low + 1, limit)
            wrong: CorruptRecord | None = None
            try:
                page = _page(commits, low, high, limit, reverse)
            except CorruptRecord as error:
                page, wrong = [], error
            if page is None:
                self._streams.look(stream)  # which brings the deletion to its end
                return []
            # Read last: what a deletion removed meanwhile, it had written there before.
            if self._streams.is_still(stream, root):
                if wrong is not None:
                    raise wrong
                return page
        raise Unavailable(f"{stream} is being changed too often at the moment; try again")

    def _up(
        self, stream: StreamKey, life: bytes, root: StreamRoot, version: int, limit: int | None
    ) -> Iterator[Commit]:
        """The commits from the one on that holds a version; more than `limit` of them are not needed."""
        commit = self._holding(stream, life, root, version)
        if commit is None and self._reaches(stream, life, version):
            # It has grown since. An append of several records has its name from the first of them.
            commit = self._holding(stream, life, root, version) or self._missing(stream, version)
        width, looked = WINDOW, 0
        found: dict[int, Commit] = {}
        while commit is not None:
            yield commit
            if commit.ends:
                return
            first = commit.last + 1
            place = self._streams.known(stream)
            if not found and first >= looked and (place is None or place.version >= first):
                width = min(width if place is None else max(width, place.version + 1 - first), MOST)
                found, looked = (
                    self._window(stream, life, first, width, limit or MOST),
                    first + width,
                )
                width *= 4
            commit = found.pop(first, None)
            if commit is None:
                # A list may lag behind; a name that is asked for does not.
                commit = self._streams.commit(stream, life, first) or self._at_end(
                    stream, life, first
                )
                found = {}

    def _at_end(self, stream: StreamKey, life: bytes, first: int) -> Commit | None:
        """Nothing, if the stream ends before this version; what is missing in the middle must not look like the end."""
        if not self._reaches(stream, life, first):
            return None
        return self._streams.commit(stream, life, first) or self._missing(stream, first)

    def _reaches(self, stream: StreamKey, life: bytes, version: int) -> bool:
        place = self._streams.known(stream) or self._streams.look(stream).place
        return place is not None and place.life == life and place.version >= version

    @staticmethod
    def _missing(stream: StreamKey, version: int) -> NoReturn:
        raise CorruptRecord(str(stream), version=version, what="a commit is missing")

    def _window(
        self, stream: StreamKey, life: bytes, first: int, width: int, limit: int
    ) -> dict[int, Commit]:
        """Some of the commits that begin at this version or soon after."""
        after, until = version_name(first + width), version_name(first)
        page = self._streams.scan(stream, life, after=after, until=until, limit=limit, reverse=True)
        commits = [self._streams.opened(stream, life, named.name, named.data) for named in page]
        return {commit.first: commit for commit in commits}

    def _holding(
        self, stream: StreamKey, life: bytes, root: StreamRoot, version: int
    ) -> Commit | None:
        """The commit that holds a version."""
        if root.first is not None and version <= root.first.last:
            return root.first
        commit = self._streams.commit(stream, life, version)
        if commit is not None:
            return commit
        below = next(self._streams.commits_below(stream, life, version, limit=1), None)
        if below is None:
            below = self._streams.commit(stream, life, 1, root)
        # A list may lag behind, so it is only where we begin.
        while below is not None and not below.ends and below.last < version:
            below = self._streams.commit(stream, life, below.last + 1)
        return below

    def _down(self, stream: StreamKey, life: bytes, root: StreamRoot, top: int) -> Iterator[Commit]:
        """The commits with what is not above a version, descending."""
        if top <= 0:
            return
        lowest: int | None = None
        for commit in self._listed_down(stream, life, root, top):
            if lowest is None:
                yield from reversed(list(self._beyond(stream, life, commit, top)))
            elif commit.last + 1 != lowest:
                break
            yield commit
            lowest = commit.first
            if lowest <= 1:
                return
        raise CorruptRecord(str(stream), version=lowest and lowest - 1, what="a commit is missing")

    def _listed_down(
        self, stream: StreamKey, life: bytes, root: StreamRoot, top: int
    ) -> Iterator[Commit]:
        yield from self._streams.commits_below(stream, life, top + 1, limit=WINDOW)
        oldest = self._streams.commit(stream, life, 1, root)
        if oldest is not None:
            yield oldest

    def _beyond(self, stream: StreamKey, life: bytes, newest: Commit, top: int) -> Iterator[Commit]:
        """Commits that a list does not show yet."""
        while not newest.ends and newest.last < top:
            following = self._streams.commit(stream, life, newest.last + 1)
            if following is None:
                return
            yield following
            newest = following


def _page(
    commits: Iterable[Commit], low: int, high: int, limit: int | None, reverse: bool
) -> Sequence[Record] | None:
    """The records between two versions that fit a page, at least one; None if the stream turns out to be at its end."""
    page: list[Record] = []
    size = 0
    for commit in commits:
        if commit.ends:
            return None
        versions = range(max(commit.first, low + 1), min(commit.last + 1, high))
        for version in reversed(versions) if reverse else versions:
            digest, body = commit.records[version - commit.first]
            size += len(body)
            if page and size > PAGE_BYTES:
                return page
            page.append(Record(version, commit.append_id, digest, body))
            if len(page) == limit:
                return page
    return page
