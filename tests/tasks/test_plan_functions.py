"""Steps that the function of a plan calls: they belong to the plan, which is made once; plain and
async."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from helpers.paths import ROOT
from helpers.sync_and_async import Ways, view
from helpers.tasks.replays import record, replay
from helpers.tasks.step_functions import Counting, Stop, paths


def planner(ways: Ways, step: Any) -> Any:
    """A function that makes a plan from what a step finds, of the kind that is tested."""

    async def later() -> list[str]:
        return [f"read {found}" for found in [await step("news")]]

    def plan() -> list[str]:
        return [f"read {found}" for found in [step("news")]]

    return later if ways.asynchronous else plan


def search_step(ways: Ways, fn: Any, **options: Any) -> Any:
    async def search(what: str) -> str:
        return f"{what} {fn(what)}"

    def plain(what: str) -> str:
        return f"{what} {fn(what)}"

    plain.__name__ = "search"
    return holdfast.step(search if ways.asynchronous else plain, **options)


def test_after_a_resume_its_steps_are_not_orphaned(ways: Ways) -> None:
    fn = Counting()
    search = search_step(ways, fn)

    async def work(task: Any) -> Any:
        await task.make_plan(planner(ways, search))
        return [await task.step(item, str.upper, item) for item in task.remaining()]

    assert ways.resume(work) == ["READ NEWS 1"]
    for _ in range(2):
        assert ways.resume(work) == []
        seen = view(ways)
        assert (seen.orphaned, seen.preview().ok) == ([], True)
    assert fn.calls == ["news"]


def test_an_equal_call_of_the_program_is_another_step(ways: Ways) -> None:
    fn = Counting()
    search = search_step(ways, fn)

    async def work(task: Any) -> Any:
        await task.make_plan(planner(ways, search))
        return await task.step("search", search, "news")

    for _ in range(3):
        assert ways.resume(work) == "news 2"
    assert paths(ways) == ["search", "search#2"]
    assert view(ways).orphaned == []


@pytest.mark.parametrize("replanned", [False, True])
def test_a_new_plan_and_a_plan_inside_a_step_keep_their_steps_too(
    ways: Ways, replanned: bool
) -> None:
    search, end = search_step(ways, Counting()), Counting(Stop(), "end")

    async def work(task: Any) -> Any:
        if replanned:
            await task.make_plan(["start"])
        make = task.replan if replanned else task.make_plan
        await make(planner(ways, search))
        return end()

    with pytest.raises(Stop):
        ways.resume(work)
    assert ways.resume(work) == "end"
    assert (view(ways).orphaned, len(view(ways).steps)) == ([], 1)


def test_the_items_of_a_map_in_the_function_belong_to_it(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        async def later() -> Any:
            return await task.map("look", str.upper, ["a", "b"])

        def plan() -> Any:
            return task.plain.map("look", str.upper, ["a", "b"])

        return await task.make_plan(later if ways.asynchronous else plan)

    for _ in range(2):
        assert ways.resume(work) == ["A", "B"]
    assert view(ways).preview().ok


def test_a_function_that_was_cut_off_calls_its_steps_again(ways: Ways) -> None:
    fn, end = Counting(), Counting(Stop(), ["a"])
    search = search_step(ways, fn)

    async def work(task: Any) -> Any:
        async def later() -> Any:
            await search("news")
            return end()

        def plan() -> Any:
            search("news")
            return end()

        return await task.make_plan(later if ways.asynchronous else plan)

    with pytest.raises(Stop):
        ways.resume(work)
    for _ in range(2):
        assert ways.resume(work) == ["a"]
    assert fn.calls == ["news"]
    assert view(ways).orphaned == []


def test_a_step_that_must_not_run_twice_is_not_taken_for_one_of_the_function(ways: Ways) -> None:
    book = search_step(ways, Counting(), once=True)

    async def work(task: Any, crash: bool) -> Any:
        await task.make_plan(planner(ways, book))
        if crash:
            raise Stop
        return await task.step("book it", book, "news")

    with pytest.raises(Stop):
        ways.resume(lambda task: work(task, True))
    assert ways.resume(lambda task: work(task, False)) == "news 2"


def test_a_replay_knows_its_steps(ways: Ways) -> None:
    search = search_step(ways, Counting())

    async def body(task: Any) -> Any:
        await task.make_plan(planner(ways, search))
        return [await task.step(item, str.upper, item) for item in task.remaining()]

    record(ways, body)
    found = replay(ways, body)
    assert (found.ok, found.orphaned) == (True, [])


RELEASE = """
import sys
import holdfast

@holdfast.step
def search(what) -> list[str]:
    return ["read " + what]

@holdfast.step
def execute(item) -> str:
    return item.upper()

def agent(store):
    with store.task("t", agent="reader") as task:
        task.make_plan(search, "news")
        for item in task.remaining():
            task.step(item, execute, item)
            sys.exit()  # the process is gone

if __name__ == "__main__":
    with holdfast.open("scores.db") as store:
        agent(store)
"""


@pytest.mark.slow
def test_the_documented_gate_lets_an_unchanged_release_pass(tmp_path: Path) -> None:
    page = (ROOT / "docs/howto/deploy-while-tasks-run.md").read_text()
    gate = re.search(r'^GATE = """(.*?)"""', page, re.MULTILINE | re.DOTALL)
    assert gate is not None
    (tmp_path / "gate.py").write_text(gate[1])

    def run(release: str, program: str) -> tuple[int, str]:
        (tmp_path / "release.py").write_text(release)
        done = subprocess.run(
            [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    for _ in range(3):
        assert run(RELEASE, "release.py") == (0, "")
        assert run(RELEASE, "gate.py") == (0, "t True []\n")
    changed = RELEASE.replace('"read " + what', '"skim through " + what')
    assert run(changed, "gate.py") == (1, "t False [('search', 'code')]\n")
