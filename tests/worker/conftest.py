"""Fixtures of the tests in this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import holdfast
from helpers.tasks.running_workers import Watched
from holdfast import Store, testing
from holdfast.backends.memory import MemoryBackend


@pytest.fixture(autouse=True)
def _no_agents(no_agents: None) -> None:
    pass


@pytest.fixture
def watched() -> Watched:
    return Watched(MemoryBackend())


@pytest.fixture
def watched_store(watched: Watched) -> Iterator[Store]:
    with holdfast.open(watched) as store:
        yield store


@pytest.fixture
def clock() -> Iterator[testing.FakeClock]:
    with testing.fake_clock() as clock:
        yield clock
