"""The pytest plugin of Holdfast: fixtures for tests of programs that use it.

Outside of the package, so that pytest does not import all of Holdfast when it starts: only a test that uses a fixture does.
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
        help="The store that holdfast_store gives: sqlite (default), files, memory, or a URL, of which a new tenant is used.",
    )


@pytest.fixture
def holdfast_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store for one test. The option --holdfast-store says which kind."""
    from holdfast.testing.stores import store_at

    with store_at(request.config.getoption("--holdfast-store"), tmp_path) as store:
        yield store


@pytest.fixture
def holdfast_clock() -> Iterator[FakeClock]:
    """The time as Holdfast sees it, moved by hand: `holdfast_clock.advance(3600)`."""
    from holdfast.testing import fake_clock

    with fake_clock() as clock:
        yield clock


@pytest.fixture
def holdfast_ids() -> Iterator[None]:
    """Ids and salts that are the same in every run."""
    from holdfast.testing import seeded_ids

    with seeded_ids():
        yield
