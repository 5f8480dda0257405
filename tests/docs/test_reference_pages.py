"""The pages of limits, environment variables and statuses say what the code says."""

from __future__ import annotations

import re
from importlib import import_module
from typing import get_args

from helpers.doc_pages import ROOT
from holdfast.backends.deadline import DEFAULT_TIMEOUT
from holdfast.log.head_fields import TASK_TTL
from holdfast.tasks.agents import declare
from holdfast.tasks.run.enter import MAX_CRASHES
from holdfast.tasks.state.view import STATUSES, StepStatus
from holdfast.tasks.steps.doubt import CHECK_AFTER_SECONDS

UNITS = {"MiB": 1024**2, "KiB": 1024, "bytes": 1, "levels": 1, "characters": 1, "": 1}


def read_rows(page: str, section: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without its header."""
    text = (ROOT / "docs/reference" / page).read_text()
    table = text.partition(f"## {section}\n")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def test_the_limits_are_those_of_the_code() -> None:
    rows = read_rows("limits.md", "Of the library")
    assert len(rows) >= 7
    for what, value, name in rows:
        module, _, constant = name.strip("`").rpartition(".")
        number, _, unit = value.partition(" ")
        assert getattr(import_module(module), constant) == int(number) * UNITS[unit], what


def test_the_times_are_those_of_the_code() -> None:
    values = [value for _, value, _ in read_rows("limits.md", "Times")]
    assert values == [
        f"{DEFAULT_TIMEOUT:g} seconds",
        f"{declare.DEFAULT_LEASE:g} seconds",
        f"{CHECK_AFTER_SECONDS:g} seconds",
        f"{TASK_TTL.days} days",
        str(declare.DEFAULT_ATTEMPTS),
        str(MAX_CRASHES),
    ]


def test_every_environment_variable_is_documented() -> None:
    page = (ROOT / "docs/reference/environment.md").read_text()
    sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    names = set(re.findall(r"\bHOLDFAST_[A-Z_]*[A-Z]\b", sources))
    assert names == set(re.findall(r"^\| `(HOLDFAST_\w+)` \|", page, re.MULTILINE))


def test_every_status_is_documented() -> None:
    tasks = [row[0].strip("`") for row in read_rows("statuses-and-events.md", "Statuses of a task")]
    steps = [row[0].strip("`") for row in read_rows("statuses-and-events.md", "Statuses of a step")]
    assert sorted(tasks) == sorted(STATUSES)
    assert sorted(steps) == sorted(get_args(StepStatus))
