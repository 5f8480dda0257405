"""Delete a damaged stream.

Its root may be lost, and with it the list of its incarnations. The stream's entry in the index of
all streams has the lineage of the current one.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import CorruptRecord, Unavailable
from ..interface import StreamKey
from . import format as form
from .format import ROOT, StreamRoot, commits_partition
from .index import LINEAGE_BYTES, all_entry, parse_entries
from .streams import MAX_ATTEMPTS, ObjectStreams, StreamSnapshot


def has_lost_root(
    streams: ObjectStreams, stream: StreamKey, seen: StreamSnapshot, lineages: Sequence[bytes]
) -> bool:
    """Return whether the root of a stream was lost: commits exist, but no root.

    The root is stored before any commit, and Holdfast never removes it.
    """
    if seen.root is not None or not any(
        streams.space.list(commits_partition(lineage), limit=1) for lineage in lineages
    ):
        return False
    return streams.load(stream).root is None  # otherwise it was created just now


def discard(streams: ObjectStreams, stream: StreamKey) -> bool:
    """Mark all incarnations found as deleted in the root, and remove their remaining objects.

    Return False if the stream is not damaged. No head is compared: the position is unknown.
    """
    partition = form.root_partition(stream)
    for _ in range(MAX_ATTEMPTS):
        found = _list_lineages(streams, stream)
        try:
            if not has_lost_root(streams, stream, streams.load(stream), found):
                return False
        except CorruptRecord:
            pass
        streams.forget(stream)
        root, tag = _try_read_root(streams, stream)
        if root is not None and root.incarnation is not None:
            found = [*found, form.lineage_of(stream, root.incarnation)]
        # The time is higher than any revision that the lost root had.
        former = root or StreamRoot(*stream, revision=int(streams.space.now()))
        lineages = [lineage for lineage in dict.fromkeys(found) if lineage not in former.former]
        revised = former.revise(
            incarnation=None,
            first=None,
            former=(*former.former, *lineages),
            dirty=tuple(dict.fromkeys((*former.dirty, *lineages))),
        )
        if _put_root(streams, partition, form.encode_object(partition, ROOT, revised), tag):
            streams.load(stream)
            return True
    raise Unavailable(f"{stream} keeps being changed by other writers; retry")


def _list_lineages(streams: ObjectStreams, stream: StreamKey) -> list[bytes]:
    partition, front = all_entry(stream, b"")
    names = streams.space.list(
        partition, after=front, until=front + b"\xff" * LINEAGE_BYTES, limit=1000
    )
    return [entry.lineage for entry in parse_entries(names, version=False) if entry.id == stream.id]


def _try_read_root(
    streams: ObjectStreams, stream: StreamKey
) -> tuple[StreamRoot | None, str | None]:
    """Return the root, None if it is missing or damaged, and the tag of the stored object.

    The tag is "" if there is no object, and None if it cannot be read at all.
    """
    try:
        return streams.read_root(stream)
    except CorruptRecord:
        pass
    try:
        named = streams.space.get(form.root_partition(stream), ROOT)
    except CorruptRecord:
        return None, None
    return None, "" if named is None else named.tag


def _put_root(streams: ObjectStreams, partition: str, data: bytes, tag: str | None) -> bool:
    if tag is None:
        streams.space.put(partition, ROOT, data)
        return True
    return (
        streams.replace(partition, ROOT, data, tag)
        if tag
        else streams.create(partition, ROOT, data)
    )
