"""Tasks that wait, as the tests see them."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pydantic
import pytest

from helpers.sync_and_async import Ways, view
from holdfast import Suspended


def waits(ways: Ways, work: Any, id: str = "t", **options: Any) -> Suspended:
    """Do the work in the task, and see that it has to wait."""
    with pytest.raises(Suspended) as caught:
        ways.resume(work, id, **options)
    seen = view(ways, id)
    assert seen.status == "suspended"
    assert seen.owner is None
    assert [info.status for info in ways.store.tasks() if info.id == id] == ["suspended"]
    return caught.value


async def approve(task: Any) -> Any:
    return await task.ask("payout", "Approve the payout?", {"sum": 41}, returns=bool)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Order(pydantic.BaseModel):
    number: int
    colour: Colour = Colour.RED
