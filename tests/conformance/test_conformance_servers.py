"""The server backends pass the whole conformance suite, on real servers."""

from __future__ import annotations

from pathlib import Path

from helpers.example_counts import examples
from helpers.servers import url_on
from holdfast.backends import Backend
from holdfast.backends.dynamodb import DynamoDBBackend
from holdfast.backends.postgres import PostgresBackend
from holdfast.backends.redis import RedisBackend
from holdfast.backends.s3 import S3Backend
from holdfast.conformance import DurableBackendConformance
from holdfast.conformance.names import ODD


class TestPostgres(DurableBackendConformance):
    model_examples = examples(15)

    def open_backend(self, place: Path) -> Backend:
        return PostgresBackend(url_on("postgres", place))


class TestPartitionedPostgres(DurableBackendConformance):
    model_examples = examples(5)

    def open_backend(self, place: Path) -> Backend:
        return PostgresBackend(url_on("postgres", place) + "&partitions=4")


class TestRedis(DurableBackendConformance):
    def open_backend(self, place: Path) -> Backend:
        return RedisBackend(url_on("redis", place))


class Simulated(DurableBackendConformance):
    """Less of everything: each answer of a simulated AWS takes milliseconds. The protocol has all
    of it in memory, in test_objects."""

    model_examples, model_steps, many_streams, writes_beside_readers = 2, 10, 110, 30
    odd_names = ODD[::12]


class TestS3(Simulated):
    def open_backend(self, place: Path) -> Backend:
        return S3Backend(url_on("s3", place))


class TestDynamoDB(Simulated):
    def open_backend(self, place: Path) -> Backend:
        return DynamoDBBackend(url_on("dynamodb", place))
