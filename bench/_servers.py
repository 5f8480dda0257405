"""Servers of our own for the benchmark: from wheels, on loopback, gone at the end. They are those
of the tests."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from holdfast.backends.filesystem import detect_filesystem

from ._measure import Lab

if TYPE_CHECKING:
    from helpers.engines.postgres_server import PostgresServer

TESTS = Path(__file__).resolve().parent.parent / "tests"


@contextmanager
def postgres(lab: Lab, **settings: object) -> Iterator[PostgresServer]:
    """A started PostgreSQL with the settings of a fresh installation, but for these. Says what it
    is and where its data is."""
    with from_tests("helpers.engines.postgres_server").running(**settings) as server:
        names = ("server_version", "fsync", "synchronous_commit", "shared_buffers")
        [values] = server.sql("SELECT " + ", ".join(f"current_setting('{name}')" for name in names))
        told = ", ".join(
            f"{name} {value}" for name, value in zip(names[1:], values[1:], strict=True)
        )
        where = detect_filesystem(tempfile.gettempdir()) or "unknown"
        lab.remark(
            f"PostgreSQL {values[0]} on loopback, {told}, data on {where}; "
            f"psycopg {psycopg.__version__}"
        )
        yield server


def from_tests(module: str) -> Any:
    """A module of the tests."""
    sys.path.insert(0, str(TESTS))
    try:
        return import_module(module)
    finally:
        sys.path.remove(str(TESTS))
