"""Reading just as much of a conversation as fits a token budget, and what a provider would refuse in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._codec_walk import SourcedList
from .._operations import Operation
from ..backends import StreamKey
from ..errors import CorruptRecord
from ._entries import MessageEntry, MessageProblem
from ._fold import Fold, Marks
from ._messages import Message, calls, is_answer, is_instruction, is_item, is_reasoning, opens_exchange, results
from ._reading import Known, learn, marks_at, newest, pinned_entries, scan, summary_at
from ._repairing import Insert, find_fixes
from ._sources import Source
from ._tokens import Counter
from ._window import NoPlaceToBegin, fit


def window(key: StreamKey, budget: int, system: Sequence[Message], count: Counter) -> Operation[SourcedList]:
    """The newest messages that fit, with what must stay. Reads no further back than it has to."""
    known = yield from learn(key)
    fold = known.fold if known else Fold()
    spent, opened = 0, False

    def enough(entry: MessageEntry) -> bool:
        # On past the budget to where the exchange begins: only whole exchanges are sent.
        nonlocal spent, opened
        spent += count(entry.message)
        opened = opened or opens_exchange(entry.message)
        return spent > budget and opened

    tail = (yield from scan(key, fold, enough=enough))[::-1] if known else []
    try:
        return (yield from _fitted(key, known, tail, budget, system, count))
    except NoPlaceToBegin:
        tail = (yield from scan(key, fold))[::-1]
    try:
        return (yield from _fitted(key, known, tail, budget, system, count))
    except NoPlaceToBegin:  # all of it was read, and there are not as many messages as its newest record says
        raise CorruptRecord(str(key), what="its newest record does not say how many messages there are") from None


def _fitted(
    key: StreamKey,
    known: Known | None,
    tail: list[MessageEntry],
    budget: int,
    system: Sequence[Message],
    count: Counter,
) -> Operation[SourcedList]:
    """What of these messages fits, with the pinned messages and the summary from before them."""
    fold = known.fold if known else Fold()
    whole = len(tail) == fold.count
    marks = yield from marks_at(key, fold)
    summary = yield from summary_at(key, fold, marks)
    here = {entry.version for entry in tail}
    before = yield from pinned_entries(key, fold, [pin for pin in marks.pins if pin not in here])
    if any(calls(entry.message) or results(entry.message) or is_item(entry.message) for entry in before):
        # A pinned half of something needs its other half: no part of the history is to look as if it had not happened.
        tail, before, whole = (yield from scan(key, fold))[::-1], [], True
    if system:
        # The caller's system prompt takes the place of the stored one.
        before, leading = _without_prompt(before)
        if leading and not before and whole:
            tail, _ = _without_prompt(tail)
    fitting = fit(
        [entry.message for entry in tail],
        budget=budget,
        count=count,
        whole=whole,
        system=system,
        pins=[entry.message for entry in before],
        pinned=[index for index, entry in enumerate(tail) if entry.version in marks.pins],
        summary=summary.message if summary else None,
        covered=places_covered(tail, marks),
    )
    others = [*before, summary] if summary else before
    return SourcedList(fitting, Source(key, known, tail, others) if known else None)


def places_covered(entries: Sequence[MessageEntry], marks: Marks) -> int:
    """How many of these messages the summary stands for."""
    return next((index + 1 for index, entry in enumerate(entries) if entry.version == marks.covers), 0)


def _without_prompt(entries: list[MessageEntry]) -> tuple[list[MessageEntry], bool]:
    """The entries without the system messages they begin with; whether anything else may be left before what follows."""
    index = 0
    while index < len(entries) and is_instruction(entries[index].message):
        index += 1
    return entries[index:], index == len(entries)


def pending(key: StreamKey) -> Operation[MessageEntry | None]:
    """The user's message that has no answer yet."""
    known = yield from learn(key)
    if known is None:
        return None
    decided = False

    def enough(entry: MessageEntry) -> bool:
        nonlocal decided
        if not decided and (is_instruction(entry.message) or is_reasoning(entry.message)):
            return False
        if not decided and is_answer(entry.message):
            return True
        decided = True
        return opens_exchange(entry.message)

    found = yield from scan(key, known.fold, enough=enough)
    return found[-1] if found and decided and opens_exchange(found[-1].message) else None


def answer(key: StreamKey, version: int) -> Operation[MessageEntry | None]:
    """What the model said in the end to the message of that version; None if it has not, or if that is no live message."""
    known = yield from learn(key)
    if known is None:
        return None
    found = yield from scan(key, known.fold, enough=lambda entry: entry.version <= version)
    if not found or found[-1].version != version:
        return None
    said: MessageEntry | None = None
    for entry in reversed(found[:-1]):
        if said is not None and opens_exchange(entry.message):
            break  # that was it: what follows is about something else
        if is_answer(entry.message):
            said = entry
        elif calls(entry.message) or results(entry.message):
            said = None  # it went on after that
    return said


def problems(key: StreamKey) -> Operation[list[MessageProblem]]:
    """What a provider would refuse, in order."""
    entries = yield from newest(key, (yield from learn(key)), None)
    return [problem for problem, _ in troubles(entries)]


def troubles(entries: Sequence[MessageEntry]) -> list[tuple[MessageProblem, Any]]:
    """What a provider would refuse in these messages, each with the fix for it."""
    found = []
    for fix in find_fixes([entry.message for entry in entries]):
        index = fix.after if isinstance(fix, Insert) else fix.index
        version = entries[index].version if index >= 0 else 0
        found.append((MessageProblem(version, fix.kind, fix.what), fix))
    return found
