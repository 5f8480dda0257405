"""Following a conversation: where a follower is, and what came since."""

from __future__ import annotations

from .. import _clock
from .. import _operations as ops
from .._closed import check_open
from .._operations import Operation
from ..backends import StreamKey
from ..errors import NotFound
from . import _reading
from ._entries import MessageEntry


class Cursor:
    """Where a follower is, and since when nothing came."""

    def __init__(self, key: StreamKey, after: int, timeout: float | None) -> None:
        self._quiet_since = _clock.monotonic()
        self._key, self._after, self._timeout = key, after, timeout
        self._life: tuple[bytes, int] | None = None

    @property
    def over(self) -> bool:
        return self._timeout is not None and _clock.monotonic() - self._quiet_since >= self._timeout

    def page(self) -> Operation[list[MessageEntry]]:
        """What was appended since, all of it."""
        found: list[MessageEntry] = []
        head = yield from ops.head(self._key)
        if head is None or (self._life and head.incarnation != self._life[0]):
            if self._life:
                raise NotFound(f"{self._key} was deleted while it was followed")
            if head is None:
                yield from check_open(self._key)
        else:
            _reading.check_expiry(self._key, head.fields, head.now)
            if self._life is None:
                known = yield from _reading.known_at(self._key, head)
                self._life = (head.incarnation, known.fold.base)
            base = self._life[1]
            while self._after < base + head.version and not found:
                before = self._after
                found, self._after = yield from _reading.appended_after(self._key, base, before)
                if self._after == before:
                    break
        if found:
            self._quiet_since = _clock.monotonic()
        return found
