"""The meaning of a message, in the three supported dialects.

- Chat completions: `role`, `content`, `tool_calls` answered by `role: "tool"`; the older
  `function_call` answered by `role: "function"`; and AutoGen's form, where one `role: "tool"`
  message has several `tool_responses`.
- Responses items: `type: "function_call"` and other types that end in `_call`, answered by the same
  type with `_output`. A call without a `call_id` was run by the provider and needs no answer.
- Anthropic: `tool_use` blocks in the assistant's content, answered by `tool_result` blocks in the
  user's.

A message is a plain JSON object; unknown fields are left alone. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from ..log.codec.walk import is_dataclass

Message = dict[str, Any]

INSTRUCTION_ROLES: Final = ("system", "developer")
INTERRUPTED: Final = (
    "This call was interrupted and no result was recorded. "
    "Whether it took effect is unknown; it may be retried if that is safe."
)
# A `computer_call` can only be answered by a screenshot: this is one transparent pixel.
_BLANK_IMAGE: Final = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
_SENDABLE_PARTS: Final = ("text", "image", "image_url", "document", "search_result")
_ONLY_TEXT: Final = frozenset((str,))
_EXPECTED: Final = (
    "a message must be a dict such as {'role': 'user', 'content': 'Hello'}, or a message object"
    " of an SDK (completion.choices[0].message, an item of response.output)"
)


def as_message(value: object) -> Message:
    """Return a message as a plain dict that a provider accepts."""
    message: Any = None
    if type(value) is dict and value and _ONLY_TEXT.issuperset(map(type, value.values())):
        return value.copy()
    if isinstance(value, Mapping):
        message = {key: _dump_nested(item) for key, item in value.items()}
    elif isinstance(value, type):
        raise TypeError(f"{_EXPECTED}, got a class")
    elif hasattr(value, "model_dump"):
        message = _dump(value)
        if message.get("object") == "chat.completion":
            raise TypeError(
                "a message must not be a whole completion; pass completion.choices[0].message"
            )
        if type(value).__name__ == "Choice":
            raise TypeError("a message must not be a Choice of a completion; pass choice.message")
        if message.get("object") == "response":
            raise TypeError("a message must not be a whole response; pass *response.output")
    elif isinstance(value, msgspec.Struct) or is_dataclass(value):
        message = msgspec.to_builtins(value)
    if not isinstance(message, dict):
        raise TypeError(f"{_EXPECTED}, got {type(value).__name__}")
    if not message:
        raise TypeError(f"{_EXPECTED}, got an empty one")
    return message


def call_ids(message: Message) -> list[str]:
    """Return the ids of a message's tool calls that need a result.

    The id of the older `function_call` is the name of its function.
    """
    kind = message.get("type")
    if isinstance(kind, str) and kind.endswith("_call"):
        return [message["call_id"]] if isinstance(message.get("call_id"), str) else []
    if message.get("role") != "assistant":
        return []
    found = [_text(call.get("id")) for call in _dicts(message.get("tool_calls"))]
    if isinstance(message.get("function_call"), dict):
        found.append(_text(message["function_call"].get("name")))
    return found + [_text(block.get("id")) for block in _blocks(message, "tool_use")]


def result_ids(message: Message) -> list[str]:
    """Return the ids of the tool calls that a message answers, in order."""
    kind, role = message.get("type"), message.get("role")
    if isinstance(kind, str) and (kind.endswith("_call_output") or kind == "tool_search_output"):
        answered = message.get("call_id")
        if answered is None and kind == "local_shell_call_output":
            answered = message.get("id")  # the only output that names its call in `id`
        return [answered] if isinstance(answered, str) else []
    if responses := _dicts(message.get("tool_responses")):
        return [_text(response.get("tool_call_id")) for response in responses]
    if role == "tool":
        return [_text(message.get("tool_call_id"))]
    if role == "function":
        return [_text(message.get("name"))]
    if role == "user":
        return [_text(block.get("tool_use_id")) for block in _blocks(message, "tool_result")]
    return []


def is_instruction(message: Message) -> bool:
    """Return whether a message is a system or developer message."""
    return message.get("role") in INSTRUCTION_ROLES


def opens_exchange(message: Message) -> bool:
    """Return whether a message is a user's, without tool results: a history may start with it."""
    return (
        message.get("role") == "user"
        and message.get("type") in (None, "message")
        and not result_ids(message)
    )


def is_reasoning(message: Message) -> bool:
    """Return whether a message is a reasoning item of the Responses API.

    Providers reject it without the item that followed it, and that item without the reasoning.
    """
    return message.get("type") == "reasoning"


def is_output(message: Message) -> bool:
    """Return whether a message is output of the model other than reasoning."""
    if message.get("role") is not None:
        return bool(message["role"] == "assistant")
    kind = message.get("type")
    return (
        isinstance(kind, str)
        and kind not in ("reasoning", "mcp_approval_response")
        and not result_ids(message)
    )


def is_answer(message: Message) -> bool:
    """Return whether a message is the assistant's answer: no tool calls, and no commentary."""
    if message.get("role") != "assistant" or message.get("type") not in (None, "message"):
        return False
    return not call_ids(message) and message.get("phase") != "commentary"


def is_responses_item(message: Message) -> bool:
    """Return whether a message is a Responses item.

    Its result need not follow its call immediately.
    """
    return isinstance(message.get("type"), str) and message.get("role") is None


def find_links(message: Message) -> tuple[str | None, str | None]:
    """Return the link that an item opens, and the link that it belongs to.

    Links connect items other than calls and results.
    """
    kind = message.get("type")
    if kind == "mcp_approval_request":
        return f"approval {message.get('id')}", None
    if kind in ("mcp_approval_response", "mcp_call") and isinstance(
        message.get("approval_request_id"), str
    ):
        return None, f"approval {message['approval_request_id']}"
    if kind == "program":
        return f"program {message.get('call_id')}", None
    if kind == "program_output":
        return None, f"program {message.get('call_id')}"
    return None, None


def find_tool_name(message: Message, call_id: str) -> str:
    """Return the name of the called tool, or the type of the call if it has none."""
    for call in _dicts(message.get("tool_calls")):
        if _text(call.get("id")) == call_id:
            for body in (call.get("function"), call.get("custom")):
                if isinstance(body, dict) and isinstance(body.get("name"), str):
                    return str(body["name"])
    if isinstance(message.get("function_call"), dict):
        return call_id
    for block in _blocks(message, "tool_use"):
        if _text(block.get("id")) == call_id and isinstance(block.get("name"), str):
            return str(block["name"])
    return _text(message.get("name")) or _text(message.get("type")) or "a tool"


def new_missing_result(message: Message, call_id: str) -> Message:
    """Return a message with a result for an interrupted call that has none."""
    kind = message.get("type")
    if isinstance(kind, str) and kind.endswith("_call"):
        return _new_missing_output(kind, call_id)
    if any(_text(block.get("id")) == call_id for block in _blocks(message, "tool_use")):
        block = {
            "type": "tool_result",
            "tool_use_id": call_id,
            "content": INTERRUPTED,
            "is_error": True,
        }
        return {"role": "user", "content": [block]}
    if not any(_text(call.get("id")) == call_id for call in _dicts(message.get("tool_calls"))):
        return {"role": "function", "name": call_id, "content": INTERRUPTED}
    return {"role": "tool", "tool_call_id": call_id, "content": INTERRUPTED}


def _new_missing_output(kind: str, call_id: str) -> Message:
    output: Any = INTERRUPTED
    if kind == "tool_search_call":
        return {
            "type": "tool_search_output",
            "call_id": call_id,
            "execution": "client",
            "tools": [],
        }
    if kind == "local_shell_call":
        return {"type": "local_shell_call_output", "id": call_id, "output": INTERRUPTED}
    if kind == "apply_patch_call":
        return {
            "type": "apply_patch_call_output",
            "call_id": call_id,
            "status": "failed",
            "output": INTERRUPTED,
        }
    if kind == "shell_call":
        output = [
            {"stdout": "", "stderr": INTERRUPTED, "outcome": {"type": "exit", "exit_code": 1}}
        ]
    elif kind == "computer_call":
        output = {"type": "computer_screenshot", "image_url": _BLANK_IMAGE}
    return {"type": f"{kind}_output", "call_id": call_id, "output": output}


def keep_results(message: Message, positions: Collection[int]) -> Message:
    """Return the message with only the results at these positions, and nothing else."""
    if responses := _dicts(message.get("tool_responses")):
        kept = [response for index, response in enumerate(responses) if index in positions]
        return {**message, "role": "tool", "content": _join_contents(kept), "tool_responses": kept}
    blocks = _blocks(message, "tool_result") if message.get("role") == "user" else []
    if blocks:
        return {
            **message,
            "content": [block for index, block in enumerate(blocks) if index in positions],
        }
    return message


def drop_results(message: Message, positions: Collection[int]) -> Message | None:
    """Return the message without the results at these positions; None if nothing remains."""
    if responses := _dicts(message.get("tool_responses")):
        kept = [response for index, response in enumerate(responses) if index not in positions]
        if message.get("role") == "tool":
            return (
                {**message, "content": _join_contents(kept), "tool_responses": kept}
                if kept
                else None
            )
        rest = {key: value for key, value in message.items() if key != "tool_responses"}
        return {**rest, "tool_responses": kept} if kept else rest
    blocks = _blocks(message, "tool_result") if message.get("role") == "user" else []
    if blocks:
        index = -1
        content = []
        for block in message["content"]:
            index += _is_result(block)
            if not _is_result(block) or index not in positions:
                content.append(block)
        return {**message, "content": content} if content else None
    return None


def has_other_content(message: Message) -> bool:
    """Return whether a message with results has other content too."""
    if _dicts(message.get("tool_responses")):
        return message.get("role") != "tool"
    content = message.get("content")
    return message.get("role") == "user" and len(content or ()) > len(
        _blocks(message, "tool_result")
    )


def result_as_text(message: Message) -> Message:
    """Return a tool result that has no call as a user's message with the same content."""
    kind = message.get("type")
    if isinstance(kind, str) and message.get("role") is None:
        body = message.get("output") if "output" in message else message.get("tools")
        return _result_message(result_ids(message), body, "input_text")
    if responses := _dicts(message.get("tool_responses")):
        own = message.get("content") if message.get("role") != "tool" else None
        texts = [_join_contents(responses), *([own] if isinstance(own, str) else [])]
        return _result_message(result_ids(message), "\n\n".join(texts), "text")
    if message.get("role") == "user":
        blocks: list[Any] = []
        for block in message["content"]:
            if _is_result(block):
                ids = [_text(block.get("tool_use_id"))]
                content = _result_message(ids, block.get("content"), "text")["content"]
                blocks += (
                    [{"type": "text", "text": content}] if isinstance(content, str) else content
                )
            else:
                blocks.append(block)
        return {"role": "user", "content": blocks}
    return _result_message(result_ids(message), message.get("content"), "text")


def _result_message(ids: Sequence[str], body: object, text: str) -> Message:
    named = ", ".join(filter(None, ids))
    intro = f"Result of the tool call {named}:" if named else "Result of a tool call:"
    if isinstance(body, dict) and body.get("type") == "computer_screenshot":
        body = [
            {
                "type": "input_image",
                **{key: body[key] for key in ("image_url", "file_id") if key in body},
            }
        ]
    if (
        isinstance(body, list)
        and body
        and all(isinstance(part, dict) and _is_sendable(part) for part in body)
    ):
        return {"role": "user", "content": [{"type": text, "text": intro}, *body]}
    return {"role": "user", "content": f"{intro}\n{_to_text(body)}"}


def _is_sendable(part: Message) -> bool:
    kind = part.get("type")
    return isinstance(kind, str) and (kind.startswith("input_") or kind in _SENDABLE_PARTS)


def _dump(value: Any) -> Any:
    """Return what the OpenAI SDK sends for an object: all set fields except parsed ones."""
    exclude = getattr(value, "__api_exclude__", None)
    if type(value).__name__.startswith("ParsedChatCompletionMessage"):
        exclude = {"parsed": True, "tool_calls": {"__all__": {"function": {"parsed_arguments"}}}}
    elif type(value).__name__ == "ParsedFunctionToolCall":
        exclude = {"function": {"parsed_arguments"}}
    return value.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude=exclude)


def _dump_nested(value: Any) -> Any:
    """Dump SDK objects in a dict, as in {"role": "assistant", "tool_calls": message.tool_calls}."""
    if isinstance(value, list):
        return [_dump(item) if hasattr(item, "model_dump") else item for item in value]
    return _dump(value) if hasattr(value, "model_dump") else value


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _dicts(value: object) -> list[Message]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _blocks(message: Message, kind: str) -> list[Message]:
    return [block for block in _dicts(message.get("content")) if block.get("type") == kind]


def _is_result(block: object) -> bool:
    return isinstance(block, dict) and block.get("type") == "tool_result"


def _join_contents(responses: Sequence[Message]) -> str:
    return "\n\n".join(_to_text(response.get("content")) for response in responses)


def _to_text(value: object) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()
