"""All kinds of streams that there are. Whoever goes through a whole store asks here."""

from __future__ import annotations

from typing import Final

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
