"""Fixtures of the tests in this folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

import holdfast
from helpers.stored.expiring_streams import Wrapped
from holdfast import Store
from holdfast.admin import purge_quota
from holdfast.backends import Backend


@pytest.fixture
def wrapped(url: str) -> Iterator[tuple[Wrapped, Store]]:
    """A store on each backend in turn, with what wraps it."""
    with holdfast.open(url) as inner:
        backend = Wrapped(inner._log.backend)
        with holdfast.open(cast(Backend, backend)) as store:
            yield backend, store


@pytest.fixture
def without_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep goes by the share alone, so that few streams are enough to see it."""
    monkeypatch.setattr(purge_quota, "MIN_QUOTA", 0)
