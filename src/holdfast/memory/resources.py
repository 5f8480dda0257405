"""What all memories of an open store share: its settings, its index and who follows which stream, the vectors in memory."""

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

MOST_FOLLOWED: Final = 1_000
"""Namespaces of which a process keeps in mind how far it has followed them."""


class MemoryResources:
    """Belongs to a log. `index_at`: where the index is, if not with the data. `embedding`: for memories without their own."""

    def __init__(
        self, log: Log, index_at: str | None = None, embedding: Embedding | None = None
    ) -> None:
        self._log, self._index_at, self.embedding = log, index_at, embedding
        self._index: MemoryIndex | None = None
        self._vectors: StoreVectors | None = None
        self._following: OrderedDict[StreamKey, Follower] = OrderedDict()
        self._lock = threading.Lock()

    def follower(self, space: StreamKey) -> Follower:
        """One for each namespace that was used lately. What is forgotten with one is found again in the index."""
        from .search.catch_up import Follower
        from .search.locate import open_index

        with self._lock:
            if self._index is None:
                self._index = open_index(self._log, self._index_at)
            found = self._following.get(space)
            if found is None:
                found = self._following[space] = Follower(self._log, self._index, space)
                if len(self._following) > MOST_FOLLOWED:
                    self._following.popitem(last=False)
            self._following.move_to_end(space)
        return found

    def vectors(self) -> StoreVectors:
        """What is held of vectors. Needs numpy."""
        from .vectors.backfill import StoreVectors

        with self._lock:
            if self._vectors is None:
                self._vectors = StoreVectors()
            return self._vectors

    def close(self) -> None:
        for opened in (self._index, self._vectors):
            if opened is not None:
                opened.close()


def resources_of(log: Log) -> MemoryResources:
    """One for all that use the log, closed with it."""
    return log.attachment(MemoryResources)


def follower_of(log: Log, space: StreamKey) -> Follower:
    return resources_of(log).follower(space)


def vectors_of(log: Log) -> StoreVectors:
    return resources_of(log).vectors()
