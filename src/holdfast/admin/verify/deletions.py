"""Read the recorded deletions, to decide whether a stream of an anchor may be missing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from ...backends.retrying import RetryingBackend
from ...errors import DataProblem
from ...log.chain import GENESIS
from ...log.events import decode_plain_envelope
from ...log.log import Log
from ...log.operations.stream_ops import audit_key
from ..anchors import AnchorEntry

DeletedIncarnation = tuple[str, str, str]
"""Kind, id and incarnation of a stream."""


DELETED: Final = "stream.deleted"
_REMOVAL_EVENTS: Final = frozenset({DELETED, "subject.erased"})
"""Events that remove a stream. The erasure of a subject removes the list of its streams."""


class _DeletionEntry(msgspec.Struct):
    """A deletion in the audit stream: the stream's version and hash at that time."""

    kind: str
    id: str
    incarnation: str
    version: int
    hash: str


class Deletions:
    """Reads the audit streams, after their verification. Entries that failed it are ignored."""

    def __init__(self, log: Log, store: RetryingBackend) -> None:
        self._log, self._store = log, store
        self._distrusted: dict[str, set[int]] = defaultdict(set)

    def distrust(self, tenant: str, versions: Iterable[int | None]) -> None:
        """Ignore these entries of a tenant's audit stream: they were altered."""
        self._distrusted[tenant].update(version for version in versions if version is not None)

    def find_recorded(self, tenant: str, gone: Iterable[AnchorEntry]) -> set[DeletedIncarnation]:
        """Return which of these streams have a recorded deletion, not older than the anchor."""
        entries = {(entry.kind, entry.id, entry.incarnation): entry for entry in gone}
        found: set[DeletedIncarnation] = set()
        for deletion in self._read(tenant):
            incarnation = deletion.kind, deletion.id, deletion.incarnation
            if not deletion.incarnation:
                # The stream was too damaged to record its incarnation.
                found.update(name for name in entries if name[:2] == incarnation[:2])
            entry = entries.get(incarnation)
            if entry is not None and (
                deletion.version > entry.version
                or (deletion.version, deletion.hash) == (entry.version, entry.hash)
            ):
                found.add(incarnation)
        return found

    def _read(self, tenant: str) -> Iterator[_DeletionEntry]:
        stream, after, last = audit_key(tenant), 0, GENESIS
        try:
            head = self._store.head(stream)
            while head is not None and (page := self._store.read(stream, after=after)):
                for record in page:
                    previous, last = last, record.hash
                    if record.version in self._distrusted[tenant]:
                        continue
                    try:
                        envelope = decode_plain_envelope(
                            self._log.reader.decrypt_record(
                                stream, head.incarnation, record, previous
                            )
                        )
                        if envelope.type in _REMOVAL_EVENTS:
                            deletion = msgspec.convert(envelope.data, _DeletionEntry)
                            if envelope.type == DELETED or deletion.kind == "subject":
                                yield deletion
                    except (DataProblem, msgspec.ValidationError):
                        continue  # it proves nothing
                after = page[-1].version
        except DataProblem:
            return  # unreadable, which was reported before
