"""From tasks to memory, and back: what a task leaves when it ends, and what another one is told of it.

A task leaves its memories before its end is recorded, under an append id of its own. Killed in between, it has not ended: it
is run again, comes to its end again, and what it leaves is there already. The other way round, a kill would lose them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import msgspec

from .. import _clock
from .. import _operations as ops
from .._codec import decode
from .._events import NewEvent, Stamp
from .._ids import id_texts, stream_key
from .._operations import Operation
from .._streams import append_events, new_stamp
from ..backends import Appended, StreamKey
from ..errors import IdReused
from ..tasks._agents import Remember, check_remember, registered
from ..tasks._driving import Call, Do, Script
from ..tasks._fingerprint import fingerprint
from ..tasks._quoting import text_of
from ..tasks._view import Failure
from ._arguments import LONGEST, redacted, said_in, said_of, source_name
from ._model import FORGOTTEN, KIND, REMEMBERED, Forgotten, Remembered, Said, Where

if TYPE_CHECKING:
    from ..tasks._fold import Noted, State
    from ..tasks._session import Session
    from ..tasks._shape import Shape
    from ..tasks._view import TaskView
    from ._memory import Memory

OUTCOME, FAILURE, DECISION, DISCOVERY = "outcome", "failure", "decision", "discovery"
"""The tags of what a task leaves."""
NOTED_IMPORTANCE: Final = 0.6
"""Somebody thought it worth noting: a little more than what is remembered of itself."""
OUTCOME_CHARACTERS: Final = 2000
"""A longer result is a document: what it is about is in its beginning."""
QUESTION_CHARACTERS: Final = 4000
BECAUSE: Final = "\nBecause: "
SPARE: Final = 20
"""So many more are recalled than wanted: those of the task itself are left out."""

logger = logging.getLogger("holdfast")

_encode = msgspec.json.Encoder().encode


# -- from a task -------------------------------------------------------------------------------------


def leave(
    task: Shape, remember: Remember | None, *, result: bytes = b"null", failure: tuple[str, str] | None = None
) -> Script[None]:
    """Write what a task leaves to its agent's memory, once, however often its end is reached. `failure`: type and message."""
    session = task._held()
    state = session.state
    how = _wanted(task, remember)
    if how is False or state.agent is None:
        return
    if session.is_stale():
        yield Do(session.catch_up)  # who has lost the task has nothing to say
    if how is True:
        end = outcome_of(state, result) if failure is None else failure_of(state, *failure)
        left = [*notes_of(state), *end] if failure is None else end
    else:
        view = yield Do(task._viewing)
        ended = {"status": "finished", "result": decode(result)}
        if failure is not None:
            ended = {"status": "failed", "error": Failure(*failure)}
        left = given_by((yield from task._value(how, (msgspec.structs.replace(view, **ended),), {})), task)
    left = unless_recalled([redacted(session.log, one) for one in left], [*state.recalled, *session.recalled])
    yield from _leave(session, left, "finish" if failure is None else f"failure/{state.runs}")


def check(task: Shape, remember: Remember | None) -> None:
    """Refuse what cannot be done, before the work is."""
    if remember is not None:
        check_remember(remember)
    if callable(remember) and task._held().state.agent is None:
        raise _nobody(task._key)


def _wanted(task: Shape, remember: Remember | None) -> Remember:
    """What was said here; else by the agent that runs; else by the one that is registered."""
    if remember is None:
        remember = task._remember
    if remember is None:
        agent = registered.get(task._held().state.agent or "")
        remember = True if agent is None else agent.remember
    return remember


def notes_of(state: State) -> list[Said]:
    """Decisions and discoveries, in the order in which they were made."""
    noted = [*((DECISION, note) for note in state.decisions), *((DISCOVERY, note) for note in state.discoveries)]
    noted.sort(key=lambda each: each[1].version)
    return [
        Said(_noted(note), (tag,), NOTED_IMPORTANCE, _source(state.key), at=note.at, fact=True)
        for tag, note in noted
        if note.text.strip()
    ]


def outcome_of(state: State, result: bytes) -> list[Said]:
    """Goal and result. Nothing without a goal: a result alone says nothing to anybody else."""
    if state.goal is None:
        return []
    value = decode(result)
    shown = "done" if value is None else _cut(text_of(value), OUTCOME_CHARACTERS).strip() or "done"
    return [Said(f"{_cut(state.goal, OUTCOME_CHARACTERS)}\nOutcome: {shown}", (OUTCOME,), source=_source(state.key))]


def failure_of(state: State, type: str, message: str) -> list[Said]:
    """What was to be reached, and what went wrong."""
    goal = "" if state.goal is None else f"{_cut(state.goal, OUTCOME_CHARACTERS)}\n"
    shown = ": ".join(filter(None, (type, _cut(message.strip(), OUTCOME_CHARACTERS))))
    return [Said(f"{goal}Failed: {shown}", (FAILURE,), NOTED_IMPORTANCE, _source(state.key))]


def given_by(given: object, task: Shape) -> list[Said]:
    """What a user's function wants to be remembered."""
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise TypeError("the function of remember= gives a list of texts, or of dicts with what `remember` takes")
    items = [{"text": one} if isinstance(one, str) else one for one in given]
    now = _clock.time()
    return [said_in({"source": task, **one} if isinstance(one, Mapping) else one, now) for one in items]


def unless_recalled(left: Sequence[Said], recalled: Iterable[str]) -> list[Said]:
    """Without what the model was told from memory and only repeats: that says nothing new of it, not even that it is true."""
    told = [text for each in recalled for text in dict.fromkeys((each, each.partition(BECAUSE)[0]))]
    if not told:
        return list(left)
    from ._duplicates import same, signature  # with all that it knows of words: most tasks have no use for it

    known = list(map(signature, told))
    return [one for one in left if not any(same(signature(one.text), each) in ("same", "within") for each in known)]


def _noted(note: Noted) -> str:
    text = _cut(note.text.strip(), LONGEST // 4)
    return text if not note.why or not note.why.strip() else text + BECAUSE + _cut(note.why.strip(), LONGEST // 4)


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[:size]}… ({len(text) - size:,} more characters)"


# -- writing it once -----------------------------------------------------------------------------------


def _leave(session: Session, left: Sequence[Said], name: str) -> Script[None]:
    """Append what a task leaves. An earlier run may have done so, and been killed before the end of the task was recorded.

    If that run had come to another end, what it alone has left is forgotten again: only what is recorded counts.
    """
    space = _space(session.state)
    earlier: dict[str, str] = {}  # what such runs have left: text and id
    for number in count():
        append_id = f"task/{session.life}/{name}" + (f"/{number}" if number else "")
        gone = [said for text, said in earlier.items() if text not in {one.text for one in left}]
        if gone:
            gone = yield Call(_own, (_memory(session), gone), {})
        events = [NewEvent(FORGOTTEN, _encode(Forgotten(gone)))] if gone else []
        events += [NewEvent(REMEMBERED, _encode(one)) for one in left if one.text not in earlier]
        new = number == 0 and session.state.runs == 1  # nobody can have left anything
        if not events and (new or (yield Do(partial(ops.find, space, append_id))) is None):
            return
        try:
            if events and not (yield from _append(session, space, events, append_id, new_stamp())).duplicate:
                return
        except IdReused:
            logger.info("%s came to another end before, which was not recorded", session.key)
        yield Do(partial(_add_what_is_said, space, append_id, earlier))


def _append(session: Session, space: StreamKey, events: Sequence[NewEvent], id: str, stamp: Stamp) -> Script[Appended]:
    answer: Appended = yield Do(lambda: session.patiently(lambda: append_events(space, events, stamp, id=id)))
    return answer


def _add_what_is_said(space: StreamKey, id: str, earlier: dict[str, str]) -> Operation[None]:
    """What the append of that id has said and forgotten."""
    from ._following import _read as read_events

    found = yield from ops.find(space, id)
    after, last = (found.first - 1, found.last) if found is not None else (0, 0)
    while after < last and (page := (yield from read_events(space, after))):
        for happened in page[: last - after]:
            if isinstance(happened.event, Said):
                earlier[happened.event.text] = happened.id
            elif isinstance(happened.event, Forgotten):
                for text in [text for text, said in earlier.items() if said in happened.event.ids]:
                    del earlier[text]
        after = page[-1].version


def _own(memory: Memory, ids: Sequence[str]) -> list[str]:
    """Those that nobody else has said as well."""
    docs = memory._current().known(memory._key, ids, []).docs
    return [doc.id for doc in docs if doc.id in ids and doc.heard == 1]


# -- on the way ----------------------------------------------------------------------------------------


def remember(task: Shape, text: str, options: Mapping[str, Any]) -> Script[str]:
    """Remember something while the task runs, once for the task and what it says. The id of the memory."""
    from ._fold import Happened

    session = task._held()
    said = redacted(session.log, said_of(text, _clock.time(), **options, source=task))
    if session.state.agent is None:
        raise _nobody(task._key)
    session.check_here()
    if session.is_stale():
        yield Do(session.catch_up)
    space, memory = _space(session.state), _memory(session)
    content = msgspec.structs.replace(said, expires_at=None), options.get("ttl")
    append_id = f"task/{session.life}/remember/{fingerprint(session.salt, content, {})}"
    if session.opened_ended or said.expires_at is not None:  # then it is not to the byte what it was
        found = yield Do(lambda: ops.find(space, append_id))
        if found is not None:
            return str((yield Call(_named, (memory, found), {})))
        if session.replaying is None:
            session.check()
    stamp = new_stamp()
    appended = yield from _append(session, space, [NewEvent(REMEMBERED, _encode(said))], append_id, stamp)
    if appended.duplicate:
        return str((yield Call(_named, (memory, appended), {})))
    new = [Happened(0, id_texts(stamp.id, 1)[0], stamp.at, said)]
    [name] = yield Call(memory._names, (appended, new), {})
    return str(name)


def _named(memory: Memory, appended: Appended) -> str:
    """The id of the memory that an earlier append has become."""
    [stored] = ops.run(memory._log, ops.read(memory._key, after=appended.first - 1, limit=1))
    doc = memory._doc(stored.envelope.id)
    return stored.envelope.id if doc is None else doc.id


# -- back to a task ------------------------------------------------------------------------------------


def relevant_to(task: Shape, view: TaskView, most: int) -> list[Remembered]:
    """The memories of its agent that fit a task's goal, best first, but for its own: those are in its record.

    By the time of the record, not by the clock: the same task and the same memories give the same. Blocks.
    """
    if not most or view.agent is None or view.goal is None:
        return []
    space = stream_key(task._key.tenant, KIND, view.agent)
    if ops.run(task._log, ops.head(space)) is None:
        return []
    from ._memory import Memory

    memory, where = Memory(task._log, space, None), Where(now=view.updated_at.timestamp())
    own, now, wanted = source_name(task), _clock.time(), most + SPARE
    while True:
        hits = memory._recalled(view.goal[:QUESTION_CHARACTERS], where, wanted, 0.0, None)
        living = [hit for hit in hits if hit.expires_at is None or hit.expires_at.timestamp() > now]
        others = [hit for hit in living if hit.source != own]
        if len(others) >= most or len(hits) < wanted:
            return list(others[:most])
        wanted *= 4


def _memory(session: Session) -> Memory:
    from ._memory import Memory  # with its index: a task that only leaves something needs none

    return Memory(session.log, _space(session.state), None)


def _space(state: State) -> StreamKey:
    return stream_key(state.key.tenant, KIND, state.agent or "")


def _source(key: StreamKey) -> str:
    return f"{key.kind}/{key.id}"


def _nobody(key: StreamKey) -> ValueError:
    return ValueError(f"{key} has no agent, whose memory it would be; give it one: store.task(id, agent=…)")
