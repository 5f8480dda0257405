"""Spans of tasks, runs, steps and model calls: one connected trace for each task."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as gen_ai
from opentelemetry.trace import SpanKind, StatusCode

import holdfast
from helpers.sync_and_async import Ways
from holdfast import Store, Task, telemetry, testing
from holdfast.errors import MissingExtra


def named(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    [found] = [span for span in spans.get_finished_spans() if span.name == name]
    return found


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def check_connected(spans: InMemorySpanExporter) -> None:
    """Check that there is one trace with one root, and that every parent is there."""
    found = spans.get_finished_spans()
    assert len({span.context.trace_id for span in found}) == 1
    ids = [span.context.span_id for span in found]
    assert len(ids) == len(set(ids))
    assert [
        span.parent.span_id for span in found if span.parent and span.parent.span_id not in ids
    ] == []
    assert len([span for span in found if span.parent is None]) == 1


def think(model: str = "gpt-5") -> str:
    holdfast.current_step().use(input_tokens=10, output_tokens=20, cost=0.5)
    return "result-canary"


def inner(text: str) -> str:
    return text


def outer(text: str) -> str:
    return holdfast.current_task().step("inner", inner, text)  # type: ignore[union-attr,return-value]


@pytest.mark.every_engine
def test_a_task_is_one_connected_trace(ways: Ways, spans: InMemorySpanExporter) -> None:
    async def run(answer: bool) -> None:
        try:
            async with ways.task("t", goal="goal-canary") as task:
                await task.step("tool", inner, "argument-canary")
                await task.step("think", holdfast.step(kind="model")(think))
                if answer:
                    await task.ask("q", "question-canary")
                    await task.finish("result-canary")
                else:
                    await task.ask("q", "question-canary")
        except holdfast.Suspended:
            pass

    ways.run(run(False))
    ways.store.answer("t", "q", "answer-canary")
    ways.run(run(True))
    check_connected(spans)
    tree = [span.name for span in spans.get_finished_spans()]
    assert tree == ["execute_tool tool", "chat gpt-5", "invoke_agent t", "invoke_agent t", "task"]
    model = named(spans, "chat gpt-5")
    assert model.kind is SpanKind.CLIENT
    assert {key: value for key, value in attributes(model).items() if key.startswith("gen_ai")} == {
        gen_ai.GEN_AI_OPERATION_NAME: "chat",
        gen_ai.GEN_AI_REQUEST_MODEL: "gpt-5",
        gen_ai.GEN_AI_USAGE_INPUT_TOKENS: 10,
        gen_ai.GEN_AI_USAGE_OUTPUT_TOKENS: 20,
    }
    tool = attributes(named(spans, "execute_tool tool"))
    assert tool[gen_ai.GEN_AI_TOOL_NAME] == "tool"
    assert tool["holdfast.outcome"] == "completed"
    first, second = [span for span in spans.get_finished_spans() if span.name == "invoke_agent t"]
    assert [attributes(run)["holdfast.outcome"] for run in (first, second)] == [
        "suspended",
        "finished",
    ]
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    assert not any("canary" in span.to_json() for span in spans.get_finished_spans())


def test_steps_inside_steps_and_spans_of_others_are_inside(
    store: Store, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    def work() -> int:
        with provider.get_tracer("theirs").start_as_current_span("theirs"):
            return 1

    with provider.get_tracer("theirs").start_as_current_span("request"):
        with store.task("t") as task:
            task.step("outer", outer, "x")
            task.step("work", work)
            with provider.get_tracer("theirs").start_as_current_span("in the block"):
                task.finish(1)
    by_name = {span.name: span for span in spans.get_finished_spans()}

    def parent(name: str) -> str:
        above = by_name[name].parent
        ids = {span.context.span_id: span.name for span in by_name.values()}
        return "" if above is None else ids[above.span_id]

    assert parent("execute_tool inner") == "execute_tool outer"
    assert parent("execute_tool outer") == "invoke_agent t"
    assert parent("theirs") == "execute_tool work"
    assert parent("in the block") == "invoke_agent t"
    assert parent("request") == parent("task") == ""
    assert by_name["request"].context.trace_id != by_name["task"].context.trace_id


def test_spans_of_others_are_inside_however_a_step_is_called(
    ways: Ways, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    def record(name: str) -> None:
        provider.get_tracer("theirs").start_span(name).end()

    async def record_async(name: str) -> None:
        record(name)

    limited = holdfast.step(timeout=60)(record)
    called: dict[str, Any] = {"plain": record, "limited": limited}
    if ways.asynchronous:
        called |= {"async": record_async, "async limited": holdfast.step(timeout=60)(record_async)}

    async def program() -> None:
        async with ways.task("t") as task:
            for name, function in called.items():
                await task.step(name, function, f"in {name}")
                record(f"after {name}")

    ways.run(program())
    ids = {span.context.span_id: span.name for span in spans.get_finished_spans()}
    for name in called:
        inside, after = named(spans, f"in {name}").parent, named(spans, f"after {name}").parent
        assert inside is not None and ids[inside.span_id] == f"execute_tool {name}"
        assert after is not None and ids[after.span_id] == "invoke_agent t"


def test_failures_are_errors_without_messages(store: Store, spans: InMemorySpanExporter) -> None:
    def fail() -> None:
        raise OSError("message-canary")

    with pytest.raises(holdfast.StepFailed), store.task("t") as task:
        task.step("fail", fail)
    step, run = named(spans, "execute_tool fail"), named(spans, "invoke_agent t")
    assert [span.status.status_code for span in (step, run)] == [StatusCode.ERROR] * 2
    assert attributes(step)["error.type"] == "OSError"
    assert attributes(run)["error.type"] == "StepFailed"
    assert "canary" not in step.to_json() + run.to_json()


def test_a_cancelled_run_has_its_spans(store: Store, spans: InMemorySpanExporter) -> None:
    with store.task("t") as task:
        task.step("first", inner, "x")
        task.cancel(reason="reason-canary")
    check_connected(spans)
    assert attributes(named(spans, "task"))["holdfast.outcome"] == "cancelled"


def test_a_child_is_a_trace_that_links_to_its_parent(
    store: Store, spans: InMemorySpanExporter
) -> None:
    @holdfast.agent("child")
    def child(task: Task) -> int:
        return 1

    @holdfast.agent("parent")
    def parent(task: Task) -> object:
        return task.run_child("child", "c")

    store.submit("parent", "p")
    store.run_due()
    [link] = named(spans, "task child").links
    above = named(spans, "task parent").context
    assert (link.context.trace_id, link.context.span_id) == (above.trace_id, above.span_id)


def test_all_spans_of_a_task_are_sampled_or_none(store: Store) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(0.5)))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = telemetry.start_tracing(provider)
    try:
        for number in range(40):
            with store.task(f"t{number}") as task:
                task.step("step", inner, "x")
                task.finish(1)
    finally:
        tracing.stop()
    counts: dict[object, int] = {}
    for span in exporter.get_finished_spans():
        counts[span.context.trace_id] = counts.get(span.context.trace_id, 0) + 1
    assert set(counts.values()) == {3}
    assert 5 < len(counts) < 35


def test_tracing_is_started_once_and_stops(store: Store, spans: InMemorySpanExporter) -> None:
    with pytest.raises(RuntimeError, match="already running"):
        telemetry.start_tracing()


def test_without_opentelemetry_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(MissingExtra, match=r"holdfast\[otel\]"):
        telemetry.start_tracing()


def test_a_fork_has_a_trace_of_its_own(store: Store, spans: InMemorySpanExporter) -> None:
    with store.task("t") as task:
        task.step("step", inner, "x")
    store.task("t").fork("u")
    with store.task("u") as task:
        task.step("step", inner, "x")
        task.finish(1)
    found = spans.get_finished_spans()
    assert len({span.context.trace_id for span in found}) == 2
    assert {attributes(span)["holdfast.task.id"] for span in found} == {"t", "u"}


# -- processes that are killed ---------------------------------------------------------------------

PROGRAM = """
import json, os, signal, sys
import holdfast
from holdfast import telemetry
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

url, path, life = sys.argv[1], sys.argv[2], int(sys.argv[3])


class ToFile(SpanExporter):
    def export(self, spans):
        with open(path, "a") as file:
            for span in spans:
                file.write(json.dumps(json.loads(span.to_json())) + "\\n")
        return SpanExportResult.SUCCESS


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ToFile()))
telemetry.start_tracing(provider)


def inner(number):
    return number


def die(number):
    if number == life:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def outer(number):
    task = holdfast.current_task()
    task.step("inner", inner, number)
    return task.step("die", die, number)


with holdfast.open(url, durability="process", key=os.environ.get("HOLDFAST_KEY")) as store:
    with store.task("t") as task:
        for number in range(3):
            task.step("outer", outer, number)
        task.finish("done")
"""


@pytest.mark.slow
@pytest.mark.every_engine
@pytest.mark.long("dynamodb", "s3")
def test_a_task_that_was_killed_three_times_is_one_connected_trace(
    durable_url: str, tmp_path: Path
) -> None:
    program, exported = tmp_path / "program.py", tmp_path / "spans.jsonl"
    program.write_text(PROGRAM)
    for life in range(4):
        ended = subprocess.run([sys.executable, program, durable_url, exported, str(life)])
        assert ended.returncode == (-signal.SIGKILL if life < 3 else 0)
    spans = [json.loads(line) for line in exported.read_text().splitlines()]
    assert len({span["context"]["trace_id"] for span in spans}) == 1
    ids = [span["context"]["span_id"] for span in spans]
    assert len(ids) == len(set(ids))
    [root] = [span for span in spans if span["parent_id"] is None]
    assert root["name"] == "task"
    assert [span["name"] for span in spans if span["parent_id"] not in (None, *ids)] == []
    runs = [span for span in spans if span["name"].startswith("invoke_agent")]
    assert [run["attributes"]["holdfast.outcome"] for run in runs] == ["killed"] * 3 + ["finished"]
    for before, after in pairwise(runs):
        assert [link["context"]["span_id"] for link in after["links"]] == [
            before["context"]["span_id"]
        ]
    cut = [span for span in spans if span["attributes"]["holdfast.outcome"] == "interrupted"]
    assert [span["name"] for span in cut] == ["execute_tool outer"] * 3


def test_a_crash_that_is_simulated_leaves_a_connected_trace(
    store: Store, spans: InMemorySpanExporter
) -> None:
    @holdfast.agent("steps")
    def steps(task: Task) -> None:
        for number in range(3):
            task.step("outer", outer, str(number))

    store.submit("steps", "t")
    for write in (2, 3, 2):
        with testing.crash(write=write):
            store.run_due()
    store.run_due()
    check_connected(spans)
