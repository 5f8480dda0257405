"""The layout of AutoGen's saved states: read their parts, compare layouts, repair a state.

States are JSON. A team's state has a part for each participant, with the state of its agent
(`agent_state`) and the messages since its last turn (`message_buffer`), and a part for the manager,
with all messages (`message_thread`) and the next speaker.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

StateDict = dict[str, Any]
MessageDict = dict[str, Any]
ToContext = Callable[[MessageDict], Sequence[MessageDict]]
"""Returns the form that a message has in a model's context."""


def is_state(document: Any) -> bool:
    """Whether a document has the form that AutoGen's `save_state` returns."""
    return (
        isinstance(document, dict)
        and isinstance(document.get("type"), str)
        and "version" in document
    )


def find_manager(state: Mapping[str, Any]) -> StateDict:
    """Return the manager's part of a team's state; an empty dict for other states."""
    parts = state.get("agent_states", {}).values()
    return next((part for part in parts if "message_thread" in part), {})


def find_participants(state: Mapping[str, Any]) -> dict[str, StateDict]:
    """Return the participants' parts of a team's state, by name."""
    parts = state.get("agent_states", {}).items()
    return {name: part for name, part in parts if "message_buffer" in part}


def describe_layout(state: Mapping[str, Any]) -> list[str]:
    """Describe the participants and their kinds of state, in order.

    A state can be loaded into a team or agent with the same description.
    """
    layout = [f"{state.get('type', 'state')} {state.get('version', '')}".strip()]
    for name, part in state.get("agent_states", {}).items():
        inner = describe_layout(part.get("agent_state", part))
        layout += [f"{name}: {description}" for description in inner]
    return layout


def find_context(agent_state: Mapping[str, Any]) -> list[MessageDict] | None:
    """Return the messages of an agent's model context; None if its state has no context."""
    context = agent_state.get("llm_context")
    messages = context.get("messages") if isinstance(context, dict) else None
    return messages if isinstance(messages, list) else None


# -- repair ----------------------------------------------------------------------------------------
#
# A state that was saved during a turn is inconsistent. The speaker's new messages are both in its
# context and in its buffer, so it would get them twice. The manager has advanced, so the speaker
# would be skipped. A tool call may lack its result. And for a moment a new message has reached none
# or only some of the participants. The thread shows what the state should be.


def repair_state(state: Mapping[str, Any], to_context: ToContext) -> tuple[StateDict, list[str]]:
    """Return the state before the interrupted turn, and the problems found.

    A consistent state is returned unchanged. The speaker keeps what can be kept of its turn, like
    the results of its tools. It will repeat a message that no participant received, and a call
    without a result.
    """
    repaired = copy.deepcopy(dict(state))
    manager, parts = find_manager(repaired), find_participants(repaired)
    problems: list[str] = []
    if parts and all(find_context(part["agent_state"]) is not None for part in parts.values()):
        for name, part in parts.items():
            problems += _repair_participant(name, part, manager["message_thread"], to_context)
        problems += _repair_manager(manager, list(parts))
    elif not parts and (context := find_context(repaired)) and _get_calls(context[-1]):
        context.pop()
        problems.append("a tool call had no result")
    return repaired, problems


def _repair_participant(
    name: str, part: StateDict, thread: Sequence[MessageDict], to_context: ToContext
) -> list[str]:
    own = max((at for at, message in enumerate(thread) if message["source"] == name), default=-1)
    received = [message for message in thread[own + 1 :] if message["type"].endswith("Message")]
    expected = [entry for message in received for entry in to_context(message)]
    context, buffer = find_context(part["agent_state"]) or [], part["message_buffer"]
    if not expected and own < 0:
        return []
    last = thread[own] if own >= 0 else None
    start = _find_turn_start(context, thread, last, may_have_ended=not buffer)
    problems = []
    if expected and context[max(0, start - len(expected)) : start] != expected:
        # Its turn has not started.
        if len(buffer) < len(received) and buffer == received[: len(buffer)]:
            problems.append(f"{name} had not received all messages")
            part["message_buffer"] = received
        return problems
    if buffer:
        problems.append(f"{name} was given its messages twice")
        part["message_buffer"] = []
    if start < len(context):
        if _get_calls(context[-1]):
            problems.append(f"{name} had a call without a result")
            context.pop()
        elif _is_text(context[-1]):
            problems.append(f"{name} had a message that no participant received")
            context.pop()
    return problems


_TEXT_TYPES = ("TextMessage", "ToolCallSummaryMessage", "HandoffMessage")
"""After these, an agent's context ends with the same text or no text, so any other text is new."""


def _find_turn_start(
    context: Sequence[MessageDict],
    thread: Sequence[MessageDict],
    last: MessageDict | None,
    *,
    may_have_ended: bool,
) -> int:
    """Return where in a context the turn starts that is not in the thread.

    Returns the length of the context if there is no such turn. `last` is the agent's last message
    in the thread. A text at the end of the context is new if it differs from that message, or
    follows tool calls that are not in the thread.
    """
    known = {call["id"] for message in thread for call in _get_calls(message)}
    end = len(context)
    if may_have_ended and end and _is_text(context[-1]):
        end -= 1
    start = end
    while start > 0:
        message = context[start - 1]
        calls = _get_calls(message) or _get_results(message)
        ids = [call.get("id", call.get("call_id")) for call in calls]
        if message.get("type") != "SystemMessage" and (not ids or not known.isdisjoint(ids)):
            break
        start -= 1
    if end < len(context) and start == end and last is not None:
        is_new = last["type"] in _TEXT_TYPES and last.get("content") != context[-1]["content"]
        return start if is_new else len(context)
    return start


def _repair_manager(manager: StateDict, names: Sequence[str]) -> list[str]:
    """Restore the next speaker as it was before the interrupted turn."""
    sources = [
        message["source"] for message in manager["message_thread"] if message["source"] in names
    ]
    if "next_speaker_index" in manager:
        following = (names.index(sources[-1]) + 1) % len(names) if sources else 0
        if manager["next_speaker_index"] != following:
            manager["next_speaker_index"] = following
            return [f"{names[following]} would have been skipped"]
    previous = manager.get("previous_speaker")
    if previous is not None and previous not in sources[-1:]:
        manager["previous_speaker"] = sources[-1] if sources else None
        return ["the next speaker would have been skipped"]
    return []


def _get_calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tool calls in a message of a context or of a thread."""
    content = message.get("content")
    if message.get("type") in ("AssistantMessage", "ToolCallRequestEvent"):
        return content if isinstance(content, list) else []
    return []


def _get_results(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    return message["content"] if message.get("type") == "FunctionExecutionResultMessage" else []


def _is_text(message: Mapping[str, Any]) -> bool:
    return message.get("type") == "AssistantMessage" and isinstance(message.get("content"), str)
