"""A graph that is killed with -9 before, inside and after its nodes, until it gets to the end.

Arguments: STORE NOTES WAY. It notes each start and end of a node outside the store.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import holdfast
from holdfast.integrations.langgraph import HoldfastSaver
from integrations.process_runs import ProcessRun, run_until_finished

from .graphs import Steps, step_graph, thread

NODES = 4
TURNS = 3


def build(process: ProcessRun, saver: Any, turn: int) -> Any:
    def make(number: int) -> Any:
        def node(state: Steps) -> Any:
            name = f"{turn}.{number}"
            process.note("start", node=name, log=state["log"])
            process.point(f"inside {name}")
            process.note("end", node=name)
            return {"log": [name]}

        node.__name__ = f"node{number}"
        return node

    return step_graph(saver, [make(number) for number in range(NODES)])


class WatchedSaver(HoldfastSaver):
    """A saver that dies after each call that was acknowledged, once."""

    process: ProcessRun
    turn = 0

    def _die_after(self, what: str, detail: str) -> None:
        self.process.point(f"after {what} of turn {self.turn}: {detail}")

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        result = super().put(config, checkpoint, metadata, new_versions)
        self._die_after("put", f"{metadata['source']} {metadata['step']}")
        return result

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        super().put_writes(config, writes, task_id, task_path)
        self._die_after("writes", task_path)

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        result = await super().aput(config, checkpoint, metadata, new_versions)
        self._die_after("put", f"{metadata['source']} {metadata['step']}")
        return result

    async def aput_writes(
        self, config: Any, writes: Any, task_id: str, task_path: str = ""
    ) -> None:
        await super().aput_writes(config, writes, task_id, task_path)
        self._die_after("writes", task_path)


def run_turns(process: ProcessRun, store: holdfast.Store, way: str) -> None:
    """Go on with the turn that was cut off, then take those that are left."""
    saver = WatchedSaver(store)
    saver.process = process
    saver.turn = len(list(saver.list(thread(), filter={"source": "input"})))
    given: Any = None  # go on
    while True:
        if saver.turn:
            graph = build(process, saver, saver.turn)
            if way == "async":
                asyncio.run(graph.ainvoke(given, thread(), durability="sync"))
            else:
                graph.invoke(given, thread(), durability="sync")
        if saver.turn == TURNS:
            process.note("finished", log=graph.get_state(thread()).values["log"])
            return
        saver.turn += 1
        given = {"log": [f"said {saver.turn}"]}


def main() -> None:
    place, notes, way = sys.argv[1:]

    def run(process: ProcessRun) -> None:
        with holdfast.open(place, key=os.environ.get("HOLDFAST_KEY")) as store:
            run_turns(process, store, way)

    def rehearse() -> None:
        def nothing(state: Steps) -> Any:
            return {"log": []}

        with holdfast.open(f"{place}.rehearsal") as store:
            graph = step_graph(HoldfastSaver(store), [nothing])
            graph.invoke({"log": []}, thread())
            asyncio.run(graph.ainvoke({"log": []}, thread()))

    run_until_finished(run, notes, "", rehearse)
