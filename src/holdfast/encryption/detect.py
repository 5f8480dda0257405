"""Detect encrypted stores. An unencrypted store imports only this module of the package."""

from __future__ import annotations

from typing import Final

from ..backends import Backend, StreamKey, SupportsPeek, SupportsScrub, clock
from ..errors import MissingKey, Unavailable
from ..log.ids import SYSTEM_TENANT

KEYRING_STREAM: Final = StreamKey(SYSTEM_TENANT, "key", "ring")

SCRUB_DEADLINE: Final = 30.0
SCRUB_PAUSE_SECONDS: Final = 0.05

TENANT_ENCRYPTED: Final = b'{"encrypted":true}'
"""The data of the event that registers a tenant in an encrypted store."""


def is_encrypted(backend: Backend) -> bool:
    if isinstance(backend, SupportsPeek) and not backend.may_exist(KEYRING_STREAM):
        return False
    return backend.head(KEYRING_STREAM) is not None


def missing_key_error() -> MissingKey:
    return MissingKey(
        "the store is encrypted: open it with key=…, on the command line with --key or HOLDFAST_KEY"
    )


def scrub(backend: Backend) -> None:
    """Overwrite deleted data, if the backend still has it on disk: it may include a key."""
    if not isinstance(backend, SupportsScrub):
        return None
    deadline = clock.monotonic() + SCRUB_DEADLINE
    while True:
        try:
            return backend.scrub()
        except Unavailable:  # another process is using the store, but this can't wait
            if clock.monotonic() > deadline:
                raise
            clock.sleep(SCRUB_PAUSE_SECONDS)
