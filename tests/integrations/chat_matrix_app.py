"""A turn of a durable chat, for the crash matrix: with a model call, an approval and a payment."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import holdfast
from holdfast import AsyncTask
from holdfast.integrations.starlette import ChatTurn, DurableChat, chat
from holdfast.tasks.agents.declare import registered_agents
from holdfast.testing import effect
from holdfast.types import DraftPiece

chat.DRAFT_SECONDS = 3600.0  # type: ignore[misc]  # pieces don't depend on the time
chats = DurableChat("matrix chat")


@holdfast.step(kind="model")
async def ask_model(text: str) -> str:
    return f"about {text}"


async def pay(amount: int) -> str:
    effect(f"paid {amount}", key=holdfast.idempotency_key())
    return f"paid {amount}"


@chats.answer
async def answer(turn: ChatTurn) -> AsyncIterator[str]:
    yield "Well: "
    yield await ask_model(turn.message["content"])
    if await turn.task.ask("refund", "Pay it?", returns=bool):
        yield f", {await turn.task.step('pay', pay, 30)}."


async def whole_turn(task: AsyncTask) -> dict[str, Any]:
    """Store the message, answer it, and return what a browser would have at the end."""
    messages = task.conversation("c")
    await messages.append({"role": "user", "content": "a refund"})
    result = await registered_agents["matrix chat"].fn(task)
    texts: dict[str, str] = {}
    async for item in messages.follow_with_drafts(timeout=0):
        if isinstance(item, DraftPiece):
            texts[item.of] = texts.get(item.of, "") + item.text
    return {
        "result": result,
        "messages": await messages.messages(),
        "newest attempt": list(texts.values())[-1],
    }
