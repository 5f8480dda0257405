"""The items of a LangGraph store: a stream per namespace, and the operations on it.

Its events are `item.put`, `item.deleted`, and `item.touched` for an item that was read and whose
time to live starts again. When the last item of a namespace is deleted, so is its stream.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from ...backends import CacheSize, StreamKey, clock
from ...errors import Conflict, CorruptRecord
from ...log import operations as ops
from ...log.events import AppendContext, NewEvent
from ...log.head_fields import slide_expiry
from ...log.ids import stream_key
from ...log.log import Log
from ...log.operations import Operation
from ...log.operations.stream_ops import append_events, delete_stream, load_data

PREFIX: Final = "langgraph/store/"
PUT: Final = "item.put"
DELETED: Final = "item.deleted"
TOUCHED: Final = "item.touched"
EMPTY_REASON: Final = "the last item of a LangGraph namespace was deleted"
MAX_CACHE_BYTES: Final = 64 * 1024 * 1024
SECONDS_PER_MINUTE: Final = 60.0

Namespace = tuple[str, ...]


class ItemPut(msgspec.Struct, omit_defaults=True, frozen=True):
    """The data of `item.put`. `ttl` is in minutes; `index` as in LangGraph's `PutOp`."""

    key: str
    value: msgspec.Raw
    ttl: float | None = None
    index: bool | list[str] | None = None


class ItemKey(msgspec.Struct, frozen=True):
    """The data of the other events."""

    key: str


class StoredItem(NamedTuple):
    """An item, with its value as JSON."""

    key: str
    raw: bytes
    version: int
    created_at: float
    updated_at: float
    ttl: float | None
    expires_at: float | None
    searched_by: bool | list[str] | None
    """The paths to search it by; None: those of the store; False: it isn't searched."""

    def is_live(self, now: float) -> bool:
        return self.expires_at is None or self.expires_at > now


class NamespaceItems:
    """The items of a namespace, as its events up to `version` say."""

    def __init__(self, stream: str, incarnation: bytes | None) -> None:
        self.stream, self.incarnation = stream, incarnation
        self.version, self.size = 0, 0
        self.now = clock.time()
        """The backend's time when the items were last read."""
        self.indexed: tuple[int, tuple[str, ...]] | None = None
        """The version up to which the search index is complete, and the fields in it."""
        self.lock = threading.Lock()
        self._items: dict[str, StoredItem] = {}

    def get(self, key: str) -> StoredItem | None:
        item = self._items.get(key)
        return item if item is not None and item.is_live(self.now) else None

    def live(self) -> list[StoredItem]:
        """Return the items that have not expired, those updated last first."""
        with self.lock:
            found = [item for item in self._items.values() if item.is_live(self.now)]
        return sorted(found, key=lambda item: item.version, reverse=True)

    def apply(self, version: int, type: str, data: Any, at: float, size: int) -> None:
        """Add one event, unless it is known. The caller holds the lock."""
        if version <= self.version:
            return
        try:
            if type == PUT:
                self._put(version, msgspec.convert(data, dict[str, Any]), at)
            else:
                key = msgspec.convert(data, ItemKey).key
                if type == DELETED:
                    self._items.pop(key, None)
                elif (item := self._items.get(key)) is not None and item.ttl is not None:
                    expires_at = slide_expiry(item.expires_at, at, item.ttl * SECONDS_PER_MINUTE)
                    self._items[key] = item._replace(expires_at=expires_at)
        except (msgspec.ValidationError, KeyError, TypeError):
            raise CorruptRecord(
                self.stream, version=version, what=f"it is no {type} event of a namespace"
            ) from None
        self.version, self.size = version, self.size + size

    def _put(self, version: int, data: dict[str, Any], at: float) -> None:
        key, ttl = data["key"], data.get("ttl")
        old = self._items.get(key)
        is_update = old is not None and (old.expires_at is None or old.expires_at > at)
        self._items[key] = StoredItem(
            key,
            msgspec.json.encode(data["value"]),
            version,
            old.created_at if old is not None and is_update else at,
            at,
            ttl,
            None if ttl is None else at + ttl * SECONDS_PER_MINUTE,
            data.get("index"),
        )


class ItemCache:
    """The items of the namespaces that were used last. The newest one always stays."""

    def __init__(self, log: Log) -> None:
        self._namespaces: OrderedDict[StreamKey, NamespaceItems] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: StreamKey) -> NamespaceItems | None:
        return self._namespaces.get(key)

    def keep(self, key: StreamKey, items: NamespaceItems) -> None:
        with self._lock:
            self._namespaces[key] = items
            self._namespaces.move_to_end(key)
            size = self._count_bytes()
            while size > MAX_CACHE_BYTES and len(self._namespaces) > 1:
                size -= self._namespaces.popitem(last=False)[1].size

    def drop(self, key: StreamKey) -> None:
        with self._lock:
            self._namespaces.pop(key, None)

    def _count_bytes(self) -> int:
        return sum(items.size for items in self._namespaces.values())

    def describe_caches(self) -> Mapping[str, CacheSize]:
        with self._lock:
            used = self._count_bytes()
        return {"LangGraph items": CacheSize(used, MAX_CACHE_BYTES, "bytes")}

    def close(self) -> None:
        """Do nothing: it has no resources."""


def join_namespace(namespace: Namespace) -> str:
    """Return a namespace as one text. Its labels have no period."""
    return ".".join(namespace)


def namespace_key(tenant: str, namespace: Namespace) -> StreamKey:
    return stream_key(tenant, "stream", PREFIX + join_namespace(namespace))


def load_items(cache: ItemCache, key: StreamKey) -> Operation[NamespaceItems]:
    """Return the items of a namespace, with everything that is stored now."""
    head = yield from ops.head(key)
    if head is None:
        cache.drop(key)
        return NamespaceItems(str(key), None)
    known = cache.get(key)
    if known is not None and known.incarnation == head.incarnation:
        items = known
    else:
        items = NamespaceItems(str(key), head.incarnation)
    while items.version < head.version:
        page = yield from ops.read(key, after=items.version, decoded=True)
        if not page:
            raise Conflict(str(key), expected=head.version, actual=items.version)
        loaded = []
        for stored in page:
            data = yield from load_data(key, stored)
            blob = stored.envelope.blob
            size = stored.size + (blob.size if blob is not None else 0)
            loaded.append((stored.version, stored.envelope.type, data, stored.envelope.at, size))
        with items.lock:
            for event in loaded:
                items.apply(*event)
    items.now = head.now
    cache.keep(key, items)
    return items


def save_items(
    cache: ItemCache, key: StreamKey, events: Sequence[NewEvent], stamp: AppendContext
) -> Operation[None]:
    """Append the changes of a namespace."""
    if all(event.type == DELETED for event in events):
        items = yield from load_items(cache, key)
        if items.incarnation is None:
            return
    yield from append_events(key, events, stamp)


def delete_empty(
    cache: ItemCache, key: StreamKey, memory: StreamKey, stamp: AppendContext
) -> Operation[None]:
    """Delete a namespace and its search index if it has no items left."""
    items = yield from load_items(cache, key)
    if items.incarnation is None or items.live():
        return
    head = yield from ops.head(key)
    if head is not None and (head.incarnation, head.version) == (items.incarnation, items.version):
        yield from delete_stream(key, stamp, EMPTY_REASON, head)
        yield from delete_stream(memory, stamp, EMPTY_REASON)
        cache.drop(key)


def touch_items(
    key: StreamKey, items: NamespaceItems, read: Sequence[StoredItem], stamp: AppendContext
) -> Operation[None]:
    """Let the time to live of items start again, if it has moved by more than a hundredth."""
    moved = [
        item
        for item in read
        if item.ttl is not None
        and slide_expiry(item.expires_at, items.now, item.ttl * SECONDS_PER_MINUTE)
        != item.expires_at
    ]
    if moved and items.incarnation is not None:
        events = [NewEvent(TOUCHED, msgspec.json.encode(ItemKey(item.key))) for item in moved]
        yield from append_events(key, events, stamp, incarnation=items.incarnation)


def list_namespaces(tenant: str, prefix: Namespace) -> Operation[list[Namespace]]:
    """Return the namespaces that start with these labels, also those without items."""
    start = PREFIX + join_namespace(prefix)
    found: list[Namespace] = []
    if prefix and (yield from ops.head(StreamKey(tenant, "stream", start))) is not None:
        found.append(prefix)
    after = start
    while page := (yield from ops.heads(tenant, "stream", after=after)):
        for head in page:
            if not head.stream.id.startswith(start):
                return found
            namespace = tuple(head.stream.id.removeprefix(PREFIX).split("."))
            if namespace[: len(prefix)] == prefix:
                found.append(namespace)
        after = page[-1].stream.id
    return found


# -- search ----------------------------------------------------------------------------------------

_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "$eq": lambda value, wanted: bool(value == wanted),
    "$ne": lambda value, wanted: bool(value != wanted),
    "$gt": lambda value, wanted: _compare(value, wanted) > 0,
    "$gte": lambda value, wanted: _compare(value, wanted) >= 0,
    "$lt": lambda value, wanted: _compare(value, wanted) < 0,
    "$lte": lambda value, wanted: _compare(value, wanted) <= 0,
}


def matches_filter(value: Mapping[str, Any], filter: Mapping[str, Any] | None) -> bool:
    """Return whether a value has all wanted fields."""
    return all(_has(value.get(name), wanted) for name, wanted in (filter or {}).items())


def _has(value: Any, wanted: Any) -> bool:
    if not isinstance(wanted, dict):
        return bool(value == (list(wanted) if isinstance(wanted, tuple) else wanted))
    if any(name.startswith("$") for name in wanted):
        unknown = [name for name in wanted if name not in _OPERATORS]
        if unknown:
            raise ValueError(
                f"a filter's operator must be one of {', '.join(_OPERATORS)}, got {unknown[0]!r}"
            )
        return all(_OPERATORS[name](value, limit) for name, limit in wanted.items())
    return isinstance(value, dict) and matches_filter(value, wanted)


def _compare(value: Any, wanted: Any) -> float:
    """Return a number whose sign says how two numbers or two texts compare; NaN if they don't."""
    if isinstance(value, str) and isinstance(wanted, str):
        return float((value > wanted) - (value < wanted))
    if isinstance(value, int | float) and isinstance(wanted, int | float):
        return float((value > wanted) - (value < wanted))
    return float("nan")


def build_text(value: Mapping[str, Any], paths: Sequence[str]) -> str:
    """Return the text to search an item by: what the paths lead to, or all fields."""
    from langgraph.store.base import get_text_at_path

    if paths and list(paths) != ["$"]:
        return "\n".join(text for path in paths for text in get_text_at_path(value, path))
    return "\n".join(_list_texts(value, ""))


def _list_texts(value: Any, name: str) -> Iterator[str]:
    if isinstance(value, dict):
        for field, part in value.items():
            yield from _list_texts(part, field)
    elif isinstance(value, list):
        for part in value:
            yield from _list_texts(part, name)
    elif value is not None:
        yield f"{name}: {value}" if name else str(value)
