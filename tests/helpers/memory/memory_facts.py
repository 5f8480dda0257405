"""What the tests of the index of memories share: a store with facts, questions, and the right
answers to them."""

from __future__ import annotations

from typing import Any

import holdfast
from holdfast.memory.resources import get_follower

FACTS = [
    f"Customer {name} ordered {count} {thing}"
    for count, (name, thing) in enumerate(
        (name, thing)
        for name in ("Ada", "Bob", "Eve", "Joe")
        for thing in ("bikes", "lamps", "books", "chairs", "tents")
    )
]
QUESTIONS = ("Who ordered lamps?", "What did Eve order?", "tents 19", "orders of customer Joe")
STORES = ("sqlite", "files", "postgres")
"""Stores whose index outlives the process that made it, each in another way."""


def fill(url: str) -> None:
    with holdfast.open(url, index="memory") as store:
        for fact in FACTS:
            store.memory("m").remember(fact, source="orders")
        store.memory("m").forget(store.memory("m").remember("Customer Zoe ordered 99 boats"))


def answers(store: holdfast.Store) -> list[list[str]]:
    return [[hit.text for hit in store.memory("m").recall(question, k=4)] for question in QUESTIONS]


def right_answers(url: str) -> list[list[str]]:
    """What an index gives that was just made from the stream."""
    with holdfast.open(url, index="memory") as store:
        return answers(store)


def inner(store: holdfast.Store) -> Any:
    """The index that a store uses now, and where: a path, or the class that is not about files."""
    index: Any = get_follower(store._log, store.memory("m")._key).index
    index = getattr(index, "_index", index)
    return index._file._path if hasattr(index, "_file") else type(index).__name__


def indexed(url: str) -> list[list[str]]:
    with holdfast.open(url) as store:
        return answers(store)
