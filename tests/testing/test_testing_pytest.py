"""The pytest plugin, in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.paths import ROOT

PLUGIN = "_holdfast_pytest"


def run_pytest(folder: Path, program: str, *options: str) -> str:
    (folder / "test_it.py").write_text(program)
    (folder / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, "-p", "no:cacheprovider", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


STORE = """
def test_the_store(holdfast_store):
    assert not list(holdfast_store.streams())
    holdfast_store.stream("s").append(("a", 1))
    print("engine:", holdfast_store.health().engine)

def test_the_store_of_another_test(holdfast_store):
    assert not list(holdfast_store.streams())
"""


@pytest.mark.parametrize(
    ("options", "engine"),
    [
        ([], "sqlite"),
        (["--holdfast-store=files"], "files"),
        (["--holdfast-store=memory"], "memory"),
        (["--holdfast-store=memory://shared"], "memory"),
    ],
)
def test_each_test_gets_an_empty_store_of_the_kind_that_is_asked_for(
    tmp_path: Path, options: list[str], engine: str
) -> None:
    assert f"engine: {engine}" in run_pytest(tmp_path, STORE, "-s", *options)


CLOCK = """
def test_the_clock_and_the_store_in_this_order(holdfast_clock, holdfast_store):
    expires(holdfast_clock, holdfast_store)

def test_the_clock_and_the_store_in_that_order(holdfast_store, holdfast_clock):
    expires(holdfast_clock, holdfast_store)

def expires(clock, store):
    with store.task("t", ttl=60) as task:
        task.finish("done")
    clock.advance(61)
    assert store.get_task("t") is None
"""


def test_the_clock_is_moved_by_hand(tmp_path: Path) -> None:
    assert "2 passed" in run_pytest(tmp_path, CLOCK)


IDS = """
def test_ids(holdfast_ids, holdfast_store):
    holdfast_store.stream("s").append(("a", 1))
    print("id:", next(iter(holdfast_store.stream("s").read())).id)
"""


def test_the_ids_are_the_same_in_every_run(tmp_path: Path) -> None:
    first, second = (
        [line for line in run_pytest(tmp_path, IDS, "-s").splitlines() if "id:" in line]
        for _ in range(2)
    )
    assert first == second and first


def test_pytest_does_not_import_holdfast_when_it_starts(tmp_path: Path) -> None:
    program = "import sys\n\ndef test_nothing():\n    assert 'holdfast' not in sys.modules\n"
    assert "1 passed" in run_pytest(tmp_path, program)


def test_the_plugin_is_registered_for_everybody_who_installs_holdfast() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert f'[project.entry-points.pytest11]\n{PLUGIN} = "{PLUGIN}"' in project
