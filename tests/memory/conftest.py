"""Fixtures of the tests of memory."""

from __future__ import annotations

import pytest


@pytest.fixture(params=[False, True], ids=["plain", "async"])
def asynchronous(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a hundred thousand memories take, with a few: words that lead bring three, and then the
    others follow."""
    monkeypatch.setattr("holdfast.memory.search.sqlite_search.WORK_DOCS", 3)
    monkeypatch.setattr("holdfast.memory.search.sqlite_search.FEW_DOCS", 3)
    monkeypatch.setattr("holdfast.memory.search.postgres_sql.WORK_DOCS", 3)
