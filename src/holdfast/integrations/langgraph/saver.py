"""`HoldfastSaver`: LangGraph's checkpoints in a store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from random import random
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_id,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from ... import AsyncStore, Store
from ...backends import StreamKey
from ...log import operations as ops
from ...log.events import new_append_context
from ...log.operations import Operation
from ...log.validation import check_seconds
from . import operations as threads
from .checkpoints import (
    ChannelHistory,
    NewCheckpoint,
    choose_latest,
    choose_other_runs,
    list_needed,
    load_tuple,
    make_config,
    matches,
)
from .operations import ThreadCache, ThreadWriter, load_index, read_large, thread_key
from .thread import ThreadIndex, build_writes
from .values import ValueCodec

T = TypeVar("T")
Found = list[tuple[str, str, str]]
"""Checkpoints in a listing: id, namespace and thread."""

STRATEGIES = ("keep_latest", "delete")


class HoldfastSaver(BaseCheckpointSaver[Any]):
    """A checkpointer for graphs, in sync and in async code, on any backend.

    Each thread is a stream of the store. A checkpoint stores what changed since its parent; of a
    list of messages, only the new ones. When `put` returns, the checkpoint is on disk.

    Args:
        store: An open store; `for_tenant` gives each tenant threads of its own.
        types: Classes of your own that the state contains. Stored data never loads any others.
        serde: Another serializer in place of `types`, for example one that you share with
            other checkpointers.
        ttl: How long a thread is kept after its last checkpoint, in seconds or as a timedelta.
            None: forever. `store.sweep()` purges expired threads.

    Example:
        graph = builder.compile(checkpointer=HoldfastSaver(holdfast.open("agents.db")))
    """

    def __init__(
        self,
        store: Store | AsyncStore,
        *,
        types: Iterable[type] = (),
        serde: SerializerProtocol | None = None,
        ttl: float | timedelta | None = None,
    ) -> None:
        if not isinstance(store, Store | AsyncStore):
            raise TypeError(
                'store must be an open store, like holdfast.open("agents.db"), '
                f"got {type(store).__name__}"
            )
        allowed = list(types)
        if serde is not None and allowed:
            raise TypeError("types= is for the default serializer; give your serde the types")
        super().__init__(serde=serde or JsonPlusSerializer(allowed_msgpack_modules=allowed or None))
        self._log, self._tenant = store._log, store.tenant
        self._ttl = None if ttl is None else check_seconds(ttl, "ttl")
        self._codec_of: tuple[Any, ValueCodec] | None = None
        self._codec()

    def _codec(self) -> ValueCodec:
        """Return the codec of the current `serde`, which `with_allowlist` replaces in a copy."""
        known = self._codec_of
        if known is None or known[0] is not self.serde:
            known = self._codec_of = self.serde, ValueCodec(self.serde, self._log.redactor)
        return known[1]

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Return the next version of a channel: an integer, or a text after an import."""
        if not isinstance(current, str):
            return 1 if current is None else current + 1
        return f"{int(current.split('.')[0]) + 1:032}.{random():016}"  # noqa: S311  no secret

    # -- sync ------------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint, the newest one without a `checkpoint_id`; None if there is none."""
        return self._run(self._get_gen, config)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, newest first; those of all threads without a config."""
        found: Found = []
        for thread_id in self._list_wanted(config):
            found += self._run(self._find_gen, thread_id, config, filter, before)
        for checkpoint_id, ns, thread_id in _limit(found, limit):
            one = self._run(self._get_gen, make_config(thread_id, ns, checkpoint_id))
            if one is not None:
                yield one

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Save a checkpoint. It is durable when this returns."""
        self._run(self._prepare_put(config, checkpoint, metadata, new_versions))
        return _make_result(config, checkpoint)

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Save what a task has written, before its step ends. It is durable when this returns."""
        if writes:
            self._run(self._prepare_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with all its checkpoints and writes."""
        self._run(self._delete_gen, thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of some runs. This reads all threads of the tenant."""
        if run_ids:
            for thread_id in self._list_wanted(None):
                self._run(self._prune_gen, thread_id, choose_other_runs(self._codec(), run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread to another one."""
        self._run(self._copy_gen, source_thread_id, target_thread_id)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete old checkpoints, or all with `strategy="delete"`, and free their space.

        The newest checkpoint of each namespace stays, with what its delta channels need.
        """
        _check_strategy(strategy)
        for thread_id in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread_id)
            else:
                self._run(self._prune_gen, thread_id, choose_latest)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what delta channels are rebuilt from: a stored value, and the writes after it."""
        return self._run(self._history_gen, config, channels)

    def _run(self, make: Callable[..., Operation[T]], *args: Any) -> T:
        return ops.run_until_settled(self._log, _bind(make, args))

    def _list_wanted(self, config: RunnableConfig | None) -> Iterator[str]:
        if config is not None:
            yield _thread_id(config)
            return
        for prefix in (threads.PRUNED_PREFIX, threads.PREFIX):
            after = ""
            while True:
                page, after = self._run(threads.list_threads, self._tenant, prefix, after)
                if prefix == threads.PREFIX:
                    yield from page
                else:  # left by a process that died while it pruned: loading them finishes that
                    for thread_id in page:
                        self._run(self._find_gen, thread_id, None, None, None)
                if not after:
                    break

    # -- async -----------------------------------------------------------------------------------

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`get_tuple`, awaited."""
        return await self._run_async(self._get_gen, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """`list` as an async iterator."""
        found: Found = []
        async for thread_id in self._list_wanted_async(config):
            found += await self._run_async(self._find_gen, thread_id, config, filter, before)
        for checkpoint_id, ns, thread_id in _limit(found, limit):
            one = await self._run_async(self._get_gen, make_config(thread_id, ns, checkpoint_id))
            if one is not None:
                yield one

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """`put`, awaited."""
        await self._run_async(self._prepare_put(config, checkpoint, metadata, new_versions))
        return _make_result(config, checkpoint)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """`put_writes`, awaited."""
        if writes:
            await self._run_async(self._prepare_writes(config, writes, task_id, task_path))

    async def adelete_thread(self, thread_id: str) -> None:
        """`delete_thread`, awaited."""
        await self._run_async(self._delete_gen, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """`delete_for_runs`, awaited."""
        if run_ids:
            choose = choose_other_runs(self._codec(), run_ids)
            async for thread_id in self._list_wanted_async(None):
                await self._run_async(self._prune_gen, thread_id, choose)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """`copy_thread`, awaited."""
        await self._run_async(self._copy_gen, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """`prune`, awaited."""
        _check_strategy(strategy)
        for thread_id in thread_ids:
            if strategy == "delete":
                await self.adelete_thread(thread_id)
            else:
                await self._run_async(self._prune_gen, thread_id, choose_latest)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """`get_delta_channel_history`, awaited."""
        return await self._run_async(self._history_gen, config, channels)

    async def _run_async(self, make: Callable[..., Operation[T]], *args: Any) -> T:
        return await ops.run_until_settled_async(self._log, _bind(make, args))

    async def _list_wanted_async(self, config: RunnableConfig | None) -> AsyncIterator[str]:
        if config is not None:
            yield _thread_id(config)
            return
        for prefix in (threads.PRUNED_PREFIX, threads.PREFIX):
            after = ""
            while True:
                page, after = await self._run_async(
                    threads.list_threads, self._tenant, prefix, after
                )
                for thread_id in page:
                    if prefix == threads.PREFIX:
                        yield thread_id
                    else:
                        await self._run_async(self._find_gen, thread_id, None, None, None)
                if not after:
                    break

    # -- operations ------------------------------------------------------------------------------

    @property
    def _cache(self) -> ThreadCache:
        return self._log.attachment(ThreadCache)

    def _key(self, thread_id: str) -> StreamKey:
        return thread_key(self._tenant, thread_id)

    def _load(self, key: StreamKey, newest: str | None = None) -> Operation[ThreadIndex]:
        return load_index(self._cache, key, new_append_context(), newest)

    def _get_gen(self, config: RunnableConfig) -> Operation[CheckpointTuple | None]:
        thread_id = _thread_id(config)
        key = self._key(thread_id)
        place = _namespace(config), get_checkpoint_id(config)
        index = yield from self._load(key, newest=place[0])
        entry = index.get(*place)
        if entry is None and index.start:
            index = yield from self._load(key)
            entry = index.get(*place)
        if entry is None:
            return None
        yield from read_large(key, index, list_needed(index, entry))
        return load_tuple(self._codec(), index, entry, thread_id)

    def _find_gen(
        self,
        thread_id: str,
        config: RunnableConfig | None,
        filter: dict[str, Any] | None,
        before: RunnableConfig | None,
    ) -> Operation[Found]:
        """Return the checkpoints of a thread that match."""
        index = yield from self._load(self._key(thread_id))
        wanted = dict(config["configurable"]) if config is not None else {}
        ns, wanted_id = wanted.get("checkpoint_ns"), wanted.get("checkpoint_id")
        until = get_checkpoint_id(before) if before is not None else None
        return [
            (entry.id, entry.ns, thread_id)
            for entry in index.checkpoints()
            if (ns is None or entry.ns == ns)
            and (not wanted_id or entry.id == wanted_id)
            and matches(self._codec(), entry, filter, until)
        ]

    def _prepare_put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> Callable[[], Operation[None]]:
        new = NewCheckpoint(self._codec(), config, checkpoint, metadata, new_versions)
        writer = self._writer(config)
        return lambda: writer.save_checkpoint(new)

    def _prepare_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, path: str
    ) -> Callable[[], Operation[None]]:
        built = build_writes(self._codec(), writes, task_id, path)
        place = _namespace(config), str(config["configurable"]["checkpoint_id"])
        writer = self._writer(config)
        return lambda: writer.save_writes(*place, built)

    def _writer(self, config: RunnableConfig) -> ThreadWriter:
        key = self._key(_thread_id(config))
        return ThreadWriter(self._cache, key, new_append_context(), self._ttl)

    def _delete_gen(self, thread_id: str) -> Operation[None]:
        return threads.delete_thread(self._cache, self._key(str(thread_id)), new_append_context())

    def _copy_gen(self, source: str, target: str) -> Operation[None]:
        if source == target:
            raise ValueError(f"the target of a copy must be another thread, got {target!r} twice")
        return threads.copy_thread(
            self._cache,
            self._key(str(source)),
            self._key(str(target)),
            new_append_context(),
            self._ttl,
        )

    def _prune_gen(
        self, thread_id: str, choose: Callable[[ThreadIndex], set[tuple[str, str]]]
    ) -> Operation[None]:
        return threads.prune_thread(
            self._cache, self._key(str(thread_id)), new_append_context(), choose
        )

    def _history_gen(
        self, config: RunnableConfig, channels: Sequence[str]
    ) -> Operation[dict[str, DeltaChannelHistory]]:
        key = self._key(_thread_id(config))
        index = yield from self._load(key)
        entry = index.get(_namespace(config), get_checkpoint_id(config))
        found: dict[str, DeltaChannelHistory] = {}
        for channel in channels:
            if entry is None:
                found[channel] = {"writes": []}
                continue
            history = ChannelHistory(index, entry, channel)
            yield from read_large(key, index, history.list_needed())
            found[channel] = history.load(self._codec())
        return found


def _bind(make: Callable[..., Operation[T]], args: tuple[Any, ...]) -> Callable[[], Operation[T]]:
    return lambda: make(*args)


def _thread_id(config: RunnableConfig) -> str:
    return str(config["configurable"]["thread_id"])


def _namespace(config: RunnableConfig) -> str:
    return config["configurable"].get("checkpoint_ns") or ""


def _make_result(config: RunnableConfig, checkpoint: Checkpoint) -> RunnableConfig:
    return make_config(config["configurable"]["thread_id"], _namespace(config), checkpoint["id"])


def _limit(found: Found, limit: int | None) -> Found:
    found.sort(key=lambda one: one[0], reverse=True)
    return found if limit is None else found[: max(limit, 0)]


def _check_strategy(strategy: str) -> None:
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy must be one of {', '.join(STRATEGIES)}, got {strategy!r}")
