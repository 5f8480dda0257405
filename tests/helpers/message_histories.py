"""Histories in every dialect, whole and damaged, and a strict judge of them that knows nothing of
the library."""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from typing import Any

from hypothesis import strategies as st

Message = dict[str, Any]

DIALECTS = ("chat", "functions", "autogen", "responses", "anthropic")


class Writer:
    """Writes one history. Every message carries a label of its own, by which it is found again."""

    def __init__(self, draw: st.DrawFn, dialect: str) -> None:
        self.draw, self.dialect = draw, dialect
        self.messages: list[Message] = []
        self.labels = 0
        self.numbered = 0
        self.repeats = draw(st.booleans())  # local models number their calls from one in every turn

    def label(self) -> str:
        self.labels += 1
        return f"<{self.labels}>"

    def call_id(self) -> str:
        self.numbered += 1
        return f"call_{self.numbered}"

    def exchange(self) -> None:
        if self.repeats:
            self.numbered = 0
        self.messages.append({"role": "user", "content": f"question {self.label()}"})
        for _ in range(self.draw(st.integers(0, 3))):
            self.step()
        if self.draw(st.booleans()):
            self.answer()

    def step(self) -> None:
        count = self.draw(st.integers(1, 3)) if self.dialect != "functions" else 1
        ids = [self.call_id() for _ in range(count)]
        order = self.draw(st.permutations(ids))
        getattr(self, f"step_{self.dialect}")(ids, order)

    def answer(self) -> None:
        if self.dialect == "responses":
            thought = self.maybe_reason()
            part = {"type": "output_text", "text": f"answer {self.label()}"}
            self.messages.append(
                {"type": "message", "role": "assistant", "content": [part], **thought}
            )
        elif self.dialect == "anthropic":
            block = {"type": "text", "text": f"answer {self.label()}"}
            self.messages.append({"role": "assistant", "content": [block]})
        else:
            self.messages.append({"role": "assistant", "content": f"answer {self.label()}"})

    def step_chat(self, ids: list[str], order: list[str]) -> None:
        calls = [
            {
                "id": name,
                "type": "function",
                "function": {"name": "look", "arguments": f'{{"q": "{self.label()}"}}'},
            }
            for name in ids
        ]
        self.messages.append({"role": "assistant", "content": None, "tool_calls": calls})
        for name in order:
            self.messages.append(
                {"role": "tool", "tool_call_id": name, "content": f"found {self.label()}"}
            )

    def step_functions(self, ids: list[str], order: list[str]) -> None:
        body = {"name": ids[0], "arguments": f'{{"q": "{self.label()}"}}'}
        self.messages.append({"role": "assistant", "content": None, "function_call": body})
        self.messages.append(
            {"role": "function", "name": ids[0], "content": f"found {self.label()}"}
        )

    def step_autogen(self, ids: list[str], order: list[str]) -> None:
        self.step_chat(ids, [])
        responses = [
            {"tool_call_id": name, "role": "tool", "content": f"found {self.label()}"}
            for name in order
        ]
        content = "\n\n".join(str(response["content"]) for response in responses)
        self.messages.append(
            {"role": "tool", "content": content, "tool_responses": responses, "name": "user"}
        )

    def step_responses(self, ids: list[str], order: list[str]) -> None:
        thought = self.maybe_reason()
        if self.draw(st.booleans()):
            self.messages.append(
                {
                    "type": "web_search_call",
                    "id": f"ws {self.label()}",
                    "status": "completed",
                    **thought,
                }
            )
        for name in ids:
            arguments = f'{{"q": "{self.label()}"}}'
            call = {
                "type": "function_call",
                "call_id": name,
                "name": "look",
                "arguments": arguments,
            }
            self.messages.append({**call, **thought})
        for name in order:
            self.messages.append(
                {"type": "function_call_output", "call_id": name, "output": f"found {self.label()}"}
            )

    def step_anthropic(self, ids: list[str], order: list[str]) -> None:
        uses = [
            {"type": "tool_use", "id": name, "name": "look", "input": {"q": self.label()}}
            for name in ids
        ]
        self.messages.append(
            {"role": "assistant", "content": [{"type": "text", "text": self.label()}, *uses]}
        )
        blocks: list[Message] = [
            {"type": "tool_result", "tool_use_id": name, "content": f"found {self.label()}"}
            for name in order
        ]
        if self.draw(st.booleans()):
            blocks.append({"type": "text", "text": f"and hurry {self.label()}"})
        self.messages.append({"role": "user", "content": blocks})

    def maybe_reason(self) -> Message:
        """A reasoning item, and the mark of what the model put out after it."""
        if not self.draw(st.booleans()):
            return {}
        label = self.label()
        self.messages.append({"type": "reasoning", "id": f"rs {label}", "summary": []})
        return {"thought": label}


@st.composite
def whole_histories(draw: st.DrawFn, dialects: tuple[str, ...] = DIALECTS) -> list[Message]:
    """Histories that a provider accepts."""
    writer = Writer(draw, draw(st.sampled_from(dialects)))
    if draw(st.booleans()):
        writer.messages.append({"role": "system", "content": f"be kind {writer.label()}"})
    for _ in range(draw(st.integers(1, 4))):
        writer.exchange()
        if draw(st.integers(0, 5)) == 0:
            writer.messages.append({"role": "system", "content": f"by the way {writer.label()}"})
    return writer.messages


@st.composite
def damaged_histories(draw: st.DrawFn, dialects: tuple[str, ...] = DIALECTS) -> list[Message]:
    """The same after crashes, lost writes, doubled writes and careless editing."""
    messages = copy.deepcopy(draw(whole_histories(dialects)))
    for _ in range(draw(st.integers(0, 4))):
        if not messages:
            break
        index = draw(st.integers(0, len(messages) - 1))
        damage = draw(
            st.sampled_from(("drop", "double", "move", "behead", "cut off", "drop a part"))
        )
        if damage == "drop":
            del messages[index]
        elif damage == "double":
            messages.insert(draw(st.integers(index, len(messages))), copy.deepcopy(messages[index]))
        elif damage == "move":
            moved = messages.pop(index)
            messages.insert(draw(st.integers(0, len(messages))), moved)
        elif damage == "behead":
            del messages[:index]
        elif damage == "cut off":
            del messages[index + 1 :]
        else:
            for key in ("tool_calls", "tool_responses", "content"):
                parts = messages[index].get(key)
                if isinstance(parts, list) and len(parts) > 1:
                    del parts[draw(st.integers(0, len(parts) - 1))]
                    if key == "tool_responses":
                        messages[index]["content"] = "\n\n".join(part["content"] for part in parts)
                    break
    return messages


def labels(messages: list[Message]) -> list[str]:
    """The labels in these messages, in order, without those that only say what an item belongs
    to."""
    found = []
    for message in messages:
        said = {key: value for key, value in message.items() if key != "thought"}
        found += list(dict.fromkeys(re.findall(r"<\d+>", json.dumps(said))))
    return found


def refusal(messages: list[Message]) -> str | None:
    """Why a strict provider would refuse this history; None if it would not."""
    return _chat(messages) or _items(messages) or _blocks(messages)


def _chat(messages: list[Message]) -> str | None:
    wanted: Counter[str] = Counter()
    function = None
    for message in messages:
        role = message.get("role")
        if role == "function":
            if message["name"] != function:
                return "a function's result without its call"
            function = None
            continue
        if role == "tool":
            responses = message.get("tool_responses") or [message]
            for response in responses:
                if not wanted[response["tool_call_id"]]:
                    return "a tool message that answers nothing before it"
                wanted[response["tool_call_id"]] -= 1
            continue
        if +wanted or function:
            return "tool calls without their results right after them"
        if message.get("tool_responses"):
            return "results outside of a tool message"
        if role == "assistant":
            wanted = Counter(call["id"] for call in message.get("tool_calls") or ())
            function = (message.get("function_call") or {}).get("name")
    return "a history that ends in tool calls" if +wanted or function else None


def _items(messages: list[Message]) -> str | None:
    wanted: Counter[str] = Counter()
    thinking = False
    for message in messages:
        kind, role = message.get("type"), message.get("role")
        if thinking and kind != "reasoning":
            thinking = False
            if role in ("user", "system") or kind == "function_call_output":
                return "reasoning without what it led to"
        if kind == "reasoning":
            thinking = True
        elif kind == "function_call":
            wanted[message["call_id"]] += 1
        elif kind == "function_call_output":
            if not wanted[message["call_id"]]:
                return "an output without its call before it"
            wanted[message["call_id"]] -= 1
        elif role == "user" and +wanted:
            return "a call that is not answered within its exchange"
    if +wanted:
        return "a call without its output"
    return "reasoning at the end" if thinking else None


def _blocks(messages: list[Message]) -> str | None:
    merged: list[tuple[str, list[Message]]] = []  # neighbours of one role are one turn
    for message in messages:
        role = message.get("role")
        content = message.get("content") if role in ("user", "assistant") else []
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        if merged and merged[-1][0] == role and not _uses(merged[-1][1]):
            merged[-1][1].extend(blocks)
        else:
            merged.append((str(role), list(blocks)))
    wanted: list[str] = []
    for role, blocks in merged:
        given = [block["tool_use_id"] for block in blocks if block.get("type") == "tool_result"]
        if Counter(given) != Counter(wanted):
            return "tool_use and tool_result blocks that do not match"
        if any(block.get("type") == "tool_result" for block in blocks[len(given) :]):
            return "a tool_result block after other content"
        wanted = _uses(blocks) if role == "assistant" else []
    return "a history that ends in tool_use" if wanted else None


def _uses(blocks: list[Message]) -> list[str]:
    return [block["id"] for block in blocks if block.get("type") == "tool_use"]
