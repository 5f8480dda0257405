"""Long-term memory: the `Memory` and `AsyncMemory` facades of a namespace."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from ..backends import AppendResult, StreamKey, clock
from ..errors import NotFound, Unavailable
from ..log import operations as ops
from ..log.events import NewEvent
from ..log.ids import check_id, format_ids
from ..log.log import Log
from ..log.operations import Operation
from ..log.operations.stream_ops import append_events, delete_stream, new_append_context
from ..log.validation import check_int, check_seconds
from .arguments import (
    Authors,
    NewMemory,
    Source,
    build_memory,
    build_memory_from_dict,
    check_authors,
    check_query,
    check_score,
    check_source,
    check_tags,
    clamp_time,
    redact_memory,
)
from .fold import MemoryEvent
from .model import (
    FORGOTTEN,
    JUDGED,
    REMEMBERED,
    SUPERSEDED,
    Forgotten,
    Judged,
    MemoryDoc,
    MemoryFilter,
    MemoryHit,
    MemoryItem,
    MemoryStats,
    Remembered,
    Superseded,
    build_item,
)
from .resources import get_follower, get_resources, get_vectors
from .search.index import MemoryIndex
from .search.recall import recall
from .statements import build_superseded, is_from_source, statements_of
from .subjects import append_about, event_subject
from .vectors.calls import CallBlocking, EmbedderFailed, EmbedGen, run_embed, run_embed_async
from .weights import Weights

if TYPE_CHECKING:
    from .vectors.backfill import BackfillRequest
    from .vectors.embedding import Embed, Embedding, Floats

AppendFactory = Callable[[], Operation[AppendResult]]

PAGE_MEMORIES = 500

_encode = msgspec.json.Encoder().encode


class MemoryBase:
    """What `Memory` and `AsyncMemory` share.

    Methods that block are here; `AsyncMemory` calls them in a thread.
    """

    _is_async = False

    def __init__(
        self, log: Log, key: StreamKey, weights: Weights | None, embed: Embed | None = None
    ) -> None:
        if weights is not None and not isinstance(weights, Weights):
            raise TypeError(
                f"weights must be a holdfast.memory.Weights, got {type(weights).__name__}"
            )
        self._log, self._key, self._weights = log, key, weights or Weights()
        self._embedding: Embedding | None = None
        if embed is not None:
            from .vectors.embedding import Embedding  # needs numpy

            self._embedding = Embedding(embed, allow_async=self._is_async)
        else:
            shared = get_resources(log).embedding
            if shared is not None and (self._is_async or not shared.is_async):
                self._embedding = shared

    @property
    def namespace(self) -> str:
        return self._key.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._key.id!r}>"

    # -- writing ---------------------------------------------------------------------------------

    def _prepare_memories(
        self, memories: Sequence[Remembered | Superseded]
    ) -> tuple[AppendFactory, list[MemoryEvent]]:
        """Return the operation that appends memories, and its events (without a version)."""
        memories = [redact_memory(self._log, memory) for memory in memories]
        events = [
            _new_event(REMEMBERED if isinstance(memory, Remembered) else SUPERSEDED, memory)
            for memory in memories
        ]
        context = new_append_context()
        written = [
            MemoryEvent(0, event_id, context.at, memory)
            for event_id, memory in zip(
                format_ids(context.id, len(memories)), memories, strict=True
            )
        ]
        subjects = [event_subject(memory) for memory in memories]
        return lambda: append_about(self._key, events, subjects, context), written

    def _prepare_event(self, type: str, payload: msgspec.Struct) -> AppendFactory:
        event, context = _new_event(type, payload), new_append_context()
        return lambda: append_events(self._key, [event], context)

    # -- reading (blocks) ------------------------------------------------------------------------

    def _current_index(self) -> MemoryIndex:
        """Return the index, caught up with everything appended so far."""
        return get_follower(self._log, self._key).current()

    def _resolve_ids(self, appended: AppendResult, events: Sequence[MemoryEvent]) -> list[str]:
        """Return each event's memory id. A duplicate gets the id of the memory it repeats."""
        placed = [
            event._replace(version=appended.first + offset) for offset, event in enumerate(events)
        ]
        return get_follower(self._log, self._key).resolve_ids(appended, placed)

    def _find_doc(self, id: str) -> MemoryDoc | None:
        found = self._current_index().lookup(self._key, [check_id(id, "id")], [])
        return next((doc for doc in found.docs if MemoryFilter(now=clock.time()).has(doc)), None)

    def _require_doc(self, id: str) -> MemoryDoc:
        doc = self._find_doc(id)
        if doc is None:
            raise NotFound(
                f"{self._key} has no memory of this id; it may have been superseded or forgotten"
            )
        return doc

    def _get(self, id: str) -> MemoryItem | None:
        doc = self._find_doc(id)
        return None if doc is None else build_item(doc)

    def _recall_gen(
        self,
        query: str,
        k: int,
        where: MemoryFilter,
        min_score: float,
        max_tokens: int | None,
        vector: Iterable[float] | None,
    ) -> EmbedGen[list[MemoryHit]]:
        """Check the arguments, wait for the embedder, then search."""
        query = check_query(query)
        if max_tokens is not None:
            check_int(max_tokens, "max_tokens")
        if vector is not None and self._embedding is None:
            raise ValueError(
                "vector= needs the embedder that computed it: store.memory(…, embed=…)"
            )
        check_int(k, "k")
        min_score = check_score(min_score, "min_score")
        if vector is None and not query.strip():
            return []
        question = yield from self._embed_query_gen(query, vector)
        hits: list[MemoryHit] = yield CallBlocking(
            partial(self._search, query, where, k, min_score, max_tokens, question)
        )
        return hits

    def _search(
        self,
        query: str,
        where: MemoryFilter,
        k: int,
        min_score: float,
        max_tokens: int | None,
        question: Floats | None,
    ) -> list[MemoryHit]:
        index, vectors = self._current_index(), None
        if question is not None and self._embedding is not None:
            vectors = get_vectors(self._log).open_query(index, self._key, self._embedding, question)
        return recall(
            index,
            self._key,
            query,
            where,
            self._weights,
            k=k,
            min_score=min_score,
            max_tokens=max_tokens,
            vectors=vectors,
        )

    def _read_page(self, after: int, where: MemoryFilter) -> Sequence[MemoryDoc]:
        return self._current_index().page(self._key, after, PAGE_MEMORIES, where)

    def _list_ids(self, where: MemoryFilter) -> list[str]:
        """Return the ids of memories with a statement from this source and with these tags."""
        ids: list[str] = []
        after = 0
        while page := self._read_page(after, where):
            ids += [
                doc.id
                for doc in page
                if any(is_from_source(one, where.source, where.tags) for one in statements_of(doc))
            ]
            after = page[-1].number
        return ids

    def _rebuild(self) -> None:
        get_follower(self._log, self._key).rebuild()

    def _read_stats(self) -> MemoryStats:
        index = self._current_index()
        position = index.position(self._key)
        counts = index.counts(self._key, clock.time())
        oldest, newest = (
            None if at is None else clock.to_datetime(at) for at in (counts.oldest, counts.newest)
        )
        vectors, version = self._count_vectors(index), position.version if position else 0
        compared_by = None
        if vectors:
            server = index.vector_search()
            compared_by = "process" if server is None else server.name
        return MemoryStats(
            counts.memories, counts.sources, oldest, newest, vectors, version, compared_by
        )

    def _count_vectors(self, index: MemoryIndex) -> int:
        """Return the number of vectors of the embedder's model, or else of the newest model."""
        models = index.models(self._key)[1]
        if (embedding := self._embedding) is not None:
            models = {model: n for model, n in models.items() if embedding.is_model(model)}
        return list(models.values())[-1] if models else 0

    # -- embedding -------------------------------------------------------------------------------

    def _embed_query_gen(
        self, query: str, vector: Iterable[float] | None
    ) -> EmbedGen[Floats | None]:
        """Return the query's vector, after embedding new memories; None without an embedder.

        All of it shares the embedder's timeout. `vector`: the query's vector, if the caller has it.
        """
        embedding = self._embedding
        if embedding is None or not self._weights.meaning:
            return None
        from .vectors.embedding import check_vector

        vectors, until = get_vectors(self._log), monotonic() + embedding.timeout
        if vector is None:
            question = yield from vectors.embed_query_gen(embedding, query, until)
        else:
            question = check_vector(vector)
        if question is not None:
            request = yield CallBlocking(partial(self._backfill_request, embedding, until))
            yield from vectors.fill_gen(request, question, from_caller=vector is not None)
        return question

    def _embed_all_gen(self) -> EmbedGen[int]:
        """Embed all memories that have no vector, without a time limit; return how many."""
        embedding = self._embedding
        if embedding is None:
            name = repr(self.namespace)
            raise ValueError(
                f"the memory {name} has no embedder; pass one: store.memory({name}, embed=…), or"
                " holdfast.open(…, embed=…) for all memories of the store"
            )
        request = yield CallBlocking(partial(self._backfill_request, embedding, None))
        try:
            return (yield from get_vectors(self._log).fill_all_gen(request))
        except EmbedderFailed as error:
            raise Unavailable(
                f"the embedder {embedding.name} failed: {error}. The vectors it returned are kept:"
                " fix the embedder and call embed_all again to continue"
            ) from error.__cause__

    def _backfill_request(self, embedding: Embedding, until: float | None) -> BackfillRequest:
        from .vectors.backfill import BackfillRequest  # needs numpy

        threads = get_vectors(self._log).threads
        return BackfillRequest(self._current_index(), self._key, embedding, threads, until)


def _check_useful(value: object) -> bool:
    if type(value) is not bool:
        raise TypeError(f"useful must be True or False, got {type(value).__name__}")
    return value


def build_filter(
    tags: Iterable[str] = (),
    source: Source | None = None,
    author: Authors | None = None,
    subject: str | None = None,
    since: float | datetime | None = None,
    until: float | datetime | None = None,
) -> MemoryFilter:
    return MemoryFilter(
        now=clock.time(),
        tags=check_tags(tags),
        source=check_source(source),
        author=check_authors(author),
        subject=None if subject is None else check_id(subject, "subject"),
        since=None if since is None else clamp_time(since, "since"),
        until=None if until is None else clamp_time(until, "until"),
    )


def _forget_filter(
    tags: Iterable[str],
    source: Source | None,
    author: Authors | None,
    subject: str | None,
    older_than: float | timedelta | None,
) -> MemoryFilter:
    """Return the filter of `forget_where`. It must not match everything: that is `delete`."""
    until = None if older_than is None else clock.time() - check_seconds(older_than, "older_than")
    where = build_filter(tags, source, author, subject, None, until)
    if where == MemoryFilter(now=where.now):
        raise ValueError(
            "forget_where() needs at least one filter, such as source= or tags=;"
            " to forget everything, call delete()"
        )
    return where


def _new_event(type: str, payload: msgspec.Struct) -> NewEvent:
    return NewEvent(type, _encode(payload))


class Memory(MemoryBase):
    """The long-term memory of an agent, a user or a team: one namespace. Does no I/O until used."""

    def remember(
        self,
        text: str,
        *,
        tags: Iterable[str] = (),
        importance: float = 0.5,
        source: Source | None = None,
        author: str = "model",
        at: float | datetime | None = None,
        subject: str | None = None,
        meta: Mapping[str, Any] | None = None,
        ttl: float | timedelta | None = None,
    ) -> str:
        """Remember a text durably. A duplicate of a known memory reinforces it and keeps its id.

        Args:
            text: What to remember.
            tags: Words to filter by.
            importance: From 0 to 1.
            source: Where it comes from: a name, a task or a conversation. Memories from just before
                and after it in the same source help to find it.
            author: Who says it: "model", "person", "tool", "web", or a name of your own.
            at: When it was said, if not now: Unix seconds or a timezone-aware datetime.
            subject: The person it is about; see `Store.erase`.
            meta: JSON data to store with it.
            ttl: How long it is valid, in seconds or as a timedelta. None: forever.

        Returns:
            The id of the memory.

        Raises:
            ValueError: An argument is out of range.
            NotSerializable: The text or `meta` cannot be stored.

        Example:
            >>> memory.remember("Ann signs the orders", tags=["people"], source="mail-3")
        """
        memory = build_memory(
            text,
            clock.time(),
            tags=tags,
            importance=importance,
            source=source,
            author=author,
            at=at,
            subject=subject,
            meta=meta,
            ttl=ttl,
        )
        return self._remember([memory])[0]

    def remember_many(self, memories: Iterable[NewMemory]) -> list[str]:
        """Remember several texts atomically: dicts with the arguments of `remember`.

        Returns their ids, in order.
        """
        now = clock.time()
        new = [build_memory_from_dict(memory, now) for memory in memories]
        return self._remember(new) if new else []

    def recall(
        self,
        query: str,
        k: int = 5,
        *,
        tags: Iterable[str] = (),
        source: Source | None = None,
        author: Authors | None = None,
        subject: str | None = None,
        since: float | datetime | None = None,
        until: float | datetime | None = None,
        min_score: float = 0.0,
        max_tokens: int | None = None,
        vector: Iterable[float] | None = None,
    ) -> list[MemoryHit]:
        """Return the memories that best answer a question.

        Args:
            query: Any text. It has no operators.
            k: The maximum number of memories to return.
            tags: Only memories with all of these tags.
            source: Only memories from this source.
            author: Only memories by this author, or by one of several.
            subject: Only memories about this subject.
            since, until: Only memories from this period: Unix seconds or timezone-aware datetimes.
            min_score: The minimum score, from 0 to 1 (it matches the whole query).
            max_tokens: Return only as many memories as fit in this many tokens.
            vector: The query's vector from the embedder, if you have it already.

        Returns:
            The memories with their `score`, best first.

        Raises:
            ValueError: An argument is out of range.

        Example:
            >>> [hit.text for hit in memory.recall("Who signs?", k=3)]
            ['Ann signs the orders']
        """
        where = build_filter(tags, source, author, subject, since, until)
        return run_embed(self._recall_gen(query, k, where, min_score, max_tokens, vector))

    def feedback(self, id: str, *, useful: bool) -> None:
        """Record whether a memory was useful: it then ranks a little higher or lower.

        The effect fades over weeks.
        """
        self._append(
            self._prepare_event(JUDGED, Judged(self._require_doc(id).id, _check_useful(useful)))
        )

    def supersede(
        self,
        id: str,
        text: str,
        *,
        tags: Iterable[str] | UnsetType = UNSET,
        importance: float | UnsetType = UNSET,
        source: Source | UnsetType | None = UNSET,
        author: str | UnsetType = UNSET,
        at: float | datetime | UnsetType | None = UNSET,
        subject: str | UnsetType | None = UNSET,
        meta: Mapping[str, Any] | UnsetType | None = UNSET,
        ttl: float | timedelta | UnsetType | None = UNSET,
    ) -> str:
        """Replace a memory with a new text and return the new id.

        The old one is no longer recalled. Arguments that are not given keep their values, including
        `at` (if it was given), the end of the `ttl`, and the feedback. Raises `NotFound` if there
        is no such memory; of two concurrent calls, the second gets it.
        """
        old = self._require_doc(id)
        new = build_superseded(
            old,
            text,
            tags=tags,
            importance=importance,
            source=source,
            author=author,
            at=at,
            subject=subject,
            meta=meta,
            ttl=ttl,
        )
        return self._remember([new])[0]

    def forget(self, id: str) -> bool:
        """Stop recalling a memory; return False if there is none.

        Its text stays in the event log until `delete`.
        """
        doc = self._find_doc(id)
        if doc is None:
            return False
        self._append(self._prepare_event(FORGOTTEN, Forgotten([doc.id])))
        return True

    def forget_where(
        self,
        *,
        tags: Iterable[str] = (),
        source: Source | None = None,
        author: Authors | None = None,
        subject: str | None = None,
        older_than: float | timedelta | None = None,
    ) -> int:
        """Forget all memories with these tags, source, author, subject and age; return how many.

        A memory that another source, or a statement with other tags, supports as well is kept.
        """
        where = _forget_filter(tags, source, author, subject, older_than)
        ids = self._list_ids(where)
        if ids:
            self._append(self._prepare_event(FORGOTTEN, Forgotten(ids, where.source, where.tags)))
        return len(ids)

    def get(self, id: str) -> MemoryItem | None:
        """Return a memory by its id; None if it does not exist or was forgotten."""
        return self._get(id)

    def all(
        self,
        *,
        tags: Iterable[str] = (),
        source: Source | None = None,
        author: Authors | None = None,
        subject: str | None = None,
        since: float | datetime | None = None,
        until: float | datetime | None = None,
    ) -> Iterator[MemoryItem]:
        """Yield the memories in the order they were first remembered, reading page by page."""
        where, after = build_filter(tags, source, author, subject, since, until), 0
        while page := self._read_page(after, where):
            yield from map(build_item, page)
            after = page[-1].number

    def stats(self) -> MemoryStats:
        """Return the number of memories and sources, and the times of the oldest and newest."""
        return self._read_stats()

    def embed_all(self) -> int:
        """Embed all memories that have no vector yet; return how many.

        A recall embeds up to 256 at a time by itself. Call this after an import or for a new model.
        Raises `Unavailable` if the embedder fails.
        """
        return run_embed(self._embed_all_gen())

    def rebuild(self) -> None:
        """Rebuild the index of this namespace from its event log, after damage.

        Normally it keeps up by itself. The old index answers until the new one is ready.
        """
        self._rebuild()

    def delete(self, *, reason: str = "deleted by the program") -> bool:
        """Delete the namespace and everything ever remembered in it.

        Returns False if there was nothing.
        """
        deleted = ops.run_until_settled(
            self._log,
            lambda: delete_stream(
                self._key, new_append_context(), self._log.redaction.redact_text(reason)
            ),
        )
        self._current_index()  # drops it from the index
        return deleted

    def _remember(self, memories: Sequence[Remembered | Superseded]) -> list[str]:
        operation, events = self._prepare_memories(memories)
        return self._resolve_ids(self._append(operation), events)

    def _append(self, operation: AppendFactory) -> AppendResult:
        return ops.run_until_settled(self._log, operation)


class AsyncMemory(MemoryBase):
    """`Memory` for asyncio: the same methods, awaited."""

    _is_async = True

    async def remember(
        self,
        text: str,
        *,
        tags: Iterable[str] = (),
        importance: float = 0.5,
        source: Source | None = None,
        author: str = "model",
        at: float | datetime | None = None,
        subject: str | None = None,
        meta: Mapping[str, Any] | None = None,
        ttl: float | timedelta | None = None,
    ) -> str:
        """`Memory.remember`, awaited."""
        memory = build_memory(
            text,
            clock.time(),
            tags=tags,
            importance=importance,
            source=source,
            author=author,
            at=at,
            subject=subject,
            meta=meta,
            ttl=ttl,
        )
        return (await self._remember([memory]))[0]

    async def remember_many(self, memories: Iterable[NewMemory]) -> list[str]:
        """`Memory.remember_many`, awaited."""
        now = clock.time()
        new = [build_memory_from_dict(memory, now) for memory in memories]
        return await self._remember(new) if new else []

    async def recall(
        self,
        query: str,
        k: int = 5,
        *,
        tags: Iterable[str] = (),
        source: Source | None = None,
        author: Authors | None = None,
        subject: str | None = None,
        since: float | datetime | None = None,
        until: float | datetime | None = None,
        min_score: float = 0.0,
        max_tokens: int | None = None,
        vector: Iterable[float] | None = None,
    ) -> list[MemoryHit]:
        """`Memory.recall`, awaited. The embedder may be a coroutine function."""
        where = build_filter(tags, source, author, subject, since, until)
        recalled = self._recall_gen(query, k, where, min_score, max_tokens, vector)
        return await run_embed_async(self._log, recalled)

    async def feedback(self, id: str, *, useful: bool) -> None:
        """`Memory.feedback`, awaited."""
        doc = await self._log.run_in_thread(self._require_doc, id)
        await self._append(self._prepare_event(JUDGED, Judged(doc.id, _check_useful(useful))))

    async def supersede(
        self,
        id: str,
        text: str,
        *,
        tags: Iterable[str] | UnsetType = UNSET,
        importance: float | UnsetType = UNSET,
        source: Source | UnsetType | None = UNSET,
        author: str | UnsetType = UNSET,
        at: float | datetime | UnsetType | None = UNSET,
        subject: str | UnsetType | None = UNSET,
        meta: Mapping[str, Any] | UnsetType | None = UNSET,
        ttl: float | timedelta | UnsetType | None = UNSET,
    ) -> str:
        """`Memory.supersede`, awaited."""
        old = await self._log.run_in_thread(self._require_doc, id)
        new = build_superseded(
            old,
            text,
            tags=tags,
            importance=importance,
            source=source,
            author=author,
            at=at,
            subject=subject,
            meta=meta,
            ttl=ttl,
        )
        return (await self._remember([new]))[0]

    async def forget(self, id: str) -> bool:
        """`Memory.forget`, awaited."""
        doc = await self._log.run_in_thread(self._find_doc, id)
        if doc is None:
            return False
        await self._append(self._prepare_event(FORGOTTEN, Forgotten([doc.id])))
        return True

    async def forget_where(
        self,
        *,
        tags: Iterable[str] = (),
        source: Source | None = None,
        author: Authors | None = None,
        subject: str | None = None,
        older_than: float | timedelta | None = None,
    ) -> int:
        """`Memory.forget_where`, awaited."""
        where = _forget_filter(tags, source, author, subject, older_than)
        ids = await self._log.run_in_thread(self._list_ids, where)
        if ids:
            await self._append(
                self._prepare_event(FORGOTTEN, Forgotten(ids, where.source, where.tags))
            )
        return len(ids)

    async def get(self, id: str) -> MemoryItem | None:
        """`Memory.get`, awaited."""
        return await self._log.run_in_thread(self._get, id)

    async def all(
        self,
        *,
        tags: Iterable[str] = (),
        source: Source | None = None,
        author: Authors | None = None,
        subject: str | None = None,
        since: float | datetime | None = None,
        until: float | datetime | None = None,
    ) -> AsyncIterator[MemoryItem]:
        """`Memory.all` as an async iterator."""
        where, after = build_filter(tags, source, author, subject, since, until), 0
        while page := await self._log.run_in_thread(self._read_page, after, where):
            for doc in page:
                yield build_item(doc)
            after = page[-1].number

    async def stats(self) -> MemoryStats:
        """`Memory.stats`, awaited."""
        return await self._log.run_in_thread(self._read_stats)

    async def embed_all(self) -> int:
        """`Memory.embed_all`, awaited."""
        return await run_embed_async(self._log, self._embed_all_gen())

    async def rebuild(self) -> None:
        """`Memory.rebuild`, awaited."""
        await self._log.run_in_thread(self._rebuild)

    async def delete(self, *, reason: str = "deleted by the program") -> bool:
        """`Memory.delete`, awaited."""
        deleted = await ops.run_until_settled_async(
            self._log,
            lambda: delete_stream(
                self._key, new_append_context(), self._log.redaction.redact_text(reason)
            ),
        )
        await self._log.run_in_thread(self._current_index)
        return deleted

    async def _remember(self, memories: Sequence[Remembered | Superseded]) -> list[str]:
        operation, events = self._prepare_memories(memories)
        appended = await self._append(operation)
        return await self._log.run_in_thread(self._resolve_ids, appended, events)

    async def _append(self, operation: AppendFactory) -> AppendResult:
        return await ops.run_until_settled_async(self._log, operation)
