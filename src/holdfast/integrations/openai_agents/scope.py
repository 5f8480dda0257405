"""Where the running code is in a durable run: its task, and which model call comes next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from agents import RunConfig

from ... import AsyncTask


@dataclass(frozen=True)
class ToolDecision:
    """An answer to the question whether a tool may be called, with more than yes or no.

    Example:
        >>> store.answer("bill-7", "pay call_1", ToolDecision(False, message="Ask for a receipt"))
    """

    approve: bool
    always: bool = False
    """Whether it also applies to later calls of this tool by the same agent."""
    message: str | None = None
    """What the model reads if the call is rejected."""


class RecordedRunConfig(RunConfig):
    """The settings of a durable run. The SDK passes them on to agents that are used as tools."""


class RunScope:
    """A durable run, or a tool call inside it.

    In a run, and in an agent that is used as a tool, model calls come one after the other, so each
    is identified by its number. Code of other tools may call models in any order: there, a call is
    identified by its request.
    """

    def __init__(self, task: AsyncTask, prefix: str, *, is_numbered: bool) -> None:
        self.task, self.is_numbered = task, is_numbered
        self._prefix, self._calls = prefix, 0
        self._agent_tools: dict[str, RunScope] = {}

    def take_key(self) -> str:
        """Return the key of the next model call."""
        self._calls += 1
        return f"{self._prefix}{self._calls}"

    def enter_agent_tool(self, call_id: str) -> RunScope:
        """Return the scope of an agent that is used as a tool. After an approval, it continues."""
        if call_id not in self._agent_tools:
            self._agent_tools[call_id] = RunScope(
                self.task, f"{self._prefix}{call_id} ", is_numbered=True
            )
        return self._agent_tools[call_id]

    def enter_tool(self) -> RunScope:
        """Return the scope of any other tool."""
        return RunScope(self.task, "", is_numbered=False)


_scope: ContextVar[RunScope | None] = ContextVar("holdfast_openai_agents", default=None)


def current_scope() -> RunScope | None:
    """Return the scope of the running code; None outside durable runs."""
    return _scope.get()


@contextmanager
def inside(scope: RunScope) -> Iterator[None]:
    """Run code in a scope."""
    token = _scope.set(scope)
    try:
        yield
    finally:
        _scope.reset(token)
