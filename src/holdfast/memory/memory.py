"""Long-term memory: what one task learned, the next one knows. A namespace of it, and its async twin."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from ..backends import AppendResult, StreamKey, clock
from ..errors import NotFound
from ..log import operations as ops
from ..log.events import NewEvent
from ..log.ids import checked_id, id_texts
from ..log.log import Log
from ..log.operations import Operation
from ..log.stream_ops import append_events, delete_stream, new_append_context
from ..log.validation import seconds, whole_number
from .about import append_about, subject_of
from .arguments import (
    Authors,
    NewMemory,
    Source,
    authors_of,
    bound,
    question_of,
    redacted,
    said_in,
    said_of,
    score_of,
    source_name,
    tags_of,
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
    Remembering,
    Superseded,
    shown,
)
from .resources import follower_of, resources_of, vectors_of
from .search.index import MemoryIndex
from .search.recall import recall
from .sources import is_from, of_doc, replacing
from .vectors.calls import CallBlocking, Script, run, run_async
from .vectors.question import all_embedded, as_vector
from .weights import Weights

if TYPE_CHECKING:
    from .vectors.embedding import Embed, Embedding, Floats

T = TypeVar("T")
Make = Callable[[], Operation[AppendResult]]

PAGE = 500

_encode = msgspec.json.Encoder().encode


class MemoryBase:
    """What a namespace and its async twin share. What blocks is here; the twin calls it in a thread."""

    _awaited = False

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

            self._embedding = Embedding(embed, awaited=self._awaited)
        else:
            shared = resources_of(log).embedding
            if shared is not None and (self._awaited or not shared.is_async):
                self._embedding = shared

    @property
    def namespace(self) -> str:
        return self._key.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._key.id!r}>"

    # -- writing ---------------------------------------------------------------------------------

    def _saying(self, said: Sequence[Remembering | Superseded]) -> tuple[Make, list[MemoryEvent]]:
        """What appends these, and the events that they become."""
        said = [redacted(self._log, one) for one in said]
        events = [
            _event(REMEMBERED if isinstance(one, Remembering) else SUPERSEDED, one) for one in said
        ]
        stamp = new_append_context()
        new = [
            MemoryEvent(0, name, stamp.at, one)
            for name, one in zip(id_texts(stamp.id, len(said)), said, strict=True)
        ]
        subjects = [subject_of(one) for one in said]
        return lambda: append_about(self._key, events, subjects, stamp), new

    def _noting(self, type: str, event: msgspec.Struct) -> Make:
        new, stamp = _event(type, event), new_append_context()
        return lambda: append_events(self._key, [new], stamp)

    # -- reading; all of this blocks -------------------------------------------------------------

    def _current(self) -> MemoryIndex:
        """The index, with everything in it that was appended before."""
        return follower_of(self._log, self._key).current()

    def _names(self, appended: AppendResult, new: Sequence[MemoryEvent]) -> list[str]:
        """The ids of the memories that these have become: what was known already keeps its own."""
        events = [one._replace(version=appended.first + place) for place, one in enumerate(new)]
        return follower_of(self._log, self._key).names(appended, events)

    def _doc(self, id: str) -> MemoryDoc | None:
        known = self._current().known(self._key, [checked_id(id, "id")], [])
        return next((doc for doc in known.docs if MemoryFilter(now=clock.time()).has(doc)), None)

    def _one(self, id: str) -> MemoryDoc:
        doc = self._doc(id)
        if doc is None:
            raise NotFound(
                f"{self._key} has no memory of this id; it may have been superseded or forgotten"
            )
        return doc

    def _get(self, id: str) -> MemoryItem | None:
        doc = self._doc(id)
        return None if doc is None else shown(doc)

    def _recalling(
        self,
        query: str,
        where: MemoryFilter,
        k: int,
        min_score: float,
        max_tokens: int | None,
        vector: Iterable[float] | None = None,
    ) -> Script[list[MemoryHit]]:
        """Recall: what waits for the embedder comes first, and waits nowhere else."""
        if vector is None and not query.strip():
            return []  # whoever asks nothing is told nothing
        question = yield from as_vector(self, query, vector)
        found: list[MemoryHit] = yield CallBlocking(
            partial(self._recalled, query, where, k, min_score, max_tokens, question)
        )
        return found

    def _recalled(
        self,
        query: str,
        where: MemoryFilter,
        k: int,
        min_score: float,
        max_tokens: int | None,
        question: Floats | None,
    ) -> list[MemoryHit]:
        index, meaning = self._current(), None
        if question is not None and self._embedding is not None:
            meaning = vectors_of(self._log).meaning(index, self._key, self._embedding, question)
        return recall(
            index,
            self._key,
            query,
            where,
            self._weights,
            k=k,
            min_score=min_score,
            max_tokens=max_tokens,
            meaning=meaning,
        )

    def _page(self, after: int, where: MemoryFilter) -> Sequence[MemoryDoc]:
        return self._current().page(self._key, after, PAGE, where)

    def _ids_where(self, where: MemoryFilter) -> list[str]:
        found: list[str] = []
        after = 0
        while page := self._page(after, where):
            found += [
                doc.id
                for doc in page
                if any(is_from(one, where.source, where.tags) for one in of_doc(doc))
            ]
            after = page[-1].number
        return found

    def _rebuilt(self) -> None:
        follower_of(self._log, self._key).rebuild()

    def _stats(self) -> MemoryStats:
        index = self._current()
        position = index.position(self._key)
        counts = index.counts(self._key, clock.time())
        oldest, newest = (
            None if at is None else clock.moment(at) for at in (counts.oldest, counts.newest)
        )
        vectors = self._vector_count(index)
        version = position.version if position else 0
        compared_by = _compared_by(index) if vectors else None
        return MemoryStats(
            counts.memories, counts.sources, oldest, newest, vectors, version, compared_by
        )

    def _vector_count(self, index: MemoryIndex) -> int:
        """Of the model that is given, otherwise of the newest."""
        models = index.models(self._key)[1]
        if (embedding := self._embedding) is not None:
            models = {model: count for model, count in models.items() if embedding.made(model)}
        return list(models.values())[-1] if models else 0

    # -- arguments -------------------------------------------------------------------------------

    def _asked(
        self,
        query: str,
        k: int,
        where: MemoryFilter,
        min_score: float,
        max_tokens: int | None,
        vector: Iterable[float] | None,
    ) -> tuple[str, MemoryFilter, int, float, int | None, Iterable[float] | None]:
        query = question_of(query)
        if max_tokens is not None:
            whole_number(max_tokens, "max_tokens")
        if vector is not None and self._embedding is None:
            raise ValueError("vector= needs the embedder that made it: store.memory(…, embed=…)")
        return (
            query,
            where,
            whole_number(k, "k"),
            score_of(min_score, "min_score"),
            max_tokens,
            vector,
        )


def _useful(value: object) -> bool:
    if type(value) is not bool:
        raise TypeError(f"useful must be True or False, got {type(value).__name__}")
    return value


def _where(
    tags: Iterable[str] = (),
    source: Source | None = None,
    author: Authors | None = None,
    subject: str | None = None,
    since: float | datetime | None = None,
    until: float | datetime | None = None,
) -> MemoryFilter:
    return MemoryFilter(
        now=clock.time(),
        tags=tags_of(tags),
        source=source_name(source),
        author=authors_of(author),
        subject=None if subject is None else checked_id(subject, "subject"),
        since=None if since is None else bound(since, "since"),
        until=None if until is None else bound(until, "until"),
    )


def _which(
    tags: Iterable[str],
    source: Source | None,
    author: Authors | None,
    subject: str | None,
    older_than: float | timedelta | None,
) -> MemoryFilter:
    """Which to forget. Not all: that takes `delete`."""
    until = None if older_than is None else clock.time() - seconds(older_than, "older_than")
    where = _where(tags, source, author, subject, None, until)
    if where == MemoryFilter(now=where.now):
        raise ValueError(
            "forget_where() takes at least one filter, such as source= or tags=; delete() forgets all"
        )
    return where


def _compared_by(index: MemoryIndex) -> str:
    server = index.comparing()
    return "process" if server is None else server.name


def _event(type: str, event: msgspec.Struct) -> NewEvent:
    return NewEvent(type, _encode(event))


class Memory(MemoryBase):
    """The long-term memory of an agent, a user or a team: a namespace. No I/O until it is used."""

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
        """Remember a text, durably. What is known already is reinforced, and keeps its id.

        Args:
            text: What to remember.
            tags: Words to filter by.
            importance: From 0 to 1.
            source: Where it comes from: a name, a task or a conversation. What was said just before
                and after it in the same source helps to find it.
            author: Who says it: "model", "person", "tool", "web", or a name of your own.
            at: When it was said, if not now: Unix seconds, or a datetime with its zone.
            subject: Whom it is about; see `Store.erase`.
            meta: Facts to keep beside it.
            ttl: How long it is true, in seconds or as a timedelta. None: forever.

        Returns:
            The id of the memory.

        Raises:
            ValueError: An argument is out of range.
            NotSerializable: The text or `meta` cannot be stored.

        Example:
            >>> memory.remember("Ann signs the orders", tags=["people"], source="mail-3")
        """
        said = said_of(
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
        return self._said([said])[0]

    def remember_many(self, memories: Iterable[NewMemory]) -> list[str]:
        """Remember several texts, all or none: dicts with what `remember` takes.

        Returns their ids, in order.
        """
        now = clock.time()
        said = [said_in(one, now) for one in memories]
        return self._said(said) if said else []

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
        """The memories that answer a question best.

        Args:
            query: Any text. Nothing in it is an operator.
            k: How many at most.
            tags: Only memories with all of these.
            source: Only from this source.
            author: Only by this author, or by one of several.
            subject: Only about this subject.
            since, until: Only what was said in this time: Unix seconds, or datetimes with their
                zone.
            min_score: How much of what is asked for a memory must have, from 0 to 1.
            max_tokens: Only as many as fit.
            vector: What the embedder makes of the question, if you have it already.

        Returns:
            The memories with their `score`, the best first.

        Raises:
            ValueError: An argument is out of range.

        Example:
            >>> [hit.text for hit in memory.recall("Who signs?", k=3)]
            ['Ann signs the orders']
        """
        where = _where(tags, source, author, subject, since, until)
        return run(self._recalling(*self._asked(query, k, where, min_score, max_tokens, vector)))

    def feedback(self, id: str, *, useful: bool) -> None:
        """Say whether a memory was of use: it is then recalled a little earlier, or later.

        Fades in weeks.
        """
        self._append(self._noting(JUDGED, Judged(self._one(id).id, _useful(useful))))

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
        """Replace a memory by another text, and return the new id.

        The old one is no longer recalled. What is not given stays as it is: also `at` if it was
        given, the end of its `ttl`, and how useful it was. `NotFound` if there is no such memory:
        of two who supersede it at once, the second gets that.
        """
        old = self._one(id)
        new = replacing(
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
        return self._said([new])[0]

    def forget(self, id: str) -> bool:
        """Recall a memory no more; False if there was none.

        Its text stays in the log until `delete`.
        """
        doc = self._doc(id)
        if doc is None:
            return False
        self._append(self._noting(FORGOTTEN, Forgotten([doc.id])))
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
        """Forget all memories with these tags, source, author, subject and age; returns how many.

        What others have said too, from another source or with other tags, stays.
        """
        where = _which(tags, source, author, subject, older_than)
        ids = self._ids_where(where)
        if ids:
            self._append(self._noting(FORGOTTEN, Forgotten(ids, where.source, where.tags)))
        return len(ids)

    def get(self, id: str) -> MemoryItem | None:
        """A memory by its id; None if there is none, or no longer."""
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
        """The memories, in the order in which they were first remembered, read page by page."""
        where, after = _where(tags, source, author, subject, since, until), 0
        while page := self._page(after, where):
            yield from map(shown, page)
            after = page[-1].number

    def stats(self) -> MemoryStats:
        """How many memories there are, from how many sources, and of what time."""
        return self._stats()

    def embed_all(self) -> int:
        """Make the vectors of all memories that have none yet; returns how many.

        A recall does this by itself, for up to 256 at a time. Use it after an import, or for a new
        model. `Unavailable` if the embedder fails.
        """
        return run(all_embedded(self))

    def rebuild(self) -> None:
        """Rebuild the index of this namespace from its log, after damage. It keeps up by itself.

        Until it is done, the old index answers.
        """
        self._rebuilt()

    def delete(self, *, reason: str = "deleted by the program") -> bool:
        """Delete the namespace with everything ever remembered in it.

        False if there was nothing.
        """
        deleted = ops.run_until_settled(
            self._log,
            lambda: delete_stream(
                self._key, new_append_context(), self._log.redaction.text(reason)
            ),
        )
        self._current()  # nothing of it stays in the index
        return deleted

    def _said(self, said: Sequence[Remembering | Superseded]) -> list[str]:
        make, new = self._saying(said)
        return self._names(self._append(make), new)

    def _append(self, make: Make) -> AppendResult:
        return ops.run_until_settled(self._log, make)


class AsyncMemory(MemoryBase):
    """A `Memory` whose methods are awaited."""

    _awaited = True

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
        said = said_of(
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
        return (await self._said([said]))[0]

    async def remember_many(self, memories: Iterable[NewMemory]) -> list[str]:
        """`Memory.remember_many`, awaited."""
        now = clock.time()
        said = [said_in(one, now) for one in memories]
        return await self._said(said) if said else []

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
        where = _where(tags, source, author, subject, since, until)
        asked = self._asked(query, k, where, min_score, max_tokens, vector)
        return await run_async(self._log, self._recalling(*asked))

    async def feedback(self, id: str, *, useful: bool) -> None:
        """`Memory.feedback`, awaited."""
        doc = await self._log.in_thread(self._one, id)
        await self._append(self._noting(JUDGED, Judged(doc.id, _useful(useful))))

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
        old = await self._log.in_thread(self._one, id)
        new = replacing(
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
        return (await self._said([new]))[0]

    async def forget(self, id: str) -> bool:
        """`Memory.forget`, awaited."""
        doc = await self._log.in_thread(self._doc, id)
        if doc is None:
            return False
        await self._append(self._noting(FORGOTTEN, Forgotten([doc.id])))
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
        where = _which(tags, source, author, subject, older_than)
        ids = await self._log.in_thread(self._ids_where, where)
        if ids:
            await self._append(self._noting(FORGOTTEN, Forgotten(ids, where.source, where.tags)))
        return len(ids)

    async def get(self, id: str) -> MemoryItem | None:
        """`Memory.get`, awaited."""
        return await self._log.in_thread(self._get, id)

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
        where, after = _where(tags, source, author, subject, since, until), 0
        while page := await self._log.in_thread(self._page, after, where):
            for doc in page:
                yield shown(doc)
            after = page[-1].number

    async def stats(self) -> MemoryStats:
        """`Memory.stats`, awaited."""
        return await self._log.in_thread(self._stats)

    async def embed_all(self) -> int:
        """`Memory.embed_all`, awaited."""
        return await run_async(self._log, all_embedded(self))

    async def rebuild(self) -> None:
        """`Memory.rebuild`, awaited."""
        await self._log.in_thread(self._rebuilt)

    async def delete(self, *, reason: str = "deleted by the program") -> bool:
        """`Memory.delete`, awaited."""
        deleted = await ops.run_until_settled_async(
            self._log,
            lambda: delete_stream(
                self._key, new_append_context(), self._log.redaction.text(reason)
            ),
        )
        await self._log.in_thread(self._current)
        return deleted

    async def _said(self, said: Sequence[Remembering | Superseded]) -> list[str]:
        make, new = self._saying(said)
        return await self._log.in_thread(self._names, await self._append(make), new)

    async def _append(self, make: Make) -> AppendResult:
        return await ops.run_until_settled_async(self._log, make)
