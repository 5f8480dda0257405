"""Anthropic's Messages API on the wire: what a model says, whole or streamed, and what it refuses.

Standard library only, like `model_wire`, whose `Reply` it sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from helpers.model_wire import Body, Refused, Reply, pieces

FINISH = {"length": "max_tokens"}


def check_turns(messages: Sequence[Body]) -> None:
    """Every call is answered in the next message, with all others of its message, and nothing else
    is answered."""
    if not messages:
        raise Refused("messages: at least one message is required")
    asked: set[str] = set()
    for index, message in enumerate(messages):
        blocks = blocks_of(message)
        if not blocks and index < len(messages) - 1:
            raise Refused(f"messages.{index}: all messages must have non-empty content")
        if message["role"] != "user" and index == 0:
            raise Refused("messages.0: must have role user; a system prompt is a parameter")
        answered = {b["tool_use_id"] for b in blocks if b["type"] == "tool_result"}
        if answered - asked:
            raise Refused(f"messages.{index}: unexpected `tool_use_id` in `tool_result` blocks")
        if asked - answered:
            raise Refused(f"messages.{index}: `tool_use` ids without `tool_result` blocks after")
        asked = {b["id"] for b in blocks if b["type"] == "tool_use"}
    if asked:
        raise Refused("`tool_use` ids were found without `tool_result` blocks immediately after")


def blocks_of(message: Body) -> list[Body]:
    """The content of a message, as blocks."""
    content = message.get("content") or []
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def results_in(message: Body) -> list[str]:
    """The texts of the tool results in a message."""
    return [
        "".join(part["text"] for part in blocks_of(block))
        for block in blocks_of(message)
        if block.get("type") == "tool_result"
    ]


def message(number: int, body: Body, reply: Reply) -> Body:
    """The whole answer."""
    content: list[Body] = []
    if reply.reasoning:
        content.append({"type": "thinking", "thinking": "Hmm.", "signature": f"sig_{number}"})
    if reply.text is not None:
        content.append({"type": "text", "text": reply.text})
    for index, call in enumerate(reply.calls):
        content.append(
            {
                "type": "tool_use",
                "id": f"toolu_{number}_{index}",
                "name": call.name,
                "input": call.arguments,
            }
        )
    usual = "tool_use" if reply.calls else "end_turn"
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": content,
        "stop_reason": FINISH.get(reply.finish, reply.finish) if reply.finish else usual,
        "stop_sequence": None,
        "usage": {"input_tokens": len(body["messages"]), "output_tokens": 1},
    }


def message_events(number: int, body: Body, reply: Reply) -> list[Body]:
    """The same in pieces: text by word, the input of a call in two halves."""
    whole = message(number, body, reply)
    start = {**whole, "content": [], "stop_reason": None}
    events: list[Body] = [{"type": "message_start", "message": start}]
    for index, block in enumerate(whole["content"]):
        begun, deltas = _in_pieces(block, reply)
        events.append({"type": "content_block_start", "index": index, "content_block": begun})
        events += [
            {"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas
        ]
        events.append({"type": "content_block_stop", "index": index})
    ending = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    events.append({"type": "message_delta", "delta": ending, "usage": {"output_tokens": 1}})
    return [*events, {"type": "message_stop"}]


def _in_pieces(block: Body, reply: Reply) -> tuple[Body, list[Body]]:
    if block["type"] == "text":
        return {**block, "text": ""}, [
            {"type": "text_delta", "text": piece} for piece in pieces(block["text"])
        ]
    if block["type"] == "thinking":
        return {**block, "thinking": "", "signature": ""}, [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": block["signature"]},
        ]
    text = next(call.text for call in reply.calls if call.arguments == block["input"])
    half = len(text) // 2
    return {**block, "input": {}}, [
        {"type": "input_json_delta", "partial_json": part}
        for part in ("", text[:half], text[half:])
    ]


def is_text_event(event: dict[str, Any]) -> bool:
    """Whether a streamed event is a piece of the answer's text."""
    return event.get("type") == "content_block_delta" and event["delta"]["type"] == "text_delta"
