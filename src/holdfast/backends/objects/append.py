"""Appending to one stream, and deleting it: who creates the object at a version's name has decided what the version is."""

from __future__ import annotations

import os
from functools import partial
from typing import Final

from ...errors import CorruptRecord, HoldfastError, OutcomeUnknown, TooLarge, Unavailable
from ..interface import Append, AppendResult, Head, HeadFields, StreamKey, VersionMismatch
from . import format as form
from .format import ROOT, Commit, StreamRoot, commits_place, version_name
from .ids import AppendIdPointers
from .index import all_place, due_place, status_place
from .streams import TRIES, CommitPosition, ObjectStreams, StreamSnapshot

KEPT_IN_ROOT: Final = 16 * 1024
"""A first append that is larger leaves the root with the second one: the root is read with every append."""
OVERHEAD: Final = 8 * 1024


class ObjectWriter:
    """Appends and deletes."""

    def __init__(self, streams: ObjectStreams) -> None:
        self._streams, self._space = streams, streams.space
        self._ids = AppendIdPointers(streams)

    def check(self, append: Append) -> None:
        """Refuse what cannot be stored, before anything is."""
        size = sum(len(digest) + len(body) + 16 for digest, body in append.records) + len(append.id)
        fields = append.fields or HeadFields()
        size += (
            len(fields.label or b"")
            + len((fields.status or "").encode())
            + len((fields.owner or "").encode())
        )
        if size + OVERHEAD > self._space.max_bytes:
            raise TooLarge(
                f"an append of {size} bytes to {append.stream}; this store takes {self._space.max_bytes - OVERHEAD}"
            )

    # -- appending --------------------------------------------------------------------------------

    def append(self, append: Append) -> AppendResult | VersionMismatch:
        nonce = os.urandom(8)
        place = self._streams.known(append.stream)
        for _ in range(TRIES):
            answer: AppendResult | None
            if place is not None and _fits(place, append):
                answer = self._extend(append, place, nonce)
            else:
                seen = self._look(append.stream)
                place = seen.place
                if place is None:
                    if append.expected or (
                        seen.root is not None and _life(append) in seen.root.former
                    ):
                        return VersionMismatch(None)
                    answer = self._begin(append, seen, nonce)
                elif _fits(place, append):
                    answer = self._extend(append, place, nonce)
                else:
                    return self._known(append, seen, place, nonce) or VersionMismatch(
                        self._streams.head(append.stream, place)
                    )
            if answer is not None:
                return answer
            place = None  # somebody else was there
        raise Unavailable(f"{append.stream} is being changed too often at the moment; try again")

    def _look(self, stream: StreamKey) -> StreamSnapshot:
        try:
            return self._streams.look(stream)
        except OutcomeUnknown as error:
            raise _not_yet(
                stream
            ) from error  # of a deletion that was to be finished; nothing of ours was sent

    def _known(
        self, append: Append, seen: StreamSnapshot, place: CommitPosition, nonce: bytes
    ) -> AppendResult | None:
        """The answer to an append that is stored already."""
        if append.indexed:
            found = self._ids.find(append.stream, place.life, append.id)
            if found is not None:
                return AppendResult(*found, duplicate=True, now=self._streams.now())
        first, root = append.expected + 1, seen.root
        if root is None or append.incarnation != place.incarnation or not first <= place.version:
            return None
        commit = self._streams.commit(append.stream, place.life, first, root)
        if commit is None or commit.ends or commit.append_id != append.id:
            return None
        if not self._streams.is_still(append.stream, root):
            raise OutcomeUnknown(
                f"{append.stream} was deleted while it was appended to"
            )  # or this is a commit astray
        # With our nonce, it is our own put whose answer was lost.
        return AppendResult(
            first, commit.last, duplicate=commit.nonce != nonce, now=self._streams.now()
        )

    def _begin(self, append: Append, seen: StreamSnapshot, nonce: bytes) -> AppendResult | None:
        """Begin a life: its first append is in the root. None if somebody else was there."""
        stream, life, fields = append.stream, _life(append), append.fields or HeadFields()
        commit = Commit(1, append.id, nonce, append.indexed, tuple(append.records), fields, 1, 1)
        former = seen.root or StreamRoot(*stream)
        root = former.changed(life=append.incarnation, first=commit)
        try:
            if append.indexed:
                self._ids.claim(stream, life, append.id, 1)
            places = [
                all_place(stream, life),
                status_place(stream, life, fields, 1),
                due_place(stream, life, fields, 1),
            ]
            self._streams.index.announce([place for place in places if place is not None])
        except OutcomeUnknown as error:
            raise _not_yet(stream) from error
        if seen.root is None:
            partition = form.root_place(stream)
            made = self._streams.create(partition, ROOT, form.seal(partition, ROOT, root))
        else:
            made = self._streams.replace_root(stream, root, seen.tag)
        if made:
            return self._done(append, CommitPosition.after(append.incarnation, life, commit))
        with _AfterThePut(stream):
            found, _tag = self._streams.root(stream)
            if found is not None and life in found.former:
                raise OutcomeUnknown(
                    f"{stream} was begun and deleted at the same time; nobody knows by whom"
                )
            if found is not None and found.life == append.incarnation:
                return self._begun(append, nonce)
        return None

    def _begun(self, append: Append, nonce: bytes) -> AppendResult | None:
        """The answer if this life is there, but under another root than ours: it may be ours, with others' changes."""
        seen = self._streams.look(append.stream)
        if seen.root is None or seen.place is None or seen.place.incarnation != append.incarnation:
            raise OutcomeUnknown(
                f"{append.stream} was begun and deleted at the same time; nobody knows by whom"
            )
        return self._known(append, seen, seen.place, nonce)

    def _extend(self, append: Append, place: CommitPosition, nonce: bytes) -> AppendResult | None:
        """Append to a living stream. None if it is not at this place, or the append is stored already."""
        stream, life, first = append.stream, place.life, append.expected + 1
        fields = place.fields if append.fields is None else append.fields
        status_version = place.status_version if fields.status == place.fields.status else first
        due_version = place.due_version if fields.due == place.fields.due else first
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
            if append.indexed and not self._ids.claim(stream, life, append.id, first):
                return self._duplicate(append, life)
            places = [
                status_place(stream, life, fields, first) if status_version == first else None,
                due_place(stream, life, fields, first) if due_version == first else None,
            ]
            self._streams.index.announce([place for place in places if place is not None])
        except OutcomeUnknown as error:
            raise _not_yet(stream) from error
        if not self._put(stream, life, commit):
            if append.indexed:
                self._ids.withdraw(stream, life, append.id)
            return None
        self._supersede(stream, place, commit)
        return self._done(append, CommitPosition.after(place.incarnation, life, commit))

    def _duplicate(self, append: Append, life: bytes) -> AppendResult | None:
        found = self._ids.find(append.stream, life, append.id)
        return (
            AppendResult(*found, duplicate=True, now=self._streams.now())
            if found is not None
            else None
        )

    def _done(self, append: Append, place: CommitPosition) -> AppendResult:
        self._streams.remember(append.stream, place)
        return AppendResult(append.expected + 1, place.version, now=self._streams.now())

    def _put(self, stream: StreamKey, life: bytes, commit: Commit) -> bool:
        """Create the commit at its name, and see that it counts. False if it does not."""
        partition, name = commits_place(life), version_name(commit.first)
        data = form.seal(partition, name, commit)
        try:
            if not self._streams.create(partition, name, data):
                return False
        except OutcomeUnknown:
            self._streams.forget(
                stream
            )  # what is at the name may be astray and torn: the next one looks
            raise
        with _AfterThePut(stream):
            root, tag = self._streams.root(stream)
            if root is None:
                raise OutcomeUnknown(f"the root of {stream} is gone")
            if self._streams.counts(stream, root, life):
                if (
                    root.first is not None
                    and sum(len(body) for _, body in root.first.records) > KEPT_IN_ROOT
                ):
                    self._streams.lanes.later(
                        partial(self._unload, stream, life, root, root.first, tag)
                    )
                return True
            # What was at this name has been deleted, and our commit is astray; or it was deleted itself, before we could
            # look. It is certainly astray if it still is there after everything of that deletion was removed.
            self._streams.forget(stream)
            if life in root.dirty or not self._take_back(partition, name, data):
                raise OutcomeUnknown(f"{stream} was deleted while it was appended to")
        return False

    def _take_back(self, partition: str, name: bytes, data: bytes) -> bool:
        """Remove a commit that is astray. False if it cannot be told that it was this one."""
        try:
            found = self._space.get(partition, name)
        except CorruptRecord:
            # On DynamoDB, a deletion at the same time has taken parts of it along, or of another's.
            self._space.remove(partition, [name])
            return False
        if found is None or found.data != data:
            return False
        self._space.remove(partition, [name])
        return True

    def _supersede(self, stream: StreamKey, before: CommitPosition, commit: Commit) -> None:
        """Remove the entries that are of the past now."""
        gone = []
        if commit.status_version != before.status_version:
            gone.append(status_place(stream, before.life, before.fields, before.status_version))
        if commit.due_version != before.due_version:
            gone.append(due_place(stream, before.life, before.fields, before.due_version))
        for place in gone:
            if place is not None:
                self._streams.lanes.later(partial(self._streams.index.drop, place[0], [place[1]]))

    def _unload(
        self, stream: StreamKey, life: bytes, root: StreamRoot, first: Commit, tag: str
    ) -> None:
        """Move a large first append out of the root."""
        partition, name = commits_place(life), version_name(1)
        self._streams.create(partition, name, form.seal(partition, name, first))
        if not self._streams.replace_root(stream, root.changed(first=None), tag):
            found, _tag = self._streams.root(stream)
            if found is None or not self._streams.counts(stream, found, life):
                self._space.remove(partition, [name])

    # -- deleting ---------------------------------------------------------------------------------

    def delete(self, stream: StreamKey, expected: Head) -> bool:
        """Delete the whole stream: a commit that ends it, at the name that the next append would have."""
        place = self._look(stream).place
        if place is None or not place.is_at(*expected.position):
            return False
        versions = place.status_version, place.due_version
        end = Commit(place.version + 1, b"", os.urandom(8), False, (), place.fields, *versions)
        if not self._put(stream, place.life, end):
            return False
        with _AfterThePut(stream):
            self._streams.look(stream)
        return True


class _AfterThePut:
    """What goes wrong after the deciding put is no proof that nothing was stored."""

    def __init__(self, stream: StreamKey) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, HoldfastError) and not isinstance(error, OutcomeUnknown):
            raise OutcomeUnknown(f"{self._stream} could not be looked at after a write") from error


def _not_yet(stream: StreamKey) -> Unavailable:
    return Unavailable(f"the store did not answer while an append to {stream} was prepared")


def _life(append: Append) -> bytes:
    return form.life_id(append.stream, append.incarnation)


def _fits(place: CommitPosition, append: Append) -> bool:
    return place.is_at(append.expected, append.expected_hash, append.incarnation)
