"""A conversation on a backend that fails: what was acknowledged is there, once, in order, and
nothing else is."""

from __future__ import annotations

import random
from typing import Any

import pytest

import holdfast
from holdfast.backends.faulty import FaultyBackend
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import Retryable

STEPS = 30
RATES = {
    "lost_answer": 0.08,
    "lost_request": 0.05,
    "unavailable": 0.05,
    "late": 0.03,
    "full": 0.02,
    "driver_error": 0.03,
    "driver_error_stored": 0.03,
    "read_unavailable": 0.02,
}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_what_was_acknowledged_is_there_once_in_order(seed: int) -> None:
    backend = FaultyBackend(MemoryBackend(), seed=seed)
    choose = random.Random(seed)
    acknowledged: list[str] = []
    attempted: set[str] = set()
    with holdfast.open(backend) as store:
        objects = [store.conversation("c") for _ in range(3)]
        backend._rates.update(RATES)
        for step in range(STEPS):
            texts = [f"{step}.{part}" for part in range(choose.choice([1, 1, 2, 20]))]
            try:
                change(choose.choice(objects), choose.choice(CHANGES), texts, attempted)
                acknowledged += [text for text in texts if text in attempted]
            except (Retryable, OSError):
                pass
        assert backend.injected
        backend.deliver()
        backend._rates.update(dict.fromkeys(RATES, 0.0))
        chat = store.conversation("c")
        stored = [message["content"] for message in chat.messages() if message["role"] == "user"]
        assert chat.count() == len(chat.messages())
        assert len(stored) == len(set(stored)) and set(stored) <= attempted
        assert [text for text in stored if text in set(acknowledged)] == acknowledged


CHANGES = ("append", "append", "append", "pin", "turn", "draft", "repair")


def change(chat: holdfast.Conversation, how: str, texts: list[str], attempted: set[str]) -> None:
    if how == "draft":
        chat.draft("a piece", of=texts[0])
    elif how == "repair":
        chat.repair()
    elif how == "turn":
        with chat.turn(wait=0, lease=0.001):
            attempted.update(texts)
            chat.append(*map(user, texts), id=texts[0])
    else:
        attempted.update(texts)
        chat.append(*map(user, texts), id=texts[0], pin=how == "pin")
