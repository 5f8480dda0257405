"""A LangGraph agent that asks before it pays, and that can be killed at any point.

    pip install '.[langgraph]'          # in a clone of the repository
    python examples/langgraph_agent.py bill-17 7 [agents.db]

Kill it (kill -9) while it asks or while it pays, and start it again with the same arguments: it
resumes. Nodes that had finished do not run again, and the payment is made at most once. Each bill
is a thread.
"""

import operator
import sys
from typing import Annotated, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

import holdfast
from holdfast.integrations.langgraph import HoldfastSaver, NodeTask


class Bill(TypedDict):
    amount: int
    log: Annotated[list[str], operator.add]


@holdfast.step(once=True)
def pay(amount: int) -> str:
    """Pay. It is never called a second time: if it is cut off, an operator is asked."""
    print(f"paying {amount}", flush=True)
    return f"paid {amount}"


def check(bill: Bill) -> dict[str, list[str]]:
    print("checking the bill", flush=True)
    return {"log": ["checked"]}


def build(store: holdfast.Store):
    def settle(bill: Bill, config: RunnableConfig) -> dict[str, list[str]]:
        if interrupt(f"Pay {bill['amount']}? [y/n]") != "y":
            return {"log": ["refused"]}
        with NodeTask(store, config):
            return {"log": [pay(bill["amount"])]}

    builder = StateGraph(Bill)
    builder.add_node("check", check)
    builder.add_node("settle", settle)
    builder.add_edge(START, "check")
    builder.add_edge("check", "settle")
    builder.add_edge("settle", END)
    return builder.compile(checkpointer=HoldfastSaver(store))


def main() -> None:
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    thread, amount = sys.argv[1], int(sys.argv[2])
    config = {"configurable": {"thread_id": thread}}
    with holdfast.open(sys.argv[3] if len(sys.argv) == 4 else "agents.db") as store:
        graph = build(store)
        started = graph.checkpointer.get_tuple(config) is not None
        given = None if started else {"amount": amount, "log": []}
        result = graph.invoke(given, config, durability="sync")
        while waiting := graph.get_state(config).interrupts:
            print(waiting[0].value, flush=True)
            line = sys.stdin.readline()
            if not line:
                sys.exit("no answer, so nothing was decided; start it again")
            result = graph.invoke(Command(resume=line.strip()), config, durability="sync")
        print(", ".join(result["log"]))


if __name__ == "__main__":
    main()
