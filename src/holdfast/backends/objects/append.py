"""Append to streams and delete them. The writer that creates a version's object wins."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from ...errors import CorruptRecord, HoldfastError, OutcomeUnknown, TooLarge, Unavailable
from ..interface import Append, AppendResult, Head, HeadFields, StreamKey, VersionMismatch
from . import format as form
from .format import ROOT, Commit, StreamRoot, commits_partition, version_name
from .ids import AppendIdPointers
from .index import all_entry, due_entry, status_entry
from .streams import MAX_ATTEMPTS, CommitPosition, ObjectStreams, StreamSnapshot

MAX_RECORD_BYTES_IN_ROOT: Final = 16 * 1024
"""A larger first append is moved out of the root by the second one: every append reads the root."""
COMMIT_OVERHEAD_BYTES: Final = 8 * 1024


class ObjectWriter:
    """Appends to streams and deletes them."""

    def __init__(self, streams: ObjectStreams) -> None:
        self._streams, self._space = streams, streams.space
        self._ids = AppendIdPointers(streams)

    def check_size(self, append: Append) -> None:
        """Raise `TooLarge` if the append cannot be stored."""
        size = sum(len(digest) + len(body) + 16 for digest, body in append.records) + len(append.id)
        fields = append.fields or HeadFields()
        size += (
            len(fields.label or b"")
            + len((fields.status or "").encode())
            + len((fields.owner or "").encode())
        )
        if size + COMMIT_OVERHEAD_BYTES > self._space.max_bytes:
            raise TooLarge(
                f"an append to {append.stream} must have at most "
                f"{self._space.max_bytes - COMMIT_OVERHEAD_BYTES} bytes, got {size}"
            )

    # -- appending --------------------------------------------------------------------------------

    def append(self, append: Append) -> AppendResult | VersionMismatch:
        nonce = os.urandom(8)
        winner: Commit | None = None
        position = self._streams.get_cached(append.stream)
        for _ in range(MAX_ATTEMPTS):
            answer: AppendResult | Commit | None
            if position is not None and _is_expected(position, append):
                answer = self._extend(append, position, nonce)
            else:
                if append.expected == 0 and self._streams.was_just_absent(append.stream):
                    # Not loaded again: if it exists by now, its root cannot be created.
                    seen = StreamSnapshot(None, "", None)
                else:
                    seen = self._load(append.stream)
                position = seen.position
                if position is None:
                    if append.expected or (
                        seen.root is not None and _lineage(append) in seen.root.former
                    ):
                        return VersionMismatch(None)
                    answer = self._create(append, seen, nonce)
                elif _is_expected(position, append):
                    answer = self._extend(append, position, nonce)
                else:
                    if winner is not None and position.incarnation == append.incarnation:
                        # The version that this append expects to get is taken by another append.
                        return VersionMismatch(self._streams.head(append.stream, position))
                    return self._find_stored(append, seen, position, nonce) or VersionMismatch(
                        self._streams.head(append.stream, position)
                    )
            if isinstance(answer, AppendResult):
                return answer
            winner = answer
            position = None  # another writer was faster
        raise Unavailable(f"{append.stream} keeps being changed by other writers; retry")

    def find_append(self, stream: StreamKey, append_id: bytes) -> tuple[int, int] | None:
        """Return the first and last version of an indexed append, None if it is not stored."""
        return self._ids.find(stream, None, append_id)

    def _load(self, stream: StreamKey) -> StreamSnapshot:
        try:
            return self._streams.load(stream)
        except OutcomeUnknown as error:
            # It is the outcome of finishing a deletion; nothing of this append was sent.
            raise _not_prepared(stream) from error

    def _find_stored(
        self, append: Append, seen: StreamSnapshot, position: CommitPosition, nonce: bytes
    ) -> AppendResult | None:
        """Return the answer to an append that is stored already, None if it is not."""
        if append.indexed:
            found = self._ids.find(append.stream, position.lineage, append.id)
            if found is not None:
                return AppendResult(*found, duplicate=True, now=self._streams.now())
        first, root = append.expected + 1, seen.root
        if (
            root is None
            or append.incarnation != position.incarnation
            or not first <= position.version
        ):
            return None
        commit = self._streams.read_commit(append.stream, position.lineage, first, root)
        if commit is None or commit.ends or commit.append_id != append.id:
            return None
        if not self._streams.is_current(append.stream, root):
            # Stored before the deletion, or a stray put after it.
            raise OutcomeUnknown(f"{append.stream} was deleted during an append to it")
        # With this call's nonce, it is this call's put, whose answer was lost.
        return AppendResult(
            first, commit.last, duplicate=commit.nonce != nonce, now=self._streams.now()
        )

    def _create(self, append: Append, seen: StreamSnapshot, nonce: bytes) -> AppendResult | None:
        """Create the stream with this append in its root; None if another writer was faster."""
        stream, lineage, fields = append.stream, _lineage(append), append.fields or HeadFields()
        commit = Commit(1, append.id, nonce, append.indexed, tuple(append.records), fields, 1, 1)
        former = seen.root or StreamRoot(*stream)
        root = former.revise(incarnation=append.incarnation, first=commit)
        try:
            if append.indexed:
                self._ids.claim(stream, lineage, append.id, 1)
            entries = [
                all_entry(stream, lineage),
                status_entry(stream, lineage, fields, 1),
                due_entry(stream, lineage, fields, 1),
            ]
            self._streams.index.announce([entry for entry in entries if entry is not None])
        except OutcomeUnknown as error:
            raise _not_prepared(stream) from error
        if seen.root is None:
            partition = form.root_partition(stream)
            created = self._streams.create(
                partition, ROOT, form.encode_object(partition, ROOT, root)
            )
        else:
            created = self._streams.replace_root(stream, root, seen.tag)
        if created:
            return self._acknowledge(
                append, CommitPosition.after(append.incarnation, lineage, commit)
            )
        with _verifying(stream):
            found, _tag = self._streams.read_root(stream)
            if found is not None and lineage in found.former:
                raise OutcomeUnknown(
                    f"{stream} was deleted while it was being created; retry with the same id"
                )
            if found is not None and found.incarnation == append.incarnation:
                return self._find_created(append, nonce)
        return None

    def _find_created(self, append: Append, nonce: bytes) -> AppendResult | None:
        """Return the answer if the incarnation exists under a root other than the one put here.

        This call may have created it, and others may have changed the root since.
        """
        seen = self._streams.load(append.stream)
        if (
            seen.root is None
            or seen.position is None
            or seen.position.incarnation != append.incarnation
        ):
            raise OutcomeUnknown(
                f"{append.stream} was deleted while it was being created; retry with the same id"
            )
        return self._find_stored(append, seen, seen.position, nonce)

    def _extend(
        self, append: Append, position: CommitPosition, nonce: bytes
    ) -> AppendResult | Commit | None:
        """Append to an existing stream.

        Return the commit of another append that has taken its version; None if the stream has
        changed in another way, or may have the append already.
        """
        stream, lineage, first = append.stream, position.lineage, append.expected + 1
        fields = position.fields if append.fields is None else append.fields
        status_version = (
            position.status_version if fields.status == position.fields.status else first
        )
        due_version = position.due_version if fields.due == position.fields.due else first
        commit = Commit(
            first,
            append.id,
            nonce,
            append.indexed,
            tuple(append.records),
            fields,
            status_version,
            due_version,
        )
        try:
            if append.indexed and not self._ids.claim(stream, lineage, append.id, first):
                return self._duplicate(append, lineage)
            entries = [
                status_entry(stream, lineage, fields, first) if status_version == first else None,
                due_entry(stream, lineage, fields, first) if due_version == first else None,
            ]
            self._streams.index.announce([entry for entry in entries if entry is not None])
        except OutcomeUnknown as error:
            raise _not_prepared(stream) from error
        stored = self._put(stream, lineage, commit)
        if stored is not commit:
            if append.indexed:
                self._ids.withdraw(stream, lineage, append.id)
            if stored is None or append.indexed or stored.append_id == append.id:
                return None
            # Not read again: the position after it is where others have to look for the next one.
            self._streams.remember(
                stream, CommitPosition.after(position.incarnation, lineage, stored)
            )
            return stored
        self._remove_superseded(stream, position, commit)
        return self._acknowledge(
            append, CommitPosition.after(position.incarnation, lineage, commit)
        )

    def _duplicate(self, append: Append, lineage: bytes) -> AppendResult | None:
        found = self._ids.find(append.stream, lineage, append.id)
        return (
            AppendResult(*found, duplicate=True, now=self._streams.now())
            if found is not None
            else None
        )

    def _acknowledge(self, append: Append, position: CommitPosition) -> AppendResult:
        self._streams.remember(append.stream, position)
        return AppendResult(append.expected + 1, position.version, now=self._streams.now())

    def _put(self, stream: StreamKey, lineage: bytes, commit: Commit) -> Commit | None:
        """Create the commit under its name, and return it if it is live.

        Return the commit of another writer that has this name, if one has it and does not end the
        stream; otherwise None.
        """
        partition, name = commits_partition(lineage), version_name(commit.first)
        data = form.encode_object(partition, name, commit)
        try:
            stored = self._streams.create_or_read(partition, name, data)
        except OutcomeUnknown:
            # The object may be an incomplete stray: the next append must check.
            self._streams.forget(stream)
            raise
        if stored != data:
            try:
                other = self._streams.decode_commit(stream, lineage, name, stored)
            except CorruptRecord:
                return None  # the caller loads the stream, and finds out whether it is damaged
            return None if other.ends else other
        with _verifying(stream):
            root, tag = self._streams.read_root(stream)
            if root is None:
                raise OutcomeUnknown(f"the root of {stream} is missing after a write")
            if self._streams.is_live(stream, root, lineage):
                if (
                    root.first is not None
                    and sum(len(body) for _, body in root.first.records) > MAX_RECORD_BYTES_IN_ROOT
                ):
                    self._streams.pool.run_later(
                        partial(self._move_out_of_root, stream, lineage, root, root.first, tag)
                    )
                return commit
            # The stream was deleted before the put, and the commit is a stray, or after it, and
            # the commit was deleted too. It is certainly a stray if it is still stored after the
            # deletion has removed everything.
            self._streams.forget(stream)
            if lineage in root.dirty or not self._remove_stray(partition, name, data):
                raise OutcomeUnknown(f"{stream} was deleted during an append to it")
        return None

    def _remove_stray(self, partition: str, name: bytes, data: bytes) -> bool:
        """Remove a stray commit. Return False if it is not certain that it was this one."""
        try:
            found = self._space.get(partition, name)
        except CorruptRecord:
            # On DynamoDB, a concurrent deletion removed parts of it, or of another commit.
            self._space.remove(partition, [name])
            return False
        if found is None or found.data != data:
            return False
        self._space.remove(partition, [name])
        return True

    def _remove_superseded(self, stream: StreamKey, before: CommitPosition, commit: Commit) -> None:
        """Remove the index entries that this commit made obsolete."""
        obsolete = []
        if commit.status_version != before.status_version:
            obsolete.append(
                status_entry(stream, before.lineage, before.fields, before.status_version)
            )
        if commit.due_version != before.due_version:
            obsolete.append(due_entry(stream, before.lineage, before.fields, before.due_version))
        for entry in obsolete:
            if entry is not None:
                self._streams.pool.run_later(
                    partial(self._streams.index.try_remove, entry[0], [entry[1]])
                )

    def _move_out_of_root(
        self, stream: StreamKey, lineage: bytes, root: StreamRoot, first: Commit, tag: str
    ) -> None:
        """Move a large first append out of the root."""
        partition, name = commits_partition(lineage), version_name(1)
        self._streams.create(partition, name, form.encode_object(partition, name, first))
        if not self._streams.replace_root(stream, root.revise(first=None), tag):
            found, _tag = self._streams.read_root(stream)
            if found is None or not self._streams.is_live(stream, found, lineage):
                self._space.remove(partition, [name])

    # -- deleting ---------------------------------------------------------------------------------

    def delete(self, stream: StreamKey, expected: Head) -> bool:
        """Delete the stream with a commit that ends it, under the name of the next append."""
        position = self._load(stream).position
        if position is None or not position.is_at(*expected.position):
            return False
        versions = position.status_version, position.due_version
        end = Commit(
            position.version + 1, b"", os.urandom(8), False, (), position.fields, *versions
        )
        if self._put(stream, position.lineage, end) is not end:
            return False
        with _verifying(stream):
            self._streams.load(stream)
        return True


@contextmanager
def _verifying(stream: StreamKey) -> Iterator[None]:
    """Raise `OutcomeUnknown` for errors after the deciding put: the append may be stored."""
    try:
        yield
    except OutcomeUnknown:
        raise
    except HoldfastError as error:
        raise OutcomeUnknown(
            f"a write to {stream} could not be verified; retry with the same id"
        ) from error


def _not_prepared(stream: StreamKey) -> Unavailable:
    return Unavailable(f"the store did not answer before an append to {stream} was sent; retry")


def _lineage(append: Append) -> bytes:
    return form.lineage_of(append.stream, append.incarnation)


def _is_expected(position: CommitPosition, append: Append) -> bool:
    return position.is_at(append.expected, append.expected_hash, append.incarnation)
