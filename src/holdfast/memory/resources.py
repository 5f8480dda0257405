"""The resources that all memories of an open store share: index, followers, vectors, settings."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from ..backends import StreamKey
from ..log.log import Log

if TYPE_CHECKING:
    from .search.catch_up import Follower
    from .search.index import MemoryIndex
    from .vectors.backfill import StoreVectors
    from .vectors.embedding import Embedding

MAX_FOLLOWERS: Final = 1_000
"""Namespaces whose position a process keeps in memory."""


class MemoryResources:
    """Attached to a log. `index_path`: where the index is, if not with the data.

    `embedding`: for memories that are opened without an embedder.
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
        """Return the follower of a namespace. An evicted one resumes from the index."""
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

    def vectors(self) -> StoreVectors:
        """Return the vectors in this process. Needs numpy."""
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
    """Return the resources of a log, which closes them."""
    return log.attachment(MemoryResources)


def get_follower(log: Log, space: StreamKey) -> Follower:
    return get_resources(log).follower(space)


def get_vectors(log: Log) -> StoreVectors:
    return get_resources(log).vectors()
