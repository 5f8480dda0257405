"""Logs as JSON: one object per line, with facts and without content."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from helpers.tasks.needy_agents import SECRETS, register_needy_agents, submit_needy
from holdfast import Store, telemetry


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What the log writes."""
    stream, logger = io.StringIO(), logging.getLogger("holdfast")
    level = logger.level
    handler = telemetry.json_logs(stream)
    yield stream
    logger.removeHandler(handler)
    logger.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_append_is_one_line_of_facts(store: Store, written: io.StringIO) -> None:
    with holdfast.correlate("req-17", actor="checkout"):
        store.stream("orders").append(("placed", {"sku": "canary"}), ("paid", None))
    [line] = [line for line in lines(written) if line.get("kind") == "stream"]
    assert line["milliseconds"] > 0 and line["bytes"] > 0 and line["time"].endswith("Z")
    assert {key: line[key] for key in line if key not in ("milliseconds", "bytes", "time")} == {
        "level": "INFO",
        "logger": "holdfast",
        "message": line["message"],
        "event": "appended",
        "tenant": "default",
        "kind": "stream",
        "stream": "orders",
        "first": 1,
        "version": 2,
        "correlation": "req-17",
        "by": "checkout",
        "duplicate": False,
    }
    assert "canary" not in written.getvalue()


def test_a_whole_run_logs_no_content(store: Store, written: io.StringIO) -> None:
    register_needy_agents()
    for need in ("question", "failed", "doubt", "budget"):
        submit_needy(store, need)
    store.run_due()
    assert len(lines(written)) > 10
    assert not [secret for secret in SECRETS if secret in written.getvalue()]


def test_an_exception_is_logged_by_its_type(written: io.StringIO) -> None:
    try:
        raise ValueError("message-canary")
    except ValueError:
        logging.getLogger("holdfast").exception("cannot do it")
    [line] = lines(written)
    assert (line["message"], line["level"], line["error"]) == (
        "cannot do it",
        "ERROR",
        "ValueError",
    )
    assert "canary" not in written.getvalue()


def test_line_breaks_stay_inside_a_line(store: Store, written: io.StringIO) -> None:
    store.stream("a\nb").append(("e", 1))
    assert [line["stream"] for line in lines(written) if line.get("kind") == "stream"] == ["a\nb"]
