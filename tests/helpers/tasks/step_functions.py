"""Functions for steps: they count, fail, or must not be called."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any, Optional

from helpers.sync_and_async import Ways, view


class Stop(BaseException):
    """The process is gone: what was written is there, the program did not go on."""


def never(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("a finished step was run again")


def fail(message: str = "no") -> Any:
    raise ValueError(message)


class Counting:
    """A function that notes its calls and does what it is told: raise, or return."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes, self.calls = list(outcomes), list[Any]()

    def __call__(self, *args: Any) -> Any:
        self.calls.append(args[0] if len(args) == 1 else args)
        outcome = self.outcomes.pop(0) if self.outcomes else len(self.calls)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


def paths(ways: Ways, id: str = "t") -> list[str]:
    return [step.path for step in view(ways, id).steps]


@dataclass
class Order:
    number: int
    price: Decimal
    at: datetime
    tags: set[str] = field(default_factory=set)
    inner: Optional[Order] = None  # noqa: UP045  get_type_hints on Python 3.10 and a class that names itself


AT = datetime(2026, 5, 1, 12, 30, tzinfo=timezone.utc)

ORDER = Order(7, Decimal("1.10"), AT, {"b", "a"}, Order(8, Decimal("0"), AT))


def nothing() -> None:
    return None


async def idle(task: Any) -> None:
    return None
