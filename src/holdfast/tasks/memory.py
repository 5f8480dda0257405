"""What a task saves to memory at its end or on the way, and what a resume context recalls.

A task saves its memories before its end is recorded, with an append id of its own. If the process
is killed in between, the task hasn't ended: the next run ends it again, and finds the memories
saved. In the other order a crash would lose them.

Memories in a resume context are read by a model that didn't ask for them. So only those of trusted
authors that fit the goal are included.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..backends import AppendResult, StreamKey, clock
from ..conversations.quote import value_to_text
from ..errors import IdReused
from ..log import operations as ops
from ..log.codec import decode
from ..log.events import AppendContext, NewEvent
from ..log.ids import format_ids, stream_key
from ..log.operations import Operation
from ..log.operations.stream_ops import new_append_context
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
    MemoryHit,
    MemoryItem,
    Remembered,
)
from ..memory.subjects import append_about
from ..memory.trust import MODEL, SYSTEM, TOOL, Trust, build_trust_filter
from ..memory.vectors.calls import CallBlocking
from ..memory.vectors.calls import EmbedGen as MemoryScript
from ..memory.weights import MIN_UNRELATED_SCORE
from .agents.declare import Remember, check_remember, registered_agents
from .run.effects import CallFunction, RunOperation, TaskGen
from .state.view import Failure
from .steps.fingerprints import fingerprint

if TYPE_CHECKING:
    from ..log.log import Log
    from ..memory.memory import Memory
    from .base import TaskBase
    from .state.fold import NoteRecord, TaskState
    from .state.view import TaskView

OUTCOME, FAILURE, DECISION, DISCOVERY = "outcome", "failure", "decision", "discovery"
"""The tags of memories that a task saves."""
NOTED_IMPORTANCE: Final = 0.6
"""Notes were recorded on purpose, so they are a little more important than outcomes."""
OUTCOME_CHARACTERS: Final = 2000
"""Longer results are cut: the beginning of a document shows what it is about."""
BECAUSE: Final = "\nBecause: "
QUESTION_CHARACTERS: Final = 4000
EXTRA_HITS: Final = 20
"""Additional hits to recall, because those of the task itself are dropped."""

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
) -> TaskGen[None]:
    """Save the memories of a task's end, once, however often its end is reached.

    `failure` is the type and message of an error, `author` the source of that message.
    """
    session = task._require_session()
    state = session.state
    how = _effective_remember(task, remember)
    if how is False or state.agent is None:
        return
    if session.is_stale():
        yield RunOperation(session.catch_up)  # raises if the lease was lost
    if how is True:
        end = (
            outcome_memories(state, result)
            if failure is None
            else failure_memories(state, *failure, author)
        )
        memories = [*note_memories(state), *end] if failure is None else end
    else:
        view = yield RunOperation(task._view_gen)
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
    yield from _append_ending(
        session.log,
        state,
        session.incarnation_hex,
        memories,
        session.retry_unavailable,
        first=state.runs == 1,
    )


def forget_unrecorded_end(log: Log, state: TaskState, incarnation: str) -> TaskGen[None]:
    """Forget the memories that a killed run saved of an end that was never recorded.

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
    """Raise before the work if `remember` isn't valid, or the task has no agent to remember for."""
    if remember is not None:
        check_remember(remember)
    if callable(remember) and task._require_session().state.agent is None:
        raise _no_agent_error(task._key)


def _effective_remember(task: TaskBase, remember: Remember | None) -> Remember:
    """Return the given option, that of the running agent, or that of the registered one."""
    if remember is None:
        remember = task._remember
    if remember is None:
        agent = registered_agents.get(task._require_session().state.agent or "")
        remember = True if agent is None else agent.remember
    return remember


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
    """Return a memory of goal and result. Without a goal, a result has no meaning later."""
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

    The text of an exception may quote untrusted sources. So it is a separate memory by a "tool",
    and the rest is trusted.
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
    from ..memory.duplicates.find import compare_texts, compute_signature

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
) -> TaskGen[None]:
    """Append the memories of a task's end, once.

    An earlier run may have saved some and been killed before its end was recorded. If its end was
    another one, the memories that only it saved are forgotten: only the recorded end counts. So
    each recorded end has one append id. `first` means that there was no earlier run.
    """
    space = _space_key(state)
    earlier: dict[str, str] = {}  # memories of such runs: text to id
    for number in count():
        append_id = f"task/{incarnation}/end/{state.ends}" + (f"/{number}" if number else "")
        obsolete = [
            memory_id
            for text, memory_id in earlier.items()
            if text not in {one.text for one in memories}
        ]
        if obsolete:
            obsolete = yield CallFunction(_keep_own, (_open_memory(log, state), obsolete), {})
        events = [NewEvent(FORGOTTEN, _encode(Forgotten(obsolete)))] if obsolete else []
        new = [one for one in memories if one.text not in earlier]
        subjects = [None] * len(events) + [one.subject for one in new]
        events += [NewEvent(REMEMBERED, _encode(one)) for one in new]
        if not events and (
            (first and not number)
            or (yield RunOperation(partial(ops.find_append, space, append_id))) is None
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
            logger.info("an earlier run of %s ended differently, unrecorded", state.key)
        yield RunOperation(partial(_collect_earlier, space, append_id, earlier))


def _append(
    retry: Retrying,
    space: StreamKey,
    events: Sequence[NewEvent],
    subjects: Sequence[str | None],
    id: str,
    stamp: AppendContext,
) -> TaskGen[AppendResult]:
    answer: AppendResult = yield RunOperation(
        lambda: retry(lambda: append_about(space, events, subjects, stamp, id=id))
    )
    return answer


def _collect_earlier(space: StreamKey, id: str, earlier: dict[str, str]) -> Operation[None]:
    """Add the memories of an earlier append to `earlier`, and drop those it forgot."""
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
    """Return the ids of memories that have no other mention."""
    docs = memory._current_index().lookup(memory._key, ids, []).docs
    return [doc.id for doc in docs if doc.id in ids and doc.mentions == 1]


# -- on the way ------------------------------------------------------------------------------------


def remember(task: TaskBase, text: str, options: Mapping[str, Any]) -> TaskGen[str]:
    """Remember a text while the task runs, once per task and content. Return the memory's id."""
    from ..memory.fold import MemoryEvent

    session = task._require_session()
    about = options.get("subject") or session.state.subject
    remembered = redact_memory(
        session.log, build_memory(text, clock.time(), **{**options, "subject": about}, source=task)
    )
    if session.state.agent is None:
        raise _no_agent_error(task._key)
    session.check_active()
    if session.is_stale():
        yield RunOperation(session.catch_up)
    space, memory = _space_key(session.state), _open_memory(session.log, session.state)
    content = msgspec.structs.replace(remembered, expires_at=None), options.get("ttl")
    append_id = f"task/{session.incarnation_hex}/remember/{fingerprint(session.salt, content, {})}"
    if (
        session.was_ended or remembered.expires_at is not None
    ):  # the bytes differ from an earlier append, so a duplicate must be looked up
        found = yield RunOperation(lambda: ops.find_append(space, append_id))
        if found is not None:
            return str((yield CallFunction(_find_memory_id, (memory, found), {})))
        if session.replaying is None:
            session.check_writable()
    if not drop_recalled([remembered], [*session.state.recalled, *session.recalled]):
        same = yield CallFunction(_find_same_memory, (memory, remembered.text), {})
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


def _find_same_memory(memory: Memory, text: str) -> str | None:
    """Return the id of the memory with this text; None if it was forgotten."""
    from ..memory.duplicates.find import compare_texts, compute_signature

    mine = compute_signature(text)
    docs = memory._current_index().lookup(memory._key, [], list(mine.keys)).docs
    return next(
        (doc.id for doc in docs if compare_texts(mine, compute_signature(doc.text)) == "same"), None
    )


def _find_memory_id(memory: Memory, appended: AppendResult) -> str:
    """Return the id of the memory that an earlier append created or mentioned."""
    [stored] = ops.run(memory._log, ops.read(memory._key, after=appended.first - 1, limit=1))
    doc = memory._find_doc(stored.envelope.id)
    return stored.envelope.id if doc is None else doc.id


def _open_memory(log: Log, state: TaskState) -> Memory:
    from ..memory.memory import (
        Memory,  # with its index: a task that only leaves something needs none
    )

    return Memory(log, _space_key(state), None)


def _space_key(state: TaskState) -> StreamKey:
    return stream_key(state.key.tenant, KIND, state.agent or "")


def _source_name(key: StreamKey) -> str:
    return f"{key.kind}/{key.id}"


def _no_agent_error(key: StreamKey) -> ValueError:
    return ValueError(
        f"{key} has no agent, so it has no memory; open it with store.task(id, agent=…)"
    )


# -- for a resume context --------------------------------------------------------------------------


def recall_relevant(
    task: TaskBase, view: TaskView, most: int, trust: Trust | None
) -> MemoryScript[list[MemoryItem]]:
    """Return the agent's memories that fit the task's goal, best first.

    The task's own memories are excluded: they are in its record. Ages are computed at the time of
    the record, so the same task and memories give the same result. `trust` None: as the agent
    declares.
    """
    agent = registered_agents.get(view.agent or "")
    if trust is None and agent is not None:
        trust = agent.trust
    where = build_trust_filter(trust, view.updated_at.timestamp())
    if not most or view.agent is None or view.goal is None:
        return []
    space = stream_key(task._key.tenant, KIND, view.agent)
    if (yield CallBlocking(partial(ops.run, task._log, ops.head(space)))) is None:
        return []
    from ..memory.memory import (  # with its index: only who has memories needs it
        AsyncMemory,
        Memory,
    )

    memory = (AsyncMemory if task._asynchronous else Memory)(task._log, space, None)
    if (
        agent is not None
        and agent.embedding is not None
        and (task._asynchronous or not agent.embedding.is_async)
    ):
        memory._embedding = agent.embedding
    own, now, wanted, query = (
        check_source(task),
        clock.time(),
        most + EXTRA_HITS,
        view.goal[:QUESTION_CHARACTERS],
    )
    question = yield from memory._embed_query_gen(query, None)
    while True:
        hits: list[MemoryHit] = yield CallBlocking(
            partial(memory._search, query, where, wanted, 0.0, None, question)
        )
        living = [hit for hit in hits if hit.expires_at is None or hit.expires_at.timestamp() > now]
        others = [
            hit
            for hit in living
            if hit.sources != (own,) and (question is None or _is_relevant(hit))
        ]
        # A search by meaning always has more hits, but they fit worse than the last one.
        if (
            len(others) >= most
            or len(hits) < wanted
            or (question is not None and hits[-1].score < MIN_UNRELATED_SCORE)
        ):
            return list(others[:most])
        wanted *= 4


def _is_relevant(hit: MemoryHit) -> bool:
    """Return whether a hit fits by itself, not only better than the other ones."""
    return "words" in hit.why or hit.score >= MIN_UNRELATED_SCORE
