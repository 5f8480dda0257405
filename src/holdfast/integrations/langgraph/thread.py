"""The index of a thread: which checkpoints and writes its events contain, and where values are.

A thread is one stream. Its events are:

- `checkpoint.saved`: what differs from the checkpoint of event `on`, or everything. Who reads from
  event `since` on finds everything that this checkpoint is made of, and nothing newer before it.
- `writes.saved`: the writes of one task for a checkpoint.
- `value.saved`: a large value, for the event `n` events later that refers to it as `{"back": n}`.
- `thread.pruned`: the start of a thread that was written again without some checkpoints.

The first ordinary write of a task to a place counts, and the last one of the special channels
(errors, interrupts, resume values). A checkpoint that is saved again replaces the former one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from langgraph.checkpoint.base import WRITES_IDX_MAP

from ...backends import Head
from ...errors import CorruptRecord
from ...log.events import Blob, NewEvent
from .values import (
    ChannelValue,
    Item,
    LargeValue,
    Typed,
    ValueCodec,
    count_characters,
    decode_value,
    encode_value,
    rebase_value,
)

SAVED: Final = "checkpoint.saved"
WRITTEN: Final = "writes.saved"
VALUE: Final = "value.saved"
PRUNED: Final = "thread.pruned"

MIN_READ_BYTES: Final = 64 * 1024
MAX_READ_RATIO: Final = 2
"""To get the newest checkpoint, about this many times its size is read, or `MIN_READ_BYTES`."""
FIRST_FORMAT_WITH_SENDS: Final = 4
"""Before this version of the format, the sends of a checkpoint were writes for its parent."""

Place = tuple[str, str]
"""A namespace and the id of a checkpoint in it."""


class SavedCheckpoint(msgspec.Struct, omit_defaults=True, frozen=True):
    """The data of `checkpoint.saved`. With `on`, a name with None was dropped."""

    ns: str
    id: str
    parent: str | None = None
    v: int = 4
    ts: str = ""
    on: int = 0
    metadata: msgspec.Raw = msgspec.Raw(b"{}")
    typed_metadata: Typed | None = None
    values: dict[str, dict[str, Any] | None] = {}
    versions: dict[str, str | int | float | None] = {}
    seen: dict[str, dict[str, str | int | float] | None] = {}
    updated: list[str] | None = None
    rest: Typed | None = None
    since: int = 0


class CheckpointPlace(msgspec.Struct, frozen=True):
    """What of `checkpoint.saved` says where to start reading."""

    ns: str
    since: int = 0


class SavedWrites(msgspec.Struct, omit_defaults=True, frozen=True):
    """The data of `writes.saved`. Each write has a place, a channel and a value."""

    ns: str
    id: str
    task: str
    path: str = ""
    writes: list[tuple[int, str, dict[str, Any]]] = []


decode_checkpoint: Final = msgspec.json.Decoder(SavedCheckpoint).decode
_decode_writes: Final = msgspec.json.Decoder(SavedWrites).decode
_decode_typed: Final = msgspec.json.Decoder(Typed).decode


class CheckpointEntry(NamedTuple):
    """A checkpoint in the index."""

    ns: str
    id: str
    parent: str | None
    v: int
    ts: str
    metadata: bytes
    """As JSON: few readers need it."""
    typed_metadata: Typed | None
    values: dict[str, ChannelValue]
    versions: dict[str, Any]
    seen: dict[str, dict[str, Any]]
    updated: list[str] | None
    rest: Typed | None
    version: int
    """The version of its event; 0 until it is stored."""
    since: int = 0
    """The version from which to read it; 0: from the start of the thread."""


class WriteEntry(NamedTuple):
    """A write of a task, in the index."""

    path: str
    task: str
    place: int
    channel: str
    value: ChannelValue


class Keyframe(NamedTuple):
    """The last checkpoint of a namespace that is stored whole."""

    at: int
    """How many bytes of events there are before it in the index."""
    size: int
    since: int = 0


NO_KEYFRAME: Final = Keyframe(0, 0)


class EventBatch:
    """Events to append. `large` has the large values among them, by place."""

    def __init__(self) -> None:
        self.events: list[NewEvent] = []
        self.large: dict[int, LargeValue] = {}
        self._places: dict[int, int] = {}

    @property
    def size(self) -> int:
        return sum(len(event.data) for event in self.events)

    def add_large(self, item: Item) -> Any:
        """Add the event of a large item, and return a marker for its place."""
        large = item.large = item.large or LargeValue(item.get_typed())
        place = self._places.get(id(large))
        if place is None:
            place = self._places[id(large)] = len(self.events)
            self.large[place] = large
            self.events.append(NewEvent(VALUE, msgspec.json.encode(large.typed)))
        return LargeMarker(place)

    def add(self, type: str, data: object) -> None:
        """Add an event. A marker in it becomes the distance back to the large value."""
        at = len(self.events)
        raw = msgspec.json.encode(data, enc_hook=lambda marker: {"back": at - marker.place})
        self.events.append(NewEvent(type, raw))


class LargeMarker:
    """The place of a large value in its batch."""

    def __init__(self, place: int) -> None:
        self.place = place


class ThreadIndex:
    """What the events of a thread say, from version `start` + 1 to `version`.

    Any number of threads may use it. If it starts late, a checkpoint that it has is complete, but
    there may be others; `has_newest` names the namespaces whose newest checkpoint it has.
    """

    def __init__(self, stream: str, incarnation: bytes | None, start: int = 0) -> None:
        self.stream, self.incarnation, self.start = stream, incarnation, start
        self.version, self.size = start, 0
        self.head: Head | None = None
        """The head that was read last."""
        self.lock = threading.Lock()
        self._checkpoints: dict[Place, CheckpointEntry] = {}
        self._by_version: dict[int, CheckpointEntry] = {}
        self._writes: dict[Place, dict[tuple[str, int], WriteEntry]] = {}
        self._large: dict[int, LargeValue] = {}
        self._newest: dict[str, str] = {}
        self._keyframes: dict[str, Keyframe] = {}
        self._incomplete: set[str] = set()

    # -- reading ---------------------------------------------------------------------------------

    def has_large(self) -> bool:
        """Return whether there are large values, in events of their own."""
        return bool(self._large)

    def has_newest(self, ns: str) -> bool:
        """Return whether the newest checkpoint of a namespace is the newest one in the index."""
        return not self.start or (ns in self._keyframes and ns not in self._incomplete)

    def get(self, ns: str, id: str | None) -> CheckpointEntry | None:
        """Return a checkpoint; the one with the highest id without an `id`."""
        return self._checkpoints.get((ns, id or self._newest.get(ns, "")))

    def checkpoints(self) -> list[CheckpointEntry]:
        """Return all checkpoints, those with the highest ids first."""
        with self.lock:
            return sorted(self._checkpoints.values(), key=lambda one: one.id, reverse=True)

    def writes(self, ns: str, id: str) -> list[WriteEntry]:
        """Return the writes for a checkpoint, in the order in which a run applies them."""
        with self.lock:
            found = self._writes.get((ns, id))
            return sorted(found.values(), key=lambda one: one[:3]) if found else []

    def writes_without_checkpoint(self) -> Iterator[tuple[Place, list[WriteEntry]]]:
        """Yield the writes whose checkpoint is not stored, or not yet."""
        with self.lock:
            places = [place for place in self._writes if place not in self._checkpoints]
        for place in places:
            yield place, self.writes(*place)

    def wants_keyframe(self, entry: CheckpointEntry) -> int:
        """Return the `since` of a new checkpoint if it is to be stored whole; 0 if not.

        It is, if a reader would otherwise read more than `MAX_READ_RATIO` times what it needs. It
        must have the highest id, and no task may have written for it or a later one already: a
        reader that starts here would miss that.
        """
        with self.lock:
            last = self._keyframes.get(entry.ns, NO_KEYFRAME)
            passed = self.size - last.at
            if (
                passed < max(MIN_READ_BYTES, MAX_READ_RATIO * last.size)
                or not self.has_newest(entry.ns)
                or entry.v < FIRST_FORMAT_WITH_SENDS
                or entry.id <= self._newest.get(entry.ns, "")
                or any(one[0] == entry.ns and one[1] >= entry.id for one in self._writes)
            ):
                return 0
            since = self.version + 1
        size = count_characters(entry.values.values())
        if passed >= MAX_READ_RATIO * size:
            return since
        with self.lock:  # the next one is counted when this may have changed
            self._keyframes[entry.ns] = last._replace(size=size)
        return 0

    def ancestors(self, entry: CheckpointEntry) -> Iterator[CheckpointEntry]:
        """Yield the parent of a checkpoint, its parent, and so on."""
        passed = {entry.id}
        while entry.parent is not None and entry.parent not in passed:
            parent = self._checkpoints.get((entry.ns, entry.parent))
            if parent is None:
                return
            passed.add(parent.id)
            yield parent
            entry = parent

    # -- adding events ---------------------------------------------------------------------------

    def apply(self, version: int, type: str, data: bytes, blob: Blob | None, size: int) -> None:
        """Add one event, unless it is known. The caller holds the lock.

        Of a large value in a blob there is no data: it is read when it is needed.
        """
        if version <= self.version:
            return
        if version != self.version + 1:
            raise AssertionError("events are applied in order")
        try:
            if type == VALUE:
                self._large[version] = LargeValue(None if blob else _decode_typed(data), blob)
            elif type == SAVED:
                saved = decode_checkpoint(data)
                if self.start and saved.on and saved.on not in self._by_version:
                    self._incomplete.add(saved.ns)  # it differs from one before the start
                else:
                    self.add_checkpoint(self._read_checkpoint(version, saved), version, size)
            elif type == WRITTEN:
                self._read_writes(version, _decode_writes(data))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError):
            raise CorruptRecord(
                self.stream, version=version, what=f"it is no {type} event of a thread"
            ) from None
        self.version, self.size = version, self.size + size

    def apply_batch(
        self,
        first: int,
        batch: EventBatch,
        entry: CheckpointEntry | None = None,
        writes: Sequence[tuple[Place, WriteEntry]] = (),
    ) -> None:
        """Add the events of a batch that was just appended, if none is missing before them."""
        with self.lock:
            if first != self.version + 1:
                return
            self._large.update((first + place, large) for place, large in batch.large.items())
            self.version, self.size = self.version + len(batch.events), self.size + batch.size
            if entry is not None:
                self.add_checkpoint(entry, self.version, batch.size)
            for place, write in writes:
                self.add_write(*place, write)

    def add_checkpoint(self, entry: CheckpointEntry, version: int, size: int) -> None:
        """Add a checkpoint, whose event has this version and size. The caller holds the lock."""
        if entry.version != version:
            entry = entry._replace(version=version)
        known = self._keyframes.get(entry.ns)
        if entry.since > self.start and (known is None or entry.since > known.since):
            self._keyframes[entry.ns] = Keyframe(self.size, size, entry.since)
        self._by_version[version] = self._checkpoints[entry.ns, entry.id] = entry
        if entry.id > self._newest.get(entry.ns, ""):
            self._newest[entry.ns] = entry.id

    def add_write(self, ns: str, id: str, write: WriteEntry) -> None:
        known = self._writes.setdefault((ns, id), {})
        if write.place < 0:
            known[write.task, write.place] = write
        else:
            known.setdefault((write.task, write.place), write)

    def _read_checkpoint(self, version: int, saved: SavedCheckpoint) -> CheckpointEntry:
        base = self._by_version[saved.on] if saved.on else None
        large = self._find_large(version)
        values = {} if base is None else dict(base.values)
        for channel, spec in saved.values.items():
            if spec is None:
                values.pop(channel, None)
            else:
                values[channel] = decode_value(self.stream, spec, large, values.get(channel))
        return CheckpointEntry(
            saved.ns,
            saved.id,
            saved.parent,
            saved.v,
            saved.ts,
            bytes(saved.metadata),  # a copy: the event need not stay in memory for it
            saved.typed_metadata,
            values,
            _merge(base.versions if base else {}, saved.versions),
            _merge(base.seen if base else {}, saved.seen),
            saved.updated,
            saved.rest,
            version,
            saved.since,
        )

    def _read_writes(self, version: int, saved: SavedWrites) -> None:
        large = self._find_large(version)
        for place, channel, spec in saved.writes:
            value = decode_value(self.stream, spec, large, None)
            write = WriteEntry(saved.path, saved.task, place, channel, value)
            self.add_write(saved.ns, saved.id, write)

    def _find_large(self, version: int) -> Any:
        return lambda back: self._large[version - back]


def encode_checkpoint(
    entry: CheckpointEntry, base: CheckpointEntry | None, batch: EventBatch
) -> None:
    """Add the event of a checkpoint. With a stored base, only what differs from it."""
    old_values, old_versions, old_seen = (
        (base.values, base.versions, base.seen) if base is not None else ({}, {}, {})
    )
    values: dict[str, dict[str, Any] | None] = {
        channel: encode_value(value, batch.add_large)
        for channel, value in entry.values.items()
        if old_values.get(channel) is not value
    }
    values.update((channel, None) for channel in old_values if channel not in entry.values)
    batch.add(
        SAVED,
        SavedCheckpoint(
            entry.ns,
            entry.id,
            entry.parent,
            entry.v,
            entry.ts,
            base.version if base is not None else 0,
            msgspec.Raw(entry.metadata),
            entry.typed_metadata,
            values,
            _find_changes(old_versions, entry.versions),
            _find_changes(old_seen, entry.seen),
            entry.updated,
            entry.rest,
            entry.since,
        ),
    )


def make_keyframe(entry: CheckpointEntry, since: int) -> CheckpointEntry:
    """Return a checkpoint that is stored whole. Its large values have been read."""
    values = {name: rebase_value(value, None) for name, value in entry.values.items()}
    return entry._replace(values=values, since=since)


def encode_writes(ns: str, id: str, writes: Sequence[WriteEntry], batch: EventBatch) -> None:
    """Add the event of some writes of one task."""
    stored = [(one.place, one.channel, encode_value(one.value, batch.add_large)) for one in writes]
    batch.add(WRITTEN, SavedWrites(ns, id, writes[0].task, writes[0].path, stored))


def build_writes(
    codec: ValueCodec, writes: Iterable[tuple[str, Any]], task: str, path: str
) -> list[WriteEntry]:
    return [
        WriteEntry(
            path,
            task,
            WRITES_IDX_MAP.get(channel, at),
            channel,
            codec.build(value, channel=channel),
        )
        for at, (channel, value) in enumerate(writes)
    ]


def rewrite_thread(
    kept: Sequence[CheckpointEntry], writes: Sequence[tuple[Place, list[WriteEntry]]]
) -> EventBatch:
    """Return the events of a thread with only these checkpoints, oldest first, and writes.

    The first event is left for the caller. A value that two checkpoints share is stored once.
    """
    batch = EventBatch()
    batch.events.append(NewEvent(PRUNED, b"null"))
    new: dict[Place, CheckpointEntry] = {}
    newest: dict[str, CheckpointEntry] = {}
    rebuilt: dict[int, ChannelValue] = {}
    for entry in kept:
        parent = new.get((entry.ns, entry.parent or ""))
        base = parent or newest.get(entry.ns)
        values = {}
        for channel, value in entry.values.items():
            if id(value) not in rebuilt:
                old = base.values.get(channel) if base is not None else None
                rebuilt[id(value)] = rebase_value(value, old)
            values[channel] = rebuilt[id(value)]
        entry = entry._replace(values=values, parent=entry.parent if parent else None, since=0)
        encode_checkpoint(entry, base, batch)
        entry = entry._replace(version=len(batch.events))
        new[entry.ns, entry.id] = newest[entry.ns] = entry
    for (ns, id_), some in writes:
        for task in dict.fromkeys(write.task for write in some):
            encode_writes(ns, id_, [write for write in some if write.task == task], batch)
    return batch


def _merge(old: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    if not changes:
        return old
    merged = {**old, **changes}
    if None not in changes.values():
        return merged
    return {name: value for name, value in merged.items() if value is not None}


def _find_changes(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    changes = {name: value for name, value in new.items() if old.get(name) != value}
    changes.update((name, None) for name in old if name not in new)
    return changes
