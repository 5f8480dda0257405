"""Messages for the tests of conversations."""

from __future__ import annotations

from typing import Any


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def call(*ids: str) -> dict[str, Any]:
    calls = [
        {"id": name, "type": "function", "function": {"name": "look", "arguments": "{}"}}
        for name in ids
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(id: str, text: str = "found") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": text}


SYSTEM = {"role": "system", "content": "Be brief."}


def one(message: Any) -> int:
    """A counter that makes a budget a number of messages."""
    return 1
