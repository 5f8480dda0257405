"""Fixtures of the tests in this folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from helpers.tasks.checkpoints import Both
from helpers.tasks.held_tasks import entered
from holdfast.tasks.steps import failures
from holdfast.testing import fake_clock


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "retry_delay", lambda attempt: 0.0)


@pytest.fixture(autouse=True)
def leave_everything() -> Iterator[None]:
    yield
    while entered:  # what a test did not leave: its store is closed by now
        task = entered.pop()
        task._exit_frame()
        task._close_block(task._entry)


@pytest.fixture
def clock() -> Iterator[Any]:
    with fake_clock() as clock:
        yield clock


@pytest.fixture(params=["plain", "async"])
def both(request: pytest.FixtureRequest, store: holdfast.Store) -> Both:
    return Both(store, request.param == "async")
