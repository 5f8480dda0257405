"""Agents for the tests of what tasks leave to memory: run in processes of their own, and killed."""

from __future__ import annotations

from pathlib import Path

from holdfast import Task

RUNS = Path("runs")


def compare() -> str:
    return "A: 700, B: 650 without tax"


def buyer(task: Task) -> str:
    """Notes things, remembers one on the way, reads what it knows, and ends."""
    task.resume_context()
    task.step("compare", compare)
    task.discover("prices of vendor B are without tax")
    task.remember("Ann signs the orders")
    task.decide("vendor A", why="the only one with an SLA")
    return "three laptops ordered"


def fickle(task: Task) -> str:
    """Return another result in every other run, so one that was never recorded if it is killed
    before its end."""
    run = int(RUNS.read_text()) + 1 if RUNS.exists() else 1
    RUNS.write_text(str(run))
    task.discover("the vendor answers on Mondays")
    return f"offer number {run % 2}"
