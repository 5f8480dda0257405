"""Declare agents: named functions that run a task from start to end, in any process."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from ...errors import NotFound
from ...log.codec import check_declared
from ...log.ids import check_id
from ...log.validation import check_seconds, describe_value
from ..steps.declare import is_async, return_annotation

if TYPE_CHECKING:
    from ...memory.trust import Trust
    from ...memory.vectors.embedding import Embed, Embedding
    from ..state.view import TaskView

P = ParamSpec("P")
R = TypeVar("R")

Remember = bool | Callable[["TaskView"], Iterable[Any] | Awaitable[Iterable[Any]]]
"""What a task saves to memory: the default (True), nothing (False), or what a function returns.

The function returns texts, or dicts in the form that `remember_many` takes.
"""

MemoryScope = str | Callable[["TaskView"], str]
"""The memory namespace of an agent's tasks, or a function that returns it for a task's view."""

DEFAULT_ATTEMPTS = 5
DEFAULT_LEASE = 30.0


class Agent(Generic[P, R]):
    """A function that runs a task, registered under a name. Calling it calls the function."""

    def __init__(
        self,
        name: str,
        fn: Callable[P, R],
        max_attempts: int = DEFAULT_ATTEMPTS,
        lease: float = DEFAULT_LEASE,
        input: Any = Any,
        remember: Remember = True,
        embed: Embed | None = None,
        trust: Trust | None = None,
        memory: MemoryScope | None = None,
        timeout: float | None = None,
    ) -> None:
        self.name, self.fn, self.max_attempts, self.lease, self.input = (
            name,
            fn,
            max_attempts,
            lease,
            input,
        )
        self.remember, self.trust, self.memory = remember, trust, memory
        self.timeout = timeout
        self.is_async = is_async(fn)
        self.embedding: Embedding | None = None
        if embed is not None:
            from ...memory.vectors.embedding import Embedding  # needs numpy

            self.embedding = Embedding(embed, allow_async=self.is_async)
        functools.update_wrapper(self, fn, updated=())

    @property
    def returns(self) -> Any:
        """The annotated type of the result; `Any` for plain JSON values."""
        return return_annotation(self.fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Agent {self.name!r}>"


registered_agents: dict[str, Agent[Any, Any]] = {}


class _AgentDecorator:
    def __init__(self, name: str, *options: Any) -> None:
        self._name, self._options = name, options

    def __call__(self, fn: Callable[P, R]) -> Agent[P, R]:
        if not callable(fn):
            raise TypeError(
                f"an agent must be a function that takes a task, got {type(fn).__name__}"
            )
        declared = Agent(self._name, fn, *self._options)
        if callable(declared.remember) and is_async(declared.remember) and not declared.is_async:
            raise TypeError("remember must be a synchronous function for a synchronous agent")
        known = registered_agents.get(declared.name)
        if (
            known is not None
            and _qualified_name(known.fn) != _qualified_name(fn)
            and "<locals>" not in _qualified_name(fn)
        ):
            raise ValueError(
                f"agent {declared.name!r} is already registered ({_qualified_name(known.fn)}); "
                "give each agent its own name"
            )
        registered_agents[declared.name] = declared
        return declared


def agent(
    name: str,
    *,
    input: Any = Any,
    max_attempts: int = DEFAULT_ATTEMPTS,
    lease: float | timedelta = DEFAULT_LEASE,
    remember: Remember = True,
    embed: Embed | None = None,
    trust: Trust | None = None,
    memory: MemoryScope | None = None,
    timeout: float | timedelta | None = None,
) -> _AgentDecorator:
    """Register a function that runs a task from start to end. Its return value is the result.

    What a task learns is saved to memory, and quoted in the resume contexts of the agent's later
    tasks. If tasks are about different customers, give each task its `subject`: memories of a task
    with a subject are quoted only for tasks of the same subject.

    Args:
        name: The name by which any process finds the agent.
        input: The type of `task.input`. Default: plain JSON values.
        max_attempts: How many runs in a row may fail without progress before a worker gives up.
        lease: How long after the last heartbeat another worker takes over, in seconds or as a
            timedelta.
        remember: What the agent's tasks save to memory, as for `Task.finish`.
        embed: An embedder for the agent's memory, as for `Store.memory`. Workers use it too.
        trust: Authors whose memories are added to resume contexts, as for `Task.resume_context`.
        memory: The memory namespace of its tasks: a name, or a function from the task's view to a
            name, such as `lambda task: f"claims/{task.subject}"`. It is recorded in the task when
            first used. Default: the agent's name.
        timeout: The time limit of its tasks, in seconds or as a timedelta, as for `Store.task`. A
            task that was submitted with its own `timeout` keeps that. Default: none.

    Returns:
        A decorator. It turns the function into an `Agent`, which is called like the function.

    Raises:
        ValueError: Another function has this name, or an option is out of range.

    Example:
        >>> @holdfast.agent("claims")
        ... def claims(task: holdfast.Task) -> str:
        ...     task.step("read", read_claim, task.input)
        ...     return "settled"
    """
    if callable(name):
        raise TypeError("an agent must have a name: write @holdfast.agent('name')")
    if type(max_attempts) is not int or max_attempts < 1:
        raise ValueError(
            f"max_attempts must be an integer >= 1, got {describe_value(max_attempts)}"
        )
    length = check_seconds(lease, "lease", 0.1)
    check_declared(input)
    check_remember(remember)
    _check_memory(memory)
    if trust is not None:
        from ...memory.trust import check_trust

        trust = check_trust(trust)
    return _AgentDecorator(
        check_id(name, "the name of an agent"),
        max_attempts,
        length,
        input,
        remember,
        embed,
        trust,
        memory,
        None if timeout is None else check_seconds(timeout, "timeout", 0.001),
    )


def find_agent(given: str | Callable[..., Any]) -> Agent[Any, Any]:
    """Find a registered agent by name, or make one of a function, which need not be registered."""
    if isinstance(given, Agent):
        return given
    if isinstance(given, str):
        if given not in registered_agents:
            known = ", ".join(map(repr, sorted(registered_agents))) or "none"
            raise NotFound(
                f"no agent {given!r} is registered in this process (registered: {known}); "
                f"import the module that has @holdfast.agent({given!r})"
            )
        return registered_agents[given]
    if not callable(given):
        raise TypeError(
            f"agent must be a name or a function that takes a task, got {type(given).__name__}"
        )
    return Agent(getattr(given, "__name__", type(given).__name__), given)


def check_remember(remember: object) -> None:
    if type(remember) is not bool and not callable(remember):
        raise TypeError(
            "remember must be True, False or a function of the task's view, "
            f"got {describe_value(remember)}"
        )


def _check_memory(memory: object) -> None:
    if memory is None:
        return
    if isinstance(memory, str):
        check_id(memory, "memory")
    elif not callable(memory) or is_async(memory):
        raise TypeError(
            "memory must be a namespace, or a synchronous function from the task's view to one, "
            f"got {describe_value(memory)}; to save nothing, use remember=False"
        )


def _qualified_name(fn: Callable[..., Any]) -> str:
    return f"{getattr(fn, '__module__', '')}.{getattr(fn, '__qualname__', '')}"
