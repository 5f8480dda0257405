"""Where the ring is: what tells an encrypted store from one in clear. Apart, so that the latter need import nothing else."""

from __future__ import annotations

from typing import Final

from ..backends import Backend, StreamKey, SupportsPeek, SupportsScrub, clock
from ..errors import MissingKey, Unavailable
from ..log.ids import SYSTEM_TENANT

RING: Final = StreamKey(SYSTEM_TENANT, "key", "ring")

PATIENCE: Final = 30.0
PAUSE: Final = 0.05

TENANT_SEALED: Final = b'{"encrypted":true}'
"""What is said of a tenant in an encrypted store, when its first stream begins."""


def is_encrypted(backend: Backend) -> bool:
    if isinstance(backend, SupportsPeek) and not backend.exists(RING):
        return False
    return backend.head(RING) is not None


def missing_key() -> MissingKey:
    return MissingKey(
        "the store is encrypted: open it with key=…, on the command line with --key or HOLDFAST_KEY"
    )


def scrub(backend: Backend) -> None:
    """Have the engine overwrite what was deleted, where it keeps it a while longer: it may have been a key."""
    if not isinstance(backend, SupportsScrub):
        return None
    until = clock.monotonic() + PATIENCE
    while True:
        try:
            return backend.scrub()
        except Unavailable:  # somebody else is at it just now; what is left to overwrite cannot wait for the next erasure
            if clock.monotonic() > until:
                raise
            clock.sleep(PAUSE)
