"""The processes of `test_tasks_leases.py`. They print a line for each thing they have done or were
refused.

They continue after a line of input. A step returns the id of the process that ran it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import holdfast
from holdfast import Store
from holdfast.errors import LeaseHeld, LeaseLost
from holdfast.log import leases
from holdfast.log.log import Log

from .agent30 import World
from .task_kills import KillPlan, MortalFiles, MortalSQLite, boundaries_of

LIFETIME_SECONDS = 120
SHORT, LONG = 0.3, 3600.0
"""Leases: one that a test can wait for, and one that it cannot."""


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def wait_for_word() -> str:
    line = sys.stdin.readline()
    if not line:
        os._exit(2)  # whoever was to tell us is gone
    return line.strip()


def mark() -> int:
    return os.getpid()


def attempt(what: str, call: Callable[[], object]) -> None:
    try:
        call()
    except holdfast.HoldfastError as error:
        say(f"{what}: {type(error).__name__}")
    else:
        say(f"{what}: done")


def attempt_everything(task: holdfast.Task) -> None:
    """Everything that a lease owner can write."""
    attempt("step", lambda: task.step("late", mark))
    attempt("once", lambda: task.step("late once", holdfast.step(mark, once=True)))
    attempt("decide", lambda: task.decide("late"))
    attempt("discover", lambda: task.discover("late"))
    attempt("plan", lambda: task.make_plan(["late"]))
    attempt("replan", lambda: task.replan(["late"]))
    attempt("chat", lambda: task.conversation().append({"role": "user", "content": "late"}))
    attempt("fail", lambda: task.fail("late"))
    attempt("finish", lambda: task.finish("late"))


def between(url: str) -> None:
    """Stopped between two steps."""
    with holdfast.open(url) as store:
        with store.task("t", lease=SHORT) as task:
            task.step("first", mark)
            say("began")
            wait_for_word()
            attempt_everything(task)
        say("left")


def inside(url: str) -> None:
    """Stopped while the function of a step runs, that has saved how far it has got."""

    def slow() -> int:
        step = holdfast.current_step()
        step.save(1, flush=True)
        say("inside")
        wait_for_word()
        attempt("save", lambda: step.save(2, flush=True))
        return os.getpid()

    with holdfast.open(url) as store:
        with store.task("t", lease=SHORT) as task:
            attempt("slow step", lambda: task.step("slow", slow))
            attempt_everything(task)
        say("left")


class Pause(KillPlan):
    """Reports that it is at a boundary, and waits there for a line of input; once."""

    def __init__(self, boundary: str) -> None:
        super().__init__(World(Path(os.devnull)), boundary)
        self.over = threading.Event()

    def is_due(self, place: str, names: Sequence[str]) -> bool:
        if self.target in boundaries_of(place, names):
            self.target = None
            say("paused")
            wait_for_word()
            self.over.set()
        return False


def pausing(url: str, pause: Pause) -> Store:
    if url.startswith("file://"):
        return Store(Log(MortalFiles(Path(url.removeprefix("file://")), pause)), "default")
    return Store(Log(MortalSQLite(Path(url), pause)), "default")


def appending(url: str, boundary: str) -> None:
    """Stopped inside the append that completes a step."""
    with pausing(url, Pause(boundary)) as store:
        with store.task("t", lease=SHORT) as task:
            task.step("first", mark)
            attempt("second", lambda: task.step("second", mark))
            attempt_everything(task)
        say("left")


def appending_on(url: str, boundary: str) -> None:
    """The same, but it does nothing more."""

    def work() -> None:
        with store.task("t", lease=SHORT) as task:
            task.step("first", mark)
            attempt("second", lambda: task.step("second", mark))

    with pausing(url, Pause(boundary)) as store:
        attempt("leave", work)


def beating(url: str, boundary: str) -> None:
    """Stopped while its lease is renewed."""
    pause = Pause(boundary)

    def idle() -> int:
        pause.over.wait()
        return os.getpid()

    with pausing(url, pause) as store:
        with store.task("t", lease=SHORT) as task:
            attempt("idle step", lambda: task.step("idle", idle))
            attempt_everything(task)
        say("left")


def threads(url: str, boundary: str) -> None:
    """Stopped with several threads writing, each until it is refused."""

    def write(name: str) -> None:
        number = 0
        while True:
            number += 1
            try:
                task.step(f"{name} {number}", mark)
            except LeaseLost:
                say(f"{name}: LeaseLost")
                return
            say(f"{name} {number}")

    with pausing(url, Pause(boundary)) as store:
        with store.task("t", lease=SHORT) as task:
            writers = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
            for writer in writers:
                writer.start()
            for writer in writers:
                writer.join()
            attempt_everything(task)
        say("left")


def robbed(url: str) -> None:
    """Holds the task for long; somebody steals it meanwhile."""
    with holdfast.open(url) as store:
        with store.task("t", lease=LONG) as task:
            task.step("first", mark)
            say("began")
            wait_for_word()
            attempt_everything(task)
        say("left")


def elsewhere(url: str, lease: str) -> None:
    """A lease owner that looks like one on another machine."""
    leases._host = lambda: "elsewhere"  # type: ignore[assignment]
    with holdfast.open(url) as store:
        with store.task("t", lease=float(lease)) as task:
            task.step("first", mark)
            say("began")
            wait_for_word()


def forking(url: str) -> None:
    """A fork of the lease owner tries everything; then the lease owner continues."""
    with holdfast.open(url) as store:
        with store.task("t", lease=LONG) as task:
            task.step("first", mark)
            child = os.fork()
            if child == 0:
                attempt_everything(task)
                attempt("current task", holdfast.current_task)
                attempt("leave", lambda: task.__exit__(None, None, None))
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            attempt("parent", lambda: task.step("second", mark))
            attempt("parent finish", lambda: task.finish("by the parent"))
        say("left")


def racing(url: str, times: str) -> None:
    """Enter, do two steps, leave; again and again, as fast as possible."""
    with holdfast.open(url) as store:
        say("ready")
        wait_for_word()
        for number in range(int(times)):
            with store.task("t", lease=LONG, wait=60) as task:
                for part in "ab":
                    task.step(f"{os.getpid()} {number} {part}", mark)
        say("done")


def hoarding(url: str, count: str) -> None:
    """Holds many tasks, until it is killed."""
    with holdfast.open(url) as store, ExitStack() as held:
        for number in range(int(count)):
            held.enter_context(store.task(f"t{number}", lease=LONG))
        say("began")
        wait_for_word()


def contending(url: str) -> None:
    """Try to get the tasks that it is told of, without waiting; hold what it gets until told of the
    next."""
    with holdfast.open(url) as store:
        say("ready")
        name = wait_for_word()
        while name != "end":
            try:
                with store.task(name, lease=LONG, wait=0) as task:
                    task.step("mine", mark)
                    say(f"won {os.getpid()}")
                    name = wait_for_word()
            except LeaseHeld:
                say("held")
                name = wait_for_word()


def main() -> None:
    signal.alarm(LIFETIME_SECONDS)
    programs = (between, inside, appending, appending_on, beating, threads, robbed, elsewhere,
        forking, racing, hoarding, contending)  # fmt: skip
    {program.__name__: program for program in programs}[sys.argv[1]](*sys.argv[2:])
