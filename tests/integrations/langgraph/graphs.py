"""Graphs for the tests, and checkpoints to save without one."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class Steps(TypedDict):
    log: Annotated[list[str], operator.add]


def answer(state: Chat) -> dict[str, Any]:
    return {"messages": [AIMessage(f"answer {len(state['messages'])}")]}


def chat_graph(saver: Any, **options: Any) -> Any:
    """A graph that answers each message."""
    builder = StateGraph(Chat)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder.compile(checkpointer=saver, **options)


def step_graph(saver: Any, steps: Sequence[Callable[..., Any]], **options: Any) -> Any:
    """A graph that runs functions one after the other."""
    builder = StateGraph(Steps)
    before = START
    for step in steps:
        builder.add_node(step.__name__, step)
        builder.add_edge(before, step.__name__)
        before = step.__name__
    builder.add_edge(before, END)
    return builder.compile(checkpointer=saver, **options)


def thread(thread_id: str = "t", **more: Any) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": "", **more}}


def checkpoint(values: dict[str, Any], version: int = 1) -> Checkpoint:
    """A checkpoint with these values, each at this version."""
    made = empty_checkpoint()
    made["id"] = str(uuid6())
    made["channel_values"] = values
    made["channel_versions"] = dict.fromkeys(values, version)
    return made


class Writer:
    """Saves one checkpoint after the other on a thread, each with other values."""

    def __init__(self, saver: Any, thread_id: str = "t") -> None:
        self.saver, self.config, self.version = saver, thread(thread_id), 0

    def save(self, values: dict[str, Any], **metadata: Any) -> RunnableConfig:
        self.version += 1
        made = checkpoint(values, self.version)
        self.config = self.saver.put(
            self.config,
            made,
            {"source": "loop", "step": self.version, **metadata},
            made["channel_versions"],
        )
        return self.config
