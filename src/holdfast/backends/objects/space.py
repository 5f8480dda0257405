"""The interface that DynamoDB and S3 implement: named bytes, with conditional puts.

`ObjectsBackend` builds streams on it, for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from ..interface import Description


class NamedBytes(NamedTuple):
    """Stored bytes. `tag` changes whenever they are replaced."""

    name: bytes
    data: bytes
    tag: str


class Space(Protocol):
    """Named bytes in partitions. Any thread may call any method.

    A partition is a short text of letters, digits and `.-_!/`. A name is 1 to 600 arbitrary bytes;
    names are ordered as bytes within their partition. All reads are strongly consistent.

    Errors: if the answer to a put or a removal was lost, it raises `OutcomeUnknown`. `Unavailable`
    means that nothing was written (a refused connection, throttling before acceptance).
    """

    @property
    def max_bytes(self) -> int:
        """The largest size of one object. Larger ones raise before anything is sent."""
        ...

    def get(self, partition: str, name: bytes) -> NamedBytes | None: ...

    def create(self, partition: str, name: bytes, data: bytes) -> bool:
        """Store the data if the name is free; return False if it is taken.

        The name may be taken by this very put if the client sent it twice, so read it back.
        """
        ...

    def replace(self, partition: str, name: bytes, data: bytes, tag: str) -> bool:
        """Replace the object with this tag.

        Return False if there is no object, or one with another tag (which may be this very put).
        """
        ...

    def put(self, partition: str, name: bytes, data: bytes) -> None:
        """Store the data unconditionally."""
        ...

    def list(
        self, partition: str, *, after: bytes = b"", until: bytes | None = None, limit: int
    ) -> Sequence[bytes]:
        """Return names after `after` (exclusive) up to `until` (inclusive), in order.

        There are fewer than `limit` only at the end.
        """
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
        """Return names, as `list`, with their bytes, about 8 MiB. Only an empty page is the end.

        With `reverse`, the order is descending from `until`. The caller then gives both bounds, and
        there are few names between them.
        """
        ...

    def walk(self, front: str) -> Iterator[tuple[str, bytes]]:
        """Yield partition and name of all objects in partitions that start with `front`.

        The order is not defined. Every object that exists during the whole walk is included.
        """
        ...

    def remove(self, partition: str, names: Iterable[bytes]) -> None:
        """Remove these names, whether or not they exist."""
        ...

    def now(self) -> float:
        """Return the server's current time in Unix seconds, estimated from its responses."""
        ...

    def reset_after_fork(self) -> None:
        """Drop the parent's connections. Called first in a forked child."""
        ...

    def describe(self) -> Description: ...

    def close(self) -> None: ...
