"""What AutoGen's saved states look like, what tells one team's from another's, and how to mend one.

States are JSON. A team's has a part for each participant, with what its agent knows (`agent_state`) and what was said since
it spoke (`message_buffer`), and one for the manager, with all that was said (`message_thread`) and who is next.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

State = dict[str, Any]
Message = dict[str, Any]


def is_state(document: Any) -> bool:
    """Whether this is what AutoGen's own `save_state` returns."""
    return (
        isinstance(document, dict)
        and isinstance(document.get("type"), str)
        and "version" in document
    )


def manager_of(state: Mapping[str, Any]) -> State:
    """The manager's part of a team's state; an empty one if this is no team."""
    return next(
        (part for part in state.get("agent_states", {}).values() if "message_thread" in part), {}
    )


def participants_of(state: Mapping[str, Any]) -> dict[str, State]:
    """The parts of those who speak."""
    return {
        name: part
        for name, part in state.get("agent_states", {}).items()
        if "message_buffer" in part
    }


def layout_of(state: Mapping[str, Any]) -> list[str]:
    """Who takes part and what kind of state each has, in order: a state fits where this is the same."""
    found = [f"{state.get('type', 'state')} {state.get('version', '')}".strip()]
    for name, part in state.get("agent_states", {}).items():
        found += [f"{name}: {kind}" for kind in layout_of(part.get("agent_state", part))]
    return found


def context_of(agent_state: Mapping[str, Any]) -> list[Message] | None:
    """What an agent shows its model, if it is one that keeps that."""
    context = agent_state.get("llm_context")
    messages = context.get("messages") if isinstance(context, dict) else None
    return messages if isinstance(messages, list) else None


# -- mending -------------------------------------------------------------------------------------------------------
#
# A state that was saved while somebody was speaking is not whole: what the speaker was given is in its context and in its
# buffer, so that it would be given it twice; the manager has moved on, so that the speaker would be left out; a tool call may
# have no result; and for some instants what was said has reached nobody, or only some. The thread says how it should be.


def repaired(
    state: Mapping[str, Any], as_seen: Callable[[Message], Sequence[Message]]
) -> tuple[State, list[str]]:
    """The state as it was before the turn that was under way, and what was wrong with it. One that is whole is left as it is.

    `as_seen` says how a message looks in a model's context. What a speaker had of its turn, like the results of its tools,
    it keeps; what it had said to nobody, and a call without a result, it has to say again.
    """
    mended = copy.deepcopy(dict(state))
    manager, parts = manager_of(mended), participants_of(mended)
    problems: list[str] = []
    if parts and all(context_of(part["agent_state"]) is not None for part in parts.values()):
        for name, part in parts.items():
            problems += _mend_participant(name, part, manager["message_thread"], as_seen)
        problems += _mend_manager(manager, list(parts))
    elif not parts and (context := context_of(mended)) and _calls(context[-1]):
        context.pop()
        problems.append("a tool call had no result")
    return mended, problems


def _mend_participant(
    name: str,
    part: State,
    thread: Sequence[Message],
    as_seen: Callable[[Message], Sequence[Message]],
) -> list[str]:
    own = max((at for at, message in enumerate(thread) if message["source"] == name), default=-1)
    heard = [message for message in thread[own + 1 :] if message["type"].endswith("Message")]
    given = [seen for message in heard for seen in as_seen(message)]
    context, buffer = context_of(part["agent_state"]) or [], part["message_buffer"]
    if not given and own < 0:
        return []
    begun = _begin_of_turn(
        context, thread, thread[own] if own >= 0 else None, may_have_ended=not buffer
    )
    problems = []
    if given and context[max(0, begun - len(given)) : begun] != given:  # its turn has not begun
        if len(buffer) < len(heard) and buffer == heard[: len(buffer)]:
            problems.append(f"{name} had not heard all")
            part["message_buffer"] = heard
        return problems
    if buffer:
        problems.append(f"{name} was given its messages twice")
        part["message_buffer"] = []
    if begun < len(context) and (_calls(context[-1]) or _is_text(context[-1])):
        problems.append(
            f"{name} had a {'call without a result' if _calls(context[-1]) else 'message nobody heard'}"
        )
        context.pop()
    return problems


_PLAIN = ("TextMessage", "ToolCallSummaryMessage", "HandoffMessage")
"""After these an agent's context ends with the text itself, or with no text at all; so a new text there can be told."""


def _begin_of_turn(
    context: Sequence[Message],
    thread: Sequence[Message],
    own: Message | None,
    *,
    may_have_ended: bool,
) -> int:
    """Where in a context the turn begins that the thread does not know of; its end if there is none.

    `own` is what the agent has last said. A text at the end of its context is another one if it says something else, or
    comes after tool calls that nobody knows of.
    """
    known = {call["id"] for message in thread for call in _calls(message)}
    end = len(context)
    if may_have_ended and end and _is_text(context[-1]):
        end -= 1
    at = end
    while at > 0:
        message = context[at - 1]
        ids = [call.get("id", call.get("call_id")) for call in _calls(message) or _results(message)]
        if message.get("type") != "SystemMessage" and (not ids or not known.isdisjoint(ids)):
            break
        at -= 1
    if end < len(context) and at == end and own is not None:
        is_new = own["type"] in _PLAIN and own.get("content") != context[-1]["content"]
        return at if is_new else len(context)
    return at


def _mend_manager(manager: State, names: Sequence[str]) -> list[str]:
    """Let the one be next who was when nobody spoke."""
    sources = [
        message["source"] for message in manager["message_thread"] if message["source"] in names
    ]
    if "next_speaker_index" in manager:
        following = (names.index(sources[-1]) + 1) % len(names) if sources else 0
        if manager["next_speaker_index"] != following:
            manager["next_speaker_index"] = following
            return [f"{names[following]} would have been left out"]
    if (
        manager.get("previous_speaker") is not None
        and manager["previous_speaker"] not in sources[-1:]
    ):
        manager["previous_speaker"] = sources[-1] if sources else None
        return ["the one who was to speak would have been left out"]
    return []


def _calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tool calls in a message of a context or of a thread."""
    content = message.get("content")
    is_calls = message.get("type") in ("AssistantMessage", "ToolCallRequestEvent") and isinstance(
        content, list
    )
    return content if is_calls else []  # type: ignore[return-value]


def _results(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    return message["content"] if message.get("type") == "FunctionExecutionResultMessage" else []


def _is_text(message: Mapping[str, Any]) -> bool:
    return message.get("type") == "AssistantMessage" and isinstance(message.get("content"), str)
