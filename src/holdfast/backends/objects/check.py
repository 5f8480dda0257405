"""Compare the indexes and id pointers of an object store with the streams, and rebuild them.

Every object except an index entry verifies itself. So only missing objects can go unnoticed:
entries, pointers, roots. Streams are found by their roots, not by the indexes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from ...errors import CorruptRecord
from ..interface import BackendProblem, StreamKey, is_indexed
from . import format as form
from .format import ROOT, AppendIdPointer, StreamRoot, ids_partition
from .index import LINEAGE_BYTES, EntryKey, all_entry, due_entry, status_entry
from .streams import PAGE_NAMES, CommitPosition, ObjectStreams

MAX_KNOWN_ROOTS: Final = 200_000
"""For how many roots to remember the tenant and kind, which never change."""
_MAX_READS: Final = 10
"""How many times to read a stream that other processes write to."""
_FAMILIES: Final = ("r/", "c/", "i/", "a/", "s/", "d/")


class ObjectsFinding(NamedTuple):
    """A problem, and the objects that fix it: index entries, or id pointers of a lineage."""

    problem: BackendProblem
    entries: Sequence[EntryKey] = ()
    lineage: bytes = b""
    pointers: Sequence[AppendIdPointer] = ()


class ObjectsCheck:
    """Checks one space. Other processes may keep writing."""

    def __init__(self, streams: ObjectStreams) -> None:
        self._streams, self._space = streams, streams.space
        self._scopes: dict[str, tuple[str, str]] = {}
        """Tenant and kind by the partition of a root."""

    # -- scopes ------------------------------------------------------------------------------------

    def list_scopes(self) -> list[tuple[str, str]]:
        """Return tenant and kind of all roots that have an incarnation."""
        by_scope: dict[tuple[str, str], list[str]] = {}
        unknown, found = list[str](), set[tuple[str, str]]()
        for partition, name in self._space.walk("r/"):
            if name != ROOT:
                continue
            scope = self._scopes.get(partition)
            if scope is None:
                unknown.append(partition)
            else:
                by_scope.setdefault(scope, []).append(partition)
        for root in self._read_roots(unknown):
            if root is not None and root.incarnation is not None:
                found.add((root.tenant, root.kind))
        for scope, partitions in by_scope.items():
            # One root that still has an incarnation is enough.
            if scope not in found and any(map(self._is_alive, partitions)):
                found.add(scope)
        return sorted(found)

    def _is_alive(self, partition: str) -> bool:
        root = self._read_root(partition)
        return root is not None and root.incarnation is not None

    def _read_roots(self, partitions: Sequence[str]) -> Iterator[StreamRoot | None]:
        for start in range(0, len(partitions), PAGE_NAMES):
            page = partitions[start : start + PAGE_NAMES]
            yield from self._streams.pool.run_all(
                [partial(self._read_root, partition) for partition in page]
            )

    def _read_root(self, partition: str) -> StreamRoot | None:
        """Return the root in a partition; None if it is damaged or missing."""
        try:
            named = self._space.get(partition, ROOT)
            if named is None:
                return None
            unknown = StreamKey("", "", "")
            root = form.decode_object(partition, ROOT, named.data, StreamRoot, unknown)
        except CorruptRecord:
            return None
        if form.root_partition(_key(root)) != partition:
            return None
        if len(self._scopes) < MAX_KNOWN_ROOTS:
            self._scopes[partition] = root.tenant, root.kind
        return root

    # -- differences -------------------------------------------------------------------------------

    def check(self) -> Iterator[BackendProblem]:
        """Yield missing objects, and objects that belong to no stream."""
        for finding in self._find():
            yield finding.problem

    def rebuild(self) -> int:
        """Store missing index entries and id pointers; return how many."""
        done = 0
        for finding in self._find():
            self._streams.index.announce(finding.entries)
            partition = ids_partition(finding.lineage)
            for pointer in finding.pointers:
                name = form.id_name(pointer.id)
                self._space.put(partition, name, form.encode_object(partition, name, pointer))
            done += len(finding.entries) + len(finding.pointers)
        return done

    def _find(self) -> Iterator[ObjectsFinding]:
        lineages, roots, strange = set[str](), list[str](), list[tuple[str, bytes]]()
        listed = set[str]()
        for partition, name in self._space.walk(""):
            if partition.startswith("r/") and name == ROOT:
                roots.append(partition)
            elif partition.startswith("c/"):
                lineages.add(partition.removeprefix("c/"))
            elif partition.startswith("a/"):
                listed.add(name[-LINEAGE_BYTES:].hex())
            elif not partition.startswith(_FAMILIES):
                strange.append((partition, name))
        yield from self._find_in_roots(roots, lineages)
        if lineages:
            # A stream may have been created after the walk had passed its root.
            known = set(roots)
            later = [partition for partition, _ in self._space.walk("r/") if partition not in known]
            yield from self._find_in_roots(later, lineages)
        for lineage in sorted(lineages - listed):  # listed ones are reported as damaged streams
            if self._space.list(f"c/{lineage}", limit=1):
                what = f"the commits in c/{lineage} belong to no stream; their root is missing"
                yield ObjectsFinding(BackendProblem(what))
        for partition, name in strange:
            if self._is_ours(partition, name):
                what = f"{partition} has an object that Holdfast does not store there"
                yield ObjectsFinding(BackendProblem(what))

    def _find_in_roots(self, roots: Sequence[str], lineages: set[str]) -> Iterator[ObjectsFinding]:
        """Yield the problems of streams, and remove their lineages from the set."""
        for partition, root in zip(roots, self._read_roots(roots), strict=True):
            if root is None:
                if self._exists(partition, ROOT):
                    yield ObjectsFinding(BackendProblem(f"the root in {partition} is damaged"))
                continue
            lineages.difference_update(lineage.hex() for lineage in root.former)
            if root.incarnation is not None:
                stream = _key(root)
                lineages.discard(form.lineage_of(stream, root.incarnation).hex())
                yield from self._find_in_stream(stream)

    def _exists(self, partition: str, name: bytes) -> bool:
        try:
            return self._space.get(partition, name) is not None
        except CorruptRecord:
            return True

    def _is_ours(self, partition: str, name: bytes) -> bool:
        """Return whether Holdfast wrote an object, wherever it is now."""
        try:
            named = self._space.get(partition, name)
        except CorruptRecord:
            return False
        return named is not None and named.data.startswith(form.MAGIC)

    def _find_in_stream(self, stream: StreamKey) -> Iterator[ObjectsFinding]:
        """Yield the entries and pointers that a stream lacks."""
        for _ in range(_MAX_READS):
            try:
                seen = self._streams.load(stream)
                if seen.root is None or seen.position is None:
                    return
                findings = [
                    *self._find_missing_entries(stream, seen.position),
                    *self._find_missing_pointers(stream, seen.position, seen.root),
                ]
                if not findings or self._streams.load(stream).position == seen.position:
                    yield from findings
                    return
            except CorruptRecord as error:
                # It is listed as damaged, unless its entry is missing too.
                if not self._is_listed(stream):
                    yield ObjectsFinding(BackendProblem(error.what, stream))
                return

    def _find_missing_entries(
        self, stream: StreamKey, position: CommitPosition
    ) -> Iterator[ObjectsFinding]:
        lineage, fields = position.lineage, position.fields
        expected = {
            "list of all streams": all_entry(stream, lineage),
            "list by status": status_entry(stream, lineage, fields, position.status_version),
            "list by due time": due_entry(stream, lineage, fields, position.due_version),
        }
        for what, entry in expected.items():
            if entry is not None and not self._exists(*entry):
                problem = BackendProblem(f"it is missing from the {what}", stream, derived=True)
                yield ObjectsFinding(problem, [entry])

    def _find_missing_pointers(
        self, stream: StreamKey, position: CommitPosition, root: StreamRoot
    ) -> Iterator[ObjectsFinding]:
        lineage = position.lineage
        ids = {
            commit.append_id: commit.first
            for commit in self._streams.commits_below(stream, lineage, position.version + 1)
            if commit.append_id and is_indexed(commit.append_id)
        }
        if root.first is not None and is_indexed(root.first.append_id):
            ids[root.first.append_id] = 1
        pointers = self._read_pointers(stream, lineage) if ids else {}
        missing = [
            AppendIdPointer(append_id, (first,))
            for append_id, first in ids.items()
            if first not in pointers.get(append_id, ())
        ]
        if missing:
            what = f"{len(missing)} of its append ids cannot be found"
            problem = BackendProblem(what, stream, derived=True)
            yield ObjectsFinding(problem, lineage=lineage, pointers=missing)

    def _read_pointers(self, stream: StreamKey, lineage: bytes) -> dict[bytes, Sequence[int]]:
        """Return the candidates of all valid pointers of a lineage, by append id."""
        partition, after = ids_partition(lineage), b""
        found: dict[bytes, Sequence[int]] = {}
        while page := self._space.scan(partition, after=after, limit=PAGE_NAMES):
            for named in page:
                try:
                    pointer = form.decode_object(
                        partition, named.name, named.data, AppendIdPointer, stream
                    )
                except CorruptRecord:
                    continue
                if form.id_name(pointer.id) == named.name:
                    found[pointer.id] = pointer.candidates
            after = page[-1].name
        return found

    def _is_listed(self, stream: StreamKey) -> bool:
        partition, front = all_entry(stream, b"")
        until = front + b"\xff" * LINEAGE_BYTES
        return bool(self._space.list(partition, after=front, until=until, limit=1))


def _key(root: StreamRoot) -> StreamKey:
    return StreamKey(root.tenant, root.kind, root.id)
