"""The usage of model calls, and the budget of a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ...errors import BudgetExceeded
from ...log.validation import describe_value

MAX_AMOUNT: Final = 1 << 53
"""The upper limit of all counts and costs, whatever a service reports."""
TOKENS_PER_PRICE: Final = 1_000_000


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """The reported usage of model calls. `cost` is in your own currency."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cost + other.cost,
        )

    def __sub__(self, other: Usage) -> Usage:
        """Return the difference, never below zero."""
        return Usage(
            max(self.calls - other.calls, 0),
            max(self.input_tokens - other.input_tokens, 0),
            max(self.output_tokens - other.output_tokens, 0),
            max(self.cost - other.cost, 0.0),
        )


class Budget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits for all model calls of a task.

    When a limit is reached, the next call raises `BudgetExceeded`.
    """

    tokens: int | None = None
    cost: float | None = None
    calls: int | None = None

    def __post_init__(self) -> None:
        for name, limit in (("tokens", self.tokens), ("calls", self.calls)):
            if limit is not None and (type(limit) is not int or not 1 <= limit <= MAX_AMOUNT):
                raise ValueError(f"{name} must be an integer >= 1, got {describe_value(limit)}")
        if self.cost is not None and (
            type(self.cost) not in (int, float) or not 0 < self.cost <= MAX_AMOUNT
        ):
            raise ValueError(f"cost must be a number > 0, got {describe_value(self.cost)}")
        if self.tokens is self.cost is self.calls is None:
            raise ValueError("a Budget must have at least one of tokens=, cost= and calls=")

    def left(self, used: Usage) -> Budget:
        """Return what is left of the budget. It is always above zero, as any budget must be."""
        return Budget(
            tokens=None if self.tokens is None else max(self.tokens - used.tokens, 1),
            cost=None if self.cost is None else max(self.cost - used.cost, 1e-9),
            calls=None if self.calls is None else max(self.calls - used.calls, 1),
        )

    def exceeded(self, task: str, used: Usage) -> BudgetExceeded | None:
        """Return the error if a limit is reached."""
        for unit, limit, amount in (
            ("tokens", self.tokens, used.tokens),
            ("cost", self.cost, used.cost),
            ("calls", self.calls, used.calls),
        ):
            if limit is not None and amount >= limit:
                return BudgetExceeded(needed=amount, budget=limit, unit=unit, task=task)
        return None


class Meter:
    """Counts the usage of a running step, and notes the model it reports."""

    __slots__ = ("_called", "_counted", "_is_model", "_paid", "_price", "model", "used")

    def __init__(self, price: tuple[float, float] | None, is_model: bool) -> None:
        self._price, self._is_model = price, is_model
        self.model: str | None = None
        self.used = Usage()
        self.start_attempt()

    def start_attempt(self) -> None:
        """Start an attempt."""
        self._called = self._counted = self._paid = False

    def use(
        self, input_tokens: int, output_tokens: int, cost: float | None, model: str | None
    ) -> None:
        """Count usage that the step's function reports."""
        for name, tokens in (("input_tokens", input_tokens), ("output_tokens", output_tokens)):
            if type(tokens) is not int or not 0 <= tokens <= MAX_AMOUNT:
                raise ValueError(f"{name} must be an integer >= 0, got {describe_value(tokens)}")
        if cost is not None and (type(cost) not in (int, float) or not 0 <= cost <= MAX_AMOUNT):
            raise ValueError(f"cost must be a number >= 0, got {describe_value(cost)}")
        if model is not None and type(model) is not str:
            raise TypeError(f"model must be a name, got {type(model).__name__}")
        self.model = model or self.model
        self._add(input_tokens, output_tokens, cost)

    def count_result(self, value: object) -> None:
        """Count the usage in a model's answer, unless the function has reported it itself."""
        tokens = (0, 0) if self._counted else extract_usage(value)
        self._add(*tokens, cost=0.0 if self._paid else None)

    def _add(self, input_tokens: int, output_tokens: int, cost: float | None) -> None:
        # An attempt of a model step is one call, however often it reports usage.
        calls = 0 if self._is_model and self._called else 1
        if cost is not None:
            self._paid = True
        elif self._price is not None:
            cost = (
                input_tokens * self._price[0] + output_tokens * self._price[1]
            ) / TOKENS_PER_PRICE
        self._counted = self._counted or input_tokens + output_tokens > 0
        self._called = True
        self.used += Usage(calls, input_tokens, output_tokens, cost or 0.0)


def extract_usage(value: object) -> tuple[int, int]:
    """Return the input and output tokens that a model's answer reports; (0, 0) if it has none."""
    for name in ("usage", "usage_metadata"):
        usage = _get(value, name)
        found = [_tokens(usage, names) for names in _NAMES] if usage is not None else []
        if any(found):
            return found[0], found[1]
    return 0, 0


_NAMES: Final = (("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens"))


def _tokens(usage: object, names: tuple[str, ...]) -> int:
    for name in names:
        count = _get(usage, name)
        if type(count) is int and 0 <= count <= MAX_AMOUNT:
            return count
    return 0


def _get(value: object, name: str) -> Any:
    try:
        return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    except Exception:  # a property of a foreign class fails; the answer itself is fine
        return None


def check_price(price: object) -> None:
    """Raise ValueError if the price is not valid."""
    if price is None:
        return
    if (
        not isinstance(price, tuple)
        or len(price) != 2
        or any(type(each) not in (int, float) or not 0 <= each <= MAX_AMOUNT for each in price)
    ):
        raise ValueError(
            "price must be two numbers >= 0, the cost of a million input and output tokens,"
            " like price=(1.25, 10)"
        )
