"""Deleting a stream that is damaged. Its root may be lost, and with it which lives the stream had; its entry in the list of all
streams names the life that it has."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import CorruptRecord, Unavailable
from ..interface import StreamKey
from . import format as form
from .format import ROOT, StreamRoot, commits_place
from .index import LIFE, all_place, entries
from .streams import TRIES, ObjectStreams, StreamSnapshot


def is_without_root(
    streams: ObjectStreams, stream: StreamKey, seen: StreamSnapshot, lives: Sequence[bytes]
) -> bool:
    """Whether somebody removed the root of a stream: a root is there before any commit, and Holdfast never removes it."""
    if seen.root is not None or not any(
        streams.space.list(commits_place(life), limit=1) for life in lives
    ):
        return False
    return streams.look(stream).root is None  # or it was begun in this moment


def discard(streams: ObjectStreams, stream: StreamKey) -> bool:
    """Write into the root that all lives that are to be found are over, and remove what is left of them.

    False if the stream is not damaged. No head is compared: nobody can say where it stands.
    """
    partition = form.root_place(stream)
    for _ in range(TRIES):
        found = _lives(streams, stream)
        try:
            if not is_without_root(streams, stream, streams.look(stream), found):
                return False
        except CorruptRecord:
            pass
        streams.forget(stream)
        root, tag = _root(streams, stream)
        if root is not None and root.life is not None:
            found = [*found, form.life_id(stream, root.life)]
        former = root or StreamRoot(
            *stream, revision=int(streams.space.now())
        )  # behind any revision that it had
        lives = [life for life in dict.fromkeys(found) if life not in former.former]
        over = former.changed(
            life=None,
            first=None,
            former=(*former.former, *lives),
            dirty=tuple(dict.fromkeys((*former.dirty, *lives))),
        )
        if _put(streams, partition, form.seal(partition, ROOT, over), tag):
            streams.look(stream)
            return True
    raise Unavailable(f"{stream} is being changed too often at the moment; try again")


def _lives(streams: ObjectStreams, stream: StreamKey) -> list[bytes]:
    partition, front = all_place(stream, b"")
    names = streams.space.list(partition, after=front, until=front + b"\xff" * LIFE, limit=1000)
    return [one.life for one in entries(names, version=False) if one.id == stream.id]


def _root(streams: ObjectStreams, stream: StreamKey) -> tuple[StreamRoot | None, str | None]:
    """The root if it can be read, and the tag of what is there: "" for nothing, None if not even that can be read."""
    try:
        return streams.root(stream)
    except CorruptRecord:
        pass
    try:
        named = streams.space.get(form.root_place(stream), ROOT)
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
