"""Agents: functions that do a task from beginning to end, known by a name, so that any process can go on with it."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from ...errors import NotFound
from ...log.codec import check_declared
from ...log.ids import checked_id
from ...log.validation import seconds, shown
from ..steps.declare import annotated, is_async

if TYPE_CHECKING:
    from ...memory.trust import Trust
    from ...memory.vectors.embedding import Embed, Embedding
    from ..state.view import TaskView

P = ParamSpec("P")
R = TypeVar("R")

Remember = bool | Callable[["TaskView"], Iterable[Any] | Awaitable[Iterable[Any]]]
"""What a task leaves to its agent's memory: the usual (True), nothing, or what a function says: texts, or dicts as for `remember_many`."""

ATTEMPTS = 5
LEASE = 30.0


class Agent(Generic[P, R]):
    """A function that does a task, registered under a name. Called, it is that function."""

    def __init__(
        self,
        name: str,
        fn: Callable[P, R],
        max_attempts: int = ATTEMPTS,
        lease: float = LEASE,
        input: Any = Any,
        remember: Remember = True,
        embed: Embed | None = None,
        trust: Trust | None = None,
    ) -> None:
        self.name, self.fn, self.max_attempts, self.lease, self.input = (
            name,
            fn,
            max_attempts,
            lease,
            input,
        )
        self.remember, self.trust = remember, trust
        self.is_async = is_async(fn)
        self.embedding: Embedding | None = None
        if embed is not None:
            from ...memory.vectors.embedding import Embedding  # needs numpy

            self.embedding = Embedding(embed, awaited=self.is_async)
        functools.update_wrapper(self, fn, updated=())

    @property
    def returns(self) -> Any:
        """The type of its result, as annotated; else plain JSON values."""
        return annotated(self.fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Agent {self.name!r}>"


registered: dict[str, Agent[Any, Any]] = {}


class _AgentDecorator:
    def __init__(self, name: str, *options: Any) -> None:
        self._name, self._options = name, options

    def __call__(self, fn: Callable[P, R]) -> Agent[P, R]:
        if not callable(fn):
            raise TypeError(
                f"an agent must be a function that takes a task, got {type(fn).__name__}"
            )
        made = Agent(self._name, fn, *self._options)
        if callable(made.remember) and is_async(made.remember) and not made.is_async:
            raise TypeError("an async function for remember= is awaited; that takes an async agent")
        known = registered.get(made.name)
        if known is not None and _place(known.fn) != _place(fn) and "<locals>" not in _place(fn):
            raise ValueError(
                f"there is another agent {made.name!r} ({_place(known.fn)}); give each a name of its own"
            )
        registered[made.name] = made
        return made


def agent(
    name: str,
    *,
    input: Any = Any,
    max_attempts: int = ATTEMPTS,
    lease: float | timedelta = LEASE,
    remember: Remember = True,
    embed: Embed | None = None,
    trust: Trust | None = None,
) -> _AgentDecorator:
    """Register a function that does a task from beginning to end. What it returns is the result.

    Args:
        name: The name by which any process finds it.
        input: The type of `task.input`, if it is not plain JSON values.
        max_attempts: How many runs in a row may fail without progress before a worker gives up.
        lease: After how long without a sign of life another worker takes over, in seconds or as a
            timedelta.
        remember: What its tasks leave to memory, as for `Task.finish`.
        embed: An embedder for its memory, as for `Store.memory`, also where a worker opened the
            store.
        trust: Whose memories its briefings tell, as for `Task.resume_context`.

    Returns:
        A decorator. The decorated function is an `Agent`, called like the function.

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
        raise ValueError(f"max_attempts must be an integer >= 1, got {shown(max_attempts)}")
    length = seconds(lease, "lease", 0.1)
    check_declared(input)
    check_remember(remember)
    if trust is not None:
        from ...memory.trust import trusted

        trust = trusted(trust)
    return _AgentDecorator(
        checked_id(name, "the name of an agent"),
        max_attempts,
        length,
        input,
        remember,
        embed,
        trust,
    )


def find(given: str | Callable[..., Any]) -> Agent[Any, Any]:
    """An agent, by its name or as it is. A function that is not registered is one for now, under its own name."""
    if isinstance(given, Agent):
        return given
    if isinstance(given, str):
        if given not in registered:
            known = ", ".join(map(repr, sorted(registered))) or "none"
            raise NotFound(
                f"there is no agent {given!r} here; import the module that has @holdfast.agent({given!r}) (known: {known})"
            )
        return registered[given]
    if not callable(given):
        raise TypeError(
            f"agent must be a name or a function that takes a task, got {type(given).__name__}"
        )
    return Agent(getattr(given, "__name__", type(given).__name__), given)


def check_remember(remember: object) -> None:
    if type(remember) is not bool and not callable(remember):
        raise TypeError(
            f"remember must be True, False or a function of the task's view, got {shown(remember)}"
        )


def _place(fn: Callable[..., Any]) -> str:
    return f"{getattr(fn, '__module__', '')}.{getattr(fn, '__qualname__', '')}"
