"""`HoldfastStore`: LangGraph's long-term memory in a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    validate_op_namespace,
)

from ... import AsyncStore, Store
from ...backends import StreamKey
from ...backends.clock import to_datetime
from ...log import operations as ops
from ...log.codec import MAX_DEPTH, encode
from ...log.events import NewEvent, new_append_context
from ...log.operations import Operation
from ...memory.arguments import NewMemory
from . import items as stored
from .items import (
    DELETED,
    PUT,
    ItemCache,
    ItemKey,
    ItemPut,
    Namespace,
    NamespaceItems,
    StoredItem,
    build_text,
    delete_empty,
    join_namespace,
    load_items,
    matches_filter,
    namespace_key,
    save_items,
    touch_items,
)

T = TypeVar("T")


class Scored(NamedTuple):
    """An item that was found, and how well it fits the query."""

    namespace: Namespace
    item: StoredItem
    score: float | None


class SearchChanges(NamedTuple):
    """The entries that a namespace's search index lacks, and those that it must remove."""

    new: list[NewMemory]
    gone: list[str]


class HoldfastStore(BaseStore):
    """LangGraph's store for items that outlive threads, in sync and in async code.

    Each namespace is a stream of the store. `search(query=...)` uses the store's memory index: it
    needs no model, and searches by meaning too if the store has an embedder
    (`holdfast.open(..., embed=...)`).

    Args:
        store: An open store; `for_tenant` gives each tenant items of its own.
        fields: Paths of the fields to search by. None: all fields.
        ttl: The default time to live (`default_ttl`, in minutes), and whether reading an item
            starts it again (`refresh_on_read`).

    Example:
        graph = builder.compile(checkpointer=saver, store=HoldfastStore(store))
    """

    supports_ttl = True

    def __init__(
        self,
        store: Store | AsyncStore,
        *,
        fields: Sequence[str] | None = None,
        ttl: TTLConfig | None = None,
    ) -> None:
        if not isinstance(store, Store | AsyncStore):
            raise TypeError(
                'store must be an open store, like holdfast.open("agents.db"), '
                f"got {type(store).__name__}"
            )
        self._log, self._tenant = store._log, store.tenant
        self._fields = list(fields or [])
        self.ttl_config = ttl

    # -- sync ------------------------------------------------------------------------------------

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Perform operations in order. Puts to one namespace that follow each other are atomic."""
        results: list[Result] = []
        for group in _group(ops):
            if isinstance(group, SearchOp) and group.query:
                results.append(self._search(group, group.query))
            else:
                results += self._run(self._batch_gen, group)
            if isinstance(group, list) and any(op.value is None for op in group):
                self._run(self._delete_empty_gen, group[0].namespace)
        return results

    def _search(self, op: SearchOp, query: str) -> list[SearchItem]:
        found: list[Scored] = []
        store = Store(self._log, self._tenant, owner=False)
        for namespace in self._run(stored.list_namespaces, self._tenant, op.namespace_prefix):
            items = self._run(self._load_gen, namespace)
            memory = store.memory(_index_name(namespace))
            if items.indexed != (complete := (items.version, tuple(self._fields))):
                known = [source for one in memory.all() for source in one.sources]
                changes = self._find_changes(items, known)
                for source in changes.gone:
                    memory.forget_where(source=source)
                memory.remember_many(changes.new)
                items.indexed = complete
            hits = memory.recall(query, k=max(len(items.live()), 1), min_score=0)
            found += _match_hits(namespace, items, [(hit.sources, hit.score) for hit in hits])
        return self._run(self._finish_search_gen, op, found)

    def _run(self, make: Callable[..., Operation[T]], *args: Any) -> T:
        return ops.run_until_settled(self._log, lambda: make(*args))

    # -- async -----------------------------------------------------------------------------------

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """`batch`, awaited."""
        results: list[Result] = []
        for group in _group(ops):
            if isinstance(group, SearchOp) and group.query:
                results.append(await self._search_async(group, group.query))
            else:
                results += await self._run_async(self._batch_gen, group)
            if isinstance(group, list) and any(op.value is None for op in group):
                await self._run_async(self._delete_empty_gen, group[0].namespace)
        return results

    async def _search_async(self, op: SearchOp, query: str) -> list[SearchItem]:
        found: list[Scored] = []
        store = AsyncStore(self._log, self._tenant, owner=False)
        listed = self._run_async(stored.list_namespaces, self._tenant, op.namespace_prefix)
        for namespace in await listed:
            items = await self._run_async(self._load_gen, namespace)
            memory = store.memory(_index_name(namespace))
            if items.indexed != (complete := (items.version, tuple(self._fields))):
                known = [source async for one in memory.all() for source in one.sources]
                changes = self._find_changes(items, known)
                for source in changes.gone:
                    await memory.forget_where(source=source)
                await memory.remember_many(changes.new)
                items.indexed = complete
            hits = await memory.recall(query, k=max(len(items.live()), 1), min_score=0)
            found += _match_hits(namespace, items, [(hit.sources, hit.score) for hit in hits])
        return await self._run_async(self._finish_search_gen, op, found)

    async def _run_async(self, make: Callable[..., Operation[T]], *args: Any) -> T:
        return await ops.run_until_settled_async(self._log, lambda: make(*args))

    # -- operations ------------------------------------------------------------------------------

    @property
    def _cache(self) -> ItemCache:
        return self._log.attachment(ItemCache)

    def _key(self, namespace: Namespace) -> StreamKey:
        return namespace_key(self._tenant, namespace)

    def _load_gen(self, namespace: Namespace) -> Operation[NamespaceItems]:
        return load_items(self._cache, self._key(namespace))

    def _batch_gen(self, group: Op | list[PutOp]) -> Operation[list[Result]]:
        if isinstance(group, list):
            yield from self._put_gen(group)
            return [None] * len(group)
        if isinstance(group, GetOp):
            return [(yield from self._get_gen(group))]
        if isinstance(group, SearchOp):
            return [(yield from self._list_gen(group))]
        if isinstance(group, ListNamespacesOp):
            return [(yield from self._namespaces_gen(group))]
        raise TypeError(f"an operation must be one of LangGraph's, got {type(group).__name__}")

    def _put_gen(self, puts: Sequence[PutOp]) -> Operation[None]:
        events = [self._build_event(op) for op in puts]
        return save_items(self._cache, self._key(puts[0].namespace), events, new_append_context())

    def _delete_empty_gen(self, namespace: Namespace) -> Operation[None]:
        memory = StreamKey(self._tenant, "memory", _index_name(namespace))
        return delete_empty(self._cache, self._key(namespace), memory, new_append_context())

    def _build_event(self, op: PutOp) -> NewEvent:
        if op.value is None:
            return NewEvent(DELETED, msgspec.json.encode(ItemKey(op.key)))
        raw = self._log.redaction.redact_json(encode(op.value, max_depth=MAX_DEPTH - 1))
        put = ItemPut(op.key, msgspec.Raw(raw), op.ttl, op.index)
        return NewEvent(PUT, msgspec.json.encode(put))

    def _get_gen(self, op: GetOp) -> Operation[Item | None]:
        key = self._key(op.namespace)
        items = yield from load_items(self._cache, key)
        item = items.get(op.key)
        if item is None:
            return None
        if op.refresh_ttl:
            yield from touch_items(key, items, [item], new_append_context())
        return Item(
            value=msgspec.json.decode(item.raw),
            key=item.key,
            namespace=op.namespace,
            created_at=to_datetime(item.created_at),
            updated_at=to_datetime(item.updated_at),
        )

    def _list_gen(self, op: SearchOp) -> Operation[list[SearchItem]]:
        found: list[Scored] = []
        for namespace in (yield from stored.list_namespaces(self._tenant, op.namespace_prefix)):
            items = yield from self._load_gen(namespace)
            found += [Scored(namespace, item, None) for item in items.live()]
        return (yield from self._finish_search_gen(op, found))

    def _finish_search_gen(
        self, op: SearchOp, found: Sequence[Scored]
    ) -> Operation[list[SearchItem]]:
        """Filter, sort and cut what was found."""
        wanted: list[tuple[Scored, Any]] = []
        for one in found:
            value = msgspec.json.decode(one.item.raw)
            if matches_filter(value, op.filter):
                wanted.append((one, value))
        wanted.sort(key=lambda pair: (-(pair[0].score or 0.0), -pair[0].item.updated_at))
        wanted = wanted[op.offset : op.offset + op.limit]
        if op.refresh_ttl:
            for namespace in dict.fromkeys(one.namespace for one, _ in wanted):
                items = yield from self._load_gen(namespace)
                read = [one.item for one, _ in wanted if one.namespace == namespace]
                yield from touch_items(self._key(namespace), items, read, new_append_context())
        return [
            SearchItem(
                one.namespace,
                one.item.key,
                value,
                to_datetime(one.item.created_at),
                to_datetime(one.item.updated_at),
                one.score,
            )
            for one, value in wanted
        ]

    def _namespaces_gen(self, op: ListNamespacesOp) -> Operation[list[Namespace]]:
        found: dict[Namespace, None] = {}
        for namespace in (yield from stored.list_namespaces(self._tenant, ())):
            if all(_fits(namespace, one) for one in op.match_conditions or ()):
                items = yield from self._load_gen(namespace)
                if items.live():
                    found[namespace[: op.max_depth]] = None
        return sorted(found)[op.offset : op.offset + op.limit]

    def _find_changes(self, items: NamespaceItems, known: Iterable[str]) -> SearchChanges:
        """Compare the items with what is in the search index. A source names a stored version."""
        wanted = {f"{item.version}:{item.key}": item for item in items.live()}
        have = set(known)
        new: list[NewMemory] = []
        for source, item in wanted.items():
            if source not in have and item.searched_by is not False:
                paths = item.searched_by if isinstance(item.searched_by, list) else self._fields
                text = build_text(msgspec.json.decode(item.raw), paths)
                if text.strip():
                    new.append({"text": text, "source": source})
        return SearchChanges(new, sorted(have - set(wanted)))


def _index_name(namespace: Namespace) -> str:
    return stored.PREFIX + join_namespace(namespace)


def _group(given: Iterable[Op]) -> list[Op | list[PutOp]]:
    """Return the operations, with consecutive puts to one namespace together."""
    groups: list[Op | list[PutOp]] = []
    for op in given:
        validate_op_namespace(op)
        if isinstance(op, GetOp | PutOp) and not op.namespace:
            raise ValueError("namespace must have at least one label, got ()")
        last = groups[-1] if groups else None
        if not isinstance(op, PutOp):
            groups.append(op)
        elif isinstance(last, list) and last[0].namespace == op.namespace:
            last.append(op)
        else:
            groups.append([op])
    return groups


def _match_hits(
    namespace: Namespace, items: NamespaceItems, hits: Iterable[tuple[Sequence[str], float]]
) -> list[Scored]:
    """Return the items that recalled memories are about. One that has changed is left out."""
    found: list[Scored] = []
    for sources, score in hits:
        for source in sources:
            version, _, key = source.partition(":")
            item = items.get(key)
            if item is not None and str(item.version) == version:
                found.append(Scored(namespace, item, score))
    return found


def _fits(namespace: Namespace, condition: MatchCondition) -> bool:
    path = tuple(condition.path)
    if len(namespace) < len(path):
        return False
    if condition.match_type == "prefix":
        part = namespace[: len(path)]
    elif condition.match_type == "suffix":
        part = namespace[len(namespace) - len(path) :]
    else:
        raise ValueError(f"match_type must be prefix or suffix, got {condition.match_type!r}")
    return all(wanted in ("*", label) for label, wanted in zip(part, path, strict=True))
