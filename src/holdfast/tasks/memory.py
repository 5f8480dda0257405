"""Save a task's memories, at its end or while it runs, and recall some for a resume context.

A task saves its memories before it records its end, with an append id derived from the task. If the
process is killed in between, the task hasn't ended: the next run reaches the end again, and finds
the memories saved. In the opposite order, a crash would lose them.

The model that reads a resume context didn't ask for the memories in it. So only memories by trusted
authors that fit the goal or the next steps are included.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, count, zip_longest
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import UNSET

from ..backends import AppendResult, StreamKey, clock
from ..conversations.quote import value_to_text
from ..errors import IdReused
from ..log import operations as ops
from ..log.codec import decode
from ..log.drivers import EffectGen
from ..log.events import AppendContext, NewEvent, new_append_context
from ..log.ids import check_id, format_ids, stream_key
from ..log.operations import Operation
from ..memory.arguments import (
    MAX_TEXT_CHARS,
    build_memory,
    build_memory_from_dict,
    check_source,
    redact_memory,
)
from ..memory.model import (
    FORGOTTEN,
    KIND,
    REMEMBERED,
    VARIANT_SEPARATOR,
    Forgotten,
    MemoryFilter,
    MemoryHit,
    MemoryItem,
    Remembered,
)
from ..memory.subjects import append_about
from ..memory.trust import MODEL, SYSTEM, TOOL, Trust, build_trust_filter
from ..memory.vectors.calls import CallBlocking
from ..memory.weights import MIN_UNRELATED_SCORE
from .agents.declare import Agent, MemoryScope, Remember, check_remember, registered_agents
from .run.frames import CallFunction
from .state import events as ev
from .state.failure import Failure
from .steps.identity import fingerprint
from .views import view_gen

if TYPE_CHECKING:
    from ..log.log import Log
    from ..memory.memory import Memory, MemoryBase
    from ..memory.vectors.embedding import Floats
    from .base import TaskBase
    from .resume_context.context import ResumeContext
    from .state.fold import NoteRecord, TaskState
    from .state.view import TaskView

OUTCOME, FAILURE, DECISION, DISCOVERY = "outcome", "failure", "decision", "discovery"
"""The tags of memories that a task saves."""
NOTED_IMPORTANCE: Final = 0.6
"""Notes were recorded on purpose, so they are a little more important than outcomes."""
OUTCOME_CHARACTERS: Final = 2000
"""Longer results are cut: the beginning of a document shows what it is about."""
BECAUSE: Final = "\nBecause: "
EXTRA_HITS: Final = 20
"""Additional hits to recall, because the task's own memories are dropped."""

logger = logging.getLogger("holdfast")

Retrying = Callable[[Callable[[], Operation[AppendResult]]], Operation[AppendResult]]
"""Runs an operation, and may retry it while the database is unreachable."""

_encode = msgspec.json.Encoder().encode


# -- when a task ends ------------------------------------------------------------------------------


def save_ending(
    task: TaskBase,
    remember: Remember | None,
    *,
    result: bytes = b"null",
    failure: tuple[str, str] | None = None,
    author: str = MODEL,
) -> EffectGen[None]:
    """Save the memories of a task's end. They are saved once, even if several runs reach the end.

    `failure` is the type and message of an error; `author` is the source of that message.
    """
    session = task._require_session()
    state = session.state
    how = _effective_remember(task, remember)
    if how is False or state.agent is None:
        return
    if session.is_stale():
        yield from session.catch_up()  # raises if the lease was lost
    if how is True:
        end = (
            outcome_memories(state, result)
            if failure is None
            else failure_memories(state, *failure, author)
        )
        memories = [*note_memories(state), *end] if failure is None else end
    else:
        view = yield from view_gen(task)
        ended = {"status": "finished", "result": decode(result)}
        if failure is not None:
            ended = {"status": "failed", "error": Failure(*failure)}
        memories = check_given_memories(
            (yield from task._evaluate_gen(how, (msgspec.structs.replace(view, **ended),), {})),
            task,
        )
    memories = drop_recalled(
        [redact_memory(session.log, one) for one in memories], [*state.recalled, *session.recalled]
    )
    if memories:
        yield from _record_namespace(task)
    yield from _append_ending(
        session.log,
        state,
        session.incarnation_hex,
        memories,
        session.retry_unavailable,
        first=state.runs == 1,
    )


def forget_unrecorded_end(log: Log, state: TaskState, incarnation: str) -> EffectGen[None]:
    """Forget the memories that a killed run saved for an end that was never recorded.

    Called after a task was cancelled or deleted.
    """
    if state.agent is None or not state.runs:
        return
    try:
        yield from _append_ending(log, state, incarnation, (), lambda make: make())
    except Exception as problem:
        logger.warning(
            "could not forget memories of an unrecorded end of %s (%s)",
            state.key,
            type(problem).__name__,
        )


def check_remember_option(task: TaskBase, remember: Remember | None) -> None:
    """Raise before any work if `remember` isn't valid, or is a function and there is no agent."""
    if remember is not None:
        check_remember(remember)
    if callable(remember) and task._require_session().state.agent is None:
        raise _no_agent_error(task._key)


def _effective_remember(task: TaskBase, remember: Remember | None) -> Remember:
    """Return the given option, or else the agent's option."""
    if remember is None:
        agent = _find_declared(task, task._require_session().state.agent)
        remember = True if agent is None else agent.remember
    return remember


def _find_declared(task: TaskBase, name: str | None) -> Agent[Any, Any] | None:
    """Return the agent that runs the task, or else the registered agent with this name."""
    return task._agent or registered_agents.get(name or "")


def _record_namespace(task: TaskBase) -> EffectGen[None]:
    """Record the memory namespace that the agent chooses for the task, if it chooses one.

    It is recorded before anything is saved there. So every process uses the same namespace, even
    one that doesn't have the agent, or has another version of its code.
    """
    session = task._require_session()
    agent = _find_declared(task, session.state.agent)
    if agent is None or agent.memory is None or session.state.memory_namespace is not None:
        return
    if session.was_ended or session.replaying is not None:
        return
    view: TaskView = yield from view_gen(task)
    named = ev.MemoryNamed(_name_memory(agent, agent.memory, view))
    yield from session.put([(ev.MEMORY_NAMED, named)], new_append_context())


def _find_namespace(agent: Agent[Any, Any] | None, view: TaskView) -> str:
    """Return a task's memory namespace: the recorded one, or else what its agent chooses now."""
    if view.memory_namespace is not None:
        return view.memory_namespace
    if agent is None or agent.memory is None:
        return view.agent or ""
    return _name_memory(agent, agent.memory, view)


def _name_memory(agent: Agent[Any, Any], scope: MemoryScope, view: TaskView) -> str:
    named = scope(view) if callable(scope) else scope
    return check_id(named, f"the memory namespace of agent {agent.name!r}")


def note_memories(state: TaskState) -> list[Remembered]:
    """Return memories of the decisions and discoveries, in order."""
    noted = [
        *((DECISION, note) for note in state.decisions),
        *((DISCOVERY, note) for note in state.discoveries),
    ]
    noted.sort(key=lambda each: each[1].version)
    return [
        Remembered(
            _note_text(note),
            (tag,),
            NOTED_IMPORTANCE,
            _source_name(state.key),
            at=note.at,
            subject=state.subject,
            fact=True,
        )
        for tag, note in noted
        if note.text.strip()
    ]


def outcome_memories(state: TaskState, result: bytes) -> list[Remembered]:
    """Return a memory of the goal and the result. Without its goal, a result is of no use later."""
    if state.goal is None:
        return []
    value = decode(result)
    shown = (
        "done"
        if value is None
        else _shorten(value_to_text(value), OUTCOME_CHARACTERS).strip() or "done"
    )
    text = f"{_shorten(state.goal, OUTCOME_CHARACTERS)}\nOutcome: {shown}"
    return [Remembered(text, (OUTCOME,), source=_source_name(state.key), subject=state.subject)]


def failure_memories(state: TaskState, type: str, message: str, author: str) -> list[Remembered]:
    """Return memories of the goal and what went wrong.

    The message of an exception may quote untrusted sources. So it becomes a separate memory with
    the author "tool", and the rest stays trusted.
    """
    goal = "" if state.goal is None else f"{_shorten(state.goal, OUTCOME_CHARACTERS)}\n"
    message, source = _shorten(message.strip(), OUTCOME_CHARACTERS), _source_name(state.key)
    make = partial(
        Remembered,
        tags=(FAILURE,),
        importance=NOTED_IMPORTANCE,
        source=source,
        subject=state.subject,
    )
    if author != TOOL:
        return [make(f"{goal}Failed: {message}", author=author)]
    quoted = [make(f"{type}: {message}", author=author)] if message else []
    return [make(f"{goal}Failed: {type}", author=SYSTEM), *quoted]


def check_given_memories(given: object, task: TaskBase) -> list[Remembered]:
    """Check what the user's `remember` function returned, and convert it."""
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise TypeError(
            "the remember function must return a list of texts, or of dicts for remember_many, "
            f"got {type(given).__name__}"
        )
    items = [{"text": one} if isinstance(one, str) else one for one in given]
    now = clock.time()
    given_too = {"source": task, "subject": task._require_session().state.subject}
    return [
        build_memory_from_dict({**given_too, **one} if isinstance(one, Mapping) else one, now)
        for one in items
    ]


def drop_recalled(memories: Sequence[Remembered], recalled: Iterable[str]) -> list[Remembered]:
    """Drop memories that only repeat what the model got from memory: they add no evidence.

    A memory that adds something is kept.
    """
    each = [wording for text in recalled for wording in text.split(VARIANT_SEPARATOR)]
    texts = list(
        dict.fromkeys(text for wording in each for text in (wording, wording.partition(BECAUSE)[0]))
    )
    if not texts:
        return list(memories)
    # Imported here, because it is slow and most tasks don't need it.
    from ..memory.duplicates import compare_texts, compute_signature

    known = list(map(compute_signature, texts))
    return [
        one
        for one in memories
        if not any(compare_texts(compute_signature(one.text), text) == "same" for text in known)
    ]


def _note_text(note: NoteRecord) -> str:
    text = _shorten(note.text.strip(), MAX_TEXT_CHARS // 4)
    return (
        text
        if not note.why or not note.why.strip()
        else text + BECAUSE + _shorten(note.why.strip(), MAX_TEXT_CHARS // 4)
    )


def _shorten(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[:size]}… ({len(text) - size:,} more characters)"


# -- writing it once -------------------------------------------------------------------------------


def _append_ending(
    log: Log,
    state: TaskState,
    incarnation: str,
    memories: Sequence[Remembered],
    retry: Retrying,
    *,
    first: bool = False,
) -> EffectGen[None]:
    """Append the memories of a task's end, once.

    An earlier run may have saved memories and been killed before it recorded its end. If it ended
    differently, the memories that only it saved are forgotten: only the recorded end counts. To
    find them, all runs up to a recorded end use the same append ids. `first` means that there was
    no earlier run.
    """
    space = _space_key(state)
    earlier: dict[str, str] = {}  # memories of earlier runs: text to id
    for number in count():
        append_id = f"task/{incarnation}/end/{state.ends}" + (f"/{number}" if number else "")
        texts = {one.text for one in memories}
        obsolete = [earlier[text] for text in earlier.keys() - texts]
        if obsolete:
            obsolete = yield CallFunction(_keep_own, (_open_memory(log, state), obsolete), {})
        events, subjects = _build_events(
            obsolete, [one for one in memories if one.text not in earlier]
        )
        if not events and (
            (first and not number) or (yield from ops.find_append(space, append_id)) is None
        ):
            return
        try:
            if (
                events
                and not (
                    yield from _append(
                        retry, space, events, subjects, append_id, new_append_context()
                    )
                ).duplicate
            ):
                return
        except IdReused:
            logger.info("an earlier run of %s saved memories of a different end", state.key)
        yield from _collect_earlier(space, append_id, earlier)


def _build_events(
    obsolete: Sequence[str], new: Sequence[Remembered]
) -> tuple[list[NewEvent], list[str | None]]:
    """Return the events that forget and add memories, and the subject of each event."""
    events = [NewEvent(FORGOTTEN, _encode(Forgotten(list(obsolete))))] if obsolete else []
    subjects = [None] * len(events) + [one.subject for one in new]
    return events + [NewEvent(REMEMBERED, _encode(one)) for one in new], subjects


def _append(
    retry: Retrying,
    space: StreamKey,
    events: Sequence[NewEvent],
    subjects: Sequence[str | None],
    id: str,
    stamp: AppendContext,
) -> EffectGen[AppendResult]:
    answer: AppendResult = yield from ops.settle(
        lambda: retry(lambda: append_about(space, events, subjects, stamp, id=id))
    )
    return answer


def _collect_earlier(space: StreamKey, id: str, earlier: dict[str, str]) -> Operation[None]:
    """Add the memories of an earlier append to `earlier`, and remove those that it forgot."""
    from ..memory.search.catch_up import read_memory_events as read_events

    found = yield from ops.find_append(space, id)
    after, last = (found.first - 1, found.last) if found is not None else (0, 0)
    while after < last and (page := (yield from read_events(space, after))):
        for happened in page[: last - after]:
            if isinstance(happened.payload, Remembered):
                earlier[happened.payload.text] = happened.id
            elif isinstance(happened.payload, Forgotten):
                ids = happened.payload.ids
                for text in [text for text, known in earlier.items() if known in ids]:
                    del earlier[text]
        after = page[-1].version


def _keep_own(memory: Memory, ids: Sequence[str]) -> list[str]:
    """Return those of the ids whose memories were mentioned only once."""
    docs = memory._current_index().lookup(memory._key, ids, []).docs
    return [doc.id for doc in docs if doc.id in ids and doc.mentions == 1]


# -- on the way ------------------------------------------------------------------------------------


def remember(task: TaskBase, text: str, options: Mapping[str, Any]) -> EffectGen[str]:
    """Remember a text while the task runs, once per task and content. Return the memory's id."""
    from ..memory.fold import MemoryEvent

    session = task._require_session()
    about = options["subject"]
    about = session.state.subject if about is UNSET else about
    remembered = redact_memory(
        session.log, build_memory(text, clock.time(), **{**options, "subject": about}, source=task)
    )
    if session.state.agent is None:
        raise _no_agent_error(task._key)
    session.check_active()
    if session.is_stale():
        yield from session.catch_up()
    yield from _record_namespace(task)
    space, memory = _space_key(session.state), _open_memory(session.log, session.state)
    content = msgspec.structs.replace(remembered, expires_at=None), options.get("ttl")
    append_id = f"task/{session.incarnation_hex}/remember/{fingerprint(session.salt, content, {})}"
    if (
        session.was_ended or remembered.expires_at is not None
    ):  # the bytes differ from an earlier append, so a duplicate must be looked up
        found = yield from ops.find_append(space, append_id)
        if found is not None:
            return str((yield CallFunction(_find_memory_id, (memory, found), {})))
        if session.replaying is None:
            session.check_writable()
    if not drop_recalled([remembered], [*session.state.recalled, *session.recalled]):
        same = yield CallFunction(_find_same_memory, (memory, remembered), {})
        if same is not None:
            return str(same)
    stamp = new_append_context()
    appended = yield from _append(
        session.retry_unavailable,
        space,
        [NewEvent(REMEMBERED, _encode(remembered))],
        [remembered.subject],
        append_id,
        stamp,
    )
    if appended.duplicate:
        return str((yield CallFunction(_find_memory_id, (memory, appended), {})))
    new = [MemoryEvent(0, format_ids(stamp.id, 1)[0], stamp.at, remembered)]
    [name] = yield CallFunction(memory._resolve_ids, (appended, new), {})
    return str(name)


def _find_same_memory(memory: Memory, new: Remembered) -> str | None:
    """Return the id of a memory with the same text, about this subject or none, if there is one."""
    from ..memory.duplicates import compare_texts, compute_signature

    mine, where = compute_signature(new.text), MemoryFilter(clock.time(), visible_to=new.subject)
    docs = memory._current_index().lookup(memory._key, [], [mine.key]).docs
    same = [
        doc
        for doc in docs
        if where.has(doc) and compare_texts(mine, compute_signature(doc.text)) == "same"
    ]
    return min(same, key=lambda doc: doc.subject is None).id if same else None


def _find_memory_id(memory: Memory, appended: AppendResult) -> str:
    """Return the id of the memory that an earlier append created or mentioned."""
    [stored] = ops.run(memory._log, ops.read(memory._key, after=appended.first - 1, limit=1))
    doc = memory._find_doc(stored.envelope.id)
    return stored.envelope.id if doc is None else doc.id


def _open_memory(log: Log, state: TaskState) -> Memory:
    from ..memory.memory import (
        Memory,  # imported here, because it is slow and most tasks don't need it
    )

    return Memory(log, _space_key(state), None)


def _space_key(state: TaskState) -> StreamKey:
    return stream_key(state.key.tenant, KIND, state.memory_namespace or state.agent or "")


def _source_name(key: StreamKey) -> str:
    return f"{key.kind}/{key.id}"


def _no_agent_error(key: StreamKey) -> ValueError:
    return ValueError(
        f"{key} has no agent, so it has no memory; open it with store.task(id, agent=…)"
    )


# -- for a resume context --------------------------------------------------------------------------


def recall_relevant(
    task: TaskBase, view: TaskView, most: int, trust: Trust | None
) -> EffectGen[list[MemoryItem]]:
    """Return the memories that fit the task's goal or its next steps, best first.

    Only memories about the task's subject, or about none, are recalled. The task's own memories are
    excluded, because they are in its record. Ages are computed as of the newest event, so the same
    task and memories give the same result. If `trust` is None, the agent's `trust` applies.
    """
    from .resume_context.queries import recall_queries

    agent = _find_declared(task, view.agent)
    if trust is None and agent is not None:
        trust = agent.trust
    where = build_trust_filter(trust, view.subject, view.updated_at.timestamp())
    queries = recall_queries(view)
    if not most or view.agent is None or not queries:
        return []
    space = stream_key(task._key.tenant, KIND, _find_namespace(agent, view))
    if (yield from ops.head(space)) is None:
        return []
    from ..memory.memory import AsyncMemory, Memory  # slow, and needed only if there are memories

    memory = (AsyncMemory if task._asynchronous else Memory)(task._log, space, None)
    if (
        agent is not None
        and agent.embedding is not None
        and (task._asynchronous or not agent.embedding.is_async)
    ):
        memory._embedding = agent.embedding
    questions = yield from memory._embed_queries_gen(queries)
    search = partial(_search_others, memory, where, check_source(task), most)
    found: list[list[MemoryHit]] = yield CallBlocking(lambda: list(map(search, queries, questions)))
    return list(merge_hits(found)[:most])


def explain_context(
    task: TaskBase, view: TaskView, max_tokens: int, *, past: bool
) -> EffectGen[tuple[ResumeContext, list[MemoryHit]]]:
    """Return the resume context for a view, and its memories with the reasons of their ranks.

    For a `past` version, they are the memories that existed then and have not been superseded or
    forgotten since.
    """
    from .resume_context.context import DEFAULT_MEMORIES, build_resume_context

    most = (4 if past else 1) * DEFAULT_MEMORIES
    found = yield from recall_relevant(task, view, most, None)
    hits = [
        hit
        for hit in found
        if isinstance(hit, MemoryHit) and not (past and hit.at > view.updated_at)
    ]
    context = build_resume_context(view, max_tokens, memories=hits[:DEFAULT_MEMORIES])
    return context, [hit for hit in hits if hit.id in context.memories]


def _search_others(
    memory: MemoryBase,
    where: MemoryFilter,
    own: str | None,
    most: int,
    query: str,
    question: Floats | None,
) -> list[MemoryHit]:
    """Return the best hits for one query, except memories whose only source is `own`."""
    now, wanted = clock.time(), most + EXTRA_HITS
    while True:
        hits = memory._search(query, where, wanted, 0.0, None, question)
        others = [
            hit
            for hit in hits
            if (hit.expires_at is None or hit.expires_at.timestamp() > now)
            and (hit.valid_until is None or hit.valid_until.timestamp() > now)
            and hit.sources != (own,)
            and (question is None or _is_relevant(hit))
        ]
        # A search by meaning always has more hits, but they fit worse than the last one.
        if (
            len(others) >= most
            or len(hits) < wanted
            or (question is not None and hits[-1].score < MIN_UNRELATED_SCORE)
        ):
            return others[:most]
        wanted *= 4


def merge_hits(found: Sequence[Sequence[MemoryHit]]) -> list[MemoryHit]:
    """Merge the hits of the queries into one list, each memory once.

    Hits for the goal, which is the first query, alternate with hits for the other queries. So a
    memory that fits only the next step is included, however many fit the goal.
    """
    goal, steps = found[0], _take_turns(found[1:])
    return _take_turns([goal, steps])


def _take_turns(lists: Sequence[Sequence[MemoryHit]]) -> list[MemoryHit]:
    merged: dict[str, MemoryHit] = {}
    for hit in chain.from_iterable(zip_longest(*lists)):
        if hit is not None:
            merged.setdefault(hit.id, hit)
    return list(merged.values())


def _is_relevant(hit: MemoryHit) -> bool:
    """Return True if a hit is a good match, and not only better than the other hits."""
    return "words" in hit.why or hit.score >= MIN_UNRELATED_SCORE
