"""Idempotency keys, progress of long steps, and steps in forked processes; plain and async."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import holdfast
from helpers.stores import ON_MEMORY
from helpers.sync_and_async import Ways, view
from helpers.tasks.step_functions import Stop, paths
from holdfast import StepFailed, StepInDoubt, Store
from holdfast.backends.faulty import FaultyBackend
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import NoTask, NotSerializable, Unavailable
from holdfast.tasks.run import sigterm
from holdfast.tasks.steps import progress as _progress

# -- keys for the outside --------------------------------------------------------------------------


def test_an_idempotency_key_is_the_same_across_retries_and_resumes(
    ways: Ways, no_pause: None
) -> None:
    keys: list[str] = []

    def note(x: int) -> Any:
        keys.append(holdfast.idempotency_key())
        assert holdfast.current_step().idempotency_key == keys[-1]
        if len(keys) < 4:
            raise ValueError("no")
        return 1

    with pytest.raises(StepFailed):
        ways.resume(lambda task: task.step("a", holdfast.step(note, max_attempts=3), 1))
    assert ways.resume(lambda task: task.step("a", note, 1)) == 1
    assert len(keys) == 4
    assert len(set(keys)) == 1
    assert len(keys[0]) == 64
    assert int(keys[0], 16)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_steps_that_come_in_another_order_on_resume_have_the_same_idempotency_keys(
    asynchronous: bool,
) -> None:
    backend = FaultyBackend(MemoryBackend(), seed=1)
    keys: dict[int, list[str]] = {1: [], 2: []}
    with holdfast.open(backend) as store:
        ways = Ways(store, asynchronous=asynchronous)

        def note(x: int) -> None:
            keys[x].append(holdfast.idempotency_key())
            backend._rates["unavailable"] = 1.0 if len(keys[1]) == 1 and not keys[2] else 0.0

        async def work(task: Any, order: list[int]) -> None:
            for x in order:
                await task.step("a", note, x)

        with pytest.raises(Unavailable):
            ways.resume(lambda task: work(task, [1, 2]), lease=0.2)
        backend._rates["unavailable"] = 0.0
        assert paths(ways) == [], "as if the process had been killed: nothing was written"
        ways.resume(lambda task: work(task, [2, 1]))
        assert paths(ways) == ["a", "a#2"]
    assert len(keys[1]) == 2
    assert keys[1][0] == keys[1][1] != keys[2][0]


def test_idempotency_keys_differ_by_step_and_key_and_scope_and_task(ways: Ways) -> None:
    give = holdfast.step(holdfast.idempotency_key, returns=str)

    async def work(task: Any) -> Any:
        found = [
            await task.step("a", give),
            await task.step("a", give),
            await task.step("b", give),
            await task.step("a", give.using(key="x")),
            await task.step("a", give.using(key="y")),
            await task.step("a[x]", give),
            await task.step("a/idempotency_key", give),
        ]
        return [*found, *(await task.step("scope", lambda: [give(), give()]))]

    keys = [*ways.resume(work, "t"), *ways.resume(work, "u")]
    assert len(set(keys)) == len(keys) == 18
    assert ways.resume(work, "t") == keys[:9]


def test_an_id_that_was_freed_and_begun_anew_has_other_idempotency_keys(ways: Ways) -> None:
    give = holdfast.step(holdfast.idempotency_key, returns=str)

    async def work(task: Any) -> Any:
        await task.make_plan(["item"])
        return [
            await task.step("item", give),
            await task.step("a", give.using(key="k")),
            await task.step("a", give),
        ]

    keys = ways.resume(work)
    ways.store.task("t").delete()
    assert set(keys).isdisjoint(ways.resume(work))


def test_a_key_asked_for_after_the_step_has_ended_is_still_its_own(ways: Ways) -> None:
    runs: list[Any] = []

    def begin() -> str:
        runs.append(holdfast.current_step())
        return holdfast.idempotency_key()

    async def work(task: Any) -> Any:
        return [await task.step(name, begin) for name in ("a", "b")]

    assert ways.resume(work) == [run.idempotency_key for run in runs]


def test_a_parameter_named_idempotency_key_is_given_the_key(ways: Ways) -> None:
    def pay(amount: int, idempotency_key: str = "") -> list[str]:
        return [idempotency_key, holdfast.idempotency_key()]

    def asked(idempotency_key: str) -> str:
        return idempotency_key

    async def work(task: Any) -> Any:
        given, own = await task.step("pay", pay, 1)
        assert given == own != ""
        assert (await task.step("mine", pay, 1, idempotency_key="mine"))[0] == "mine"
        assert (await task.step("by position", pay, 1, "mine"))[0] == "mine"
        assert await task.step("asked", asked, "mine") == "mine"
        return given

    assert ways.resume(work) == ways.resume(work)
    ways.resume(lambda task: task.step("mine", pay, 1, idempotency_key="another"))
    assert view(ways).drift == [], "it is no argument"


def test_the_task_and_the_step_are_known_inside_and_only_there(ways: Ways) -> None:
    for ask in (holdfast.current_task, holdfast.current_step, holdfast.idempotency_key):
        with pytest.raises(NoTask):
            ask()
    inner = holdfast.step(
        lambda: [holdfast.current_step().path, holdfast.current_task().id], returns=Any
    )
    inner.fn.__name__ = "inner"

    def outer() -> Any:
        run = holdfast.current_step()
        assert (run.name, run.attempt, run.cursor, repr(run)) == (
            "outer",
            1,
            None,
            "<StepRun 'outer'>",
        )
        return [inner(), run.path, holdfast.current_step().path]

    async def work(task: Any) -> Any:
        assert holdfast.current_task() is (task if ways.asynchronous else task.plain)
        for ask in (holdfast.current_step, holdfast.idempotency_key):
            with pytest.raises(NoTask):
                ask()
        found = await task.step("outer", outer)
        with pytest.raises(NoTask):
            holdfast.current_step()
        return found

    assert ways.resume(work) == [["outer/inner", "t"], "outer", "outer"]
    with pytest.raises(NoTask):
        holdfast.current_task()


def test_a_thread_of_its_own_is_in_no_task_unless_it_takes_the_context_with_it(
    store: Store,
) -> None:
    plain, once = holdfast.step(lambda: 1, returns=int), holdfast.step(lambda: 1, once=True)
    with store.task("t") as task, ThreadPoolExecutor(1) as pool:
        for ask in (holdfast.current_task, once):
            with pytest.raises(NoTask):
                pool.submit(ask).result()
        assert pool.submit(plain).result() == 1
        assert pool.submit(contextvars.copy_context().run, once).result() == 1
        assert pool.submit(contextvars.copy_context().run, holdfast.current_task).result() is task
    seen = store.get_task("t")
    assert seen is not None
    assert [step.mode for step in seen.steps] == ["once"]


# -- progress --------------------------------------------------------------------------------------


def progressed(ways: Ways) -> int:
    return [event.type for event in ways.store.task("t").history()].count("step.progressed")


@pytest.mark.parametrize(
    "end", [KeyboardInterrupt(), Stop(), ValueError("no"), StepInDoubt("t", step="x", why="is")]
)
def test_the_cursor_is_given_back_after_the_step_was_cut_off_or_failed(
    ways: Ways, end: BaseException
) -> None:
    cursors: list[Any] = []

    ends: list[BaseException | None] = [end, None]

    def read() -> str:
        step = holdfast.current_step()
        cursors.append(step.cursor)
        step.save({"page": 1})
        step.save({"page": 2}, done=2, total=9)
        assert step.cursor == {"page": 2}
        strike = ends.pop(0)
        if strike is not None:
            raise strike
        return "done"

    async def read_later() -> str:  # not in a thread: there, nobody is interrupted
        return read()

    async def work(task: Any) -> Any:
        return await task.step("a", read_later if ways.asynchronous else read)

    with pytest.raises(StepFailed if isinstance(end, ValueError) else type(end)):
        ways.resume(work)
    progress = view(ways).steps[0].progress
    assert progress is not None
    assert (progress.cursor, progress.done, progress.total) == ({"page": 2}, 2, 9)
    assert progressed(ways) == 1, "stored when the block was left"
    assert ways.resume(work) == "done"
    assert cursors == [None, {"page": 2}]
    assert view(ways).steps[0].progress is None


def test_a_cursor_is_not_given_to_a_call_with_other_arguments(ways: Ways) -> None:
    def read(url: str, cut: bool) -> Any:
        found = holdfast.current_step().cursor
        holdfast.current_step().save(f"page 7 of {url}")
        if cut:
            raise Stop
        return found

    def call(url: str, cut: bool, key: str | None) -> Any:
        made = holdfast.step(lambda url: read(url, cut), returns=Any)
        return made if key is None else made.using(key=key)

    for key in (None, "k"):
        name = f"read {key}"
        with pytest.raises(Stop):
            ways.resume(lambda task, name=name, key=key: task.step(name, call("a", True, key), "a"))
        found = ways.resume(
            lambda task, name=name, key=key: task.step(name, call("b", False, key), "b")
        )
        assert found == (None if key is None else "page 7 of a"), "a key says that it is the same"


def test_a_finished_step_that_is_run_again_begins_at_its_beginning(ways: Ways) -> None:
    def read(url: str) -> Any:
        found = holdfast.current_step().cursor
        holdfast.current_step().save(f"page 7 of {url}", flush=True)
        return found

    step = holdfast.step(read, drift="rerun", key=lambda url: "k")
    for url in ("a", "b", "c"):
        assert ways.resume(lambda task, url=url: task.step("read", step, url)) is None


def test_a_retry_has_the_cursor_too(ways: Ways, no_pause: None) -> None:
    cursors: list[Any] = []

    def read() -> int:
        step = holdfast.current_step()
        cursors.append((step.cursor, step.attempt))
        step.save(step.attempt)
        if len(cursors) < 3:
            raise ValueError("no")
        return 1

    ways.resume(lambda task: task.step("a", holdfast.step(read, max_attempts=3)))
    assert cursors == [(None, 1), (1, 2), (2, 3)]


def test_progress_is_stored_at_once_with_flush_and_else_once_in_a_while(
    ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read() -> list[int]:
        step = holdfast.current_step()
        counts = []
        for page in range(5):
            step.save(page)
        counts.append(progressed(ways))
        step.save(5, done=1, total=2, flush=True)
        counts.append(progressed(ways))
        seen = view(ways).steps[0]
        assert (seen.status, seen.progress.cursor if seen.progress else None) == ("running", 5)
        step.save(6)
        counts.append(progressed(ways))
        monkeypatch.setattr(step, "_saved_at", time.monotonic() - _progress.PROGRESS_SECONDS - 1)
        step.save(7)
        counts.append(progressed(ways))
        step.save(8)
        counts.append(progressed(ways))
        return counts

    assert ways.resume(lambda task: task.step("a", read)) == [0, 1, 1, 2, 2]
    assert progressed(ways) == 2, "what was done is of no interest any more"


def test_the_heartbeat_stores_progress_that_is_old(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        mine = task if ways.asynchronous else task.plain

        def read() -> int:
            step = holdfast.current_step()
            step.save(1)
            mine._beat(mine._entry)
            before = progressed(ways)
            step._saved_at = time.monotonic() - 61
            mine._beat(mine._entry)
            mine._beat(mine._entry)
            return progressed(ways) - before

        return await task.step("a", read)

    assert ways.resume(work) == 1


def test_the_start_of_a_long_step_is_stored_by_the_heartbeat(ways: Ways) -> None:
    async def work(task: Any) -> Any:
        mine = task if ways.asynchronous else task.plain

        def long() -> Any:
            mine._beat(mine._entry)
            before = [step.path for step in view(ways).steps]
            for path, (change, _, origin) in list(mine._session.writer.pending.changes.items()):
                mine._session.writer.pending.changes[path] = (change, time.monotonic() - 2, origin)
            mine._beat(mine._entry)
            [seen] = view(ways).steps
            return [before, seen.path, seen.status]

        return await task.step("a", long)

    assert ways.resume(work) == [[], "a", "running"]
    [step] = view(ways).steps
    assert step.status == "completed"
    assert [event.type for event in ways.store.task("t").history()][2:4] == [
        "step.started",
        "step.completed",
    ]


def test_awaited_progress_is_stored(url: str) -> None:
    async def main() -> None:
        async with holdfast.aopen(url) as store:

            async def read() -> list[Any]:
                step = holdfast.current_step()
                await step.save(1)
                found = [(await store.get_task("t")).steps]  # type: ignore[union-attr]
                await step.save(2, flush=True)
                seen = await store.get_task("t")
                assert seen is not None and seen.steps[0].progress is not None
                return [len(found[0]), seen.steps[0].progress.cursor]

            async with store.task("t") as task:
                assert await task.step("a", read) == [0, 2]

    asyncio.run(main())


@ON_MEMORY
def test_what_is_saved_while_something_older_is_written_is_not_lost(url: str) -> None:
    async def main() -> None:
        async with holdfast.aopen(url) as store:

            async def read() -> None:
                step = holdfast.current_step()
                older = step.save(1, flush=True)
                step.save(2)
                await older
                raise Stop

            with pytest.raises(Stop):
                async with store.task("t") as task:
                    await task.step("a", read)
            seen = await store.get_task("t")
            assert seen is not None and seen.steps[0].progress is not None
            assert seen.steps[0].progress.cursor == 2

    asyncio.run(main())


@pytest.mark.parametrize("wrong", [object(), {1: 2}, float("inf"), "\ud800"])
def test_a_cursor_that_cannot_be_stored_is_refused(ways: Ways, wrong: Any) -> None:
    def read() -> Any:
        holdfast.current_step().save(1)
        with pytest.raises(NotSerializable):
            holdfast.current_step().save(wrong)
        return holdfast.current_step().cursor

    assert ways.resume(lambda task: task.step("a", read)) == 1


@pytest.mark.every_engine
def test_sigterm_stores_progress_and_gives_the_lease_back(durable_url: str, tmp_path: Path) -> None:
    program = (
        "import os, sys, time, holdfast\n"
        "def read():\n"
        "    holdfast.current_step().save(42)\n"
        "    print('here', flush=True)\n"
        "    for _ in range(6000):  # a signal right before one long sleep is heard only after it\n"
        "        time.sleep(0.01)\n"
        "with holdfast.open(sys.argv[1], key=os.environ.get('HOLDFAST_KEY')) as store, "
        "store.task('t') as task:\n"
        "    task.step('a', read)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, durable_url], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process, process.stdout:
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    with holdfast.open(durable_url) as store:
        seen = store.get_task("t")
        assert seen is not None
        assert (seen.status, seen.owner) == ("pending", None)
        assert seen.steps[0].progress is not None
        assert seen.steps[0].progress.cursor == 42
        with store.task("t", wait=0) as task:
            assert task.step("a", lambda: holdfast.current_step().cursor) == 42


def test_a_handler_of_the_programs_own_is_left_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sigterm, "_blocks", {})  # whatever other tests have left open
    before = signal.getsignal(signal.SIGTERM)
    heard: list[int] = []
    try:
        signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
        with store.task("t"):
            os.kill(os.getpid(), signal.SIGTERM)
        assert heard == [signal.SIGTERM]
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with store.task("t"):
            with store.task("u"):
                assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


# -- forked processes ------------------------------------------------------------------------------


@pytest.mark.every_engine
def test_a_forked_child_is_in_no_task_and_cannot_write_for_its_parent(durable_url: str) -> None:
    program = (
        "import os, sys, holdfast\n"
        "once = holdfast.step(lambda: 1, once=True)\n"
        "with holdfast.open(sys.argv[1], key=os.environ.get('HOLDFAST_KEY')) as store, "
        "store.task('t') as task:\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        code = 0\n"
        "        for call, error in ((once, holdfast.errors.NoTask), (holdfast.current_task, "
        "holdfast.errors.NoTask),\n"
        "                            (lambda: task.step('a', lambda: 'child'), "
        "holdfast.errors.LeaseLost)):\n"
        "            try:\n"
        "                call()\n"
        "                code += 1\n"
        "            except error:\n"
        "                pass\n"
        "        os._exit(code)\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "    assert task.step('a', lambda: 'parent') == 'parent'\n"
    )
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, durable_url], check=True, timeout=60
    )
