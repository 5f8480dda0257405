"""The reference backend: streams in a dictionary. Read this one first.

It keeps nothing after the process ends, as `describe()` reports. `memory://` is private to one
store; `memory://name` is shared by all stores of the process that use this name.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import ClassVar

from ..errors import StoreClosed
from . import clock
from .fork import Forkable, register_forkable
from .interface import (
    PAGE_BYTES,
    Append,
    AppendResult,
    BackendProblem,
    Cursor,
    Description,
    Head,
    HeadFields,
    Record,
    StreamKey,
    VersionMismatch,
    find_first_head,
    is_indexed,
)


class _Stream:
    """One incarnation of a stream."""

    def __init__(self, incarnation: bytes) -> None:
        self.incarnation = incarnation
        self.records: list[Record] = []
        self.ids: dict[bytes, tuple[int, int]] = {}
        self.fields = HeadFields()
        self.version = 0
        self.hash = b""

    @property
    def position(self) -> tuple[int, bytes, bytes]:
        return self.version, self.hash, self.incarnation

    def get_record(self, version: int) -> Record | None:
        return self.records[version - 1] if 0 < version <= len(self.records) else None

    def find_ids(self) -> dict[bytes, tuple[int, int]]:
        """Return the indexed append ids, with their first and last version, from the records."""
        ids: dict[bytes, tuple[int, int]] = {}
        for record in self.records:
            if is_indexed(record.append_id):
                first, _ = ids.get(record.append_id, (record.version, 0))
                ids[record.append_id] = first, record.version
        return ids


class MemoryBackend(Forkable):
    """Keeps streams in memory. Stores share a named backend, so closing it does nothing."""

    _shared: ClassVar[dict[str, MemoryBackend]] = {}
    _shared_lock = threading.Lock()

    @classmethod
    def get_shared(cls, name: str) -> MemoryBackend:
        """Return the backend that the whole process shares under this name."""
        with cls._shared_lock:
            if name not in cls._shared:
                cls._shared[name] = cls(name)
            return cls._shared[name]

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._streams: dict[StreamKey, _Stream] = {}
        self._tombstones: dict[StreamKey, set[bytes]] = {}
        self._closed = False
        register_forkable(self)

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        with self._lock:
            self._check_open()
            return [self._append(append, clock.time()) for append in batch]

    def _append(self, append: Append, now: float) -> AppendResult | VersionMismatch:
        stream = self._streams.get(append.stream)
        versions = self._find_repeated(stream, append) if stream else None
        if versions:
            return AppendResult(*versions, duplicate=True, now=now)
        if stream is None:
            if append.expected != 0 or append.incarnation in self._tombstones.get(
                append.stream, ()
            ):
                return VersionMismatch(None)
            stream = _Stream(append.incarnation)
        elif stream.position != (append.expected, append.expected_hash, append.incarnation):
            return VersionMismatch(self._head(append.stream, stream, now))
        first = append.expected + 1
        records: list[Record] = []
        version, digest = append.expected, append.expected_hash
        for version, (digest, body) in enumerate(append.records, first):
            records.append(Record(version, append.id, digest, body))
        answer = AppendResult(first, version, now=now)
        # No calls from here on: an interrupt during one could leave a part of the append.
        stream.records += records
        stream.version, stream.hash = version, digest
        if append.indexed:
            stream.ids[append.id] = first, version
        if append.fields is not None:
            stream.fields = append.fields
        self._streams[append.stream] = stream
        return answer

    @staticmethod
    def _find_repeated(stream: _Stream, append: Append) -> tuple[int, int] | None:
        """Return the first and last version of this append if it is already stored."""
        if append.indexed and append.id in stream.ids:
            return stream.ids[append.id]
        first = append.expected + 1
        record = stream.get_record(first)
        if (
            record is None
            or record.append_id != append.id
            or stream.incarnation != append.incarnation
        ):
            return None
        # The stored versions: a repeat may have another number of records.
        last = first
        while (successor := stream.get_record(last + 1)) and successor.append_id == append.id:
            last += 1
        return first, last

    def find_append(self, stream: StreamKey, id: bytes) -> tuple[int, int] | None:
        with self._lock:
            self._check_open()
            found = self._streams.get(stream)
            return found.ids.get(id) if found else None

    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        with self._lock:
            self._check_open()
            found = self._streams.get(stream)
            if found is None:
                return []
            if reverse:
                end = after - 1 if after else found.version
                candidates = found.records[max(end, 0) - 1 :: -1] if end > 0 else []
            else:
                candidates = found.records[after:]
        return _truncate_page(candidates if limit is None else candidates[:limit])

    def head(self, stream: StreamKey) -> Head | None:
        with self._lock:
            self._check_open()
            found = self._streams.get(stream)
            return self._head(stream, found, clock.time()) if found else None

    def first_head(self, streams: Sequence[StreamKey]) -> Head | None:
        return find_first_head(self.head, streams)

    def heads(
        self,
        *,
        tenant: str,
        kind: str,
        status: str | None = None,
        after: str = "",
        limit: int = 500,
    ) -> Sequence[Head]:
        # Code points sort like UTF-8 bytes, so comparing str is enough.
        found = [
            head
            for head in self._list_heads(tenant, kind)
            if status is None or head.fields.status == status
        ]
        found.sort(key=lambda head: head.stream.id)
        return found[bisect_right(found, after, key=lambda head: head.stream.id) :][:limit]

    def due(
        self,
        *,
        tenant: str,
        kind: str,
        before: float | None = None,
        after: Cursor | None = None,
        limit: int = 100,
    ) -> Sequence[Head]:
        entries = []
        for head in self._list_heads(tenant, kind):
            due = head.fields.due
            if due is None or (before is not None and due > before):
                continue
            if after is None or (due, head.stream.id) > after:
                entries.append((due, head.stream.id, head))
        return [head for _, _, head in sorted(entries)[:limit]]

    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        with self._lock:
            self._check_open()
            found = self._streams.get(stream)
            if found is None or found.position != expected.position:
                return False
            del self._streams[stream]
            self._tombstones.setdefault(stream, set()).add(found.incarnation)
            return True

    def list_scopes(self) -> Sequence[tuple[str, str]]:
        with self._lock:
            self._check_open()
            return sorted({(key.tenant, key.kind) for key in self._streams})

    def check(self) -> Iterator[BackendProblem]:
        with self._lock:
            self._check_open()
            streams = list(self._streams.items())
            wrong = [key for key, stream in streams if stream.ids != stream.find_ids()]
        for key in wrong:
            yield BackendProblem("its append ids do not match its records", key, derived=True)

    def rebuild(self) -> int:
        with self._lock:
            self._check_open()
            wrong = [each for each in self._streams.values() if each.ids != each.find_ids()]
            for stream in wrong:
                stream.ids = stream.find_ids()
            return len(wrong)

    def replace_fields(self, expected: Head, fields: HeadFields) -> bool:
        with self._lock:
            self._check_open()
            found = self._streams.get(expected.stream)
            if found is None or found.position != expected.position:
                return False
            found.fields = fields
            return True

    def describe(self) -> Description:
        with self._lock:
            self._check_open()
            size = sum(
                len(record.body) for stream in self._streams.values() for record in stream.records
            )
        return Description(
            "memory", "1", f"memory://{self._name}", "memory", sizes={"records": size}
        )

    def close(self) -> None:
        # The other stores that share a named backend keep their data.
        if not self._name:
            self._closed = True

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        self._lock.release()

    def after_fork_in_child(self) -> None:
        self._lock.release()

    def _list_heads(self, tenant: str, kind: str) -> list[Head]:
        with self._lock:
            self._check_open()
            now = clock.time()
            return [
                self._head(key, stream, now)
                for key, stream in self._streams.items()
                if key[:2] == (tenant, kind)
            ]

    @staticmethod
    def _head(key: StreamKey, stream: _Stream, now: float) -> Head:
        return Head(key, stream.incarnation, stream.fields, now, stream.version, stream.hash)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("this memory store was closed; open it again")


def _truncate_page(records: Sequence[Record]) -> Sequence[Record]:
    """Return the longest prefix that fits a page, at least one record."""
    size = 0
    for count, record in enumerate(records):
        size += len(record.body)
        if size > PAGE_BYTES and count:
            return records[:count]
    return records
