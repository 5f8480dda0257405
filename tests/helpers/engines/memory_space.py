"""A space in memory, for the tests of what is built on one. It can fail at any call, and be slow to
list."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from holdfast.backends.interface import Description
from holdfast.backends.objects.space import NamedBytes


class MemorySpace:
    """Named bytes in a dictionary. `before` is called with every operation and its partition, and
    `after` when it was done."""

    max_bytes = 64 * 1024 * 1024

    def __init__(self) -> None:
        self.objects: dict[str, dict[bytes, tuple[bytes, int]]] = {}
        self._lock = threading.Lock()
        self._tags = 0
        self.before: Callable[[str, str], None] = lambda operation, partition: None
        self.after: Callable[[str, str], None] = lambda operation, partition: None
        self.ahead = 0.0

    def get(self, partition: str, name: bytes) -> NamedBytes | None:
        self.before("get", partition)
        with self._lock:
            found = self.objects.get(partition, {}).get(name)
        return None if found is None else NamedBytes(name, found[0], str(found[1]))

    def create(self, partition: str, name: bytes, data: bytes) -> bool:
        self.before("create", partition)
        with self._lock:
            made = name not in self.objects.get(partition, {})
            if made:
                self._put(partition, name, data)
        self.after("create", partition)
        return made

    def replace(self, partition: str, name: bytes, data: bytes, tag: str) -> bool:
        self.before("replace", partition)
        with self._lock:
            found = self.objects.get(partition, {}).get(name)
            made = found is not None and str(found[1]) == tag
            if made:
                self._put(partition, name, data)
        self.after("replace", partition)
        return made

    def put(self, partition: str, name: bytes, data: bytes) -> None:
        self.before("put", partition)
        with self._lock:
            self._put(partition, name, data)
        self.after("put", partition)

    def _put(self, partition: str, name: bytes, data: bytes) -> None:
        assert 1 <= len(name) <= 600
        assert len(data) <= self.max_bytes
        self._tags += 1
        self.objects.setdefault(partition, {})[name] = bytes(data), self._tags

    def list(
        self, partition: str, *, after: bytes = b"", until: bytes | None = None, limit: int
    ) -> Sequence[bytes]:
        self.before("list", partition)
        return [named.name for named in self._behind(partition, after, until)[:limit]]

    def scan(
        self,
        partition: str,
        *,
        after: bytes = b"",
        until: bytes | None = None,
        limit: int,
        reverse: bool = False,
    ) -> Sequence[NamedBytes]:
        self.before("scan", partition)
        behind = self._behind(partition, after, until)
        page, size = [], 0
        for named in (behind[::-1] if reverse else behind)[:limit]:
            page.append(named)
            size += len(named.data)
            if size > 8 * 1024 * 1024:
                break
        return page

    def _behind(self, partition: str, after: bytes, until: bytes | None) -> Sequence[NamedBytes]:
        assert len(after) <= 600
        assert len(until or b"") <= 600
        with self._lock:
            objects = sorted(self.objects.get(partition, {}).items())
        behind = [
            (name, held)
            for name, held in objects
            if name > after and (until is None or name <= until)
        ]
        return [NamedBytes(name, data, str(tag)) for name, (data, tag) in behind]

    def walk(self, front: str) -> Iterator[tuple[str, bytes]]:
        self.before("walk", front)
        with self._lock:
            held = list(self.held())
        return iter([one for one in held if one[0].startswith(front)])

    def remove(self, partition: str, names: Iterable[bytes]) -> None:
        self.before("remove", partition)
        with self._lock:
            for name in names:
                self.objects.get(partition, {}).pop(name, None)
        self.after("remove", partition)

    def now(self) -> float:
        return time.time() + self.ahead

    def reset_after_fork(self) -> None:
        self._lock = threading.Lock()

    def describe(self) -> Description:
        return Description("space", "1", "in memory", "memory")

    def close(self) -> None:
        pass

    def held(self, *kinds: str) -> Sequence[tuple[str, bytes]]:
        """What is there, in the partitions of these kinds."""
        return [
            (partition, name)
            for partition, objects in self.objects.items()
            for name in objects
            if partition[0] in kinds or not kinds
        ]
