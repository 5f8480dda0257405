"""What DynamoDB and S3 have in common: named bytes, and a put that succeeds only where nothing is yet.

Everything that makes streams of it is in `_objects`, once for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from ..interface import Description


class NamedBytes(NamedTuple):
    """Stored bytes. `tag` changes whenever they are replaced by other bytes."""

    name: bytes
    data: bytes
    tag: str


class Space(Protocol):
    """Named bytes in partitions. Names are ordered as bytes within their partition. Safe to use from many threads.

    A partition is short text of letters, digits and `.-_!/`; a name is one to 600 bytes, any bytes. All reads are strongly
    consistent. Errors: a put or a removal whose answer was lost is `OutcomeUnknown`; `Unavailable` means that surely nothing
    was written (refused connections, throttling before acceptance).
    """

    @property
    def max_bytes(self) -> int:
        """The most that can be stored under one name. More is refused before anything is sent."""
        ...

    def get(self, partition: str, name: bytes) -> NamedBytes | None: ...

    def create(self, partition: str, name: bytes, data: bytes) -> bool:
        """Put where nothing is. False if something is there (it may be our own put, sent twice by the client: look)."""
        ...

    def replace(self, partition: str, name: bytes, data: bytes, tag: str) -> bool:
        """Put in the place of what has this tag. False if something else is there (perhaps our own put), or nothing."""
        ...

    def put(self, partition: str, name: bytes, data: bytes) -> None:
        """Put whatever is there."""
        ...

    def list(
        self, partition: str, *, after: bytes = b"", until: bytes | None = None, limit: int
    ) -> Sequence[bytes]:
        """Names behind `after` (exclusive) up to `until` (inclusive), in order; fewer than `limit` only at the end."""
        ...

    def scan(
        self,
        partition: str,
        *,
        after: bytes = b"",
        until: bytes | None = None,
        limit: int,
        reverse: bool = False,
    ) -> Sequence[NamedBytes]:
        """`list` with the bytes; may be shorter (about 8 MiB), and empty only at the end.

        With `reverse`, from `until` backwards; `after` and `until` are given then, with few names between them.
        """
        ...

    def remove(self, partition: str, names: Iterable[bytes]) -> None:
        """Remove these, whether or not they are there."""
        ...

    def now(self) -> float:
        """The time by the server's clock, as of its answers (Unix seconds)."""
        ...

    def forked(self) -> None:
        """Called in the child of a fork, before anything else: no connection of the parent may be used here."""
        ...

    def describe(self) -> Description: ...

    def close(self) -> None: ...
