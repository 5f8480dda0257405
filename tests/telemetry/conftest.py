"""Fixtures of the tests in this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast import telemetry


@pytest.fixture(autouse=True)
def _no_agents(no_agents: None) -> None:
    pass


@pytest.fixture
def provider() -> TracerProvider:
    return TracerProvider()


@pytest.fixture
def spans(provider: TracerProvider) -> Iterator[InMemorySpanExporter]:
    """What is exported while tracing is on."""
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = telemetry.start_tracing(provider)
    yield exporter
    tracing.stop()


@pytest.fixture
def metrics() -> Iterator[telemetry.Metrics]:
    metrics = telemetry.start_metrics()
    yield metrics
    metrics.stop()
