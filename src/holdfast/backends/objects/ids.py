"""The index of append ids: find an indexed append anywhere in an incarnation of a stream.

A pointer is stored before its commit. It lists the versions at which the append may be; the commit
at such a version decides.
"""

from __future__ import annotations

from ...errors import CorruptRecord, HoldfastError, Unavailable
from ..interface import StreamKey
from . import format as form
from .format import AppendIdPointer, StreamRoot, ids_partition
from .streams import MAX_ATTEMPTS, ObjectStreams


class AppendIdPointers:
    """Stores and resolves the id pointers of all streams."""

    def __init__(self, streams: ObjectStreams) -> None:
        self._streams = streams

    def claim(self, stream: StreamKey, lineage: bytes, append_id: bytes, first: int) -> bool:
        """Announce that the id may soon be at this version; return False if it is stored already.

        All versions before `first` are taken, so other candidates there are obsolete.
        """
        if self._put(lineage, AppendIdPointer(append_id, (first,)), ""):
            return True
        for _ in range(MAX_ATTEMPTS):
            pointer, tag = self._get(stream, lineage, append_id)
            if pointer is not None:
                if self.find(stream, lineage, append_id) is not None:
                    return False
                if first in pointer.candidates:
                    return True
            later = (
                tuple(other for other in pointer.candidates if other > first)
                if pointer is not None
                else ()
            )
            if self._put(lineage, AppendIdPointer(append_id, (first, *later)), tag):
                return True
        raise Unavailable(f"{stream} keeps being changed by other writers; retry")

    def find(
        self, stream: StreamKey, lineage: bytes | None, append_id: bytes
    ) -> tuple[int, int] | None:
        """Return the first and last version of the append with this id, None if there is none.

        With `lineage`, only if the current incarnation has it.
        """
        for _ in range(MAX_ATTEMPTS):
            root, _tag = self._streams.read_root(stream)
            if root is None or root.incarnation is None:
                return None
            current = form.lineage_of(stream, root.incarnation)
            if lineage not in (None, current):
                return None
            pointer, _tag = self._get(stream, current, append_id)
            if pointer is None:
                return None
            damage: CorruptRecord | None = None
            try:
                found = self._check_candidates(stream, current, pointer, root)
            except CorruptRecord as error:
                found, damage = None, error
            # Check the root last: a commit put where a deletion freed the name is a stray.
            if self._streams.is_current(stream, root):
                if damage is not None:
                    raise damage
                return found
        raise Unavailable(f"{stream} keeps being changed by other writers; retry")

    def _check_candidates(
        self, stream: StreamKey, lineage: bytes, pointer: AppendIdPointer, root: StreamRoot
    ) -> tuple[int, int] | None:
        for first in pointer.candidates:
            commit = self._streams.read_commit(stream, lineage, first, root)
            if commit is not None and commit.indexed and commit.append_id == pointer.id:
                return commit.first, commit.last
        return None

    def withdraw(self, stream: StreamKey, lineage: bytes, append_id: bytes) -> None:
        """Remove a pointer that was stored after its incarnation was deleted, if possible."""
        try:
            root, _tag = self._streams.read_root(stream)
            if root is None or not self._streams.is_live(stream, root, lineage):
                self._streams.space.remove(ids_partition(lineage), [form.id_name(append_id)])
        except HoldfastError:
            pass

    def _get(
        self, stream: StreamKey, lineage: bytes, append_id: bytes
    ) -> tuple[AppendIdPointer | None, str]:
        partition, name = ids_partition(lineage), form.id_name(append_id)
        named = self._streams.get(stream, partition, name)
        if named is None:
            return None, ""
        pointer = form.decode_object(partition, name, named.data, AppendIdPointer, stream)
        if pointer.id != append_id:
            raise CorruptRecord(str(stream), what="an id pointer has the wrong id")
        return pointer, named.tag

    def _put(self, lineage: bytes, pointer: AppendIdPointer, tag: str) -> bool:
        """Replace the pointer with this tag; with an empty tag, create it."""
        partition, name = ids_partition(lineage), form.id_name(pointer.id)
        data = form.encode_object(partition, name, pointer)
        if tag:
            return self._streams.replace(partition, name, data, tag)
        return self._streams.create(partition, name, data)
