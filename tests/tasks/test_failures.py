"""Why a step or a task failed: where the exception was raised, and what caused it."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast
from helpers.sync_and_async import Ways
from holdfast import Failure, StepFailed, Store

HERE = __file__
CANARY = "canary-in-a-local-variable"
SECRET = "sk-abcdefghijklmnopqrstuvwxyz0123456789"


def look_up(kind: str) -> int:
    return {"car": 1}[kind]


def assess(kind: str) -> int:
    try:
        return look_up(kind)
    except KeyError as error:
        raise ValueError(f"no price for {kind}") from error


def shown(failure: Failure | None) -> list[str]:
    """The frames of a failure, as function and source line."""
    assert failure is not None
    return [f"{frame.function}: {frame.source}" for frame in failure.frames]


@pytest.mark.every_engine
def test_a_failed_step_has_the_lines_of_the_program_and_the_cause(ways: Ways) -> None:
    async def program() -> None:
        async with ways.task() as task:
            await task.step("assess", assess, "boat")

    with pytest.raises(StepFailed):
        ways.run(program())
    view = ways.store.get_task("t")
    assert view is not None and view.error is not None
    failure = view.steps[0].error
    assert failure is not None
    assert (failure.type, failure.message, failure.attempt) == (
        "ValueError",
        "no price for boat",
        1,
    )
    assert shown(failure) == ['assess: raise ValueError(f"no price for {kind}") from error']
    assert [frame.file for frame in failure.frames] == [HERE]
    assert (
        Path(HERE).read_text().splitlines()[failure.frames[0].line - 1].strip().startswith("raise")
    )
    cause = failure.cause
    assert cause is not None
    assert (cause.type, cause.message, failure.implicit) == ("KeyError", "'boat'", False)
    assert shown(cause) == ["assess: return look_up(kind)", 'look_up: return {"car": 1}[kind]']


@pytest.mark.every_engine
def test_a_failed_task_has_its_own_lines_and_the_failure_of_the_step_as_its_cause(
    ways: Ways,
) -> None:
    async def program() -> None:
        async with ways.task() as task:
            await task.step("assess", assess, "boat")

    with pytest.raises(StepFailed):
        ways.run(program())
    view = ways.store.get_task("t")
    assert view is not None and view.error is not None
    assert (view.error.type, view.error.step, view.error.attempt) == ("StepFailed", "assess", 1)
    assert view.error.cause == view.steps[0].error == view.error.root
    assert any("await task.step" in line for line in shown(view.error))
    printed = str(view.error).splitlines()
    assert printed[-1] == "ValueError: no price for boat"
    assert "KeyError: 'boat'" in printed
    assert not any("holdfast" in frame.file for frame in view.error.frames)


@pytest.mark.slow
def test_a_failure_names_the_attempt(store: Store) -> None:
    @holdfast.step(max_attempts=2)
    def flaky() -> str:
        raise ConnectionError("the line is dead")

    with pytest.raises(StepFailed), store.task("t"):
        flaky()
    view = store.get_task("t")
    assert view is not None and view.steps[0].error is not None
    assert view.steps[0].error.attempt == 2
    assert shown(view.steps[0].error) == ['flaky: raise ConnectionError("the line is dead")']


def test_an_exception_without_from_says_that_its_cause_was_being_handled(store: Store) -> None:
    def clean_up() -> None:
        try:
            look_up("boat")
        except KeyError:
            raise OSError("the disk is full")  # noqa: B904

    def hide() -> None:
        try:
            look_up("boat")
        except KeyError:
            raise OSError("the disk is full") from None

    for name, function in (("clean_up", clean_up), ("hide", hide)):
        with pytest.raises(StepFailed), store.task(name) as task:
            task.step(name, function)
    implicit, hidden = (store.get_task(name) for name in ("clean_up", "hide"))
    assert implicit is not None and hidden is not None
    failure, alone = implicit.steps[0].error, hidden.steps[0].error
    assert failure is not None and failure.cause is not None and alone is not None
    assert (failure.implicit, failure.cause.type) == (True, "KeyError")
    assert "While handling this exception, another one was raised:" in str(failure)
    assert alone.cause is None


def test_a_function_without_lines_shows_none_of_the_library(store: Store) -> None:
    with pytest.raises(StepFailed), store.task("t") as task:
        task.step("parse", int, "x")
    view = store.get_task("t")
    assert view is not None and view.error is not None
    assert shown(view.steps[0].error) == []
    assert shown(view.error)[-1].endswith('task.step("parse", int, "x")')


@pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])
def test_a_step_that_takes_too_long_says_how_long_it_may_take(
    store: Store, asynchronous: bool
) -> None:
    async def work() -> None:
        async with store.aio.task("t") as task:
            await task.step("wait", holdfast.step(asyncio.sleep, timeout=0.01), 30)

    with pytest.raises(StepFailed):
        if asynchronous:
            asyncio.run(work())
        else:
            with store.task("t") as task:
                task.step("wait", holdfast.step(threading.Event().wait, timeout=0.01), 0.5)
    view = store.get_task("t")
    assert view is not None and view.steps[0].error is not None
    failure = view.steps[0].error
    assert (failure.type, failure.message) == (
        "TimeoutError",
        "it took longer than its timeout of 0.01 s",
    )
    assert shown(failure) == []


def test_a_time_out_of_the_function_itself_keeps_its_message(store: Store) -> None:
    async def ask() -> None:
        raise asyncio.TimeoutError("the model did not answer")

    async def work() -> None:
        async with store.aio.task("t") as task:
            await task.step("ask", holdfast.step(ask, timeout=30))

    with pytest.raises(StepFailed, match="the model did not answer"):
        asyncio.run(work())


def test_a_failed_run_outside_of_steps_has_its_lines_too(store: Store) -> None:
    with pytest.raises(KeyError), store.task("t"):
        look_up("boat")
    view = store.get_task("t")
    assert view is not None and view.error is not None
    assert view.error.root is view.error
    assert shown(view.error)[-1] == 'look_up: return {"car": 1}[kind]'


def test_a_failure_of_an_inner_step_is_the_cause_of_the_outer_one(store: Store) -> None:
    @holdfast.step
    def inner() -> int:
        return look_up("boat")

    @holdfast.step
    def outer() -> int:
        return inner()

    with pytest.raises(StepFailed), store.task("t"):
        outer()
    view = store.get_task("t")
    assert view is not None and view.error is not None
    assert (view.error.step, view.error.root.type) == ("outer", "KeyError")
    lines = str(view.error).splitlines()
    order = [line.strip() for line in lines if line.startswith("    ")]
    assert order == [
        "outer()",
        "return inner()",
        'return look_up("boat")',
        'return {"car": 1}[kind]',
    ]


def test_a_task_that_tries_again_has_no_failure_until_it_fails_again(store: Store) -> None:
    with pytest.raises(StepFailed), store.task("t") as task:
        task.step("assess", assess, "boat")
    with store.task("t") as task:
        assert task.view().error is None
        task.step("assess", lambda kind: 7, "boat")
    view = store.get_task("t")
    assert view is not None
    assert (view.error, view.steps[0].error) == (None, None)


@pytest.mark.parametrize("how", ["keyword", "url"])
def test_tracebacks_can_be_turned_off(tmp_path: Path, how: str) -> None:
    path = f"{tmp_path}/agents.db"
    store = (
        holdfast.open(path, tracebacks=False)
        if how == "keyword"
        else holdfast.open(f"sqlite:///{path}?tracebacks=off")
    )
    with store:
        with pytest.raises(StepFailed), store.task("t") as task:
            task.step("assess", assess, "boat")
        view = store.get_task("t")
        assert view is not None and view.error is not None
        assert view.steps[0].error == Failure("ValueError", "no price for boat", 1)
        assert view.error.root == view.steps[0].error
        assert HERE not in str([event.data for event in store.task("t").history()])


def test_the_url_and_the_keyword_must_not_contradict() -> None:
    with pytest.raises(holdfast.errors.InvalidURL, match="'tracebacks' already"):
        holdfast.open("memory://?tracebacks=off", tracebacks=True)
    with pytest.raises(holdfast.errors.InvalidURL, match="must be 'on' or 'off'"):
        holdfast.open("memory://?tracebacks=perhaps")


def hook(field: str, text: str) -> str:
    return text.replace("Rosebud", "[a name]")


@pytest.mark.parametrize("redact", [True, hook])
def test_secrets_in_an_exception_are_redacted_wherever_it_is_kept(redact: Any) -> None:
    def call() -> None:
        try:
            raise KeyError(f"Rosebud {SECRET}")
        except KeyError as error:
            raise ValueError(f"Rosebud api_key={SECRET}") from error

    with holdfast.open("memory://", redact=redact) as store:
        with pytest.raises(StepFailed), store.task("t") as task:
            task.step("call", call)
        view = store.get_task("t")
        assert view is not None
        stored = str([event.data for event in store.task("t").history()]) + str(view.error)
    assert SECRET not in stored
    assert "[redacted: " in stored
    if redact is hook:
        assert "Rosebud" not in stored and "[a name]" in stored


APP = f"""
import holdfast

def assess(kind):
    local = "{CANARY[:6]}" + "{CANARY[6:]}"
    try:
        return {{"car": 1}}[kind]
    except KeyError as error:
        raise ValueError("no price") from error

@holdfast.agent("claims", max_attempts=1)
def claims(task):
    other = "{CANARY[:6]}" + "{CANARY[6:]}"
    return task.step("assess", assess, "boat")

if __name__ == "__main__":
    import logging, sys
    logging.basicConfig(level=logging.DEBUG)
    with holdfast.open(sys.argv[1]) as store:
        store.submit("claims", "claim 7")
        for ran in store.run_due():
            print(ran.error, ran.failure)
"""


def test_values_of_variables_are_nowhere_in_the_store_the_log_and_the_output(
    tmp_path: Path,
) -> None:
    app, path = tmp_path / "app.py", tmp_path / "agents.db"
    app.write_text(APP)
    ran = subprocess.run(
        [sys.executable, str(app), str(path)], capture_output=True, text=True, check=True
    )
    assert ran.stdout.startswith("ValueError Traceback")
    assert f'File "{app}", line 9, in assess' in ran.stderr
    seen = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "task", str(path), "claim 7"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "error: ValueError: no price\n" in seen.stdout
    assert (
        f'File "{app}", line 9, in assess\n      raise ValueError("no price") from error'
        in seen.stdout
    )
    assert "KeyError: 'boat'" in seen.stdout
    assert "This exception was the direct cause" in seen.stdout
    assert f"holdfast retry {path} 'claim 7'" in seen.stdout
    raw = b"".join(file.read_bytes() for file in tmp_path.iterdir() if file != app)
    assert b"no price" in raw
    assert CANARY.encode() not in raw
    assert CANARY not in ran.stdout + ran.stderr + seen.stdout


def test_the_log_of_a_worker_names_the_real_exception_and_its_place_without_its_message(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    @holdfast.agent("claims", max_attempts=1)
    def claims(task: holdfast.Task) -> int:
        return task.step("assess", assess, "boat")

    store.submit("claims", "c")
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        [ran] = store.run_due()
    assert (ran.error, ran.failure is not None and ran.failure.root.message) == (
        "ValueError",
        "no price for boat",
    )
    [record] = [r for r in caplog.records if r.levelno == logging.WARNING]
    first, *lines = record.getMessage().splitlines()
    assert first.endswith(": ValueError")
    assert any("in assess" in line for line in lines)
    assert "no price for boat" not in record.getMessage()


def test_a_step_in_doubt_is_reported_with_what_happened(store: Store) -> None:
    @holdfast.step(once=True)
    def pay() -> str:
        raise ConnectionError("the line is dead")

    @holdfast.agent("payer", max_attempts=1)
    def payer(task: holdfast.Task) -> str:
        return pay()

    store.submit("payer", "p")
    [ran] = store.run_due()
    assert (ran.error, ran.in_doubt) == ("StepInDoubt", ("pay",))
    view = store.get_task("p")
    assert view is not None and view.steps[0].error is not None
    assert shown(view.steps[0].error) == ['pay: raise ConnectionError("the line is dead")']
    assert view.steps[0].result_schema == {"type": "string"}


def test_a_child_that_failed_shows_its_lines_in_the_parent(store: Store) -> None:
    @holdfast.agent("child", max_attempts=1)
    def child(task: holdfast.Task) -> int:
        return look_up("boat")

    with pytest.raises(holdfast.errors.ChildFailed), store.task("t") as task:
        task.run_child(child, "c")
    view = store.get_task("t")
    assert view is not None and view.error is not None
    assert view.error.root.type == "KeyError"
    assert shown(view.error.root) == [
        'child: return look_up("boat")',
        'look_up: return {"car": 1}[kind]',
    ]


def test_a_step_that_succeeds_records_no_traceback_and_looks_up_no_source(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    import linecache

    monkeypatch.setattr(linecache, "getline", lambda *_: pytest.fail("read a source line"))
    with store.task("t") as task:
        task.step("add", lambda: 1)
        task.finish(1)
    assert "trace" not in str([event.data for event in store.task("t").history()])


def test_a_traceback_does_not_grow_with_the_depth_of_the_stack(tmp_path: Path) -> None:
    def dig(depth: int) -> None:
        if depth == 0:
            raise ValueError("x" * 100_000)
        dig(depth - 1)

    path = tmp_path / "agents.db"
    with holdfast.open(path) as store:
        with pytest.raises(StepFailed), store.task("t") as task:
            task.step("dig", dig, 500)
        view = store.get_task("t")
    assert view is not None and view.steps[0].error is not None
    failure = view.steps[0].error
    assert (len(failure.frames), failure.omitted_frames) == (24, 501 - 24)
    assert "  [477 more frames]" in str(failure)
    with sqlite3.connect(path) as database:
        [size] = database.execute("SELECT max(length(body)) FROM records").fetchone()
    database.close()
    assert size < 16_000


def test_steps_that_name_each_other_as_their_cause_are_shown_once() -> None:
    def first() -> None:
        raise OSError("first")

    with holdfast.open("memory://") as store:
        with pytest.raises(StepFailed), store.task("t") as task:
            try:
                task.step("a", first)
            except StepFailed:
                task.step("b", look_up, "boat")
        view = store.get_task("t")
    assert view is not None and view.error is not None
    assert (view.error.step, view.error.root.type) == ("b", "KeyError")
    again = view.error.root.cause
    assert again is not None
    assert (again.step, again.root.message) == ("a", "first")
