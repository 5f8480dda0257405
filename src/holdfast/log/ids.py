"""Ids: which names streams may have, and ids of our own that sort by time."""

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
"""Holds what belongs to the store as a whole. Tenants of users cannot begin with `$`."""

random_bytes: Callable[[int], bytes] = os.urandom
time_ns: Callable[[], int] = time.time_ns
"""Where ids come from: `holdfast.testing` replaces both."""


def checked_id(id: str, what: str = "id") -> str:
    """The id itself, if every backend can keep it apart from all others."""
    if not isinstance(id, str):
        raise InvalidId(f"{what} must be a str, got {type(id).__name__}")
    if not id:
        raise InvalidId(f"{what} must have at least one character, got ")
    if "\0" in id:
        raise InvalidId(f"{what} holds a NUL character, which no storage engine keeps; remove it")
    try:
        size = len(id.encode())
    except UnicodeEncodeError:
        raise InvalidId(
            f"{what} holds half of a surrogate pair, which is not text; decode it properly"
        ) from None
    if size > MAX_ID_BYTES:
        raise InvalidId(f"{what} is {size} bytes long in UTF-8; the limit is {MAX_ID_BYTES}")
    return id


def checked_tenant(tenant: str) -> str:
    """The tenant itself, if users may have it."""
    if checked_id(tenant, "tenant").startswith("$"):
        raise InvalidId("tenant begins with '$', which is reserved; choose another name")
    return tenant


def stream_key(tenant: str, kind: str, id: str) -> StreamKey:
    """The key of a stream whose tenant and kind are known to be good."""
    return StreamKey(tenant, kind, checked_id(id))


def new_id() -> int:
    """A UUIDv7 as an integer. The next few integers are free too: the events of one append count up from it.

    The randomness comes from the operating system each time, so that a fork or a restored
    snapshot of a virtual machine never repeats one.
    """
    milliseconds = time_ns() // 1_000_000
    noise = int.from_bytes(random_bytes(10), "big")
    # 48 bits of time, version 7, 12 random bits, variant 2, 62 random bits but for one that is zero, to count into.
    return (
        milliseconds << 80
        | 0x7 << 76
        | (noise >> 68) << 64
        | 0b10 << 62
        | noise & ((1 << 62) - 1) & ~(1 << 47)
    )


def new_secret() -> bytes:
    """16 random bytes: a task's salt, or the incarnation of a stream."""
    return random_bytes(16)


def id_texts(id: int, count: int) -> list[str]:
    """The usual form of a UUID, and of the ones that follow it."""
    if count == 1:
        text = f"{id:032x}"
        return [f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"]
    text = f"{id >> 48:020x}"
    front, low = f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:]}-", id & (1 << 48) - 1
    return [f"{front}{low + index:012x}" for index in range(count)]


def append_id(id: int | str) -> bytes:
    """The 16 bytes under which a backend knows an append: our own id as it is, a caller's id by its digest."""
    if isinstance(id, int):
        return id.to_bytes(16, "big")
    return hashlib.sha256(b"holdfast append id\0" + id.encode()).digest()[:16]


# All kinds of streams that there are. Whoever goes through a whole store asks here.


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
    "closed",
    "audit",
)
"""What is pointed to comes before what points to it: keys and blobs before the streams that name them."""

COUNTED: Final = tuple(sorted(set(KINDS) - {"tenant", "closed", "key"}))
"""What `health` counts: not what only says that something is, or was, there."""
