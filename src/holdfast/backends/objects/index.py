"""Indexes of the streams: by id, by status and by due time.

An entry is stored before the commit that makes it valid. Its name has the lineage and the version,
so it is never reused. An entry may therefore be early or obsolete, but none is missing; listings
confirm each entry with the head of its stream.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import partial
from typing import Final, NamedTuple

from ...errors import CorruptRecord, HoldfastError
from ..interface import HeadFields, StreamKey
from . import format as form
from .request_pool import RequestPool
from .space import Space

LINEAGE_BYTES, VERSION_BYTES = 16, 8
AFTER_ENTRIES: Final = b"\0" + b"\xff" * (LINEAGE_BYTES + VERSION_BYTES + 1)
"""Sorts after all entries of an id and before those of the next one: ids contain no NUL."""


class IndexEntry(NamedTuple):
    """A parsed entry. `version` is 0 in the index of all streams."""

    name: bytes
    due: bytes
    id: str
    lineage: bytes
    version: int

    @property
    def sort_key(self) -> tuple[bytes, bytes]:
        return self.due, self.id.encode()


EntryKey = tuple[str, bytes]


class ObjectIndex:
    """Stores and removes entries."""

    def __init__(self, space: Space, pool: RequestPool) -> None:
        self._space, self._pool = space, pool

    def announce(self, entries: Iterable[EntryKey]) -> None:
        """Store entries with the current time, so that abandoned ones can be recognized later."""
        data = struct.pack(">d", self._space.now())
        self._pool.run_all(
            [partial(self._space.put, partition, name, data) for partition, name in entries]
        )

    def read_announce_time(self, partition: str, name: bytes) -> float:
        try:
            named = self._space.get(partition, name)
        except CorruptRecord:
            return 0.0  # useless: treat it as abandoned
        return (
            struct.unpack(">d", named.data)[0]
            if named is not None and len(named.data) == 8
            else 0.0
        )

    def remove(
        self,
        stream: StreamKey,
        lineage: bytes,
        fields: HeadFields,
        status_version: int,
        due_version: int,
    ) -> None:
        """Remove the status and due entries of these fields."""
        for entry in (
            status_entry(stream, lineage, fields, status_version),
            due_entry(stream, lineage, fields, due_version),
        ):
            if entry is not None:
                self._space.remove(entry[0], [entry[1]])

    def unlist(self, stream: StreamKey, lineage: bytes) -> None:
        partition, name = all_entry(stream, lineage)
        self._space.remove(partition, [name])

    def try_remove(self, partition: str, names: list[bytes]) -> None:
        """Remove obsolete entries; ignore errors, as a reader may lack the permission."""
        try:
            self._space.remove(partition, names)
        except HoldfastError:
            pass


def all_partition(tenant: str, kind: str) -> str:
    return "a/" + form.hash_parts(tenant, kind).hex()


def status_partition(tenant: str, kind: str, status: str) -> str:
    return "s/" + form.hash_parts(tenant, kind, status).hex()


def due_partition(tenant: str, kind: str) -> str:
    return "d/" + form.hash_parts(tenant, kind).hex()


def all_entry(stream: StreamKey, lineage: bytes) -> EntryKey:
    return all_partition(stream.tenant, stream.kind), stream.id.encode() + b"\0" + lineage


def status_entry(
    stream: StreamKey, lineage: bytes, fields: HeadFields, version: int
) -> EntryKey | None:
    if fields.status is None:
        return None
    name = stream.id.encode() + b"\0" + lineage + version.to_bytes(VERSION_BYTES, "big")
    return status_partition(stream.tenant, stream.kind, fields.status), name


def due_entry(
    stream: StreamKey, lineage: bytes, fields: HeadFields, version: int
) -> EntryKey | None:
    if fields.due is None:
        return None
    name = (
        form.encode_time(fields.due)
        + stream.id.encode()
        + b"\0"
        + lineage
        + version.to_bytes(VERSION_BYTES, "big")
    )
    return due_partition(stream.tenant, stream.kind), name


def parse_entries(
    names: Iterable[bytes], *, due: bool = False, version: bool = True
) -> list[IndexEntry]:
    """Parse the names of entries; skip names that Holdfast did not write."""
    found = []
    for name in names:
        time, rest = (name[:8], name[8:]) if due else (b"", name)
        size = LINEAGE_BYTES + (VERSION_BYTES if version else 0)
        # Parse from the end: a lineage and a version may contain any byte.
        front, tail = rest[:-size], rest[-size:]
        if len(front) > 1 and front.endswith(b"\0"):
            try:
                text = front[:-1].decode()
            except UnicodeDecodeError:
                continue
            found.append(
                IndexEntry(
                    name,
                    time,
                    text,
                    tail[:LINEAGE_BYTES],
                    int.from_bytes(tail[LINEAGE_BYTES:], "big"),
                )
            )
    return found
