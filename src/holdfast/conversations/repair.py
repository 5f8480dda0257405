"""What a provider would refuse in a history, and how to mend it without losing anything silently.

Each call needs its result and each result its call. In chat completions and at Anthropic the results of a message's
calls follow it at once; among Responses items they follow before the next user message. A reasoning item needs what it
led to. What is mended is told as a list of fixes, so that it can be stored beside the messages instead of over them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from .messages import (
    Message,
    as_text,
    calls,
    carries_more,
    is_item,
    is_output,
    is_reasoning,
    leave,
    missing_result,
    opens_exchange,
    results,
    take,
    tool_name,
)


class Insert(msgspec.Struct, frozen=True):
    """A message to put after the one at `after` (-1: before all); `source` is the index of the message it comes from."""

    after: int
    message: Message
    kind: str
    what: str
    source: int | None = None


class Replace(msgspec.Struct, frozen=True):
    """Another form of the message at `index`."""

    index: int
    message: Message
    kind: str
    what: str


class Remove(msgspec.Struct, frozen=True):
    """The message at `index` is to go: its content is elsewhere, or means nothing alone."""

    index: int
    kind: str
    what: str


Fix = Insert | Replace | Remove


class Placed(msgspec.Struct, frozen=True):
    """A message of a mended history: the index after or at which it stands, and that of the message it comes from.

    `as_stored` is False for what a fix put there.
    """

    at: int
    source: int | None
    message: Message
    as_stored: bool


class _Call:
    """A tool call, and where its result is: the index of the message and the position in it."""

    def __init__(self, index: int, id: str) -> None:
        self.index, self.id = index, id
        self.result: tuple[int, int] | None = None


class _Match:
    """Which result belongs to which call: the newest one before it of that id that has none yet.

    Ids repeat: many local models number their calls from one in every turn.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        self.calls: list[_Call] = []
        self.owner: dict[tuple[int, int], _Call] = {}
        self.unowned: dict[int, dict[int, str]] = defaultdict(
            dict
        )  # message -> position -> kind of fix
        waiting: dict[tuple[bool, str], list[_Call]] = {}
        for index, message in enumerate(messages):
            loose = is_item(message)
            for position, called in enumerate(results(message)):
                candidates = waiting.get((loose, called))
                if candidates:
                    call = candidates.pop()
                    call.result = (index, position)
                    self.owner[index, position] = call
                else:
                    self.unowned[index][position] = (
                        "orphan result" if candidates is None else "duplicate result"
                    )
            for called in calls(message):
                self.calls.append(_Call(index, called))
                waiting.setdefault((loose, called), []).append(self.calls[-1])


def pairs(messages: Sequence[Message]) -> list[tuple[int, int]]:
    """The indexes of calls and of their results."""
    return [(call.index, call.result[0]) for call in _Match(messages).calls if call.result]


def find_fixes(messages: Sequence[Message]) -> list[Fix]:
    """What a provider would refuse, as the fixes for it. None for a history that it accepts."""
    fixes = _fix_results(messages)
    fixes += [
        Remove(index, "empty answer", "an answer that says nothing")
        for index in _empty_answers(messages)
    ]
    placed = place(messages, fixes)
    for position in _dangling_reasoning([one.message for one in placed]):
        what = "a reasoning item without what it led to"
        fixes.append(Remove(placed[position].at, "dangling reasoning", what))
    return fixes


def apply_fixes(messages: Sequence[Message], fixes: Iterable[Fix]) -> list[Message]:
    """The history as the fixes make it."""
    return [one.message for one in place(messages, fixes)]


def place(messages: Sequence[Message], fixes: Iterable[Fix]) -> list[Placed]:
    """The history as the fixes make it, with where each message comes from."""
    inserts: dict[int, list[Placed]] = defaultdict(list)
    changed: dict[int, Message | None] = {}
    for fix in fixes:
        if isinstance(fix, Insert):
            inserts[fix.after].append(Placed(fix.after, fix.source, fix.message, False))
        else:
            changed[fix.index] = fix.message if isinstance(fix, Replace) else None
    placed = inserts.get(-1, [])[:]
    for index, message in enumerate(messages):
        now = changed.get(index, message)
        if now is not None:
            placed.append(Placed(index, index, now, now is message))
        placed += inserts.get(index, ())
    return placed


def _fix_results(messages: Sequence[Message]) -> list[Fix]:
    match = _Match(messages)
    anchors, settled = _anchors(messages, match)
    fixes: list[Fix] = []
    moved: dict[int, set[int]] = defaultdict(set)
    for call in match.calls:
        if call.result in settled:
            continue
        asked = messages[call.index]
        name = tool_name(asked, call.id)
        if call.result is None:
            what = f"a call of {name} has no result"
            fixes.append(
                Insert(anchors[call.index], missing_result(asked, call.id), "dangling call", what)
            )
        else:
            index, position = call.result
            moved[index].add(position)
            late = take(messages[index], {position})
            what = f"the result of a call of {name} came after other messages"
            fixes.append(Insert(anchors[call.index], late, "late result", what, index))
    for index in sorted(moved.keys() | match.unowned.keys()):
        fixes += _rewrite(index, messages[index], moved[index], match.unowned.get(index, {}))
    return fixes


def _rewrite(index: int, message: Message, moved: set[int], unowned: dict[int, str]) -> list[Fix]:
    """What becomes of a message whose results went to their calls, or have none and become text."""
    kind = next(iter(unowned.values()), "late result")
    what = {
        "late result": "a result that came after other messages: it was put after its call",
        "orphan result": "a result without its call: it was rewritten as text",
        "duplicate result": "a second result of the same call: it was rewritten as text",
    }[kind]
    rest = leave(message, moved | unowned.keys())
    text = as_text(take(message, unowned.keys())) if unowned else None
    if rest is None:
        return [Remove(index, kind, what) if text is None else Replace(index, text, kind, what)]
    fixes: list[Fix] = [Replace(index, rest, kind, what)]
    if text is not None:
        fixes.append(Insert(index, text, kind, what, index))
    return fixes


def _anchors(
    messages: Sequence[Message], match: _Match
) -> tuple[dict[int, int], set[tuple[int, int] | None]]:
    """For each message with calls, the index after which further results belong; and the results that are in place."""
    anchors: dict[int, int] = {}
    settled: set[tuple[int, int] | None] = set()
    barrier = _barriers(messages, match)
    for call in match.calls:
        if (
            call.result
            and is_item(messages[call.index])
            and barrier[call.index] == barrier[call.result[0]]
        ):
            settled.add(call.result)
    for start in dict.fromkeys(call.index for call in match.calls):
        end = start
        if is_item(messages[start]):
            while end + 1 < len(messages) and _is_call_item(messages[end + 1]):
                end += 1
            while (
                end + 1 < len(messages) and is_item(messages[end + 1]) and (end + 1, 0) in settled
            ):
                end += 1
        else:
            for index in range(start + 1, len(messages)):
                carried = range(len(results(messages[index])))
                own = [(index, n) for n in carried if _belongs(match, index, n, start)]
                if not own:
                    break
                settled.update(own)
                if len(own) < len(carried) or carries_more(messages[index]):
                    break  # what else it says has to stay behind all results, so more of them go before it
                end = index
        anchors[start] = end
    return anchors, settled


def _belongs(match: _Match, index: int, position: int, start: int) -> bool:
    owner = match.owner.get((index, position))
    return owner is not None and owner.index == start


def _barriers(messages: Sequence[Message], match: _Match) -> list[int]:
    """For each message how many user messages there are up to it, counting results that become such."""
    seen, found = 0, []
    for index, message in enumerate(messages):
        seen += opens_exchange(message) or index in match.unowned
        found.append(seen)
    return found


def _is_call_item(message: Message) -> bool:
    kind = message.get("type")
    return isinstance(kind, str) and kind.endswith("_call")


def _empty_answers(messages: Sequence[Message]) -> list[int]:
    """Answers in a chat with neither words nor calls, which a model that was cut short may give."""
    said = ("tool_calls", "function_call", "refusal", "audio", "parts", "type", "kind")
    return [
        index
        for index, message in enumerate(messages)
        if message.get("role") == "assistant"
        and message.get("content") is None
        and not any(map(message.get, said))
    ]


def _dangling_reasoning(messages: Sequence[Message]) -> list[int]:
    """Reasoning items that are not followed by something the model said or did."""
    found: list[int] = []
    belongs = False
    for index in range(len(messages) - 1, -1, -1):
        if not is_reasoning(messages[index]):
            belongs = is_output(messages[index])
        elif not belongs:
            found.append(index)
    return found[::-1]
