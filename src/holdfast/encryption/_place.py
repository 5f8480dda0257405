"""Where the ring is: what tells an encrypted store from one in clear. Apart, so that the latter need import nothing else."""

from __future__ import annotations

from typing import Final

from .._ids import SYSTEM_TENANT
from ..backends import Backend, Peeking, StreamKey
from ..errors import MissingKey

RING: Final = StreamKey(SYSTEM_TENANT, "key", "ring")

TENANT_SEALED: Final = b'{"encrypted":true}'
"""What is said of a tenant in an encrypted store, when its first stream begins."""


def is_encrypted(backend: Backend) -> bool:
    if isinstance(backend, Peeking) and not backend.exists(RING):
        return False
    return backend.head(RING) is not None


def missing_key() -> MissingKey:
    return MissingKey("the store is encrypted: open it with key=…, on the command line with --key or HOLDFAST_KEY")
