"""A process that consolidates a memory and is killed meanwhile, and what it should come to.

`main` (arguments: URL VARIANT WORLD) consolidates; VARIANT is `sync` or `async`. It says "ready"
when it begins, and "done" at its end. Each model call is a line of the file WORLD.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

import holdfast
from helpers.stored.notes import Notes
from holdfast import Budget, Store
from holdfast.log import operations as ops
from holdfast.memory import ConsolidationResult, consolidate, undo_consolidation
from holdfast.memory.model import Consolidated, Remembered, Restored
from holdfast.memory.search.catch_up import read_memory_events

NAMESPACE, RUN = "orders", "run-1"
PAIRS = 12
"""How many pairs of memories there are of each kind."""
START = 1_700_000_000.0
CODE = re.compile(r"\b([MSU]x[a-z])\b")
KINDS = {"M": "merge", "S": "summary", "U": "supersede"}


def fill(store: Store) -> None:
    """Remember pairs: the same words, other words for the same, two of a kind, conflicts."""
    memories: list[holdfast.memory.NewMemory] = []
    for number in range(PAIRS):
        for second in range(2):
            when = START + 60 * (2 * number + second)
            source, code = f"mail-{number}-{second}", f"x{chr(ord('a') + number)}"
            texts = (
                f"Letter D{code} goes to Ghent on Monday by train",
                f"Parcel M{code} {'leaves' if second else 'departs'} on Tuesday by ship",
                f"Visit S{code} {'ends' if second else 'begins'} with a tour of the garden",
                f"Price U{code} {'rose' if second else 'fell'} in the shop at the corner",
                f"Clerk C{code} lives in {'Rome' if second else 'Ghent'}",
            )
            memories += [{"text": text, "at": when, "source": source} for text in texts]
    store.memory(NAMESPACE).remember_many(memories)


def answer(messages: list[dict[str, str]]) -> str:
    """Propose what the codes in the texts stand for."""
    groups: dict[str, list[int]] = {}
    number = 0
    for line in messages[1]["content"].split("\n"):
        if line.startswith("Memory "):
            number = int(line.split()[1])
        elif code := CODE.search(line):
            groups.setdefault(code[1], []).append(number)
    proposals: list[dict[str, Any]] = []
    for code, numbers in groups.items():
        if len(numbers) == 2:
            kind = KINDS[code[0]]
            more = {"keep": max(numbers)} if kind == "supersede" else {"text": f"All about {code}"}
            proposals.append({"kind": kind, "memories": numbers, **more})
    return json.dumps({"proposals": proposals})


def main() -> None:
    url, variant, world = sys.argv[1:]
    notes = Notes(Path(world))

    def model(messages: list[dict[str, str]]) -> str:
        notes.write(what="asked", by=os.getpid())
        return answer(messages)

    async def model_async(messages: list[dict[str, str]]) -> str:
        return model(messages)

    options: dict[str, Any] = {"policy": "all", "budget": Budget(calls=1000), "run_id": RUN}
    os.write(1, b"ready\n")
    with holdfast.open(url) as store:

        async def run_async() -> ConsolidationResult:
            return await consolidate(store.aio, NAMESPACE, model=model_async, **options)

        def run() -> ConsolidationResult:
            if variant == "sync":
                return consolidate(store, NAMESPACE, model=model, **options)
            return asyncio.run(run_async())

        try:
            run()
        except holdfast.Suspended:
            store.answer(RUN, "approve", True)  # an eager person
            run()
    os.write(1, b"done\n")


# -- what is left ----------------------------------------------------------------------------------


class Outcome(msgspec.Struct):
    """What a run came to, by text instead of id: it is the same for each store."""

    recalled: dict[str, tuple[int, list[str], list[str]]]
    """Each recalled text with its mentions, its sources and the texts of its evidence."""
    counts: dict[str, int]
    """How many proposals of each kind were applied."""


def gather(store: Store) -> Outcome:
    memory = store.memory(NAMESPACE)
    recalled: dict[str, tuple[int, list[str], list[str]]] = {}
    for item in memory.all():
        evidence = sorted(each.text for each in memory.evidence(item.id))
        recalled[item.text] = (item.mentions, sorted(item.sources), evidence)
    applied = [event for event in read_log(store) if isinstance(event, Consolidated)]
    return Outcome(recalled, dict(Counter(event.kind for event in applied)))


def read_log(store: Store) -> list[object]:
    memory = store.memory(NAMESPACE)
    events: list[object] = []
    after = 0
    while page := ops.run(memory._log, read_memory_events(memory._key, after)):
        events += [event.payload for event in page]
        after = page[-1].version
    return events


def judge(
    store: Store, right: Outcome, before: Mapping[str, str], asked: int, kills: int
) -> list[str]:
    """Say what is wrong with a store in which the run has finished. Undoes the run."""
    problems: list[str] = []
    log = read_log(store)
    remembered = sum(isinstance(event, Remembered) for event in log)
    if remembered != len(before):
        problems.append(f"{remembered} memories were remembered, not {len(before)}")
    applied = [event for event in log if isinstance(event, Consolidated)]
    for what, names in (
        ("closed", [name for event in applied for name in event.closes]),
        ("proposal applied", [event.proposal for event in applied]),
    ):
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            problems.append(f"{what} twice: {twice[:3]}")
    if gather(store) != right:
        problems.append("the memories are not those of an undisturbed run")
    if list(store.verify().problems):
        problems.append("verify finds problems")
    view = store.get_task(RUN)
    if view is None or view.status != "finished":
        problems.append("the task has not finished")
    else:
        calls = view.result["model_calls"]
        if not calls <= asked <= calls + kills:
            problems.append(f"the model was asked {asked} times for {calls} groups")
        if len(view.result["applied"]) != len(applied):
            problems.append("the result does not list what was applied")
        if view.result.get("stale"):
            problems.append("a proposal was stale, although nothing else wrote")
    undone = undo_consolidation(store, NAMESPACE, RUN)
    if (undone.undone, undone.left) != (len(applied), 0):
        problems.append(f"{undone} of {len(applied)}")
    if sum(isinstance(event, Restored) for event in read_log(store)) != len(applied):
        problems.append("not every proposal was undone once")
    if {item.id: item.text for item in store.memory(NAMESPACE).all()} != before:
        problems.append("undo did not bring back all memories")
    return problems
