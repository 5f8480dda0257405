"""A turn of a conversation (the question appended, a window read, the answer appended) in a short
and in a long history.

The window holds the same eight messages in both. Once with one conversation object for all turns,
as a running chat has it, and once with a new one for every turn, as a web request makes it.
"""

from __future__ import annotations

import itertools
from functools import partial
from time import perf_counter

import holdfast

from ._measure import Bar, Lab, interleave, ratio, settle

SHORT, LONG = 10, 10_000
TURNS = 20
WINDOW = 8
TEXT = "What was agreed with the insurer about the second claim, and by whom? " * 8


def run(lab: Lab) -> None:
    rounds = lab.choose(25, 7)
    names = map(str, itertools.count())
    with lab.place() as place, holdfast.open(place / "agents.db") as store:
        fill(store, "long", LONG)
        settle()
        for how in ("one object", "a new object per turn"):
            fresh = how != "one object"
            arms = {
                "short": partial(turns_in_a_new_chat, store, names, fresh),
                "long": partial(turns, store, "long", fresh),
            }
            values = interleave(arms, lab.rng, rounds=rounds, repeats=2)
            lab.report(
                f"a turn at {LONG:,} messages / one at {SHORT}, {how}",
                ratio(values["long"], values["short"]),
                bar=Bar(1.15),
                note=f"{min(values['long']) / TURNS * 1e6:.0f} us a turn at best",
            )


def message(role: str) -> dict[str, str]:
    return {"role": role, "content": TEXT}


def fill(store: holdfast.Store, name: str, count: int) -> None:
    chat = store.conversation(name)
    for start in range(0, count, 1_000):
        pairs = min(1_000, count - start) // 2
        chat.append(*(message(role) for _ in range(pairs) for role in ("user", "assistant")))


def turns_in_a_new_chat(store: holdfast.Store, names: itertools.count[int], fresh: bool) -> float:
    name = f"short-{next(names)}"
    fill(store, name, SHORT)
    return turns(store, name, fresh)


def turns(store: holdfast.Store, name: str, fresh: bool) -> float:
    chat = store.conversation(name)
    start = perf_counter()
    for _ in range(TURNS):
        if fresh:
            chat = store.conversation(name)
        chat.append(message("user"))
        assert len(chat.window(WINDOW, counter=one)) == WINDOW - 1
        chat.append(message("assistant"))
    return perf_counter() - start


def one(message: object) -> int:
    """A budget in messages: the counting of tokens is not what is measured."""
    return 1
