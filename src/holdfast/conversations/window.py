"""The part of a history that fits a token budget and that a provider accepts.

A history is cut between exchanges: a user's message and all that follows up to the next one. Within an exchange the
smallest piece is a unit: a call with its results, reasoning with what it led to, or a single message.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Any

from ..backends import StreamKey
from ..errors import BudgetExceeded, CorruptRecord
from ..log.codec.walk import SourcedList
from ..log.operations import Operation
from .entries import MessageEntry, MessageProblem
from .fold import ConversationFold, Marks
from .messages import (
    Message,
    calls,
    is_answer,
    is_instruction,
    is_item,
    is_output,
    is_reasoning,
    links,
    opens_exchange,
    results,
)
from .read import KnownConversation, learn, marks_at, newest, pinned_entries, scan, summary_at
from .repair import Insert, Placed, find_fixes, pairs, place
from .sources import Source
from .tokens import Counter


class NoPlaceToBegin(ValueError):
    """A window cannot begin anywhere in this part of a history: read further back."""


def unit_starts(messages: Sequence[Message]) -> list[int]:
    """The indexes at which a unit begins: there a history can be cut without tearing anything."""
    # Each unit opens after its first message and closes after its last; where none is open, one begins.
    steps = [0] * (len(messages) + 1)
    for first, last in [*pairs(messages), *_linked(messages)[0], *_reasoned(messages)]:
        steps[first + 1] += 1
        steps[last + 1] -= 1
    return [index for index, open_units in enumerate(accumulate(steps[:-1])) if not open_units]


def fit(
    tail: Sequence[Message],
    *,
    budget: int,
    count: Counter,
    whole: bool,
    system: Sequence[Message] = (),
    pins: Sequence[Message] = (),
    pinned: Collection[int] = (),
    summary: Message | None = None,
    covered: int = 0,
) -> list[Message]:
    """The newest messages of a history that fit the budget, with what must stay: never one that a provider refuses.

    `tail` is the newest messages, oldest first, and `whole` says that there are no others. What stays: `system`, the
    pinned messages before the tail (`pins`) and in it (`pinned`, by index), and in place of what is cut `summary`,
    which stands for all before the tail and for the first `covered` messages in it. The result is in that order, then
    the history from the cut. `BudgetExceeded` if not even the newest exchange fits; `NoPlaceToBegin` if the tail is
    not the whole and holds no beginning of an exchange: with more of it, there is one.
    """
    layout = _Layout(tail, whole, pins, pinned, covered if summary is not None else 0)
    if not layout.cuts:
        raise NoPlaceToBegin("no exchange begins in this part of the history: read further back")
    costs = [count(one.message) for one in layout.placed]
    kept = list(
        accumulate(
            (cost if stays else 0 for cost, stays in zip(costs, layout.stays, strict=True)),
            initial=0,
        )
    )
    total = list(accumulate(costs, initial=0))
    fixed = sum(map(count, system))
    with_summary = fixed + (count(summary) if summary is not None else 0)
    first_to_go = [*layout.stays, False].index(False)
    needed = 0
    for cut in layout.cuts:
        shortened = not whole or cut > first_to_go
        needed = (with_summary if shortened else fixed) + kept[cut] + total[-1] - total[cut]
        if needed <= budget:
            stayed = [
                one.message
                for one, stays in zip(layout.placed[:cut], layout.stays, strict=False)
                if stays
            ]
            middle = [summary] if summary is not None and shortened else []
            return [*system, *stayed, *middle, *(one.message for one in layout.placed[cut:])]
    raise BudgetExceeded(needed=needed, budget=budget)


class _Layout:
    """A mended history: what stays whatever is cut (`stays`), and where it may be cut (`cuts`, in ascending order)."""

    def __init__(
        self,
        tail: Sequence[Message],
        whole: bool,
        pins: Sequence[Message],
        pinned: Collection[int],
        covered: int,
    ) -> None:
        before = list(pins)
        while before and is_reasoning(before[-1]) and 0 not in pinned:
            before.pop()  # what it led to is not at hand
        first = len(before)
        messages = [*before, *tail]
        self.placed = place(messages, find_fixes(messages))
        mended = [one.message for one in self.placed]
        starts = unit_starts(mended)
        kept = {*range(first), *(first + index for index in pinned)}
        self.stays = _with_units(self.placed, starts, kept, whole)
        # Only a message that the user wrote opens an exchange, not a result that was rewritten as one: its exchange began before.
        opening = {
            index
            for index in starts
            if self.placed[index].as_stored and opens_exchange(mended[index])
        }
        cuts = {index for index in opening if self.placed[index].at >= first}
        if covered > 0:
            cuts.update(_after_summary(self.placed, starts, opening, first + covered))
        if whole:
            cuts.update(starts if not opening else (), (0,))
        else:
            # What names an item that is not here names one before the tail: it cannot be sent without it.
            cuts -= {*range(max(_linked(mended)[1], default=-1) + 1)}
        self.cuts = sorted(cuts)


def _with_units(
    placed: Sequence[Placed], starts: Sequence[int], kept: Collection[int], whole: bool
) -> list[bool]:
    """Which messages stay: those that are pinned, with the rest of their units, and the instructions that come first."""
    stays = [False] * len(placed)
    leading = whole
    for start, end in zip(starts, [*starts, len(placed)][1:], strict=True):
        unit = placed[start:end]
        leading = leading and all(is_instruction(one.message) for one in unit)
        if leading or any(one.source in kept for one in unit):
            stays[start:end] = [True] * (end - start)
    return stays


def _after_summary(
    placed: Sequence[Placed], starts: Sequence[int], opening: Collection[int], end: int
) -> list[int]:
    """Cuts inside the exchange in which the summary ends: it stands for how that exchange began."""
    found: list[int] = []
    for index in starts:
        if placed[index].at < end:
            continue
        if index in opening:
            break
        found.append(index)
        if not placed[index].as_stored:
            found.clear()  # a result whose call may be just before the tail
    return found


def _linked(messages: Sequence[Message]) -> tuple[list[tuple[int, int]], list[int]]:
    """Items that name each other, and those that name one that is not here."""
    opened: dict[str, int] = {}
    found: list[tuple[int, int]] = []
    lost: list[int] = []
    for index, message in enumerate(messages):
        opens, belongs = links(message)
        if opens is not None:
            opened[opens] = index
        if belongs in opened:
            found.append((opened[belongs], index))
        elif belongs is not None:
            lost.append(index)
    return found, lost


def _reasoned(messages: Sequence[Message]) -> list[tuple[int, int]]:
    """Reasoning with all that the model put out after it in the same turn."""
    found: list[tuple[int, int]] = []
    start: int | None = None
    for index, message in enumerate(messages):
        if is_reasoning(message):
            start = index if start is None else start
        elif not is_output(message):
            start = None
        if start is not None and index > start:
            found.append((start, index))
    return found


# Reading just as much of a conversation as fits a token budget, and what a provider would refuse in it.


def window(
    key: StreamKey, budget: int, system: Sequence[Message], count: Counter
) -> Operation[SourcedList]:
    """The newest messages that fit, with what must stay. Reads no further back than it has to."""
    known = yield from learn(key)
    fold = known.fold if known else ConversationFold()
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
    except (
        NoPlaceToBegin
    ):  # all of it was read, and there are not as many messages as its newest record says
        raise CorruptRecord(
            str(key), what="its newest record does not say how many messages there are"
        ) from None


def _fitted(
    key: StreamKey,
    known: KnownConversation | None,
    tail: list[MessageEntry],
    budget: int,
    system: Sequence[Message],
    count: Counter,
) -> Operation[SourcedList]:
    """What of these messages fits, with the pinned messages and the summary from before them."""
    fold = known.fold if known else ConversationFold()
    whole = len(tail) == fold.count
    marks = yield from marks_at(key, fold)
    summary = yield from summary_at(key, fold, marks)
    here = {entry.version for entry in tail}
    before = yield from pinned_entries(key, fold, [pin for pin in marks.pins if pin not in here])
    if any(
        calls(entry.message) or results(entry.message) or is_item(entry.message) for entry in before
    ):
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
    return next(
        (index + 1 for index, entry in enumerate(entries) if entry.version == marks.covers), 0
    )


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
