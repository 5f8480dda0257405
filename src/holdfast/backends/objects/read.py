"""Read a stream page by page, in both directions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NoReturn

from ...errors import CorruptRecord, Unavailable
from ..interface import PAGE_BYTES, Record, StreamKey
from . import format as form
from .format import Commit, StreamRoot, version_name
from .streams import MAX_ATTEMPTS, ObjectStreams

MIN_WINDOW: Final = 16
MAX_WINDOW: Final = 1_000
"""How many commits to request at once, at least and at most."""


class ObjectReader:
    """Reads pages of records."""

    def __init__(self, streams: ObjectStreams) -> None:
        self._streams = streams

    def read(
        self, stream: StreamKey, after: int, limit: int | None, reverse: bool
    ) -> Sequence[Record]:
        position = self._streams.get_cached(stream)
        if position is not None and not reverse and position.version <= after:
            # The caller polls for new records; usually there are none.
            position = self._streams.load(stream).position
            if position is None or position.version <= after:
                return []
        for _ in range(MAX_ATTEMPTS):
            root, _tag = self._streams.read_root(stream)
            if root is None or root.incarnation is None:
                return []
            lineage = form.lineage_of(stream, root.incarnation)
            if reverse:
                low, high = 0, after or form.VERSION_LIMIT
                commits = self._descend(stream, lineage, root, high - 1)
            else:
                low, high = after, form.VERSION_LIMIT
                commits = self._ascend(stream, lineage, root, low + 1, limit)
            damage: CorruptRecord | None = None
            try:
                page = _fill_page(commits, low, high, limit, reverse)
            except CorruptRecord as error:
                page, damage = [], error
            if page is None:
                self._streams.load(stream)  # finishes the deletion
                return []
            # Check the root last: a deletion marks it before it removes anything.
            if self._streams.is_current(stream, root):
                if damage is not None:
                    raise damage
                return page
        raise Unavailable(f"{stream} keeps being changed by other writers; retry")

    def _ascend(
        self, stream: StreamKey, lineage: bytes, root: StreamRoot, version: int, limit: int | None
    ) -> Iterator[Commit]:
        """Yield the commits from the one with this version on; the caller needs at most `limit`."""
        commit = self._find_commit(stream, lineage, root, version)
        if commit is None and self._reaches(stream, lineage, version):
            # The stream has grown. An append of several records is named by the first of them.
            commit = self._find_commit(stream, lineage, root, version) or self._raise_missing(
                stream, version
            )
        width, window_end = MIN_WINDOW, 0
        found: dict[int, Commit] = {}
        while commit is not None:
            yield commit
            if commit.ends:
                return
            first = commit.last + 1
            position = self._streams.get_cached(stream)
            if (
                not found
                and first >= window_end
                and (position is None or position.version >= first)
            ):
                width = min(
                    width if position is None else max(width, position.version + 1 - first),
                    MAX_WINDOW,
                )
                found, window_end = (
                    self._read_window(stream, lineage, first, width, limit or MAX_WINDOW),
                    first + width,
                )
                width *= 4
            commit = found.pop(first, None)
            if commit is None:
                # A listing may lag behind; reading a name does not.
                commit = self._streams.read_commit(stream, lineage, first) or self._read_unless_end(
                    stream, lineage, first
                )
                found = {}

    def _read_unless_end(self, stream: StreamKey, lineage: bytes, first: int) -> Commit | None:
        """Return None if the stream ends before this version; a gap must not look like the end."""
        if not self._reaches(stream, lineage, first):
            return None
        return self._streams.read_commit(stream, lineage, first) or self._raise_missing(
            stream, first
        )

    def _reaches(self, stream: StreamKey, lineage: bytes, version: int) -> bool:
        position = self._streams.get_cached(stream) or self._streams.load(stream).position
        return position is not None and position.lineage == lineage and position.version >= version

    @staticmethod
    def _raise_missing(stream: StreamKey, version: int) -> NoReturn:
        raise CorruptRecord(str(stream), version=version, what="a commit is missing")

    def _read_window(
        self, stream: StreamKey, lineage: bytes, first: int, width: int, limit: int
    ) -> dict[int, Commit]:
        """Return commits that start at this version or soon after it, by their first version."""
        after, until = version_name(first + width), version_name(first)
        page = self._streams.scan(
            stream, lineage, after=after, until=until, limit=limit, reverse=True
        )
        commits = [
            self._streams.decode_commit(stream, lineage, named.name, named.data) for named in page
        ]
        return {commit.first: commit for commit in commits}

    def _find_commit(
        self, stream: StreamKey, lineage: bytes, root: StreamRoot, version: int
    ) -> Commit | None:
        """Return the commit that has a version."""
        if root.first is not None and version <= root.first.last:
            return root.first
        commit = self._streams.read_commit(stream, lineage, version)
        if commit is not None:
            return commit
        below = next(self._streams.commits_below(stream, lineage, version, limit=1), None)
        if below is None:
            below = self._streams.read_commit(stream, lineage, 1, root)
        # A listing may lag behind, so it is only the start.
        while below is not None and not below.ends and below.last < version:
            below = self._streams.read_commit(stream, lineage, below.last + 1)
        return below

    def _descend(
        self, stream: StreamKey, lineage: bytes, root: StreamRoot, top: int
    ) -> Iterator[Commit]:
        """Yield the commits with versions up to `top`, in descending order."""
        if top <= 0:
            return
        lowest: int | None = None
        for commit in self._list_commits(stream, lineage, root, top):
            if lowest is None:
                yield from reversed(list(self._read_following(stream, lineage, commit, top)))
            elif commit.last + 1 != lowest:
                break
            yield commit
            lowest = commit.first
            if lowest <= 1:
                return
        raise CorruptRecord(str(stream), version=lowest and lowest - 1, what="a commit is missing")

    def _list_commits(
        self, stream: StreamKey, lineage: bytes, root: StreamRoot, top: int
    ) -> Iterator[Commit]:
        yield from self._streams.commits_below(stream, lineage, top + 1, limit=MIN_WINDOW)
        oldest = self._streams.read_commit(stream, lineage, 1, root)
        if oldest is not None:
            yield oldest

    def _read_following(
        self, stream: StreamKey, lineage: bytes, newest: Commit, top: int
    ) -> Iterator[Commit]:
        """Yield commits that the listing does not have yet."""
        while not newest.ends and newest.last < top:
            following = self._streams.read_commit(stream, lineage, newest.last + 1)
            if following is None:
                return
            yield following
            newest = following


def _fill_page(
    commits: Iterable[Commit], low: int, high: int, limit: int | None, reverse: bool
) -> Sequence[Record] | None:
    """Return the records between two versions that fit in a page, at least one.

    Return None if a commit shows that the stream was deleted.
    """
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
