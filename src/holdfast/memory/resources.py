"""The resources that all memories of an open store share: index, followers, vectors, settings."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from ..backends import StreamKey
from ..log.log import Log

if TYPE_CHECKING:
    from .search.catch_up import Follower
    from .search.check import IndexProblem
    from .search.index import MemoryIndex
    from .vectors.backfill import StoreVectors
    from .vectors.embedding import Embedding

MAX_FOLLOWERS: Final = 1_000
"""How many namespaces' followers a process keeps."""


class MemoryResources:
    """The memory resources of a log. `index_path` is where the index is, if not with the data.

    `embedding` is the embedder for memories that are opened without one.
    """

    def __init__(
        self, log: Log, index_path: str | None = None, embedding: Embedding | None = None
    ) -> None:
        self._log, self._index_path, self.embedding = log, index_path, embedding
        self._index: MemoryIndex | None = None
        self._vectors: StoreVectors | None = None
        self._followers: OrderedDict[StreamKey, Follower] = OrderedDict()
        self._lock = threading.Lock()

    def follower(self, space: StreamKey) -> Follower:
        """Return the follower of a namespace.

        If it was evicted, a new one starts from the index.
        """
        from .search.catch_up import Follower
        from .search.locate import open_index

        with self._lock:
            if self._index is None:
                self._index = open_index(self._log, self._index_path)
            found = self._followers.get(space)
            if found is None:
                found = self._followers[space] = Follower(self._log, self._index, space)
                if len(self._followers) > MAX_FOLLOWERS:
                    self._followers.popitem(last=False)
            self._followers.move_to_end(space)
        return found

    def check(self, spaces: Iterable[StreamKey]) -> Iterator[IndexProblem]:
        """Compare the stored index of these namespaces with their streams."""
        from .search.check import check_index

        yield from check_index(self._log, self._index_path, spaces)

    def reset_index(self) -> None:
        """Drop the whole index. Each namespace is derived again when it is next used."""
        from .search.index import IndexUnusable
        from .search.locate import open_index

        with self._lock:
            index = self._index = self._index or open_index(self._log, self._index_path)
        index.repair(IndexUnusable("the memory index was altered"))

    def vectors(self) -> StoreVectors:
        """Return the vectors that this process keeps. Needs numpy."""
        from .vectors.backfill import StoreVectors

        with self._lock:
            if self._vectors is None:
                self._vectors = StoreVectors()
            return self._vectors

    def close(self) -> None:
        for resource in (self._index, self._vectors):
            if resource is not None:
                resource.close()


def get_resources(log: Log) -> MemoryResources:
    """Return the memory resources of a log. The log closes them."""
    return log.attachment(MemoryResources)


def get_follower(log: Log, space: StreamKey) -> Follower:
    return get_resources(log).follower(space)


def get_vectors(log: Log) -> StoreVectors:
    return get_resources(log).vectors()
