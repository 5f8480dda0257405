"""Find what a provider would reject in a history, and fix it without losing content.

Each call needs its result and each result its call. In chat completions and for Anthropic, the
results of a message's calls must follow it immediately; Responses items only need them before the
next user message. A reasoning item needs its output. A repair is a list of fixes, so that it can be
stored in addition to the messages instead of changing them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from .messages import (
    Message,
    call_ids,
    drop_results,
    find_tool_name,
    has_other_content,
    is_output,
    is_reasoning,
    is_responses_item,
    keep_results,
    new_missing_result,
    opens_exchange,
    result_as_text,
    result_ids,
)


class Insert(msgspec.Struct, frozen=True):
    """A message to insert after index `after` (-1: at the start), made from the one at `source`."""

    after: int
    message: Message
    kind: str
    what: str
    source: int | None = None


class Replace(msgspec.Struct, frozen=True):
    """A replacement for the message at `index`."""

    index: int
    message: Message
    kind: str
    what: str


class Remove(msgspec.Struct, frozen=True):
    """Remove the message at `index`: its content is elsewhere, or means nothing on its own."""

    index: int
    kind: str
    what: str


Fix = Insert | Replace | Remove


class PlacedMessage(msgspec.Struct, frozen=True):
    """A message of a repaired history: at or after index `at`, made from the message at `source`.

    `as_stored` is False for messages that a fix inserted or replaced.
    """

    at: int
    source: int | None
    message: Message
    as_stored: bool


class _ToolCall:
    """A tool call, and its result: the index of the message and the position in it."""

    def __init__(self, index: int, id: str) -> None:
        self.index, self.id = index, id
        self.result: tuple[int, int] | None = None


class _CallMatcher:
    """Matches each result with the newest earlier call with its id that has no result yet.

    Ids repeat: many local models start numbering their calls again in every turn.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        self.calls: list[_ToolCall] = []
        self.owner: dict[tuple[int, int], _ToolCall] = {}
        self.unowned: dict[int, dict[int, str]] = defaultdict(
            dict
        )  # message -> position -> kind of fix
        waiting: dict[tuple[bool, str], list[_ToolCall]] = {}
        for index, message in enumerate(messages):
            loose = is_responses_item(message)
            for position, called in enumerate(result_ids(message)):
                candidates = waiting.get((loose, called))
                if candidates:
                    call = candidates.pop()
                    call.result = (index, position)
                    self.owner[index, position] = call
                else:
                    self.unowned[index][position] = (
                        "orphan result" if candidates is None else "duplicate result"
                    )
            for called in call_ids(message):
                self.calls.append(_ToolCall(index, called))
                waiting.setdefault((loose, called), []).append(self.calls[-1])


def pair_calls(messages: Sequence[Message]) -> list[tuple[int, int]]:
    """Return pairs of indexes: a message with a call, and the message with its result."""
    return [(call.index, call.result[0]) for call in _CallMatcher(messages).calls if call.result]


def find_fixes(messages: Sequence[Message]) -> list[Fix]:
    """Return fixes for everything that a provider would reject; none if it would accept all."""
    fixes = _fix_results(messages)
    fixes += [
        Remove(index, "empty answer", "an answer without content")
        for index in _find_empty_answers(messages)
    ]
    placed = place_messages(messages, fixes)
    for position in _find_dangling_reasoning([one.message for one in placed]):
        what = "a reasoning item without its output"
        fixes.append(Remove(placed[position].at, "dangling reasoning", what))
    return fixes


def apply_fixes(messages: Sequence[Message], fixes: Iterable[Fix]) -> list[Message]:
    """Return the repaired history."""
    return [one.message for one in place_messages(messages, fixes)]


def place_messages(messages: Sequence[Message], fixes: Iterable[Fix]) -> list[PlacedMessage]:
    """Return the repaired history, with the origin of each message."""
    inserts: dict[int, list[PlacedMessage]] = defaultdict(list)
    changed: dict[int, Message | None] = {}
    for fix in fixes:
        if isinstance(fix, Insert):
            inserts[fix.after].append(PlacedMessage(fix.after, fix.source, fix.message, False))
        else:
            changed[fix.index] = fix.message if isinstance(fix, Replace) else None
    placed = inserts.get(-1, [])[:]
    for index, message in enumerate(messages):
        now = changed.get(index, message)
        if now is not None:
            placed.append(PlacedMessage(index, index, now, now is message))
        placed += inserts.get(index, ())
    return placed


def _fix_results(messages: Sequence[Message]) -> list[Fix]:
    match = _CallMatcher(messages)
    anchors, settled = _find_anchors(messages, match)
    fixes: list[Fix] = []
    moved: dict[int, set[int]] = defaultdict(set)
    for call in match.calls:
        if call.result in settled:
            continue
        caller = messages[call.index]
        name = find_tool_name(caller, call.id)
        if call.result is None:
            what = f"a call of {name} has no result"
            fixes.append(
                Insert(
                    anchors[call.index], new_missing_result(caller, call.id), "dangling call", what
                )
            )
        else:
            index, position = call.result
            moved[index].add(position)
            late = keep_results(messages[index], {position})
            what = f"the result of a call of {name} came after other messages"
            fixes.append(Insert(anchors[call.index], late, "late result", what, index))
    for index in sorted(moved.keys() | match.unowned.keys()):
        fixes += _rewrite_message(
            index, messages[index], moved[index], match.unowned.get(index, {})
        )
    return fixes


def _rewrite_message(
    index: int, message: Message, moved: set[int], unowned: dict[int, str]
) -> list[Fix]:
    """Return the fixes for a message whose results were moved to their calls or become text."""
    kind = next(iter(unowned.values()), "late result")
    what = {
        "late result": "a result came after other messages: moved after its call",
        "orphan result": "a result has no call: rewritten as text",
        "duplicate result": "a call has a second result: rewritten as text",
    }[kind]
    rest = drop_results(message, moved | unowned.keys())
    text = result_as_text(keep_results(message, unowned.keys())) if unowned else None
    if rest is None:
        return [Remove(index, kind, what) if text is None else Replace(index, text, kind, what)]
    fixes: list[Fix] = [Replace(index, rest, kind, what)]
    if text is not None:
        fixes.append(Insert(index, text, kind, what, index))
    return fixes


def _find_anchors(
    messages: Sequence[Message], match: _CallMatcher
) -> tuple[dict[int, int], set[tuple[int, int] | None]]:
    """Return where to insert results for each message with calls, and the results in place."""
    anchors: dict[int, int] = {}
    settled: set[tuple[int, int] | None] = set()
    barrier = _count_user_messages(messages, match)
    for call in match.calls:
        if (
            call.result
            and is_responses_item(messages[call.index])
            and barrier[call.index] == barrier[call.result[0]]
        ):
            settled.add(call.result)
    for start in dict.fromkeys(call.index for call in match.calls):
        end = start
        if is_responses_item(messages[start]):
            while end + 1 < len(messages) and _is_call_item(messages[end + 1]):
                end += 1
            while (
                end + 1 < len(messages)
                and is_responses_item(messages[end + 1])
                and (end + 1, 0) in settled
            ):
                end += 1
        else:
            for index in range(start + 1, len(messages)):
                carried = range(len(result_ids(messages[index])))
                own = [(index, n) for n in carried if _belongs_to(match, index, n, start)]
                if not own:
                    break
                settled.update(own)
                if len(own) < len(carried) or has_other_content(messages[index]):
                    break  # its other content must follow all results: insert before it
                end = index
        anchors[start] = end
    return anchors, settled


def _belongs_to(match: _CallMatcher, index: int, position: int, start: int) -> bool:
    owner = match.owner.get((index, position))
    return owner is not None and owner.index == start


def _count_user_messages(messages: Sequence[Message], match: _CallMatcher) -> list[int]:
    """Return the number of user messages up to each message, including results that become one."""
    seen, found = 0, []
    for index, message in enumerate(messages):
        seen += opens_exchange(message) or index in match.unowned
        found.append(seen)
    return found


def _is_call_item(message: Message) -> bool:
    kind = message.get("type")
    return isinstance(kind, str) and kind.endswith("_call")


def _find_empty_answers(messages: Sequence[Message]) -> list[int]:
    """Return the chat answers with neither text nor calls, which an interrupted model may give."""
    contents = ("tool_calls", "function_call", "refusal", "audio", "parts", "type", "kind")
    return [
        index
        for index, message in enumerate(messages)
        if message.get("role") == "assistant"
        and message.get("content") is None
        and not any(map(message.get, contents))
    ]


def _find_dangling_reasoning(messages: Sequence[Message]) -> list[int]:
    """Return the reasoning items that no output of the model follows."""
    found: list[int] = []
    has_output = False
    for index in range(len(messages) - 1, -1, -1):
        if not is_reasoning(messages[index]):
            has_output = is_output(messages[index])
        elif not has_output:
            found.append(index)
    return found[::-1]
