"""The server backends pass the whole conformance suite, on real servers."""

from __future__ import annotations

from pathlib import Path

from holdfast.backends import Backend
from holdfast.backends.postgres import PostgresBackend
from holdfast.backends.redis import RedisBackend
from holdfast.conformance import DurableBackendConformance
from servers import url_on


class TestPostgres(DurableBackendConformance):
    def open_backend(self, place: Path) -> Backend:
        return PostgresBackend(url_on("postgres", place))


class TestRedis(DurableBackendConformance):
    def open_backend(self, place: Path) -> Backend:
        return RedisBackend(url_on("redis", place))
