"""One durable append of two 600-byte messages to an encrypted store, beside the same to an
unencrypted one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter, thread_time

import holdfast

from ._measure import Bar, Lab, interleave, pair, ratio, settle, warm

SIZE = 1_000
KEY = bytes(range(32))


def run(lab: Lab) -> None:
    for what, clock, bar in (
        ("append", perf_counter, Bar(1.25)),
        ("CPU time of an append", thread_time, None),
    ):
        values = measure(lab, clock)
        lab.report(
            f"{what}, encrypted / unencrypted", ratio(values["encrypted"], values["clear"]), bar=bar
        )


def measure(lab: Lab, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Seconds of one append, round by round."""
    with lab.place() as place, ExitStack() as stack:
        arms = {
            name: appends(place / f"{name}.db", key, stack, clock)
            for name, key in (("clear", None), ("encrypted", KEY))
        }
        settle()
        return interleave(arms, lab.rng, rounds=lab.choose(9, 3), repeats=lab.choose(100, 30))


def appends(
    path: Path, key: bytes | None, stack: ExitStack, clock: Callable[[], float]
) -> Callable[[], float]:
    store = stack.enter_context(holdfast.open(path, key=key))
    chat, messages = store.conversation("chat"), pair(600)
    for _ in range(SIZE // 2):
        chat.append(*messages)
    warm(lambda many: store.conversation("warm").append(*many))

    def one() -> float:
        start = clock()
        chat.append(*messages)
        return clock() - start

    return one
