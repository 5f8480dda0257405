"""Ids that callers chose: found wherever they are in a stream, for the life of the stream.

A pointer is put before the commit that it leads to. It says where the append may be; the commit there says whether it is.
"""

from __future__ import annotations

from ...errors import CorruptRecord, HoldfastError, Unavailable
from ..interface import StreamKey
from . import format as form
from .format import AppendIdPointer, StreamRoot, ids_place
from .streams import TRIES, ObjectStreams


class AppendIdPointers:
    """The pointers of the streams."""

    def __init__(self, streams: ObjectStreams) -> None:
        self._streams = streams

    def claim(self, stream: StreamKey, life: bytes, append_id: bytes, first: int) -> bool:
        """Say that the id may soon be at this version. False, and nothing said, if it is in this life of the stream already.

        Everything before `first` is decided, so candidates there that are not the append never will be.
        """
        if self._put(life, AppendIdPointer(append_id, (first,)), ""):
            return True
        for _ in range(TRIES):
            pointer, tag = self._get(stream, life, append_id)
            if pointer is not None:
                if self.find(stream, life, append_id) is not None:
                    return False
                if first in pointer.candidates:
                    return True
            later = (
                tuple(other for other in pointer.candidates if other > first)
                if pointer is not None
                else ()
            )
            if self._put(life, AppendIdPointer(append_id, (first, *later)), tag):
                return True
        raise Unavailable(f"{stream} is being changed too often at the moment; try again")

    def find(self, stream: StreamKey, life: bytes, append_id: bytes) -> tuple[int, int] | None:
        """The versions of the append that was stored under this id in this life."""
        for _ in range(TRIES):
            root, _tag = self._streams.root(stream)
            pointer, _tag = self._get(stream, life, append_id)
            if root is None or pointer is None or not self._streams.counts(stream, root, life):
                return None
            wrong: CorruptRecord | None = None
            try:
                found = self._at_candidates(stream, life, pointer, root)
            except CorruptRecord as error:
                found, wrong = None, error
            # And the root last: a commit that came to a name which a deletion made free meanwhile is astray.
            if self._streams.is_still(stream, root):
                if wrong is not None:
                    raise wrong
                return found
        raise Unavailable(f"{stream} is being changed too often at the moment; try again")

    def _at_candidates(
        self, stream: StreamKey, life: bytes, pointer: AppendIdPointer, root: StreamRoot
    ) -> tuple[int, int] | None:
        for first in pointer.candidates:
            commit = self._streams.commit(stream, life, first, root)
            if commit is not None and commit.indexed and commit.append_id == pointer.id:
                return commit.first, commit.last
        return None

    def withdraw(self, stream: StreamKey, life: bytes, append_id: bytes) -> None:
        """Remove a pointer that came too late: of a life that is over, everything else is gone."""
        try:
            root, _tag = self._streams.root(stream)
            if root is None or not self._streams.counts(stream, root, life):
                self._streams.space.remove(ids_place(life), [form.id_name(append_id)])
        except HoldfastError:
            pass

    def _get(
        self, stream: StreamKey, life: bytes, append_id: bytes
    ) -> tuple[AppendIdPointer | None, str]:
        partition, name = ids_place(life), form.id_name(append_id)
        named = self._streams.get(stream, partition, name)
        if named is None:
            return None, ""
        pointer = form.unseal(partition, name, named.data, AppendIdPointer, stream)
        if pointer.id != append_id:
            raise CorruptRecord(str(stream), what="an id leads to another one, or nowhere")
        return pointer, named.tag

    def _put(self, life: bytes, pointer: AppendIdPointer, tag: str) -> bool:
        """Put it in the place of the one with the tag, or where there is none yet."""
        partition, name = ids_place(life), form.id_name(pointer.id)
        data = form.seal(partition, name, pointer)
        if tag:
            return self._streams.replace(partition, name, data, tag)
        return self._streams.create(partition, name, data)
