"""Fixtures of the tests in this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import holdfast
from helpers.stored.scripted_log import Scripted
from holdfast._store import Store
from holdfast.log.log import Log


@pytest.fixture
def backend() -> Scripted:
    return Scripted()


@pytest.fixture
def log(backend: Scripted) -> Iterator[Log]:
    log = Log(backend, timeout=0.05, pause=lambda seconds: None)
    yield log
    log.close()


@pytest.fixture
def stream(log: Log) -> holdfast.Stream:
    return Store(log, "default").stream("s")
