"""The lists of streams: by id, by status and by due time.

An entry is put before the commit that makes it true, under a name that says of which life and version it is, and is never
put again for another. So an entry may be early, or of the past, but none is missing; what is listed is confirmed by the head.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import partial
from typing import Final, NamedTuple

from ...errors import CorruptRecord, HoldfastError
from ..interface import HeadFields, StreamKey
from . import format as form
from .lanes import ThreadLanes
from .space import Space

LIFE, VERSION = 16, 8
BEHIND: Final = b"\0" + b"\xff" * (LIFE + VERSION + 1)
"""Behind the entries of an id, and before those of the next one: ids hold no NUL."""


class IndexEntry(NamedTuple):
    """An entry taken apart. `version` is 0 in the list of all streams."""

    name: bytes
    due: bytes
    id: str
    life: bytes
    version: int

    @property
    def at(self) -> tuple[bytes, bytes]:
        return self.due, self.id.encode()


Place = tuple[str, bytes]


class ObjectIndex:
    """Puts and removes entries."""

    def __init__(self, space: Space, lanes: ThreadLanes) -> None:
        self._space, self._lanes = space, lanes

    def announce(self, places: Iterable[Place]) -> None:
        """Put entries, with the time, so that one that never came true can be told from one that is on its way."""
        data = struct.pack(">d", self._space.now())
        self._lanes.all(
            [partial(self._space.put, partition, name, data) for partition, name in places]
        )

    def announced(self, partition: str, name: bytes) -> float:
        try:
            named = self._space.get(partition, name)
        except CorruptRecord:
            return 0.0  # of no use to anybody
        return (
            struct.unpack(">d", named.data)[0]
            if named is not None and len(named.data) == 8
            else 0.0
        )

    def remove(
        self,
        stream: StreamKey,
        life: bytes,
        fields: HeadFields,
        status_version: int,
        due_version: int,
    ) -> None:
        """Remove the entries of these fields."""
        for place in (
            status_place(stream, life, fields, status_version),
            due_place(stream, life, fields, due_version),
        ):
            if place is not None:
                self._space.remove(place[0], [place[1]])

    def unlist(self, stream: StreamKey, life: bytes) -> None:
        partition, name = all_place(stream, life)
        self._space.remove(partition, [name])

    def drop(self, partition: str, names: list[bytes]) -> None:
        """Remove entries of the past. A reader without the right to do so leaves them to others."""
        try:
            self._space.remove(partition, names)
        except HoldfastError:
            pass


def all_partition(tenant: str, kind: str) -> str:
    return "a/" + form.hashed(tenant, kind).hex()


def status_partition(tenant: str, kind: str, status: str) -> str:
    return "s/" + form.hashed(tenant, kind, status).hex()


def due_partition(tenant: str, kind: str) -> str:
    return "d/" + form.hashed(tenant, kind).hex()


def all_place(stream: StreamKey, life: bytes) -> Place:
    return all_partition(stream.tenant, stream.kind), stream.id.encode() + b"\0" + life


def status_place(stream: StreamKey, life: bytes, fields: HeadFields, version: int) -> Place | None:
    if fields.status is None:
        return None
    name = stream.id.encode() + b"\0" + life + version.to_bytes(VERSION, "big")
    return status_partition(stream.tenant, stream.kind, fields.status), name


def due_place(stream: StreamKey, life: bytes, fields: HeadFields, version: int) -> Place | None:
    if fields.due is None:
        return None
    name = (
        form.time_name(fields.due)
        + stream.id.encode()
        + b"\0"
        + life
        + version.to_bytes(VERSION, "big")
    )
    return due_partition(stream.tenant, stream.kind), name


def entries(names: Iterable[bytes], *, due: bool = False, version: bool = True) -> list[IndexEntry]:
    """Take the names of entries apart. What is no entry, nobody of us has put there."""
    found = []
    for name in names:
        time, rest = (name[:8], name[8:]) if due else (b"", name)
        size = LIFE + (VERSION if version else 0)
        # From the end: a life and a version are any bytes.
        front, tail = rest[:-size], rest[-size:]
        if len(front) > 1 and front.endswith(b"\0"):
            try:
                text = front[:-1].decode()
            except UnicodeDecodeError:
                continue
            found.append(
                IndexEntry(name, time, text, tail[:LIFE], int.from_bytes(tail[LIFE:], "big"))
            )
    return found
