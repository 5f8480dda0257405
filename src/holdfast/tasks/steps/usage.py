"""What model calls use, and how much a task may use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ...errors import BudgetExceeded
from ...log.validation import shown

MOST: Final = 1 << 53
"""No count is above this, whatever a service or a stored record says."""
PER_PRICE: Final = 1_000_000


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """What model calls have used, as far as they told. `cost` is in your own currency."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0

    @property
    def tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cost + other.cost,
        )

    def __sub__(self, other: Usage) -> Usage:
        """What came since; never less than nothing."""
        return Usage(
            max(self.calls - other.calls, 0),
            max(self.input_tokens - other.input_tokens, 0),
            max(self.output_tokens - other.output_tokens, 0),
            max(self.cost - other.cost, 0.0),
        )


class Budget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How much the model calls of a task may use in all. When a limit is reached, the next call is `BudgetExceeded`."""

    tokens: int | None = None
    cost: float | None = None
    calls: int | None = None

    def __post_init__(self) -> None:
        for name, limit in (("tokens", self.tokens), ("calls", self.calls)):
            if limit is not None and (type(limit) is not int or not 1 <= limit <= MOST):
                raise ValueError(f"{name} must be an integer >= 1, got {shown(limit)}")
        if self.cost is not None and (
            type(self.cost) not in (int, float) or not 0 < self.cost <= MOST
        ):
            raise ValueError(f"cost must be a number > 0, got {shown(self.cost)}")
        if self.tokens is self.cost is self.calls is None:
            raise ValueError("a Budget must have at least one of tokens=, cost= and calls=")

    def left(self, used: Usage) -> Budget:
        """What is left of it; at least the smallest there is, because a budget is looked at before a call."""
        return Budget(
            tokens=None if self.tokens is None else max(self.tokens - used.tokens, 1),
            cost=None if self.cost is None else max(self.cost - used.cost, 1e-9),
            calls=None if self.calls is None else max(self.calls - used.calls, 1),
        )

    def exceeded(self, task: str, used: Usage) -> BudgetExceeded | None:
        """The error, if a limit is reached."""
        for unit, limit, so_far in (
            ("tokens", self.tokens, used.tokens),
            ("cost", self.cost, used.cost),
            ("calls", self.calls, used.calls),
        ):
            if limit is not None and so_far >= limit:
                return BudgetExceeded(needed=so_far, budget=limit, unit=unit, task=task)
        return None


class Meter:
    """What a running step has used, and which model it said it asked."""

    __slots__ = ("_called", "_counted", "_is_model", "_paid", "_price", "model", "used")

    def __init__(self, price: tuple[float, float] | None, is_model: bool) -> None:
        self._price, self._is_model = price, is_model
        self.model: str | None = None
        self.used = Usage()
        self.begin()

    def begin(self) -> None:
        """An attempt begins."""
        self._called = self._counted = self._paid = False

    def use(
        self, input_tokens: int, output_tokens: int, cost: float | None, model: str | None
    ) -> None:
        """What the step's function tells."""
        for name, tokens in (("input_tokens", input_tokens), ("output_tokens", output_tokens)):
            if type(tokens) is not int or not 0 <= tokens <= MOST:
                raise ValueError(f"{name} must be an integer >= 0, got {shown(tokens)}")
        if cost is not None and (type(cost) not in (int, float) or not 0 <= cost <= MOST):
            raise ValueError(f"cost must be a number >= 0, got {shown(cost)}")
        if model is not None and type(model) is not str:
            raise TypeError(f"model must be a name, got {type(model).__name__}")
        self.model = model or self.model
        self._add(input_tokens, output_tokens, cost)

    def returned(self, value: object) -> None:
        """A model step has its answer: what that tells counts, unless the function told it itself."""
        tokens = (0, 0) if self._counted else usage_in(value)
        self._add(*tokens, cost=0.0 if self._paid else None)

    def _add(self, input_tokens: int, output_tokens: int, cost: float | None) -> None:
        calls = (
            0 if self._is_model and self._called else 1
        )  # an attempt of a model step is one call, however it is told
        if cost is not None:
            self._paid = True
        elif self._price is not None:
            cost = (input_tokens * self._price[0] + output_tokens * self._price[1]) / PER_PRICE
        self._counted = self._counted or input_tokens + output_tokens > 0
        self._called = True
        self.used += Usage(calls, input_tokens, output_tokens, cost or 0.0)


def usage_in(value: object) -> tuple[int, int]:
    """The input and output tokens that a model's answer tells of, as the services name them; (0, 0) if it tells nothing."""
    for name in ("usage", "usage_metadata"):
        told = _part(value, name)
        found = [_tokens(told, names) for names in _NAMES] if told is not None else []
        if any(found):
            return found[0], found[1]
    return 0, 0


_NAMES: Final = (("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens"))


def _tokens(told: object, names: tuple[str, ...]) -> int:
    for name in names:
        count = _part(told, name)
        if type(count) is int and 0 <= count <= MOST:
            return count
    return 0


def _part(value: object, name: str) -> Any:
    try:
        return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    except Exception:  # a property of somebody else's class; the answer itself is good
        return None


def checked_price(price: object) -> None:
    """ValueError if that is not what tokens cost."""
    if price is None:
        return
    if (
        not isinstance(price, tuple)
        or len(price) != 2
        or any(type(each) not in (int, float) or not 0 <= each <= MOST for each in price)
    ):
        raise ValueError(
            "price must be what a million tokens cost, of input and of output: price=(1.25, 10)"
        )
