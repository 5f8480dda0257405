"""Fixtures of the tests in this folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from helpers.tasks.held_tasks import entered
from holdfast.tasks.steps import run
from holdfast.testing import fake_clock


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "retry_delay", lambda attempt: 0.0)


@pytest.fixture(autouse=True)
def leave_everything() -> Iterator[None]:
    yield
    while entered:  # what a test did not leave: its store is closed by now
        entered.pop()._exit_frame()


@pytest.fixture
def clock() -> Iterator[Any]:
    with fake_clock() as clock:
        yield clock
