"""Tasks that leave something to memory."""

from __future__ import annotations

from typing import Any

from holdfast import Store

GOAL = "Order three laptops"

BUYER: dict[str, Any] = {"goal": GOAL, "agent": "buyer"}


def known(store: Store, agent: str = "buyer") -> list[tuple[str, tuple[str, ...], int]]:
    """What an agent remembers: the texts, their tags, and how often each was said."""
    return [(memory.text, memory.tags, memory.mentions) for memory in store.memory(agent).all()]


def remembered(store: Store, agent: str = "buyer") -> list[str]:
    return [memory.text for memory in store.memory(agent).all()]
