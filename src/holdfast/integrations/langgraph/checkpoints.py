"""Checkpoints between LangGraph's form and that of the index."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, cast

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.types import TASKS, _DeltaSnapshot

from ...log.codec import MAX_DEPTH, Undecodable, decode
from .thread import FIRST_FORMAT_WITH_SENDS, CheckpointEntry, Place, ThreadIndex, WriteEntry
from .values import ChannelValue, Typed, ValueCodec

METADATA_DEPTH: Final = MAX_DEPTH - 10
"""How deep metadata may be nested in an event, which must be readable as a whole."""
_KNOWN_KEYS: Final = frozenset(
    ["v", "id", "ts", "channel_values", "channel_versions", "versions_seen", "updated_channels"]
)


class NewCheckpoint:
    """A checkpoint that is to be saved."""

    def __init__(
        self,
        codec: ValueCodec,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> None:
        configurable = config["configurable"]
        self.ns: str = configurable.get("checkpoint_ns") or ""
        self.parent: str | None = configurable.get("checkpoint_id")
        self._codec, self._checkpoint, self._new = codec, checkpoint, new_versions
        self._metadata, self._typed_metadata = encode_metadata(
            codec, dict(get_checkpoint_metadata(config, metadata))
        )

    def list_compared(self, base: CheckpointEntry) -> list[ChannelValue]:
        """Return the values of the base that values of this checkpoint are compared with."""
        return [
            base.values[channel]
            for channel in self._checkpoint["channel_values"]
            if channel in base.values and not self._is_unchanged(channel, base)
        ]

    def build(self, base: CheckpointEntry | None) -> CheckpointEntry:
        """Return the entry. A channel whose version is that of the base keeps its value."""
        checkpoint = self._checkpoint
        values = {}
        for channel, value in checkpoint["channel_values"].items():
            old = base.values.get(channel) if base is not None else None
            if old is None or base is None or not self._is_unchanged(channel, base):
                old = self._codec.build(value, old, channel)
            values[channel] = old
        rest = {
            key: value
            for key, value in checkpoint.items()
            if key not in _KNOWN_KEYS and not (key == "pending_sends" and not value)
        }
        return CheckpointEntry(
            self.ns,
            checkpoint["id"],
            self.parent,
            checkpoint["v"],
            checkpoint["ts"],
            self._metadata,
            self._typed_metadata,
            values,
            dict(checkpoint["channel_versions"]),
            {node: dict(seen) for node, seen in checkpoint["versions_seen"].items()},
            checkpoint.get("updated_channels"),
            self._codec.dump_typed(rest) if rest else None,
            0,
            base.since if base is not None else 0,
        )

    def _is_unchanged(self, channel: str, base: CheckpointEntry) -> bool:
        versions = self._checkpoint["channel_versions"]
        return (
            channel not in self._new
            and channel in base.values
            and channel in versions
            and base.versions.get(channel) == versions[channel]
            and not isinstance(self._checkpoint["channel_values"][channel], _DeltaSnapshot)
        )


def encode_metadata(codec: ValueCodec, metadata: dict[str, Any]) -> tuple[bytes, Typed | None]:
    """Return metadata as JSON, or else as the serializer stores it."""
    try:
        text = json.dumps(metadata, ensure_ascii=False, allow_nan=False)
        plain = decode(text.encode("utf-8", "ignore"), max_depth=METADATA_DEPTH)
    except (TypeError, ValueError, Undecodable):
        return b"{}", codec.dump_typed(metadata)
    return msgspec.json.encode(codec.redact_json(plain)), None


def load_metadata(codec: ValueCodec, entry: CheckpointEntry) -> CheckpointMetadata:
    if entry.typed_metadata is not None:
        return cast("CheckpointMetadata", codec.load_typed(entry.typed_metadata))
    return cast("CheckpointMetadata", decode(entry.metadata))


def make_config(thread_id: str, ns: str, id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": id}}


def list_needed(index: ThreadIndex, entry: CheckpointEntry) -> list[ChannelValue]:
    """Return all values that `load_tuple` loads."""
    writes = index.writes(entry.ns, entry.id)
    return [
        *entry.values.values(),
        *(write.value for write in writes),
        *(send.value for send in _list_old_sends(index, entry)),
    ]


def load_tuple(
    codec: ValueCodec, index: ThreadIndex, entry: CheckpointEntry, thread_id: str
) -> CheckpointTuple:
    """Return a checkpoint as LangGraph expects it. Its large values have been read."""
    values = {channel: codec.load(value) for channel, value in entry.values.items()}
    versions = dict(entry.versions)
    if sends := list(_list_old_sends(index, entry)):
        values[TASKS] = [codec.load(send.value) for send in sends]
        versions.setdefault(TASKS, max(versions.values(), default=1))
    checkpoint: dict[str, Any] = {
        "v": entry.v,
        "ts": entry.ts,
        "id": entry.id,
        "channel_values": values,
        "channel_versions": versions,
        "versions_seen": {node: dict(seen) for node, seen in entry.seen.items()},
        "updated_channels": None if entry.updated is None else list(entry.updated),
    }
    if entry.rest is not None:
        checkpoint.update(codec.load_typed(entry.rest))
    return CheckpointTuple(
        make_config(thread_id, entry.ns, entry.id),
        cast("Checkpoint", checkpoint),
        load_metadata(codec, entry),
        make_config(thread_id, entry.ns, entry.parent) if entry.parent else None,
        [
            (write.task, write.channel, codec.load(write.value))
            for write in index.writes(entry.ns, entry.id)
        ],
    )


def _list_old_sends(index: ThreadIndex, entry: CheckpointEntry) -> Iterator[WriteEntry]:
    if entry.v < FIRST_FORMAT_WITH_SENDS and entry.parent and TASKS not in entry.values:
        for write in index.writes(entry.ns, entry.parent):
            if write.channel == TASKS:
                yield write


def matches(
    codec: ValueCodec, entry: CheckpointEntry, filter: dict[str, Any] | None, before: str | None
) -> bool:
    if before is not None and entry.id >= before:
        return False
    if not filter:
        return True
    metadata = load_metadata(codec, entry)
    return all(metadata.get(name) == wanted for name, wanted in filter.items())


# -- delta channels --------------------------------------------------------------------------------


class ChannelHistory:
    """The writes to a delta channel since the nearest ancestor that has its value, the seed."""

    def __init__(self, index: ThreadIndex, entry: CheckpointEntry, channel: str) -> None:
        self.seed: ChannelValue | None = None
        self.writes: list[WriteEntry] = []
        self.ancestors: list[Place] = []
        for ancestor in index.ancestors(entry):
            self.ancestors.append((ancestor.ns, ancestor.id))
            some = index.writes(ancestor.ns, ancestor.id)
            self.writes += [write for write in reversed(some) if write.channel == channel]
            self.seed = ancestor.values.get(channel)
            if self.seed is not None:
                break
        self.writes.reverse()

    def list_needed(self) -> list[ChannelValue]:
        seed = [] if self.seed is None else [self.seed]
        return [*seed, *(write.value for write in self.writes)]

    def load(self, codec: ValueCodec) -> DeltaChannelHistory:
        history: DeltaChannelHistory = {
            "writes": [
                (write.task, write.channel, codec.load(write.value)) for write in self.writes
            ]
        }
        if self.seed is not None:
            history["seed"] = codec.load(self.seed)
        return history


def choose_latest(index: ThreadIndex) -> set[Place]:
    """Return the newest checkpoint of each namespace, with the ancestors it needs.

    A delta channel needs its ancestors back to its last snapshot. A checkpoint of an old format
    needs its parent, which has its sends.
    """
    chosen: set[Place] = set()
    for entry in index.checkpoints():
        if any(place[0] == entry.ns for place in chosen):
            continue
        chosen.add((entry.ns, entry.id))
        if entry.parent and any(_list_old_sends(index, entry)):
            chosen.add((entry.ns, entry.parent))
        for channel in decode(entry.metadata).get("counters_since_delta_snapshot") or ():
            if channel not in entry.values:
                chosen.update(ChannelHistory(index, entry, channel).ancestors)
    return chosen


def choose_other_runs(
    codec: ValueCodec, run_ids: Iterable[str]
) -> Callable[[ThreadIndex], set[Place]]:
    """Return a function that chooses the checkpoints that no run of these has saved."""
    unwanted = set(run_ids)

    def choose(index: ThreadIndex) -> set[Place]:
        return {
            (entry.ns, entry.id)
            for entry in index.checkpoints()
            if load_metadata(codec, entry).get("run_id") not in unwanted
        }

    return choose
