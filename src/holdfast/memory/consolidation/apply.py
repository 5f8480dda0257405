"""Apply proposals to a memory, each once, undo them, and forget memories with what they became.

A proposal is one event with an append id of its own, so applying it again after a crash finds the
first append. The fold ignores the event if its memories have changed in the meantime.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from ...backends import AppendResult, clock
from ...errors import IdReused
from ...log import operations as ops
from ...log.events import NewEvent, new_append_context
from ..arguments import MAX_TEXT_CHARS, redact_memory
from ..fold import MemoryEvent, is_removed, list_replaced, take_back
from ..model import CONSOLIDATED, RESTORED, Consolidated, Forgotten, MemoryDoc, Remembered, Restored
from ..search.catch_up import read_memory_events
from ..subjects import append_about, purge_index
from .find import is_open
from .proposals import Proposal, UndoResult

if TYPE_CHECKING:
    from ..memory import MemoryBase

UNDO_BATCH: Final = 200
"""How many proposals one append undoes."""

_encode = msgspec.json.Encoder().encode


def load_open(memory: MemoryBase, ids: Sequence[str], subject: str | None) -> list[MemoryDoc]:
    """Return those of the memories that are still recalled, and are about this subject."""
    now = clock.time()
    docs = {doc.id: doc for doc in memory._current_index().lookup(memory._key, ids, []).docs}
    found = [docs[name] for name in ids if name in docs]
    return [
        doc
        for doc in found
        if is_open(doc, now)
        and doc.subject == subject
        and (doc.expires_at is None or doc.expires_at > now)
    ]


def apply_proposal(
    memory: MemoryBase, proposal: Proposal, run: str, key: str, subject: str | None
) -> bool:
    """Apply a proposal, once for each `key`. Return False if its memories have changed.

    `run` is the id of the run, for `undo_run`.
    """
    if proposal.kind == "expire":
        purge_index(memory._log, memory._key)
        return True
    append_id = f"consolidate/{key}/{proposal.id}"
    found = ops.run(memory._log, ops.find_append(memory._key, append_id))
    if found is None:
        docs = load_open(memory, proposal.evidence, subject)
        if [doc.id for doc in docs] != list(proposal.evidence):
            return False
        found = _append(memory, _build_event(proposal, run, docs, subject), append_id, subject)
    return found is not None and _has_effect(memory, found, proposal)


def _build_event(
    proposal: Proposal, run: str, docs: Sequence[MemoryDoc], subject: str | None
) -> Consolidated:
    by = None
    if proposal.text is not None:
        by = Remembered(
            proposal.text[:MAX_TEXT_CHARS],
            importance=max(doc.importance for doc in docs),
            author=proposal.author or "model",
            subject=subject,
        )
    return Consolidated(
        run=run,
        proposal=proposal.id,
        kind=proposal.kind,
        evidence=proposal.evidence,
        closes=proposal.closes,
        keep=proposal.keep,
        by=by,
        subject=subject,
        reason=proposal.reason,
    )


def _append(
    memory: MemoryBase, event: Consolidated, append_id: str, subject: str | None
) -> AppendResult | None:
    payload, stamp = redact_memory(memory._log, event), new_append_context()
    new = NewEvent(CONSOLIDATED, _encode(payload))
    try:
        return ops.run_until_settled(
            memory._log, lambda: append_about(memory._key, [new], [subject], stamp, id=append_id)
        )
    except IdReused:  # another process, with the same run, has just applied it
        return ops.run(memory._log, ops.find_append(memory._key, append_id))


def _has_effect(memory: MemoryBase, appended: AppendResult, proposal: Proposal) -> bool:
    """Whether the fold has applied the event, and it was not undone since."""
    [stored] = ops.run(memory._log, ops.read(memory._key, after=appended.first - 1, limit=1))
    event = stored.envelope.id
    index = memory._current_index()
    docs = index.lookup(memory._key, [*proposal.evidence, event], []).docs
    return any(event in (doc.id, doc.superseded_by) or event in doc.summaries for doc in docs)


# -- undo ------------------------------------------------------------------------------------------


def undo_run(memory: MemoryBase, run: str) -> UndoResult:
    """Undo all proposals that a run has applied, the newest first. Doing it again does nothing."""
    applied = _list_applied(memory, run)
    docs = _load_affected(memory, list(applied.values()))
    events: list[tuple[Restored, str | None]] = []
    reopened: set[str] = set()
    left = 0
    for event in reversed(applied.values()):
        restored = _build_restored(event, docs, reopened)
        if restored is None:
            left += 1
        else:
            payload = event.payload
            assert isinstance(payload, Consolidated)
            events.append((restored, payload.subject))
            reopened.update(restored.ids)
    for start in range(0, len(events), UNDO_BATCH):
        _append_restored(memory, events[start : start + UNDO_BATCH])
    memory._current_index()
    return UndoResult(len(events), left)


def _append_restored(memory: MemoryBase, batch: Sequence[tuple[Restored, str | None]]) -> None:
    new = [NewEvent(RESTORED, _encode(restored)) for restored, _ in batch]
    subjects, stamp = [subject for _, subject in batch], new_append_context()
    append_id = f"undo/{batch[0][0].event}/{batch[-1][0].event}"
    try:
        ops.run_until_settled(
            memory._log, lambda: append_about(memory._key, new, subjects, stamp, id=append_id)
        )
    except IdReused:
        return  # another process has just undone it


def _list_applied(memory: MemoryBase, run: str) -> dict[str, MemoryEvent]:
    """Return the events of a run that have not been undone, by id, in the order of the log."""
    found: dict[str, MemoryEvent] = {}
    for event in read_all(memory):
        if isinstance(event.payload, Consolidated) and event.payload.run == run:
            found[event.id] = event
        elif isinstance(event.payload, Restored):
            found.pop(event.payload.event, None)
    return found


def read_all(memory: MemoryBase, after: int = 0) -> Iterator[MemoryEvent]:
    """Yield the events of a memory beyond a version."""
    while page := ops.run(memory._log, read_memory_events(memory._key, after)):
        yield from page
        after = page[-1].version


def _load_affected(memory: MemoryBase, events: Sequence[MemoryEvent]) -> dict[str, MemoryDoc]:
    ids: dict[str, None] = {}
    for event in events:
        if isinstance(event.payload, Consolidated):
            ids.update(dict.fromkeys((*event.payload.evidence, event.id)))
    index = memory._current_index()
    found = index.lookup(memory._key, list(ids), []).docs
    replaced = dict.fromkeys(name for doc in found for name in doc.replaced if name not in ids)
    found = [*found, *index.lookup(memory._key, list(replaced), []).docs]
    return {doc.id: doc for doc in found}


def _build_restored(
    event: MemoryEvent, docs: Mapping[str, MemoryDoc], reopened: Collection[str]
) -> Restored | None:
    """Return the event that undoes another one; None if what it made has changed since.

    `reopened` are the memories that were closed later, and are reopened before.
    """
    payload = event.payload
    assert isinstance(payload, Consolidated)
    made = event.id if payload.by is not None else payload.keep
    if made is not None and made not in docs:
        if payload.by is not None:
            return None
        made = None  # the memory that stood for the others is gone, so nothing is taken from it
    if made is not None and docs[made].superseded_by is not None and made not in reopened:
        return None
    touched = [
        name
        for name in payload.evidence
        if name in docs
        and (docs[name].superseded_by == event.id or event.id in docs[name].summaries)
    ]
    if not touched and payload.by is None:
        return None
    if made is not None and _stands_for_others(event, docs[made], docs, {*touched, *reopened}):
        return None
    return Restored(event.id, event.version, tuple(touched), made, payload.proposal)


def _stands_for_others(
    event: MemoryEvent, made: MemoryDoc, docs: Mapping[str, MemoryDoc], reopened: Collection[str]
) -> bool:
    """Whether to remove a memory would lose others: those that a later run closed in its favour."""
    closed = [docs[name] for name in reopened if name in docs]
    if take_back(made, event.version, closed) is not None:
        return False
    return not docs.keys().isdisjoint({*made.replaced} - {*list_replaced(closed)})


def plan_forgetting(
    memory: MemoryBase, docs: Sequence[MemoryDoc], source: str | None, tags: tuple[str, ...]
) -> list[Forgotten | Restored]:
    """Return the events that forget memories, or the parts of them with this source and tags.

    A text that was made from memories goes with each of them, and so does what was made from that
    text. What only the forgotten memories had closed is recalled again.
    """
    asked = Forgotten([doc.id for doc in docs], source, tags)
    made = _load_summaries(memory, docs)
    events: list[Forgotten | Restored] = [asked]
    if made:
        events.append(Forgotten(list(made)))
    removed = {doc.id: doc for doc in docs if is_removed(doc, asked)} | made
    return [*events, *_list_restored(memory, removed)]


def _load_summaries(memory: MemoryBase, docs: Iterable[MemoryDoc]) -> dict[str, MemoryDoc]:
    """Return all that was made from memories, and from what was made from them, and so on."""
    found: dict[str, MemoryDoc] = {}
    while names := {name for doc in docs for name in doc.summaries} - found.keys():
        docs = _load(memory, names)
        found |= {doc.id: doc for doc in docs}
    return found


def _list_restored(memory: MemoryBase, removed: Mapping[str, MemoryDoc]) -> list[Restored]:
    """Return the events that reopen what the removed memories stood for.

    Not for a removed memory that something else had replaced: that stands for them now.
    """
    standing = [doc for doc in removed.values() if doc.replaced or doc.evidence]
    names = {name for doc in standing for name in (*doc.replaced, *doc.evidence)}
    others = {doc.id: doc for doc in _load(memory, names - removed.keys())}
    closers = {doc.superseded_by for doc in (*others.values(), *standing)} - {None, *removed}
    kept = _find_kept(memory, closers, removed) if closers else {}
    restored = [(doc.id, doc.number, doc.evidence, doc) for doc in standing]
    restored += [(name, *rest) for name, rest in kept.items()]
    gone = {None, *removed, *kept}
    return [
        Restored(event, version, reopened)
        for event, version, ids, doc in restored
        if doc.superseded_by in gone and (reopened := tuple(name for name in ids if name in others))
    ]


def _find_kept(
    memory: MemoryBase, events: Collection[str | None], removed: Mapping[str, MemoryDoc]
) -> dict[str, tuple[int, tuple[str, ...], MemoryDoc]]:
    """Return those of the events that closed memories in favour of a removed one.

    Each with its version, what it closed, and the removed memory.
    """
    found = {}
    for event in read_all(memory, after=min(doc.number for doc in removed.values())):
        if event.id in events and isinstance(event.payload, Consolidated):
            keeper = removed.get(event.payload.keep or "")
            if keeper is not None:
                found[event.id] = event.version, event.payload.closes, keeper
    return found


def _load(memory: MemoryBase, ids: Iterable[str]) -> Sequence[MemoryDoc]:
    names = sorted(ids)
    return memory._current_index().lookup(memory._key, names, []).docs if names else ()
