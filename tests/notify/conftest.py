"""Fixtures of the tests in this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from helpers.receiver import Receiver
from holdfast import testing


@pytest.fixture(autouse=True)
def _no_agents(no_agents: None) -> None:
    pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def clock() -> Iterator[testing.FakeClock]:
    with testing.fake_clock() as clock:
        yield clock
