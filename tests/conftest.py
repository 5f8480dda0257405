"""What all tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from servers import SERVERS, url_on

URLS = ("memory", "sqlite", "files", "postgres")


def url_of(name: str, place: Path) -> str:
    """The URL of an empty store of this kind below `place`."""
    if name in SERVERS:
        return url_on(name, place)
    return {"memory": "memory://", "sqlite": str(place / "agents.db"), "files": f"file://{place}/agents"}[name]


@pytest.fixture(params=URLS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store on each backend in turn."""
    return url_of(request.param, tmp_path)


@pytest.fixture(params=[name for name in URLS if name != "memory"])
def durable_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store on each backend that outlives the process."""
    return url_of(request.param, tmp_path)


@pytest.fixture(params=("sqlite", "files"))
def local_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store on each backend whose files are below `tmp_path`."""
    return url_of(request.param, tmp_path)


@pytest.fixture
def store(url: str) -> Iterator[holdfast.Store]:
    with holdfast.open(url) as store:
        yield store
