"""Deleting a stream that is damaged. Its root may be lost, and with it which lineages the stream had; its entry in the list of all
streams names the lineage that it has."""

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
    """Whether somebody removed the root of a stream: a root is there before any commit, and Holdfast never removes it."""
    if seen.root is not None or not any(
        streams.space.list(commits_partition(lineage), limit=1) for lineage in lineages
    ):
        return False
    return streams.load(stream).root is None  # or it was begun in this moment


def discard(streams: ObjectStreams, stream: StreamKey) -> bool:
    """Write into the root that all lineages that are to be found are over, and remove what is left of them.

    False if the stream is not damaged. No head is compared: nobody can say where it stands.
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
        root, tag = _root(streams, stream)
        if root is not None and root.incarnation is not None:
            found = [*found, form.lineage_of(stream, root.incarnation)]
        former = root or StreamRoot(
            *stream, revision=int(streams.space.now())
        )  # behind any revision that it had
        lineages = [lineage for lineage in dict.fromkeys(found) if lineage not in former.former]
        over = former.revise(
            incarnation=None,
            first=None,
            former=(*former.former, *lineages),
            dirty=tuple(dict.fromkeys((*former.dirty, *lineages))),
        )
        if _put(streams, partition, form.encode_object(partition, ROOT, over), tag):
            streams.load(stream)
            return True
    raise Unavailable(f"{stream} keeps being changed by other writers; retry")


def _list_lineages(streams: ObjectStreams, stream: StreamKey) -> list[bytes]:
    partition, front = all_entry(stream, b"")
    names = streams.space.list(
        partition, after=front, until=front + b"\xff" * LINEAGE_BYTES, limit=1000
    )
    return [one.lineage for one in parse_entries(names, version=False) if one.id == stream.id]


def _root(streams: ObjectStreams, stream: StreamKey) -> tuple[StreamRoot | None, str | None]:
    """The root if it can be read, and the tag of what is there: "" for nothing, None if not even that can be read."""
    try:
        return streams.read_root(stream)
    except CorruptRecord:
        pass
    try:
        named = streams.space.get(form.root_partition(stream), ROOT)
    except CorruptRecord:
        return None, None
    return None, "" if named is None else named.tag


def _put(streams: ObjectStreams, partition: str, data: bytes, tag: str | None) -> bool:
    if tag is None:
        streams.space.put(partition, ROOT, data)
        return True
    return (
        streams.replace(partition, ROOT, data, tag)
        if tag
        else streams.create(partition, ROOT, data)
    )
