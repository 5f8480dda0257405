"""Tasks and memory: what a task leaves when it ends, what it remembers on the way, and what a briefing tells of what is known.

A task leaves its memories before its end is recorded, under an append id of its own. Killed in between, it has not ended: it
is run again, comes to its end again, and what it leaves is there already. The other way round, a kill would lose them.

Nobody has asked for what a briefing tells, and a model reads it. So it is of those who are trusted, and has something to do
with the goal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..backends import AppendResult, StreamKey, clock
from ..conversations.quote import text_of
from ..errors import IdReused
from ..log import operations as ops
from ..log.codec import decode
from ..log.events import AppendContext, NewEvent
from ..log.ids import id_texts, stream_key
from ..log.operations import Operation
from ..log.stream_ops import new_append_context
from ..memory.about import append_about
from ..memory.arguments import LONGEST, redacted, said_in, said_of, source_name
from ..memory.model import (
    FORGOTTEN,
    KIND,
    REMEMBERED,
    VARIANT,
    Forgotten,
    MemoryHit,
    MemoryItem,
    Remembering,
)
from ..memory.trust import MODEL, SYSTEM, TOOL, Trust, where_trusted
from ..memory.vectors.calls import CallBlocking
from ..memory.vectors.calls import Script as MemoryScript
from ..memory.weights import UNASKED
from .agents.declare import Remember, check_remember, registered
from .run.effects import CallFunction, RunOperation, Script
from .state.view import Failure
from .steps.identity import fingerprint

if TYPE_CHECKING:
    from ..log.log import Log
    from ..memory.memory import Memory
    from .base import TaskBase
    from .state.fold import NoteRecord, TaskState
    from .state.view import TaskView

OUTCOME, FAILURE, DECISION, DISCOVERY = "outcome", "failure", "decision", "discovery"
"""The tags of what a task leaves."""
NOTED_IMPORTANCE: Final = 0.6
"""Somebody thought it worth noting: a little more than what is remembered of itself."""
OUTCOME_CHARACTERS: Final = 2000
"""A longer result is a document: what it is about is in its beginning."""
BECAUSE: Final = "\nBecause: "
QUESTION_CHARACTERS: Final = 4000
SPARE: Final = 20
"""So many more are recalled than wanted: those of the task itself are left out."""

logger = logging.getLogger("holdfast")

Patiently = Callable[[Callable[[], Operation[AppendResult]]], Operation[AppendResult]]
"""Does what an operation does, and waits for an engine that cannot be reached."""

_encode = msgspec.json.Encoder().encode


# -- when a task ends -------------------------------------------------------------------------------------


def leave(
    task: TaskBase,
    remember: Remember | None,
    *,
    result: bytes = b"null",
    failure: tuple[str, str] | None = None,
    author: str = MODEL,
) -> Script[None]:
    """Write what a task leaves to its agent's memory, once, however often its end is reached.

    `failure`: type and message, and `author` is who says that.
    """
    session = task._held()
    state = session.state
    how = _wanted(task, remember)
    if how is False or state.agent is None:
        return
    if session.is_stale():
        yield RunOperation(session.catch_up)  # who has lost the task has nothing to say
    if how is True:
        end = outcome_of(state, result) if failure is None else failure_of(state, *failure, author)
        left = [*notes_of(state), *end] if failure is None else end
    else:
        view = yield RunOperation(task._viewing)
        ended = {"status": "finished", "result": decode(result)}
        if failure is not None:
            ended = {"status": "failed", "error": Failure(*failure)}
        left = given_by(
            (yield from task._value(how, (msgspec.structs.replace(view, **ended),), {})), task
        )
    left = unless_recalled(
        [redacted(session.log, one) for one in left], [*state.recalled, *session.recalled]
    )
    yield from _leave(
        session.log, state, session.incarnation_hex, left, session.patiently, first=state.runs == 1
    )


def leave_nothing(log: Log, state: TaskState, incarnation: str) -> Script[None]:
    """A task was cancelled or deleted before it ended: forget what a run has left that was killed before its end was recorded."""
    if state.agent is None or not state.runs:
        return
    try:
        yield from _leave(log, state, incarnation, (), lambda make: make())
    except Exception as problem:
        logger.warning(
            "what %s has left may be remembered still (%s)", state.key, type(problem).__name__
        )


def check(task: TaskBase, remember: Remember | None) -> None:
    """Refuse what cannot be done, before the work is."""
    if remember is not None:
        check_remember(remember)
    if callable(remember) and task._held().state.agent is None:
        raise _nobody(task._key)


def _wanted(task: TaskBase, remember: Remember | None) -> Remember:
    """What was said here; else by the agent that runs; else by the one that is registered."""
    if remember is None:
        remember = task._remember
    if remember is None:
        agent = registered.get(task._held().state.agent or "")
        remember = True if agent is None else agent.remember
    return remember


def notes_of(state: TaskState) -> list[Remembering]:
    """Decisions and discoveries, in the order in which they were made."""
    noted = [
        *((DECISION, note) for note in state.decisions),
        *((DISCOVERY, note) for note in state.discoveries),
    ]
    noted.sort(key=lambda each: each[1].version)
    return [
        Remembering(
            _noted(note),
            (tag,),
            NOTED_IMPORTANCE,
            _source(state.key),
            at=note.at,
            subject=state.subject,
            fact=True,
        )
        for tag, note in noted
        if note.text.strip()
    ]


def outcome_of(state: TaskState, result: bytes) -> list[Remembering]:
    """Goal and result. Nothing without a goal: a result alone says nothing to anybody else."""
    if state.goal is None:
        return []
    value = decode(result)
    shown = "done" if value is None else _cut(text_of(value), OUTCOME_CHARACTERS).strip() or "done"
    text = f"{_cut(state.goal, OUTCOME_CHARACTERS)}\nOutcome: {shown}"
    return [Remembering(text, (OUTCOME,), source=_source(state.key), subject=state.subject)]


def failure_of(state: TaskState, type: str, message: str, author: str) -> list[Remembering]:
    """What was to be reached, and what went wrong.

    The text of an exception may quote anybody. It is a memory of its own, so that what is certain can be told to a model unasked.
    """
    goal = "" if state.goal is None else f"{_cut(state.goal, OUTCOME_CHARACTERS)}\n"
    message, source = _cut(message.strip(), OUTCOME_CHARACTERS), _source(state.key)
    said = partial(
        Remembering,
        tags=(FAILURE,),
        importance=NOTED_IMPORTANCE,
        source=source,
        subject=state.subject,
    )
    if author != TOOL:
        return [said(f"{goal}Failed: {message}", author=author)]
    quoted = [said(f"{type}: {message}", author=author)] if message else []
    return [said(f"{goal}Failed: {type}", author=SYSTEM), *quoted]


def given_by(given: object, task: TaskBase) -> list[Remembering]:
    """What a user's function wants to be remembered."""
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise TypeError(
            "the function of remember= gives a list of texts, or of dicts with what `remember` takes"
        )
    items = [{"text": one} if isinstance(one, str) else one for one in given]
    now = clock.time()
    given_too = {"source": task, "subject": task._held().state.subject}
    return [
        said_in({**given_too, **one} if isinstance(one, Mapping) else one, now) for one in items
    ]


def unless_recalled(left: Sequence[Remembering], recalled: Iterable[str]) -> list[Remembering]:
    """Without what the model was told from memory and only repeats: that says nothing new of it, not even that it is true.

    What it adds something to is its own, beside what it was told.
    """
    each = [wording for text in recalled for wording in text.split(VARIANT)]
    told = list(
        dict.fromkeys(text for wording in each for text in (wording, wording.partition(BECAUSE)[0]))
    )
    if not told:
        return list(left)
    from ..memory.duplicates.find import (  # with all that it knows of words: most tasks have no use for it
        same,
        signature,
    )

    known = list(map(signature, told))
    return [
        one for one in left if not any(same(signature(one.text), text) == "same" for text in known)
    ]


def _noted(note: NoteRecord) -> str:
    text = _cut(note.text.strip(), LONGEST // 4)
    return (
        text
        if not note.why or not note.why.strip()
        else text + BECAUSE + _cut(note.why.strip(), LONGEST // 4)
    )


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[:size]}… ({len(text) - size:,} more characters)"


# -- writing it once -----------------------------------------------------------------------------------


def _leave(
    log: Log,
    state: TaskState,
    incarnation: str,
    left: Sequence[Remembering],
    patiently: Patiently,
    *,
    first: bool = False,
) -> Script[None]:
    """Append what a task leaves. An earlier run may have done so, and been killed before the end of the task was recorded.

    If that run had come to another end, what it alone has left is forgotten again: only what is recorded counts. So there is one
    append id for each end that is recorded, whatever it is. `first`: there was no earlier run.
    """
    space = _space(state)
    earlier: dict[str, str] = {}  # what such runs have left: text and id
    for number in count():
        append_id = f"task/{incarnation}/end/{state.ends}" + (f"/{number}" if number else "")
        gone = [said for text, said in earlier.items() if text not in {one.text for one in left}]
        if gone:
            gone = yield CallFunction(_own, (_memory(log, state), gone), {})
        events = [NewEvent(FORGOTTEN, _encode(Forgotten(gone)))] if gone else []
        new = [one for one in left if one.text not in earlier]
        subjects = [None] * len(events) + [one.subject for one in new]
        events += [NewEvent(REMEMBERED, _encode(one)) for one in new]
        if not events and (
            (first and not number)
            or (yield RunOperation(partial(ops.find, space, append_id))) is None
        ):
            return
        try:
            if (
                events
                and not (
                    yield from _append(
                        patiently, space, events, subjects, append_id, new_append_context()
                    )
                ).duplicate
            ):
                return
        except IdReused:
            logger.info("%s came to another end before, which was not recorded", state.key)
        yield RunOperation(partial(_add_what_is_said, space, append_id, earlier))


def _append(
    patiently: Patiently,
    space: StreamKey,
    events: Sequence[NewEvent],
    subjects: Sequence[str | None],
    id: str,
    stamp: AppendContext,
) -> Script[AppendResult]:
    answer: AppendResult = yield RunOperation(
        lambda: patiently(lambda: append_about(space, events, subjects, stamp, id=id))
    )
    return answer


def _add_what_is_said(space: StreamKey, id: str, earlier: dict[str, str]) -> Operation[None]:
    """What the append of that id has said and forgotten."""
    from ..memory.search.catch_up import _read as read_events

    found = yield from ops.find(space, id)
    after, last = (found.first - 1, found.last) if found is not None else (0, 0)
    while after < last and (page := (yield from read_events(space, after))):
        for happened in page[: last - after]:
            if isinstance(happened.event, Remembering):
                earlier[happened.event.text] = happened.id
            elif isinstance(happened.event, Forgotten):
                for text in [text for text, said in earlier.items() if said in happened.event.ids]:
                    del earlier[text]
        after = page[-1].version


def _own(memory: Memory, ids: Sequence[str]) -> list[str]:
    """Those that nobody else has said as well."""
    docs = memory._current().known(memory._key, ids, []).docs
    return [doc.id for doc in docs if doc.id in ids and doc.mentions == 1]


# -- on the way ----------------------------------------------------------------------------------------


def remember(task: TaskBase, text: str, options: Mapping[str, Any]) -> Script[str]:
    """Remember something while the task runs, once for the task and what it says. The id of the memory."""
    from ..memory.fold import MemoryEvent

    session = task._held()
    about = options.get("subject") or session.state.subject
    said = redacted(
        session.log, said_of(text, clock.time(), **{**options, "subject": about}, source=task)
    )
    if session.state.agent is None:
        raise _nobody(task._key)
    session.check_here()
    if session.is_stale():
        yield RunOperation(session.catch_up)
    space, memory = _space(session.state), _memory(session.log, session.state)
    content = msgspec.structs.replace(said, expires_at=None), options.get("ttl")
    append_id = f"task/{session.incarnation_hex}/remember/{fingerprint(session.salt, content, {})}"
    if (
        session.opened_ended or said.expires_at is not None
    ):  # then it is not to the byte what it was
        found = yield RunOperation(lambda: ops.find(space, append_id))
        if found is not None:
            return str((yield CallFunction(_named, (memory, found), {})))
        if session.replaying is None:
            session.check()
    if not unless_recalled([said], [*session.state.recalled, *session.recalled]):
        told = yield CallFunction(_told, (memory, said.text), {})
        if told is not None:
            return str(told)
    stamp = new_append_context()
    appended = yield from _append(
        session.patiently,
        space,
        [NewEvent(REMEMBERED, _encode(said))],
        [said.subject],
        append_id,
        stamp,
    )
    if appended.duplicate:
        return str((yield CallFunction(_named, (memory, appended), {})))
    new = [MemoryEvent(0, id_texts(stamp.id, 1)[0], stamp.at, said)]
    [name] = yield CallFunction(memory._names, (appended, new), {})
    return str(name)


def _told(memory: Memory, text: str) -> str | None:
    """The id of the memory that says this; None if it has been forgotten."""
    from ..memory.duplicates.find import same, signature

    mine = signature(text)
    docs = memory._current().known(memory._key, [], list(mine.keys)).docs
    return next((doc.id for doc in docs if same(mine, signature(doc.text)) == "same"), None)


def _named(memory: Memory, appended: AppendResult) -> str:
    """The id of the memory that an earlier append has become."""
    [stored] = ops.run(memory._log, ops.read(memory._key, after=appended.first - 1, limit=1))
    doc = memory._doc(stored.envelope.id)
    return stored.envelope.id if doc is None else doc.id


def _memory(log: Log, state: TaskState) -> Memory:
    from ..memory.memory import (
        Memory,  # with its index: a task that only leaves something needs none
    )

    return Memory(log, _space(state), None)


def _space(state: TaskState) -> StreamKey:
    return stream_key(state.key.tenant, KIND, state.agent or "")


def _source(key: StreamKey) -> str:
    return f"{key.kind}/{key.id}"


def _nobody(key: StreamKey) -> ValueError:
    return ValueError(
        f"{key} has no agent, whose memory it would be; give it one: store.task(id, agent=…)"
    )


# -- what a briefing tells -----------------------------------------------------------------------------


def relevant_to(
    task: TaskBase, view: TaskView, most: int, trust: Trust | None
) -> MemoryScript[list[MemoryItem]]:
    """The memories of its agent that fit a task's goal, best first, but for its own: those are in its record.

    By the time of the record, not by the clock: the same task and the same memories give the same. `trust`: of whom; None leaves it to
    the agent.
    """
    agent = registered.get(view.agent or "")
    if trust is None and agent is not None:
        trust = agent.trust
    where = where_trusted(trust, view.updated_at.timestamp())
    if not most or view.agent is None or view.goal is None:
        return []
    space = stream_key(task._key.tenant, KIND, view.agent)
    if (yield CallBlocking(partial(ops.run, task._log, ops.head(space)))) is None:
        return []
    from ..memory.memory import (  # with its index: only who has memories needs it
        AsyncMemory,
        Memory,
    )
    from ..memory.vectors.question import as_vector

    memory = (AsyncMemory if task._asynchronous else Memory)(task._log, space, None)
    if (
        agent is not None
        and agent.embedding is not None
        and (task._asynchronous or not agent.embedding.is_async)
    ):
        memory._embedding = agent.embedding
    own, now, wanted, query = (
        source_name(task),
        clock.time(),
        most + SPARE,
        view.goal[:QUESTION_CHARACTERS],
    )
    question = yield from as_vector(memory, query, None)
    while True:
        hits: list[MemoryHit] = yield CallBlocking(
            partial(memory._recalled, query, where, wanted, 0.0, None, question)
        )
        living = [hit for hit in hits if hit.expires_at is None or hit.expires_at.timestamp() > now]
        others = [
            hit for hit in living if hit.sources != (own,) and (question is None or _is_near(hit))
        ]
        # By meaning there is always one more, but none that fits better than the last.
        if (
            len(others) >= most
            or len(hits) < wanted
            or (question is not None and hits[-1].score < UNASKED)
        ):
            return list(others[:most])
        wanted *= 4


def _is_near(hit: MemoryHit) -> bool:
    """Whether there is a reason to tell it, other than that everything else is even farther away."""
    return "words" in hit.why or hit.score >= UNASKED
