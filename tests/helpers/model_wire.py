"""The two wire formats of OpenAI's API: what a model says, as chat completions and as Responses,
whole or streamed.

Standard library only, Python 3.10 or newer: environments of other frameworks import it too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Body = dict[str, Any]
CREATED = 1_700_000_000


@dataclass(frozen=True)
class Call:
    """A tool call that the model makes. `arguments` given as text are sent as they are, valid JSON
    or not."""

    name: str
    arguments: dict[str, Any] | str

    @property
    def text(self) -> str:
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


@dataclass(frozen=True)
class Reply:
    """One answer of the model: text, tool calls (several are parallel calls), both, or an HTTP
    error."""

    text: str | None = None
    calls: Sequence[Call] = ()
    status: int = 200
    reasoning: bool = False
    """Responses only: begin with a reasoning item, without which the following item may not be sent
    back."""
    finish: str | None = None
    """Another reason to end than usual: "length", "content_filter", and for Responses "failed"."""
    cut_after: int | None = None
    """A stream breaks after so many pieces."""
    cleanly: bool = False
    """With `cut_after`: the connection is closed in order, as a proxy does, and nothing shows that
    there was more."""


class Refused(Exception):
    """The request is one that OpenAI answers with 400."""


def pieces(text: str) -> list[str]:
    """Text as it is streamed: word by word."""
    return re.findall(r"\S+\s*|\s+", text)


def messages_of(body: Body) -> list[Body]:
    """What a request shows to the model, whichever of the two formats it is in."""
    shown: str | list[Body] = body["messages"] if "messages" in body else body.get("input") or []
    return [{"role": "user", "content": shown}] if isinstance(shown, str) else shown


def check_chat(messages: Sequence[Body]) -> None:
    """Every call is answered right behind the message that makes it, and nothing else is
    answered."""
    if not messages:
        raise Refused(
            "Invalid 'messages': empty array. Expected an array with minimum length 1, but got "
            "none."
        )
    open_calls: set[str] = set()
    for message in messages:
        if message.get("role") == "tool":
            if message.get("tool_call_id") not in open_calls:
                raise Refused(
                    "messages with role 'tool' must be a response to a preceeding message with "
                    "'tool_calls'."
                )
            open_calls.remove(message["tool_call_id"])
        elif open_calls:
            break
        else:
            open_calls = {call["id"] for call in message.get("tool_calls") or ()}
            if not open_calls and all(
                message.get(key) is None for key in ("content", "refusal", "function_call")
            ):
                raise Refused("Invalid value for 'content': expected a string, got null.")
    if open_calls:
        raise Refused(
            "An assistant message with 'tool_calls' must be followed by tool messages for each "
            "tool_call_id."
        )


def check_items(items: Sequence[Body], reasoned: Mapping[str, str]) -> None:
    """Every call has its output behind it and the other way round; what was reasoned stays with
    what followed from it.

    `reasoned` names the reasoning item that belongs before an item.
    """
    calls: set[str] = set()
    outputs: set[str] = set()
    for item in items:
        if item.get("type") == "function_call":
            if item["call_id"] in calls:
                raise Refused("Duplicate function call.")
            calls.add(item["call_id"])
        elif item.get("type") == "function_call_output":
            if item["call_id"] not in calls - outputs:
                raise Refused("No tool call found for function call output.")
            outputs.add(item["call_id"])
    if calls - outputs:
        raise Refused("No tool output found for function call.")
    for item, following in zip(items, [*items[1:], None], strict=True):
        if (
            item.get("type") == "reasoning"
            and reasoned.get((following or {}).get("id", "")) != item["id"]
        ):
            raise Refused(
                "Item of type 'reasoning' was provided without its required following item."
            )
    for item, preceding in zip(items, [None, *items], strict=False):
        if item.get("id") in reasoned and (preceding or {}).get("id") != reasoned[item["id"]]:
            raise Refused("An item was provided without its required 'reasoning' item.")


# -- chat completions ------------------------------------------------------------------------------


def chat_completion(number: int, body: Body, reply: Reply) -> Body:
    """The whole answer."""
    calls = _chat_calls(number, reply)
    message: Body = {"role": "assistant", "content": reply.text, "refusal": None}
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "finish_reason": _why(reply), "logprobs": None}
    return {
        **_chat_head(number, body, "chat.completion"),
        "choices": [choice],
        "usage": _chat_usage(body),
    }


def chat_chunks(number: int, body: Body, reply: Reply) -> list[Body]:
    """The same in pieces: text by word, arguments of a call in two halves."""
    head = _chat_head(number, body, "chat.completion.chunk")

    def chunk(delta: Body, finish: str | None = None) -> Body:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    chunks = [chunk({"role": "assistant", "content": None if reply.text is None else ""})]
    chunks += [chunk({"content": piece}) for piece in pieces(reply.text or "")]
    for index, call in enumerate(_chat_calls(number, reply)):
        arguments = call["function"]["arguments"]
        half = len(arguments) // 2
        first = {**call, "function": {**call["function"], "arguments": arguments[:half]}}
        chunks.append(chunk({"tool_calls": [{"index": index, **first}]}))
        chunks.append(
            chunk({"tool_calls": [{"index": index, "function": {"arguments": arguments[half:]}}]})
        )
    chunks.append(chunk({}, _why(reply)))
    if (body.get("stream_options") or {}).get("include_usage"):
        chunks.append({**head, "choices": [], "usage": _chat_usage(body)})
    return chunks


def _why(reply: Reply) -> str:
    return reply.finish or ("tool_calls" if reply.calls else "stop")


def _chat_head(number: int, body: Body, kind: str) -> Body:
    return {"id": f"chatcmpl-{number}", "object": kind, "created": CREATED, "model": body["model"]}


def _chat_usage(body: Body) -> Body:
    shown = len(messages_of(body))
    return {"prompt_tokens": shown, "completion_tokens": 1, "total_tokens": shown + 1}


def _chat_calls(number: int, reply: Reply) -> list[Body]:
    return [
        {
            "id": f"call_{number}_{index}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.text},
        }
        for index, call in enumerate(reply.calls)
    ]


# -- Responses -------------------------------------------------------------------------------------


def response(number: int, body: Body, reply: Reply) -> Body:
    """The whole answer."""
    shown = len(messages_of(body))
    failed = (
        {"code": "server_error", "message": "as scripted"} if reply.finish == "failed" else None
    )
    reason = "max_output_tokens" if reply.finish == "length" else reply.finish
    incomplete = {"reason": reason} if reason and not failed else None
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": CREATED,
        "status": "failed" if failed else "incomplete" if incomplete else "completed",
        "model": body["model"],
        "output": [] if failed else _output(number, reply),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": body.get("tools") or [],
        "error": failed,
        "incomplete_details": incomplete,
        "instructions": body.get("instructions"),
        "metadata": {},
        "temperature": 1.0,
        "top_p": 1.0,
        "previous_response_id": body.get("previous_response_id"),
        "usage": {
            "input_tokens": shown,
            "output_tokens": 1,
            "total_tokens": shown + 1,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }


def response_events(number: int, body: Body, reply: Reply) -> list[Body]:
    """The same in pieces, numbered."""
    whole = response(number, body, reply)
    begun = {
        **whole,
        "status": "in_progress",
        "output": [],
        "usage": None,
        "incomplete_details": None,
        "error": None,
    }
    events: list[Body] = [
        {"type": f"response.{what}", "response": begun} for what in ("created", "in_progress")
    ]
    for index, item in enumerate(whole["output"]):
        events += _item_events(index, item)
    events.append({"type": f"response.{whole['status']}", "response": whole})
    return [{**event, "sequence_number": position} for position, event in enumerate(events)]


def _item_events(index: int, item: Body) -> list[Body]:
    place = {"output_index": index, "item_id": item["id"]}
    begun = dict(item)
    between: list[Body] = []
    if item["type"] == "message":
        begun.update(status="in_progress", content=[])
        [part] = item["content"]
        place["content_index"] = 0
        between.append(
            {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}
        )
        for piece in pieces(part["text"]):
            between.append(
                {"type": "response.output_text.delta", **place, "delta": piece, "logprobs": []}
            )
        between.append(
            {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []}
        )
        between.append({"type": "response.content_part.done", **place, "part": part})
    elif item["type"] == "function_call":
        begun.update(status="in_progress", arguments="")
        arguments = {"name": item["name"], "arguments": item["arguments"]}
        between.append(
            {"type": "response.function_call_arguments.delta", **place, "delta": item["arguments"]}
        )
        between.append({"type": "response.function_call_arguments.done", **place, **arguments})
    return [
        {"type": "response.output_item.added", "output_index": index, "item": begun},
        *between,
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]


def _output(number: int, reply: Reply) -> list[Body]:
    output: list[Body] = []
    if reply.reasoning:
        output.append({"type": "reasoning", "id": f"rs_{number}", "summary": []})
    if reply.text is not None:
        part = {"type": "output_text", "text": reply.text, "annotations": []}
        status = "incomplete" if reply.finish else "completed"
        message = {
            "type": "message",
            "id": f"msg_{number}",
            "role": "assistant",
            "status": status,
            "content": [part],
        }
        output.append(message)
    for index, call in enumerate(reply.calls):
        names = {
            "id": f"fc_{number}_{index}",
            "call_id": f"call_{number}_{index}",
            "name": call.name,
        }
        output.append(
            {"type": "function_call", **names, "arguments": call.text, "status": "completed"}
        )
    return output
