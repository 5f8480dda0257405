"""Metrics: counted in this process, and read from the store, for Prometheus and OpenTelemetry."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

import holdfast
from helpers.tasks.needy_agents import register_needy_agents, submit_needy
from holdfast import Store, Task, notify, telemetry, testing
from holdfast.errors import LeaseLost


def scrape(store: Store) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """What a real parser reads."""
    found = {}
    for family in text_string_to_metric_families(telemetry.prometheus_text(store)):
        assert family.documentation
        for sample in family.samples:
            found[sample.name, frozenset(sample.labels.items())] = sample.value
    return found


def value(store: Store, name: str, **labels: str) -> float:
    return scrape(store)[name, frozenset(labels.items())]


def think() -> str:
    holdfast.current_step().use(input_tokens=10, output_tokens=20, cost=0.5, model="gpt-5")
    return "x"


def register_agent() -> None:
    @holdfast.agent("a")
    def agent(task: Task) -> object:
        task.step("think", holdfast.step(kind="model")(think))
        task.step("tool", str, 1)
        return task.ask("q", "?")


@pytest.mark.every_engine
def test_what_a_process_does_is_counted(store: Store, metrics: telemetry.Metrics) -> None:
    register_agent()
    store.submit("a", "t")
    store.run_due()
    store.answer("t", "q", 1)
    store.run_due()
    found = scrape(store)

    def count(name: str, **labels: str) -> float:
        return found[f"holdfast_{name}", frozenset(labels.items())]

    assert count("appends_total", kind="task") >= 6
    assert count("append_bytes_total", kind="task") > 500
    assert count("append_seconds_count", kind="task") == count("appends_total", kind="task")
    assert count("runs_total", agent="a", outcome="suspended") == 1
    assert count("runs_total", agent="a", outcome="finished") == 1
    assert count("resumes_total", agent="a") == 1
    assert count("steps_total", kind="model", outcome="ran") == 1
    assert count("steps_total", kind="tool", outcome="ran") == 1
    assert count("model_calls_total", model="gpt-5") == 1
    assert count("input_tokens_total", model="gpt-5") == 10
    assert count("output_tokens_total", model="gpt-5") == 20
    assert count("cost_total", model="gpt-5") == 0.5
    assert count("steps_not_repeated_total", agent="a") == 2
    assert count("tokens_not_repeated_total", agent="a") == 30
    assert count("cost_not_repeated_total", agent="a") == 0.5
    assert count("seconds_not_repeated_total", agent="a") > 0
    assert count("step_seconds_bucket", kind="tool", le="+Inf") == 1


def test_reading_the_record_of_an_ended_task_saves_nothing(
    store: Store, metrics: telemetry.Metrics
) -> None:
    with store.task("t") as task:
        task.step("tool", str, 1)
    with store.task("t") as task:
        task.finish(1)
    with store.task("t") as task:
        task.step("tool", str, 1)
    assert ("holdfast_steps_not_repeated_total", frozenset({("agent", "")})) not in scrape(store)


def steal(store: Store) -> None:
    with store.task("u", steal=True):
        pass


def test_trouble_is_counted(
    store: Store, metrics: telemetry.Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    register_needy_agents()
    submit_needy(store, "doubt")
    store.run_due()
    assert value(store, "holdfast_steps_total", kind="tool", outcome="doubt") == 1
    assert value(store, "holdfast_steps_in_doubt_total", agent="needy") == 1

    @holdfast.agent("steps")
    def steps(task: Task) -> None:
        task.step("step", str, 1)

    store.submit("steps", "t")
    with testing.crash(before="step"):
        store.run_due()
    store.run_due()
    assert value(store, "holdfast_runs_killed_total", agent="steps") == 1
    with pytest.raises(LeaseLost):
        with store.task("u") as task:
            thief = threading.Thread(target=steal, args=(store,))
            thief.start()
            thief.join()
            task.step("step", str, 1)
    assert value(store, "holdfast_leases_lost_total", agent="") == 1
    stream = store.stream("s")
    stream.append(("e", 1))
    with pytest.raises(holdfast.Conflict):
        stream.append(("e", 2), if_version=0)
    assert value(store, "holdfast_conflicts_total", kind="stream") == 1
    stream.append(("e", 3), id="x")
    stream.append(("e", 3), id="x")
    assert value(store, "holdfast_append_duplicates_total", kind="stream") == 1


def test_a_doubt_after_a_kill_is_counted(store: Store, metrics: telemetry.Metrics) -> None:
    @holdfast.agent("paying")
    def paying(task: Task) -> None:
        task.step("pay", holdfast.step(once=True)(str), 1)

    store.submit("paying", "t")
    with testing.crash(before="pay"):
        store.run_due()
    store.run_due()
    view = store.get_task("t")
    if view is not None and view.in_doubt:
        assert value(store, "holdfast_steps_in_doubt_total", agent="paying") == 1


@pytest.mark.every_engine
def test_gauges_need_nothing_but_the_store(store: Store, clock: testing.FakeClock) -> None:
    register_needy_agents()
    for need in ("question", "failed", "doubt"):
        submit_needy(store, need)
    store.run_due()
    submit_needy(store, "nothing", 'a "queued"\\ task')
    clock.advance(90)
    found = scrape(store)

    def gauge(name: str, **labels: str) -> float:
        return found[f"holdfast_{name}", frozenset(labels.items())]

    assert gauge("tasks", status="suspended") == 1
    assert gauge("tasks", status="failed") == 1
    assert gauge("tasks", status="pending") == 2
    assert gauge("tasks_due") == 1
    assert gauge("oldest_due_seconds") == pytest.approx(90, abs=2)
    assert gauge("tasks_in_doubt") == 1
    assert not any("_total" in name for name, _ in found)


def test_undelivered_notifications_are_counted(store: Store) -> None:
    register_needy_agents()
    submit_needy(store, "failed")
    store.run_due()

    def refuse(_told: notify.Notification) -> None:
        raise OSError

    notify.deliver_due(store, [notify.Callback(refuse, give_up_after=0)])
    name = "holdfast_tasks_with_undelivered_notifications"
    assert value(store, name, status="dead") == 1
    assert value(store, name, status="retrying") == 0


def test_labels_are_escaped(store: Store, metrics: telemetry.Metrics) -> None:
    name = 'an "agent"\\ of\nmine'

    @holdfast.agent(name)
    def agent(task: Task) -> None:
        pass

    store.submit(name, "t")
    store.run_due()
    assert value(store, "holdfast_runs_total", agent=name, outcome="finished") == 1


def test_opentelemetry_gets_the_same(store: Store) -> None:
    reader = InMemoryMetricReader()
    metrics = telemetry.start_metrics(MeterProvider([reader]), store=store)
    try:
        register_agent()
        store.submit("a", "t")
        store.run_due()
        found: dict[str, Any] = {}
        data = reader.get_metrics_data()
        assert data is not None
        for scope in data.resource_metrics[0].scope_metrics:
            for metric in scope.metrics:
                found[metric.name] = list(metric.data.data_points)
        [runs] = found["holdfast.runs"]
        assert (runs.value, dict(runs.attributes)) == (1, {"agent": "a", "outcome": "suspended"})
        tokens = {
            point.attributes["gen_ai.token.type"]: point.sum
            for point in found["gen_ai.client.token.usage"]
        }
        assert tokens == {"input": 10, "output": 20}
        assert found["gen_ai.client.operation.duration"][0].count == 1
        assert found["holdfast.append.duration"][0].count > 0
        suspended = [
            point.value
            for point in found["holdfast.tasks"]
            if point.attributes["status"] == "suspended"
        ]
        assert suspended == [1]
        assert [point.value for point in found["holdfast.tasks_due"]] == [0]
    finally:
        metrics.stop()


def test_metrics_are_started_once(metrics: telemetry.Metrics) -> None:
    with pytest.raises(RuntimeError, match="already running"):
        telemetry.start_metrics()


@pytest.fixture
def clock() -> Any:
    with testing.fake_clock() as clock:
        yield clock
