"""The pytest plugin of Holdfast: fixtures for applications that use it.

It is outside the package so that pytest imports Holdfast only when a test uses a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from holdfast import Store
    from holdfast.testing import FakeClock


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("holdfast").addoption(
        "--holdfast-store",
        default="sqlite",
        metavar="KIND",
        help="Store of holdfast_store: sqlite (default), files, memory, or a URL (new tenant).",
    )


@pytest.fixture
def holdfast_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store for one test; --holdfast-store chooses the kind."""
    from holdfast.testing.stores import store_at

    with store_at(request.config.getoption("--holdfast-store"), tmp_path) as store:
        yield store


@pytest.fixture
def holdfast_clock() -> Iterator[FakeClock]:
    """A fake clock: `holdfast_clock.advance(3600)`."""
    from holdfast.testing import fake_clock

    with fake_clock() as clock:
        yield clock


@pytest.fixture
def holdfast_ids() -> Iterator[None]:
    """Ids and salts that are the same in every run."""
    from holdfast.testing import seeded_ids

    with seeded_ids():
        yield
