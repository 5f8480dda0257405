"""The hash chain: every record's hash covers its bytes, its position and all records before it.

    hash(n) = H(seed, hash(n-1), n, H(stored bytes))
    seed = H(domain, tenant, kind, id, incarnation)

It needs no key and covers the bytes as stored, so it can be checked without keys and after erasure.
A record that was edited, moved, swapped or taken from another stream or incarnation does not match.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final

from ..backends import Record, StreamKey

_DOMAIN: Final = b"holdfast chain 1"
GENESIS: Final = bytes(32)
"""The hash before version 1."""


def seed(stream: StreamKey, incarnation: bytes) -> bytes:
    """Return the seed that binds a chain to one incarnation of its stream.

    The parts are length-prefixed, so no two streams share a seed.
    """
    digest = sha256(_DOMAIN)
    for part in (*(part.encode() for part in stream), incarnation):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def link(seed: bytes, previous: bytes, version: int, body: bytes) -> bytes:
    """Return the hash of a record. All parts have a fixed length, so the input is unambiguous."""
    return sha256(seed + previous + version.to_bytes(8, "big") + sha256(body).digest()).digest()


def extend(
    seed: bytes, previous: bytes, version: int, bodies: Iterable[bytes]
) -> list[tuple[bytes, bytes]]:
    """Return (hash, body) of new records that follow `version`, whose hash is `previous`."""
    links = []
    for body in bodies:
        version += 1
        previous = link(seed, previous, version, body)
        links.append((previous, body))
    return links


def find_first_bad(seed: bytes, anchor: Record | None, records: Sequence[Record]) -> int | None:
    """Return the first version that is missing, altered or out of place; None if all match.

    `anchor` is the record before them, None at the start of the stream.
    """
    version, previous = (anchor.version, anchor.hash) if anchor else (0, GENESIS)
    for record in records:
        version += 1
        if record.version != version:
            return version
        expected = link(seed, previous, version, record.body)
        if expected != record.hash:
            return version
        previous = expected
    return None
