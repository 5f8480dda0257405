"""The stores of these tests: memory and SQLite, each by an object of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from helpers.stores import url_of


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[holdfast.Store]:
    with holdfast.open(url_of(request.param, tmp_path)) as store:
        yield store
