"""Windows: the part of a history that fits a token budget and that a provider accepts.

A history is cut between exchanges. An exchange is a user's message and everything up to the next
one. The smallest piece of an exchange is a unit: a call with its results, reasoning with its
output, or a single message.
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
    call_ids,
    find_links,
    is_answer,
    is_instruction,
    is_output,
    is_reasoning,
    is_responses_item,
    opens_exchange,
    result_ids,
)
from .read import (
    ConversationSnapshot,
    load_snapshot,
    load_snapshot_at,
    read_marks,
    read_newest,
    read_pinned,
    read_summary,
    scan_live,
)
from .repair import Insert, PlacedMessage, find_fixes, pair_calls, place_messages
from .sources import ReadSource
from .tokens import Counter


class NoCutFound(ValueError):
    """A window cannot start anywhere in this part of a history: read further back."""


def find_unit_starts(messages: Sequence[Message]) -> list[int]:
    """Return the indexes at which units start: a history can be cut there."""
    # A unit opens after its first message and closes after its last. Where none is open, one
    # starts.
    steps = [0] * (len(messages) + 1)
    for first, last in [
        *pair_calls(messages),
        *_find_linked(messages)[0],
        *_find_reasoning_spans(messages),
    ]:
        steps[first + 1] += 1
        steps[last + 1] -= 1
    return [index for index, open_units in enumerate(accumulate(steps[:-1])) if not open_units]


def fit_window(
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
    """Return the newest messages that fit the budget, as a history that a provider accepts.

    `tail` has the newest messages, oldest first; `whole` means that there are no others. The result
    starts with `system`, the pinned messages before the tail (`pins`) and in it (`pinned`, by
    index) and, if messages were cut, `summary`, which covers everything before the tail and its
    first `covered` messages. Then comes the history from the cut.

    Raises `BudgetExceeded` if not even the newest exchange fits, and `NoCutFound` if no exchange
    starts in a tail that is not the whole history.
    """
    layout = _WindowLayout(tail, whole, pins, pinned, covered if summary is not None else 0)
    if not layout.cuts:
        raise NoCutFound("no exchange starts in this part of the history: read further back")
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
    first_cut = [*layout.stays, False].index(False)
    needed = 0
    for cut in layout.cuts:
        shortened = not whole or cut > first_cut
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


class _WindowLayout:
    """A repaired history: which messages always stay (`stays`), and possible `cuts`, ascending."""

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
            before.pop()  # its output is not in the window
        first = len(before)
        messages = [*before, *tail]
        self.placed = place_messages(messages, find_fixes(messages))
        repaired = [one.message for one in self.placed]
        starts = find_unit_starts(repaired)
        kept = {*range(first), *(first + index for index in pinned)}
        self.stays = _mark_kept(self.placed, starts, kept, whole)
        # Only a user's own message opens an exchange, not a result that was rewritten as one.
        opening = {
            index
            for index in starts
            if self.placed[index].as_stored and opens_exchange(repaired[index])
        }
        cuts = {index for index in opening if self.placed[index].at >= first}
        if covered > 0:
            cuts.update(_find_cuts_after_summary(self.placed, starts, opening, first + covered))
        if whole:
            cuts.update(starts if not opening else (), (0,))
        else:
            # An item that is linked to another one before the tail can't be sent without it.
            cuts -= {*range(max(_find_linked(repaired)[1], default=-1) + 1)}
        self.cuts = sorted(cuts)


def _mark_kept(
    placed: Sequence[PlacedMessage], starts: Sequence[int], kept: Collection[int], whole: bool
) -> list[bool]:
    """Return for each message whether it stays: pinned units and leading instructions do."""
    stays = [False] * len(placed)
    leading = whole
    for start, end in zip(starts, [*starts, len(placed)][1:], strict=True):
        unit = placed[start:end]
        leading = leading and all(is_instruction(one.message) for one in unit)
        if leading or any(one.source in kept for one in unit):
            stays[start:end] = [True] * (end - start)
    return stays


def _find_cuts_after_summary(
    placed: Sequence[PlacedMessage], starts: Sequence[int], opening: Collection[int], end: int
) -> list[int]:
    """Return cuts inside the exchange in which the summary ends: it covers the exchange's start."""
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


def _find_linked(messages: Sequence[Message]) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the pairs of linked items, and the items whose counterpart is not in the list."""
    opened: dict[str, int] = {}
    pairs: list[tuple[int, int]] = []
    unlinked: list[int] = []
    for index, message in enumerate(messages):
        opens, belongs_to = find_links(message)
        if opens is not None:
            opened[opens] = index
        if belongs_to in opened:
            pairs.append((opened[belongs_to], index))
        elif belongs_to is not None:
            unlinked.append(index)
    return pairs, unlinked


def _find_reasoning_spans(messages: Sequence[Message]) -> list[tuple[int, int]]:
    """Return pairs of a reasoning item and each output of the model after it in the same turn."""
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


# -- operations that read a window, an answer or the problems of a conversation --------------------


def read_window(
    key: StreamKey,
    budget: int,
    system: Sequence[Message],
    count: Counter,
    version: int | None = None,
) -> Operation[SourcedList]:
    """Return the newest messages that fit, and the ones that must stay; also as of a `version`.

    Reads only what is needed.
    """
    snapshot = yield from (
        load_snapshot(key) if version is None else load_snapshot_at(key, version)
    )
    fold = snapshot.fold if snapshot else ConversationFold()
    spent, opened = 0, False

    def enough(entry: MessageEntry) -> bool:
        # Read on past the budget to the start of the exchange: only whole exchanges are sent.
        nonlocal spent, opened
        spent += count(entry.message)
        opened = opened or opens_exchange(entry.message)
        return spent > budget and opened

    tail = (yield from scan_live(key, fold, enough=enough))[::-1] if snapshot else []
    try:
        return (yield from _fit_tail(key, snapshot, tail, budget, system, count))
    except NoCutFound:
        tail = (yield from scan_live(key, fold))[::-1]
    try:
        return (yield from _fit_tail(key, snapshot, tail, budget, system, count))
    except NoCutFound:  # everything was read, and the newest record has another count
        raise CorruptRecord(
            str(key), what="the message count of its newest record is wrong"
        ) from None


def _fit_tail(
    key: StreamKey,
    snapshot: ConversationSnapshot | None,
    tail: list[MessageEntry],
    budget: int,
    system: Sequence[Message],
    count: Counter,
) -> Operation[SourcedList]:
    """Fit these messages, with the pinned messages and the summary from before them."""
    fold = snapshot.fold if snapshot else ConversationFold()
    whole = len(tail) == fold.count
    marks = yield from read_marks(key, fold)
    summary = yield from read_summary(key, fold, marks)
    here = {entry.version for entry in tail}
    before = yield from read_pinned(key, fold, [pin for pin in marks.pins if pin not in here])
    if any(
        call_ids(entry.message) or result_ids(entry.message) or is_responses_item(entry.message)
        for entry in before
    ):
        # A pinned call, result or item needs its counterpart, so use the whole history.
        tail, before, whole = (yield from scan_live(key, fold))[::-1], [], True
    if system:
        # The caller's system prompt replaces the stored one.
        before, leading = _strip_prompt(before)
        if leading and not before and whole:
            tail, _ = _strip_prompt(tail)
    fitting = fit_window(
        [entry.message for entry in tail],
        budget=budget,
        count=count,
        whole=whole,
        system=system,
        pins=[entry.message for entry in before],
        pinned=[index for index, entry in enumerate(tail) if entry.version in marks.pins],
        summary=summary.message if summary else None,
        covered=count_covered(tail, marks),
    )
    others = [*before, summary] if summary else before
    source = None
    if snapshot is not None:
        messages, versions = [entry.message for entry in tail], [entry.version for entry in tail]
        source = ReadSource(key, snapshot, messages, versions, others)
    return SourcedList(fitting, source)


def count_covered(entries: Sequence[MessageEntry], marks: Marks) -> int:
    """Return how many of these messages the summary covers."""
    return next(
        (index + 1 for index, entry in enumerate(entries) if entry.version == marks.covers), 0
    )


def _strip_prompt(entries: list[MessageEntry]) -> tuple[list[MessageEntry], bool]:
    """Return the entries without their leading system messages, and whether none is left."""
    index = 0
    while index < len(entries) and is_instruction(entries[index].message):
        index += 1
    return entries[index:], index == len(entries)


def find_pending(key: StreamKey) -> Operation[MessageEntry | None]:
    """Return the user's message that has no answer yet."""
    snapshot = yield from load_snapshot(key)
    if snapshot is None:
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

    found = yield from scan_live(key, snapshot.fold, enough=enough)
    return found[-1] if found and decided and opens_exchange(found[-1].message) else None


def find_answer(key: StreamKey, version: int) -> Operation[MessageEntry | None]:
    """Return the model's final answer to the message at that version.

    Returns None if there is no answer yet, or the message is not live.
    """
    snapshot = yield from load_snapshot(key)
    if snapshot is None:
        return None
    found = yield from scan_live(key, snapshot.fold, enough=lambda entry: entry.version <= version)
    if not found or found[-1].version != version:
        return None
    answer: MessageEntry | None = None
    for entry in reversed(found[:-1]):
        if answer is not None and opens_exchange(entry.message):
            break  # the next exchange
        if is_answer(entry.message):
            answer = entry
        elif call_ids(entry.message) or result_ids(entry.message):
            answer = None  # the model continued after this answer
    return answer


def find_problems(key: StreamKey) -> Operation[list[MessageProblem]]:
    """Return the problems that a provider would reject, in order."""
    entries = yield from read_newest(key, (yield from load_snapshot(key)), None)
    return [problem for problem, _ in find_problem_fixes(entries)]


def find_problem_fixes(entries: Sequence[MessageEntry]) -> list[tuple[MessageProblem, Any]]:
    """Return the problems that a provider would reject in these messages, each with its fix."""
    found = []
    for fix in find_fixes([entry.message for entry in entries]):
        index = fix.after if isinstance(fix, Insert) else fix.index
        version = entries[index].version if index >= 0 else 0
        found.append((MessageProblem(version, fix.kind, fix.what), fix))
    return found
