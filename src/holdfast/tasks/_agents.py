"""Agents: functions that do a task from beginning to end, known by a name, so that any process can go on with it."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from .._arguments import seconds
from .._codec import check_declared
from .._ids import checked_id
from ..errors import NotFound
from ._steps import annotated, is_async

if TYPE_CHECKING:
    from ..memory._embedding import Embed, Embedding
    from ..memory._trust import Trust
    from ._view import TaskView

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
        attempts: int = ATTEMPTS,
        lease: float = LEASE,
        input: Any = Any,
        remember: Remember = True,
        embed: Embed | None = None,
        trust: Trust | None = None,
    ) -> None:
        self.name, self.fn, self.attempts, self.lease, self.input = name, fn, attempts, lease, input
        self.remember, self.trust = remember, trust
        self.is_async = is_async(fn)
        self.embedding: Embedding | None = None
        if embed is not None:
            from ..memory._embedding import Embedding  # needs numpy

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


class _Decorator:
    def __init__(self, name: str, *options: Any) -> None:
        self._name, self._options = name, options

    def __call__(self, fn: Callable[P, R]) -> Agent[P, R]:
        if not callable(fn):
            raise TypeError("an agent is a function that takes a task: @holdfast.agent('claims')")
        made = Agent(self._name, fn, *self._options)
        if callable(made.remember) and is_async(made.remember) and not made.is_async:
            raise TypeError("an async function for remember= is awaited; that takes an async agent")
        known = registered.get(made.name)
        if known is not None and _place(known.fn) != _place(fn) and "<locals>" not in _place(fn):
            raise ValueError(f"there is another agent {made.name!r} ({_place(known.fn)}); give each a name of its own")
        registered[made.name] = made
        return made


def agent(
    name: str,
    *,
    input: Any = Any,
    attempts: int = ATTEMPTS,
    lease: float = LEASE,
    remember: Remember = True,
    embed: Embed | None = None,
    trust: Trust | None = None,
) -> _Decorator:
    """Register a function that does a task: `@holdfast.agent("claims")` above `def claims(task): …`. What it returns is the result.

    `input`: the type of `task.input`, if it is not plain JSON values. `attempts`: how many runs in a row may fail, without getting any further, before a worker leaves the task to people.
    `lease`: after how many seconds without a sign of life another worker may take the task over. `remember`: as that of `Task.finish`.
    `embed`: as that of `Store.memory`; the briefings of its tasks then find by meaning too, also where a worker has opened the store.
    `trust`: whose memories these briefings tell, as that of `Task.resume_context`.
    """
    if callable(name):
        raise TypeError("an agent has a name, by which others find it: write @holdfast.agent('name')")
    if type(attempts) is not int or attempts < 1:
        raise ValueError("attempts is a whole number, 1 or more")
    if seconds(lease, "lease") < 0.1:
        raise ValueError("lease is a number of seconds, at least 0.1")
    check_declared(input)
    check_remember(remember)
    if trust is not None:
        from ..memory._trust import trusted

        trust = trusted(trust)
    return _Decorator(checked_id(name, "the name of an agent"), attempts, float(lease), input, remember, embed, trust)


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
        raise TypeError("an agent is its name, or a function that takes a task")
    return Agent(getattr(given, "__name__", type(given).__name__), given)


def check_remember(remember: object) -> None:
    if type(remember) is not bool and not callable(remember):
        raise TypeError("remember is True, False, or a function from the task's view to what is to be remembered")


def _place(fn: Callable[..., Any]) -> str:
    return f"{getattr(fn, '__module__', '')}.{getattr(fn, '__qualname__', '')}"
