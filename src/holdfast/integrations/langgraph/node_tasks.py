"""Durable steps inside a node: a Holdfast task for each run of a node."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphBubbleUp

from ... import AsyncStore, AsyncTask, Store, Task


class NodeTask:
    """The task of one run of a node, for `with` and for `async with`.

    If the process dies in the node, LangGraph runs the node again in the same step of the same
    thread. It then gets the same task, and steps that finished return their recorded results.
    The task is finished at the end of the block. With an interrupt, it stays until the node runs
    again.

    Args:
        store: An open store; `with` needs a `Store`.
        config: The config of the node: its second parameter.
        options: As for `Store.task`, for example `goal`, `subject` or `ttl`.

    Example:
        def act(state: State, config: RunnableConfig):
            with NodeTask(store, config) as task:
                return {"receipt": task.step("pay", pay, state["amount"])}
    """

    def __init__(self, store: Store | AsyncStore, config: RunnableConfig, **options: Any) -> None:
        place = config.get("configurable", {})
        if "thread_id" not in place or not place.get("checkpoint_ns"):
            raise ValueError(
                "config must be the one that LangGraph passes to a node of a graph with a "
                "checkpointer; name it as a parameter: def node(state, config: RunnableConfig)"
            )
        self.id = f"langgraph/{place['thread_id']}/{place['checkpoint_ns']}"
        self._store, self._options = store, options
        self._task: Task | None = None
        self._async_task: AsyncTask | None = None

    def __enter__(self) -> Task:
        if isinstance(self._store, AsyncStore):
            raise TypeError("this store is for async code: use `async with NodeTask(…)`")
        task = self._task = self._store.task(self.id, **self._options)
        return task.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._task is not None
        if isinstance(error, GraphBubbleUp):
            kind = error = traceback = None
        elif error is None:
            self._task.finish()
        self._task.__exit__(kind, error, traceback)

    async def __aenter__(self) -> AsyncTask:
        store = self._store.aio if isinstance(self._store, Store) else self._store
        task = self._async_task = store.task(self.id, **self._options)
        return await task.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._async_task is not None
        if isinstance(error, GraphBubbleUp):
            kind = error = traceback = None
        elif error is None:
            await self._async_task.finish()
        await self._async_task.__aexit__(kind, error, traceback)
