"""Long-term memory: the `Memory` and `AsyncMemory` facades of a namespace."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from heapq import nlargest
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from ..backends import AppendResult, StreamKey, clock
from ..errors import NotFound, Unavailable
from ..log import operations as ops
from ..log.drivers import EffectGen, drive, drive_async
from ..log.events import NewEvent, new_append_context
from ..log.ids import check_id, format_ids
from ..log.log import Log
from ..log.operations import Operation
from ..log.operations.stream_ops import append_events, delete_stream
from ..log.validation import check_int, check_seconds
from .arguments import (
    OPTIONS,
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
    check_text,
    clamp_time,
    redact_memory,
)
from .consolidation.apply import plan_forgetting
from .fold import MemoryEvent
from .model import (
    FORGOTTEN,
    JUDGED,
    REMEMBERED,
    RESTORED,
    SUPERSEDED,
    EntityInfo,
    Forgotten,
    Judged,
    MemoryConflict,
    MemoryDoc,
    MemoryFilter,
    MemoryHit,
    MemoryItem,
    MemoryStats,
    Remembered,
    Superseded,
    build_hit,
    build_item,
)
from .resources import get_follower, get_resources, get_vectors
from .search.current import find_conflicts
from .search.entities import find_about, list_entities
from .search.index import MemoryIndex
from .search.ranking import AuthorCounter, measure_confidence
from .search.recall import recall
from .statements import build_superseded, is_from_source, statements_of
from .subjects import append_about, event_subject
from .vectors.calls import CallBlocking, EmbedderFailed
from .weights import MIN_SCORE, Weights

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

    def _remember_gen(self, memories: Sequence[Remembered | Superseded]) -> EffectGen[list[str]]:
        operation, events = self._prepare_memories(memories)
        appended = yield from ops.settle(operation)
        ids: list[str] = yield CallBlocking(partial(self._resolve_ids, appended, events))
        return ids

    def _remember_many_gen(self, memories: Iterable[NewMemory]) -> EffectGen[list[str]]:
        now = clock.time()
        new = [build_memory_from_dict(memory, now) for memory in memories]
        return (yield from self._remember_gen(new)) if new else []

    def _supersede_gen(self, id: str, text: str, *given: Any) -> EffectGen[list[str]]:
        """Replace a memory. `given` are its `OPTIONS`."""
        old = yield CallBlocking(partial(self._require_doc, id))
        options = dict(zip(OPTIONS, given, strict=True))
        return (yield from self._remember_gen([build_superseded(old, text, options)]))

    def _feedback_gen(self, id: str, useful: bool) -> EffectGen[None]:
        doc = yield CallBlocking(partial(self._require_doc, id))
        if type(useful) is not bool:
            raise TypeError(f"useful must be True or False, got {type(useful).__name__}")
        event, context = _new_event(JUDGED, Judged(doc.id, useful)), new_append_context()
        yield from ops.settle(lambda: append_events(self._key, [event], context))

    def _forget_gen(self, id: str) -> EffectGen[bool]:
        doc = yield CallBlocking(partial(self._find_doc, id))
        if doc is None:
            return False
        yield from ops.settle((yield CallBlocking(partial(self._prepare_forget_one, doc))))
        return True

    def _forget_where_gen(self, where: MemoryFilter) -> EffectGen[int]:
        docs = yield CallBlocking(partial(self._list_stated, where))
        if docs:
            prepare = partial(self._prepare_forget, docs, where.source, where.tags)
            yield from ops.settle((yield CallBlocking(prepare)))
        return len(docs)

    def _delete_gen(self, reason: str, by: str | None) -> EffectGen[bool]:
        deleted = yield from ops.settle(
            lambda: delete_stream(
                self._key, new_append_context(by), self._log.redaction.redact_text(reason)
            )
        )
        yield CallBlocking(self._current_index)  # drops it from the index
        return deleted

    def _prepare_forget_one(self, doc: MemoryDoc) -> AppendFactory:
        """Return the operation that forgets a memory and those that it replaced."""
        replaced = self._current_index().lookup(self._key, doc.replaced, []).docs
        return self._prepare_forget([doc, *replaced])

    def _prepare_forget(
        self, docs: Sequence[MemoryDoc], source: str | None = None, tags: tuple[str, ...] = ()
    ) -> AppendFactory:
        """Return the operation that forgets memories, or their parts with this source and tags."""
        events = [
            _new_event(FORGOTTEN if isinstance(one, Forgotten) else RESTORED, one)
            for one in plan_forgetting(self, docs, source, tags)
        ]
        context = new_append_context()
        return lambda: append_events(self._key, events, context)

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
                f"{self._key} has no memory with this id; it may have been superseded or forgotten"
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
    ) -> EffectGen[list[MemoryHit]]:
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
            if where.since is None and where.until is None:
                return []
            newest: list[MemoryHit] = yield CallBlocking(partial(self._list_newest, where, k))
            return newest
        [question] = yield from self._embed_queries_gen([query], vector)
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
        index, space, vectors = self._current_index(), self._key, None
        if question is not None and self._embedding is not None:
            vectors = get_vectors(self._log).open_query(index, space, self._embedding, question)
        return recall(index, space, query, where, self._weights, k, min_score, max_tokens, vectors)

    def _list_newest(self, where: MemoryFilter, k: int) -> list[MemoryHit]:
        """Return the newest memories that match a filter, each with the score 1."""
        found = nlargest(k, self._read_docs(where), key=lambda doc: (doc.at, doc.number))
        authors = AuthorCounter(found)
        sure = (measure_confidence(doc, authors.count(doc), 0, where.now) for doc in found)
        return [
            build_hit(doc, 1.0, {}, doc.text, confidence=confidence)
            for doc, confidence in zip(found, sure, strict=True)
        ]

    def _find_conflicts(self, where: MemoryFilter) -> list[MemoryConflict]:
        pairs = find_conflicts(list(self._read_docs(where)))
        return [MemoryConflict(build_item(newer), build_item(older)) for newer, older in pairs]

    def _list_entities(self, where: MemoryFilter, k: int) -> list[EntityInfo]:
        check_int(k, "k")
        return list_entities(self._read_docs(where), k)

    def _find_about(self, name: str, where: MemoryFilter, k: int) -> list[MemoryItem]:
        check_text(name, "name")
        check_int(k, "k")
        found = find_about(self._current_index(), self._key, name, where, k)
        return list(map(build_item, found))

    def _read_page(self, after: int, where: MemoryFilter) -> Sequence[MemoryDoc]:
        return self._current_index().page(self._key, after, PAGE_MEMORIES, where)

    def _read_docs(self, where: MemoryFilter) -> Iterator[MemoryDoc]:
        """Yield all memories that match a filter, page by page."""
        after = 0
        while page := self._read_page(after, where):
            yield from page
            after = page[-1].number

    def _list_stated(self, where: MemoryFilter) -> list[MemoryDoc]:
        """Return the matching memories in which one statement has both source and tags."""
        return [
            doc
            for doc in self._read_docs(where)
            if any(is_from_source(one, where.source, where.tags) for one in statements_of(doc))
        ]

    def _list_evidence(self, id: str) -> list[MemoryItem]:
        doc = self._require_doc(id)
        ids = list(dict.fromkeys((*doc.evidence, *doc.replaced)))
        docs = {each.id: each for each in self._current_index().lookup(self._key, ids, []).docs}
        now = clock.time()
        found = [docs[name] for name in ids if name in docs]
        return [
            build_item(each)
            for each in sorted(found, key=lambda each: each.number)
            if each.expires_at is None or each.expires_at > now
        ]

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
        """Count the vectors of the embedder's model, or of the newest model without an embedder."""
        models = index.models(self._key)[1]
        if (embedding := self._embedding) is not None:
            models = {model: n for model, n in models.items() if embedding.is_model(model)}
        return list(models.values())[-1] if models else 0

    # -- embedding -------------------------------------------------------------------------------

    def _embed_queries_gen(
        self, queries: Sequence[str], vector: Iterable[float] | None = None
    ) -> EffectGen[Sequence[Floats | None]]:
        """Return the vectors of queries, after embedding new memories; None without an embedder.

        Both share the embedder's timeout. `vector` is the vector of the only query, if the caller
        has it.
        """
        embedding = self._embedding
        if embedding is None or not self._weights.meaning:
            return [None] * len(queries)
        from .vectors.embedding import check_vector

        vectors, until = get_vectors(self._log), monotonic() + embedding.timeout
        if vector is None:
            questions = yield from vectors.embed_queries_gen(embedding, queries, until)
        else:
            questions = [check_vector(vector)]
        if questions is None:
            return [None] * len(queries)
        request = yield CallBlocking(partial(self._backfill_request, embedding, until))
        yield from vectors.fill_gen(request, questions[0], from_caller=vector is not None)
        return questions

    def _embed_all_gen(self) -> EffectGen[int]:
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


def build_filter(
    tags: Iterable[str] = (),
    source: Source | None = None,
    author: Authors | None = None,
    subject: str | None = None,
    since: float | datetime | None = None,
    until: float | datetime | None = None,
    as_of: float | datetime | None = None,
) -> MemoryFilter:
    return MemoryFilter(
        now=clock.time(),
        tags=check_tags(tags),
        source=check_source(source),
        author=check_authors(author),
        subject=None if subject is None else check_id(subject, "subject"),
        since=None if since is None else clamp_time(since, "since"),
        until=None if until is None else clamp_time(until, "until"),
        as_of=None if as_of is None else clamp_time(as_of, "as_of"),
    )


def _forget_filter(
    tags: Iterable[str],
    source: Source | None,
    author: Authors | None,
    subject: str | None,
    older_than: float | timedelta | None,
) -> MemoryFilter:
    """Return the filter of `forget_where`. It must not match everything: `delete` does that."""
    until = None if older_than is None else clock.time() - check_seconds(older_than, "older_than")
    where = build_filter(tags, source, author, subject, None, until)
    if where == MemoryFilter(now=where.now):
        raise ValueError(
            "forget_where() needs at least one filter, such as source= or tags=;"
            " to forget everything, call delete()"
        )
    return msgspec.structs.replace(where, any_time=True)


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
        valid_from: float | datetime | None = None,
        valid_until: float | datetime | None = None,
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
            ttl: How long to keep it, in seconds or as a timedelta. None: forever.
            valid_from, valid_until: When it is true, if that is known. It is recalled in between,
                and later only for a time `as_of` in between.

        Returns:
            The id of the memory.

        Raises:
            ValueError: An argument is out of range.
            NotSerializable: The text or `meta` cannot be stored.

        Example:
            >>> memory.remember("Ann signs the orders", tags=["people"], source="mail-3")
        """
        memory = build_memory(
            text, clock.time(), tags, importance, source, author, at, subject, meta, ttl,
            valid_from, valid_until,
        )  # fmt: skip
        return drive(self._log, self._remember_gen([memory]))[0]

    def remember_many(self, memories: Iterable[NewMemory]) -> list[str]:
        """Remember several texts atomically. Each is a dict with the arguments of `remember`.

        Returns the ids of the memories, in order.
        """
        return drive(self._log, self._remember_many_gen(memories))

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
        as_of: float | datetime | None = None,
        min_score: float = MIN_SCORE,
        max_tokens: int | None = None,
        vector: Iterable[float] | None = None,
    ) -> list[MemoryHit]:
        """Return the memories that best answer a question.

        Args:
            query: Any text. It has no operators. "Yesterday", "last week" and the like prefer
                memories of that time; "latest" and "now" prefer the newest. With "" and a period,
                the newest memories of the period are returned.
            k: The maximum number of memories to return.
            tags: Only memories with all of these tags.
            source: Only memories from this source.
            author: Only memories by this author, or by one of several.
            subject: Only memories about this subject.
            since, until: Only memories from this period: Unix seconds or timezone-aware datetimes.
            as_of: Answer as of this time: from what was known and valid then.
            min_score: The minimum score, from 0 to 1 (a memory that matches the whole query). The
                default leaves out what is there by chance, so there may be no hit; 0 gives all.
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
        where = build_filter(tags, source, author, subject, since, until, as_of)
        return drive(self._log, self._recall_gen(query, k, where, min_score, max_tokens, vector))

    def feedback(self, id: str, *, useful: bool) -> None:
        """Record whether a memory was useful: it then ranks a little higher or lower.

        The effect fades over weeks.
        """
        drive(self._log, self._feedback_gen(id, useful))

    def supersede(
        self,
        id: str,
        text: str,
        *,
        tags: Iterable[str] | UnsetType = UNSET,
        importance: float | UnsetType = UNSET,
        source: Source | UnsetType | None = UNSET,
        author: str | UnsetType = UNSET,
        at: float | datetime | None = None,
        subject: str | UnsetType | None = UNSET,
        meta: Mapping[str, Any] | UnsetType | None = UNSET,
        ttl: float | timedelta | UnsetType | None = UNSET,
        valid_from: float | datetime | None = None,
        valid_until: float | datetime | None = None,
    ) -> str:
        """Replace a memory with a new text and return the new id.

        The old text is valid until then: from now on it is recalled only for a time `as_of` before.
        Arguments that you omit keep their values, and so do the feedback and the time of expiry.
        Only the times don't: by default, the new text dates from now. With `valid_from` in the
        future, the old text is recalled until then.
        Raises `NotFound` if there is no such memory; the second of two concurrent calls does, too.
        """
        replaced = self._supersede_gen(
            id, text, tags, importance, source, author, at, subject, meta, ttl, valid_from,
            valid_until,
        )  # fmt: skip
        return drive(self._log, replaced)[0]

    def forget(self, id: str) -> bool:
        """Stop recalling a memory and those that it superseded; return False if it does not exist.

        Its text stays in the event log until `delete`.
        """
        return drive(self._log, self._forget_gen(id))

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

        A memory is kept if it also has a statement from another source or with other tags.
        """
        where = _forget_filter(tags, source, author, subject, older_than)
        return drive(self._log, self._forget_where_gen(where))

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
        where = build_filter(tags, source, author, subject, since, until)
        yield from map(build_item, self._read_docs(where))

    def evidence(self, id: str) -> list[MemoryItem]:
        """Return the memories that a memory was made from, or that it replaced, the oldest first.

        Includes those that are no longer recalled. Raises `NotFound` if there is no such memory.
        """
        return self._list_evidence(id)

    def conflicts(self, *, subject: str | None = None) -> list[MemoryConflict]:
        """Return the pairs of valid memories that give one thing two values.

        Found are only forms that can have one value: a home or a place of work, what something is
        called, costs or weighs, numbers, dates, who holds an office, and a statement and its
        opposite. Resolve a conflict with `supersede` or `forget`; until then the newer one is
        recalled first.
        """
        return self._find_conflicts(build_filter(subject=subject))

    def entities(
        self,
        k: int = 100,
        *,
        tags: Iterable[str] = (),
        source: Source | None = None,
        author: Authors | None = None,
        subject: str | None = None,
        since: float | datetime | None = None,
        until: float | datetime | None = None,
    ) -> list[EntityInfo]:
        """Return the names that memories mention, those of most memories first.

        Names are of people, companies and places, codes such as INV-2041, quoted terms and e-mail
        addresses. They are found by their form, without a model, so some are missed, and some
        are ordinary words. Reads all memories that match the filters.

        Args:
            k: The maximum number of names to return.
            tags, source, author, subject, since, until: As for `recall`.
        """
        where = build_filter(tags, source, author, subject, since, until)
        return self._list_entities(where, k)

    def about(
        self,
        name: str,
        k: int = 100,
        *,
        tags: Iterable[str] = (),
        source: Source | None = None,
        author: Authors | None = None,
        subject: str | None = None,
        since: float | datetime | None = None,
        until: float | datetime | None = None,
        as_of: float | datetime | None = None,
    ) -> list[MemoryItem]:
        """Return the memories that mention a name, newest first.

        Args:
            name: A name, a code, an e-mail address, or any other term. It is looked up as whole
                words, in any case. A word that is mostly written in lower case must be written with
                the same capitals: "Apple" isn't an apple.
            k: The maximum number of memories to return.
            tags, source, author, subject, since, until, as_of: As for `recall`.

        Returns:
            The memories. If very many have the words of the name, only the 5,000 that were
            remembered last are read.

        Example:
            >>> [item.text for item in memory.about("Acme")]
            ['Acme pays on the first', 'Ann signs for Acme']
        """
        where = build_filter(tags, source, author, subject, since, until, as_of)
        return self._find_about(name, where, k)

    def stats(self) -> MemoryStats:
        """Return the number of memories and sources, and the times of the oldest and newest."""
        return self._read_stats()

    def embed_all(self) -> int:
        """Embed all memories that have no vector yet; return how many.

        Each recall embeds up to 256 memories. Call this after an import or a change of the model.
        Raises `Unavailable` if the embedder fails.
        """
        return drive(self._log, self._embed_all_gen())

    def rebuild(self) -> None:
        """Rebuild the index of this namespace from the event log, in case it is damaged.

        You need not call it otherwise: every read brings the index up to date. The old index
        answers until the new one is ready.
        """
        get_follower(self._log, self._key).rebuild()

    def delete(self, *, reason: str = "deleted by the program", by: str | None = None) -> bool:
        """Delete the namespace and everything ever remembered in it.

        Returns False if the namespace did not exist.
        """
        return drive(self._log, self._delete_gen(reason, by))


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
        valid_from: float | datetime | None = None,
        valid_until: float | datetime | None = None,
    ) -> str:
        """`Memory.remember`, awaited."""
        memory = build_memory(
            text, clock.time(), tags, importance, source, author, at, subject, meta, ttl,
            valid_from, valid_until,
        )  # fmt: skip
        return (await drive_async(self._log, self._remember_gen([memory])))[0]

    async def remember_many(self, memories: Iterable[NewMemory]) -> list[str]:
        """`Memory.remember_many`, awaited."""
        return await drive_async(self._log, self._remember_many_gen(memories))

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
        as_of: float | datetime | None = None,
        min_score: float = MIN_SCORE,
        max_tokens: int | None = None,
        vector: Iterable[float] | None = None,
    ) -> list[MemoryHit]:
        """`Memory.recall`, awaited. The embedder may be a coroutine function."""
        where = build_filter(tags, source, author, subject, since, until, as_of)
        recalled = self._recall_gen(query, k, where, min_score, max_tokens, vector)
        return await drive_async(self._log, recalled)

    async def feedback(self, id: str, *, useful: bool) -> None:
        """`Memory.feedback`, awaited."""
        await drive_async(self._log, self._feedback_gen(id, useful))

    async def supersede(
        self,
        id: str,
        text: str,
        *,
        tags: Iterable[str] | UnsetType = UNSET,
        importance: float | UnsetType = UNSET,
        source: Source | UnsetType | None = UNSET,
        author: str | UnsetType = UNSET,
        at: float | datetime | None = None,
        subject: str | UnsetType | None = UNSET,
        meta: Mapping[str, Any] | UnsetType | None = UNSET,
        ttl: float | timedelta | UnsetType | None = UNSET,
        valid_from: float | datetime | None = None,
        valid_until: float | datetime | None = None,
    ) -> str:
        """`Memory.supersede`, awaited."""
        replaced = self._supersede_gen(
            id, text, tags, importance, source, author, at, subject, meta, ttl, valid_from,
            valid_until,
        )  # fmt: skip
        return (await drive_async(self._log, replaced))[0]

    async def forget(self, id: str) -> bool:
        """`Memory.forget`, awaited."""
        return await drive_async(self._log, self._forget_gen(id))

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
        return await drive_async(self._log, self._forget_where_gen(where))

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

    async def evidence(self, id: str) -> list[MemoryItem]:
        """`Memory.evidence`, awaited."""
        return await self._log.run_in_thread(self._list_evidence, id)

    async def conflicts(self, *, subject: str | None = None) -> list[MemoryConflict]:
        """`Memory.conflicts`, awaited."""
        return await self._log.run_in_thread(self._find_conflicts, build_filter(subject=subject))

    async def entities(
        self,
        k: int = 100,
        *,
        tags: Iterable[str] = (),
        source: Source | None = None,
        author: Authors | None = None,
        subject: str | None = None,
        since: float | datetime | None = None,
        until: float | datetime | None = None,
    ) -> list[EntityInfo]:
        """`Memory.entities`, awaited."""
        where = build_filter(tags, source, author, subject, since, until)
        return await self._log.run_in_thread(self._list_entities, where, k)

    async def about(
        self,
        name: str,
        k: int = 100,
        *,
        tags: Iterable[str] = (),
        source: Source | None = None,
        author: Authors | None = None,
        subject: str | None = None,
        since: float | datetime | None = None,
        until: float | datetime | None = None,
        as_of: float | datetime | None = None,
    ) -> list[MemoryItem]:
        """`Memory.about`, awaited."""
        where = build_filter(tags, source, author, subject, since, until, as_of)
        return await self._log.run_in_thread(self._find_about, name, where, k)

    async def stats(self) -> MemoryStats:
        """`Memory.stats`, awaited."""
        return await self._log.run_in_thread(self._read_stats)

    async def embed_all(self) -> int:
        """`Memory.embed_all`, awaited."""
        return await drive_async(self._log, self._embed_all_gen())

    async def rebuild(self) -> None:
        """`Memory.rebuild`, awaited."""
        await self._log.run_in_thread(get_follower(self._log, self._key).rebuild)

    async def delete(
        self, *, reason: str = "deleted by the program", by: str | None = None
    ) -> bool:
        """`Memory.delete`, awaited."""
        return await drive_async(self._log, self._delete_gen(reason, by))
