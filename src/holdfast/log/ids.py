"""Ids: validation of stream names, and generated ids that sort by time."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from typing import Final

from ..backends import StreamKey
from ..errors import InvalidId

MAX_ID_BYTES: Final = 512
SYSTEM_TENANT: Final = "$system"
"""The tenant of the streams that belong to the whole store. User tenants cannot start with `$`."""

random_bytes: Callable[[int], bytes] = os.urandom
time_ns: Callable[[], int] = time.time_ns
"""The sources of generated ids. `holdfast.testing` replaces both."""


def check_id(id: str, what: str = "id") -> str:
    """Return the id if every backend can store it exactly. Otherwise raise `InvalidId`."""
    if not isinstance(id, str):
        raise InvalidId(f"{what} must be a str, got {type(id).__name__}")
    if not id:
        raise InvalidId(f"{what} must have at least one character, got an empty str")
    if "\0" in id:
        raise InvalidId(f"{what} must not contain a NUL character; remove it")
    try:
        size = len(id.encode())
    except UnicodeEncodeError:
        raise InvalidId(
            f"{what} must be valid Unicode, got a lone surrogate; decode the text properly"
        ) from None
    if size > MAX_ID_BYTES:
        raise InvalidId(f"{what} must be at most {MAX_ID_BYTES} bytes in UTF-8, got {size}")
    return id


def check_tenant(tenant: str) -> str:
    """Return the tenant if users may choose it. Otherwise raise `InvalidId`."""
    if check_id(tenant, "tenant").startswith("$"):
        raise InvalidId("tenant must not start with '$', which is reserved; choose another name")
    return tenant


def stream_key(tenant: str, kind: str, id: str) -> StreamKey:
    """Return the key of a stream whose tenant and kind are known to be valid."""
    return StreamKey(tenant, kind, check_id(id))


# 48 bits of time, version 7, 12 random bits, variant 2, 62 random bits. Bit 47 is zero, so that
# counting up never carries into the bits before it.
_UUID_MARKS: Final = 0x7 << 76 | 0b10 << 62
_UUID_MASK: Final = (1 << 128) - 1 & ~(0xF << 76) & ~(0b11 << 62) & ~(1 << 47)


def new_id() -> int:
    """Return a UUIDv7 as an integer. The events of one append use it and the integers after it.

    The randomness always comes from the operating system, so a forked process or a restored
    snapshot of a virtual machine never repeats an id.
    """
    noise = int.from_bytes(random_bytes(10), "big")
    return (time_ns() // 1_000_000 << 80 | noise) & _UUID_MASK | _UUID_MARKS


def new_secret() -> bytes:
    """Return 16 random bytes: a task's salt, or the incarnation of a stream."""
    return random_bytes(16)


def format_ids(id: int, count: int) -> list[str]:
    """Return the text form of a UUID and of the `count - 1` UUIDs that follow it."""
    raw = id.to_bytes(16, "big")
    text = raw.hex()  # much faster than formatting an integer, also in a loop
    front = f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-"
    ids = [front + text[20:]]
    if count > 1:
        low = int.from_bytes(raw[10:], "big")
        for number in range(low + 1, low + count):
            ids.append(front + number.to_bytes(6, "big").hex())
    return ids


def append_id(id: int | str) -> bytes:
    """Return the 16 bytes that identify an append: a generated id, or the digest of a caller's.

    A caller's id has its first bit set, so backends index it (`Append.indexed`). A generated id
    starts with the time, whose first bit stays 0 until the year 6429.
    """
    if isinstance(id, int):
        return id.to_bytes(16, "big")
    digest = hashlib.sha256(b"holdfast append id\0" + id.encode()).digest()
    return bytes((digest[0] | 0x80,)) + digest[1:16]


KINDS: Final = (
    "tenant",
    "key",
    "subject",
    "blob",
    "conversation",
    "memory",
    "state",
    "stream",
    "task",
    "notification",
    "hook",
    "closed",
    "audit",
)
"""All kinds of streams that hold data. Keys and blobs come before the streams that refer to them.
Streams of kind `worker` are no data: see `worker.registry`."""

COUNTED_KINDS: Final = tuple(sorted(set(KINDS) - {"tenant", "closed", "key", "hook"}))
"""The kinds that `health` counts."""
