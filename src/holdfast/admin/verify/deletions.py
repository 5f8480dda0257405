"""What the audit streams tell of deletions: whether a stream that an anchor has seen may be gone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from ...backends.retrying import RetryingBackend
from ...errors import DataProblem
from ...log.chain import GENESIS
from ...log.events import open_plain
from ...log.log import Log
from ...log.stream_ops import audit_of
from ..anchors import AnchorEntry

Life = tuple[str, str, str]
"""Kind, id and life of a stream."""


DELETED: Final = "stream.deleted"
_GONE: Final = frozenset({DELETED, "subject.erased"})
"""What tells that a stream is gone. With a subject that is erased, the list of what is about it goes."""


class _DeletionEntry(msgspec.Struct):
    """A deletion, as an entry of the audit stream tells it: where the stream stood when it was decided."""

    kind: str
    id: str
    incarnation: str = msgspec.field(name="life")
    version: int
    hash: str


class Deletions:
    """Reads the audit streams, which were verified before. An entry that does not fit its chain tells nothing."""

    def __init__(self, log: Log, store: RetryingBackend) -> None:
        self._log, self._store = log, store
        self._distrusted: dict[str, set[int]] = defaultdict(set)

    def distrust(self, tenant: str, versions: Iterable[int | None]) -> None:
        """These entries of a tenant's audit stream are not what was written."""
        self._distrusted[tenant].update(version for version in versions if version is not None)

    def noted(self, tenant: str, gone: Iterable[AnchorEntry]) -> set[Life]:
        """Which of these streams were deleted as they should be: told before, in that life, and no earlier than the anchor saw them."""
        wanted = {(place.kind, place.id, place.incarnation): place for place in gone}
        found: set[Life] = set()
        for told in self._told(tenant):
            place = wanted.get((told.kind, told.id, told.incarnation))
            if place is not None and (
                told.version > place.version
                or (told.version, told.hash) == (place.version, place.hash)
            ):
                found.add((told.kind, told.id, told.incarnation))
        return found

    def _told(self, tenant: str) -> Iterator[_DeletionEntry]:
        stream, after, last = audit_of(tenant), 0, GENESIS
        try:
            head = self._store.head(stream)
            while head is not None and (page := self._store.read(stream, after=after)):
                for record in page:
                    previous, last = last, record.hash
                    if record.version in self._distrusted[tenant]:
                        continue
                    try:
                        envelope = open_plain(
                            self._log.opened(stream, head.incarnation, record, previous)
                        )
                        if envelope.type in _GONE:
                            told = msgspec.convert(envelope.data, _DeletionEntry)
                            if envelope.type == DELETED or told.kind == "subject":
                                yield told
                    except (DataProblem, msgspec.ValidationError):
                        continue  # it proves nothing
                after = page[-1].version
        except DataProblem:
            return  # what cannot be read tells nothing; that it cannot, was said before
